"""Which checkpoints a prune may remove, and why the others stay; or in one sentence why it removes nothing.

Nothing is removed here. What is in doubt stays: only what is beyond doubt an older checkpoint of the same series as the
newest goes, as a whole, and nothing but a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from overnight.checkpoint import retention
from overnight.checkpoint.manifest import Manifest
from overnight.inspector import belongings, choosing, naming
from overnight.inspector.findings import Found
from overnight.inspector.joining import NO_OPTIMIZER

MOST_LINKS, DEEPEST = 100_000, 3
FOLDERS = frozenset(("overnight", "trainer", "accelerate", "dcp", "orbax"))
"""Makers of folders in which a step lies, or orbax's number, which is its record of it."""
FILES = frozenset(("torch", "lightning", "safetensors", "numpy"))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What may go, the oldest first; ``why`` the others stay, by path; ``refused``: why nothing goes at all.

    ``kept`` are those that are counted, the newest first.
    """

    going: Sequence[Found] = ()
    kept: Sequence[Found] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None


def plan(
    found: Sequence[Found],
    keep_last: int,
    *,
    pointed: frozenset[str] = frozenset(),
    names: Sequence[str] = (),
    stranger: Callable[[Path, str], str | None] = belongings.stranger,
) -> Plan:
    """Return what a prune to the last ``keep_last`` may remove of a folder's findings.

    ``pointed`` are paths that a link leads to; ``names`` all that lies in the folder beside them. Links themselves are
    neither counted nor removed. ``stranger`` says what speaks against a path being nothing but a checkpoint of a maker.
    """
    good = [one for one in choosing.candidates(found) if not os.path.islink(one.path)]
    series = [one for one in good if _apart(one) is None]
    if not series or keep_last < 1:
        return Plan(why={one.path: _why_not(one, None) for one in found if one not in good})
    top = series[0]
    group = [one for one in series if choosing.kind(one) == choosing.kind(top)]
    why = {one.path: _why_not(one, top) for one in found if one not in group}
    kept, older = group[:keep_last], group[keep_last:]
    if top.maker == "overnight":
        kept, older = _by_its_own_rules(group, keep_last)
    if not older:
        return Plan(kept=kept, why=why)
    refused = _doubt(group, found, names)
    if refused is not None:
        return Plan(kept=kept, why=why, refused=refused)
    best = {name for one in found for name in _best(one, good)}
    going = []
    for one in reversed(older):
        reason = _spared(one, pointed, best) or stranger(Path(one.path), one.maker)
        if reason is None:
            going.append(one)
        else:
            why[one.path] = reason
    return Plan(going=going, kept=kept, why=why)


def _by_its_own_rules(group: Sequence[Found], keep_last: int) -> tuple[list[Found], list[Found]]:
    """Return (what stays, what is older) of a run of ours: it says itself which are its best and its milestones."""
    known = {one.path: _manifest(one) for one in group}
    latest = max(known.values(), key=lambda one: one.order)
    gone = set(retention.removable(known, retention.with_last(latest, keep_last)))
    return [one for one in group if one.path not in gone], [one for one in group if one.path in gone]


def _manifest(found: Found) -> Manifest:
    """Return what retention looks at, of what the look has kept of a manifest."""
    metrics, keep = (found.values.get(name) or {} for name in ("metrics", "keep"))
    generation, step = found.order or (0, found.step or 0)
    ancestors = found.values.get("ancestors") or ()
    return Manifest(
        step=step,
        generation=generation,
        ancestors=ancestors,
        run="",
        saved_at="",
        reason="",
        metrics=metrics,
        keep=keep,
    )


def _best(found: Found, good: Sequence[Found]) -> list[str]:
    """Return what the newest that has a word for it calls its best or last."""
    newest = next((one for one in good if choosing.best_of(one)), None)
    return choosing.best_of(found) if found is newest else []


def _apart(found: Found) -> str | None:
    """Return why a good one is none of a series, whatever its step."""
    if found.maker == "overnight":
        return None  # its name says nothing
    name = choosing.name_of(found)
    if (word := naming.stands_out(name)) is not None:
        return f'is called "{word}", so it is none of a series'
    if "#" not in naming.form(name):
        return "has no number in its name, so it is none of a series"
    if found.problem is not None:
        return found.problem
    return None


def _spared(found: Found, pointed: frozenset[str], best: set[str]) -> str | None:
    if found.path in pointed:
        return "a link leads to it"
    if choosing.name_of(found) in best:
        return "the newest one calls it its best or its last"
    if found.maker in FILES and NO_OPTIMIZER in found.notes and not os.path.isdir(found.path):
        return "has no optimizer state: it may have been saved for its own sake"
    return None


def _why_not(found: Found, top: Found | None) -> str:
    if found.problem is not None:
        return found.problem
    if not choosing.usable(found):
        return next((note for note in found.notes if note in choosing.NO_RESUME), "not known to be good")
    if os.path.islink(found.path):
        return "is a link"
    if found.maker == "overnight":
        return "of another run"
    if found.own is False or (top is not None and found.maker != top.maker):
        return f"made by {found.maker}, not of this run" if found.maker != "unknown" else "of no known maker"
    return _apart(found) or "is named otherwise than the newest, so it may be of another series"


# -- doubt -----------------------------------------------------------------------------------------------------------


def _doubt(group: Sequence[Found], found: Sequence[Found], names: Sequence[str]) -> str | None:
    """Return in one sentence why it is in doubt which ones are older, or are wholes; None if it is not."""
    top = group[0]
    if top.maker == "overnight":
        return None  # the manifests say the order
    name = choosing.name_of(top)
    if top.maker not in (*FOLDERS, *FILES):
        return f"{name} is of no known maker, so nothing is removed beside it"
    unknown = next((one for one in found if one.complete is True and choosing.kind(one)[::2] == choosing.kind(top)[::2]
                    and one.step is None), None)  # fmt: skip
    if unknown is not None:
        name = choosing.name_of(unknown)
        return f"no step lies in {name}, so which ones are older rests on names, and nothing is removed"
    if choosing.disagree(group):
        return f"epochs and steps disagree about which ones are older than {name}, so nothing is removed"
    if (pair := _names_disagree(group)) is not None:
        return f"the names of {pair[0]} and {pair[1]} and the steps in them disagree, so nothing is removed"
    return _sets(group, found, names)


def _names_disagree(group: Sequence[Found]) -> tuple[str, str] | None:
    """Return two whose names, read by their words, say another order than their steps."""
    known = [(one.step or 0, choosing.name_of(one)) for one in group]
    known.sort()
    for (_, before), (_, after) in pairwise(known):
        one, other = naming.read(before), naming.read(after)
        for first, second in ((one.step, other.step), (one.epoch, other.epoch), (one.number, other.number)):
            if first is not None and second is not None and first > second:
                return before, after
    return None


def _sets(group: Sequence[Found], found: Sequence[Found], names: Sequence[str]) -> str | None:
    """Return a sentence if several files have one step: G and D, ranks, weights and moments are one checkpoint."""
    steps = {one.step: choosing.name_of(one) for one in group}
    if len(steps) < len(group):
        twice = next(one for one in group if steps[one.step] != choosing.name_of(one))
        return _set(steps[twice.step], choosing.name_of(twice))
    mine = {choosing.name_of(one) for one in group}
    for one in found:
        name = choosing.name_of(one)
        if name not in mine and one.step in steps and one.maker != "overnight" and not _copy(name):
            return _set(steps[one.step], name)
    numbers = {number: name for name in mine if (number := naming.read(name).number) is not None}
    for name in names:
        number = naming.read(name).number if name.endswith(naming.FILES) else None
        if name not in mine and number in numbers and not _copy(name):
            return _set(numbers[number], name)
    return None


def _copy(name: str) -> bool:
    """Say whether a name is that of a copy kept for itself, which belongs to no other file."""
    return naming.stands_out(name) not in (None, "ema", "swa", "avg")


def _set(one: str, other: str) -> str:
    return f"{one} and {other} may be parts of one checkpoint, so nothing is removed"


# -- links -----------------------------------------------------------------------------------------------------------


def pointed_to(folder: Path) -> frozenset[str]:
    """Return the entries of a folder that a link leads to: one beside them, below them, or beside the folder."""
    here = os.path.realpath(folder)
    found: set[str] = set()
    for link in _links(folder):
        real = os.path.realpath(link)
        if real.startswith(here.rstrip("/") + "/"):
            found.add(str(folder / os.path.relpath(real, here).partition("/")[0]))
    return frozenset(found)


def _links(folder: Path) -> list[str]:
    """Return the links below a folder, a few levels down, and those beside it; no folder is entered by a link."""
    found, count = [], 0
    todo = [(os.path.dirname(os.path.realpath(folder)), DEEPEST), (str(folder), 0)]
    while todo:
        path, depth = todo.pop()
        try:
            entries = list(os.scandir(path))
        except OSError:
            continue
        for entry in entries:
            count += 1
            if entry.is_symlink():
                found.append(entry.path)
            elif depth < DEEPEST and count < MOST_LINKS and entry.is_dir(follow_symlinks=False):
                todo.append((entry.path, depth + 1))
    return found
