"""How far a stretch of records is calm: the steps rise, the losses are numbers, and no rule has anything to say.

Nothing is judged and nothing remembered here: the rules say what they would. No clock, no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from operator import lt
from typing import Final

from overnight.batches import Batch
from overnight.rules import CalmRule, Memory

FEW: Final = 24
"""Records below which reading and judging them one by one is as fast."""

MOST: Final = 1024
"""Records to ask about at once: where one of them is odd, those before it are asked about again."""


def calm_part(batch: Batch, rules: Sequence[tuple[CalmRule, Memory]], least: int) -> tuple[Batch, list[Memory]] | None:
    """Return the first records of ``batch`` that are calm, and what changes in the memory of each rule after them.

    None if there are fewer than ``least``.
    """
    count = _plain(batch)
    while count >= max(1, least):
        if count < len(batch):
            batch = batch.part(0, count, attempt=batch.attempt, segment=batch.segment)
        changes: list[Memory] = []
        for rule, memory in rules:
            calm, changed = rule.calm(batch, memory)
            if calm < count:  # fewer: all are asked anew, for what they remember is of too many
                count = calm
                break
            changes.append(changed)
        else:
            return batch, changes
    return None


def _plain(batch: Batch) -> int:
    """Return how many of the first records have rising steps and losses that are numbers other than 0."""
    steps, losses = batch.steps, batch.loss
    count = len(steps)
    if not all(map(lt, steps, steps[1:])):
        count = next(place for place, (one, other) in enumerate(pairwise(steps), 1) if one >= other)
    if 0.0 in losses or not isfinite(sum(losses)):  # a sum that overflows is looked into, and nothing found
        odd = next((place for place, loss in enumerate(losses) if loss == 0 or not isfinite(loss)), count)
        count = min(count, odd)
    return count
