"""What a look into a save says of it: good, bad, or not to be told. Pure: findings in, a verdict out.

Bad is only what is known to be: cut short, damaged, not finite, called unhealthy by its own manifest, or in itself of
two different steps. What has a form that nobody here knows is not bad.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from overnight.inspector import naming
from overnight.inspector.joining import NO_CHECKPOINT, ONLY_OPTIMIZER
from overnight.resumption.known import GONE, UNKNOWN_FORM

if TYPE_CHECKING:
    from overnight.inspector.side import Checked

CHANGED = "it was written to while it was looked at"
NO_SUMS = "its form holds nothing to check it by"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict. ``problem`` says why a save is bad, or why it could not be told. ``again``: look once more."""

    valid: bool | None
    finite: bool | None = None
    problem: str | None = None
    maker: str | None = None
    again: bool = False


def judge(look: Checked, fellow: str | None = None) -> Judged:
    """Say what a look means; ``fellow`` is the name of a good save of the same series whose form is known."""
    if not look.there:
        return Judged(valid=None, problem=GONE)
    if look.changed:
        return Judged(valid=None, problem=CHANGED, again=True)
    if look.maker == "unknown":
        return _unknown(look, fellow)
    if False in (look.complete, look.intact, look.finite, look.healthy):
        return Judged(valid=False, finite=look.finite, problem=look.problem or "it is damaged", maker=look.maker)
    part = next((note for note in look.notes if note in (ONLY_OPTIMIZER, NO_CHECKPOINT)), None)
    if look.complete is None or not look.whole or part is not None:
        return Judged(valid=None, finite=look.finite, problem=look.problem or part or NO_SUMS, maker=look.maker)
    return Judged(valid=look.problem is None, finite=look.finite, problem=look.problem, maker=look.maker)


def _unknown(look: Checked, fellow: str | None) -> Judged:
    name = look.path.rpartition("/")[2]
    if look.complete is False and (not look.size_bytes or name.endswith(naming.FILES)):
        return Judged(valid=False, problem=look.problem)
    if fellow is not None and look.complete is None and look.size_bytes is not None:
        return Judged(valid=False, problem=f"{name} is not of the form that {fellow} has")
    readable = look.problem is None or "cannot be read" not in look.problem
    return Judged(valid=None, problem=UNKNOWN_FORM if readable else look.problem)
