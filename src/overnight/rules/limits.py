"""Limits that the user set on a run as a whole; reaching one is no illness.

Here the limit on active time; a limit never counts as a fault, and its end always asks for a save.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

from overnight.events import RuleAction, Verdict
from overnight.rules import Memory, Moment, spoken

_HOUR_S: Final = 3600.0
_MINUTE_S: Final = 60.0

_SAVES: Final = 1.5  # the last save may be slower than the one before it: more to write, a busier disk
_MARGIN_S: Final = 2.0  # signal, handler, end of the process
_MOST: Final = 0.5  # however slow a save is, half of the time is trained


@dataclass(frozen=True, kw_only=True, slots=True)
class WallClock:
    """At most ``max_s`` seconds of active time, all attempts together: by default ``stop``, with a save.

    There is no default limit, so a run that was given none is never ended by it. The stop begins early enough for the
    save that was measured to be over when the limit comes: one and a half saves, one step that has to end first, and
    two seconds, but never more than half of the limit. While no save was measured it begins at the limit. Fires once.
    """

    name: ClassVar[str] = "wall_clock"

    max_s: float | None = None
    action: RuleAction = "stop"

    def fresh(self) -> Memory:
        """Return a memory in which the limit was not reached yet."""
        return {"told": False}

    def lead_s(self, moment: Moment, /) -> float:
        """Return how many seconds before the limit the stop has to begin."""
        if self.max_s is None or moment.save_s is None:
            return 0.0
        return min(_SAVES * moment.save_s + (moment.step_s or 0.0) + _MARGIN_S, _MOST * self.max_s)

    def due_s(self, moment: Moment, memory: Memory | None = None, /) -> float:
        """Return the seconds until the stop has to begin, 0 or less when it is due; infinite for never or once told."""
        if self.max_s is None or (memory is not None and memory["told"]):
            return inf
        return self.max_s - self.lead_s(moment) - moment.active_s

    def on_time(self, moment: Moment, memory: Memory, /) -> Verdict | None:
        """Return the verdict once, when the stop has to begin."""
        if self.max_s is None or memory["told"] or self.due_s(moment) > 0:
            return None
        memory["told"] = True
        early_s = self.max_s - moment.active_s
        evidence = {"active_s": moment.active_s, "max_s": self.max_s, "save_s": moment.save_s}
        text = f"wall-clock limit of {span(self.max_s)} reached"
        if early_s > 0 and moment.save_s is not None:
            text = (
                f"wall-clock limit of {span(self.max_s)}: stopping {span(early_s)} early, "
                f"the last save took {span(moment.save_s)}"
            )
        return Verdict(rule=self.name, severity="warn", action=self.action, text=text, at=moment.at, evidence=evidence)


def span(seconds: float) -> str:
    """Return a length of time for a sentence: 28800.0 -> "8 h", 600.0 -> "10 min", 21.04 -> "21 s"."""
    if seconds >= _HOUR_S:
        return f"{spoken(round(seconds / _HOUR_S, 2))} h"
    if seconds >= 5 * _MINUTE_S:
        return f"{spoken(round(seconds / _MINUTE_S, 1))} min"
    return f"{spoken(round(seconds, 0 if seconds >= 5 else 2))} s"
