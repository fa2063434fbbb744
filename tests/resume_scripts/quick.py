"""The small training of ``train.py`` in numpy, which starts ten times as quickly: the same parts, saved as ``.npz``.

``python quick.py --steps 200``; the switches are those of ``loop.py``.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from loop import SAMPLES, main

WIDTH, BETAS, DROPPED = 32, (0.9, 0.999), 0.2


class Numpy:
    """Two layers with statistics between them, Adam, a schedule and an average, by hand."""

    def __init__(self, o: argparse.Namespace) -> None:
        np.random.seed(o.seed)
        self.o = o
        self.x = np.random.randn(SAMPLES, 8)
        self.y = np.sin(self.x.sum(1)) + 0.3 * np.random.randn(SAMPLES)
        self.model = {"w1": np.random.randn(8, WIDTH) / 3, "w2": np.random.randn(WIDTH) / 6}
        self.buffers = {"running_mean": np.zeros(WIDTH)}
        self.ema = {name: value.copy() for name, value in self.model.items()}
        self.moments = {f"{kind}.{name}": np.zeros_like(value) for kind in "mv" for name, value in self.model.items()}
        self.made = 0  # steps of the optimizer
        self.last = 0  # steps of the schedule

    @property
    def lr(self) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.last / self.o.horizon)))
        return 0.02 * cosine * (1.0 if self.o.schedule == "cosine" else min(1.0, (self.last + 1) / 10))

    def step(self, rows: list[int], noise: float) -> tuple[float, float]:
        x, y = self.x[rows], self.y[rows]
        hidden = np.tanh(x @ self.model["w1"])
        mask = (np.random.random(hidden.shape) > DROPPED) / (1 - DROPPED)
        self.buffers["running_mean"] = 0.9 * self.buffers["running_mean"] + 0.1 * hidden.mean(0)
        error = (hidden * mask) @ self.model["w2"] - y
        back = 2 / len(y) * error
        grads = {
            "w1": x.T @ (np.outer(back, self.model["w2"]) * mask * (1 - hidden**2)),
            "w2": (hidden * mask).T @ back,
        }
        self.made += 1
        lr = self.lr
        for name, exact in grads.items():
            grad = exact * (1 + noise)
            m, v = self.moments[f"m.{name}"], self.moments[f"v.{name}"]
            m += (1 - BETAS[0]) * (grad - m)
            v += (1 - BETAS[1]) * (grad * grad - v)
            reached = m / (1 - BETAS[0] ** self.made), v / (1 - BETAS[1] ** self.made)
            self.model[name] -= lr * reached[0] / (np.sqrt(reached[1]) + 1e-8)
            self.ema[name] += 0.05 * (self.model[name] - self.ema[name])
        self.last += 1
        norm = math.sqrt(sum(float((grad * grad).sum()) for grad in grads.values()))
        return float((error * error).mean()), norm

    def state(self) -> dict[str, Any]:
        words = np.random.get_state()
        return {
            "model": {**self.model, **self.buffers},
            "ema": self.ema,
            "optimizer": {**self.moments, "step": self.made},
            "scheduler": {"last_epoch": self.last},
            "rng": {"keys": words[1], "pos": words[2]},
        }

    def load(self, parts: dict[str, Any], faults: set[str]) -> None:
        states = parts.get("model", {})
        for name in self.model if "no-weights" not in faults else ():
            self.model[name] = states.get(name, self.model[name]).copy()
        if states and "no-buffers" not in faults:
            self.buffers["running_mean"] = states["running_mean"]
        kept = parts["ema"] if "ema" in parts and "no-ema" not in faults else self.model
        self.ema = {name: kept[name].copy() for name in self.model}
        if "optimizer" in parts and "no-optimizer" not in faults:
            self.made = int(parts["optimizer"]["step"])
            self.moments = {name: parts["optimizer"][name] for name in self.moments}
        if "scheduler" in parts and "no-scheduler" not in faults:
            self.last = int(parts["scheduler"]["last_epoch"]) * (2 if "lr-double" in faults else 1)
        if "rng" in parts and "no-rng" not in faults:
            np.random.set_state(("MT19937", parts["rng"]["keys"], int(parts["rng"]["pos"])))

    def scale(self, factor: float) -> None:
        for name in self.model:
            self.model[name] *= factor

    def draw(self) -> None:
        np.random.random()

    def write(self, parts: dict[str, Any], path: Path) -> None:
        flat: dict[str, Any] = {}
        for part, value in parts.items():
            flat |= {f"{part}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {part: value}
        with path.open("wb") as stream:
            np.savez(stream, **flat)

    def read(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with np.load(path) as stored:
            for name in stored.files:
                part, _, below = name.partition(".")
                if below:
                    found.setdefault(part, {})[below] = stored[name]
                else:
                    found[part] = stored[name]
        return found


if __name__ == "__main__":
    main(".npz", Numpy)
