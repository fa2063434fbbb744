"""A machine of its own for a run: a /dev with stand-ins for what is sick, in a mount namespace that only the run sees.

    box = machines.box(tmp_path, {"nvidia0": device, "kmsg": log})   # skips the test where that is not allowed
    home.call("run", ..., before=box)                                # the run and all its processes live in there

Nothing of the real machine is changed, and the namespace ends with its last process.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

NODES = "null zero full random urandom tty"


def box(folder: Path, files: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the words before a command that give it a /dev with ``files`` by name and the usual nodes, no others."""
    made = folder / "dev"
    made.mkdir()
    place = shlex.quote(str(made))
    script = ["set -e", f"mount -t tmpfs tmpfs {place}"]
    for name in NODES.split():
        script += [f"touch {place}/{name}", f"mount --bind /dev/{name} {place}/{name}"]
    for name in ("shm", "pts"):
        script += [f"mkdir {place}/{name}", f"mount --rbind /dev/{name} {place}/{name}"]
    script += [f"ln -s /proc/self/fd {place}/fd", f"ln -s pts/ptmx {place}/ptmx"]
    for name, path in files.items():
        script += [f"touch {place}/{name}", f"mount --bind {shlex.quote(str(path))} {place}/{name}"]
    script += [f"mount --rbind {place} /dev", 'exec "$@"']
    words = ("unshare", "-m", "sh", "-c", "\n".join(script), "sh")
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed; on Debian: apt-get install util-linux")
    if tried.returncode:
        pytest.skip(f"no mount namespace may be made here: {tried.stderr.strip()}")
    return words


def record(text: str, *, ago_s: float = 0.0) -> str:
    """Return a line as /dev/kmsg hands it out, of so many seconds ago."""
    at = time.clock_gettime(time.CLOCK_MONOTONIC) - ago_s
    return f"4,1000,{int(at * 1e6)},-;{text}\n"
