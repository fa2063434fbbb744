"""The figures on the page of one run: speed, MFU with all it was divided by, devices, and where sources disagree.

Pure text in, text out, as in ``render``. Unknown is said to be so, with what would make it known.
"""

from __future__ import annotations

import re

from overnight.cli.render import beside_step, figure, percent, real, span, thousands
from overnight.kept import ENDED
from overnight.printable import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from overnight.client import Status

Row = tuple[str, str]

SILENT_S = 60.0
"""A shorter silence is not worth a line."""

GPUS = 8

MISSING = {
    "tokens_per_second": "give --tokens-per-step",
    "tflops": "give --params and --tokens-per-step",
    "mfu": "give --params, --tokens-per-step and --peak-tflops",
    "eta_s": "give --steps",
    "params": "give --params, --config or --model",
    "loss": "no progress line has been read yet",
    "step": "no progress line has been read yet",
}

ASKS = ("give ", "print ", "wait ", "no progress")
"""How a word begins that only says what was not given; any other one says what is wrong."""

OVER = {
    "no progress line has been read yet": "no progress line was read",
    "wait for a progress line": "no progress line was read",
    "wait for the next progress line": "its last attempt printed no progress line",
    "print dt, or wait for a second line with a higher step": "print dt (no second line with a higher step came)",
    "not read yet": "not read",
}
"""What is said of an ended run instead of what would make a figure known: nobody need wait for anything."""


def figure_rows(one: Status) -> list[Row]:
    """Return (label, text) for each figure, the unknown ones folded where a flag would make them known."""
    steps = f" of {harmless(str(one['steps']))}" if one.get("steps") else ""
    known = {
        "step": ("step", figure(one["step"], 12) + steps + beside_step(one)),
        "loss": ("loss", f"{figure(one['loss'], 6)} (window average {_or_unknown(figure(one['loss_avg'], 6))})"),
        "tokens_per_second": ("tokens/s", _speed(one)),
        "tflops": ("TFLOP/s", figure(one["tflops"], 5) + ("" if (one["devices"] or 1) == 1 else " per device")),
        "mfu": ("MFU", _mfu(one)),
        "params": ("params", _params(one)),
    }
    if not one["ended_at"]:
        known["eta_s"] = ("left", span(one["eta_s"]))
    rows, lacking, flags = [], [], []
    for key, (label, text) in known.items():
        why = _why_unknown(one, key) if one[key] is None else ""
        wanted = re.findall(r"--[a-z][a-z-]*", why) if why.startswith(ASKS) else []
        if wanted:  # a line for each figure that nobody asked for would hide those that matter
            lacking.append(label)
            flags += wanted
        else:
            rows.append((label, f"unknown: {why}" if one[key] is None else text))
    if lacking:
        rows.append(("unknown", f"{', '.join(lacking)}: give {', '.join(dict.fromkeys(flags))}"))
    return [*rows, *_beside(one), *_silence(one)]


def _beside(one: Status) -> Iterator[Row]:
    """Yield what stands beside the figures: goodput, devices, what does not fit together."""
    if real(one.get("goodput")) is not None:
        until = "" if one["ended_at"] else " so far"
        yield "goodput", f"{percent(one['goodput'])} of the time{until} was steps that count"
    if (one.get("grad_norm_nonfinite") or 0) > 0:
        yield "grad norm", f"not finite {_times(one['grad_norm_nonfinite'])}"
    yield from _devices(one)
    for text in _list(one.get("disagreements")):
        yield "check", harmless(str(text))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _or_unknown(text: str) -> str:
    return "unknown" if text == "-" else text


def _speed(one: Status) -> str:
    beside = [
        f"{thousands(value)} {words}"
        for name, words in (("tokens_per_second_wall", "over all time"), ("useful_tokens_per_second", "of them useful"))
        if isinstance(value := one.get(name), (int, float))
    ]
    return thousands(one["tokens_per_second"]) + (f" ({', '.join(beside)})" if beside else "")


def _params(one: Status) -> str:
    active = one.get("params_active")
    beside = (
        f", {active:,} active"
        if isinstance(active, int) and real(active) is not None and active != one["params"]
        else ""
    )
    return f"{one['params'] or 0:,}{beside}{_from(one['params_source'])}"


# -- MFU ---------------------------------------------------------------------------------------------------------------


def _mfu(one: Status) -> str:
    trouble = one.get("mfu_trouble")
    if trouble:
        return f"unknown: {harmless(str(trouble))}{_basis(one)}"
    mfu = one["mfu"]
    if isinstance(mfu, (int, float)) and mfu > 1:  # of an older version, which did not say why
        return f"unknown: {percent(mfu)} cannot be: check --params, --tokens-per-step, --peak-tflops, --devices"
    parts = [f"whole run {_or_unknown(percent(one['mfu_avg']))}"]
    for name, words in (("mfu_clean", "clean steps"), ("mfu_wall", "over all time")):
        if isinstance(one.get(name), (int, float)):
            parts.append(f"{words} {percent(one[name])}")
    return f"{percent(mfu)} ({', '.join(parts)}){_basis(one)}{_attention(one)}"


def _attention(one: Status) -> str:
    said = []
    beside, convention = one.get("mfu_attention"), one.get("convention_attention")
    if isinstance(beside, (int, float)):
        by = f" ({harmless(str(convention))})" if convention else ""
        said.append(f"with attention {percent(beside)}{by}")
    if isinstance(one.get("hfu"), (int, float)):
        said.append(f"HFU {percent(one['hfu'])}, with what is recomputed")
    return "".join(f"; {text}" for text in said)


def _basis(one: Status) -> str:
    peak = one["peak_flops"]
    if not isinstance(peak, (int, float)):
        return ""
    devices = f"{one['devices']} x " if (one["devices"] or 1) != 1 else ""
    source = str(one["peak_source"] or "")
    value = f"{peak / 1e12:g} TFLOP/s"
    # A source that begins with the value itself says what it is and where it stands.
    said = harmless(source) if source.startswith(value) else f"{value}{_from(source)}"
    return f", {harmless(one['convention'] or '?')} over {devices}{said}"


def _from(source: str | None) -> str:
    return f" from {harmless(source)}" if source else ""


def _why_unknown(one: Status, key: str) -> str:
    unknown = one.get("unknown")
    why = unknown.get(key) if isinstance(unknown, dict) else None
    said = str(why or MISSING.get(key, "not read yet"))
    if one["state"] in ENDED:
        for wait, instead in OVER.items():
            said = said.replace(wait, instead)
    return said


# -- the machine -------------------------------------------------------------------------------------------------------


def _devices(one: Status) -> Iterator[Row]:
    gpus = [gpu for gpu in _list(one.get("gpus")) if isinstance(gpu, dict)]
    own = [gpu for gpu in gpus if gpu.get("ours")] or gpus
    for gpu in own[:GPUS]:
        yield f"GPU {harmless(str(gpu.get('index')))[:12]}", _gpu(gpu)
    if len(own) > GPUS:
        yield "GPUs", f"{len(own) - GPUS} more"
    if one.get("gpu_trouble"):
        yield "GPU", f"unknown: {harmless(str(one['gpu_trouble']))}"
    host = one.get("host")
    if isinstance(host, dict) and not one["ended_at"]:
        text = _host(host)
        if text:
            yield "host", text
    sensors = one.get("sensors")
    for told in sensors.values() if isinstance(sensors, dict) else ():
        if isinstance(told, dict) and told.get("stale") and not one["ended_at"]:
            yield "sensors", harmless(str(told["stale"]))


def _gpu(gpu: dict[str, Any]) -> str:
    parts = [harmless(str(gpu.get("name") or "name unknown"))]
    if gpu.get("lost"):
        return f"{parts[0]}: lost: {harmless(str(gpu['lost']))}"
    if (busy := real(gpu.get("utilisation"))) is not None:
        parts.append(f"{busy:.0%} busy")
    used, memory = real(gpu.get("memory_used")), real(gpu.get("memory_total"))
    if used is not None and memory is not None:
        parts.append(f"{_gib(used)} of {_gib(memory)} GiB")
    if (heat := real(gpu.get("temperature_c"))) is not None:
        parts.append(f"{heat:.4g} °C")
    if (power := real(gpu.get("power_w"))) is not None:
        limit = real(gpu.get("power_limit_w"))
        parts.append(f"{power:.0f}" + (" W" if limit is None else f" of {limit:.0f} W"))
    if throttle := _list(gpu.get("throttle")):
        parts.append(f"slowed down ({', '.join(harmless(str(one)) for one in throttle)})")
    if gpu.get("ours") is None:
        parts.append("perhaps not of this run")
    return ", ".join(parts)


def _host(host: dict[str, Any]) -> str:
    parts = []
    if (busy := real(host.get("cpu"))) is not None:
        cores = host.get("processors")
        parts.append(f"CPU {busy:.0%}" + (f" of {harmless(str(cores))}" if cores else ""))
    total, free = real(host.get("memory_total")), real(host.get("memory_available"))
    if total is not None and free is not None:
        parts.append(f"{_gib(free)} of {_gib(total)} GiB memory free")
    parts += [
        f"{_gib(left)} GiB free on {harmless(str(disk.get('mount')))}"
        for disk in _list(host.get("disks"))
        if isinstance(disk, dict) and (left := real(disk.get("free"))) is not None
    ]
    return ", ".join(parts)


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.3g}"


def _list(value: object) -> list[Any]:
    """Return what has to be a list; an edited file may hold anything."""
    return value if isinstance(value, list) else []


def _silence(one: Status) -> list[Row]:
    """Return what a run that prints no step has announced, or for how long it has been silent."""
    silent = one.get("silent_s")
    long = isinstance(silent, (int, float)) and silent >= SILENT_S
    if one["state"] not in ("starting", "running"):
        return []
    if one.get("phase"):
        return [
            (
                "phase",
                f"{harmless(str(one['phase']))}, as the log said" + (f"; silent for {span(silent)}" if long else ""),
            )
        ]
    return [("silent", f"for {span(silent)}")] if long else []
