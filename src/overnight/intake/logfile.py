"""Follows one log file by name, through truncation, rotation and replacement, and hands out its bytes exactly once.

Effects only: it opens, looks and reads. What the bytes mean is none of its business. Every file (or every life of a
truncated file) is a *source* with a rising number, so that (source, offset) never names two different bytes. A mark
(source, device, inode, offset, the 64 bytes before it) is enough to go on after a kill: the same inode number proves
nothing, since ext4 hands a freed one out again at once, but the 64 bytes do.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

BLOCK_BYTES = 256 * 1024
FINGERPRINT_BYTES = 64
KEPT_SOURCES = 4


class Mark(msgspec.Struct, frozen=True):
    """How far a source has been read: enough to find the place again, or to see that it is gone."""

    source: int
    device: int
    inode: int
    offset: int
    before: bytes


class Chunk(NamedTuple):
    """Bytes that were read: ``offset`` is that of the first one within its source."""

    source: int
    offset: int
    data: bytes


class _Open:
    """One open file that is being read."""

    def __init__(self, handle: int, source: int, offset: int = 0, before: bytes = b"") -> None:
        look = os.fstat(handle)
        self.handle = handle
        self.source = source
        self.device, self.inode = look.st_dev, look.st_ino
        self.offset = offset
        self.before = before
        self.seen = (-1, -1)

    def fits(self, size: int) -> bool:
        """Say whether the file still holds what was read from it, just before ``offset``."""
        if size < self.offset:
            return False
        start = self.offset - len(self.before)
        return os.pread(self.handle, len(self.before), start) == self.before

    def read(self, size: int) -> bytes | None:
        """Read the next block, remember the fingerprint; None if the file, of ``size`` bytes, does not ``fit``."""
        if size < self.offset:
            return None
        if self.offset == 0:
            # A writer that does not append leaves a hole before its next byte when its file is truncated.
            with contextlib.suppress(OSError):
                self.offset = os.lseek(self.handle, 0, os.SEEK_DATA)
        known = len(self.before)
        data = os.pread(self.handle, known + BLOCK_BYTES, self.offset - known)
        if not data.startswith(self.before):
            return None
        data = data[known:]
        if data:
            self.offset += len(data)
            self.before = (self.before + data[-FINGERPRINT_BYTES:])[-FINGERPRINT_BYTES:]
        return data

    def begin_again(self, source: int) -> None:
        """Take the file for another one, ``source``, which is read from its first byte."""
        self.source, self.offset, self.before = source, 0, b""

    def mark(self) -> Mark:
        return Mark(self.source, self.device, self.inode, self.offset, self.before)


class LogFile:
    """The log under one name. ``read`` yields everything new; ``marks`` says how far that was."""

    def __init__(
        self,
        path: Path,
        marks: tuple[Mark, ...] = (),
        *,
        start: int = 0,
        pids: tuple[int, ...] = (),
        first_source: int = 0,
    ) -> None:
        self.path = path
        self.sources: list[_Open] = []
        self.last_source = max((mark.source for mark in marks), default=first_source - 1)
        self._start = start
        self._lost: list[Mark] = []
        for mark in sorted(marks, key=lambda one: one.source):
            self._find_again(mark, pids)
        self.size = 0
        self.missing = False

    def marks(self) -> tuple[Mark, ...]:
        """Return how far every source has been read, those included that cannot be found for the moment."""
        return (*self._lost, *(source.mark() for source in self.sources))

    def position(self) -> tuple[int, int]:
        """Return (source, offset) of the newest source, or of the place where it will begin."""
        if self.sources:
            return self.sources[-1].source, self.sources[-1].offset
        return self.last_source + 1, self._start

    def read(self) -> Iterator[Chunk]:
        """Yield all bytes that can be read now, oldest file first; a renamed file is drained before the new one."""
        look = self._look_at_name()
        for source in list(self.sources):
            yield from self._drain(source, look if source is self.sources[-1] else None)
        while len(self.sources) > KEPT_SOURCES:
            os.close(self.sources.pop(0).handle)

    def close(self) -> None:
        """Close every file."""
        for source in self.sources:
            os.close(source.handle)
        self.sources.clear()

    def handle(self) -> int | None:
        """Return the descriptor of the newest file, for a watch."""
        return self.sources[-1].handle if self.sources else None

    def _drain(self, source: _Open, look: os.stat_result | None) -> Iterator[Chunk]:
        """Yield what is new in a file; ``look``: how it was a moment ago, where somebody has looked."""
        while True:
            look = look or os.fstat(source.handle)
            size, seen = look.st_size, (look.st_size, look.st_mtime_ns)
            if seen == source.seen and size == source.offset:
                return
            source.seen = seen
            data = source.read(size)
            if data is None:
                self.last_source += 1
                source.begin_again(self.last_source)
                data = source.read(size)
            if source is self.sources[-1]:
                self.size = size
            if not data:
                return
            yield Chunk(source.source, source.offset - len(data), data)
            if len(data) < BLOCK_BYTES:
                return  # its end; of what has come since, the kernel tells
            look = None

    def _look_at_name(self) -> os.stat_result | None:
        """Follow the name; return how the newest file is, if the name still leads to it and nothing was opened."""
        try:
            look = os.stat(self.path)
        except OSError:
            self.missing = True
            return None  # between a rename and the new file, or not made yet: later looks will find it
        self.missing = False
        newest = self.sources[-1] if self.sources else None
        for source in self.sources:
            if (source.device, source.inode) == (look.st_dev, look.st_ino):
                # Its inode cannot have been handed out again while it is open here, so it is the same file; an older
                # one has got the name back.
                if source is not newest:
                    self.sources.remove(source)
                    self.sources.append(source)
                return look
        if not stat.S_ISREG(look.st_mode):
            return None  # a pipe or a device under the log's name has no offsets, and may never end
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        for mark in self._lost:
            if (mark.device, mark.inode) == (look.st_dev, look.st_ino):
                self._lost.remove(mark)
                self.sources.append(_Open(handle, mark.source, mark.offset, mark.before))
                return None
        self.last_source += 1
        offset = min(self._start, look.st_size) if newest is None and self.last_source == 0 else 0
        before = os.pread(handle, FINGERPRINT_BYTES, max(0, offset - FINGERPRINT_BYTES))[
            : min(offset, FINGERPRINT_BYTES)
        ]
        self.sources.append(_Open(handle, self.last_source, offset, before))
        return None

    def _find_again(self, mark: Mark, pids: tuple[int, ...]) -> None:
        found = self._by_inode(mark, pids) or self._by_content(mark)
        if found is None:
            self._lost = [*self._lost, mark][-KEPT_SOURCES:]
        else:
            self.sources.append(found)

    def _by_content(self, mark: Mark) -> _Open | None:
        """Find a log that was moved to another disk with its run folder: under its name, with the same 64 bytes."""
        if not mark.before:
            return None
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        look = os.fstat(handle)
        found = _Open(handle, mark.source, mark.offset, mark.before)
        known = {(one.device, one.inode) for one in self.sources}
        if stat.S_ISREG(look.st_mode) and (found.device, found.inode) not in known and found.fits(look.st_size):
            return found
        os.close(handle)
        return None

    def _by_inode(self, mark: Mark, pids: tuple[int, ...]) -> _Open | None:
        for path in self._places(mark, pids):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue
            look = os.fstat(handle)
            if (look.st_dev, look.st_ino) == (mark.device, mark.inode):
                found = _Open(handle, mark.source, mark.offset, mark.before)
                # Under another name it may be any file that was given the inode of a log that is gone. Under the log's
                # own name it is the log, whatever became of its content.
                if path == str(self.path) or path.startswith("/proc/") or (mark.before and found.fits(look.st_size)):
                    return found
            os.close(handle)
        return None

    def _places(self, mark: Mark, pids: tuple[int, ...]) -> Iterator[str]:
        """Yield where a file may be found by its inode: its name, its new name beside it, a writer's descriptor."""
        yield str(self.path)
        with contextlib.suppress(OSError), os.scandir(self.path.parent) as entries:
            for entry in entries:
                if entry.inode() == mark.inode:
                    yield entry.path
        for pid in pids:
            for number in (1, 2):
                yield f"/proc/{pid}/fd/{number}"
