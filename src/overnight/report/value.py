"""The report value: everything that the morning report says, as one dict of plain JSON types.

Put together here from what the files around it find: the course of a run, series and goodput out of metrics.db, lines
of the log, figures and sentences. Reads metrics.db and the log only, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from overnight.bars import folded
from overnight.events import jsonable
from overnight.folder import utc
from overnight.moments import epoch_of
from overnight.pacing.goodput import Goodput, Times, measure
from overnight.report import advice, loglines, series, words
from overnight.report.course import Course, attempts
from overnight.report.hardware import in_timeline, machine_of, mark
from overnight.report.known import Known
from overnight.report.measured import measured
from overnight.report.pacing import Pacing
from overnight.report.resumed import of_status, went_on
from overnight.report.units import finite
from overnight.snapshot import limits
from overnight.spec import RunSpec

__all__ = ["Known", "build"]

FORMAT = 1

MARKS_S = 10.0
"""A line may have arrived so much later than the time mark before it says."""

_LIVE = frozenset({"pending", "starting", "running", "stopping", "backoff"})


_PROGRESS = (
    "step", "step_in_all", "steps", "epoch", "records", "loss_first", "loss_last", "loss_least", "loss_least_step",
    "loss_good", "loss_good_step", "eval",
)  # fmt: skip


def build(known: Known) -> dict[str, Any]:
    """Return the value; ``known.views`` is read to its end, once."""
    one, course, log = known.one, known.course, _log(known)
    tries = attempts(course, one.get("attempts") or [])
    numbers = _numbers(known, tries)
    good, progress = numbers.good, numbers.progress
    _complete(progress, one)
    machine, busy = machine_of(known.run_dir, course.devices, _began(tries, one), known.unknown)
    machine["stale"] = _stale(one)
    found = measured(known, good, numbers.pacing, names=numbers.names, records=progress["records"], gpus=busy)
    unknown = {**{figure.name: figure.provenance for figure in found.figures if figure.value is None}, **known.unknown}
    if good.unknown is not None:
        unknown["goodput"] = good.unknown
    timeline = in_timeline([_with_line(entry, known) for entry in course.timeline()], machine["xids"])
    mark(machine["charts"], timeline)
    value: dict[str, Any] = {
        "format": FORMAT,
        "made_at": utc(known.now),
        "kind": known.kind,
        "name": known.name,
        "outcome": _outcome(one),
        "command": _command(one, known.spec),
        "cwd": one.get("cwd"),
        "host": known.host,
        "engine": one.get("engine"),
        "log": log,
        "times": {**_times(one, tries, known.wall_s), "zone": known.zone},
        "progress": progress,
        "figures": [figure.plain() for figure in found.figures],
        **{name: getattr(found, name) for name in ("disagreements", "reading", "reasons", "evidence")},
        "goodput": _goodput(good),
        "limits": one.get("limits") or ({} if known.spec is None else limits(known.spec)),
        "cost": found.cost,
        "hardware": machine,
        "attempts": tries,
        "timeline": timeline,
        "resumes": _resumes(course, tries, numbers),
        "rollbacks": course.resumed.rollbacks(),
        **_saves(one, course),
        "proofs": known.proofs,
        "notes": list(course.notes)[-20:],
        "last_lines": _last_lines(known),
        "charts": numbers.charts,
        "next": [],
        "unknown": unknown,
    }
    failed = _hooks(one, course)
    value["outcome"]["sentence"] = words.sentence(value, failed)
    value["next"] = advice.next_steps(value, _spec_words(known.spec), failed)
    plain: dict[str, Any] = jsonable(value)
    return plain


# -- numbers -----------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """What metrics.db gives: ``names`` of what is printed; all of it empty, and ``pacing`` None, without views.

    ``gains``: steps from one line to the next, by attempt; ``folds``: steps are counted anew in each epoch.
    """

    good: Goodput
    charts: list[dict[str, Any]]
    progress: dict[str, Any]
    names: list[str]
    pacing: Pacing | None
    gains: dict[int, int]
    folds: bool


def _numbers(known: Known, tries: Sequence[dict[str, Any]]) -> Numbers:
    """Return what metrics.db gives, after one pass over all records."""
    views, spec = known.views, known.spec
    tokens = None if spec is None else spec.tokens_per_step
    times = [
        Times(attempt=one["n"], started=epoch_of(one["started_at"]), ended=epoch_of(one["ended_at"])) for one in tries
    ]
    if views is None:
        nothing = Goodput(wall_s=known.wall_s, unknown=f"goodput is unknown: {known.unknown.get('metrics')}")
        return Numbers(nothing, [], dict.fromkeys(_PROGRESS), [], None, {}, folds=False)
    names = views.names()
    spans = views.spans()
    lost = series.Superseded(spans)
    pacing = Pacing(names, sum(span.records for span in spans), series.places(views, "eval"))
    wanted = list(dict.fromkeys([*series.wanted(views), *pacing.names]))
    good = measure(
        lost.watch(pacing.watch(views.stretches(wanted), tokens)),
        wall_s=known.wall_s,
        attempts=times,
        tokens_per_step=tokens,
        devices=1 if spec is None else spec.devices,
        accumulate=1 if spec is None else spec.accumulate or 1,
        price=None if spec is None else spec.price,
        no_wall=known.no_wall,
        live_step_s=_live_step_s(known.one) if known.kind == "run" else None,
        coarse_s=MARKS_S,
        arrivals=known.arrivals,
    )
    verdicts = [entry for entry in known.course.timeline() if entry["kind"] == "verdict"]
    progress = series.progress(views)
    good_loss = series.last_good(views, verdicts)
    progress["loss_good"] = None if good_loss is None else good_loss[1]
    progress["loss_good_step"] = None if good_loss is None else _whole(good_loss[0])
    for one in tries:
        whole = series.whole_range(spans, one["n"])
        one["steps_in_all"] = None if whole is None else list(whole)
    if progress["records"] == 0 and known.one.get("records") is None:
        progress["records"] = 0
    printed = "tokens" in names or "tokens_total" in names
    charts = series.charts(views, lost, verdicts, None if printed else tokens)
    return Numbers(good, charts, progress, names, pacing, series.gains(spans), folds=series.counts_anew(spans))


def _live_step_s(one: Mapping[str, Any]) -> float | None:
    """Return the seconds of a step as the supervisor measured them over the whole run; None where it did not.

    What is stored of arrivals is coarse; what it saw when the lines came is not.
    """
    value = finite(one.get("step_s"))
    return value if value is not None and value > 0 else None


def _began(tries: Sequence[Mapping[str, Any]], one: Mapping[str, Any]) -> float | None:
    """Return when the run began, as x = 0 of curves over time."""
    told = (epoch_of(at) for at in (*(each["started_at"] for each in tries[:1]), one.get("created_at")))
    return next((at for at in told if at is not None), None)


def _stale(one: Mapping[str, Any]) -> dict[str, str]:
    """Return which sensor of a run that goes on has been silent, in words."""
    told = one.get("sensors")
    if one["state"] not in _LIVE or not isinstance(told, Mapping):
        return {}
    return {kind: str(each["stale"]) for kind, each in told.items() if isinstance(each, Mapping) and each.get("stale")}


def _whole(x: float) -> float | int:
    return int(x) if x.is_integer() else x


def _complete(progress: dict[str, Any], one: Mapping[str, Any]) -> None:
    """Take from the status what is newer there, or not in metrics.db."""
    if one.get("loss") is not None:
        progress["loss_last"] = one["loss"]
    progress["step"] = progress["step"] if one.get("step") is None else one["step"]
    progress["steps"] = one.get("steps")
    if progress["records"] is None:
        progress["records"] = one.get("records")
    if not progress["records"] and one.get("reader") is None:
        progress["records"] = None  # nothing could be counted, which is another thing than none


def _goodput(good: Goodput) -> dict[str, Any]:
    found = msgspec.structs.asdict(good)
    del found["printed_s"]
    found["from"] = found.pop("told") or None
    found["parts"] = [msgspec.structs.asdict(part) for part in good.parts]
    return found


# -- parts of the value ---------------------------------------------------------------------------------------------


def _outcome(one: Mapping[str, Any]) -> dict[str, Any]:
    text = one.get("cause_text")
    if one.get("stale") and one["state"] in _LIVE:
        gone = "its guard, shim and supervisor are gone; the next `overnight status` finds out what became of it"
        text = one.get("stale_text") or gone
    shown = {name: one.get(name) for name in ("state", "cause", "exit_code", "signal", "code")}
    return {**shown, "sentence": "", "text": text}


def _command(one: Mapping[str, Any], spec: RunSpec | None) -> list[str]:
    words = one.get("argv")
    if isinstance(words, list) and words:
        return [str(word) for word in words]
    return [] if spec is None or not spec.argv else list(spec.argv)


def _times(one: Mapping[str, Any], tries: Sequence[Mapping[str, Any]], wall_s: float | None) -> dict[str, Any]:
    # A status keeps the newest attempts only, and its own start is that of the last one.
    first = next((each["started_at"] for each in tries if each["n"] == 1), None)
    return {
        "created_at": one.get("created_at"),
        "started_at": first if first or tries else one.get("started_at"),
        "ended_at": one.get("ended_at"),
        "elapsed_s": wall_s,
        "active_s": one.get("active_s"),
    }


def _log(known: Known) -> dict[str, Any]:
    path, size, lines = known.log, None, None
    if path is not None:
        try:
            size = loglines.size_of(path)
            lines = loglines.count_lines(path, known.start if known.start <= size else 0)
        except OSError as error:
            known.unknown["log"] = f"{path} cannot be read: {error.strerror}"
    return {
        "path": None if path is None else str(path),
        "bytes": size,
        "reader": known.one.get("reader"),
        "why": known.why,
        "lines": lines,
    }


def _with_line(entry: dict[str, Any], known: Known) -> dict[str, Any]:
    if entry["offset"] is None or known.log is None or entry["source"] != known.source:
        return entry
    return {**entry, "line": loglines.line_at(known.log, entry["offset"])}


def _last_lines(known: Known) -> list[str]:
    said = [] if known.log is None else loglines.last_lines(known.log, known.start)
    if said:
        return said
    kept = folded(str(line) for line in known.one.get("last_lines") or ())
    return [loglines.cut(line) for line in kept[-loglines.LAST_LINES :]]


def _resumes(course: Course, tries: Sequence[Mapping[str, Any]], numbers: Numbers) -> list[dict[str, Any]]:
    """Return how each attempt but the first went on, as far as its steps tell."""
    firsts = {one["n"]: one["first_step"] for one in tries if isinstance(one["first_step"], int)}
    good, told = numbers.good, course.resumed.resumes()
    step_s = good.productive_s / good.productive_steps if good.productive_s and good.productive_steps else None
    return went_on(told, firsts, numbers.gains, step_s=step_s, folds=numbers.folds)


def _saves(one: Mapping[str, Any], course: Course) -> dict[str, Any]:
    """Return what is known of the saves, and the one to go on from; where the journal is gone the status knows some."""
    found, newest = course.resumed.checkpoints(), course.resumed.newest_good()
    if not found:
        found = of_status(one.get("saves"))
        newest = next(iter(of_status([one.get("checkpoint")])), None)
    seen = {"count": course.resumed.count, "seconds": course.resumed.seconds, "beside": course.resumed.beside}
    return {"checkpoint": newest, "checkpoints": found, "saves": seen}


def _hooks(one: Mapping[str, Any], course: Course) -> list[str]:
    """Return what is said of each hook that failed."""
    hooks = one.get("hooks")
    failed = hooks.get("failed") if isinstance(hooks, dict) else None
    said = course.hooks_failed or ([str(hooks.get("text"))] * failed if isinstance(hooks, dict) and failed else [])
    return said[-50:]


def _spec_words(spec: RunSpec | None) -> dict[str, Any]:
    if spec is None:
        return {}
    names = ("argv", "resume_args", "recover", "restarts", "actions", "rollbacks")
    return {name: getattr(spec, name) for name in names}
