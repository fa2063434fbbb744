"""Engines place the processes of a run somewhere and look whether they are there: one file per kind of place.

Here stands only the contract; the implementations are listed in ``wiring.ENGINES``, further ones come through the entry
point group ``overnight.engines``. An engine decides nothing, reads no log and never waits for a training.

To add one (Slurm, Ray, a machine behind ssh): write a file beside ``local.py`` with a class that has the methods of
``Engine``, and one line in ``wiring.ENGINES`` that makes it; another package names its maker as an entry point instead.
``launch``, the supervisor and the shim stay as they are, because of what is common to all engines:

- What is placed is always the same: ``keepers_argv(placement)``, in the environment ``placement.env``, with its output
  appended to ``shim.log``. It becomes guard and shim, which start the supervisor and, when that asks, the training.
- The place must see the run folder under the same path; everything is asked and answered through it.
- The keepers end by themselves when the run has ended. Nothing of an engine has to live as long as the run.
- Placed once more (a scheduler that requeues a job), the same command line goes on with the same run; the lock and the
  fencing files in ``owner/`` keep two of them apart.
- What only an engine needs to know (a partition, a queue) it takes from its programs' own variables in
  ``placement.env`` (``SBATCH_PARTITION``) or from ``run.json``; it is no setting of ours.

The methods, in the order of a run's life::

    check    refuse, before anything exists, what cannot be placed here
    start    place the keepers and return at once with a Handle, which launch keeps in engine.json
    look     are the keepers there? None: could not be learnt now (a scheduler that does not answer)
    stop     help a graceful end along where the inbox alone does not reach: a job that still waits in a queue
    attach   the command a person may type to see it live; it is printed, never executed
    forget   remove what is left of an ended run in the engine's own place; its folder is removed next
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

import msgspec

SHIM = Path(__file__).resolve().parent.parent / "shim.py"


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed, all of it absolute, so that another machine's or server's environment changes nothing.

    ``run_dir`` is the run's folder (its last part is the run's name; for ``check`` it may not exist yet), ``env`` the
    whole environment of the keepers and so of the training, ``cwd`` the folder the training runs in, ``viewer_argv`` a
    command line that shows the run on a terminal: it may be ended in any way at any time.
    """

    run_dir: Path
    supervisor_argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = "/"
    viewer_argv: tuple[str, ...] = ()


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's name for what it placed, made of plain values, so that another process can look later.

    ``pid``, ``start_ticks`` (clock ticks since boot) and ``boot_id`` are those of the guard (0, 0 and "" where it lives
    out of sight); ``place`` is a scheduler's or server's own name for it, ``details`` what else finds it again.
    """

    engine: str
    pid: int
    start_ticks: int
    boot_id: str
    place: str | None = None
    details: dict[str, str] = {}


class Engine(Protocol):
    """What every engine can do. It is made by ``maker(complain)``: ``complain`` takes a sentence for the user.

    Engines hold no state between calls: each method may be called in another process than the one before.
    """

    name: str

    def check(self, placement: Placement) -> None:
        """Raise UsageError if this run cannot be placed as asked. Nothing is made or started here, or exists yet."""
        ...

    def start(self, placement: Placement) -> Handle:
        """Place the keepers so that no terminal or connection of ours is needed, and return at once.

        LaunchError if that cannot be done. Whatever is only convenience (a view, a notice) and fails is a complaint.
        The handle may name another engine that did it in the end.
        """
        ...

    def look(self, handle: Handle) -> bool | None:
        """Say whether the guard is there; None means that this could not be learnt now, which is not a failure."""
        ...

    def stop(self, handle: Handle, run_dir: Path) -> None:
        """Ask for a graceful end where the request in the inbox (written already) reaches nobody. Never kills."""
        ...

    def attach(self, handle: Handle) -> tuple[str, ...] | None:
        """Return the command with which a person sees the run live now; None if there is none."""
        ...

    def forget(self, handle: Handle, run_dir: Path) -> None:
        """Remove what is left of an ended run in the engine's own place. Nothing to remove is no failure."""
        ...


def keepers_argv(placement: Placement) -> tuple[str, ...]:
    """Return the command line that becomes guard and shim; isolated, so that nothing of the user's can change it."""
    run_dir = os.fspath(placement.run_dir.absolute())
    return (sys.executable, "-I", "-S", os.fspath(SHIM), run_dir, "--", *placement.supervisor_argv)
