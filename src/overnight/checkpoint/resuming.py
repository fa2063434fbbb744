"""Where a training goes on: the checkpoint it resumes from, whether it fits, and what has changed since."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overnight.checkpoint import environment, listing, lock, reading
from overnight.checkpoint.errors import CheckpointError, UsageError
from overnight.checkpoint.given import Given
from overnight.checkpoint.listing import Entry
from overnight.checkpoint.manifest import NAME, Manifest

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run begins: at a checkpoint, or anew (``entry`` is None). ``run``, ``number``: see the manifest."""

    entry: Entry | None
    run: str
    number: int
    generation: int
    ancestors: tuple[tuple[int, int], ...] = ()

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of what is resumed from."""
        return None if self.entry is None else self.entry.manifest


def choose(folder: Path, *, resume: bool | str | os.PathLike[str], say: Say, new_run: str) -> Start:
    """Return where to go on: the checkpoint asked for, else the newest good one of the folder's run, else anew.

    CheckpointError if there are checkpoints of the run and none can be used: beginning anew would bury them.
    """
    found = listing.entries(folder)
    latest = listing.current_run(found, lock.signed_run(folder))
    anew = Start(entry=None, run=new_run, number=_next_number(found), generation=0)
    wanted = os.environ.get("OVERNIGHT_CHECKPOINT") if isinstance(resume, bool) else os.fspath(resume)
    if resume is False:
        if latest is not None:
            say(f"{folder} holds checkpoints of an earlier run: they are left as they are and not resumed from")
        return anew
    if wanted:
        return _asked_for(Path(wanted), folder, found, new_run)
    if latest is None:
        if broken := [entry for entry in found if entry.manifest is None]:
            raise CheckpointError(_unusable(folder, [(entry.path.name, entry.problem or "") for entry in broken]))
        return anew
    for entry in found:
        if entry.manifest is None:
            say(f"passed over {entry.path.name}: {entry.problem}")
    mine = listing.of_run(found, latest.run)
    passed = []
    for entry in mine:
        trouble = reading.trouble(entry)
        if trouble is None:
            return _at(entry, mine)
        passed.append((entry.path.name, trouble))
        say(f"passed over {entry.path.name}: {trouble}")
    raise CheckpointError(_unusable(folder, passed))


def _next_number(found: list[Entry]) -> int:
    return 1 + max((one.manifest.number for one in found if one.manifest is not None), default=0)


def _unusable(folder: Path, passed: list[tuple[str, str]]) -> str:
    name, why = passed[0]
    return (
        f"{folder} has {len(passed)} checkpoints of this run and none can be used ({name}: {why}); "
        f"move them away, or give resume=False to begin anew beside them"
    )


def _at(entry: Entry, mine: list[Entry]) -> Start:
    """Going on from any but the highest one begins a new generation: what lies above it is of the past."""
    known = entry.manifest
    assert known is not None
    highest = max((one.manifest.order for one in mine if one.manifest is not None), default=known.order)
    ancestors = tuple((generation, step) for generation, step in known.ancestors)
    start = Start(entry=entry, run=known.run, number=known.number, generation=known.generation, ancestors=ancestors)
    if known.order == highest:
        return start
    return replace(start, generation=highest[0] + 1, ancestors=(*ancestors, known.order))


def _asked_for(path: Path, folder: Path, found: list[Entry], new_run: str) -> Start:
    if not path.is_absolute() and not path.exists():
        path = folder / path
    if not (path / NAME).exists():
        raise UsageError(f"{path} is no checkpoint of this library (no {NAME}); `overnight checkpoints` lists them")
    entry = next((one for one in found if os.path.samefile(one.path, path)), None)
    if entry is None:  # of another folder: it is only read, and what is saved here is a run of its own
        (entry,) = [one for one in listing.entries(path.parent) if one.path.name == path.name]
    trouble = reading.trouble(entry)
    if trouble is not None:
        raise CheckpointError(f"{path} cannot be resumed from: {trouble}; choose another one")
    known = entry.manifest
    assert known is not None
    if entry not in found:
        return Start(entry=entry, run=new_run, number=_next_number(found), generation=0)
    latest = listing.current_run(found, lock.signed_run(folder))
    start = _at(entry, listing.of_run(found, known.run))
    if latest is not None and latest.run != known.run:  # from now on this one is the run that was begun last
        start = replace(start, number=_next_number(found))
    return start


def differences(known: Manifest, facts: Mapping[str, Any], versions: Mapping[str, str], config: Any) -> list[str]:
    """Return what is not as it was when the checkpoint was made, each in a few words."""
    both = (
        known.versions.keys() & versions.keys()
    )  # a package that is loaded later, or for one thing only, is no change
    found = [
        *environment.changes(dict(known.environment), dict(facts)),
        *environment.changes(*({name: one[name] for name in both} for one in (known.versions, versions))),
    ]
    if known.config is not None or config is not None:
        found += [f"config: {one}" for one in environment.changes(known.config or {}, config or {})]
    return found


def restore(entry: Entry, given: Given, *, say: Say) -> dict[str, Any]:
    """Put the saved states into what was handed over, say what was not there, and return all states that were read."""
    assert entry.manifest is not None
    saved = reading.read_parts(entry.path, entry.manifest)
    for sentence in given.restore(saved):
        say(f"{entry.path.name}: {sentence}")
    return saved
