"""What a part of a proof has printed and saved, as its run folder keeps it. Only read, but for the series as CSV."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from overnight.exporting import export, to_file
from overnight.folder import RunFolder, read_journal
from overnight.history.table import NUMBERS
from overnight.history.views import Views
from overnight.resumeproof.epochs import Bases, shift
from overnight.resumeproof.words import Series

LAST_LINES = 200
LAST_BYTES = 64 * 1024


def series_of(folder: RunFolder, bases: Bases | None = None) -> Series:
    """Return every number of every step that a run has printed, as ``history`` has stored it.

    What an evaluation printed without a step belongs to the last step before it. ``bases`` are those of an unbroken
    run, for one that goes on in the middle of an epoch and counts anew in each.
    """
    if not folder.metrics_db.exists():
        return {}
    found: dict[int, dict[str, float]] = {}
    last: int | None = None
    off: int | None = None
    with Views(folder.metrics_db) as views:
        for row in export(views, ("train", "eval"), every=False).rows:
            if row["kind"] == "train":
                if off is None:
                    off = round(shift(bases or {}, row["epoch"], _base(row)))
                step = last = _step(row, off)
                front = ""
            else:
                step, front = last if row["step"] is None else _step(row, off or 0), "eval/"
            if step is None:
                continue
            values = {one: row[one] for one in NUMBERS if row[one] is not None}
            values |= {key: value for key, value in (row["extra"] or {}).items() if key not in values}
            known = found.setdefault(int(step), {})
            known.update(
                {front + key: float(value) for key, value in values.items() if isinstance(value, (int, float))}
            )
    return dict(sorted(found.items()))


def bases_of(folder: RunFolder) -> Bases:
    """Return what is added to a step in each epoch; empty where nothing is, or where no epoch is printed."""
    if not folder.metrics_db.exists():
        return {}
    with Views(folder.metrics_db) as views:
        rows = [row for row in export(views, ("train",), every=False).rows if row["epoch"] is not None]
    found = {row["epoch"]: _base(row) for row in reversed(rows)}
    return found if any(found.values()) else {}


def begins_again(folder: RunFolder) -> int | None:
    """Return the last step before a count begins anew with no epoch to tell which; None where none does."""
    if not folder.metrics_db.exists():
        return None
    with Views(folder.metrics_db) as views:
        rows = export(views, ("train",), every=False).rows
    told = ((one["step"], two) for one, two in pairwise(rows))
    return next((step for step, row in told if row["epoch"] is None and _base(row) > 0.0), None)


def _base(row: Mapping[str, Any]) -> float:
    known = row["step"] is not None and isinstance(row["x"], float) and row["x"] == row["x"]
    return float(row["x"] - row["step"]) if known else 0.0


def _step(row: Mapping[str, Any], off: int) -> int | None:
    """Return the step of a record: where a program counts anew in each epoch, that of the whole run."""
    if row["step"] is None:
        return None
    return off + (round(row["x"]) if isinstance(row["x"], float) and row["x"] == row["x"] else int(row["step"]))


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
