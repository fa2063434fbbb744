"""The machine of a run in words: its GPUs, their errors, the host; the same sentences for the terminal and the page.

Pure: the part of the report value that ``hardware`` makes in, (label, text) out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from overnight.report.hardware import xid_words
from overnight.report.units import clock, finite, number, percent, size

Value = Mapping[str, Any]
Row = tuple[str, str]

GPUS: Final = 16
XIDS: Final = 12
_NOT_READABLE: Final = "kernel's log is not readable"
_REASONS: Final = {
    "power_cap": "power limit", "hw_slowdown": "hardware slowdown", "power_brake": "power brake",
    "app_clocks": "clocks that were set", "display_clocks": "display clocks", "sync_boost": "sync boost",
}  # fmt: skip


def rows(value: Value) -> list[Row]:
    """Return what is known of the machine; empty where no sensor told anything and nothing is missing."""
    found = value.get("hardware") or {}
    return [*_gpus(found), *_errors(value, found), *_host(value, found), *_sensors(found)]


def _gpus(found: Value) -> Iterator[Row]:
    gpus = found.get("gpus") or []
    driver = f", driver {found['driver']}" if found.get("driver") else ""
    for at, gpu in enumerate(gpus[:GPUS]):
        yield f"GPU {number(gpu.get('index'))}", gpu_words(gpu) + (driver if at == 0 else "")
    if len(gpus) > GPUS:
        yield "GPUs", f"{len(gpus) - GPUS} more: --json has all"
    if gpus and not found.get("certain"):
        yield "", "nobody could say which of them the run used"
    if found.get("trouble"):
        yield "GPUs", f"unknown: {found['trouble']}"


def gpu_words(gpu: Value) -> str:
    """Return one GPU: its name, how busy, hot and full it was, what it drew, whether it was slowed down or lost."""
    parts = [str(gpu.get("name") or "name unknown")]
    if finite(gpu.get("utilisation_mean")) is not None:
        parts.append(f"{percent(gpu['utilisation_mean'])} busy on average")
    if finite(gpu.get("temperature_most_c")) is not None:
        parts.append(f"at most {number(gpu['temperature_most_c'], 3)} C")
    power, limit = finite(gpu.get("power_mean_w")), finite(gpu.get("power_limit_w"))
    if power is not None:
        parts.append(f"{power:,.0f} W on average" + ("" if limit is None else f" of {limit:,.0f} W"))
    if finite(gpu.get("memory_most")) is not None:
        whole = f" of {size(gpu['memory_total'])}" if finite(gpu.get("memory_total")) is not None else ""
        parts.append(f"at most {size(gpu['memory_most'])}{whole} used")
    throttled = finite(gpu.get("throttled"))
    if throttled:
        reasons = ", ".join(_REASONS.get(str(one), str(one)) for one in gpu.get("throttle") or ())
        parts.append(f"slowed down in {percent(throttled)} of the samples ({reasons})")
    if gpu.get("lost"):
        parts.append(f"lost at {clock(gpu.get('lost_at'))} UTC: {gpu['lost']}")
    return ", ".join(parts)


def _errors(value: Value, found: Value) -> Iterator[Row]:
    """Yield the driver's error events with their times; of a run that went wrong also that there was none, or why."""
    xids = found.get("xids") or []
    for one in xids[:XIDS]:
        yield "GPU error", f"{clock(one.get('at'))} UTC: {xid_words(one)}"
    left = len(xids) - XIDS + (found.get("more_xids") or 0)
    if left > 0:
        yield "", f"{number(left)} more: --json has them"
    closed = [str(note) for note in found.get("notes") or () if _NOT_READABLE in str(note)]
    samples = (found.get("samples") or {}).get("gpu") or 0
    for note in closed:
        yield "kernel log", note
    for note in found.get("notes") or ():
        if str(note) not in closed:
            yield "note", str(note)
    if went_wrong(value) and value.get("kind") != "log" and not xids and not closed:
        if samples and not found.get("trouble"):
            yield "GPU errors", "none was reported (Xid events, kernel's log)"
        else:
            yield "GPU errors", "not known: no GPU was seen by a sensor, so nobody looked for Xid lines"


def went_wrong(value: Value) -> bool:
    """Say whether a run failed or stalled, so that what the hardware said is of interest even if it said nothing."""
    if (value.get("outcome") or {}).get("state") in ("failed", "gave_up"):
        return True
    return any(one.get("rule") in ("stall", "hardware") for one in value.get("timeline") or ())


def _host(value: Value, found: Value) -> Iterator[Row]:
    host = found.get("host")
    if not isinstance(host, Mapping):
        return
    parts = [str(value["host"])] if value.get("host") else []
    if finite(host.get("cpu_mean")) is not None:
        cores = f" of {number(host['processors'])} processors" if host.get("processors") else ""
        parts.append(f"CPU {percent(host['cpu_mean'])}{cores} on average")
    if finite(host.get("memory_least")) is not None:
        whole = f" of {size(host['memory_total'])}" if finite(host.get("memory_total")) is not None else ""
        parts.append(f"at least {size(host['memory_least'])}{whole} memory free")
    if finite(host.get("rss_most")):  # 0: no sample fell into an attempt
        parts.append(f"the run's processes held at most {size(host['rss_most'])}")
    if parts:
        yield "host", ", ".join(parts)
    for disk in host.get("disks") or ():
        if finite(disk.get("free")) is not None:
            whole = f" of {size(disk['total'])}" if finite(disk.get("total")) is not None else ""
            holds = " and ".join(map(str, disk.get("holds") or ())) or "disk"
            yield "disk", f"{holds} ({disk.get('mount')}): {size(disk['free'])}{whole} free at the end"


def _sensors(found: Value) -> Iterator[Row]:
    for said in (found.get("stale") or {}).values():
        yield "sensors", str(said)
