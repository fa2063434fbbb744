"""A file system of one file whose reads are never answered: ``hungdisk.py FILE``, as root, speaking FUSE by itself.

Who reads FILE hangs in the kernel, where not even SIGKILL reaches it, until this program ends. "mounted" is printed
once it is there.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time

GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, INTERRUPT = 3, 14, 15, 18, 25, 26, 36
ENOSYS = 38
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)
path = os.fsencode(sys.argv[1])
handle = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={handle},rootmode=100000,user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"hung", path, b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
print("mounted", flush=True)  # noqa: T201
try:
    while True:
        data = os.read(handle, 1 << 18)
        _, operation, unique = struct.unpack_from("=IIQ", data)
        if operation in (READ, INTERRUPT):
            continue
        error, body = 0, b""
        if operation == INIT:
            major, minor, ahead, _ = struct.unpack_from("=IIII", data, 40)
            body = struct.pack("=IIIIHHIIHHI", major, min(minor, 31), ahead, 0, 12, 9, 1 << 17, 1, 0, 0, 0) + bytes(28)
        elif operation == GETATTR:
            now = int(time.time())
            body = struct.pack("=QII", 1, 0, 0) + struct.pack("=QQQQQQ", 1, 4096, 8, now, now, now)
            body += struct.pack("=III", 0, 0, 0) + struct.pack("=IIIIIII", 0o100644, 1, 0, 0, 0, 4096, 0)
        elif operation == OPEN:
            body = struct.pack("=QII", 1, 1, 0)
        elif operation not in (RELEASE, FLUSH):
            error = -ENOSYS
        os.write(handle, struct.pack("=IiQ", 16 + len(body), error, unique) + body)
finally:
    libc.umount2(path, MNT_DETACH)
