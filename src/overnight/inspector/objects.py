"""Gives a pickle's values their meaning: which Calls are tensors, arrays and numbers, and where in the tree they lie.

Names of torch and numpy are known here; neither is imported. The walk goes level by level, meets each object once, and
needs no more memory than the tree itself has. What is not known is walked through, never guessed at.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from overnight.checkpoint.leaves import NUMPY_NAMES, TORCH_NAMES
from overnight.checkpoint.tensorfile import WIDTHS
from overnight.inspector.places import Place
from overnight.inspector.symbols import Call, Opaque, Persistent, Symbol, Unreadable

SIZES = {**WIDTHS, "C128": 16}
"""Bytes of one number, by safetensors' name of its dtype."""

_STORAGES = {
    "Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16",
    "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64", "ComplexDouble": "C128", "QInt8": "I8",
    "QUInt8": "U8", "QInt32": "I32", "QUInt4x2": "U8", "QUInt2x4": "U8",
}  # fmt: skip
DTYPES = {name: known for known, name in TORCH_NAMES.items()}
NUMPY = {("b" if name == "bool" else name[0]) + str(SIZES[known]): known for known, name in NUMPY_NAMES.items()}
"""numpy's letters of a dtype without the order of its bytes, f4 say."""
_FORMS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "U16": "H",
          "U32": "I", "U64": "Q", "BOOL": "?"}  # fmt: skip

_HOLDERS = (dict, list, tuple, Call, Persistent, Opaque)
_DENSE = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_THROUGH = {"_rebuild_parameter", "_rebuild_parameter_with_state"}

MOST_NUMBERS = 1_000
"""Plain values of one list that are handed on: a history of a million losses says no more than its first."""
MOST_DIMENSIONS = 256
LARGEST_COUNT = 1 << 62  # numbers, or bytes, that something can have


def count_of(shape: Sequence[int]) -> int:
    """Return how many numbers a shape holds; LARGEST_COUNT where they are as many or more, without counting on."""
    if len(shape) <= 8:
        return min(math.prod(shape), LARGEST_COUNT)
    count = 1
    for one in shape if 0 not in shape else (0,):
        count *= one
        if count >= LARGEST_COUNT:
            return LARGEST_COUNT
    return count


@dataclass(eq=False, slots=True, kw_only=True)
class Storage:
    """Where the numbers of a tensor lie: the member ``data/<key>``. ``numel`` numbers of ``dtype``, None: bytes."""

    key: str
    dtype: str | None
    numel: int
    known: bool = True  # its dtype is one that is known here, and so its size

    @property
    def size(self) -> int | None:
        """Bytes; None if its dtype is not known here."""
        return self.numel * (1 if self.dtype is None else SIZES[self.dtype]) if self.known else None


@dataclass(eq=False, slots=True, kw_only=True)
class Tensor:
    """A view of a storage; offset, shape and stride in numbers of ``dtype`` (None: not known here)."""

    storage: Storage
    dtype: str | None
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many numbers it has."""
        return count_of(self.shape)

    @property
    def reach(self) -> int:
        """One more than the place of its last number in the storage; 0 if it has none."""
        if not self.numel:
            return 0
        return self.offset + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) + 1


@dataclass(eq=False, slots=True, kw_only=True)
class Array:
    """An array of numpy that lies in the pickle itself; little-endian unless ``big``."""

    dtype: str | None
    shape: tuple[int, ...]
    held: Any
    big: bool

    @property
    def size(self) -> int:
        """Its bytes."""
        return raw_size(self.held) or 0

    @property
    def data(self) -> bytes:
        """Its bytes, made anew in old protocols."""
        return raw_bytes(self.held) or b""


def walk(root: Any, top: Place | None = None) -> Iterator[tuple[Place, Any]]:
    """Yield all dicts, Tensors, Arrays, Storages and plain values of a tree with their places, level by level.

    Unreadable: it describes a storage or a tensor that cannot be.
    """
    met: Iterator[tuple[Place, Any]] = iter(((top or Place(), root),))
    todo: deque[tuple[Place, Any]] = deque()  # what holds more, and is to be looked into
    seen: set[int] = set()
    while True:
        for place, value in met:
            if not isinstance(value, _HOLDERS):
                yield place, value
                continue
            if id(value) in seen:
                continue
            seen.add(id(value))
            known = meaning(value) if isinstance(value, Call) else value
            if isinstance(value, Persistent):
                known = storage_of(value)
            if isinstance(known, (dict, list, tuple, Tensor, Array, Storage)) or not isinstance(known, _HOLDERS):
                yield place, known
            more = value if known is value else _scales(value)
            if more is not None:
                todo.append((place, more))
        if not todo:
            return
        place, value = todo.popleft()
        met = _inside(place, value)


def _scales(value: Any) -> tuple[Any, ...] | None:
    """What lies behind a quantized tensor: its quantizer's numbers."""
    if not isinstance(value, Call) or not value.name.endswith("_rebuild_qtensor") or type(value.args) is not tuple:
        return None
    found = value.args[4] if len(value.args) > 4 else None
    return found if type(found) is tuple and len(found) <= 8 else None  # short: many tensors may share it


def _inside(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict):
        yield from ((place.below(key), one) for key, one in value.items())
        yield from ((place, key) for key in value if isinstance(key, (Call, Opaque)))
    elif isinstance(value, (list, tuple)):
        for at, one in enumerate(value):
            if at < MOST_NUMBERS or (one and isinstance(one, _HOLDERS)):
                yield place.below(at), one
    elif isinstance(value, Opaque):
        yield place, value.value
    elif isinstance(value, Call):
        yield from _inside_call(place, value)


def _inside_call(place: Place, call: Call) -> Iterator[tuple[Place, Any]]:
    """What an object holds. A parameter is its tensor; of all else, arguments, items and attributes."""
    if call.name.rpartition(".")[2] in _THROUGH and type(call.args) is tuple and call.args:
        yield place, call.args[0]
    elif call.args:
        yield place, call.args  # as values of their own: many objects may share them, and each is met once
    for one in (call.items, call.more):
        if one is not None:
            yield place, one
    state = call.state
    if type(state) is tuple and len(state) == 2:  # of a class with slots
        yield from ((place, one) for one in state)
    elif state is not None:
        yield place, state


def meaning(call: Call) -> Any:
    """Return the Tensor, Array or plain number that a call makes; the call itself where it is none of these."""
    name, args = call.name.rpartition(".")[2], call.args
    if type(args) is not tuple:
        return call
    if name == "_rebuild_from_type_v2" and len(args) >= 3 and isinstance(args[0], Symbol) and type(args[2]) is tuple:
        inner = args[0].name.rpartition(".")[2]
        return (_tensor(inner, args[2]) or call) if inner in _DENSE else call
    if name in _DENSE:
        return _tensor(name, args) or call
    if call.name.startswith("numpy."):
        return _array(name, call)
    return call


def storage_of(value: Any) -> Storage | None:
    """Return the storage that a persistent id of torch describes; None for what is no persistent id, Unreadable."""
    if not isinstance(value, Persistent):
        return None
    pid = value.pid
    if type(pid) is not tuple or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Symbol):
        raise Unreadable("it refers to something outside of it that is no storage")
    kind, key, numel = pid[1].name.rpartition(".")[2].removesuffix("Storage"), pid[2], pid[4]
    if type(key) is not str or len(key) > 1_000 or type(numel) is not int or not 0 <= numel < LARGEST_COUNT >> 4:
        raise Unreadable("it describes a storage that cannot be")
    if kind == "Untyped":
        return Storage(key=key, dtype=None, numel=numel)
    return Storage(key=key, dtype=_STORAGES.get(kind), numel=numel, known=kind in _STORAGES)


def _tensor(name: str, args: tuple[Any, ...]) -> Tensor | None:
    storage = storage_of(args[0]) if len(args) >= 4 else None
    if storage is None:
        return None
    offset, shape, stride = args[1:4]
    if isinstance(shape, Call):  # torch.Size
        shape = shape.args[0] if type(shape.args) is tuple and shape.args else shape
    if type(shape) is not tuple or type(stride) is not tuple or not len(shape) == len(stride) <= MOST_DIMENSIONS:
        raise Unreadable(f"it describes a tensor in data/{storage.key[:80]} that has no shape")
    if not all(type(one) is int and 0 <= one < LARGEST_COUNT for one in (offset, *shape, *stride)):
        raise Unreadable(f"it describes a tensor in data/{storage.key[:80]} of an absurd shape")
    dtype = storage.dtype
    if name == "_rebuild_tensor_v3":
        named = args[6].name.rpartition(".")[2] if len(args) > 6 and isinstance(args[6], Symbol) else ""
        dtype = DTYPES.get(named)
    return Tensor(storage=storage, dtype=dtype, offset=offset, shape=shape, stride=stride)


def _array(name: str, call: Call) -> Any:
    args = call.args
    if name == "scalar" and len(args) == 2:
        dtype, big = _numpy_dtype(args[0])
        small = (raw_size(args[1]) or 0) <= SIZES["C128"]
        return number(dtype, raw_bytes(args[1]), big=big) if dtype and small else call
    if name == "_reconstruct" and type(call.state) is tuple and len(call.state) >= 5:
        shape, made, data = call.state[-4], call.state[-3], call.state[-1]
    elif name == "_frombuffer" and len(args) >= 3:
        data, made, shape = args[:3]
    else:
        return call
    dtype, big = _numpy_dtype(made)
    if dtype is None or raw_size(data) is None or type(shape) is not tuple or len(shape) > MOST_DIMENSIONS:
        return call
    if not all(type(one) is int and 0 <= one < LARGEST_COUNT for one in shape):
        return call
    return Array(dtype=dtype, shape=shape, held=data, big=big)


def _numpy_dtype(value: Any) -> tuple[str | None, bool]:
    if not isinstance(value, Call) or type(value.args) is not tuple or not value.args:
        return None, False
    state = value.state
    big = type(state) is tuple and len(state) > 1 and state[1] == ">"
    name = value.args[0]
    return NUMPY.get(name.lstrip("<>|=")) if type(name) is str and len(name) < 8 else None, big


def _held(value: Any) -> Any:
    """What a call that makes bytes is given: protocols before 3 write bytes as a word that is to be encoded."""
    for _ in range(3):  # a bytearray of a word that is to be encoded, at most
        if not isinstance(value, Call) or value.name not in ("_codecs.encode", "builtins.bytearray"):
            break
        value = value.args[0] if type(value.args) is tuple and value.args else None
    return value


def raw_size(value: Any) -> int | None:
    """Return how many bytes lie in a value of a pickle, without making them; None if it is nothing of bytes."""
    held = _held(value)
    return len(held) if type(held) is bytes or (type(held) is str and held is not value) else None


def raw_bytes(value: Any) -> bytes | None:
    """Return bytes that lie in a pickle; None if there are none."""
    if raw_size(value) is None:
        return None
    held = _held(value)
    return held.encode("latin-1", "replace") if type(held) is str else bytes(held)


def number(dtype: str | None, data: bytes | None, *, big: bool = False) -> int | float | bool | None:
    """Return the one number that some bytes are; None if they are not one number of a dtype that is known here."""
    if data is None or dtype is None or SIZES.get(dtype) != len(data):
        return None
    if dtype == "BF16":
        data, dtype = (data + b"\0\0" if big else b"\0\0" + data), "F32"
    form = _FORMS.get(dtype)
    found: int | float | bool | None = struct.unpack((">" if big else "<") + form, data)[0] if form else None
    return found
