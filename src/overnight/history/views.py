"""How everybody but the supervisor reads metrics.db: spans, series, and one value per step after any rewinds.

Read-only, also while the writer appends. Nothing is thinned or dropped but for a chart, and there both extremes of
every part are kept.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import inf, nan
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from overnight.history import charts, reading
from overnight.history.charts import Chart, Summary, series_of
from overnight.history.chunks import Places, Series
from overnight.history.layout import Layout, Stand
from overnight.history.reading import Sheet, broken, chunk_sheets, has, open_to_read, row_sheets
from overnight.history.samples import KINDS, draw_samples
from overnight.history.spans import Span
from overnight.history.table import NUMBERS

__all__ = ["Chart", "Column", "Span", "Stretch", "Summary", "Views"]


class Column(NamedTuple):
    """The values of one series; ``missing`` has a 1 for each record whose line said nothing (the value is NaN then).

    None: nothing is missing. A NaN that is not missing was printed.
    """

    values: array[float]
    missing: bytes | None


class Stretch(NamedTuple):
    """Some consecutive records of one span.

    ``x`` is the place on the x axis (step + base; the epoch where no step is printed; else the number of the record),
    ``offsets`` the places of the lines in the log. ``kept``: how many of them, from the first, count in the views.
    ``per_device``: printed rates are of one device.
    """

    span: Span
    x: array[float]
    steps: Column
    at: array[float]
    offsets: array[int]
    columns: dict[str, Column]
    kept: int
    per_device: bool = False


class Views:
    """One metrics.db, open for reading. FolderError if there is none or it is damaged, with what to do about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.db = open_to_read(path)
            self.db.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise broken(path, error) from error
        self._version: object = None
        self._named: object = None
        self._sheets: list[Sheet] = []
        self._chunks: list[Sheet] = []
        self._series: dict[str, dict[int, Series]] = {}
        self._layouts: dict[tuple[str, int | None], Layout] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def spans(self) -> list[Span]:
        """Return every segment in the order of the log."""
        with self._reading():
            return list(self.layout("train").spans)

    def names(self, kind: str = "train") -> list[str]:
        """Return the names of the series: fields of ``Record`` first, then the keys as printed.

        A key that has the name of a field is found under its name with a dot before it.
        """
        with self._reading():
            known = {name for piece in self.layout(kind).pieces for name in self._names_of(piece.sheet)}
        keys = sorted(name[1:] for name in known if name[0] == ".")
        return [*(name for name in NUMBERS if name in known), *(f".{one}" if one in NUMBERS else one for one in keys)]

    def summary(self, name: str, kind: str = "train") -> Summary:
        """Return a series in short."""
        with self._reading():
            return charts.summarise(self.layout(kind), stored(name), self._known(stored(name)))

    def stretches(self, names: Sequence[str], kind: str = "train", *, rank: int | None = None) -> Iterator[Stretch]:
        """Yield every record in the order of the log, in pieces of some thousands, with the named columns.

        Of the lowest rank of each attempt, or of ``rank``; never one that is glued. FolderError if the file is built
        anew meanwhile.
        """
        with self._reading():
            layout = self.layout(kind, rank)

        @lru_cache(maxsize=4)  # a sheet may hold very many short segments
        def decoded(sheet: Sheet) -> tuple[Places, reading.Column | None, dict[str, Column]]:
            return sheet.places(), layout.epochs_of(sheet), {name: _column(sheet, stored(name)) for name in names}

        for _, sheet, stand in sorted(
            (
                ((piece.sheet.key.source, stand.run.first_offset), piece.sheet, stand)
                for piece in layout.pieces
                for stand in piece.stands
            ),
            key=lambda one: one[0],
        ):
            with self.failing():
                found = _stretch(layout, stand, *decoded(sheet))._replace(per_device=sheet.key.per_device)
            yield found

    def chart(
        self, name: str, kind: str = "train", *, low: float | None = None, high: float | None = None, points: int = 2000
    ) -> Chart:
        """Return a series between two places on the x axis, thinned to at most about ``points`` parts.

        Of a sensor all samples at one step are one part, with both extremes: where a training stood still there is a
        column, and ``over_time`` shows what happened meanwhile.
        """
        least, most = -inf if low is None else low, inf if high is None else high
        with self._reading():
            layout, known = self.layout(kind), self._known(stored(name))
            if kind in KINDS:
                return draw_samples(layout, stored(name), low=least, high=most, points=max(1, points), over_time=False)
            return charts.draw(self.db, layout, stored(name), known, low=least, high=most, points=max(1, points))

    def over_time(
        self, name: str, kind: str, *, low: float | None = None, high: float | None = None, points: int = 2000
    ) -> Chart:
        """Return a series of a sensor ("gpu", "host") over time: x is seconds since the epoch, and nothing is left out.

        Also what was measured before the first step, in a stall, and in work that was lost.
        """
        least, most = -inf if low is None else low, inf if high is None else high
        with self._reading():
            layout = self.layout(kind)
            return draw_samples(layout, stored(name), low=least, high=most, points=max(1, points), over_time=True)

    def sheets(self) -> list[Sheet]:
        """Return everything that is stored now, glued records and all ranks too; chunks are read when looked at."""
        with self._reading():
            self.layout("train")
            return list(self._sheets)

    def pieces(self, kind: str) -> Layout:
        """Return where the records of a kind stand now."""
        with self._reading():
            return self.layout(kind)

    def layout(self, kind: str, rank: int | None = None) -> Layout:
        """Return where the records of a kind stand; to be called while reading."""
        version = self.db.execute("PRAGMA data_version").fetchone()
        if version != self._version or not self._sheets:
            self._sheets = [*self._look_at_chunks(), *row_sheets(self.db)]
            self._sheets.sort(key=lambda one: (one.key.source, one.offset, one.part))
            self._layouts.clear()
            self._version = version
        found = self._layouts.get((kind, rank))
        if found is None:
            found = self._layouts[kind, rank] = Layout(self._sheets, kind, rank=rank)
        return found

    def _look_at_chunks(self) -> list[Sheet]:
        """Return all chunks, reading only those that are new: one never changes, and its number is not given again."""
        if not has(self.db, "chunks"):
            return []
        top = max((one.chunk for one in self._chunks), default=0)
        (count,) = self.db.execute("SELECT count(*) FROM chunks WHERE id <= ?", (top,)).fetchone()
        if count != len(self._chunks):  # some are gone: the log was read again
            self._chunks, top = [], 0
            self._series.clear()
        self._chunks += chunk_sheets(self.db, top)
        return self._chunks

    def _known(self, name: str) -> dict[int, Series]:
        """Return a series in short, by chunk."""
        if not self._chunks:
            return {}
        found = self._series.setdefault(name, {})
        rows = self.db.execute(
            'SELECT chunk, name, count, nonfinite, least, least_index, largest, "first", "last" FROM series'
            " WHERE name = ? AND chunk > ? AND count > 0",
            (name, max(found, default=0)),
        )
        found.update((row[0], Series._make(row[1:])) for row in rows)
        return found

    def _names_of(self, sheet: Sheet) -> Sequence[str]:
        if sheet.table is not None:
            return [name for name in sheet.names() if series_of(sheet, name, {}) is not None]
        if self._named != self._version:
            self._named = self._version
            self._names: dict[int, list[str]] = {}
            for name, chunk in self.db.execute("SELECT name, chunk FROM series WHERE count > 0"):
                self._names.setdefault(chunk, []).append(name)
        return self._names.get(sheet.chunk, ())

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read from one state of the file, whatever the writer does meanwhile."""
        with self.failing():
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn what goes wrong within into FolderError with what to do about it."""
        try:
            yield
        except (sqlite3.Error, ValueError, LookupError, msgspec.MsgspecError) as error:
            raise broken(self.path, error) from error


def stored(name: str) -> str:
    """Return the name of a column in the file: keys as printed have a dot before them."""
    return name if name in NUMBERS or name.startswith(".") else f".{name}"


def _stretch(
    layout: Layout, stand: Stand, places: Places, epochs: reading.Column | None, columns: dict[str, Column]
) -> Stretch:
    begin, end = stand.begin, stand.begin + stand.run.records
    x = layout.x_of(stand, places.steps, epochs)
    own, mask = places.steps
    absent = None if mask is None else mask[begin:end]
    if absent is not None and not any(absent):
        absent = None
    same = layout.by == "step" and stand.run.rising and absent is None and not stand.span.base
    steps = x if same else array("d", own[begin:end])
    if absent is not None:
        steps = array("d", [nan if odd else step for step, odd in zip(own[begin:end], absent, strict=True)])
    return Stretch(
        span=stand.span,
        x=x,
        steps=Column(steps, absent),
        at=places.ats[begin:end],
        offsets=array("q", places.offsets[begin:end]),
        columns={name: _part(column, begin, end) for name, column in columns.items()},
        kept=layout.kept_of(stand, x),
    )


def _column(sheet: Sheet, name: str) -> Column:
    found = sheet.column(name)
    return Column(array("d", [nan]) * sheet.count, b"\1" * sheet.count) if found is None else Column(*found)


def _part(column: Column, begin: int, end: int) -> Column:
    missing = None if column.missing is None else column.missing[begin:end]
    return Column(column.values[begin:end], missing if missing is not None and any(missing) else None)
