"""A small training that uses ``overnight.checkpoint``, for the proof that its resume is exact, and of what is not.

``python library.py`` saves into ``./ckpt`` and goes on by itself. ``--forget PART`` loses a part at the resume, as a
script would that handed it over too late; ``--rng-late`` draws a random number after the resume and before the first
step; ``--grown`` has a layer that no checkpoint has, and ``--frozen`` one that is never trained.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from overnight.checkpoint import Checkpointer, checkpointer, restoring
from overnight.checkpoint.loader import LoaderPosition

SAMPLES = 46


class Numbered(Dataset[Any]):
    """Samples that know their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return torch.sin(torch.arange(8) * (at + 1.0)), at


def forget(name: str | None) -> None:
    """Make the library lose one part at the resume."""
    if name == "rng":
        checkpointer.rng.restore = lambda *_: []  # type: ignore[assignment]
    elif name == "loader":
        LoaderPosition.restore = lambda *_: None  # type: ignore[method-assign,assignment]
    elif name is not None:
        whole = restoring.restore
        restoring.restore = lambda one, value, saved, **how: value if one == name else whole(one, value, saved, **how)


def parts(o: argparse.Namespace) -> dict[str, Any]:
    """Return what is handed over, made from the same seed in each start."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    if o.frozen:
        model.add_module("vis", nn.Linear(3, 3).requires_grad_(requires_grad=False))
    if o.grown:
        model.add_module("grown", nn.Linear(1, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200),
        "ema": torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=True),
        "loader": DataLoader(Numbered(), batch_size=4, shuffle=True),
    }


def main() -> None:
    """Train, as far as it is told to."""
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--every", type=int, default=20)
    p.add_argument("--forget", choices=["optimizer", "scheduler", "ema", "loader", "rng"])
    for flag in ("rng-late", "lr-double", "frozen", "grown"):
        p.add_argument(f"--{flag}", action="store_true")
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    forget(o.forget)
    train(o, parts(o))


def train(o: argparse.Namespace, made: dict[str, Any]) -> None:
    """Go through the steps."""
    model, optimizer, scheduler = made["model"], made["optimizer"], made["scheduler"]
    layers = model[:5]
    began = False
    with Checkpointer("ckpt", every=o.every, keep_last=3, **made) as ckpt:
        for step in ckpt.steps(o.steps):
            x, at = next(ckpt.loader)
            if not began and step > 1:
                torch.rand(1 if o.rng_late else 0)
                for _ in range(step - 1 if o.lr_double else 0):
                    scheduler.step()
            began = True
            lr = optimizer.param_groups[0]["lr"]
            loss = ((layers(x + 0.01 * torch.randn_like(x)) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            made["ema"].update_parameters(model)
            ids = sum(one * (SAMPLES + 1) ** place for place, one in enumerate(at.tolist()))
            ckpt.report(step, loss=loss, lr=lr, sample_ids=ids, tokens=64)


if __name__ == "__main__":
    main()
