"""The samples of a night that no database has any more, taken in once more before any new one is.

Only where metrics.db was deleted or cannot be used while the run lives. Each sample is stored with the attempt, segment
and step that it belonged to; the rules see it for what they remember, and nobody is told again. Files of sensors are
read here; what is new in them is the business of ``instruments``.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from overnight.events import Verdict
from overnight.facts import Facts
from overnight.folder import sensor_file
from overnight.intake.reading import Intake
from overnight.monitor import Monitor
from overnight.sensors import Sample, Sensed
from overnight.sensors.archive import WholeFile, kinds_in
from overnight.sensors.placing import SOURCES, Kind, Stand

SOME: Final = 500
"""Samples taken in within one turn: about 50 ms."""


class Catchup:
    """The old samples of one run. ``done``: all of them are taken in."""

    def __init__(self, run_dir: Path, *, facts: Facts, monitor: Monitor, intake: Intake) -> None:
        self.facts = facts
        self.monitor = monitor
        self.intake = intake
        self.files: dict[Kind, WholeFile] = {kind: WholeFile(sensor_file(run_dir, kind)) for kind in SOURCES}
        self.samples = heapq.merge(*map(self._samples, self.files), key=lambda one: one[1].at)
        self.done = False
        self.attempts: list[tuple[int, float, float | None]] = []
        if not intake.restored:
            again = [SOURCES[kind] for kind in kinds_in(run_dir)]
            intake.history.read_again(intake.log.position()[0], again)

    @property
    def places(self) -> dict[str, int]:
        """Up to which byte each file was taken in."""
        return {kind: file.place for kind, file in self.files.items()}

    def turn(self, *, young_s: float) -> list[Verdict]:
        """Take in some more; return what is found in samples younger than ``young_s``, told before or not."""
        found: list[Verdict] = []
        some = list(islice(self.samples, SOME))
        now = time.time()
        self.attempts = list(self.facts.attempt_times())
        for offset, sample in some:
            stand = self.intake.sampled(sample, offset)
            told = self.monitor.sense(self._sensed(sample, stand))
            found += told if now - sample.at <= young_s else []
        if len(some) < SOME:
            self.done = True
            self.intake.course.forget()
            self._go_on_counting()
        return found

    def _samples(self, kind: Kind) -> Iterator[tuple[int, Sample]]:
        file = self.files[kind]
        while True:
            yield from file.take()
            if not file.more:
                return

    def _sensed(self, sample: Sample, stand: Stand) -> Sensed:
        """Return a sample with what was known beside it, as near as the time marks tell."""
        at, active_s = sample.at, 0.0
        for _, began, ended in self.attempts:
            active_s += max(0.0, min(at, at if ended is None else ended) - began)
        moved = stand.step is not None and stand.moved_at is not None
        return Sensed(
            sample=sample,
            active_s=active_s,
            step=stand.step,
            step_s=stand.step_s,
            moved_s=max(0.0, at - (stand.moved_at or at)) if moved else None,
            phase=stand.phase,
        )

    def _go_on_counting(self) -> None:
        """Let no finding have the number of one that was told: it would be taken for that one."""
        names = {rule.name for rule in self.monitor.sensor_rules}
        for verdict in self.facts.verdicts:
            memory = self.monitor.memories.get(verdict.rule, {}) if verdict.rule in names else {}
            if "part" in memory and verdict.offset < 0:
                memory["part"] = max(memory["part"], verdict.part + 1)
