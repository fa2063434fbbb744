"""What a manifest says beside the list of files: how far a run has come, its last figures, and under what conditions.

Kept while a training goes on, taken over from the checkpoint that it resumes from; nothing is saved or printed here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overnight.checkpoint import environment
from overnight.checkpoint.given import Given
from overnight.checkpoint.manifest import Manifest
from overnight.checkpoint.resuming import Start

UNBROKEN = frozenset({"stop", "end"})
"""Reasons of a save after which a training ended on purpose; to go on from any other is to go on after a failure."""


@dataclass(kw_only=True)
class Account:
    """One training's account. ``trained_s`` in seconds over all its lives, ``failures`` how many of them broke off."""

    given: Given
    config: Any
    exempt: Sequence[str] = ()
    trained_s: float = 0.0
    failures: int = 0
    batches_per_step: int = 1
    _since: float | None = None

    def __post_init__(self) -> None:
        self._figures: dict[str, Any] = {}

    def go_on(self, known: Manifest) -> None:
        """Take over what the checkpoint says that a training resumes from."""
        self.exempt = tuple(dict.fromkeys((*known.exempt, *self.exempt)))
        self.trained_s = float(known.progress.get("trained_s", 0.0))
        self.failures = int(known.progress.get("failures", 0)) + (known.reason not in UNBROKEN)
        self.batches_per_step = int(known.progress.get("batches_per_step", 1))

    @property
    def begun(self) -> bool:
        """Whether training has begun in this life."""
        return self._since is not None

    def begin(self) -> None:
        """Take in that training begins now, if it has not."""
        self._since = time.monotonic() if self._since is None else self._since

    def note(self, figures: dict[str, Any]) -> None:
        """Remember the figures of a step, as they are now: a meter may be zeroed before the next save."""
        for name, value in figures.items():
            if type(value) is not float and type(value) is not int:
                figures[name] = _number(value)
        self._figures.update(figures)

    def facts(self) -> dict[str, Any]:
        """Return under what conditions it trains."""
        return environment.facts(loader=self.given.loader, world_size=environment.world_size())

    def draft(self, step: int, start: Start, reason: str) -> Manifest:
        """Return the manifest of a save, all but what only writing it tells; figures belong to one save only."""
        metrics = {name: value for name, value in self._figures.items() if type(value) in (int, float)}
        self._figures.clear()
        since_s = 0.0 if self._since is None else time.monotonic() - self._since
        progress = {
            "epoch": 0 if self.given.position is None else self.given.position.epoch,
            "trained_s": self.trained_s + since_s,
            "failures": self.failures,
            "batches_per_step": self.batches_per_step,
        }
        return Manifest(
            step=step,
            run=start.run,
            number=start.number,
            generation=start.generation,
            ancestors=start.ancestors,
            saved_at="",
            reason=reason,
            metrics=metrics,
            progress=progress,
            exempt=self.exempt,
            healthy=_is_finite(metrics.get("loss", 0.0)),
            environment=self.facts(),
            versions=environment.versions(),
            config=self.config,
        )


def _number(value: Any) -> Any:
    """Return the number that a tensor or scalar holds; anything else as it is, for whoever prints it to judge."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        number = value.item() if hasattr(value, "item") else value
        return number if type(number) is int else float(number)
    return value


def _is_finite(value: float) -> bool:
    return value - value == 0
