"""What a resume proof is told as: its first word, what is counted, and how one is told that a resume never was."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.cli.verifypage import changes_text, proof_text
from overnight.resumeproof.evidence import From, Proof, Variant
from overnight.resumeproof.words import PartDifference, StateComparison


def shown(**more: Any) -> str:
    given = {"how": "kill", "passed": False, "cause": None, "also": (), "text": "so it is", "compared": 180, **more}
    one = Variant(**{"equal": given["compared"], **given})
    return proof_text(Proof(command=("t",), passed=one.passed, until=20, stop_at=10, variants=(one,)))


def state(step: int, compared: int, *, equal: bool = True) -> StateComparison:
    differences = () if equal else (PartDifference(part="optimizer", names=("a",), count=1, of=compared),)
    return StateComparison(step=step, equal=equal, differences=differences, compared=compared, left_out=())


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"cause": "nothing_saved"}, "nothing was resumed: 180 of 180 equal, as of any run that begins anew"),
        ({"cause": "nothing_saved", "passed": None}, "nothing was resumed: 180 of 180 equal, as of any"),
        ({"cause": "nothing_saved", "equal": 3}, "nothing was resumed: 3 of 180 equal"),
        ({"cause": "not_resumed"}, "nothing was resumed: 180 of 180 equal"),
        ({"cause": "not_resumed", "equal": 3}, "values    3 of 180 equal"),
        ({"passed": True}, "values    180 of 180 equal"),
        ({"compared": 0}, "values    none could be compared"),
        ({"cause": "ema_or_buffers"}, "values    180 of 180 equal"),
    ],
)
def test_equal_values_are_no_good_sign_where_nothing_was_resumed(more: dict[str, Any], line: str) -> None:
    (found,) = [text for text in shown(**more).replace("\n            ", " ").splitlines() if " of 180" in text
                or "none could" in text]  # fmt: skip
    assert line in found


@pytest.mark.parametrize(
    ("states", "line"),
    [
        ((state(10, 1),), "step 10: the one value is equal, bit by bit"),
        ((state(10, 7),), "step 10: all 7 tensors and values are equal, bit by bit"),
        ((state(10, 7), state(15, 7)), "steps 10, 15: all 14 tensors and values are equal, bit by bit"),
        ((state(10, 7, equal=False),), "step 10: optimizer: 1 of 7 differ"),
    ],
)
def test_states_are_counted(states: tuple[StateComparison, ...], line: str) -> None:
    assert line in shown(passed=True, states=states, resumed_from=From(path="/c/10", step=10, maker="torch"))


def test_what_changed_is_told_without_the_rest() -> None:
    proof = Proof(command=("t",), refused="no", changed=tuple(f"/a/{number}\x1b[2J is new" for number in range(14)))
    lines = changes_text(proof)
    assert lines[0] == "changed during the proof: /a/0 is new"
    assert lines[-1] == "and 2 more changed"
    assert changes_text(Proof(command=("t",), refused="no")) == []


def test_a_pass_within_a_floor_says_so_in_one_line() -> None:
    one = Variant(
        how="kill", passed=True, cause=None, also=(), text="so it is", compared=9, equal=9, states=(state(123_460, 7),),
        resumed_from=From(path="/c/10", step=10, maker="torch"),
    )  # fmt: skip
    text = proof_text(
        Proof(command=("t",), passed=True, until=123_466, stop_at=123_456, variants=(one,), floor={"a": 0.1})
    )
    assert text.splitlines()[0] == "PASS  all is within the floor: stopped at step 123456, compared up to step 123466"
    assert "a step may differ by a 0.1" in text


def test_states_that_are_equal_are_no_good_sign_where_nothing_was_resumed() -> None:
    assert "bit by bit" not in shown(cause="nothing_saved", states=(state(8, 7),))


@pytest.mark.parametrize(
    ("states", "begun", "seen"),
    [((state(20, 7),), 10, True), ((state(10, 7),), 10, False), ((), 10, False), ((state(20, 7),), None, True)],
)
def test_a_pass_without_a_state_saved_after_resuming_says_so_in_its_first_words(
    states: tuple[StateComparison, ...], begun: int | None, *, seen: bool
) -> None:
    text = shown(passed=True, states=states, resumed_from=From(path="/c/10", step=begun, maker="torch"))
    first = " ".join(text.partition("/t")[0].split("\n      t")[0].split())
    assert ("the resume is exact" in first) is seen
    assert ("no state saved after resuming was compared (killed)" in first) is not seen
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("names", "said"), [("ab", "the other one has to be equal"), ("abc", "the other 2 have to")])
def test_what_is_left_beside_a_floor_is_counted(names: str, said: str) -> None:
    floor = {name: 0.1 if name == "a" else 0.0 for name in names}
    one = Variant(how="kill", passed=True, cause=None, also=(), text="so it is", compared=9, equal=9)
    text = proof_text(Proof(command=("t",), passed=True, until=20, stop_at=10, variants=(one,), floor=floor))
    assert said in " ".join(text.split())
