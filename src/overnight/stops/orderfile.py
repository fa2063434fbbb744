"""The order to end an attempt as stop.json carries it, for the script and for a supervisor that comes later."""

from __future__ import annotations

from typing import Any

from overnight.events import StopOrder
from overnight.folder import utc


def written_order(order: StopOrder) -> dict[str, Any]:
    """Return the part of stop.json that says why the attempt is being ended, and whether a save is wanted."""
    return {
        "cause": order.cause,
        "save": order.save,
        "at": utc(order.at) if order.at else None,
        "epoch": order.at,
        "text": order.text,
        "now": order.now,
        "by": order.by,
        "place": order.place,
        "rollback": order.rollback,
        "onset": order.onset,
    }


def read_order(written: dict[str, Any]) -> StopOrder:
    """Return the order that a stop.json carries; KeyError, TypeError or ValueError if somebody has edited it."""
    place = written.get("place")
    source, offset, part = (0, 0, 0) if place is None else map(int, place)
    onset = written.get("onset")
    return StopOrder(
        cause=str(written["cause"]),
        save=bool(written["save"]),
        at=float(written.get("epoch") or 0.0),
        text=str(written.get("text") or ""),
        now=bool(written.get("now")),
        by=str(written.get("by") or "rule"),
        place=None if place is None else (source, offset, part),
        rollback=bool(written.get("rollback")),
        onset=None if onset is None else int(onset),
    )
