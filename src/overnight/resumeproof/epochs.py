"""Steps of programs that count anew in each epoch, as steps of the whole run while their log grows.

The arithmetic is that of the stored history, one record after the other. No clock, no file, no process.
"""

from __future__ import annotations

from collections.abc import Mapping

from overnight.history.chunks import Run
from overnight.history.spans import Part, Segment, set_base

Bases = Mapping[float, float]
"""Epoch -> what is added to a step printed in it; empty where steps rise from the beginning to the end."""


class Axis:
    """Where the records of one run stand.

    ``bases`` are those of an unbroken run: a run that goes on in the middle of an epoch counts on from there.
    """

    def __init__(self, bases: Bases | None = None) -> None:
        self._bases = bases or {}
        self._segments: list[Segment] = []
        self._shift = 0.0

    def place(self, step: int, epoch: float | None, segment: int) -> int:
        """Return the step of the whole run that a record is of; records come in the order of the log."""
        part = Part(0, 1, Run(segment, 1, step, step, 0.0, 0.0, 0, 0, epoch, epoch, rising=True))
        if self._segments and self._segments[-1].takes(part):
            self._segments[-1].add(part)
        else:
            self._segments.append(Segment(part))
            if len(self._segments) > 1:
                set_base(self._segments, len(self._segments) - 1)
        if len(self._segments) == 1:
            self._shift = shift(self._bases, epoch, 0.0)
        return round(step + self._segments[-1].base + self._shift)


def shift(bases: Bases, epoch: float | None, base: float) -> float:
    """Return how much further a run stands than it says whose first record is of an epoch, with a base of its own."""
    return 0.0 if epoch is None else bases.get(epoch, base) - base
