"""Checkpoints of Lightning: ``.ckpt`` files, and the folders that its sharded strategies make.

A ``.ckpt`` is a file of torch whose first level Lightning has filled; what torch's files are is asked elsewhere.
Lightning's own "last" is the newest file whose name begins with "last", whole or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder, whole_number
from overnight.inspector.joining import NO_OPTIMIZER, joined

SUFFIX = ".ckpt"
VERSION = "pytorch-lightning_version"
META, METADATA = "meta.pt", ".metadata"

BELONGS = re.compile(
    r"meta\.pt|\.metadata|[^/]+\.distcp|checkpoint/(?:\.metadata|[^/]+\.(?:distcp|pt))|latest|zero_to_fp32\.py"
)
"""All that a folder of Lightning holds, as paths below it."""

Read = Callable[[Path, Budget], Found]


def is_one(found: Found) -> bool:
    """Say whether what a file of torch holds was put there by Lightning."""
    return found.maker == "lightning" or VERSION in found.keys


def of_file(found: Found) -> Found:
    """Return the finding of a file of torch as that of a checkpoint of Lightning."""
    notes = list(found.notes)
    if found.keys and "optimizer_states" not in found.keys and NO_OPTIMIZER not in notes:
        notes.append(NO_OPTIMIZER)
    step = whole_number(found.values.get("global_step"))
    values = {**found.values, "best": _called_best(found)}
    changed = replace(
        found, maker="lightning", step=found.step if step is None else step, notes=tuple(notes), values=values
    )
    if found.keys and "state_dict" not in found.keys and found.complete is True:
        return replace(changed, complete=False, problem=f"{Path(found.path).name} holds no state_dict")
    return changed


def _called_best(found: Found) -> tuple[str, ...]:
    """Return the names of the files that the callbacks in a checkpoint call their best or their last one."""
    callbacks = found.tree.get("callbacks") if isinstance(found.tree, dict) else None
    names = []
    for state in list(callbacks.values())[:100] if isinstance(callbacks, dict) else ():
        for key in ("best_model_path", "last_model_path"):
            value = state.get(key) if isinstance(state, dict) else None
            if isinstance(value, str) and value:
                names.append(value.rstrip("/").rpartition("/")[2])
    return tuple(dict.fromkeys(names))


def claims(folder: Folder) -> bool:
    """Say whether a folder is a sharded checkpoint of Lightning (FSDP, tensor parallel)."""
    return META in folder.files and (METADATA in folder.files or "checkpoint" in folder.folders)


def look(folder: Folder, budget: Budget, read: Read) -> Found:
    """Return what a sharded checkpoint holds: ``meta.pt`` with all but the tensors, and shards beside it."""
    meta = read(folder.path / META, budget)
    shards = read(folder.path, budget) if METADATA in folder.files else None
    missing = [] if shards is not None else ["checkpoint/ holds no .metadata"]
    notes = [] if "optimizer_states" in meta.keys or shards is None else ["optimizer state, if any, lies in the shards"]
    parts = [meta] if shards is None else [meta, shards]
    step = whole_number(meta.values.get("global_step"))
    return joined(folder, "lightning", parts, step=meta.step if step is None else step, missing=missing, notes=notes)
