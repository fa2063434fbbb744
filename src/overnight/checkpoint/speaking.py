"""What the library says, in the log of the training: a line at once, and never an error because nobody listens."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Print a sentence."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, flush=True)  # noqa: T201 - the log is where a training says things


def warn(text: str) -> None:
    """Print a warning to stderr."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"warning: {text}", file=sys.stderr, flush=True)  # noqa: T201 - as above
