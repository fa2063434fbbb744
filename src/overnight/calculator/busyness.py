"""What the GPU samples of a run come to, as evidence: how busy its GPUs were, their dips, throttling, power.

Pure: samples come in one after the other. Only GPUs that are known to be the run's own count, and none that is lost.
"""

from __future__ import annotations

from array import array
from collections import Counter
from statistics import fmean, median
from typing import Any

from overnight.sensors import Gpu, GpuSample

LOW = 0.5
"""Below this part of what is usual for them the GPUs are in a dip."""

REASONS = 3


class Busyness:
    """Takes samples in the order of time; ``latest`` are the run's GPUs as last seen."""

    def __init__(self) -> None:
        self.latest: tuple[Gpu, ...] = ()
        self._looked = self._throttled = 0
        self._busy = array("d")
        self._power = 0.0
        self._powers = 0
        self._reasons: Counter[str] = Counter()

    def take(self, sample: GpuSample) -> None:
        """Take in one sample."""
        gpus = tuple(one for one in sample.gpus if one.ours and one.lost is None)
        if not gpus:
            return
        self.latest = gpus
        self._looked += 1
        known = [one.utilisation for one in gpus if one.utilisation is not None]
        if known:
            self._busy.append(fmean(known))
        for one in gpus:
            if one.power_w and one.power_limit_w:
                self._power += one.power_w / one.power_limit_w
                self._powers += 1
        now = {reason for one in gpus for reason in one.throttle}
        self._throttled += bool(now)
        self._reasons.update(now)

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``Evidence`` that the samples give; none where no sample showed a GPU of the run."""
        if not self._looked:
            return {}
        busy = self._busy
        usual = median(busy) if busy else 0.0
        return {
            "gpu_samples": self._looked,
            "utilisation": fmean(busy) if busy else None,
            "low": sum(one < LOW * usual for one in busy) / len(busy) if busy and usual > 0 else None,
            "throttled": self._throttled / self._looked,
            "throttle": tuple(reason for reason, _ in self._reasons.most_common(REASONS)),
            "power": self._power / self._powers if self._powers else None,
        }
