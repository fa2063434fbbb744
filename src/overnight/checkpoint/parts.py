"""What is handed over to be saved: models, optimizers, arrays, generators, plain values; their state, and its files.

Whatever has ``state_dict`` and ``load_state_dict`` is asked for its state; how it gets it back is in ``restoring``.
Wrappers that only rename (``torch.compile``, DistributedDataParallel) are looked through, so that a checkpoint fits the
model with and without them.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from overnight.checkpoint import leaves
from overnight.checkpoint.errors import CheckpointError
from overnight.checkpoint.jobs import FilePlan, Leaf, Ref
from overnight.checkpoint.leaves import Apart

TRAIN_STATE = "train_state"
SHOWN = 3

COMPILED = "_orig_mod"
PARALLEL = {
    "torch.nn.parallel.distributed.DistributedDataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
}


def has_state(value: object) -> bool:
    """Say whether an object gives and takes its state itself."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def bare(value: Any) -> Any:
    """Return the module below wrappers that only put a prefix before each name.

    They are known by their class: something that hands on all attributes of what it holds is not one of them.
    """
    for _ in range(8):
        kinds = {f"{one.__module__}.{one.__qualname__}" for one in type(value).__mro__}
        if "torch._dynamo.eval_frame.OptimizedModule" in kinds:
            value = getattr(value, COMPILED)
        elif kinds & PARALLEL:
            value = value.module
        else:
            break
    return value


def strip(name: str) -> str:
    """Return a name without the prefixes that ``torch.compile`` puts into it, of the whole or of a module within."""
    return name if COMPILED not in name else ".".join(part for part in name.split(".") if part != COMPILED)


def renamed(state: Any, change: Callable[[str], str]) -> Any:
    """Return a state_dict with other names, and with the versions that modules keep beside it; as it was, if none."""
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        return state
    layout = leaves.layout(state) or {}
    names = {key: change(key) for key in (*state, *layout)}
    if all(key == name for key, name in names.items()) or len({names[key] for key in state}) != len(state):
        return state
    made = OrderedDict((names[key], one) for key, one in state.items())
    return leaves.with_layout(made, {names[key]: one for key, one in layout.items()} or None)


def kind(value: Any) -> str:
    """Return the class of a part, as module and name."""
    return leaves.class_of(bare(value))


class States(dict[str, Any]):
    """The state of each part by its name. ``kinds``: the class of what keeps its state itself, by the part's name.

    ``decides(path, shape)`` says whether a tensor decides about ``finite``; if nobody says it, all do.
    """

    def __init__(self, states: Mapping[str, Any] | None = None) -> None:
        super().__init__(states or {})
        self.kinds: Mapping[str, str] = {}
        self.decides: Callable[[leaves.Path, tuple[int, ...]], bool] = lambda _, __: True


def _is_expanded(value: Any) -> bool:
    """Say whether several numbers of a tensor are one in memory, so that nothing can be put back into it."""
    strided = value.layout is sys.modules["torch"].strided and not value.is_nested
    return strided and any(not step and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))


def check(name: str, value: Any) -> None:
    """CheckpointError, naming the part, for something whose state cannot be had."""
    if leaves.is_tensor(value) and _is_expanded(value):
        raise CheckpointError(f"{name} is a tensor with several places in one (expanded): hand over a clone() of it")
    if has_state(value) or leaves.is_tensor(value) or leaves.is_array(value) or isinstance(value, leaves.PLAIN):
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            check(f"{name}.{key}", one)
    elif isinstance(value, (list, tuple)):
        for at, one in enumerate(value):
            check(f"{name}.{at}", one)
    else:
        raise CheckpointError(
            f"{name} is a {leaves.class_of(value)}: hand over something with state_dict() and load_state_dict(), an "
            f"array or a plain value (and a random generator by a name of its own)"
        )


def state(value: Any) -> Any:
    """Return the state of a part: live tensors, nothing copied."""
    if has_state(value):
        inner = bare(value)
        found = inner.state_dict()
        return renamed(found, strip) if is_module(inner) else found
    if isinstance(value, Mapping):
        return {key: state(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [state(one) for one in value]
        return found if isinstance(value, list) else tuple(found)
    return value


def is_module(value: Any) -> bool:
    """Say whether this is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


# -- files -----------------------------------------------------------------------------------------------------------


def plan(states: Mapping[str, Any], apart: Apart) -> tuple[tuple[FilePlan, ...], dict[str, Any], dict[str, Any]]:
    """Return (files, what the manifest says of each part, paths of arrays by file) for the states of all parts.

    A part that is nothing but named tensors gets a file of its own, which every tool reads; all others share one.
    """
    files, about, arrays, shared = [], {}, {}, {}
    torch = "torch" in sys.modules
    file = f"{TRAIN_STATE}.pt" if torch else f"{TRAIN_STATE}.json"
    for name, one in states.items():
        before, others = len(apart.arrays), len(apart.others)
        tree = apart.tree(one, (name,))
        about[name] = _about(name, states, tree, apart.others[others:])
        if not _is_flat(tree, apart):
            shared[name] = tree
            about[name]["file"] = file
            continue
        about[name]["file"] = own = f"{name}.safetensors"
        names, metadata = _tied(tree)
        files.append(FilePlan(name=own, form="safetensors", tree=names, metadata=metadata))
        arrays[own] = [place[1:] for place in apart.arrays[before:]]
        del apart.arrays[before:]
    if shared:
        beside = None if torch else f"{TRAIN_STATE}.safetensors"
        files.append(FilePlan(name=file, form="torch" if torch else "json", tree=shared, arrays=beside))
        arrays[file] = list(apart.arrays)
    return tuple(files), about, {file: places for file, places in arrays.items() if places}


def _about(name: str, states: Mapping[str, Any], tree: Any, others: Sequence[tuple[str, list[Any]]]) -> dict[str, Any]:
    """Return what the manifest says of a part beside its file; paths in it begin below the part."""
    about: dict[str, Any] = {"keys": _keys(tree)}
    if name in getattr(states, "kinds", {}):
        about["class"] = states.kinds[name]  # type: ignore[attr-defined]
    layout = leaves.layout(states[name])
    if layout is not None and (grouped := _grouped(layout)):
        about["layout"] = grouped
    if others:
        about["others"] = [[what, path[1:]] for what, path in others]
    return about


def _grouped(layout: Mapping[Any, Any]) -> list[list[Any]]:
    """Return [version, names of the modules that have it] for each; nothing unless all of it is plain."""
    found: dict[str, list[str]] = {}
    for name, version in layout.items():
        try:
            found.setdefault(json.dumps(version, sort_keys=True), []).append(name)
        except (TypeError, ValueError):
            return []
    return [[json.loads(version), names] for version, names in found.items()]


def judged(states: Mapping[str, Any], apart: Apart, exempt: Sequence[str]) -> tuple[Leaf, ...]:
    """Return the leaves, those marked that do not decide whether the save is finite: ``exempt`` names paths of such."""
    if not isinstance(states, States):
        return tuple(apart.leaves)
    names = frozenset(exempt)
    return tuple(
        leaf
        if any(states.decides(path, leaf.shape) and not (names and leaves.words(path) in names) for path in places)
        else replace(leaf, exempt=True)
        for leaf, places in zip(apart.leaves, apart.places, strict=True)
    )


def _is_flat(tree: Any, apart: Apart) -> bool:
    """Say whether a part is named tensors and nothing else, of dtypes that safetensors knows."""
    return (
        isinstance(tree, dict)
        and bool(tree)
        and all(isinstance(key, str) and isinstance(one, Ref) for key, one in tree.items())
        and all(apart.leaves[one.leaf].dtype != "C128" for one in tree.values())
        and "__metadata__" not in tree
    )


def _tied(tree: Mapping[str, Ref]) -> tuple[dict[str, Ref], dict[str, str]]:
    """Return (each tensor under its first name, {further name: first name}), as safetensors' save_model does."""
    first: dict[int, str] = {}
    names, metadata = {}, {"format": "pt"}  # the word for "whoever reads this wants tensors of torch", for transformers
    for name, ref in tree.items():
        if ref.leaf in first:
            metadata[name] = first[ref.leaf]
        else:
            first[ref.leaf] = name
            names[name] = ref
    return names, metadata


def _keys(tree: Any) -> list[str]:
    """Return the names at the top of a part's state: what a person compares when two do not fit."""
    return [str(key) for key in tree] if isinstance(tree, dict) else []


# -- what is worth saying --------------------------------------------------------------------------------------------


def untrained(model: Any, optimizer: Any) -> list[str]:
    """Return the names of parameters for which an optimizer holds nothing: they have never been trained."""
    held = getattr(optimizer, "state", None)
    groups: Sequence[Any] = getattr(optimizer, "param_groups", ())
    torch = sys.modules.get("torch")
    if not held or not groups or (torch is not None and isinstance(optimizer, torch.optim.LBFGS)):
        return []  # LBFGS keeps all it has under the first parameter
    names: dict[int, str] = {}
    if callable(getattr(model, "named_parameters", None)):
        names = {id(one): name for name, one in bare(model).named_parameters()}
    idle = [one for group in groups for one in group["params"] if not held.get(one)]
    return [names.get(id(one), f"parameter {at}") for at, one in enumerate(idle)]


def some(names: Sequence[str]) -> str:
    """Return a few of many names for a sentence."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
