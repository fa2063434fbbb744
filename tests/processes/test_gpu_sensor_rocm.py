"""The GPU sensor over AMD's package: a small one of the test's own, at the place where ROCm keeps it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gpu_child import Sensor, gpu

from overnight.sensors import Gpu, GpuProcess

PACKAGE = """
import enum, json, pathlib
STATE = pathlib.Path(__file__).with_name("state.json")
class AmdSmiException(Exception): pass
class AmdSmiLibraryException(AmdSmiException): pass
class AmdSmiTemperatureType(enum.IntEnum): EDGE = 0; HOTSPOT = 1
class AmdSmiTemperatureMetric(enum.IntEnum): CURRENT = 0; CRITICAL = 5
class AmdSmiClkType(enum.IntEnum): GFX = 0
def _state(): return json.loads(STATE.read_text())
def _told(name):
    def ask(handle, *more):
        state = _state()
        card = state["cards"][handle]
        if card.get("gone"): raise AmdSmiLibraryException("Error code: 37 | AMDSMI_STATUS_NO_DATA")
        key = ".".join([name, *(one.name for one in more)])
        if key not in card: raise AmdSmiLibraryException("Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED")
        return card[key]
    return ask
def amdsmi_init():
    if "init" in _state(): raise AmdSmiLibraryException(_state()["init"])
def amdsmi_get_processor_handles(): return list(range(len(_state()["cards"])))
for _name in ("gpu_asic_info gpu_board_info gpu_device_uuid gpu_device_bdf gpu_activity gpu_vram_usage temp_metric "
              "power_info power_cap_info clock_info gpu_total_ecc_count violation_status gpu_process_list "
              "gpu_driver_info").split():
    globals()["amdsmi_get_" + _name] = _told(_name)
"""

CARD: dict[str, Any] = {
    "gpu_asic_info": {"market_name": "N/A", "target_graphics_version": "gfx942", "num_compute_units": 304},
    "gpu_board_info": {"product_name": "N/A"},
    "gpu_device_uuid": "b2ff74a1-0000-1000-80ab-111122223333",
    "gpu_device_bdf": "0000:c6:00.0",
    "gpu_activity": {"gfx_activity": 98, "umc_activity": 44, "mm_activity": "N/A"},
    "gpu_vram_usage": {"vram_total": 196_592, "vram_used": 150_000},
    "temp_metric.HOTSPOT.CURRENT": 71,
    "temp_metric.HOTSPOT.CRITICAL": 100,
    "power_info": {"current_socket_power": 702, "average_socket_power": "N/A", "power_limit": 750_000_000},
    "power_cap_info": {"power_cap": 750_000_000},
    "clock_info.GFX": {"clk": 1650, "max_clk": 2100},
    "gpu_total_ecc_count": {"correctable_count": 4, "uncorrectable_count": 1},
    "violation_status": {"active_socket_thrm": True, "active_ppt_pwr": True, "active_hbm_thrm": "N/A"},
    "gpu_driver_info": {"driver_version": "6.12.12"},
}


def write(root: Path, cards: list[dict[str, Any]], *, package: str = PACKAGE, **more: Any) -> dict[str, str]:
    """Put a ROCm with these cards below a folder, and return the environment that finds it."""
    folder = root / "share" / "amd_smi" / "amdsmi"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / "state.new"
    fresh.write_text(json.dumps({"cards": cards, **more}))
    fresh.replace(folder / "state.json")
    if not (folder / "__init__.py").exists():
        (folder / "__init__.py").write_text(package)
    return {"ROCM_PATH": str(root)}


@pytest.fixture(autouse=True)
def _no_nvidia() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has NVIDIA cards, which are asked first")


def test_every_field_is_read(tmp_path: Path) -> None:
    process = {"pid": os.getpid(), "name": "N/A", "memory_usage": {"vram_mem": 9 << 30}}
    environ = write(tmp_path, [{**CARD, "gpu_process_list": [process]}])
    with Sensor(tmp_path / "run", environ) as child:
        sample = child.first()
    assert (sample.maker, sample.driver, sample.xids) == ("amd", "6.12.12", ())
    (user,) = gpu(sample).processes or ()
    assert user == GpuProcess(pid=os.getpid(), memory=9 << 30, name=user.name, user=user.user, ours=False)
    assert gpu(sample) == Gpu(
        index=0,
        arch="gfx942",
        uuid="b2ff74a1-0000-1000-80ab-111122223333",
        bus_id="0000:c6:00.0",
        units=304,
        utilisation=0.98,
        memory_busy=0.44,
        memory_used=150_000 << 20,
        memory_total=196_592 << 20,
        temperature_c=71.0,
        slowdown_c=100.0,
        power_w=702.0,
        power_limit_w=750.0,
        sm_clock_mhz=1650.0,
        max_sm_clock_mhz=2100.0,
        throttle=("thermal", "power_cap"),
        ecc_corrected=4,
        ecc_uncorrected=1,
        processes=(user,),
    )


def test_older_releases_tell_other_units_and_less(tmp_path: Path) -> None:
    card = {
        "gpu_asic_info": {"market_name": "AMD Instinct MI210"},
        "gpu_vram_usage": {"vram_total": 65_520, "vram_used": 11},
        "temp_metric.HOTSPOT.CURRENT": 71_000,
        "power_info": {"average_socket_power": 41, "power_limit": 300},
        "clock_info.GFX": {"cur_clk": 800, "max_clk": 1700},
    }
    with Sensor(tmp_path / "run", write(tmp_path, [card])) as child:
        found = gpu(child.first())
    assert (found.name, found.arch, found.units) == ("AMD Instinct MI210", None, None)
    assert (found.temperature_c, found.power_w, found.power_limit_w, found.sm_clock_mhz) == (71.0, 41.0, 300.0, 800.0)
    assert (found.utilisation, found.ecc_uncorrected, found.processes, found.throttle) == (None, None, None, ())


def test_a_card_that_stops_answering_is_lost(tmp_path: Path) -> None:
    other = {**CARD, "gpu_device_uuid": "other"}
    environ = write(tmp_path, [CARD, other])
    with Sensor(tmp_path / "run", environ) as child:
        assert [one.lost for one in child.first().gpus] == [None, None]
        write(tmp_path, [CARD, {"gone": True}])
        lost = child.until("the lost card", lambda one: gpu(one, 1).lost)
    assert "AMDSMI_STATUS_NO_DATA" in (gpu(lost, 1).lost or "")
    assert (gpu(lost, 1).uuid, gpu(lost, 1).arch, gpu(lost).lost) == ("other", "gfx942", None)


@pytest.mark.parametrize(
    "package", ["raise KeyError('libamd_smi.so')", "import there_is_no_such_package", "raise OSError('ELF')"]
)
def test_a_package_without_its_library_is_as_none(tmp_path: Path, package: str) -> None:
    with Sensor(tmp_path / "run", write(tmp_path, [], package=package)) as child:
        assert child.process.wait(30) == 3
        assert child.samples()[-1].trouble


def test_a_driver_that_does_not_start(tmp_path: Path) -> None:
    with Sensor(tmp_path / "run", write(tmp_path, [CARD], init="Error code: 34 | DRIVER_NOT_LOADED")) as child:
        assert child.process.wait(30) == 3
