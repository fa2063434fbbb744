"""What of a series is drawn: which values are joined by a line, what is thinned, where the marks stand.

Pure: a chart of the report value in, values out. No markup, no pixel, no sentence.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from overnight.report.scales import Axis
from overnight.report.units import finite, number

PARTS: Final = 2000
"""Parts of one curve; all older ones of a chart together have half as many."""

KINDS: Final = {
    "critical": "critical verdict",
    "warn": "warning",
    "note": "note",
    "restart": "start or restart",
    "nan": "NaN or infinite",
}
"""The kinds of marks, in words."""


class Part(NamedTuple):
    """One part of a curve: its first place, and the least and largest value in it."""

    x: float
    low: float
    high: float
    attempt: Any = None


Stretch = list[Part]
"""Parts that are joined by a line."""


class Mark(NamedTuple):
    """What happened at one place; ``kind`` is a key of ``KINDS``."""

    x: float
    kind: str
    text: str


class Cluster(NamedTuple):
    """Marks of one kind that stand too close to one another to be seen apart."""

    place: float
    kind: str
    marks: list[Mark]


def stretches(one: dict[str, Any], broken_at: Iterable[float] = ()) -> list[Stretch]:
    """Return what may be joined: a new attempt, an unknown value, a NaN and a hole in the steps break the line."""
    found: list[Stretch] = [[]]
    breaks = sorted(broken_at)
    attempts = one.get("attempts") or itertools.repeat(one.get("attempt"))
    for x, low, high, attempt in zip(one["x"], one["low"], one["high"], attempts, strict=False):
        place, least, most = finite(x), finite(low), finite(high)
        if place is None or least is None or most is None:
            found.append([])
            continue
        before = found[-1][-1] if found[-1] else None
        if before and (before.attempt != attempt or place < before.x or _between(breaks, before.x, place)):
            found.append([])
        found[-1].append(Part(place, min(least, most), max(least, most), attempt))
    return [piece for one_run in found if one_run for piece in _at_holes(one_run)]


def _between(breaks: Sequence[float], low: float, high: float) -> bool:
    at = bisect_left(breaks, low)
    return at < len(breaks) and breaks[at] <= high


def _at_holes(run: Stretch) -> Iterator[Stretch]:
    """Cut where a step is eight times as long as both its neighbours: a log that is rarer from there on has no hole."""
    gaps = [after.x - before.x for before, after in itertools.pairwise(run)]
    begin = 0
    for at, gap in enumerate(gaps):
        beside = [gaps[other] for other in (at - 1, at + 1) if 0 <= other < len(gaps)]
        if beside and gap > 8 * max(beside) > 0:
            yield run[begin : at + 1]
            begin = at + 1
    yield run[begin:]


def thinned(pieces: list[Stretch], most: int = PARTS) -> list[Stretch]:
    """Return the same stretches in at most about ``most`` parts, both extremes of what is joined kept."""
    total = sum(map(len, pieces))
    if total <= most:
        return pieces
    pace = -(-total // most)
    if len(pieces) > most // 2:  # hardly anything is joined: what is left of it are bars side by side
        loose = [part for piece in pieces for part in piece]
        return [[_merged(loose[at : at + pace])] for at in range(0, total, pace)]
    return [[_merged(piece[at : at + pace]) for at in range(0, len(piece), pace)] for piece in pieces]


def _merged(parts: Stretch) -> Part:
    first = parts[0]
    return Part(first.x, min(one.low for one in parts), max(one.high for one in parts), first.attempt)


def marks_of(one: dict[str, Any]) -> list[Mark]:
    """Return a chart's marks, those that follow from its values among them, in the order of their places."""
    found = [
        Mark(place, kind if kind in KINDS else "restart", str(mark.get("text") or ""))
        for mark in one.get("marks") or ()
        if (place := finite(mark.get("x"))) is not None
        for kind in (mark.get("severity"),)
    ]
    told = {mark.x for mark in found if mark.kind == "restart"}
    attempts, xs = one.get("attempts") or [], one["x"]
    for at in range(1, min(len(attempts), len(xs))):
        place = finite(xs[at])
        if attempts[at] != attempts[at - 1] and place is not None and place not in told:
            found.append(Mark(place, "restart", f"attempt {number(attempts[at])} from here"))
    for x, value in one.get("nonfinite") or ():
        place = finite(x)
        if place is not None:
            found.append(Mark(place, "nan", f"{one.get('label') or one.get('name')} is {number(value)}"))
    return sorted(found, key=lambda mark: mark.x)


def clusters(marks: Sequence[Mark], across: Axis) -> list[Cluster]:
    """Return the marks with those of one kind that are less than 1.5% of the width apart taken together."""
    found: list[Cluster] = []
    newest: dict[str, Cluster] = {}
    for mark in marks:
        place = across.place(mark.x)
        last = newest.get(mark.kind)
        if last and place - across.place(last.marks[-1].x) < 0.015 and place - last.place < 0.1:
            last.marks.append(mark)
        else:
            newest[mark.kind] = Cluster(place, mark.kind, [mark])
            found.append(newest[mark.kind])
    return found
