"""How a checkpoint comes into a folder and leaves it: all at once, or not at all.

Everything is written into a folder of its own under a name that nobody takes for a checkpoint, and gets its real name
by one rename when every byte is on the disk. What is removed loses its name first and its bytes then. A kill between
any two system calls leaves leftovers, which the next holder of the lock sweeps away, and never half a checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from overnight.checkpoint import lock
from overnight.checkpoint.errors import CheckpointError

TEMPORARY = re.compile(r"\.tmp-\d+-(\d+)-[0-9a-f]{8}")
TRASH = re.compile(r"\.trash-[0-9a-f]{8}-.*", re.DOTALL)
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def begin(folder: Path, step: int) -> Path:
    """Make the folder in which the checkpoint of a step is written."""
    made = folder / f".tmp-{step}-{os.getpid()}-{secrets.token_hex(4)}"
    made.mkdir()
    return made


def name_of(step: int) -> str:
    """Return the name that a step's checkpoint has if nothing is in its way."""
    return f"step-{step:08d}"


def publish(temporary: Path, folder: Path, step: int, mine: Callable[[Path], bool]) -> Path:
    """Give a checkpoint whose files are on the disk its name, durably, and return where it lies then.

    One of this step that is there already, and that ``mine`` says may go for it, is replaced in the same moment; where
    the file system cannot do that, and for anything else under the name, the checkpoint gets a number after its name.
    Nothing is removed before the new name is on the disk.
    """
    sync_folder(temporary)
    target, count, old = folder / name_of(step), 1, None
    while os.path.lexists(target):
        if mine(target):
            if _exchange(temporary, target):
                old = temporary  # under this name lies the older one now
                break
            old = target  # it keeps its name until the new one has another: names decide nothing
        count += 1
        target = folder / f"{name_of(step)}.{count}"
    if old != temporary:
        temporary.rename(target)
    sync_folder(folder)
    if old is not None:
        with contextlib.suppress(OSError):
            discard(old)
    return target


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or its file system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)


def _trash_name(path: Path) -> Path:
    return path.parent / f".trash-{secrets.token_hex(4)}-{path.name.lstrip('.')}"


def discard(path: Path) -> None:
    """Remove a folder: first its name, then what is in it. OSError if not even the name can be taken away."""
    aside = path if TRASH.fullmatch(path.name) else _trash_name(path)
    if aside != path:
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(folder: Path) -> list[str]:
    """Remove what killed saves and removals have left; the caller holds the lock and nobody writes. Returns names."""
    swept = []
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        made = TEMPORARY.fullmatch(entry.name)
        if made and int(made[1]) != os.getpid() and lock.started(int(made[1])) is not None:
            continue  # of one that lives: it can write here only if somebody has removed the lock under it
        if entry.is_dir(follow_symlinks=False) and (made or TRASH.fullmatch(entry.name)):
            with contextlib.suppress(OSError):
                discard(Path(entry.path))
                swept.append(entry.name)
    return swept


def probe(folder: Path) -> None:
    """CheckpointError where no checkpoint could be made in a folder: better known before the first step."""
    try:
        begin(folder, 0).rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # room is looked at when it is known how much is needed
            raise CheckpointError(
                f"nothing can be made in {folder}: {error.strerror}; mend that or give another folder"
            ) from error


def sync_folder(folder: Path) -> None:
    """Have a folder's names on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def in_words(count: int) -> str:
    """Return a number of bytes for a sentence."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def free_bytes(folder: Path) -> int:
    """Return how many bytes this user may still write there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
