"""A training that has become slower than it was: its step time against the run's own, lastingly.

Step times only; what a GPU tells is put beside what was found in the log and is never judged here. No fixed speed is
right or wrong: a run that was slow from its first step is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record, spoken
from overnight.sensors import Gpu, GpuSample, Sensed

WARM_UP: Final = 10
"""Records of a process that are left out: compiling, caches, the first reads of the data."""

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

FRESH_S: Final = 120.0
"""A sample of the sensors that is older says nothing of what goes on."""

_SLOTS: Final = tuple(str(slot) for slot in range(BLOCK))
_LARGEST: Final = 1.7976931348623157e308
_PAST: Final = 64  # of a longer past every second, fourth, ... block is kept
_SIGMAS: Final = 4.0
_CLEAR_SIGMAS: Final = 25.0
_CLEAR_PAST: Final = 8
_MOST_S: Final = 600.0
_MOST_WARY: Final = 16.0
_NONE: Final = (0, 0.0, 0, 0.0)  # a stretch of slow blocks: how many, seconds, first step, sum of their step times
_SLOWED: Final = frozenset({"thermal", "power_cap", "hw_slowdown", "power_brake"})

_ARRIVALS, _TIMES = 0, 3
_PRINTED: Final = (("dt_s", _TIMES), ("tokens_per_s", 2), ("samples_per_s", 1))
_UNITS: Final = {2: "tokens/s", 1: "samples/s"}


class _Found(NamedTuple):
    """What a block has made certain. Seconds per step, or per unit where only a rate is printed."""

    over: bool
    before_s: float
    after_s: float
    since: int
    blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowdown:
    """Steps that take longer than they used to in this run, lastingly: severity warn, by default ``alert``.

    The step time is the median of 16 records as printed (``dt``, else tokens or samples per second), or what passed
    between arrivals over at least a minute and 8 lines where no line prints a time. Usual is the median of those over
    the whole run so far. Told are 48 records that are more than half as slow again and last for 20 s (8 s where none
    were slow before), or 128 that are a quarter slower and last for a minute. Where the usual step times vary
    much, both bounds lie four robust deviations above them; and where slow stretches were over by themselves before,
    one has to last three times as long as the longest of them.

    It does not kill healthy runs, for it only alerts: an intended change (longer sequences, larger batches) is slower
    too. Evaluations, saves and the first 10 records of a process do not count: they are few, and the median passes
    over them. One alert per event, with the temperature and throttling of the run's GPUs beside it as far as a sensor
    told them in the last 2 minutes; a note when it is over (32 records), after which the next has to be half as far
    away again. After 512 slow records their step time is the usual one. The lowest rank that prints is judged.
    """

    name: ClassVar[str] = "slowdown"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory without a past.

        ``mode`` is what times are taken from, ``from`` the step before the block, whose values stand under "0", "1",
        ...; ``tail`` the step since which the last block ended slowly; ``steep`` and ``mild`` the slow blocks that
        follow each other. ``group``, ``anchor`` and ``lines`` belong to arrivals, ``gpu`` to the sensors' last word.
        """
        return {
            "rank": -1, "mode": -1, "warm": WARM_UP, "slot": 0, "from": 0, "tail": None, "past": [], "stride": 1,
            "passed": 0, "base": 0.0, "noise": 0.0, "steep_bound": _LARGEST, "mild_bound": _LARGEST,
            "steep": list(_NONE), "mild": list(_NONE), "told": False, "lasted": 0, "quick": 0, "wary": 1.0,
            "told_s": 0.0, "told_from": 0,
            "steep_over_s": 0.0, "mild_over_s": 0.0, "group": None, "anchor": None, "last": 0, "lines": 0,
            "gpu": "", "gpu_at": 0.0, "gpu_slowed": "", "gpu_c": None,
        }  # fmt: skip

    @staticmethod
    def carry(memory: Memory) -> Memory | None:
        """Return what is usual, for an attempt that goes on; None if that is not known yet."""
        if memory["mild_bound"] >= _LARGEST:
            return None
        blank = {"slot": 0, "warm": WARM_UP, "tail": None, "steep": list(_NONE), "mild": list(_NONE)}
        return memory | blank | {"quick": 0, "group": None, "anchor": None, "lines": 0}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return an alert on the line that makes a slowdown certain, and a note on the one that ends it."""
        step = record.step
        if step is None or record.kind != "train" or record.glued:
            return None
        mode, value = _measured(record)
        rank = record.rank or 0
        if rank != memory["rank"] or mode != memory["mode"]:
            if 0 <= memory["rank"] < rank or (rank == memory["rank"] and mode < memory["mode"]):
                return None
            kept = {key: memory[key] for key in memory if key.startswith("gpu")}
            memory.update(self.fresh() | kept, rank=rank, mode=mode)
        if memory["warm"]:
            memory["warm"] -= 1
            memory["from"] = step
            return None
        if mode == _ARRIVALS:
            changes, found = _arrived(memory, step, record.at)
        elif not 0 < value < inf:
            return None
        else:
            slot = memory["slot"]
            memory[_SLOTS[slot]] = value
            if slot < BLOCK - 1:
                memory["slot"] = slot + 1
                return None
            changes, found = _judged(memory, [memory[one] for one in _SLOTS], step, None)
        memory.update(changes)
        return None if found is None else self._told(record, found, memory)

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where no block is told; the blocks go on as they would record by record."""
        rank, count = batch.rank or 0, len(batch.steps)
        mode, values = _columns(batch)
        if rank != memory["rank"] or mode != memory["mode"]:
            passed = 0 <= memory["rank"] < rank or (rank == memory["rank"] and mode < memory["mode"])
            return count if passed else 0, {}
        if memory["warm"]:
            return 0, {}
        if mode == _ARRIVALS:
            changes, found = _arrived(memory, batch.steps[0], batch.at)
            if found is not None:
                return 0, {}
            lines = changes.get("lines", 0) + count - 1
            return count, changes | {"last": batch.steps[-1], "lines": lines}
        if not (min(values) > 0 and sum(values) < inf):
            values = list(takewhile(lambda value: 0 < value < inf, values))
        return _passed(dict(memory), values, batch.steps)

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Remember how the run's GPUs are, for the next alert; nothing is found here."""
        sample = sensed.sample
        if not isinstance(sample, GpuSample):
            return ()
        gpus = [gpu for gpu in sample.gpus if gpu.ours is not False and gpu.lost is None] or [Gpu(index=0)]
        worst = max(gpus, key=lambda gpu: (len(_slowed(gpu)), gpu.temperature_c or -inf))
        slowed = ", ".join(_slowed(worst))
        # Throttling comes and goes within seconds: what was seen of it a minute ago belongs to the same event.
        if (slowed or worst.temperature_c is not None) and (
            slowed or not memory["gpu_slowed"] or not 0 <= sample.at - memory["gpu_at"] <= FRESH_S
        ):
            warm = "" if worst.temperature_c is None else f" at {worst.temperature_c:.0f} C,"
            text = f"GPU {worst.index}{warm} " + (f"throttled ({slowed})" if slowed else "not throttled")
            memory.update(gpu=text, gpu_at=sample.at, gpu_slowed=slowed, gpu_c=worst.temperature_c)
        return ()

    def _told(self, record: Record, found: _Found, memory: Memory) -> Verdict:
        """Return the verdict on what was found."""
        before, after, unit = _said(found, memory["mode"])
        evidence: dict[str, Any] = {"before": before, "after": after, "unit": unit, "since": found.since}
        named = "step time" if unit == "s" else "speed"
        if found.over:
            text = f"{named} is {_figure(after)} {unit} again at step {record.step}; it was {_figure(before)} {unit}"
            text += f" since step ~{found.since}"
            return on_record(self, record, text, severity="note", action="note", evidence=evidence)
        change = found.before_s / found.after_s - 1
        text = f"{named} {_figure(before)} -> {_figure(after)} {unit} since step ~{found.since}"
        text += f" (speed {100 * change:.0f}%)"
        evidence |= {"speed_change": change, "records": found.blocks * BLOCK}
        if memory["gpu"] and abs(record.at - memory["gpu_at"]) <= FRESH_S:
            text += f"; {memory['gpu']}"
            evidence |= {"temperature_c": memory["gpu_c"], "throttle": memory["gpu_slowed"] or None}
        return on_record(self, record, text, severity="warn", action=self.action, evidence=evidence)


def _measured(record: Record) -> tuple[int, float]:
    """Return what a record's time is taken from, and the time: per step, or per unit of a printed rate."""
    if record.dt_s is not None:
        return _TIMES, record.dt_s
    for name, mode in _PRINTED[1:]:
        rate = getattr(record, name)
        if rate is not None:
            return mode, 1 / rate if rate > 0 else 0.0
    return _ARRIVALS, 0.0


def _columns(batch: Batch) -> tuple[int, list[float]]:
    """Return the same for a batch."""
    for name, mode in _PRINTED:
        values = batch.columns.get(name)
        if values is not None:
            return mode, values if mode == _TIMES else [1 / rate if rate > 0 else 0.0 for rate in values]
    return _ARRIVALS, []


def _passed(after: Memory, values: Sequence[float], steps: Sequence[int]) -> tuple[int, Memory]:
    """Return how many values come before a finding, and the memory after them; ``after`` is changed."""
    place = 0
    while place < len(values):
        slot = after["slot"]
        some = values[place : place + BLOCK - slot]
        whole = slot + len(some) == BLOCK
        if whole:
            block = [*(after[one] for one in _SLOTS[:slot]), *some]
            changes, found = _judged(after, block, steps[place + len(some) - 1], None)
            if found is not None:
                whole, some = False, some[:-1]
        after.update(zip(_SLOTS[slot:], some, strict=False))
        place += len(some)
        if not whole:
            after["slot"] = slot + len(some)
            break
        after.update(changes)
    return place, after


def _arrived(memory: Memory, step: int, at: float) -> tuple[Memory, _Found | None]:
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
    changes, found = _judged(memory, [seconds / gained], last, seconds)
    return changes | on | {"anchor": group, "lines": 1}, found


def _judged(memory: Memory, values: list[float], last: int, seconds: float | None) -> tuple[Memory, _Found | None]:
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
        seconds = level * (last - begin) if memory["mode"] == _TIMES else 0.0
    since = memory["tail"]
    if since is None:
        quick = sum(1 for _ in takewhile(lambda value: value <= bound, values))
        since = round(begin + gain * min(quick + 1, len(values)))
    more, found = _slow(memory, level, seconds, since)
    return changes | more, found


def _usual(memory: Memory, level: float) -> tuple[Memory, _Found | None]:
    """Return what a block that is not slow changes, and that an event is over."""
    changes = _learned(memory, level)
    if memory["mild"][0]:
        changes |= {"steep": list(_NONE), "mild": list(_NONE)}
        if not memory["told"]:
            changes |= _outlasted(memory, memory["steep"], memory["mild"])
    if not memory["told"]:
        return changes, None
    changes["quick"] = memory["quick"] + 1
    if changes["quick"] < RECOVERED:
        return changes, None
    after, wary = memory | changes, min(memory["wary"] * 1.5, _MOST_WARY)
    changes |= {"told": False, "wary": wary, **_bounds(after["past"], wary)}
    return changes, _Found(True, memory["told_s"], level, memory["told_from"], memory["lasted"])


def _slow(memory: Memory, level: float, seconds: float, since: int) -> tuple[Memory, _Found | None]:
    """Return what a slow block changes, and that it makes a slowdown certain."""
    mild = _longer(memory["mild"], seconds, since, level)
    steep = list(_NONE)
    changes: Memory = {"mild": mild, "quick": 0}
    if level > memory["steep_bound"]:
        steep = _longer(memory["steep"], seconds, since, level)
    elif not memory["told"]:
        changes |= _outlasted(memory, memory["steep"], list(_NONE))
    changes["steep"] = steep
    if memory["told"]:
        changes["lasted"] = memory["lasted"] + 1
        if changes["lasted"] >= SETTLED:
            past = [mild[3] / mild[0]] * FIRST
            changes |= {"told": False, "steep": list(_NONE), "mild": list(_NONE)}
            changes |= {"past": past, "stride": 1, "passed": 0, **_bounds(past, memory["wary"])}
        return changes, None
    stretch = _enough({**memory, **changes})
    if stretch is None:
        return changes, None
    count, _, begun, total = stretch
    changes |= {"told": True, "lasted": count, "told_s": total / count, "told_from": begun}
    return changes, _Found(False, memory["base"], total / count, begun, count)


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
    if memory["mode"] not in (_TIMES, _ARRIVALS):  # how long a record took is not known
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
    return {"base": base, "noise": noise, "steep_bound": min(steep, _LARGEST), "mild_bound": min(mild, _LARGEST)}


def _said(found: _Found, mode: int) -> tuple[float, float, str]:
    """Return the two figures as they are printed, with their unit."""
    if mode in _UNITS:
        return 1 / found.before_s, 1 / found.after_s, _UNITS[mode]
    return found.before_s, found.after_s, "s"


def _figure(value: float) -> str:
    """Return a number for a sentence: 0.25048 -> "0.25", 131072.0 -> "131000"."""
    return spoken(float(f"{value:.3g}"))


def _slowed(gpu: Gpu) -> list[str]:
    """Return why a GPU is slower than it could be, reasons that somebody has set left out."""
    return [reason for reason in gpu.throttle if reason in _SLOWED]
