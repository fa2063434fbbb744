"""Reads a log for people: from a place in it, live, through truncation and rotation, in bounded memory.

Only bytes and lines for the eye; what the training means by them is read elsewhere (``tail``, ``readers``). A lost or
doubled line here costs nothing but a look, so no state is kept on disk.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections import deque
from typing import TYPE_CHECKING, Self

from overnight.screen import Lines

if TYPE_CHECKING:
    from inotify_simple import INotify

BLOCK = 1 << 18
TICK_S = 1.0

FURTHEST_LINE = 1 << 26
"""A line is followed back so many bytes at most; one without an end is a bar, and its end is what anybody wants."""

FURTHEST_FOLD = 1 << 24
"""So many bytes are read at most to find out how many lines are left of them once bars are folded."""


def _opened(path: str) -> int:
    """Open a log to read; IsADirectoryError for a folder, which would open and then fail without its name."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.close(handle)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return handle


def exists(path: str) -> bool:
    """Say whether a log is there; OSError where that may not be seen."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def offset_of_last(path: str, count: int) -> int:
    """Return the offset at which the last ``count`` lines of a file begin; 0 if it has fewer or does not exist."""
    try:
        handle = _opened(path)
    except FileNotFoundError:
        return 0
    try:
        end = os.fstat(handle).st_size
        if count <= 0:
            return end
        # The newline that ends the last line separates nothing.
        at = newline = end - 1 if end and os.pread(handle, 1, end - 1) == b"\n" else end
        while at > 0:
            begin = max(0, at - BLOCK)
            block = os.pread(handle, at - begin, begin)
            found = len(block)
            while count and (found := block.rfind(b"\n", 0, found)) >= 0:
                count, newline = count - 1, begin + found
            if not count:
                return begin + found + 1
            if newline - begin > FURTHEST_LINE:
                return begin + block.find(b"\r") + 1
            at = begin
        return 0
    finally:
        os.close(handle)


def offset_of_last_shown(path: str, count: int) -> int:
    """Return the offset at which the last ``count`` lines begin as ``Lines`` shows them, with bars folded.

    Where too much of the log is bars, it is the offset of fewer lines; where lines are too many, of lines as written.
    """
    begin, rows = offset_of_last(path, count), count
    while count and (end := _size(path)) - begin <= FURTHEST_FOLD:
        shown = _last_shown(path, begin, end, count)
        if len(shown) == count:
            return shown[0]
        rows *= 8
        further = offset_of_last(path, rows)
        if begin == 0 or end - further > FURTHEST_FOLD:
            break
        begin = further
    return begin


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _last_shown(path: str, begin: int, end: int, count: int) -> deque[int]:
    """Return the offsets of the last ``count`` lines shown of the bytes from ``begin`` to ``end``."""
    found: deque[int] = deque(maxlen=count)
    lines = Lines(begin)
    with Follower(path, begin) as log:
        while log.offset < end and (data := log.read()) and not log.restarted:
            found.extend(line.offset for line in lines.feed(data))
    found.extend(line.offset for line in lines.flush())
    return found


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
            self._handle = _opened(self.path)
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
