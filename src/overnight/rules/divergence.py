"""A loss that has left the range in which a model still knows anything.

Only an absolute bound lives here; spikes and slow climbs against a run's own past are other families.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Final

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, milder, on_record, spoken, where

ARMED_AFTER: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A finite training loss above ``max_loss``, on any rank: critical, by default ``terminate``.

    The usual bound is 20 for language models: a model that guesses evenly among V tokens has a loss of ln V, 10.8 for
    50,257 and 12.5 for 262,144, so a run above 20 is worse than knowing nothing. Without a bound the rule is silent,
    because the loss of other trainings (a sum over pixels, say) may be any number.

    It does not kill healthy runs: at the bound is not above it, and it is armed only after five losses at or below
    the bound in the segment, so a loss on another scale, or the first steps of a bad initialisation, only alert.
    ``asked`` says that the user gave the bound; then it holds from the first record. Infinite and NaN losses belong to
    ``nonfinite``. A glued number is only noted and arms nothing; a strange record is not judged. Each kind is told once
    per segment.
    """

    name: ClassVar[str] = "divergence"

    max_loss: float | None = None
    asked: bool = False
    action: RuleAction = "terminate"

    @property
    def silent(self) -> bool:
        """Say whether there is no bound to judge by."""
        return self.max_loss is None

    def fresh(self) -> Memory:
        """Return a memory with no healthy loss in it and nothing told."""
        return {"healthy": 0, "armed": False, "early": False, "glued": False}

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where no loss is above the bound; the losses before it help to arm the rule."""
        losses, bound = batch.loss, self.max_loss
        count = len(losses)
        if bound is None:
            return count, {}
        if max(losses) > bound:
            count = next(place for place, loss in enumerate(losses) if loss > bound)
        healthy = memory["healthy"]
        return count, {"healthy": min(ARMED_AFTER, healthy + count)} if healthy < ARMED_AFTER else {}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return a verdict for the first loss above the bound of each kind."""
        loss, bound = record.loss, self.max_loss
        if loss is None or bound is None or record.kind != "train" or record.strange or not isfinite(loss):
            return None
        if loss <= bound:
            if memory["healthy"] < ARMED_AFTER and not record.glued:
                memory["healthy"] += 1
            return None
        armed = self.asked or memory["healthy"] >= ARMED_AFTER
        kind = "glued" if record.glued else "armed" if armed else "early"
        if memory[kind]:
            return None
        memory[kind] = True
        evidence = {"loss": loss, "max_loss": bound}
        text = f"loss {spoken(loss)} is above {spoken(bound)} {where(record)}"
        if kind == "glued":
            text += ", but it touches another record and is not trusted"
            return on_record(self, record, text, severity="note", action="note", evidence=evidence)
        if kind == "early":
            text += f", after only {memory['healthy']} of the {ARMED_AFTER} losses below it that arm this rule"
            return on_record(self, record, text, severity="warn", action=milder(self.action), evidence=evidence)
        return on_record(self, record, text, severity="critical", action=self.action, evidence=evidence)
