"""Folders of states that no known maker lays out so: ``model.pt`` and ``optim.pt``, weights alone, one folder a rank.

Megatron, DeepSpeed by itself and verl save so, and so do many scripts. What the single files are is asked of those who
read files; a folder that holds a whole series of checkpoints is none itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path

from overnight.inspector import naming
from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder, is_leftover, listed
from overnight.inspector.joining import NO_OPTIMIZER, gaps, joined

DOUBTFUL = (".bin", ".npz", ".zip", ".tar", ".pkl", ".pickle")
"""What proves to be no checkpoint under a name that ends so is passed over."""
PART = re.compile(r"rng_state(_\d+)?\.pth|.*-\d{5}-of-\d{5}\..*")
MOST_FILES = 5_000
_RANK = re.compile(r"rank[-_]?(\d{1,7})(?!\d)")
_WORLD = re.compile(r"world_size_(\d{1,7})_rank_(\d{1,7})(?!\d)")
_GROUPS = re.compile(r"(?:.*\.)?param_groups\.\d+\.[^.]+")
_DEEPEST = 5  # levels from the top of a file on
_SUMMED = 8  # missing ranks that are named at most

Read = Callable[[Path, Budget], Found]


def trains(found: Found) -> bool:
    """Say whether there is a sign of an optimizer's state in a file: by its name, or by what torch puts into one."""
    words = [key.lower() for key in (*found.keys, *list(found.values)[:200])]
    if any("optim" in word or "exp_avg" in word or "momentum" in word for word in words):
        return True
    return any(_GROUPS.fullmatch(name) for name in found.values) or _holds_optimizer(found.tree)


def _holds_optimizer(tree: object) -> bool:
    """Say whether the state of an optimizer of torch lies in a tree, near its top, whatever it is called there."""
    level: list[object] = [tree]
    for _ in range(_DEEPEST):
        found = [one for one in level if isinstance(one, Mapping)]
        if any("param_groups" in one and "state" in one for one in found):
            return True
        rows = [one for one in level if isinstance(one, (list, tuple))]
        level = list(islice(chain.from_iterable([*(one.values() for one in found), *rows]), MOST_FILES))
    return False


def look(folder: Folder, budget: Budget, read: Read) -> Found | None:
    """Return what the files of a folder are together; None if they are no checkpoint, or several of them."""
    stepped = naming.STEP_FOLDER.fullmatch(folder.name) is not None
    names = _states(sorted(folder.files))
    if not stepped and is_series(names):
        return None
    if stepped:
        names += _below(folder)
    parts = {name: read(folder.path / name, budget) for name in names[:MOST_FILES]}
    parts = {name: one for name, one in parts.items() if one.maker != "unknown" or not name.endswith(DOUBTFUL)}
    if not parts:
        empty = stepped and not folder.folders
        missing = ["nothing of a checkpoint in it"]
        return joined(folder, "unknown", [], step=None, missing=missing) if empty else None
    notes = [] if any("optim" in name.lower() or trains(one) for name, one in parts.items()) else [NO_OPTIMIZER]
    steps = [one.step for one in parts.values() if one.step is not None]
    return joined(
        folder, _maker(parts), list(parts.values()), step=max(steps, default=None), notes=notes,
        missing=[f"{name} missing" for name in missing_ranks(parts)],
        values={"files": tuple(sorted({naming.form(name) for name in parts}))},
    )  # fmt: skip


def _states(names: Iterable[str]) -> list[str]:
    """Return the names of files that may hold a state; an index stands for its shards."""
    found = [name for name in names if name.endswith((*naming.FILES, ".index.json")) and not is_leftover(name)]
    whole = any(name.endswith(".index.json") for name in found)
    return [name for name in found if not (whole and PART.fullmatch(name))]


def _below(folder: Folder) -> list[str]:
    """Return the files of states in the folders of ranks and roles, two levels down, as paths below the folder."""
    found: list[str] = []
    for name in sorted(folder.folders):
        if (folder.path / name).is_symlink() or name.startswith("."):
            continue
        inside = listed(folder.path / name)
        found += [f"{name}/{one}" for one in _states(sorted(inside.files))]
        for further in sorted(inside.folders):
            if len(found) < MOST_FILES and not (inside.path / further).is_symlink():
                states = _states(sorted(listed(inside.path / further).files))
                found += [f"{name}/{further}/{one}" for one in states]
    return found


def is_series(names: Iterable[str]) -> bool:
    """Say whether several files are of one series: the same name with other numbers."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        number = naming.read(name).number
        if number is not None and not PART.fullmatch(name):
            numbers.setdefault(naming.form(name), set()).add(number)
    return any(len(known) > 1 for known in numbers.values())


def missing_ranks(names: Iterable[str]) -> list[str]:
    """Return the files of ranks that lack in a row of them, a few at most."""
    known = set(names)
    rows: dict[tuple[str, str], dict[int, int]] = {}
    for name in known:
        for match in _RANK.finditer(name):
            row = rows.setdefault((name[: match.start(1)], name[match.end(1) :]), {})
            row[int(match[1])] = len(match[1])
        if world := _WORLD.search(name):
            row = rows.setdefault((name[: world.start(2)], name[world.end(2) :]), {})
            row.setdefault(int(world[1]), 0)  # one beyond the last: all below it must be there
    found = []
    for (before, after), row in rows.items():
        width = max(row.values())
        found += [f"{before}{rank:0{width}d}{after}" for rank in gaps(row)]
    return sorted(set(found) - known)[:_SUMMED]


def _maker(parts: Mapping[str, Found]) -> str:
    makers = {one.maker for one in parts.values() if one.maker != "unknown"}
    return makers.pop() if len(makers) == 1 else "torch" if "torch" in makers else "unknown"
