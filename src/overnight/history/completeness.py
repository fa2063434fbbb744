"""Whether metrics.db holds all of a run's log, and whether the log is still what was read: by places, not by reading.

Cheap enough for everybody who shows records. Nothing is written here, and no line is understood.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from overnight.errors import FolderError
from overnight.folder import RunFolder, read_journal, read_json
from overnight.history.reading import has, open_to_read
from overnight.intake.logfile import Mark
from overnight.states import ENDED

AFTER_S = 10.0
"""So much later than the end the log may have been touched by its supervisor, which gives back space behind it."""


class Place(NamedTuple):
    """How far a source was read and stored: a byte offset, and the bytes before it."""

    source: int
    offset: int
    before: bytes


def stored_places(metrics_db: Path) -> list[Place]:
    """Return how far each source is stored, oldest first; ValueError for a state that makes no sense."""
    if not metrics_db.is_file():
        return []
    try:
        with closing(open_to_read(metrics_db)) as db:
            # A file that was cut to nothing is a database without tables: nothing is stored in it.
            row = db.execute("SELECT value FROM state WHERE id = 1").fetchone() if has(db, "state") else None
        marks = [] if row is None else [Mark(*one) for one in msgspec.msgpack.decode(row[0])["marks"]]
        return sorted(Place(int(one.source), int(one.offset), bytes(one.before)) for one in marks)
    except (sqlite3.Error, msgspec.MsgspecError, TypeError, LookupError) as error:
        raise ValueError(f"no state can be read: {error}") from error


def stored_place(metrics_db: Path) -> Place | None:
    """Return how far the newest source is stored; None if nothing is. ValueError for a state that makes no sense."""
    return next(reversed(stored_places(metrics_db)), None)


def holds(log: Path, place: Place) -> bool:
    """Say whether a log is at least as long as it was and has the same bytes before that place; OSError."""
    handle = os.open(log, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        look = os.fstat(handle)
        if not stat.S_ISREG(look.st_mode) or look.st_size < place.offset:
            return False
        return os.pread(handle, len(place.before), max(0, place.offset - len(place.before))) == place.before
    finally:
        os.close(handle)


def behind(folder: RunFolder) -> bool:
    """Say whether a run has ended and its log holds more than was ever stored: then `overnight reindex` is due.

    False where that cannot be known: the log is gone, was replaced, or somebody else wrote to it after the end.
    """
    with suppress(OSError, ValueError, TypeError, LookupError, FolderError):
        asked = read_json(folder.run_json) or {}
        log = Path(asked["spec"]["log"])
        look = log.stat()
        if not stat.S_ISREG(look.st_mode):
            return False
        place = stored_place(folder.metrics_db) or Place(0, int(asked.get("log_start") or 0), b"")
        if look.st_size <= place.offset or not holds(log, place):
            return False
        ended_at, known = _told(folder, place.source)
        return ended_at is not None and (known > place.offset or look.st_mtime <= ended_at + AFTER_S)
    return False


def _told(folder: RunFolder, source: int) -> tuple[float | None, int]:
    """Return when a run has ended (None: it has not), and the last place of a source that its journal names."""
    ended_at, known = None, 0
    for fact in read_journal(folder.journal):
        if fact["fact"] == "ended":
            ended_at = datetime.fromisoformat(str(fact["at"])).timestamp() if fact.get("state") in ENDED else None
        elif fact["fact"] == "recovered":
            ended_at = None
        elif fact["fact"] in ("mark", "verdict") and fact.get("source") == source:
            known = max(known, int(fact["offset"]))
    return ended_at, known
