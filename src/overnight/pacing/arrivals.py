"""Step times as printed beside the times between the arrivals of the lines. No clock, no file, no process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from overnight.pacing.advance import Moved
from overnight.pacing.sums import all_between, plus_products

LEAST_DT_S: Final = 1e-9
MOST_DT_S: Final = 1e9
"""What is not between them is no step time, whatever a log says: neither is it counted, nor can a sum overflow."""

LEAST_S: Final = 10.0
MOST_S: Final = 30.0
"""Between the two arrivals that are compared: from so long on, and no more than about so long."""


_TOLERANCE: Final = 1.02


def more_than_passed(printed_s: float, passed_s: float) -> bool:
    """Say whether step times add up to more seconds than have passed; they are printed rounded."""
    return printed_s > passed_s * _TOLERANCE + 1.0


class Arrivals:
    """Step times as printed beside the time between the arrivals of the lines; ``latest`` is (printed, arrived) a step.

    Lines that come together share one arrival, so that only the first line of each new one can be trusted.
    """

    __slots__ = ("_at", "_from", "_printed_s", "_steps", "latest")

    def __init__(self) -> None:
        self.latest: tuple[float, float] | None = None
        self._at: float | None = None
        self.part()

    def part(self) -> None:
        """What comes does not follow on the last record: something else was done between them."""
        self._from: float | None = None
        self._printed_s = 0.0
        self._steps = 0

    def take(self, dt_s: float | None, at: float, moved: Moved) -> None:
        """Take in one record."""
        odd = moved.redone or not moved.clean or not moved.part or (moved.part != 1.0 and moved.gain > 1)
        if odd or dt_s is None or not LEAST_DT_S < dt_s < MOST_DT_S:
            self.part()
            self._at = at
            return
        if not moved.gain and moved.part != 1.0:  # one more micro-step of the same step
            self._printed_s += dt_s
            self._at = at
            return
        self._printed_s += dt_s * moved.gain
        self._steps += moved.gain
        if at != self._at:
            self._arrive(at)

    def take_many(self, dts: Sequence[float] | None, at: float, gains: Sequence[int], unclean: int) -> None:
        """Take in many records that arrived together, the first ``unclean`` of them not clean."""
        if dts is None or unclean or not all_between(dts, LEAST_DT_S, MOST_DT_S):
            whole = Moved(1, redone=False, clean=True, part=1.0)
            for place, gain in enumerate(gains):
                moved = whole._replace(gain=gain, clean=place >= unclean)
                self.take(None if dts is None else dts[place], at, moved)
            return
        self._printed_s += dts[0] * gains[0]
        self._steps += gains[0]
        if at != self._at:
            self._arrive(at)
        self._printed_s = plus_products(self._printed_s, dts[1:], gains[1:])
        self._steps += sum(gains) - gains[0]

    def _arrive(self, at: float) -> None:
        self._at = at
        if self._from is not None and self._steps and at - self._from >= LEAST_S:
            self.latest = (self._printed_s / self._steps, (at - self._from) / self._steps)
        if self._from is None or at - self._from >= MOST_S or at < self._from:
            self._from, self._printed_s, self._steps = at, 0.0, 0

    def snapshot(self) -> list[Any]:
        """Return all of it as builtins."""
        return [self._from, self._at, self._printed_s, self._steps, None if self.latest is None else list(self.latest)]

    @classmethod
    def restore(cls, state: list[Any] | None) -> Arrivals:
        """Go on where ``snapshot`` was taken."""
        found = cls()
        if state is not None:
            found._from, found._at, found._printed_s, found._steps, latest = state
            found.latest = None if latest is None else (latest[0], latest[1])
        return found
