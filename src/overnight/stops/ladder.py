"""The stop ladder as values: which rung comes next, decided from what is seen. Pure; ``stopping.py`` carries it out.

    asked   the first signal went to the training processes                     at 0
    other   the other of SIGINT and SIGTERM, for a target that was deaf         at half the grace
            (SIGABRT, which prints its stacks, for one that hangs)
    kill    SIGKILL to everything that is left                                  at the end of the grace

A growing checkpoint file holds the ladder where it is, up to ``grace_max_s``: whoever kills a save loses what the whole
stop was for. A second stop by the user climbs one rung, but waits for the save as well; ``now`` waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Rung = Literal["asked", "other", "kill"]
NEXT: dict[Rung, Rung] = {"asked": "other", "other": "kill", "kill": "kill"}

GROWTH_S = 10.0
"""A file that has not grown for this long is no longer being saved."""

TALK_S = 60.0
"""No hang is found sooner after its last step, unless the user gave a shorter limit."""


def talked(log_grew_at: float | None, found_at: float, limits_s: Sequence[float | None]) -> bool:
    """Say whether the log of a hang that was found at ``found_at`` has grown since its last step.

    ``limits_s`` are the user's own, where given.
    """
    least_s = min([TALK_S, *(0.8 * limit_s for limit_s in limits_s if limit_s is not None)])
    return log_grew_at is not None and log_grew_at > found_at - least_s


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen at one moment. Times are seconds on the boot clock; None means it never happened."""

    now: float
    file_grew_at: float | None = None
    log_grew_at: float | None = None
    catches: bool = True

    def saving(self) -> bool:
        """Say whether a file of the training is still growing."""
        return self.file_grew_at is not None and self.now - self.file_grew_at < GROWTH_S


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stop stands. ``impatience`` counts further stops by the user that have not been obeyed yet.

    ``hangs``: what is ended has not moved for long, so a handler that it has installed proves nothing. ``talks``: its
    log grows although it hangs, so that what comes after the signal is no answer to it.
    """

    began: float
    grace_s: float
    grace_max_s: float
    rung: Rung = "asked"
    hangs: bool = False
    talks: bool = False
    impatience: int = 0
    at_once: bool = False

    def urged(self, *, at_once: bool = False) -> Ladder:
        """Return the ladder after another request to stop."""
        if at_once:
            return msgspec.structs.replace(self, at_once=True)
        return msgspec.structs.replace(self, impatience=self.impatience + 1)

    def climb(self, look: Look) -> Ladder | None:
        """Return the ladder one rung (or more) up if it is time for it, otherwise None."""
        if self.rung == "kill":
            return None
        if self.at_once:
            return self._at("kill")
        if look.now - self.began >= self.grace_max_s:
            return self._at("kill")
        if look.saving():
            return None
        if look.now - self.began >= self.grace_s:
            return self._at("kill")
        if self.impatience > 0:
            return msgspec.structs.replace(self, rung=NEXT[self.rung], impatience=self.impatience - 1)
        deaf = (self.hangs or not look.catches) and self._silent(look)
        if self.rung == "asked" and deaf and look.now - self.began >= self.grace_s / 2:
            return self._at("other")
        return None

    def next_look_s(self, now: float) -> float:
        """Return the seconds after which the ladder wants to be asked again."""
        waits = [self.began + self.grace_s - now, self.began + self.grace_max_s - now]
        if self.rung == "asked":
            waits.append(self.began + self.grace_s / 2 - now)
        soonest = min((wait for wait in waits if wait > 0), default=0.05)
        return max(0.01, min(soonest, 0.5))

    def _at(self, rung: Rung) -> Ladder:
        return msgspec.structs.replace(self, rung=rung, impatience=0)

    def _silent(self, look: Look) -> bool:
        told = (look.file_grew_at,) if self.talks else (look.file_grew_at, look.log_grew_at)
        return all(at < self.began for at in told if at is not None)
