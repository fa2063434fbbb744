"""The error events of NVIDIA's driver: from the driver itself as they happen, and from the kernel's log.

Either source may be closed to a user or a container, so both are asked, and what both tell is told once. What an event
means for a run is for the rules.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from overnight.exits.symptoms import XID
from overnight.sensors import Gpu, Xid
from overnight.sensors.nvml import Nvidia

KMSG: Final = Path("/dev/kmsg")
RECORD_BYTES: Final = 8192  # the kernel's own limit of one record
MOST_RECORDS: Final = 20_000
TEXT_CHARS: Final = 300
WAIT_MS: Final = 1000
REST_S: Final = 5.0
SAME_S: Final = 10.0
MOST: Final = 64
"""Events in one sample at most: a broken card can tell thousands a second."""

MEANINGS: Final = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    43: "GPU stopped processing",
    45: "preemptive cleanup, due to previous errors",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failure",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
"""In short what NVIDIA's list of Xid errors says, for events of which the kernel's log tells nothing."""

_RECORD: Final = re.compile(r"^\d+,\d+,(?P<at_us>\d+),[^;]*;(?P<text>.*)$")
_BUS: Final = re.compile(r"(?:(?P<domain>[0-9a-fA-F]+):)?(?P<bus>[0-9a-fA-F]+):(?P<device>[0-9a-fA-F]+)(?:\.\d+)?")


def bus_of(text: str | None) -> tuple[int, int, int] | None:
    """Return (domain, bus, device) of a PCI address: NVML says 00000000:41:00.0, the kernel's log PCI:0000:41:00."""
    found = None if text is None else _BUS.fullmatch(text)
    return found and (int(found["domain"] or "0", 16), int(found["bus"], 16), int(found["device"], 16))


class Events:
    """Waits for the driver's events in a thread of its own, which ends with the process. ``wake`` is set by each."""

    def __init__(self, library: Nvidia, wake: threading.Event) -> None:
        self._nvml: Any = library.nvml
        self._failures = library.failures
        self._wake = wake
        self._found: list[Xid] = []
        self._lock = threading.Lock()
        self._devices: dict[int, str | None] = {}
        self.waiting = self._begin(library)

    def _begin(self, library: Nvidia) -> bool:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            count = nvml.nvmlDeviceGetCount()
        except self._failures:
            return False
        for index in range(count):
            handle, _ = library.handle(index)
            if handle is not None and self._register(handle, events):
                self._devices[_address(handle)] = self._bus_id(handle)
        if self._devices:
            threading.Thread(target=self._wait, args=(events,), daemon=True).start()
        return bool(self._devices)

    def _register(self, handle: Any, events: Any) -> bool:
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        except self._failures:
            return False
        return True

    def _bus_id(self, handle: Any) -> str | None:
        try:
            found = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        except self._failures:
            return None
        return found.decode("ascii", "replace") if isinstance(found, bytes) else str(found)

    def _wait(self, events: Any) -> None:
        timeout = self._nvml.NVML_ERROR_TIMEOUT
        while True:
            try:
                event = self._nvml.nvmlEventSetWait(events, WAIT_MS)
            except self._failures as error:
                if getattr(error, "value", None) != timeout:
                    time.sleep(REST_S)  # a lost card makes every wait fail at once, while the others' events still come
                continue
            one = Xid(code=int(event.eventData), at=time.time(), device=self._devices.get(_address(event.device)))
            with self._lock:
                if len(self._found) < MOST:
                    self._found.append(one)
            self._wake.set()

    def take(self) -> list[Xid]:
        """Return what has happened since the last time."""
        with self._lock:
            found, self._found = self._found, []
        return found


def _address(handle: Any) -> int:
    """Return where a handle points: two of the same card are different objects."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class KernelLog:
    """The lines of the kernel's log that tell of an Xid, from a time on. ``closed``: why it cannot be read, or None."""

    def __init__(self, path: Path, since: float) -> None:
        self._since = since
        self._handle = -1
        self.closed: str | None = None
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.closed = (
                f"the kernel's log is not readable ({path}: {error.strerror}), so Xid lines in it are not seen"
            )

    def take(self) -> list[Xid]:
        """Return what was written since the last time."""
        found: list[Xid] = []
        began = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
        for _ in range(MOST_RECORDS if self._handle >= 0 else 0):
            try:
                data = os.read(self._handle, RECORD_BYTES)
            except BrokenPipeError:
                continue  # what was to be read next has been overwritten: the next read goes on behind the gap
            except BlockingIOError:
                break
            except OSError as error:
                self.closed = f"the kernel's log is not readable ({error.strerror}), so Xid lines in it are not seen"
                break
            if not data:
                break
            found += self._xids(data.decode("utf-8", "replace"), began)
        return found[-MOST:]

    def _xids(self, text: str, began: float) -> Iterable[Xid]:
        for line in text.splitlines():
            record = _RECORD.match(line)
            told = XID.search(record["text"]) if record is not None else None
            if record is None or told is None:
                continue
            at = began + int(record["at_us"]) / 1e6
            if at >= self._since:
                yield Xid(code=int(told["code"]), at=at, device=told["device"], text=record["text"][:TEXT_CHARS])


class Xids:
    """Both sources as one. What was told in the last seconds of the same card is not told again."""

    def __init__(self, sources: Sequence[Events | KernelLog]) -> None:
        self._sources = sources
        self._told: list[Xid] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """Return which source is closed to us, in sentences."""
        return tuple(one.closed for one in self._sources if isinstance(one, KernelLog) and one.closed)

    def take(self, gpus: Sequence[Gpu]) -> tuple[Xid, ...]:
        """Return what has happened since the last time, in order of time, with the number of the card."""
        numbers = {bus_of(one.bus_id): one.index for one in gpus if one.bus_id}
        fresh: list[Xid] = []
        found = [one for source in self._sources for one in source.take()]
        for one in sorted(found, key=lambda xid: (not xid.text, xid.at)):  # the kernel's words before the bare number
            if not any(_same(one, other) for other in (*self._told, *fresh)):
                text = one.text or MEANINGS.get(one.code, "")
                fresh.append(msgspec.structs.replace(one, index=numbers.get(bus_of(one.device)), text=text))
        newest = max((one.at for one in (*self._told, *fresh)), default=0.0)
        self._told = [one for one in (*self._told, *fresh) if one.at >= newest - SAME_S]
        return tuple(sorted(fresh, key=lambda xid: xid.at)[:MOST])


def _same(one: Xid, other: Xid) -> bool:
    return one.code == other.code and bus_of(one.device) == bus_of(other.device) and abs(one.at - other.at) <= SAME_S
