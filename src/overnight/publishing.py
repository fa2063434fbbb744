"""Keeps status.json up to date: what is in it, and how often it is written.

With a line a second, building and publishing it each time would be most of what watching costs. So it is written at
once only when something happened, and now and then when only figures moved.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from overnight.attempt import Attempt
from overnight.clocks import boot_clock
from overnight.facts import Facts
from overnight.folder import RunFolder, utc, write_json
from overnight.monitor import Monitor
from overnight.snapshot import build
from overnight.spec import RunSpec

PUBLISH_EVERY_S = 3.0
PUBLISH_EARLY_S = 0.2
EARLY_RECORDS = 10

HEARTBEAT_S = 15.0
"""A status this old is written anew at the next waking, though nothing moved: its age tells that somebody is there."""


class Publisher:
    """The one writer of status.json. ``urgent`` asks for it to be written in this turn."""

    def __init__(
        self, folder: RunFolder, spec: RunSpec, monitor: Monitor, facts: Facts, *, created_at: float | None
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.monitor = monitor
        self.facts = facts
        self.created_at = created_at
        self.urgent = True
        self.moved = False
        self.at = self.written_at = 0.0
        self.last: dict[str, Any] = {}

    def turn(self, attempt: Attempt | None, *, moved: bool) -> None:
        """Write the status if it is time for it; ``moved`` says that there is something new in it."""
        self.moved = self.moved or moved
        if self.urgent or boot_clock() - self.at >= self._every_s():
            self.publish(attempt)

    def next_turn_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        return max(0.0, self.at + self._every_s() - now) if self.moved else None

    def publish(self, attempt: Attempt | None) -> None:
        """Write the status now, if anything in it has changed."""
        status = self._status(attempt)
        compared = {name: value for name, value in status.items() if name not in ("updated_at", "active_s")}
        now = self.at = boot_clock()
        self.moved = False
        if compared == self.last and not self.urgent and now - self.written_at < HEARTBEAT_S:
            return
        self.last, self.urgent, self.written_at = compared, False, now
        with contextlib.suppress(OSError):  # the next one will come; the journal has the truth
            write_json(self.folder.status_json, status)

    def _every_s(self) -> float:
        """Return how old the figures may become: little while everybody looks at the first steps."""
        return PUBLISH_EARLY_S if self.monitor.meter.records < EARLY_RECORDS else PUBLISH_EVERY_S

    def _status(self, attempt: Attempt | None) -> dict[str, Any]:
        started = attempt is not None and attempt.command is not None
        return build(
            spec=self.spec,
            monitor=self.monitor,
            state=self.monitor.state,
            attempts=[] if attempt is None else [self._line(attempt)],
            verdicts=self.facts.verdicts,
            created_at=self.created_at,
            now=time.time(),
            active_s=round(attempt.active_s(), 3) if attempt is not None and started else None,
            keepers={"supervisor": os.getpid()},
            checkpoint=self._checkpoint(),
            notes=self.facts.notes,
        )

    def _line(self, attempt: Attempt) -> dict[str, Any]:
        line = attempt.line()
        meter, how = self.monitor.meter, attempt.exit
        line.update(first_step=meter.first_step, last_step=meter.last_step)
        if how is not None:
            line.update(exit_code=how.exit_code, signal=how.signal)
        ended = self.facts.attempt_ends.get(attempt.number) or {}
        line.update({name: ended[name] for name in ended if name in line})
        if self.monitor.state.ended:
            line.update(cause=self.monitor.state.cause, ended_at=utc(how.at if how is not None else None))
        return line

    def _checkpoint(self) -> dict[str, Any] | None:
        """Return the newest save that was seen; nobody has looked whether it is whole inside (``valid`` is unknown)."""
        newest = self.facts.checkpoint
        if newest is None:
            return None
        sick, step = self.monitor.sick_since, newest["step"]
        healthy = None if step is None else sick is None or step < sick
        return {**newest, "valid": None, "healthy": healthy}
