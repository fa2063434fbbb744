"""The numbers of a sample under the names that the history knows: "gpu0.temperature_c", "disk.log.free". Pure.

What is not known has no entry: a series has a gap there, never a 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from overnight.sensors import Disk, Gpu, GpuSample, HostSample, Pressure, Sample

GPU_FIELDS = (
    "utilisation memory_busy memory_used memory_total temperature_c slowdown_c power_w power_limit_w sm_clock_mhz "
    "max_sm_clock_mhz ecc_corrected ecc_uncorrected remapped_rows remap_failed remap_pending nvlinks_active "
    "nvlink_errors"
).split()
HOST_FIELDS = ("cpu load1 processors memory_total memory_available swap_used swap_total rss processes own_rss").split()
DISK_FIELDS = "free total inodes_free".split()
PRESSURES = "cpu_pressure memory_pressure io_pressure".split()


def flat(sample: Sample) -> dict[str, float]:
    """Return all finite numbers of a sample by the names of their series; in the units of the sample, flags as 0 and 1.

    ``gpuN.*``: the fields of Gpu; further ``gpuN.lost`` and ``gpuN.throttled`` (1.0 while it is so, else no entry),
    ``gpuN.throttled.REASON``, ``gpuN.processes`` (a count), ``gpuN.own_memory`` (bytes of the run's own processes) and
    ``gpuN.xid`` (the code; the last one of the sample, ``gpu.xid`` where the device is not known). ``host.*``: the
    fields of HostSample; ``host.memory_pressure.some`` and the like. ``disk.HOLDS.free``, ``.total``, ``.inodes_free``:
    a file system that holds two things of the run has two names.
    """
    pairs = _of_gpus(sample) if isinstance(sample, GpuSample) else _of_host(sample)
    found: dict[str, float] = {}
    for name, value in pairs:
        number = _finite(value)
        if number is not None:
            found[name] = number
    return found


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits: a damaged line
        return None
    return number if math.isfinite(number) else None


def _fields(prefix: str, of: Gpu | HostSample | Disk | Pressure, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        value = getattr(of, name)
        if value is not None:
            yield f"{prefix}.{name}", value


def _of_gpus(sample: GpuSample) -> Iterator[tuple[str, float]]:
    for gpu in sample.gpus:
        prefix = f"gpu{gpu.index}"
        yield from _fields(prefix, gpu, GPU_FIELDS)
        if gpu.lost is not None:
            yield f"{prefix}.lost", 1.0
        if gpu.throttle:
            yield f"{prefix}.throttled", 1.0
        yield from ((f"{prefix}.throttled.{reason}", 1.0) for reason in gpu.throttle)
        if gpu.processes is not None:
            yield f"{prefix}.processes", len(gpu.processes)
            own = [one.memory for one in gpu.processes if one.ours and one.memory is not None]
            if own:
                yield f"{prefix}.own_memory", sum(own)
    for xid in sample.xids:
        yield ("gpu.xid" if xid.index is None else f"gpu{xid.index}.xid"), xid.code


def _of_host(sample: HostSample) -> Iterator[tuple[str, float]]:
    yield from _fields("host", sample, HOST_FIELDS)
    for name in PRESSURES:
        pressure = getattr(sample, name)
        if pressure is not None:
            yield from _fields(f"host.{name}", pressure, ("some", "full"))
    for disk in sample.disks:
        for holds in disk.holds:
            yield from _fields(f"disk.{holds}", disk, DISK_FIELDS)
