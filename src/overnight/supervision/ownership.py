"""Who may act for a run: the holder of the lock, as long as nobody with a higher fencing number has come.

The lock (flock, closed on exec) is free the moment its holder dies, even by SIGKILL and even while the training lives
on. The fencing file is for the case the lock cannot see: two hosts on a network disk. Neither file is ever removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from overnight.folder import RunFolder, machine_id
from overnight.processes import boot_id


class Owned(Exception):  # noqa: N818 - a fact about the run, told to the caller, rather than an error of anybody's
    """Another supervisor holds the run."""


class Owner:
    """The ownership of one run, held until the process ends."""

    def __init__(self, folder: RunFolder, *, wait_s: float = 0.0) -> None:
        self.folder = folder
        self.handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock(time.monotonic() + wait_s)
        self.number = self._fence()
        self.looked = -1
        self.mine = True

    def still(self) -> bool:
        """Say whether no later owner has come: to be asked before each effect."""
        changed = os.stat(self.folder.owner).st_mtime_ns
        # A file made in the same clock tick as the last one (or by a host whose clock is ahead) changes no time stamp.
        if changed != self.looked or time.time_ns() - changed < 1_000_000_000:
            self.looked = changed
            self.mine = self._highest() == self.number
        return self.mine

    def _lock(self, until: float) -> None:
        while True:
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(self.handle)
                    raise Owned(f"another supervisor holds {self.folder.path}") from None
                time.sleep(0.05)
            else:
                return

    def _fence(self) -> int:
        who = {"pid": os.getpid(), "boot_id": boot_id(), "machine_id": machine_id(), "at": time.time()}
        while True:
            number = self._highest() + 1
            path = self.folder.owner / f"{number:04d}"
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except OSError:  # a full disk: the lock alone must do
                return number - 1
            try:
                os.write(handle, json.dumps(who).encode())
            except OSError:
                pass
            finally:
                os.close(handle)
            return number

    def _highest(self) -> int:
        return max((int(name) for name in os.listdir(self.folder.owner) if name.isdecimal()), default=0)
