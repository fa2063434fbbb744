"""Small torch trainings on made-up tables: ``python tables.py classifier --steps 20000``. Each prints a line per step.

Real losses of real optimizers, recorded as nights: a classifier with wrong labels, targets in the thousands, noise with
heavy tails, data that comes in waves, a fine-tuning that has little left to learn, half precision with a loss scaler.
"""

# ruff: noqa: T201 - a script, which prints

import argparse
import json
import math
import time

import torch
from torch import nn

FEATURES = 16


def network(out: int, width: int = 32) -> nn.Module:
    """Return two layers."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, out))


class Table:
    """Rows of one kind: ``batch(step)`` gives inputs and targets, ``loss`` compares."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.generator = torch.Generator().manual_seed(seed)
        self.teacher = torch.randn(FEATURES, 10, generator=self.generator)
        self.classes = kind in ("classifier", "finetune", "waves", "epochs")
        self.network = network(10 if self.classes else 1)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one batch; which one depends on the step only through the waves."""
        rows = 128 if self.kind == "finetune" else 32
        x = torch.randn(rows, FEATURES, generator=self.generator)
        score = x @ self.teacher
        if self.classes:
            y = score.argmax(1)
            wrong = {"classifier": 0.1, "epochs": 0.1, "finetune": 0.0}.get(self.kind, 0.05)
            if self.kind == "waves":  # each pass over the data ends with its hardest part
                wrong = 0.05 + 0.1 * (step % 2000) / 2000
            hit = torch.rand(rows, generator=self.generator) < wrong
            return x, torch.where(hit, torch.randint(10, (rows,), generator=self.generator), y)
        y = score[:, :1]
        if self.kind == "thousands":
            return x, 40 * y + 10 * torch.randn(rows, 1, generator=self.generator)
        if self.kind == "tails":  # Student's t with 2.5 degrees of freedom: now and then a single enormous target
            normal = torch.randn(rows, 1, generator=self.generator)
            chi = torch.randn(rows, 5, generator=self.generator).square().sum(1, keepdim=True) / 2
            return x, y + normal / (chi / 2.5).sqrt()
        return x, y + 0.5 * torch.randn(rows, 1, generator=self.generator)

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return nn.functional.cross_entropy(out, y) if self.classes else (out - y).square().mean()


class Scaler:
    """A loss scaler as half precision needs it: it begins far too high, and looks upwards every 500 steps.

    ``stuck_at``: from this step on the gradients overflow whatever the scale is.
    """

    def __init__(self, stuck_at: int | None) -> None:
        self.scale, self.good, self.stuck_at = 2.0**32, 0, stuck_at

    def step(self, step: int, loss: torch.Tensor, parameters: list[nn.Parameter], optimizer: object) -> float:
        """Go one step, or leave it out; return the gradient norm."""
        (loss * self.scale).backward()
        half = [p.grad.half().float() for p in parameters]  # what half precision would have kept of it
        norm = float(torch.stack([g.norm() for g in half]).norm()) / self.scale
        if self.stuck_at is not None and step >= self.stuck_at:
            norm = math.inf
        if not math.isfinite(norm):
            self.scale, self.good = max(1.0, self.scale / 2), 0
            return math.inf
        for p, g in zip(parameters, half, strict=True):
            p.grad = g / self.scale
        optimizer.step()
        self.good += 1
        if self.good >= 500:
            self.scale, self.good = self.scale * 2, 0
        return norm


def rate(o: argparse.Namespace, step: int) -> float:
    """Return the learning rate: a linear warm-up, then a cosine to a tenth."""
    warm = max(1, o.steps // 50)
    if step <= warm:
        return o.lr * step / warm
    return o.lr * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / (o.steps - warm)))


def main() -> None:
    """Train and print."""
    p = argparse.ArgumentParser()
    p.add_argument("kind", choices=["classifier", "finetune", "waves", "thousands", "tails", "scaler", "epochs"])
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--every", type=int, default=1, help="steps a line")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--epoch", type=int, default=4000, help="steps after which `epochs` counts from 1 again")
    p.add_argument("--stuck-at", type=int)
    p.add_argument("--frozen", action="store_true", help="one batch, and a learning rate of 0: the loss is constant")
    p.add_argument("--json", action="store_true", help="a JSON object a line")
    p.add_argument("--dates", action="store_true", help="a date before each line, as logging writes it")
    o = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(o.seed)
    table = Table(o.kind, o.seed)
    parameters = list(table.network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=o.lr)
    scaler = Scaler(o.stuck_at) if o.kind == "scaler" else None
    before = time.perf_counter()
    for step in range(1, o.steps + 1):
        optimizer.param_groups[0]["lr"] = 0.0 if o.frozen else rate(o, step)
        if step == 1 or not o.frozen:
            x, y = table.batch(step)
        loss = table.loss(table.network(x), y)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            norm = float(nn.utils.clip_grad_norm_(parameters, 1.0))
            optimizer.step()
        else:
            norm = scaler.step(step, loss, parameters, optimizer)
        if step % o.every:
            continue
        now = time.perf_counter()
        shown = (step - 1) % o.epoch + 1 if o.kind == "epochs" else step
        if o.json:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4), "lr": float(f"{rate(o, step):.2g}")}))
            continue
        date = time.strftime("%Y-%m-%d %H:%M:%S,000 INFO ") if o.dates else ""
        beside = f", grad_norm: {norm:.3g}" if scaler else ""
        print(f"{date}step: {shown}, loss: {loss.item():.4g}, dt: {(now - before) / o.every:.2g}{beside}")
        before = now


if __name__ == "__main__":
    main()
