"""Which checkpoint to resume from, which run a folder belongs to, and which checkpoints a prune may remove.

Pure: findings in, findings or words out. Never by the time of a file and never by how a name sorts: by the step that
lies in a checkpoint, and for Overnight's own by the order that their manifests give.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from overnight.checkpoint import manifest as manifests
from overnight.inspector.findings import Found

NUMBER = re.compile(r"\d{1,18}")

Rank = tuple[int, int, int, int]


def usable(found: Found) -> bool:
    """Say whether a training may resume from it: all there, and nothing known against it."""
    return found.complete is True and False not in (found.intact, found.finite, found.healthy)


def run_of(found: Sequence[Found]) -> str | None:
    """Return the run that a folder belongs to: the one of Overnight's that was begun last; None if there is none."""
    known = [one for one in found if one.maker == "overnight" and isinstance(one.values.get("run"), str)]
    newest = max(known, key=lambda one: (_number(one.values.get("number")), one.saved_at or 0.0), default=None)
    return None if newest is None else str(newest.values["run"])


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def with_owner(found: Sequence[Found]) -> list[Found]:
    """Return the same findings, each with ``own`` said where the folder belongs to a run of Overnight's."""
    run = run_of(found)
    if run is None:
        return list(found)
    mine = [one for one in found if one.order is not None and _owned(one, run)]
    latest = max(mine, key=lambda one: one.order or (0, 0), default=None)
    return [replace(one, own=_owned(one, run), led=_led(one, latest)) for one in found]


def _led(found: Found, latest: Found | None) -> bool:
    """Say whether a run's checkpoint lies on the way to its latest one; see ``checkpoint.manifest.Manifest.led_to``."""
    if latest is None or latest.order is None or found.order is None:
        return True
    return manifests.leads(found.order, latest.order, latest.values.get("ancestors") or ())


def _owned(found: Found, run: str) -> bool | None:
    if found.maker == "overnight" and "run" not in found.values:
        return None  # its manifest cannot be read
    return found.maker == "overnight" and found.values["run"] == run


def rank(found: Found) -> Rank:
    """Return what checkpoints of one run are ordered by, the last one being the newest.

    Where no step lies inside (Accelerate, torch.distributed), the number that its maker gave the folder has to do; it
    counts less than any step that does. Of two with the same step the one with an optimizer's state is preferred.
    """
    if found.order is not None:
        return (2, int(found.led), *found.order)
    whole = 0 if any(note.startswith("no optimizer state") for note in found.notes) else 1
    if found.step is not None:
        return (1, 0, found.step, whole)
    numbers = NUMBER.findall(found.path.rpartition("/")[2])
    return (0, 0, int(numbers[-1]), whole) if numbers else (0, 0, -1, whole)


def newest_first(found: Sequence[Found]) -> list[Found]:
    """Return all, those of the folder's own run first, each group from the newest to the oldest."""
    return sorted(found, key=lambda one: (one.own is True, rank(one), _tie(one)), reverse=True)


def _tie(found: Found) -> tuple[int, str]:
    return (-len(found.path), found.path)  # only to come to the same answer every time


def candidates(found: Sequence[Found]) -> list[Found]:
    """Return what may be resumed from, newest first: of the own run where the folder has one, and of nothing else.

    Of several that tell nothing about their step, neither inside nor by a number, none can be called the newest.
    """
    good = [one for one in newest_first(found) if usable(one)]
    if run_of(found) is not None:
        return [one for one in good if one.own is True]
    known = [one for one in good if rank(one)[2] >= 0]
    return known or (good if len(good) == 1 else [])


def newest(found: Sequence[Found]) -> Found | None:
    """Return the one to resume from; None if nothing healthy is there."""
    return next(iter(candidates(found)), None)


def kind(found: Found) -> tuple[str, object]:
    """Return what a prune counts together: the maker, and the run where it is known."""
    return found.maker, found.values.get("run")


def pruned(
    found: Sequence[Found], keep_last: int, spared: frozenset[str] = frozenset()
) -> tuple[list[Found], dict[str, str]]:
    """Return what a prune removes, oldest first, and path: why for all that it does not remove but does not count.

    Removed are good ones beyond the last ``keep_last`` of the same maker and run as the newest. ``spared`` are paths
    that something points to: a link, or what a training calls its best. What has no number in its name (``best.pt``,
    ``last.ckpt``) is none of a series, and stays.
    """
    top = newest(found)
    if top is None or keep_last < 1:
        return [], {}
    group = [one for one in candidates(found) if kind(one) == kind(top) and rank(one)[0] == rank(top)[0]]
    why = {one.path: _why_not(one, top) for one in found if one not in group}
    going = []
    for one in reversed(group[keep_last:]):
        if one.path in spared:
            why[one.path] = "something points to it"
        elif not NUMBER.search(one.path.rpartition("/")[2]):
            why[one.path] = "has no number in its name, so it is none of a series"
        elif rank(one)[0] == 0 and _series(one) != _series(top):
            why[one.path] = "is named otherwise than the newest, and its step is not known"
        else:
            going.append(one)
    return going, why


def _series(found: Found) -> str:
    return NUMBER.sub("#", found.path.rpartition("/")[2])


def _why_not(found: Found, top: Found) -> str:
    if kind(found) != kind(top) or found.own is False:
        return "of another run" if found.maker == "overnight" else f"made by {found.maker}, not of this run"
    return found.problem or "not known to be good"
