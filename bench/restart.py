"""A training kills itself -> it runs again: the time between its death and the first words of its next start.

By Overnight and by torchrun, in turns, with the script's own start (an empty Python) beside them. Back-off is as short
as each allows: what is measured is the machinery, not the politeness.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from side import home, overnight, ratio, spread

TRAINING = """
import os, signal, sys, time
now = time.monotonic_ns()
place = sys.argv[1]
if os.path.exists(place + ".died"):
    with open(place + ".born", "w") as out:
        out.write(str(now))
    print("step: 2, loss: 3.1, dt: 0.1", flush=True)
    sys.exit(0)
print("step: 1, loss: 3.2, dt: 0.1", flush=True)
time.sleep(1.0)
with open(place + ".died", "w") as out:
    out.write(str(time.monotonic_ns()))
os.kill(os.getpid(), signal.SIGKILL)
"""


def between(place: Path) -> float:
    """Return the milliseconds from the death to the next start that a training has written down."""
    died, born = (int(place.with_suffix(kind).read_text()) for kind in (".died", ".born"))
    return (born - died) / 1e6


def by_overnight(folder: Path, number: int) -> float:
    """Return the milliseconds Overnight takes."""
    place, name = folder / f"ours{number}", f"r{number}"
    words = [sys.executable, str(folder / "train.py"), str(place)]
    overnight(folder, "run", "--name", name, "--settle", "0.1", "--restarts", "1", "--backoff", "0.001", "--", *words)
    overnight(folder, "wait", name, "--timeout", "60")
    overnight(folder, "clean", name, check=False)
    return between(place)


def by_torchrun(folder: Path, number: int) -> float:
    """Return the milliseconds torchrun takes."""
    place = folder / f"torchrun{number}"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=1"]
    subprocess.run(
        [sys.executable, *words, str(folder / "train.py"), str(place)], check=True, capture_output=True, cwd=folder
    )
    return between(place)


def by_itself(folder: Path, number: int) -> float:
    """Return the milliseconds from asking for the script to its first words."""
    place = folder / f"itself{number}"
    place.with_suffix(".died").write_text(str(time.monotonic_ns()))
    subprocess.run(
        [sys.executable, str(folder / "train.py"), str(place)], check=True, capture_output=True, env=dict(os.environ)
    )
    return between(place)


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    count = 2 if quick else 10
    ways = {"overnight, --restarts": by_overnight, "the script's own start": by_itself}
    if importlib.util.find_spec("torch") is not None:
        ways["torchrun, --max-restarts"] = by_torchrun
    times: dict[str, list[float]] = {name: [] for name in ways}
    with home() as folder:
        (folder / "train.py").write_text(TRAINING)
        for number in range(count):
            for name, take in ways.items():
                times[name].append(take(folder, number))
    own = statistics.median(times["the script's own start"])
    return [
        {
            "what": name,
            "ms (min-max)": spread(values, 0),
            "ms above the script's own start": round(statistics.median(values) - own),
            "of overnight": ratio(times["overnight, --restarts"], values),
        }
        for name, values in times.items()
    ]
