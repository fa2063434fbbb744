"""Small trainings whose resume leaves one part out, and what they print: real ones with torch, for the diagnosis.

A training is a function of its seeds and faults; nothing is written or started. Numbers are rounded as a script prints.
"""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass
from typing import Any

import pytest

from overnight.resumeproof.words import Course, Resumed, Series

torch = pytest.importorskip("torch")

FAULTS = (
    "rng optimizer scheduler scheduler_double data_order epoch_reset off_by_one early late not_resumed counter_new "
    "weights partly ema"
).split()
NAMED: dict[str, str] = {
    "scheduler_double": "scheduler",
    "epoch_reset": "data_order",
    "early": "off_by_one",
    "late": "off_by_one",
    "counter_new": "not_resumed",
    "partly": "weights",
    "ema": "ema_or_buffers",
}
KEYS = {
    "model": ("model.weight", "model.bias"),
    "optimizer": ("optimizer.state", "optimizer.param_groups"),
    "scheduler": ("scheduler.last_epoch",),
    "rng": ("rng.torch",),
    "data": ("sampler.order", "sampler.position"),
    "ema": ("ema.weight",),
    "step": ("step",),
}


@dataclass(frozen=True)
class Recipe:
    """What a training is, and how it prints."""

    seed: int = 0
    batch: int = 16
    dropout: float = 0.2
    rate: float = 0.01
    steps: int = 200
    samples: int = 640
    digits: int = 4
    print_rate: bool = True
    print_ids: bool = False
    print_norm: bool = True
    every: int = 1
    warmup: int = 0
    zero: bool = False
    eval_every: int = 0
    noise: float = 0.0
    unseeded: bool = False


class Training:
    """A classifier of random clusters: AdamW, dropout, shuffled data, warm-up and cosine, EMA."""

    def __init__(self, recipe: Recipe, *, draw: int = 0) -> None:
        self.recipe = r = recipe
        fixed = torch.Generator().manual_seed(r.seed)
        self.x = torch.randn(r.samples, 12, generator=fixed)
        self.y = (
            self.x @ torch.randn(12, 5, generator=fixed) + 0.8 * torch.randn(r.samples, 5, generator=fixed)
        ).argmax(1)
        with torch.random.fork_rng():
            torch.manual_seed(r.seed)
            self.model = self.build()
            self.ema = self.build()
        self.ema.load_state_dict(self.model.state_dict())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=r.rate)
        self.scheduler = self.schedule()
        self.order = torch.Generator().manual_seed(r.seed + 1 + (1000 * draw if r.unseeded else 0))
        self.drop = torch.Generator().manual_seed(r.seed + 2 + (1000 * draw if r.unseeded else 0))
        self.jitter = torch.Generator().manual_seed(77 + draw)
        self.permutation = torch.randperm(r.samples, generator=self.order)
        self.position = 0
        self.step = 0
        self.series: dict[int, dict[str, float]] = {}

    def build(self) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5))

    def schedule(self) -> Any:
        r = self.recipe

        def factor(step: int) -> float:
            if step < r.warmup:
                return (step + 1) / r.warmup
            return 0.5 * (1 + math.cos(math.pi * min(1.0, step / r.steps)))

        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def batch(self) -> tuple[Any, int]:
        r = self.recipe
        if self.position + r.batch > r.samples:
            self.permutation, self.position = torch.randperm(r.samples, generator=self.order), 0
        ids = self.permutation[self.position : self.position + r.batch]
        self.position += r.batch
        return ids, int(ids[0])

    def one(self) -> None:
        """Make one step, and print it."""
        r = self.recipe
        ids, shown = self.batch()
        hidden = self.model[1](self.model[0](self.x[ids]))
        keep = (torch.rand(hidden.shape, generator=self.drop) >= r.dropout).float() / (1 - r.dropout)
        loss = torch.nn.functional.cross_entropy(self.model[2](hidden * keep), self.y[ids])
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
        rate = self.optimizer.param_groups[0]["lr"]
        if r.noise:
            for value in self.model.parameters():
                value.grad *= 1 + r.noise * torch.randn(value.grad.shape, generator=self.jitter)
        self.optimizer.step()
        self.scheduler.step()
        with torch.no_grad():
            for slow, fast in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        row = {"loss": round(float(loss.detach()), r.digits)}
        if r.print_norm:
            row["grad_norm"] = round(float(norm), r.digits)
        if r.print_rate:
            row["lr"] = float(f"{rate:.6e}")
        if r.print_ids:
            row["first_id"] = float(shown)
        printed = self.step if r.zero else self.step + 1
        self.step += 1
        if printed % r.every == 0:
            self.series[printed] = row
        if r.eval_every and self.step % r.eval_every == 0:
            with torch.no_grad():
                slow = torch.nn.functional.cross_entropy(self.ema(self.x), self.y)
            self.series.setdefault(printed, {})["eval/loss"] = round(float(slow), r.digits)

    def run(self, until: int) -> Training:
        while self.step < until:
            self.one()
        return self


def resume(recipe: Recipe, old: Training, fault: str | None, *, draw: int = 0) -> Training:
    """Return a new training that goes on from an old one, but for what the fault leaves out."""
    new = Training(recipe, draw=draw + 7)
    if fault == "not_resumed":
        return new
    if fault != "weights":
        state = old.model.state_dict()
        first = {name: value for name, value in new.model.state_dict().items() if name.startswith("0")}
        new.model.load_state_dict({**state, **first} if fault == "partly" else state)
    if fault != "ema":
        new.ema.load_state_dict(old.ema.state_dict())
    load_updates(new, old, fault)
    if not recipe.unseeded:
        load_draws(new, old, fault)
    new.step = {"counter_new": 0}.get(fault or "", old.step)
    new.step += {"early": -1, "off_by_one": -1, "late": 1}.get(fault or "", 0)
    if fault in ("early", "late"):  # the data are read by the number of the step
        new.position = max(0, new.position + (-1 if fault == "early" else 1) * recipe.batch)
    return new


def load_updates(new: Training, old: Training, fault: str | None) -> None:
    """Load optimizer and scheduler. A lost optimizer still has the learning rate, a lost scheduler has its first."""
    if fault == "optimizer":
        new.optimizer.param_groups[0]["lr"] = old.optimizer.param_groups[0]["lr"]
    else:
        new.optimizer.load_state_dict(old.optimizer.state_dict())
    if fault == "scheduler":
        new.optimizer.param_groups[0]["lr"] = new.recipe.rate * new.scheduler.lr_lambdas[0](0)
        return
    new.scheduler.load_state_dict(old.scheduler.state_dict())
    for _ in range(old.step if fault == "scheduler_double" else 0):
        new.scheduler.step()


def load_draws(new: Training, old: Training, fault: str | None) -> None:
    """Load the random numbers and the place in the data; a reset epoch has an order of its own."""
    if fault != "rng":
        new.drop.set_state(old.drop.get_state())
    if fault == "epoch_reset":
        order = torch.Generator().manual_seed(new.recipe.seed + 99)
        new.permutation = torch.randperm(new.recipe.samples, generator=order)
    elif fault != "data_order":
        new.order.set_state(old.order.get_state())
        new.permutation, new.position = old.permutation, old.position


def course(series: Series, ended: str = "stopped") -> Course:
    return Course(series=series, first_step=min(series, default=None), last_step=max(series, default=None), ended=ended)


def keys(fault: str | None, *, hidden: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what lies in the checkpoint of a script with a fault: it has no name for what it forgot."""
    left = {"rng": "rng", "optimizer": "optimizer", "scheduler": "scheduler", "data_order": "data", "ema": "ema"}
    return tuple(
        name for part, names in KEYS.items() if left.get(fault or "") != part and part not in hidden for name in names
    )


@dataclass(frozen=True)
class Case:
    first: Course
    second: Course
    resumed: Resumed
    until: int


@functools.lru_cache(maxsize=64)
def made(recipe: Recipe, stop: int, until: int, redo: int) -> tuple[Course, Course, Training, Course]:
    """Return what is the same for all faults: two unbroken runs, the state that is saved, the run up to its stop."""
    first, second = (course(Training(recipe, draw=draw).run(until).series) for draw in (1, 2))
    old = Training(recipe, draw=3).run(stop - redo)
    saved = copy.deepcopy(old)
    return first, second, saved, course(old.run(stop).series)


def case(
    recipe: Recipe, fault: str | None, *, stop: int = 100, until: int = 110, redo: int = 0, known: bool = True
) -> Case:
    """Run it all: twice unbroken, once stopped and resumed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, tests that run beside each other wait for each other
    first, second, saved, before = made(recipe, stop, until, redo)
    new = resume(recipe, copy.deepcopy(saved), fault, draw=3)
    new.run(until if fault not in ("counter_new", "not_resumed") else until - stop)
    torch.set_num_threads(threads)
    resumed = Resumed(
        how="kill" if redo else "graceful",
        before=before,
        after=course(dict(new.series), "exited 0"),
        stopped_at=stop,
        exact=True,
        checkpoint="ckpt",
        checkpoint_step=stop - redo,
        checkpoint_keys=keys(fault) if known else (),
        saved_on_signal=None if redo else True,
        load_error=None,
    )
    return Case(first, second, resumed, until)
