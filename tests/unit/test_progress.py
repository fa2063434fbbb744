"""How long nothing has moved: on a clock that counts only what was watched, learned gaps, announced silences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overnight.monitor import Monitor
from overnight.progress import LATE_S, Progress
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

SPEC = RunSpec(name="n", argv=("true",), executable="/bin/true", cwd="/", log="/l", steps=100)


class Night:
    """A training and the one who watches it, on a clock that the test moves."""

    def __init__(self, remembered: dict[str, Any] | None = None, at: float = 1000.0, spec: RunSpec = SPEC) -> None:
        self.at = at
        self.monitor: Monitor = make_monitor(spec, pytest.fail)
        self.monitor.begin_attempt(1)
        self.monitor.remembered = remembered or {}
        self.progress = Progress(self.monitor, log="/l", clock=self._clock)
        self.grew_at = 0.0
        if not remembered:
            self.progress.begin_attempt(1)
        self.turn(0.0)

    def _clock(self) -> float:
        return self.at

    def turn(self, seconds: float, line: str | None = None, *, asked_s: float | None = None) -> None:
        """Sleep, and find a line in the log (or nothing)."""
        self.at += seconds
        self.progress.tick(seconds if asked_s is None else asked_s)
        if line is not None:
            self.monitor.feed(line.encode() + b"\n", 0.0)
            self.grew_at += 1
        self.progress.look(log_grew_at=self.grew_at, saved=False, command=None)

    def steps(self, first: int, last: int, every_s: float) -> None:
        """Train for some steps."""
        for step in range(first, last + 1):
            self.turn(every_s, f"step: {step}, loss: 3.0, dt: {every_s}")


def test_silence_grows_until_a_new_step() -> None:
    night = Night()
    night.steps(1, 5, 0.25)
    night.turn(20.0)
    night.turn(20.0)
    quiet = night.progress.quiet(saving=False)
    assert (quiet.step_s, quiet.log_s, quiet.file_s, quiet.stepped, quiet.planned) == (40.0, 40.0, 40.0, True, False)
    assert quiet.largest_gap_s == 0.25
    night.turn(1.0, "a warning that is no progress")
    quiet = night.progress.quiet(saving=False)
    assert (quiet.step_s, quiet.log_s, quiet.file_s) == (41.0, 0.0, 0.0)
    night.turn(1.0, "step: 5, loss: 3.0, dt: 0.25")
    assert night.progress.silent_s() == 42.0, "the same step once more is no progress"
    night.turn(1.0, "step: 6, loss: 3.0, dt: 0.25")
    assert night.progress.silent_s() == 0.0


def test_the_way_to_the_first_step_is_no_normal_gap() -> None:
    night = Night()
    night.turn(400.0)
    assert not night.progress.quiet(saving=False).stepped
    night.steps(1, 3, 2.0)
    assert night.progress.quiet(saving=False).largest_gap_s == 2.0


@pytest.mark.parametrize("jump_s", [3 * 3600.0, 90.0])
def test_time_in_which_nobody_watched_does_not_count(jump_s: float) -> None:
    """A machine that was suspended or paused for hours: the supervisor had asked for twenty seconds of sleep."""
    night = Night()
    night.steps(1, 5, 0.25)
    night.turn(jump_s, asked_s=20.0)
    assert night.progress.silent_s() == 20.0 + LATE_S
    night.turn(-jump_s, asked_s=20.0)
    assert night.progress.silent_s() == 20.0 + LATE_S, "a clock that goes back makes nothing younger"


def test_announced_silence_is_known_and_no_normal_gap() -> None:
    night = Night()
    night.steps(1, 5, 0.25)
    night.turn(1.0, "Evaluating on 5000 samples ...")
    night.turn(100.0)
    quiet = night.progress.quiet(saving=False)
    assert (quiet.phase, quiet.phase_s, quiet.step_s) == ("evaluating", 100.0, 101.0)
    night.steps(6, 8, 0.25)
    quiet = night.progress.quiet(saving=False)
    assert (quiet.phase, quiet.largest_gap_s) == (None, 0.25)


def test_a_save_in_progress_is_a_phase() -> None:
    night = Night()
    night.steps(1, 5, 0.25)
    night.turn(30.0)
    assert night.progress.quiet(saving=True).phase == "saving"
    assert night.progress.quiet(saving=False).phase is None


def test_the_planned_end_is_told() -> None:
    night = Night()
    night.steps(1, 100, 0.25)
    assert night.progress.quiet(saving=False).planned


@pytest.mark.parametrize("dead_s", [1.0, 40.0])
def test_another_supervisor_goes_on_with_what_was_learned(dead_s: float) -> None:
    night = Night()
    night.steps(1, 5, 3.0)
    night.turn(50.0)
    later = Night(night.monitor.snapshot()["remembered"], night.at + dead_s)
    quiet = later.progress.quiet(saving=False)
    assert (quiet.step_s, quiet.largest_gap_s, quiet.stepped) == (50.0 + dead_s, 3.0, True)


def test_after_a_reboot_the_time_between_does_not_count() -> None:
    night = Night()
    night.steps(1, 5, 3.0)
    night.turn(50.0)
    kept = {**night.monitor.snapshot()["remembered"], "boot_id": "another"}
    assert Night(kept, 7.0).progress.silent_s() == 50.0


def test_a_new_attempt_begins_anew_and_keeps_what_is_normal() -> None:
    night = Night()
    night.steps(1, 5, 3.0)
    night.turn(50.0)
    night.monitor.begin_attempt(2)
    night.progress.begin_attempt(2)
    quiet = night.progress.quiet(saving=False)
    assert (quiet.step_s, quiet.stepped, quiet.largest_gap_s) == (0.0, False, 3.0)


def test_programs_that_print_no_step_move_with_every_record() -> None:
    night = Night(spec=msgspec.structs.replace(SPEC, pattern=r"loss: (?P<loss>\S+)"))
    night.turn(5.0, "loss: 3.0")
    night.turn(5.0, "loss: 2.9")
    assert night.progress.silent_s() == 0.0


def test_a_file_begun_before_the_last_step_is_no_save_of_now() -> None:
    night = Night()
    night.steps(1, 5, 0.25)
    assert night.progress.quiet(saving=True).phase == "saving"
    night.steps(6, 7, 0.25)
    assert night.progress.quiet(saving=True).phase is None
