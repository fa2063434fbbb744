"""What every test may rely on, wherever the suite was started from."""

from __future__ import annotations

import signal

from false_alarms import pytest_terminal_summary

__all__ = ["pytest_configure", "pytest_terminal_summary"]


def pytest_configure() -> None:
    """Undo what `nohup` and `&` in a script leave behind: whatever the tests start would inherit ignored signals."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
