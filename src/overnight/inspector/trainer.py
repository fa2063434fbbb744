"""Folders of Hugging Face's Trainer: ``checkpoint-500`` with weights, optimizer, scheduler, random states.

Trainer writes trainer_state.json last, so a folder without it is a save that was killed; Trainer itself takes the
highest number in a name. What the single files are is asked of those who read files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overnight.inspector.findings import Budget, Damage, Found
from overnight.inspector.folders import Folder, listed, read_object, whole_number
from overnight.inspector.joining import NO_OPTIMIZER, gaps, joined, refused_by_weights_only

NAME = re.compile(r"checkpoint-(\d{1,18})")
STATE = "trainer_state.json"
OPTIMIZER, SCHEDULER, SCALER, ARGUMENTS = "optimizer.pt", "scheduler.pt", "scaler.pt", "training_args.bin"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "adapter_model.safetensors.index.json")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
SHARD = re.compile(r"(?:model|pytorch_model|adapter_model)-(\d{5})-of-(\d{5})\.(?:safetensors|bin)")
RNG = re.compile(r"rng_state(?:_(\d{1,7}))?\.pth")
SHARDED = re.compile(r"pytorch_model_fsdp_\d+|optimizer_\d+|global_step\d+")
"""Folders of FSDP and DeepSpeed, which hold weights and optimizer in the place of the files."""
ELSEWHERE = ("optimizer.bin", "pytorch_model_fsdp.bin")

Read = Callable[[Path, Budget], Found]


def claims(folder: Folder) -> bool:
    """Say whether a folder is one of Trainer's, whole or not."""
    return STATE in folder.files or (NAME.fullmatch(folder.name) is not None)


def look(folder: Folder, budget: Budget, read: Read) -> Found:
    """Return what a folder of Trainer holds; its step is the global_step of trainer_state.json."""
    missing: list[str] = []
    damage: list[str] = []
    state = _state(folder, missing, damage)
    step = whole_number(state.get("global_step")) if state else None
    if state and step is None:
        damage.append(f"{STATE} names no global_step")
    weights = _weights(folder, missing)
    optimizer = OPTIMIZER in folder.files or any(name in folder.files for name in ELSEWHERE)
    sharded = sorted(name for name in folder.folders if SHARDED.fullmatch(name))
    if OPTIMIZER in folder.files and SCHEDULER not in folder.files:
        missing.append(f"{SCHEDULER} missing")
    random, ranks = _random(folder)
    missing += [f"rng_state_{rank}.pth missing" for rank in gaps(ranks)]
    names = [*weights, *(name for name in (OPTIMIZER, *ELSEWHERE, SCHEDULER, SCALER) if name in folder.files), *random]
    parts = {name: read(folder.path / name, budget) for name in names}
    for name in sharded:
        parts |= _shards(folder.path / name, budget, read)
    if ARGUMENTS in folder.files:  # read for its CRCs only: it is a pickle of Trainer's own classes
        parts[ARGUMENTS] = read(folder.path / ARGUMENTS, budget)
    counted = parts[OPTIMIZER].step if OPTIMIZER in parts else None
    if counted is not None and step is not None and counted > step + 1:
        damage.append(f"{OPTIMIZER} is of step {counted}, {STATE} of step {step}: files of two saves are mixed")
    notes = [] if missing else _notes(folder, step, optimizer=optimizer or bool(sharded), random=bool(random))
    if folder.leftovers:
        notes.append(f"{folder.leftovers[0]} is a leftover of a killed save")
    notes += refused_by_weights_only((name, parts[name]) for name in random)
    missing += [f"{name} is a link to what is not there" for name in folder.dangling]
    return joined(
        folder, "trainer", list(parts.values()), step=step, missing=missing, damage=damage, notes=notes,
        values=_values(state),
    )  # fmt: skip


def _state(folder: Folder, missing: list[str], damage: list[str]) -> dict[str, Any]:
    if STATE not in folder.files:
        missing.append(f"{STATE} missing")
        return {}
    try:
        return read_object(folder.path / STATE)
    except Damage as found:
        (missing if found.complete is False else damage).append(found.clause)
        return {}


def _weights(folder: Folder, missing: list[str]) -> list[str]:
    """Return the files of weights to be read; an index stands for its shards."""
    indexes = [name for name in INDEXES if name in folder.files]
    whole = [name for name in WEIGHTS if name in folder.files]
    shards = [found for name in folder.files if (found := SHARD.fullmatch(name))]
    if indexes or whole:
        return [*indexes, *whole]
    if shards:
        missing.append("the index of the sharded weights missing")
        return sorted(found[0] for found in shards)
    if not any(SHARDED.fullmatch(name) for name in folder.folders) and "pytorch_model_fsdp.bin" not in folder.files:
        missing.append(f"{WEIGHTS[0]} missing")
    return []


def _shards(path: Path, budget: Budget, read: Read) -> dict[str, Found]:
    """Return what the files of a sharded state hold: one checkpoint of torch.distributed, or DeepSpeed's ranks."""
    if not path.name.startswith("global_step"):
        return {path.name: read(path, budget)}
    names = [name for name in listed(path).files if name.endswith(".pt")]
    return {f"{path.name}/{name}": read(path / name, budget) for name in names}


def _random(folder: Folder) -> tuple[list[str], list[int]]:
    """Return the files of random states, and the ranks that they are of."""
    found = [match for name in sorted(folder.files) if (match := RNG.fullmatch(name))]
    return [one[0] for one in found], [int(one[1]) for one in found if one[1] is not None]


def _notes(folder: Folder, step: int | None, *, optimizer: bool, random: bool) -> list[str]:
    notes = []
    if not optimizer:
        notes.append(NO_OPTIMIZER)
    elif not random:
        notes.append("no random states (rng_state*.pth): resume will not be exact")
    named = NAME.fullmatch(folder.name)
    if named and step is not None and int(named[1]) != step:
        notes.append(f"is named {named[1]}, but holds step {step}")
    return notes


def _values(state: dict[str, Any]) -> dict[str, Any]:
    plain = ("global_step", "epoch", "max_steps", "best_model_checkpoint", "best_global_step", "best_metric")
    return {key: state[key] for key in plain if isinstance(state.get(key), (str, int, float))}
