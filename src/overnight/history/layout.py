"""One kind of records on its x axis: which sheets, in which order, where each record stands, and how many count.

Only records of the lowest rank of an attempt, and none that is glued. The file is only read through sheets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

from overnight.history.chunks import STEP_LIMIT, Run, Steps
from overnight.history.reading import Column, Sheet
from overnight.history.spans import Part, Segment, Span, joined, set_bases, spans_of


class Stand(NamedTuple):
    """Where a run of a sheet stands: its first record in the sheet, its span, and the records before it in the layout.

    ``carry`` is the x of a record that prints no step, until one of the run does. ``first`` and ``last`` are the x of
    its ends; ``rising`` says that none between is out of order, so that what counts of it is known without looking.
    """

    begin: int
    run: Run
    span: Span
    number: int
    carry: float
    first: float
    last: float
    rising: bool

    @property
    def whole(self) -> bool:
        """Whether all of it counts."""
        return self.rising and self.last < self.span.limit


class Piece(NamedTuple):
    """A sheet with its runs."""

    sheet: Sheet
    stands: list[Stand]


class Layout:
    """The sheets of one kind that count for the views, in the order of the log.

    ``by`` says what x is: "step", "epoch" or "number".
    """

    def __init__(self, sheets: Sequence[Sheet], kind: str, *, rank: int | None = None) -> None:
        own = chosen(sheets, kind, rank)
        parts = _parts(own)
        main = own if kind == "train" and rank is None else chosen(sheets, "train", None)
        segments, numbers = joined(part for _, _, part in parts)
        if main is own:
            trained = segments
        else:
            trained, _ = joined(part for _, _, part in _parts(main))
        set_bases(trained)
        steps = any(run.first_step is not None for sheet in own for run in sheet.runs)
        epochs = not steps and any(run.first_epoch is not None for sheet in own for run in sheet.runs)
        self.by = "step" if steps else "epoch" if epochs else "number"
        self.spans = _limited(trained, segments, by=self.by)
        self.trained = trained
        self.records = 0
        found: dict[int, list[Stand]] = {}
        carry, before = 0.0, -1
        for (index, begin, part), number in zip(parts, numbers, strict=True):
            span = self.spans[number]
            first, last, rising = self._ends(part.run, span)
            if number != before and isfinite(first):
                carry = first
            stand = Stand(begin, part.run, span, self.records, carry, first, last, rising)
            found.setdefault(index, []).append(stand)
            carry = last if isfinite(last) else carry
            before = number
            self.records += part.run.records
        self.pieces = [Piece(sheet, found[index]) for index, sheet in enumerate(own)]

    def _ends(self, run: Run, span: Span) -> tuple[float, float, bool]:
        if self.by == "number":
            return float(self.records), float(self.records + run.records - 1), True
        if self.by == "epoch":
            first, last = run.first_epoch, run.last_epoch
            return nan if first is None else first, nan if last is None else last, run.rising
        if run.first_step is None or run.last_step is None:
            return nan, nan, False
        return run.first_step + span.base, run.last_step + span.base, run.rising

    def x_of(self, stand: Stand, steps: Steps, epochs: Column | None) -> array[float]:
        """Return where each record of a run stands."""
        begin, end = stand.begin, stand.begin + stand.run.records
        if self.by == "number":
            return array("d", range(stand.number, stand.number + stand.run.records))
        if self.by == "epoch":
            values = [] if epochs is None else epochs[0][begin:end]
            said = [value if isfinite(value) else None for value in values] or [None] * stand.run.records
            return _carried(said, stand.carry)
        own = steps.values[begin:end]
        base = stand.span.base
        if stand.run.rising:
            if isinstance(own, range) and base.is_integer():
                return array("d", range(own.start + int(base), own.stop + int(base), own.step))
            return array("d", own) if not base else array("d", [step + base for step in own])
        absent = steps.absent[begin:end] if steps.absent is not None else bytes(len(own))
        known = [
            None if odd or not -STEP_LIMIT < step < STEP_LIMIT else step + base
            for step, odd in zip(own, absent, strict=True)
        ]
        return _carried(known, stand.carry)

    def kept_of(self, stand: Stand, x: array[float]) -> int:
        """Return how many records of a run count, from its first."""
        limit = stand.span.limit
        if limit == inf or stand.whole:
            return len(x)
        if stand.rising:
            return bisect_left(x, limit)
        return next((index for index, one in enumerate(x) if one >= limit), len(x))

    def epochs_of(self, sheet: Sheet) -> Column | None:
        """Return the epochs of a sheet where they are the x axis."""
        return sheet.column("epoch") if self.by == "epoch" else None


def _carried(said: Sequence[float | None], carry: float) -> array[float]:
    found = array("d")
    for one in said:
        carry = carry if one is None else one
        found.append(carry)
    return found


def chosen(sheets: Sequence[Sheet], kind: str, rank: int | None) -> list[Sheet]:
    """Return the sheets of a kind and a rank; without one those of the lowest rank of each attempt."""
    some = [sheet for sheet in sheets if sheet.key.kind == kind and not sheet.key.glued]
    if rank is not None:
        return [sheet for sheet in some if sheet.key.rank == rank]
    lowest: dict[int, int] = {}
    for sheet in some:
        attempt, own = sheet.key.attempt, sheet.key.rank or 0
        lowest[attempt] = min(own, lowest.get(attempt, own))
    return [sheet for sheet in some if (sheet.key.rank or 0) == lowest[sheet.key.attempt]]


def _parts(sheets: Sequence[Sheet]) -> list[tuple[int, int, Part]]:
    """Return (number of the sheet, first record in it, part) of every run, in the order of the log."""
    found = []
    for index, sheet in enumerate(sheets):
        begin, source, attempt = 0, sheet.key.source, sheet.key.attempt
        for run in sheet.runs:
            found.append((index, begin, Part(source, attempt, run)))
            begin += run.records
    found.sort(key=lambda one: (one[2].source, one[2].run.first_offset))
    return found


def _limited(trained: list[Segment], own: list[Segment], *, by: str) -> list[Span]:
    if by != "number":
        return spans_of(trained, own, steps=by == "step")
    spans = spans_of(trained, own)
    return [Span(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "limit": inf}) for one in spans]
