"""A question to the system that may hang for ever, asked in a thread of its own and waited for only so long.

A file system whose server is gone, or a process that holds its own memory lock, makes whoever asks wait in the kernel.
While such a question hangs it is not asked again: one thread is all that it costs. For sensors' processes only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Bounded(Generic[Answer]):
    """One question. ``ask`` and then ``answer``; an error that ``question`` raises must be one of ``failures``."""

    def __init__(self, question: Callable[[], Answer], failures: tuple[type[Exception], ...] = (OSError,)) -> None:
        self._question = question
        self._failures = failures
        self._thread: threading.Thread | None = None
        self._found: Answer | None = None

    def ask(self) -> None:
        """Begin to ask, unless the last time still hangs."""
        if self._thread is None:
            self._found = None
            # A daemon: a process that is to end does not wait for it.
            self._thread = threading.Thread(target=self._run, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no further thread can be had
                self._thread = None

    def answer(self, until: float) -> Answer | None:
        """Return the answer, waited for until a time of the monotonic clock; None if there is none, or it failed."""
        if self._thread is None:
            return None
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            return None
        self._thread = None
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._question()
        except self._failures:
            self._found = None
