"""JSON of strangers: parsed only where it can neither fill the memory nor be deeper than what reads it may recurse.

A file of 60 MB may become 2 GB of objects; so what it would become is counted before it is parsed. No file is opened
here, and nothing is known about what it should hold.
"""

from __future__ import annotations

import json
from typing import Any

LARGEST = 32 << 20
"""Bytes that are parsed at most: a trainer_state.json of a very long run has 20 MB."""
MOST_SIGNS = 3_000_000
"""Braces, brackets, commas and colons: each becomes some 70 bytes in memory at most."""
DEEPEST = 100


class TooMuch(ValueError):  # noqa: N818 - it may be good JSON
    """It is larger, of more items or deeper than what is read; the words say which."""


def loads(data: bytes, *, once: bool = False) -> Any:
    """Return what some JSON says; ValueError if it is none, TooMuch if it is more than what is read.

    ``once``: an object that names something twice is no JSON either.
    """
    if len(data) > LARGEST:
        raise TooMuch(f"{len(data):,} bytes are more than is read, {LARGEST:,}")
    if len(data) > MOST_SIGNS and sum(map(data.count, (b"{", b"[", b",", b":"))) > MOST_SIGNS:
        raise TooMuch(f"it has more items than are read, {MOST_SIGNS:,}")
    try:
        found = json.loads(data, object_pairs_hook=_once if once else None)
    except RecursionError:
        raise TooMuch("it is deeper than what is read") from None
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(DEEPEST):
        held = (inner for one in level for inner in (one.values() if isinstance(one, dict) else one))
        level = [inner for inner in held if isinstance(inner, (dict, list))]
        if not level:
            return found
    raise TooMuch("it is deeper than what is read")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it names something twice")
    return found
