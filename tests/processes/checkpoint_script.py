"""A small training that uses ``overnight.checkpoint`` as a user would; every kind of state that can matter is in it.

``python tests/processes/checkpoint_script.py FOLDER --steps 110`` prints a line per step with the ids of its samples,
and at the end one line ``digests`` with the SHA-256 of each part of the state. ``--kind linear`` is a linear model with
AdamW whose batch follows from the step number; ``full`` has dropout, batch norm, cosine, EMA, GradScaler and a loader.
``--leave-out`` loses one part at the resume, as a script would that forgot it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from overnight.checkpoint import Checkpointer, checkpointer, restoring
from overnight.checkpoint.loader import LoaderPosition

PARTS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "rng")


class Numbered(Dataset[Any]):
    """Samples that know their number and depend on nothing else."""

    def __len__(self) -> int:
        return 46

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return torch.sin(torch.arange(8) * (at + 1.0)), at


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Read the switches."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder")
    p.add_argument("--kind", choices=["linear", "full"], default="linear")
    p.add_argument("--steps", type=int, default=110)
    p.add_argument("--every", type=int, default=50)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--plain-loader", action="store_true")
    p.add_argument("--sync", action="store_true")
    p.add_argument("--leave-out", choices=PARTS)
    p.add_argument("--term-at", type=int, help="send SIGTERM to itself in this step, in its middle")
    p.add_argument("--group", action="store_true", help="with --term-at: to its whole process group, as schedulers do")
    p.add_argument("--kill-at", type=int, help="send SIGKILL to itself in this step")
    return p.parse_args(words)


class Training:
    """Everything that is handed over, made from the same seed in each life."""

    def __init__(self, o: argparse.Namespace) -> None:
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        self.o = o
        if o.kind == "linear":
            self.model = nn.Linear(8, 1)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
            self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
            return
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, o.steps)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=6)
        self.ema = torch.optim.swa_utils.AveragedModel(
            self.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        self.parts = {
            "model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler,
            "ema": self.ema, "loader": self._loader(),
        }  # fmt: skip

    def _loader(self) -> Any:
        if self.o.plain_loader:
            return DataLoader(Numbered(), batch_size=4, shuffle=True, num_workers=self.o.workers)
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Numbered(), batch_size=4, shuffle=True, num_workers=self.o.workers)

    def advance(self, step: int, batch: Any) -> tuple[torch.Tensor, list[int]]:
        if self.o.kind == "linear":
            made = torch.Generator().manual_seed(step)
            x = torch.randn(16, 8, generator=made)
            loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach(), []
        x, at = batch
        x = x + 0.01 * torch.randn_like(x) + 0.01 * float(np.random.rand()) + 0.01 * random.random()
        loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        return loss.detach(), at.tolist()

    def digests(self) -> dict[str, str]:
        found = {name: _digest(part.state_dict()) for name, part in self.parts.items() if name != "loader"}
        generators = (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))
        return {**found, "rng": hashlib.sha256(repr(generators).encode()).hexdigest()[:16]}


def _digest(state: Any) -> str:
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(str(value.dtype).encode() + value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    add(state)
    return found.hexdigest()[:16]


def forget(name: str | None) -> None:
    """Make the library lose one part at the resume."""
    if name == "rng":
        checkpointer.rng.restore = lambda *_: []  # type: ignore[assignment]
    elif name == "loader":
        LoaderPosition.restore = lambda *_: None  # type: ignore[method-assign,assignment]
    elif name is not None:
        whole = restoring.restore
        restoring.restore = lambda one, value, saved, **how: value if one == name else whole(one, value, saved, **how)


def train(o: argparse.Namespace) -> dict[str, str]:
    """Train to the end, or until it is told to stop; return the digests of the state."""
    training = Training(o)
    with Checkpointer(o.folder, every=o.every, keep_last=3, async_=not o.sync, **training.parts) as ckpt:
        for step in ckpt.steps(o.steps):
            batch = next(ckpt.loader) if "loader" in training.parts else None
            if step == o.term_at:
                os.kill(0 if o.group else os.getpid(), signal.SIGTERM)
            if step == o.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss, ids = training.advance(step, batch)
            if ids:
                print(f"ids {step} {ids}")
            ckpt.report(step, loss=loss, lr=training.optimizer.param_groups[0]["lr"], tokens=64)
    return training.digests()


def main() -> int:
    """Train; return the exit code."""
    o = options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    forget(o.leave_out)
    print(f"digests {json.dumps(train(o))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
