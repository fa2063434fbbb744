"""What is behind stdout and stderr: a terminal that wants colours or can be drawn on, how large; or nothing at all.

Nothing is printed here, and nothing of a run is known.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

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


def open_closed(*, showing: bool) -> None:
    """Put something in the place of standard streams that were closed (``>&-``), which Python gives as None.

    No file that is opened later may take their numbers: what is written for stderr would go into it. What is printed
    for nobody is lost, except where printing is all that was asked (``showing``): there writing fails with EBADF.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = _nowhere(os.O_RDONLY if showing else os.O_WRONLY)
    if sys.stderr is None:
        sys.stderr = _nowhere(os.O_WRONLY)


def _nowhere(way: int) -> TextIO:
    return open(os.open(os.devnull, way), "w", encoding="utf-8", errors="backslashreplace")


def silence() -> None:
    """Point stdout nowhere, so that the interpreter's own flush at exit does not complain a second time."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass
