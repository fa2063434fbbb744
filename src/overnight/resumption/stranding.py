"""Whether a run may go on from what was found for it, or has to end: as a clause that says why. Pure.

A start from what may be poisoned is worse than none, and so is one that does all again because a disk is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from overnight.resumption.choice import Choice
from overnight.resumption.point import PLACE

SUSPECT = frozenset({"unhealthy", "too_late", "nonfinite"})
HARMLESS = frozenset({"damaged", "unreadable"})
STEER = f"give --resume-args with {PLACE}, or let the script read OVERNIGHT_CHECKPOINT"


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What counts beside the choice. ``back``: the rollback that is due, as its fact has it.

    ``steered``: the command goes on from what it is given. ``missing``: a folder in which good saves lay, and which is
    not there now.
    """

    back: Mapping[str, Any] | None = None
    steered: bool = False
    missing: str | None = None


def stranded(choice: Choice, now: Circumstances) -> str | None:
    """Return why the run cannot go on, None if it can."""
    passed = choice.passed_over
    if choice.path is None:
        return _without(choice, now)
    suspect = any(one.kind in SUSPECT for one in passed)
    if suspect and choice.maker != "overnight" and not now.steered:
        return f"its newest saves may be poisoned and its command cannot be told to go on from {choice.path}: {STEER}"
    return None


def _without(choice: Choice, now: Circumstances) -> str | None:
    passed = choice.passed_over
    if now.missing is not None:
        return f"its saves lay in {now.missing}, which is not there; is its disk mounted?"
    if now.back is not None:
        before = now.back.get("before")
        where = "" if before is None else f" of a step before {before}"
        return f"there is no healthy save{where} to roll back to"
    if any(one.kind not in HARMLESS for one in passed):
        return f"no save is left to go on from ({passed[0].why})"
    return None
