"""A metric that is printed as the average of all steps so far: what its steps were, for an average that begins anew.

Such a line differs from the first resumed step on although the training is the same. Pure arithmetic: no clock, file or
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

FEWEST: Final = 5  # resumed steps, below which anything may look like an average

Values = Mapping[int, float]


class Unfolded(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of which an average is made agree at first: up to where (None: all), and within which ``room``."""

    differs: int | None
    unbroken: float
    resumed: float
    room: float


def unfolded(unbroken: Values, resumed: Values, *, grain: float) -> Unfolded | None:
    """Take two averages apart, of which the second has begun anew; None if that is not what they are.

    ``grain`` is the last digit that is printed: what the n-th value of an average is made of is known within n of it.
    """
    steps, all_steps = sorted(step for step in resumed if step in unbroken), sorted(unbroken)
    contiguous = all(two == one + 1 for some in (steps, all_steps) for one, two in pairwise(some))
    if len(steps) < FEWEST or not contiguous or not grain or steps[0] - 1 not in unbroken:
        return None
    count = steps[0] - all_steps[0] + 1
    if abs(resumed[steps[0]] - unbroken[steps[0]]) <= 3.0 * count * grain:
        return None  # an ordinary line that agrees, or nearly
    found: Unfolded | None = None
    for number, step in enumerate(steps, 1):
        whole = step - all_steps[0] + 1
        one = unbroken[step] * whole - unbroken[step - 1] * (whole - 1)
        two = resumed[step] * number - (resumed[step - 1] * (number - 1) if number > 1 else 0.0)
        room = grain * (whole + number)
        if abs(one - two) > room:
            return None if number == 1 else Unfolded(differs=step, unbroken=one, resumed=two, room=room)
        found = Unfolded(differs=None, unbroken=one, resumed=two, room=room)
    return found
