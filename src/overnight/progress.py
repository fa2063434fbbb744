"""How long nothing has moved in a training: what the rule about stalls is asked with.

Time counts only while the machine ran: one that was suspended or paused, or a clock that was set, makes no silence
longer. What was learned goes with the monitor's state into metrics.db, so that it survives the supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from overnight.monitor import Monitor
from overnight.processes import Identity, boot_id, descendants
from overnight.rules import Quiet
from overnight.saves.growth import Growth

SILENT_S = 20.0
FILES_EVERY_S = 10.0
"""Whether a checkpoint grows is looked at only in a silence, and so often."""

SHORT_S = 12.0

LATE_S = 10.0
"""How much later than asked for the supervisor may wake on a loaded machine; beyond that the machine stood still."""


class Progress:
    """The silences of one run. ``tick`` once a turn, then ``look``; all times are seconds on a clock of its own."""

    def __init__(self, monitor: Monitor, *, log: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.monitor = monitor
        self.clock = clock
        self.growth = Growth(log)
        self.files_seen_at = 0.0
        self.log_grew_at: float | None = None
        self.moves, self.heard = monitor.moves, monitor.hearing.heard
        self.mono_s = clock()
        self.clock_s = self.moved_at = self.log_at = self.file_at = self.heard_at = 0.0
        self.saving_from: float | None = None
        self.largest_gap_s: float | None = None
        self.stepped = False
        self.announced = False
        self.fresh = True
        self.attempt = 0
        self._restore(monitor.remembered)

    def tick(self, asked_s: float | None) -> None:
        """Let the clock go on; ``asked_s`` is how long this turn was going to sleep (None: this is the first)."""
        now_s = self.clock()
        passed_s = now_s - self.mono_s
        if asked_s is not None:
            passed_s = min(passed_s, asked_s + LATE_S)
        self.clock_s += max(0.0, passed_s)
        self.mono_s = now_s

    def begin_attempt(self, number: int, *, ago_s: float = 0.0) -> None:
        """Nothing was seen yet of the attempt that began ``ago_s`` seconds ago."""
        self.attempt = number
        self.moved_at = self.log_at = self.file_at = self.heard_at = self.clock_s - ago_s
        self.stepped = self.announced = False
        self.moves, self.heard = self.monitor.moves, self.monitor.hearing.heard
        self._keep()

    def look(self, *, log_grew_at: float | None, saved: bool, command: Identity | None) -> None:
        """Take in what this turn has brought: when the log grew last (any clock), whether a save was seen."""
        monitor, now_s = self.monitor, self.clock_s
        if log_grew_at != self.log_grew_at:
            self.log_grew_at, self.log_at = log_grew_at, now_s
        if saved or (command is not None and self._files_grow(command)):
            self.file_at = now_s
        if monitor.hearing.heard != self.heard:
            self.heard, self.heard_at = monitor.hearing.heard, now_s
            self.announced = True
        if monitor.moves != self.moves:
            self.moves = monitor.moves
            gap_s = now_s - self.moved_at
            # Not the way to the first step, nor what was announced, nor what passed while no supervisor lived.
            # Some programs announce something at every step; a gap so short raises no limit above its floor.
            known = not self.announced or gap_s <= SHORT_S
            if self.stepped and known and not self.fresh:
                self.largest_gap_s = max(self.largest_gap_s or 0.0, gap_s)
            self.moved_at, self.stepped, self.announced = now_s, True, False
            if gap_s > SILENT_S:
                self.growth.forget()
        self.fresh = False
        self._keep()

    def _files_grow(self, command: Identity) -> bool:
        """Say whether a checkpoint grows that the command or what it has started holds open."""
        if self.clock_s - self.moved_at < SILENT_S or self.clock_s - self.files_seen_at < FILES_EVERY_S:
            return False
        self.files_seen_at = self.clock_s
        return self.growth.look({command.pid, *descendants(command.pid)})

    def silent_s(self) -> float:
        """Return how long no new step has come."""
        return self.clock_s - self.moved_at

    def untouched_s(self) -> float:
        """Return how long neither the log nor a watched file has grown."""
        return self.clock_s - max(self.file_at, self.log_at)

    def quiet(self, *, saving: bool) -> Quiet:
        """Return how long nothing has moved by now; ``saving``: a checkpoint is being written.

        A file that was open before the last step explains nothing: a cache may have such a name, and stay open.
        """
        now_s, phase = self.clock_s, self.monitor.hearing.phase
        if not saving:
            self.saving_from = None
        elif self.saving_from is None:
            self.saving_from = now_s
        if phase is None and self.saving_from is not None and self.saving_from >= self.moved_at:
            phase = "saving"
        return Quiet(
            step_s=now_s - self.moved_at,
            log_s=now_s - self.log_at,
            file_s=self.untouched_s(),
            largest_gap_s=self.largest_gap_s,
            stepped=self.stepped,
            planned=self._at_the_end(),
            phase=phase,
            phase_s=None if phase is None else now_s - (self.heard_at if self.announced else self.moved_at),
        )

    def _keep(self) -> None:
        own = {
            "attempt": self.attempt,
            "boot_id": boot_id(),
            "mono_s": self.mono_s,
            "clock_s": self.clock_s,
            "moved_at": self.moved_at,
            "log_at": self.log_at,
            "file_at": self.file_at,
            "heard_at": self.heard_at,
            "largest_gap_s": self.largest_gap_s,
            "stepped": self.stepped,
            "announced": self.announced,
        }
        self.monitor.remembered.update(own)  # others keep something there, too

    def _at_the_end(self) -> bool:
        """Say whether the last step was made: the last one printed may lie a logging interval before it."""
        plan = self.monitor.plan()
        return plan.complete() or (plan.reached() and self.clock_s - self.moved_at > (self.largest_gap_s or 0.0))

    def _restore(self, kept: dict[str, Any]) -> None:
        if "clock_s" not in kept:  # nothing, or only what others keep there
            return
        self.attempt = kept.get("attempt", 0)
        for name in ("clock_s", "moved_at", "log_at", "file_at", "heard_at", "largest_gap_s", "stepped", "announced"):
            setattr(self, name, kept[name])
        if kept["boot_id"] == boot_id():
            self.clock_s += max(0.0, self.mono_s - kept["mono_s"])
