"""What a usual step time is, and how far above it a time is none: one for what counts live and for what counts later.

No clock, no file, no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf, nan
from typing import Final

from overnight.pacing.arrivals import LEAST_DT_S, MOST_DT_S

ODD: Final = 4.0
"""A printed step time of more than so many usual ones has something else in it: a warm-up, a save, an evaluation."""

LATELY: Final = 21
FEW: Final = 3
"""The latest known step times, of which the middle one is the usual; fewer than so many tell nothing."""


class Recent:
    """The latest known step times of one stretch of steps, in seconds."""

    __slots__ = ("_floor", "_times")

    def __init__(self, times: Iterable[float] = ()) -> None:
        self._times: deque[float] = deque(times, maxlen=LATELY)
        self._floor = min(self._times, default=inf)  # no known time lies below it

    @property
    def few(self) -> bool:
        """Say whether too few are known to tell what is usual."""
        return len(self._times) < FEW

    def usual(self) -> float | None:
        """Return the middle one, the smaller of two; None where too few are known."""
        return None if self.few else sorted(self._times)[(len(self._times) - 1) // 2]

    def is_odd(self, dt: float, factor: float = ODD) -> bool:
        """Say whether a time is more than ``factor`` usual ones; no where too few are known."""
        if dt <= factor * self._floor or self.few:
            return False
        self._floor = min(self._times)
        if dt <= factor * self._floor:
            return False
        usual = self.usual()
        return usual is not None and dt > factor * usual

    def are_plain(self, times: Sequence[float]) -> bool:
        """Say whether none of many further times (no NaN) can be odd; no where it would have to be looked at each."""
        least = min(times)
        return not self.few and max(times) <= ODD * min(least, *self._times)

    def take(self, dt: float) -> None:
        """Take in one more."""
        self._times.append(dt)
        self._floor = min(self._floor, dt)

    def take_many(self, times: Sequence[float]) -> None:
        """Take in many more."""
        self._times.extend(times[-LATELY:])
        self._floor = min(self._times)

    def clear(self) -> None:
        """The steps do not go on from here."""
        self._times.clear()
        self._floor = inf

    def snapshot(self) -> list[float]:
        """Return them as builtins."""
        return list(self._times)


def is_known(dt: float) -> bool:
    """Say whether a number is a step time at all."""
    return LEAST_DT_S < dt < MOST_DT_S


class Ordinary:
    """Goes through the printed times of one stretch after another, and leaves out what is odd."""

    def __init__(self) -> None:
        self._recent = Recent()
        self._before: float | None = None  # the usual one of the stretch before
        self._ahead: list[float] = []  # the first few of this one

    def look(self, times: Iterable[float]) -> bool:
        """Look at times before they are sifted; say whether enough of the stretch were seen to sift the first ones."""
        if len(self._ahead) < FEW:
            self._ahead.extend(islice(filter(is_known, times), FEW - len(self._ahead)))
        return len(self._ahead) >= FEW

    def part(self) -> None:
        """The steps do not go on from here."""
        usual = self._recent.usual()
        self._before = self._before if usual is None else usual
        self._recent.clear()
        self._ahead = []

    def sift(self, times: Sequence[float]) -> Sequence[float]:
        """Return the times with NaN for each that is odd: those of the first few steps too, by what follows."""
        recent = self._recent
        if not len(times):
            return times
        if min(times) > LEAST_DT_S and max(times) < MOST_DT_S and recent.are_plain(times):  # NaN: not plain
            recent.take_many(times)
            return times
        first = self._before if len(self._ahead) < FEW else Recent(self._ahead).usual()
        found = []
        for dt in times:
            if not is_known(dt):
                found.append(dt)
                continue
            odd = (first is not None and dt > ODD * first) if recent.few else recent.is_odd(dt)
            recent.take(dt)
            found.append(nan if odd else dt)
        return found
