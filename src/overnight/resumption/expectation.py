"""What a training's past lets one expect of its next values: how far a loss may move, where a learning rate goes on.

Pure arithmetic on values in the order in which they were printed. No step is compared with its twin here, and nothing
is told to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from math import inf, isfinite
from statistics import median
from typing import Final, NamedTuple

LEVEL: Final = 20
"""Losses whose median is the level that a loss has come from."""

SIGMAS: Final = {1: 14.0, 3: 9.0, 5: 8.0, 10: 7.0, 20: 7.0}
"""So many new losses make a median, which may lie so many robust deviations above what such medians did before.

Few values need more: a single one may be a batch that is hard, and heavy tails come in pairs.
"""

NEWEST: Final = max(SIGMAS)
"""New losses that are judged."""

LEAST: Final = 24
"""Losses before the resume without which there is no telling."""

_FURTHER: Final = 1.5  # times the farthest that such a median ever moved
_PLAIN: Final = 0.01  # part of the level below which nobody would call it a jump
_SMOOTH: Final = 0.05  # the same of a smooth curve: it may be a mean that begins anew
_AT_MOST: Final = 0.5  # the same at the most
_RECENT: Final = 128  # losses that say how they are printed
_PLACES: Final = 80  # that say what is usual: what lies farther back was another phase of the training
_NEAR: Final = 0.7  # the part that neighbours of a mean differ by of what values that lie apart do
_AROUND: Final = 8  # moves before and after one that say what is usual there
_MEAN: Final = (0.4, 0.8)  # the part of neighbouring moves that go the same way, where a mean is printed

OFF: Final = 0.05
"""Part of the larger of two learning rates by which they may differ."""

_BEND: Final = 1.5  # times its slope so far a schedule may go on with
_LRS: Final = 3  # that are judged by what came before; later ones only beside their twins
_RATIOS: Final = (0.1, 0.2, 0.25, 0.3, 1 / 3, 0.1**0.5, 0.5, 2 / 3, 0.7, 0.75, 0.8, 0.9)  # of schedules in steps


class Jump(NamedTuple):
    """A level of losses before and after, and how many robust deviations lie between."""

    before: float
    after: float
    sigmas: float
    records: int


class LossCourse:
    """How a loss has moved, and whether the losses after a resume go on from there.

    The median of the next k losses is compared with the level of the last ones before, and their difference with the
    same difference at every earlier place: so trends, waves, heavy tails and noise of any size are measured, not
    assumed. Only a rise counts: after a resume a fall may be a schedule, and where it matters twins show it.
    """

    def __init__(self, losses: Sequence[float], *, records: int = 0) -> None:
        """``losses`` came before, oldest first; those that are no finite number are left out.

        ``records`` is how many there were since the run began, where that is more.
        """
        past = [one for one in losses if isfinite(one)]
        self.level: float | None = None
        self._new: list[float] = []
        self._usual: dict[int, tuple[float, float, float]] = {}
        if len(past) < LEAST:
            return
        width = min(LEVEL, len(past) // 3)
        self.level = median(past[-width:])
        recent = past[-_RECENT:]
        lags = [_gaps(recent, lag) for lag in (1, width // 4, width)]
        self.usual = max(map(spread, lags))
        self.farthest = max(abs(gap) for gaps in (lags[0], _gaps(past, 1), lags[1]) for gap in gaps)
        of_mean, self.smooth = _of_mean(recent, width, max(records, len(past)))
        least = _SMOOTH if self.smooth else _PLAIN
        self.plain = max(least * abs(self.level), min(of_mean, _AT_MOST * abs(self.level)))
        levels = {end: median(past[end - width : end]) for end in range(width, len(past))}
        for count in SIGMAS:
            moved = [
                median(past[end : end + count]) - level for end, level in levels.items() if end + count <= len(past)
            ]
            if len(moved) >= width // 2:
                newest = moved[-_PLACES:]
                centre = median(newest)
                self._usual[count] = (centre, spread(newest), max(moved) - centre)

    def add(self, loss: float) -> Jump | None:
        """Take the next loss after the resume; a jump if it makes one certain. Asked until there is one, or 20 came."""
        if self.level is None or not isfinite(loss) or len(self._new) >= NEWEST:
            return None
        self._new.append(loss)
        count = len(self._new)
        if count not in self._usual:
            return None
        after = median(self._new)
        centre, wide, most = self._usual[count]
        rise = after - self.level
        beyond = rise - centre
        wide = max(wide, 1e-9 * abs(self.level))
        # Little to measure by is a reason for caution: of few places the farthest is not far.
        enough = max(SIGMAS[count] * wide, (_FURTHER if count > 1 else 2 * _FURTHER) * most)
        if min(beyond, rise) <= self.plain or beyond <= enough or after <= self.level:
            return None
        return Jump(self.level, after, beyond / wide if wide > 0 else inf, count)

    def done(self) -> bool:
        """Say whether no further loss changes anything."""
        return self.level is None or len(self._new) >= NEWEST


def _gaps(values: Sequence[float], lag: int) -> list[float]:
    return [after - one for one, after in zip(values, values[lag:], strict=False)]


def _of_mean(values: Sequence[float], apart: int, records: int) -> tuple[float, bool]:
    """Return how far a printed mean may move when it begins anew with a single batch, and whether values are smooth.

    0 where no mean is told apart from noise, or from a smooth curve. A mean of n values moves by an n-th of what the
    next value is away from it. Of two neighbouring moves of a mean every second pair goes the same way, of noise every
    third, of a smooth curve nearly all.
    """
    moves = _gaps(values, 1)
    if _alike(moves, len(moves)) > _MEAN[1]:
        return 0.0, True
    # How far they are apart is a matter of the trend, too: of noise on a slope it must not be taken for a mean.
    if _alike(moves, _AROUND) < _MEAN[0] or spread(moves) >= _NEAR * spread(_gaps(values, apart)):
        return 0.0, False
    newest = moves[-2 * apart :]
    return records * (abs(median(newest)) + 4 * spread(newest)), True


def _alike(moves: Sequence[float], around: int) -> float:
    """Return the part of neighbouring moves that go the same way, seen from what is usual around them."""
    usual = [median(moves[max(0, place - around) : place + around + 1]) for place in range(len(moves))]
    ways = [move > middle for move, middle in zip(moves, usual, strict=True) if move != middle]
    return sum(one == after for one, after in pairwise(ways)) / max(1, len(ways) - 1)


def spread(values: Sequence[float]) -> float:
    """Return a robust standard deviation: by the median deviation or the 90th percentile, whichever is larger."""
    if not values:
        return 0.0
    middle = median(values)
    away = sorted(abs(one - middle) for one in values)
    return max(1.4826 * away[len(away) // 2], away[len(away) * 9 // 10] / 1.645)


class LrCourse:
    """How a learning rate has moved, and whether it goes on after a resume as it would have.

    Expected is anything between the last value and what its steepest recent slope leads to, up or down: a warm-up, a
    decay, the turn of a wave. Besides, what the schedule has done before: a fall by the same factor, a return to a
    value that it has returned to. A flat rate that falls by a common factor and stays flat is a schedule in steps.
    """

    def __init__(self, steps: Sequence[int], rates: Sequence[float]) -> None:
        """``steps`` rise, ``rates`` are finite; what came before the resume."""
        self.steps, self.rates = list(steps), list(rates)
        pairs = list(zip(self.steps, self.rates, strict=True))
        self.slopes = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(pairs) if t > s]
        usual = median(map(abs, self.slopes)) if self.slopes else 0.0
        jumps = [(a, b) for (s, a), (t, b) in pairwise(pairs) if off(a, b) and abs(b - a) > 3 * usual * (t - s)]
        self.returns = [b for a, b in jumps if b > a]
        self.factors = [b / a for a, b in jumps if 0 < b < a]
        self.judged = 0
        self._flat: tuple[int, float] | None = None

    def add(self, step: int, rate: float) -> float | None:
        """Take the next learning rate; return what was expected if it is off, None if it is not or is not judged."""
        self.judged += 1
        if self.judged > _LRS or len(self.rates) < 2 or not isfinite(rate):
            return None
        last = self.rates[-1]
        if self._flat is not None:
            held, self._flat = self._flat, None
            return None if rate == held[1] else last
        expected = self._expected(step)
        if self._near(rate, *expected):
            return None
        if any(not off(rate, one) for one in self.returns):
            return None
        if last > 0 and any(not off(rate / last, one) for one in self.factors):
            return None
        if self._in_steps(rate):
            self._flat = (step, rate)
            return None
        return min(expected, key=lambda one: abs(one - rate))

    def skip(self) -> None:
        """Pass over a learning rate that was judged by its twin."""
        self.judged += 1

    def _expected(self, step: int) -> tuple[float, float]:
        """Return the lowest and the highest value that is expected."""
        gap, last = step - self.steps[-1], self.rates[-1]
        reach = _BEND * max(map(abs, self.slopes[-LEVEL:]), default=0.0) * max(0, gap)
        return max(0.0, last - reach) if last >= 0 else last - reach, last + reach

    def _near(self, rate: float, low: float, high: float) -> bool:
        if low <= rate <= high or not off(rate, low) or not off(rate, high):
            return True
        if not any(self.slopes):
            return False
        # Printed with few digits, a rate that moves goes by whole digits.
        digit = 10.0 ** min(_exponent(one) for one in (rate, *self.rates[-LEVEL:]))
        return low - 1.5 * digit <= rate <= high + 1.5 * digit

    def _in_steps(self, rate: float) -> bool:
        """Say whether a rate that was flat has fallen by a factor that schedules are given."""
        last = self.rates[-1]
        flat = len(self.rates) >= 5 and len(set(self.rates[-5:])) == 1
        return flat and 0 < rate < last and any(abs(rate / last / one - 1) < 0.002 for one in _RATIOS)


def off(one: float, other: float) -> bool:
    """Say whether two learning rates differ by more than 5% of the larger one."""
    return abs(one - other) > OFF * max(abs(one), abs(other))


def _exponent(value: float) -> int:
    exponent = Decimal(repr(value)).as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0
