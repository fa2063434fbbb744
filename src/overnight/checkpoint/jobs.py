"""The words between the trainer and whoever writes: what is to be saved, and what became of it.

Both cross a pipe between two processes of ours, so they hold plain values only: no tensor, no handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One tensor or array of a state: its bytes travel beside it, C-contiguous and little-endian.

    ``dtype`` is the name that safetensors gives it (F32, BF16, I64, BOOL, ...), ``kind`` says what it was in the
    training ("torch" or "numpy"), ``size`` its bytes; ``exempt`` from being finite are masks of -inf and the like.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    exempt: bool = False


@dataclass(frozen=True)
class Ref:
    """Stands in a tree where a tensor was: ``leaf`` is its number in the job's leaves."""

    leaf: int


@dataclass(frozen=True, kw_only=True)
class FilePlan:
    """One file of a checkpoint: its name, its form, and the tree that it holds.

    Forms: ``safetensors`` (the tree is a flat dict of names to Ref), ``torch`` (any tree, for ``torch.save``), ``json``
    (any tree; its tensors lie in the file ``arrays``, named by their numbers in order).
    """

    name: str
    form: str
    tree: Any
    arrays: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Keep:
    """What retention keeps: the last ``last`` (None: all), the ``best`` best by ``metric``, every ``every``-th step."""

    last: int | None = None
    best: int = 0
    metric: str | None = None
    mode: str = "min"
    every: int | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One save. ``manifest`` is all of the manifest but its files, and what only the writer finds out."""

    folder: str
    step: int
    manifest: Mapping[str, Any]
    files: tuple[FilePlan, ...]
    leaves: tuple[Leaf, ...]
    keep: Keep = field(default_factory=Keep)
    read_back: bool = False
    direct: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a job: ``error`` is None and ``path`` the folder made, or ``error`` says in a sentence why not.

    ``seconds`` from the start of the writing until it was durable (and read back, where asked); ``size`` in bytes;
    ``finite``: no tensor holds NaN or infinity; ``removed`` are the names of what retention removed; ``notes`` are
    sentences worth telling that did not make the save fail.
    """

    step: int
    path: str | None = None
    error: str | None = None
    size: int = 0
    seconds: float = 0.0
    finite: bool = True
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
