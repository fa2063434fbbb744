"""A small GPT in torch that a night can be trusted with: it saves safely, resumes to the bit, and stops well.

    overnight run --name gpt --steps 400 --params 436736 --tokens-per-step 2048 -- python examples/train_gpt.py
    overnight status gpt
    overnight stop gpt            # finishes the step, saves, exits 0
    overnight run --name gpt2 -- python examples/train_gpt.py       # goes on from there, bit for bit

The script does not know Overnight; its ``Checkpointer`` takes care of the night, and would do so under nohup as well:

- it goes on after the newest checkpoint that is whole and healthy, and counts the steps;
- it saves beside the training, in a way that a kill at any moment leaves the old checkpoint or the new one;
- a signal ends the loop between two steps, behind a last save; weights that a run is ended for are not saved.

What is left to the script, for a resume that is exact: the batch is a function of (seed, step), the learning rate of
the step, and dropout draws from torch's own generator, which is saved with the rest.

Data: the source text of Python's own standard library, which every machine has. A CPU does a few steps a second at the
sizes below and gets from 5.5 to about 2.4 nats in 400 steps.
"""

import argparse
import math
import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from overnight.checkpoint import Checkpointer

VOCABULARY = 256


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and added to the stream [B, T, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after this block; same shape."""
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + functional.dropout(self.out(y.transpose(1, 2).reshape(b, t, width)), p)
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Byte-level language model; the embedding is also the last layer."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy in nats of guessing ``y`` [B, T] from ``x`` [B, T]."""
        stream = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
        logits = self.norm(self.blocks(stream)) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def read_text(limit: int = 4_000_000) -> torch.Tensor:
    """Return the standard library's source as uint8."""
    parts = (path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
    return torch.frombuffer(bytearray(b"".join(parts)[:limit]), dtype=torch.uint8)


def batch(text: torch.Tensor, o: argparse.Namespace, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets [B, T] of one step: a function of seed and step alone."""
    generator = torch.Generator().manual_seed(o.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - o.context, (o.batch,), generator=generator)
    windows = text[starts[:, None] + torch.arange(o.context + 1)].long()
    return windows[:, :-1].to(o.device), windows[:, 1:].to(o.device)


def learning_rate(o: argparse.Namespace, step: int) -> float:
    """Return the rate of a step (the first is 1): linear warm-up, then a cosine down to a tenth."""
    if step <= o.warmup:
        return o.lr * step / o.warmup
    done = min(1.0, (step - o.warmup) / max(1, (o.horizon or o.steps) - o.warmup))
    return o.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def options() -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--horizon", type=int, help="step at which the learning rate is lowest (default: --steps)")
    p.add_argument("--save-every", type=int, default=100)
    p.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--context", type=int, default=64)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--threads", type=int, default=1, help="one thread keeps sums in one order")
    p.add_argument("--device", default="cpu")
    return p.parse_args()


def train(model: GPT, optimizer: torch.optim.Optimizer, o: argparse.Namespace) -> None:
    """Step until the plan is done or a signal comes; the checkpointer saves in between and at the end."""
    text = read_text()
    with Checkpointer(o.checkpoints, every=o.save_every, keep_last=3, model=model, optimizer=optimizer) as ckpt:
        for step in ckpt.steps(o.steps):
            rate = learning_rate(o, step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = model(*batch(text, o, step))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            # On a GPU reading the loss waits for the step, so that dt is its true time.
            ckpt.report(step, loss=loss, tokens=o.batch * o.context, lr=rate, grad_norm=norm)


def main() -> int:
    """Build everything and train; return the exit code."""
    o = options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    model = GPT(layers=o.layers, width=o.width, heads=o.heads, context=o.context, dropout=o.dropout).to(o.device)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.95))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {o.batch * o.context} tokens a step", flush=True)
    train(model, optimizer, o)
    return 0


if __name__ == "__main__":
    sys.exit(main())
