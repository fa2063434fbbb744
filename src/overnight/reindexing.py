"""A run's metrics.db built anew from its log and its journal, by whom the lock allows it.

The same intake reads as in the night, in a folder of its own; only the finished file is put in place of the old one.
Sources that cannot be read any more (a log that was truncated, rotated or replaced) are kept as they were stored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from overnight.asked import in_force, read_asked
from overnight.errors import FolderError, UsageError
from overnight.facts import Facts
from overnight.folder import RunFolder, encode_json, read_journal, read_json, sync_directory
from overnight.history.reading import open_to_read
from overnight.history.store import History
from overnight.history.views import Views
from overnight.intake import Intake
from overnight.monitor import Monitor
from overnight.ownership import Owned, Owner
from overnight.spec import RunSpec
from overnight.states import ENDED
from overnight.wiring import make_monitor

KEY = ("attempt", "source", "offset", "part", "rule")
"""What makes a verdict the same verdict."""

TAILS = ("-wal", "-shm", "-journal")


class Rebuilt(NamedTuple):
    """What was built: records in all, those kept of sources that are gone, and verdicts."""

    records: int
    kept: int
    verdicts: int


def reindex(folder: RunFolder, log: Path | None = None) -> Rebuilt:
    """Build metrics.db of an ended run anew; ``log`` is where its log lies now, if that is elsewhere.

    FolderError if the log is gone or nothing can be written, UsageError if the run is live; the old file stays then.
    """
    asked = read_asked(folder)
    spec = in_force(folder)
    path = Path(spec.log) if log is None else log.absolute()
    if not path.is_file():
        hint = "say with --log where it lies now" if log is None else "check the path"
        raise FolderError(f"the log {path} is gone ({hint}); {folder.metrics_db} was left as it is")
    live = UsageError(
        f"{folder.name} is live: its supervisor keeps metrics.db and builds it anew by itself if it is removed; "
        "a run that nobody keeps is settled by `overnight status`"
    )
    if not has_ended(folder):
        raise live
    try:
        owner = Owner(folder)
    except Owned:
        raise live from None
    place = RunFolder(folder.path / f".reindex-{owner.number}")
    for left in folder.path.glob(".reindex-*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        place.create()
        found = _Build(folder, place).read(msgspec.structs.replace(spec, log=str(path)), asked.log_start)
        _put_in_place(place.metrics_db, folder.metrics_db)
    except (OSError, sqlite3.Error) as error:
        raise FolderError(
            f"{folder.metrics_db} cannot be built anew ({error}); it was left as it is: check the disk and try again"
        ) from error
    finally:
        shutil.rmtree(place.path, ignore_errors=True)
        os.close(owner.handle)
    return found


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


class _Build:
    """One metrics.db in the making, in the folder ``place``."""

    def __init__(self, folder: RunFolder, place: RunFolder) -> None:
        self.folder = folder
        self.place = place
        self.told: set[tuple[Any, ...]] = set()
        marks = 0
        with place.journal.open("wb") as journal:
            for fact in read_journal(folder.journal):
                if fact["fact"] == "mark":
                    marks += 1
                    journal.write(encode_json(fact))
                elif fact["fact"] == "verdict":
                    self.told.add(tuple(fact.get(name) for name in KEY))
        self.journal_kept = marks > 0
        self.sheets = self._copy()

    def _copy(self) -> list[tuple[tuple[int, int], int, int, int]]:
        """Copy what is stored, without the state; return (place, records, first, last segment) of its sheets."""
        if not self.folder.metrics_db.is_file():
            return []
        try:
            with (
                closing(open_to_read(self.folder.metrics_db)) as old,
                closing(sqlite3.connect(self.place.metrics_db)) as new,
            ):
                old.backup(new)
                self.told.update(new.execute(f"SELECT {', '.join(KEY)} FROM verdicts"))  # noqa: S608 - names of ours
                new.execute("DELETE FROM state")
                new.commit()
            History(self.place.metrics_db).close()
            with Views(self.place.metrics_db) as views:
                return [
                    ((one.key.source, one.offset), one.count, one.runs[0].segment, one.runs[-1].segment)
                    for one in views.sheets()
                ]
        except (sqlite3.Error, FolderError):  # damaged: there is nothing to be kept
            for tail in ("", *TAILS):
                Path(f"{self.place.metrics_db}{tail}").unlink(missing_ok=True)
            return []

    def read(self, spec: RunSpec, start: int) -> Rebuilt:
        """Read the log to its end as a supervisor would."""
        facts = Facts(self.place)
        monitor = make_monitor(spec, facts.note)
        intake = Intake(self.place, spec, monitor, facts, start=start, pids=())
        try:
            first = intake.log.position()[0]
            kept = sum(count for place, count, _, _ in self.sheets if place[0] < first)
            intake.bounds.extend(self._bounds(monitor, first))
            intake.read(clock=0.0)
            while intake.more:
                intake.commit()
                intake.read(clock=0.0)
            intake.flush()
            intake.dirty = True  # a log without a record: what was stored of it goes all the same
            intake.commit(at_last=True)
            if intake.dirty:
                raise OSError("; ".join(facts.notes[-1:]) or "nothing can be stored")
        finally:
            intake.history.close()
            intake.log.close()
            facts.journal.close()
        return self._count(kept)

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
        before = [one for one in self.sheets if one[0][0] < first]
        if before:
            again = min((one for one in self.sheets if one[0][0] >= first), default=None)
            monitor.meter.segment = max(one[3] for one in before) if again is None else again[2] - 1
            begun = [one for one in begins if one[0] < first]
            begins = [*begun[-1:], *(one for one in begins if one[0] >= first)]
            if again is not None:  # attempts that began before its first line begin with it
                early = [one for one in begins if one[:2] <= again[0]]
                begins = [*early[-1:], *begins[len(early) :]]
        return begins or [(0, 0, 1)]

    def _count(self, kept: int) -> Rebuilt:
        with closing(sqlite3.connect(self.place.metrics_db)) as db:
            if self.journal_kept:  # what other rules would have said that night was never told
                this_one = " AND ".join(f"{name} = ?" for name in KEY)
                for key in set(db.execute(f"SELECT {', '.join(KEY)} FROM verdicts")) - self.told:  # noqa: S608 - ours
                    db.execute(f"DELETE FROM verdicts WHERE {this_one}", key)  # noqa: S608 - names of ours
                db.commit()
            records = db.execute(
                "SELECT (SELECT count(*) FROM records) + (SELECT coalesce(sum(records), 0) FROM chunks)"
            ).fetchone()[0]
            verdicts = db.execute("SELECT count(*) FROM verdicts").fetchone()[0]
        return Rebuilt(records, kept, verdicts)


def _put_in_place(new: Path, old: Path) -> None:
    """Rename onto the old file. A write-ahead log that it left would be taken for the new file's: it goes first."""
    if Path(f"{old}-wal").exists():
        # Folded into the old file, which is whole if this is cut short.
        with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(old)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with new.open("rb+") as stream:
        os.fsync(stream.fileno())
    for tail in TAILS:
        Path(f"{old}{tail}").unlink(missing_ok=True)
    new.replace(old)
    sync_directory(old.parent)
