"""GPUs of the run that have next to nothing to do although the training goes on.

Utilisation is the driver's: part of the time in which any kernel runs. How well the kernels use the device is MFU's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, gpus_named, in_sample, span
from overnight.sensors import GpuSample, Sensed

LOW: Final = 0.2
"""Mean utilisation of a minute below which a GPU idles."""

BUSY: Final = 0.3
"""Mean utilisation of a minute from which on it works again."""

MINUTE_S: Final = 60.0
LASTING: Final = 10
"""Minutes in a row that are told."""

BACK: Final = 3
"""Minutes in a row after which it is over."""

GAP_S: Final = 60.0
"""A sample stands for no more seconds than these."""

_STILL_S: Final = 60.0
_STEPS: Final = 10.0  # step times without a step, after which it does not go on


@dataclass(frozen=True, kw_only=True, slots=True)
class LowUtilisation:
    """GPUs of the run below 20% for 10 minutes while steps go on: severity warn, by default ``alert``.

    Each minute's mean counts. Time before the first step, in which no step comes, or in which the log has announced
    something (a save, an evaluation) is left out. Where other GPUs of the run work meanwhile, the idle ones are named:
    they wait for those, or the training does not use them.

    It does not kill healthy runs, for it only alerts. Judged are GPUs that are known to be the run's: that a GPU idles
    which nobody uses is no finding. One alert per event for all GPUs together; it is over, and noted, when each has
    been above 30% for three minutes.
    """

    name: ClassVar[str] = "low_utilisation"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory in which nothing idles.

        Per index, "sum.N" and "time.N" make up the minute that goes on, "mean.N" is the last whole one's, "low.N" and
        "back.N" count minutes in a row. ``told`` are the GPUs of the event that goes on; ``part`` counts verdicts.
        """
        return {"part": 0, "at": None, "told": [], "since": 0.0}

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return an alert when GPUs have idled for long enough, a note when all of them work again."""
        sample = sensed.sample
        if not isinstance(sample, GpuSample):
            return ()
        before, memory["at"] = memory["at"], sample.at
        if before is None or not _goes_on(sensed):
            return ()
        passed = min(max(0.0, sample.at - before), GAP_S)
        ours = []
        for gpu in sample.gpus:
            if gpu.ours and gpu.lost is None and gpu.utilisation is not None:
                ours.append(gpu.index)
                _count(gpu.index, gpu.utilisation, passed, memory)
        if memory["told"]:
            return self._over(sensed, memory)
        idle = [index for index in ours if memory[f"low.{index}"] >= LASTING]
        if not idle:
            return ()
        memory.update(told=idle, since=sample.at - LASTING * MINUTE_S)
        busy = [index for index in ours if index not in idle and memory.get(f"mean.{index}", 0.0) >= BUSY]
        means = {index: memory[f"mean.{index}"] for index in (*idle, *busy)}
        evidence = {
            "gpus": idle,
            "utilisation": [means[index] for index in idle],
            "busy": busy,
            "busy_utilisation": [means[index] for index in busy],
        }
        return [
            in_sample(
                self, sensed, memory, _text(idle, busy, means), severity="warn", action=self.action, evidence=evidence
            )
        ]

    def _over(self, sensed: Sensed, memory: Memory) -> list[Verdict]:
        told = memory["told"]
        if any(memory.get(f"back.{index}", 0) < BACK for index in told):
            return []
        memory["told"] = []
        lasted = sensed.sample.at - BACK * MINUTE_S - memory["since"]
        text = f"{gpus_named(told)} {'works' if len(told) == 1 else 'work'} again, after {span(max(0.0, lasted))}"
        return [
            in_sample(
                self, sensed, memory, text, severity="note", action="note", evidence={"gpus": told, "lasted_s": lasted}
            )
        ]


def _goes_on(sensed: Sensed) -> bool:
    """Say whether the training makes steps and nothing explains that its GPUs have no work."""
    if sensed.phase is not None or sensed.moved_s is None:
        return False
    return sensed.moved_s <= max(_STILL_S, _STEPS * (sensed.step_s or 0.0))


def _count(index: int, utilisation: float, passed: float, memory: Memory) -> None:
    """Add a sample to its GPU's minute, and the minute to what it makes certain when it is over."""
    total = memory.get(f"sum.{index}", 0.0) + utilisation * passed
    time = memory.get(f"time.{index}", 0.0) + passed
    low, back = memory.get(f"low.{index}", 0), memory.get(f"back.{index}", 0)
    if time >= MINUTE_S:
        mean = total / time
        minutes = max(1, round(time / MINUTE_S))
        low = low + minutes if mean < LOW else 0
        back = back + minutes if mean >= BUSY else 0
        memory[f"mean.{index}"] = mean
        total = time = 0.0
    memory.update({f"sum.{index}": total, f"time.{index}": time, f"low.{index}": low, f"back.{index}": back})


def _text(idle: Sequence[int], busy: Sequence[int], means: dict[int, float]) -> str:
    each = ", ".join(f"{100 * means[index]:.0f}%" for index in idle)
    was = "was" if len(idle) == 1 else "were"
    text = f"{gpus_named(idle)} {was} used {each} of the time, below {100 * LOW:.0f}% for {span(LASTING * MINUTE_S)}"
    if busy:
        highest = max(means[index] for index in busy)
        waits = "it waits" if len(idle) == 1 else "they wait"
        return (
            f"{text}, while {gpus_named(busy)} worked ({100 * highest:.0f}%): {waits} for others, or nothing uses them"
        )
    return f"{text} while steps go on: the GPU waits for data or for the processor"
