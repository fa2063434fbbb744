"""What every test may rely on, wherever the suite was started from."""

from __future__ import annotations

import os
import signal

from false_alarms import pytest_terminal_summary

__all__ = ["pytest_configure", "pytest_terminal_summary"]

# Read by numpy and torch when they are imported, here and in all that a test starts. Several tests run at once, so each
# having a thread per core would make them wait for one another: the same work takes up to twenty times as long.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def pytest_configure() -> None:
    """Undo what `nohup` and `&` in a script leave behind: whatever the tests start would inherit ignored signals."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
