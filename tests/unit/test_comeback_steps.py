"""The step of a save that was written over while nobody looked: only where its name says it."""

from __future__ import annotations

import pytest

from overnight.resumption.known import KnownSave
from overnight.supervision.comeback import named_step


@pytest.mark.parametrize(
    ("name", "known", "step"),
    [
        ("step100.pt", 100, 100),
        ("step100.pt", None, 100),
        ("epoch=1-step=20.ckpt", 20, 20),
        ("ckpt_100.pt", 100, 100),
        ("checkpoint-100", 100, 100),
        ("model_3.pt", 300, None),  # an epoch, or a place of a rotation
        ("epoch_3.pt", 3, None),
        ("model.safetensors", 20, None),
        ("run_7.pt", None, None),
    ],
)
def test_the_name_says_the_step_or_nobody_does(name: str, known: int | None, step: int | None) -> None:
    assert named_step(KnownSave(path=f"/ck/{name}", step=known, at=1.0, seconds=0.0)) == step
