"""A run that prints one line a second: what watching costs, in CPU as a share of one core and in memory.

Memory is of guard, shim and supervisor together (RSS counts shared pages once for each process, PSS shares them out).
Beside it a loop that polls the same log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from side import home, overnight, status

TRAINING = """
import time
step = 0
while True:
    print(f"step: {step}, loss: 3.2, dt: 1.0", flush=True)
    step += 1
    time.sleep(1.0)
"""

POLLER = """
import sys, time
seen = 0
while True:
    with open(sys.argv[1], "rb") as stream:
        stream.seek(seen)
        new = stream.read()
    seen += len(new)
    if b"nan" in new:
        break
    time.sleep(1.0)
"""

FLOOD = """
import sys
block = 10_000
for start in range(0, int(sys.argv[1]), block):
    sys.stdout.write("".join(f"step: {step}, loss: 3.2, dt: 0.01\\n" for step in range(start, start + block)))
    sys.stdout.flush()
import time
time.sleep(600)
"""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used, to the nanosecond (the tick of /proc/PID/stat is too coarse)."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def memory_mb(pids: list[int]) -> tuple[float, float]:
    """Return (RSS, PSS) of several processes in megabytes."""
    rss = pss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            rss += int(line.split()[1]) if line.startswith("Rss:") else 0
            pss += int(line.split()[1]) if line.startswith("Pss:") else 0
    return rss * 1024 / 1e6, pss * 1024 / 1e6


def keepers(folder: Path, name: str) -> list[int]:
    """Return the pids of guard, shim and supervisor."""
    written = json.loads((folder / "runs" / name / "shim.json").read_text())
    return [written[role]["pid"] for role in ("guard", "shim", "supervisor") if written.get(role)]


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    seconds = 10 if quick else 60
    rows = []
    with home() as folder:
        (folder / "train.py").write_text(TRAINING)
        (folder / "poll.py").write_text(POLLER)
        overnight(folder, "run", "--name", "rest", "--settle", "3", "--", sys.executable, str(folder / "train.py"))
        log = status(folder, "rest")["log"]
        poller = subprocess.Popen([sys.executable, "-I", "-S", str(folder / "poll.py"), log])
        pids = keepers(folder, "rest")
        time.sleep(12)  # the first steps are shown sooner than the rest of the night
        before, before_poller, began = [cpu_s(pid) for pid in pids], cpu_s(poller.pid), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        share = [100 * (cpu_s(pid) - was) / took for pid, was in zip(pids, before, strict=True)]
        rss, pss = memory_mb(pids)
        rows.append(_row("overnight (guard + shim + supervisor)", sum(share), rss, pss))
        share_poller = 100 * (cpu_s(poller.pid) - before_poller) / took
        rows.append(_row("loop polling once a second", share_poller, *memory_mb([poller.pid])))
        poller.kill()
        poller.wait()
        lines = 100_000 if quick else 10_000_000
        rows.append(_flood(folder, lines))
    return rows


def _flood(folder: Path, lines: int) -> dict[str, Any]:
    (folder / "flood.py").write_text(FLOOD)
    overnight(
        folder, "run", "--name", "flood", "--settle", "0.1", "--", sys.executable, str(folder / "flood.py"), str(lines)
    )
    until = time.monotonic() + 1200
    while time.monotonic() < until and status(folder, "flood")["records"] < lines:
        time.sleep(1.0)
    time.sleep(1.0)
    return _row(f"overnight after {lines:,} lines", None, *memory_mb(keepers(folder, "flood")))


def _row(what: str, share: float | None, rss: float, pss: float) -> dict[str, Any]:
    shown = "-" if share is None else f"{share:.3f}"
    return {"what": what, "CPU % of a core": shown, "RSS MB": round(rss, 1), "PSS MB": round(pss, 1)}
