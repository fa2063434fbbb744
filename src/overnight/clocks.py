"""The clocks by which a run's own time is counted. Neither is the wall clock: nothing here follows a jump of that."""

from __future__ import annotations

import os
import time


def boot_clock() -> float:
    """Return seconds since boot, suspended time included: for short waits and for marks that a later process reads."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def uptime_s() -> float:
    """Return seconds since boot as the kernel writes them, suspended time included: what limits are counted by.

    A library that fakes time for a whole process tree (libfaketime) moves every clock a program can ask, but not this
    file, which is also what the start times in /proc/PID/stat refer to.
    """
    handle = os.open("/proc/uptime", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return float(os.read(handle, 64).split()[0])
    finally:
        os.close(handle)
