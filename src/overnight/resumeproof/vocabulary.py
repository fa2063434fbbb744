"""What the name of a printed metric, or of something in a checkpoint, says about it.

Only names are looked at, never values. No clock, no file, no process.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import Final, Literal

Holding = Literal["model", "optimizer", "scheduler", "rng", "data", "ema"]

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_CLOCK: Final = frozenset(
    "dt time times elapsed eta secs seconds msec duration wall walltime clock timestamp date latency throughput speed "
    "fps ips tps wps qps sps mfu hfu flops tflops gflops pflops mem memory vram ram rss alloc allocated reserved gib "
    "gb mib mb util utilization watts runtime took hours minutes gpu cuda cpu".split()
)
_UNIT: Final = frozenset("s sec secs second seconds ms us ns min minute hour h day".split())
_TURN: Final = frozenset("it iter step batch".split())
_DATA: Final = frozenset(
    "id ids idx idxs index indices sample samples batch batches hash crc checksum digest doc docs document documents "
    "file shard seen consumed position offset cursor data tokens token epoch epochs".split()
)
_EVAL: Final = frozenset("eval evaluation val valid validation test dev".split())
_AVERAGE: Final = frozenset("avg average mean ema smooth smoothed running moving total".split())
_HOLDINGS: Final[dict[Holding, tuple[str, ...]]] = {
    "ema": ("ema", "swa", "shadow", "averaged", "average"),
    "scheduler": ("sched", "scheduler", "schedule"),
    "optimizer": ("optim", "optims", "optimizer", "adam", "adamw", "momentum", "exp_avg", "moments"),
    "rng": ("rng", "rngs", "prng", "random", "seed", "seeds", "generator"),
    "data": tuple("sampler loader dataset epoch batch consumed position cursor shuffle data perm".split()),
    "model": ("model", "weight", "param", "params", "state_dict", "module", "net", "policy", "encoder", "decoder"),
}
_EXACTLY: Final[dict[str, Holding]] = {"opt": "optimizer", "lr": "scheduler", "loops": "data", "order": "data"}
_PLACES: Final = frozenset("pos idx index ptr offset".split())
"""Last names of what counts samples; further up they may be layers."""
_EXACTLY.update(dict.fromkeys(("np_state", "numpy_state", "py_state", "python_state", "torch_state"), "rng"))


def words(name: str) -> list[str]:
    """Return the words of a name, in lower case: ``tokens_per_s`` is tokens, per, s; ``gradNorm`` is grad, norm."""
    return [word.lower() for word in _WORD.findall(name)]


def of_the_machine(name: str) -> bool:
    """Say whether a metric is a time, a rate or an amount of memory: what differs between any two runs."""
    parts = words(name)
    if not parts or "loss" in parts:
        return False
    pairs = itertools.pairwise(parts)
    rate = any((one == "per" and two in _UNIT) or (one in _UNIT and two in _TURN) for one, two in pairs)
    return rate or (len(parts) > 1 and parts[-1] in _UNIT) or bool(_CLOCK & {*parts})


def of_an_evaluation(name: str) -> bool:
    """Say whether a metric was printed by an evaluation."""
    return bool(_EVAL & {*words(name)[:2]})


def is_average(name: str) -> bool:
    """Say whether a metric is an average or a sum over steps, as its name has it."""
    return bool(_AVERAGE & {*words(name)})


def is_scale(name: str) -> bool:
    """Say whether a metric is the factor of a GradScaler."""
    parts = {*words(name)}
    return "scaler" in parts or ("scale" in parts and parts <= {"loss", "grad", "scale", "amp", "fp", "16", "cur"})


def of_averaged_weights(name: str) -> bool:
    """Say whether a metric may be that of a model whose weights are averages."""
    return bool({"ema", "swa"} & {*words(name)})


def is_rate(name: str) -> bool:
    """Say whether a metric is a learning rate."""
    parts = words(name)
    return bool({"lr", "lrs"} & {*parts}) or "learningrate" in "".join(parts)


def is_of_data(name: str) -> bool:
    """Say whether a metric tells which data a step was made of: ids, counts, positions, the epoch."""
    parts = {*words(name)}
    return bool(_DATA & parts) and not parts & {"loss", "acc", "accuracy", "norm"} and not of_an_evaluation(name)


def main_metric(names: Iterable[str]) -> str | None:
    """Return the metric that says how the training goes: the loss, else what comes nearest to one; None: none does."""
    no_measure = (of_an_evaluation, is_rate, is_of_data, is_scale)
    trained = sorted(name for name in names if not any(is_one(name) for is_one in no_measure))
    order = (
        lambda name: name == "loss",
        lambda name: "loss" in words(name) and not is_average(name),
        lambda name: "loss" in words(name),
        lambda name: bool({"nll", "ppl", "perplexity", "bpb", "bpc"} & {*words(name)}),
        lambda name: "norm" in words(name),
    )
    for fits in order:
        if found := next((name for name in trained if fits(name)), None):
            return found
    return trained[0] if trained else None


def held_by(name: str) -> Holding | None:
    """Return what a name in a checkpoint, or of a part of one, stands for; its first level counts before the second."""
    levels = name.lower().split(".")
    for number, level in enumerate(levels, 1):
        parts = words(level)
        text = "_".join(parts)
        if exact := _EXACTLY.get(text):
            return exact
        if text in _PLACES and number == len(levels):
            return "data"
        found: Holding
        for found, marks in _HOLDINGS.items():
            if any(mark in parts or (len(mark) > 4 and mark in text) for mark in marks):
                return found
    return None


def holdings(names: Iterable[str]) -> frozenset[Holding]:
    """Return what lies in a checkpoint, as far as names tell."""
    return frozenset(found for name in names if (found := held_by(name)))


def decimals(value: float) -> int:
    """Return how many digits after the point a value was printed with, as far as it shows; 0 of what is no number."""
    return len(f"{value:.12f}".rstrip("0").partition(".")[2]) if math.isfinite(value) else 0


def shown(value: float | None) -> str:
    """Return a value as it was printed: the shortest text that means it."""
    if value is None:
        return "unknown"
    return f"{value:.0f}" if value == round(value, 0) and abs(value) < 1e15 else f"{value:.12g}"
