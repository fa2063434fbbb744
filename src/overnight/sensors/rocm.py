"""What AMD's management library says of the cards, through the package amdsmi where ROCm brings one along.

As with NVIDIA's: each value alone, None for what is not known, and only the sensor's own process may import this file.
The package says "N/A" where it knows nothing, and its functions differ from release to release.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

from overnight.sensors import Gpu, GpuProcess
from overnight.sensors.cards import Absent, Seen

PLACES: Final = ("share/amd_smi", "libexec/amd_smi")
"""Where ROCm keeps the package below its own folder, which Python does not know of."""

BROKEN: Final = (ImportError, KeyError, OSError, AttributeError, RuntimeError, ValueError, TypeError, SyntaxError)
"""What importing it raises where libamd_smi.so is missing or does not fit."""

THERMAL: Final = ("active_prochot_thrm", "active_socket_thrm", "active_vr_thrm", "active_hbm_thrm")
MICRO: Final = 100_000.0
MILLI: Final = 1_000.0


class Rocm:
    """The library, started. ``driver`` is the kernel module's version, as far as a card tells it."""

    maker = "amd"

    def __init__(self) -> None:
        """Start it; Absent with the reason where that cannot be."""
        self.smi = _imported()
        known = [getattr(self.smi, name, None) for name in ("AmdSmiException", "AmdSmiLibraryException")]
        self.failures: tuple[type[Exception], ...] = (*(one for one in known if one is not None), *BROKEN)
        try:
            self.smi.amdsmi_init()
            handles = self.smi.amdsmi_get_processor_handles()
        except self.failures as error:
            raise Absent(f"AMD's driver cannot be asked: {error}") from None
        self.driver: str | None = None
        for handle in handles[:1]:
            about = _Card(self, 0, handle).ask("amdsmi_get_gpu_driver_info")
            self.driver = _word(about, "driver_version")

    def look(self) -> list[Seen]:
        """Return every card as it is now; Absent if the driver has gone away."""
        try:
            handles = self.smi.amdsmi_get_processor_handles()
        except self.failures as error:
            raise Absent(f"AMD's driver is gone: {error}") from None
        return [_Card(self, index, handle).seen() for index, handle in enumerate(handles)]


def _imported() -> Any:
    """Return the package, from where Python finds it or from ROCm's own folder."""
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    sys.path += [str(root / place) for place in PLACES if (root / place).is_dir()]
    try:
        return importlib.import_module("amdsmi")
    except ModuleNotFoundError as error:
        if error.name == "amdsmi":
            raise Absent("AMD's package amdsmi is not installed") from None
        raise Absent(f"AMD's package amdsmi cannot be loaded: {error}") from None
    except BROKEN as error:
        raise Absent(f"AMD's package amdsmi cannot be loaded: {type(error).__name__}: {error}") from None


class _Card:
    """One look at one card."""

    def __init__(self, library: Rocm, index: int, handle: Any) -> None:
        self._library = library
        self._smi = library.smi
        self.index = index
        self._handle = handle
        self._answered = False
        self._refused: str | None = None

    def ask(self, name: str, *args: Any) -> Any | None:
        """Return what a function says of the card; None if it says nothing."""
        try:
            return getattr(self._smi, name)(self._handle, *args)
        except self._library.failures as error:
            self._refused = " ".join(str(error).split()) or type(error).__name__
            return None

    def _live(self, name: str, *args: Any) -> Any | None:
        value = self.ask(name, *args)
        self._answered |= value is not None
        return value

    def _kind(self, names: str, *members: str) -> Any | None:
        """Return the first member that this release's enumeration has."""
        kinds = getattr(self._smi, names, None)
        return next((getattr(kinds, one) for one in members if hasattr(kinds, one)), None)

    def seen(self) -> Seen:
        """Return all that the card says. It is lost if it says nothing at all of what it does."""
        chip = self.ask("amdsmi_get_gpu_asic_info")
        known: dict[str, Any] = {
            "index": self.index,
            "name": _word(chip, "market_name") or _word(self.ask("amdsmi_get_gpu_board_info"), "product_name"),
            "arch": _word(chip, "target_graphics_version"),
            "uuid": self.ask("amdsmi_get_gpu_device_uuid") or None,
            "bus_id": self.ask("amdsmi_get_gpu_device_bdf") or None,
            "units": _whole(chip, "num_compute_units"),
        }
        fields = {**self._work(), **self._state()}
        if not self._answered:
            return Seen(gpu=Gpu(**known, lost=f"it only answers: {self._refused}"))
        return Seen(gpu=Gpu(**known, **fields))

    def _work(self) -> dict[str, Any]:
        activity = self._live("amdsmi_get_gpu_activity")
        vram = self._live("amdsmi_get_gpu_vram_usage")
        kernels, memory = _number(activity, "gfx_activity"), _number(activity, "umc_activity")
        return {
            "utilisation": None if kernels is None else kernels / 100,
            "memory_busy": None if memory is None else memory / 100,
            "memory_used": _megabytes(vram, "vram_used"),
            "memory_total": _megabytes(vram, "vram_total"),
            "processes": self._processes(),
        }

    def _state(self) -> dict[str, Any]:
        now = self._kind("AmdSmiTemperatureMetric", "CURRENT")
        hottest = self._kind("AmdSmiTemperatureMetric", "CRITICAL")
        place = self._kind("AmdSmiTemperatureType", "HOTSPOT", "JUNCTION", "EDGE")
        power, cap = self._live("amdsmi_get_power_info"), self.ask("amdsmi_get_power_cap_info")
        clock = self.ask("amdsmi_get_clock_info", self._kind("AmdSmiClkType", "GFX", "SYS"))
        errors, strain = self.ask("amdsmi_get_gpu_total_ecc_count"), self.ask("amdsmi_get_violation_status")
        throttle = [("thermal", any(_true(strain, name) for name in THERMAL))]
        throttle.append(("power_cap", _true(strain, "active_ppt_pwr")))
        watts = (_number(power, name) for name in ("current_socket_power", "socket_power", "average_socket_power"))
        return {
            "temperature_c": _scaled(self._live("amdsmi_get_temp_metric", place, now), MILLI, MILLI),
            "slowdown_c": _scaled(self.ask("amdsmi_get_temp_metric", place, hottest), MILLI, MILLI),
            "power_w": _scaled(next((one for one in watts if one is not None), None), MICRO, 1e6),
            "power_limit_w": _scaled(_number(cap, "power_cap") or _number(power, "power_limit"), MICRO, 1e6),
            "sm_clock_mhz": _number(clock, "clk") if _number(clock, "clk") is not None else _number(clock, "cur_clk"),
            "max_sm_clock_mhz": _number(clock, "max_clk"),
            "throttle": tuple(name for name, active in throttle if active),
            "ecc_corrected": _whole(errors, "correctable_count"),
            "ecc_uncorrected": _whole(errors, "uncorrectable_count"),
        }

    def _processes(self) -> tuple[GpuProcess, ...] | None:
        listed = self.ask("amdsmi_get_gpu_process_list")
        if listed is None:
            return None
        found: dict[int, GpuProcess] = {}
        for one in listed:
            if not isinstance(one, dict):  # releases before 6.1 hand out handles, one by one to be asked for
                one = self.ask("amdsmi_get_gpu_process_info", one)  # noqa: PLW2901 - the same process, spelt out
            pid = _whole(one, "pid")
            if pid:
                use = one.get("memory_usage")
                found[pid] = GpuProcess(pid=pid, memory=_whole(use, "vram_mem"), name=_word(one, "name"))
        return tuple(found[pid] for pid in sorted(found))


def _number(values: Any, name: str) -> float | None:
    """Return a number of a dict; None for "N/A", for a missing one and for a flag."""
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(values: Any, name: str) -> int | None:
    number = _number(values, name)
    return None if number is None else int(number)


def _word(values: Any, name: str) -> str | None:
    value = values.get(name) if isinstance(values, dict) else None
    text = value.strip() if isinstance(value, str) else ""
    return text if text and text != "N/A" else None


def _true(values: Any, name: str) -> bool:
    return isinstance(values, dict) and values.get(name) in (True, 1)


def _megabytes(values: Any, name: str) -> int | None:
    number = _whole(values, name)
    return None if number is None else number << 20


def _scaled(value: Any, least: float, divisor: float) -> float | None:
    """Return a value in its plain unit: some releases tell millidegrees and microwatts, others degrees and watts.

    A value of at least ``least`` is one of the former: no card is that hot, or draws that much. 0 C or W is unknown.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        return None
    return value / divisor if value >= least else float(value)
