"""A loss that is no number any more: every weight it touches is lost with the next optimizer step.

Only the printed loss is looked at; gradients, eval curves and spikes are other families.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, milder, on_record, spoken, where
from overnight.spec import NonfiniteSignal


@dataclass(frozen=True, kw_only=True, slots=True)
class Nonfinite:
    """NaN or infinite training loss, on any rank: critical, by default ``terminate`` on that very line.

    There is no threshold and no patience. A healthy loss is never NaN; mixed-precision scalers skip a step with
    infinite *gradients*, but their loss before unscaling is finite. Waiting a second line only risks a checkpoint of
    ruined weights, which is why the default does not ask for a save.

    What does not end a run: a NaN of an evaluation (an empty eval set divides by zero; the weights are untouched) is an
    alert, a number that touches a neighbouring record is a note. Each kind is told once per segment.
    ``signal`` is the first signal of the ladder for such an end; whoever ends the run reads it.
    """

    name: ClassVar[str] = "nonfinite"

    action: RuleAction = "terminate"
    signal: NonfiniteSignal = "auto"

    def fresh(self) -> Memory:
        """Return a memory in which nothing was told yet."""
        return {"train": False, "eval": False, "glued": False}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return a verdict for the first non-finite loss of each kind."""
        loss = record.loss
        if loss is None or isfinite(loss):
            return None
        kind = "glued" if record.glued else record.kind
        if memory[kind]:
            return None
        memory[kind] = True
        evidence = {"loss": loss}
        if kind == "glued":
            text = f"loss reads {spoken(loss)} {where(record)}, but it touches another record and is not trusted"
            return on_record(self, record, text, severity="note", action="note", evidence=evidence)
        if kind == "eval":
            text = f"eval loss is {spoken(loss)} {where(record)}"
            return on_record(self, record, text, severity="warn", action=milder(self.action), evidence=evidence)
        text = f"loss is {spoken(loss)} {where(record)}"
        return on_record(self, record, text, severity="critical", action=self.action, evidence=evidence)
