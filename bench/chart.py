"""A chart of a whole series of ten million points, thinned to 2,000 parts with their extremes, and one of a part of it.

Beside it the same series as plain rows of SQLite, asked with GROUP BY, and as one memory-mapped column of float64. Each
is asked several times in one process, in turns; the file is warm.
"""

from __future__ import annotations

import mmap
import random
import sqlite3
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from side import ratio, spread

from overnight.events import Record
from overnight.history.store import History
from overnight.history.views import Views
from overnight.monitor import Entry

PARTS = 2000
BLOCK = 20_000


def fill(folder: Path, points: int) -> dict[str, float]:
    """Write the series in its three forms; return the bytes per point of the first two."""
    draw = random.Random(1)
    history = History(folder / "metrics.db")
    with closing(sqlite3.connect(folder / "rows.db")) as rows, (folder / "column").open("wb") as column:
        rows.execute("CREATE TABLE points (step INTEGER PRIMARY KEY, loss REAL)")
        for begin in range(0, points, BLOCK):
            losses = [round(2.0 + draw.random() / 10, 4) for _ in range(BLOCK)]
            numbered = list(enumerate(losses, begin))
            entries = [
                Entry(Record(reader="bench", offset=40 * step, at=float(step), step=step, loss=loss), 1, 1)
                for step, loss in numbered
            ]
            history.commit(entries, [], b"")
            rows.executemany("INSERT INTO points VALUES (?, ?)", numbered)
            column.write(array("d", losses).tobytes())
        rows.commit()
    history.close()
    return {name: (folder / name).stat().st_size / points for name in ("metrics.db", "rows.db", "column")}


def by_rows(folder: Path, low: int, high: int) -> int:
    """Thin plain rows with GROUP BY; return the number of parts."""
    width = max(1, (high - low) // PARTS)
    with closing(sqlite3.connect(folder / "rows.db")) as db:
        asked = "SELECT step / ?, min(loss), max(loss) FROM points WHERE step >= ? AND step < ? GROUP BY 1"
        return len(db.execute(asked, (width, low, high)).fetchall())


def by_column(folder: Path, low: int, high: int) -> int:
    """Thin a memory-mapped column with built-ins; return the number of parts."""
    width = max(1, (high - low) // PARTS)
    with (folder / "column").open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        values = memoryview(mapped).cast("d")
        parts = [(min(part), max(part)) for part in (values[at : at + width] for at in range(low, high, width))]
        values.release()
        return len(parts)


def by_views(views: Views, low: int, high: int) -> int:
    """Ask Overnight; return the number of parts."""
    return len(views.chart("loss", low=float(low), high=float(high), points=PARTS).x)


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the table."""
    points, count = (200_000, 3) if quick else (10_000_000, 7)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = fill(folder, points)
        views = Views(folder / "metrics.db")
        ways: dict[str, Callable[[int, int], int]] = {
            "overnight": lambda low, high: by_views(views, low, high),
            "SQLite rows, GROUP BY": lambda low, high: by_rows(folder, low, high),
            "mapped column, min and max": lambda low, high: by_column(folder, low, high),
        }
        kinds = {f"all {points:,} points": (0, points), "a fiftieth of them": (points // 2, points // 2 + points // 50)}
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(count):
            for part, (low, high) in kinds.items():
                for way, ask in ways.items():
                    began = time.monotonic()
                    assert ask(low, high) > 0
                    times.setdefault((part, way), []).append((time.monotonic() - began) * 1000)
        views.close()
    size = dict(zip(ways, sizes.values(), strict=True))
    return [
        {
            "chart of": part,
            "by": way,
            "ms (min-max)": spread(values, 1),
            "of overnight": ratio(times[part, "overnight"], values),
            "bytes a point": round(size[way], 1),
        }
        for (part, way), values in times.items()
        if statistics.median(values) > 0
    ]
