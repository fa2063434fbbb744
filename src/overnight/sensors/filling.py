"""What is free of a disk or a memory over a night: a course of bounded length, and how soon nothing will be left.

Pure. A course is a flat list of numbers, so that it can be kept in a rule's memory; it is replaced, never changed.
Which disk or memory it is may not enter here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, Literal

from overnight.rules import span
from overnight.sensors.forecast import Point, time_to_full

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

STRETCH_S: Final = 60.0
"""Seconds of the stretches of which the least free space is kept, as long as they are no more than MOST."""

MOST: Final = 64

SOON_S: Final = 12 * 3600.0
NEAR_S: Final = 3600.0
"""Seconds to nothing free: a night, which is worth a word; and an hour, which is worth another."""

TRUST: Final = 3.0
"""What has gone must be at least the third part of what is left: a first tooth of a saw looks like a lasting fall, and
so do the first of the saves of which only some are kept."""

SURE: Final = 3
"""Stretches in a row that must say so."""

CALM: Final = 10
"""Stretches in a row in which nothing is foretold, after which it is over."""

Word = Literal["soon", "near", "low", "over"]
_LEVELS: Final = {"soon": 1, "near": 2, "low": 2}
_SAMPLES: Final = 2


def taken(course: list[float], at: float, free: float) -> tuple[list[float], bool]:
    """Return the course with one more value, and whether a stretch has ended with it.

    A course is empty, or the seconds of a stretch and then pairs: (seconds, free) of the least free space in each. When
    there are more than MOST stretches, two each become one.
    """
    if not course:
        return [STRETCH_S, at, free], False
    width, last_at, last = course[0], course[-2], course[-1]
    if at < last_at:  # the clock was set back: nothing is known of times before
        return [width, at, free], False
    if at // width == last_at // width:
        return ([*course[:-2], at, free] if free <= last else course), False
    course = [*course, at, free]
    while len(course) > 2 * MOST + 1:
        course = _halved(course)
    return course, True


def _halved(course: list[float]) -> list[float]:
    width = 2 * course[0]
    least: dict[float, Point] = {}
    for at, free in points_of(course):
        known = least.get(at // width)
        if known is None or free <= known[1]:
            least[at // width] = (at, free)
    return [width, *(number for point in least.values() for number in point)]


def points_of(course: list[float]) -> list[Point]:
    """Return the points of a course: (seconds, free)."""
    return list(zip(course[1::2], course[2::2], strict=True))


def left_s(course: list[float]) -> float | None:
    """Return the seconds until nothing is left, as far as that can be believed; the stretch that goes on left out."""
    known = points_of(course)[:-1]
    left = time_to_full(known)
    gone = max((free for _, free in known), default=0.0) - (known[-1][1] if known else 0.0)
    return None if left is None or TRUST * gone < known[-1][1] else left


def judged(memory: dict[str, Any], key: str, *, at: float, free: float, low: float) -> tuple[Word | None, float | None]:
    """Take in one value, and return what is new of this store, with the seconds left where they were foretold.

    "soon" and "near" are told when it will be full within SOON_S and NEAR_S, "low" when less than ``low`` is free, each
    once until it is "over": twice as much is free as ``low`` and nothing is foretold any more. ``memory`` holds a
    course under ``key`` and numbers under "key.level", "key.sure", "key.calm" and "key.low"; it is changed.
    """
    if not isfinite(free):
        return None, None
    course, whole = taken(memory.get(key, []), at, free)
    lows = memory.get(f"{key}.low", 0) + 1 if free < low else 0
    memory.update({key: course, f"{key}.low": lows})
    level = memory.get(f"{key}.level", 0)
    if lows >= _SAMPLES and level < _LEVELS["low"]:
        memory[f"{key}.level"] = _LEVELS["low"]
        return "low", None
    if not whole:
        return None, None
    left = left_s(course)
    word: Word | None = None if left is None or left > SOON_S else "near" if left <= NEAR_S else "soon"
    wanted = 0 if word is None else _LEVELS[word]
    sure = memory.get(f"{key}.sure", 0) + 1 if wanted > level else 0
    calm = memory.get(f"{key}.calm", 0) + 1 if level and not wanted and free >= 2 * low else 0
    if sure >= SURE:
        level, sure = wanted, 0
    elif calm >= CALM:
        level, calm, word = 0, 0, "over"
    else:
        word = None
    memory.update({f"{key}.level": level, f"{key}.sure": sure, f"{key}.calm": calm})
    return word, left


def outlook(word: Word, what: str, left_s: float | None, at: float, rest: str) -> str:
    """Return a finding as a sentence: ``left_s`` seconds from ``at`` (since the epoch) until nothing is free.

    ``what`` fills up, ``rest`` is what is free by now.
    """
    if word == "over":
        return f"{what} is not filling up any more: {rest}"
    if left_s is None:
        return f"{what} is nearly full: {rest}"
    when = datetime.fromtimestamp(at + left_s, UTC)
    return f"{what} will be full in {span(left_s)}, at {when:%Y-%m-%d %H:%M}Z, if it goes on as it did: {rest}"


def size(amount: float) -> str:
    """Return a number of bytes for a sentence: 13421772800 -> "12.5 GiB"."""
    unit = 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if amount < 1000 else f"{amount:.0f} {_UNITS[unit]}"
