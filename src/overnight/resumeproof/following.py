"""One part of a proof as it goes on: how far its log says it is, and which saves it makes, with no delay to speak of.

The log is read here as the supervisor reads it, by the same readers, so that a signal can go the moment a step is seen.
Nothing is started, signalled or decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from overnight.batches import Entry
from overnight.clocks import boot_clock
from overnight.intake.logfile import LogFile
from overnight.resumeproof.epochs import Axis, Bases
from overnight.saves.noticing import Saves
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

ANEW = re.compile(rb"^no checkpoint in .*: training begins at step 1\r?$", re.MULTILINE)
RESUMED = re.compile(rb"^resumed from .*: step \d+ is done\r?$", re.MULTILINE)
LONGEST_LINE = 8192
MOST_SAVES = 10_000


class Follower:
    """The steps of one run, read from its log as it grows.

    ``step`` is the highest step seen, None before the first; where each epoch counts anew that of the whole run, by
    ``bases`` if it goes on in the middle. ``records`` counts training records, ``lines`` all lines. ``library``: the
    script has said that it uses Overnight's Checkpointer. ``sick`` is what the first health rule has found, if any.
    """

    def __init__(self, spec: RunSpec, *, saves_in: Path, bases: Bases | None = None) -> None:
        self.log = LogFile(Path(spec.log))
        self.monitor = make_monitor(spec, lambda _: None)
        self.monitor.begin_attempt(1)
        self.step: int | None = None
        self._axis = Axis(bases)
        self.lines = 0
        self.records = 0
        self.library = False
        self.sick: str | None = None
        self.saves = SavesSeen(saves_in)
        self._torn = b""

    def look(self, at: float) -> int | None:
        """Take in what was printed since, which came at ``at`` (seconds since the epoch); return ``step``."""
        for chunk in self.log.read():
            self._listen(chunk.data)
            self.lines += chunk.data.count(b"\n") + chunk.data.count(b"\r")
            outcome = self.monitor.feed(chunk.data, at, chunk.source, chunk.offset)
            for verdict in outcome.verdicts:
                if verdict.severity == "critical" and self.sick is None:
                    self.sick = verdict.text
            for piece in outcome.pieces:
                self._count(one for one in piece if one.record.kind == "train" and not one.record.glued)
        self.saves.look(self.step)
        return self.step

    def _count(self, entries: Iterable[Entry]) -> None:
        for record, _, segment in entries:
            self.records += 1
            if record.step is None:
                continue
            step = self._axis.place(record.step, record.epoch, segment)
            if self.step is None or step > self.step:
                self.step = step

    def _listen(self, data: bytes) -> None:
        if self.library:
            return
        text = self._torn + data
        self.library = bool(ANEW.search(text) or RESUMED.search(text))
        self._torn = text[text.rfind(b"\n") + 1 :][-LONGEST_LINE:]

    def close(self) -> None:
        """Let the files go."""
        self.log.close()
        self.saves.close()


class SavesSeen:
    """Which saves a run makes, seen from outside: after the first step, by the names of the files.

    ``steps`` are those that the log had come to whenever one was finished, in order.
    """

    def __init__(self, folder: Path) -> None:
        self._saves = Saves(folder)
        self._stepping = False
        self._ended: float | None = None
        self.steps: list[int] = []

    def look(self, step: int | None) -> None:
        """Take in what was written since; ``step`` is how far the log has come."""
        now = boot_clock()
        if not self._stepping:  # data caches and downloads have such names, too
            self._saves.absorb(now)
            self._saves.all_early()
            self._saves.disregard(now)
            self._stepping = step is not None
            return
        self._saves.absorb(now)
        ended = self._saves.ended
        if ended is not None and self._saves.path is not None and ended != self._ended:
            self.steps = [*self.steps[-MOST_SAVES:], step or 0]
        self._ended = ended
        self._saves.look(now)  # and forget what has been over for a while

    @property
    def settled(self) -> bool:
        """Whether nothing was saved for a second."""
        return self._ended is None and not self.busy

    @property
    def busy(self) -> bool:
        """Whether a save was begun and is not over yet."""
        return self._saves.began is not None and self._saves.ended is None

    def close(self) -> None:
        """Stop looking."""
        self._saves.inotify.close()


class Saved:
    """Whether a run that has come to step ``until`` has made the save of it: ask again and again while it goes on.

    A line of a later step is printed when the save is over, or there was none; else it is over when no other file
    followed for a second. What is begun is waited for; without any of that it is enough after ``patience_s``.
    """

    def __init__(self, follower: Follower, until: int, patience_s: float) -> None:
        self._follower, self._until = follower, until
        self._enough = boot_clock() + patience_s

    def __call__(self) -> bool:
        """Say whether it is."""
        saves, step = self._follower.saves, self._follower.step
        if saves.busy:
            return False
        if step is not None and step > self._until:
            return True
        saved = bool(saves.steps) and saves.steps[-1] >= self._until
        return (saved and saves.settled) or boot_clock() >= self._enough
