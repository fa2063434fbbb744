"""What a proof waits for at its last step, what it says meanwhile, and what it says of scripts that it cannot prove."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from resume_trainings import course

from overnight.errors import UsageError
from overnight.resumeproof import following, proving, trial
from overnight.resumeproof.following import Saved
from overnight.resumeproof.parts import Parts
from overnight.resumeproof.proving import Proving
from overnight.resumeproof.trial import UNREAD_LINES, UNREAD_S, Trial
from overnight.resumeproof.variants import Variants
from overnight.resumeproof.words import Resumed


class Saves:
    """Saves as a follower sees them; set by the test."""

    def __init__(self, *steps: int, busy: bool = False, settled: bool = True) -> None:
        self.steps, self.busy, self.settled = list(steps), busy, settled


@pytest.mark.parametrize(
    ("saves", "step", "late", "expected"),
    [
        (Saves(20, 40), 60, False, False),  # one may be begun yet
        (Saves(20, 40), 61, False, True),  # there was none
        (Saves(20, 40, busy=True), 61, False, False),
        (Saves(20, 40, busy=True), 60, True, False),  # begun is not given up
        (Saves(20, 40), 60, True, True),
        (Saves(20, 40, 60, settled=False), 60, False, False),  # a second file may follow
        (Saves(20, 40, 60), 60, False, True),
        (Saves(), None, False, False),
    ],
)
def test_a_save_of_the_last_step_is_waited_for(
    saves: Saves, step: int | None, late: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(following, "boot_clock", lambda: now[0])
    asked = Saved(cast("Any", SimpleNamespace(saves=saves, step=step)), 60, 5.0)
    now[0] += 6.0 if late else 1.0
    assert asked() is expected


class Part:
    """A part that has come to its last step, and makes a save of it, or none, when it is waited for."""

    def __init__(self, *saves: int, busy: bool = False, makes: int | None = None) -> None:
        self.follower = SimpleNamespace(library=False, saves=Saves(*saves, busy=busy), step=60)
        self.place, self.began, self.patience_s = SimpleNamespace(workdir="/nowhere"), 0.0, 5.0
        self.makes, self.waited, self.stopped = makes, False, False

    def seen(self, step: int, *, until: object = None) -> bool:
        if until is not None:
            self.waited = True
            self.follower.saves.steps += [] if self.makes is None else [self.makes]
        return step == 60 or until is not None

    def stop(self, *, now: bool) -> None:
        self.stopped = now

    def end(self) -> None:
        assert self.stopped


@pytest.mark.parametrize(("makes", "later"), [(60, True), (None, False)])
def test_the_first_run_tells_whether_the_others_are_waited_for(makes: int | None, *, later: bool) -> None:
    parts = Parts(cast("Any", None), cast("Any", None), cast("Any", None), lambda _: None, stop_at=50, until=60)
    waited = []
    for part in (Part(20, 40, makes=makes), Part(20, 40, makes=makes), Part(20, 40, busy=True, makes=makes)):
        parts.to_the_end(cast("Any", part))
        waited.append(part.waited)
    assert waited == [True, later, True]  # one that goes on is waited for in any case
    assert parts.saves_at_end is later


# What is said meanwhile


def hints(step: int | None, *looks: tuple[float, int]) -> list[str | None]:
    part = SimpleNamespace(_hint_at=UNREAD_S, spec=SimpleNamespace(log="/r/output.log"), follower=SimpleNamespace())
    found = []
    for now, lines in looks:
        part.follower.lines = lines
        found.append(Trial._hint(cast("Any", part), now, step))
    return found


def test_that_no_step_is_read_is_said_once_after_so_much_time_and_so_many_lines() -> None:
    early, few = (UNREAD_S - 0.1, 10 * UNREAD_LINES), (UNREAD_S + 1.0, UNREAD_LINES - 1)
    enough = (UNREAD_S + 2.0, UNREAD_LINES)
    said = hints(None, early, few, enough, (900.0, 90_000))
    assert said[:2] == [None, None]
    assert said[2] is not None
    assert f"no step was read in {UNREAD_LINES} lines so far; `overnight read /r/output.log`" in said[2]
    assert said[3] is None
    assert hints(7, enough, (900.0, 90_000)) == [None, None]
    assert trial.UNREAD_S == 30.0


# What cannot be proved


def test_steps_that_begin_anew_without_an_epoch_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SimpleNamespace(home=str(tmp_path))
    question = SimpleNamespace(asked=asked, stop_at=None, until=None)
    one = Proving(cast("Any", question), cast("Any", None), cast("Any", None), lambda _: None)
    series = course({step: {"loss": 2.0} for step in range(1, 121)})
    first = SimpleNamespace(ran=SimpleNamespace(course=series, name="unbroken-1"), reached=120, library=False)
    monkeypatch.setattr(proving, "begins_again", lambda folder: 50 if folder.path.name == "unbroken-1" else None)
    with pytest.raises(UsageError) as caught:
        one._settle_steps(cast("Any", first))
    assert "the steps begin anew after step 50, and no line says which epoch it is" in str(caught.value)
    assert "give --stop-at and --until below 50" in str(caught.value)
    monkeypatch.setattr(proving, "begins_again", lambda _: None)
    one._settle_steps(cast("Any", first))
    assert (one.parts.stop_at, one.parts.until) == (100, 110)


def advice(*saved: int, on_signal: bool) -> str:
    first = SimpleNamespace(library=False, left=(), ran=SimpleNamespace(save_steps=saved))
    variants = Variants(cast("Any", SimpleNamespace(until=60)), cast("Any", first), cast("Any", first))
    variants.on_signal = on_signal
    return variants._advice("kill")


def test_a_script_that_saves_only_when_asked_to_stop_is_told_what_it_loses() -> None:
    assert "it saves only when it is asked to stop" in advice(on_signal=True)
    assert "--stop-at 31 or later" in advice(30, on_signal=True)
    nothing = advice(on_signal=False)
    assert "no save was seen up to step 60" in nothing
    assert "{workdir} in the command if it saves to another place" in nothing


def judged(*, passed: bool, steps: tuple[int, ...], saves_at_end: bool | None) -> Any:
    """Tell of a run that was resumed from step 40, whose states of these steps were compared."""
    first = SimpleNamespace(library=False, ran=SimpleNamespace(save_steps=(20, 40), course=course({1: {"loss": 2.0}})))
    parts = SimpleNamespace(until=60, stop_at=50, saves_at_end=saves_at_end)
    variants = Variants(cast("Any", parts), cast("Any", first), cast("Any", first))
    judgement = SimpleNamespace(
        passed=passed, cause=None, also=(), text="Equal.", step=None, metric=None, unbroken=None, resumed=None,
        compared=9, equal=9, floor={}, left_out={}, notes=(),
    )  # fmt: skip
    after = course({41: {"loss": 2.0}})
    resumed = Resumed(
        how="kill", before=after, after=after, stopped_at=50, exact=False, checkpoint="/c/40", checkpoint_step=40,
        checkpoint_keys=(), saved_on_signal=None, load_error=None,
    )  # fmt: skip
    chosen = SimpleNamespace(path="/c/40", step=40, maker="torch")
    states = [SimpleNamespace(step=step) for step in steps]
    return variants._told(resumed, cast("Any", SimpleNamespace(chosen=chosen)), cast("Any", judgement), states)


def test_a_pass_says_what_it_has_not_seen() -> None:
    blind = judged(passed=True, steps=(40,), saves_at_end=False)
    assert "Nothing that the resumed run saved was compared: weights, an average of them (EMA)" in blind.text
    assert "give an --until at which the script saves, as it does after steps 20 and 40" in blind.notes[-1]
    lost = judged(passed=True, steps=(), saves_at_end=True)
    assert "give an --until" not in lost.notes[-1]
    assert "the save of step 60 could not be compared" in lost.notes[-1]
    whole = judged(passed=True, steps=(40, 60), saves_at_end=True)
    assert (whole.text, whole.notes) == ("Equal.", ())
    assert judged(passed=False, steps=(), saves_at_end=True).notes == ()
