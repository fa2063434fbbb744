"""The sensor of the GPUs, in a process of its own: a sick card may hang whoever asks it, for minutes or for ever.

``python -I -m overnight.sensors.gpu RUNDIR --every 10 --parent PID`` appends a GpuSample to RUNDIR/sensors/gpu.jsonl at
once, then one every 10 s and one as soon as the driver tells of an error. Where there is no driver, or no library of
it, the only sample says so and the exit code is 3. ``--once`` prints one sample instead and reads no run.
No library of a maker may be imported by whoever only wants ``look`` or ``detect``: they ask such a process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from overnight.folder import sensor_file
from overnight.sensors import Gpu, GpuSample
from overnight.sensors.belonging import Belonging
from overnight.sensors.cards import Absent, Maker, Register, Seen
from overnight.sensors.sampling import append, end_with_parent, pace_s

if TYPE_CHECKING:
    from overnight.sensors.xids import Xids

NO_DRIVER = 3
LEAST_S = 1.0
"""Between two samples, however many errors the driver tells of."""

RECALL_S = 600.0
"""How far back a sensor that is started again looks into the kernel's log for what it has missed."""

LIMIT_S = 5.0
PIECE_BYTES = 64 * 1024

_encode = msgspec.json.Encoder().encode


# -- for those who ask -------------------------------------------------------------------------------------------------


def detect(limit_s: float = LIMIT_S) -> list[Gpu]:
    """Return the GPUs of this machine; none where there are none, or where nobody answers within ``limit_s``."""
    return list(look(limit_s).gpus)


def look(limit_s: float = LIMIT_S) -> GpuSample:
    """Return what the GPUs of this machine say now, or in ``trouble`` why they say nothing. Never takes longer."""
    at = time.time()
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, writing, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
        words = [sys.executable, "-I", "-m", "overnight.sensors.gpu", "--once", "--parent", str(os.getpid())]
        environ = {**os.environ, "OVERNIGHT_ROLE": "sensors"}
        pid = os.posix_spawn(words[0], words, environ, file_actions=actions, setsid=True)
    except OSError as error:
        os.close(reading)
        return GpuSample(at=at, trouble=f"the GPUs cannot be looked at: {error.strerror}")
    finally:
        os.close(writing)
        os.close(null)
    try:
        data = _all_of(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
        _ended(pid)
    if data is None:
        return GpuSample(at=at, trouble=f"the GPU driver does not answer within {limit_s:g} s")
    try:
        return msgspec.json.decode(data, type=GpuSample)
    except msgspec.DecodeError:
        return GpuSample(at=at, trouble="the process that looks at the GPUs has failed")


def _all_of(handle: int, until: float) -> bytes | None:
    """Return what is written up to the end; None if that does not come in time."""
    data = b""
    while select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(handle, PIECE_BYTES)
        if not piece:
            return data
        data += piece
    return None


def _ended(pid: int) -> None:
    """Kill a process and reap it, but never wait for one that the kernel holds in a driver's call."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for _ in range(50):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
                continue
        return


# -- inside the process ------------------------------------------------------------------------------------------------


def opened(register: Register) -> Maker:
    """Return the library that has something to tell; Absent with the reason where there is none.

    A library without a single card still has something to tell if there were cards before.
    """
    from overnight.sensors.nvml import Nvidia
    from overnight.sensors.rocm import Rocm

    try:
        nvidia = Nvidia()
        if nvidia.look() or not register.empty:
            return nvidia
        trouble = "the NVIDIA driver lists no GPU"
    except Absent as absent:
        trouble = str(absent)
    try:
        rocm = Rocm()
        if rocm.look() or not register.empty:
            return rocm
        trouble = f"{trouble}; AMD's driver lists no GPU"
    except Absent as absent:
        if os.path.exists("/dev/kfd"):  # there is an AMD card, so its reason is the one that counts
            trouble = f"{absent}; {trouble}"
    raise Absent(trouble)


class Sampler:
    """Makes the samples of one machine, for one run or for none."""

    def __init__(self, run_dir: Path | None, *, kmsg: Path | None = None, since: float = 0.0) -> None:
        """Open the library; Absent where there is none. ``since``: from when on lines of the kernel's log count."""
        self.wake = threading.Event()
        self._register = Register(None if run_dir is None else run_dir / "sensors" / "gpu-cards.json")
        self.maker = opened(self._register)
        self._belonging = Belonging(run_dir, self.maker.maker)
        self._xids = self._sources(kmsg, since) if run_dir is not None else None

    def _sources(self, kmsg: Path | None, since: float) -> Xids | None:
        from overnight.sensors.nvml import Nvidia
        from overnight.sensors.xids import KMSG, Events, KernelLog, Xids

        if not isinstance(self.maker, Nvidia):
            return None
        return Xids([Events(self.maker, self.wake), KernelLog(kmsg or KMSG, since)])

    def sample(self) -> GpuSample:
        """Return the cards as they are now, and the errors since the last time; Absent if the driver has gone."""
        at = time.time()
        seen: Sequence[Seen] = self._register.numbered(self.maker.look())
        gpus = self._belonging.told(seen)
        xids = () if self._xids is None else self._xids.take(gpus)
        notes = () if self._xids is None else self._xids.notes
        maker, driver = self.maker.maker, self.maker.driver
        return GpuSample(at=at, gpus=gpus, xids=xids, driver=driver, maker=maker, notes=notes)


def watch(run_dir: Path, *, every_s: float, parent: int, kmsg: Path | None = None) -> int:
    """Write samples until the parent or the folder is gone, or there is nothing to be measured."""
    path = sensor_file(run_dir, "gpu")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return 0  # the run was removed, or its disk is read-only: there is nobody to write for
    try:
        sampler = Sampler(run_dir, kmsg=kmsg, since=_last_at(path))
        size, due = 0, time.monotonic()
        while os.getppid() == parent:
            sampler.wake.clear()
            line = _encode(sampler.sample())
            try:
                size = append(path, line)
            except FileNotFoundError:
                return 0
            except OSError:
                pass  # a full disk: the next one may fit
            due = _waited(sampler.wake, due, pace_s(every_s, size))
    except Absent as absent:
        with contextlib.suppress(OSError):
            append(path, _encode(GpuSample(at=time.time(), trouble=str(absent))))
        return NO_DRIVER
    return 0


def _last_at(path: Path) -> float:
    """Return when a sensor of this run wrote last, if that is not long ago; otherwise now."""
    now = time.time()
    try:
        return max(min(now, path.stat().st_mtime), now - RECALL_S)
    except OSError:
        return now


def _waited(wake: threading.Event, due: float, pace: float) -> float:
    """Wait for the next sample's time, or for an error that the driver tells of; return that time.

    Samples that took too long, or a machine that slept, are not made up for.
    """
    now = time.monotonic()
    if due <= now:
        due += pace
    if not now < due <= now + pace:
        due = now + pace
    if wake.wait(due - now):
        time.sleep(max(0.0, min(now + LEAST_S, due) - time.monotonic()))
    return due


def parser() -> argparse.ArgumentParser:
    """Return the reader of this process's command line."""
    made = argparse.ArgumentParser(prog="overnight.sensors.gpu")
    made.add_argument("run_dir", type=Path, nargs="?")
    made.add_argument("--every", type=float, default=10.0)
    made.add_argument("--parent", type=int, default=os.getppid())
    made.add_argument("--once", action="store_true")
    made.add_argument("--kmsg", type=Path)  # another kernel's log, in tests
    return made


def main(argv: list[str] | None = None) -> int:
    """Look once, or keep watching."""
    words = parser().parse_args(argv)
    end_with_parent(words.parent)
    if not words.once:
        if words.run_dir is None:
            parser().error("which run's folder?")
        return watch(words.run_dir, every_s=words.every, parent=words.parent, kmsg=words.kmsg)
    try:
        sample = Sampler(None).sample()
    except Absent as absent:
        sample = GpuSample(at=time.time(), trouble=str(absent))
    sys.stdout.write(_encode(sample).decode() + "\n")
    return NO_DRIVER if sample.trouble else 0


if __name__ == "__main__":
    sys.exit(main())
