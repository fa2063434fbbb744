"""One look at the GPUs by a process of its own, since a driver that hangs takes along whoever asks it.

Starts that process, reads the one line that it prints, gives it up after a while; never waits. What the line means for
anybody is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from overnight.processes import start_apart
from overnight.sensors import GpuSample
from overnight.sensors.following import DEVICES

LIMIT_S = 10.0
QUICK_S, SLOW_S = 0.05, 0.5
PART_BYTES = 65536
MOST_BYTES = 4 << 20

HANGS = "the driver does not answer"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a look has shown: a sample, or ``trouble``: why there is none. ``hangs``: the driver did not answer."""

    sample: GpuSample | None = None
    trouble: str | None = None
    hangs: bool = False


def device() -> bool:
    """Say whether a driver has made device files here: without them nobody can use a GPU."""
    return any(map(os.path.exists, (*DEVICES, "/dev/dxg")))


def read_sample(line: bytes) -> GpuSample | None:
    """Return the sample that a line holds; None for half a line, or anything else."""
    try:
        return msgspec.json.decode(line, type=GpuSample)
    except (msgspec.MsgspecError, ValueError):
        return None


class GpuLook:
    """Looks one after the other, never two at once: a process that cannot be killed is followed by no other one."""

    limit_s = LIMIT_S

    def __init__(self, words: Sequence[str] | None = None) -> None:
        self.words = [*(words or (sys.executable, "-I", "-m", "overnight.sensors.gpu", "--once"))]
        self.pid: int | None = None
        self.stuck: int | None = None
        self.out = -1
        self.data = b""
        self.since = 0.0

    def begin(self, now: float) -> Seen | None:
        """Start a look; at once a trouble if that cannot be. ``now`` is a time of the boot clock, like all here."""
        if self.stuck is not None and not _reaped(self.stuck):
            return Seen(trouble=f"{HANGS}, and who asked it (pid {self.stuck}) cannot be ended", hangs=True)
        self.stuck = None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        try:
            self.pid = start_apart(self.words, {**os.environb, b"OVERNIGHT_ROLE": b"sensors"}, out=writing)
        except OSError as error:
            os.close(reading)
            return Seen(trouble=f"no process for it could be started: {error.strerror}")
        finally:
            os.close(writing)
        self.out, self.data, self.since = reading, b"", now
        return None

    def turn(self, now: float) -> Seen | None:
        """Return what the look has shown, once it is over; None while it goes on, and where none was begun."""
        if self.pid is None:
            return None
        self._read()
        if _reaped(self.pid):
            self._read()
            return self._over()
        if now - self.since < self.limit_s:
            return None
        self.stuck = self.pid
        self.close()  # killed; whether it has ended is seen before the next look
        return Seen(trouble=f"{HANGS} within {self.limit_s:g} s", hangs=True)

    def next_look_s(self, now: float) -> float | None:
        """Return when ``turn`` wants to be called, in seconds; None while nobody looks."""
        if self.pid is None:
            return None
        return QUICK_S if now - self.since < 1.0 else SLOW_S

    def close(self) -> None:
        """Give up a look that goes on. It is not waited for: a process within the driver may never end."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._forget()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while (part := os.read(self.out, PART_BYTES)) and len(self.data) < MOST_BYTES:
                self.data += part

    def _over(self) -> Seen:
        lines = [line for line in self.data.splitlines() if line.strip()]
        sample = read_sample(lines[-1]) if lines else None
        self._forget()
        return Seen(trouble="whoever asked for them said nothing") if sample is None else Seen(sample=sample)

    def _forget(self) -> None:
        if self.out >= 0:
            os.close(self.out)
        self.pid, self.out = None, -1


def _reaped(pid: int) -> bool:
    """Say whether a child has ended; its status is taken."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
