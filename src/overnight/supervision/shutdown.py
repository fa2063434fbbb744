"""Whether the machine is being turned off just now: then a signal is nobody's wish that a run should end for good."""

from __future__ import annotations

import contextlib
import os
import time

NOLOGIN = "/run/nologin"
FRESH_S = 600.0
"""Some container images bring an old /run/nologin with them; one that init has made for a shutdown is young."""


def shutting_down() -> bool:
    """Ask init; without a systemd the file that keeps people from logging in must do. Takes two seconds at most."""
    import subprocess  # 2.4 MB that a night rarely needs

    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            ["systemctl", "is-system-running"], stdin=subprocess.DEVNULL, capture_output=True, timeout=2.0, check=False
        )
        if said.stdout.strip() == b"stopping":
            return True
    try:
        return abs(time.time() - os.stat(NOLOGIN).st_mtime) < FRESH_S
    except OSError:
        return False
