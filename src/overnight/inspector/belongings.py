"""Whether everything in a folder is part of the one checkpoint that it is: somebody may keep his own things there.

Names only: nothing is opened but a manifest of ours, and no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from overnight.checkpoint import manifest as manifests
from overnight.checkpoint.errors import DamagedError
from overnight.inspector import accelerate, lightning, orbax, trainer
from overnight.inspector.source import why

MOST_ENTRIES = 200_000
DCP = re.compile(r"\.metadata|__\d+_\d+\.distcp")
_KNOWN: Mapping[str, re.Pattern[str]] = {
    "trainer": trainer.BELONGS,
    "accelerate": accelerate.BELONGS,
    "lightning": lightning.BELONGS,
    "dcp": DCP,
    "orbax": orbax.BELONGS,
}


def stranger(path: Path, maker: str) -> str | None:
    """Return in a few words what speaks against a folder being nothing but one checkpoint of a maker, None if nothing.

    A single file is nothing but itself.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return None
        belongs = _belongs(path, maker)
        if belongs is None:
            return "no known maker lays out a folder so: there may be more in it than a checkpoint"
        for name, kind in _below(path):
            if not stat.S_ISREG(kind):
                return f"holds {name}, which is {'a link' if stat.S_ISLNK(kind) else 'no file'}"
            if not belongs(name):
                return f"holds {name}, which is no part of a checkpoint of {maker}"
    except OSError as error:
        return f"cannot be looked through: {why(error)}"
    except DamagedError as error:
        return str(error)
    return None


def _belongs(path: Path, maker: str) -> Callable[[str], bool] | None:
    if maker == "overnight":
        names = {manifests.NAME, *manifests.read(path).files}
        return names.__contains__
    known = _KNOWN.get(maker)
    return None if known is None else lambda name: known.fullmatch(name) is not None


def _below(path: Path) -> Iterator[tuple[str, int]]:
    """Yield everything below a folder but folders, as paths below it, each with its kind; OSError if it is too much."""
    count, todo = 0, [""]
    while todo:
        at = todo.pop()
        for entry in sorted(os.scandir(path / at), key=lambda one: one.name):
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(0, f"it has more than {MOST_ENTRIES:,} entries")
            kind = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                todo.append(f"{at}{entry.name}/")
            else:
                yield f"{at}{entry.name}", kind
