"""Charts of what sensors tell: many samples at one step, over steps or over time. From records, not from summaries.

A night has some thousands of samples, and while a training stands still time passes and its step does not: so all of
one step are one place with both extremes, or time is the axis. What the numbers mean may not enter here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite
from typing import NamedTuple

from overnight.history.charts import Chart
from overnight.history.layout import Layout, Piece

KINDS = ("gpu", "host")


class _Place(NamedTuple):
    """All values at one place on the x axis, of one attempt."""

    x: float
    low: float
    high: float
    attempt: int


def draw_samples(layout: Layout, name: str, *, low: float, high: float, points: int, over_time: bool) -> Chart:
    """Return a series of samples with one part per place on the x axis, joined to at most about ``points`` parts.

    Over steps it has what counts after rewinds, as the curves beside it. ``over_time``: x is seconds since the epoch,
    and nothing is left out.
    """
    found = [
        (x, value, attempt)
        for piece in layout.pieces
        for x, value, attempt in _values(layout, piece, name, over_time=over_time)
        if low <= x <= high
    ]
    if any(after[0] < before[0] for before, after in pairwise(found)):
        found.sort(key=lambda one: one[0])
    places: list[_Place] = []
    for x, value, attempt in found:
        last = places[-1] if places else None
        if last is not None and (last.x, last.attempt) == (x, attempt):
            places[-1] = last._replace(low=min(last.low, value), high=max(last.high, value))
        else:
            places.append(_Place(x, value, value, attempt))
    return _joined(places, points)


def _values(layout: Layout, piece: Piece, name: str, *, over_time: bool) -> Iterator[tuple[float, float, int]]:
    """Yield (x, value, attempt) of each finite value in a sheet."""
    column = piece.sheet.column(name)
    if column is None:
        return
    values, attempt = column[0], piece.sheet.key.attempt
    ats = piece.sheet.places().ats if over_time else array("d")
    steps = piece.sheet.steps()
    for stand in piece.stands:
        if over_time:
            x = ats[stand.begin : stand.begin + stand.run.records]
            kept = len(x)
        else:
            x = layout.x_of(stand, steps, layout.epochs_of(piece.sheet))
            kept = layout.kept_of(stand, x)
        for place, value in zip(x[:kept], values[stand.begin : stand.begin + kept], strict=True):
            if isfinite(value):  # what is missing is NaN here, and samples have none of their own
                yield place, value, attempt


def _joined(places: list[_Place], points: int) -> Chart:
    """Return the places as a chart: joined to parts of about equal numbers of places, none of two attempts."""
    count = len(places)
    cuts = list(range(count))
    if count > points:
        attempts = [one.attempt for one in places]
        begins = {row for row in range(1, count) if attempts[row] != attempts[row - 1]}
        cuts = sorted({*(part * count // points for part in range(points)), *begins})
    ends = [*cuts[1:], count]
    low = [min(one.low for one in places[cut:end]) for cut, end in zip(cuts, ends, strict=True)] if cuts else []
    high = [max(one.high for one in places[cut:end]) for cut, end in zip(cuts, ends, strict=True)] if cuts else []
    return Chart(
        [places[cut].x for cut in cuts],
        low,
        high,
        [places[cut].attempt for cut in cuts],
        [],
        count <= points and low == high,
    )
