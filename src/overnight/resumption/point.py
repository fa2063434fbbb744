"""The point from which an attempt goes on, what lies behind it and is lost, and the sentence for it.

Pure: no clock, file or process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from overnight.resumption.choice import Choice
from overnight.rules import span
from overnight.spec import RunSpec, cost

PLACE = "{checkpoint}"
"""What stands for the save to go on from in --resume-args."""

SHOWN = 2


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A save to go on from (None: there is none, the command begins anew) and the ranges of steps to leave out."""

    path: str | None = None
    step: int | None = None
    skip: tuple[tuple[int, int], ...] = ()

    def words(self, resume_args: Sequence[str]) -> list[str]:
        """Return the words that the command gets; none where they ask for a save and there is none."""
        if self.path is None:
            return [] if any(PLACE in word for word in resume_args) else list(resume_args)
        return [word.replace(PLACE, self.path) for word in resume_args]

    def environment(self) -> dict[str, str]:
        """Return what the script finds in its environment."""
        given = {} if self.path is None else {"OVERNIGHT_CHECKPOINT": self.path}
        if self.skip:
            given["OVERNIGHT_SKIP_STEPS"] = ",".join(f"{first}-{last}" for first, last in self.skip)
        return given


def behind(done: int, last: int, left_out: object = None) -> int:
    """Return how many steps behind step ``done`` were made, up to ``last``.

    ``left_out``: ranges [first, last] that the script was told not to make; what is no such range counts for nothing.
    """
    ranges = left_out if isinstance(left_out, (list, tuple)) else ()
    pairs = [one for one in ranges if isinstance(one, (list, tuple)) and len(one) == 2]
    known = sorted((first, end) for first, end in pairs if type(first) is int and type(end) is int)
    steps, at = max(0, last - done), done
    for first, end in known:
        steps -= max(0, min(end, last) - max(at, first - 1))
        at = max(at, end)
    return max(0, steps)


def seconds_of(steps: int | None, step_s: float | None, most_s: float | None = None) -> float | None:
    """Return the seconds of so many steps at ``step_s`` each, never more than ``most_s``; None where it is unknown."""
    if steps is None or step_s is None:
        return None
    return min(steps * step_s, steps * step_s if most_s is None else most_s)


def lost(
    spec: RunSpec, last_step: object, choice: Choice, *, step_s: float | None, used_s: float, left_out: object = None
) -> dict[str, float | int | None]:
    """Return steps, seconds and money that lie behind the save; None for what nobody knows.

    The seconds are those of so many steps, and never more than the commands have run. ``left_out``: as in ``behind``.
    """
    done = choice.step if choice.path is not None else 0
    steps = behind(done, last_step, left_out) if isinstance(last_step, int) and done is not None else None
    seconds = seconds_of(steps, step_s, used_s)
    return {
        "lost_steps": steps,
        "lost_s": None if seconds is None else round(seconds, 3),
        "lost_cost": None if seconds is None else cost(spec, seconds),
    }


def told_by_steps(
    one: Mapping[str, Any], first: int | None, began: int | None, gain: int, *, step_s: float | None, folds: bool
) -> dict[str, Any]:
    """Return a resume with ``first_step`` and ``anew`` added, and with what the steps of the attempt say is lost.

    ``first`` is the first step that it printed, for ``gain`` steps, and ``began`` that of the run. Where nobody knew of
    a save, all was thought to be lost; a script that finds its saves by itself shows what was. One that was given a
    save and began anew has lost what the save held, too. Where each epoch counts anew (``folds``) nothing tells it.
    """
    told = {**one, "first_step": first, "anew": None}
    if first is None or began is None:
        return told
    anew, thought = first <= max(began, 1), one["lost_steps"] or 0
    if one["path"] is not None:
        passed_by = anew and not folds and one["step"] is not None and first <= one["step"]
        steps = thought + one["step"] - first + gain if passed_by else 0
        return {**told, "anew": True, **_of_steps(one, steps, step_s)} if passed_by else told
    if folds:
        return {**told, "lost_steps": None, "lost_s": None, "lost_cost": None}
    by_itself = not anew and thought
    return {**told, "anew": anew, **(_of_steps(one, max(0, thought - first + gain), step_s) if by_itself else {})}


def _of_steps(one: Mapping[str, Any], steps: int, step_s: float | None) -> dict[str, Any]:
    """Return what the loss of ``steps`` steps is, where that of ``lost_steps`` was thought to be."""
    thought, thought_s, cost_of = one["lost_steps"], one["lost_s"], one["lost_cost"]
    mean_s = thought_s / thought if step_s is None and thought and thought_s is not None else step_s
    lost_s = None if mean_s is None else round(steps * mean_s, 3)
    priced = lost_s is not None and thought_s and cost_of is not None
    return {"lost_steps": steps, "lost_s": lost_s, "lost_cost": cost_of * lost_s / thought_s if priced else None}


def sentence(resume: Mapping[str, Any], *, price: float | None = None) -> str:
    """Return what is said of a ``resume`` fact."""
    number, path, step = resume["attempt"], resume["path"], resume["step"]
    if path is None:
        said = [f"attempt {number} begins anew: there is no save to go on from"]
    else:
        where = "a save of an unknown step" if step is None else f"step {step}"
        said = [f"attempt {number} goes on from {where} ({path})"]
    if resume["lost_steps"]:
        parts = [f"{resume['lost_steps']} step{'' if resume['lost_steps'] == 1 else 's'}"]
        parts += [] if resume["lost_s"] is None else [f"about {span(resume['lost_s'])}"]
        parts += [] if price is None or resume["lost_cost"] is None else [f"{resume['lost_cost']:.2f}"]
        said.append(f"{', '.join(parts)} to be done again")
    if resume["rollback"] is not None:
        said.append(f"rolled back for {resume['rollback']}")
    if resume["skip"]:
        ranges = ", ".join(f"{first}-{last}" for first, last in resume["skip"])
        said.append(f"steps {ranges} are to be left out")
    passed = resume["passed_over"]
    for one in passed[:SHOWN]:
        named = one["path"].rpartition("/")[2] if one["step"] is None else f"step {one['step']}"
        said.append(f"passed over {named}: {one['why']}")
    if len(passed) > SHOWN:
        said.append(f"and {len(passed) - SHOWN} more")
    return "; ".join(said)
