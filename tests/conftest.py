"""What every test may rely on, wherever the suite was started from."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Undo what `nohup` and `&` in a script leave behind: ignored signals would be inherited by all that tests start."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
