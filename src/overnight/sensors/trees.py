"""Which processes are the run's, and how much memory they hold: the training's tree, and Overnight's own.

The tree is what a stop would end: all below guard and shim but our side processes, or, when both are dead, what bears
the run's mark. Memory is resident memory, as it is added up everywhere: what processes share counts for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from overnight import clearing, processes
from overnight.errors import FolderError
from overnight.folder import RunFolder, read_json
from overnight.keepers import read_identity


class Held(NamedTuple):
    """Bytes of resident memory and how many processes the training's tree has; bytes of our own processes."""

    rss: int
    processes: int
    own_rss: int


def held(run_dir: Path, supervisor: int) -> Held:
    """Return what a run's processes hold now; one that ends meanwhile is not counted. OSError without a /proc."""
    keepers = _keepers(run_dir)
    tree = clearing.leftovers(keepers, keep={*keepers, os.getpid(), supervisor}, run_dir=None if keepers else run_dir)
    sizes = list(_sizes(one.pid for one in tree))
    beside = [pid for pid in processes.children(supervisor) if clearing.ours(pid)]
    return Held(sum(sizes), len(sizes), sum(_sizes({*keepers, supervisor, os.getpid(), *beside})))


def _keepers(run_dir: Path) -> list[int]:
    """Return the pids of guard and shim, as far as they live."""
    try:
        written = read_json(RunFolder(run_dir).shim_json) or {}
    except FolderError:
        return []
    named = [written.get(role) for role in ("guard", "shim")]
    known = [read_identity({"boot_id": written.get("boot_id"), **one}) for one in named if isinstance(one, dict)]
    return [one.pid for one in known if one is not None and processes.is_alive(one)]


def _sizes(pids: Iterable[int]) -> Iterable[int]:
    page = os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        words = (processes.read_proc(pid, "statm") or b"").split()
        if len(words) > 1:
            yield int(words[1]) * page
