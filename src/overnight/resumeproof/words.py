"""The words of the resume proof: what was seen of each run, and what was concluded. Frozen values and nothing else.

No clock, no file, no process, no import of ours: whoever runs, compares, judges or shows speaks these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Series = Mapping[int, Mapping[str, float]]
"""Step -> metric -> value as printed. What an evaluation printed is named ``eval/loss``."""

How = Literal["graceful", "kill"]

Cause = Literal[
    "rng",
    "data_order",
    "optimizer",
    "scheduler",
    "off_by_one",
    "not_resumed",
    "weights",
    "ema_or_buffers",
    "load_failure",
    "nothing_saved",
    "unknown",
]


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What one run printed, and how it ended.

    ``first_step`` and ``last_step`` are the first and the last step it printed, None if it printed none; ``ended`` is a
    few words such as "stopped at step 110" or "exited 1: KeyError: 'model'".
    """

    series: Series
    first_step: int | None
    last_step: int | None
    ended: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was stopped and started again.

    ``before`` and ``after`` are its two starts; ``stopped_at`` is the last step of the first one; ``exact``: the
    library stopped exactly there, no signal had to catch it. ``checkpoint`` is the newest good one when it was started
    again (None: there was none) and ``checkpoint_step`` its step (None: unknown); ``checkpoint_keys`` are the names of
    what lies in it, dotted, the first two levels. ``saved_on_signal``: of a graceful stop, whether a checkpoint newer
    than the signal was there; None: unknown, or killed. ``sent`` is the first signal of that stop (None: unknown).
    ``load_error``: it ended before its first step, and why.
    """

    how: How
    before: Course
    after: Course
    stopped_at: int
    exact: bool
    checkpoint: str | None
    checkpoint_step: int | None
    checkpoint_keys: tuple[str, ...]
    saved_on_signal: bool | None
    sent: str | None = None
    load_error: str | None


class PartDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a state that differs: ``count`` of its ``of`` tensors and values, some of them by ``names``."""

    part: str
    names: tuple[str, ...]
    count: int
    of: int


class StateComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two checkpoints of one step, of the unbroken and of the resumed run, compared bit for bit.

    ``compared`` counts tensors and values; ``left_out`` names what differs between the unbroken runs too, and times.
    ``equal_parts`` are the parts in which nothing differs and which hold more than counts.
    """

    step: int
    equal: bool
    differences: tuple[PartDifference, ...]
    compared: int
    left_out: tuple[str, ...]
    equal_parts: tuple[str, ...] = ()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison of a resumed run with the unbroken ones says.

    ``cause`` is the likeliest one of a failure and ``also`` what the same pattern may come from; ``text`` is one or two
    sentences for people. ``step``, ``metric``, ``unbroken`` and ``resumed`` are the first difference, None where there
    is none. ``compared`` and ``equal`` count values (one metric of one step). ``floor`` is, for each metric compared,
    how far it may lie off at the first resumed step, in the metric's own unit; 0.0: not at all. ``left_out`` says why a
    metric was not compared.
    """

    passed: bool
    cause: Cause | None
    also: tuple[Cause, ...]
    text: str
    step: int | None
    metric: str | None
    unbroken: float | None
    resumed: float | None
    compared: int
    equal: int
    floor: Mapping[str, float]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]
