"""The step at which the user wants a run to end; reaching it is no illness.

Only the step is looked at; the planned number of steps (``steps``) is not a limit and never ends a run.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar

from overnight.batches import Batch
from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, on_record


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxSteps:
    """At most ``max_steps`` optimizer steps: by default ``stop``, with a save, on the line of that step. Severity warn.

    There is no default limit, so a run that was given none is never ended by it: it does not end healthy runs that
    nobody limited. Any rank's training line counts; a glued number does not, it may be half of another one. Fires once
    per segment and limit, so that a run which is started again behind its limit is ended again.
    """

    name: ClassVar[str] = "max_steps"

    max_steps: int | None = None
    action: RuleAction = "stop"

    @property
    def silent(self) -> bool:
        """Say that there is nothing to judge by, so that nobody need ask on each line of a night."""
        return self.max_steps is None

    def fresh(self) -> Memory:
        """Return a memory in which the limit was not reached yet."""
        return {"told": 0}

    def calm(self, batch: Batch, memory: Memory, /) -> tuple[int, Memory]:
        """Return up to where the limit is not reached, or everything behind it once it was told."""
        limit = self.max_steps
        if limit is None or memory["told"] == limit:
            return len(batch), {}
        return bisect_left(batch.steps, limit), {}

    def __call__(self, record: Record, memory: Memory, /) -> Verdict | None:
        """Return the verdict on the first line at or behind the limit."""
        limit = self.max_steps
        if limit is None:
            return None
        step = record.step
        if step is None or step < limit or memory["told"] == limit:
            return None
        if record.kind != "train" or record.glued:
            return None
        memory["told"] = limit
        text = f"step limit of {limit} reached"
        return on_record(self, record, text, severity="warn", action=self.action, evidence={"max_steps": limit})
