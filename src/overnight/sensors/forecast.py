"""When a disk will be full, from its free space over time. Pure: no clock, no file, no judgement of what is soon.

Saves come and go: free space falls while one is written and rises when an old one is removed. What counts is what does
not come back. So both the most and the least free space of a stretch of time must fall from stretch to stretch, and the
mildest of the slopes is believed: a single save, or a tooth that is not yet over, is no trend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]

LEAST_SPAN_S = 300.0
"""A large save may be written for minutes: less than this shows nothing."""

LEAST_POINTS = 6
STRETCHES = (2, 3)
CLEARLY = 1.5
RECENT = (1.0, 0.5, 0.25)
"""Which of the last part of the time is looked at on its own: a disk may have begun to fill a short while ago."""


def time_to_full(points: Sequence[Point]) -> float | None:
    """Return the seconds from the last point until nothing is free, if it goes on as it did; 0.0 if it is full now.

    ``points``: (seconds, free bytes), in any order; not finite ones are left out. None: no lasting fall can be seen,
    or there are fewer than LEAST_POINTS points or LEAST_SPAN_S seconds to see it in. A fall that has lasted for a while
    says little of a time many times as long: how far to believe it is the caller's word.
    """
    known = sorted((at, free) for at, free in points if math.isfinite(at) and math.isfinite(free))
    if not known:
        return None
    last_at, last_free = known[-1]
    if last_free <= 0:
        return 0.0
    found = []
    came_back = _largest_comeback(known)
    for part in RECENT:
        begin = last_at - (last_at - known[0][0]) * part
        recent = [point for point in known if point[0] >= begin]
        left = _left_s(recent)
        # What fell as far before came back: of a part of the time only clearly more than that is news.
        if left is not None and (part == 1.0 or _fall(recent) > CLEARLY * came_back):
            found.append(left)
    return min(found, default=None)


def _left_s(points: Sequence[Point]) -> float | None:
    """Return the seconds until the least free space is 0, counted from the last point; None without a lasting fall."""
    first_at, last_at = points[0][0], points[-1][0]
    if len(points) < LEAST_POINTS or last_at - first_at < LEAST_SPAN_S:
        return None
    slopes = []
    for count in STRETCHES:
        stretches = _cut(points, count)
        if stretches is None:
            return None
        lows = [_least(stretch) for stretch in stretches]
        highs = [max(stretch, key=lambda point: (point[1], -point[0])) for stretch in stretches]
        for side in (lows, highs):
            if any(after[1] >= before[1] for before, after in pairwise(side)):
                return None
            slopes.append((side[-1][1] - side[0][1]) / (side[-1][0] - side[0][0]))
    low_at, low = _least([point for point in points if point[0] >= (first_at + last_at) / 2])
    return max(0.0, low_at + low / -max(slopes) - last_at)


def _least(points: Sequence[Point]) -> Point:
    """Return the point with the least free space, the latest of equal ones."""
    return min(points, key=lambda point: (point[1], -point[0]))


def _cut(points: Sequence[Point], count: int) -> list[list[Point]] | None:
    """Return the points of ``count`` stretches of equal length; None if one of them is empty."""
    first_at, last_at = points[0][0], points[-1][0]
    width = (last_at - first_at) / count
    stretches: list[list[Point]] = [[] for _ in range(count)]
    for point in points:
        stretches[min(count - 1, int((point[0] - first_at) / width))].append(point)
    return stretches if all(stretches) else None


def _fall(points: Sequence[Point]) -> float:
    """Return how far free space fell from its most to the least after that, in bytes."""
    most, fall = -math.inf, 0.0
    for _, free in points:
        most = max(most, free)
        fall = max(fall, most - free)
    return fall


def _largest_comeback(points: Sequence[Point]) -> float:
    """Return the largest rise of free space, from a low to the most after it: a fall of that size has come back."""
    least, rise = math.inf, 0.0
    for _, free in points:
        least = min(least, free)
        rise = max(rise, free - least)
    return rise
