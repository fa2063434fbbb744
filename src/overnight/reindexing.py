"""A run's metrics.db built anew from its log and its journal, by whom the lock allows it.

The same intake reads as in the night, in a folder of its own; only the finished file is put in place of the old one.
Sources that cannot be read any more (a log that was truncated, rotated or replaced) are kept as they were stored; if
that is the newest one, there is nothing to build. What the sensors told is built anew from their files, each sample
with the attempt, segment and step that the time marks of the log give it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from overnight.errors import FolderError, UsageError
from overnight.events import VERDICT_KEY
from overnight.facts import Facts
from overnight.folder import RunFolder, encode_json, read_journal, read_json, sync_directory
from overnight.history.completeness import Place, holds, stored_place
from overnight.history.reading import Sheet, open_to_read
from overnight.history.store import History, make_private
from overnight.history.views import Views
from overnight.intake.reading import Intake
from overnight.monitor import Entry, Monitor
from overnight.requests.asked import in_force, read_asked
from overnight.sensors.archive import kinds_in, samples
from overnight.sensors.placing import SOURCES, Kind, Stand, record_of
from overnight.spec import RunSpec
from overnight.states import ENDED
from overnight.supervision.ownership import Owned, Owner
from overnight.wiring import make_monitor

TAILS = ("-wal", "-shm", "-journal")

SOME = 2048
"""Samples that are stored at once; each may have hundreds of numbers."""


class Rebuilt(NamedTuple):
    """What was built: records in all, those kept of sources that are gone, and verdicts.

    ``lost``: so many fewer than were stored of what was read again: the log was edited, or a reader has learned.
    ``samples`` of sensors are counted beside the records.
    """

    records: int
    kept: int
    verdicts: int
    lost: int
    samples: int = 0


def reindex(folder: RunFolder, log: Path | None = None) -> Rebuilt:
    """Build metrics.db of an ended run anew; ``log`` is where its log lies now, if that is elsewhere.

    FolderError if the log is gone, does not hold any more what was read of it, or nothing can be written; UsageError
    if the run is live. The old file stays then.
    """
    asked = read_asked(folder)
    spec = in_force(folder)
    path = Path(spec.log) if log is None else log.absolute()
    if not path.is_file():
        hint = "say with --log where it lies now" if log is None else "check the path"
        how = "is no file" if path.exists() else "is gone"
        raise FolderError(f"the log {path} {how} ({hint}); {folder.metrics_db} was left as it is")
    live = UsageError(
        f"{folder.name} is live: its supervisor keeps metrics.db and builds it anew by itself if it is removed; "
        "a run that nobody keeps is settled by `overnight status`"
    )
    if not has_ended(folder):
        raise live
    try:
        owner = Owner(folder)
    except Owned:
        raise UsageError(
            f"{folder.name} has ended, but its supervisor has not left yet and keeps metrics.db; try again in a moment"
        ) from None
    place = RunFolder(folder.path / f".reindex-{owner.number}")
    for left in folder.path.glob(".reindex-*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        _make_way(folder.metrics_db)
        place.create()
        found = _Build(folder, place).read(msgspec.structs.replace(spec, log=str(path)), asked.log_start)
        put_in_place(place.metrics_db, folder.metrics_db)
    except (OSError, sqlite3.Error) as error:
        raise FolderError(
            f"{folder.metrics_db} cannot be built anew ({error}); it was left as it is: check the disk and try again"
        ) from error
    finally:
        shutil.rmtree(place.path, ignore_errors=True)
        os.close(owner.handle)
    return found


def _make_way(path: Path) -> None:
    """Remove an empty folder that has the file's name; FolderError for one with something in it."""
    if not path.is_dir() or path.is_symlink():
        return
    try:
        path.rmdir()
    except OSError as error:
        raise FolderError(
            f"{path} is a folder and no database ({error.strerror}); move it away, then `overnight reindex` builds one"
        ) from error


def has_ended(folder: RunFolder) -> bool:
    """Say whether a run is over, by its journal; by its status if the journal is gone."""
    ended = known = False
    for fact in read_journal(folder.journal):
        known = True
        if fact["fact"] == "ended":
            ended = fact.get("state") in ENDED
        elif fact["fact"] == "recovered":
            ended = False
    return ended if known else (read_json(folder.status_json) or {}).get("state") in ENDED


class _Sheet(NamedTuple):
    """Some records that are stored: where they begin, how many, their segments, and where the last one begins."""

    place: tuple[int, int]
    records: int
    first: int
    last: int
    last_offset: int


class _Build:
    """One metrics.db in the making, in the folder ``place``."""

    def __init__(self, folder: RunFolder, place: RunFolder) -> None:
        self.folder = folder
        self.place = place
        self.told: set[tuple[Any, ...]] = set()
        self.marked: tuple[int, int] | None = None  # the last place that the journal names
        with place.journal.open("wb") as journal:
            for fact in read_journal(folder.journal):
                if fact["fact"] == "mark" or (fact["fact"] == "state" and fact.get("state") == "starting"):
                    journal.write(encode_json(fact))
                    with contextlib.suppress(KeyError, TypeError, ValueError):  # of a state, or edited by hand
                        self.marked = max(self.marked or (0, 0), (int(fact["source"]), int(fact["offset"])))
                elif fact["fact"] == "verdict":
                    self.told.add(tuple(fact.get(name) for name in VERDICT_KEY))
        self.journal_kept = self.marked is not None
        self.place_before = None
        with contextlib.suppress(ValueError):
            self.place_before = stored_place(folder.metrics_db)
        self.stands: dict[tuple[int, int], Stand] = {}  # of samples, by source and offset
        self.sheets = self._copy()

    def _copy(self) -> list[_Sheet]:
        """Copy what is stored, without the state; return its sheets in short."""
        if not self.folder.metrics_db.is_file():
            return []
        try:
            make_private(self.place.metrics_db)
            with (
                closing(open_to_read(self.folder.metrics_db)) as old,
                closing(sqlite3.connect(self.place.metrics_db)) as new,
            ):
                old.backup(new)
                self.told.update(new.execute(f"SELECT {', '.join(VERDICT_KEY)} FROM verdicts"))  # noqa: S608 - names of ours
                new.execute("DELETE FROM state")
                new.commit()
            History(self.place.metrics_db).close()
            with Views(self.place.metrics_db) as views:
                sheets = views.sheets()
                with views.failing():
                    self.stands.update(_stands(one for one in sheets if one.key.source < 0))
                return [
                    _Sheet(
                        (one.key.source, one.offset),
                        one.count,
                        one.runs[0].segment,
                        one.runs[-1].segment,
                        one.last_offset,
                    )
                    for one in sheets
                    if one.key.source >= 0
                ]
        except (sqlite3.Error, FolderError):  # damaged: there is nothing to be kept
            for tail in ("", *TAILS):
                Path(f"{self.place.metrics_db}{tail}").unlink(missing_ok=True)
            return []

    def read(self, spec: RunSpec, start: int) -> Rebuilt:
        """Read the log to its end as a supervisor would."""
        source = self._source_of(Path(spec.log))
        facts = Facts(self.place)
        monitor = make_monitor(spec, facts.note)
        intake = Intake(self.place, spec, monitor, facts, start=start, pids=(), first_source=source)
        try:
            first = intake.log.position()[0]
            kinds = kinds_in(self.folder.path)
            intake.history.read_again(first, [SOURCES[kind] for kind in kinds])
            intake.bounds.extend(self._bounds(monitor, first))
            intake.read(clock=0.0)
            while intake.more:
                intake.commit()
                intake.read(clock=0.0)
            intake.flush()
            for kind in sorted(kinds):
                self._samples(intake, kind, kept=any(one.place[0] < first for one in self.sheets))
            intake.dirty = True  # a log without a record: what was stored of it goes all the same
            intake.commit(at_last=True)
            if intake.dirty:
                raise OSError("; ".join(facts.notes[-1:]) or "nothing can be stored")
        finally:
            intake.history.close()
            intake.log.close()
            facts.journal.close()
        return self._count(first)

    def _samples(self, intake: Intake, kind: Kind, *, kept: bool) -> None:
        """Store what a sensor told, each sample where the run stood then.

        Beside a part of the log that is gone nobody knows that any more but the old file: so it stays (``kept``).
        """
        for offset, sample in samples(self.folder.path, kind):
            stand = intake.stood(sample.at)
            if kept and sample.at < intake.course.begins:
                stand = self.stands.get((SOURCES[kind], offset), stand)
            record = record_of(sample, offset, stand.step)
            if record is not None:
                intake.pending.append(Entry(record, stand.attempt, stand.segment))
            if len(intake.pending) >= SOME:
                intake.dirty = True
                intake.commit()

    def _source_of(self, log: Path) -> int | None:
        """Return which source the log is; None if nothing of it is stored, so that nothing can be lost.

        FolderError if it does not hold any more what was read of it: that stays as it is stored.
        """
        size = log.stat().st_size
        known = self.place_before
        named = [one[0] for one in (self.marked, known) if one is not None]
        newest = max([*named, *(one.place[0] for one in self.sheets)], default=0)
        mine = [one.last_offset for one in self.sheets if one.place[0] == newest]
        if known is None or known.source != newest:
            known = Place(newest, max(mine, default=-1) + 1, b"")
        wrong = None
        if size == 0 and (self.sheets or self.marked):
            wrong = "is empty"
        elif mine and size < max(known.offset, *mine):
            wrong = f"is shorter than it was, {size:,} bytes of {max(known.offset, *mine):,}"
        elif mine and not holds(log, known):
            wrong = "holds other lines now than those that were read"
        if wrong is not None:
            records = sum(one.records for one in self.sheets)
            raise FolderError(
                f"the log {log} {wrong}; {self.folder.metrics_db} was left as it is, with its {records:,} records: "
                "say with --log where the whole log lies"
            )
        return newest if mine else None

    def _bounds(self, monitor: Monitor, first: int) -> list[tuple[int, int, int]]:
        """Return where each attempt begins, and let segments go on counting behind sources that are kept."""
        begins = []
        for number in self.folder.attempt_numbers():
            try:
                order = read_json(self.folder.attempt(number).start_json) or {}
                begins.append((*msgspec.convert(order.get("position"), tuple[int, int]), number))
            except (FolderError, msgspec.ValidationError):
                continue
        begins.sort(key=lambda one: one[2])
        before = [one for one in self.sheets if one.place[0] < first]
        if before:
            again = min((one for one in self.sheets if one.place[0] >= first), default=None)
            monitor.meter.segment = max(one.last for one in before) if again is None else again.first - 1
            begun = [one for one in begins if one[0] < first]
            begins = [*begun[-1:], *(one for one in begins if one[0] >= first)]
            if again is not None:  # attempts that began before its first line begin with it
                early = [one for one in begins if one[:2] <= again.place]
                begins = [*early[-1:], *begins[len(early) :]]
        return begins or [(0, 0, 1)]

    def _count(self, first: int) -> Rebuilt:
        kept = sum(one.records for one in self.sheets if one.place[0] < first)
        again = sum(one.records for one in self.sheets) - kept
        with closing(sqlite3.connect(self.place.metrics_db)) as db:
            if self.journal_kept:  # what other rules would have said that night was never told
                this_one = " AND ".join(f"{name} = ?" for name in VERDICT_KEY)
                for key in set(db.execute(f"SELECT {', '.join(VERDICT_KEY)} FROM verdicts")) - self.told:  # noqa: S608 - ours
                    db.execute(f"DELETE FROM verdicts WHERE {this_one}", key)  # noqa: S608 - names of ours
                db.commit()
            records, sampled = (
                db.execute(
                    f"SELECT (SELECT count(*) FROM records WHERE {of})"  # noqa: S608 - ours
                    f" + (SELECT coalesce(sum(records), 0) FROM chunks WHERE {of})"
                ).fetchone()[0]
                for of in ("source >= 0", "source < 0")
            )
            verdicts = db.execute("SELECT count(*) FROM verdicts").fetchone()[0]
        return Rebuilt(records, kept, verdicts, max(0, again - (records - kept)), sampled)


def _stands(sheets: Iterable[Sheet]) -> Iterator[tuple[tuple[int, int], Stand]]:
    """Yield the place of each stored sample, and where the run stood then."""
    for sheet in sheets:
        for row in sheet.rows():
            yield (row["source"], row["offset"]), Stand(row["attempt"], row["segment"], row["step"])


def put_in_place(new: Path, old: Path) -> None:
    """Rename onto the old file. A journal that it left would be taken for the new file's: it goes first."""
    if any(Path(f"{old}{tail}").exists() for tail in TAILS):
        # Folded into the old file, or undone in it, which is whole then if this is cut short.
        with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(old)) as db:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with new.open("rb+") as stream:
        os.fsync(stream.fileno())
    for tail in TAILS:
        Path(f"{old}{tail}").unlink(missing_ok=True)
    new.replace(old)
    sync_directory(old.parent)
