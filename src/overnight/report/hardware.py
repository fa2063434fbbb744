"""The machine under a run, from what its sensors have written: GPUs, driver, errors, host, disks, curves over time.

Reads the sensors' files, once each, and changes nothing. What is held does not grow with them. A run without sensors,
or a log, has none of it; which GPUs a run was on stands in its journal, too.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from overnight.calculator.busyness import Busyness
from overnight.errors import FolderError
from overnight.folder import sensor_file, utc
from overnight.moments import epoch_of
from overnight.report.timecurves import Band, Timeline
from overnight.sensors import Gpu, GpuSample, HostSample, Xid
from overnight.sensors.written import written

MOST_XIDS: Final = 200
MOST_GPUS: Final = 64
MARKS: Final = 200
GIB: Final = float(1 << 30)

GPU_CURVES: Final = {
    "utilisation": Band("gpu_utilisation", "GPU utilisation", "%", 100.0),
    "temperature_c": Band("gpu_temperature_c", "GPU temperature", "°C", 1.0),
    "power_w": Band("gpu_power_w", "GPU power", "W", 1.0),
    "memory_used": Band("gpu_memory_used", "GPU memory used", "GiB", 1 / GIB),
}
"""Fields of a GPU that are drawn, in this order: name, label, unit, and what to multiply with."""

HOST_CURVES: Final = {
    "memory_available": Band("host_memory_available", "host memory available", "GiB", 1 / GIB),
    "rss": Band("run_rss", "memory of the run's processes", "GiB", 1 / GIB),
}


class GpuSums:
    """What one GPU came to over the samples in which it may have been the run's."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.latest: Gpu | None = None
        self.lost: tuple[float, str] | None = None
        self.samples = self.throttled = 0
        self.reasons: Counter[str] = Counter()
        self._sums: dict[str, list[float]] = {}
        self.most: dict[str, float] = {}

    def take(self, gpu: Gpu, at: float) -> None:
        """Take in one sample of it."""
        if gpu.lost is not None:
            self.lost = self.lost or (at, gpu.lost)
            return
        self.latest = gpu
        self.samples += 1
        self.throttled += bool(gpu.throttle)
        self.reasons.update(gpu.throttle)
        for name, value in (("utilisation", gpu.utilisation), ("power_w", gpu.power_w)):
            if value is not None:
                sums = self._sums.setdefault(name, [0.0, 0])
                sums[0] += value
                sums[1] += 1
        for name, value in (("temperature_c", gpu.temperature_c), ("memory_used", gpu.memory_used)):
            if value is not None and value > self.most.get(name, -math.inf):
                self.most[name] = value

    def mean(self, name: str) -> float | None:
        """Return the mean of a field."""
        total, count = self._sums.get(name, (0.0, 0))
        return total / count if count else None

    def plain(self) -> dict[str, Any]:
        """Return it as the report value holds it: fractions, C, W and bytes."""
        gpu = self.latest
        return {
            "index": self.index,
            **{name: None if gpu is None else getattr(gpu, name) for name in ("name", "uuid", "bus_id", "units")},
            "memory_total": None if gpu is None else gpu.memory_total,
            "power_limit_w": None if gpu is None else gpu.power_limit_w,
            "samples": self.samples,
            "utilisation_mean": self.mean("utilisation"),
            "power_mean_w": self.mean("power_w"),
            "temperature_most_c": self.most.get("temperature_c"),
            "memory_most": self.most.get("memory_used"),
            "throttled": self.throttled / self.samples if self.samples else None,
            "throttle": [reason for reason, _ in self.reasons.most_common(4)],
            "lost": None if self.lost is None else self.lost[1],
            "lost_at": None if self.lost is None else utc(self.lost[0]),
        }


class Machine:
    """Takes in the samples of a run, each kind in the order of time. ``began``: when x is 0, since the epoch."""

    def __init__(self, began: float | None = None) -> None:
        self.gpu_samples = self.host_samples = 0
        self.busyness = Busyness()
        self.driver: str | None = None
        self.maker: str | None = None
        self.trouble: str | None = None
        self.notes: dict[str, None] = {}
        self.xids: list[Xid] = []
        self.more_xids = 0
        self.host: HostSample | None = None
        self.least_free: int | None = None
        self.most_rss: int | None = None
        self._cpu = [0.0, 0]
        self._own: dict[int, GpuSums] = {}
        self._perhaps: dict[int, GpuSums] = {}
        self.own_curves, self.perhaps_curves, self.host_curves = (Timeline(began) for _ in range(3))

    def take_gpu(self, sample: GpuSample) -> None:
        """Take in what the sensor of the GPUs has written."""
        self.gpu_samples += 1
        self.busyness.take(sample)
        self.driver, self.maker = sample.driver or self.driver, sample.maker
        self.trouble = sample.trouble
        self.notes.update(dict.fromkeys(sample.notes))
        for xid in sample.xids:
            if len(self.xids) < MOST_XIDS:
                self.xids.append(xid)
            else:
                self.more_xids += 1
        own: list[Gpu] = []
        perhaps: list[Gpu] = []
        for gpu in sample.gpus[:MOST_GPUS]:
            if gpu.ours:
                self._own.setdefault(gpu.index, GpuSums(gpu.index))
            known = gpu.index in self._own
            if gpu.ours is False and not (known and gpu.lost is not None):
                continue
            held = self._own if known else self._perhaps
            held.setdefault(gpu.index, GpuSums(gpu.index)).take(gpu, sample.at)
            if gpu.lost is None:
                (own if known else perhaps).append(gpu)
        for gpus, curves in ((own, self.own_curves), (perhaps, self.perhaps_curves)):
            for field, band in GPU_CURVES.items():
                curves.add(sample.at, band, *(getattr(gpu, field) for gpu in gpus))

    def take_host(self, sample: HostSample) -> None:
        """Take in what the sensor of the machine has written."""
        self.host_samples += 1
        self.host = sample
        if sample.cpu is not None:
            self._cpu[0] += sample.cpu
            self._cpu[1] += 1
        free, rss = sample.memory_available, sample.rss
        if free is not None:
            self.least_free = free if self.least_free is None else min(self.least_free, free)
        if rss is not None:
            self.most_rss = max(rss, self.most_rss or 0)
        for field, band in HOST_CURVES.items():
            self.host_curves.add(sample.at, band, getattr(sample, field))
        for disk in sample.disks[:4]:
            holds = " and ".join(disk.holds) or disk.mount
            self.host_curves.add(
                sample.at, Band(f"disk_free_{'_'.join(disk.holds)}", f"free disk: {holds}", "GiB", 1 / GIB), disk.free
            )

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The run's GPUs; where nobody could say whose they are, all of which that is so."""
        held = self._own or self._perhaps
        return [held[index].plain() for index in sorted(held)]

    def plain(self) -> dict[str, Any]:
        """Return it all as the report value holds it."""
        host = self.host
        gpus = self.gpus
        drawn = (self.own_curves if self._own else self.perhaps_curves).charts()
        if len(gpus) > 1:
            drawn = [{**one, "label": f"{one['label']}, least to largest of {len(gpus)}"} for one in drawn]
        return {
            "gpus": gpus,
            "certain": bool(self._own),
            "driver": self.driver,
            "maker": self.maker,
            "trouble": self.trouble,
            "notes": list(self.notes),
            "xids": [_xid(one, self._own) for one in self.xids],
            "more_xids": self.more_xids,
            "samples": {"gpu": self.gpu_samples, "host": self.host_samples},
            "host": None
            if host is None
            else {
                "processors": host.processors,
                "cpu_mean": self._cpu[0] / self._cpu[1] if self._cpu[1] else None,
                "memory_total": host.memory_total,
                "memory_least": self.least_free,
                "rss_most": self.most_rss,
                "disks": [
                    {"mount": one.mount, "holds": list(one.holds), "free": one.free, "total": one.total}
                    for one in host.disks
                ],
            },
            "charts": [*drawn, *self.host_curves.charts()],
        }


def _xid(one: Xid, own: Collection[int]) -> dict[str, Any]:
    """Return an error of the driver; ``ours`` None where nobody can say whether it is of a GPU of the run."""
    ours = one.index in own if own and one.index is not None else None
    told = {"at": utc(one.at), "code": one.code, "device": one.device, "index": one.index, "text": one.text}
    return {**told, "ours": ours}


def machine_of(
    run_dir: Path | None, devices: Mapping[str, Any] | None, began: float | None, unknown: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is known of the machine of a run, and what its GPU samples are as evidence for the calculator.

    ``devices`` is what its journal says of its GPUs.

    A file that cannot be read is named in ``unknown``. ``run_dir`` None: of a log nothing is known.
    """
    machine = Machine(began)
    if run_dir is not None:
        for kind in ("gpu", "host"):
            try:
                for sample in written(sensor_file(run_dir, kind)):
                    if isinstance(sample, GpuSample) and kind == "gpu":
                        machine.take_gpu(sample)
                    elif isinstance(sample, HostSample) and kind == "host":
                        machine.take_host(sample)
            except FolderError as error:
                unknown[f"{kind} sensors"] = str(error)
    found = machine.plain()
    told = [] if devices is None else devices.get("gpus")
    if devices is not None and isinstance(told, Sequence) and not found["certain"]:
        found["gpus"] = [_told(one) for one in told if isinstance(one, Mapping)] or found["gpus"]
        found["certain"] = bool(found["gpus"])
        found["driver"] = found["driver"] or devices.get("driver")
        found["maker"] = found["maker"] or devices.get("maker")
    return found, machine.busyness.fields()


def _told(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a GPU of which only the journal tells."""
    nothing = GpuSums(-1).plain()
    return {
        **nothing,
        **{name: one.get(name) for name in ("index", "name", "uuid", "units")},
        "memory_total": one.get("memory"),
    }


def in_timeline(entries: list[dict[str, Any]], xids: Sequence[Mapping[str, Any]], most: int = 40) -> list[Any]:
    """Return the entries of a timeline with the driver's errors between them that no verdict tells of."""
    told = [str(one["text"]) for one in entries if one.get("rule") == "hardware"]
    fresh = [
        one
        for one in xids
        if one.get("ours") is not False and not any(re.search(rf"Xid {one['code']}\b", text) for text in told)
    ]
    found = list(entries)
    for one in fresh[:most]:
        entry = {**dict.fromkeys(entries[0] if entries else _KEYS), "kind": "gpu", "severity": "warn"}
        entry.update(at=one["at"], text=xid_words(one))
        place = len(found)
        with contextlib.suppress(StopIteration):
            place = next(at for at, other in enumerate(found) if other["at"] is not None and other["at"] > one["at"])
        found.insert(place, entry)
    return found


def mark(charts: Sequence[dict[str, Any]], entries: Sequence[Mapping[str, Any]]) -> None:
    """Put into curves over time what happened then: verdicts that are no note, errors of the driver, starts."""
    for chart in charts:
        chart["marks"] = [
            {"x": round((at - chart["zero"]) / chart["x_s"], 5), "severity": one["severity"], "text": one["text"]}
            for one in entries
            if (one["severity"] in ("warn", "critical") or (one["kind"] == "attempt" and " began" in str(one["text"])))
            and (at := epoch_of(one["at"])) is not None
        ][:MARKS]


_KEYS: Final = "at kind severity attempt step text rule action source offset line".split()


def xid_words(one: Mapping[str, Any]) -> str:
    """Return an error of the driver as a sentence without its time."""
    index = one.get("index")
    device = f"GPU {index}" if index is not None else "a GPU"
    device += f" ({one['device']})" if one.get("device") else ""
    said = str(one.get("text") or "")
    said = f": {said}" if said else ""
    return f"{device} reports Xid {one.get('code')}{said}" + (
        "; no GPU of this run" if one.get("ours") is False else ""
    )
