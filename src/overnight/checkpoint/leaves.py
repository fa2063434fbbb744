"""A state taken apart: its tensors and arrays on one side, the tree that held them on the other, and back.

Nothing is copied here: a leaf's bytes are those of the live tensor. torch and numpy are used if the training has loaded
them, and never loaded for its sake. Torch's dtypes and safetensors' names for them stand in one table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overnight.checkpoint.errors import CheckpointError
from overnight.checkpoint.jobs import Leaf, Ref

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
    "C128": "complex128",
}  # fmt: skip
"""safetensors' name of a dtype: torch's. C128 is not among safetensors' own: such tensors lie in other files."""

NUMPY_NAMES = {
    name: TORCH_NAMES[name]
    for name in ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "C64", "C128")
}

PLAIN = (bool, int, float, str, bytes, type(None))

SIMPLE = frozenset({*PLAIN, dict, list, tuple})
"""Classes of which nothing need be asked: neither a tensor nor an array."""

DEEPEST = 200
"""Dicts and lists within each other; what writes and reads files goes no deeper."""

WIDEST = 2000
"""Bits of an int from which on torch's reader without pickles refuses it."""

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Odd:
    """A key on a path that JSON cannot tell from others, as infinity: ``at`` is its place among the dict's keys."""

    key: Any
    at: int

    def __str__(self) -> str:
        return str(self.key)


def words(path: Path) -> str:
    """Return where in a state something is, for a sentence: ``optimizer.state.0.exp_avg``."""
    return ".".join(str(part) for part in path)


def is_tensor(value: object) -> bool:
    """Say whether this is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Say whether this is an array or a number of numpy; its words (``numpy.str_``) are words."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not isinstance(value, (str, bytes))
    )


class Apart:
    """Collects the leaves of one save; a tensor that is met again (tied weights) is the same leaf.

    ``places`` are the paths at which each leaf was met, ``arrays`` the paths of what was numpy's. ``others`` are
    (kind, path) of what is written in another form: ``bytes`` without a byte and ``int`` of many bits, which torch's
    reader without pickles refuses, as words; ``complex128`` as pairs of F64 where the file is one of safetensors.
    """

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.live: list[Any] = []  # the tensors and arrays themselves, in the order of the leaves
        self.places: list[list[Path]] = []
        self.arrays: list[list[Any]] = []
        self.others: list[tuple[str, list[Any]]] = []
        self._known: dict[object, int] = {}

    def tree(self, value: Any, path: Path) -> Any:
        """Return ``value`` with a Ref for each tensor; CheckpointError for what could be read back by a pickle only."""
        if type(value) not in SIMPLE:
            if is_tensor(value):
                return self._tensor(value, path)
            if is_array(value):
                return self._array(value, path)
        if len(path) > DEEPEST:
            raise CheckpointError(
                f"{words(path[:4])}... goes down more than {DEEPEST} levels of dicts and lists, or holds itself: "
                f"no file can hold that; keep it flatter"
            )
        if isinstance(value, dict):
            keys = [_key(key, path) for key in value]
            return {
                key: self.tree(one, (*path, key if type(key) is str or _is_sure(key) else Odd(key, at)))
                for at, (key, one) in enumerate(zip(keys, value.values(), strict=True))
            }
        if isinstance(value, (list, tuple)):
            found = [self.tree(one, (*path, at)) for at, one in enumerate(value)]
            return found if isinstance(value, list) else tuple(found)
        value = _plain(value, path)
        if type(value) is bytes and not value:
            self.others.append(("bytes", _noted(path)))
            return ""
        if type(value) is int and value.bit_length() > WIDEST:
            self.others.append(("int", _noted(path)))
            return hex(value)
        return value

    def _tensor(self, value: Any, path: Path) -> Ref:
        torch = sys.modules["torch"]
        if trouble := _unfit(value, torch):
            raise CheckpointError(f"{words(path)} is {trouble}")
        known = value.dtype
        dtype = _seen.get(known) or _seen.setdefault(known, _name(str(known).removeprefix("torch."), TORCH_NAMES, path))
        shape = tuple(value.shape)
        leaf = Leaf(kind="torch", dtype=dtype, shape=shape, size=value.nbytes)
        key = None
        if type(value) in (torch.Tensor, torch.nn.Parameter) and leaf.size and (place := value.data_ptr()):
            key = place, known, shape, value.stride(), value.device, value.is_conj(), value.is_neg()
        return self._keep(value.detach() if value.requires_grad else value, leaf, path, key)

    def _array(self, value: Any, path: Path) -> Ref:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.ma.MaskedArray):
            raise CheckpointError(f"{words(path)} is a masked array: keep its data and its mask as two arrays")
        array = numpy.asarray(value)
        dtype = _name(array.dtype.newbyteorder("=").name, NUMPY_NAMES, path)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        self.arrays.append(_noted(path))
        shape = tuple(array.shape)
        if dtype == "C128" and "torch" not in sys.modules:
            self.others.append(("complex128", _noted(path)))
            dtype, shape = "F64", (*shape, 2)
            array = numpy.ascontiguousarray(array).view(numpy.float64).reshape(shape)
        return self._keep(array, Leaf(kind="numpy", dtype=dtype, shape=shape, size=array.nbytes), path, None)

    def _keep(self, value: Any, leaf: Leaf, path: Path, key: object) -> Ref:
        at = len(self.leaves) if key is None else self._known.setdefault(key, len(self.leaves))
        if at < len(self.leaves):
            self.places[at].append(path)
        else:
            self.leaves.append(leaf)
            self.live.append(value)
            self.places.append([path])
        return Ref(at)


def _unfit(value: Any, torch: Any) -> str | None:
    """Say what a tensor is whose numbers cannot be had as they are, and what to do; None for any other."""
    if type(value) is not torch.Tensor and torch.nn.parameter.is_lazy(value):
        return "a lazy parameter that has no shape yet: send one batch through the model before the first step"
    if value.is_meta:
        return "on the meta device, where no numbers are: give it memory first (to_empty, then its values)"
    kind = type(value).__name__
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or kind == "DTensor":
        what = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        return f"a tensor of a kind that is not saved yet ({kind}, {what}); give a dense copy of it"
    return None


_seen: dict[Any, str] = {}
"""Names of torch's dtypes that were met: to make words of one takes longer than all else that is asked of a tensor."""


def _name(dtype: str, names: dict[str, str], path: Path) -> str:
    found = (_NAMED if names is TORCH_NAMES else _NAMED_NUMPY).get(dtype)
    if found is None:
        raise CheckpointError(f"{words(path)} has the dtype {dtype}, which plain files cannot hold; convert it first")
    return found


_NAMED = {known: name for name, known in TORCH_NAMES.items()}
_NAMED_NUMPY = {known: name for name, known in NUMPY_NAMES.items()}


def _key(key: Any, path: Path) -> Any:
    """Return a key as a plain value that is equal to it; CheckpointError for one that no file would give back."""
    if type(key) is str:
        return key
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(key, (numpy.number, numpy.bool_)):
        key = key.item()
    if isinstance(key, (str, int, float, tuple)) or key is None:
        plain = _plain(key, (*path, "(a key)"))
        if _returns(plain):
            return plain
        raise CheckpointError(
            f"{words(path)} has a key that plain files cannot hold: no bytes, or an int of more than {WIDEST} bits"
        )
    raise _strange(key, (*path, "(a key)"))


def _returns(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_returns, key))
    return not (type(key) is bytes and not key) and not (type(key) is int and key.bit_length() > WIDEST)


def _is_sure(key: Any) -> bool:
    """Say whether a key is the same after it was written as JSON and read again; a tuple becomes a list there."""
    if type(key) is tuple:
        return all(map(_is_sure, key))
    if type(key) is int:
        return key.bit_length() < 64
    return type(key) in (str, bool, type(None)) or (type(key) is float and math.isfinite(key))


def _noted(path: Path) -> list[Any]:
    """Return a path as a manifest holds it."""
    return [{"at": part.at} if isinstance(part, Odd) else part for part in path]


def _plain(value: Any, path: Path = ()) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, tuple):
        return tuple(_plain(one, path) for one in value)
    if isinstance(value, str):  # an enum or another class of its own: its plain value, which it is equal to
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    raise _strange(value, path)


def class_of(value: object) -> str:
    """Return the class of an object, as module and name."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _strange(value: object, path: Path) -> CheckpointError:
    return CheckpointError(
        f"{words(path)} holds a {class_of(value)}, which could be read back only by running code from the file; "
        f"keep numbers, words, lists, dicts and tensors in a state_dict, or give the object a state_dict() of its own"
    )


def buffer(live: Any) -> memoryview:
    """Return the bytes of a live tensor or array, without a copy if it is C-contiguous and in main memory."""
    if is_tensor(live):
        torch = sys.modules["torch"]
        flat = live.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        if flat.stride() != (1,):  # of a single number the stride can be anything, and view() wants 1
            flat = flat.as_strided((flat.numel(),), (1,))
        return memoryview(flat.view(torch.uint8).numpy()).cast("B") if flat.numel() else memoryview(b"")
    numpy = sys.modules["numpy"]
    array = numpy.ascontiguousarray(live)
    return memoryview(array.reshape(-1).view(numpy.uint8)).cast("B") if array.size else memoryview(b"")


def together(tree: Any, make: Callable[[int], Any]) -> Any:
    """Return the tree with ``make(leaf)`` in the place of each Ref."""
    if isinstance(tree, Ref):
        return make(tree.leaf)
    if isinstance(tree, dict):
        return {key: together(one, make) for key, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        found = [together(one, make) for one in tree]
        return found if isinstance(tree, list) else tuple(found)
    return tree


def as_torch(leaf: Leaf, data: memoryview | bytearray) -> Any:
    """Return a tensor over the bytes of a leaf; each has a storage of its own, so that each is a record of its own."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[leaf.dtype])
    if not leaf.size:
        return torch.empty(leaf.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(leaf.shape)


def as_numpy(leaf: Leaf, data: memoryview | bytearray | bytes) -> Any:
    """Return an array over the bytes of a leaf."""
    import numpy as np

    return np.frombuffer(data, dtype=NUMPY_NAMES[leaf.dtype]).reshape(leaf.shape)


def layout(state: Any) -> dict[str, Any] | None:
    """Return the versions that modules keep beside their state_dict, by the module's name; None if there are none."""
    found = getattr(state, "_metadata", None)
    return found if isinstance(found, dict) else None


def with_layout(state: Any, versions: dict[str, Any] | None) -> Any:
    """Return a state_dict with such versions beside it; as it is, if there are none."""
    if versions is not None:
        state._metadata = versions  # noqa: SLF001 - the name that torch has given it
    return state


def owned(tree: Any, known: dict[int, Any] | None = None) -> Any:
    """Return a tree with tensors that have memory of their own: none of a file that is mapped. Tied ones stay tied."""
    copies = {} if known is None else known
    if is_tensor(tree):
        if id(tree) not in copies:
            copies[id(tree)] = tree.clone()
        return copies[id(tree)]
    if isinstance(tree, dict):
        made = type(tree)((key, owned(one, copies)) for key, one in tree.items())
        return with_layout(made, layout(tree))
    if isinstance(tree, (list, tuple)):
        found = [owned(one, copies) for one in tree]
        return found if isinstance(tree, list) else tuple(found)
    return tree


def at_path(tree: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> None:
    """Put ``change(value)`` in the place of the value at a path of a manifest; tuples on the way are made anew."""
    parents, keys = [tree], []
    for part in path:
        keys.append(_there(parents[-1], part))
        parents.append(parents[-1][keys[-1]])
    value = change(parents.pop())
    for parent, key in zip(reversed(parents), reversed(keys), strict=True):
        if not isinstance(parent, tuple):
            parent[key] = value
            return
        value = (*parent[:key], value, *parent[key + 1 :])


def _there(parent: Any, part: Any) -> Any:
    """Return a key as it was before it was noted: JSON has no tuples, and no infinity."""
    if isinstance(part, dict):
        return [*parent][part["at"]]
    return tuple(_there(parent, one) for one in part) if isinstance(part, list) else part
