"""Folders of Accelerate's ``save_state``: models, optimizers, schedulers, random states of each rank, own objects.

Accelerate writes the files one after the other into the folder's final name, the random states next to last and the
objects that the user registered last; nothing marks the end. Its own ``load_state`` takes the highest number in a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from overnight.inspector import naming
from overnight.inspector.findings import Budget, Found
from overnight.inspector.folders import Folder, whole_number
from overnight.inspector.joining import NO_OPTIMIZER, gaps, joined, lacking

NAME = re.compile(r"checkpoint_(\d{1,18})")
MODEL = re.compile(r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)")
SHARD = re.compile(r"(?:model|pytorch_model)(?:_\d+)?-\d{5}-of-\d{5}\.(?:safetensors|bin)")
INDEX = re.compile(r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)\.index\.json")
OPTIMIZER = re.compile(r"optimizer(?:_\d+)?\.bin")
STATES = re.compile(r"(?:scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt")
RANDOM = re.compile(r"random_states_(\d{1,7})\.pkl")
CUSTOM = re.compile(r"custom_checkpoint_\d+\.pkl")
SHARDED = re.compile(r"(?:pytorch_model_fsdp|optimizer|pytorch_model)(?:_\d+)?")
BELONGS = re.compile(
    "|".join(f"(?:{one.pattern})" for one in (MODEL, SHARD, INDEX, OPTIMIZER, STATES, RANDOM, CUSTOM))
    + rf"|{SHARDED.pattern}/(?:\.metadata|[^/]+\.(?:distcp|pt))|latest|zero_to_fp32\.py"
)
"""All that ``save_state`` puts into a folder, as paths below it."""
ADAM_STEP = re.compile(r"(?:.*\.)?state\.[^.]+\.step")

Read = Callable[[Path, Budget], Found]


def claims(folder: Folder) -> bool:
    """Say whether a folder is one of ``save_state``, whole or not."""
    if any(RANDOM.fullmatch(name) for name in folder.files):
        return True
    if "optimizer.bin" in folder.files and "trainer_state.json" not in folder.files:
        return True
    theirs = any(_belongs(name) for name in folder.files)
    foreign = any(name.endswith(naming.FILES) for name in folder.files)
    return NAME.fullmatch(folder.name) is not None and (theirs or not (foreign or folder.folders))


def look(folder: Folder, budget: Budget, read: Read) -> Found:
    """Return what a folder of Accelerate holds; its step is what the optimizer or the user's objects have counted."""
    missing: list[str] = []
    names = [name for name in sorted(folder.files) if _belongs(name)]
    parts = {name: read(folder.path / name, budget) for name in names}
    sharded = [name for name in sorted(folder.folders) if SHARDED.fullmatch(name)]
    parts |= {
        name: read(folder.path / name, budget) for name in sharded if (folder.path / name / ".metadata").is_file()
    }
    if not sharded and not any(MODEL.fullmatch(name) or INDEX.fullmatch(name) for name in names):
        missing.append("model.safetensors missing")
    ranks = [int(match[1]) for name in names if (match := RANDOM.fullmatch(name))]
    if not ranks:
        missing.append("random_states_0.pkl missing")
    missing += [f"random_states_{rank}.pkl missing" for rank in gaps(ranks)]
    missing += [f"{name} is a link to what is not there" for name in folder.dangling]
    notes = []
    if not missing and not sharded and not any(OPTIMIZER.fullmatch(name) for name in names):
        notes.append(NO_OPTIMIZER)
    if folder.leftovers:
        notes.append(f"{folder.leftovers[0]} is a leftover of a killed save")
    step = _step(parts)
    if step is None and not missing:
        notes.append("no step lies inside: the number that Accelerate gave the folder has to do")
    return joined(
        folder, "accelerate", list(parts.values()), step=step, missing=missing, notes=notes,
        values={"files": tuple(names)},
    )  # fmt: skip


def _belongs(name: str) -> bool:
    kinds = (MODEL, INDEX, OPTIMIZER, STATES, RANDOM, CUSTOM)
    return any(kind.fullmatch(name) for kind in kinds)


def _step(parts: Mapping[str, Found]) -> int | None:
    """Return the training step: of the user's own objects, the optimizer, Accelerate's counter, the scheduler.

    Accelerate's own counter begins anew with each epoch and stands still without gradient accumulation.
    """
    custom = [found.step for name, found in parts.items() if CUSTOM.fullmatch(name) and found.step is not None]
    if custom:
        return max(custom)
    for name, found in parts.items():
        if not OPTIMIZER.fullmatch(name):
            continue
        counted = [whole_number(value) for key, value in found.values.items() if ADAM_STEP.fullmatch(key)]
        known = [one for one in (found.step, *counted) if one is not None]
        if known:
            return max(known)
    for name, key in (("scheduler.bin", "last_epoch"), ("random_states_0.pkl", "step")):
        value = whole_number(parts[name].values.get(key)) if name in parts else None
        if value:
            return value
    return None


def beside(found: Found, before: AbstractSet[str]) -> Found:
    """Return the finding, incomplete where it lacks a file that all complete ones saved before it have.

    Nothing in a folder tells that the user's own objects, which are written last, are still to come; those that were
    saved before do.
    """
    told = lacking(found, {name for name in before if not RANDOM.fullmatch(name)})
    return found if told is found else replace(told, complete=False)
