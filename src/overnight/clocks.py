"""The clock by which a run's own time is counted."""

from __future__ import annotations

import time


def boot_clock() -> float:
    """Return seconds since boot, suspended time included; no jump of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
