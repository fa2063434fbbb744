"""What is known of a run or a log before its report is put together. Only values; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from overnight.pacing.goodput import ARRIVALS
from overnight.report.course import Course
from overnight.report.series import Reading
from overnight.spec import RunSpec


class Known(msgspec.Struct, kw_only=True):
    """What is known before anything is put together. ``one`` is a status, ``source`` the log's number in verdicts.

    ``unknown`` collects what could not be read, by what it would have told; ``arrivals`` is how it was known when lines
    came, and ``zone`` whether dates in a log name theirs ("printed", or "local": taken for local time). ``run_dir`` is
    the folder in which sensors have written, None for a log.
    """

    kind: str
    name: str
    one: dict[str, Any]
    course: Course
    spec: RunSpec | None
    origins: Mapping[str, str]
    log: Path | None
    source: int
    start: int
    why: str
    now: float
    views: Reading | None
    wall_s: float | None
    host: str | None = None
    no_wall: str = "its journal and its status say neither when it began nor when it ended"
    arrivals: str = ARRIVALS
    zone: str | None = None
    run_dir: Path | None = None
    proofs: list[dict[str, Any]] = []
    unknown: dict[str, str] = {}
