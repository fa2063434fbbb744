"""A run's records as CSV, JSON lines or Parquet: one row per step as the views have it, or every record there is.

Of sensors there is one row per sample in either case: time goes on where the step does not.

Streams: memory does not grow with the run. Works beside a supervisor that writes. Files are published whole.
"""

from __future__ import annotations

import csv
import heapq
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from math import isfinite
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from overnight.errors import UsageError
from overnight.events import jsonable
from overnight.history.chunks import Steps
from overnight.history.layout import Layout
from overnight.history.reading import Column, Sheet, merged
from overnight.history.table import NUMBERS
from overnight.history.views import Views
from overnight.outfile import whole_file

KINDS = ("train", "eval")
SENSORS = ("gpu", "host")
FORMS = ("csv", "jsonl", "parquet")

VIEW = {"x": "number", "step": "whole", "kind": "text", "attempt": "whole", "segment": "whole", "at": "number"}
"""What a row per step begins with, and of which type it is; then come numbers and keys as printed."""

ALL = {
    **dict.fromkeys(("source", "offset", "part", "attempt", "segment", "rank"), "whole"),
    "at": "number", "reader": "text", "kind": "text", "glued": "yes", "per_device": "yes", "step": "whole",
}  # fmt: skip
"""What every single record begins with."""

ROWS = 8192

Row = dict[str, Any]


class Columns(NamedTuple):
    """The columns of an export by name: their types, and where their values stand: a field, or a key as printed."""

    types: dict[str, str]
    keys: dict[str, str]

    def values(self, row: Row) -> list[Any]:
        """Return one record as a list; None for unknown."""
        extra = row["extra"] or {}
        return [extra.get(self.keys[name]) if name in self.keys else row[name] for name in self.types]


def columns_of(sheets: Iterable[Sheet], *, every: bool) -> Columns:
    """Return the columns that some records need: numbers that any has, then the keys as printed, in order."""
    known: set[str] = set()
    texts: set[str] = set()
    for sheet in sheets:
        for name in sheet.names():
            known.add(name)
            if name[0] == "." and name not in texts and sheet.texts(name) is not None:
                texts.add(name)
        for key, value in chain.from_iterable(said.items() for said in sheet.loose().values()):
            known.add(f".{key}")
            if isinstance(value, str):
                texts.add(f".{key}")
    types = dict(ALL if every else VIEW)
    types |= {name: "number" for name in NUMBERS if name in known}
    keys = {}
    for name in sorted(name for name in known if name[0] == "."):
        shown = name[1:] if name[1:] and name[1:] not in {*VIEW, *ALL, *NUMBERS} else f"extra{name}"
        types[shown] = "text" if name in texts else "number"
        keys[shown] = name[1:]
    return Columns(types, keys)


class Export(NamedTuple):
    """What is to be written: the columns, and the rows as they are asked for."""

    columns: Columns
    rows: Iterator[Row]


def export(views: Views, kinds: Sequence[str], *, every: bool) -> Export:
    """Return what a run's records are as of now; ``every`` record there is, or one row per step.

    Of sensors every sample is a row: beside a step it has the ``x`` of the others, and nothing is left out of it.
    """
    if every:
        sheets = [sheet for sheet in views.sheets() if sheet.key.kind in kinds]
        return Export(columns_of(sheets, every=True), _failing(views, map(_known_at, merged(sheets))))
    layouts = [views.pieces(kind) for kind in kinds]
    with views.failing():
        columns = columns_of((piece.sheet for one in layouts for piece in one.pieces), every=False)
    parts = [
        _samples(layout) if kind in SENSORS else _steps(layout) for kind, layout in zip(kinds, layouts, strict=True)
    ]
    rows = heapq.merge(*parts, key=lambda row: (row["source"], row["offset"], row["part"]))
    return Export(columns, _failing(views, map(_known_at, rows)))


def _failing(views: Views, rows: Iterator[Row]) -> Iterator[Row]:
    with views.failing():
        yield from rows


def _known_at(row: Row) -> Row:
    if not row["at"]:
        row["at"] = None  # nobody knows when it was written
    return row


def _steps(layout: Layout) -> Iterator[Row]:
    """Yield a row per place on the x axis: of several lines there the last word on each column."""

    @lru_cache(maxsize=4)  # a sheet may hold very many short segments
    def decoded(sheet: Sheet) -> tuple[Steps, Column | None, list[Row]]:
        return sheet.steps(), layout.epochs_of(sheet), list(sheet.rows())

    before: Row | None = None
    stands = [(stand, piece.sheet) for piece in layout.pieces for stand in piece.stands]
    for stand, sheet in sorted(stands, key=lambda one: (one[1].key.source, one[0].run.first_offset)):
        steps, epochs, rows = decoded(sheet)
        x = layout.x_of(stand, steps, epochs)
        kept = layout.kept_of(stand, x)
        for place, row in zip(x[:kept], rows[stand.begin : stand.begin + kept], strict=True):
            row["x"] = place
            if before is not None and place == before["x"]:
                extra = {**(before["extra"] or {}), **(row["extra"] or {})} or None
                before.update({name: value for name, value in row.items() if value is not None}, extra=extra)
                continue
            if before is not None:
                yield before
            before = row
    if before is not None:
        yield before


def _samples(layout: Layout) -> Iterator[Row]:
    """Yield a row per sample, in the order of their file."""
    for piece in layout.pieces:
        steps, rows = piece.sheet.steps(), piece.sheet.rows()
        for stand in piece.stands:
            for place, row in zip(layout.x_of(stand, steps, layout.epochs_of(piece.sheet)), rows, strict=False):
                row["x"] = place
                yield row


# -- writing ---------------------------------------------------------------------------------------------------------


def write_csv(what: Export, out: TextIO, harmless: Callable[[str], str] = str) -> int:
    """Write a header and a line per row; empty is unknown, NaN and infinite are nan, inf and -inf. Return the rows."""
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(map(harmless, what.columns.types))
    count = 0
    for row in what.rows:
        lines.writerow([_cell(value, harmless) for value in what.columns.values(row)])
        count += 1
    return count


def _cell(value: Any, harmless: Callable[[str], str]) -> object:
    if isinstance(value, float):
        return int(value) if isfinite(value) and value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, str):
        return harmless(value)
    return int(value) if isinstance(value, bool) else value


def write_jsonl(what: Export, out: TextIO) -> int:
    """Write an object per row, null for unknown, "nan", "inf" and "-inf" for what is not finite. Return the rows."""
    names, count = list(what.columns.types), 0
    for row in what.rows:
        values = what.columns.values(row)
        out.write(json.dumps(jsonable(dict(zip(names, values, strict=True))), allow_nan=False) + "\n")
        count += 1
    return count


def write_parquet(what: Export, out: IO[bytes]) -> int:
    """Write a Parquet file: null for unknown, NaN for NaN. UsageError without pyarrow. Return the number of rows."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError(NO_PYARROW) from None
    known = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "yes": pa.bool_()}
    types = what.columns.types
    schema = pa.schema([(name, known[kind]) for name, kind in types.items()])
    count = 0
    with parquet.ParquetWriter(out, schema) as writer:
        rows = iter(what.rows)
        while some := [what.columns.values(row) for row in islice(rows, ROWS)]:
            columns = [
                pa.array(
                    [None if one is None else str(one) for one in column] if kind == "text" else column, known[kind]
                )
                for kind, column in zip(types.values(), zip(*some, strict=True), strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            count += len(some)
    return count


NO_PYARROW = "--to parquet needs pyarrow: `pip install pyarrow` installs it; --to csv and jsonl need nothing"


def to_file(what: Export, path: Path, form: str) -> int:
    """Write a file as ``whole_file`` does; return the number of rows. OvernightError if it cannot be written."""
    with whole_file(path, "-o") as stream:
        if form == "parquet":
            return write_parquet(what, stream)
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="")
        count = write_csv(what, text) if form == "csv" else write_jsonl(what, text)
        text.detach()  # and flushed: the stream is closed by who has opened it
        return count
