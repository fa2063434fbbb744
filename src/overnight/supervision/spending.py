"""What a run has used so far: seconds of its command over all attempts, seconds since its launch, money.

Both are counted on the kernel's own clock since boot, which no setting of the time moves and which goes on in suspend.
What earlier attempts and earlier boots used is in the journal, so that neither a restart nor a reboot starts it anew.
"""

from __future__ import annotations

import time

from overnight.clocks import uptime_s
from overnight.facts import Facts
from overnight.processes import boot_id
from overnight.supervision.attempt import Attempt


class Spending:
    """The account of one run."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        if facts.clock is None:
            self.begin_boot(0.0)

    def begin_boot(self, elapsed_s: float) -> None:
        """Write down where the count stands as this boot (or the run) begins: ``elapsed_s`` seconds are used."""
        self.facts.say("clock", elapsed_s=elapsed_s, uptime_s=uptime_s(), epoch=time.time(), boot_id=boot_id())

    def active_s(self, attempt: Attempt | None) -> float:
        """Return the seconds that the command has run, all attempts together."""
        current = 0 if attempt is None else attempt.number
        earlier_s = sum(seconds for number, seconds in self.facts.seconds().items() if number != current)
        return earlier_s + (0.0 if attempt is None else attempt.active_s())

    def elapsed_s(self, attempt: Attempt | None) -> float:
        """Return the seconds since the launch, back-off included; those of an ended run stand still."""
        return self.used_s(attempt)[1]

    def used_s(self, attempt: Attempt | None) -> tuple[float, float]:
        """Return both, ``active_s`` and ``elapsed_s``: asked for at every turn, and each look at the clock costs."""
        ended, clock = self.facts.ended or {}, self.facts.clock or {}
        active_s = self.active_s(attempt)
        if isinstance(ended.get("elapsed_s"), (int, float)):
            return active_s, float(ended["elapsed_s"])
        since_s = 0.0
        if clock.get("boot_id") == boot_id():
            since_s = max(0.0, round(uptime_s() - clock["uptime_s"], 3))
        return active_s, max(float(clock.get("elapsed_s", 0.0)) + since_s, active_s)

    def elapsed_before_s(self, last_life: float) -> float:
        """Return what was used up to the last sign of life (since the epoch) in an earlier boot.

        The time in which the machine was off is nobody's.
        """
        clock = self.facts.clock or {}
        since_s = max(0.0, last_life - clock["epoch"]) if clock.get("epoch") else 0.0
        return float(clock.get("elapsed_s", 0.0)) + since_s
