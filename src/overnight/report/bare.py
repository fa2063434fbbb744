"""What the report is made of for a log that Overnight never launched: its lines once more, and nothing else.

It is read as a run's log is, into a metrics.db of its own that is removed again. Who launched it, when, and how it
ended are not known unless its lines say so.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from overnight.batches import Batch, Entry
from overnight.calculator.observed import printed_tokens
from overnight.crosscheck import disagreements, impossible
from overnight.errors import UsageError
from overnight.events import Exit, Verdict
from overnight.exits.causes import classify, describe
from overnight.exits.traces import read as read_scene
from overnight.folder import utc
from overnight.history.store import CHUNK, History
from overnight.history.views import Views
from overnight.monitor import Monitor
from overnight.pacing.goodput import ARRIVALS
from overnight.past.rereading import NOTHING_KNOWN, Bounds, reread
from overnight.past.times import Times, dated
from overnight.report import loglines
from overnight.report.course import Course
from overnight.report.known import Known
from overnight.report.units import number
from overnight.report.value import build
from overnight.spec import RunSpec

_WELL = re.compile(
    r"'train_runtime':|\"train_runtime\":|\btraining (?:is )?(?:completed?|finished|done)\b|\bfinished training\b"
    r"|`?Trainer\.fit`? stopped: ",
    re.IGNORECASE,
)
"""With these words programs say that they have come to their end."""

VERDICTS = 1000
"""So many verdicts wait for what may come behind them."""

_TOGETHER = 2 * CHUNK
"""So many records at least are stored together: less than a chunk waits as rows, which cost ten times as much."""

_EXIT = Exit(exit_code=1)
"""Stands in for the exit that nobody saw, where the log's own text is asked; it is never shown."""


def of_log(path: Path, spec: RunSpec, origins: Mapping[str, str], monitor: Monitor, now: float) -> dict[str, Any]:
    """Return the report value of any log, read by a fresh ``monitor``. UsageError if it cannot be read."""
    course = Course(())
    found = dated(path) if path.is_file() else None
    times, bounds = found or (None, NOTHING_KNOWN)
    with tempfile.TemporaryDirectory(prefix="overnight-report-") as folder:
        database = Path(folder) / "metrics.db"
        _read(monitor, path, bounds, database, course)
        with contextlib.closing(Views(database)) as views:
            known = _known(path, spec, monitor, times=times, course=course, views=views, origins=origins, now=now)
            if not known.one["records"] and not views.names("eval") and not loglines.is_text(path):
                raise UsageError(f"{path} is not text, so there is nothing to report; give a log, unpacked")
            return build(known)


def _read(monitor: Monitor, path: Path, bounds: Bounds, database: Path, course: Course) -> None:
    def when(offset: int) -> float | None:
        return loglines.time_at(path, offset) if bounds.marks else None

    history = History(database, passing=True)
    try:
        # One on an early record is told again when the whole record comes, and then knows its step.
        found: dict[tuple[int, int, str], Verdict] = {}
        waiting: list[Entry | Batch] = []
        for outcome in reread(monitor, path, bounds):
            waiting += outcome.stored()
            count = sum(len(one) if isinstance(one, Batch) else 1 for one in waiting)
            if count >= _TOGETHER:  # between two dates of a log there may be one line
                history.commit(waiting, (), b"")
                waiting = []
            for verdict in outcome.verdicts:
                found[verdict.offset, verdict.part, verdict.rule] = verdict
            while len(found) > VERDICTS:
                _judge(found.pop(next(iter(found))), course, when)
        history.commit(waiting, (), b"")
    finally:
        history.close()
    for verdict in found.values():
        _judge(verdict, course, when)


def _judge(verdict: Verdict, course: Course, when: Callable[[int], float | None]) -> None:
    at = when(verdict.offset)
    course.judge({**msgspec.structs.asdict(verdict), "at": None if at is None else utc(at)})


def _known(
    path: Path,
    spec: RunSpec,
    monitor: Monitor,
    *,
    times: Times | None,
    course: Course,
    views: Views,
    origins: Mapping[str, str],
    now: float,
) -> Known:
    spans = views.spans()
    outcome = _outcome(path, monitor, spans[-1].last_offset if spans else 0, course)
    began, ended, zone = _times(path, times)
    one = _one(spec, monitor, outcome, began, ended)
    if spec.steps is None and spans:
        one["steps"] = counted_to(loglines.line_at(path, spans[-1].last_offset) or "", one["step"])
    return Known(
        kind="log",
        name=path.name,
        one=one,
        course=course,
        spec=spec,
        origins=origins,
        log=path.absolute(),
        source=0,
        start=0,
        why=_why(path, spec, monitor, read=bool(spans), evaluations=bool(views.names("eval"))),
        now=now,
        views=views,
        wall_s=None if began is None or ended is None else ended - began,
        arrivals="the dates in the lines" if times is not None else ARRIVALS,
        zone=zone,
        no_wall=(
            "a bare log has no wall clock, and its lines carry no date and time; "
            "a run that Overnight starts has its own"
        ),
    )


def _one(
    spec: RunSpec,
    monitor: Monitor,
    outcome: tuple[str, str | None, str | None],
    began: float | None,
    ended: float | None,
) -> dict[str, Any]:
    """Return what a status would say of it."""
    measure = monitor.measure()
    return {
        **dict(zip(("state", "cause", "cause_text"), outcome, strict=True)),
        "step": measure.step,
        "steps": spec.steps,
        "loss": measure.loss,
        "records": measure.records,
        "reader": monitor.sniffer.chosen,
        "tokens_per_second_avg": measure.tokens_per_second_avg,
        "tokens_per_second_clean": measure.tokens_per_second_clean,
        "disagreements": disagreements(monitor.meter, monitor.hearing.stated),
        "tokens_per_step": printed_tokens(monitor.meter) or spec.tokens_per_step,
        "mfu_trouble": impossible(monitor.meter, measure),
        "started_at": None if began is None else utc(began),
        "ended_at": None if ended is None else utc(ended),
    }


def counted_to(line: str, step: int | None) -> int | None:
    """Return to which number a progress line counts its steps, as in "45/48" at step 45; None if it does not say."""
    if step is None:
        return None
    for found in re.finditer(rf"(?<![\d.,/-]){step}\s?/\s?(\d{{1,15}})(?![\d.,]*[/\d])", line):
        if int(found[1]) >= step and not re.search(r"\b(?:epochs?|ep)\W*$", line[: found.start()], re.IGNORECASE):
            return int(found[1])
    return None


def _times(path: Path, times: Times | None) -> tuple[float | None, float | None, str | None]:
    """Return when the lines say that it began and ended (since the epoch), and whether they name the zone.

    A date without a zone is local time, as for ``replay``.
    """
    if times is not None:
        return times.attempts[0].started, times.until, "local" if times.local else "printed"
    found = loglines.first_and_last_time(path)
    if found is None:
        return None, None, None
    return found[0].timestamp(), found[1].timestamp(), "local" if found[0].tzinfo is None else "printed"


def _why(path: Path, spec: RunSpec, monitor: Monitor, *, read: bool, evaluations: bool) -> str:
    if monitor.sniffer.chosen is None and not read:
        return (
            "nothing was read by --pattern"
            if spec.pattern is not None
            else (loglines.no_reader_words(path, evaluations=evaluations))
        )
    return monitor.sniffer.why() if spec.pattern is None else "its lines were read by --pattern"


def _outcome(path: Path, monitor: Monitor, last_offset: int, course: Course) -> tuple[str, str | None, str | None]:
    """Return state, cause and text, as far as the lines behind the last progress line tell them."""
    tail = loglines.all_last_lines(path, last_offset)
    behind = tail[1:] if monitor.meter.records else tail
    scene = read_scene(behind)
    if scene.traces or scene.marks:
        found = classify(_EXIT, None, behind)
        text = found.text.removeprefix(describe(_EXIT)).removeprefix(": ")
        if text:
            return "failed", found.cause, f"its log ends with {text}" if found.cause == "crash" else text
    if any(_WELL.search(line) for line in behind):
        return "finished", "completed", "its log says that it came to its end"
    plan = monitor.plan()
    if plan.steps is not None and plan.reached() and not plan.folded:
        reached = f"step {number(plan.last_step)} of {number(plan.steps)}"
        return "unknown", None, f"it reached {reached}, and the log says no more"
    critical = course.newest_critical()
    if critical is not None:
        return "unknown", critical["rule"], f"{critical['text']}; how it ended does not stand in the log"
    return "unknown", None, None
