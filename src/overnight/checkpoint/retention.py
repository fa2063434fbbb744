"""Which checkpoints a run may let go of. Pure: manifests in, names out.

Kept are the last k, the best k by a metric, every n-th step; and whatever is asked for, the newest one and the last
healthy one: a run that saves NaN every ten minutes keeps the weights it had before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from overnight.checkpoint.errors import UsageError
from overnight.checkpoint.jobs import Keep
from overnight.checkpoint.manifest import Manifest


def asked_for(*, last: Any, best: Any, metric: str | None, mode: str, every: Any) -> Keep:
    """Return what is to be kept; UsageError for numbers that could remove more than anybody meant to."""
    for name, value in (("keep_last", last), ("keep_best", best), ("keep_every", every)):
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{name} cannot be {value!r}: give a number of at least 1, or None")
    if mode not in ("min", "max"):
        raise UsageError(f"mode cannot be {mode!r}: give 'min' or 'max'")
    if best is not None and metric is None:
        raise UsageError("keep_best needs metric: the name of a figure that report() is given, such as 'val_loss'")
    return Keep(last=last, best=(best or 1) if metric else 0, metric=metric, mode=mode, every=every)


def with_last(known: Manifest, last: int) -> Keep:
    """Return what a run itself keeps, as a manifest of it says, but ``last`` of the last ones."""
    kept = known.keep
    best, metric, mode, every = (kept.get(name) for name in ("best", "metric", "mode", "every"))
    try:
        return asked_for(last=last, best=best or None, metric=metric, mode=mode or "min", every=every)
    except UsageError:  # a manifest that somebody has made
        return Keep(last=last)


def removable(known: Mapping[str, Manifest], keep: Keep) -> list[str]:
    """Return the names, oldest first, of what need not be kept of a run's verified checkpoints (name: manifest)."""
    if keep.last is None or not known:
        return []
    latest = max(known.values(), key=lambda one: one.order)
    # What was left behind when the run was taken back goes first, not what it was taken back to.
    names = sorted(known, key=lambda name: (known[name].led_to(latest), known[name].order))
    kept = {*names[-max(1, keep.last) :], *[name for name in names if known[name].healthy][-1:], *_best(known, keep)}
    if keep.every is not None:
        kept.update(name for name in names if known[name].step % keep.every == 0)
    return [name for name in names if name not in kept]


def _best(known: Mapping[str, Manifest], keep: Keep) -> list[str]:
    if keep.metric is None or not keep.best:
        return []
    sign = -1.0 if keep.mode == "max" else 1.0
    values = {name: one.metrics.get(keep.metric) for name, one in known.items() if one.healthy}
    numbers = {
        name: sign * value
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    # Of two that are equally good the later one has learned more.
    return sorted(numbers, key=lambda name: (numbers[name], [-part for part in known[name].order]))[: keep.best]
