"""A small training in torch, of the kind that people write: dropout, batch norm, AdamW, a schedule, an EMA.

``python train.py --steps 200`` prints ``step 101 loss 1.2345678 lr 0.00123 grad_norm 0.4321000`` and saves
``./ckpt/step-20.pt`` and so on; ``--resume`` goes on. What is common to all such scripts, and every fault, is in
``loop.py``.
"""

from __future__ import annotations

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import torch
from loop import SAMPLES, main
from torch import nn


class Torch:
    """Model, optimizer, schedule and average, made from the same seed in each start."""

    def __init__(self, o: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(mode=True)
        torch.manual_seed(o.seed)
        self.x = torch.randn(SAMPLES, 8)
        self.y = self.x.sum(1, keepdim=True).sin() + 0.3 * torch.randn(SAMPLES, 1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = self._schedule(o)
        self.ema = copy.deepcopy(self.model.state_dict())

    def _schedule(self, o: argparse.Namespace) -> torch.optim.lr_scheduler.LRScheduler:
        if o.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, o.horizon)
        cosine = lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / o.horizon)))  # noqa: E731 - as scripts do
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 10) * cosine(step))

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, rows: list[int], noise: float) -> tuple[float, float]:
        loss = nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows])
        self.optimizer.zero_grad()
        loss.backward()
        for one in self.model.parameters():
            assert one.grad is not None
            one.grad *= 1.0 + noise
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.scheduler.step()
        for name, value in self.model.state_dict().items():
            if value.dtype.is_floating_point and "running" not in name:
                self.ema[name].lerp_(value, 0.05)
        return loss.item(), norm.item()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "ema": self.ema,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }

    def load(self, parts: dict[str, Any], faults: set[str]) -> None:
        kept = self.model.state_dict()
        if "no-weights" not in faults:
            states = dict(parts["model"]) if "model" in parts else dict(kept)
            if "no-buffers" in faults:
                states |= {name: value for name, value in kept.items() if "running" in name}
            self.model.load_state_dict(states)
        if "ema" in parts and "no-ema" not in faults:
            self.ema = parts["ema"]
        else:
            self.ema = copy.deepcopy(self.model.state_dict())
        if "optimizer" in parts and "no-optimizer" not in faults:
            self.optimizer.load_state_dict(parts["optimizer"])
        if "scheduler" in parts and "no-scheduler" not in faults:
            self._load_scheduler(parts["scheduler"], twice="lr-double" in faults)
        if "rng" in parts and "no-rng" not in faults:
            torch.set_rng_state(parts["rng"])

    def _load_scheduler(self, state: dict[str, Any], *, twice: bool) -> None:
        self.scheduler.load_state_dict(state)
        for group, lr in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = lr  # of an optimizer that was not loaded
        for _ in range(state["last_epoch"] if twice else 0):
            self.scheduler.step()

    def scale(self, factor: float) -> None:
        with torch.no_grad():
            for one in self.model.parameters():
                one.mul_(factor)

    def draw(self) -> None:
        torch.rand(1)

    def write(self, parts: dict[str, Any], path: Path) -> None:
        torch.save(parts, path)

    def read(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(path, weights_only=True)
        return found


if __name__ == "__main__":
    main(".pt", Torch)
