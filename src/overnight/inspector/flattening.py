"""The content of a pickle or of some JSON as a flat row of names and values, to be compared with that of another.

Unlike ``objects.walk``, which meets each object once, everything has its value here under each of its names. No file is
opened here, no value is judged, and nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overnight.inspector.findings import Damage
from overnight.inspector.objects import Array, Storage, Tensor, meaning, raw_size, storage_of
from overnight.inspector.symbols import Call, Opaque, Persistent, Symbol

MOST_VISITS = 4_000_000
"""Values that are met at most: a small pickle can hold one list a million times."""
DEEPEST = 100
LONGEST_KEY = 200  # characters of a key that are kept
_PLAIN = (bool, int, float, str, type(None))


def named(tree: Any, name: str, where: str) -> Iterator[tuple[str, Any]]:
    """Yield each Tensor, Array, Storage, Symbol, bytes and plain value with its dotted name, in the tree's order.

    A list or tuple of plain values only is one value; so is what is empty. ``where`` names the file for the Damage that
    is raised where the tree is deeper or wider than what is read; Unreadable where it describes what cannot be.
    """
    todo: list[tuple[str, Any, int]] = [(name, tree, 0)]
    visits = 0
    while todo:
        name, value, depth = todo.pop()
        held = _held(value)
        if held is None:
            yield name, _known(value)
            continue
        visits += len(held) + 1
        if visits > MOST_VISITS or depth > DEEPEST:
            raise Damage(f"{where} holds more than what is read, or is deeper", intact=None)
        if not held or (isinstance(value, (list, tuple)) and all(type(one) in _PLAIN for one in value)):
            yield name, value if isinstance(value, (list, tuple, dict)) else Symbol(getattr(value, "name", ""))
            continue
        if isinstance(value, Call) and isinstance(known := meaning(value), Tensor):
            yield name, known  # what follows are the numbers of its quantizer
        todo += [(below(name, key), one, depth + 1) for key, one in reversed(held)]


def below(name: str, key: Any) -> str:
    """Return the name of what lies under a key; what is no word nor number is ?."""
    if key is None:
        return name
    word = key[:LONGEST_KEY] if type(key) is str else str(key) if type(key) in (int, bool) else "?"
    return f"{name}.{word}" if name else word


def _known(value: Any) -> Any:
    if isinstance(value, Persistent):
        return storage_of(value)
    return meaning(value) if isinstance(value, Call) else value


def _held(value: Any) -> list[tuple[Any, Any]] | None:
    """What a value holds, by keys (None: it goes by the same name); None for what holds nothing."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, Opaque):
        return [(None, value.value)] if value.value is not None else None
    if not isinstance(value, Call):
        return None
    known = meaning(value)
    if isinstance(known, Tensor):
        return _scales(value)
    if isinstance(known, (Array, Storage)) or not isinstance(known, Call) or raw_size(value) is not None:
        return None
    return _of_call(value)


def _of_call(call: Call) -> list[tuple[Any, Any]]:
    """What an object holds: its arguments, items and attributes. A parameter is its tensor."""
    if call.name.rpartition(".")[2].startswith("_rebuild_parameter") and type(call.args) is tuple and call.args:
        return [(None, call.args[0])]
    state = call.state
    states = state if type(state) is tuple and len(state) == 2 else (state,)  # of a class with slots
    return [(None, one) for one in (call.args, call.items, call.more, *states) if one not in (None, ())]


def _scales(call: Call) -> list[tuple[Any, Any]] | None:
    """The numbers of a quantized tensor's quantizer; None for what is none."""
    if not call.name.endswith("_rebuild_qtensor") or type(call.args) is not tuple or len(call.args) < 5:
        return None
    found = call.args[4]
    return [("scale", found)] if type(found) is tuple and len(found) <= 8 else None
