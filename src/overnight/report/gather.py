"""What the report is made of for a run: its status, its journal, its metrics.db, its evidence.

Reads the run folder, and changes nothing; a file that is missing or damaged is named, and the others are read all the
same. A log that Overnight never launched is the business of ``bare``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from overnight import client
from overnight.errors import FolderError
from overnight.folder import RunFolder, read_journal, read_json
from overnight.history.completeness import behind
from overnight.history.views import Views
from overnight.moments import epoch_of
from overnight.past.rereading import bounds_of
from overnight.report import loglines
from overnight.report.course import Course
from overnight.report.known import Known
from overnight.report.units import finite
from overnight.report.value import build
from overnight.requests.asked import in_force

PROOFS = 40
PROOF_CHARS = 8000


def of_run(folder: RunFolder, now: float) -> dict[str, Any]:
    """Return the report value of a run, ended or not, at ``now`` (since the epoch); NoSuchRunError if it is gone."""
    one = client.status(folder)
    unknown: dict[str, str] = {}
    written = _run_json(folder, unknown)
    course = Course(_facts(folder, unknown))
    _mend(one, course, unknown)
    spec = None
    with contextlib.suppress(FolderError, OSError):
        spec = in_force(folder)
    log = Path(one["log"]) if one.get("log") else folder.output_log
    start = written.get("log_start")
    start = start if type(start) is int and start >= 0 else 0
    views = _opened(folder, one.get("records"), unknown)
    known = Known(
        kind="run",
        name=folder.name,
        one=one,
        course=course,
        spec=spec,
        origins=_strings(written.get("origins")),
        log=log,
        source=_source(folder, log),
        start=start,
        why=_why(one, log, start, evaluations=_evaluations(views)),
        now=now,
        views=views,
        wall_s=_wall_s(one, course, now),
        host=written.get("host") if isinstance(written.get("host"), str) else None,
        run_dir=folder.path,
        proofs=_proofs(folder.evidence),
        unknown=unknown,
    )
    try:
        return build(known)
    except FolderError as error:  # damaged further in, or built anew meanwhile
        known.views = None
        _no_metrics(folder, str(error), unknown)
        return build(known)
    finally:
        if views is not None:
            views.close()


def _wall_s(one: Mapping[str, Any], course: Course, now: float) -> float | None:
    """Return the seconds from the launch to the end (or to now), those included in which the machine was off."""
    begin = epoch_of(one.get("created_at") or one.get("started_at"))
    over = one["state"] in client.ENDED
    end = epoch_of(one.get("ended_at")) if over else now
    elapsed = finite(one.get("elapsed_s"))
    written = epoch_of(one.get("updated_at"))
    if elapsed is not None and not over:
        elapsed = None if written is None else elapsed + max(0.0, now - written)
    if elapsed is not None and course.boots <= 1:
        return elapsed  # by a clock that nobody sets
    if begin is None or end is None:
        return elapsed
    return max(end - begin, elapsed or 0.0, finite(one.get("active_s")) or 0.0)


def _run_json(folder: RunFolder, unknown: dict[str, str]) -> dict[str, Any]:
    try:
        found = read_json(folder.run_json)
    except (FolderError, OSError) as error:
        unknown["command"] = str(error)
        return {}
    if found is None:
        unknown["command"] = f"{folder.run_json} is gone; restore it"
    return found or {}


def _facts(folder: RunFolder, unknown: dict[str, str]) -> Iterator[dict[str, Any]]:
    if not folder.journal.exists():
        unknown["course"] = f"{folder.journal} is gone, so what happened when is not known"
        return
    try:
        yield from read_journal(folder.journal)
    except OSError as error:
        unknown["course"] = f"{folder.journal} cannot be read: {error.strerror}"


def _mend(one: dict[str, Any], course: Course, unknown: dict[str, str]) -> None:
    """Let the journal, which is the truth, say how a run stands whose status is damaged or missing."""
    if one["state"] not in ("damaged", "pending"):
        return
    if one["state"] == "damaged":
        unknown["status"] = str(one["cause_text"])
    if course.ended is not None:
        told = course.ended
        one.update(state=told["state"], cause=told.get("cause"), cause_text=told.get("text"))
        one["elapsed_s"] = told.get("elapsed_s") if one.get("elapsed_s") is None else one["elapsed_s"]
        last = course.attempts[max(course.attempts)] if course.attempts else {}
        for name in ("exit_code", "signal", "ended_at"):
            one[name] = last.get(name) if one.get(name) is None else one[name]
    elif course.state is not None:
        one["state"] = course.state
    if one["state"] != "pending" and "status" not in unknown:
        unknown["status"] = "status.json is gone; the journal says how the run stands"
    seconds = [finite(end.get("seconds")) for end in course.attempts.values()]
    if one.get("active_s") is None and seconds and None not in seconds:
        one["active_s"] = sum(known for known in seconds if known is not None)


def _opened(folder: RunFolder, records: object, unknown: dict[str, str]) -> Views | None:
    """Return metrics.db open for reading; None, with a word in ``unknown``, if it does not hold what was read."""
    views = None
    try:
        views = Views(folder.metrics_db)
        if views.spans() or not (isinstance(records, int) and records > 0):
            if behind(folder):
                unknown["metrics"] = f"not all of the log is stored; `overnight reindex {folder.name}` reads it again"
            return views
        told = f"{folder.metrics_db} is empty, though {records:,} progress lines were read"
    except FolderError as error:
        told = str(error)
    if views is not None:
        views.close()
    _no_metrics(folder, told, unknown)
    return None


def _no_metrics(folder: RunFolder, told: str, unknown: dict[str, str]) -> None:
    unknown["metrics"] = told if "reindex" in told else f"{told}; `overnight reindex {folder.name}` builds it anew"


def _source(folder: RunFolder, log: Path) -> int:
    try:
        return bounds_of(folder, log).source
    except (OSError, FolderError):
        return 0


def _evaluations(views: Views | None) -> bool:
    with contextlib.suppress(FolderError):
        return views is not None and bool(views.names("eval"))
    return False


def _why(one: Mapping[str, Any], log: Path, start: int, *, evaluations: bool) -> str:
    reader, records = one.get("reader"), one.get("records")
    if reader is None:
        if records != 0:
            return "nobody knows which reader read it"
        return loglines.no_reader_words(log, start, evaluations=evaluations)
    return f"the reader {reader} read {records:,} progress lines" if isinstance(records, int) else f"read by {reader}"


def _strings(value: object) -> dict[str, str]:
    return {name: said for name, said in value.items() if isinstance(said, str)} if isinstance(value, dict) else {}


def _proofs(evidence: Path) -> list[dict[str, Any]]:
    """Return what is kept in evidence/, summaries first within their folders, each with the beginning of its text."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(evidence.iterdir()):
            inside = sorted(path.iterdir(), key=_summary_first) if path.is_dir() else [path]
            found += [one for one in inside if one.is_file() and one.name != "ballast" and not one.name.startswith(".")]
    return [_proof(evidence, path) for path in found[:PROOFS]]


def _summary_first(path: Path) -> tuple[bool, str]:
    return path.name != "summary.txt", path.name


def _proof(evidence: Path, path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            text = stream.read(PROOF_CHARS * 4).decode("utf-8", "replace")
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    shown = text if len(text) <= PROOF_CHARS else f"{text[:PROOF_CHARS]}…"
    return {"name": str(path.relative_to(evidence)), "path": str(path), "text": shown}
