"""What is handed over to be saved: models, optimizers, arrays, generators, plain values; their state, and back.

Whatever has ``state_dict`` and ``load_state_dict`` is asked for its state. Arrays and tensors are restored in place,
dicts and lists of such in their places. Wrappers that only rename (``torch.compile``, DistributedDataParallel) are
looked through, so that a checkpoint fits the model with and without them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from overnight.checkpoint import leaves
from overnight.checkpoint.errors import CheckpointError
from overnight.checkpoint.jobs import FilePlan, Ref
from overnight.checkpoint.leaves import Apart

TRAIN_STATE = "train_state"
SHOWN = 3


def has_state(value: object) -> bool:
    """Say whether an object gives and takes its state itself."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def bare(value: Any) -> Any:
    """Return the module below wrappers that only put a prefix before each name."""
    for _ in range(8):
        inner = getattr(value, "_orig_mod", None)
        if inner is None and type(value).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = value.module
        if inner is None:
            return value
        value = inner
    return value


def check(name: str, value: Any) -> None:
    """CheckpointError, naming the part, for something whose state cannot be had."""
    if has_state(value) or leaves.is_tensor(value) or leaves.is_array(value) or isinstance(value, leaves.PLAIN):
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            check(f"{name}.{key}", one)
    elif isinstance(value, (list, tuple)):
        for at, one in enumerate(value):
            check(f"{name}.{at}", one)
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{name} is a {kind}: hand over something with state_dict() and load_state_dict(), an array or a plain "
            f"value (and a random generator by a name of its own)"
        )


def state(value: Any) -> Any:
    """Return the state of a part: live tensors, nothing copied."""
    if has_state(value):
        return bare(value).state_dict()
    if isinstance(value, Mapping):
        return {key: state(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        found = [state(one) for one in value]
        return found if isinstance(value, list) else tuple(found)
    return value


def restore(name: str, value: Any, saved: Any) -> Any:
    """Put a saved state into a part; return what stands for it from now on: the part itself, or a plain value."""
    try:
        return _restore(name, value, saved)
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        first = str(error).strip().splitlines()
        raise CheckpointError(
            f"{name} does not take the state that was saved: {' '.join(line.strip() for line in first)[:500]}; "
            f"is this the same training? Another folder, or resume=False, begins anew"
        ) from error


def _restore(name: str, value: Any, saved: Any) -> Any:
    if has_state(value):
        bare(value).load_state_dict(saved)
    elif leaves.is_tensor(value):
        _same(name, tuple(value.shape), tuple(saved.shape))
        with sys.modules["torch"].no_grad():
            value.copy_(saved)
    elif leaves.is_array(value) and getattr(value, "flags", None) is not None and value.flags.writeable:
        _same(name, value.shape, getattr(saved, "shape", ()))
        value[...] = saved
    elif isinstance(value, dict):
        kept = {key: _restore(f"{name}.{key}", value.get(key), one) for key, one in saved.items()}
        value.clear()
        value.update(kept)
    elif isinstance(value, list):
        had = [*value, *[None] * (len(saved) - len(value))]
        value[:] = [_restore(f"{name}.{at}", had[at], one) for at, one in enumerate(saved)]
    elif isinstance(value, tuple):
        return tuple(_restore(f"{name}.{at}", one, saved[at]) for at, one in enumerate(value))
    else:
        return saved
    return value


def _same(name: str, mine: tuple[int, ...], saved: tuple[int, ...]) -> None:
    if tuple(mine) != tuple(saved):
        raise CheckpointError(f"{name} has the shape {list(mine)}, and {list(saved)} was saved: it is another model")


# -- files -----------------------------------------------------------------------------------------------------------


def plan(states: Mapping[str, Any], apart: Apart) -> tuple[tuple[FilePlan, ...], dict[str, Any], dict[str, Any]]:
    """Return (files, what the manifest says of each part, paths of arrays by file) for the states of all parts.

    A part that is nothing but named tensors gets a file of its own, which every tool reads; all others share one.
    """
    files, about, arrays, shared = [], {}, {}, {}
    torch = "torch" in sys.modules
    for name, one in states.items():
        before = len(apart.arrays)
        tree = apart.tree(one, (name,))
        if not _is_flat(tree, apart):
            shared[name] = tree
            continue
        file = f"{name}.safetensors"
        names, metadata = _tied(tree)
        files.append(FilePlan(name=file, form="safetensors", tree=names, metadata=metadata))
        about[name] = {"file": file, "keys": _keys(tree)}
        arrays[file] = [place[1:] for place in apart.arrays[before:]]
        del apart.arrays[before:]
    if shared:
        file = f"{TRAIN_STATE}.pt" if torch else f"{TRAIN_STATE}.json"
        form = "torch" if torch else "json"
        beside = None if torch else f"{TRAIN_STATE}.safetensors"
        files.append(FilePlan(name=file, form=form, tree=shared, arrays=beside))
        about.update({name: {"file": file, "keys": _keys(tree)} for name, tree in shared.items()})
        arrays[file] = list(apart.arrays)
    return tuple(files), about, {file: places for file, places in arrays.items() if places}


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


def not_finite(model: Any) -> list[str]:
    """Return the names of a model's buffers that are not finite, as masks of -inf are; looked at before it trains."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(bare(model), torch.nn.Module):
        return []
    return [
        name
        for name, buffer in bare(model).named_buffers()
        if buffer.is_floating_point() and not bool(torch.isfinite(buffer.detach()).all())
    ]


def untrained(model: Any, optimizer: Any) -> list[str]:
    """Return the names of parameters for which an optimizer holds nothing: they have never been trained."""
    held = getattr(optimizer, "state", None)
    groups: Sequence[Any] = getattr(optimizer, "param_groups", ())
    if not held or not groups:
        return []
    names: dict[int, str] = {}
    if callable(getattr(model, "named_parameters", None)):
        names = {id(one): name for name, one in bare(model).named_parameters()}
    idle = [one for group in groups for one in group["params"] if not held.get(one)]
    return [names.get(id(one), f"parameter {at}") for at, one in enumerate(idle)]


def some(names: Sequence[str]) -> str:
    """Return a few of many names for a sentence."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
