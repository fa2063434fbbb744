"""What the files of a folder are together: as whole, intact and finite as the worst of them.

Pure: findings in, one finding out. Which files belong to a checkpoint is said by its maker's own file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from overnight.inspector.findings import Found
from overnight.inspector.folders import Folder

NO_OPTIMIZER = "no optimizer state: resume will not be exact"
ONLY_OPTIMIZER = "the state of an optimizer alone: nothing to resume from by itself"
NO_CHECKPOINT = "by its name it lies beside checkpoints and is none"


def joined(
    folder: Folder,
    maker: str,
    parts: Sequence[Found],
    *,
    step: int | None,
    missing: Sequence[str] = (),
    damage: Sequence[str] = (),
    notes: Iterable[str] = (),
    values: Mapping[str, Any] | None = None,
) -> Found:
    """Return one finding for a folder.

    ``missing`` are clauses about what is not there, ``damage`` about what is there and is not right, both beyond what
    the parts say of themselves. The first problem is the one that is told, the others become notes.
    """
    bad = [one for one in parts if one.problem is not None]
    problems = [*missing, *damage, *(one.problem for one in bad if one.problem)]
    incomplete = bool(missing) or any(one.complete is False for one in parts)
    unknown = any(one.complete is None for one in parts)
    told = [*problems[1:], *notes, *(note for one in parts for note in one.notes)]
    return Found(
        path=str(folder.path),
        maker=maker,
        step=step,
        size_bytes=folder.size_bytes,
        saved_at=folder.saved_at,
        complete=False if incomplete else None if unknown else True,
        intact=False if damage else worst(one.intact for one in parts),
        finite=worst(one.finite for one in parts if one.tensors or one.finite is not None),
        problem=problems[0] if problems else None,
        notes=tuple(dict.fromkeys(told)),
        values=values or {},
        tensors=sum(one.tensors for one in parts),
    )


def worst(said: Iterable[bool | None]) -> bool | None:
    """Return False if one is False, True if there are some and all are True, None otherwise."""
    known = list(said)
    if any(one is False for one in known):
        return False
    return True if known and all(known) else None


def gaps(numbers: Iterable[int]) -> list[int]:
    """Return the numbers that lack in 0, 1, 2, ... up to the highest; of a million ranks only the first few."""
    found = set(numbers)
    missing = []
    for one in range(min(max(found, default=-1), 1 << 20)):
        if one not in found:
            missing.append(one)
            if len(missing) == 8:
                break
    return missing


def lacking(found: Found, before: AbstractSet[str]) -> Found:
    """Return the finding with a problem where it lacks one of the files that all those saved before it have."""
    mine = found.values.get("files")
    if found.problem is not None or not isinstance(mine, tuple):
        return found
    gone = sorted(before - set(mine))
    return replace(found, problem=f"{gone[0]} missing, which those saved before it have") if gone else found
