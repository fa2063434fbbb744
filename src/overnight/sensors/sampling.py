"""How a sensor's process writes what it measures: one line a sample, in even time, until its parent is gone.

What is measured does not enter here, nor who reads it. The file is opened anew for each line: whoever empties or
removes it loses what was in it, and the next line is there again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PLENTY_BYTES = 32 << 20


def pace_s(every_s: float, size: int) -> float:
    """Return the seconds between two samples for a file of ``size`` bytes: twice as many beyond 32 MiB, and so on."""
    return every_s * (1 + max(0, size) // PLENTY_BYTES)


def append(path: Path, line: bytes) -> int:
    """Add a line with one write and return the size of the file then; OSError if it cannot be, or only in part.

    A half line that a full disk or a kill has left is ended first, so that it spoils no other.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(handle).st_size
        begin = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
        data = begin + line + b"\n"
        written = os.write(handle, data)
    finally:
        os.close(handle)
    if written < len(data):
        raise OSError(f"{path}: only {written} of {len(data)} bytes could be written")
    return size + written


def end_with_parent(parent: int) -> None:
    """Be killed when the parent dies; end at once if it has died before this could be said."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def keep_sampling(path: Path, sample: Callable[[], bytes], *, every_s: float, parent: int) -> None:
    """Append a sample now and then one every ``every_s`` seconds, until the parent or the run's folder is gone.

    What cannot be written (a full disk) is dropped, and the next one is tried. Samples that took too long, or a machine
    that slept, are not made up for.
    """
    size, due = 0, time.monotonic()
    while os.getppid() == parent:
        line = sample()
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            size = append(path, line)
        except FileNotFoundError:
            return
        except OSError:
            pass
        now, pace = time.monotonic(), pace_s(every_s, size)
        due += pace
        if not now < due <= now + pace:
            due = now + pace
        time.sleep(due - now)
