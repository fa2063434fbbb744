"""The judgement of one resumed run beside two unbroken ones: passed, or the first difference and its probable cause.

The comparison, the noise and the patterns have files of their own; here they are put in order. No clock, file, process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from overnight.resumeproof import patterns, restored, wording
from overnight.resumeproof.clues import Evidence, Finding
from overnight.resumeproof.comparing import Comparison, compare, same, training_steps
from overnight.resumeproof.vocabulary import Holding, decimals, held_by, is_rate, main_metric, shown
from overnight.resumeproof.words import Cause, Course, Judgement, PartDifference, Resumed, StateComparison

_OF_PART: Final[dict[Holding, Cause]] = {
    "rng": "rng",
    "data": "data_order",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
}


COARSE: Final = 3  # digits after the point, up to which a beginning drift of a loss is often not seen
_OTHER: Final = {
    "SIGINT": " (by SIGINT; if it saves on SIGTERM, give --stop-signal term)",
    "SIGTERM": " (by SIGTERM; if it saves on SIGINT, give --stop-signal int)",
}


def judge(
    first: Course,
    second: Course,
    resumed: Resumed,
    *,
    until: int,
    tolerance: float | None = None,
    states: Sequence[StateComparison] = (),
) -> Judgement:
    """Judge a run that was stopped and resumed by two runs that were not.

    Compared is every metric of every step that all three printed, from the first resumed step up to ``until``. If the
    unbroken runs are equal, every digit has to be; else their noise decides. ``tolerance``: how far a value may lie off
    instead, as a part of the value (0.01: one percent); None: automatic. ``states`` are checkpoints compared bit by
    bit. Nothing is raised: what cannot be told is said.
    """
    trained = training_steps(first.series)
    ends = [max(course.series) for course in (first, second) if course.series]
    reached = min([until, *ends]) if len(ends) == 2 else until
    seen = compare(first, second, resumed.before, resumed.after, until=reached, tolerance=tolerance)
    steps = training_steps(resumed.after.series)
    start = steps[0] if steps else resumed.after.first_step
    notes = _notes(seen, first, resumed, until=until, reached=reached, start=start)
    early = _without_values(first, resumed, start=start, seen=seen)
    if early is not None:
        return _failed(early, "", seen, notes)
    assert start is not None
    gaps = [two - one for one, two in pairwise(trained)]
    after = [one for one in states if one.step > (resumed.checkpoint_step or 0)]
    evidence = Evidence(
        comparison=seen,
        unbroken=first.series,
        resumed=resumed,
        start=min(seen.steps, default=start),
        cadence=Counter(gaps).most_common(1)[0][0] if gaps else 1,
        differs_in=frozenset(part for one in states for row in one.differences if (part := _holding(row))),
        equal_in=_equal_in(after),
        state=min((one for one in after if one.differences), key=lambda one: one.step, default=None),
    )
    if (partial := _partial_line(evidence) or _begun_averages(evidence)) is not None:
        seen, note = partial
        evidence, notes = msgspec.structs.replace(evidence, comparison=seen), [*notes, note]
    if seen.differences or (seen.missing and seen.missing[0] <= evidence.start):
        return _different(evidence, notes)
    if seen.missing:
        return _cut_short(evidence, notes)
    if not seen.steps and any(trained):
        return _nothing_common(evidence, notes)
    if not seen.compared and seen.main is not None:
        text = f"No value of {seen.main} can be compared: the resumed run does not print it at the same steps"
        return _failed(Finding(cause="unknown", why=""), text, seen, notes)
    return _by_states(evidence, states, notes)


def _equal_in(states: Sequence[StateComparison]) -> frozenset[Holding]:
    """Return the parts that are equal in every one of these states, which the resumed run has saved."""
    found = {held for one in states for part in one.equal_parts if (held := held_by(part))}
    return frozenset(found - {held for one in states for row in one.differences if (held := _holding(row))})


def _holding(row: PartDifference) -> Holding | None:
    """Return what a part of a state is, by its own name, else by the names of what differs in it.

    The learning rate lies in the optimizer's state, and is the schedule's matter where nothing else differs there.
    """
    if row.count == len(row.names) and all(is_rate(name.rpartition(".")[2]) for name in row.names):
        return "scheduler"
    if row.part == "scaler":  # its steps are the optimizer's
        return "optimizer"
    return held_by(row.part) or next((found for name in row.names if (found := held_by(name))), None)


def _notes(seen: Comparison, first: Course, run: Resumed, *, until: int, reached: int, start: int | None) -> list[str]:
    """Say what a reader has to know beside the result."""
    notes = []
    if run.how == "graceful" and run.saved_on_signal is False:
        by = _OTHER.get(run.sent or "", "")
        notes.append(
            f"It saves nothing when it is stopped gracefully{by}: the steps after its last save are done again"
        )
    if not run.exact:
        notes.append(f"It was stopped where the signal caught it, after step {run.stopped_at}")
    if reached < until:
        notes.append(f"An unbroken run ended at step {reached}, before step {until}: later steps were not compared")
    if start is not None and run.checkpoint_step is not None and start < run.checkpoint_step:
        notes.append(f"It resumed with step {start}, although its newest checkpoint is of step {run.checkpoint_step}")
    if run.checkpoint is None and seen.compared and start is not None and start > 1:
        notes.append("It resumed, but from no checkpoint of a form that is known here")
    if seen.before is not None:
        one = seen.before
        notes.append(
            f"Already before it was stopped, {one.metric} of step {one.step} was {shown(one.resumed)} instead of "
            f"{shown(one.unbroken)}: the training is not the same each time, although the unbroken runs are equal"
        )
    return [*notes, *_not_seen(seen, first)]


def _not_seen(seen: Comparison, first: Course) -> list[str]:
    """Say what a comparison that found nothing could not have found."""
    if seen.differences or not seen.steps:
        return []
    notes = []
    if len(seen.steps) == 1:
        notes.append("Only one step was compared: what shows from the second one on was not seen (optimizer, schedule)")
    if seen.main in seen.metrics and seen.exact:
        digits = max((decimals(row.get(seen.main, 0.0)) for row in first.series.values()), default=0)
        if digits <= COARSE:
            many = f"{digits} digit{'s' if digits != 1 else ''}"
            notes.append(f"{seen.main} is printed with {many} after the point: what is smaller was not seen")
    if not seen.metrics:
        notes.append("Nothing but steps was compared: a wrong state would not be noticed")
    return notes


def _without_values(first: Course, run: Resumed, *, start: int | None, seen: Comparison) -> Finding | None:
    """Return what is wrong before any value is compared: nothing loaded, nothing saved, no step, begun anew."""
    if run.load_error is not None:
        name = f" of step {run.checkpoint_step}" if run.checkpoint_step is not None else ""
        return Finding(
            cause="load_failure", why=f"The resumed run ended before its first step, with the checkpoint{name}: "
            f"{run.load_error.strip().rstrip('.')}",
        )  # fmt: skip
    begin = min(training_steps(first.series), default=first.first_step)
    anew = start is not None and begin is not None and start <= begin < run.stopped_at
    if run.checkpoint is None and (start is None or anew):
        return Finding(
            cause="nothing_saved", why=f"After it was stopped at step {run.stopped_at} no good checkpoint lay there"
        )
    if start is None:
        why = f"The resumed run printed no step{wording.ended(run)}"
        return Finding(cause="unknown", why=why)
    if anew and (run.checkpoint_step is None or run.checkpoint_step > start):
        return _begun_anew(first, run, start=start, seen=seen)
    return None


def _begun_anew(first: Course, run: Resumed, *, start: int, seen: Comparison) -> Finding:
    """Describe a resumed run whose steps begin where the unbroken one's did."""
    where = f"step {run.checkpoint_step}" if run.checkpoint_step is not None else f"the stop at step {run.stopped_at}"
    lead = f"The resumed run begins with step {start} instead of going on after {where}"
    main = seen.main or main_metric({name for row in first.series.values() for name in row})
    name = main or ""
    fresh, value = first.series.get(start, {}).get(name), run.after.series.get(start, {}).get(name)
    if fresh is None or value is None or (same(fresh, value) and not seen.differences):
        return Finding(cause="not_resumed", why=f"{lead}, with the values of the unbroken run's beginning")
    near = [step for step in first.series if abs(step - run.stopped_at) <= 5 and name in first.series[step]]
    level = sum(first.series[step][name] for step in near) / len(near) if near else fresh
    values = f"{name} is {shown(value)} there and {shown(fresh)} unbroken"
    if abs(value - level) < abs(value - fresh):
        why = f"{lead}; {values}, as after training: the weights seem to be loaded, but the count begins anew"
        return Finding(cause="not_resumed", why=why)
    return Finding(cause="not_resumed", why=f"{lead}; {values}: it begins anew, and not the same way twice")


def _partial_line(seen: Evidence) -> tuple[Comparison, str] | None:
    """Take back the differences of a first line that is an average over fewer steps than the unbroken run's line.

    So it is where every n-th step prints an average and the run resumes between two lines. That all later lines are
    equal in every digit shows that the training itself is the same.
    """
    base = seen.resumed.checkpoint_step
    base = base if base is not None else seen.resumed.before.last_step
    lines = seen.comparison.steps
    between = seen.cadence > 1 and base is not None and len(lines) > 1 and (seen.start - base) % seen.cadence != 0
    wrong = seen.comparison.differences
    if not between or not wrong or any(one.step != lines[0] for one in wrong) or not seen.comparison.exact:
        return None
    kept = msgspec.structs.replace(seen.comparison, differences=(), compared=seen.comparison.compared - len(wrong))
    names = ", ".join(dict.fromkeys(one.metric for one in wrong))
    return kept, (
        f"The line of step {lines[0]} covers fewer steps in the resumed run, which began after step {base}: "
        f"{names} was not compared there; all later lines are equal"
    )


def _begun_averages(seen: Evidence) -> tuple[Comparison, str] | None:
    """Take back the differences of a loss that is printed as an average, where what it is made of agrees."""
    found, main = seen.averages(), seen.main()
    if found is None or found.differs is not None or main is None:
        return None
    kept = tuple(one for one in seen.comparison.differences if one.metric != main.metric)
    floor = {**seen.comparison.floor, main.metric: found.room}
    return msgspec.structs.replace(seen.comparison, differences=kept, floor=floor), (
        f"{main.metric} is printed as an average over all steps, which begins anew after resuming; the values of the "
        f"single steps, as they follow from it, agree within {found.room:.2g}, and nothing nearer was seen"
    )


def _different(seen: Evidence, notes: list[str]) -> Judgement:
    """Name the cause of differences, or of steps that are left out at the beginning."""
    found = patterns.find(seen)
    if not seen.comparison.differences:
        missing = seen.comparison.missing
        lead = f"Step {missing[0]} is missing: the resumed run begins with step {seen.start}"
        cause: Cause = "off_by_one" if found.cause == "unknown" else found.cause
        return _failed(
            Finding(cause=cause, why="" if found.cause == "unknown" else found.why), lead, seen.comparison, notes
        )
    first = found.difference or seen.main() or seen.comparison.differences[0]
    at_first = seen.comparison.differences[0]
    if at_first.step < first.step:
        first = at_first
    found = msgspec.structs.replace(found, difference=first)
    noisy = first.metric in seen.comparison.noise
    return _failed(found, wording.difference(first, seen.start, noisy=noisy), seen.comparison, notes)


def _cut_short(seen: Evidence, notes: list[str]) -> Judgement:
    """Tell of a resumed run that is equal as far as it goes, and leaves out steps."""
    missing, last = seen.comparison.missing, seen.resumed.after.last_step
    count = f"{len(missing)} step{'s' if len(missing) > 1 else ''}"
    if last is not None and missing[0] > last:
        lead = f"The resumed run ended after step {last}{wording.ended(seen.resumed)}, before step {missing[-1]}"
    else:
        lead = f"The resumed run leaves out {count}, the first of them {missing[0]}"
    return _failed(Finding(cause="unknown", why="what it did make is equal"), lead, seen.comparison, notes)


def _nothing_common(seen: Evidence, notes: list[str]) -> Judgement:
    """Tell of a resumed run none of whose steps the unbroken runs printed."""
    steps = ", ".join(map(str, training_steps(seen.resumed.after.series)[:3]))
    lead = f"No step of the resumed run ({steps}, ...) is one that both unbroken runs printed, so nothing was compared"
    return _failed(Finding(cause="unknown", why=""), lead, seen.comparison, notes)


def _by_states(seen: Evidence, states: Sequence[StateComparison], notes: list[str]) -> Judgement:
    """Judge a run whose printed values are all right by the states that it saved."""
    wrong = [one for one in states if one.differences]
    deterministic = seen.comparison.exact
    rows = [row for one in wrong for row in one.differences]
    kinds = {held for row in rows if (held := _holding(row))}
    if "optimizer" in kinds and restored.follows(rows):
        kinds.discard("scheduler")
    counts = not deterministic and kinds & {"rng", "data", "scheduler"}
    hidden = [part for part in ("model", "optimizer") if not deterministic and seen.lacks(part)]
    if hidden:
        lost = " and no ".join(hidden)
        notes = [*notes, f"By its names the checkpoint holds no {lost} state, and noise as large as this would hide it"]
    if not wrong or not (deterministic or counts):
        if wrong:
            notes = [*notes, f"Saved states of step {wrong[0].step} differ, as the unbroken runs' values do"]
        elif states:
            total = sum(one.compared for one in states)
            many = "one saved state is" if len(states) == 1 else f"{len(states)} saved states are"
            notes = [*notes, f"{many} equal bit by bit: {total} tensors and values"]
        return _judgement(seen.comparison, notes, text=wording.equality(seen.comparison))
    parts = [f"{row.part} ({row.count} of {row.of}: {', '.join(row.names[:3])})" for row in wrong[0].differences]
    lead = f"Everything printed is equal, but the states saved at step {wrong[0].step} differ in {', '.join(parts)}"
    known = [_OF_PART[kind] for kind in ("rng", "data", "scheduler", "optimizer") if kind in kinds and kind in _OF_PART]
    cause, also = _cause_of_parts(rows, known)
    finding = Finding(cause=cause, why="", also=also)
    judged = _failed(finding, lead, seen.comparison, notes)
    return msgspec.structs.replace(judged, step=wrong[0].step)


def _cause_of_parts(rows: Sequence[PartDifference], known: Sequence[Cause]) -> tuple[Cause, tuple[Cause, ...]]:
    """Return the cause that parts of a state speak for: their own, where there is nothing else, else EMA or buffers."""
    other = [row for row in rows if _holding(row) not in _OF_PART]
    if not other:
        return known[0], tuple(known[1:])
    averaged = any(_holding(row) == "ema" for row in rows)
    if "optimizer" in known and not averaged:
        return "optimizer", ("ema_or_buffers",)  # both drift, by less than is printed
    return "ema_or_buffers", tuple(known)


def _failed(found: Finding, lead: str, seen: Comparison, notes: Sequence[str]) -> Judgement:
    """Make the judgement of a failure."""
    text = wording.failure(found.cause, found.also, lead=lead or found.why, why=found.why if lead else "")
    return _judgement(seen, notes, text=text, found=found)


def _judgement(seen: Comparison, notes: Sequence[str], *, text: str, found: Finding | None = None) -> Judgement:
    one = found.difference if found else None
    wrong = {(row.step, row.metric) for row in seen.differences}
    return Judgement(
        passed=found is None,
        cause=found.cause if found else None,
        also=tuple(cause for cause in dict.fromkeys(found.also) if cause != found.cause) if found else (),
        text=text,
        step=one.step if one else None,
        metric=one.metric if one else None,
        unbroken=one.unbroken if one else None,
        resumed=one.resumed if one else None,
        compared=seen.compared,
        equal=max(0, seen.compared - len(wrong)),
        floor={name: seen.floor.get(name, 0.0) for name in seen.metrics},
        left_out=seen.left_out,
        notes=tuple(notes),
    )
