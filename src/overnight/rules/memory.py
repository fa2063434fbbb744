"""Memory that grows until there is none left: of the machine, or of a GPU of the run.

A trend and what it leads to; a process that was killed for its memory is a cause of an end, and not seen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, in_sample
from overnight.sensors import Gpu, GpuSample, HostSample, Sensed
from overnight.sensors.filling import Word, judged, outlook, size

WARM_UP_S: Final = 300.0
"""Seconds after the first step that are left out: caches, workers and allocators grow to what they need."""

LOW: Final = 0.04
"""Part of the machine's memory; of a GPU none, for an allocator may take nearly all of it and be well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCreep:
    """Memory that will be full within a night if it goes on as it did: severity warn, by default ``alert``.

    Of the machine what is available counts (page cache is), or where that is not known the total less what the run's
    processes hold; of a GPU of the run the total less what is used. Of each minute (later of more) the least is kept,
    and a fall is believed if both the most and the least free memory fall from stretch to stretch, and a quarter of it
    has gone: what comes back, as with each epoch, is no trend. Told once when it will be full within 12 h, once more
    when within an hour, and when less than 4% of the machine's memory is available.

    It does not kill healthy runs, for it only alerts; and the first 5 minutes after the first step are left out. When
    memory has not fallen any more for ten minutes or more (the longer the night, the longer), that is noted, and the
    rule is armed anew.
    """

    name: ClassVar[str] = "memory_creep"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory in which nothing was measured.

        "host" and "gpuN" hold courses of free memory; ``rss`` is what the run's processes held after the warm-up;
        ``begun`` when the first step was seen; ``part`` counts what was told.
        """
        return {"part": 0, "begun": None, "rss": None}

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return a verdict for each memory that is running out, or does so no more."""
        at = sensed.sample.at
        if memory["begun"] is None and sensed.step is not None:
            memory["begun"] = at
        if memory["begun"] is None or 0 <= at - memory["begun"] < WARM_UP_S:
            return ()
        if isinstance(sensed.sample, HostSample):
            return self._host(sensed, sensed.sample, memory)
        return self._gpus(sensed, sensed.sample, memory)

    def _host(self, sensed: Sensed, sample: HostSample, memory: Memory) -> Sequence[Verdict]:
        total, free = sample.memory_total, sample.memory_available
        if free is None and total is not None and sample.rss is not None:
            free = total - sample.rss
        if free is None or total is None:
            return ()
        if memory["rss"] is None:
            memory["rss"] = sample.rss
        word, left_s = judged(memory, "host", at=sample.at, free=free, low=LOW * total)
        if word is None:
            return ()
        text = outlook(word, "the machine's memory", left_s, sample.at, f"{size(free)} of {size(total)} are available")
        more = ""
        if sample.rss is not None:
            more = f"; the run's processes hold {size(sample.rss)}"
            if memory["rss"] is not None and sample.rss > memory["rss"]:
                more += f", {size(sample.rss - memory['rss'])} more than after the start"
        evidence = {"of": "host", "free": free, "total": total, "rss": sample.rss, "rss_before": memory["rss"]}
        return [self._verdict(sensed, word, text + more, evidence | {"left_s": left_s}, memory)]

    def _gpus(self, sensed: Sensed, sample: GpuSample, memory: Memory) -> Sequence[Verdict]:
        return [verdict for gpu in sample.gpus for verdict in self._gpu(sensed, gpu, memory)]

    def _gpu(self, sensed: Sensed, gpu: Gpu, memory: Memory) -> Sequence[Verdict]:
        if not gpu.ours or gpu.lost is not None or gpu.memory_used is None or gpu.memory_total is None:
            return ()
        free, at = gpu.memory_total - gpu.memory_used, sensed.sample.at
        word, left_s = judged(memory, f"gpu{gpu.index}", at=at, free=free, low=0.0)
        if word is None:
            return ()
        rest = f"{size(free)} of {size(gpu.memory_total)} are free"
        text = outlook(word, f"the memory of GPU {gpu.index}", left_s, at, rest)
        evidence = {"of": f"gpu{gpu.index}", "free": free, "total": gpu.memory_total, "left_s": left_s}
        return [self._verdict(sensed, word, text, evidence, memory)]

    def _verdict(self, sensed: Sensed, word: Word, text: str, evidence: dict[str, Any], memory: Memory) -> Verdict:
        over = word == "over"
        return in_sample(
            self, sensed, memory, text, severity="note" if over else "warn",
            action="note" if over else self.action, evidence=evidence,
        )  # fmt: skip
