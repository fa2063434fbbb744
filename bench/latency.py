"""A line with a NaN loss is written -> the script receives its signal, in milliseconds.

Beside it a follower that polls the log once a second and sends the same signal, as a loop of `tail` and `grep` does,
and one that is woken by the watchfiles package with its defaults.
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

from side import PEERS, home, overnight, ratio, spread

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


WATCHER = """
import os, signal, sys
from watchfiles import watch
log, pid, seen = sys.argv[1], int(sys.argv[2]), 0
for _ in watch(log):
    with open(log, "rb") as stream:
        stream.seek(seen)
        new = stream.read()
    seen += len(new)
    if b"loss: nan" in new:
        os.kill(pid, signal.SIGINT)
        break
"""


def by_watchfiles(folder: Path, number: int, out: Path) -> None:
    """Let a follower that watchfiles wakes watch one victim."""
    log = folder / f"watch{number}.log"
    with log.open("ab") as stream:
        victim = subprocess.Popen([sys.executable, str(folder / "victim.py"), str(out)], stdout=stream)
    watcher = subprocess.Popen([str(PEERS), "-c", WATCHER, str(log), str(victim.pid)])
    victim.wait()
    watcher.kill()
    watcher.wait()


def tries(count: int, others: int) -> tuple[list[float], list[float], list[float]]:
    """Return milliseconds of ``count`` tries by Overnight and ``others`` by each follower, taken in turns.

    Without the peers' environment there are none by watchfiles.
    """
    ways = {"ours": by_overnight, "polled": by_polling, **({"watched": by_watchfiles} if PEERS.exists() else {})}
    with home() as folder:
        (folder / "victim.py").write_text(VICTIM)
        every = max(1, count // others)
        for number in range(count):
            for name, take in ways.items():
                if name == "ours" or number % every == 0:
                    take(folder, number, folder / name)
        found = {name: [float(line) for line in (folder / name).read_text().split()] for name in ways}
    return found["ours"], found["polled"], found.get("watched", [])


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    ours, polled, watched = tries(5, 5) if quick else tries(100, 20)
    rows = {"overnight": ours, "follower, 1 s polling": polled, "follower, watchfiles": watched}
    return [
        {
            "what": name,
            "tries": len(values),
            "ms median (min-max)": spread(values, 2 if values is ours else 0),
            "p99 ms": round(sorted(values)[min(len(values) - 1, int(len(values) * 0.99))], 2),
            "of overnight": ratio(ours, values) if statistics.median(ours) > 0 else "-",
        }
        for name, values in rows.items()
        if values
    ]
