"""The clock of a night that is over: lets time go on between the places of a log whose times are known.

The rules that judge time, and those that judge what sensors told, are asked as a supervisor would have asked them, with
moments that are built from what was written down. Nothing is read from the machine's own clocks, and nothing is decided
about a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from overnight.events import Verdict
from overnight.facts import SAVES_KEPT
from overnight.monitor import Monitor
from overnight.past.times import RESOLUTION_S, Times
from overnight.progress import Progress
from overnight.rules import Moment
from overnight.sensors import Sample, Sensed
from overnight.spec import RunSpec

LEAST_S = 1.0
"""Time goes on by so much at least: what is known is no finer than ten seconds."""


class PastClock:
    """The time of one finished run or log, which goes on only when it is told to.

    ``begin`` is called with an attempt's number when it begins. Log bytes are fed by somebody else, between ``advance``
    (to the time they came at) and ``grew``. ``samples`` are what sensors told, in the order of their times.
    """

    def __init__(
        self,
        monitor: Monitor,
        spec: RunSpec,
        times: Times,
        begin: Callable[[int], None],
        samples: Iterator[Sample] | None = None,
    ) -> None:
        self.monitor = monitor
        self.times = times
        self.begin = begin
        self.alone = spec.checkpoints is not None
        # A limit finer than what is known of the time: only what was silent beyond doubt counts.
        finest = min((one for one in (spec.stall_s, spec.exit_limit_s) if one is not None), default=RESOLUTION_S)
        self.doubtful = finest < RESOLUTION_S
        # Dates are looked at until less than ten seconds lie between two, of which one may then be passed over.
        self.doubt_s = 2 * RESOLUTION_S if times.source == "dates" else RESOLUTION_S + LEAST_S
        self.now_s = min([at for at, *_ in times.states], default=0.0)
        self.progress = Progress(monitor, log=spec.log, clock=lambda: self.now_s)
        self.state = "pending"
        self.attempt = 0
        # What happened beside the log, in the order of time; of one moment the state comes first.
        self.events: deque[tuple[float, int, Any]] = deque(
            sorted(
                [(at, 0, (state, attempt)) for at, state, attempt in times.states]
                + [(at, 1, None) for at, _, _ in times.saves],
                key=lambda one: one[:2],
            )
        )
        self.saves = deque(sorted(times.saves))
        self.saved: deque[float] = deque(maxlen=SAVES_KEPT)
        self.moving_s = 0.0
        self.stepping = False
        self.samples = iter(()) if samples is None else samples
        self.sample = next(self.samples, None)

    def advance(self, to: float) -> Iterator[Verdict]:
        """Yield what the rules over time find up to ``to``, in seconds since the epoch; earlier moments change nothing.

        What was fed last went on to be written for the time that ``grew`` was told, at most up to ``to``.
        """
        if to <= self.now_s:
            yield from self._pass(self.now_s)
            return
        until, stepping = self.now_s + self.moving_s, self.stepping
        self.moving_s, self.stepping = 0.0, False
        self._move(min(until, to), stepping=stepping)
        while (due := self._next_at()) <= to:
            yield from self._pass(due)
            if self.sample is not None and self.sample.at <= due and (not self.events or self.events[0][0] > due):
                yield from self._sense(self.sample)
                self.sample = next(self.samples, None)
                self._move(min(until, to), stepping=stepping)
                continue
            _, kind, what = self.events.popleft()
            if kind == 0:
                self._enter(*what)
                until = 0.0
            else:
                _, seconds, seen = self.saves.popleft()
                self.saved.append(seconds)
                self._look(saved=self.alone and seen)
                self._move(min(until, to), stepping=stepping)
        yield from self._pass(to)

    def started(self, number: int) -> float:
        """Return when an attempt began; 0 if nobody knows."""
        return next((at for at, state, attempt in self.times.states if attempt == number and state == "running"), 0.0)

    def grew(self, lasting_s: float | None, *, stepping: bool) -> None:
        """Bytes were fed; the later ones were written during ``lasting_s`` (None: nobody knows how long).

        ``stepping``: there was progress in the later ones, too.
        """
        self._look(saved=False, grew=True)
        if self.doubtful and stepping:
            self.moving_s = self.doubt_s
        elif lasting_s is None:
            self.moving_s = RESOLUTION_S
        else:
            self.moving_s = min(RESOLUTION_S, self.moving_s + lasting_s)
        self.stepping = self.stepping or stepping

    def ask(self) -> Iterator[Verdict]:
        """Yield what the rules find at this very moment."""
        yield from self._pass(self.now_s)

    def finish(self) -> Iterator[Verdict]:
        """Yield what is found up to the last moment that is known."""
        yield from self.advance(self.times.until)

    def moment(self) -> Moment:
        """Return what the rules over time are asked with now."""
        meter = self.monitor.meter
        at, seconds, seen = self.saves[0] if self.saves else (0.0, 0.0, False)
        saving = self.alone and seen and at - seconds <= self.now_s < at
        return Moment(
            active_s=self._active_s(),
            elapsed_s=self._elapsed_s(),
            save_s=max(self.saved, default=None),
            step_s=meter.step_s,
            eta_s=meter.eta_s,
            at=self.now_s,
            quiet=self.progress.quiet(saving=saving) if self.state == "running" else None,
        )

    def _move(self, to: float, *, stepping: bool) -> None:
        """Let time pass in which the bytes of the last time mark were written, up to the next event: nothing is silent.

        A save in it ends none of that, but a new state does.
        """
        end = min(to, self._next_at())
        if end > self.now_s:
            self.now_s = end
            self.progress.tick(None)
            self.progress.log_at = self.progress.clock_s
            if stepping:
                self.progress.moved_at = self.progress.clock_s

    def _next_at(self) -> float:
        """Return when something happens beside the log; infinite for never."""
        event = self.events[0][0] if self.events else inf
        return event if self.sample is None else min(event, self.sample.at)

    def _sense(self, sample: Sample) -> list[Verdict]:
        """Return what the rules find in a sample; like a supervisor's, they are not asked while a run is stopped."""
        if self.state not in ("running", "backoff"):
            return []
        meter = self.monitor.meter
        sensed = Sensed(
            sample=sample,
            active_s=self._active_s(),
            step=meter.last_step,
            step_s=meter.step_s,
            moved_s=None if meter.last_step is None else self.progress.silent_s(),
            phase=self.monitor.hearing.phase,
        )
        return self.monitor.sense(sensed)

    def _pass(self, to: float) -> Iterator[Verdict]:
        """Let time go on while nothing happens, and ask the rules whenever they want to be asked."""
        while True:
            wait_s = to - self.now_s
            if self.state in ("running", "backoff"):
                moment = self.moment()
                yield from self.monitor.tick(moment)
                wait_s = min(wait_s, max(LEAST_S, self.monitor.due_s(moment)))
            if wait_s <= 0:
                return
            self.now_s += wait_s
            self.progress.tick(None)

    def _enter(self, state: str, attempt: int) -> None:
        self.state = state
        if attempt != self.attempt and state in ("starting", "running"):
            self.attempt = attempt
            self.begin(attempt)
        if state == "running":
            self.progress.begin_attempt(attempt)

    def _look(self, *, saved: bool, grew: bool = False) -> None:
        at = self.now_s if grew else self.progress.log_grew_at
        self.progress.look(log_grew_at=at, saved=saved, command=None)

    def _active_s(self) -> float:
        """Return the seconds that the command had run by now, all attempts together."""
        used_s = 0.0
        for one in self.times.attempts:
            if one.started > self.now_s:
                continue
            ended = one.ended is not None and one.ended <= self.now_s
            if ended and one.seconds is not None:
                used_s += one.seconds
            else:
                used_s += max(0.0, (one.ended if ended and one.ended is not None else self.now_s) - one.started)
        return used_s

    def _elapsed_s(self) -> float:
        """Return the seconds since the launch by now, the time between attempts included."""
        known = [one for one in self.times.clocks if one[0] <= self.now_s] or list(self.times.clocks[:1])
        if not known:
            return self._active_s()
        at, used_s = known[-1]
        return max(used_s + max(0.0, self.now_s - at), self._active_s())
