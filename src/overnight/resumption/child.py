"""One process of our own beside the training, as the supervisor holds it: started, asked, read, ended, not waited for.

What it does is a module's; what its lines mean is said by who has started it. It is started without subprocess, which
would cost a process that lives all night 2.4 MB.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

MOST_UNREAD = 8 << 20
"""Bytes without an end of line that are kept; what says more than that says nothing."""


class Child:
    """``python -I -m module`` in a session of its own, with ``asked`` as its stdin; OSError if it cannot be started.

    ``handle`` is the pipe that its lines come through. It has ended, or is given up, once ``code`` is not None: its
    exit status, -N for signal N. It ends itself when the supervisor does (see ``inspector.side.end_with_parent``).
    """

    def __init__(self, module: str, asked: bytes) -> None:
        self.code: int | None = None
        self._unread = b""
        told = _memory(asked)
        try:
            self.handle, writing = os.pipe2(os.O_CLOEXEC)
            try:
                os.set_blocking(self.handle, False)
                self.pid = _spawn(module, told, writing)
            except OSError:
                os.close(self.handle)
                raise
            finally:
                os.close(writing)
        finally:
            os.close(told)

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines that have come; never blocks."""
        while self.handle >= 0:
            try:
                data = os.read(self.handle, 1 << 16)
            except OSError:  # nothing there yet
                return
            if not data:
                return
            *whole, rest = (self._unread + data).split(b"\n")
            self._unread = rest if len(rest) <= MOST_UNREAD else b""
            yield from whole

    def ended(self) -> bool:
        """Say whether it has ended; never blocks."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by somebody else
                self.code = 1
            else:
                if pid:
                    self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def kill(self) -> None:
        """End it; one that hangs in a disk is left to the kernel."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _LEFT.append(self.pid)
            self.code = -signal.SIGKILL

    def close(self) -> None:
        """End it, and let go of its pipe."""
        self.kill()
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
        reap()


_LEFT: list[int] = []


def reap() -> None:
    """Let the kernel forget those that were killed, as far as they have ended by now."""
    for pid in [*_LEFT]:
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _LEFT.remove(pid)


def _memory(asked: bytes) -> int:
    """Return a handle of memory with the bytes in it: a pipe would have to be waited for."""
    handle = os.memfd_create("asked", os.MFD_CLOEXEC)
    try:
        view = memoryview(asked)
        while view:
            view = view[os.write(handle, view) :]
        os.lseek(handle, 0, os.SEEK_SET)
    except OSError:
        os.close(handle)
        raise
    return handle


def _spawn(module: str, told: int, writing: int) -> int:
    words = [sys.executable, "-I", "-m", module]
    environ = {**os.environ, "OVERNIGHT_ROLE": "checkpoints"}  # so that it is not taken for a part of the training
    files = [
        (os.POSIX_SPAWN_DUP2, told, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    defaults = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE]
    return os.posix_spawn(words[0], words, environ, file_actions=files, setsid=True, setsigmask=[], setsigdef=defaults)
