"""A language model that has forgotten all it knew: its loss is back where guessing evenly among all tokens stands.

Only the way back to ln V lives here; a loss far above it is divergence, a sudden rise is a spike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, log
from typing import ClassVar, Final

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record, spoken, where

FELL: Final = 0.10
"""Below ln V by this part: any language model that learns at all is there within its first hundreds of steps."""

NEAR: Final = 0.02
"""Within this part of ln V, above or below: nothing is known any more."""

LEARNED: Final = 10
"""Records below, more than twice as many as not: one lucky batch does not show that something was learned."""

WINDOW: Final = 20
"""Records near ln V, more than twice as many as not: a spike passes through it in fewer."""

_OTHERWISE: Final = 2  # what a record on the other side takes away from a count: the majority must be clear


@dataclass(frozen=True, kw_only=True, slots=True)
class Collapse:
    """A loss that was 10% below ln V and is back within 2% of it for 20 records: critical, by default ``stop``.

    ``vocab_size`` is V; without it the rule is silent. A model that gives every one of V tokens the same chance has a
    loss of ln V (10.82 for 50,257), so one that comes back there from below and stays has lost what it had learned.

    It does not kill healthy runs: a run that only starts at ln V, and stays for its first thousand steps, was never
    below; ten records must have been. A fine-tuning starts low and never comes near. A spike passes through; every
    record elsewhere takes two off the count. A loss in base 2 passes ln V on its way down, before anything was
    learned. After a restart it has to fall again first. The lowest rank that prints is judged; evaluations, glued
    numbers and losses that are no number change nothing. Told once per segment.
    """

    name: ClassVar[str] = "collapse"

    vocab_size: int | None = None
    action: RuleAction = "stop"
    level: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute ln V once: 0 where there is nothing to guess, and then the rule is silent."""
        object.__setattr__(self, "level", log(self.vocab_size) if self.vocab_size else 0.0)

    @property
    def silent(self) -> bool:
        """Say that there is nothing to judge by, so that nobody need ask on each line of a night."""
        return not self.level

    def fresh(self) -> Memory:
        """Return a memory in which nothing was learned yet."""
        return {"rank": -1, "learned": 0, "near": 0, "told": False}

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where nothing is lost: the counts go on as they would record by record."""
        rank, losses = batch.rank or 0, batch.loss
        if rank != memory["rank"]:
            return len(losses) if 0 <= memory["rank"] < rank else 0, {}
        learned, near, place = memory["learned"], memory["near"], 0
        if learned < LEARNED:
            bound = (1 - FELL) * self.level
            for loss in losses:
                place += 1
                learned = learned + 1 if loss <= bound else max(0, learned - _OTHERWISE)
                if learned == LEARNED:
                    break
        count = len(losses)
        if place < count:
            count, near = self._after(losses[place:], near, told=memory["told"])
            count += place
        return count, {"learned": learned, "near": near}

    def _after(self, losses: list[float], near: int, *, told: bool) -> tuple[int, int]:
        """Return how many losses pass before the verdict is due, and the count of those near ln V after them."""
        level, far = self.level, NEAR * self.level
        low, high = min(losses), max(losses)
        if (high < level and level - high > far) or (low > level and low - level > far):
            return len(losses), max(0, near - _OTHERWISE * len(losses))
        for place, loss in enumerate(losses):
            if abs(loss - level) > far:
                near = max(0, near - _OTHERWISE)
            elif near + 1 >= WINDOW and not told:
                return place, near
            else:
                near += 1
        return len(losses), near

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return the verdict on the line that makes the return certain."""
        level = self.level
        if not level:
            return None
        loss = record.loss
        if loss is None or record.kind != "train" or record.glued or not -inf < loss < inf:
            return None
        rank = record.rank or 0
        if rank != memory["rank"]:
            if 0 <= memory["rank"] < rank:
                return None
            memory.update(self.fresh(), rank=rank, told=memory["told"])
        learned = memory["learned"]
        if learned < LEARNED:
            below = loss <= (1 - FELL) * level
            memory["learned"] = learned + 1 if below else max(0, learned - _OTHERWISE)
            return None
        near = memory["near"]
        if abs(loss - level) > NEAR * level:
            if near:
                memory["near"] = max(0, near - _OTHERWISE)
            return None
        memory["near"] = near = near + 1
        if near < WINDOW or memory["told"]:
            return None
        memory["told"] = True
        text = (
            f"loss {spoken(loss)} is back at ln({self.vocab_size}) = {spoken(level)} {where(record)}, "
            f"the loss of guessing, for {WINDOW} records"
        )
        evidence = {"loss": loss, "ln_vocab_size": level, "vocab_size": self.vocab_size, "records": WINDOW}
        return on_record(self, record, text, severity="critical", action=self.action, evidence=evidence)
