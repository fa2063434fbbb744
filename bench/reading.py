"""A finished log of five million lines, read and judged, beside what people use on logs.

Reading alone (readers and meter, no rules), replay with all rules, and the whole report, each in a process of its own;
`grep -c` is the limit of a scan, `grep -oE` of a number what a person would type. Each writes to a pipe, for grep stops
at the first match where its output goes to /dev/null. The same file, taken in turns.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline import make_log
from side import PEERS, ratio, spread

READ = """
import sys
from overnight.readers.sniff import Sniffer
from overnight.past.rereading import reread
from overnight.spec import RunSpec
from overnight.wiring import make_monitor
spec = RunSpec(name="bench", argv=("x",), executable="x", cwd="/", log=sys.argv[1])
monitor = make_monitor(spec, print)
monitor.rules = ()
monitor.change((), (), monitor.figures)
from pathlib import Path
for _ in reread(monitor, Path(sys.argv[1])):
    pass
assert monitor.meter.records == int(sys.argv[2]), monitor.meter.records
"""

LOOP = r"""
import re, sys
find = re.compile(rb"step: (\d+), loss: ([-+.\dainfe]+), dt: ([.\d]+)").search
count = 0
with open(sys.argv[1], "rb") as stream:
    for line in stream:
        found = find(line)
        if found is not None and float(found[2]) < 20:
            count += 1
assert count == int(sys.argv[2])
"""

KEYS = r"""
import re, sys
find = re.compile(r"([A-Za-z_]\w*)[ ]*[:=][ ]*([-+.\w]+)").findall
count = 0
with open(sys.argv[1]) as stream:
    for line in stream:
        values = dict(find(line))
        count += float(values["loss"]) < 20
assert count == int(sys.argv[2])
"""

POLARS = r"""
import sys
import polars as pl
lines = pl.scan_csv(sys.argv[1], has_header=False, separator="\x01", quote_char=None, new_columns=["line"])
found = lines.select(pl.col("line").str.extract(r"loss: ([0-9.]+)", 1).cast(pl.Float64).alias("loss"))
assert found.filter(pl.col("loss") < 20).select(pl.len()).collect().item() == int(sys.argv[2])
"""


def kinds(log: Path, lines: int) -> dict[str, list[str]]:
    """Return the command lines by name."""
    python, ours = [sys.executable, "-c"], [str(Path(sys.executable).with_name("overnight"))]
    end = [str(log), str(lines)]
    found = {
        "grep -c": ["sh", "-c", f"LC_ALL=C grep -c 'loss: 3' '{log}' | cat"],
        "grep -oE of the number, LC_ALL=C": ["sh", "-c", f"LC_ALL=C grep -oE 'loss: [0-9.]+' '{log}' | cat"],
        "grep -oE of the number": ["sh", "-c", f"grep -oE 'loss: [0-9.]+' '{log}' | cat"],
        "overnight, reading alone": [*python, READ, *end],
        "overnight replay, all rules": [*ours, "replay", str(log), "--vocab-size", "50257"],
        "overnight report": [*ours, "report", str(log)],
        "Python loop, one regex": [*python, LOOP.replace("\\", "\\"), *end],
        "Python loop, general key/value": [*python, KEYS.replace("\\", "\\"), *end],
    }
    if PEERS.exists():
        found["polars regex, all cores"] = [str(PEERS), "-c", POLARS.replace("\\", "\\"), *end]
    return found


# A process counts as its own what its parent had when it was made: a small parent, then, for each command.
STARTER = """
import os, sys, time
began = time.monotonic()
out = os.open("/dev/null", os.O_WRONLY)
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out, 1)])
_, status, used = os.wait4(pid, 0)
print(time.monotonic() - began, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def once(argv: list[str]) -> tuple[float, float]:
    """Return (seconds, largest RSS in MB, not below the 9 of what started it) of a command."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", STARTER, *argv],
        env={**os.environ, "OVERNIGHT_HOME": "/nonexistent"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv[:2]} ended with {done.returncode}")
    seconds, kib = map(float, done.stdout.split())
    return seconds, kib * 1024 / 1e6


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    lines, count = (200_000, 2) if quick else (5_000_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.log"
        make_log(log, lines)
        commands = kinds(log, lines)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(count):
            for name, argv in commands.items():
                taken[name].append(once(argv))
    seconds = {name: [one[0] for one in found] for name, found in taken.items()}
    scan, number = seconds["grep -c"], seconds["grep -oE of the number, LC_ALL=C"]
    return [
        {
            "what": name,
            "s (min-max)": spread(values),
            "of grep -c": ratio(scan, values),
            "of grep -oE (C)": ratio(number, values),
            "RSS MB": round(statistics.median(one[1] for one in taken[name])),
        }
        for name, values in seconds.items()
    ]
