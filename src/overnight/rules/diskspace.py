"""A disk that the run writes to, and that will be full before the night is over.

A trend and what it leads to; what happens when a write finds no space is the business of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, in_sample
from overnight.sensors import Disk, HostSample, Sensed
from overnight.sensors.filling import judged, outlook, size

LOW: Final = 0.01
"""Part of the disk."""

LOW_INODES: Final = 1000
"""Files that can still be made; a disk without a number of its own for them says 0, which is none."""

MOST_DISKS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskSpace:
    """A disk of the log or the checkpoints that will be full within a night: severity warn, by default ``alert``.

    Of each minute (later of more) the least free space is kept, and a fall is believed if both the most and the least
    free space fall from stretch to stretch, and a quarter of it has gone: saves that come and go are no trend. Told
    once when the disk will be full within 12 h, once more when within an hour, and when less than 1% of it, or room for
    fewer than 1,000 files, is left.

    It does not kill healthy runs, for it only alerts. When the disk has not filled up for ten minutes or more (the
    longer the night, the longer), that is noted, and the rule is armed anew. A disk whose free space nobody could tell
    is not judged.
    """

    name: ClassVar[str] = "disk_space"

    action: RuleAction = "alert"

    def fresh(self) -> Memory:
        """Return a memory in which nothing was measured.

        "disk:MOUNT" holds the course of free bytes, "files:MOUNT" whether the lack of inodes was told; ``part`` counts
        what was told.
        """
        return {"part": 0, "disks": []}

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return a verdict for each disk that is filling up, or does so no more."""
        sample = sensed.sample
        if not isinstance(sample, HostSample):
            return ()
        found: list[Verdict] = []
        for disk in sample.disks:
            if disk.mount not in memory["disks"]:
                if len(memory["disks"]) >= MOST_DISKS:
                    continue
                memory["disks"] = [*memory["disks"], disk.mount]
            found += self._space(sensed, disk, memory)
            found += self._files(sensed, disk, memory)
        return found

    def _space(self, sensed: Sensed, disk: Disk, memory: Memory) -> list[Verdict]:
        if disk.free is None:
            return []
        at = sensed.sample.at
        low = LOW * (disk.total or 0)
        word, left_s = judged(memory, f"disk:{disk.mount}", at=at, free=disk.free, low=low)
        if word is None:
            return []
        rest = f"{size(disk.free)} free" + (f" of {size(disk.total)}" if disk.total else "")
        text = outlook(word, _named(disk), left_s, at, rest)
        evidence = {"mount": disk.mount, "holds": list(disk.holds), "free": disk.free, "total": disk.total}
        full_at = None if left_s is None else at + left_s
        return [
            self._verdict(sensed, text, evidence | {"left_s": left_s, "full_at": full_at}, memory, over=word == "over")
        ]

    def _files(self, sensed: Sensed, disk: Disk, memory: Memory) -> list[Verdict]:
        left, key = disk.inodes_free, f"files:{disk.mount}"
        if left is None:
            return []
        told = memory.get(key, False)
        if told or not 0 < left < LOW_INODES:
            memory[key] = told and left < 2 * LOW_INODES
            return []
        memory[key] = True
        text = f"{_named(disk)} has room for only {left} more files (inodes)"
        return [self._verdict(sensed, text, {"mount": disk.mount, "inodes_free": left}, memory, over=False)]

    def _verdict(self, sensed: Sensed, text: str, evidence: dict[str, Any], memory: Memory, *, over: bool) -> Verdict:
        return in_sample(
            self, sensed, memory, text, severity="note" if over else "warn",
            action="note" if over else self.action, evidence=evidence,
        )  # fmt: skip


def _named(disk: Disk) -> str:
    """Return a disk for a sentence: "the disk of log and checkpoints (/data)"."""
    return f"the disk of {' and '.join(disk.holds)} ({disk.mount})" if disk.holds else f"the disk {disk.mount}"
