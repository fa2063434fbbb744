"""What the names and units in front of and behind the numbers mean. A table of words; no line is read here."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from overnight.readers.numbers import parse_printed

if TYPE_CHECKING:
    from collections.abc import Mapping

UNIT = r"(?:msecs?|ms|usecs?|us|µs|μs|secs?|seconds?|s|%|[kKMGBT])"

EVAL_WORDS = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "dev"})

_NAMES: Mapping[str, str] = {
    "loss": "loss",
    "train_loss": "train_loss",
    "training_loss": "train_loss",
    "train/loss": "train_loss",
    "dt": "dt_s",
    "dt_s": "dt_s",
    "dt_ms": "dt_ms",
    "step_time": "dt_s",
    "step_time_s": "dt_s",
    "step_time_ms": "dt_ms",
    "lr": "lr",
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "gradnorm": "grad_norm",
    "gradient_norm": "grad_norm",
    "gnorm": "grad_norm",
    "norm": "grad_norm",
    "tokens": "tokens",
    "tokens_per_s": "tokens_per_s",
    "tokens_per_sec": "tokens_per_s",
    "tokens_per_second": "tokens_per_s",
    "tokens/s": "tokens_per_s",
    "tokens/sec": "tokens_per_s",
    "tok_per_s": "tokens_per_s",
    "tok_per_sec": "tokens_per_s",
    "tok/s": "tokens_per_s",
    "tok/sec": "tokens_per_s",
    "samples_per_s": "samples_per_s",
    "samples_per_sec": "samples_per_s",
    "samples_per_second": "samples_per_s",
    "samples/s": "samples_per_s",
    "samples/sec": "samples_per_s",
    "mfu": "mfu",
    "bf16_mfu": "mfu",
    "epoch": "epoch",
    "rank": "rank",
}

# Powers of ten that the units stand for.
_TIME_EXPONENTS: Mapping[str, int] = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 0),
    **dict.fromkeys(("ms", "msec", "msecs"), -3),
    **dict.fromkeys(("us", "usec", "usecs", "µs", "μs"), -6),  # micro sign and Greek mu
}
_COUNT_EXPONENTS: Mapping[str, int] = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12}
_EXPONENTS: Mapping[str, Mapping[str, int]] = {
    "dt_s": _TIME_EXPONENTS,
    "dt_ms": {"": -3, "ms": -3},
    "mfu": {"": 0, "%": 0},
    "tokens": _COUNT_EXPONENTS,
    "tokens_per_s": _COUNT_EXPONENTS,
    "samples_per_s": _COUNT_EXPONENTS,
}
_NO_UNIT: Mapping[str, int] = {"": 0}

PARTIAL_WORDS = frozenset(
    name[:length]
    for name in (*_NAMES, "step", "iter", "nan", "inf", "qnan", "snan", "ind", "time")
    for length in range(1, len(name) + 1)
    if name[length - 1].isalpha()
)
"""Every beginning of a known word: what may be left of a record that another writer cut short."""


@lru_cache(maxsize=4096)
def field_of(key: str) -> str:
    """Return the field that a printed key means: a name of ``Record``, "train_loss", "val_loss", "dt_ms", or ""."""
    name = re.sub(r"[ \t]+", "_", key).lower()
    known = _NAMES.get(name)
    if known is not None:
        return known
    words = re.split(r"[_/.-]+", name)
    if words[-1] == "loss" and not EVAL_WORDS.isdisjoint(words):
        return "val_loss"
    return ""


def exponent_of(field: str, unit: str | None) -> int | None:
    """Return the power of ten between what is printed with ``unit`` and the unit of ``Record``; None: no such unit."""
    return _EXPONENTS.get(field, _NO_UNIT).get(unit or "")


def field_value(field: str, text: str | None, unit: str | None) -> float | None:
    """Return the value of a known field in the unit of ``Record``, or None when number or unit cannot be read.

    ``mfu`` stays in percent as printed; a negative one is a program's word for "unknown".
    """
    exponent = exponent_of(field, unit)
    if exponent is None:
        return None
    value = parse_printed(text, exponent)
    if field == "mfu" and value is not None and value < 0:
        return None
    return value
