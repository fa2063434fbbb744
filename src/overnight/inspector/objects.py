"""Gives a pickle's values their meaning: which Calls are tensors, arrays and numbers, and where in the tree they lie.

Names of torch and numpy are known here; neither is imported. The walk goes level by level, meets each object once, and
needs no more memory than the tree itself has. What is not known is walked through, never guessed at.
"""

from __future__ import annotations

import math
import re
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from overnight.inspector.symbols import Call, Opaque, Persistent, Symbol

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4,
    "U64": 8, "BOOL": 1, "C64": 8, "C128": 16, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of one number, by safetensors' name of its dtype."""

_STORAGES = {
    "Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16",
    "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64", "ComplexDouble": "C128", "QInt8": "I8",
    "QUInt8": "U8", "QInt32": "I32", "QUInt4x2": "U8", "QUInt2x4": "U8",
}  # fmt: skip
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
NUMPY = {
    "f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64", "u4": "U32",
    "u2": "U16", "u1": "U8", "b1": "BOOL", "c8": "C64", "c16": "C128",
}  # fmt: skip
_FORMS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "U16": "H",
          "U32": "I", "U64": "Q", "BOOL": "?"}  # fmt: skip

_HOLDERS = (dict, list, tuple, Call, Persistent, Opaque)
_DENSE = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_THROUGH = {"_rebuild_parameter", "_rebuild_parameter_with_state"}
_APART = re.compile(
    r"callbacks?|loops|.*rng.*|.*random.*|.*generators?|metrics?|.*histor.*|logs?|.*schedul.*|.*scaler|best.*|stats"
    r"|args|.*config.*|hparams|hyper_?parameters|.*stopping.*|([a-z]+_)?loss(es)?|([a-z]+_)*masks?|(min|max)_vals?"
)
"""Keys below which an infinity says nothing of parameters or optimizer: best scores, masks, records of losses."""

MOST_NUMBERS = 1_000
"""Plain values of one list that are handed on: a history of a million losses says no more than its first."""
DEEPEST = 12  # parts of a path that are put into words


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
        return math.prod(self.shape)

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
    data: bytes
    big: bool


@dataclass(eq=False, slots=True)
class Place:
    """Where something lies: the key in the place above. ``watched``: parameters or an optimizer's state may be here."""

    above: Place | None
    key: Any
    depth: int
    watched: bool

    def below(self, key: Any) -> Place:
        """Return the place of what lies here under a key."""
        return Place(self, key, self.depth + 1, self.watched and not (type(key) is str and _apart(key)))

    def parts(self) -> tuple[Any, ...]:
        """Return the keys from the top on; of a deep place the lowest ones only."""
        found: list[Any] = []
        at: Place | None = self
        while at is not None and at.above is not None and len(found) < DEEPEST:
            found.append(at.key)
            at = at.above
        return tuple(reversed(found))

    def words(self) -> str:
        """Return it for a sentence: ``optimizer.state.0.exp_avg``."""
        return ".".join(str(one)[:80] if isinstance(one, (str, int)) else "?" for one in self.parts()) or "it"


@lru_cache(1 << 12)
def _apart(key: str) -> bool:
    return _APART.fullmatch(key.rpartition(".")[2].lower()) is not None


def walk(root: Any) -> Iterator[tuple[Place, Any]]:
    """Yield all dicts, Tensors, Arrays, Storages and plain values of a tree with their places, level by level."""
    met: Iterator[tuple[Place, Any]] = iter(((Place(None, None, 0, watched=True), root),))
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
            if known is value or isinstance(known, Tensor):
                todo.append((place, value))
        if not todo:
            return
        place, value = todo.popleft()
        met = _inside(place, value)


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
    elif isinstance(value, Call) and isinstance(meaning(value), Tensor):  # a quantizer's scales lie behind its tensor
        yield from ((place, one) for one in value.args[4:5] if type(one) is tuple)
    elif isinstance(value, Call):
        yield from _inside_call(place, value)


def _inside_call(place: Place, call: Call) -> Iterator[tuple[Place, Any]]:
    """What an object holds. A parameter is its tensor; of all else, arguments, items and attributes."""
    if call.name.rpartition(".")[2] in _THROUGH and type(call.args) is tuple and call.args:
        yield place, call.args[0]
    else:
        yield from _inside(place, call.args)
    for one in (call.items, call.more):
        yield from _inside(place, one)
    for state in call.state if type(call.state) is tuple else (call.state,):
        yield from _inside(place, state)


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
    """Return the storage that a persistent id of torch describes; None if it is none."""
    pid = value.pid if isinstance(value, Persistent) else None
    if type(pid) is not tuple or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], Symbol):
        return None
    kind, key, numel = pid[1].name.rpartition(".")[2].removesuffix("Storage"), pid[2], pid[4]
    if type(key) is not str or type(numel) is not int or numel < 0:
        return None
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
    numbers = (offset, *shape, *stride) if type(shape) is tuple and type(stride) is tuple else (None,)
    if not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers) or len(shape) != len(stride):
        return None
    dtype = storage.dtype
    if name == "_rebuild_tensor_v3":
        named = args[6].name.rpartition(".")[2] if len(args) > 6 and isinstance(args[6], Symbol) else ""
        dtype = DTYPES.get(named)
    return Tensor(storage=storage, dtype=dtype, offset=offset, shape=shape, stride=stride)


def _array(name: str, call: Call) -> Any:
    args = call.args
    if name == "scalar" and len(args) == 2:
        dtype, big = _numpy_dtype(args[0])
        return number(dtype, raw_bytes(args[1]), big=big) if dtype else call
    if name == "_reconstruct" and type(call.state) is tuple and len(call.state) >= 5:
        shape, made, data = call.state[-4], call.state[-3], call.state[-1]
    elif name == "_frombuffer" and len(args) >= 3:
        data, made, shape = args[:3]
    else:
        return call
    dtype, big = _numpy_dtype(made)
    raw = raw_bytes(data)
    if dtype is None or raw is None or type(shape) is not tuple or not all(type(one) is int for one in shape):
        return call
    return Array(dtype=dtype, shape=shape, data=raw, big=big)


def _numpy_dtype(value: Any) -> tuple[str | None, bool]:
    if not isinstance(value, Call) or type(value.args) is not tuple or not value.args:
        return None, False
    state = value.state
    big = type(state) is tuple and len(state) > 1 and state[1] == ">"
    name = value.args[0]
    return NUMPY.get(name.lstrip("<>|=")) if type(name) is str else None, big


def raw_bytes(value: Any) -> bytes | None:
    """Return bytes that lie in a pickle; protocols before 3 write them as a word that is to be encoded."""
    if isinstance(value, Call) and value.name in ("_codecs.encode", "builtins.bytearray") and type(value.args) is tuple:
        inner = value.args[0] if value.args else None
        return inner.encode("latin-1", "replace") if type(inner) is str else raw_bytes(inner)
    return value if type(value) is bytes else None


def number(dtype: str | None, data: bytes | None, *, big: bool = False) -> int | float | bool | None:
    """Return the one number that some bytes are; None if they are not one number of a dtype that is known here."""
    if data is None or dtype is None or SIZES.get(dtype) != len(data):
        return None
    if dtype == "BF16":
        data, dtype = (data + b"\0\0" if big else b"\0\0" + data), "F32"
    form = _FORMS.get(dtype)
    found: int | float | bool | None = struct.unpack((">" if big else "<") + form, data)[0] if form else None
    return found
