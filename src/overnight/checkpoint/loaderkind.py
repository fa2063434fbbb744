"""What kind of loader a training has: whether it keeps its own place, has workers, and what of it cannot be exact.

Only questions about a loader are answered here; nothing is iterated, drawn or changed. Torch is used if it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

IN_ORDER = frozenset({
    "torch.utils.data.sampler.SequentialSampler",
    "torch.utils.data.distributed.DistributedSampler",
    "torch.utils.data.dataloader._InfiniteConstantSampler",
})  # fmt: skip
"""Samplers of torch that draw nothing, or the same for the same epoch."""


def is_data(loader: object) -> bool:
    """Say whether these are the batches themselves, which draw nothing."""
    return type(loader) in (list, tuple, range)


def is_torch_loader(loader: object) -> bool:
    """Say whether it is a DataLoader of torch, or one made from it as torchdata's."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def is_iterable_style(loader: Any) -> bool:
    """Say whether its dataset gives samples one after the other, and is not asked for them by index."""
    return is_torch_loader(loader) and isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset)


def workers(loader: Any) -> int:
    """Return in how many processes it fetches, 0 if it does so itself."""
    return int(loader.num_workers) if is_torch_loader(loader) else 0


def persistent(loader: Any) -> bool:
    """Say whether its workers live over epochs."""
    return bool(workers(loader) and loader.persistent_workers)


def _has_state(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def keeps_its_place(loader: Any) -> bool:
    """Say whether a loader's own state is all of its place.

    torchdata's loader skips through samplers that have no state, and those that draw may have drawn something else
    then: with such a sampler its batches are read again instead.
    """
    if not _has_state(loader):
        return False
    if not is_torch_loader(loader):
        return True
    batch_sampler = loader.batch_sampler
    plain = batch_sampler is None or type(batch_sampler).__module__.startswith("torchdata.")
    sampler = loader.sampler if plain else batch_sampler
    kind = type(sampler)
    known = kind.__module__.startswith("torchdata.") or f"{kind.__module__}.{kind.__qualname__}" in IN_ORDER
    return known or _has_state(sampler)


def dataset_is_followed(position: Mapping[str, Any]) -> bool:
    """Say whether torchdata holds a place of an iterable dataset or its iterator; otherwise it only counts batches.

    That count is doubled by its own way of coming back, so that a second resume would be wrong.
    """
    places, todo = [], [position]
    while todo:
        for key, value in todo.pop().items():
            if key in ("dataset_state", "dataset_iter_state"):
                places.append(value)
            elif isinstance(value, Mapping):
                todo.append(value)
    return not places or any(place is not None for place in places)


def may_remember(loader: Any, *, follows: bool) -> bool:
    """Say whether what a loader drew for earlier batches can matter for later ones, as a shuffle buffer does.

    With workers, a sampler is drawn from in advance. Without, a dataset asked by index gives one sample each.
    """
    if follows or is_data(loader):
        return False
    return not is_torch_loader(loader) or is_iterable_style(loader) or workers(loader) > 0


def of_workers(loader: Any, *, follows: bool, known: bool = False) -> str | None:
    """Return what will differ after a resume since workers draw random numbers of their own, None if nothing will.

    ``known``: the loader's place holds one of the dataset's iterators, though the dataset itself has none.
    """
    if not workers(loader) or (follows and _has_state(loader.dataset)):
        return None
    data = type(loader.dataset).__qualname__
    if persistent(loader):
        since = "after a resume" if follows else "after a resume from the end of the first epoch on"
        return (
            f"the loader's workers live over epochs (persistent_workers=True) and their random numbers are not saved: "
            f"if {data} draws any in them, what it draws {since} differs from a run without a stop; set "
            f"persistent_workers=False, or draw from a generator seeded by the sample's index and the epoch"
        )
    if not follows or (is_iterable_style(loader) and not known):
        return None  # its batches are read again, and its workers draw again what they drew
    return (
        f"the random numbers of the loader's workers are not saved: if {data} draws any in them, what it draws from a "
        f"resume within an epoch until that epoch's end differs from a run without a stop; give {data} state_dict "
        f"and load_state_dict that hold them, or draw from a generator seeded by the sample's index"
    )
