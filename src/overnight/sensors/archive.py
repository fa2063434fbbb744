"""The samples of a whole night, from the files of a run's folder: for who looks back or builds a database anew.

Read piece by piece, so that memory does not grow with the night; what is no sample is passed over as it was then. Files
are only read, and what the samples mean may not enter here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from overnight.folder import sensor_file
from overnight.sensors import Sample
from overnight.sensors.lines import SampleFile
from overnight.sensors.placing import SOURCES, Kind

_WHOLE: Final = 1 << 62


class WholeFile(SampleFile):
    """A sensor's file of which nothing is passed over because there is much of it."""

    behind_bytes = _WHOLE


def kinds_in(run_dir: Path) -> frozenset[Kind]:
    """Return the sensors that have written a sample in a run's folder."""
    return frozenset(kind for kind in SOURCES if next(samples(run_dir, kind), None) is not None)


def samples(run_dir: Path, kind: Kind) -> Iterator[tuple[int, Sample]]:
    """Yield every sample of one sensor with the offset of its line, up to the last whole line of the file."""
    file = WholeFile(sensor_file(run_dir, kind))
    while True:
        yield from file.take()
        if not file.more:
            return


def in_time(run_dir: Path) -> Iterator[Sample]:
    """Yield the samples of all sensors in the order of their times, as far as each file is in order."""
    files = [(sample for _, sample in samples(run_dir, kind)) for kind in SOURCES]
    yield from heapq.merge(*files, key=attrgetter("at"))
