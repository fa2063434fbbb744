"""The supervisor's side of a stall dump: starts the process that looks, and learns when it is done.

A sick machine may hold up whoever looks at it, for example a read of a disk or of a driver that never returns. So the
supervisor looks at nothing itself, waits for nothing, and kills the one that looks when its time is over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overnight.clocks import boot_clock
from overnight.folder import RunFolder, sensor_file

if TYPE_CHECKING:
    import subprocess  # imported where a dump is begun: 2.4 MB that a night rarely needs

PATIENCE_S = 25.0
"""The dump ends itself after 20 s; a process that cannot even do that is killed, and no longer waited for."""


SENTENCE_CHARS = 400

KEPT = 10
"""So many dumps of a run stay: a rule that only alerts may find a stall every few minutes, all night."""


class Dump:
    """One dump that is being written into ``path``, a folder of its own in ``evidence``."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes] | None, error: str | None = None) -> None:
        self.path = path
        self.process = process
        self.error = error
        self.began = boot_clock()

    @classmethod
    def begin(cls, folder: RunFolder, pids: Sequence[int], reason: str, log: str | Path) -> Dump:
        """Start a dump of these processes and of all below them; ``error`` says why there will be none."""
        import subprocess

        path = folder.evidence
        try:
            path = _new_folder(folder.evidence)
            told = os.open(path / "dump.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-m", "overnight.stalls.stalldump"),
                        *(f"--log={log}", f"--run={folder.path}", f"--reason={reason}"),
                        *("--", str(path), *map(str, pids)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=told,
                    cwd="/",
                    env={**os.environ, "OVERNIGHT_ROLE": "dump"},  # so that it is not taken for a part of the training
                    start_new_session=True,
                )
            finally:
                os.close(told)
        except (OSError, ValueError) as error:  # no room on the disk, no process to be had, a NUL in the reason
            return cls(path, None, f"no stall dump could be made in {path}: {error}")
        return cls(path, process)

    def innermost(self) -> str:
        """Return the innermost Python frame of the process that was started last, as far as it could be read."""
        return _last_words(self.path / "summary.txt")

    def kernel(self) -> str | None:
        """Return what the kernel's log says about a GPU, or that it cannot be read; None if that is of no interest."""
        with contextlib.suppress(OSError):
            head = (self.path / "kernel.txt").read_text(errors="replace").partition("\n")[0][:SENTENCE_CHARS]
            sampled = sensor_file(self.path.parents[1], "gpu")
            if "says nothing" not in head and ("not readable" not in head or sampled.exists()):
                return head
        return None

    def done(self) -> bool:
        """Say whether it is written, or has been given up; never blocks."""
        if self.process is None or self.process.poll() is not None:
            return True
        if boot_clock() - self.began < PATIENCE_S:
            return False
        self.process.kill()
        self.error = f"the stall dump in {self.path} took longer than {PATIENCE_S:g} s and is not complete"
        self.process.poll()
        return True


def _last_words(path: Path) -> str:
    """Return what summary.txt says of the newest process that has a Python frame."""
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").splitlines()
        found = [line for line in lines if ": " in line and "(parent " in line and "no Python" not in line]
        if found:
            return found[-1].rpartition("): ")[2][:200]
    return "unknown"


def _new_folder(evidence: Path) -> Path:
    """Make a folder of a name of its own: stall-<UTC>-<number>."""
    old = sorted(path for path in evidence.glob("stall-*") if path.is_dir())
    for path in old[: max(0, len(old) - KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
    begun = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = 1
    while True:
        path = evidence / f"stall-{begun}-{number}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return path
