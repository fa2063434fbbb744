"""Checkpoints that survive anything: saved durably and beside the training, resumed exactly, found again when damaged.

    from overnight.checkpoint import Checkpointer

    with Checkpointer("checkpoints", every=50, keep_last=3, model=model, optimizer=optimizer, loader=loader) as ckpt:
        for step in ckpt.steps(1000):
            loss = train_step(step, next(ckpt.loader))
            ckpt.report(step, loss=loss, tokens=32_768)

Importing it costs the standard library only; torch, numpy and safetensors are used if the training has loaded them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overnight.checkpoint.checkpointer import Checkpointer
    from overnight.checkpoint.errors import (
        CheckpointError,
        DamagedError,
        LockedError,
        SaveError,
        StoppedError,
        UsageError,
    )
    from overnight.checkpoint.reading import Checkpoint, load, newest

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "DamagedError",
    "LockedError",
    "SaveError",
    "StoppedError",
    "UsageError",
    "load",
    "newest",
]


def __getattr__(name: str) -> object:
    """Load what is asked for: whoever needs one part of the package need not pay for all of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from overnight.checkpoint import checkpointer, errors, reading

    room = checkpointer if name == "Checkpointer" else reading if hasattr(reading, name) else errors
    return getattr(room, name)
