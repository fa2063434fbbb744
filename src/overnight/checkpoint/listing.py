"""Which checkpoints of ours lie in a folder, and in which order: by what their manifests say, never by name or time.

A folder may hold those of several runs, and anything else besides. The run that counts is the one that was begun last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.errors import DamagedError
from overnight.checkpoint.manifest import Manifest

NAMED = re.compile(r"step-\d{8,}(\.\d+)?")
"""Names that a checkpoint of ours is given. They say nothing about what is in it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A folder with a manifest: the manifest, or in a few words why it cannot be trusted."""

    path: Path
    manifest: Manifest | None
    problem: str | None = None


def entries(folder: Path) -> list[Entry]:
    """Return all that calls itself a checkpoint of ours, in the order of names; nothing that is being made or removed.

    Sizes of files are looked at, their content is not. A folder with one of our names has lost its manifest. A link to
    a checkpoint elsewhere is one of this folder; a link to a neighbour is that neighbour, and no second one.
    """
    found = []
    here = os.path.realpath(folder)
    try:
        names = sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_dir() and (not entry.is_symlink() or os.path.dirname(os.path.realpath(entry.path)) != here)
        )
    except FileNotFoundError:
        return []
    for name in names:
        path = folder / name
        if name.startswith(".") or not (NAMED.fullmatch(name) or os.path.lexists(path / manifests.NAME)):
            continue
        known = None
        try:
            known = manifests.read(path)
            manifests.check_sizes(path, known)
        except DamagedError as error:
            found.append(Entry(path=path, manifest=known, problem=str(error)))
        else:
            found.append(Entry(path=path, manifest=known))
    return found


def current_run(found: Sequence[Entry], signed: str | None = None) -> Manifest | None:
    """Return a manifest of the run that counts in a folder, None if there is none that can be read.

    It is the one that LOCK was ``signed`` for, where that is among them: a checkpoint of another run may have been
    copied there. Else the one that was begun last.
    """
    known = [entry.manifest for entry in found if entry.manifest is not None]
    return max(known, key=lambda one: (one.run == signed, one.number, one.saved_at), default=None)


def of_run(found: Sequence[Entry], run: str) -> list[Entry]:
    """Return a run's checkpoints whose manifest can be read, newest first: by generation, then step.

    Those that were left behind when the run was taken back to an older one come last.
    """
    mine = [(entry.manifest, entry) for entry in found if entry.manifest is not None and entry.manifest.run == run]
    if not mine:
        return []
    latest = max((known for known, _ in mine), key=lambda known: known.order)
    mine.sort(key=lambda one: (one[0].led_to(latest), one[0].order), reverse=True)
    return [entry for _, entry in mine]
