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
        handle = above_standard(os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
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
    sign(handle, _holder(handle).get("run"))
    found = os.fstat(handle)
    _HELD[handle] = found.st_dev, found.st_ino
    return handle


def above_standard(handle: int) -> int:
    """Return a handle for the same file that is none of 0, 1 and 2, which a process started from here has for itself.

    A training that was started without a standard input or output is given those numbers for its first files.
    """
    if handle > 2:
        return handle
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(handle)


def held(handle: int, folder: Path) -> bool:
    """Say whether the folder's lock is still the file that was locked: somebody may have removed the folder."""
    try:
        mine, there = os.fstat(handle), os.stat(folder / NAME)
    except OSError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def take_again(handle: int, folder: Path, *, say: Callable[[str], None]) -> None:
    """Put the lock of a folder that was made anew in the place of the one that was held; errors as :func:`take`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder} is gone and cannot be made again: {error.strerror}") from error
    made = take(folder, say=say)
    os.dup2(made, handle, inheritable=False)
    _HELD[handle] = _HELD.pop(made)
    os.close(made)


_HELD: dict[int, tuple[int, int]] = {}
"""Handles that this process has taken, and the files that they are of; a handle may have been closed since."""


def let_go(handle: int) -> None:
    """Let go of a lock in a forked child, whose owner may close this number there and must not hit another file by it.

    So nothing is closed: the number leads nowhere from now on.
    """
    with contextlib.suppress(OSError):
        empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(empty, handle, inheritable=False)
        os.close(empty)


def _forked() -> None:
    """A data worker that outlives its training would keep the folder from the next one."""
    for handle, file in _HELD.items():
        with contextlib.suppress(OSError):
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino) == file:
                let_go(handle)
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


def sign(handle: int, run: str | None) -> None:
    """Say in the file who holds it, for whoever comes second, and for which run of the folder.

    That nothing fits on the disk any more is no reason to fail.
    """
    me = {"pid": os.getpid(), "started": started(os.getpid()), "host": os.uname().nodename, "run": run}
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


def signed_run(folder: Path) -> str | None:
    """Return the run that was trained in a folder last, None if nobody says. It is a hint and no more."""
    try:
        with open(folder / NAME, "rb", opener=_opened) as stream:
            found = json.loads(stream.read(4096) or b"{}")
    except (OSError, ValueError):
        return None
    run = found.get("run") if isinstance(found, dict) else None
    return run if isinstance(run, str) else None


def _opened(path: str, flags: int) -> int:
    """Open without waiting, whatever lies there: a pipe gives nothing to read."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
