"""Texts and numbers that a log may hold and a database may not, as the nearest that it may. Pure."""

from __future__ import annotations

import json
from typing import Any

LONG = 300
"""An integer that no double holds has more digits than these."""


def clean_text(text: str) -> str:
    r"""Return a text that UTF-8 can hold: half of a surrogate pair is shown as ``\ud800``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def number(value: Any) -> Any:
    """Return an integer beyond 64 bits as a float, None if it is beyond those too; everything else as it is."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def clean_extra(extra: dict[str, Any]) -> dict[str, Any]:
    """Return what a line said besides, with keys and values that can be stored."""
    return {clean_text(key): clean_text(one) if isinstance(one, str) else number(one) for key, one in extra.items()}


def read_extra(text: str) -> dict[str, Any]:
    """Return an ``extra`` as the database has it; older versions stored there what they could not pack later."""
    found: dict[str, Any] = json.loads(text)
    return clean_extra(found) if "\\ud" in text or len(text) > LONG else found
