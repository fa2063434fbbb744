"""A line with a NaN loss is written -> the script receives its signal, in milliseconds.

Beside it a follower that polls the log once a second and sends the same signal, as a loop of `tail` and `grep` does.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from side import home, overnight, ratio, spread

VICTIM = """
import os, random, signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(time.monotonic_ns()))
for step in range(10):
    print(f"step: {step}, loss: 3.2, dt: 0.25", flush=True)
time.sleep(0.6 + random.random())
written = time.monotonic_ns()
print("step: 10, loss: nan, dt: 0.25", flush=True)
until = time.monotonic() + 20
while not got and time.monotonic() < until:
    time.sleep(0.2)
with open(sys.argv[1], "a") as out:
    out.write(f"{(got[0] - written) / 1e6}\\n" if got else "20000\\n")
"""


def by_overnight(folder: Path, number: int, out: Path) -> None:
    """Let Overnight watch one victim."""
    victim = folder / "victim.py"
    overnight(folder, "run", "--name", f"l{number}", "--settle", "0.1", "--", sys.executable, str(victim), str(out))
    overnight(folder, "wait", f"l{number}", "--timeout", "30", check=False)
    overnight(folder, "clean", f"l{number}", check=False)


def by_polling(folder: Path, number: int, out: Path) -> None:
    """Let a loop that looks once a second watch one victim."""
    log = folder / f"poll{number}.log"
    with log.open("ab") as stream:
        victim = subprocess.Popen([sys.executable, str(folder / "victim.py"), str(out)], stdout=stream)
    time.sleep(random.random())
    seen = 0
    while victim.poll() is None:
        with log.open("rb") as stream:
            stream.seek(seen)
            new = stream.read()
        seen += len(new)
        if b"loss: nan" in new:
            os.kill(victim.pid, signal.SIGINT)
            victim.wait()
            break
        time.sleep(1.0)


def tries(count: int, polled: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of ``count`` tries by Overnight and ``polled`` by the follower, taken in turns."""
    with home() as folder:
        (folder / "victim.py").write_text(VICTIM)
        ours, theirs = folder / "ours", folder / "theirs"
        every = max(1, count // polled)
        for number in range(count):
            by_overnight(folder, number, ours)
            if number % every == 0:
                by_polling(folder, number, theirs)
        return [float(line) for line in ours.read_text().split()], [float(line) for line in theirs.read_text().split()]


def measure(*, quick: bool, full: bool) -> list[dict[str, Any]]:
    """Return the table."""
    del full
    ours, polled = tries(5, 5) if quick else tries(100, 20)
    p99 = sorted(ours)[min(len(ours) - 1, int(len(ours) * 0.99))]
    return [
        {
            "what": "overnight",
            "tries": len(ours),
            "ms median (min-max)": spread(ours),
            "p99 ms": round(p99, 2),
            "ratio": "1 x",
        },
        {
            "what": "follower, 1 s polling",
            "tries": len(polled),
            "ms median (min-max)": spread(polled, 0),
            "p99 ms": round(max(polled)),
            "ratio": ratio(ours, polled) if statistics.median(ours) > 0 else "-",
        },
    ]
