"""The loop of the small trainings that a resume is proved of: data order, saves, signals, and one switch per fault.

What is learned, and in which form it is saved, is the business of ``train.py`` (torch) and ``quick.py`` (numpy); both
are run as scripts. Nothing of ours is imported: these are the scripts of people who do not use the library. Without a
fault their resume is exact, to the bit.

A checkpoint has the parts step, model, ema, optimizer, scheduler, rng and loader. It is written beside its name and
renamed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

OUTPUT = "./ckpt"
SAMPLES, BATCH = 256, 8
EPOCH = SAMPLES // BATCH
PARTS = ("model", "ema", "optimizer", "scheduler", "rng", "loader")

FAULTS = {
    # what is in the checkpoint and is not taken from it
    "no-weights": "the model begins anew, all else goes on",
    "no-optimizer": "moments begin anew",
    "no-scheduler": "the schedule begins anew",
    "no-rng": "random numbers begin anew from the seed",
    "no-ema": "the average begins anew from the model; no loss shows it",
    "no-buffers": "running statistics begin anew; no training loss shows it",
    "weights-only": "nothing but the model is loaded; steps are counted anew",
    "not-resumed": "nothing is loaded",
    # what is done wrongly with it
    "rng-late": "random numbers are restored, and some are drawn before the first step",
    "data-restart": "the epoch begins anew, in the same order",
    "epoch-reset": "the place in the epoch is kept, and the order is that of the first epoch",
    "data-ahead": "one batch is left out",
    "data-behind": "one batch is made twice",
    "counter-ahead": "the first step is called by the next one's number",
    "counter-behind": "the first step is called by the number of the last one before",
    "lr-double": "the schedule is advanced by as many steps once more",
    "crash-at-load": "KeyError while loading",
    # what is always so
    "nondeterministic": "unseeded noise of 0.1% on each gradient",
    "biased": "the weights are 40% larger after a resume",
    "no-signal-save": "a signal ends it without a save",
    "no-handler": "a signal ends it on the spot",
    "no-save": "nothing is ever saved",
}


class Backend(Protocol):
    """What learns. Gradients, weights and random numbers are its own."""

    lr: float

    def step(self, rows: list[int], noise: float) -> tuple[float, float]:
        """Make one step with these samples; return loss and norm of the gradient."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the parts but step and loader."""
        ...

    def load(self, parts: dict[str, Any], faults: set[str]) -> None:
        """Take the parts back, without those that a fault loses; a part that is not there is left as it is."""
        ...

    def scale(self, factor: float) -> None:
        """Make all weights larger."""
        ...

    def draw(self) -> None:
        """Draw a random number."""
        ...

    def write(self, parts: dict[str, Any], path: Path) -> None:
        """Write a checkpoint."""
        ...

    def read(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint."""
        ...


def options(suffix: str) -> argparse.Namespace:
    """Read the switches."""
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--horizon", type=int, default=200, help="steps of the schedule")
    p.add_argument("--dt", type=float, default=0.004, help="seconds per step at least")
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--schedule", choices=["cosine", "lambda"], default="cosine", help="lambda: with a warm-up")
    p.add_argument("--print", choices=["all", "loss"], default="all")
    p.add_argument("--digits", type=int, default=7)
    p.add_argument("--output", type=Path, default=Path(OUTPUT))
    p.add_argument("--save-every", type=int, default=20)
    p.add_argument("--save-as", choices=["step", "last"], default="step")
    p.add_argument("--keep", type=int, default=0, help="of the newest; 0: all")
    p.add_argument("--no-save", action="append", default=[], choices=PARTS, help="a part that is not in the checkpoint")
    p.add_argument("--resume", nargs="?", const="", metavar="FILE", help="from it, OVERNIGHT_CHECKPOINT or the newest")
    p.add_argument("--bug", action="append", default=[], choices=list(FAULTS))
    o = p.parse_args()
    o.suffix = suffix
    return o


class Loop:
    """One start of a training."""

    def __init__(self, backend: Backend, o: argparse.Namespace) -> None:
        self.backend, self.o, self.faults = backend, o, set(o.bug)
        self.step, self.epoch, self.position = 0, 0, 0
        self.label = 0  # what is added to the number of a step when it is printed and saved
        self.order_of = 0  # what is added to the number of an epoch to get its order
        self.noted = False

    def run(self) -> None:
        """Train to the end, or until a signal has been heard."""
        if "no-handler" not in self.faults:
            for one in (signal.SIGTERM, signal.SIGINT):
                signal.signal(one, self.heard)
        if self.o.resume is not None and "not-resumed" not in self.faults:
            self.resume()
        while self.step + self.label < self.o.steps:
            began = time.monotonic()
            self.advance()
            if self.o.save_every and self.step % self.o.save_every == 0:
                self.save()
            if self.noted:
                if "no-signal-save" not in self.faults:
                    self.save()
                return
            time.sleep(max(0.0, began + self.o.dt - time.monotonic()))
        self.save()

    def heard(self, *_: object) -> None:
        """Leave a note for the loop."""
        self.noted = True

    def advance(self) -> None:
        """Make one step and print its line."""
        self.step += 1
        rows = self.rows()
        self.position += 1
        if self.position == EPOCH:
            self.epoch, self.position = self.epoch + 1, 0
        lr = self.backend.lr
        noise = struct.unpack("<I", os.urandom(4))[0] / 2**31 - 1 if "nondeterministic" in self.faults else 0.0
        loss, norm = self.backend.step(rows, 0.001 * noise)
        text = f"step {self.step + self.label} loss {loss:.{self.o.digits}f}"
        print(text if self.o.print == "loss" else f"{text} lr {lr:.8g} grad_norm {norm:.{self.o.digits}f}", flush=True)

    def rows(self) -> list[int]:
        """Return the samples of the next batch: each epoch has an order of its own."""
        order = list(range(SAMPLES))
        random.Random(1000 * self.o.seed + self.epoch + self.order_of).shuffle(order)
        return order[self.position * BATCH :][:BATCH]

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint beside its name and rename it; let old ones go."""
        if "no-save" in self.faults:
            return
        o, step = self.o, self.step + self.label
        parts = {**self.backend.state(), "step": step, "loader": {"epoch": self.epoch, "position": self.position}}
        o.output.mkdir(parents=True, exist_ok=True)
        name = f"step-{step}" if o.save_as == "step" else "last"
        path = o.output / f"{name}{o.suffix}"
        temporary = path.with_name(f"{path.name}.tmp")
        self.backend.write({key: value for key, value in parts.items() if key not in o.no_save}, temporary)
        temporary.replace(path)
        for old in self.saved()[: -o.keep] if o.keep else []:
            old.unlink()

    def saved(self) -> list[Path]:
        """Return all checkpoints, the newest last."""
        found = [path for path in self.o.output.glob(f"*{self.o.suffix}") if path.stem.startswith(("step-", "last"))]
        return sorted(found, key=lambda path: int(path.stem.partition("-")[2] or 0))

    def resume(self) -> None:
        """Go on from a checkpoint, if there is one, as well as the faults allow."""
        given = self.o.resume or os.environ.get("OVERNIGHT_CHECKPOINT")
        path = Path(given) if given else next(reversed(self.saved()), None)
        if path is None:
            return
        parts, faults = self.backend.read(path), self.faults
        if "crash-at-load" in faults:
            raise KeyError("model_state_dict")
        if "weights-only" in faults:
            self.backend.load({"model": parts["model"]}, faults)
            return
        self.backend.load({key: parts[key] for key in PARTS if key in parts and key != "loader"}, faults)
        self.step = int(parts["step"])
        place = parts.get("loader", {"epoch": 0, "position": 0})
        self.epoch, self.position = int(place["epoch"]), int(place["position"])
        self.wrong(faults)

    def wrong(self, faults: set[str]) -> None:
        """Do wrong what is to be done after a load."""
        if "data-restart" in faults:
            self.position = 0
        if "epoch-reset" in faults:
            self.order_of = -self.epoch
        if "rng-late" in faults:
            self.backend.draw()
        if "biased" in faults:
            self.backend.scale(1.4)
        moved = ("data-ahead" in faults) - ("data-behind" in faults)
        batch = max(0, self.epoch * EPOCH + self.position + moved)
        self.epoch, self.position = divmod(batch, EPOCH)
        self.label = ("counter-ahead" in faults) - ("counter-behind" in faults)


def main(suffix: str, make: Callable[[argparse.Namespace], Backend]) -> None:
    """Run one start of a training, with the switches of the command line."""
    o = options(suffix)
    Loop(make(o), o).run()
