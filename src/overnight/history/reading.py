"""metrics.db as everybody but its writer sees it: sheets of records, from chunks and from rows. Read-only.

A sheet is what a chunk holds, or the rows that wait to become one. The views and the exports are made of sheets;
nothing here knows an x axis.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from overnight.errors import FolderError
from overnight.events import jsonable
from overnight.history import coding
from overnight.history.chunks import (
    LOOSE,
    Key,
    Places,
    Run,
    Series,
    Steps,
    pack_places,
    runs_of,
    summed,
    unpack_places,
    unpack_steps,
)
from overnight.history.cleaning import clean_text, read_extra
from overnight.history.table import NUMBERS, PLACE, Table

FIELDS = ("source", "offset", "part", "attempt", "segment", "at", "reader", "kind", "rank", "step", *NUMBERS)
_RUNS = msgspec.msgpack.Decoder(list[Run])
Column = tuple["array[float]", bytes | None]
Values = list[float | str | None]


def open_to_read(path: Path) -> sqlite3.Connection:
    """Return a read-only connection; sqlite3.OperationalError if there is no such file."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=5.0)


def broken(path: Path, error: Exception) -> FolderError:
    """Return the error for a metrics.db that cannot be read."""
    return FolderError(f"{path} cannot be read ({error}); `overnight reindex` builds it anew from the log")


class Sheet:
    """Some records of one key, in order: a chunk of the file, or rows (``table``)."""

    __slots__ = ("_db", "_loose", "_places", "chunk", "count", "key", "offset", "part", "runs", "table")

    def __init__(
        self, key: Key, place: tuple[int, int], runs: list[Run], *, db: sqlite3.Connection | None = None, chunk: int = 0
    ) -> None:
        self.key = key
        self.offset, self.part = place
        self.runs = runs
        self.count = runs[0].records if len(runs) == 1 else sum(run.records for run in runs)
        self.chunk = chunk
        self.table: Table | None = None
        self._db = db
        self._places: bytes | None = None
        self._loose: dict[int, dict[str, Any]] | None = None

    @classmethod
    def of_rows(cls, key: Key, table: Table) -> Sheet:
        """Return the sheet of rows."""
        table.settle()
        one = cls(key, (table.offsets[0], table.parts[0]), runs_of(table))
        one.table = table
        return one

    @property
    def last_offset(self) -> int:
        """The place of the last record."""
        return self.runs[-1].last_offset

    def places(self) -> Places:
        """Return where the records stand."""
        return unpack_places(self._packed_places(), self.count)

    def steps(self) -> Steps:
        """Return the printed steps."""
        return unpack_steps(self._packed_places(), self.count)

    def _packed_places(self) -> bytes:
        if self.table is None:
            row = self._find("SELECT value FROM columns WHERE chunk = ? AND name = ''", (self.chunk,))
            if row is None:
                raise ValueError(f"the chunk {self.chunk} is gone")  # read again from the start meanwhile
            return bytes(row[0])
        if self._places is None:
            self._places = pack_places(self.table)
        return self._places

    def column(self, name: str) -> Column | None:
        """Return numbers, and a byte per record with a 1 where none was printed; None if none was printed at all."""
        if self.table is not None:
            said: Any = self.table.extras.get(name[1:]) if name[0] == "." else self.table.numbers.get(name)
            if said is None:
                return self._loose_column(name)
            mask = bytes(one is None or isinstance(one, str) for one in said)
            values = array("d", [nan if odd else one for one, odd in zip(said, mask, strict=True)])
            return values, mask if any(mask) else None
        row = self._find("SELECT value, mask FROM columns WHERE chunk = ? AND name = ?", (self.chunk, name))
        if row is None:
            return self._loose_column(name)
        return coding.unpack_floats(row[0], self.count), coding.unpack_mask(row[1], self.count)

    def loose(self) -> dict[int, dict[str, Any]]:
        """Return the keys as printed that have no column, by the number of the record."""
        if self.table is not None:
            return self.table.loose
        if self._loose is None:
            row = self._find("SELECT texts FROM columns WHERE chunk = ? AND name = ?", (self.chunk, LOOSE))
            found = {} if row is None else json.loads(coding.inflate(row[0]))
            self._loose = {int(index): said for index, said in found.items()}
        return self._loose

    def _loose_column(self, name: str) -> Column | None:
        values, mask = array("d", [nan]) * self.count, bytearray(b"\1" * self.count)
        found = False
        for index, said in self.loose().items() if name[0] == "." else ():
            if name[1:] in said:
                found = True
                if isinstance(said[name[1:]], float):
                    values[index], mask[index] = said[name[1:]], 0
        return (values, bytes(mask) if any(mask) else None) if found else None

    def _loose_texts(self, name: str) -> Sequence[str | None] | None:
        texts: list[str | None] = [None] * self.count
        for index, said in self.loose().items():
            if isinstance(said.get(name[1:]), str):
                texts[index] = said[name[1:]]
        return texts if any(one is not None for one in texts) else None

    def texts(self, name: str) -> Sequence[str | None] | None:
        """Return the texts among the values of a key as printed (a dot before it); None if all are numbers."""
        if self.table is not None:
            said = self.table.extras.get(name[1:])
            if said is None:
                return self._loose_texts(name)
            found = [one if isinstance(one, str) else None for one in said]
            return found if any(one is not None for one in found) else None
        row = self._find("SELECT texts FROM columns WHERE chunk = ? AND name = ?", (self.chunk, name))
        if row is None or row[0] is None:
            return self._loose_texts(name) if row is None else None
        packed = coding.inflate(row[0])
        texts: list[str | None] = json.loads(packed)
        return [one and clean_text(one) for one in texts] if b"\\ud" in packed else texts

    def values(self, name: str) -> Values | None:
        """Return numbers and texts, None where there is none; None for a column that is not there."""
        found = self.column(name)
        if found is None:
            return None
        plain: Values = found[0].tolist()  # type: ignore[assignment]
        if found[1] is not None:
            plain = [None if odd else one for one, odd in zip(plain, found[1], strict=True)]
        texts = self.texts(name) if name[0] == "." else None
        return (
            plain if texts is None else [one if text is None else text for one, text in zip(plain, texts, strict=True)]
        )

    def series(self, name: str) -> tuple[Series, array[float]] | None:
        """Return a column of rows in short (of chunks it stands in the file: ``series_of``)."""
        found = self.column(name)
        return None if found is None else summed(name, *found)

    def names(self) -> list[str]:
        """Return the names of the columns; keys as printed with a dot before them, those without a column excepted."""
        if self.table is not None:
            return [*self.table.numbers, *(f".{key}" for key in self.table.extras)]
        rows = (
            self._db.execute("SELECT name FROM columns WHERE chunk = ? AND name NOT IN ('', ?)", (self.chunk, LOOSE))
            if self._db
            else ()
        )
        return [row[0] for row in rows]

    def extras(self) -> list[dict[str, float | str | None] | None]:
        """Return what each line said besides."""
        places = self.places()
        used = [places.shapes[number] for number in set(places.shape)]  # the others are of chunks beside this one
        columns: dict[str, Any] = {key: self.values(f".{key}") for keys in used if keys for key in keys}
        if None in columns.values():
            raise ValueError(f"a column of the chunk {self.chunk} is gone")
        loose = self.loose()
        return [
            None if keys is None else {key: columns[key][index] for key in keys} | loose.get(index, {})
            for index, keys in enumerate(map(places.shapes.__getitem__, places.shape))
        ]

    def segments(self) -> list[int]:
        """Return the segment of each record."""
        return [run.segment for run in self.runs for _ in range(run.records)]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every record as a dict: FIELDS, extra, glued, per_device; numbers as they are, None for unknown."""
        places, key = self.places(), self.key
        said, absent = places.steps
        steps: list[int | None] = list(said)
        if absent is not None:
            steps = [None if odd else step for step, odd in zip(said, absent, strict=True)]
        nothing = [None] * self.count
        columns = [self.values(name) or nothing for name in NUMBERS]
        names = ("offset", "part", "segment", "at", "step", *NUMBERS, "extra")
        same = {
            "source": key.source, "attempt": key.attempt, "reader": key.reader, "kind": key.kind, "rank": key.rank,
            "glued": key.glued, "per_device": key.per_device,
        }  # fmt: skip
        extras = self.extras() if any(places.shapes) or places.shapes.count(None) != len(places.shapes) else nothing
        for values in zip(
            places.offsets, places.parts, self.segments(), places.ats, steps, *columns, extras, strict=True
        ):
            yield {**same, **dict(zip(names, values, strict=True))}

    def _find(self, sql: str, words: tuple[object, ...]) -> Any:
        assert self._db is not None
        return self._db.execute(sql, words).fetchone()


def key_of(row: Sequence[Any]) -> Key:
    """Return the first seven columns of a row as what its records have in common."""
    source, attempt, kind, rank, reader, glued, per_device = row[:7]
    return Key(source, attempt, kind, rank, reader, bool(glued), bool(per_device))


def has(db: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns, empty if there is no such table."""
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def chunk_sheets(db: sqlite3.Connection, after: int = 0) -> list[Sheet]:
    """Return the chunks in the order of the log, those with higher numbers than ``after``."""
    if not has(db, "chunks"):
        return []  # of the first form
    rows = db.execute(
        "SELECT id, source, attempt, kind, rank, reader, glued, per_device, offset, part, runs FROM chunks"
        " WHERE id > ? ORDER BY source, offset, part",
        (after,),
    )
    decode = _RUNS.decode
    return [Sheet(key_of(row[1:8]), (row[8], row[9]), decode(row[10]), db=db, chunk=row[0]) for row in rows]


def row_sheets(db: sqlite3.Connection) -> list[Sheet]:
    """Return the records that are not in a chunk (yet), one sheet per key, all in memory."""
    known = has(db, "records")
    if not known:
        return []
    absent = {"glued": "0", "per_device": "0"}
    wanted = [*Key._fields, "segment", *PLACE, *NUMBERS, "extra"]
    names = [name if name in known else absent.get(name, "NULL") for name in wanted]
    query = f"SELECT {', '.join(names)} FROM records ORDER BY source, offset, part"  # noqa: S608 - names of ours
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in db.execute(query):
        groups.setdefault(row[:7], []).append(row[7:])
    found = []
    for key, rows in groups.items():
        table = Table()
        segments, *columns, extras = zip(*rows, strict=True)
        table.add_rows(segments, columns, extras if "tokens_total" in known else list(map(_first_form, extras)))
        found.append(Sheet.of_rows(key_of(key), table))
    return found


def _first_form(extra: str | None) -> str | None:
    """Return an ``extra`` of the first form, where NaN was a text, as it is written now."""
    if extra is None:
        return None
    said = {key: float(value) if value in ("nan", "inf", "-inf") else value for key, value in json.loads(extra).items()}
    return json.dumps(said)


def records_of(path: Path) -> Iterator[dict[str, object]]:
    """Yield every record of a metrics.db as a plain dict, in the order of the log.

    Non-finite numbers are the texts of ``events.jsonable``, ``extra`` is JSON. sqlite3.Error if it cannot be read.
    """
    with contextlib.closing(open_to_read(path)) as db:
        db.execute("BEGIN")
        for row in merged(chunk_sheets(db), _loose_rows(db)):
            for name in NUMBERS:
                value = row[name]
                if value is not None and not isfinite(value):
                    row[name] = jsonable(value)
            extra = row["extra"]
            row["extra"] = None if extra is None else json.dumps(jsonable(extra))
            yield row


def merged(sheets: Sequence[Sheet], others: Iterator[dict[str, Any]] | None = None) -> Iterator[dict[str, Any]]:
    """Yield every record of sheets (and ``others``) as ``Sheet.rows`` has it, in the order of the log.

    Memory holds the sheets that overlap: one of each key.
    """
    waiting = sorted(sheets, key=_first, reverse=True)
    heap: list[tuple[tuple[int, int, int], int, dict[str, Any], Iterator[dict[str, Any]]]] = []
    _push(heap, others or iter(()), 0)
    while heap or waiting:
        while waiting and (not heap or _first(waiting[-1]) <= heap[0][0]):
            _push(heap, waiting.pop().rows(), len(waiting) + 1)
        _, own, row, stream = heapq.heappop(heap)
        limit = min(heap[0][0] if heap else (inf,), _first(waiting[-1]) if waiting else (inf,))
        yield row
        for after in stream:
            place = (after["source"], after["offset"], after["part"])
            if place >= limit:
                heapq.heappush(heap, (place, own, after, stream))
                break
            yield after


def _push(heap: list[Any], stream: Iterator[dict[str, Any]], number: int) -> None:
    row = next(stream, None)
    if row is not None:
        heapq.heappush(heap, ((row["source"], row["offset"], row["part"]), number, row, stream))


def _first(sheet: Sheet) -> tuple[int, int, int]:
    return sheet.key.source, sheet.offset, sheet.part


def _loose_rows(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """Yield the plain rows one by one: a file of the first form has nothing else."""
    known = has(db, "records")
    if not known:
        return
    cursor = db.execute("SELECT * FROM records ORDER BY source, offset, part")
    names = [column[0] for column in cursor.description]
    for values in cursor:
        row: dict[str, Any] = {
            "tokens_total": None,
            "glued": 0,
            "per_device": 0,
            **dict(zip(names, values, strict=True)),
        }
        for name in NUMBERS:
            if isinstance(row[name], str):
                row[name] = float(row[name])
        if row["extra"] is not None:
            row["extra"] = read_extra(row["extra"] if "tokens_total" in known else str(_first_form(row["extra"])))
        row["glued"], row["per_device"] = bool(row["glued"]), bool(row["per_device"])
        yield row
