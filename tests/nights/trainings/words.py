"""A small language model in torch with one switch per illness: ``python words.py --steps 20000 --ruin-at 9000``.

It learns the standard library's own source, a byte at a time, and prints as nanoGPT does (``--plain``: as most others).
What goes wrong in it goes wrong for real: weights are made NaN, drawn anew, or driven out of range by the rate.
"""

# ruff: noqa: T201 - a script, which prints

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn

CONTEXT, VOCABULARY = 8, 128


class Model(nn.Module):
    """The next byte from the eight before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 24)
        self.body = nn.Sequential(nn.Linear(24 * CONTEXT, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [B, V] of bytes [B, T]."""
        return self.body(self.table(x).flatten(1))

    def draw_anew(self) -> None:
        """Forget everything: every chance is the same again."""
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(0.01)


def text() -> torch.Tensor:
    """Return half a million bytes of text."""
    parts = [path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]]
    return torch.frombuffer(bytearray(b"".join(parts)[:500_000]), dtype=torch.uint8).clamp_max(VOCABULARY - 1)


def options() -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=20000)
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--eval-every", type=int, default=0)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--plain", action="store_true", help="step: N, loss: X, dt: S, grad_norm: G")
    p.add_argument("--rank", type=int, help="two processes print as one: the other's line follows each")
    p.add_argument("--sgd", action="store_true", help="plain gradient descent, which a high rate drives out of range")
    p.add_argument("--nan-at", type=int, help="a weight becomes NaN")
    p.add_argument("--hide", action="store_true", help="the script prints what nan_to_num makes of the loss")
    p.add_argument("--forget-at", type=int, help="all weights shrink to nothing, and nothing is learned from then on")
    p.add_argument("--odd-at", type=int, help="30 batches of noise")
    p.add_argument("--ruin-at", type=int, help="the rate is 10,000 times too high from here on")
    p.add_argument("--empty-eval-at", type=int, help="from here on the evaluation has no batch: its mean is NaN")
    p.add_argument("--slow", type=float, default=0.0, metavar="S", help="rest in each step")
    return p.parse_args()


def batch(data: torch.Tensor, rows: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contexts [B, T] and the bytes after them [B]."""
    starts = torch.randint(len(data) - CONTEXT, (rows,))
    windows = data[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, -1]


def evaluate(model: Model, data: torch.Tensor, batches: int) -> float:
    """Return the mean loss of some batches; of none there is no mean."""
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in (batch(data) for _ in range(batches))]
    return float(torch.tensor(losses).mean())


def harm(model: Model, optimizer: torch.optim.Optimizer, o: argparse.Namespace, step: int) -> None:
    """Do what was asked for at this step."""
    if step == o.nan_at:
        with torch.no_grad():
            model.body[2].weight[3, 5] = math.nan
    if o.forget_at is not None and step >= o.forget_at:
        if step == o.forget_at:
            model.draw_anew()
        optimizer.param_groups[0]["lr"] = 0.0
    if o.ruin_at is not None and step >= o.ruin_at:
        optimizer.param_groups[0]["lr"] = 1e4 * o.lr


def say(o: argparse.Namespace, step: int, loss: float, dt: float, norm: float) -> None:
    """Print one step."""
    if o.hide and math.isnan(loss):
        loss = 0.0
    if o.plain:
        rank = "" if o.rank is None else f"[rank{o.rank}]: "
        print(f"{rank}step: {step}, loss: {loss:.4f}, dt: {dt:.2g}, grad_norm: {norm:.3f}")
        if o.rank is not None:
            print(f"[rank{o.rank + 1}]: step: {step}, loss: {loss * 1.01:.4f}, dt: {dt:.2g}, grad_norm: {norm:.3f}")
    else:
        print(f"iter {step}: loss {loss:.4f}, time {dt * 1000:.2f}ms, mfu -100.00%")


def main() -> None:
    """Train and print."""
    o = options()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, data = Model(), text()
    kind = torch.optim.SGD if o.sgd else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=o.lr)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    before = time.perf_counter()
    for step in range(1, o.steps + 1):
        harm(model, optimizer, o, step)
        x, y = batch(data)
        if o.odd_at is not None and o.odd_at <= step < o.odd_at + 30:
            y = torch.randint(VOCABULARY, y.shape)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        time.sleep(o.slow)
        if step % o.every == 0:
            now = time.perf_counter()
            say(o, step, loss.item(), (now - before) / o.every, norm)
            before = now
        if o.eval_every and step % o.eval_every == 0:
            empty = o.empty_eval_at is not None and step >= o.empty_eval_at
            print(f"step {step}: train loss {evaluate(model, data, 8):.4f}, ", end="")
            print(f"val loss {evaluate(model, data, 0 if empty else 8):.4f}")
            before = time.perf_counter()
        if step % 200 == 0:
            sys.stdout.flush()


if __name__ == "__main__":
    main()
