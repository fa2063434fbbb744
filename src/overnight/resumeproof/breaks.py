"""Ctrl-C during a proof: an exception at once, but never in the middle of what must be done as a whole.

Signals only; what a break leads to is the business of whoever catches KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Breaks:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt within ``with``: at once, or when nothing is held any more.

    Only the first one does: what follows is the clearing up, which another must not disturb.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._held = 0
        self._came = self._raised = False

    def __enter__(self) -> Self:
        for number in NUMBERS:
            if signal.getsignal(number) == signal.SIG_IGN and number == signal.SIGHUP:
                continue  # nohup
            with contextlib.suppress(ValueError):  # not in the main thread: whoever is there takes care of it
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep a break waiting until what is done within is done."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        self._raise()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        self._raise()

    def _raise(self) -> None:
        if self._came and not self._raised and self._held == 0:
            self._raised = True
            raise KeyboardInterrupt
