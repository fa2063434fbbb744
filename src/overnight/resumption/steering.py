"""Whether a command goes on from the save that it is given, rather than from what it finds itself. Only looks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from overnight.resumption.point import PLACE
from overnight.spec import RunSpec

SCRIPT_BYTES = 1 << 20
NAMES = (b"OVERNIGHT_CHECKPOINT", b"overnight.checkpoint", b"from overnight import")
"""The variable, and the library, which reads it."""


def steered(spec: RunSpec) -> bool:
    """Say whether the words of --resume-args, the command or a script that it names take the save to go on from."""
    if any(PLACE in word for word in spec.resume_args):
        return True
    return any(name in text for text in _texts(spec) for name in NAMES)


def _texts(spec: RunSpec) -> Iterator[bytes]:
    """Yield the words of the command, and the beginnings of the files that they name."""
    for word in spec.argv:
        yield os.fsencode(word)
        path = Path(spec.cwd, word)
        try:
            if stat.S_ISREG(path.stat().st_mode):
                with path.open("rb") as stream:
                    yield stream.read(SCRIPT_BYTES)
        except (OSError, ValueError):
            continue
