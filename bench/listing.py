"""`overnight ls` over 1,000 ended runs, a whole process each time.

Beside it a Python that does nothing and one that only imports argparse and sqlite3, taken in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from side import home, ratio, spread

RUNS = 1000


def make_runs(folder: Path, count: int) -> None:
    """Make the folders of ``count`` ended runs, as a supervisor leaves them."""
    for number in range(count):
        run = folder / "runs" / f"run-{number:04d}"
        run.mkdir(parents=True)
        value = {
            "format": 1,
            "name": run.name,
            "state": "stopped" if number % 3 else "finished",
            "cause": "user" if number % 3 else "completed",
            "created_at": "2026-11-28T20:00:00.000Z",
            "started_at": "2026-11-28T20:00:01.000Z",
            "ended_at": "2026-11-29T06:00:00.000Z",
            "step": number,
            "loss": 3.25,
            "tokens_per_second": 131072.0,
            "mfu": 0.31,
            "attempt": 1,
            "log": str(run / "output.log"),
            "verdicts": [],
            "notes": [],
            "attempts": [
                {"n": 1, "pid": 1, "exit_code": 0, "signal": None, "cause": None, "first_step": 0, "last_step": number}
            ],
            "argv": ["python3", "train.py"],
            "unknown": {"eta_s": "give --steps"},
            "code": 0,
        }
        (run / "status.json").write_text(json.dumps(value))
        (run / "run.json").write_text(json.dumps({"format": 1, "name": run.name, "created_at": value["created_at"]}))


def once(argv: list[str], environ: dict[str, str]) -> float:
    """Return the milliseconds a command takes from start to end."""
    began = time.monotonic()
    subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) * 1000


def turns(count: int, runs: int = RUNS) -> dict[str, list[float]]:
    """Return milliseconds by command, taken in turns."""
    with home() as folder:
        make_runs(folder, runs)
        # An installed package has its bytecode; a checkout may only keep it if this is not set.
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["OVERNIGHT_HOME"] = str(folder)
        command = Path(sys.executable).with_name("overnight")
        commands = {
            "overnight ls": [str(command), "ls"],
            "python, nothing": [sys.executable, "-I", "-c", "pass"],
            "python, argparse + sqlite3": [sys.executable, "-I", "-c", "import argparse, sqlite3, json"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(count + 1):
            for name, argv in commands.items():
                took = once(argv, environ)
                if turn > 0:
                    times[name].append(took)
        for run in (folder / "runs").iterdir():
            (run / "status.json").unlink()
            (run / "run.json").unlink()
            run.rmdir()
        return times


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    times = turns(5 if quick else 30)
    nothing = times["python, nothing"]
    return [
        {
            "what": name,
            "ms median (min-max)": spread(values, 0),
            "over doing nothing": f"{statistics.median(values) / statistics.median(nothing):.2f} x",
            "of ls": ratio(times["overnight ls"], values),
        }
        for name, values in times.items()
    ]
