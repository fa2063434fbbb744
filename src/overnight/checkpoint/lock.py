"""One writer a folder: a lock that is free the moment its holder and the holder's writer process have ended.

A second training is refused at once while the first one lives. If the first one has died and only its writer is still
busy with the save in flight, the second one waits for that: it is the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overnight.checkpoint.errors import CheckpointError, LockedError

NAME = "LOCK"
PATIENCE_S = 300.0
"""How long a dead training's writer may still need: tens of gigabytes to a slow disk."""


def take(folder: Path, *, say: Callable[[str], None], patience_s: float = PATIENCE_S) -> int:
    """Return the handle of the folder's lock, held; LockedError if a living training holds it.

    The handle is inherited by nobody unless it is handed over. CheckpointError if the folder cannot be written.
    """
    try:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror}; mend that or give another folder"
        ) from error
    end, told = time.monotonic() + patience_s, False
    while not _locked(handle):
        holder = _holder(handle)
        if _lives(holder) or time.monotonic() >= end:
            os.close(handle)
            who = f"process {holder.get('pid')} on {holder.get('host')}" if holder.get("pid") else "another process"
            if not _lives(holder):
                raise LockedError(
                    f"{folder}: the training of {who} has ended, and the process that saves for it (ckpt-writer) has "
                    f"not let go within {patience_s:.0f} s; look after its disk, or end it"
                )
            raise LockedError(
                f"{folder} is being written to by {who}: let that training end, or give this one a folder of its own"
            )
        if not told:
            say(f"waiting for the save that an earlier training has left in flight in {folder}")
            told = True
        time.sleep(0.05)
    _sign(handle)
    found = os.fstat(handle)
    _HELD[handle] = found.st_dev, found.st_ino
    return handle


_HELD: dict[int, tuple[int, int]] = {}
"""Handles that this process has taken, and the files that they are of; a handle may have been closed since."""


def _forked() -> None:
    """Let go in a forked child: a data worker that outlives its training would keep the folder from the next one.

    Nothing is closed: the owner may close this number in the child, and must not hit another file by it.
    """
    for handle, file in _HELD.items():
        with contextlib.suppress(OSError):
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino) == file:
                empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(empty, handle, inheritable=False)
                os.close(empty)
    _HELD.clear()


os.register_at_fork(after_in_child=_forked)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        os.close(handle)
        raise CheckpointError(
            f"this file system gives no locks ({error.strerror}), so two trainings could write to one folder; "
            f"give a folder on another disk"
        ) from error
    return True


def _sign(handle: int) -> None:
    """Say in the file who holds it, for whoever comes second. That nothing fits on the disk any more is no reason."""
    me = {"pid": os.getpid(), "started": started(os.getpid()), "host": os.uname().nodename}
    try:
        os.ftruncate(handle, os.pwrite(handle, json.dumps(me).encode(), 0))  # over the old one there is room
    except OSError:
        return


def _holder(handle: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lives(holder: dict[str, Any]) -> bool:
    """Say whether the training that signed still runs: a process of another machine is taken to."""
    if holder.get("host") != os.uname().nodename:
        return bool(holder)
    pid = holder.get("pid")
    return isinstance(pid, int) and holder.get("started") is not None and started(pid) == holder["started"]


def started(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot: with the pid it names one process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
