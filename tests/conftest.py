"""What every test may rely on, wherever the suite was started from."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Undo what `nohup` and `&` in a script leave behind: whatever the tests start would inherit ignored signals."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
