"""What the training writes, as it comes: its log and its checkpoints, and how long neither has moved.

Reads and notices; what the verdicts lead to is decided elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from overnight.clocks import boot_clock
from overnight.events import Verdict
from overnight.intake.reading import Intake
from overnight.monitor import Monitor
from overnight.processes import Identity
from overnight.progress import Progress
from overnight.saves.noticing import SaveWatch
from overnight.supervision.waking import Wake

UNREAD_S = 1800.0
"""After so long without a step nobody waits for one any more."""


class Watching:
    """The reading side of one run.

    ``saved`` says that a save was seen since it was last cleared, ``moved_on`` that the log is another file now,
    which is to be stored at once.
    """

    def __init__(
        self,
        intake: Intake,
        saves: SaveWatch,
        progress: Progress,
        monitor: Monitor,
        wake: Wake,
        *,
        cwd: str,
        alone: bool,
    ) -> None:
        """``alone``: the folder of the saves was named for this run, so what is saved there is its own.

        ``cwd`` is where the command runs.
        """
        self.cwd = cwd
        self.intake = intake
        self.saves = saves
        self.progress = progress
        self.monitor = monitor
        self.wake = wake
        self.alone = alone
        self.saved = False
        self.moved_on = False
        self.followed: tuple[tuple[int, int], ...] = ()
        watch = saves.saves
        wake.watch_handle(watch.inotify.fileno(), lambda: watch.absorb(boot_clock()))

    def read(self, command: Identity | None) -> Iterator[Verdict]:
        """Yield the verdicts on what was logged since the last time, then see what else has moved."""
        yield from self.intake.read(clock=boot_clock())
        self._look_elsewhere()
        saved = self.look_at_saves()
        self.progress.look(log_grew_at=self.intake.grew_at, saved=saved and self.alone, command=command)
        followed = tuple((source.source, source.handle) for source in self.intake.log.sources)
        if followed != self.followed:  # all of them: a renamed log is written to until its writer opens a new one
            self.followed = followed
            self.moved_on = True  # a renamed log is found again by what is stored of it
            for _, handle in followed:
                self.wake.watch_log(handle)

    def _look_elsewhere(self) -> None:
        """Watch where the log says that something was saved to, unless the folder of the saves was named."""
        places = self.monitor.hearing.places
        while places:
            place = places.popleft()
            if not self.alone:
                self.saves.saves.also(os.path.join(self.cwd, place), boot_clock())

    def saving(self) -> bool:
        """Say whether this run is writing a checkpoint, as far as its folder tells."""
        return self.alone and self.saves.saving()

    def before_stop(self, *, save: bool) -> bool:
        """Say whether a save goes on that a stop has to wait for; where none is wanted, take in what is over by now."""
        if not save:
            self.look_at_saves(at_once=True)
        return self.saves.saving()

    def look_at_saves(self, *, at_last: bool = False, at_once: bool = False) -> bool:
        """Notice a save that is over; ``at_last``: nobody is left who could go on with one.

        ``at_once``: nobody waits to see whether more belongs to it.
        """
        meter = self.monitor.meter
        # What is written before the first step is a cache of data rather than a checkpoint; but of a log that nobody
        # can read there will never be a step.
        stepping = meter.last_step is not None or self.progress.silent_s() >= UNREAD_S
        saved = self.saves.look(
            boot_clock(), meter.step, meter.step_s, stepping=stepping, at_last=at_last, at_once=at_once
        )
        self.saved = self.saved or saved
        return saved
