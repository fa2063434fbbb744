"""A whole file where a user asked for one: published by rename, or written to what is no file, such as a pipe.

Nothing but a regular file is ever replaced: a device, a pipe or a link under that name stays what it is. What the file
holds is none of its business.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from overnight.errors import FolderError, UsageError

MAX_LINKS = 40


@contextmanager
def whole_file(target: str | Path, flag: str) -> Iterator[BinaryIO]:
    """Give a stream for all the bytes of a file; it is there once the block is left, and not at all if that fails.

    A pipe or a device is opened and written to at once, and so are this process's own descriptors (``/dev/stdout``).
    ``flag`` is what the user asked with. UsageError for a folder; FolderError for what cannot be written.
    """
    path = Path(target)
    try:
        opened = _open(path)
    except IsADirectoryError:
        raise UsageError(f"{flag} {path} is a folder; give the name of a file in it") from None
    except OSError as error:
        raise _unwritable(path, flag, error) from error
    try:
        with opened as stream:
            yield stream
    except BrokenPipeError:
        raise  # who reads has had enough
    except OSError as error:
        raise _unwritable(path, flag, error) from error


def _unwritable(path: Path, flag: str, error: OSError) -> FolderError:
    return FolderError(f"{path} cannot be written: {error.strerror or error}; give {flag} another place")


def _open(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
    final, own = _follow(path)
    if own is not None:
        return os.fdopen(os.dup(own), "wb")  # opening it anew would begin at its start, or fail for a socket
    try:
        look = os.stat(final)
    except FileNotFoundError:
        return _published(final, None)
    if stat.S_ISDIR(look.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISREG(look.st_mode):
        return _published(final, look)
    return os.fdopen(os.open(final, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY), "wb")


def _follow(path: Path) -> tuple[Path, int | None]:
    """Return what a path's links lead to, there or not; and which of this process's descriptors it is, if it is one."""
    own = re.compile(rf"/proc/{os.getpid()}/(?:task/\d+/)?fd/(\d+)")
    for _ in range(MAX_LINKS):
        if path.name in ("", ".", ".."):
            return Path(os.path.realpath(path)), None
        path = Path(os.path.realpath(path.parent)) / path.name
        found = own.fullmatch(str(path))
        if found is not None:
            return path, int(found[1])
        if str(path).startswith("/proc/"):
            return path, None  # such a link leads to a file even where its text does not
        try:
            link = os.readlink(path)
        except OSError:
            return path, None
        path = path.parent / link
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def _published(path: Path, old: os.stat_result | None) -> Iterator[BinaryIO]:
    """Write beside ``path`` and rename onto it; what was there keeps its permissions."""
    temporary = path.with_name(f".overnight-{os.getpid()}-{time.time_ns()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            if old is not None:
                os.fchmod(handle, stat.S_IMODE(old.st_mode) & 0o777)
            yield stream
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
