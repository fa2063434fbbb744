"""Keeps status.json up to date: what is in it, and how often it is written.

With a line a second, building and publishing it each time would be most of what watching costs. So it is written at
once only when something happened, and now and then when only figures moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Any

from overnight.clocks import boot_clock
from overnight.errors import FolderError
from overnight.events import jsonable
from overnight.facts import Facts
from overnight.folder import RunFolder, encode_json, read_json, utc, write_in_place, write_json
from overnight.intake.instruments import Instruments
from overnight.intake.rhythm import now_rather_than_later
from overnight.kept import MOVING
from overnight.monitor import Monitor
from overnight.snapshot import Saves, Used, build
from overnight.spec import RunSpec
from overnight.supervision.attempt import Attempt
from overnight.supervision.gauges import Gauges, Now

PUBLISH_EVERY_S = 3.0
PUBLISH_EARLY_S = 0.2
EARLY_RECORDS = 10
SHOWN_ATTEMPTS = 50
"""So many of the newest attempts: a run of 500 restarts would publish 124 KB each time."""
SHOWN_SAVES = 6
SHOWN_OF_BEST = ("step", "path", "at", "seconds", "valid", "healthy")
SHOWN_OF_RESUME = (
    "attempt", "path", "step", "skip", "passed_over", "lost_steps", "lost_s", "lost_cost", "rollback", "text"
)  # fmt: skip
SHOWN_OF_OVERLAP = ("compared", "equal", "first_difference", "text")

HEARTBEAT_S = 15.0
"""A status this old is written anew at the next waking, though nothing moved: its age tells that somebody is there."""


class Publisher:
    """The one writer of status.json. ``urgent`` asks for it to be written in this turn."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        monitor: Monitor,
        facts: Facts,
        *,
        created_at: float | None,
        hooks: Callable[[], dict[str, Any] | None],
        instruments: Instruments,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.monitor = monitor
        self.facts = facts
        self.created_at = created_at
        self.hooks = hooks
        self.instruments = instruments
        self.engine: str | None = None
        self.urgent = True
        self.moved = False
        self.at = self.written_at = 0.0
        self.last: dict[str, Any] = {}

    def turn(self, gauges: Gauges, *, moved: bool, gap_s: float) -> None:
        """Write the status if it is time for it; ``moved``: something in it is new, as every ``gap_s`` seconds."""
        self.moved = self.moved or moved
        due = now_rather_than_later(boot_clock() - self.at, self._every_s(), gap_s if moved else 0.0)
        if self.urgent or due:
            self.publish(gauges.now())

    def calm(self) -> bool:
        """Say whether it is not asked for, and nobody looks at the very first steps."""
        return not self.urgent and self.monitor.meter.records >= EARLY_RECORDS

    def next_turn_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        return max(0.0, self.at + self._every_s() - now) if self.moved else None

    def publish(self, now_known: Now) -> bool:
        """Write the status now, if anything in it has changed; False if it could not be: the next one will come."""
        status = self.status(now_known)
        compared = {name: value for name, value in status.items() if name not in MOVING}
        now = self.at = boot_clock()
        self.moved = False
        if compared == self.last and not self.urgent and now - self.written_at < HEARTBEAT_S:
            return True
        self.last, self.urgent, self.written_at = compared, False, now
        try:
            write_json(self.folder.status_json, status)
        except OSError as error:  # the journal has the truth
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._squeeze(status):
                self.last = {}  # so that the next turn tries again
                return False
        return True

    def _squeeze(self, status: dict[str, Any]) -> bool:
        """Write the status on a full disk: over the old one, or with what the ballast has kept free."""
        with contextlib.suppress(OSError):
            write_in_place(self.folder.status_json, encode_json(jsonable(status)))
            return True
        with contextlib.suppress(OSError):
            if self.folder.drop_ballast():
                write_json(self.folder.status_json, status)
                return True
        return False

    def _every_s(self) -> float:
        """Return how old the figures may become: little while everybody looks at the first steps."""
        return PUBLISH_EARLY_S if self.monitor.meter.records < EARLY_RECORDS else PUBLISH_EVERY_S

    def status(self, known: Now) -> dict[str, Any]:
        """Return the status as it would be written now."""
        attempt = known.attempt
        started = attempt is not None and attempt.command is not None
        now = time.time()
        return build(
            spec=self.spec,
            monitor=self.monitor,
            state=self.monitor.state,
            attempts=self._attempts(attempt),
            verdicts=self.facts.verdicts,
            created_at=self.created_at,
            now=now,
            used=Used(
                active_s=round(known.active_s, 3) if started else None,
                elapsed_s=known.elapsed_s,
                resume_in_s=known.resume_in_s,
                silent_s=known.silent_s,
                phase=self.monitor.hearing.phase,
                last_lines=self._last_lines(),
            ),
            keepers={"supervisor": os.getpid()},
            saves=self._saves(),
            notes=self.facts.notes,
            hooks=self.hooks(),
            engine=self._engine(),
            sensed=self.instruments.shown(now),
        )

    def _engine(self) -> str:
        """Return the engine that placed the run in the end: tmux may not have been there."""
        if self.engine is None:
            with contextlib.suppress(FolderError):
                self.engine = (read_json(self.folder.engine_json) or {}).get("engine")
        return self.engine or self.spec.engine

    def _last_lines(self) -> list[str] | None:
        """Return the last words of the newest attempt that has failed."""
        ends = self.facts.attempt_ends
        return (ends[max(ends)].get("lines") or None) if ends else None

    def _attempts(self, attempt: Attempt | None) -> list[dict[str, Any]]:
        """Return a line for each attempt: the earlier ones as the journal tells, the newest as it is."""
        if attempt is None:
            return []
        ends = self.facts.attempt_ends
        blank = dict.fromkeys(attempt.line())
        earlier = [
            {**blank, "n": number, **{name: ends[number][name] for name in blank if name in ends[number]}}
            for number in [number for number in sorted(ends) if number < attempt.number][1 - SHOWN_ATTEMPTS :]
        ]
        return [*earlier, self._line(attempt)]

    def _line(self, attempt: Attempt) -> dict[str, Any]:
        line = attempt.line()
        meter, how = self.monitor.meter, attempt.exit
        line.update(first_step=meter.first_step, last_step=meter.last_step)
        if how is not None:
            line.update(exit_code=how.exit_code, signal=how.signal)
        ended = self.facts.attempt_ends.get(attempt.number) or {}
        line.update({name: ended[name] for name in ended if name in line})
        state = self.monitor.state
        if state.ended and not ended:  # its end is being written down
            line.update(cause=state.cause, cause_text=state.cause_text)
        if state.ended and line["ended_at"] is None:
            line.update(ended_at=utc(how.at if how is not None else None))
        return line

    def _saves(self) -> Saves:
        """Return what is known of the saves, and from which one the attempt that goes on was begun."""
        book, facts = self.facts.book, self.facts
        best = book.newest_good()
        resume = facts.resumes.get(self.monitor.state.attempt)
        overlap = facts.overlaps.get(self.monitor.state.attempt)
        return Saves(
            checkpoint=None if best is None else {name: book.line(best)[name] for name in SHOWN_OF_BEST},
            saves=[book.line(one) for one in book.saves[-SHOWN_SAVES:]],
            resume=None if resume is None else {
                **{name: resume.get(name) for name in SHOWN_OF_RESUME},
                "overlap": None if overlap is None else {name: overlap.get(name) for name in SHOWN_OF_OVERLAP},
            },
        )  # fmt: skip
