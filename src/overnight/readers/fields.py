"""What the names and units in front of and behind the numbers mean. Tables of words; no line is read here."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from overnight.readers.numbers import parse_printed

if TYPE_CHECKING:
    from collections.abc import Mapping

UNIT = (
    r"(?:msecs?|millis(?:econds?)?|ms|usecs?|microseconds?|us|µs|μs|nanoseconds?|ns|minutes?|mins?|secs?|seconds?|s"
    r"|hours?|hrs?|h|%|[kKMGBT]|thousand|million|billion|trillion)"
)

EVAL_WORDS = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "dev"})

LOSSES = ("total_loss", "loss", "reduced_loss", "lm_loss", "val_loss", "train_loss")
"""The fields that are losses; of those of training the earlier one speaks for the step."""

RIVALS: Mapping[str, tuple[str, ...]] = {
    "dt_s": ("dt_s", "dt_ms", "dt_us", "time_s", "time_ms", "step_avg", "spent", "steps_per_s"),
    "tokens_per_s": ("tokens_per_s", "tokens_per_s_device"),
    "samples_per_s": ("samples_per_s", "samples_per_s_device"),
}
"""Fields of ``Record`` that go by several names, the best one first."""

PLACE: Mapping[str, str] = {field: place for place, fields in RIVALS.items() for field in fields}
"""The field of ``Record`` that a name of ``RIVALS`` is about."""

_NAMES: Mapping[str, str] = {
    **dict.fromkeys(
        ("loss", "loss_train", "train/loss", "training/loss", "loss/train", "mean_loss", "avg_loss"), "loss"
    ),
    **dict.fromkeys(("total_loss", "loss_total", "loss/total", "train/total_loss", "train/loss/total"), "total_loss"),
    **dict.fromkeys(("train_loss", "training_loss"), "train_loss"),
    **dict.fromkeys(("reduced_loss", "reduced_train_loss", "reduced_llm_loss"), "reduced_loss"),
    **dict.fromkeys(("lm_loss", "llm_loss", "ce_loss", "lm_loss_value", "train/ce_loss", "train/lm_loss"), "lm_loss"),
    **dict.fromkeys(("dt", "dt_s", "step_time", "step_time_s", "time_per_step", "sec_per_step", "s_per_step"), "dt_s"),
    **dict.fromkeys(("seconds_per_step", "s/step", "sec/step", "secs/step", "seconds/step", "s/it", "sec/it"), "dt_s"),
    **dict.fromkeys(("s/iter", "sec/iter", "s_per_it", "iter_time", "iter_time_s", "iteration_time"), "dt_s"),
    **dict.fromkeys(("elapsed_time_per_iteration", "time_per_iteration", "time_per_iter", "train_step_time"), "dt_s"),
    **dict.fromkeys(("train_step_timing", "train_step_timing_in_s", "step_timing", "time/step", "time/iter"), "dt_s"),
    **dict.fromkeys(("dt_ms", "step_time_ms", "iter_time_ms", "ms/step", "ms/it", "ms/iter", "ms_per_step"), "dt_ms"),
    **dict.fromkeys(("us/step", "us/it", "us/iter", "us_per_step"), "dt_us"),
    **dict.fromkeys(("time", "seconds", "time_s", "batch_time"), "time_s"),
    "perf/time_per_step": "dt_s",
    **dict.fromkeys(("time_ms", "milliseconds"), "time_ms"),
    **dict.fromkeys(("step_avg", "avg_step_time", "mean_step_time", "step_time_avg", "avg_iter_time"), "step_avg"),
    "took": "spent",
    "ups": "steps_per_s",
    "wps": "tokens_per_s",
    **dict.fromkeys(("tps", "tgs", "perf/throughput"), "tokens_per_s_device"),
    **dict.fromkeys(("lr", "learning_rate", "learningrate", "train/lr", "actor/lr"), "lr"),
    **dict.fromkeys(("grad_norm", "gradnorm", "gradient_norm", "gnorm", "norm", "total_grad_norm"), "grad_norm"),
    **dict.fromkeys(("train/grad_norm", "global_grad_norm", "actor/grad_norm"), "grad_norm"),
    "tokens": "tokens",
    **dict.fromkeys(
        ("tokens_seen", "consumed_tokens", "tokens_consumed", "num_tokens", "total_tokens"), "tokens_total"
    ),
    **dict.fromkeys(("tokens_total", "num_tokens_seen", "num_input_tokens_seen", "tokens_so_far"), "tokens_total"),
    **dict.fromkeys(("n_tokens_seen", "tokens_processed", "tokens_trained", "train/tokens_seen"), "tokens_total"),
    **dict.fromkeys(("total_tokens_seen", "cumulative_tokens", "train/total_tokens", "ntokens_total"), "tokens_total"),
    **dict.fromkeys(("mfu", "bf16_mfu", "fp16_mfu", "fp8_mfu", "fp32_mfu"), "mfu"),
    **dict.fromkeys(("epoch", "epochs", "ep", "train/epoch", "progress_or_epoch"), "epoch"),
    "rank": "rank",
}

# A rate's name says what is counted, per second, and perhaps per device, in any order: tokens_per_gpu_per_second
_COUNTED: Mapping[str, str] = {
    **dict.fromkeys(("tok", "toks", "token", "tokens"), "tokens_per_s"),
    **dict.fromkeys(("sample", "samples", "example", "examples", "seq", "seqs", "sequences"), "samples_per_s"),
    **dict.fromkeys(("it", "its", "iter", "iters", "iterations", "step", "steps", "updates"), "steps_per_s"),
}
_SECONDS = frozenset({"s", "sec", "secs", "second", "seconds"})
_DEVICES = frozenset({"device", "devices", "gpu", "gpus", "chip", "chips", "rank", "tpu", "core"})
_FILLERS = frozenset(
    {"per", "train", "training", "interval", "avg", "average", "mean", "current", "perf", "throughput"}
)

_OF_ANOTHER_STEP = frozenset({"best", "lowest", "min", "minimum", "previous", "prev", "last"})

# Powers of ten that the units stand for; minutes and hours are none and are taken care of where values are made.
_TIME_EXPONENTS: Mapping[str, int] = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 0),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), -3),
    **dict.fromkeys(("us", "usec", "usecs", "µs", "μs", "microsecond", "microseconds"), -6),  # micro sign, Greek mu
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), -9),
}
_A_DATE_S = 1e9  # in `time=1767225600.5` the seconds are those since 1970
_LONG: Mapping[str, float] = {
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_COUNT_EXPONENTS: Mapping[str, int] = {
    "": 0,
    "k": 3,
    "K": 3,
    "M": 6,
    "G": 9,
    "B": 9,
    "T": 12,
    "thousand": 3,
    "million": 6,
    "billion": 9,
    "trillion": 12,
}
_EXPONENTS: Mapping[str, Mapping[str, int]] = {
    **dict.fromkeys(("dt_s", "time_s", "step_avg", "spent"), _TIME_EXPONENTS),
    "dt_ms": {"": -3, "ms": -3},
    "dt_us": {"": -6, "us": -6},
    "time_ms": {"": -3, "ms": -3},
    "mfu": {"": 0, "%": 0},
    **dict.fromkeys(("tokens", "tokens_total", "tokens_per_s", "tokens_per_s_device"), _COUNT_EXPONENTS),
    **dict.fromkeys(("samples_per_s", "samples_per_s_device"), _COUNT_EXPONENTS),
}
_NO_UNIT: Mapping[str, int] = {"": 0}

_SCALES = frozenset(name.lower() for name in _COUNT_EXPONENTS) | {"mil", "mio", "mln", "bn", "thousands", "millions"}

_IN_UNIT = re.compile(
    r"(?P<name>.{1,400}?)(?:[ \t_]?[\[(](?P<unit>[A-Za-z]{1,16})[\])]|_(?P<suffix>(?i:ms|msecs?|us|usecs?)))"
)

PARTIAL_WORDS = frozenset(
    name[:length]
    for name in (*_NAMES, "step", "iter", "nan", "inf", "qnan", "snan", "ind", "tokens_per_s", "tok/s", "samples_per_s")
    for length in range(1, len(name) + 1)
    if name[length - 1].isalpha()
)
"""Every beginning of a known word: what may be left of a record that another writer cut short."""


@lru_cache(maxsize=4096)
def field_of(key: str) -> str:
    """Return what a printed key means: a field of ``Record``, one of ``LOSSES``, a name in ``RIVALS``, or ""."""
    name = re.sub(r"[ \t]+", "_", key).lower()
    known = _NAMES.get(name) or _rate(name)
    if known:
        return known
    inside = _IN_UNIT.fullmatch(key)
    if inside is not None:
        name = re.sub(r"[ \t]+", "_", inside["name"]).lower()
        known = _NAMES.get(name) or _rate(name)
        if known:
            return _in_unit(known, inside["unit"] or inside["suffix"])
    words = re.split(r"[_/.-]+", name)
    if words[-1] == "loss" and not EVAL_WORDS.isdisjoint(words) and _OF_ANOTHER_STEP.isdisjoint(words):
        return "val_loss"
    return ""


def is_measured(field: str) -> bool:
    """Say whether a field has units, so that a number whose unit is unknown says nothing."""
    return field in _EXPONENTS


def is_other_word(field: str, unit: str | None) -> bool:
    """Say whether a word that is a unit of time elsewhere says nothing about ``field``: ``lr 3e-4 h``."""
    return unit is not None and not is_measured(field) and (unit in _TIME_EXPONENTS or unit in _LONG)


def exponent_of(field: str, unit: str | None) -> int | None:
    """Return the power of ten between what is printed with ``unit`` and the unit of ``Record``; None: no such unit."""
    return _EXPONENTS.get(field, _NO_UNIT).get(unit or "")


def field_value(field: str, text: str | None, unit: str | None) -> float | None:
    """Return the value of a known field in the unit of ``Record``, or None when number or unit cannot be read.

    ``mfu`` stays in percent as printed; a negative one is a program's word for "unknown", and so is an average over no
    steps. Steps per second become the seconds of a step.
    """
    if unit is not None and unit in _LONG and _EXPONENTS.get(field) is _TIME_EXPONENTS:
        long = parse_printed(text)
        return None if long is None else long * _LONG[unit]
    exponent = exponent_of(field, unit)
    if exponent is None:
        return None
    value = parse_printed(text, exponent)
    if value is None or (field == "mfu" and value < 0):
        return None
    if field == "step_avg" and not math.isfinite(value):
        return None
    if field == "time_s" and value >= _A_DATE_S:
        return None
    if field == "steps_per_s":
        return 1.0 / value if value > 0 and math.isfinite(value) else None
    return value


def _rate(name: str) -> str:
    """Return the field of a name that says "per second"; "" for any other."""
    counted, seconds, device = "", 0, False
    for word in re.split(r"[/_]+", name):
        if word in _COUNTED and not counted and not seconds:
            counted = _COUNTED[word]
        elif word in _SECONDS:
            seconds += 1
        elif word in _DEVICES:
            device = True
        elif word not in _FILLERS:
            return ""
    if not counted or seconds != 1:
        return ""
    if device:
        return "" if counted == "steps_per_s" else f"{counted}_device"
    return counted


def _in_unit(field: str, unit: str) -> str:
    """Return the field for a name with its unit in brackets or at its end: ``iter time (s)``, ``(ms)``, ``(tgs)``."""
    if field in {"dt_s", "time_s", "step_avg"}:
        exponent = _TIME_EXPONENTS.get(unit.lower())
        if exponent == 0:
            return field
        if field == "step_avg" or exponent not in {-3, -6}:
            return ""
        return f"{field[:-1]}ms" if exponent == -3 else "dt_us"  # milli
    if field in RIVALS["tokens_per_s"] or field in RIVALS["samples_per_s"]:
        return "" if unit.lower() in _SCALES else field
    return field if field in {"grad_norm", "mfu"} else ""
