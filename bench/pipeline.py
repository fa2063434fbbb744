"""Lines through the whole of the live intake (follow, read, measure, judge, store), on one core.

Beside it a loop with one compiled regular expression that stores nothing, and `grep -c`. The same file, taken in turns.
"""

from __future__ import annotations

import random
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from side import ratio, spread

from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.intake.reading import Intake
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

LINE = re.compile(rb"step: (\d+), loss: ([-+.\dainfe]+), dt: ([.\d]+)")


def make_log(path: Path, lines: int) -> None:
    """Write a healthy log."""
    draw = random.Random(1)
    with path.open("w") as out:
        for step in range(lines):
            out.write(f"step: {step}, loss: {3.2 + draw.random() / 10:.4f}, dt: 0.25{step % 10}\n")


def by_intake(log: Path) -> float:
    """Return the seconds the intake takes to read, judge and store the log."""
    with tempfile.TemporaryDirectory() as home:
        folder = RunFolder(Path(home) / "runs" / "bench")
        folder.create()
        spec = RunSpec(
            name="bench",
            argv=("x",),
            executable="x",
            cwd="/",
            log=str(log),
            params=1_000_000,
            tokens_per_step=1000,
            peak_tflops=1,
        )
        facts = Facts(folder)
        monitor = make_monitor(spec, facts.note)
        intake = Intake(folder, spec, monitor, facts, start=0, pids=())
        intake.begin_attempt(1)
        began = time.monotonic()
        while True:
            intake.read(clock=0.0)
            intake.commit()
            if not intake.more:
                break
        took = time.monotonic() - began
        intake.close()
        return took


def by_regex(log: Path) -> float:
    """Return the seconds a plain loop takes to find the numbers and look at the loss."""
    began = time.monotonic()
    with log.open("rb") as stream:
        for line in stream:
            found = LINE.search(line)
            if found is not None and float(found[2]) > 20:
                break
    return time.monotonic() - began


def by_grep(log: Path) -> float:
    """Return the seconds of `grep -c`."""
    began = time.monotonic()
    subprocess.run(["grep", "-c", "loss: nan", str(log)], stdout=subprocess.PIPE, check=False)
    return time.monotonic() - began


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    lines, count = (50_000, 3) if quick else (500_000, 5)
    kinds = {"overnight, live intake": by_intake, "loop with one regex": by_regex, "grep -c": by_grep}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.log"
        make_log(log, lines)
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(count):
            for name, take in kinds.items():
                times[name].append(take(log))
    ours = times["overnight, live intake"]
    return [
        {
            "what": name,
            "lines/s": f"{lines / statistics.median(values):,.0f}",
            "us a line (min-max)": spread([value / lines * 1e6 for value in values]),
            "of the intake": ratio(ours, values),
        }
        for name, values in times.items()
    ]
