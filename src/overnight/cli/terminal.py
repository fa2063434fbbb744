"""What the terminal behind stdout is: whether it wants colours, whether it can be drawn on, and how large it is.

Only asks; nothing is written here, and nothing of a run is known.
"""

from __future__ import annotations

import os
import sys

USUAL = 80, 24
NARROWEST, LOWEST = 20, 4


def colours() -> bool:
    """Say whether to colour: only on a terminal, and not against NO_COLOR or a dumb one."""
    return not os.environ.get("NO_COLOR") and drawable()


def drawable() -> bool:
    """Say whether stdout is a terminal whose cursor can be moved."""
    return os.environ.get("TERM") != "dumb" and sys.stdout is not None and sys.stdout.isatty()


def size() -> tuple[int, int]:
    """Return (columns, lines) of the terminal, 80 by 24 where nobody has set a size."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return USUAL
    return max(NARROWEST, found.columns or USUAL[0]), max(LOWEST, found.lines or USUAL[1])
