"""Lines that come in step, and what is done along with them: no later than it may be, and in no turn of its own."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from overnight.intake.rhythm import LATE_S, PATIENCE_S, Rhythm, now_rather_than_later
from overnight.sensors.children import Child
from overnight.supervision.alarm import LOOK_EVERY_S, WHOLE_EVERY_S, Alarm
from overnight.supervision.waking import Woke

BY_LOG = Woke(log=True, names=frozenset(), exits=frozenset(), signals=())
BY_TIMER = Woke(log=False, names=frozenset(), exits=frozenset(), signals=())


def heard(*times: float) -> Rhythm:
    rhythm = Rhythm()
    for at in times:
        rhythm.heard(at)
    return rhythm


def test_the_gap_is_that_between_two_groups_of_lines() -> None:
    assert heard().gap_s == heard(5.0).gap_s == heard(5.0, 5.0).gap_s == 0.0
    assert heard(0.0, 1.0, 1.01, 2.0, 2.01).gap_s == 1.0
    assert heard(0.0, 9.0, 9.5, 10.0, 10.5, 11.0).gap_s == 0.5  # the long one is forgotten


def test_what_is_due_waits_for_a_line_that_comes_in_time() -> None:
    rhythm = heard(0.0, 1.0, 2.0)
    assert rhythm.put_off(2.9, 3.2, now=2.0) == pytest.approx(3.0 + LATE_S)
    assert rhythm.put_off(2.9, 3.0, now=2.0) == 2.9  # it would come too late
    assert rhythm.put_off(3.5, 9.0, now=2.0) == 3.5  # it comes before that anyway
    assert rhythm.put_off(2.9, 9.0, now=3.1) == 2.9  # it is late: nobody waits for it any longer
    assert heard(2.0).put_off(2.9, 9.0, now=2.0) == 2.9


@pytest.mark.parametrize("gap_s", [0.01, 0.1, 0.4, 1.0, 1.0005, 1.4, 1.7, 2.0, 2.9, 3.0, 5.0, 30.0])
def test_every_three_seconds_is_never_later_and_seldom_sooner(gap_s: float) -> None:
    done_at, took = 0.0, []
    for number in range(1, int(100 / gap_s) + 20):
        at = number * gap_s
        if now_rather_than_later(at - done_at, 3.0, gap_s):
            took.append(at - done_at)
            done_at = at
    assert max(took) <= max(3.0 + PATIENCE_S, gap_s)
    assert min(took) >= 1.5
    assert min(took) + gap_s > 3.0  # as late as the lines allow


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A supervisor's turns with what they look at made of nothing: whole ones, and those that wait."""

    def __init__(self, clock: Clock, **asks: Any) -> None:
        self.clock = clock
        self.log = SimpleNamespace(missing=False)
        self.intake: Any = SimpleNamespace(network=False, more=False, halfway=False, grew_at=None, log=self.log)
        self.monitor: Any = SimpleNamespace(state=SimpleNamespace(state="running"), due_s=lambda _: math.inf)
        attempts: Any = SimpleNamespace(going_on=lambda _: True, next_look_s=lambda _, **__: 10.0)
        nothing: Any = SimpleNamespace(next_look_s=lambda _: None)
        self.calm = True
        self.moved_at: float | None = None
        gauges: Any = SimpleNamespace(moment=lambda: None)
        self.alarm = Alarm(
            gauges=gauges, intake=self.intake, monitor=self.monitor, attempts=attempts, saves=nothing,
            others=asks.get("others", ()), soon=asks.get("soon", ()), late=asks.get("late", ()),
            calm=(lambda: self.calm,), clock=clock,
        )  # fmt: skip
        self.whole: list[float] = []
        self.looked: list[float] = []
        self._whole(BY_TIMER)

    def _whole(self, woke: Woke) -> None:
        if self.alarm.begin(woke).to_all:
            self.looked.append(self.clock.now)
        self.whole.append(self.clock.now)
        self.alarm.timeout_s(None)

    def until(self, at: float, *, halfway: bool = False) -> bool:
        """Let the time pass up to a line at ``at``; True if its turn was a whole one."""
        while (due_at := self.alarm.due_at) < at:
            self.clock.now = due_at
            self._whole(BY_TIMER)
        self.clock.now = self.intake.grew_at = at
        self.intake.halfway = halfway
        if self.alarm.can_wait(BY_LOG):
            self.alarm.timeout_s(None)
            return False
        self._whole(BY_LOG)
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gaps(times: list[float]) -> list[float]:
    return [round(after - before, 3) for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize("gap_s", [0.01, 0.25, 1.0005, 1.3, 2.0, 4.0])
def test_whole_turns_come_along_with_lines_and_no_later_than_every_three_seconds(clock: Clock, gap_s: float) -> None:
    run = Run(clock)
    lines = [1000.0 + number * gap_s for number in range(1, int(100 / gap_s) + 20)]
    for at in lines:
        run.until(at)
    settled = [at for at in run.whole if at > 1020.0 + 5 * gap_s]
    assert max(gaps(settled)) <= max(WHOLE_EVERY_S + PATIENCE_S, gap_s)
    assert set(settled) <= set(lines)  # none for its own sake


def test_lines_that_end_are_followed_by_a_whole_turn(clock: Clock) -> None:
    run = Run(clock)
    for number in range(1, 6):
        run.until(1000.0 + number)
    last = run.whole[-1]
    while run.until(run.clock.now + 1.0):
        last = run.whole[-1]
    due_at = run.alarm.due_at
    assert last < due_at <= last + WHOLE_EVERY_S + PATIENCE_S


@pytest.mark.parametrize("why", ["not calm", "not running", "more to read"])
def test_a_line_that_somebody_waits_for_is_a_whole_turn(clock: Clock, why: str) -> None:
    run = Run(clock)
    for number in range(1, 8):
        run.until(1000.0 + number * 0.2)
    assert not run.until(1001.6)
    run.calm = why != "not calm"
    run.monitor.state.state = "stopping" if why == "not running" else "running"
    run.intake.more = why == "more to read"
    assert run.until(1001.8)
    run.intake.more = False
    assert not run.until(1001.81, halfway=True)  # half a line can wait whatever goes on, until something is due


class Due:
    """Somebody who wants to be called at some times, and was called in every whole turn from then on."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self, now: float) -> float | None:
        while self.times and self.times[0] <= now:
            self.times.pop(0)
        return self.times[0] - now if self.times else None


def test_what_is_due_is_done_at_its_time_to_the_moment(clock: Clock) -> None:
    run = Run(clock, others=(Due(1007.3),))
    for number in range(1, 12):
        run.until(1000.0 + number)
    assert 1007.3 in run.whole


def test_what_can_wait_is_taken_in_with_the_next_line(clock: Clock) -> None:
    run = Run(clock, late=((Due(1007.3, 1020.3), 1.25),))
    for number in range(1, 21):
        run.until(1000.0 + number)
    assert 1007.3 not in run.whole
    assert 1008.0 in run.whole
    run.until(1030.0)  # the lines have stopped: it is waited for no longer than one would have taken
    assert any(1020.3 < at <= 1021.0 + LATE_S + 0.001 for at in run.whole)


def test_everything_is_looked_at_now_and_then_however_much_is_told(clock: Clock) -> None:
    run = Run(clock)
    for number in range(1, 3000):
        run.until(1000.0 + number * 0.02)
    assert max(gaps(run.looked)) <= LOOK_EVERY_S + WHOLE_EVERY_S + PATIENCE_S
    assert len(run.looked) > 60 / (LOOK_EVERY_S + WHOLE_EVERY_S + PATIENCE_S)


def test_a_sensor_is_looked_at_when_its_next_sample_has_come_and_not_before() -> None:
    child = Child("host", ["true"], lambda _: None)
    child.pid, child._killed_at = 1, None
    ends = iter([(0, 0)] * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overnight.sensors.children.os.waitpid", lambda *_: next(ends))
        child.look(100.0, limit_s=60.0)
        for sampled, seen in ((110.0, 110.15), (120.0, 120.35), (130.0, 131.2)):
            child.heard(1, seen - sampled)
            child.look(seen, limit_s=60.0)
            assert seen + child.next_look_s(seen, 10.0) == pytest.approx(sampled + 10.1)
        child.look(140.0, limit_s=60.0)  # nothing has come: what has passed is its silence
        assert child._silent_s == pytest.approx(10.0)
