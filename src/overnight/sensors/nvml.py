"""What NVIDIA's management library says of the cards, through the package nvidia-ml-py, which is imported as pynvml.

Each value is asked for alone, and what a card, driver or library does not know is None: never 0, never an error. A call
may hang for as long as a sick card likes, so nothing but the sensor's own process may import this file.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from overnight.sensors import Gpu, GpuProcess
from overnight.sensors.cards import Absent, Seen, Slice

LIBRARY: Final = "libnvidia-ml.so.1"
FOLDERS: Final = ("/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib", "/usr/lib64/nvidia")
"""Where the library lies on some machines without the loader's knowledge: WSL, containers of clusters, NixOS."""

GONE: Final = {1: "it was unloaded", 9: "it is not loaded"}
"""Codes that tell of the driver, not of a card."""
LOST: Final = {15: "GPU is lost", 16: "GPU requires a reset"}
SILENT: Final = frozenset({11, 17, 28, 999})
"""Interrupts, system, not found, unknown: of one value they say little; if nothing answers, the card is gone."""

THROTTLES: Final = (
    (0x20 | 0x40, "thermal"),
    (0x4, "power_cap"),
    (0x8, "hw_slowdown"),
    (0x80, "power_brake"),
    (0x10, "sync_boost"),
    (0x2, "app_clocks"),
    (0x100, "display_clocks"),
)
"""Bits of nvmlClocksEventReasons. An idle card (0x1) is not slowed down."""

CORES: Final = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""FP32 cores of a multiprocessor by compute capability where they are not 128 (CUDA C++ Programming Guide)."""

LINK_ERRORS: Final = (0, 1, 2, 3)  # replay, recovery, CRC of flits, CRC of data
UNKNOWN_UINT: Final = 0xFFFFFFFF


class Nvidia:
    """The library, started. ``driver`` is the driver's version."""

    maker = "nvidia"

    def __init__(self) -> None:
        """Start it; Absent with the reason where that cannot be."""
        try:
            self.nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            raise Absent("the package nvidia-ml-py is not installed") from None
        self.failures = failures(self.nvml)
        _preload()
        try:
            self.nvml.nvmlInit()
        except self.failures as error:
            raise Absent(_start_trouble(getattr(error, "value", None), error)) from None
        self.driver: str | None = self._system("nvmlSystemGetDriverVersion")

    def _system(self, name: str) -> Any | None:
        try:
            return getattr(self.nvml, name)()
        except self.failures:
            return None

    def look(self) -> list[Seen]:
        """Return every card as it is now; Absent if the driver has gone away."""
        try:
            count = self.nvml.nvmlDeviceGetCount()
        except self.failures as error:
            code = getattr(error, "value", None)
            said = GONE.get(code) if isinstance(code, int) else None
            raise Absent(f"the NVIDIA driver is gone: {said or error}") from None
        return [_Card(self, index).seen() for index in range(count)]

    def handle(self, index: int) -> tuple[Any | None, str | None]:
        """Return a card's handle, or None and in which words the driver refuses it."""
        try:
            return self.nvml.nvmlDeviceGetHandleByIndex(index), None
        except self.failures as error:
            code = getattr(error, "value", None)
            if code in LOST:
                return None, LOST[code]
            return None, f"it only answers: {error}" if code in SILENT else ""


def failures(nvml: Any) -> tuple[type[Exception], ...]:
    """Return what a call may raise: an error code, a function that library or package does not have, a broken name."""
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
    return (nvml.NVMLError, mismatch, AttributeError, ValueError, TypeError, ctypes.ArgumentError, OSError)


def _preload() -> None:
    """Load the library from where the loader does not look; whoever asks for it by name afterwards is given this one.

    Only if the loader does not find it itself.
    """
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        for folder in FOLDERS:
            path = Path(folder) / LIBRARY
            if path.exists():
                try:
                    ctypes.CDLL(str(path), mode=os.RTLD_GLOBAL)
                except OSError:
                    continue
                return


def _start_trouble(code: object, error: Exception) -> str:
    """Return why the library cannot be used, as a clause."""
    match code:
        case 12:
            return f"no NVIDIA driver is installed here ({LIBRARY} is not found)"
        case 9:
            return "the NVIDIA driver is not loaded"
        case 18:
            return "the NVIDIA driver and its library differ in version: the driver was updated, reboot to load it"
        case 4:
            return "the NVIDIA driver may not be asked by this user"
        case 13:
            return f"the NVIDIA driver is too old to be asked ({LIBRARY} has no nvmlInitWithFlags)"
        case _:
            return f"the NVIDIA driver cannot be asked: {error}"


class _Card:
    """One look at one card: asks on until the card says that it is lost."""

    def __init__(self, library: Nvidia, index: int) -> None:
        self._library = library
        self._nvml = library.nvml
        self.index = index
        self.handle, refused = library.handle(index)
        self.lost = refused or None
        self._answered = False
        self._silent: str | None = None

    def ask(self, name: str, *args: Any, handle: Any = None) -> Any | None:
        """Return what a function says of the card (or of a slice's handle); None if it says nothing."""
        if self.lost or self.handle is None:
            return None
        try:
            return getattr(self._nvml, name)(self.handle if handle is None else handle, *args)
        except self._library.failures as error:
            code = getattr(error, "value", None)
            if code in LOST:
                self.lost = LOST[code]
            elif code in SILENT:
                self._silent = f"it only answers: {error}"
            return None

    def _number(self, name: str, *args: Any) -> Any | None:
        """Return a value that is measured anew at each look, which shows that the card lives."""
        value = self.ask(name, *args)
        self._answered |= value is not None
        return None if value == UNKNOWN_UINT else value

    def seen(self) -> Seen:
        """Return all that the card says."""
        fields: dict[str, Any] = {**self._identity(), **self._now(), **self._health(), **self._links()}
        slices = tuple(self._slices()) if fields["mig"] else ()
        processes, instances = self._processes()
        if not self._answered and self._silent and not self.lost:
            self.lost = self._silent
        if self.lost:
            known = {name: fields[name] for name in ("name", "uuid", "bus_id", "units", "mig")}
            return Seen(gpu=Gpu(index=self.index, lost=self.lost, **known))
        gpu = Gpu(index=self.index, processes=processes, **fields)
        return Seen(gpu=gpu, slices=slices, instances=instances)

    def _identity(self) -> dict[str, Any]:
        pci = self.ask("nvmlDeviceGetPciInfo")
        mode = self.ask("nvmlDeviceGetMigMode")
        return {
            "name": _text(self.ask("nvmlDeviceGetName")),
            "uuid": _text(self.ask("nvmlDeviceGetUUID")),
            "bus_id": None if pci is None else _text(pci.busId) or _text(pci.busIdLegacy),
            "units": self._units(),
            "mig": None if mode is None else bool(mode[0]),
        }

    def _units(self) -> int | None:
        """Return the multiprocessors: the library counts cores only."""
        cores = self.ask("nvmlDeviceGetNumGpuCores")
        capability = self.ask("nvmlDeviceGetCudaComputeCapability")
        if not cores or not capability or capability[0] < 6:
            return None
        each = CORES.get(tuple(capability), 128)
        return int(cores) // each if cores % each == 0 else None

    def _now(self) -> dict[str, Any]:
        nvml = self._nvml
        rates = self._number("nvmlDeviceGetUtilizationRates")
        memory = self._memory()
        warm = self._number("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        if warm is None:
            warm = self._number("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)
        reasons = self._number("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons")
        slowdown = self.ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return {
            "utilisation": None if rates is None else rates.gpu / 100,
            "memory_busy": None if rates is None else rates.memory / 100,
            "memory_used": None if memory is None else memory.used,
            "memory_total": None if memory is None else memory.total,
            "temperature_c": None if warm is None else float(warm),
            "slowdown_c": float(slowdown) if slowdown else None,
            "power_w": _watts(self._number("nvmlDeviceGetPowerUsage")),
            "power_limit_w": _watts(self._number("nvmlDeviceGetEnforcedPowerLimit")),
            "sm_clock_mhz": _float(self._number("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)),
            "max_sm_clock_mhz": _float(self._number("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)),
            "throttle": tuple(name for bits, name in THROTTLES if (reasons or 0) & bits),
        }

    def _memory(self, handle: Any = None) -> Any | None:
        """Return the memory's use, as far as a driver can tell it without what it keeps for itself."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        memory = None if version is None else self.ask("nvmlDeviceGetMemoryInfo", version, handle=handle)
        if memory is None:
            memory = self.ask("nvmlDeviceGetMemoryInfo", handle=handle)
        self._answered |= memory is not None
        return memory

    def _health(self) -> dict[str, Any]:
        nvml = self._nvml
        volatile = nvml.NVML_VOLATILE_ECC
        rows = self.ask("nvmlDeviceGetRemappedRows")
        if rows is not None:
            corrected, uncorrected, pending, failed = rows
            remapped = {
                "remapped_rows": corrected + uncorrected,
                "remap_pending": bool(pending),
                "remap_failed": bool(failed),
            }
        else:
            remapped = self._retired()
        return {
            "ecc_corrected": self.ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile),
            "ecc_uncorrected": self.ask(
                "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
            ),
            **remapped,
        }

    def _retired(self) -> dict[str, Any]:
        """Return what cards before Ampere do instead of remapping a row: they retire a page."""
        pages = [self.ask("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1)]
        known = [len(one) for one in pages if one is not None]
        pending = self.ask("nvmlDeviceGetRetiredPagesPendingStatus")
        return {
            "remapped_rows": sum(known) if len(known) == len(pages) else None,
            "remap_pending": None if pending is None else bool(pending),
        }

    def _links(self) -> dict[str, Any]:
        """Return how many NVLinks are up, and the sum of their errors; None where there are none."""
        states = []
        for link in range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            state = self.ask("nvmlDeviceGetNvLinkState", link)
            if state is None:
                break  # "not supported" by the first, "invalid argument" by the first that the card does not have
            states.append(bool(state))
        errors: int | None = None
        for link in (number for number, up in enumerate(states) if up):
            for kind in LINK_ERRORS:
                value = self.ask("nvmlDeviceGetNvLinkErrorCounter", link, kind)
                if value is None:
                    break
                errors = (errors or 0) + value
        return {"nvlinks_active": sum(states) if states else None, "nvlink_errors": errors}

    def _slices(self) -> Iterator[Slice]:
        for number in range(self.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
            if handle is None:
                continue
            about = self.ask("nvmlDeviceGetAttributes", handle=handle)
            memory = self._memory(handle)
            yield Slice(
                uuid=_text(self.ask("nvmlDeviceGetUUID", handle=handle)),
                name=_text(self.ask("nvmlDeviceGetName", handle=handle)),
                units=about.multiprocessorCount or None if about is not None else None,
                memory_total=None if memory is None else memory.total,
                memory_used=None if memory is None else memory.used,
                instance=self.ask("nvmlDeviceGetGpuInstanceId", handle=handle),
            )

    def _processes(self) -> tuple[tuple[GpuProcess, ...] | None, dict[int, int]]:
        """Return who uses the card, and the slice of each by pid; None if the driver does not say.

        A process may be listed under several headings; its memory is then the largest that is told.
        """
        lists = [self._listed(kind) for kind in ("Compute", "Graphics", "MPSCompute")]
        if all(one is None for one in lists):
            return None, {}
        memory: dict[int, int | None] = {}
        instances: dict[int, int] = {}
        for process in (each for one in lists for each in one or ()):
            before = memory.get(process.pid)
            now = process.usedGpuMemory
            memory[process.pid] = now if before is None else before if now is None else max(before, now)
            instance = getattr(process, "gpuInstanceId", None)
            if instance is not None and instance != UNKNOWN_UINT:
                instances[process.pid] = instance
        drawing = _drawing(*lists)
        found = [GpuProcess(pid=pid, memory=memory[pid], graphics=pid in drawing or None) for pid in sorted(memory)]
        return tuple(found), instances

    def _listed(self, kind: str) -> list[Any] | None:
        for version in ("_v3", "_v2"):
            found: list[Any] | None = self.ask(f"nvmlDeviceGet{kind}RunningProcesses{version}")
            if found is not None:
                return found
        return None


def _drawing(compute: list[Any] | None, graphics: list[Any] | None, mps: list[Any] | None) -> set[int]:
    """Return the pids that only draw; none where the driver does not list who computes."""
    computing = {each.pid for one in (compute, mps) for each in one or ()}
    return set() if compute is None else {each.pid for each in graphics or ()} - computing


def _text(value: Any) -> str | None:
    """Return a name as text: some versions of the package hand out bytes. An empty one is none."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text.strip() or None if isinstance(text, str) else None


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
