"""What a proof has found, as one value; and the folder in which it is kept: proof.json, proof.txt, runs and series.

Values and files only: nothing is run or judged here, and what people read is drawn elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight.errors import OvernightError
from overnight.events import jsonable
from overnight.folder import RunFolder, write_atomic
from overnight.resumeproof.printed import write_series
from overnight.resumeproof.words import Cause, How, StateComparison

FORMAT = 1


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the proof: its name in the evidence's home, how far it went, and how it ended."""

    name: str
    run: str
    state: str
    first_step: int | None
    last_step: int | None
    seconds: float
    ended: str


class From(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was started again from; ``step`` is None where neither content nor name tells it."""

    path: str
    step: int | None
    maker: str


def unseen(resumed_from: From | None, states: Sequence[StateComparison]) -> bool:
    """Say whether no state was compared that the resumed run had saved: only the one it was resumed from, or none."""
    begun = None if resumed_from is None else resumed_from.step
    return all(begun is not None and one.step <= begun for one in states)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One way to stop and go on, compared with the unbroken runs.

    ``passed`` is None where it was left to the other variant. ``stopped_at`` is the last step before the stop;
    ``exact``: the library stopped exactly there. The other fields are those of ``Judgement`` and ``Resumed``.
    """

    how: How
    passed: bool | None
    cause: Cause | None
    also: tuple[Cause, ...]
    text: str
    step: int | None = None
    metric: str | None = None
    unbroken: float | None = None
    resumed: float | None = None
    compared: int = 0
    equal: int = 0
    resumed_from: From | None = None
    stopped_at: int | None = None
    exact: bool = False
    saved_on_signal: bool | None = None
    states: tuple[StateComparison, ...] = ()
    floor: Mapping[str, float] = {}
    left_out: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``passed`` is None where the proof was refused or broke off, which ``refused`` explains.

    ``evidence`` is the folder with all that was found; None where nothing was run.

    ``untouched``: nothing in the user's folder has changed; None: not looked at. ``changed`` says what has.
    """

    command: tuple[str, ...]
    evidence: str | None = None
    passed: bool | None = None
    until: int | None = None
    stop_at: int | None = None
    parts: tuple[Part, ...] = ()
    variants: tuple[Variant, ...] = ()
    floor: Mapping[str, float] = {}
    left_out: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    untouched: bool | None = None
    changed: tuple[str, ...] = ()
    refused: str | None = None


def document(proof: Proof) -> dict[str, Any]:
    """Return what ``--json`` prints and proof.json holds."""
    found: dict[str, Any] = jsonable({"format": FORMAT, "passed": proof.passed, **msgspec.to_builtins(proof)})
    return found


def keep(proof: Proof, text: str) -> list[str]:
    """Write proof.json, proof.txt and the series of every run that was made, also of one that was broken off.

    Returned is what could not be written, in sentences. What was found is told all the same, so nothing is raised for
    a full disk.
    """
    if proof.evidence is None:
        return []
    folder, failed = Path(proof.evidence), []
    for name in _made(folder / "runs"):
        with contextlib.suppress(OSError):
            (folder / "series").mkdir(parents=True, exist_ok=True)
        try:
            write_series(RunFolder(folder / "runs" / name), folder / "series" / f"{name}.csv")
        except (OvernightError, sqlite3.Error, OSError, ValueError) as error:
            failed.append(f"the series of {name} could not be written: {error}")
    data = json.dumps(document(proof), allow_nan=False, indent=1).encode() + b"\n"
    for name, content in (("proof.json", data), ("proof.txt", text.encode("utf-8", "backslashreplace") + b"\n")):
        try:
            write_atomic(folder / name, content, fsync=True)
        except OSError as error:
            failed.append(f"{folder / name} could not be written: {error.strerror}")
    return failed


def _made(runs: Path) -> list[str]:
    """Return the names of the runs in a folder."""
    try:
        return sorted(name for name in os.listdir(runs) if (runs / name).is_dir())
    except OSError:
        return []
