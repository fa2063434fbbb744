"""What a cause is told from, and a cause with what speaks for it: two values, and what can be asked of the first.

No pattern is looked for here. No clock, no file, no process.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from overnight.resumeproof import curves
from overnight.resumeproof.averages import Unfolded, unfolded
from overnight.resumeproof.comparing import Comparison, Difference, column
from overnight.resumeproof.vocabulary import Holding, decimals, holdings
from overnight.resumeproof.words import Cause, Resumed, Series, StateComparison


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, what else it may be, what of the pattern says so, and the difference to be shown (None: the first)."""

    cause: Cause
    why: str
    also: tuple[Cause, ...] = ()
    difference: Difference | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that a cause is told from. ``differences`` of the main metric come from ``comparison``, which has some.

    ``state`` is the first one saved after resuming that differs (None: none did, or none was compared).
    ``differs_in`` and ``equal_in`` are parts of the saved states that were compared: those that differ, and those that
    hold more than counts and do not.
    """

    comparison: Comparison
    unbroken: Series
    resumed: Resumed
    start: int
    cadence: int
    differs_in: frozenset[Holding]
    equal_in: frozenset[Holding] = frozenset()
    state: StateComparison | None = None

    @property
    def held(self) -> frozenset[Holding]:
        """What lies in the checkpoint as far as names tell, empty if none do."""
        return holdings(self.resumed.checkpoint_keys)

    def lacks(self, part: Holding) -> bool:
        """Say whether the checkpoint is known not to hold a part."""
        return bool(self.held) and part not in self.held

    def first_of(self, fits: Callable[[str], bool]) -> Difference | None:
        """Return the first difference of the metrics that fit."""
        return next((one for one in self.comparison.differences if fits(one.metric)), None)

    def main(self) -> Difference | None:
        """Return the first difference of the metric that says how the training goes."""
        return self.first_of(lambda name: name == self.comparison.main)

    def curve(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return that metric of the unbroken and of the resumed run, numbers only."""
        name = self.comparison.main or ""
        after = {step: v for step, v in column(self.resumed.after.series, name).items() if step >= self.start}
        return curves.finite(column(self.unbroken, name)), curves.finite(after)

    def off(self, since: int) -> list[float]:
        """Return resumed minus unbroken of that metric, from a step on."""
        unbroken, resumed = self.curve()
        return [resumed[step] - unbroken[step] for step in sorted(resumed) if step >= since and step in unbroken]

    def spread(self) -> float:
        """Return how far that metric's values lie apart from batch to batch."""
        return curves.batch_spread(self.curve()[0], self.start)

    def averages(self) -> Unfolded | None:
        """Return what that metric is made of, where it is an average that began anew; None where it is not."""
        main = self.main()
        if main is None or main.step > self.start or not self.comparison.exact:
            return None
        unbroken, resumed = self.curve()
        last = max(self.comparison.steps, default=self.start)
        grain = 10.0 ** -max(map(decimals, unbroken.values()), default=12)
        return unfolded(unbroken, {step: value for step, value in resumed.items() if step <= last}, grain=grain)
