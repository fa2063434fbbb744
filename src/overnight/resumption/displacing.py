"""Whether one more save would take the place of the last healthy ones: then a script must not be let save in trouble.

Pure: what is known of the saves comes in, and which of them are there. A script that is asked to end saves what it has,
over its only file, or beside it and then removes the oldest; nobody can tell it that its weights are not worth that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from overnight.inspector import naming
from overnight.resumption.known import KnownSave, SavesBook

FEW: Final = 2
"""One save may be going on just now, and the one at the signal comes after it: so many may be removed."""

LOOKED_AT: Final = 20


def displaced(book: SavesBook, there: Callable[[str], bool]) -> KnownSave | None:
    """Return the newest healthy save if one or two more saves may leave none; None if they leave one, or none is there.

    ``there`` says whether a path exists; it is asked about the newest saves only.
    """
    known = book.saves[-LOOKED_AT:]
    present = [one for one in known if there(one.path)]
    healthy = [one for one in present if book.usable(one)]
    if not healthy or len(healthy) > FEW or any(one.maker == "overnight" for one in present):
        return None  # the library does as it is told
    rotating = len(present) < len(known)
    fixed = all(one.path in book.again or _unnumbered(one.path) for one in healthy)
    return healthy[-1] if rotating or fixed else None


def _unnumbered(path: str) -> bool:
    """Say whether a name counts nothing, so that the next save may well be given the same."""
    said = naming.read(path.rpartition("/")[2])
    return said.step is None and said.epoch is None and not said.others
