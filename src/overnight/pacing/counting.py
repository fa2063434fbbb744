"""Tokens that are counted up from the beginning of a training: the gain from line to line is what a step has.

Also decided here: whether numbers printed as the tokens of a step are such a counter. No clock, no file, no record.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any, Final

_PROOF: Final = 4
"""Lines that show a counter which began with step 0 or 1."""

_PROOF_AFRESH: Final = 8
"""Lines that show one which began with this stretch of steps: a batch that grows does not begin with nothing."""

_PROOF_ELSEWHERE: Final = 32
"""Lines that show one which began somewhere else, as with other batches before: its gains are equal, and it rises with
every single line. Tokens of a step that grow with the sequences do so in stages."""

_ALIKE: Final = 1.5
_FAR: Final = 500
"""The largest of such gains may be so many times the least; and so many gains or more have come before."""

_NO_STEP: Final = 2.0**27
"""More tokens than any training takes in one step (tens of millions); eight lines will do then."""

_MOST: Final = 64
_NEAR: Final = 0.05
"""Part of the step by which a counter may differ from an even count: sequences are not all of one length."""

Row = tuple[int, float, float | None]
"""Step, printed tokens, seconds per step."""


class Counting:
    """One program's way to print tokens, over all attempts.

    ``totals``: the numbers printed as tokens of a step are a counter; None while nobody can know. They are when they
    rise with each step and are about as many times the gain per step as there were steps, or rise evenly for long.
    They are not when one fails to rise, as the tokens of single steps do at once. ``rows`` are those that speak for it,
    and ``before`` is what the sums were before them.
    """

    __slots__ = ("_gain", "_last", "before", "rows", "totals")

    def __init__(self) -> None:
        self.totals: bool | None = None
        self.rows: list[Row] = []
        self.before = (0.0, 0.0)
        self._last: tuple[int, float] | None = None
        self._gain: float | None = None

    def counts(self, step: int | None, tokens: float, dt_s: float | None, sums: tuple[float, float]) -> bool:
        """Take in tokens printed for a step; say whether they have now turned out to be a counter (once)."""
        if self.totals is False:
            return False
        if self.totals:
            if self._last is not None and step is not None and step > self._last[0] and tokens <= self._last[1]:
                self.totals = False
            return False
        if step is None:
            self.rows.clear()
            return False
        if self.rows and (step <= self.rows[-1][0] or tokens <= self.rows[-1][1]):
            self.totals = False
            self.rows.clear()
            return False
        if not self.rows:
            self.before = sums
        self.rows.append((step, tokens, dt_s))
        if len(self.rows) >= _PROOF and self._is_even():
            self.totals = True
            return True
        if len(self.rows) >= _MOST:
            self.totals = False
            self.rows.clear()
        return False

    def gained(self, step: int, total: float) -> float | None:
        """Return the tokens per step since the step before, by a counter; None on the first step of a stretch.

        Of several lines of one step, as of its micro-steps, the first tells, and the others say the same.
        """
        last = self._last
        if last is not None and step == last[0]:
            return self._gain
        self._last = (step, total)
        risen = last is not None and step > last[0] and total >= last[1]
        self._gain = (total - last[1]) / (step - last[0]) if last is not None and risen else None
        return self._gain

    def pause(self) -> None:
        """A line without tokens: what comes is no unbroken row any more."""
        if self.rows:
            self.rows.clear()

    def part(self) -> None:
        """The steps do not go on from here: a gain across this place would be no step's."""
        self.rows.clear()
        self._last = self._gain = None

    def _is_even(self) -> bool:
        """Say whether the numbers are what an even count would give, from wherever it began."""
        (first, least, _), (second, _, _), (last, most, _) = self.rows[0], self.rows[1], self.rows[-1]
        gain = (most - least) / (last - first)
        if not 0 < gain < inf:
            return False
        if all(abs(tokens / gain - step) <= 1 + _NEAR * abs(step) for step, tokens in ((first, least), (last, most))):
            return True
        if len(self.rows) < _PROOF_AFRESH:
            return False
        if least / gain <= 2 * (second - first):
            return True
        far = least >= _FAR * gain and len(self.rows) >= (_PROOF_AFRESH if least >= _NO_STEP else _PROOF_ELSEWHERE)
        return far and self._has_equal_gains()

    def _has_equal_gains(self) -> bool:
        gains = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(self.rows)]
        return max(gains) <= _ALIKE * min(gains)

    def snapshot(self) -> list[Any]:
        """Return all of it as builtins."""
        last = None if self._last is None else list(self._last)
        return [self.totals, [list(row) for row in self.rows], list(self.before), last, self._gain]

    @classmethod
    def restore(cls, state: list[Any] | None) -> Counting:
        """Go on where ``snapshot`` was taken; of an older version nothing is known."""
        counting = cls()
        if state is not None:
            counting.totals, rows, before, last, *later = state
            counting._gain = later[0] if later else None
            counting.rows = [(step, tokens, dt_s) for step, tokens, dt_s in rows]
            counting.before = (before[0], before[1])
            counting._last = None if last is None else (last[0], last[1])
        return counting
