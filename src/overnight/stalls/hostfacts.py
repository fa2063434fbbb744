"""What GPU, host and kernel said up to a moment, in sentences: what explains a stall is often not in the log.

Only files are read: the samples of the run's sensors and the kernel's log; no driver is asked, so this is there even
where one hangs. What could not be read is said. No judgement may enter here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from overnight.exits import postmortem
from overnight.folder import sensor_file, utc
from overnight.sensors import Gpu, GpuSample, HostSample

TAIL_BYTES = 256 * 1024
LINES_KEPT = 5
MOST_GPUS = 16
MOST_XIDS = 20
GIB = 1 << 30

_KINDS = ("gpu", "host")

T = TypeVar("T", GpuSample, HostSample)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: ``samples`` are the last lines of each sensor's file, ``said`` a sentence each for a person.

    ``kernel`` are the lines of the kernel's log about GPUs, each with its time, and ``closed`` why it cannot be read.
    """

    said: tuple[str, ...]
    samples: tuple[str, ...]
    kernel: tuple[str, ...]
    closed: str | None

    def head(self) -> str:
        """Return one sentence about the kernel's log."""
        if self.kernel:
            count = f"{len(self.kernel)} lines" if len(self.kernel) > 1 else "one line"
            return f"the kernel's log has {count} about a GPU, the last: {self.kernel[-1]}"
        if self.closed is not None:
            return f"the kernel's log is not readable ({self.closed})"
        return "the kernel's log says nothing about a GPU"


def gather(run_dir: Path, *, kmsg: Path = postmortem.KMSG) -> Facts:
    """Return what a run's sensors and the kernel have told; never an error."""
    tails = {kind: _tail(sensor_file(run_dir, kind)) for kind in _KINDS}
    gpus = [one for line in tails["gpu"] if (one := _sample(line, GpuSample)) is not None]
    hosts = [seen for line in tails["host"] if (seen := _sample(line, HostSample)) is not None]
    said = [*_gpus(gpus), *(_host(hosts[-1]) if hosts else ()), *_events(gpus)]
    kernel, closed = postmortem.device_lines(_begun(run_dir), kmsg)
    return Facts(
        said=tuple(said),
        samples=tuple(line for lines in tails.values() for line in lines[-LINES_KEPT:]),
        kernel=tuple(f"{utc(at)} {text}" for at, text in kernel),
        closed=closed,
    )


def _begun(run_dir: Path) -> float:
    """Return when the run was made, in seconds since the epoch; what the kernel said before is none of its affair."""
    try:
        return (run_dir / "run.json").stat().st_mtime
    except OSError:
        return 0.0


def _tail(path: Path) -> list[str]:
    """Return the last whole lines of a file; none if there is none."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    if not data.endswith(b"\n"):
        lines = lines[:-1]
    return lines[1:] if size > TAIL_BYTES else lines


def _sample(line: str, kind: type[T]) -> T | None:
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(line, type=kind)
    return None


def _gpus(samples: list[GpuSample]) -> Iterator[str]:
    if not samples:
        return
    last = samples[-1]
    if last.trouble is not None:
        yield f"GPUs at {utc(last.at)}: {last.trouble}"
    for gpu in [one for one in last.gpus if one.ours is not False][:MOST_GPUS]:
        yield f"GPU {gpu.index}{f' ({gpu.name})' if gpu.name else ''} at {utc(last.at)}: {_gpu(gpu)}"


def _gpu(gpu: Gpu) -> str:
    if gpu.lost is not None:
        return f"lost: {gpu.lost}"
    told = [
        None if gpu.utilisation is None else f"{gpu.utilisation:.0%} busy",
        None if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C",
        None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        _of(gpu.memory_used, gpu.memory_total, "memory in use"),
        f"throttled ({', '.join(gpu.throttle)})" if gpu.throttle else None,
        f"{gpu.ecc_uncorrected} uncorrectable memory errors" if gpu.ecc_uncorrected else None,
    ]
    return ", ".join(one for one in told if one is not None) or "it tells nothing"


def _of(part: int | None, whole: int | None, what: str) -> str | None:
    if part is None:
        return None
    return f"{part / GIB:.1f}{'' if whole is None else f' of {whole / GIB:.1f}'} GiB {what}"


def _host(last: HostSample) -> Iterator[str]:
    disks = [f"{one.free / GIB:.1f} GiB free on {one.mount}" for one in last.disks if one.free is not None]
    io = None if last.io_pressure is None else last.io_pressure.full
    told = [
        None if last.cpu is None else f"CPU {last.cpu:.0%}",
        None if last.load1 is None else f"load {last.load1:g}",
        _of(last.memory_available, last.memory_total, "memory available"),
        None if not last.swap_used else f"{last.swap_used / GIB:.1f} GiB of swap in use",
        None if last.rss is None else f"{last.rss / GIB:.1f} GiB in the run's processes",
        None if io is None else f"all waited for a disk {io:.0%} of the time",
        *disks,
    ]
    yield f"host at {utc(last.at)}: {', '.join(one for one in told if one is not None) or 'it tells nothing'}"


def _events(samples: list[GpuSample]) -> Iterator[str]:
    """Yield the driver's events that the sensor has heard of, the newest last."""
    found = [xid for one in samples for xid in one.xids]
    for xid in found[-MOST_XIDS:]:
        where = xid.device or (f"number {xid.index}" if xid.index is not None else "of unknown place")
        yield f"Xid {xid.code} of GPU {where} at {utc(xid.at)}{f': {xid.text}' if xid.text else ''}"
