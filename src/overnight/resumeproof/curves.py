"""What numbers alone say about a difference between two curves: its size beside the batches', shifts, jumps, drifts.

Nothing of names, checkpoints or causes. Pure arithmetic: no clock, file or process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist, fmean, median
from typing import Final

Values = Mapping[int, float]
Near = Callable[[float, float], bool]

MOST_SHIFT: Final = 2000  # steps of a shift that are tried
_SMALL: Final = (0.02, 0.05, 0.1, 0.2, 0.35)  # how large differences on the same data may be, in those of other data


def finite(values: Values) -> dict[int, float]:
    """Return the values that are numbers."""
    return {step: value for step, value in values.items() if math.isfinite(value)}


def batch_spread(unbroken: Values, at: int) -> float:
    """Return how far the values of neighbouring steps lie apart round a step, as a standard deviation of one; robust.

    Steps that follow each other are subtracted, so that a falling loss adds nothing. 0.0: too few values.
    """
    steps = sorted(unbroken, key=lambda step: (abs(step - at), step))[:60]
    leaps = [abs(unbroken[two] - unbroken[one]) for one, two in pairwise(sorted(steps))]
    if len(leaps) < 3:
        return 0.0
    return max(1.4826 * median(leaps), 0.25 * fmean(leaps)) / math.sqrt(2.0)


def shift(unbroken: Values, resumed: Values, near: Near, *, loose: float) -> int | None:
    """Return k if the resumed values are those that the unbroken run had k steps later (earlier: k < 0); None: no k.

    At the first step they have to agree by ``near``; later ones may drift by ``loose``, but be nearer than at k = 0. A
    metric that hardly changes tells nothing. The smallest k counts.
    """
    steps = sorted(resumed)[:20]
    if not steps:
        return None
    apart = [abs(unbroken[step] - resumed[step]) for step in steps if step in unbroken]
    usual = median(apart) if apart else math.inf
    found: list[int] = []
    for place, value in unbroken.items():
        k = place - steps[0]
        if k == 0 or abs(k) > MOST_SHIFT or not near(value, resumed[steps[0]]):
            continue
        there = [step for step in steps if step + k in unbroken]
        off = [abs(unbroken[step + k] - resumed[step]) for step in there]
        agree = sum(size == 0.0 or (size <= loose and size < 0.3 * usual) for size in off)
        enough = agree >= max(2, 0.7 * len(there)) or (len(there) == len(steps) == 1 and abs(k) <= 2)
        if enough and len({resumed[step] for step in there}) >= min(3, len(there)):
            found.append(k)
    return min(found, key=abs, default=None)


def jumped(off: Sequence[float], spread: float) -> bool:
    """Say whether a curve went far up at once and stayed there, beyond what other data would do.

    ``off``: resumed minus unbroken, from the first resumed step on.
    """
    head = off[:5]
    bound = (6.0, 4.5, 3.5, 3.0, 2.5)[len(head) - 1] * spread
    return bool(head) and fmean(head) > bound and head[0] > 2.0 * spread and head[0] > 0.4 * max(head)


def other_data(off: Sequence[float], spread: float) -> float:
    """Return how much likelier it is that the data were others than that they were the same, as a logarithm.

    Other batches differ as batches do; on the same batch other dropout or slightly other weights differ less.
    """
    scale = math.sqrt(2.0) * spread
    if scale <= 0.0 or not off:
        return 0.0
    sizes = [min(abs(value) / scale, 3.0) for value in off[:10]]
    wide = sum(math.log(NormalDist(0.0, 1.0).pdf(size)) for size in sizes)
    narrow = [sum(math.log(max(NormalDist(0.0, small).pdf(size), 1e-30)) for size in sizes) for small in _SMALL]
    return max(-30.0, min(30.0, wide - max(narrow)))


def relative_size(off: Sequence[float], spread: float) -> float:
    """Return the size of differences beside those between different batches: 1 is as large as those; inf: no spread."""
    size = math.sqrt(fmean(value * value for value in off)) if off else 0.0
    return size / (math.sqrt(2.0) * spread) if spread > 0.0 else math.inf


def begins_anew(unbroken: Values, resumed: Values) -> bool:
    """Say whether the ups and downs of the resumed values are those of the first steps of the unbroken run.

    So it is where the data begin from their start again, under weights that have been trained.
    """
    steps = sorted(resumed)[:40]
    start = sorted(unbroken)[: len(steps)]
    if len(start) < 8 or start[-1] >= steps[0]:
        return False
    one = _leaps([unbroken[step] for step in start])
    two = _leaps([resumed[step] for step in steps[: len(start)]])
    return _correlation(one, two) > 0.9 if len(start) >= 12 else _correlation(one, two) > 0.95


def _leaps(values: Sequence[float]) -> list[float]:
    return [two - one for one, two in pairwise(values)]


def _correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the correlation of two rows of numbers, 0.0 where one never changes."""
    left, right = fmean(one), fmean(two)
    top = sum((a - left) * (b - right) for a, b in zip(one, two, strict=True))
    below = math.sqrt(sum((a - left) ** 2 for a in one) * sum((b - right) ** 2 for b in two))
    return top / below if below > 0.0 else 0.0


def place_of(unbroken: Values, value: float) -> int | None:
    """Return the one step at which a curve had a value, None if it had it never or more than once."""
    found = [step for step, other in unbroken.items() if other == value]
    return found[0] if len(found) == 1 else None
