"""Which attempt, segment and step a sample belongs to, live and when a database is built anew from files. Pure.

A sample has its time only, and the log has time marks: what was printed before a mark came before it. Both sides ask
the same course, so that a rebuild gives what was stored that night. What is in a file, or in a database, is no business
of this one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from overnight.events import Record
from overnight.sensors import GpuSample, Sample
from overnight.sensors.series import flat

Kind = Literal["gpu", "host"]

SOURCES: Final[dict[Kind, int]] = {"gpu": -1, "host": -2}
"""Numbers of the sensors' files among the sources of records; those of logs begin with 0."""

LIVE: Final = 64
"""So many marks are remembered while a run is followed: samples are taken in within seconds."""


KEPT: Final = 8
"""Marks of which a later supervisor knows."""


class Stand(NamedTuple):
    """Where a run stood: ``step`` is the last one of the attempt, None before its first.

    ``step_s``: seconds a step over the window; ``moved_at``: the time mark at which the last step was seen, seconds
    since the epoch; ``phase``: what the log had announced since.
    """

    attempt: int
    segment: int
    step: int | None
    step_s: float | None = None
    moved_at: float | None = None
    phase: str | None = None


class Course:
    """Where a run stood before each time mark, in the order of the log; the newest ``most`` of them, None for all.

    A clock that was set back leaves times that mean two moments: live the older ones are forgotten, and a course of the
    whole night gives samples of such a time to the earlier moment.
    """

    def __init__(self, most: int | None = LIVE) -> None:
        self.most = most
        self._until: list[float] = []
        self._stands: list[Stand] = []

    @property
    def begins(self) -> float:
        """The first mark; infinite before there is one."""
        return self._until[0] if self._until else float("inf")

    def mark(self, at: float, stand: Stand) -> None:
        """What comes from now on in the log came at ``at`` or later; before it the run stood at ``stand``."""
        last = self._until[-1] if self._until else at
        if at < last and self.most is not None:
            self._until.clear()
            self._stands.clear()
        self._until.append(at if self.most is not None else max(at, last))
        self._stands.append(stand)
        if self.most is not None and len(self._until) > 2 * self.most:
            del self._until[: -self.most], self._stands[: -self.most]

    def at(self, at: float, now: Callable[[], Stand]) -> Stand:
        """Return where the run stood at a time; ``now`` says where it stands behind the last mark."""
        place = bisect_right(self._until, at)
        return self._stands[place] if place < len(self._until) else now()

    def snapshot(self) -> list[list[float | None]]:
        """Return the newest marks as builtins: for samples that were written and are not taken in yet."""
        some = zip(self._until[-KEPT:], self._stands[-KEPT:], strict=True)
        return [[until, stand.attempt, stand.segment, stand.step] for until, stand in some]

    def restore(self, state: list[Any]) -> None:
        """Go on where ``snapshot`` was taken."""
        for until, attempt, segment, step in state:
            self.mark(float(until), Stand(int(attempt), int(segment), None if step is None else int(step)))

    def forget(self) -> None:
        """Keep the newest marks only: a night that was read again has been placed, and is followed from now on."""
        self.most = LIVE
        del self._until[:-LIVE], self._stands[:-LIVE]


def kind_of(sample: Sample) -> Kind:
    """Return which sensor a sample is of."""
    return "gpu" if isinstance(sample, GpuSample) else "host"


def record_of(sample: Sample, offset: int, step: int | None) -> Record | None:
    """Return a sample as a record of a kind of its own, its series in ``extra``; None if it has no number at all.

    ``offset``: of its line in the sensor's file.
    """
    values = flat(sample)
    kind = kind_of(sample)
    if not values:
        return None
    return Record(
        reader=kind,
        source=SOURCES[kind],
        offset=offset,
        at=sample.at,
        kind=kind,
        step=step,
        extra=dict(values),
    )
