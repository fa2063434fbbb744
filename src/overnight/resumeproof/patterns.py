"""From the pattern of the differences to the probable cause: which part of the training was not restored.

Each function looks for one kind of fault and returns it, or None; the order in ``DETECTORS`` decides between them. What
cannot be told apart is said: the likelier cause, and the others in ``also``. No clock, no file, no process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Final

import msgspec

from overnight.resumeproof import curves
from overnight.resumeproof.clues import Evidence, Finding
from overnight.resumeproof.comparing import Difference, column, same, training_steps
from overnight.resumeproof.noise import granularity
from overnight.resumeproof.restored import by_counts, doubtful
from overnight.resumeproof.vocabulary import (
    Holding,
    is_average,
    is_of_data,
    is_rate,
    is_scale,
    of_an_evaluation,
    of_averaged_weights,
    shown,
)
from overnight.resumeproof.words import Cause

ROUNDING: Final = 0.01  # of the batches' spread; other dropout makes ten times as much, other data a hundred times
SMALL: Final = 0.5  # of the differences between batches: below it a drift begins, above it something else came at once


def averaged(seen: Evidence) -> Finding | None:
    """What is printed is an average that begins anew; what it is made of agrees at first."""
    found, main = seen.averages(), seen.main()
    if found is None or found.differs is None or main is None:
        return None
    why = f"{main.metric} is an average over all steps, which begins anew; that of each step, as it follows from it, "
    why += f"agrees up to step {found.differs - 1} and is {found.unbroken:.4g} unbroken and {found.resumed:.4g} "
    return Finding(cause="optimizer", also=("scheduler",), why=f"{why}resumed at step {found.differs}")


def shifted(seen: Evidence) -> Finding | None:
    """The values are right, and stand at the wrong steps."""
    unbroken, resumed = seen.curve()
    if seen.main() is None:
        return None
    noise = seen.comparison.noise.get(seen.comparison.main or "")
    room = noise.floor if noise else 0.0
    if room > 0.3 * seen.spread():
        return None  # with noise as large as this, a falling curve agrees with any of its places
    loose = max(room, 0.15 * seen.spread())
    k = curves.shift(unbroken, resumed, lambda a, b: same(a, b) or abs(a - b) <= room, loose=loose)
    if k is None:
        return None
    if seen.start + k == min(unbroken):
        why = f"from step {seen.start} on it prints what the unbroken run printed from step {min(unbroken)} on"
        return Finding(cause="not_resumed", why=f"{why}: the count goes on, everything else begins anew")
    late = f"{abs(k)} step{'s' if abs(k) > 1 else ''} {'later' if k > 0 else 'earlier'}"
    return Finding(cause="off_by_one", why=f"its values are those that the unbroken run has {late} (k = {k:+d})")


def beside(seen: Evidence) -> Finding | None:
    """The first resumed step is not the one after the checkpoint's, and its values are others."""
    run, start = seen.resumed, seen.start
    first = seen.comparison.differences[0].step if seen.comparison.differences else None
    left_out = any(step < start for step in seen.comparison.missing)
    if not (left_out or first == start):
        return None
    from_zero = min(training_steps(seen.unbroken), default=1) == 0
    bases = []
    if run.how == "graceful" and run.saved_on_signal is not False and run.before.last_step is not None:
        bases = [(run.before.last_step, f"the run was stopped after step {run.before.last_step}")]
    if run.checkpoint_step is not None and not (from_zero and bases):
        bases.append((run.checkpoint_step, f"the checkpoint is of step {run.checkpoint_step}"))
    for base, text in bases:
        if start == base and not (from_zero and run.checkpoint_step == base):
            why = f"{text}, and the resumed run begins with step {start} instead of {base + 1}: one early"
            return Finding(cause="off_by_one", why=why, also=("rng",))
        if start == base + 2 and seen.cadence == 1:
            why = f"{text}, and the resumed run begins with step {start} instead of {base + 1}: one late"
            return Finding(cause="off_by_one", why=why)
    return None


def fresh_weights(seen: Evidence) -> Finding | None:
    """The loss jumps up at the first step and stays there."""
    main = seen.main()
    if main is None or main.step > seen.start:
        return None
    off, spread = seen.off(seen.start), seen.spread()
    if not off or not curves.jumped(off, spread):
        return None
    unbroken, resumed = seen.curve()
    count = max(1, min(3, len(unbroken) // 10))
    begun = fmean(unbroken[step] for step in sorted(unbroken)[:count])
    anew = abs(resumed[min(resumed)] - begun) < abs(resumed[min(resumed)] - unbroken[main.step])
    how = "as high as at the beginning" if anew else "far above what differs from batch to batch"
    why = f"{main.metric} jumps at the first resumed step, {how}"
    other: tuple[Cause, ...] = ("data_order",) if not anew else ()
    return Finding(cause="weights", why=why, also=other, difference=main)


def counted(seen: Evidence) -> Finding | None:
    """The saved states tell which of optimizer and schedule it is; what differs at once has another cause besides."""
    found, main = by_counts(seen), seen.main()
    if found is None or main is None or main.step > seen.start or seen.cadence > 1:
        return found
    if seen.first_of(is_rate) is None:
        return None
    return msgspec.structs.replace(found, also=(*found.also, _first_step(seen).cause))


def rates(seen: Evidence) -> Finding | None:
    """The learning rate is another one, no later than the loss is."""
    rate, main = seen.first_of(is_rate), seen.main()
    if rate is None or (main is not None and main.step < rate.step):
        return None
    known = column(seen.unbroken, rate.metric)
    also: list[Cause] = []
    if main is not None and main.step == seen.start and seen.cadence == 1:
        also.append(_first_step(seen).cause)
    if seen.cadence > 1:
        also.append("off_by_one")
    why = _rate_words(known, rate, seen.start)
    if seen.lacks("optimizer") and "scheduler" in seen.held:
        return Finding(cause="optimizer", also=("scheduler", *also), why=why, difference=rate)
    if seen.lacks("optimizer") or (why.endswith("begins anew") and doubtful(seen)):
        also.insert(0, "optimizer")  # which holds the rate that the schedule goes on from
    return Finding(cause="scheduler", also=tuple(also), why=why, difference=rate)


def _rate_words(known: Mapping[int, float], rate: Difference, start: int) -> str:
    """Say where on the schedule a learning rate lies."""
    steps = sorted(known)
    if rate.step - start + steps[0] in known and same(known[rate.step - start + steps[0]], rate.resumed):
        return f"as at step {rate.step - start + steps[0]}: the schedule begins anew"
    place = curves.place_of(known, rate.resumed)
    if place is not None:
        k = place - rate.step
        late = "ahead" if k > 0 else "behind"
        return f"as at step {place}: the schedule is {abs(k)} step{'s' if abs(k) > 1 else ''} {late}"
    for times in (2.0, 0.5, 10.0, 0.1):
        if rate.unbroken and abs(rate.resumed / rate.unbroken - times) < 0.005 * times:
            return f"{times:g} times the value"
    nearby = [known[step] for step in steps if step <= rate.step][-2:]
    if len(nearby) == 2 and (rate.resumed - rate.unbroken) * (nearby[1] - nearby[0]) > 0.0:
        return "further along the schedule, as if it had been advanced twice on loading"
    return "no value of that schedule so far"


def data(seen: Evidence) -> Finding | None:
    """What tells of the data differs, at a step at which nothing else does before."""
    told = seen.first_of(is_of_data)
    main = seen.main()
    if told is None or (main is not None and main.step < told.step):
        return None
    known = column(seen.unbroken, told.metric)
    if not _says(known) and (main is None or main.step != told.step or told.step != seen.start):
        return None  # a count that is not restored says nothing of the order
    after = {step: v for step, v in column(seen.resumed.after.series, told.metric).items() if step >= told.step}
    k = curves.shift(known, after, same, loose=0.0)
    why = f"{told.metric}, which tells of the data, differs from step {told.step} on"
    if k is not None:
        why += f": its values are those of step {told.step + k} and after"
    elif told.step > seen.start and seen.cadence == 1:
        why += ", while it agrees before"
    return Finding(cause="data_order", why=why, difference=told)


def drowned(seen: Evidence) -> Finding | None:
    """The unbroken runs differ as much as batches do, so that no step says what a difference comes from."""
    main = seen.main()
    noise = seen.comparison.noise.get(seen.comparison.main or "")
    if main is None or noise is None or noise.floor < 2.0 * seen.spread():
        return None
    why = "the runs differ from each other by as much as batches do, so the steps do not tell which part it is"
    lost: list[Cause] = [cause for cause, part in _UPDATES if seen.lacks(part)]
    if seen.lacks("model"):
        lost.insert(0, "weights")
    if not lost:
        return Finding(cause="unknown", also=("weights", "optimizer"), why=why)
    return Finding(cause=lost[0], also=tuple(lost[1:]), why=f"{why}; the checkpoint holds no {_PARTS[lost[0]]}")


def rounded(seen: Evidence) -> Finding | None:
    """The loss differs from the first resumed step on, by next to nothing: no other draw is as near."""
    main, spread = seen.main(), seen.spread()
    if main is None or main.step > seen.start or seen.cadence > 1 or not seen.comparison.exact:
        return None
    off = seen.off(seen.start)
    if not off or abs(off[0]) > ROUNDING * spread or seen.lacks("model"):
        return None
    why = "it differs at the first resumed step by no more than rounding does: the weights are saved or loaded with "
    why += "fewer bits (half precision), or the second start computes otherwise (threads, kernels)"
    return Finding(cause="weights", why=why, also=("rng",))


def at_once(seen: Evidence) -> Finding | None:
    """The loss differs from the first resumed step on: other data, or other random numbers on the same data."""
    main = seen.main()
    if main is None or main.step > seen.start or seen.cadence > 1 or _grows(seen, main):
        return None
    return _first_step(seen)


def _grows(seen: Evidence, main: Difference) -> bool:
    """Say whether what is seen only as an average over several steps is small at the first of them."""
    off = [abs(value) for value in seen.off(seen.start)]
    return main.upto is not None and len(off) > 2 and off[0] < 0.5 * fmean(off[1:])


def _first_step(seen: Evidence) -> Finding:
    """Tell random numbers from the order of the data, by all that speaks for one of them; positive: data."""
    unbroken, resumed = seen.curve()
    off, spread = seen.off(seen.start), seen.spread()
    size = curves.relative_size(off[:10], spread)
    told = [name for name in seen.comparison.metrics if is_of_data(name) and _says(column(seen.unbroken, name))]
    weight = max(-6.0, min(2.0, curves.other_data(off, spread)))
    reasons = [f"the differences are {'as large as' if weight > 0 else 'smaller than'} those between batches"]
    if size == float("inf"):
        reasons = []
    if told and not any(one.metric in told for one in seen.comparison.differences if one.step <= seen.start):
        weight, reasons = weight - 20.0, [f"{told[0]} agrees, so the data are the same"]
    if curves.begins_anew(unbroken, resumed):
        weight, reasons = weight + 10.0, ["the ups and downs are those of the beginning of the data"]
    for part, sign in (("rng", -1.0), ("data", 1.0)):
        other: Holding = "data" if part == "rng" else "rng"
        lost: Holding = "rng" if part == "rng" else "data"
        if seen.lacks(lost) and other in seen.held:
            weight += 3.0 * sign
            reasons.append(f"the checkpoint holds {_NAMED[other]}, but not {_NAMED[lost]}")
        if lost in seen.differs_in and other not in seen.differs_in:
            weight += 3.0 * sign
            reasons.append(f"{_NAMED[lost]} differs in the checkpoints that were compared")
        if other in seen.equal_in and not (other == "rng" and "data" in seen.equal_in):
            weight += 3.0 * sign
            reasons.append(f"{_NAMED[other]} is equal in the checkpoints that were compared")
    cause: Cause = "data_order" if weight > 0.0 else "rng"
    counter: Cause = "rng" if weight > 0.0 else "data_order"
    sure = abs(weight) >= 10.0  # sizes never make it sure, nor does one thing that the checkpoint lacks
    high: tuple[Cause, ...] = ("weights",) if off and off[0] > 3.0 * spread > 0.0 else ()
    why = "it differs at the first resumed step, before any weight was changed"
    return Finding(
        cause=cause,
        also=high if sure else (counter, *high),
        why="; ".join([why, *reasons, *([] if sure else [_doubt(seen, "data" if cause == "rng" else "rng")])]),
    )


def _doubt(seen: Evidence, other: Holding) -> str:
    """Say what it may be as well: of a part whose saved states are equal only what is not saved."""
    if other in seen.equal_in:
        return f"only {_UNSAVED[other]} that is not saved may be it as well"
    return f"{_NAMED[other]} may be it as well"


_NAMED: Final[dict[Holding, str]] = {"rng": "the random state", "data": "the position in the data"}
_UNSAVED: Final[dict[Holding, str]] = {"rng": "a random state", "data": "a position in the data"}


def _says(values: Mapping[int, float]) -> bool:
    """Say whether a metric that tells of the data is another one at nearly every step: ids, not counts or epochs."""
    seen = [values[step] for step in sorted(values)]
    rising = all(two >= one for one, two in pairwise(seen))
    return len({*seen}) > 0.5 * len(seen) and not rising


def later(seen: Evidence) -> Finding | None:
    """The loss agrees at first and leaves then; with a line for every n-th step only, at the first line."""
    main = seen.main()
    if main is None:
        return None
    off, spread = seen.off(main.step), seen.spread()
    size = curves.relative_size(off[:3], spread)
    steps = [step for step in seen.comparison.steps if step < main.step] or ([seen.start] if _grows(seen, main) else [])
    if len(steps) >= 2 and size > SMALL and off and abs(off[0]) > SMALL * spread:
        why = f"{len(steps)} steps agree, then the differences are at once as large as those between batches"
        return Finding(cause="data_order", also=("rng",), why=f"{why}: at the end of an epoch, a buffer or a chunk")
    agree = f"{len(steps)} step{'s' if len(steps) > 1 else ''} after resuming agree{'' if len(steps) > 1 else 's'}"
    why = f"{agree}, then it drifts" if steps else "the first line comes several updates after resuming"
    printed = any(is_rate(name) for name in seen.comparison.metrics)
    lost: list[Cause] = [
        cause for cause, part in _UPDATES if seen.lacks(part) and not (printed and cause == "scheduler")
    ]
    if lost:
        why += f"; the checkpoint holds no {_PARTS[lost[0]]}"
    grain = granularity(seen.curve()[0].values())
    coarse = grain > 0.05 * spread and size > 0.35 and (seen.lacks("rng") or seen.lacks("data"))
    if not lost and len(steps) == 1 and (size > 0.7 or coarse):
        near = _first_step(seen)
        why = (
            "only the first step agrees, perhaps by chance, then the differences are as large as those between batches"
        )
        return Finding(cause=near.cause, also=(*near.also, "optimizer"), why=why)
    if not steps:
        return _first_line(seen, lost, why, size=size)
    cause = lost[0] if lost else "optimizer"
    other: tuple[Cause, ...] = () if printed else ("optimizer",) if cause == "scheduler" else ("scheduler",)
    if printed:
        why += ", while the learning rate agrees"
    return Finding(cause=cause, also=() if lost == ["optimizer"] and steps else other, why=why)


def _first_line(seen: Evidence, lost: list[Cause], why: str, *, size: float) -> Finding:
    """Tell what a first line comes from that was printed only after several updates: by what the checkpoint lacks."""
    near = _first_step(seen)
    also: list[Cause] = [*lost, near.cause, *near.also, "optimizer"]
    off, spread = seen.off(seen.start), seen.spread()
    if off and off[0] > 3.0 * spread:
        also.append("weights")
    by_part: tuple[tuple[Cause, Holding], ...] = (("rng", "rng"), ("data_order", "data"))
    absent = [cause for cause, part in by_part if seen.lacks(part)]
    if "optimizer" in lost:
        cause: Cause = "optimizer"
    elif len(absent) == 1:
        cause, why = absent[0], f"{why}; the checkpoint does not hold {_NAMED['rng' if absent[0] == 'rng' else 'data']}"
    elif size > SMALL:
        cause, why = near.cause, f"{why}; {near.why.partition('; ')[2]}"
    else:
        cause = lost[0] if lost else "optimizer"  # many a training has no schedule, and so saves none
    return Finding(cause=cause, also=tuple(one for one in dict.fromkeys(also) if one != cause), why=why)


_UPDATES: Final[tuple[tuple[Cause, Holding], ...]] = (("optimizer", "optimizer"), ("scheduler", "scheduler"))
_PARTS: Final[dict[Cause, str]] = {"optimizer": "optimizer state", "scheduler": "scheduler", "weights": "weights"}


def _averages_anew(seen: Evidence, metric: str) -> bool:
    """Say whether a metric begins as an average of the loss does that has seen nothing before: with its first value."""
    begin, value = min(column(seen.resumed.after.series, metric).items(), default=(seen.start, math.inf))
    return abs(value - seen.curve()[1].get(begin, -math.inf)) <= 0.02 * seen.spread()


def others(seen: Evidence) -> Finding | None:
    """The loss agrees throughout, and something else does not."""
    if seen.main() is not None or not seen.comparison.differences:
        return None
    first = seen.comparison.differences[0]
    main = seen.comparison.main
    if of_an_evaluation(first.metric) and main is not None and not of_an_evaluation(main):
        why = f"{main} agrees at every step, and evaluations differ: they use averaged weights, or buffers such as "
        return Finding(cause="ema_or_buffers", why=why + "the running means of a BatchNorm", difference=first)
    if main is not None and is_scale(first.metric):
        why = f"{main} agrees at every step, and the scale of the gradients does not: that is the GradScaler's state"
        return Finding(cause="optimizer", why=why, difference=first)
    if main is not None and of_averaged_weights(first.metric) and not _averages_anew(seen, first.metric):
        why = f"{main} agrees at every step, and {first.metric} is that of other weights"
        return Finding(cause="ema_or_buffers", why=why, difference=first)
    lines = [one for one in seen.comparison.differences if one.metric == first.metric]
    apart = {round(one.resumed - one.unbroken, 9) for one in lines}
    kind = "is not what it was"
    if is_average(first.metric):
        kind = "is an average or a sum, which begins anew after resuming"
    elif len(lines) > 2 and len(apart) == 1:
        kind = f"lies {shown(apart.pop())} off at every step, as a count does that is not restored"
    text = f"{main} agrees at every step" if main else "the steps agree"
    return Finding(cause="unknown", why=f"{text}; only {first.metric} {kind}")


DETECTORS: Final[tuple[Callable[[Evidence], Finding | None], ...]] = (
    averaged,
    shifted,
    fresh_weights,
    beside,
    counted,
    rates,
    data,
    drowned,
    rounded,
    at_once,
    later,
    others,
)


def find(seen: Evidence) -> Finding:
    """Return the cause of differences, or of steps that are missing at the beginning."""
    for detect in DETECTORS:
        found = detect(seen)
        if found is not None:
            return found
    return Finding(cause="unknown", why="the pattern is none of those that are known")
