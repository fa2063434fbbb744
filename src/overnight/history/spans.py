"""Where each segment stands on the x axis, and what of it still counts after the ones that came later. Pure.

A segment begins where the step falls (or an attempt begins). Either the program went back to an earlier point (a
rewind: what lies at or above that step was done again, and the newer values count), or it counts anew in each epoch (a
recount: x goes on rising).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import msgspec

from overnight.history.chunks import Run


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One segment: a stretch of records with rising steps within one attempt.

    ``base`` is added to a step for its place on the x axis, for programs that count anew in each epoch (0 elsewhere).
    ``limit`` is where a later segment has gone back to: of this one only what lies below it (x < limit) counts in the
    views; infinite where nothing did. ``at`` values are seconds since the epoch, 0 where nobody knows.
    """

    attempt: int
    segment: int
    source: int = 0
    records: int = 0
    first_step: int | None = None
    last_step: int | None = None
    first_at: float = 0.0
    last_at: float = 0.0
    first_offset: int = 0
    last_offset: int = 0
    base: float = 0.0
    limit: float = inf


class Part(NamedTuple):
    """A run of records of one segment with the source and attempt it belongs to."""

    source: int
    attempt: int
    run: Run


class Segment:
    """Parts of one segment, joined: what ``Span`` says, and the epochs."""

    __slots__ = ("base", "begin", "end", "epochs", "last_step", "records", "recount", "rising", "step")

    def __init__(self, part: Part) -> None:
        run = part.run
        self.begin = part
        self.end = run
        self.records = run.records
        self.step, self.last_step = run.first_step, run.last_step
        self.epochs = (run.first_epoch, run.last_epoch)
        self.base = 0.0
        self.recount = True
        self.rising = run.rising

    def takes(self, part: Part) -> bool:
        """Say whether a part that comes next in the log goes on with this segment."""
        own, run = self.begin, part.run
        if own.run.segment != run.segment or own.attempt != part.attempt:
            return False
        # After a rebuild numbers begin anew: segment 1 of a newer source may be another one.
        fell = self.last_step is not None and run.first_step is not None and run.first_step < self.last_step
        return part.source == own.source or not fell

    def add(self, part: Part) -> None:
        """Go on with a part."""
        run = self.end = part.run
        self.records += run.records
        if run.last_step is not None:
            self.step = run.first_step if self.step is None else self.step
            self.last_step = run.last_step
        self.rising = self.rising and run.rising
        if run.last_epoch is not None:
            self.epochs = (run.first_epoch if self.epochs[0] is None else self.epochs[0], run.last_epoch)

    @property
    def gain(self) -> float:
        """Steps between two records."""
        if self.step is None or self.last_step is None or self.records < 2:
            return 1.0
        return max(1.0, float(round((self.last_step - self.step) / (self.records - 1))))

    def first_x(self, *, steps: bool) -> float | None:
        """Return where it begins on the x axis; None where nothing was printed that says so."""
        if not steps:
            return self.epochs[0]
        return None if self.step is None else self.step + self.base

    def limited(self, limit: float, *, steps: bool) -> Span:
        """Return the span, which is superseded from ``limit`` on if it comes so far."""
        last = self.epochs[1] if not steps else self.last_step
        if last is not None and self.rising and last + (self.base if steps else 0.0) < limit:
            limit = inf
        own, run = self.begin, self.begin.run
        return Span(
            attempt=own.attempt,
            segment=run.segment,
            source=own.source,
            records=self.records,
            first_step=self.step,
            last_step=self.last_step,
            first_at=run.first_at,
            last_at=self.end.last_at,
            first_offset=run.first_offset,
            last_offset=self.end.last_offset,
            base=self.base,
            limit=limit,
        )

    @property
    def name(self) -> tuple[int, int]:
        """The attempt and the number of the segment."""
        return self.begin.attempt, self.begin.run.segment

    @property
    def place(self) -> tuple[int, int]:
        """Where it begins in the log."""
        return self.begin.source, self.begin.run.first_offset


def joined(parts: Iterable[Part]) -> tuple[list[Segment], list[int]]:
    """Return the segments that parts in the order of the log make, and for each part the number of its segment."""
    found: list[Segment] = []
    numbers: list[int] = []
    for part in parts:
        if found and found[-1].takes(part):
            found[-1].add(part)
        else:
            found.append(Segment(part))
        numbers.append(len(found) - 1)
    return found, numbers


def set_bases(segments: list[Segment]) -> None:
    """Give each segment its place on the x axis: rising over recounts, going back where the program did."""
    stepped = [one for one in segments if one.step is not None]
    for index in range(1, len(stepped)):
        set_base(stepped, index)


def set_base(stepped: list[Segment], index: int) -> None:
    """Give one segment its place behind those before it, which have theirs; all of them print steps."""
    before, one = stepped[index - 1], stepped[index]
    one.recount = _recounts(before, one)
    first, last = one.step, before.last_step
    if first is None or last is None:
        return
    if one.recount and first <= last:
        one.base = before.base + last + before.gain - first
    elif one.recount:
        one.base = before.base
    else:
        one.base = _base_again(stepped[:index], one)


def _recounts(before: Segment, one: Segment) -> bool:
    """Say whether a segment goes on counting anew rather than going back."""
    first, last = one.step, before.last_step
    ended, begins = before.epochs[1], one.epochs[0]
    if ended is not None and begins is not None and begins != ended:
        return begins > ended
    if one.begin.attempt != before.begin.attempt or first is None or last is None:
        return False
    if first in (0, 1):
        return True
    # The second way back to the same checkpoint looks like a count that begins at the same number.
    return first == before.step and before.recount


def _base_again(earlier: list[Segment], one: Segment) -> float:
    """Return the base of the epoch that a segment has gone back into."""
    if one.begin.attempt == earlier[-1].begin.attempt and one.epochs[0] is None:
        return earlier[-1].base
    begins = one.epochs[0]
    if begins is None:
        return 0.0
    for before in reversed(earlier):
        if before.epochs[0] is not None and before.epochs[0] <= begins:
            return before.base
    return 0.0


def spans_of(main: list[Segment], own: list[Segment], *, steps: bool = True) -> list[Span]:
    """Return the spans of a kind's segments, ``own``; ``main`` are those of training, whose bases are set (or own).

    Without ``steps`` x is the epoch.
    """
    by_name: dict[tuple[int, int], list[Segment]] = {}
    for one in main:
        by_name.setdefault(one.name, []).append(one)
    order: dict[int, tuple[tuple[int, int], float]] = {}
    mains = {}
    for one in own:
        mate = one if own is main else _mate(by_name.get(one.name, ()), one)
        mains[id(one)] = mate
        if mate is not None:
            one.base = mate.base
    for one in (*main, *(() if own is main else own)):
        if one.place[0] < 0:  # a sensor's: it has times beside the log, and no place in it
            continue
        mate = mains.get(id(one), one)
        name = id(mate or one)
        place = one.place
        begins = one.first_x(steps=steps)
        was = order.get(name, (place, inf))
        order[name] = (min(place, was[0]), min(was[1], inf if begins is None else begins))
    limits = {}
    least = inf
    for name, (_, begins) in sorted(order.items(), key=lambda item: item[1][0], reverse=True):
        limits[name] = least
        least = min(least, begins)
    return [one.limited(limits.get(id(mains[id(one)] or one), inf), steps=steps) for one in own]


def _mate(candidates: Iterable[Segment], one: Segment) -> Segment | None:
    """Return the segment of training that a segment of another kind stands beside: the nearest of its name."""
    place = one.place
    return min(
        candidates,
        key=lambda it: (abs(it.place[0] - place[0]), abs(it.place[1] - place[1])),
        default=None,
    )
