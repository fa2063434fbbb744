"""Sums over many numbers at once that are bit for bit those of adding them one after the other.

No clock, no file, no process.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_IN_ORDER: Final = sum([1e100, 1.0, -1e100], 0.0) == 0.0
"""Whether ``sum`` rounds after each number, as a loop does. Since Python 3.12 it keeps what rounding loses."""


def plus(start: float, values: Iterable[float]) -> float:
    """Return ``start`` with each of ``values`` added, the first one first."""
    if _IN_ORDER:  # five times as fast as the loop
        return sum(values, start)
    for value in values:
        start += value
    return start


def plus_products(start: float, values: Sequence[float], counts: Sequence[int]) -> float:
    """Return ``start`` with each of ``values`` added as often as ``counts`` says, by one product each."""
    if counts.count(1) == len(counts):
        return plus(start, values)
    return plus(start, map(mul, values, counts))


def all_between(values: Sequence[float], least: float, most: float) -> bool:
    """Say whether all of ``values`` (no NaN) lie above ``least``, which is not negative, and below ``most``."""
    # above 0 each is less than the sum of all, which is found three times as fast as the largest
    return min(values) > least and (sum(values) < most or max(values) < most)
