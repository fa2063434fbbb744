"""A file written past the page cache, hashed as it is written, and durable when it is finished.

Only one file from its creation to its fsync: folders, names and what is in the file are others' business.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from overnight.checkpoint.manifest import FileFacts

BLOCK = 4096
"""Places in a file and in memory that O_DIRECT is asked with are multiples of this."""

PIECE = 4 << 20
"""Bytes of each half of the bounce buffer: one is filled and hashed while the other is written."""

STRAIGHT = 1 << 20
"""Bytes from which on data is written from where it lies, without a copy; twice a PIECE at a time."""

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
"""How a file system answers to O_DIRECT that it has not."""


class DirectFile:
    """A new file that is written from its begin to its end, as ``torch.save`` and others write to a file.

    OSError as the system gave it: FileExistsError if the name is taken, ENOSPC, EDQUOT, EIO. The first one is kept in
    ``failed`` (``torch.save`` raises a RuntimeError of its own in its place), and raised again by every later call.
    Left as a context without :meth:`finish`, the file stays as it is, unfinished.
    """

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        import xxhash

        self.path = path
        self.failed: OSError | None = None
        self._hash = xxhash.xxh3_128()
        bounce = memoryview(mmap.mmap(-1, 2 * PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._halves = bounce[:PIECE], bounce[PIECE:]
        self._filled = 0  # bytes in the first of the halves
        self._placed = 0  # where in the file they will lie
        self._hand: ThreadPoolExecutor | None = None  # one thread: writes while the next piece is hashed and copied
        self._flying: Future[None] | None = None
        self._open = True
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        self._direct = direct and self._ask_direct(wanted=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def write(self, data: Any) -> int:
        """Take all of ``data`` (anything with contiguous bytes) and return its size; it may be changed afterwards."""
        self._check()
        view = memoryview(data)
        if not view.nbytes:
            return 0
        self._guard(lambda: self._take(view.cast("B")))
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: :meth:`finish` makes the file durable."""

    def tell(self) -> int:
        """Return the bytes taken so far."""
        return self._placed + self._filled

    def finish(self) -> FileFacts:
        """Write what is left, wait until the file is durable, and close it; the directory is not made durable."""
        self._check()
        self._guard(self._finish)
        return FileFacts(size=self._placed, xxh3_128=self._hash.hexdigest())

    def abandon(self) -> None:
        """Close the file as it is; nothing is raised, and nothing happens if it is closed already."""
        try:
            self._settle()
        except OSError as error:
            self.failed = self.failed or self._plain(error)
        try:
            self._close()
        except OSError as error:
            self.failed = self.failed or self._plain(error)

    def _check(self) -> None:
        if self.failed is not None:
            raise self._plain(self.failed)
        if not self._open:
            raise ValueError(f"{self.path} is closed")

    def _guard(self, work: Callable[[], None]) -> None:
        """Do some work, and remember what the system said if it failed: without the frames, which hold memory."""
        try:
            work()
        except OSError as error:
            self.failed = self._plain(error)
            raise self._plain(error) from None

    def _plain(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, str(self.path))

    def _take(self, view: memoryview) -> None:
        if len(view) >= STRAIGHT:
            head = -self.tell() % BLOCK if self._direct else 0
            if not self._direct or (_address(view) + head) % BLOCK == 0:
                self._copy(view[:head])
                body = len(view) - head
                body -= body % BLOCK if self._direct else 0
                self._straight(view[head : head + body])
                view = view[head + body :]
        self._copy(view)

    def _copy(self, view: memoryview) -> None:
        """Put data into the bounce buffer; each half is written when it is full."""
        while view:
            part = view[: PIECE - self._filled]
            self._halves[0][self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == PIECE:
                self._push()

    def _straight(self, view: memoryview) -> None:
        """Write data from where it lies: the begin of it in the file, its size and its address are aligned."""
        if self._filled:
            self._push()
        try:
            for at in range(0, len(view), 2 * PIECE):
                self._send(view[at : at + 2 * PIECE])
        finally:
            self._settle()

    def _push(self) -> None:
        """Send off the filled half, and go on with the other one, which was written when this one was sent off."""
        piece = self._halves[0][: self._filled]
        self._filled = 0
        self._halves = self._halves[1], self._halves[0]
        self._send(piece)

    def _send(self, piece: memoryview) -> None:
        """Have a piece written by the thread while it is hashed here; the piece before it is written then."""
        self._settle()
        place, self._placed = self._placed, self._placed + len(piece)
        if self._hand is None:
            self._hand = ThreadPoolExecutor(1, thread_name_prefix="overnight-file")
        try:
            self._flying = self._hand.submit(self._put, piece, place)
        except RuntimeError:  # the interpreter is ending and starts no more threads
            self._put(piece, place)
        self._hash.update(piece)

    def _settle(self) -> None:
        """Wait for the piece in flight; OSError if it could not be written."""
        flying, self._flying = self._flying, None
        if flying is not None:
            flying.result()

    def _put(self, piece: memoryview, place: int) -> None:
        while piece:
            try:
                written = os.pwrite(self._fd, piece, place)
            except OSError as error:
                if not self._direct or error.errno not in _REFUSED:
                    raise
                self._direct = self._ask_direct(wanted=False)
                continue
            piece, place = piece[written:], place + written

    def _finish(self) -> None:
        """Whole blocks go the direct way, the bytes after them through the page cache, so that nothing is cut off."""
        self._settle()
        rest = self._halves[0][: self._filled]
        self._hash.update(rest)
        whole = len(rest) - len(rest) % BLOCK
        self._put(rest[:whole], self._placed)
        if self._direct:
            self._direct = self._ask_direct(wanted=False)
        self._put(rest[whole:], self._placed + whole)
        self._placed, self._filled = self._placed + len(rest), 0
        os.fsync(self._fd)
        self._close()

    def _ask_direct(self, *, wanted: bool) -> bool:
        """Turn O_DIRECT on or off; say whether it is on now. Not at open: a refusal there leaves an empty file."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return wanted

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._hand is not None:
            self._hand.shutdown()
        os.close(self._fd)


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer: the only way to the address of memory that may not be written."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def _address(view: memoryview) -> int:
    """Return where in memory the bytes lie; they stay there as long as the view lives."""
    found = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), 0)
    try:
        return int(found.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
