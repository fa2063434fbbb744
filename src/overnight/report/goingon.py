"""How a run went on, in words: from which save, what was passed over, what was lost, whether it was the same as before.

Pure: parts of the report value in, text out, for the terminal and for the page. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from overnight.report.units import amount, duration, finite, number
from overnight.resumption.known import GONE
from overnight.resumption.overlap import spoken_apart

Value = Mapping[str, Any]

PASSED = 4
"""So many of the saves that were passed over are named; the others are counted."""


class Row(NamedTuple):
    """One restart. ``passed`` are saves that were newer and not taken, ``left_out`` is empty if no step was."""

    attempt: str
    start: str
    passed: tuple[str, ...]
    lost: str
    left_out: str
    overlap: str


def row(one: Value) -> Row:
    """Return how one attempt went on."""
    return Row(
        attempt=number(one.get("attempt")),
        start=start(one),
        passed=passed(one),
        lost=lost(one),
        left_out=left_out(one.get("skip") or ()),
        overlap=overlap(one.get("overlap")),
    )


def start(one: Value) -> str:
    """Return from where an attempt went on; without a save only the steps that it printed tell."""
    back = f", taken back by the rule {one['rollback']}" if one.get("rollback") else ""
    if one.get("path") is not None:
        anew = f"; but it began anew at step {number(one.get('first_step'))}" if one.get("anew") else ""
        return f"from {save(one)}{back}{anew}"
    if one.get("anew") is None:
        return f"from nothing: no save was known{back}"
    if one["anew"]:
        return f"from nothing: it began anew at step {number(one.get('first_step'))}{back}"
    return f"by itself, at step {number(one.get('first_step'))}: no save was known{back}"


def save(one: Value) -> str:
    """Return the step and the path of a save."""
    step = one.get("step")
    return f"{'a step that is not known' if step is None else f'step {number(step)}'}, {one.get('path')}"


def passed(one: Value) -> tuple[str, ...]:
    """Return the saves that were passed over, each with its reason; many are counted."""
    found = list(one.get("passed_over") or ())
    said = [f"{save(other)}: {other.get('why')}" for other in found[:PASSED]]
    left = len(found) - PASSED
    return (*said, *([f"and {number(left)} more"] if left > 0 else []))


def lost(one: Value) -> str:
    """Return what was lost by going back: steps, time, money, as far as each is known."""
    steps, seconds, cost = one.get("lost_steps"), finite(one.get("lost_s")), finite(one.get("lost_cost"))
    if steps is None and seconds is None:
        return "unknown"
    if not steps and not seconds:
        return "nothing"
    told = [] if steps is None else [f"{number(steps)} step{'' if steps == 1 else 's'}"]
    told += [] if seconds is None else [duration(seconds)]
    told += [] if cost is None else [f"{amount(cost)} of the cost"]
    return ", ".join(told)


def left_out(ranges: Sequence[Sequence[int]]) -> str:
    """Return the steps that the script was asked to leave out; empty if there is none."""
    said = [number(first) if first == last else f"{number(first)} to {number(last)}" for first, last in ranges[:PASSED]]
    more = f" and {number(len(ranges) - PASSED)} more" if len(ranges) > PASSED else ""
    one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{'step' if one else 'steps'} {', '.join(said)}{more}" if said else ""


def overlap(one: Value | None) -> str:
    """Return how an attempt did beside what had been done before it."""
    if one is None:
        return "not compared"
    if not one.get("compared"):
        return f"not compared ({one.get('text') or 'no step was done by both'})"
    first, equal, compared = one.get("first_difference"), one.get("equal") or 0, one["compared"]
    counts = f"{number(equal) if equal else 'none'} of {number(compared)} step{'' if compared == 1 else 's'} equal"
    if not isinstance(first, Mapping):
        return counts
    where = f"{counts}, the first difference at step {number(first.get('step'))}"
    if first.get("metric") is None:
        return where
    was, now = _apart(first.get("before"), first.get("after"))
    return f"{where}: {first['metric']} {was} -> {now}"


def _apart(before: object, after: object) -> tuple[str, str]:
    """Return two numbers in as few digits as show that they differ."""
    was, now = finite(before), finite(after)
    if was is None or now is None:
        return number(before), number(after)
    return spoken_apart(was, now)


def differs(one: Value | None) -> bool:
    """Say whether steps that were done twice were not the same."""
    return one is not None and (one.get("equal") or 0) < (one.get("compared") or 0)


def mark(one: Value) -> str:
    """Return what is known of a save: whether it was looked into, what is wrong with it, whether it was healthy."""
    problem = one.get("problem")
    gone = ", and not there any more" if problem == GONE else ""
    problem = None if gone else problem
    if one.get("load_failure"):
        return f"could not be loaded: {one['load_failure']}{gone}"
    if one.get("valid") is False or one.get("finite") is False:
        return f"{f'bad: {problem}' if problem else 'bad'}{gone}"
    if one.get("healthy") is False:
        return f"unhealthy: saved in trouble, or left behind by a rollback{gone}"
    told = "checked" if one.get("valid") else f"not checked: {problem}" if problem else "not checked"
    return f"{told}{', healthy' if one.get('healthy') else ''}{gone}"


def bad(one: Value) -> bool:
    """Say whether something is known against a save."""
    return bool(one.get("load_failure")) or False in (one.get("valid"), one.get("finite"), one.get("healthy"))
