"""Reads a log for people: from a place in it, live, through truncation and rotation, in bounded memory.

Only bytes and lines for the eye; what the training means by them is read elsewhere (``tail``, ``readers``). A lost or
doubled line here costs nothing but a look, so no state is kept on disk.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from overnight.cli.render import clean_line

if TYPE_CHECKING:
    from inotify_simple import INotify

BLOCK = 1 << 18
LONGEST_LINE = 1 << 16
TICK_S = 1.0


class Shown(NamedTuple):
    """One line to show and the offset of its first byte in the log."""

    offset: int
    text: str


class Lines:
    """Bytes in, lines out, unfinished ones kept back; of an endless bar only the newest frames are kept."""

    def __init__(self, offset: int = 0) -> None:
        self._rest = b""
        self._start = offset

    def feed(self, data: bytes) -> Iterator[Shown]:
        """Yield every line that ``data`` finishes; a line over 64 KiB comes in pieces."""
        rows = (self._rest + data).split(b"\n")
        self._rest = rows.pop()
        for row in rows:
            yield from self._pieces(row)
            self._start += 1
        while len(self._rest) > LONGEST_LINE:
            frame = self._rest.rfind(b"\r", 0, len(self._rest) - 1)
            if frame >= 0:
                self._start += frame + 1
                self._rest = self._rest[frame + 1 :]
            else:
                piece, self._rest = self._rest[:LONGEST_LINE], self._rest[LONGEST_LINE:]
                yield Shown(self._start, clean_line(piece))
                self._start += LONGEST_LINE

    def _pieces(self, row: bytes) -> Iterator[Shown]:
        while len(row) > LONGEST_LINE:
            yield Shown(self._start, clean_line(row[:LONGEST_LINE]))
            self._start += LONGEST_LINE
            row = row[LONGEST_LINE:]
        yield Shown(self._start, clean_line(row))
        self._start += len(row)

    def pending(self) -> str:
        """Return the unfinished line as it stands: a bar, a prompt."""
        return clean_line(self._rest) if self._rest else ""

    def flush(self) -> Iterator[Shown]:
        """Yield the unfinished line, if any, as the last one."""
        if self._rest:
            yield Shown(self._start, clean_line(self._rest))
            self._start += len(self._rest)
            self._rest = b""

    def restart(self) -> Iterator[Shown]:
        """Yield what was unfinished and begin again at offset 0: the log was truncated or replaced."""
        yield from self.flush()
        self._start = 0


def offset_of_last(path: str, count: int) -> int:
    """Return the offset at which the last ``count`` lines of a file begin; 0 if it has fewer or does not exist."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return 0
    try:
        end = os.fstat(handle).st_size
        if count <= 0:
            return end
        # The newline that ends the last line separates nothing.
        at = end - 1 if end and os.pread(handle, 1, end - 1) == b"\n" else end
        while at > 0:
            begin = max(0, at - BLOCK)
            block = os.pread(handle, at - begin, begin)
            found = len(block)
            while count and (found := block.rfind(b"\n", 0, found)) >= 0:
                count -= 1
            if not count:
                return begin + found + 1
            at = begin
        return 0
    finally:
        os.close(handle)


class Follower:
    """A log that may grow, be truncated, moved away or not exist yet. ``read`` never blocks, ``wait`` sleeps."""

    def __init__(self, path: str, offset: int = 0, *, also: str | None = None) -> None:
        """Follow ``path`` from ``offset``; ``wait`` wakes as well when a file is published in the folder ``also``."""
        self.path = path
        self.offset = offset
        self.restarted = False
        self._also = also
        self._handle: int | None = None
        self._inotify: INotify | None = None
        self._watched: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> bytes:
        """Return the next bytes, empty if there are none now; sets ``restarted`` when they begin at 0 once more."""
        self.restarted = False
        handle = self._open() if self._handle is None else self._handle
        if handle is None:
            return b""
        if os.fstat(handle).st_size < self.offset:
            self.offset = 0
            self.restarted = True
        data = os.pread(handle, BLOCK, self.offset)
        if not data and self._replaced(handle):
            # The old file is drained; what follows stands in the new one.
            os.close(handle)
            self.offset = 0
            handle = self._open()
            if handle is None:
                return b""
            self.restarted = True
            data = os.pread(handle, BLOCK, 0)
        self.offset += len(data)
        return data

    def wait(self, most_s: float = TICK_S, *, bell: int | None = None) -> None:
        """Sleep until the log or the run folder changes, or ``bell`` (a handle) can be read: at most ``most_s`` s."""
        self._watch()
        poll = select.poll()
        for handle in (bell, self._inotify):
            if handle is not None:
                poll.register(handle, select.POLLIN)
        poll.poll(1000 * (most_s if self._inotify is not None else min(most_s, 0.2)))
        if self._inotify is not None:
            list(self._inotify.read(timeout=0))

    def close(self) -> None:
        """Let the file and the watch go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _open(self) -> int | None:
        try:
            self._handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._handle = None
        self._watched = None
        return self._handle

    def _replaced(self, handle: int) -> bool:
        try:
            there = os.stat(self.path)
        except OSError:
            return False  # moved away and not yet made anew: the old file may still be written
        here = os.fstat(handle)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _watch(self) -> None:
        if self._watched is not None:
            return
        from inotify_simple import INotify, flags

        try:
            if self._inotify is None:
                self._inotify = INotify()
                if self._also is not None:
                    self._inotify.add_watch(self._also, flags.MOVED_TO)
            if self._handle is not None:
                # Through /proc, so that the very file that is open is watched and not its successor.
                self._watched = self._inotify.add_watch(f"/proc/self/fd/{self._handle}", flags.MODIFY | flags.MOVE_SELF)
        except OSError:
            # Refused (limits, odd disks): wait() polls.
            if self._inotify is not None:
                self._inotify.close()
            self._inotify = None
            self._watched = -1
