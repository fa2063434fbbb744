"""Disk space for the log: some is kept allocated ahead of its end, so that a full disk does not kill the training.

A print to a full disk raises OSError in the training, and a night is lost for a few bytes. Blocks that were allocated
in time (beyond the end of the file, its size unchanged) are still there then. Nothing here decides about the run.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from pathlib import Path

AHEAD_BYTES = 16 << 20
LEAST_BYTES = 8 << 20
SMALLEST_BYTES = 1 << 16
LOW_BYTES = 1 << 30
FALLOC_FL_KEEP_SIZE = 1

NETWORK = frozenset(
    "nfs nfs4 cifs smb3 smbfs fuse.sshfs lustre gpfs beegfs ceph fuse.ceph afs 9p glusterfs fuse.glusterfs pvfs2 "
    "wekafs panfs fuse.s3fs fuse.gcsfuse virtiofs".split()
)


def filesystem_type(path: Path) -> str:
    """Return the type of the file system that holds ``path``, as /proc/self/mountinfo names it; "" if unknown."""
    real = os.path.realpath(path)
    best, kind = "", ""
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return kind


class LogSpace:
    """Keeps blocks allocated ahead of one growing file and watches the free space of its disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ahead_of = 0
        self.seen = (-1, -1, 0)
        self.usable = True
        self._libc = ctypes.CDLL(None, use_errno=True)
        # off_t is 64 bits wide; without this ctypes passes an int, and a log beyond 2 GiB wraps round
        self._libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def top_up(self, size: int) -> str | None:
        """Keep space ahead of ``size`` bytes; return a sentence if there is none to be had any more."""
        if not self.usable:
            return None
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            look = os.fstat(handle)
            if (look.st_dev, look.st_ino) != self.seen[:2] or look.st_size < self.seen[2]:
                self.ahead_of = 0  # another file, or a truncated one: what was kept went with the old content
            self.seen = (look.st_dev, look.st_ino, look.st_size)
            if self.ahead_of - size >= LEAST_BYTES:
                return None
            number = self._allocate(handle, size)
        finally:
            os.close(handle)
        if number == 0:
            return None
        if number in (errno.ENOSPC, errno.EDQUOT):
            left = max(0, self.ahead_of - size)
            return (
                f"no space can be kept ahead of {self.path}: {os.strerror(number)}; {left:,} bytes are left for the log"
            )
        self.usable = False  # the file system cannot do it; nothing is lost but the safety
        return None

    def _allocate(self, handle: int, size: int) -> int:
        """Keep as much as there is, at most AHEAD_BYTES; return 0, or the error number if not even the least fits."""
        ahead = AHEAD_BYTES
        while True:
            if self._libc.fallocate(handle, FALLOC_FL_KEEP_SIZE, size, ahead) == 0:
                self.ahead_of = max(self.ahead_of, size + ahead)
                return 0 if ahead == AHEAD_BYTES else errno.ENOSPC
            number = ctypes.get_errno()
            ahead //= 2
            if number not in (errno.ENOSPC, errno.EDQUOT) or ahead < SMALLEST_BYTES:
                return number

    def release(self) -> None:
        """Give back what was allocated beyond the end; only when nobody writes any more."""
        if self.ahead_of == 0:
            return
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return  # the log was taken away, and its space with it
        try:
            # A lease is granted only while nobody else has the file open: whoever shares the log loses no byte to us.
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            size = os.fstat(handle).st_size
            if size < self.ahead_of:
                os.ftruncate(handle, size)
            self.ahead_of = 0
        except OSError:
            pass  # shared, or a file system without leases: a few blocks stay allocated behind the end
        finally:
            os.close(handle)

    def low(self) -> str | None:
        """Return a sentence if the disk of the log is nearly full."""
        try:
            look = os.statvfs(self.path.parent)
        except OSError:
            return None
        free = look.f_bavail * look.f_frsize
        if free >= LOW_BYTES or free >= look.f_blocks * look.f_frsize // 20:
            return None
        return f"the disk of {self.path} is nearly full: {free / (1 << 20):,.0f} MiB left"
