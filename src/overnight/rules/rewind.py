"""A training that goes back: the program itself has loaded an earlier checkpoint, or has skipped data after a spike.

Only the step is looked at. A restart by Overnight is no such thing, and neither is a program that counts anew in each
epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Fall, Memory, on_record

_MOST: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewind:
    """A step below the one before within an attempt: a note, once per attempt; nothing is dropped and nothing ends.

    A count that begins anew in each epoch is none: it falls to its very beginning (0, 1 or the first line), to the
    first step of an earlier stretch of this attempt, or while the printed epoch rises.
    """

    name: ClassVar[str] = "rewind"

    action: RuleAction = "note"

    def fresh(self) -> Memory:
        """Return a memory without a fall; ``begins`` are the first steps of the stretches so far."""
        return {"told": False, "begins": []}

    def on_fall(self, record: Record, fall: Fall, memory: Memory, /) -> Verdict | None:
        """Return the note on the first line after a fall that is no new count."""
        step = record.step
        if step is None:
            return None
        begins = [fall.first_step, *memory["begins"]]
        memory["begins"] = [*memory["begins"], step][-_MOST:]
        risen = fall.epoch is not None and record.epoch is not None and record.epoch > fall.epoch
        if memory["told"] or risen or step in begins or step <= max(1, fall.interval):
            return None
        memory["told"] = True
        text = f"step went back from {fall.step} to {step}"
        evidence = {"from_step": fall.step, "to_step": step}
        return on_record(self, record, text, severity="note", action=self.action, evidence=evidence)
