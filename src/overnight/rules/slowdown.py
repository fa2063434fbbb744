"""A training that has become slower than it was: its step time against the run's own, lastingly.

Step times only; what a GPU tells is put beside what was found in the log and is never judged here. No fixed speed is
right or wrong: a run that was slow from its first step is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any, ClassVar, Final

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record, spoken
from overnight.rules.slowblocks import (
    ARRIVALS,
    BLOCK,
    LARGEST,
    NO_STRETCH,
    SLOTS,
    TIMES,
    Found,
    arrived,
    judged,
    passed_by,
)
from overnight.sensors import Gpu, GpuSample, Sensed

WARM_UP: Final = 10
"""Records of a process that are left out: compiling, caches, the first reads of the data."""

FRESH_S: Final = 120.0
"""A sample of the sensors that is older says nothing of what goes on."""

_SLOWED: Final = frozenset({"thermal", "power_cap", "hw_slowdown", "power_brake"})

_PRINTED: Final = (("dt_s", TIMES), ("tokens_per_s", 2), ("samples_per_s", 1))
_UNITS: Final = {2: "tokens/s", 1: "samples/s"}


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
            "passed": 0, "base": 0.0, "noise": 0.0, "steep_bound": LARGEST, "mild_bound": LARGEST,
            "steep": list(NO_STRETCH), "mild": list(NO_STRETCH), "told": False, "lasted": 0, "quick": 0, "wary": 1.0,
            "told_s": 0.0, "told_from": 0,
            "steep_over_s": 0.0, "mild_over_s": 0.0, "group": None, "anchor": None, "last": 0, "lines": 0,
            "gpu": "", "gpu_at": 0.0, "gpu_slowed": "", "gpu_c": None,
        }  # fmt: skip

    @staticmethod
    def carry(memory: Memory) -> Memory | None:
        """Return what is usual, for an attempt that goes on; None if that is not known yet."""
        if memory["mild_bound"] >= LARGEST:
            return None
        blank = {"slot": 0, "warm": WARM_UP, "tail": None, "steep": list(NO_STRETCH), "mild": list(NO_STRETCH)}
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
        if mode == ARRIVALS:
            changes, found = arrived(memory, step, record.at)
        elif not 0 < value < inf:
            return None
        else:
            slot = memory["slot"]
            memory[SLOTS[slot]] = value
            if slot < BLOCK - 1:
                memory["slot"] = slot + 1
                return None
            changes, found = judged(memory, [memory[one] for one in SLOTS], step, None)
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
        if mode == ARRIVALS:
            changes, found = arrived(memory, batch.steps[0], batch.at)
            if found is not None:
                return 0, {}
            lines = changes.get("lines", 0) + count - 1
            return count, changes | {"last": batch.steps[-1], "lines": lines}
        if not (min(values) > 0 and sum(values) < inf):
            values = list(takewhile(lambda value: 0 < value < inf, values))
        return passed_by(dict(memory), values, batch.steps)

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

    def _told(self, record: Record, found: Found, memory: Memory) -> Verdict:
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
        return TIMES, record.dt_s
    for name, mode in _PRINTED[1:]:
        rate = getattr(record, name)
        if rate is not None:
            return mode, 1 / rate if rate > 0 else 0.0
    return ARRIVALS, 0.0


def _columns(batch: Batch) -> tuple[int, list[float]]:
    """Return the same for a batch."""
    for name, mode in _PRINTED:
        values = batch.columns.get(name)
        if values is not None:
            return mode, values if mode == TIMES else [1 / rate if rate > 0 else 0.0 for rate in values]
    return ARRIVALS, []


def _said(found: Found, mode: int) -> tuple[float, float, str]:
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
