"""Counts of the model that a path leads to: a config.json, a folder of a model, a file of weights, an adapter.

A config says how a model is built, its weights how many numbers there are: where both lie side by side, the config's
counts lead and what the weights hold beyond them is said. Nothing is loaded, nothing unpickled, no name looked up on
any network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from overnight.errors import UsageError
from overnight.inspector.findings import Damage
from overnight.inspector.folders import Folder, read_object
from overnight.inspector.folders import listed as folder_of
from overnight.modelsize import Counts
from overnight.modelsize.adapters import with_adapters
from overnight.modelsize.config import ConfigError, from_config
from overnight.modelsize.gathering import Gathered, counts_of, gather
from overnight.modelsize.stored import INDEXES, listed

CONFIG: Final = "config.json"
ADAPTER: Final = "adapter_config.json"
_NEXT: Final = "give the model's config with --config, or --params"
_WEIGHTS: Final = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
                   "pytorch_model.bin")  # fmt: skip
_ENDS: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_BESIDE: Final = ("optimizer", "scheduler", "rng_state", "random_states", "training_args", "scaler", "adapter_model")
"""How files begin that lie beside weights and are none."""
_SHAPES: Final = ("model_args", "model_config", "config", "hyper_parameters")
_NANOGPT: Final = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")
_DEEPEST: Final = 3  # adapters of adapters


def from_path(
    path: Path,
    *,
    pad_to: int | None = None,
    linear_bias: bool | None = None,
    layernorm_bias: bool | None = None,
) -> Counts:
    """Return the counts of the model at ``path``; the options are those of ``from_config`` and for configs only.

    A ``config.json`` or other JSON with a model's fields; a folder with one, with weights, or both; ``.safetensors``,
    a file of torch.save, an index of several of them; a folder of an adapter whose base is there or known by name.
    UsageError: there is nothing to count, and the sentence says why and what to give instead.
    """
    options = {"pad_to": pad_to, "linear_bias": linear_bias, "layernorm_bias": layernorm_bias}
    return _Counting(options).of(path.expanduser(), 0)


class _Counting:
    """The options, and the way through folders and files."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def of(self, path: Path, depth: int) -> Counts:
        try:
            found = path.exists()
        except OSError as error:
            raise UsageError(f"{path} cannot be looked at: {error.strerror or error}; {_NEXT}") from None
        except ValueError:  # a zero byte
            raise UsageError(f"{str(path)!r} is no path; {_NEXT}") from None
        if not found:
            raise UsageError(f"{path} is not there; {_NEXT}")
        try:
            if path.is_dir():
                return self.folder(path, depth)
            if path.name == ADAPTER:
                return self.adapter(path.parent, depth)
            if path.name.endswith(".json") and not path.name.endswith(INDEXES):
                return self.config(path)
            return self.file(path, depth)
        except Damage as damage:
            raise UsageError(f"the weights in {path} cannot be counted: {damage.clause}; {_NEXT}") from None

    def folder(self, path: Path, depth: int) -> Counts:
        folder = folder_of(path)
        if folder.unreadable:
            raise UsageError(f"{path} {folder.unreadable}; {_NEXT}")
        if ADAPTER in folder.files and CONFIG not in folder.files:
            return self.adapter(path, depth)
        names = _weights_in(folder)
        if CONFIG in folder.files:
            return self.both(path, names)
        if not names:
            form = "torch.distributed.checkpoint, which is not counted" if ".metadata" in folder.files else None
            said = f"is a folder of {form}" if form else f"holds no {CONFIG} and no weights"
            raise UsageError(f"{path} {said}; {_NEXT}")
        if len(names) > 1:
            few = ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
            raise UsageError(f"{path} holds several files of weights ({few}); name one of them")
        return self.file(path / names[0], depth)

    def config(self, path: Path) -> Counts:
        try:
            value = read_object(path)
        except Damage as damage:
            raise UsageError(f"{path} is no config of a model: {damage.clause}; {_NEXT}") from None
        try:
            return from_config(value, source=str(path), **self.options)
        except ConfigError as error:
            said = re.sub(r"; give --params(?: instead)?$", "", str(error))
            raise UsageError(f"{path} does not say how large its model is: {said}; give --params") from None

    def both(self, path: Path, names: list[str]) -> Counts:
        """A folder with a config: its weights are compared with it, or lead where the config is of no known kind."""
        if not names:
            return self.config(path / CONFIG)
        weights = path / names[0]
        try:
            counts = self.config(path / CONFIG)
        except UsageError as error:
            found = self.file(weights, _DEEPEST)
            return msgspec.structs.replace(found, notes=(*found.notes, str(error)))
        if len(names) > 1:
            return _noted(counts, f"the weights beside it were not counted: {len(names):,} files hold some")
        try:
            gathered = gather(listed(weights).stored)
        except Damage as damage:
            return _noted(counts, f"the weights beside it were not counted: {damage.clause}")
        return compared(counts, gathered, weights.name)

    def file(self, path: Path, depth: int) -> Counts:
        listing = listed(path)
        found = gather(listing.stored)
        built = self.built(path, listing.beside)
        if built is not None:
            counts = compared(built, found, path.name)
        else:
            self.check(path, found)
            if found.adapters == found.total:
                return self.lone_adapter(path, found, depth)
            counts = counts_of(found, source=f"the header of {path}")
        return _noted(counts, *listing.notes)

    def built(self, path: Path, beside: Mapping[str, Any]) -> Counts | None:
        """What a checkpoint itself says of how its model is built, as nanoGPT's ``model_args`` do."""
        for name in _SHAPES:
            values = beside.get(name)
            if isinstance(values, dict) and all(type(values.get(one)) is int for one in _NANOGPT):
                plain = {key: values[key] for key in (*_NANOGPT, "bias") if key in values}
                try:
                    return from_config(plain, source=f"{name} in {path}", **self.options)
                except ConfigError:
                    return None
        return None

    @staticmethod
    def check(path: Path, found: Gathered) -> None:
        """Refuse what holds no number of parameters."""
        if found.packed is not None:
            said = f"several lie in one number ({found.packed[:80]})"
            raise UsageError(f"how many weights {path} holds cannot be told: {said}; {_NEXT}")
        if not found.total:
            raise UsageError(f"{path} holds no weights; {_NEXT}")

    def lone_adapter(self, path: Path, found: Gathered, depth: int) -> Counts:
        if (path.parent / ADAPTER).is_file():
            return self.adapter(path.parent, depth)
        raise UsageError(
            f"{path} holds an adapter of {found.total:,} weights and not its model; give that model with --config, and "
            f"--trainable-params {found.total}"
        )

    def adapter(self, path: Path, depth: int) -> Counts:
        """Return the counts of a frozen model and of the adapter that a folder holds beside it."""
        value = read_object(path / ADAPTER)
        base = value.get("base_model_name_or_path")
        names = [name for name in ("adapter_model.safetensors", "adapter_model.bin") if (path / name).is_file()]
        if not names:
            raise UsageError(f"{path} holds no weights of its adapter (adapter_model.safetensors); {_NEXT}")
        found = gather(listed(path / names[0]).stored)
        self.check(path / names[0], found)
        kind = value.get("peft_type")
        said = f"{found.total:,} trained weights of {kind if isinstance(kind, str) else 'an adapter'}"
        if isinstance(value.get("r"), int):
            said += f", rank {value['r']}"
        counts = self.base(path, base, found.total, depth) if isinstance(base, str) and base else None
        if counts is None:
            raise UsageError(
                f"{path} holds an adapter ({said}) and does not say of which model; give that model with --config, and "
                f"--trainable-params {found.total}"
            )
        return _noted(with_adapters(counts, found.total, source=f"{path} beside {counts.source}"), said)

    def base(self, path: Path, base: str, added: int, depth: int) -> Counts:
        """The model that an adapter is for: a folder, or a name that is known here."""
        from overnight.modelsize.named import from_name

        for place in (Path(base).expanduser(), path / base):
            if "\0" not in base and place.is_dir() and depth < _DEEPEST:
                return self.of(place, depth + 1)
        try:
            return from_name(base)
        except ValueError as error:
            raise UsageError(
                f"{path} holds an adapter of {added:,} weights for {base}, which is not known here ({error}); give "
                f"that model with --config, and --trainable-params {added}"
            ) from None


def _weights_in(folder: Folder) -> list[str]:
    """The file of weights in a folder, or the index of several; all of them where none is clearly the model's."""
    files = folder.files
    for name in _WEIGHTS:
        if name in files:
            return [name]
    indexes = sorted(name for name in files if name.endswith(INDEXES))
    if indexes:
        return indexes
    return sorted(name for name in files if name.endswith(_ENDS) and not name.startswith(_BESIDE))


def _noted(counts: Counts, *notes: str) -> Counts:
    return msgspec.structs.replace(counts, notes=(*counts.notes, *notes)) if notes else counts


def compared(counts: Counts, found: Gathered, name: str) -> Counts:
    """Return the counts of a config with what the weights beside it say of them: as many, more, fewer, adapters."""
    if found.packed is not None:
        return _noted(counts, f"the weights in {name} are packed: counted by the config")
    if found.adapters and found.total - found.adapters == counts.total:
        return _noted(with_adapters(counts, found.adapters), *found.notes)
    more = found.total - counts.total
    if not more:
        return _noted(counts, f"{name} holds as many", *found.notes)
    if counts.tied and more == counts.embedding:
        return _noted(counts, f"{name} holds the tied output head a second time: counted once", *found.notes)
    said = (
        f"{name} holds {found.total:,} parameters, {abs(more):,} {'more' if more > 0 else 'fewer'} than its config says"
    )
    return _noted(counts, said, *found.notes)
