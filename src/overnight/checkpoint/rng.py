"""Random numbers: where every generator of a training stands, as plain values and tensors, and back.

Python's own, numpy's global one, torch's on the CPU and on every CUDA device, and generators that were handed over or
are found inside an object. Nothing is imported for their sake: a module that is not loaded has drawn nothing.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

GLOBAL = {"python": "Python's random", "numpy": "numpy.random", "torch": "torch", "cuda": "torch on CUDA"}

DEEP = 6
"""How many attributes below an object generators are looked for."""

LOOKED_AT = 2000
"""How many objects are looked at for them; a dataset may hold millions."""

FEW = 64
"""Lists and dicts longer than this hold data, not transforms or samplers."""

REFUSALS = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError, OverflowError)
"""What a generator raises that is given the state of another kind."""


def is_generator(value: object) -> bool:
    """Say whether this is a source of random numbers: random.Random, numpy's Generator or RandomState, torch's."""
    return _kind(value) is not None


def capture(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return where all global generators stand, and those of ``extra`` by their names: plain values and tensors."""
    state: dict[str, Any] = {"python": _listed(random.getstate())}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        state["numpy"] = _listed(numpy_random.get_state(legacy=False))
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            state["cuda"] = [*torch.cuda.get_rng_state_all()]
    state["own"] = capture_own(extra)
    return state


def restore(state: Mapping[str, Any], extra: Mapping[str, Any]) -> list[str]:
    """Put every generator back where it stood; return a sentence for each that could not be."""
    said: list[str] = []
    for name, put in (("python", _put_python), ("numpy", _put_numpy), ("torch", _put_torch), ("cuda", _put_cuda)):
        if name not in state:
            continue
        try:
            said += put(state[name])
        except REFUSALS as error:
            said.append(f"the random numbers of {GLOBAL[name]} were not restored: {_first(error)}")
    return said + restore_own(state.get("own") or {}, extra)


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the global generators that were drawn from between two captures."""
    names = [name for name in GLOBAL if name in before and name in after]
    return [GLOBAL[name] for name in names if not _same(before[name], after[name])]


def _put_python(state: Any) -> list[str]:
    random.setstate(_tupled(state))
    return []


def _put_numpy(state: Any) -> list[str]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ["the random numbers of numpy.random were not restored: numpy is not loaded; import it before resuming"]
    numpy.random.set_state(_fitted(state, numpy.random.get_state(legacy=False)))
    return []


def _put_torch(state: Any) -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return ["the random numbers of torch were not restored: torch is not loaded; import it before resuming"]
    torch.set_rng_state(state.cpu())
    return []


def _put_cuda(state: Any) -> list[str]:
    torch = sys.modules.get("torch")
    had = len(state)
    have = 0 if torch is None or not torch.cuda.is_available() else torch.cuda.device_count()
    for device in range(min(had, have)):
        assert torch is not None
        torch.cuda.set_rng_state(state[device].cpu(), device)
    if had == have:
        return []
    some = "none was" if not have else f"those of {min(had, have)} were"
    return [f"the random numbers of {had} CUDA devices were saved, and there are {have} now: {some} restored"]


# -- generators of the training's own --------------------------------------------------------------------------------


def capture_own(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return where some generators stand, by their names."""
    return {name: _own(value) for name, value in generators.items()}


def restore_own(states: Mapping[str, Any], generators: Mapping[str, Any]) -> list[str]:
    """Put generators back where they stood; return a sentence for each that could not be, or that has no partner."""
    said = []
    for name, saved in states.items():
        if name not in generators:
            said.append(f"{name}: the random numbers of a {saved['kind']} were saved, and there is none now")
            continue
        try:
            said += [f"{name}: {one}" for one in _put_own(saved, generators[name])]
        except REFUSALS as error:
            said.append(f"{name}: its random numbers were not restored: {_first(error)}")
    said += [f"{name}: no random numbers of it were saved, it goes on as it is" for name in generators.keys() - states]
    return said


def _kind(value: object) -> str | None:
    if isinstance(value, random.SystemRandom):
        return "random.SystemRandom"
    if isinstance(value, random.Random):
        return "random.Random"
    numpy_random = sys.modules.get("numpy.random")
    for name in ("Generator", "RandomState", "BitGenerator"):
        if numpy_random is not None and isinstance(value, getattr(numpy_random, name)):
            return f"numpy.random.{name}"
    torch = sys.modules.get("torch")
    return "torch.Generator" if torch is not None and isinstance(value, torch.Generator) else None


def _own(value: Any) -> dict[str, Any]:
    kind = _kind(value)
    saved: dict[str, Any] = {"kind": kind}
    if kind == "random.Random":
        saved["state"] = _listed(value.getstate())
    elif kind == "torch.Generator":
        saved.update(state=value.get_state(), device=value.device.type)
    elif kind == "numpy.random.RandomState":
        saved["state"] = _listed(value.get_state(legacy=False))
    elif kind is not None and kind.startswith("numpy"):
        bits = _bits(value)
        saved.update(state=_listed(bits.state), seed=_seed(bits))
    return saved


def _put_own(saved: Mapping[str, Any], value: Any) -> list[str]:
    kind = _kind(value)
    if saved["kind"] != kind:
        return [f"a {saved['kind']} was saved, and it is a {kind} now; its random numbers were not restored"]
    if kind == "random.SystemRandom":
        return ["a random.SystemRandom never repeats itself: what it draws cannot be restored; use random.Random"]
    state = saved["state"]
    if kind == "random.Random":
        value.setstate(_tupled(state))
    elif kind == "torch.Generator":
        if saved["device"] != value.device.type:
            return [f"it was on {saved['device']}, and is on {value.device.type} now; nothing was restored"]
        value.set_state(state.cpu())
    else:
        return _put_bits(saved, value, legacy=kind == "numpy.random.RandomState")
    return []


def _put_bits(saved: Mapping[str, Any], value: Any, *, legacy: bool) -> list[str]:
    state = saved["state"]
    live = value.get_state(legacy=False) if legacy else _bits(value).state
    if live["bit_generator"] != state["bit_generator"]:
        other = f"its bits came from {state['bit_generator']}, and come from {live['bit_generator']} now"
        return [f"{other}; nothing was restored"]
    fitted = _fitted(state, live)
    if legacy:
        value.set_state(fitted)
        return []
    _bits(value).state = fitted
    return _spawn_again(saved.get("seed"), _bits(value))


def _bits(value: Any) -> Any:
    """Return the bit generator of a Generator, or itself if it is one."""
    return getattr(value, "bit_generator", value)


def _seed(bits: Any) -> dict[str, Any] | None:
    """Return from what ``spawn()`` makes children: it is not part of numpy's state of a bit generator."""
    seed: Any = getattr(bits, "seed_seq", None)
    if not hasattr(seed, "n_children_spawned"):
        return None
    return {
        "entropy": _listed(seed.entropy),
        "spawn_key": _listed(seed.spawn_key),
        "spawned": int(seed.n_children_spawned),
    }


def _spawn_again(saved: Mapping[str, Any] | None, bits: Any) -> list[str]:
    now = _seed(bits)
    if saved is None or now is None or saved["spawned"] == 0:
        return []
    missing = saved["spawned"] - now["spawned"]
    same = all(_listed(saved[name]) == now[name] for name in ("entropy", "spawn_key"))
    if not same or missing < 0:
        return ["spawn() gives other children than before, as it was made from another seed; make it from the same one"]
    if missing:
        bits.seed_seq.spawn(missing)
    return []


# -- generators inside an object -------------------------------------------------------------------------------------


def within(root: object) -> dict[str, Any]:
    """Return the generators that an object holds in its attributes, by where they are: ``sampler.generator``."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    todo: deque[tuple[tuple[str, ...], Any]] = deque([((), root)])
    while todo and len(seen) < LOOKED_AT:
        path, value = todo.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_generator(value):
            found[".".join(path)] = value
        elif len(path) < DEEP:
            todo.extend(((*path, name), one) for name, one in _held(value))
    return found


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, but not the iterator that a loader keeps: a fresh one has none yet."""
    if isinstance(value, (type, ModuleType, FunctionType, BuiltinFunctionType)):
        return
    if isinstance(value, MethodType):  # a collate function that is a method
        yield "self", value.__self__
        return
    if isinstance(value, Mapping):
        pairs = [*value.items()] if type(value) is dict and len(value) <= FEW else []
    elif isinstance(value, (list, tuple)):
        pairs = [*enumerate(value)] if len(value) <= FEW else []
    else:
        pairs = []
    for name, one in (*pairs, *getattr(value, "__dict__", {}).items()):
        if name != "_iterator" and not isinstance(one, (str, bytes, int, float, type(None))):
            yield str(name), one


# -- plain values ----------------------------------------------------------------------------------------------------


def _listed(value: Any) -> Any:
    """Return a state with lists for its arrays and tuples: what a file without pickles holds."""
    if isinstance(value, Mapping):
        return {str(key): _listed(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_listed(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, (list, tuple)) else value


def _fitted(value: Any, live: Any) -> Any:
    """Return a listed state with the arrays and types that the live one has."""
    if isinstance(live, Mapping):
        return {key: _fitted(value[key], one) for key, one in live.items()}
    if hasattr(live, "dtype"):
        return sys.modules["numpy"].asarray(_listed(value), dtype=live.dtype)
    return value


def _same(one: Any, other: Any) -> bool:
    if hasattr(one, "data_ptr"):
        return bool(sys.modules["torch"].equal(one, other))
    if isinstance(one, list) and one and hasattr(one[0], "data_ptr"):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _first(error: BaseException) -> str:
    """Return the first line of an error, for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
