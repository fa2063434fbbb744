"""A training with numpy alone, quick to start, for tests that kill it or take its disk away.

``python tests/processes/checkpoint_toy.py FOLDER --steps 100 --every 5`` prints one line per step. Its loss depends on
all that must come back: weights, moments, three kinds of random numbers, a step counter. ``ballast`` is an array that
holds the number of the step everywhere: after a resume it shows whether a checkpoint is of one piece.
``--do FILE`` is a table in JSON of {step: shell command}, run before a step while no save is in flight.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402 - after the number of threads is set

MIXED = 3
"""Exit code of a training that was given a state which is not of one step."""


class Training:
    """Everything that is handed over, made from the same seeds in each life."""

    def __init__(self, ballast: int = 0) -> None:
        random.seed(5)
        np.random.seed(5)
        self.noise = np.random.default_rng(5)
        self.model = {"w": np.zeros((8, 4)), "b": np.zeros(4)}
        self.optimizer: dict[str, Any] = {
            "m": {name: np.zeros_like(one) for name, one in self.model.items()},
            "v": {name: np.zeros_like(one) for name, one in self.model.items()},
            "t": 0,
        }
        self.ballast = np.zeros(max(1, ballast // 8), dtype=np.int64)

    def advance(self) -> float:
        """Take one step of AdamW on a linear problem with noise; return the loss before it."""
        self.optimizer["t"] += 1
        t = self.optimizer["t"]
        x = self.noise.normal(size=(16, 8))
        y = np.tanh(x @ np.arange(32.0).reshape(8, 4) / 32) + 0.01 * np.random.rand() + 0.01 * random.random()
        wrong = x @ self.model["w"] + self.model["b"] - y
        slopes = {"w": x.T @ wrong / 16, "b": wrong.mean(0)}
        for name, slope in slopes.items():
            m, v = self.optimizer["m"][name], self.optimizer["v"][name]
            m += 0.1 * (slope - m)
            v += 0.01 * (slope**2 - v)
            step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
            self.model[name] -= 0.01 * (step + 0.01 * self.model[name])
        self.ballast[:] = t
        return float((wrong**2).mean())

    def parts(self, *, weights_only: bool = False) -> dict[str, Any]:
        """Return what is handed over."""
        if weights_only:
            return {"model": self.model}
        return {"model": self.model, "optimizer": self.optimizer, "ballast": self.ballast, "noise": self.noise}


def losses(steps: int) -> dict[int, str]:
    """Return the losses of an unbroken training, as they are printed."""
    training = Training()
    return {step: repr(training.advance()) for step in range(1, steps + 1)}


def options(words: list[str] | None = None) -> argparse.Namespace:
    """Read the switches."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--every", type=int, default=5)
    p.add_argument("--sync", action="store_true")
    p.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="after each step")
    p.add_argument("--ballast", type=int, default=0, metavar="BYTES")
    p.add_argument("--keep", type=int, help="keep_last; all without it")
    p.add_argument("--resume", default=True, help="no: begin anew; else the checkpoint to go on from")
    p.add_argument("--read-back", action="store_true")
    p.add_argument("--weights-only", action="store_true")
    p.add_argument("--fork-child", action="store_true", help="leave a forked child behind, and print its pid")
    p.add_argument("--do", type=Path, metavar="FILE")
    return p.parse_args(words)


def deeds(o: argparse.Namespace, ckpt: Any) -> Iterator[int]:
    """Yield the steps; before each of them do what the table says, when the disk is at rest."""
    from overnight.checkpoint import SaveError

    table = json.loads(o.do.read_text()) if o.do else {}
    for step in ckpt.steps(o.steps):
        if command := table.get(str(step)):
            with suppress(SaveError):
                ckpt.wait()
            if os.system(command) != 0:
                raise SystemExit(f"could not do: {command}")
        yield step


def train(o: argparse.Namespace) -> int:
    """Train; return the exit code."""
    from overnight.checkpoint import Checkpointer

    training = Training(o.ballast)
    with Checkpointer(
        o.folder,
        every=o.every,
        keep_last=o.keep,
        async_=not o.sync,
        read_back=o.read_back,
        resume=False if o.resume == "no" else o.resume,
        **training.parts(weights_only=o.weights_only),
    ) as ckpt:
        if o.fork_child and (child := os.fork()):
            print(f"child {child}", flush=True)
        elif o.fork_child:
            time.sleep(600)
            os._exit(0)
        for step in deeds(o, ckpt):
            if not (training.ballast == step - 1).all() and not o.weights_only:
                print(f"mixed: the state before step {step} is not of one step", flush=True)
                return MIXED
            ckpt.report(step, loss=training.advance())
            time.sleep(o.pause)
    return 0


if __name__ == "__main__":
    sys.exit(train(options()))
