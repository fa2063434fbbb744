"""Checkpoints found and read again, also by programs that only want to look; every byte is verified before its use."""

from __future__ import annotations

import json
import pickle  # for the name of an error only: nothing is unpickled
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overnight.checkpoint import leaves, listing, lock, plain, tensorfile
from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.errors import CheckpointError, DamagedError
from overnight.checkpoint.listing import Entry
from overnight.checkpoint.manifest import Manifest
from overnight.checkpoint.parts import States

READING = (ValueError, KeyError, RuntimeError, OSError, TypeError, IndexError, EOFError, pickle.UnpicklingError)
"""What readers raise for files that they do not know."""

OURS = ("rng", "loader")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read: where, its manifest, and the state of each part by its name."""

    path: Path
    manifest: Manifest
    parts: dict[str, Any] = field(repr=False)

    @property
    def step(self) -> int:
        """The last step that is in it."""
        return self.manifest.step


def newest(folder: Path | str) -> Path | None:
    """Return the checkpoint to go on from: the newest of the folder's run that is whole and healthy, None if none is.

    All of its bytes are read and compared with their digests.
    """
    found = listing.entries(Path(folder))
    run = listing.current_run(found, lock.signed_run(Path(folder)))
    if run is None:
        return None
    return next((entry.path for entry in listing.of_run(found, run.run) if trouble(entry) is None), None)


def trouble(entry: Entry) -> str | None:
    """Return in a few words why one should not go on from this checkpoint, None if all is well; reads all of it."""
    if entry.manifest is None or entry.problem is not None:
        return entry.problem or "it has no manifest"
    if not entry.manifest.finite:
        return "it holds NaN or infinity"
    if not entry.manifest.healthy:
        return "it was saved when the loss was no number"
    try:
        manifests.check_content(entry.path, entry.manifest)
    except DamagedError as error:
        return str(error)
    return None


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint, or the newest good one of a folder, after verifying every byte; nothing in it is executed.

    Tensors are torch's on the CPU (or numpy's, where they were). Raises CheckpointError, DamagedError among them.
    """
    place = Path(path)
    if not (place / manifests.NAME).exists():
        found = newest(place)
        if found is None:
            raise CheckpointError(f"{place} holds no checkpoint that can be used; `overnight checkpoints` says why")
        place = found
    known = manifests.read(place)
    manifests.check_content(place, known)
    return Checkpoint(path=place, manifest=known, parts=read_parts(place, known))


def read_parts(folder: Path, known: Manifest) -> States:
    """Return the state of each part. The files were verified before.

    Tensors lie in the mapped files, but those of the random numbers and of the loader: ``leaves.owned`` copies others.
    """
    parts = States()
    try:
        for name in known.files:
            parts.update(_read(folder / name, known))
        for name, about in known.parts.items():
            parts[name] = _as_it_was(parts[name], about)
    except READING as error:
        raise CheckpointError(
            f"{folder} is as it was written, but is not read by what is installed: {error}"
        ) from error
    parts.update({name: leaves.owned(parts[name]) for name in OURS if name in parts})
    parts.kinds = {name: about["class"] for name, about in known.parts.items() if "class" in about}
    return parts


def _read(path: Path, known: Manifest) -> Iterator[tuple[str, Any]]:
    name = path.name
    inside = [part for part, about in known.parts.items() if about["file"] == name]
    arrays = known.arrays.get(name, [])
    if name.endswith(".pt"):
        yield from _read_torch(path, inside, arrays)
    elif name.endswith(".json"):
        stored, _ = tensorfile.read(path.with_suffix(".safetensors")) if arrays else ({}, {})
        tree = plain.decode(json.loads(path.read_bytes()), lambda number: _numpy(*stored[str(number)]))
        yield from ((part, tree[part]) for part in inside)
    else:
        for part in inside:  # one; the arrays of a .json belong to no part
            keys = known.parts[part].get("keys")
            yield part, _flat(path, arrays, keys if isinstance(keys, list) else [])


def _read_torch(path: Path, inside: list[str], arrays: list[list[Any]]) -> Iterator[tuple[str, Any]]:
    import torch

    tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for place in arrays:
        leaves.at_path(tree, place, lambda tensor: _scalar(tensor.numpy().copy()))
    yield from ((part, tree[part]) for part in inside)


def _flat(path: Path, arrays: list[list[Any]], keys: list[str]) -> dict[str, Any]:
    """Return named tensors in the order in which they were saved: in the file they lie by size."""
    stored, metadata = tensorfile.read(path)
    numpys = {place[-1] for place in arrays}
    found = {name: _numpy(*held) if name in numpys else _torch(*held) for name, held in stored.items()}
    found |= {name: found[kept] for name, kept in metadata.items() if kept in found}
    return {name: found[name] for name in dict.fromkeys((*keys, *found)) if name in found}


def _as_it_was(state: Any, about: dict[str, Any]) -> Any:
    """Return a part with what was written in another form as it was, and with the versions of its modules."""
    whole = [state]
    for what, path in about.get("others", ()):
        leaves.at_path(whole, [0, *path], BACK[what])
    (state,) = whole
    if "layout" in about and isinstance(state, dict):
        versions = {name: dict(version) for version, names in about["layout"] for name in names}
        state = leaves.with_layout(OrderedDict(state), versions)
    return state


def _complex(array: Any) -> Any:
    return _scalar(array.view("complex128")[..., 0])


BACK: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda _: b"",
    "int": lambda text: int(text, 16),
    "complex128": _complex,
}
"""What makes of a value, as it is written, what it was; by the words of a manifest."""


def _torch(leaf: Any, data: memoryview) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return leaves.as_torch(leaf, data)


def _numpy(leaf: Any, data: memoryview) -> Any:
    return _scalar(leaves.as_numpy(leaf, data).copy())


def _scalar(array: Any) -> Any:
    """Return an array without dimensions as the scalar that it was, or at least works as."""
    return array[()] if not array.shape else array
