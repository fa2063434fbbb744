"""The door for people: ``main`` finds the verb, loads its file, and returns an exit code. The work is in ``door``.

Nothing is imported here but names: a Ctrl-C while Python still loads the rest must end in an exit code, too.
"""

from __future__ import annotations

from overnight.cli.verbs import BROKEN_PIPE, EPILOG, INTERRUPTED, VERBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BROKEN_PIPE", "EPILOG", "INTERRUPTED", "VERBS", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line and return its exit code."""
    try:
        from overnight.cli.door import enter  # behind the guard: it takes a tenth of a second on a slow disk

        return enter(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
