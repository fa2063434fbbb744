"""Samples as series: every known number has a name, nothing unknown has a value."""

from __future__ import annotations

import msgspec
import pytest

from overnight.sensors import Disk, Gpu, GpuProcess, GpuSample, HostSample, Pressure, Xid
from overnight.sensors.series import flat


def test_an_empty_sample_has_no_numbers() -> None:
    assert flat(GpuSample(at=1.0)) == {}
    assert flat(HostSample(at=1.0)) == {}
    assert flat(GpuSample(at=1.0, gpus=(Gpu(index=3),))) == {}


def test_a_gpu() -> None:
    gpu = Gpu(
        index=1,
        name="x",
        utilisation=0.5,
        memory_used=10,
        temperature_c=91.0,
        throttle=("thermal", "power_cap"),
        ecc_uncorrected=0,
        remap_failed=False,
        processes=(GpuProcess(pid=1, memory=5, ours=True), GpuProcess(pid=2, memory=7, ours=False), GpuProcess(pid=3)),
    )
    xids = (Xid(code=13, at=1.0, index=1), Xid(code=79, at=2.0, index=1), Xid(code=31, at=2.0))
    assert flat(GpuSample(at=1.0, gpus=(gpu, Gpu(index=2, lost="GPU is lost")), xids=xids)) == {
        "gpu1.utilisation": 0.5,
        "gpu1.memory_used": 10.0,
        "gpu1.temperature_c": 91.0,
        "gpu1.throttled": 1.0,
        "gpu1.throttled.thermal": 1.0,
        "gpu1.throttled.power_cap": 1.0,
        "gpu1.ecc_uncorrected": 0.0,
        "gpu1.remap_failed": 0.0,
        "gpu1.processes": 3.0,
        "gpu1.own_memory": 5.0,
        "gpu1.xid": 79.0,
        "gpu.xid": 31.0,
        "gpu2.lost": 1.0,
    }


def test_a_host() -> None:
    sample = HostSample(
        at=1.0,
        cpu=0.25,
        memory_available=3,
        cpu_pressure=Pressure(some=0.1),
        disks=(Disk(mount="/", holds=("log", "checkpoints"), free=9), Disk(mount="/nfs", holds=("data",))),
        rss=7,
    )
    assert flat(sample) == {
        "host.cpu": 0.25,
        "host.memory_available": 3.0,
        "host.cpu_pressure.some": 0.1,
        "disk.log.free": 9.0,
        "disk.checkpoints.free": 9.0,
        "host.rss": 7.0,
    }


@pytest.mark.parametrize(("kind", "prefix"), [(Gpu, "gpu0."), (HostSample, "host."), (Disk, "disk.log.")])
def test_every_number_of_the_words_has_a_series(kind: type[msgspec.Struct], prefix: str) -> None:
    numbers = {
        field.name: 1
        for field in msgspec.structs.fields(kind)
        if field.type in (float | None, int | None, bool | None) and field.name not in ("units", "mig", "ours")
    }
    assert len(numbers) >= 3
    if kind is Gpu:
        found = flat(GpuSample(at=0.0, gpus=(Gpu(index=0, **numbers),)))
    elif kind is Disk:
        found = flat(HostSample(at=0.0, disks=(Disk(mount="/", holds=("log",), **numbers),)))
    else:
        found = flat(HostSample(at=0.0, **numbers))
    assert found == {prefix + name: 1.0 for name in numbers}


def test_what_is_no_finite_number_is_left_out() -> None:
    assert flat(HostSample(at=0.0, cpu=float("nan"), load1=float("inf"), rss=10**400)) == {}
