"""A series in 2,000 parts, or in five numbers: from the summaries beside the chunks, from records only at the edges.

Both extremes of every part are kept; what does not count after a rewind is left out.
"""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

from overnight.history import coding
from overnight.history.chunks import BLOCK, COARSE, Series, coarser
from overnight.history.layout import Layout, Piece, Stand
from overnight.history.reading import Sheet

NONFINITE = 1000
"""So many values that are not finite does a chart list."""

Known = Mapping[int, Series]
"""The series in short, by chunk."""


class Chart(NamedTuple):
    """A series thinned for drawing: per part its first x, and the least and largest finite value in it.

    ``attempts`` names for each part the attempt it is of. ``nonfinite`` lists (x, value) of the first NaN and infinite
    ones. ``exact``: nothing had to be thinned (low == high).
    """

    x: list[float]
    low: list[float]
    high: list[float]
    attempts: list[int]
    nonfinite: list[tuple[float, float]]
    exact: bool


class Summary(NamedTuple):
    """A series in five numbers, over what counts in the views; None where there is no finite value."""

    values: int
    first: float | None
    last: float | None
    least: float | None
    least_x: float | None
    largest: float | None


class Points(NamedTuple):
    """Values of a run that count, without those that are missing."""

    x: array[float]
    values: array[float]


def series_of(sheet: Sheet, name: str, known: Known) -> Series | None:
    """Return a column of a sheet in short; None if no record of it has a value."""
    if sheet.table is None:
        return known.get(sheet.chunk)
    found = sheet.series(name)
    return None if found is None or not found[0].values else found[0]


def points_of(layout: Layout, piece: Piece, name: str) -> Iterator[tuple[Stand, Points]]:
    """Yield what counts of a series in each run of a sheet."""
    column = piece.sheet.column(name)
    if column is None:
        return
    values, mask = column
    steps, epochs = piece.sheet.steps(), layout.epochs_of(piece.sheet)
    for stand in piece.stands:
        x = layout.x_of(stand, steps, epochs)
        kept = layout.kept_of(stand, x)
        begin, end = stand.begin, stand.begin + kept
        x, own = x[:kept], values[begin:end]
        if mask is not None and any(mask[begin:end]):
            rows = [row for row, odd in enumerate(mask[begin:end]) if not odd]
            x, own = array("d", [x[row] for row in rows]), array("d", [own[row] for row in rows])
        yield stand, Points(x, own)


class _Drawing:
    """One chart in the making. ``size``: how many records one unit stands for, 0 for a whole chunk."""

    def __init__(self, layout: Layout, name: str, low: float, high: float) -> None:
        self.layout = layout
        self.name = name
        self.low, self.high = low, high
        self.size = 1
        self.x: list[float] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        self.starts: list[tuple[int, int]] = []
        self.nonfinite: list[tuple[float, float]] = []

    def add(self, piece: Piece, series: Series, levels: Levels | None, some: list[Points] | None) -> None:
        """Add a sheet: the records of it that are wanted, or all of it, with ``levels`` without looking at records."""
        attempt = piece.sheet.key.attempt
        if not self.starts or self.starts[-1][1] != attempt:
            self.starts.append((len(self.x), attempt))
        if levels is None and some is None:
            some = [points for _, points in points_of(self.layout, piece, self.name)]
        if levels is None or some is not None:
            for points in some or ():
                self._add_records(points)
            return
        if self.size == 0:
            if series.least is not None and series.largest is not None:
                self.x.append(piece.stands[0].first)
                self.lows.append(series.least)
                self.highs.append(series.largest)
        else:
            level = levels.of(piece.sheet, self.name).tolist()
            half, size = len(level) // 2, self.size // levels.size
            self.x.extend(levels.x_of(piece, size, by=self.layout.by))
            if size == 1:
                self.lows.extend(level[:half])
                self.highs.extend(level[half:])
            else:
                self.lows.extend([min(level[at : min(half, at + size)]) for at in range(0, half, size)])
                self.highs.extend([max(level[at : at + size]) for at in range(half, 2 * half, size)])
        if series.nonfinite and len(self.nonfinite) < NONFINITE:
            for _, points in points_of(self.layout, piece, self.name):
                self._note(points)

    def cut(self, points: Points) -> Points:
        """Leave out what lies outside."""
        x, values = points
        if not x or (self.low == -inf and self.high == inf):
            return points
        if list(x) == sorted(x):
            begin, end = bisect_left(x, self.low), bisect_right(x, self.high)
            return Points(x[begin:end], values[begin:end])
        return _chosen(points, [row for row, one in enumerate(x) if self.low <= one <= self.high])

    def _note(self, points: Points) -> Points:
        """Note the values that are not finite; return the others."""
        if isfinite(sum(points.values)):
            return points
        odd = [one for one in zip(points.x, points.values, strict=True) if not isfinite(one[1])]
        self.nonfinite.extend(odd[: NONFINITE - len(self.nonfinite)])
        return _chosen(points, [row for row, one in enumerate(points.values) if isfinite(one)])

    def _add_records(self, points: Points) -> None:
        x, values = self._note(points)
        size = self.size or max(1, len(x))
        if size == 1:
            self.x.extend(x)
            self.lows.extend(values)
            self.highs.extend(values)
            return
        said = values.tolist()
        blocks = [said[begin : begin + size] for begin in range(0, len(said), size)]
        self.x.extend(x[::size])
        self.lows.extend(map(min, blocks))
        self.highs.extend(map(max, blocks))

    def in_order(self) -> None:
        """Put units of several readers, or of records with places of their own, in the order of the x axis."""
        if self.x == sorted(self.x):
            return
        starts = [start for start, _ in self.starts]
        attempts = [self.starts[bisect_right(starts, row) - 1][1] for row in range(len(self.x))]
        order = sorted(range(len(self.x)), key=self.x.__getitem__)
        self.x, self.lows, self.highs = ([column[row] for row in order] for column in (self.x, self.lows, self.highs))
        self.nonfinite.sort(key=lambda one: one[0])
        self.starts = []
        for place, row in enumerate(order):
            if not self.starts or self.starts[-1][1] != attempts[row]:
                self.starts.append((place, attempts[row]))

    def chart(self, points: int) -> Chart:
        """Join units to parts: as equal in number as can be, and none of two attempts."""
        self.in_order()
        count = len(self.x)
        begins = {start: attempt for start, attempt in self.starts if start < count}
        x, low, high = self.x, self.lows, self.highs
        cuts = list(range(count))
        if count > points:
            cuts = sorted({*(part * count // points for part in range(points)), *begins})
            ends = [*cuts[1:], count]
            x = [x[cut] for cut in cuts]
            low = [min(low[cut:end]) for cut, end in zip(cuts, ends, strict=True)]
            high = [max(high[cut:end]) for cut, end in zip(cuts, ends, strict=True)]
        attempts, own = [], 0
        for cut in cuts:
            own = begins.get(cut, own)
            attempts.append(own)
        exact = self.size == 1 and count <= points
        rows = list(range(len(x)))
        if inf in low:  # blocks without a finite value
            rows = [row for row in rows if low[row] <= high[row]]
        if exact:  # of several lines of one step the last one that says something
            rows = [row for row in rows if row + 1 == len(x) or x[row] != x[row + 1]]
        if len(rows) < len(x):
            x, low, high = ([column[row] for row in rows] for column in (x, low, high))
            attempts = [attempts[row] for row in rows]
        return Chart(x, low, high, attempts, self.nonfinite, exact)


def _chosen(points: Points, rows: list[int]) -> Points:
    x, values = points
    return Points(array("d", [x[row] for row in rows]), array("d", [values[row] for row in rows]))


class Levels:
    """A level of some chunks: per ``size`` records the least and the largest value, and the step they begin with."""

    def __init__(self, db: sqlite3.Connection, name: str, chunks: list[int], size: int) -> None:
        self.size = size
        self._found: dict[str, dict[int, bytes]] = {}
        table = "coarse" if size == COARSE else "levels"
        for one in (name, "step", "epoch") if chunks else ():
            rows = db.execute(
                f"SELECT chunk, value FROM {table} WHERE name = ? AND chunk BETWEEN ? AND ?",  # noqa: S608 - ours
                (one, min(chunks), max(chunks)),
            )
            self._found[one] = dict(rows.fetchall())

    def of(self, sheet: Sheet, name: str) -> array[float]:
        """Return the least values of all blocks, then the largest."""
        if sheet.table is not None:
            found = sheet.series(name)
            level = array("d") if found is None else found[1]
            return coarser(level) if self.size == COARSE else level
        return coding.as_array("d", self._found[name].get(sheet.chunk, b""))

    def x_of(self, piece: Piece, stride: int, *, by: str) -> Sequence[float]:
        """Return the first x of every so many times ``size`` records."""
        sheet, stand = piece.sheet, piece.stands[0]
        if by == "epoch":
            level = self.of(sheet, "epoch")
            return level[: len(level) // 2 : stride]
        if by == "number":
            return range(stand.number, stand.number + stand.run.records, self.size * stride)
        data = self._found.get("step", {}).get(sheet.chunk)
        if data is None and sheet.table is None and len(piece.stands) == 1:  # evenly spaced
            gain = (stand.last - stand.first) / max(1, stand.run.records - 1)
            return [stand.first + gain * row for row in range(0, stand.run.records, self.size * stride)]
        found = coding.as_array("q", data) if data is not None else sheet.steps().values[:: self.size]
        steps = found[::stride]
        if len(piece.stands) == 1:
            return [step + stand.span.base for step in steps]
        begins = [one.begin for one in piece.stands]
        bases = [one.span.base for one in piece.stands]
        every = self.size * stride
        return [step + bases[bisect_right(begins, every * block) - 1] for block, step in enumerate(steps)]


def draw(
    db: sqlite3.Connection, layout: Layout, name: str, known: Known, *, low: float, high: float, points: int
) -> Chart:
    """Return the chart of a series between two places on the x axis."""
    drawing = _Drawing(layout, name, low, high)
    wanted: list[tuple[Piece, Series, list[Points] | None]] = []
    values, chunks = 0, []
    for piece in layout.pieces:
        inside = _inside(piece, low, high)
        series = None if inside is None else series_of(piece.sheet, name, known)
        if series is None:
            continue
        some = None
        if inside:
            values += series.values - series.nonfinite
            chunks += [piece.sheet.chunk] if piece.sheet.table is None else []
        else:
            some = [drawing.cut(one) for _, one in points_of(layout, piece, name)]
            values += sum(len(one.x) for one in some)
        wanted.append((piece, series, some))
    # A part is made of some units at least, so that the parts are of about equal size.
    size = max(1, values // (8 * points))
    level = COARSE if size >= COARSE // 4 else BLOCK
    drawing.size = 0 if len(chunks) >= 4 * points else size if size < BLOCK // 8 else max(1, size // level) * level
    summed = drawing.size % BLOCK == 0
    levels = Levels(db, name, chunks if drawing.size and summed else [], level) if summed else None
    for piece, series, some in wanted:
        drawing.add(piece, series, levels, some)
    return drawing.chart(points)


def _inside(piece: Piece, low: float, high: float) -> bool | None:
    """Say whether all of a sheet counts and lies between two places; None if nothing of it does."""
    all_in, some = True, False
    before = -inf
    for stand in piece.stands:
        if stand.rising:
            if stand.first >= stand.span.limit or stand.last < low or stand.first > high:
                all_in = False
                continue
            all_in = all_in and stand.whole and low <= stand.first and stand.last <= high and stand.first >= before
            before = stand.last
        else:
            all_in = False
        some = True
    return all_in if some else None


def summarise(layout: Layout, name: str, known: Known) -> Summary:
    """Return a series in short, over what counts."""
    total, first, last, largest = 0, None, None, -inf
    least: tuple[float, Piece | None, float] = (inf, None, nan)  # (value, its sheet and index, or its x)
    for piece in layout.pieces:
        series, inside = series_of(piece.sheet, name, known), _inside(piece, -inf, inf)
        if series is None or inside is None:
            continue
        if inside:
            total += series.values
            if series.least is None or series.largest is None:
                continue
            first = series.first if first is None else first
            last, largest = series.last, max(largest, series.largest)
            least = min(least, (series.least, piece, series.least_index), key=lambda one: one[0])
            continue
        for _, (x, values) in points_of(layout, piece, name):
            total += len(values)
            rows = [row for row, one in enumerate(values) if isfinite(one)]
            if rows:
                first = values[rows[0]] if first is None else first
                last, largest = values[rows[-1]], max(largest, *(values[row] for row in rows), -inf)
                row = min(rows, key=values.__getitem__)
                least = min(least, (values[row], None, x[row]), key=lambda one: one[0])
    if first is None:
        return Summary(total, None, None, None, None, None)
    value, sheet, place = least
    return Summary(total, first, last, value, place if sheet is None else _x_at(layout, sheet, int(place)), largest)


def _x_at(layout: Layout, piece: Piece, index: int) -> float:
    """Return the x of one record of a sheet."""
    stand = next(one for one in reversed(piece.stands) if one.begin <= index)
    x = layout.x_of(stand, piece.sheet.steps(), layout.epochs_of(piece.sheet))
    return x[index - stand.begin]
