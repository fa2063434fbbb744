"""Engines place the processes of a run somewhere and look whether they are there: one file per kind of place.

Here stands only the contract. Today there is ``local``; tmux (a viewer's pane), Slurm and Ray come as further files and
are listed in ``wiring.py``. An engine decides nothing, reads no log and never waits for a training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed: the run's folder (it exists), the supervisor's argv (absolute), the whole environment."""

    run_dir: Path
    supervisor_argv: tuple[str, ...]
    env: dict[str, str]


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's name for what it placed, made of plain values, so that another process can look later.

    ``pid``, ``start_ticks`` (clock ticks since boot) and ``boot_id`` are those of the guard; ``place`` is a scheduler's
    own name for it, for engines that have one.
    """

    engine: str
    pid: int
    start_ticks: int
    boot_id: str
    place: str | None = None


class Engine(Protocol):
    """What every engine can do. ``attach`` and ``stop`` are not here: they read and write the run folder."""

    name: str

    def start(self, placement: Placement) -> Handle:
        """Place guard and shim in a session of their own and return at once. LaunchError if that cannot be done."""
        ...

    def look(self, handle: Handle) -> bool | None:
        """Say whether the guard is there; None means that this could not be learnt now, which is not a failure."""
        ...
