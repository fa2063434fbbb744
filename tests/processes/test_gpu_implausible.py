"""What a sick driver hands out instead of measurements is not known: over the stand-in for NVIDIA's library."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import nvml
from overnight.sensors import gpu as sensor

U32, U64, GIB = 2**32 - 1, 2**64 - 1, 1 << 30


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.Stub:
    found = nvml.Stub(tmp_path / "nvml")
    for name, value in found.environ().items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        ({"utilisation": 101, "memory_busy": U32}, ("utilisation", "memory_busy")),
        ({"temperature": 201}, ("temperature_c",)),
        ({"temperature": -51}, ("temperature_c",)),
        ({"slowdown": 300}, ("slowdown_c",)),
        ({"power": 10_001, "power_limit": 4_294_000}, ("power_w", "power_limit_w")),
        ({"memory_total": GIB, "memory_used": 2 * GIB}, ("memory_used",)),
        ({"memory_total": 2**20 - 1, "memory_used": 0}, ("memory_total",)),
        ({"memory_total": 2**51, "memory_used": 2**51}, ("memory_total", "memory_used")),
        ({"clock": 100_001, "max_clock": 4_000_000_000}, ("sm_clock_mhz", "max_sm_clock_mhz")),
        ({"ecc_corrected": 2**62 + 1, "ecc_uncorrected": 10**9 + 1}, ("ecc_corrected", "ecc_uncorrected")),
        ({"ecc_corrected": U64, "ecc_uncorrected": U32}, ("ecc_corrected", "ecc_uncorrected")),
        ({"remapped": (U32, 0, U32, U32)}, ("remapped_rows", "remap_pending", "remap_failed")),
        ({"remapped": (0, 10**9 + 1, 0, 0)}, ("remapped_rows",)),
    ],
)
def test_a_value_that_cannot_be_is_none_and_the_others_stay(
    stub: nvml.Stub, state: dict[str, Any], fields: tuple[str, ...]
) -> None:
    stub.write([nvml.card(0, slowdown=90)])
    (healthy,) = sensor.detect(30.0)
    stub.change(0, **state)
    (found,) = sensor.detect(30.0)
    assert {name: getattr(found, name) for name in fields} == dict.fromkeys(fields)
    assert all(getattr(healthy, name) is not None for name in fields)
    others = {"uuid", "units", "lost", "temperature_c", "power_w", "utilisation", "nvlinks_active"} - {*fields}
    assert {name: getattr(found, name) for name in others} == {name: getattr(healthy, name) for name in others}


def test_the_limits_themselves_are_measurements(stub: nvml.Stub) -> None:
    stub.write([nvml.card(0, utilisation=100, temperature=200, power=10_000, ecc_uncorrected=10**9, clock=100_000)])
    (found,) = sensor.detect(30.0)
    assert (found.utilisation, found.temperature_c, found.power_w) == (1.0, 200.0, 10_000.0)
    assert (found.ecc_uncorrected, found.sm_clock_mhz) == (10**9, 100_000.0)


def test_without_the_list_of_who_computes_nobody_knows_who_uses_the_card(stub: nvml.Stub) -> None:
    """A list of those that draw must not be taken for all."""
    stub.write([nvml.card(0, compute=[os.getpid()], graphics=[os.getppid()], mps=[os.getppid()])])
    (found,) = sensor.detect(30.0)
    assert {one.pid for one in found.processes or ()} == {os.getpid(), os.getppid()}
    for version in ("_v3", "_v2"):
        stub.fail(nvml.UNKNOWN, f"nvmlDeviceGetComputeRunningProcesses{version}")
    (found,) = sensor.detect(30.0)
    assert found.processes is None
