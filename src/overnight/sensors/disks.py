"""Free space of the file systems that a run writes to. A file system that does not answer is "not known", in time.

What is free is what this user may still take. Forecasts and limits do not enter here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from overnight.machine import Machine
from overnight.sensors import Disk
from overnight.sensors.bounded import Bounded


class Seen(NamedTuple):
    """What one path's file system says; bytes."""

    mount: str
    free: int
    total: int
    inodes_free: int | None


def mount_of(path: str, mounts: Sequence[tuple[str, str, str]]) -> str:
    """Return the mount point that holds an absolute path, the one that was mounted last if several lie over another."""
    best = "/"
    for point, _, _ in mounts:
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best = point
    return best


def look(path: Path, machine: Machine) -> Seen:
    """Ask the file system of a path, or of the nearest folder above it that is there; OSError if it does not say."""
    real = os.path.realpath(path)
    while True:
        try:
            said = os.statvfs(real)
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(real)
            if above == real:
                raise
            real = above
        else:
            inodes = said.f_favail if said.f_files else None  # some file systems do not count them
            mount = mount_of(real, machine.mounts())
            return Seen(mount, said.f_bavail * said.f_frsize, said.f_blocks * said.f_frsize, inodes)


class Disks:
    """The disks of one run. ``paths``: what of the run lies where. ``ask`` begins, ``answers`` collects."""

    def __init__(self, paths: Mapping[str, Path], machine: Machine) -> None:
        self._machine = machine
        self._paths = paths
        self._questions = {holds: Bounded(partial(look, path, machine)) for holds, path in paths.items()}
        self._mounts: dict[str, str] = {}

    def ask(self) -> None:
        """Begin to ask all of them at once."""
        for question in self._questions.values():
            question.ask()

    def answers(self, until: float) -> tuple[Disk, ...]:
        """Return one entry for each file system, waiting until a time of the monotonic clock at most."""
        found: dict[str, tuple[list[str], Seen | None]] = {}
        for holds, question in self._questions.items():
            seen = question.answer(until)
            if seen is not None:
                self._mounts[holds] = seen.mount
            elif holds not in self._mounts:
                self._mounts[holds] = mount_of(os.path.abspath(self._paths[holds]), self._machine.mounts())
            names, known = found.get(self._mounts[holds], ([], None))
            found[self._mounts[holds]] = ([*names, holds], known or seen)
        return tuple(
            Disk(mount=mount, holds=tuple(names))
            if seen is None
            else Disk(mount=mount, holds=tuple(names), free=seen.free, total=seen.total, inodes_free=seen.inodes_free)
            for mount, (names, seen) in found.items()
        )
