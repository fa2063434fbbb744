"""What records tell about a run's pace beside goodput: scatter of clean steps, evaluations, waits for data, padding.

Looks at records on their way to somebody else. Of long runs every so many records are looked at, the same number for a
million and for five; nothing is held that grows with them. No file, no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final

from overnight.calculator.observed import DATA, DATA_SHARES
from overnight.history.views import Column, Stretch
from overnight.pacing.advance import WARM_UP_STEPS
from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S
from overnight.pacing.useful import USEFUL

MOST: Final = 1 << 16
"""So many records are looked at, at most about twice as many."""

LEAST: Final = 20
"""From fewer clean step times nothing is said about their scatter."""


class Pacing:
    """Watches the training records of one run. ``names`` are the series that it wants to see besides the usual ones."""

    def __init__(self, names: Sequence[str], records: int, evaluations: Iterable[int] = ()) -> None:
        """``names`` are those of the run, ``records`` how many there are; ``evaluations`` the places of theirs."""
        self.names = [name for name in names if _is(name, USEFUL) or _is(name, DATA) or _is(name, DATA_SHARES)]
        self.names += [name for name in ("mfu",) if name in names]
        self._useful = next((name for name in self.names if _is(name, USEFUL)), None)
        self._data = next((name for name in self.names if _is(name, DATA) or _is(name, DATA_SHARES)), None)
        self._stride = max(1, records // MOST)
        self._evaluations = sorted(evaluations)
        self._first: dict[int, float] = {}
        self._clean, self._odd = array("d"), array("d")
        self._odds = 0
        self._odd_every = 1
        self._useful_of = [0.0, 0.0]
        self._data_of = [0.0, 0.0]
        self._mfu_of = [0.0, 0.0]

    def watch(self, stretches: Iterator[Stretch], tokens_per_step: float | None) -> Iterator[Stretch]:
        """Yield the stretches as they come; ``tokens_per_step`` are those given, where none are printed."""
        for stretch in stretches:
            self._take(stretch, tokens_per_step)
            yield stretch

    def _take(self, stretch: Stretch, tokens_per_step: float | None) -> None:
        count = len(stretch.x)
        if not count:
            return
        begin = self._begin(stretch)
        odd = set(self._after_evaluations(stretch))
        times = _values(stretch, "dt_s")
        rows = [row for row in range(begin, count, self._stride) if row not in odd]
        if times is not None:
            self._clean.extend(one for row in rows if LEAST_DT_S < (one := times[row]) < MOST_DT_S)
            self._keep_odd([times[row] for row in odd])
        said = _values(stretch, self._data)
        if self._data is not None and said is not None:
            self._waits(self._data.lower(), [(said[row], inf if times is None else times[row]) for row in rows])
        useful = _values(stretch, self._useful)
        if useful is not None:
            tokens = _values(stretch, "tokens")
            for row in range(0, count, self._stride):
                whole = tokens_per_step if tokens is None else tokens[row]
                if whole is not None and 0 <= useful[row] <= whole < inf:
                    _add(self._useful_of, useful[row], whole)
        printed = _values(stretch, "mfu")
        if printed is not None:
            for row in rows:
                if 0 < printed[row] < inf:
                    _add(self._mfu_of, printed[row] / 100, 1.0)

    def _begin(self, stretch: Stretch) -> int:
        """Return from which record on the warm-up of the attempt is over."""
        steps = stretch.steps.values
        first = self._first.setdefault(stretch.span.attempt, steps[0])
        if steps[0] >= first + WARM_UP_STEPS:
            return 0
        return bisect_left(steps, first + WARM_UP_STEPS)

    def _after_evaluations(self, stretch: Stretch) -> Iterator[int]:
        """Yield the records that came right behind an evaluation."""
        offsets = stretch.offsets
        low, high = bisect_left(self._evaluations, offsets[0]), bisect_left(self._evaluations, offsets[-1])
        for place in self._evaluations[low:high]:
            yield bisect_left(offsets, place)

    def _keep_odd(self, times: Iterable[float]) -> None:
        for one in times:
            self._odds += 1
            if LEAST_DT_S < one < MOST_DT_S and self._odds % self._odd_every == 0:
                self._odd.append(one)
        while len(self._odd) > MOST:
            self._odd, self._odd_every = self._odd[1::2], self._odd_every * 2

    def _waits(self, name: str, rows: Sequence[tuple[float, float]]) -> None:
        share, unit = name in DATA_SHARES, 1000.0 if "ms" in name.split("_") else 1.0
        for value, dt_s in rows:
            if share and 0 <= value <= 100:
                _add(self._data_of, value / 100, 1.0)
            elif not share and LEAST_DT_S < dt_s < MOST_DT_S and 0 <= value / unit <= dt_s * 1.02:
                _add(self._data_of, value / unit, dt_s)

    # -- what came out -------------------------------------------------------------------------------------------------

    @property
    def useful(self) -> float | None:
        """The part of all tokens that the program itself calls useful, over the whole run; None: it says nothing."""
        return _ratio(self._useful_of)

    def fields(self, stepped_s: float | None) -> dict[str, Any]:
        """Return the fields of ``calculator.Evidence`` that follow; ``stepped_s`` are the seconds of all steps."""
        ordered = sorted(self._clean)
        enough = len(ordered) >= LEAST
        median = ordered[len(ordered) // 2] if enough else None
        beyond = None
        if median is not None and self._odd and stepped_s:
            beyond = min(1.0, sum(max(0.0, one - median) for one in self._odd) * self._odd_every / stepped_s)
        return {
            "median_s": median,
            "slow_s": ordered[int(0.95 * len(ordered))] if enough else None,
            "data_wait": _ratio(self._data_of),
            "evaluation": beyond,
            "evaluations": len(self._evaluations),
            "printed_mfu": _ratio(self._mfu_of),
        }


def _is(name: str, known: Iterable[str]) -> bool:
    return name.lower() in known


def _values(stretch: Stretch, name: str | None) -> Sequence[float] | None:
    """Return the values of a series, NaN where a line says nothing; None where it was not asked for."""
    column: Column | None = None if name is None else stretch.columns.get(name)
    return None if column is None else column.values


def _add(sums: list[float], value: float, whole: float) -> None:
    sums[0] += value
    sums[1] += whole


def _ratio(sums: Sequence[float]) -> float | None:
    return sums[0] / sums[1] if sums[1] > 0 else None
