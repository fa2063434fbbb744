"""The demo's training script: an ordinary program that Overnight starts and watches; it does not know Overnight.

It prints one progress line per step, saves in a way that can be resumed to the bit, and ends well when asked to: on
SIGINT or SIGTERM it finishes its step, saves and exits 0. The one courtesy: when Overnight ends a run for bad weights,
``stop.json`` says that a save is not wanted, and a script that looks there keeps its last good checkpoint the newest.

    python -m overnight.demo.train --steps 500 --checkpoints /tmp/demo
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import sysconfig
import time
from pathlib import Path
from types import FrameType

# With several threads the order of a sum, and so its last bit, may change; read by BLAS when numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - must come after the lines above

from overnight.demo import model, saves  # noqa: E402 - imports numpy

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


class Stop:
    """A note left by a signal handler; the loop reads it between two steps."""

    def __init__(self) -> None:
        self.signal: str | None = None

    def listen(self) -> None:
        """Take SIGINT and SIGTERM from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.note)

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Only remember the signal."""
        self.signal = signal.Signals(number).name


def save_wanted() -> bool:
    """Say whether a final save is wanted: yes, unless the order that ends this attempt says ``"save": false``."""
    folder = os.environ.get("OVERNIGHT_RUN_DIR")
    attempt = os.environ.get("OVERNIGHT_ATTEMPT", "")
    if not folder or not attempt.isdigit():
        return True
    try:
        order = json.loads((Path(folder) / "attempts" / f"{int(attempt):03d}" / "stop.json").read_bytes())
    except (OSError, ValueError):
        return True
    return not (isinstance(order, dict) and order.get("save") is False)


class Trainer:
    """Weights, moments and dropout generator, and the one step that moves them."""

    def __init__(self, *, seed: int, horizon: int, text: model.Array, shape: model.Shape | None = None) -> None:
        self.shape = shape or model.Shape()
        self.seed = seed
        self.text = text
        self.optimizer = model.AdamW(horizon=horizon)
        self.step = 0
        self.weights = model.initial_weights(self.shape, seed)
        self.m = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.v = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.rng = np.random.default_rng([seed, 2])

    def advance(self) -> tuple[str, float]:
        """Take one step; return the loss, as the shortest text for that very float32, and the gradient norm."""
        self.step += 1
        x, y = model.batch(self.text, self.shape, self.seed, self.step)
        masks = model.dropout_masks(self.rng, self.shape)
        loss, gradients = model.loss_and_gradients(self.weights, x, y, masks)
        return str(loss), self.optimizer.update(self.step, self.weights, gradients, self.m, self.v)

    def poison(self) -> None:
        """Leave one weight NaN, as an overflow would: from the next step on every loss is NaN."""
        self.weights["w1"][0, 0] = np.nan

    def state(self) -> saves.State:
        """Return all that decides the next step."""
        rng = dict(self.rng.bit_generator.state)
        return saves.State(step=self.step, weights=self.weights, m=self.m, v=self.v, rng=rng)

    def restore(self, state: saves.State) -> None:
        """Go on from ``state``."""
        self.step = state.step
        self.weights, self.m, self.v = dict(state.weights), dict(state.m), dict(state.v)
        self.rng.bit_generator.state = state.rng


def say(text: str) -> None:
    """Print one line at once, whatever stdout is buffered like."""
    print(text, flush=True)


def resume(trainer: Trainer, folder: Path) -> None:
    """Go on from the newest checkpoint that is whole, and say so; damaged ones are named and left alone."""
    saves.sweep(folder)
    for found in saves.candidates(folder, trainer.weights):
        if isinstance(found, saves.State):
            trainer.restore(found)
            say(f"resumed from {saves.path_of(folder, found.step).name}")
            return
        say(f"skipped: {found}")
    say(f"no checkpoint in {folder}: starting from the beginning")


def train(trainer: Trainer, options: argparse.Namespace, stop: Stop) -> None:
    """Step until the plan is done or a signal came, then save."""
    saved = trainer.step
    before = time.perf_counter()
    while trainer.step < options.steps and stop.signal is None:
        if trainer.step + 1 == options.nan_at:
            trainer.poison()
        loss, norm = trainer.advance()
        if options.slow:
            time.sleep(options.slow / 1000)
        now = time.perf_counter()
        lr = trainer.optimizer.lr(trainer.step)
        say(f"step: {trainer.step}, loss: {loss}, dt: {now - before:.4f}, lr: {lr:.6f}, grad_norm: {norm:.4f}")
        before = now
        if trainer.step % options.save_every == 0:
            saved = trainer.step
            say(f"saved {saves.save(options.checkpoints, trainer.state()).name}")
    if stop.signal is not None:
        say(f"{stop.signal} came: step {trainer.step} was finished")
        if not save_wanted():
            say("not saving: the order to stop says that these weights are not wanted")
            return
    if saved != trainer.step:
        say(f"saved {saves.save(options.checkpoints, trainer.state()).name}")


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
    stop = Stop()
    stop.listen()
    options = parser().parse_args(arguments)
    text = read_text()
    trainer = Trainer(seed=options.seed, horizon=options.horizon or options.steps, text=text)
    shape = trainer.shape
    say(f"{len(text):,} characters of text, {shape.matmul_parameters:,} weights, {shape.tokens_per_step} tokens a step")
    resume(trainer, options.checkpoints)
    train(trainer, options, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
