"""From the log file to stored records: follows the log, feeds the monitor, commits what came of it.

Bytes are judged at once and stored a little later. What is stored includes the place in the log and the monitor's
whole state, so that after a kill the same bytes are read again and give the same records and the same verdicts. The
arrival of a record is the time mark before it, which is a fact in the journal: a rebuild gives the same times.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight.errors import FolderError
from overnight.events import Verdict
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.history.store import decode_state, encode_state, open_history, set_aside
from overnight.intake.logfile import LogFile, Mark
from overnight.intake.space import NETWORK, LogSpace, filesystem_type
from overnight.monitor import Batch, Entry, Monitor, Outcome
from overnight.sensors import Sample
from overnight.sensors.placing import LIVE, Course, Stand, record_of
from overnight.spec import RunSpec

TURN_BYTES = 256 << 10
"""The most that is read in one turn, so that requests and exits are seen in time while a log is being caught up on."""

MARK_EVERY_S = 10.0
MARK_WITHOUT_DT_S = 1.0
FIRST_RECORDS = 100
"""Where no dt is printed the pace comes from the marks: close ones for the first steps, then as sparse as elsewhere."""

MAX_PENDING = 200_000

_LINE_ENDS = (b"\n", b"\r", b"\b")

RETRY_S = 5.0


class Intake:
    """The reading side of one run."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        monitor: Monitor,
        facts: Facts,
        *,
        start: int,
        pids: tuple[int, ...],
        first_source: int | None = None,
    ) -> None:
        """``start`` is where the first source begins; ``first_source`` which one the log is, for who knows better."""
        self.name = folder.name
        self.facts = facts
        self.monitor = monitor
        self.log_path = Path(spec.log)
        self.network = filesystem_type(self.log_path.parent) in NETWORK
        self.history, damage = open_history(folder.metrics_db, network=filesystem_type(folder.path) in NETWORK)
        if damage is not None:
            facts.note(damage)
        self.pending: list[Entry | Batch] = []
        self.waiting = 0  # records in it
        self.judged: list[Verdict] = []
        self.dirty = False
        self.listener: Callable[[Sequence[list[Entry] | Batch]], None] | None = None
        self.read_to: tuple[Mark, ...] | None = None  # how far, once nothing more will be
        self.more = False
        self.halfway = False  # all that came the last time was a piece of one line
        self.grew_at: float | None = None
        self.begins = facts.begins
        self.moved_at: float | None = None  # the time mark of the last step
        self.bounds: deque[tuple[int, int, int]] = deque()
        self.course = Course()
        marks = self._restore()
        self.restored = bool(marks)
        self.course = self.course if self.restored else Course(None if facts.marks else LIVE)
        first = self._first_source() if first_source is None else first_source
        self.log = LogFile(self.log_path, marks, start=start, pids=pids, first_source=first)
        if not self.restored:
            self.history.read_again(self.log.position()[0])
        self.space = LogSpace(self.log_path)
        self.disk_full = False
        self.retry_at = 0.0
        # Without a file to store to, records would only fill the memory.
        self.behind = self.history.temporary is not None
        self.mark_at = 0.0
        self.mark_due = False
        self.marked_source = max((one[0] for one in facts.marks), default=-1)
        self.old_marks = self._marks_ahead({mark.source: mark.offset for mark in marks})
        self.marks_from = self._sizes() if facts.marks else {}
        facts.marks = []  # thousands in a night, and nobody else needs them

    def read(self, *, clock: float) -> list[Verdict]:
        """Read what is there (up to TURN_BYTES) and return the verdicts on it; ``more`` says whether to come again."""
        found: list[Verdict] = []
        taken = 0
        self.more = self.halfway = False
        for chunk in self.log.read():
            self.grew_at = clock
            self.halfway = taken == 0 and not any(end in chunk.data for end in _LINE_ENDS)
            found += self._feed(chunk.source, chunk.offset, chunk.data)
            taken += len(chunk.data)
            if taken >= TURN_BYTES:
                self.more = True
                break
        return found

    def flush(self) -> list[Verdict]:
        """Nothing more will be written by this attempt: read the unfinished line too."""
        return self._take(self.monitor.flush(self.mark_at))

    def begin_attempt(self, number: int) -> tuple[int, int]:
        """Tell the monitor that an attempt begins here; return the place (source, offset)."""
        self.course.mark(time.time(), self.stand())
        self.monitor.begin_attempt(number)
        self.dirty = self.mark_due = True  # none of its records has come before it was started
        return self.log.position()

    def sampled(self, sample: Sample, offset: int) -> Stand:
        """Take in a sensor's sample, of the line at ``offset`` of its file; return where the run stood then."""
        stand = self.stood(sample.at)
        record = None if self.behind else record_of(sample, offset, stand.step)
        if record is not None:
            self.pending.append(Entry(record, stand.attempt, stand.segment))
            self.waiting += 1
        self.dirty = True
        return stand

    @property
    def catching_up(self) -> bool:
        """Whether bytes are still to be read that an earlier supervisor has read before."""
        return self.more and bool(self.old_marks)

    def stand(self) -> Stand:
        """Return where the run stands by all that was read."""
        monitor = self.monitor
        where = (monitor.attempt, monitor.segment, monitor.meter.last_step)
        return Stand(*where, monitor.meter.step_s, self.moved_at, monitor.hearing.phase)

    def stood(self, at: float) -> Stand:
        """Return where the run stood at a time, seconds since the epoch."""

        def now() -> Stand:
            where = self.stand()
            for _, _, number in self.bounds:  # attempts that have not printed anything
                if self.begins.get(number, at) <= at:
                    where = Stand(number, where.segment + 1, None)
            return where

        return self.course.at(at, now)

    def disk_trouble(self) -> Verdict | None:
        """Keep disk space ahead of the log; return a verdict when there is none any more, once until there is again."""
        said = self.space.top_up(self.log.size) or self.space.low()
        new = said is not None and not self.disk_full
        self.disk_full = said is not None
        if said is None or not new:
            return None
        return Verdict(
            rule="disk_space",
            severity="warn",
            action="alert",
            text=said,
            at=time.time(),
            step=self.monitor.meter.last_step,
            attempt=self.monitor.attempt,
            offset=self.log.position()[1],
        )

    def commit(self, *, at_last: bool = False) -> None:
        """Store what came in since the last time, with the place in the log and the monitor's state.

        What failed is not tried again at once, unless there is no later time: it would cost the time to judge.
        """
        if not self.dirty or (time.monotonic() < self.retry_at and not at_last):
            return
        if self.behind:
            self._catch_up()
            return
        if not self.history.in_place():
            self.history.close()
            raise FolderError(f"{self.history.path} was removed or replaced; it is rebuilt from the log")
        kept = self.log.marks() if self.read_to is None else self.read_to
        self.monitor.forget_sources([mark.source for mark in kept])
        state = {
            "monitor": self.monitor.snapshot(),
            "marks": [list(msgspec.structs.astuple(mark)) for mark in kept],
            "course": self.course.snapshot(),
        }
        try:
            self.history.commit(self.pending, self.judged, encode_state(state))
        except sqlite3.Error as error:
            self._give_up_damaged(error)
            self.facts.note(f"records cannot be stored for now ({error}); they are read again from the log later")
            self.behind = self.waiting > MAX_PENDING
            self.retry_at = time.monotonic() + RETRY_S
            return
        self.pending.clear()
        self.waiting = 0
        self.judged.clear()
        self.dirty = False
        if self.history.left_out:
            self.facts.note("records were left out that no database can hold; the log has their lines")

    def _catch_up(self) -> None:
        """Too much waits to be stored: judge on, keep nothing, and begin anew from the stored place once that helps.

        Nothing is lost: all of it is in the log, and the place up to which it is stored has not moved.
        """
        self.pending.clear()
        self.waiting = 0
        self.judged.clear()
        self.retry_at = time.monotonic() + RETRY_S
        if self.history.usable():
            raise FolderError("records can be stored again; the next supervisor reads them from the log")

    def _give_up_damaged(self, error: sqlite3.Error) -> None:
        """Raise FolderError if no later try can help: whoever starts next rebuilds metrics.db from the log."""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            self.history.close()
            aside = set_aside(self.history.path)
            raise FolderError(f"{self.history.path} was damaged ({error}): moved to {aside}, rebuilt now") from error

    def close(self) -> bool:
        """Read no more, give unused space back and store the rest; True if all is stored now.

        False: to be called again after ``RETRY_S``, until it is or nobody waits any longer; then comes ``give_up``.
        FolderError: the next supervisor stores it.
        """
        if self.read_to is None:
            self.read_to = self.log.marks()
            self.log.close()  # or the space behind it cannot be given back, which the rest may need
            self.space.release()
        self.commit(at_last=True)
        if self.dirty:
            return False
        self.history.close()
        return True

    def give_up(self) -> None:
        """Say for good that not all is stored, after the last try to ``close``."""
        self.facts.note(
            f"not all of the log could be stored in {self.history.temporary or self.history.path}; "
            f"`overnight reindex {self.name}` reads it again"
        )
        self.history.close()

    def _restore(self) -> tuple[Mark, ...]:
        data = self.history.load()
        if data is None:
            return ()
        try:
            state: Any = decode_state(data)
            marks = tuple(Mark(*one) for one in state["marks"])
            self.course.restore(state.get("course", []))
            self.monitor.restore(state["monitor"])
        except (KeyError, TypeError, ValueError, IndexError, msgspec.MsgspecError) as error:
            # Of another version of Overnight, perhaps: everything in it can be had from the log.
            self.facts.note(f"the stored state cannot be used ({error!r}); the log is read again from its start")
            return ()
        return marks

    def _first_source(self) -> int:
        """Return the number of the file that has the log's name now, for a rebuild: the newest one with a time mark."""
        newest = max((one[:2] for one in self.facts.marks), default=(0, 0))
        try:
            shrunk = self.log_path.stat().st_size < newest[1]
        except OSError:
            shrunk = True
        return newest[0] + 1 if shrunk and newest[1] > 0 else newest[0]

    def _marks_ahead(self, places: dict[int, int]) -> deque[tuple[int, int, float]]:
        """Return the time marks behind the places that were stored, and let the last one before them be in force."""
        newest = max(places, default=-1)
        ahead = []
        for one in self.facts.marks:
            if one[1] <= places.get(one[0], -1 if one[0] >= newest else one[1]):
                self.mark_at = one[2]
            else:
                ahead.append(one)
        # In the order of the log; two marks at one place stay in the order in which they were written.
        ahead.sort(key=lambda one: one[:2])
        if ahead and not self.mark_at:
            self.mark_at = ahead[0][2]  # the very first one was lost
        return deque(ahead)

    def _sizes(self) -> dict[int, int]:
        """Return up to where an earlier supervisor may have read each source.

        What it read behind its last time mark belongs to that mark, so a new one may only stand behind all of it:
        otherwise the same line would have arrived at another time whenever it is read again.
        """
        sizes = {source.source: os.fstat(source.handle).st_size for source in self.log.sources}
        if self.marked_source not in sizes:
            with contextlib.suppress(OSError):
                sizes[self.marked_source] = self.log_path.stat().st_size
        return sizes

    def _feed(self, source: int, offset: int, data: bytes) -> list[Verdict]:
        """Feed bytes, cut where an earlier supervisor wrote a time mark or an attempt began."""
        found: list[Verdict] = []
        while data:
            cut = len(data)
            while self.bounds and self.bounds[0][:2] <= (source, offset):
                found += self._take(self.monitor.flush(self.mark_at))
                number = self.bounds.popleft()[2]
                if number in self.begins:
                    self.course.mark(self.begins[number], self.stand())
                self.monitor.begin_attempt(number)
            while self.old_marks and self.old_marks[0][:2] <= (source, offset):
                self.mark_at = self.old_marks.popleft()[2]
                self.course.mark(self.mark_at, self.stand())
            for place in (self.bounds, self.old_marks):
                if place and place[0][0] == source:
                    cut = min(cut, place[0][1] - offset)
            waiting = bool(self.old_marks) and self.old_marks[0][0] <= source
            if not waiting and offset >= self.marks_from.get(source, 0):
                self._mark(source, offset)
            moves = self.monitor.moves
            found += self._take(self.monitor.feed(data[:cut], self.mark_at, source, offset))
            self.moved_at = self.mark_at if self.monitor.moves != moves else self.moved_at
            data = data[cut:]
            offset += cut
        self.dirty = True
        return found

    def _mark(self, source: int, offset: int) -> None:
        now = time.time()
        meter = self.monitor.meter
        every = MARK_EVERY_S if meter.prints_dt or meter.records > FIRST_RECORDS else MARK_WITHOUT_DT_S
        # The first mark of a source is what tells a rebuild how many there were.
        if source > self.marked_source or self.mark_due or not 0.0 <= now - self.mark_at < every:
            self.mark_at, self.mark_due = now, False
            self.marked_source = max(source, self.marked_source)
            self.course.mark(now, self.stand())
            self.facts.mark(source, offset, now)

    def _take(self, outcome: Outcome) -> list[Verdict]:
        if not self.behind:
            for piece in outcome.pieces:
                self.pending += [piece] if isinstance(piece, Batch) else piece
                self.waiting += len(piece)
            self.judged += outcome.verdicts
        if outcome.pieces:
            self.dirty = True
            if self.listener is not None:
                self.listener(outcome.pieces)
        return outcome.verdicts
