"""Looks after a command has ended badly whether the GPUs that it was on still answer.

A GPU that falls off the bus takes the command along, often before the next sample: then nobody has said so yet, and to
start again on the same device would be in vain. The look is a process of its own and never waited for long. Whether
a fault is one, and whose, is for the rule that judges all samples.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from overnight.sensors import Gpu, GpuSample
from overnight.sensors import cards as register
from overnight.sensors.gpulook import GpuLook, Seen, device

LIMIT_S = 5.0
LOOKS = 2
"""A card that does not answer is looked at once more: one call may fail for any reason."""

HEALTH = ("index", "name", "uuid", "bus_id", "ecc_uncorrected", "remap_failed", "remap_pending", "lost")
CARDS = "sensors/gpu-cards.json"


class LastLook:
    """One look at the GPUs after an attempt, or two. ``look``: who looks; ``samples`` are what was seen."""

    def __init__(self, run_dir: Path, look: GpuLook, *, wanted: bool) -> None:
        """Prepare it; where it is not ``wanted`` it is over at once."""
        self.run_dir = run_dir
        self.look = look
        self.look.limit_s = LIMIT_S
        self.samples: list[GpuSample] = []
        self.trouble: str | None = None
        self.wanted = wanted
        self.over = not wanted
        self.begun = False

    def turn(self, now: float) -> bool:
        """Take the next step; True once the look is over. ``now`` is a time of the boot clock."""
        if self.over:
            return True
        seen = self.look.turn(now) if self.begun else self.look.begin(now)
        self.begun = True
        if seen is not None:
            self._take(seen)
        return self.over

    def _take(self, seen: Seen) -> None:
        if seen.sample is None:
            self.trouble, self.over = seen.trouble, True
            return
        sample = self._numbered(seen.sample)
        self.samples.append(sample)
        doubtful = sample.trouble is not None or any(gpu.lost is not None for gpu in sample.gpus)
        self.over = not doubtful or len(self.samples) >= LOOKS
        self.begun = False

    def _numbered(self, sample: GpuSample) -> GpuSample:
        """Return the sample with the cards as the run's sensor has numbered them; who is missing is told as lost."""
        if sample.trouble is not None:
            return sample
        known = register.Register(self.run_dir / CARDS)
        found = known.numbered([register.Seen(gpu=gpu) for gpu in sample.gpus])
        return msgspec.structs.replace(sample, gpus=tuple(_health(one.gpu) for one in found))

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called, in seconds; None if it does not."""
        if self.over:
            return None
        return self.look.next_look_s(now) if self.begun else 0.0

    def close(self) -> None:
        """Give it up."""
        if not self.over:
            self.look.close()
        self.over = True


def _health(gpu: Gpu) -> Gpu:
    """Return what a card says of its health: how busy it is without the command is no part of the run."""
    return Gpu(**{name: getattr(gpu, name) for name in HEALTH})


def worth_a_look(run_dir: Path) -> bool:
    """Say whether there is anything to look at: a sensor of this run has seen GPUs, or there are device files."""
    return device() or (run_dir / CARDS).exists()
