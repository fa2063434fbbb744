"""What a machine costs after its work is done: for how long nothing of a home has run on it, seen from one ended run.

Computed whenever a status is read; nothing is written. ``ls`` of a thousand runs imports this file, so nothing costly
enters here. Work that no run of the home does is not known here.
"""

from __future__ import annotations

import os
import time

from overnight.kept import ENDED
from overnight.moments import epoch_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Status = dict[str, Any]

HOUR_S = 3600.0


def price_of(one: Status) -> float | None:
    """Return the price of the machine per hour that a run was given; None if it was given none."""
    limits = one.get("limits")
    price = limits.get("price") if isinstance(limits, dict) else None
    return price if isinstance(price, (int, float)) and not isinstance(price, bool) and price > 0 else None


def asks(one: Status) -> bool:
    """Say whether the idle time of a run is worth a look: it has ended here, and the machine has a price."""
    return one["state"] in ENDED and not one.get("foreign") and price_of(one) is not None


def fill(one: Status, last_end: float | None, *, now: float | None = None, up_s: float | None = None) -> None:
    """Put ``idle_s`` and ``idle_cost`` into a status; both stay None where nobody can say.

    ``last_end``: when the last of all runs of the home was over (seconds since the epoch), None while one goes on.
    Time in which the machine was off costs nothing: it counts from its start at the earliest, ``up_s`` seconds ago.
    """
    price, ended = price_of(one), epoch_of(one.get("ended_at"))
    if price is None or ended is None:
        return
    idle_s = 0.0
    if last_end is not None:
        idle_s = max(0.0, (time.time() if now is None else now) - max(ended, last_end))
        up_s = _uptime_s() if up_s is None else up_s
        idle_s = idle_s if up_s is None else min(idle_s, up_s)
    one["idle_s"] = round(idle_s, 3)
    one["idle_cost"] = price * one["idle_s"] / HOUR_S


def last_end(runs: Iterable[Status]) -> float | None:
    """Return when the last of these runs was over; None while one of them goes on, 0.0 if there are none."""
    latest = 0.0
    for one in runs:
        if goes_on(one):
            return None
        latest = max(latest, epoch_of(one.get("ended_at")) or 0.0)
    return latest


def last_end_beside(own: Status, runs: str, look: Callable[[str], Status]) -> float | None:
    """Return the same for one run and all others of its home; only those that were written to since its end are read.

    ``runs`` is the folder of all runs. One that goes on writes its status every few seconds, an ended one no more.
    """
    ended = epoch_of(own.get("ended_at")) or 0.0
    try:
        names = [name for name in os.listdir(runs) if name[0] != "." and name != own["name"]]
    except OSError:
        names = []
    late = (name for name in names if _written_at(f"{runs}/{name}") > ended)
    return last_end([own, *map(look, late)])


def goes_on(one: Status) -> bool:
    """Say whether a run is at work on this machine, as far as its status and its keepers tell."""
    return one["state"] not in (*ENDED, "damaged") and not one.get("stale") and not one.get("foreign")


def _written_at(path: str) -> float:
    for name in ("status.json", "run.json"):
        try:
            return os.stat(f"{path}/{name}").st_mtime
        except OSError:
            continue
    return 0.0


def _uptime_s() -> float | None:
    try:
        with open("/proc/uptime", "rb") as stream:
            return float(stream.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
