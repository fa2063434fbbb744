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


def lost(
    spec: RunSpec, last_step: object, choice: Choice, *, step_s: float | None, used_s: float
) -> dict[str, float | int | None]:
    """Return steps, seconds and money that lie behind the save; None for what nobody knows.

    The seconds are those of so many steps, and never more than the commands have run.
    """
    done = choice.step if choice.path is not None else 0
    steps = max(0, last_step - done) if isinstance(last_step, int) and done is not None else None
    seconds = None if steps is None or step_s is None else min(steps * step_s, used_s)
    return {
        "lost_steps": steps,
        "lost_s": None if seconds is None else round(seconds, 3),
        "lost_cost": None if seconds is None else cost(spec, seconds),
    }


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
