"""Step times in blocks, and whether a block is slow beside the run's own past: the arithmetic of ``slowdown.py``.

Pure steps from what is remembered to what changes of it. No sentence is made here, and nothing is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from overnight.rules import Memory

BLOCK: Final = 16
"""Records whose median is one step time: a save, an evaluation or a pause of a few lines does not move it."""

FIRST: Final = 4
"""Blocks after which there is something to compare with."""

STEEP: Final = 0.5
MILD: Final = 0.25
"""Rise of the step time over the usual one that is looked at: with STEEP for seconds, with MILD for minutes."""

STEEP_BLOCKS: Final = 3
STEEP_S: Final = 20.0
CLEAR_S: Final = 8.0
"""Seconds that a steep rise has to last; the second where it is far outside all that varied before."""

OUTLAST: Final = 3.0
"""Times the longest slow stretch so far that was over by itself: other work on the machine comes and goes."""

MILD_BLOCKS: Final = 8
MILD_S: Final = 60.0
RATE_BLOCKS: Final = 8
RECOVERED: Final = 2
SETTLED: Final = 32
"""Blocks that are quick again; and blocks of an event after which its step time is the new usual one."""

WINDOW_S: Final = 60.0
WINDOW_LINES: Final = 8
"""Where no time is printed: what has to pass, and to arrive, for one step time. Arrivals are known to seconds only."""

SLOTS: Final = tuple(str(slot) for slot in range(BLOCK))
LARGEST: Final = 1.7976931348623157e308
NO_STRETCH: Final = (0, 0.0, 0, 0.0)
"""A stretch of slow blocks: how many, seconds, first step, sum of their step times."""

ARRIVALS: Final = 0
TIMES: Final = 3
"""What step times are taken from; of printed rates how long a record took is not known."""

_PAST: Final = 64  # of a longer past every second, fourth, ... block is kept
_SIGMAS: Final = 4.0
_CLEAR_SIGMAS: Final = 25.0
_CLEAR_PAST: Final = 8
_MOST_S: Final = 600.0
_MOST_WARY: Final = 16.0


class Found(NamedTuple):
    """What a block has made certain. Seconds per step, or per unit where only a rate is printed."""

    over: bool
    before_s: float
    after_s: float
    since: int
    blocks: int


def passed_by(after: Memory, values: Sequence[float], steps: Sequence[int]) -> tuple[int, Memory]:
    """Return how many values come before a finding, and the memory after them; ``after`` is changed."""
    place, bound, slow = 0, -1.0, [0]
    while place < len(values):
        if after["mild_bound"] != bound:
            bound = after["mild_bound"]
            slow = [number for number, value in enumerate(values) if value > bound] if max(values) > bound else []
        behind = bisect_left(slow, place)
        if quiet := _quiet(after, (slow[behind] if behind < len(slow) else len(values)) - place):
            place += quiet * BLOCK
            after.update({"passed": after["passed"] + quiet, "from": steps[place - 1], "tail": None})
            after.update(zip(SLOTS, values[place - BLOCK : place], strict=True))
            continue
        slot = after["slot"]
        some = values[place : place + BLOCK - slot]
        whole = slot + len(some) == BLOCK
        if whole:
            block = [*(after[one] for one in SLOTS[:slot]), *some]
            changes, found = judged(after, block, steps[place + len(some) - 1], None)
            if found is not None:
                whole, some = False, some[:-1]
        after.update(zip(SLOTS[slot:], some, strict=False))
        place += len(some)
        if not whole:
            after["slot"] = slot + len(some)
            break
        after.update(changes)
    return place, after


def _quiet(memory: Memory, usual: int) -> int:
    """Return how many whole blocks of the next ``usual`` values, none of them slow, say nothing that is kept."""
    if memory["slot"] or memory["told"] or memory["mild"][0]:
        return 0
    until_kept: int = memory["stride"] - 1 - memory["passed"] % memory["stride"]
    return min(usual // BLOCK, until_kept)


def arrived(memory: Memory, step: int, at: float) -> tuple[Memory, Found | None]:
    """Return what a record without a time changes.

    Lines that are read together share one arrival, and only the last of them is as old as that: a step time lies
    between the ends of two such groups.
    """
    group, anchor, last = memory["group"], memory["anchor"], memory["last"]
    on = {"group": at, "last": step, "lines": memory["lines"] + 1}
    if group == at:
        return on, None
    if group is None:
        return on | {"lines": 1}, None
    if anchor is None or at < group or group < anchor:  # a clock that was set back measures nothing
        return on | {"anchor": group if at >= group else None, "from": last, "lines": 1}, None
    seconds, gained = group - anchor, last - memory["from"]
    if seconds < WINDOW_S or memory["lines"] < WINDOW_LINES or gained <= 0:
        return on, None
    changes, found = judged(memory, [seconds / gained], last, seconds)
    return changes | on | {"anchor": group, "lines": 1}, found


def judged(memory: Memory, values: list[float], last: int, seconds: float | None) -> tuple[Memory, Found | None]:
    """Return what a whole block changes, and what is found; ``last`` is its last step, ``seconds`` what it took."""
    level = sorted(values)[len(values) // 2]
    begin, bound, gain = memory["from"], memory["mild_bound"], (last - memory["from"]) / len(values)
    changes: Memory = {"slot": 0, "from": last, "tail": None}
    if level <= bound:
        if values[-1] > bound:
            slow = sum(1 for _ in takewhile(lambda value: value > bound, reversed(values)))
            changes["tail"] = round(last - gain * (slow - 1))
        more, found = _usual(memory, level)
        return changes | more, found
    if seconds is None:
        seconds = level * (last - begin) if memory["mode"] == TIMES else 0.0
    since = memory["tail"]
    if since is None:
        quick = sum(1 for _ in takewhile(lambda value: value <= bound, values))
        since = round(begin + gain * min(quick + 1, len(values)))
    more, found = _slow(memory, level, seconds, since)
    return changes | more, found


def _usual(memory: Memory, level: float) -> tuple[Memory, Found | None]:
    """Return what a block that is not slow changes, and that an event is over."""
    changes = _learned(memory, level)
    if memory["mild"][0]:
        changes |= {"steep": list(NO_STRETCH), "mild": list(NO_STRETCH)}
        if not memory["told"]:
            changes |= _outlasted(memory, memory["steep"], memory["mild"])
    if not memory["told"]:
        return changes, None
    changes["quick"] = memory["quick"] + 1
    if changes["quick"] < RECOVERED:
        return changes, None
    after, wary = memory | changes, min(memory["wary"] * 1.5, _MOST_WARY)
    changes |= {"told": False, "wary": wary, **_bounds(after["past"], wary)}
    return changes, Found(True, memory["told_s"], level, memory["told_from"], memory["lasted"])


def _slow(memory: Memory, level: float, seconds: float, since: int) -> tuple[Memory, Found | None]:
    """Return what a slow block changes, and that it makes a slowdown certain."""
    mild = _longer(memory["mild"], seconds, since, level)
    steep = list(NO_STRETCH)
    changes: Memory = {"mild": mild, "quick": 0}
    if level > memory["steep_bound"]:
        steep = _longer(memory["steep"], seconds, since, level)
    elif not memory["told"]:
        changes |= _outlasted(memory, memory["steep"], list(NO_STRETCH))
    changes["steep"] = steep
    if memory["told"]:
        changes["lasted"] = memory["lasted"] + 1
        if changes["lasted"] >= SETTLED:
            past = [mild[3] / mild[0]] * FIRST
            changes |= {"told": False, "steep": list(NO_STRETCH), "mild": list(NO_STRETCH)}
            changes |= {"past": past, "stride": 1, "passed": 0, **_bounds(past, memory["wary"])}
        return changes, None
    stretch = _enough({**memory, **changes})
    if stretch is None:
        return changes, None
    count, _, begun, total = stretch
    changes |= {"told": True, "lasted": count, "told_s": total / count, "told_from": begun}
    return changes, Found(False, memory["base"], total / count, begun, count)


def _outlasted(memory: Memory, steep: list[Any], mild: list[Any]) -> Memory:
    """Return how long slow stretches may be that were over by themselves: the next one has to last longer."""
    return {
        "steep_over_s": max(memory["steep_over_s"], min(steep[1], _MOST_S)),
        "mild_over_s": max(memory["mild_over_s"], min(mild[1], _MOST_S)),
    }


def _enough(memory: Memory) -> list[Any] | None:
    """Return the stretch of slow blocks that is long enough to be told."""
    steep: list[Any] = memory["steep"]
    mild: list[Any] = memory["mild"]
    if memory["mode"] not in (TIMES, ARRIVALS):  # how long a record took is not known
        if steep[0] >= RATE_BLOCKS:
            return steep
        return mild if mild[0] >= 2 * RATE_BLOCKS else None
    if steep[0] >= STEEP_BLOCKS:
        clear = len(memory["past"]) >= _CLEAR_PAST and not memory["mild_over_s"]
        clear = clear and steep[3] / steep[0] - memory["base"] >= _CLEAR_SIGMAS * memory["noise"]
        if steep[1] >= max(CLEAR_S if clear else STEEP_S, OUTLAST * memory["steep_over_s"]):
            return steep
    return mild if mild[0] >= MILD_BLOCKS and mild[1] >= max(MILD_S, OUTLAST * memory["mild_over_s"]) else None


def _longer(stretch: list[Any], seconds: float, since: int, level: float) -> list[Any]:
    count, lasted, begun, total = stretch
    return [count + 1, lasted + seconds, begun if count else since, total + level]


def _learned(memory: Memory, level: float) -> Memory:
    """Return what a usual block changes of what is usual: the past is thinned out, so that it stays the whole run's."""
    passed, stride = memory["passed"] + 1, memory["stride"]
    if passed % stride:
        return {"passed": passed}
    past = [*memory["past"], level]
    if len(past) > _PAST:
        past, stride = past[1::2], 2 * stride
    bounds = _bounds(past, memory["wary"]) if len(past) >= FIRST else {}
    return {"passed": passed, "past": past, "stride": stride, **bounds}


def _bounds(past: list[float], wary: float) -> Memory:
    """Return what is usual, how far it varies, and above what a block is slow."""
    base = sorted(past)[len(past) // 2]
    noise = 1.4826 * sorted([abs(one - base) for one in past])[len(past) // 2]
    steep, mild = (base + wary * max(rise * base, _SIGMAS * noise) for rise in (STEEP, MILD))
    return {"base": base, "noise": noise, "steep_bound": min(steep, LARGEST), "mild_bound": min(mild, LARGEST)}
