"""The recorded healthy nights, judged by the rules on speed alone: none of them alarms.

Beside the rules that have judged the nights from the beginning; many records at once, and one by one.
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from nights import HERE, NIGHTS
from overnight.events import Verdict
from overnight.monitor import Monitor
from overnight.rules.slowdown import Slowdown
from overnight.rules.straggler import Straggler
from overnight.settings import resolve
from overnight.wiring import make_monitor

HEALTHY = [name for name, night in NIGHTS.items() if night.healthy]


def judged(name: str, home: Path, block: int) -> tuple[list[Verdict], dict[str, Any]]:
    """Return what the two rules say of a night that is read in blocks of so many bytes, and what they remember."""
    spec = resolve({"name": "night"}, (), home=home).spec
    made = make_monitor(spec, print)
    monitor = Monitor(
        make_readers=made.make_readers, rules=[Slowdown(), Straggler()], time_rules=[], figures=made.figures, window=10
    )
    monitor.begin_attempt(1)
    data = lzma.decompress((HERE / name / "output.log.xz").read_bytes())
    found = []
    for begin in range(0, len(data), block):
        found += monitor.feed(data[begin : begin + block], 1e9).verdicts
    found += monitor.flush(1e9).verdicts
    assert monitor.meter.records > 1000
    return found, monitor.memories


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alarm_in_a_healthy_night(name: str, tmp_path: Path) -> None:
    found, memories = judged(name, tmp_path, 1 << 20)
    assert [one.text for one in found if one.action != "note"] == []
    small, same = judged(name, tmp_path, 997)  # too few lines to be judged at once
    assert small == found
    assert same == memories
