"""Saved states put back into what was handed over, so that all is as it was: kinds of numbers, classes, order, names.

What cannot be as it was is said, or refused where it would be found at the first step only. Reads no file.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, cast

from overnight.checkpoint import leaves, parts
from overnight.checkpoint.errors import CheckpointError

Say = Callable[[str], None]

SHOWN = 400
"""Characters of what a part says of a state that is not its own: torch names every tensor that does not fit."""

REFUSALS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError)
"""What parts raise that are given a state which is not theirs."""


def restore(name: str, value: Any, saved: Any, *, say: Say, was: str | None = None, converted: bool = False) -> Any:
    """Put a saved state into a part; return what stands for it from now on: the part itself, or a plain value.

    ``saved`` must have memory of its own: parts may keep it. ``was`` is the class that the part had. ``converted``: the
    parameters have another dtype than was saved, and what an optimizer keeps of them follows. CheckpointError, naming
    the part, if the state does not fit; ``say`` gets a sentence for what fits but is not as it was.
    """
    changed = was is not None and _differ(was, parts.kind(value)) and not parts.is_module(parts.bare(value))
    now = f"{name} was a {was} when it was saved, and is a {parts.kind(value)} now"
    if changed:
        say(f"{now}; what it keeps was taken over as far as it fits, so this resume is not exact")
    try:
        if converted and parts.has_state(value) and hasattr(value, "param_groups"):
            say(f"{name}: what it keeps was converted to the dtype that its parameters have now")
            _own_state(name, parts.bare(value), saved, say, converted=True)
            return value
        return _restore(name, value, saved, say)
    except CheckpointError as error:
        raise (CheckpointError(f"{now}: {error}") if changed else error) from error.__cause__
    except REFUSALS as error:
        whole = " ".join(line.strip() for line in (str(error) or type(error).__name__).strip().splitlines())
        first = whole if len(whole) <= SHOWN else whole[:SHOWN].rpartition(" ")[0] + " ..."
        told = f"{now}: its state does not fit ({first})" if changed else (
            f"{name} does not take the state that was saved: {first}"
        )  # fmt: skip
        raise CheckpointError(
            f"{told}; is this the same training? Another folder, or resume=False, begins anew"
        ) from None


def _differ(was: str, now: str) -> bool:
    """Say whether two classes differ; a script's own one has another module where it was imported."""
    old, new = was.rpartition("."), now.rpartition(".")
    return old[2] != new[2] or (old[0] != new[0] and "__main__" not in (old[0], new[0]))


def _restore(name: str, value: Any, saved: Any, say: Say) -> Any:
    if parts.has_state(value):
        _own_state(name, parts.bare(value), saved, say)
    elif leaves.is_tensor(value):
        _same_shape(name, tuple(value.shape), tuple(saved.shape))
        torch = sys.modules["torch"]
        _check_cast(name, saved.dtype, value.dtype, torch.promote_types(saved.dtype, value.dtype) == value.dtype, say)
        with torch.inference_mode(mode=value.is_inference()), torch.no_grad():
            value.copy_(saved)
    elif leaves.is_array(value) and getattr(value, "flags", None) is not None and value.flags.writeable:
        numpy = sys.modules["numpy"]
        _same_shape(name, value.shape, getattr(saved, "shape", ()))
        dtype = numpy.asarray(saved).dtype
        _check_cast(name, dtype, value.dtype.newbyteorder("="), numpy.can_cast(dtype, value.dtype, "safe"), say)
        value[...] = saved
    elif isinstance(value, dict):
        kept = {key: _restore(f"{name}.{key}", value.get(key), one, say) for key, one in saved.items()}
        value.clear()
        value.update(kept)
    elif isinstance(value, list):
        had = [*value, *[None] * (len(saved) - len(value))]
        value[:] = [_restore(f"{name}.{at}", had[at], one, say) for at, one in enumerate(saved)]
    elif isinstance(value, tuple):
        return _tuple(value, [_restore(f"{name}.{at}", one, saved[at], say) for at, one in enumerate(value)])
    else:
        return fitted(saved, value)
    return value


def _same_shape(name: str, mine: tuple[int, ...], saved: tuple[int, ...]) -> None:
    if tuple(mine) != tuple(saved):
        raise CheckpointError(f"{name} has the shape {list(mine)}, and {list(saved)} was saved: it is another model")


def _check_cast(name: str, saved: Any, mine: Any, safe: bool, say: Say) -> None:  # noqa: FBT001 - the answer
    if saved == mine:
        return
    pair = f"{name} was saved as {_short(saved)} and is {_short(mine)} now"
    if not safe:
        raise CheckpointError(f"{pair}, which cannot hold its numbers: make it of the dtype that was saved")
    say(f"{pair}: its numbers were converted, none of them changed")


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


# -- what keeps its state itself -------------------------------------------------------------------------------------


def _own_state(name: str, value: Any, saved: Any, say: Say, *, converted: bool = False) -> None:
    live = value.state_dict()
    if _switched(name, value, live, saved, say):
        return
    saved = fitted(named_as(saved, live), live)
    if parts.is_module(value):
        _say_casts(name, saved, live, say)
    groups = [set(group) for group in getattr(value, "param_groups", ())]
    value.load_state_dict(saved)
    if groups:
        _check_groups(name, value, groups)
        if not converted:
            _as_saved(name, value, saved, say)


def _switched(name: str, value: Any, live: Any, saved: Any, say: Say) -> bool:
    """Say whether a gradient scaler was off on one of both sides: it has nothing then, and takes nothing."""
    if not callable(getattr(value, "is_enabled", None)) or bool(live) == bool(saved):
        return False
    if live:
        say(f"{name} was switched off when the checkpoint was saved: it begins anew")
    else:
        say(f"{name} is switched off now: what was saved of it is left out")
    return True


def named_as(saved: Any, live: Any) -> Any:
    """Return a saved state under the names that the live one has, where only prefixes of torch.compile differ."""
    if not isinstance(saved, dict) or not isinstance(live, dict):
        return saved
    mine = {parts.strip(key): key for key in live if isinstance(key, str)}
    made = parts.renamed(saved, lambda key: mine.get(parts.strip(key), key))
    layout = leaves.layout(saved)
    if made is not saved and layout:
        stripped = {parts.strip(key): one for key, one in layout.items()}
        there = {key: parts.strip(key) for key in leaves.layout(live) or {}}
        again = {key: stripped[name] for key, name in there.items() if name in stripped}
        leaves.with_layout(made, {**layout, **again})
    return made


def fitted(saved: Any, live: Any) -> Any:
    """Return a saved state with the classes of dicts, tuples and words that the live one has at the same places."""
    if isinstance(saved, dict) and isinstance(live, dict):
        pairs = [(key, fitted(one, live.get(key))) for key, one in saved.items()]
        if isinstance(live, defaultdict):
            return defaultdict(live.default_factory, pairs)
        if isinstance(live, Counter):
            return Counter(dict(pairs))
        if not isinstance(live, OrderedDict) and type(saved) is dict:
            return dict(pairs)
        return leaves.with_layout(OrderedDict(pairs), leaves.layout(saved))
    if isinstance(saved, list) and isinstance(live, list):
        return [fitted(one, live[at] if at < len(live) else None) for at, one in enumerate(saved)]
    if isinstance(saved, tuple) and isinstance(live, tuple):
        return _tuple(live, [fitted(one, live[at] if at < len(live) else None) for at, one in enumerate(saved)])
    if isinstance(live, Enum) and isinstance(saved, (str, int, float)):
        return next((one for one in type(live) if saved == cast("Any", one)), saved)
    return saved


def _tuple(live: Any, found: list[Any]) -> Any:
    """Return a tuple of the class of a live one: named, or torch's Size, if it takes as many."""
    if hasattr(live, "_fields") and len(live) == len(found):
        return type(live)(*found)
    torch = sys.modules.get("torch")
    return torch.Size(found) if torch is not None and type(live) is torch.Size else tuple(found)


def is_converted(value: Any, saved: Any) -> bool:
    """Say whether a module has other dtypes now than were saved."""
    if not parts.is_module(parts.bare(value)) or not isinstance(saved, dict):
        return False
    live = parts.bare(value).state_dict()
    both = [(one, live.get(key)) for key, one in saved.items()]
    return any(leaves.is_tensor(one) and leaves.is_tensor(mine) and one.dtype != mine.dtype for one, mine in both)


def _say_casts(name: str, saved: Any, live: Any, say: Say) -> None:
    """Say what a module casts: it takes whatever it is given."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, one in saved.items() if isinstance(saved, dict) else ():
        mine = live.get(key)
        if leaves.is_tensor(one) and leaves.is_tensor(mine) and one.dtype != mine.dtype:
            found.setdefault((_short(one.dtype), _short(mine.dtype)), []).append(key)
    for (old, new), names in found.items():
        say(
            f"{name}: {len(names)} tensors were saved as {old} and are {new} now, so this resume is not exact: "
            f"{parts.some(names)}"
        )


# -- optimizers ------------------------------------------------------------------------------------------------------


def _check_groups(name: str, value: Any, groups: list[set[Any]]) -> None:
    """Refuse the settings of another optimizer: torch takes them in place of its own, and fails at the first step."""
    for had, group in zip(groups, value.param_groups, strict=False):
        lacking = sorted(str(key) for key in had - set(group))
        if lacking:
            raise CheckpointError(
                f"the state that was saved for {name} has no {', '.join(lacking)}, which {parts.kind(value)} needs; "
                f"use the optimizer of the saved run, or resume=False"
            )


def _as_saved(name: str, value: Any, saved: Any, say: Say) -> None:
    """Put back the dtypes of an optimizer's state: torch casts all of it to the dtype of the parameter."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.optim.Optimizer):
        return
    numbers = [number for group in saved.get("param_groups", ()) for number in group["params"]]
    params = [one for group in value.param_groups for one in group["params"]]
    left: list[str] = []
    for number, param in zip(numbers, params, strict=False):
        held = value.state.get(param)
        if isinstance(held, dict) and number in saved["state"]:
            for key, one in saved["state"][number].items():
                if key in held:
                    held[key] = _cast_back(held[key], one)
                if not _as_wide(held.get(key), one):
                    left.append(f"{number}.{key}")
    if left:
        say(f"{name} holds {len(left)} tensors in another dtype than was saved: {parts.some(left)}; not exact")


def _cast_back(mine: Any, saved: Any) -> Any:
    if leaves.is_tensor(saved) and leaves.is_tensor(mine):
        return mine if saved.dtype == mine.dtype else saved.to(device=mine.device)
    if isinstance(saved, Mapping) and isinstance(mine, dict):
        for key, one in saved.items():
            if key in mine:
                mine[key] = _cast_back(mine[key], one)
    elif isinstance(saved, (list, tuple)) and isinstance(mine, (list, tuple)) and len(saved) == len(mine):
        found = [_cast_back(one, other) for one, other in zip(mine, saved, strict=True)]
        return found if isinstance(mine, list) else _tuple(mine, found)
    return mine


def _as_wide(mine: Any, saved: Any) -> bool:
    return not leaves.is_tensor(saved) or (leaves.is_tensor(mine) and mine.dtype == saved.dtype)
