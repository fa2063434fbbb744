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

# What lies beyond these is no measurement: a sick card or driver hands out all bits set, or what was in the memory.
MOST_COUNT, MOST_ERRORS, MOST_CARDS, MOST_SLICES = 1 << 62, 10**9, 4096, 64
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 50
COLDEST_C, HOTTEST_C, MOST_MW, MOST_MHZ = -50.0, 200.0, 10e6, 100e3


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
        if not 0 <= count <= MOST_CARDS:
            raise Absent(f"the NVIDIA driver does not work: it tells of {count} GPUs")
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
            "mig": None if mode is None else _flag(mode[0]),
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
            "utilisation": None if rates is None else _share(rates.gpu),
            "memory_busy": None if rates is None else _share(rates.memory),
            **_bytes(memory),
            "temperature_c": _within(warm, COLDEST_C, HOTTEST_C),
            "slowdown_c": _within(slowdown or None, COLDEST_C, HOTTEST_C),
            "power_w": _watts(self._number("nvmlDeviceGetPowerUsage")),
            "power_limit_w": _watts(self._number("nvmlDeviceGetEnforcedPowerLimit")),
            "sm_clock_mhz": _within(self._number("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 0, MOST_MHZ),
            "max_sm_clock_mhz": _within(self._number("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM), 0, MOST_MHZ),
            "throttle": tuple(name for bits, name in THROTTLES if (_count(reasons) or 0) & bits),
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
            mended = [_count(one, MOST_ERRORS) for one in rows[:2]]
            known = [one for one in mended if one is not None]
            remapped = {
                "remapped_rows": sum(known) if len(known) == len(mended) else None,
                "remap_pending": _flag(rows[2]),
                "remap_failed": _flag(rows[3]),
            }
        else:
            remapped = self._retired()
        return {
            "ecc_corrected": _count(
                self.ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile)
            ),
            "ecc_uncorrected": _count(
                self.ask("nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile), MOST_ERRORS
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
            "remap_pending": _flag(pending),
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
                value = _count(self.ask("nvmlDeviceGetNvLinkErrorCounter", link, kind))
                if value is None:
                    break
                errors = (errors or 0) + value
        return {"nvlinks_active": sum(states) if states else None, "nvlink_errors": errors}

    def _slices(self) -> Iterator[Slice]:
        for number in range(_count(self.ask("nvmlDeviceGetMaxMigDeviceCount"), MOST_SLICES) or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
            if handle is None:
                continue
            about = self.ask("nvmlDeviceGetAttributes", handle=handle)
            memory = self._memory(handle)
            yield Slice(
                uuid=_text(self.ask("nvmlDeviceGetUUID", handle=handle)),
                name=_text(self.ask("nvmlDeviceGetName", handle=handle)),
                units=_count(about.multiprocessorCount) or None if about is not None else None,
                **_bytes(memory),
                instance=self.ask("nvmlDeviceGetGpuInstanceId", handle=handle),
            )

    def _processes(self) -> tuple[tuple[GpuProcess, ...] | None, dict[int, int]]:
        """Return who uses the card, and the slice of each by pid; None if the driver does not say who computes.

        A process may be listed under several headings; its memory is then the largest that is told.
        """
        compute, graphics, mps = (self._listed(kind) for kind in ("Compute", "Graphics", "MPSCompute"))
        if compute is None:
            return None, {}  # whoever draws is not all: an empty list would say that nobody computes
        memory: dict[int, int | None] = {}
        instances: dict[int, int] = {}
        for process in (each for one in (compute, graphics, mps) for each in one or ()):
            before = memory.get(process.pid)
            now = _count(process.usedGpuMemory, MOST_BYTES)
            memory[process.pid] = now if before is None else before if now is None else max(before, now)
            instance = getattr(process, "gpuInstanceId", None)
            if instance is not None and instance != UNKNOWN_UINT:
                instances[process.pid] = instance
        drawing = {each.pid for each in graphics or ()} - {each.pid for one in (compute, mps) for each in one or ()}
        found = [GpuProcess(pid=pid, memory=memory[pid], graphics=pid in drawing or None) for pid in sorted(memory)]
        return tuple(found), instances

    def _listed(self, kind: str) -> list[Any] | None:
        for version in ("_v3", "_v2"):
            found: list[Any] | None = self.ask(f"nvmlDeviceGet{kind}RunningProcesses{version}")
            if found is not None:
                return found
        return None


def _text(value: Any) -> str | None:
    """Return a name as text: some versions of the package hand out bytes. An empty one is none."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text.strip() or None if isinstance(text, str) else None


def _within(value: Any, least: float, most: float) -> float | None:
    return float(value) if value is not None and least <= value <= most else None


def _share(percent: Any) -> float | None:
    known = _within(percent, 0, 100)
    return None if known is None else known / 100


def _watts(milliwatts: Any) -> float | None:
    known = _within(milliwatts, 0, MOST_MW)
    return None if known is None else known / 1000


def _count(value: Any, most: int = MOST_COUNT) -> int | None:
    return int(value) if value is not None and 0 <= value <= most and value != UNKNOWN_UINT else None


def _flag(value: Any) -> bool | None:
    """Return a yes or no; anything but 0 and 1 is neither."""
    return bool(value) if value in (0, 1) else None


def _bytes(memory: Any) -> dict[str, int | None]:
    """Return the memory's fields; more use than there is memory is no use that is known."""
    total = None if memory is None else _count(memory.total, MOST_BYTES)
    total = None if total is None or total < LEAST_BYTES else total
    # Exactly 4 GiB less a byte is no use either: memory is handed out in pages.
    used = None if memory is None else _count(memory.used, MOST_BYTES if total is None else total)
    return {"memory_total": total, "memory_used": used}
