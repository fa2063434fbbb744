"""What is known at one moment: for the rules that judge time, and for the status.

Brings together what the log told, how long nothing has moved, and what the run has used; decides and writes nothing.
"""

from __future__ import annotations

import time

import msgspec

from overnight.facts import Facts
from overnight.monitor import Monitor
from overnight.progress import Progress
from overnight.rules import Moment
from overnight.supervision.attempt import Attempt
from overnight.supervision.attempts import Attempts
from overnight.supervision.spending import Spending
from overnight.supervision.watching import Watching


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """What the status shows beside the figures from the log. Seconds; ``resume_in_s``: until the next attempt."""

    attempt: Attempt | None
    active_s: float
    elapsed_s: float
    silent_s: float | None
    resume_in_s: float | None


class Gauges:
    """All that can be read off a run by now."""

    def __init__(
        self,
        *,
        facts: Facts,
        monitor: Monitor,
        attempts: Attempts,
        watching: Watching,
        progress: Progress,
        spending: Spending,
    ) -> None:
        self.facts = facts
        self.monitor = monitor
        self.attempts = attempts
        self.watching = watching
        self.progress = progress
        self.spending = spending

    def moment(self) -> Moment:
        """Return what the rules over time are asked with."""
        attempt, meter = self.attempts.current, self.monitor.meter
        running = self.monitor.state.state == "running"
        active_s, elapsed_s = self.spending.used_s(attempt)
        return Moment(
            active_s=active_s,
            elapsed_s=elapsed_s,
            save_s=self.facts.save_s,
            step_s=meter.step_s,
            eta_s=meter.eta_s,
            at=time.time(),
            quiet=self.progress.quiet(saving=self.watching.saving()) if running else None,
        )

    def now(self) -> Now:
        """Return what the status is built of."""
        attempt = self.attempts.current
        active_s, elapsed_s = self.spending.used_s(attempt)
        return Now(
            attempt=attempt,
            active_s=active_s,
            elapsed_s=elapsed_s,
            silent_s=self.progress.silent_s() if self.monitor.state.state in ("running", "stopping") else None,
            resume_in_s=self.attempts.resume_in_s(),
        )
