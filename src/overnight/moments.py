"""Reads times that stand in the files of a run. Light, for the listing of a thousand runs needs it: nothing of ours."""

from __future__ import annotations

_LONGEST = 40


def epoch_of(text: object) -> float | None:
    """Return an RFC 3339 time as seconds since the epoch; None for anything else that somebody may have written."""
    from datetime import datetime

    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
