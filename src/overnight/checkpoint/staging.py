"""Shared memory into which a state is copied while the training waits: allocated and touched once, ahead of the save.

The pages are there before anything is copied, so that a machine without memory says so as an error of ours and never
as a SIGBUS. What a job is, who writes it and when, may not enter here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from overnight.checkpoint.errors import SaveError
from overnight.checkpoint.jobs import Leaf
from overnight.checkpoint.leaves import NUMPY_NAMES, TORCH_NAMES
from overnight.checkpoint.lock import above_standard
from overnight.checkpoint.pinned import Pending, Pinned

PAGE = 4096
PIECE = 4 << 20
"""Bytes made ready at a time: a training that allocates memory meanwhile waits for one piece at most (some ms)."""

SPARE = 64 << 20
"""Bytes that are left to everybody else when the free memory is counted."""

POPULATE_WRITE = 23  # Linux 5.14; older ones say EINVAL, and the first copy is slower then
UNLIMITED = 1 << 60  # version 1 of cgroups says "no limit" by a number near 2**63


class Arena:
    """One piece of anonymous shared memory (``fd``). It only grows; each leaf begins at a multiple of 4 KiB."""

    def __init__(self) -> None:
        self.fd = above_standard(os.memfd_create("overnight-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.pending: Pending | None = None
        """What of the last copy is still on its way from a GPU; None if all of it is here."""
        self.pinned = Pinned()
        self.broken = False
        """There was no memory for a part of it: to be closed, so that others have what was taken."""
        self._lock = threading.Lock()  # the thread that warms and the training take turns, piece by piece
        self._map: mmap.mmap | None = None
        self._allocated = 0
        self._ready = 0
        self._leaves: tuple[Leaf, ...] = ()
        self._views: list[Any] = []

    @staticmethod
    def offsets(sizes: Sequence[int]) -> list[int]:
        """Return where leaves of these sizes (bytes) lie, and behind them where they end."""
        places = [0]
        for size in sizes:
            places.append(places[-1] + -(-size // PAGE) * PAGE)
        return places

    def reserve(self, size: int, *, gently: bool = False) -> None:
        """Return when ``size`` bytes are allocated and mapped; SaveError if there is no memory for them.

        ``gently`` is for a thread beside the training: it takes what processor time is left.
        """
        size = -(-size // PAGE) * PAGE
        if gently:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            while True:
                with self._lock:
                    if self.fd < 0 or (self._ready >= size and (self._map is not None or not size)):
                        return
                    self._prepare(size)
        except OSError as error:
            self.broken = True
            raise _no_memory(size, error) from None

    def _prepare(self, size: int) -> None:
        """Make the next piece ready; called with the lock held."""
        if self._map is None or len(self._map) < size:
            self._check_room(size)
            os.ftruncate(self.fd, size)
            self._forget()
            self._map = mmap.mmap(self.fd, size)
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTDUMP)
        end = min(self._ready + PIECE, size)
        if end > self._allocated:
            os.posix_fallocate(self.fd, self._ready, end - self._ready)
            self._allocated = end
        _populate(self.address + self._ready, end - self._ready)
        self._ready = end

    def _check_room(self, size: int) -> None:
        needed = size - self._allocated
        free = free_memory()
        if free is not None and needed > free - SPARE:
            raise SaveError(
                f"saving beside the training takes {size / 1e9:.2f} GB of memory, and {max(free, 0) / 1e9:.2f} GB are "
                f"free; use async_=False, which takes none"
            )

    @property
    def address(self) -> int:
        """Where the memory begins in this process."""
        assert self._map is not None
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def copy(self, live: Sequence[Any], leaves: Sequence[Leaf]) -> list[int]:
        """Copy live tensors and arrays in and return where each begins; SaveError if there is no memory.

        What comes from a GPU may still be on its way: then ``pending`` is not None, and it must be waited for.
        """
        self.pending = None
        places = self.offsets([leaf.size for leaf in leaves])
        self.reserve(places[-1])
        views = self._targets(places, tuple(leaves))
        pairs: dict[str, list[tuple[Any, Any]]] = {"numpy": [], "cpu": [], "cuda": []}
        for leaf, view, value in zip(leaves, views, live, strict=True):
            if leaf.size:
                kind = "numpy" if leaf.kind == "numpy" else "cuda" if value.device.type == "cuda" else "cpu"
                pairs[kind].append((view, value))
        if pairs["cuda"]:
            self.pin()
            self.pending = self.pinned.copy(pairs["cuda"])
        if pairs["cpu"]:
            _copy_tensors(pairs["cpu"])
        for view, value in pairs["numpy"]:
            view[...] = value
        return places[:-1]

    def put(self, place: int, data: bytes) -> None:
        """Copy bytes to a place that was reserved."""
        assert self._map is not None
        self._map[place : place + len(data)] = data

    def pin(self) -> None:
        """Register the memory with CUDA, once, where CUDA is in use."""
        with self._lock:  # the thread that warms comes here, too
            if self._map is not None and self.pinned.usable():
                self.pinned.register(self.address, len(self._map))

    def _targets(self, places: Sequence[int], leaves: tuple[Leaf, ...]) -> list[Any]:
        """Return a tensor or array over each leaf's place; those of the last save if its leaves were the same."""
        if leaves != self._leaves or len(self._views) != len(leaves):
            memory: Any = self._map
            at = zip(leaves, places, strict=False)
            self._views = [_view(leaf, memory, place) if leaf.size else None for leaf, place in at]
            self._leaves = leaves
        return self._views

    def _forget(self) -> None:
        self.pinned.release()
        self._drop()

    def _drop(self) -> None:
        self._leaves, self._views = (), []
        self._map = None
        self._ready = 0

    def close(self) -> None:
        """Give the memory back; harmless if it was done before."""
        with self._lock:
            self.pinned.close()
            self.abandon()

    def abandon(self) -> None:
        """Do as :meth:`close` without waiting for anybody: for a forked child, which has no other thread and no GPU."""
        self.pinned.forget()
        self._drop()
        self.pending = None
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _view(leaf: Leaf, memory: Any, place: int) -> Any:
    if leaf.kind == "numpy":
        import numpy as np

        name = NUMPY_NAMES[leaf.dtype]
        count = leaf.size // np.dtype(name).itemsize
        return np.frombuffer(memory, dtype=name, count=count, offset=place).reshape(leaf.shape)
    torch = sys.modules["torch"]
    dtype = getattr(torch, TORCH_NAMES[leaf.dtype])
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=leaf.size, offset=place)
    return flat.view(dtype).view(leaf.shape)


def _copy_tensors(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Copy tensors of main memory: large ones in parallel within themselves, many small ones without Python between."""
    torch = sys.modules["torch"]
    views, values = [one for one, _ in pairs], [one for _, one in pairs]
    with torch.no_grad():
        if hasattr(torch, "_foreach_copy_"):
            torch._foreach_copy_(views, values)
            return
        for view, value in pairs:
            view.copy_(value)


def _populate(address: int, size: int) -> None:
    """Have pages mapped without touching them one by one; OSError if there is no memory for their tables."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), POPULATE_WRITE):
        code = ctypes.get_errno()
        if code in (errno.ENOMEM, errno.EFAULT):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def _no_memory(size: int, error: OSError) -> SaveError:
    limit = {errno.EFBIG: "the limit of file sizes (ulimit -f)", errno.ENOMEM: "the memory that is free"}
    why = limit.get(error.errno or 0, "what the system gives")
    return SaveError(
        f"saving beside the training takes {size / 1e9:.2f} GB of shared memory, which is beyond {why} "
        f"({error.strerror}); use async_=False, which takes none"
    )


# --- what is free -----------------------------------------------------------------------------------------------------


def free_memory() -> int | None:
    """Return the bytes that can be allocated: of the machine, and within each memory limit of a cgroup; None: unknown.

    Asked before, because a cgroup whose limit is hit answers with SIGKILL and not with an error.
    """
    known = [free for free in (_of_machine(), *_of_cgroups()) if free is not None]
    return min(known) if known else None


def _of_machine() -> int | None:
    return _field(_text(Path("/proc/meminfo")), "MemAvailable:", 1024)


def _of_cgroups() -> Iterator[int]:
    root = Path("/sys/fs/cgroup")
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            yield from _levels(root, path, "memory.max", "memory.current", "")
            yield from _levels(root / "unified", path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            yield from _levels(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _levels(root: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[int]:
    """Yield what is free in a cgroup and in those above it; in a container the own one may lie at the root."""
    here = root / path.strip("/")
    for folder in (here, *here.parents):
        if folder != root and root not in folder.parents:
            return
        most, used = _number(folder / limit), _number(folder / usage)
        if most is not None and used is not None and most < UNLIMITED:
            stat = _text(folder / "memory.stat")
            files = [_field(stat, f"{prefix}{kind}_file", 1) or 0 for kind in ("active", "inactive")]
            yield most - used + sum(files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _field(text: str, name: str, unit: int) -> int | None:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1]) * unit
    return None
