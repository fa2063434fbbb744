"""Checkpoints of small states for tests, written by the library itself in this process; and what is chosen of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overnight.checkpoint import leaves, listing, resuming, writing
from overnight.checkpoint.jobs import FilePlan, Job, Keep, Leaf, Outcome, Ref
from overnight.checkpoint.manifest import Manifest

RUN = "0123456789abcdef"
ALL = Keep()


def save(
    folder: Path,
    step: int,
    *,
    keep: Keep = ALL,
    torch: bool = False,
    loss: float | None = None,
    numbers: int = 300,
    read_back: bool = False,
    **about: Any,
) -> Outcome:
    """Save a state that holds its step everywhere; ``about`` goes into the manifest (run, number, generation, ...)."""
    folder.mkdir(exist_ok=True)
    weights, moments = np.full((numbers,), float(step)), np.full((numbers, 2), step, dtype=np.float32)
    kind = "torch" if torch else "numpy"
    held = [
        Leaf(kind=kind, dtype="F64", shape=weights.shape, size=weights.nbytes),
        Leaf(kind=kind, dtype="F32", shape=moments.shape, size=moments.nbytes),
    ]
    state = {"optimizer": {"m": Ref(1), "t": step, "words": ["cosine"] * 20}}
    files = [
        FilePlan(name="model.safetensors", form="safetensors", tree={"w": Ref(0)}),
        FilePlan(name="train_state.pt", form="torch", tree=state)
        if torch
        else FilePlan(name="train_state.json", form="json", tree=state, arrays="train_state.safetensors"),
    ]
    parts = {"model": {"file": files[0].name, "keys": 1}, "optimizer": {"file": files[1].name, "keys": 3}}
    arrays = {} if torch else {files[0].name: [["w"]], files[1].name: [["optimizer", "m"]]}
    made = {
        "step": step, "run": RUN, "reason": "interval", "parts": parts, "arrays": arrays,
        "metrics": {} if loss is None else {"loss": loss}, **about,
    }  # fmt: skip
    job = Job(
        folder=str(folder), step=step, manifest=made, files=tuple(files), leaves=tuple(held), keep=keep,
        read_back=read_back,
    )  # fmt: skip
    return writing.perform(job, [leaves.buffer(weights), leaves.buffer(moments)])


def saved(folder: Path, step: int, **more: Any) -> Path:
    """Save, and return where it lies."""
    outcome = save(folder, step, **more)
    assert outcome.error is None, outcome.error
    assert outcome.path is not None
    return Path(outcome.path)


def chosen(folder: Path, resume: Any = True) -> tuple[Path | None, list[str]]:
    """Return the checkpoint from which a training would go on, and what it would say."""
    said: list[str] = []
    start = resuming.choose(folder, resume=resume, say=said.append, new_run="f" * 16)
    return (None if start.entry is None else start.entry.path), said


def names(folder: Path) -> list[str]:
    """Return what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def manifests(folder: Path) -> Mapping[str, Manifest]:
    """Return the manifests of all checkpoints whose files have their sizes, by name."""
    return {one.path.name: one.manifest for one in listing.entries(folder) if one.manifest and one.problem is None}
