"""The demo's training script: an ordinary program that Overnight starts and watches; it does not know Overnight.

It prints one progress line per step, saves beside its training, resumes to the bit, and ends well when it is asked to:
all of that is what a ``Checkpointer`` does for it. What is left here is what only this training knows.

    python -m overnight.demo.train --steps 500 --checkpoints /tmp/demo
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

# With several threads the order of a sum, and so its last bit, may change; read by BLAS when numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - must come after the lines above

from overnight.checkpoint import Checkpointer  # noqa: E402 - as above
from overnight.demo import model  # noqa: E402 - imports numpy

TEXT_BYTES = 2_000_000


def read_text(limit: int = TEXT_BYTES) -> model.Array:
    """Return the first ``limit`` characters of the standard library's own source, which every machine has, as uint8."""
    parts: list[bytes] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= limit:
            break
    return np.minimum(np.frombuffer(b"".join(parts)[:limit], np.uint8), model.VOCABULARY - 1)


class Trainer:
    """Weights, moments and dropout generator, and the one step that moves them."""

    def __init__(self, *, seed: int, horizon: int, text: model.Array, shape: model.Shape | None = None) -> None:
        self.shape = shape or model.Shape()
        self.seed = seed
        self.text = text
        self.optimizer = model.AdamW(horizon=horizon)
        self.weights = model.initial_weights(self.shape, seed)
        self.m = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.v = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.rng = np.random.default_rng([seed, 2])

    def parts(self) -> dict[str, Any]:
        """Return all that decides the next step but its number: what a checkpoint must hold."""
        return {"model": self.weights, "optimizer": {"m": self.m, "v": self.v}, "dropout": self.rng}

    def advance(self, step: int) -> tuple[Any, float]:
        """Take a step, the first of which is 1; return the loss (a float32) and the gradient's norm."""
        x, y = model.batch(self.text, self.shape, self.seed, step)
        masks = model.dropout_masks(self.rng, self.shape)
        loss, gradients = model.loss_and_gradients(self.weights, x, y, masks)
        return loss, self.optimizer.update(step, self.weights, gradients, self.m, self.v)

    def poison(self) -> None:
        """Leave one weight NaN, as an overflow would: from the next step on every loss is NaN."""
        self.weights["w1"][0, 0] = np.nan


def train(trainer: Trainer, options: argparse.Namespace, *, beside: bool = True) -> None:
    """Step until the plan is done or a signal came; ``beside``: saves are written by a process of their own."""
    folder, every = options.checkpoints, options.save_every
    with Checkpointer(folder, every=every, keep_last=3, async_=beside, **trainer.parts()) as ckpt:
        for step in ckpt.steps(options.steps):
            if step == options.nan_at:
                trainer.poison()
            loss, norm = trainer.advance(step)
            if options.slow:
                time.sleep(options.slow / 1000)
            ckpt.report(step, loss=loss, lr=round(trainer.optimizer.lr(step), 6), grad_norm=round(norm, 4))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m overnight.demo.train", description=__doc__.splitlines()[0])
    made.add_argument("--steps", type=int, default=500, help="the last step")
    made.add_argument("--horizon", type=int, help="where the learning rate is lowest (default: --steps)")
    made.add_argument("--save-every", type=int, default=50, help="steps between two checkpoints")
    made.add_argument("--checkpoints", type=Path, required=True, help="folder of the checkpoints")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--nan-at", type=int, metavar="STEP", help="make a weight NaN before this step, for real")
    made.add_argument("--slow", type=float, default=0, metavar="MS", help="rest this long in each step")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parser().parse_args(arguments)
    text = read_text()
    trainer = Trainer(seed=options.seed, horizon=options.horizon or options.steps, text=text)
    shape = trainer.shape
    print(
        f"{len(text):,} characters of text, {shape.matmul_parameters:,} weights, {shape.tokens_per_step} tokens a step"
    )
    train(trainer, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
