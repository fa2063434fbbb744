"""One attempt beside what the run had done before: whether it went on where it should, and does the same again.

Pure: values in, findings out. Where values come from and who is told is decided elsewhere. Once ``over`` nothing of
the earlier values is held.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from math import isfinite, isnan
from statistics import median
from typing import Any, Final

import msgspec

from overnight.resumption.expectation import LossCourse, LrCourse, off
from overnight.rules import spoken

__all__ = ["Earlier", "Noticed", "Overlap", "OverlapSummary", "Resuming", "comparable"]

Values = Mapping[str, float]
"""What was printed of one step, by metric: fields of ``Record``, and keys as printed."""

FRESH, LOSS, LR, DIFFERENT = range(4)
"""The parts of the rule ``resume``."""

_RECORDS: Final = 20  # of the new attempt, in which learning rates are judged
_PAIRS: Final = 5  # steps both did, of which most must be off; a single one must be off by far more
_PAIR_SIGMAS: Final = 3.0
_ALONE_SIGMAS: Final = 10.0

_TIMES: Final = frozenset(
    (
        *("s", "sec", "secs", "second", "seconds", "ms", "us", "ns", "min", "mins", "minute", "minutes", "h", "hour"),
        *(
            "hours",
            "dt",
            "eta",
            "elapsed",
            "wall",
            "clock",
            "date",
            "latency",
            "duration",
            "speed",
            "fps",
            "tps",
            "qps",
        ),
        *("rate", "mfu", "hfu", "flops", "tflops", "gflops", "pflops", "mem", "gb", "gib", "mb", "mib", "rss", "vram"),
        *("gpu", "cpu", "cuda", "util", "watt", "watts", "power", "temp", "temperature", "alloc", "allocated"),
        *("reserved", "it", "pid", "fwd", "bwd"),
    )
)
_WITHIN: Final = ("time", "memory", "throughput", "per_sec", "persec", "remaining", "utilization")
_RATES_OF_LEARNING: Final = ("learning_rate", "dropout_rate", "error_rate", "success_rate", "accept_rate")
_FIELDS: Final = {"dt_s": False, "tokens_per_s": False, "samples_per_s": False, "mfu": False}
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def comparable(name: str) -> bool:
    """Say whether a metric should be the same when a step is done again: no time, speed or memory."""
    if name in _FIELDS:
        return False
    lower = name.lower().lstrip(".").replace("-", "_").replace(" ", "_").replace("/", "_")
    if any(lower.endswith(one) for one in _RATES_OF_LEARNING):
        return True
    words = {word.lower() for word in _WORD.findall(name)} | set(re.split(r"[^a-z]+", lower))
    return not (words & _TIMES or any(one in lower for one in _WITHIN))


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What a run had done before an attempt.

    ``steps``: values by rising step, one value per step after rewinds: the last ones before the attempt's first step,
    and those from there on. ``begins`` and ``begins_epoch``: what the run's very first record printed. ``reached``: the
    last step that counts; ``reached_epoch`` likewise. ``interval``: steps between two lines. ``folds``: steps are
    counted anew in each epoch, so that a step does not say where a training is.
    """

    steps: Mapping[int, Values] = {}
    begins: int | None = None
    begins_epoch: float | None = None
    reached: int | None = None
    reached_epoch: float | None = None
    interval: int = 1
    folds: bool = False


class Resuming(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempt was given.

    ``since``: the step of the checkpoint it resumes from, None if nobody knows; ``saved``: the newest step that was
    seen being saved, None for none; ``resumes``: it is expected to go on, and not to begin anew; ``skip_from``: the
    first step whose data it was asked to leave out, from which on nothing need be as before.
    """

    since: int | None = None
    saved: int | None = None
    resumes: bool = True
    skip_from: int | None = None


class Noticed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: ``part`` 0 fresh start, 1 jump of the loss, 2 of the learning rate, 3 overlap beyond noise."""

    part: int
    text: str
    step: int
    evidence: dict[str, Any]


class OverlapSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that both did: how many were compared, how many had all metrics equal, and the first that had not."""

    compared: int
    equal: int
    first_difference: dict[str, Any] | None
    text: str


class Overlap:
    """Takes an attempt's records in the order of the log; each once. A step may come in several records."""

    def __init__(self, *, earlier: Earlier, resuming: Resuming) -> None:
        self.earlier: Earlier | None = earlier
        self.resuming = resuming
        self.compared = self.equal = 0
        self.first_difference: dict[str, Any] | None = None
        self.why_not: str | None = None
        self._first: int | None = None
        self._step: int | None = None
        self._pending: dict[str, float] = {}
        self._records = 0
        self._told: set[int] = set()
        self._pairs: list[float] = []
        self._twins: dict[int, Values] = {}
        self._loss: LossCourse | None = None
        self._lr: LrCourse | None = None

    def add(self, step: int, values: Values) -> list[Noticed]:
        """Take one record's values; return what it makes certain."""
        if self.earlier is None:
            return []
        if self._step is None:
            fresh = self._begin(step, values, self.earlier)
            if self.over():
                return fresh
        elif step < self._step:
            return self._end("the step fell again")
        found = self._judge(step, values) if self.resuming.resumes else []
        if step != self._step:
            found += self._compare()
        self._step = step
        self._pending.update({name: value for name, value in values.items() if comparable(name)})
        last = next(reversed(self._twins), None)
        if (last is None or step > last) and self._judged():
            self._forget()
        return found

    def finish(self) -> tuple[OverlapSummary | None, list[Noticed]]:
        """The attempt has ended, or all is compared: return what came of it, None before the first step."""
        found = [] if self.earlier is None else self._compare()
        self._forget()
        if self._first is None:
            return None, found
        if not self.compared:
            text = self.why_not or "no step was done by both"
        elif self.first_difference is None:
            text = f"{self.equal}/{self.compared} equal"
        else:
            one = self.first_difference
            was, now = spoken_apart(one["before"], one["after"])
            text = f"{self.equal}/{self.compared}, first difference {one['step']}: {one['metric']} {was} -> {now}"
        return OverlapSummary(
            compared=self.compared, equal=self.equal, first_difference=self.first_difference, text=text
        ), found

    def over(self) -> bool:
        """Say whether nothing that is still to come matters."""
        return self.earlier is None

    # -- where it goes on --------------------------------------------------------------------------------------------

    def _begin(self, step: int, values: Values, earlier: Earlier) -> list[Noticed]:
        """Look at the attempt's very first record."""
        self._first = step
        if earlier.folds or self._recounts(values, earlier):
            return self._end("steps are counted anew in each epoch")
        if self.resuming.resumes:
            found = self._behind(step, earlier)
            if found is not None:
                self._end(f"it began at step {step}")
                return [found]
        elif earlier.begins is not None and step <= max(earlier.begins, 1):
            return self._end(f"it began anew at step {step}")
        known = list(earlier.steps)
        place = bisect_left(known, step)
        end = len(known) if self.resuming.skip_from is None else bisect_left(known, self.resuming.skip_from)
        self._twins = {one: earlier.steps[one] for one in known[place:end]}
        past = [(one, earlier.steps[one]) for one in known[:place]]
        # What lies far behind says nothing of the next value.
        if past and step - past[-1][0] > 3 * earlier.interval:
            past = []
        records = step // earlier.interval
        self._loss = LossCourse([said["loss"] for _, said in past if "loss" in said], records=records)
        rates = [(one, said["lr"]) for one, said in past if isfinite(said.get("lr", float("nan")))]
        self._lr = LrCourse([one for one, _ in rates], [rate for _, rate in rates])
        return []

    def _recounts(self, values: Values, earlier: Earlier) -> bool:
        """Say whether the epoch shows that a low step is not the beginning."""
        epoch, reached, begins = values.get("epoch"), earlier.reached_epoch, earlier.begins_epoch
        if epoch is None or reached is None or begins is None or self._first is None:
            return False
        low = earlier.reached is not None and self._first < earlier.reached
        return low and epoch > begins and epoch >= int(reached) and epoch != reached and self._far_behind(earlier)

    def _far_behind(self, earlier: Earlier) -> bool:
        known = self.resuming.since if self.resuming.since is not None else earlier.reached
        return known is not None and self._first is not None and known - self._first >= max(2, earlier.interval)

    def _behind(self, step: int, earlier: Earlier) -> Noticed | None:
        """Return the finding where an attempt that should go on has begun anew, or far before its checkpoint."""
        since, saved, reached = self.resuming.since, self.resuming.saved, earlier.reached
        beginning = step <= max(1, earlier.begins if earlier.begins is not None else 1)
        evidence = {"since": since, "saved": saved, "reached": reached, "first_step": step}
        if since is not None:
            behind = since - step
            if beginning and behind >= 2:
                text = f"resumed from {since} but the run restarted at {step}"
            # The step of a save that takes its time may be some lines too high.
            elif behind > max(20 * earlier.interval, since // 10):
                text = f"resumed from {since} but the run went on at {step}"
            elif self._beyond(step, since, earlier):
                text = f"it was given the save of step {since} but went on at {step}: its command takes another one"
            else:
                return None
        elif saved is not None and beginning and min(saved, reached or saved) - step >= max(2, earlier.interval):
            text = f"the run had reached {reached}, with a save at {saved}, but it restarted at {step}"
        else:
            return None
        return Noticed(part=FRESH, text=text, step=step, evidence=evidence)

    def _beyond(self, step: int, since: int, earlier: Earlier) -> bool:
        """Say whether it has gone on from a later save than the one it was given; where steps are left out it may."""
        saved = self.resuming.saved
        later = saved is not None and since < saved < step and step - since > 2 * earlier.interval
        return later and self.resuming.skip_from is None

    # -- jumps -------------------------------------------------------------------------------------------------------

    def _judge(self, step: int, values: Values) -> list[Noticed]:
        """Look for a jump of loss and learning rate in one of the first records."""
        self._records += 1
        found: list[Noticed] = []
        rate, loss = values.get("lr"), values.get("loss")
        if rate is not None and isfinite(rate) and LR not in self._told:
            found += self._judge_lr(step, rate)
        if loss is not None and self._loss is not None and not self._told & {LOSS, DIFFERENT}:
            jump = self._loss.add(loss)
            if jump is not None:
                self._told.add(LOSS)
                was, now = spoken_apart(jump.before, jump.after)
                text = f"jump after resume: {was} -> {now} ({spoken_sigmas(jump.sigmas)} sigma)"
                evidence = {"before": jump.before, "after": jump.after, "sigmas": jump.sigmas, "records": jump.records}
                found.append(Noticed(part=LOSS, text=text, step=step, evidence=evidence))
        return found

    def _judge_lr(self, step: int, rate: float) -> Iterable[Noticed]:
        twin = self._twins.get(step, {}).get("lr")
        if twin is not None and isfinite(twin):
            expected = twin if off(twin, rate) else None
            if self._lr is not None:
                self._lr.skip()
            how = "it was {} at the same step before"
        else:
            expected = None if self._lr is None else self._lr.add(step, rate)
            how = "{} was to be expected"
        if expected is None:
            return
        self._told.add(LR)
        was, now = spoken_apart(expected, rate)
        text = f"learning rate after resume: {now} at step {step}; {how.format(was)}"
        evidence = {"before": expected, "after": rate, "same_step": twin is not None}
        yield Noticed(part=LR, text=text, step=step, evidence=evidence)

    def _judged(self) -> bool:
        """Say whether no further record is looked at for a jump."""
        if not self.resuming.resumes:
            return True
        loss_done = self._loss is None or self._loss.done() or bool(self._told & {LOSS, DIFFERENT})
        return self._records >= _RECORDS and loss_done

    # -- the same step twice -----------------------------------------------------------------------------------------

    def _compare(self) -> list[Noticed]:
        """Set the step that is complete now beside its twin."""
        step, new = self._step, self._pending
        self._pending = {}
        old = None if step is None else self._twins.pop(step, None)
        if step is None or old is None:
            return []
        both = [name for name in old if name in new and comparable(name)]
        if not both:
            return []
        self.compared += 1
        different = [name for name in both if not same(old[name], new[name])]
        self.equal += not different
        if different and self.first_difference is None:
            metric = different[0]
            self.first_difference = {
                "step": step, "metric": metric, "before": old[metric], "after": new[metric],
            }  # fmt: skip
        return self._weigh(step, old, new) if "loss" in both and self.resuming.resumes else []

    def _weigh(self, step: int, old: Values, new: Values) -> list[Noticed]:
        """Return the finding where the losses of the same steps differ more than a loss does from line to line."""
        course, gap = self._loss, new["loss"] - old["loss"]
        if course is None or course.level is None or self._told & {LOSS, DIFFERENT} or not isfinite(gap):
            return []
        # A mean that begins anew is lower than before wherever the loss falls.
        if course.smooth and gap < 0:
            return []
        self._pairs.append(gap)
        usual, plain = course.usual, course.plain
        alone = abs(gap) > max(_ALONE_SIGMAS * usual, 1.5 * course.farthest, plain)
        middle = median(self._pairs[-2 * _PAIRS :])
        lasting = len(self._pairs) >= _PAIRS and abs(middle) > max(_PAIR_SIGMAS * usual, plain)
        if not alone and not lasting:
            return []
        self._told.add(DIFFERENT)
        was, now = spoken_apart(old["loss"], new["loss"])
        sigmas = abs(gap if alone else middle) / usual if usual > 0 else float("inf")
        text = f"step {step} done again: loss {was} -> {now} ({spoken_sigmas(sigmas)} sigma)"
        evidence = {"before": old["loss"], "after": new["loss"], "sigmas": sigmas, "compared": self.compared}
        return [Noticed(part=DIFFERENT, text=text, step=step, evidence=evidence)]

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end(self, why: str) -> list[Noticed]:
        found = self._compare()
        self.why_not = self.why_not or why
        self._forget()
        return found

    def _forget(self) -> None:
        self.earlier = self._loss = self._lr = None
        self._twins, self._pending, self._pairs = {}, {}, []


def same(one: float, other: float) -> bool:
    """Say whether two values were printed alike; NaN is NaN."""
    return one == other or (isnan(one) and isnan(other))


def spoken_apart(one: float, other: float) -> tuple[str, str]:
    """Return two numbers for a sentence, with as many digits as tell them apart."""
    first, second = spoken(one), spoken(other)
    return (first, second) if first != second or same(one, other) else (repr(one), repr(other))


def spoken_sigmas(sigmas: float) -> str:
    """Return a number of deviations for a sentence: "9", "> 99"."""
    return "> 99" if sigmas > 99 else f"{sigmas:.0f}"
