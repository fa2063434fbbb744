"""What rules know of an attempt that helps them to judge the next one, if that goes on where the other was.

Pure. A rule that learns what is usual would be blind for its first records after each restart, and a run is taken back
to just before its trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from overnight.events import Record
from overnight.rules import Memory, RecordRule


class Carried:
    """Memories by rule; empty once the next attempt has shown its first step. The run's own first step is ``first``."""

    __slots__ = ("first", "memories")

    def __init__(self, memories: dict[str, Memory] | None = None, first: int | None = None) -> None:
        self.memories = memories or {}
        self.first = first

    def on(self, asked: Iterable[tuple[RecordRule, Memory]], first: int | None) -> Carried:
        """Return what the rules ``asked`` hand on; ``first`` is the first step of the attempt that is over."""
        # Of the type, for a plug-in's memory is its own.
        found = {rule.name: carry(memory) for rule, memory in asked if (carry := getattr(type(rule), "carry", None))}
        known = [step for step in (self.first, first) if step is not None]
        return Carried({name: one for name, one in found.items() if one is not None}, min(known, default=None))

    def take(self, record: Record) -> dict[str, Memory]:
        """Return the memories if ``record``, the first of the next attempt with a step, shows that it goes on."""
        if record.kind != "train" or record.strange or record.glued:
            return {}
        memories, self.memories = self.memories, {}
        known = self.first is not None and record.step is not None
        return memories if known and (record.step or 0) > (self.first or 0) else {}

    def snapshot(self) -> list[Any]:
        """Return all of it as builtins."""
        return [self.memories, self.first]

    @classmethod
    def restore(cls, state: list[Any]) -> Carried:
        """Return what was a snapshot."""
        memories, first = state
        return cls({name: dict(memory) for name, memory in memories.items()}, first)
