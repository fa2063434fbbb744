"""metrics.db: the records read so far, the verdicts, and the monitor's own state, in one transaction.

An index, not the truth: it may be deleted and is rebuilt from the log and the journal. Because the place in the log and
the state of everything behind it are committed together with the records, each line counts exactly once, wherever a
supervisor is killed. SQLite keeps no NaN (it becomes NULL), so non-finite numbers are stored as the texts of
``events.jsonable``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from overnight.events import Verdict, jsonable
from overnight.monitor import Entry

FORMAT = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS records (
  source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL,
  attempt INTEGER NOT NULL, segment INTEGER NOT NULL, at REAL NOT NULL, reader TEXT NOT NULL, kind TEXT NOT NULL,
  rank INTEGER, step INTEGER, loss, dt_s, tokens, tokens_per_s, samples_per_s, mfu, lr, grad_norm, epoch, extra TEXT,
  PRIMARY KEY (source, offset, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS verdicts (
  attempt INTEGER NOT NULL, source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL, rule TEXT NOT NULL,
  severity TEXT NOT NULL, action TEXT NOT NULL, step INTEGER, at REAL, text TEXT NOT NULL, evidence TEXT NOT NULL,
  PRIMARY KEY (attempt, source, offset, part, rule)) WITHOUT ROWID;
"""

INSERT_RECORD = "INSERT OR REPLACE INTO records VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(jsonable(value))


def _row(entry: Entry) -> tuple[object, ...]:
    record = entry.record
    return (
        record.source,
        record.offset,
        record.part,
        entry.attempt,
        entry.segment,
        record.at,
        record.reader,
        record.kind,
        record.rank,
        record.step,
        _number(record.loss),
        _number(record.dt_s),
        _number(record.tokens),
        _number(record.tokens_per_s),
        _number(record.samples_per_s),
        _number(record.mfu),
        _number(record.lr),
        _number(record.grad_norm),
        _number(record.epoch),
        None if record.extra is None else json.dumps(jsonable(record.extra)),
    )


class History:
    """One open metrics.db. There is one writer, the supervisor; readers open it read-only with ``records_of``."""

    def __init__(self, path: Path, *, network: bool = False, instead_of: Path | None = None) -> None:
        self.path = path
        self.temporary = instead_of
        # A short wait: a commit that failed is made later, a stop that came late is not.
        self.db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        try:
            # WAL needs shared memory, which network file systems do not have; there the old journal is slow but right.
            self.db.execute(f"PRAGMA journal_mode={'DELETE' if network else 'WAL'}")
            self.db.execute("PRAGMA synchronous=NORMAL")
            self.db.execute("PRAGMA cache_size=-2000")
            self.db.executescript(SCHEMA)
            self.load()
            self.file = self._file()
        except sqlite3.Error:
            self.db.close()
            raise

    def load(self) -> bytes | None:
        """Return the monitor's committed state; None if there is none or it is of another format."""
        row = self.db.execute("SELECT format, value FROM state WHERE id = 1").fetchone()
        return bytes(row[1]) if row is not None and row[0] == FORMAT else None

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the verdicts that were stored: what is left of them if somebody damaged the journal."""
        rows = self.db.execute("SELECT * FROM verdicts ORDER BY source, offset, part")
        names = [column[0] for column in rows.description]
        for row in rows:
            found = dict(zip(names, row, strict=True))
            with contextlib.suppress(msgspec.ValidationError, ValueError):  # edited by hand: it will be found again
                yield msgspec.convert({**found, "evidence": json.loads(found["evidence"])}, Verdict)

    def commit(self, entries: Iterable[Entry], verdicts: Iterable[Verdict], state: bytes) -> None:
        """Commit records, verdicts and state together. sqlite3.Error leaves everything as it was."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.db.executemany(INSERT_RECORD, map(_row, entries))
            for one in verdicts:
                self.db.execute(
                    "INSERT OR REPLACE INTO verdicts VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                    (
                        one.attempt,
                        one.source,
                        one.offset,
                        one.part,
                        one.rule,
                        one.severity,
                        one.action,
                        one.step,
                        one.at,
                        one.text,
                        json.dumps(jsonable(one.evidence)),
                    ),
                )
            self.db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (FORMAT, state))
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def usable(self) -> bool:
        """Say whether something can be stored now: whether a disk has space again, a lock was given up."""
        if self.temporary is not None:
            return _can_open(self.temporary)
        try:
            self.db.execute("BEGIN IMMEDIATE")
            self.db.execute("UPDATE state SET format = format")
            self.db.execute("COMMIT")
        except sqlite3.Error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            return False
        return True

    def in_place(self) -> bool:
        """Say whether what is stored can be found again: False once the file was removed or replaced."""
        return self.temporary is not None or self._file() == self.file

    def _file(self) -> tuple[int, int] | None:
        try:
            look = os.stat(self.path)
        except OSError:
            return None
        return look.st_dev, look.st_ino

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self.db.close()


def open_history(path: Path, *, network: bool = False) -> tuple[History, str | None]:
    """Open metrics.db; the second value says what was wrong with it.

    A damaged one is moved aside. One that cannot be opened or written for now (full disk, lock, rights) is left as it
    is and this process does without: the log is judged all the same, and the next supervisor reads it again.
    """
    try:
        history = History(path, network=network)
    except sqlite3.OperationalError as error:
        return History(
            Path(":memory:"), instead_of=path
        ), f"{path} cannot be used ({error}); nothing is stored in it for now"
    except sqlite3.DatabaseError as error:
        aside = set_aside(path)
        return History(path, network=network), f"{path} was damaged ({error}); it was moved to {aside} and is rebuilt"
    return history, None


def _can_open(path: Path) -> bool:
    try:
        History(path).close()
    except sqlite3.Error:
        return False
    return True


def set_aside(path: Path) -> Path:
    """Move a damaged metrics.db out of the way and return where it went; the next supervisor makes a new one."""
    aside = path.with_suffix(".damaged")
    for tail in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{tail}").replace(f"{aside}{tail}")
    return aside


def records_of(path: Path) -> Iterator[dict[str, object]]:
    """Yield every record of a metrics.db as a plain dict, in the order of the log."""
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        for row in db.execute("SELECT * FROM records ORDER BY source, offset, part"):
            yield dict(row)


def encode_state(value: object) -> bytes:
    """Return builtins (NaN included) as MessagePack."""
    return msgspec.msgpack.encode(value)


def decode_state(data: bytes) -> object:
    """Undo ``encode_state``."""
    return msgspec.msgpack.decode(data)
