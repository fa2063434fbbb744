"""Removes checkpoints from a folder: first the name, by one rename, then what lay under it.

Which ones is said by ``pruning``; here is only how. A link is never followed: not for the folder's entries, not below
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
from dataclasses import dataclass
from pathlib import Path

from overnight.checkpoint import lock as locks
from overnight.errors import FolderError
from overnight.inspector.pruning import Plan

LONGEST_NAME = 255
"""Bytes of a name that every file system takes."""


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
        lock = os.open(locks.NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=handle)
    except FileNotFoundError:
        return None  # no training of ours has ever written here
    except OSError as error:
        raise FolderError(
            f"{folder / locks.NAME} cannot be opened: {error.strerror}; mend it, then prune again"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise FolderError(f"{folder} is being written to by a training; prune when it has ended") from None
        raise FolderError(
            f"{folder / locks.NAME} cannot be locked: {error.strerror}; prune on the disk's own machine"
        ) from error
    return lock


def remove(handle: int, name: str) -> None:
    """Remove one entry of an open folder, a folder or a file, durably in its name; OSError if it cannot be.

    Killed in between, it leaves a ``.trash-...`` entry, which nobody takes for a checkpoint.
    """
    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a link")
    aside = _aside(name)
    os.rename(name, aside, src_dir_fd=handle, dst_dir_fd=handle)
    os.fsync(handle)
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(aside, dir_fd=handle)
    else:
        os.unlink(aside, dir_fd=handle)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What was removed, or would be: ``paths``; ``failed`` with the reason by path; ``kept``: why others stay."""

    paths: list[str]
    failed: dict[str, str]
    kept: dict[str, str]


def carry_out(plan: Plan, handle: int | None) -> Removal:
    """Remove what a plan says; without a handle of the folder only say what would be."""
    paths, failed = [], {}
    for one in plan.going:
        try:
            if handle is not None:
                remove(handle, os.path.basename(one.path))
        except OSError as error:
            failed[one.path] = error.strerror or str(error)
        else:
            paths.append(one.path)
    return Removal(paths=paths, failed=failed, kept=dict(plan.why))


def _aside(name: str) -> str:
    """Return a name that the library takes for what is being removed; see ``checkpoint.publish.TRASH``."""
    begin = f".trash-{secrets.token_hex(4)}-"
    rest = name.lstrip(".")
    while len(os.fsencode(begin + rest)) > LONGEST_NAME:
        rest = rest[:-1]
    return begin + rest
