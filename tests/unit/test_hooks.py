"""What --on-end means, which hooks an end is for, and how many events a minute are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overnight.folder import RunFolder
from overnight.hooks.files import (
    KEY,
    command_of,
    environment,
    is_end,
    is_numbered,
    number_of,
    parse_on_end,
    payload_of,
    sentence,
    wanted,
)
from overnight.hooks.folding import Fold
from overnight.quantities import RefusedError
from overnight.spec import RunSpec
from overnight.states import FAILURES, LIMITS


@pytest.mark.parametrize(
    ("text", "command", "outcome"),
    [
        ("sudo poweroff", "sudo poweroff", "always"),
        ("sudo poweroff:success", "sudo poweroff", "success"),
        ("  touch a :failure ", "touch a", "failure"),
        ("echo a:limit", "echo a", "limit"),
        ("echo a:stopped", "echo a", "stopped"),
        ("echo a:always", "echo a", "always"),
        ("curl http://localhost:8080", "curl http://localhost:8080", "always"),
        ("curl http://localhost:8080/x:failure", "curl http://localhost:8080/x", "failure"),
        ("scp model host:data", "scp model host:data", "always"),
        ("echo a:succes:always", "echo a:succes", "always"),
        ("echo :success:failure", "echo :success", "failure"),
        ("echo a:", "echo a:", "always"),
        ("success", "success", "always"),
    ],
)
def test_only_an_outcome_counts_as_a_suffix(text: str, command: str, outcome: str) -> None:
    assert parse_on_end(text) == (command, outcome)


@pytest.mark.parametrize("text", ["echo a:Success", "echo a:succes", "echo a:limits", "echo a:stoped"])
def test_a_misspelt_outcome_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="did you mean"):
        parse_on_end(text)


@pytest.mark.parametrize("text", ["", "  ", ":success", "  :always ", "\n:limit"])
def test_a_hook_without_a_command_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^\s*(:\w+)?\s*$"):
        parse_on_end(text)


ENDS = [
    ("finished", "completed", "success"),
    ("finished", "bad_teardown", "success"),
    *(("failed", cause, "failure") for cause in sorted(FAILURES)),
    ("gave_up", "crash", "failure"),
    ("gave_up", "nonfinite", "failure"),
    *(("stopped", rule, "failure") for rule in ("nonfinite", "divergence", "collapse", "stall", "rule of the user's")),
    *(("stopped", limit, "limit") for limit in sorted(LIMITS)),
    ("stopped", "user", "stopped"),
    ("stopped", "preempted", "stopped"),
]


@pytest.mark.parametrize(("state", "cause", "right"), ENDS)
def test_each_end_is_for_one_outcome(state: str, cause: str, right: str) -> None:
    said = [outcome for outcome in ("success", "failure", "limit", "stopped") if wanted(outcome, state, cause)]
    assert said == [right]
    assert wanted("always", state, cause)


def told(fold: Fold, times: list[float]) -> list[bool]:
    return [fold.offer("verdict", at, {"number": number}) for number, at in enumerate(times)]


def test_four_events_are_told_and_ninety_six_are_counted() -> None:
    fold = Fold()
    assert told(fold, [at / 100 for at in range(100)]) == [True] * 4 + [False] * 96
    assert fold.take(59.99) is None
    assert fold.due_s(59.0) == pytest.approx(1.0)
    assert fold.due_s(61.0) == 0.0
    assert fold.take(60.0) == {"count": 96, "kinds": {"verdict": 96}, "last": {"event": "verdict", "number": 99}}
    assert fold.take(120.0) is None
    assert fold.due_s(60.0) is None


def test_few_events_are_never_held() -> None:
    assert all(told(Fold(), [20.0 * number for number in range(50)]))


def test_no_minute_has_more_than_four() -> None:
    fold, times = Fold(), []
    for tenth in range(6000):
        now = tenth / 10
        if fold.offer("restart", now, {}) if tenth % 7 == 0 else fold.take(now) is not None:
            times.append(now)
    assert len(times) >= 36
    assert all(later - earlier >= 60.0 for earlier, later in zip(times, times[4:], strict=False))


def test_while_something_is_held_nothing_overtakes_it() -> None:
    fold = Fold(limit=1, period_s=10.0)
    assert told(fold, [0.0, 1.0, 11.0]) == [True, False, False]
    assert (fold.take(11.0) or {})["count"] == 2


def test_kinds_are_counted_and_what_is_to_wait_waits() -> None:
    fold = Fold()
    assert not fold.offer("verdict", 0.0, {}, hold=True)
    assert not fold.offer("restart", 0.0, {"n": 1})
    assert fold.flush() == {"count": 2, "kinds": {"verdict": 1, "restart": 1}, "last": {"event": "restart", "n": 1}}
    assert fold.flush() is None


def test_another_one_goes_on_where_it_was() -> None:
    one, other = Fold(), Fold()
    told(one, [100.0, 101.0, 102.0, 103.0, 104.0])
    other.restore(json.loads(json.dumps({"times": one.times, "held": one.held})), 105.0)
    assert other.take(159.0) is None
    assert (other.take(160.0) or {})["count"] == 1
    later = Fold()  # after a start of the machine its clock begins anew
    later.restore({"times": one.times, "held": one.held}, 5.0)
    assert (later.take(5.0) or {})["count"] == 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"exit_code": 0, "output": "sent\n"}, "exited 0: sent"),
        ({"exit_code": 22, "output": "a\n\x1b[31mno\x07 way\x1b[0m\n\n"}, "exited 22: [31mno  way [0m"),
        ({"exit_code": None, "signal": "SIGSEGV", "output": ""}, "was ended by SIGSEGV"),
        ({"exit_code": None, "signal": "SIGKILL", "timed_out": True}, "took longer than 60 s and was ended"),
        ({"error": "it cannot be started: no"}, "it cannot be started: no"),
        ({"exit_code": "x", "output": 7}, "exited x: 7"),
    ],
)
def test_an_end_in_one_sentence(result: dict[str, Any], said: str) -> None:
    assert sentence(result, 60.0) == said


def test_a_last_line_is_short() -> None:
    assert len(sentence({"exit_code": 1, "output": "x" * 2000}, 60.0)) < 250


def test_keys_say_which_command_they_stand_for() -> None:
    spec = RunSpec(
        name="a", argv=("b",), executable="b", cwd="/", log="/l", on_event=("e1", "e2"), on_end=("x:limit", "y")
    )
    keys = {"end-001-1": "x", "end-001-2": "y", "event-000012-1": "e1", "event-end-001-2": "e2"}
    keys["event-failed-001-2-1"] = "e1"
    assert {key: command_of(spec, key) for key in keys} == keys
    assert all(KEY.fullmatch(key) for key in keys)
    assert [key for key in keys if is_end(key)] == ["end-001-1", "end-001-2"]
    assert [key for key in keys if is_numbered(key)] == ["event-000012-1"]
    assert not any(KEY.fullmatch(name) for name in ("held", "end-1", "end-001-1.result", "../end-001-1", "event-1-1"))
    assert number_of("end-001-12") == 12


def test_what_is_told_has_no_words_of_the_command(tmp_path: Path) -> None:
    status = {"state": "running", "argv": ["train", "--token=abc"], "cause_text": None, "step": 7, "loss": float("nan")}
    payload = payload_of(RunFolder(tmp_path / "a"), "verdict", status, {"verdict": {"text": "loss is NaN"}})
    assert payload["text"] == "loss is NaN"
    assert payload["step"] == 7
    assert "argv" not in payload
    assert "abc" not in str(payload)


def test_any_text_fits_into_an_environment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.hooks.mkdir(parents=True)
    payload = {"event": "end", "text": "a\0b \ud800 \u00fc" + "x" * 9999, "step": 3, "checkpoint": {"path": "/c\udcff"}}
    (folder.hooks / "end-001-1.json").write_text(json.dumps(payload))
    environ = environment(folder, "end-001-1")
    assert environ[b"OVERNIGHT_TEXT"].startswith("ab ? ü".encode())
    assert len(environ[b"OVERNIGHT_TEXT"]) < 1100
    assert environ[b"OVERNIGHT_STEP"] == b"3"
    assert environ[b"OVERNIGHT_CAUSE"] == b""
    assert environ[b"OVERNIGHT_LAST_CHECKPOINT"] == b"/c\xff"
    assert environ[b"OVERNIGHT_ROLE"] == b"hook"
