"""Keeps a restless night from filling somebody's phone: few events a minute, and one that counts the others.

Pure: time is an argument. What an event is, and who is told, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVENTS_A_MINUTE = 4
MINUTE_S = 60.0


class Fold:
    """At most ``limit`` events in ``period_s``; what comes beyond that is counted, and told as one event later."""

    def __init__(self, *, limit: int = EVENTS_A_MINUTE, period_s: float = MINUTE_S) -> None:
        self.limit = limit
        self.period_s = period_s
        self.times: list[float] = []
        self.held: dict[str, Any] | None = None

    def offer(self, event: str, now: float, details: Mapping[str, Any], *, hold: bool = False) -> bool:
        """Say whether this event is to be told now; one that is not (or that is to be held anyway) is held."""
        if self.held is None and not hold and self._room(now):
            self.times.append(now)
            return True
        held = self.held or {"count": 0, "kinds": {}}
        kinds = {**held["kinds"], event: held["kinds"].get(event, 0) + 1}
        self.held = {"count": held["count"] + 1, "kinds": kinds, "last": {"event": event, **details}}
        return False

    def due_s(self, now: float) -> float | None:
        """Return the seconds until what is held may be told; None if nothing is."""
        if self.held is None:
            return None
        return 0.0 if self._room(now) else max(0.0, self.times[0] + self.period_s - now)

    def take(self, now: float) -> dict[str, Any] | None:
        """Return what is held, {count, kinds, last}, if it may be told now."""
        if self.held is None or not self._room(now):
            return None
        self.times.append(now)
        return self.flush()

    def flush(self) -> dict[str, Any] | None:
        """Return what is held, whether it may be told now or not."""
        held, self.held = self.held, None
        return held

    def restore(self, written: Mapping[str, Any], now: float) -> None:
        """Go on from what another one's ``times`` and ``held`` were."""
        self.times = [at for at in written["times"] if at <= now]  # later ones are of an earlier boot
        held = written["held"]
        if held is not None:
            self.held = {"count": int(held["count"]), "kinds": dict(held["kinds"]), "last": dict(held["last"])}

    def _room(self, now: float) -> bool:
        self.times = [at for at in self.times if now - at < self.period_s]
        return len(self.times) < self.limit
