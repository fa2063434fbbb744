"""Folders of Hugging Face's Trainer: ``checkpoint-500`` with weights, optimizer, scheduler, random states.

Trainer writes trainer_state.json last, so a folder without it is a save that was killed; Trainer itself takes the
highest number in a name. What the single files are is asked of those who read files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overnight.inspector import naming
from overnight.inspector.findings import Budget, Damage, Found
from overnight.inspector.folders import Folder, listed, read_object, whole_number
from overnight.inspector.joining import NO_OPTIMIZER, gaps, joined
from overnight.inspector.loading import refused_by_weights_only

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
BELONGS = re.compile(
    r"(?:adapter_)?(?:model|config)\.(?:safetensors|json)|(?:pytorch|adapter)_model\.bin|pytorch_model_fsdp\.bin"
    r"|(?:model|(?:pytorch|adapter)_model)(?:-\d{5}-of-\d{5}\.(?:safetensors|bin)|\.(?:safetensors|bin)\.index\.json)"
    r"|optimizer\.(?:pt|bin)|scheduler\.pt|scaler\.pt|rng_state(?:_\d{1,7})?\.pth|trainer_state\.json|training_args\.bin"
    r"|(?:generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config"
    r"|processor_config|video_preprocessor_config|chat_template)\.json|chat_template\.jinja|vocab\.txt|merges\.txt"
    r"|spiece\.model|sentencepiece\.bpe\.model|tokenizer\.model|README\.md|latest|zero_to_fp32\.py"
    r"|(?:pytorch_model_fsdp_\d+|optimizer_\d+)/(?:\.metadata|[^/]+\.distcp)|global_step\d+/[^/]+\.pt"
)
"""All that Trainer puts into a folder, as paths below it; what else lies there is somebody's own."""
STATES = re.compile(
    r"(?:optimizer|scheduler|scaler)\.(?:pt|bin)|(rng_state)(?:_\d{1,7})?\.pth|(?:optimizer_|global_step)\d+"
)
SKIPPED = 20
"""Steps that a gradient scaler skips while it finds its scale; later it is about one in 2,000."""

Read = Callable[[Path, Budget], Found]


def claims(folder: Folder) -> bool:
    """Say whether a folder is one of Trainer's, whole or not; its name tells only where nothing speaks against it."""
    if STATE in folder.files:
        return True
    theirs = any(BELONGS.fullmatch(name) for name in folder.files)
    foreign = any(name.endswith(naming.FILES) for name in folder.files)
    return NAME.fullmatch(folder.name) is not None and (theirs or not (foreign or folder.folders))


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
    values = _values(state) | {
        "files": _kinds(folder),
        "lag": _lag(parts, counted, step, scaled=SCALER in folder.files),
    }
    return joined(
        folder, "trainer", list(parts.values()), step=step, missing=missing, damage=damage, notes=notes, values=values
    )


def _kinds(folder: Folder) -> tuple[str, ...]:
    """Return which states a folder has, without ranks and steps."""
    found = [match for name in (*folder.files, *folder.folders) if (match := STATES.fullmatch(name))]
    return tuple(sorted({one[1] or re.sub(r"\d+$", "", one[0]) for one in found}))


def _lag(parts: Mapping[str, Found], counted: int | None, step: int | None, *, scaled: bool) -> tuple[int, str] | None:
    """Return by how many steps the optimizer's or the scheduler's count differs from the state's, and whose it is.

    A scheduler that is called once for each process counts a multiple of the steps; one that waits for a plateau counts
    evaluations.
    """
    if step is None:
        return None
    slack = SKIPPED + step // 100 if scaled else 0
    if counted is not None and counted < step - slack:
        return step - counted, f"{OPTIMIZER} is of step {counted}, {STATE} of step {step}"
    values = parts[SCHEDULER].values if SCHEDULER in parts else {}
    said = None if "num_bad_epochs" in values else whole_number(values.get("last_epoch"))
    if said is None or said - step in range(-slack, 2) or (step and said % step == 0 and said):
        return None
    return step - said, f"{SCHEDULER} is of step {said}, {STATE} of step {step}"


class Neighbours:
    """What the complete folders of Trainer in one place have in common."""

    def __init__(self, found: Sequence[Found]) -> None:
        self._lags = Counter(one.values["lag"][0] for one in found if one.values.get("lag"))
        training = [one for one in found if _training(one)]
        self._count = len(training)
        self._kinds = Counter(kind for one in training for kind in one.values["files"])

    def explain(self, lag: int) -> bool:
        """Say whether more than one lags by that much: the training once began anew with an older count."""
        return self._lags[lag] > 1

    def lacks(self, found: Found) -> str | None:
        """Return a state that all others have that have an optimizer's, and this one has not."""
        others = self._count - _training(found)
        if not others:
            return None
        mine = found.values.get("files", ())
        return min((kind for kind, count in self._kinds.items() if count >= others and kind not in mine), default=None)


def _training(found: Found) -> bool:
    return any(name.startswith("optimizer") for name in found.values.get("files", ()))


def beside(found: Found, others: Neighbours) -> Found:
    """Return the finding with a problem where it is of two saves, or lacks a state that its neighbours have."""
    if found.complete is not True or found.problem is not None:
        return found
    lag = found.values.get("lag")
    if lag is not None and not others.explain(lag[0]):
        return replace(found, problem=f"{lag[1]}: files of two saves may be mixed")
    gone = others.lacks(found)
    return found if gone is None else replace(found, problem=f"{gone} missing, which those beside it have")


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
