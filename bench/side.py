"""What the sections share: a home of their own, the real command line, medians and spreads."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Table = list[dict[str, Any]]
"""Rows of one section, each by the names of its columns."""

PEERS = Path(__file__).resolve().parent.parent / "build" / "bench" / "peers" / "bin" / "python"
"""The Python of what is measured beside Overnight; `make bench` makes it, and without it those rows are left out."""


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """Yield a folder for runs; everything in it is ended and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="overnight-bench-") as folder:
        path = Path(folder)
        try:
            yield path
        finally:
            for run in (path / "runs").glob("*"):
                overnight(path, "stop", "--now", run.name, check=False)
                shutil.rmtree(run, ignore_errors=True)


def overnight(folder: Path, *words: str, check: bool = True) -> str:
    """Run the command line with ``folder`` as its home; return what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
    done = subprocess.run(
        [sys.executable, "-m", "overnight", *words],
        env={**environ, "OVERNIGHT_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"overnight {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def status(folder: Path, name: str) -> dict[str, Any]:
    """Return the run's status."""
    found: dict[str, Any] = json.loads(overnight(folder, "status", name, "--json"))
    return found


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return "median (min-max)"."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def ratio(ours: Sequence[float], other: Sequence[float]) -> str:
    """Return how often our median goes into the other's."""
    return f"{statistics.median(other) / statistics.median(ours):.3g} x"


def table(rows: Table) -> str:
    """Return rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)
