"""Records to the steps, seconds and tokens of each attempt: those that count, and those that were done again.

Pure arithmetic in one pass over the shapes of ``history.views``, which are written down here because no file may be
opened from here. What it holds does not grow with the records, and what is done for each record is done by built-ins
that run in C, for there may be millions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, compress, pairwise
from operator import ne, sub
from typing import NamedTuple, Protocol

from overnight.pacing.advance import is_stray, parted, share_of
from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S
from overnight.pacing.attemptsums import AttemptSums, Column, Sums
from overnight.pacing.counting import Counting
from overnight.pacing.usual import Ordinary

SERIES = ("dt_s", "tokens", "tokens_total", "tokens_per_s")
"""The series of which use is made, where they are printed."""

_LOOKED_AT = 256  # of the first steps of a segment, to see how many lie between two lines


class Values(Protocol):
    """One column: the numbers (NaN where nothing was said), and a mask with a 1 for each of those; None: none is."""

    @property
    def values(self) -> Sequence[float]:
        """The numbers."""

    @property
    def missing(self) -> bytes | None:
        """The mask."""


class Segment(Protocol):
    """What tells one stretch of rising steps from the next."""

    @property
    def attempt(self) -> int:
        """The attempt."""

    @property
    def segment(self) -> int:
        """The number of the segment."""


class Records(Protocol):
    """Some consecutive records of one segment; the first ``kept`` count in the views."""

    @property
    def span(self) -> Segment:
        """The segment."""

    @property
    def steps(self) -> Values:
        """The printed steps."""

    @property
    def at(self) -> Sequence[float]:
        """When each line arrived, in seconds since the epoch; 0 where nobody knows."""

    @property
    def columns(self) -> Mapping[str, Values]:
        """The series that were asked for."""

    @property
    def kept(self) -> int:
        """How many of them count, from the first."""

    @property
    def per_device(self) -> bool:
        """Whether printed rates are of one device."""


class Latest(NamedTuple):
    """The latest record of a segment: its step and the one before it, and what it added to which sums."""

    before: float
    step: float
    gain: float
    sums: Sums
    dt: float
    tokens: float


class Stepping:
    """Goes through the records once. ``attempts`` holds what each attempt did, once it was closed.

    ``tokens_per_step`` was given, for all ``devices``, with whose number a printed rate of one of them is multiplied.
    Whether tokens printed with a step are a counter is decided as in the meter, by the same lines; and so is whether
    each of ``accumulate`` micro-steps prints one.
    """

    def __init__(self, tokens_per_step: float | None = None, devices: int = 1, accumulate: int = 1) -> None:
        self.tokens_per_step = tokens_per_step
        self.accumulate = accumulate
        self.devices = devices
        self.attempts: dict[int, AttemptSums] = {}
        self.no_steps = False
        self.odd_steps = self.odd_s = 0.0  # of lines whose step time was far above the usual one
        self._counting = Counting()
        self._ordinary = Ordinary()
        self._held: list[Records] = []  # until it is known whether tokens are a counter, and times usual
        self._segment: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._last: float | None = None  # the step of the record before
        self._total: float | None = None  # its running count of tokens
        self._counted: float | None = None  # its printed tokens, where those are a counter
        self._first: tuple[float, float, float, bool] | None = None  # the first record, until its gain is known
        self._interval: float | None = None
        self._share: int | None = 1 if self.accumulate == 1 else None  # lines of a step, once it is known
        self._gain = 0.0  # of the step that the latest line belongs to
        self._latest: Latest | None = None
        self._paced: tuple[Sums, float, float, float] | None = None  # the last pace, and the step it ends with
        self._mark: tuple[float, float] | None = None  # the last arrival that was new, and the step then

    def add(self, stretch: Records) -> None:
        """Take in some records."""
        key = (stretch.span.attempt, stretch.span.segment)
        if key != self._segment:
            self._release()
            if self._segment is not None and self._segment[0] == key[0]:
                self._take_back(stretch)
            self.close()
            self._segment = key
            self._begin()
        times = stretch.columns.get("dt_s")
        seen = times is None or self._ordinary.look(times.values)
        counted = self._counting.totals is not None or not stretch.columns.get("tokens") or self._ask(stretch)
        self._held.append(stretch)
        if seen and counted:
            self._release()

    def _ask(self, stretch: Records) -> bool:
        """Find out whether printed tokens are a counter, as early as it can be; say False to wait for more."""
        counting, absent = self._counting, stretch.steps.missing
        for row, tokens in enumerate(stretch.columns["tokens"].values):
            if not 0 < tokens < math.inf:
                counting.pause()
                continue
            step = stretch.steps.values[row]
            known = math.isfinite(step) and not (absent is not None and absent[row])
            counting.counts(int(step) if known else None, tokens, None, (0.0, 0.0))
            if counting.totals is not None:
                return True
        return not counting.rows

    def _release(self) -> None:
        held, self._held = self._held, []
        for one in held:
            self._take(one)

    def _take(self, stretch: Records) -> None:
        steps, gains, rows = _risen(stretch.steps, self._last)
        if not len(steps):
            self.no_steps = self.no_steps or len(stretch.at) > 0
            return
        attempt = self.attempts.setdefault(stretch.span.attempt, AttemptSums())
        attempt.first_step = int(steps[0]) if attempt.first_step is None else attempt.first_step
        attempt.last_step = int(steps[-1])
        at = stretch.at if rows is None else [stretch.at[row] for row in rows]
        attempt.first_at, attempt.last_at = attempt.first_at or at[0], at[-1] or attempt.last_at
        kept = stretch.kept if rows is None else sum(row < stretch.kept for row in rows)
        dt = self._sifted(_column(stretch, "dt_s", rows), gains)
        self._learn(gains)
        if self._share is None:
            self._share = share_of(gains, self.accumulate)
        share = self._share or 1
        if share > 1:
            gains, self._gain = parted(gains, share, self._gain or self._interval or 1.0)
            dt = None if dt is None else [one * share for one in dt]
        tokens = self._tokens(stretch, rows, gains, dt)
        begin = 0
        if self._last is None:
            self._first = (steps[0], _at(dt, 0), _at(tokens, 0), kept > 0)
            begin = 1
        for first, last, sums in ((begin, kept, attempt.kept), (max(begin, kept), len(steps), attempt.lost)):
            if last > first:
                sums.add(gains[first:last], _cut(dt, first, last), _cut(tokens, first, last))
        if dt is None:
            self._arrive(attempt, steps, at, kept)
        before = steps[-2] if len(steps) > 1 else self._last
        if before is not None:
            sums = attempt.kept if kept == len(steps) else attempt.lost
            self._latest = Latest(before, steps[-1], gains[-1], sums, _at(dt, -1), _at(tokens, -1))
        self._last = steps[-1]

    def _take_back(self, after: Records) -> None:
        """Leave the last step of a segment out if it was odd: the program goes on as if it was not there.

        The steps up to it were never made, and so they were not lost.
        """
        last, steps = self._latest, _risen(after.steps, None)[0]
        if last is None or not len(steps) or not is_stray(last.before, last.step, steps[0]):
            return
        last.sums.add([-last.gain], [last.dt], [last.tokens])
        if self._interval == last.gain:
            self._interval = None
        if self._paced is not None and self._paced[3] == last.step:
            sums, gain, seconds, _ = self._paced
            sums.unpace(gain, seconds)
            if gain > last.gain:
                sums.pace(gain - last.gain, seconds)

    def close(self) -> None:
        """Count the first record of the segment that is over: it stands for as many steps as lie between two lines."""
        self._release()
        self._counting.part()
        self._ordinary.part()
        if self._first is None or self._segment is None:
            return
        step, dt, tokens, kept = self._first
        self._first = None
        gain = self._interval or 1.0
        if step <= 0 or (step % gain and (step + 1) % gain):
            gain = 1.0
        attempt = self.attempts[self._segment[0]]
        if not attempt.first_gain:
            attempt.first_gain = gain
            attempt.first_s = gain * dt if LEAST_DT_S < dt < MOST_DT_S else math.nan
        (attempt.kept if kept else attempt.lost).add([gain / (self._share or 1)], [dt], [tokens])

    def _sifted(self, dt: Sequence[float] | None, gains: Sequence[float]) -> Sequence[float] | None:
        """Return the times without those that have far more than a step in them."""
        if dt is None:
            return None
        found = self._ordinary.sift(dt)
        if found is not dt:
            for new, old, gain in zip(found, dt, gains, strict=True):
                if math.isnan(new) and not math.isnan(old):
                    self.odd_steps += gain
                    self.odd_s += gain * old
        return found

    def _learn(self, gains: Sequence[float]) -> None:
        """Learn how many steps lie between two lines of this segment: the most common number among the first."""
        if self._interval is None:
            some = [gain for gain in gains[:_LOOKED_AT] if gain > 0]
            self._interval = Counter(some).most_common(1)[0][0] if some else None

    def _tokens(self, stretch: Records, rows: Rows, gains: Sequence[float], dt: Sequence[float] | None) -> Column:
        """Return the tokens of one step; printed ones lead, as in the meter."""
        given = self.tokens_per_step
        printed, totals = _column(stretch, "tokens", rows), _column(stretch, "tokens_total", rows)
        if printed is not None and self._counting.totals:
            totals = printed if totals is None else totals
            end = self._counted_to(printed, gains)
            if end < len(printed):  # no counter after all
                known = self._gained(totals[:end], gains) if given is None else [given] * end
                return [*known, *printed[end:]]
        elif printed is not None:
            if self._share and self._share > 1:
                printed = [one * self._share for one in printed]
            return printed if given is None else [one if 0 < one < math.inf else given for one in printed]
        if given is not None:
            return given
        if totals is not None:
            return self._gained(totals, gains)
        rates = _column(stretch, "tokens_per_s", rows)
        if rates is None or dt is None:
            return None
        devices = self.devices if stretch.per_device else 1
        return [rate * each * devices for rate, each in zip(rates, dt, strict=True)]

    def _counted_to(self, printed: Sequence[float], gains: Sequence[float]) -> int:
        """Return how many of the numbers are of a counter: up to the first that fails to rise with the step."""
        before = [math.nan if self._counted is None else self._counted, *printed[:-1]]
        self._counted = printed[-1]
        rows = enumerate(zip(printed, before, gains, strict=True))
        end = next((row for row, (now, was, gain) in rows if gain > 0 and now <= was), None)
        if end is not None:
            self._counting.totals = False
        return len(printed) if end is None else end

    def _gained(self, totals: Sequence[float], gains: Sequence[float]) -> list[float]:
        """Return the tokens per step since the record before, by a counter."""
        before = [math.nan if self._total is None else self._total, *totals[:-1]]
        triples = zip(totals, before, gains, strict=False)
        found = [(now - was) / gain if gain > 0 else math.nan for now, was, gain in triples]
        if found:
            self._total = totals[-1]
        if len(found) > 1 and math.isnan(found[0]):
            found[0] = found[1]  # what the first of a segment adds nobody can tell: as much as the next
        return found

    def _arrive(self, attempt: AttemptSums, steps: Sequence[float], at: Sequence[float], kept: int) -> None:
        """Note the paces between arrivals: many records share one, and only the next tells how long they took."""
        if at[-1] <= 0 or (self._mark is not None and at[-1] <= self._mark[0]):
            return
        before = self._mark or (at[0], steps[0])
        changed = list(compress(range(1, len(at)), map(ne, at[1:], at)))
        for row in changed if at[0] <= before[0] else [0, *changed]:
            seconds, gain = at[row] - before[0], steps[row] - before[1]
            if gain > 0 and seconds > 0 and before[0] > 0:
                sums = attempt.kept if row < kept else attempt.lost
                sums.pace(gain, seconds)
                self._paced = (sums, gain, seconds, steps[row])
            if seconds > 0:
                before = (at[row], steps[row])
        self._mark = before


Rows = Sequence[int] | None
"""The rows that print a step; None: all."""


def _risen(column: Values, last: float | None) -> tuple[Sequence[float], Sequence[float], Rows]:
    """Return the steps, by how much each is above the one before it, and the rows they stand in.

    The first of a segment has no gain of its own: 0. Of several ranks that print, one may lag behind: what it says of a
    step that was reached before adds nothing.
    """
    steps, rows = column.values, None
    if column.missing is not None and 1 in column.missing:
        rows = [row for row, gone in enumerate(column.missing) if not gone]
        steps = [steps[row] for row in rows]
    if len(steps) == 0:
        return (), (), None
    first = 0.0 if last is None else steps[0] - last
    gains = [first, *map(sub, steps[1:], steps)]
    if min(gains) < 0:
        steps = list(accumulate(steps, max, initial=steps[0] if last is None else last))[1:]
        gains = [max(0.0, first), *(after - before for before, after in pairwise(steps))]
    return steps, gains, rows


def _column(stretch: Records, name: str, rows: Rows) -> Sequence[float] | None:
    column = stretch.columns.get(name)
    if column is None or (column.missing is not None and 0 not in column.missing):
        return None
    return column.values if rows is None else [column.values[row] for row in rows]


def _at(column: Column, row: int) -> float:
    if column is None or isinstance(column, (int, float)):
        return math.nan if column is None else float(column)
    return column[row]


def _cut(column: Column, first: int, last: int) -> Column:
    return column if column is None or isinstance(column, (int, float)) else column[first:last]
