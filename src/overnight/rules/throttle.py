"""GPUs that run slower than they could, because they are too hot or get too little power, lastingly.

What the driver says of itself, never the speed of the training: that is slowdown's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, gpus_named, in_sample, span
from overnight.sensors import Gpu, GpuSample, Sensed

LASTING_S: Final = 60.0
"""Seconds of throttling, those without it taken off, that are told; and without it, those with it taken off, to end."""

GAP_S: Final = 60.0
"""Seconds between two samples beyond which nobody knows what was between them."""

LOW_CLOCK: Final = 0.5
"""Part of the highest clock below which a power cap is more than the usual work at full load."""

_HEAVY: Final = frozenset({"thermal", "hw_slowdown", "power_brake"})
_CAPPED: Final = "power_cap"
_WORDS: Final = {"power_cap": "power limit", "hw_slowdown": "hardware slowdown", "power_brake": "power brake"}
_OFF, _NOTED, _TOLD = 0, 1, 2


class _Slow(NamedTuple):
    """A GPU that has been slowed down for a while: why, and whether it is worth an alert."""

    gpu: Gpu
    reasons: tuple[str, ...]
    heavy: bool
    lasted_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Throttle:
    """GPUs of the run that throttle for a minute: severity warn, by default ``alert``.

    Told are heat, the hardware's own slowdown and the power brake; a power cap only if the clock is below half of the
    highest one. A cap that holds a busy GPU near its limit is how most of them work all night: it is noted, once.
    Clocks that somebody has set are no throttling.

    It does not kill healthy runs, for it only alerts. Flags come and go within seconds, so time with them is added and
    time without them taken off. One alert per event for all GPUs together; it is over, and noted, when every one of
    them has been free for a minute.
    """

    name: ClassVar[str] = "throttle"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory in which nothing is slowed down.

        Per index, "heavy.N" and "capped.N" are seconds up to LASTING_S. ``told`` is 0 for nothing, 1 for a note, 2 for
        an alert of the event that goes on since ``since``; ``part`` counts what was told.
        """
        return {"part": 0, "at": None, "told": _OFF, "since": 0.0, "gpus": []}

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return an alert when an event has lasted, a note when it is over."""
        sample = sensed.sample
        if not isinstance(sample, GpuSample):
            return ()
        before, memory["at"] = memory["at"], sample.at
        passed = 0.0 if before is None else min(max(0.0, sample.at - before), GAP_S)
        slow: list[_Slow] = []
        still = False
        for gpu in sample.gpus:
            if gpu.ours is False or gpu.lost is not None:
                continue
            heavy, reasons = _reasons(gpu)
            for key, on in (("heavy", heavy), ("capped", bool(reasons) and not heavy)):
                place = f"{key}.{gpu.index}"
                lasted = memory.get(place, 0.0) + (passed if on else -passed)
                memory[place] = min(max(0.0, lasted), LASTING_S)
                still = still or memory[place] > 0
                if on and memory[place] >= LASTING_S:
                    slow.append(_Slow(gpu, reasons, heavy, memory[place]))
        return self._judged(sensed, slow, memory, still=still)

    def _judged(self, sensed: Sensed, slow: list[_Slow], memory: Memory, *, still: bool) -> list[Verdict]:
        worst = max((_TOLD if one.heavy else _NOTED for one in slow), default=_OFF)
        at = sensed.sample.at
        if worst > memory["told"]:
            if memory["told"] == _OFF:
                memory["since"] = at - LASTING_S
            named = [one for one in slow if one.heavy or worst == _NOTED]
            memory.update(told=worst, gpus=[one.gpu.index for one in named])
            return [self._verdict(sensed, _text(named), _evidence(named), memory, alert=worst == _TOLD)]
        if memory["told"] == _OFF or still or not isinstance(sensed.sample, GpuSample) or not sensed.sample.gpus:
            return []
        told, gpus = memory["told"], memory["gpus"]
        memory.update(told=_OFF, gpus=[])
        if told == _NOTED:
            return []
        lasted = at - LASTING_S - memory["since"]
        text = f"{gpus_named(gpus)} {'is' if len(gpus) == 1 else 'are'} throttled no more, after {span(lasted)}"
        return [self._verdict(sensed, text, {"gpus": gpus, "lasted_s": lasted}, memory, alert=False)]

    def _verdict(self, sensed: Sensed, text: str, evidence: dict[str, Any], memory: Memory, *, alert: bool) -> Verdict:
        return in_sample(
            self, sensed, memory, text, severity="warn" if alert else "note",
            action=self.action if alert else "note", evidence=evidence,
        )  # fmt: skip


def _reasons(gpu: Gpu) -> tuple[bool, tuple[str, ...]]:
    """Return whether a GPU is slowed down by more than the usual power cap, and by what."""
    heavy = tuple(one for one in gpu.throttle if one in _HEAVY)
    capped = _CAPPED in gpu.throttle
    low = capped and gpu.sm_clock_mhz is not None and gpu.max_sm_clock_mhz is not None
    low = low and (gpu.sm_clock_mhz or 0.0) < LOW_CLOCK * (gpu.max_sm_clock_mhz or 0.0)
    return bool(heavy) or low, heavy + ((_CAPPED,) if capped else ())


def _text(slow: Sequence[_Slow]) -> str:
    """Return the sentence: "GPU 0 has been throttled (thermal) for 60 s: 91 C, SM clock 900 of 1410 MHz"."""
    reasons = ", ".join(dict.fromkeys(_WORDS.get(why, why) for one in slow for why in one.reasons))
    text = f"{gpus_named([one.gpu.index for one in slow])} {'has' if len(slow) == 1 else 'have'} been throttled"
    text += f" ({reasons}) for {span(LASTING_S)}"
    gpu = max((one.gpu for one in slow), key=lambda one: one.temperature_c or 0.0)
    facts = []
    if gpu.temperature_c is not None:
        facts.append(f"{gpu.temperature_c:.0f} C")
    if gpu.power_w is not None and gpu.power_limit_w is not None:
        facts.append(f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W")
    if gpu.sm_clock_mhz is not None and gpu.max_sm_clock_mhz is not None:
        facts.append(f"SM clock {gpu.sm_clock_mhz:.0f} of {gpu.max_sm_clock_mhz:.0f} MHz")
    hottest = "" if len(slow) == 1 else f"GPU {gpu.index} at "
    return text + (f": {hottest}{', '.join(facts)}" if facts else "")


def _evidence(slow: Sequence[_Slow]) -> dict[str, Any]:
    return {
        "gpus": [one.gpu.index for one in slow],
        "reasons": sorted({why for one in slow for why in one.reasons}),
        "temperature_c": max(
            (one.gpu.temperature_c for one in slow if one.gpu.temperature_c is not None), default=None
        ),
        "sm_clock_mhz": [one.gpu.sm_clock_mhz for one in slow],
        "lasted_s": max(one.lasted_s for one in slow),
    }
