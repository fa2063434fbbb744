"""Whether one more save would take the place of the last healthy ones: then a script must not be let save in trouble.

Pure: what is known of the saves comes in, and which of them are there. A script that is asked to end saves what it has,
over its only file, or beside it and then removes the oldest; nobody can tell it that its weights are not worth that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from overnight.inspector import naming
from overnight.resumption.known import KnownSave, SavesBook

FEW: Final = 2
"""One save may be going on just now, and the one at the signal comes after it: so many may be removed."""

LOOKED_AT: Final = 20

ROTATED: Final = 2
"""So many of the oldest of a series are gone before it is taken for a rotation: one may be removed by hand."""

_BESIDE: Final = re.compile(
    r"(?<![a-z])e(?:p(?:och)?)?[-_=]?\d+|\d+\.\d+|20\d{6}|20\d\d(?:-\d\d)+|\d{6}", re.IGNORECASE
)


def displaced(book: SavesBook, there: Callable[[str], bool], *, reached: int | None = None) -> KnownSave | None:
    """Return the newest healthy save if one or two more saves may leave none; None if they leave one, or none is there.

    ``there`` says whether a path exists; it is asked about the newest saves only. ``reached`` is the last step that the
    run has printed, None where nobody knows: a save of a step beyond is another run's.
    """
    known = [one for one in book.saves if one.step is None or reached is None or one.step <= reached][-LOOKED_AT:]
    present = {one.path for one in known if there(one.path)}
    if any(one.maker == "overnight" for one in known if one.path in present):
        return None  # the library does as it is told
    healthy = [one for one in known if one.path in present and book.usable(one)]
    for some in _series(known):
        left = [one for one in some if one in healthy]
        fixed = all(one.path in book.again or (len(some) == 1 and _unnumbered(one.path)) for one in left)
        if left and not fixed and (len(left) > FEW or not _rotates(some, present)):
            return None
    return healthy[-1] if healthy else None


def _series(known: Sequence[KnownSave]) -> list[list[KnownSave]]:
    """Return the saves by series, each oldest first: those of one folder whose names differ only in what counts."""
    forms: dict[tuple[str, str], dict[str, list[KnownSave]]] = {}
    for one in known:
        folder, _, name = one.path.rpartition("/")
        forms.setdefault((folder, naming.form(name)), {}).setdefault(_constant(one, name), []).append(one)
    found: list[list[KnownSave]] = []
    for parts in forms.values():
        each = list(parts.values())
        # Where no two have the same number beside the step, that one counts, too (an epoch).
        found += each if any(len(some) > 1 for some in each) else [[one for some in each for one in some]]
    return found


def _constant(save: KnownSave, name: str) -> str:
    """Return the name of a save without its step, and what differs beside that: an epoch, a loss, a time.

    Where no number in it is the step, each may count.
    """
    without = name if save.step is None else re.sub(rf"(?<!\d)0*{save.step}(?!\d)", "#", name)
    return naming.form(name) if without == name else _BESIDE.sub("#", without)


def _rotates(some: Sequence[KnownSave], present: Collection[str]) -> bool:
    """Say whether the oldest of a series, and these only, have been removed, more than once."""
    there = [one.path in present for one in some]
    gone = there.index(True) if True in there else 0
    return gone >= ROTATED and all(there[gone:])


def _unnumbered(path: str) -> bool:
    """Say whether a name counts nothing, so that the next save may well be given the same."""
    said = naming.read(path.rpartition("/")[2])
    return said.step is None and said.epoch is None and not said.others
