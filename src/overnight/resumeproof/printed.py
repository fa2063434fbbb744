"""What a part of a proof has printed and saved, as its run folder keeps it. Only read, but for the series as CSV."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overnight.exporting import export, to_file
from overnight.folder import RunFolder, read_journal
from overnight.history.table import NUMBERS
from overnight.history.views import Views
from overnight.resumeproof.words import Series

LAST_LINES = 200
LAST_BYTES = 64 * 1024


def series_of(folder: RunFolder) -> Series:
    """Return every number of every step that a run has printed, as ``history`` has stored it.

    What an evaluation printed without a step belongs to the last step before it.
    """
    if not folder.metrics_db.exists():
        return {}
    found: dict[int, dict[str, float]] = {}
    last: int | None = None
    with Views(folder.metrics_db) as views:
        for row in export(views, ("train", "eval"), every=False).rows:
            if row["kind"] == "train":
                step = last = _step(row)
                front = ""
            else:
                step, front = row["step"] if row["step"] is not None else last, "eval/"
            if step is None:
                continue
            values = {one: row[one] for one in NUMBERS if row[one] is not None}
            values |= {key: value for key, value in (row["extra"] or {}).items() if key not in values}
            known = found.setdefault(int(step), {})
            known.update(
                {front + key: float(value) for key, value in values.items() if isinstance(value, (int, float))}
            )
    return dict(sorted(found.items()))


def _step(row: Mapping[str, Any]) -> int | None:
    """Return the step of a record: where a program counts anew in each epoch, that of the whole run."""
    if row["step"] is None:
        return None
    return round(row["x"]) if isinstance(row["x"], float) and row["x"] == row["x"] else int(row["step"])


def write_series(folder: RunFolder, path: Path) -> None:
    """Write the records of a run as CSV; nothing where none was stored."""
    if folder.metrics_db.exists():
        with Views(folder.metrics_db) as views:
            to_file(export(views, ("train", "eval"), every=False), path, "csv")


def saves_of(folder: RunFolder) -> tuple[str, ...]:
    """Return the paths of the saves that a run's supervisor has seen, oldest first."""
    facts = (one for one in read_journal(folder.journal) if one["fact"] == "saved")
    return tuple(one["path"] for one in facts if isinstance(one.get("path"), str))


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, as they are."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - LAST_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-LAST_LINES:]
