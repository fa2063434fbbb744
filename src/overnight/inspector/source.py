"""Opens what is to be looked at, and reads it in pieces: regular files only, and never more memory than one piece.

A file may change or vanish while it is read, be a pipe, a device or a link to nowhere: each is one clear clause. Files
are read, not mapped: a mapped file that is cut short kills the process that looks at it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from overnight.inspector.findings import Damage

MOST_ZEROS = 64 << 20
"""Bytes at a file's end that are read to see whether they are zeros; holes, which need no reading, beyond that."""
PIECE = 1 << 20
"""Bytes that are read at a time: a multiple of the size of every kind of number, and what a cache holds."""


def why(error: OSError) -> str:
    """Return in a few words why a file cannot be opened or read."""
    if error.errno == errno.ENOENT:
        return "is not there any more"
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    return f"cannot be read: {error.strerror or error}"


@dataclass(frozen=True, slots=True)
class _Stamp:
    device: int
    inode: int
    size: int
    changed_ns: int


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class Source:
    """A regular file, opened for reading, and the names and times that go with it. A context manager.

    Damage if it is no regular file or cannot be read. ``size`` in bytes, ``saved_at`` in seconds since the epoch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: to open a device may do something
                raise Damage(f"{self.name} is no file but {_kind(path)}", intact=None)
            self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            dangling = error.errno == errno.ENOENT and path.is_symlink()
            clause = "is a link to what is not there" if dangling else why(error)
            raise Damage(f"{self.name} {clause}", complete=False if dangling else None, intact=None) from None
        except ValueError:  # a zero byte in the name
            raise Damage(f"{self.name!r} is no name of a file", intact=None) from None
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise Damage(f"{self.name} is no file any more", intact=None)
        self._stamp = _stamp(found)
        self.size = found.st_size
        self.saved_at = found.st_mtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def whole(self) -> Window:
        """Return all of the file."""
        return Window(self, 0, self.size, self.name)

    def unchanged(self) -> None:
        """Damage, which says nothing about the content, if the file is not the one that was opened, as it was then."""
        try:
            now = _stamp(self.path.stat())
        except OSError:
            raise Damage(f"{self.name} went away while it was read", intact=None) from None
        if now != self._stamp:
            raise Damage(f"{self.name} changed while it was read", intact=None)

    def hole_at_end(self, start: int, end: int) -> int:
        """Return how many bytes before ``end``, and not before ``start``, are a hole; 0 if the system cannot tell."""
        if end < self.size:  # for members of a file it is not worth asking
            return 0
        low, high = start, end  # from high on there is no data; from low on, as far as is known, there is some
        while low < high:
            middle = (low + high) // 2
            try:
                os.lseek(self.fd, middle, os.SEEK_DATA)
                low = middle + 1
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return 0
                high = middle
        return end - high

    def into(self, view: memoryview, at: int) -> None:
        """Fill ``view`` with the bytes from ``at`` on."""
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self.fd, [view[done:]], at + done)
            except OSError as error:
                raise Damage(f"{self.name} {why(error)}", intact=None) from None
            if not count:
                raise Damage(f"{self.name} changed while it was read", intact=None)
            done += count


@dataclass(frozen=True)
class Window:
    """Some bytes of a file, read as if they were one: a whole file, or a member of it. ``name`` is for sentences."""

    source: Source
    start: int
    size: int
    name: str

    def part(self, at: int, size: int, name: str) -> Window:
        """Return a window in this window; Damage if it leaves it."""
        if at < 0 or size < 0 or at + size > self.size:
            raise Damage(f"{name} leaves its file", complete=False)
        return Window(self.source, self.start + at, size, name)

    def read(self, at: int, size: int) -> bytes:
        """Return some bytes, fewer at the window's end and none before its begin; the caller keeps the size small."""
        if at < 0:
            return b""
        size = max(0, min(size, self.size - at))
        data = bytearray(size)
        self.source.into(memoryview(data), self.start + at)
        return bytes(data)

    def pieces(self, piece: int = PIECE) -> Iterator[memoryview]:
        """Yield all bytes in pieces; a piece is good until the next one is asked for."""
        room = memoryview(bytearray(min(piece, self.size)))
        for at in range(0, self.size, piece):
            view = room[: min(piece, self.size - at)]
            self.source.into(view, self.start + at)
            yield view

    def zeros_at_end(self, most: int = MOST_ZEROS) -> int:
        """Return how many zero bytes end the window: at least so many, where that is ``most`` or more.

        Reads no more than those and one piece; what the file system says is a hole is not read.
        """
        found = holes = self.source.hole_at_end(self.start, self.start + self.size)
        while found < self.size and found - holes < most:
            size = min(PIECE, self.size - found)
            data = self.read(self.size - found - size, size)
            kept = data.rstrip(b"\0")
            found += size - len(kept)
            if kept:
                break
        return found

    def zeros_known(self, zeros: int) -> bool:
        """Say whether ``zeros``, which :meth:`zeros_at_end` has found, are all there are."""
        return zeros >= self.size or self.read(self.size - zeros - 1, 1) != b"\0"


def _kind(path: Path) -> str:
    mode = path.stat().st_mode
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "a device")
