"""Lists the tensors in files of weights by their headers: safetensors, files of torch.save, and lists of several files.

No number is loaded and nothing is unpickled. Only of tables of words some bytes are read, to tell whether two of them
are the same one stored twice. What a tensor is for is asked elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from overnight.inspector import tensors, torchzip, zips
from overnight.inspector.findings import UNFORESEEN, Damage, beyond
from overnight.inspector.flattening import named
from overnight.inspector.folders import read_object
from overnight.inspector.objects import SIZES, Array, Tensor
from overnight.inspector.scanning import dense_strides
from overnight.inspector.source import Source, Window
from overnight.inspector.symbols import Unreadable
from overnight.modelsize.gathering import Stored
from overnight.modelsize.tensornames import EMBEDDING, HEAD, bare

INDEXES: Final = (".safetensors.index.json", ".bin.index.json")
MODELS: Final = tuple("model state_dict model_state_dict model_state module net network params weights".split())
"""What programs call the weights on the first level of a checkpoint, beside its optimizer."""

_WHOLE: Final = 8 << 20
_PLACES: Final = 128
_PIECE: Final = 32 << 10


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in files of weights: the tensors, plain values and groups beside them, and what is to be said."""

    stored: tuple[Stored, ...]
    beside: dict[str, Any]
    notes: tuple[str, ...] = ()


def listed(path: Path) -> Listing:
    """Return the tensors of a file, or of all files that an index names.

    Damage: it is no file of weights, is not whole, or is of a form that is not read; the clause names the file.
    """
    try:
        if path.name.endswith(INDEXES):
            return _sharded(path)
        with Source(path) as source:
            window = source.whole()
            found = _torch(window) if zips.is_zip(window) else _safetensors(window)
            source.unchanged()
            return found
    except Unreadable as error:
        raise Damage(f"{path.name} cannot be read: {error}", intact=None) from None
    except UNFORESEEN as error:
        raise beyond(path.name, error) from None


def _sharded(path: Path) -> Listing:
    """List the tensors of all files of an index."""
    where = read_object(path).get("weight_map")
    if not isinstance(where, dict) or not where or not all(type(one) is str for one in where.values()):
        raise Damage(f"{path.name} does not say where tensors lie")
    files = sorted(set(where.values()))
    if len(files) > tensors.MOST_FILES or any(os.path.basename(one) != one or one in ("", ".", "..") for one in files):
        raise Damage(f"{path.name} names files outside of its folder, or too many")
    found: dict[str, Stored] = {}
    for name in files:
        for one in listed(path.parent / name).stored:
            found.setdefault(one.name, one)
    missing = [name for name in where if name not in found]
    if missing:
        raise Damage(f"{path.name}: {missing[0][:80]} is not in {where[missing[0]]}, where the index has it")
    return Listing(stored=tuple(found.values()), beside={})


def _safetensors(window: Window) -> Listing:
    size = int.from_bytes(window.read(0, 8), "little")
    if not window.name.endswith(".safetensors") and not 1 < size <= window.size - 8:
        old = window.read(0, len(torchzip.LEGACY)) == torchzip.LEGACY
        kind = "has the form of torch before 1.6" if old else "is no file of weights" if window.size else "is empty"
        raise Damage(f"{window.name} {kind}", intact=None)
    found, _ = tensors.opened(window)
    stored = (
        Stored(name=name, dtype=dtype, shape=shape, same=_print(data) if _is_table(name, shape) else None)
        for name, (dtype, shape, data) in found.items()
    )
    return Listing(stored=tuple(stored), beside={})


def _torch(window: Window) -> Listing:
    """List the tensors of a file of torch.save: those of its model, where it says which part is the model."""
    opened = torchzip.Opened(window)
    if not opened.known:
        raise Damage(f"{window.name} is a torch script, or too large to be read", intact=None)
    tree = opened.tree
    parts: Mapping[Any, Any] = tree if isinstance(tree, dict) else {}
    model = next((key for key in MODELS if isinstance(parts.get(key), dict) and _holds_tensors(parts[key])), None)
    stored = []
    for name, value in named(tree if model is None else parts[model], "", window.name):
        if isinstance(value, Tensor):
            stored.append(
                Stored(name=name, dtype=value.dtype, shape=value.shape, same=_identity(opened, window, name, value))
            )
        elif isinstance(value, Array):
            stored.append(Stored(name=name, dtype=value.dtype, shape=value.shape))
    beside = {key: value for key, value in parts.items() if type(key) is str and isinstance(value, dict)}
    others = [key[:40] for key, value in beside.items() if key != model and _holds_tensors(value)]
    said = f"only {model} of it is counted; {', '.join(others[:6])} left out" if model and others else None
    return Listing(stored=tuple(stored), beside=beside, notes=(said,) if said else ())


def _holds_tensors(part: Any) -> bool:
    return any(isinstance(value, (Tensor, Array)) for _, value in named(part, "", "it"))


def _identity(opened: torchzip.Opened, window: Window, name: str, tensor: Tensor) -> Hashable:
    """What is equal for two tensors that share their numbers, or are tables of words with the same numbers."""
    size = SIZES.get(tensor.dtype or "")
    if size and _is_table(name, tensor.shape) and tensor.stride == dense_strides(tensor.shape):
        data = opened.bytes_of(tensor.storage).part(tensor.offset * size, tensor.numel * size, window.name)
        found = _print(data)
        if found is not None:
            return found
    return window.name, tensor.storage.key, tensor.offset, tensor.stride


def _is_table(name: str, shape: tuple[int, ...]) -> bool:
    """Say whether a tensor may be a table of words, or the output head that is tied to one."""
    plain = bare(name)
    return len(shape) == 2 and bool(EMBEDDING.search(plain) or HEAD.search(plain))


def _print(data: Window) -> bytes | None:
    """Return a digest of a tensor's bytes, of a large one of many places in it; None where all of them are zeros."""
    digest = hashlib.blake2b(data.size.to_bytes(8, "little"))
    zeros = True
    step = _PIECE if data.size <= _WHOLE else data.size // _PLACES
    for at in range(0, data.size, step):
        piece = data.read(at, _PIECE)
        zeros = zeros and not piece.strip(b"\0")
        digest.update(piece)
    return None if zeros else digest.digest()
