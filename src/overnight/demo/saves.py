"""The demo's checkpoints: written so that a kill at any moment leaves the old one or the new one, never half of one.

Only the way to the disk and back lives here. A checkpoint is one ``.npz`` without pickles: reading it runs no code.
Order: temporary file in the same folder, flush, fsync, rename, fsync the folder, and only then remove the oldest.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from overnight.demo.model import Arrays

NAME = re.compile(r"checkpoint-(\d{6,})\.npz")
KEEP = 3
PARTS = ("weights", "m", "v")


class CheckpointError(Exception):
    """A checkpoint file is not whole or does not fit this model; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class State:
    """All that decides the next step: ``step`` is the last one done; ``rng`` the dropout generator's state."""

    step: int
    weights: Arrays
    m: Arrays
    v: Arrays
    rng: dict[str, Any]


def path_of(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return folder / f"checkpoint-{step:06d}.npz"


def steps_saved(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in ``folder``, newest first, by name: file times may be anything."""
    if not folder.is_dir():
        return []
    return sorted((int(match[1]) for entry in folder.iterdir() if (match := NAME.fullmatch(entry.name))), reverse=True)


def save(folder: Path, state: State) -> Path:
    """Publish ``state`` and keep the newest ``KEEP``; OSError if the disk refuses (what was there before stays)."""
    folder.mkdir(parents=True, exist_ok=True)
    target = path_of(folder, state.step)
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    arrays: dict[str, Any] = {f"{part}/{name}": array for part in PARTS for name, array in getattr(state, part).items()}
    try:
        with temporary.open("wb") as stream:
            # PCG64 counts in 128 bits, wider than any array's numbers: its state travels as JSON.
            np.savez(stream, step=np.int64(state.step), rng=np.array(json.dumps(state.rng)), **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    for step in steps_saved(folder)[KEEP:]:
        path_of(folder, step).unlink(missing_ok=True)
    return target


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path) -> State:
    """Read one checkpoint back, every byte of it; CheckpointError if it is cut short, damaged or not one of ours."""
    try:
        # Opened here: numpy itself leaves the file open when it turns out not to be a zip.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            read = {name: stored[name] for name in stored.files}  # zip checks each member's CRC here
        parts: dict[str, Arrays] = {part: {} for part in PARTS}
        for name, array in read.items():
            part, _, key = name.partition("/")
            if key:
                parts[part][key] = array
        return State(step=int(read["step"]), rng=json.loads(str(read["rng"])), **parts)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{path.name} cannot be used: {error}") from error


def candidates(folder: Path, like: Arrays) -> Iterator[State | CheckpointError]:
    """Yield each checkpoint, newest first: its state, or the reason why it is passed over."""
    shapes = {name: (array.shape, array.dtype) for name, array in like.items()}
    for step in steps_saved(folder):
        path = path_of(folder, step)
        try:
            state = load(path)
        except CheckpointError as error:
            yield error
            continue
        if any({k: (a.shape, a.dtype) for k, a in getattr(state, part).items()} != shapes for part in PARTS):
            yield CheckpointError(f"{path.name} cannot be used: it holds the weights of another model")
        else:
            yield state


def sweep(folder: Path) -> None:
    """Remove what saves that were killed half-way have left; only to be called while nothing else writes there."""
    for left in folder.glob(".checkpoint-*.npz.*.tmp"):
        with suppress(OSError):
            left.unlink()
