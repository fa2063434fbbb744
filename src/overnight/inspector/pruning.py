"""Removes checkpoints from a folder: first the name, by one rename, then what lay under it.

Which ones is said by ``choosing``; here is only how. A link is never followed: not for the folder's entries, not below
them. While a training of Overnight's holds the folder's lock nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from overnight.errors import FolderError

LOCK = "LOCK"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder, and the lock that its training takes; yields a handle of the folder.

    FolderError while a training holds the lock, or if the folder cannot be written.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"{folder} cannot be opened: {error.strerror}; mend its permissions") from error
    try:
        lock = _lock(folder, handle)
        try:
            yield handle
        finally:
            if lock is not None:
                os.close(lock)
    finally:
        os.close(handle)


def _lock(folder: Path, handle: int) -> int | None:
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        return None  # no training of ours has ever written here
    except OSError as error:
        raise FolderError(f"{folder / LOCK} cannot be opened: {error.strerror}; mend it, then prune again") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise FolderError(f"{folder} is being written to by a training; prune when it has ended") from None
        raise FolderError(
            f"{folder / LOCK} cannot be locked: {error.strerror}; prune on the disk's own machine"
        ) from error
    return lock


def remove(handle: int, name: str) -> None:
    """Remove one entry of an open folder, a folder or a file, durably in its name; OSError if it cannot be.

    Killed in between, it leaves a ``.trash-...`` entry, which nobody takes for a checkpoint.
    """
    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a link")
    aside = f".trash-{secrets.token_hex(4)}-{name}"[:255]
    os.rename(name, aside, src_dir_fd=handle, dst_dir_fd=handle)
    os.fsync(handle)
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(aside, dir_fd=handle)
    else:
        os.unlink(aside, dir_fd=handle)
