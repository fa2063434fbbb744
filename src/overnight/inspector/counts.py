"""How far the training had come, from the plain values of a checkpoint; and those values themselves, by dotted path.

A step is what its maker calls one, nearest to the top; else what the optimizer counted. An epoch is never a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from overnight.inspector.objects import Array, Storage, Tensor
from overnight.inspector.places import Place

MOST = 2_000
MOST_READS = 500  # tensors of one number, each a read of the disk
LONGEST = 200
LARGEST = 1 << 63

_NAMES = (
    "global_step", "step", "iteration", "iter", "iter_num", "num_updates", "global_steps", "steps", "iterations",
    "num_steps", "train_steps", "train_step", "trained_steps", "current_step", "cur_step", "last_step", "step_count",
    "num_iters", "n_iter", "num_timesteps", "update", "updates", "opt_step", "it",
)  # fmt: skip
"""What makers call it, the surest first."""
_ELSEWHERE = {
    "optimizer", "optimizers", "optim", "opt", "optimizer_states", "optimizer_state", "optimizer_state_dict",
    "callbacks", "config", "args", "hparams", "hyper_parameters", "cfg", "model", "state_dict", "model_state_dict",
    "ema", "scaler", "wandb", "options", "param_groups",
}  # fmt: skip
"""Parts that count what is not the training's step."""


class Counts:
    """Takes the values of a walk, in its order. ``scalar`` reads the one number of a tensor, None if it cannot."""

    def __init__(self, scalar: Callable[[Tensor], int | float | bool | None]) -> None:
        self.values: dict[str, Any] = {}
        self._scalar = scalar
        self._best: tuple[int, int, int] | None = None  # depth, rank of its name, step
        self._optimizer: int | None = None
        self._scheduler: int | None = None
        self._epochs = False
        self._reads = 0

    def take(self, place: Place, value: Any) -> None:
        """Take one value."""
        if isinstance(value, (dict, list, tuple, Storage, Array)):
            return
        key = place.key
        name = key.rpartition(".")[2].lower() if type(key) is str else ""
        if isinstance(value, Tensor):
            if value.numel != 1 or name not in _NAMES:
                return
            if self._reads >= MOST_READS or (self._best is not None and self._optimizer is not None):
                return
            self._reads += 1
            value = self._scalar(value)
        if value is not None and type(value) not in (bool, int, float, str):
            return
        if type(value) is int and not -LARGEST < value < LARGEST:  # a million digits cannot even be shown
            return
        if len(self.values) < MOST and place.depth <= 8 and not (isinstance(value, str) and len(value) > LONGEST):
            self.values[place.words()] = value
        if name:
            self._count(place, name, value)

    def _count(self, place: Place, name: str, value: Any) -> None:
        step = whole(value)
        if step is None:
            return
        above = [str(one).lower() for one in place.parts()[:-1]]
        if name == "step" and ("state" in above or "param_groups" in above or "optim" in "".join(above)):
            self._optimizer = max(step, self._optimizer or 0)
        elif name in _NAMES and not _ELSEWHERE.intersection(above):
            rank = (place.depth, _NAMES.index(name), step)
            if self._best is None or rank[:2] < self._best[:2]:
                self._best = rank
        elif name == "last_epoch":
            self._scheduler = max(step, self._scheduler or 0)
        elif name == "epoch" or name.endswith("_epoch"):
            self._epochs = True

    @property
    def step(self) -> int | None:
        """The step, None if nothing says it. A scheduler's count is one only where no epochs are counted."""
        if self._best is not None:
            return self._best[2]
        if self._optimizer is not None:
            return self._optimizer
        return self._scheduler if not self._epochs else None


def whole(value: Any) -> int | None:
    """Return a count as an int; None if it is no whole number that could be one."""
    if type(value) is float and math.isfinite(value) and value == int(value):
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def top_keys(tree: Any) -> tuple[str, ...]:
    """Return the names on the first level of a dict; at most 10,000."""
    if not isinstance(tree, Mapping):
        return ()
    return tuple(key for key in list(tree)[:10_000] if type(key) is str)
