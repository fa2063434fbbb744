"""Guard and shim as their supervisor sees them, and the tree below them: everything that belongs to the run.

Whoever of the two is alive is the parent of whatever the training leaves behind. When both were killed, the run's mark
in the environment of a process is what is left to find its tree by.
"""

from __future__ import annotations

import os
import signal

import msgspec

from overnight import clearing, processes
from overnight.clearing import Cleared, Found
from overnight.folder import RunFolder, read_json
from overnight.processes import Identity, boot_id
from overnight.supervision.waking import Wake

KILL_S, AGAIN_S = 10.0, 0.5
"""So long a kill of all may take; and one more of what has not died of the first, for it hangs in the kernel."""


def read_identity(value: object) -> Identity | None:
    """Return the process a shim's file names; None if it names none, or was edited into something else."""
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.convert({"boot_id": boot_id(), **value}, Identity)
    except msgspec.ValidationError:
        return None


class Keepers:
    """Guard and shim of a run: whoever of them is alive is the parent of all that the training leaves behind."""

    def __init__(self, folder: RunFolder, wake: Wake) -> None:
        self.folder = folder
        self.wake = wake
        self.known: dict[str, Identity] = {}
        self.look()

    def look(self) -> None:
        """Read who keeps the run now."""
        written = read_json(self.folder.shim_json) or {}
        for role in ("guard", "shim"):
            one = written.get(role)
            found = read_identity({"boot_id": written.get("boot_id"), **one}) if isinstance(one, dict) else None
            if found is not None:
                self.known[role] = found
                self.wake.watch_process(found)

    def deaths(self, pids: frozenset[int]) -> list[str]:
        """Return a sentence for each keeper among the processes that have ended, and see who keeps the run now."""
        dead = [(role, one.pid) for role, one in self.known.items() if one.pid in pids]
        if pids:
            self.look()
        return [f"the {role} (pid {pid}) was killed; the run goes on without it" for role, pid in dead]

    def alive(self) -> dict[str, Identity]:
        """Return the living ones by role."""
        return {role: one for role, one in self.known.items() if processes.is_alive(one)}

    def command(self) -> Identity | None:
        """Return the command as it is found among the processes, for a started.json that somebody damaged."""
        parents = {one.pid for one in self.alive().values()}
        for one in clearing.marked(self.folder.path):
            known = processes.stat(one.pid)
            if known is not None and known.ppid in parents and known.session == one.pid:
                return Identity(pid=one.pid, start_ticks=one.start_ticks, boot_id=boot_id())
        return None

    def leftovers(self) -> tuple[Found, ...]:
        """Return every living process of the run but guard, shim and ourselves."""
        roots = [one.pid for one in self.alive().values()]
        return clearing.leftovers(roots, keep=self._kept(), run_dir=None if roots else self.folder.path)

    def kill_all(self, limit_s: float = KILL_S) -> Cleared:
        """Kill every process of the run but guard, shim and ourselves, until none is found or the time is over."""
        roots = [one.pid for one in self.alive().values()]
        where = None if roots else self.folder.path
        return clearing.kill_all(roots, keep=self._kept(), run_dir=where, limit_s=limit_s)

    def _kept(self) -> set[int]:
        return {os.getpid(), *(one.pid for one in self.known.values())}

    def ask(self) -> None:
        """Tell the one that forks that there is something to start."""
        living = self.alive()
        keeper = living.get("shim") or living.get("guard")
        if keeper is not None:
            processes.send(keeper.pid, keeper.start_ticks, signal.SIGUSR1)
