"""Which checkpoints a part of a proof has left in its place, and which of them it would be started again from.

The place is a working copy, so whatever has changed there since the part began is its own. Only read; content is read
in the inspector's side process and never unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from overnight.errors import OvernightError
from overnight.inspector import checking, choosing, walk
from overnight.inspector.checking import Report
from overnight.inspector.findings import Budget, Found
from overnight.saves.names import NUMBER, PLACE, looks_like_save, number_in
from overnight.saves.noticing import SKIPPED
from overnight.sweep import each

MAX_ENTRIES, MAX_DEPTH, MAX_FOLDERS = 50_000, 8, 64
LOCK = "LOCK"
UNKEPT = (".tmp", ".part", ".incomplete")


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: its path, the step in it (or in its name; None: unknown), who made it, when it was last written.

    ``sure``: the inspector has looked inside and found nothing against it; else its name is all that is known.
    """

    path: str
    step: int | None
    maker: str
    at: float
    sure: bool = True


def changed_files(root: Path, since: float) -> dict[str, float]:
    """Return {path: time of its last change} of what looks like a checkpoint's file and was changed from ``since`` on.

    At most 50,000 entries, eight folders deep, are looked at; links are not followed.
    """
    found: dict[str, float] = {}
    waiting, entries = [(str(root), 0)], 0
    while waiting and entries < MAX_ENTRIES:
        folder, depth = waiting.pop(0)
        try:
            inside = list(os.scandir(folder))
        except OSError:
            continue
        for entry in inside:
            entries += 1
            if entry.is_symlink():
                continue
            if entry.is_dir():
                if depth < MAX_DEPTH and entry.name not in SKIPPED and not entry.name.startswith("."):
                    waiting.append((entry.path, depth + 1))
            elif _is_part(entry.path, str(root)):
                try:
                    changed = entry.stat().st_ctime
                except OSError:
                    continue
                if changed >= since:
                    found[entry.path] = changed
    return found


def _is_part(path: str, root: str) -> bool:
    """Say whether a file may belong to a checkpoint: by its name, or by that of a folder around it within the place."""
    parts = os.path.relpath(path, root).split(os.sep)
    if parts[-1] == LOCK or any(part.startswith(".") or part.endswith(UNKEPT) for part in parts):
        return False
    return looks_like_save(path) or _outermost(path, root) is not None


def _outermost(path: str, root: str) -> str | None:
    """Return the outermost folder around a file that is named as a checkpoint is; None if there is none."""
    at, found = os.path.dirname(path), None
    while len(at) > len(root):
        name = os.path.basename(at)
        if PLACE.search(name) and NUMBER.search(name):
            found = at
        at = os.path.dirname(at)
    return found


def left(root: Path, *, since: float) -> list[Left]:
    """Return every checkpoint below ``root`` that was changed since, of which nothing bad is known; newest last.

    Only structure is looked at: content is for ``choose``.
    """
    changed = changed_files(root, since)
    found = []
    for folder in _folders(changed, str(root)):
        try:
            some = walk.survey(Path(folder), Budget(0), each).found
        except OvernightError:
            continue
        found += [one for one in some if choosing.usable(one)]
    known = {one.path: _left(one, changed) for one in found}
    return sorted((one for one in known.values() if one is not None), key=lambda one: one.at)


def signed(root: Path, *, since: float) -> bool:
    """Say whether something below ``root`` was locked since as Overnight's library locks its folder."""
    waiting = [(str(root), 0)]
    for folder, depth in waiting:
        try:
            inside = list(os.scandir(folder))
        except OSError:
            continue
        for entry in inside:
            if entry.name == LOCK and entry.is_file(follow_symlinks=False) and entry.stat().st_ctime >= since:
                return True
            below = entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH and not entry.name.startswith(".")
            if below and entry.name not in SKIPPED and len(waiting) < MAX_ENTRIES:
                waiting.append((entry.path, depth + 1))
    return False


def choose(root: Path, *, since: float, seen: Sequence[str]) -> Left | None:
    """Return the newest good checkpoint that was made below ``root`` since; None if there is none.

    ``seen`` are the paths of saves that somebody has watched being made, oldest first: they decide where the inspector
    knows no answer.
    """
    changed = changed_files(root, since)
    known: list[Found] = []
    for folder in _folders(changed, str(root)):
        try:
            report = checking.look(folder, limit=None, enough=_enough)
        except OvernightError:
            continue
        known += [one for one in report.found if _left(one, changed) is not None]
    best = choosing.newest(known)
    if best is not None:
        return _left(best, changed)
    bad = {one.path for one in known if not choosing.usable(one)}
    order = [*sorted(changed, key=changed.__getitem__), *(path for path in seen if os.path.lexists(path))]
    for path in reversed(order):
        top = _outermost(path, str(root)) or path
        if not any(one in bad for one in (path, top)):
            at = max((when for one, when in changed.items() if one == top or one.startswith(top + "/")), default=0.0)
            return Left(path=top, step=number_in(os.path.basename(top))[0], maker="unknown", at=at, sure=False)
    return None


def _enough(report: Report) -> bool:
    newest = report.newest
    return newest is not None and newest.path not in report.unchecked


def _folders(changed: dict[str, float], root: str) -> list[str]:
    """Return the folders in which checkpoints lie, the one that was written last coming first."""
    found: dict[str, None] = {}
    for path in sorted(changed, key=changed.__getitem__, reverse=True):
        found.setdefault(os.path.dirname(_outermost(path, root) or path))
        if len(found) >= MAX_FOLDERS:
            break
    return list(found)


def _left(found: Found, changed: dict[str, float]) -> Left | None:
    """Return a finding as it is told here; None if nothing of it was changed."""
    times = [at for path, at in changed.items() if path == found.path or path.startswith(found.path + "/")]
    if not times:
        return None
    return Left(path=found.path, step=choosing.step_of(found), maker=found.maker, at=max(times))
