"""What to do about what the rules on speed and machine have found, and about figures that cannot be.

Pure: from a report value to sentences. What an ill loss or a bad save asks for is the business of ``waysback``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from overnight.report.units import finite, percent

Value = Mapping[str, Any]

RULES: Final = ("hardware", "throttle", "low_utilisation", "slowdown", "disk_space", "memory_creep", "straggler")

_HARDWARE: Final = (
    "a start on the same GPU would meet it again: leave it out (CUDA_VISIBLE_DEVICES), reset it "
    "(nvidia-smi --gpu-reset) or take another machine"
)
_LOOK: Final = {
    "hardware": "look after that GPU (nvidia-smi -q, the kernel's log) before a long run is started on it",
    "throttle": "see to its cooling and its power limit (nvidia-smi -q -d PERFORMANCE,POWER), and to what shares its "
    "air and its power",
    "slowdown": "compare the curves of step time, GPU temperature and clocks, and what else ran on the machine then",
    "disk_space": "make room there, keep fewer saves, or let --checkpoints and the log lie on another disk",
    "memory_creep": "something grows with the steps: losses kept with their graph, caches, workers of the loader, "
    "sequences that get longer",
    "straggler": "look at that rank's GPU (clocks, temperature, Xid lines), its host and its share of the data: all "
    "others wait for it",
}
_PROGRAM: Final = (
    "look at what the program did then (an index out of range, an assertion on the device), and at the GPU only if it "
    "comes again"
)
_EVEN: Final = "low_utilisation"


def of_figures(value: Value) -> Iterator[str]:
    """Yield figures that cannot be, and sources that say different things."""
    above = [one for one in value.get("figures") or () if one.get("impossible")]
    if above:
        reasons = value.get("reasons") or ["a wrong N, tokens, peak or number of devices"]
        largest = max(above, key=lambda one: float(one["value"]))
        yield (
            f"{largest['label']} {percent(largest['value'])} cannot be: an input is wrong. Likely: {reasons[0]}"
            + (f"; or {reasons[1]}" if len(reasons) > 1 else "")
        )
    for said in value.get("disagreements") or ():
        yield f"two sources disagree: {said}"


def of_rule(value: Value, one: Value) -> str | None:
    """Return what to look at for a verdict of these rules; None for one of another rule."""
    rule = str(one.get("rule"))
    if rule not in RULES:
        return None
    if rule == "hardware" and one.get("severity") == "critical":
        return f"{_HARDWARE}{_go_on(value)}"
    advice = _waits(value) if rule == _EVEN else _LOOK[rule]
    if rule == "hardware" and "the program may have caused it" in str(one.get("text")):
        advice = _PROGRAM
    over = _over(value, one)
    return f"{advice}{over}"


def of_end(value: Value) -> str:
    """Return what to do after a run that a broken GPU has ended."""
    return f"{_HARDWARE}{_go_on(value)}"


def _go_on(value: Value) -> str:
    good = value.get("checkpoint")
    return f"; then go on from {good['path']}" if isinstance(good, Mapping) and good.get("path") else ""


def _over(value: Value, one: Value) -> str:
    """Return that what was found was over by itself later, as a note of the same rule has it."""
    later = _behind(value.get("timeline") or (), one)
    note = next((other for other in later if other.get("rule") == one["rule"] and other["severity"] == "note"), None)
    return "" if note is None else f" (later: {note['text']})"


def _behind(entries: Sequence[Value], one: Value) -> Sequence[Value]:
    place = next((at for at, other in enumerate(entries) if other is one), len(entries))
    return entries[place + 1 :]


def _waits(value: Value) -> str:
    evidence = value.get("evidence") or {}
    data = finite(evidence.get("data_wait"))
    if data is not None and data > 0.05:
        return f"the log says that {percent(data)} of the step time is waiting for data: more workers, faster storage"
    name = shlex.quote(str(value.get("name")))
    return (
        "its GPUs wait for something: data, the host, another rank; "
        f"`overnight mfu {name}` says what the log tells of it, a profiler shows the gaps between kernels"
    )
