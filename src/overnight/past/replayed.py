"""What is replayed and what comes of it: a run's folder or a bare log to a past, a replay to one plain dict.

The dict is what ``replay --json`` prints and what the text is made from. Files are only read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from overnight.events import Verdict, jsonable
from overnight.folder import RunFolder, read_journal, read_json, utc
from overnight.past.comparing import SAME_S, Pair, compared
from overnight.past.replay import Back, End, Found, Past, Replay
from overnight.past.rereading import NOTHING_KNOWN, bounds_of
from overnight.past.sensed import JUDGED_BY, last_sample
from overnight.past.tally import Tally
from overnight.past.times import RESOLUTION_S, Times, dated, times_of
from overnight.spec import RunSpec
from overnight.states import ENDED

MOST_OF_THE_NIGHT = 500

LOCAL = "dates without a zone were taken for local time"
NO_DATES = "its lines carry no dates that rise with the log, and printed step times know no silence"


def past_of_log(path: Path) -> Past:
    """Return a log that Overnight has not launched, with the times that its lines carry."""
    found = dated(path) if path.is_file() else None
    if found is None:
        return Past(path, NOTHING_KNOWN, untimed=NO_DATES)
    times, bounds = found
    return Past(path, bounds, times)


def past_of_run(folder: RunFolder, spec: RunSpec, *, over: bool, now: float) -> Past:
    """Return a run's log as it lies there now, with the times of its journal."""
    path = Path(spec.log)
    bounds = bounds_of(folder, path)
    if not bounds.marks:
        why = "the journal has no time marks for the log as it is now (was it truncated or replaced?)"
        if path.is_file() and not path.stat().st_size:
            why = "the journal has no time marks for the log as it is now, which is empty"
        return Past(path, bounds, untimed=why, over=over, sensed=folder.path)
    times = times_of(folder, now=None if over else now)
    untimed = "" if times is not None else "the journal has no times"
    return Past(path, bounds, times, untimed=untimed, over=over, sensed=folder.path)


def night_of(folder: RunFolder) -> tuple[list[Verdict], int]:
    """Return the first verdicts that a run's journal has, and how many more there are.

    Their time is when they were told. One that was told again, with its step, counts once.
    """
    found: dict[tuple[object, ...], Verdict] = {}
    more = 0
    for fact in read_journal(folder.journal):
        if fact["fact"] != "verdict":
            continue
        known = {name: fact[name] for name in Verdict.__struct_fields__ if name in fact}
        try:
            verdict = msgspec.convert({**known, "at": fact.get("epoch")}, Verdict)
        except msgspec.ValidationError:
            continue  # edited by hand
        key = verdict.key
        if key in found or len(found) < MOST_OF_THE_NIGHT:
            found[key] = msgspec.structs.replace(verdict, at=found[key].at) if key in found else verdict
        else:
            more += 1
    return list(found.values()), more


def outcome_of(folder: RunFolder) -> dict[str, Any] | None:
    """Return how a run ended: state, cause and sentence; None for one that has not."""
    status = read_json(folder.status_json) or {}
    if status.get("state") not in ENDED:
        return None
    return {name: status.get(name) for name in ("state", "cause", "cause_text", "ended_at")}


def document(
    done: Replay, past: Past, spec: RunSpec, *, name: str | None, night: list[Verdict] | None, **more: Any
) -> dict[str, Any]:
    """Return all of a replay in plain JSON types; ``night`` is None for a log that had no rules."""
    pairs = compared([one.verdict for one in done.found], night or [], source=past.bounds.source, unasked=done.unjudged)
    found = {id(pair.now): pair for pair in pairs if pair.now is not None}
    verdicts = [_found(one, None if night is None else found[id(one.verdict)]) for one in done.found]
    missing = [_missing(_unsampled(pair, past)) for pair in pairs if pair.now is None and pair.then is not None]
    return {
        "format": 1,
        "kind": "log" if night is None else "run",
        "name": name,
        "log": {
            "path": str(past.path),
            "bytes": past.path.stat().st_size,
            "lines": done.lines,
            "reader": done.reader,
            "from_byte": past.bounds.start,
        },
        "clock": {
            "from": None if past.times is None else past.times.source,
            "resolution_s": None if past.times is None else RESOLUTION_S,
            "zone": _zone(past.times),
            "began": None if past.times is None else utc(min(at for at, *_ in past.times.states)),
            "until": None if past.times is None else utc(past.times.until),
        },
        "rules": _rules(spec),
        "read": _counted(done.tally),
        "unjudged": done.unjudged,
        "unread": None if not done.unread else {"lines": done.unread, "first_line": done.unread_line},
        "verdicts": verdicts,
        "left_out": done.left_out,
        "counts": [
            {"rule": rule, "severity": severity, "verdicts": many} for (rule, severity), many in done.counts.items()
        ],
        "end": None if done.end is None else _end(done.end, spec),
        "rollbacks": [_back(one) for one in done.rollbacks],
        "night": None if night is None else {"missing": missing, "same_s": SAME_S},
        **jsonable(more),
    }


def _found(one: Found, pair: Pair | None) -> dict[str, Any]:
    verdict = one.verdict
    told: dict[str, Any] = {
        **{name: getattr(verdict, name) for name in ("rule", "severity", "action", "text", "step", "attempt")},
        "at": None if not verdict.at else utc(verdict.at),
        **{name: getattr(verdict, name) for name in ("source", "offset", "part", "evidence")},
        "line": one.number,
        "line_text": one.text,
        "epoch": one.epoch,
        "ends": one.ends,
        "after_end": one.after_end,
        "rolls_back": one.rolls_back,
        "after_rollback": one.after_rollback,
        "night": None,
    }
    if pair is not None:
        then = pair.then
        told["night"] = {
            "how": pair.how,
            "by_s": pair.by_s,
            "step": None if then is None else then.step,
            "action": None if then is None else then.action,
            "at": None if then is None or not then.at else utc(then.at),
            "text": None if then is None else then.text,
        }
    return dict(jsonable(told))


def _unsampled(pair: Pair, past: Past) -> Pair:
    """Return a pair that is not called gone if there was no sample for it any more."""
    then = pair.then
    if then is None or pair.how != "gone" or then.rule not in JUDGED_BY or then.offset >= 0 or not then.at:
        return pair
    late = then.at > last_sample(past.sensed, then.rule) + SAME_S
    return msgspec.structs.replace(pair, how="not asked") if late else pair


def _missing(pair: Pair) -> dict[str, Any]:
    then = pair.then
    assert then is not None
    names = ("rule", "severity", "action", "text", "step", "attempt", "source", "offset", "part")
    told = {name: getattr(then, name) for name in names}
    return dict(jsonable({**told, "at": None if not then.at else utc(then.at), "how": pair.how}))


def _back(one: Back) -> dict[str, Any]:
    told = {**_placed(one.found), **{name: getattr(one, name) for name in ("n", "before", "skip", "followed")}}
    return dict(jsonable(told))


def _placed(found: Found) -> dict[str, Any]:
    verdict = found.verdict
    return {
        **{name: getattr(verdict, name) for name in ("rule", "action", "text", "step", "attempt", "offset")},
        "at": None if not verdict.at else utc(verdict.at),
        "line": found.number,
        "epoch": found.epoch,
    }


def _end(end: End, spec: RunSpec) -> dict[str, Any]:
    told = {
        **_placed(end.found),
        "then": end.then,
        "again": end.again,
        "saved": {
            "records": end.records,
            "steps": end.steps,
            "seconds": end.seconds,
            "from": end.source,
            "price": spec.price,
            "cost": end.cost,
        },
    }
    return dict(jsonable(told))


def _counted(tally: Tally) -> dict[str, Any]:
    names = (
        "records", "evals", "segments", "anew", "epoch", "steps", "step", "loss", "nonfinite", "first_nonfinite",
        "dt_s",
    )  # fmt: skip
    return dict(jsonable({name: getattr(tally, name) for name in names}))


def remarks_on(past: Past, spec: RunSpec) -> list[str]:
    """Return what is to be known of the times that it was judged by."""
    if past.times is None:
        return []
    found = [LOCAL] if past.times.local else []
    fine = [("--stall", spec.stall_s), ("--exit-limit", spec.exit_limit_s), ("--start-limit", spec.start_limit_s)]
    found += [
        f"{flag} {seconds:g}s is finer than the {RESOLUTION_S:g} s to which times are known here: a silence is found "
        "only where it was that long beyond doubt"
        for flag, seconds in fine
        if seconds is not None and seconds < RESOLUTION_S
    ]
    return found


def in_words(name: str, value: Any) -> Any:
    """Return the value of a setting as people are told it: a moment as UTC."""
    return utc(value) if name == "until" and value is not None else value


def _zone(times: Times | None) -> str | None:
    """Return "printed" if dates in the lines name their zone, "local" if they were taken for local time."""
    if times is None or times.source != "dates":
        return None
    return "local" if times.local else "printed"


def _rules(spec: RunSpec) -> dict[str, Any]:
    """Return what the rules went by: the settings that differ from silence, and the actions that were asked for."""
    names = (
        "max_loss", "vocab_size", "tokens_per_step", "stall_s", "start_limit_s", "exit_limit_s",
        "max_hours", "until", "max_steps", "max_cost", "price", "restarts", "rollbacks", "rollback_steps",
    )  # fmt: skip
    told = {name: in_words(name, getattr(spec, name)) for name in names}
    return dict(jsonable({**told, "max_loss": spec.loss_limit(), "actions": dict(spec.actions)}))
