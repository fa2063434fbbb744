"""The last resort of ``stop --now``: no supervisor lives that could end the run, so this process ends it.

Every process is checked for being the very one that the run's files name before it is killed. What became of the run is
not written here: an adopting supervisor finds it out, as after any other death of the keepers.
"""

from __future__ import annotations

import signal
import time

from overnight import clearing, client, launch, processes
from overnight.cli.notice import supervisor_words
from overnight.errors import FolderError, WaitTimeoutError
from overnight.folder import RunFolder

EXIT_WITHIN_S = 2.0
SETTLED_WITHIN_S = 10.0
LOOK_S = 0.02


def end(folder: RunFolder) -> client.Status:
    """Kill everything of a run, have it settled, and return its status; FolderError if one of these cannot be done."""
    keepers = _living(folder)
    parents = [pid for role, (pid, _) in keepers.items() if role != "supervisor"]
    kept = [pid for pid, _ in keepers.values()]
    clearing.kill_all(parents, keep=kept, run_dir=folder.path)
    if parents:  # they write down how the command ended
        _await_exit(folder)
    for pid, start_ticks in keepers.values():
        processes.send(pid, start_ticks, signal.SIGKILL)
    left = clearing.kill_all([], run_dir=folder.path).left
    if left:
        names = ", ".join(f"{one.name} (pid {one.pid})" for one in left)
        raise FolderError(f"{folder.name}: {names} cannot be killed: hanging in the kernel, or somebody else's")
    try:
        launch.adopt(folder)
        return client.wait(folder, SETTLED_WITHIN_S, on_stale=lambda: None)
    except WaitTimeoutError as error:
        why = supervisor_words(folder, client.status(folder)) or "no supervisor can live"
        raise FolderError(_unsettled(folder, why)) from error
    except FolderError as error:
        raise FolderError(_unsettled(folder, str(error))) from error


def _unsettled(folder: RunFolder, why: str) -> str:
    return (
        f"every process of {folder.name} has been killed, but its end cannot be written down: {why} "
        f"(`overnight clean {folder.name} --force` removes it)"
    )


def _living(folder: RunFolder) -> dict[str, tuple[int, int]]:
    """Return {role: (pid, start ticks)} of the keepers that live; the guard first, so that it starts no successor."""
    kept = client.read_object(str(folder.shim_json)) or {}
    if kept.get("boot_id") not in (None, processes.boot_id()):
        return {}
    found = {role: kept.get(role) for role in ("guard", "shim", "supervisor")}
    return {
        role: (who["pid"], who["start_ticks"])
        for role, who in found.items()
        if isinstance(who, dict) and client.alive(who)
    }


def _await_exit(folder: RunFolder) -> None:
    numbers = folder.attempt_numbers()
    until = time.monotonic() + EXIT_WITHIN_S
    while numbers and time.monotonic() < until and not folder.attempt(numbers[-1]).exit_json.exists():
        time.sleep(LOOK_S)
