"""Counts what a log says while it is read again: records, steps, how long the steps took as printed.

Pure. What is found wrong with any of it is for the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import mul, sub
from typing import NamedTuple

from overnight.batches import Batch, Entry

Pieces = Sequence[Sequence[Entry] | Batch]
Place = tuple[int, int, int]


class SoFar(NamedTuple):
    """The counts at one place of a log."""

    records: int
    steps: int
    dt_s: float
    undated: int


class Tally:
    """Counts of one log.

    ``records`` are of training, ``evals`` of evaluations. ``steps`` were made by the lowest rank that prints, those
    made twice counted twice; ``dt_s`` is how long they took as printed. ``segments`` are stretches of rising steps, of
    which ``anew`` began to count anew rather than went back, and ``epoch`` is the last one printed.
    """

    __slots__ = (
        "_attempt", "_dt_s", "_rank", "_segment", "_step", "_undated", "anew", "epoch", "evals", "first_nonfinite",
        "loss", "nonfinite", "nonfinite_evals", "records", "segments", "step", "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.records = self.evals = self.segments = self.steps = self.nonfinite = self.nonfinite_evals = 0
        self.anew = 0
        self.epoch: float | None = None
        self.step: int | None = None
        self.loss: float | None = None
        self.first_nonfinite: int | None = None
        self._dt_s = 0.0
        self._undated = 0
        self._attempt: int | None = None
        self._rank: int | None = None
        self._segment: int | None = None
        self._step: int | None = None

    @property
    def dt_s(self) -> float | None:
        """Seconds of all steps as printed; None if there is none, or a line that does not say it."""
        return None if self._undated or not self.steps else self._dt_s

    def add(self, pieces: Pieces) -> None:
        """Count records, in the order of the log."""
        for piece in pieces:
            if isinstance(piece, Batch):
                self._add_batch(piece)
            else:
                self._add_entries(piece)

    def so_far(self) -> SoFar:
        """Return what was counted by now, for ``since``."""
        return SoFar(self.records, self.steps, self._dt_s, self._undated)

    def since(self, then: SoFar) -> tuple[int, int, float | None]:
        """Return records, steps and seconds since ``then``; None for the seconds if a line does not say them."""
        seconds = None if self._undated > then.undated else self._dt_s - then.dt_s
        return self.records - then.records, self.steps - then.steps, seconds

    def _add_entries(self, entries: Sequence[Entry]) -> None:
        for record, attempt, segment in entries:
            loss = record.loss
            bad = loss is not None and not -inf < loss < inf
            if record.kind != "train":
                self.evals += 1
                self.nonfinite_evals += bad
                continue
            self.records += 1
            if record.strange:
                continue
            if loss is not None:
                self.loss = loss
            if bad:
                self.first_nonfinite = record.step if not self.nonfinite else self.first_nonfinite
                self.nonfinite += 1
            if segment != self._segment:
                self._begin(attempt, record.step, record.epoch)
            self.epoch = self.epoch if record.epoch is None else record.epoch
            if self._measured(attempt, segment, record.rank) and not record.glued and record.step is not None:
                self._advance(record.step, record.dt_s)

    def _add_batch(self, batch: Batch) -> None:
        """Count many records at once: their steps rise, and their losses are numbers."""
        self.records += len(batch)
        self.loss = batch.loss[-1]
        epochs = batch.columns.get("epoch")
        if batch.segment != self._segment:
            self._begin(batch.attempt, batch.steps[0], None if epochs is None else epochs[0])
        self.epoch = self.epoch if epochs is None else epochs[-1]
        if not self._measured(batch.attempt, batch.segment, batch.rank):
            return
        steps, times = batch.steps, batch.columns.get("dt_s")
        self._advance(steps[0], None if times is None else times[0])
        self.steps += steps[-1] - steps[0]
        self.step = self._step = steps[-1]
        if times is None or not (min(times) >= 0 and max(times) < inf):
            self._undated += len(steps) - 1
        else:
            self._dt_s += sum(map(mul, times[1:], map(sub, steps[1:], steps)))

    def _begin(self, attempt: int, step: int | None, epoch: float | None) -> None:
        """Count a segment that begins anew: a later epoch, or where none is printed the first step once more."""
        if self._segment is None or step is None or self._step is None or step > self._step:
            return
        if epoch is not None and self.epoch is not None and epoch != self.epoch:
            self.anew += epoch > self.epoch
        elif attempt == self._attempt:
            self.anew += step in (0, 1)

    def _measured(self, attempt: int, segment: int, rank: int | None) -> bool:
        """Say whether records of this rank are those whose steps count, once it is known where they stand."""
        if segment != self._segment:
            self.segments += 1
            self._segment, self._step = segment, None
            if attempt != self._attempt:  # a restart may change which ranks print
                self._attempt, self._rank = attempt, None
        if self._rank is None or (rank or 0) < self._rank:
            self._rank, self._step = rank or 0, None
        return (rank or 0) == self._rank

    def _advance(self, step: int, dt: float | None) -> None:
        gained = 1 if self._step is None else step - self._step
        self.step = self._step = step
        if gained <= 0:
            return
        self.steps += gained
        if dt is None or not 0 <= dt < inf:
            self._undated += 1
        else:
            self._dt_s += dt * gained


def lasted(pieces: Pieces) -> float | None:
    """Return the seconds that the steps of some records took as printed; None if they do not say."""
    tally = Tally()
    tally.add(pieces)
    if not tally.steps:
        return 0.0
    return tally.dt_s


def parted(pieces: Pieces, place: Place) -> tuple[list[Entry], list[Entry]]:
    """Return the records up to (source, offset, part), and those behind it."""
    upto: list[Entry] = []
    behind: list[Entry] = []
    for one in (entry for piece in pieces for entry in piece):
        record = one.record
        (upto if (record.source, record.offset, record.part) <= place else behind).append(one)
    return upto, behind
