"""A state taken apart: its tensors and arrays on one side, the tree that held them on the other, and back.

Nothing is copied here: a leaf's bytes are those of the live tensor. torch and numpy are used if the training has loaded
them, and never loaded for its sake. Torch's dtypes and safetensors' names for them stand in one table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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

Path = tuple[Any, ...]


def words(path: Path) -> str:
    """Return where in a state something is, for a sentence: ``optimizer.state.0.exp_avg``."""
    return ".".join(str(part) for part in path)


def is_tensor(value: object) -> bool:
    """Say whether this is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Say whether this is an array or a scalar of numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


class Apart:
    """Collects the leaves of one save; a tensor that is met again (tied weights) is the same leaf."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.live: list[Any] = []  # the tensors and arrays themselves, in the order of the leaves
        self.arrays: list[list[Any]] = []  # paths of what was numpy's, to be handed back as such
        self._known: dict[object, int] = {}

    def tree(self, value: Any, path: Path) -> Any:
        """Return ``value`` with a Ref for each tensor; CheckpointError for what could be read back by a pickle only."""
        if is_tensor(value):
            return self._tensor(value, path)
        if is_array(value):
            return self._array(value, path)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, (str, int, float, bool, tuple)) and key is not None:
                    raise _strange(key, (*path, "(a key)"))
            return {_plain(key): self.tree(one, (*path, key)) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            found = [self.tree(one, (*path, at)) for at, one in enumerate(value)]
            return found if isinstance(value, list) else tuple(found)
        return _plain(value, path)

    def _tensor(self, value: Any, path: Path) -> Ref:
        torch = sys.modules["torch"]
        if value.layout is not torch.strided or value.is_quantized or type(value).__name__ == "DTensor":
            raise CheckpointError(f"{words(path)} is a tensor of a kind that is not saved yet ({type(value).__name__}, "
                                  f"{value.layout}); give a dense copy of it")  # fmt: skip
        dtype = _name(str(value.dtype).removeprefix("torch."), TORCH_NAMES, path)
        key = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        size = value.numel() * value.element_size()
        leaf = Leaf(kind="torch", dtype=dtype, shape=tuple(value.shape), size=size)
        return self._keep(value.detach(), leaf, key if size else None)

    def _array(self, value: Any, path: Path) -> Ref:
        numpy = sys.modules["numpy"]
        array = numpy.asarray(value)
        dtype = _name(array.dtype.newbyteorder("=").name, NUMPY_NAMES, path)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        self.arrays.append(list(path))
        leaf = Leaf(kind="numpy", dtype=dtype, shape=tuple(array.shape), size=array.nbytes)
        return self._keep(array, leaf, None)

    def _keep(self, value: Any, leaf: Leaf, key: object) -> Ref:
        if key is not None and key in self._known:
            return Ref(self._known[key])
        self.leaves.append(leaf)
        self.live.append(value)
        if key is not None:
            self._known[key] = len(self.leaves) - 1
        return Ref(len(self.leaves) - 1)


def _name(dtype: str, names: dict[str, str], path: Path) -> str:
    for name, known in names.items():
        if known == dtype:
            return name
    raise CheckpointError(f"{words(path)} has the dtype {dtype}, which plain files cannot hold; convert it first")


def _plain(value: Any, path: Path = ()) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(one, path) for one in value)
    if type(value) in PLAIN:
        return value
    made: Any
    for made in (bool, int, float, str, bytes):
        if isinstance(value, made):  # an enum or another class of its own: its plain value
            return made(value)
    raise _strange(value, path)


def _strange(value: object, path: Path) -> CheckpointError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return CheckpointError(
        f"{words(path)} holds a {kind}, which could be read back only by running code from the file; "
        f"keep numbers, words, lists, dicts and tensors in a state_dict, or give the object a state_dict() of its own"
    )


def buffer(live: Any) -> memoryview:
    """Return the bytes of a live tensor or array, without a copy if it is C-contiguous and in main memory."""
    if is_tensor(live):
        torch = sys.modules["torch"]
        flat = live.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
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


def at_path(tree: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> None:
    """Put ``change(value)`` in the place of the value at ``path``; parents that are tuples are made anew."""
    parents = [tree]
    for part in path[:-1]:
        parents.append(parents[-1][part])
    value = change(parents[-1][path[-1]])
    for parent, part in zip(reversed(parents), reversed(path), strict=True):
        if not isinstance(parent, tuple):
            parent[part] = value
            return
        value = (*parent[:part], value, *parent[part + 1 :])
