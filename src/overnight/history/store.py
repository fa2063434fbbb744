"""metrics.db as its one writer sees it: records, verdicts, and the monitor's own state, in one transaction.

An index, not the truth: it may be deleted and is rebuilt from the log and the journal. Because the place in the log and
the state of everything behind it are committed together with the records, each line counts exactly once, wherever a
supervisor is killed. New records are plain rows; once 4,096 of a kind wait they become a chunk, in the same transaction
as everything else. SQLite keeps no NaN (it becomes NULL), so in rows non-finite numbers are the texts of
``events.jsonable``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import attrgetter
from pathlib import Path

import msgspec

from overnight.batches import Batch, Entry
from overnight.events import Verdict, jsonable
from overnight.history.chunks import Key, pack
from overnight.history.pieces import clean_tree, grouped, storable, storable_verdict
from overnight.history.reading import key_of, records_of
from overnight.history.table import NUMBERS, PLACE, Table

__all__ = ["History", "decode_state", "encode_state", "open_history", "records_of", "set_aside"]

FORMAT = 1
"""Of the monitor's state."""

FORM = 2
"""Of the tables (user_version): 2 has chunks, 1 (which said 0) had plain rows only."""

CHUNK = 4096
LEAST = 256
"""What an attempt that is over has left becomes a chunk, too, if it is not just a few rows."""

MOST_ROWS = 65_536
"""No more plain rows than these are kept waiting, of however many ranks."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, value BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS records (
  source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL,
  attempt INTEGER NOT NULL, segment INTEGER NOT NULL, at REAL NOT NULL, reader TEXT NOT NULL, kind TEXT NOT NULL,
  rank INTEGER, step INTEGER, loss, dt_s, tokens, tokens_per_s, samples_per_s, mfu, lr, grad_norm, epoch, extra TEXT,
  tokens_total, glued INTEGER NOT NULL DEFAULT 0, per_device INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (source, offset, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
  id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL,
  attempt INTEGER NOT NULL, kind TEXT NOT NULL, rank INTEGER, reader TEXT NOT NULL, glued INTEGER NOT NULL,
  per_device INTEGER NOT NULL, records INTEGER NOT NULL, runs BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS series (
  name TEXT NOT NULL, chunk INTEGER NOT NULL, count INTEGER NOT NULL, nonfinite INTEGER NOT NULL,
  least REAL, least_index INTEGER NOT NULL, largest REAL, first REAL, last REAL,
  PRIMARY KEY (name, chunk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS levels (name TEXT NOT NULL, chunk INTEGER NOT NULL, value BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS levels_by_name ON levels (name, chunk);
CREATE TABLE IF NOT EXISTS coarse (
  name TEXT NOT NULL, chunk INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (name, chunk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS columns (
  chunk INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, mask BLOB NOT NULL, texts BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS columns_by_chunk ON columns (chunk, name);
CREATE TABLE IF NOT EXISTS verdicts (
  attempt INTEGER NOT NULL, source INTEGER NOT NULL, offset INTEGER NOT NULL, part INTEGER NOT NULL, rule TEXT NOT NULL,
  severity TEXT NOT NULL, action TEXT NOT NULL, step INTEGER, at REAL, text TEXT NOT NULL, evidence TEXT NOT NULL,
  PRIMARY KEY (attempt, source, offset, part, rule)) WITHOUT ROWID;
"""

LATER = {"tokens_total": "", "glued": "INTEGER NOT NULL DEFAULT 0", "per_device": "INTEGER NOT NULL DEFAULT 0"}
"""What a table of records of the first form has not."""

# In the first form a NaN in ``extra`` was a text as well; now it is the word that JSON has not and Python has.
RENAME = [(f': "{was}"', f": {now}") for was, now in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity"))]

ROW = (
    *("source", "offset", "part", "attempt", "segment", "at", "reader", "kind", "rank", "step"),
    *NUMBERS,
    *("extra", "glued", "per_device"),
)
INSERT_RECORD = f"INSERT OR REPLACE INTO records ({', '.join(ROW)}) VALUES ({', '.join('?' * len(ROW))})"  # noqa: S608 - names of ours
OF_KEY = "source = ? AND attempt = ? AND kind = ? AND rank IS ? AND reader = ? AND glued = ? AND per_device = ?"
READ_ROWS = f"SELECT segment, {', '.join((*PLACE, *NUMBERS))}, extra FROM records WHERE {OF_KEY} ORDER BY offset, part"  # noqa: S608 - names of ours

UNSTORABLE = (
    *(ValueError, OverflowError, TypeError, AttributeError, msgspec.MsgspecError),
    *(sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError, sqlite3.IntegrityError),
)
"""What a record raises that holds something no database does; never a disk, a lock or a damaged file."""

_place = attrgetter("source", "offset", "part")
_what = attrgetter("at", "reader", "kind", "rank", "step")
_numbers = attrgetter(*NUMBERS)


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(jsonable(value))


def _row(entry: Entry) -> tuple[object, ...]:
    record, attempt, segment = entry
    numbers = _numbers(record)
    extra = None if record.extra is None else json.dumps(record.extra)
    return (
        *_place(record), attempt, segment, *_what(record), *map(_number, numbers), extra, record.glued,
        record.per_device,
    )  # fmt: skip


class History:
    """One open metrics.db, for the only writer; a ``passing`` one goes with its process. Readers open it read-only."""

    def __init__(
        self, path: Path, *, network: bool = False, instead_of: Path | None = None, passing: bool = False
    ) -> None:
        self.path = path
        self.temporary = instead_of
        self.network = network
        self._again: tuple[int, tuple[int, ...]] | None = None
        self.left_out = 0
        if instead_of is None:
            make_private(path)
        # A short wait: a commit that failed is made later, a stop that came late is not.
        self.db = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        try:
            # WAL needs shared memory, which network file systems do not have; there the old journal is slow but right.
            journal = "MEMORY" if passing else "DELETE" if network else "WAL"
            for setting in (f"journal_mode={journal}", f"synchronous={0 if passing else 1}", "cache_size=-2000"):
                self.db.execute(f"PRAGMA {setting}")
            self._make_tables()
            self.load()
            self.tails = self._count_rows()
            self.file = self._file()
        except sqlite3.Error:
            self.db.close()
            raise

    def _make_tables(self) -> None:
        if self.db.execute("PRAGMA user_version").fetchone()[0] >= FORM:
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            known = {row[1] for row in self.db.execute("PRAGMA table_info(records)")}
            for name in LATER.keys() - known if known else ():
                self.db.execute(f"ALTER TABLE records ADD COLUMN {name} {LATER[name]}")
            for was, now in RENAME if known else ():
                self.db.execute(
                    "UPDATE records SET extra = replace(extra, ?, ?) WHERE instr(extra, ?)", (was, now, was)
                )
            for statement in SCHEMA.split(";\n"):
                self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version = {FORM}")
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
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

    def read_again(self, source: int, besides: Iterable[int] = ()) -> None:
        """From ``source`` on everything is read once more: the next commit replaces what is stored of it.

        So are the sources ``besides``: files of sensors, whose numbers lie below those of logs.
        """
        self._again = (source, tuple(besides))

    def commit(self, entries: Iterable[Entry | Batch], verdicts: Iterable[Verdict], state: bytes) -> None:
        """Commit records, verdicts and state together. sqlite3.Error leaves everything as it was.

        Records that hold what cannot be stored are stored without that; ``left_out`` counts those that cannot be.
        """
        pieces, judged = list(entries), list(verdicts)
        try:
            self._commit(pieces, judged, state)
        except UNSTORABLE:
            kept, left_out = storable(pieces)
            try:
                self._commit(kept, list(map(storable_verdict, judged)), state)
            except UNSTORABLE as error:  # not of these records, then: what is stored already makes no sense
                raise sqlite3.DatabaseError(f"{type(error).__name__}: {error}") from error
            self.left_out += left_out

    def _commit(self, entries: list[Entry | Batch], verdicts: list[Verdict], state: bytes) -> None:
        tails = dict(self.tails)
        self.db.execute("BEGIN IMMEDIATE")
        try:
            if self._again is not None:
                self._drop(*self._again)
                tails = self._count_rows()
            newest = self._store(entries, tails)
            self._tidy(tails, newest)
            for one in verdicts:
                self._store_verdict(one)
            self.db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (FORMAT, state))
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise
        self.tails = tails
        self._again = None

    def _store_verdict(self, one: Verdict) -> None:
        evidence = json.dumps(jsonable(one.evidence))
        self.db.execute(
            "INSERT OR REPLACE INTO verdicts VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                one.attempt, one.source, one.offset, one.part, one.rule, one.severity, one.action, one.step, one.at,
                one.text, evidence,
            ),
        )  # fmt: skip

    def _store(self, entries: Iterable[Entry | Batch], tails: dict[Key, int]) -> tuple[int, int]:
        """Store records as rows, or with the rows that wait as chunks; return the newest (source, attempt)."""
        newest = (-1, -1)
        for key, pieces in grouped(entries).items():
            newest = max(newest, (key.source, key.attempt))
            count = sum(len(piece) for piece in pieces)
            waiting = tails.get(key, 0)
            if waiting + count < CHUNK:
                for piece in pieces:
                    self.db.executemany(INSERT_RECORD, map(_row, piece))
                tails[key] = waiting + count
                continue
            table = self._take_rows(key) if waiting else Table()
            for piece in pieces:
                if isinstance(piece, Batch):
                    table.add_batch(piece)
                else:
                    table.add_entries(piece)
            self._store_chunks(key, table)
            tails.pop(key, None)
        return newest

    def _tidy(self, tails: dict[Key, int], newest: tuple[int, int]) -> None:
        """Make chunks of the rows of attempts and sources that are over, and of all if there are too many."""
        over = sum(tails.values()) > MOST_ROWS
        for key in [key for key, count in tails.items() if over or _is_over(key, newest) or count >= CHUNK]:
            if tails[key] >= LEAST:
                self._store_chunks(key, self._take_rows(key))
            if tails[key] >= LEAST or _is_over(key, newest):
                del tails[key]

    def _take_rows(self, key: Key) -> Table:
        table = Table()
        cursor = self.db.execute(READ_ROWS, key)
        while rows := cursor.fetchmany(CHUNK):
            segments, *columns, extras = zip(*rows, strict=True)
            table.add_rows(segments, columns, extras)
        self.db.execute(f"DELETE FROM records WHERE {OF_KEY}", key)  # noqa: S608 - names of ours
        return table

    def _store_chunks(self, key: Key, whole: Table) -> None:
        for records in whole.ordered().cut(2 * CHUNK - 1):
            packed = pack(records)
            runs = msgspec.msgpack.encode(packed.runs)
            place = (key.source, records.offsets[0], records.parts[0])
            chunk = self.db.execute(
                "INSERT INTO chunks VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?)", (*place, *key[1:], len(records), runs)
            ).lastrowid
            self.db.executemany(
                "INSERT INTO series VALUES (?,?,?,?,?,?,?,?,?)", ((one[0], chunk, *one[1:]) for one in packed.series)
            )
            for table, level in (("levels", packed.levels), ("coarse", packed.coarse)):
                self.db.executemany(
                    f"INSERT INTO {table} VALUES (?,?,?)",  # noqa: S608 - a name of ours
                    zip(level, repeat(chunk), level.values(), strict=False),
                )
            self.db.execute("INSERT INTO columns VALUES (?,'',?,'',NULL)", (chunk, packed.places))
            self.db.executemany("INSERT INTO columns VALUES (?,?,?,?,?)", ((chunk, *one) for one in packed.columns))

    def _drop(self, source: int, besides: Iterable[int]) -> None:
        """Remove what is stored of a source and all later ones, and of some others."""
        for one in besides:
            self._drop_where("source = ?", one)
        self._drop_where("source >= ?", source)

    def _drop_where(self, condition: str, source: int) -> None:
        self.db.execute(f"DELETE FROM records WHERE {condition}", (source,))  # noqa: S608 - ours
        for table in ("series", "levels", "coarse", "columns"):
            self.db.execute(
                f"DELETE FROM {table} WHERE chunk IN (SELECT id FROM chunks WHERE {condition})",  # noqa: S608 - ours
                (source,),
            )
        self.db.execute(f"DELETE FROM chunks WHERE {condition}", (source,))  # noqa: S608 - ours

    def _count_rows(self) -> dict[Key, int]:
        """Return how many rows wait to become a chunk."""
        names = ", ".join(Key._fields)
        rows = self.db.execute(f"SELECT {names}, count(*) FROM records GROUP BY {names}")  # noqa: S608 - names of ours
        return {key_of(row): row[7] for row in rows}

    def usable(self) -> bool:
        """Say whether something can be stored now: whether a disk has space again, a lock was given up."""
        if self.temporary is not None:
            return _can_open(self.temporary, network=self.network)
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
        """Fold the write-ahead log into the file and close it; readers then need no more than this one file."""
        with contextlib.suppress(sqlite3.Error):  # somebody is reading: then the next writer does it
            self.db.execute("PRAGMA busy_timeout=0")
            self.db.execute("PRAGMA journal_mode=DELETE")
        self.db.close()


def _is_over(key: Key, newest: tuple[int, int]) -> bool:
    """Say whether no more records of a key will come; sensors go on through all lives of a log."""
    return key.attempt < newest[1] if key.source < 0 else (key.source, key.attempt) < newest


def open_history(path: Path, *, network: bool = False) -> tuple[History, str | None]:
    """Open metrics.db; the second value says what was wrong with it.

    A damaged one is moved aside. One that cannot be opened or written for now (full disk, lock, rights) is left as it
    is and this process does without: the log is judged all the same, and the next supervisor reads it again.
    """
    try:
        return History(path, network=network), None
    except sqlite3.OperationalError as error:
        said = f"{path} cannot be used ({error})"
    except sqlite3.DatabaseError as error:
        said = f"{path} was damaged ({error}) and cannot be replaced"
        with contextlib.suppress(OSError, sqlite3.Error):
            done = f"{path} was damaged ({error}); it was moved to {set_aside(path)} and is rebuilt"
            return History(path, network=network), done
    return History(Path(":memory:"), network=network, instead_of=path), f"{said}; nothing is stored in it for now"


def make_private(path: Path) -> None:
    """Make the file if it is not there: SQLite would let everybody read it."""
    with contextlib.suppress(OSError):  # SQLite finds out why, and says it
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _can_open(path: Path, *, network: bool) -> bool:
    try:
        History(path, network=network).close()
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


def encode_state(value: object) -> bytes:
    """Return builtins (NaN included) as MessagePack; what it cannot hold as the nearest that it can."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return msgspec.msgpack.encode(clean_tree(value))


def decode_state(data: bytes) -> object:
    """Undo ``encode_state``."""
    return msgspec.msgpack.decode(data)
