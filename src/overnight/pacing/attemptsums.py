"""Steps, seconds and tokens of one attempt, added up: of what counts, or of what was done again later.

Pure arithmetic. Which step counts, and how many steps a line stands for, is decided in ``stepping``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import mul

from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S

USUAL = 2.0
"""Between two arrivals more than so many usual steps per step is no stepping: a save, an evaluation, a stall."""

MOST_TOKENS = 1e18  # of one step
_BINS = 16  # of paces, per factor of two

Column = Sequence[float] | float | None
"""A number for each record, one for all of them, or None: unknown."""


class Sums:
    """Steps, seconds and tokens of one attempt, either those that count or those that were lost.

    ``timed`` of the ``steps`` have a printed step time, together ``seconds``; ``counted`` have known ``tokens``.
    """

    def __init__(self) -> None:
        self.steps = self.timed = self.seconds = self.counted = self.tokens = 0.0
        # Of what lies between two arrivals, by pace: [steps, seconds].
        self.paces: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, gains: Sequence[float], dt: Column, tokens: Column) -> None:
        """Add records that moved on by ``gains`` steps, with the seconds and the tokens of one step of each."""
        steps = sum(gains)
        self.steps += steps
        timed, seconds = _weighed(gains, steps, dt, LEAST_DT_S, MOST_DT_S)
        counted, many = _weighed(gains, steps, tokens, 0.0, MOST_TOKENS)
        self.timed += timed
        self.seconds += seconds
        self.counted += counted
        self.tokens += many

    def pace(self, steps: float, seconds: float) -> None:
        """Add steps that took ``seconds`` from one arrival to another."""
        one = self.paces[math.floor(math.log2(seconds / steps) * _BINS)]
        one[0] += steps
        one[1] += seconds

    def unpace(self, steps: float, seconds: float) -> None:
        """Take back what ``pace`` has added."""
        one = self.paces[math.floor(math.log2(seconds / steps) * _BINS)]
        one[0] -= steps
        one[1] -= seconds

    def arrived_s(self, usual_s: float) -> float:
        """Return the seconds of all steps by arrivals: what took far longer than ``usual_s`` a step counts as usual.

        So do steps between which nothing arrived, such as the first of a segment.
        """
        far = USUAL * usual_s
        total = usual_s * self.steps
        for steps, seconds in self.bins():
            total += (usual_s * steps if seconds > far * steps else seconds) - usual_s * steps
        return total

    def bins(self) -> Iterator[tuple[float, float]]:
        """Yield (steps, seconds) of each pace, the quickest first."""
        for key in sorted(self.paces):
            if self.paces[key][0] > 0:  # else all of it was taken back
                yield self.paces[key][0], self.paces[key][1]


class AttemptSums:
    """What one attempt did. ``first_at`` and ``last_at`` are the arrivals of its first and last step, 0: unknown.

    Its first line came when ``first_gain`` steps were done, which took ``first_s`` (NaN: not printed).
    """

    def __init__(self) -> None:
        self.kept, self.lost = Sums(), Sums()
        self.first_gain = 0.0
        self.first_s = math.nan
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.first_at = self.last_at = 0.0

    def begun_at(self) -> float:
        """Return when its first step began, at the latest; 0 where nobody knows."""
        took_s = self.first_s if math.isfinite(self.first_s) else self.first_gain * (self.usual_s() or 0.0)
        return max(0.0, self.first_at - max(0.0, took_s))

    def usual_s(self) -> float | None:
        """Return the seconds per step below which half of the steps were done, by arrivals; None if they say nothing.

        Of an attempt that was superseded whole the lost steps tell it.
        """
        found = sorted([*self.kept.bins(), *self.lost.bins()], key=lambda one: one[1] / one[0])
        left = sum(steps for steps, _ in found) / 2
        for steps, seconds in found:
            left -= steps
            if left <= 0:
                return seconds / steps
        return None


def _weighed(gains: Sequence[float], steps: float, column: Column, least: float, most: float) -> tuple[float, float]:
    """Return the steps whose value is known (between the two limits), and the sum of value x steps over them."""
    if column is None:
        return 0.0, 0.0
    if isinstance(column, (int, float)):
        return steps, steps * column
    if min(column) > least and max(column) < most:
        total = math.fsum(map(mul, gains, column))
        if math.isfinite(total):  # NaN: some say nothing
            return steps, total
    known = [(gain, value) for gain, value in zip(gains, column, strict=True) if least < value < most]
    return sum(gain for gain, _ in known), math.fsum(gain * value for gain, value in known)
