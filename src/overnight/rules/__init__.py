"""What a rule is: a small frozen object that looks at one record, or at the time, and says what it found.

One file per family of illness beside this one; no list of them here. No clock, file or process. A rule keeps nothing in
itself: what it must remember stands in a flat dict of numbers, strings and flags that the caller keeps and saves.

How the caller treats memories: a record rule's starts anew (``fresh()``) with each segment, a time rule's lives as long
as the run, for a limit on the whole run must not be announced again because the training went back a step. The meter
sees a record before the rules do, so that the first record of a segment is judged with a new memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Severity, Verdict
from overnight.sensors import Sensed

Memory = dict[str, Any]

_HOUR_S: Final = 3600.0
_MINUTE_S: Final = 60.0

_SAVES: Final = 1.5  # the last save may be slower than the one before it: more to write, a busier disk
_MARGIN_S: Final = 2.0  # signal, handler, end of the process


class Quiet(msgspec.Struct, frozen=True, kw_only=True):
    """How long nothing has moved in the attempt that is going on.

    Only time in which the machine ran is counted: a suspended machine, a paused virtual one or a clock that jumps
    makes nothing older.

    ``step_s``: seconds since the last progress (a train record that moved the step, an evaluation's record), or since
    the attempt began. ``log_s``: since the log grew. ``file_s``: since the log or any watched file (a checkpoint) grew.
    ``largest_gap_s``: the longest time between two steps so far, all attempts, the first step's and announced ones left
    out; None before the second step. ``stepped``: this attempt has come to a step. ``planned``: the planned end was
    reached. ``phase``: what the log announced since the last progress ("evaluating", "saving", "compiling", ...), None
    for nothing; ``phase_s``: seconds since the last such line.
    """

    step_s: float
    log_s: float
    file_s: float
    largest_gap_s: float | None = None
    stepped: bool = False
    planned: bool = False
    phase: str | None = None
    phase_s: float | None = None


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What a time rule may know.

    ``active_s``: seconds the command has run, all attempts. ``elapsed_s``: seconds since the launch, back-off included.
    ``save_s``, ``step_s``: seconds of the slowest of the last saves, of a step; ``eta_s``: to the planned end; ``at``:
    since the epoch. ``quiet`` is None while no attempt is going on.
    """

    active_s: float
    elapsed_s: float = 0.0
    save_s: float | None = None
    step_s: float | None = None
    eta_s: float | None = None
    at: float = 0.0
    quiet: Quiet | None = None


@runtime_checkable
class Rule(Protocol):
    """What every rule has: ``name`` is also the cause of a run it ends, ``action`` what its main finding asks for."""

    @property
    def name(self) -> str:
        """Return the rule's name in settings, verdicts and causes."""

    @property
    def action(self) -> RuleAction:
        """Return the action of the rule's main finding."""

    def fresh(self) -> Memory:
        """Return an empty memory: one level of numbers, strings and flags, so that a shallow copy is a copy.

        A list in it is replaced, never changed. A rule whose ``silent`` is true is not asked.
        """


@runtime_checkable
class RecordRule(Rule, Protocol):
    """Judges records one by one; called for every record of every rank, glued ones and evaluations included."""

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return what was found on this very record, None for nothing; ``memory`` is changed in place."""


@runtime_checkable
class CalmRule(RecordRule, Protocol):
    """Judges many records at once where nothing happens. A rule that cannot is asked about each; so are all others."""

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return how many of the first records would give no verdict, and what they change in ``memory``.

        They are training records of one rank and one segment; the losses are finite and not 0, the steps rise. It may
        say fewer than it could. ``memory`` stays as it is; with the changes it must be exactly what it would be record
        by record. The caller may ask again with fewer records.
        """


class Fall(msgspec.Struct, frozen=True, kw_only=True):
    """What was before the step fell within an attempt.

    ``step`` and ``epoch`` (None: not printed) of the record before, ``first_step`` of the attempt, ``interval``: steps
    between two lines.
    """

    step: int
    epoch: float | None
    first_step: int
    interval: int


@runtime_checkable
class SegmentRule(Rule, Protocol):
    """Judges a step that falls within an attempt; its memory lives as long as the attempt."""

    def on_fall(self, record: Record, fall: Fall, memory: Memory, /) -> Verdict | None:
        """Return what was found on the first record after the fall; ``memory`` is changed in place."""


@runtime_checkable
class TimeRule(Rule, Protocol):
    """Judges the passing of time; asked at every turn of the loop.

    Each finding of an attempt has a ``part`` of its own (0, 1, ...): with the rule's name that is its key.
    """

    def on_time(self, moment: Moment, memory: Memory, /) -> Verdict | None:
        """Return what was found at this moment, None for nothing; ``memory`` is changed in place."""

    def due_s(self, moment: Moment, memory: Memory | None = None, /) -> float:
        """Return the seconds from ``moment`` until ``on_time`` has to be asked at the latest; infinite for never.

        With its memory a rule that has told all it had to tell says "never", so that nobody wakes for it again.
        """


@runtime_checkable
class SensorRule(Rule, Protocol):
    """Judges what sensors tell; asked once for each sample. Its memory lives as long as the run.

    Each finding of an attempt has a ``part`` of its own (0, 1, ...): with the rule's name that is its key.
    """

    def on_sample(self, sensed: Sensed, memory: Memory, /) -> Sequence[Verdict]:
        """Return what was found in this sample; ``memory`` is changed in place."""


def lead_of(save_s: float, step_s: float | None) -> float:
    """Return how many seconds a stop takes with a save: the step that is going on, the save, the end of the process."""
    return _SAVES * save_s + (step_s or 0.0) + _MARGIN_S


def milder(action: RuleAction) -> RuleAction:
    """Return the action for a finding that must not end a run: an alert, but never more than ``action`` itself."""
    return "note" if action == "note" else "alert"


def on_record(
    rule: Rule, record: Record, text: str, *, severity: Severity, action: RuleAction, evidence: dict[str, Any]
) -> Verdict:
    """Return a verdict that points at the line ``record`` came from; its ``attempt`` is the caller's to fill in."""
    return Verdict(
        rule=rule.name,
        severity=severity,
        action=action,
        text=text,
        step=record.step,
        at=record.at,
        source=record.source,
        offset=record.offset,
        part=record.part,
        evidence=evidence,
    )


def in_sample(
    rule: Rule,
    sensed: Sensed,
    memory: Memory,
    text: str,
    *,
    severity: Severity,
    action: RuleAction,
    evidence: dict[str, Any],
) -> Verdict:
    """Return a verdict on a sample, as the next ``part`` of those that the rule has told; ``memory`` counts them."""
    memory["part"] += 1
    return Verdict(
        rule=rule.name,
        severity=severity,
        action=action,
        text=text,
        step=sensed.step,
        at=sensed.sample.at,
        part=memory["part"] - 1,
        evidence=evidence,
    )


def gpus_named(indices: Sequence[int]) -> str:
    """Return GPUs for a sentence: "GPU 0", "GPUs 0, 3"."""
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(map(str, indices))}"


def onset_of(verdict: Verdict, *, last: int, interval: int) -> int:
    """Return the step with which the trouble began: some rules tell it only after several records, ``interval`` apart.

    ``last`` is the last step that was made, for a line that bears none, or one that cannot be.
    """
    step = verdict.step
    if step is None or verdict.evidence.get("strange"):
        return last if step is None else min(step, last)
    records = verdict.evidence.get("records")
    return max(0, step - (records - 1) * interval) if isinstance(records, int) else step


def where(record: Record) -> str:
    """Return the end of a sentence: "at step 21"."""
    return "on a line without a step" if record.step is None else f"at step {record.step}"


def spoken(value: float) -> str:
    """Return a number for a sentence: 25.0 -> "25", 3.14159265 -> "3.14159", NaN -> "NaN"."""
    return "NaN" if math.isnan(value) else f"{value:.6g}"


def span(seconds: float) -> str:
    """Return a length of time for a sentence: 28800.0 -> "8 h", 600.0 -> "10 min", 21.04 -> "21 s"."""
    if seconds >= _HOUR_S:
        return f"{spoken(round(seconds / _HOUR_S, 2))} h"
    if seconds >= 5 * _MINUTE_S:
        return f"{spoken(round(seconds / _MINUTE_S, 1))} min"
    return f"{spoken(round(seconds, 0 if seconds >= 5 else 2))} s"
