"""The content of checkpoints, read in a process of its own that the machine runs only when nobody else wants to.

Run as ``python -P -m overnight.inspector.side``: stdin is one line of JSON (paths, newest first, and how many bytes may
be read for them), stdout one line for each path as soon as it is known. A training beside it keeps its processor and
its disk. The process ends with whoever asked: when the line's pipe is closed, at the latest.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from overnight.checkpoint.writer import set_io_priority
from overnight.inspector import folders, walk
from overnight.inspector.findings import Budget, Found

SMALL = 64 << 20
"""Bytes that are read at the ordinary priority: a tenth of a second. On a busy machine an idle process gets 0.3 %."""
PR_SET_PDEATHSIG = 1
IOPRIO_IDLE = 3 << 13


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the content of one checkpoint has shown; ``whole`` if nothing of it was left out for the budget's sake.

    ``seconds`` of a processor that the look has taken. ``there``: it is still there after the look; ``changed``: it was
    written to meanwhile, so that what is said here may be true of neither the old nor the new one. ``maker``,
    ``healthy`` and ``size_bytes`` as in Found.
    """

    path: str
    complete: bool | None
    intact: bool | None
    finite: bool | None
    problem: str | None
    notes: tuple[str, ...]
    whole: bool
    seconds: float = 0.0
    there: bool = True
    changed: bool = False
    maker: str = "unknown"
    healthy: bool | None = None
    size_bytes: int | None = 0


def applied(found: Found, checked: Checked) -> Found:
    """Return what was known of a checkpoint together with what its content has shown."""
    return replace(
        found,
        complete=found.complete if checked.complete is None else checked.complete,
        intact=checked.intact,
        finite=checked.finite,
        problem=checked.problem or found.problem,
        notes=tuple(dict.fromkeys((*found.notes, *checked.notes))),
    )


class Side:
    """The process, as the one sees it that asks: an iterator over what it finds. A context manager."""

    def __init__(self, paths: Sequence[str], limit: int | None, size: int) -> None:
        self._argv = [sys.executable, "-P", "-m", "overnight.inspector.side"]
        self._asked = {"paths": list(paths), "limit": limit, "idle": size > SMALL}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it; OSError if that cannot be."""
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
        self.process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(self._asked).encode() + b"\n")
            self.process.stdin.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.process is not None
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()

    def __iter__(self) -> Iterator[Checked]:
        """Yield what comes, until all is said or the process has ended."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (checked := _parsed(line)) is not None:
                yield checked


def _parsed(line: bytes) -> Checked | None:
    try:
        value: dict[str, Any] = json.loads(line)
        return Checked(**{**value, "notes": tuple(value["notes"])})
    except (ValueError, TypeError, KeyError):  # the process was killed within a line
        return None


# -- inside the process ----------------------------------------------------------------------------------------------


def main() -> int:
    """Look at the content of what stdin names."""
    end_with_parent(os.getppid())
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_pipe, daemon=True).start()
    if asked["idle"]:
        step_back()
    budget = Budget(asked["limit"])
    for path in asked["paths"]:
        line = checked(path, budget)
        if line.size_bytes is not None:
            sys.stdout.write(json.dumps(asdict(line)) + "\n")
            sys.stdout.flush()
    return 0


def checked(path: str, budget: Budget) -> Checked:
    """Look at the content of one path, in this process; ``size_bytes`` is None if it is no checkpoint."""
    refused, began, before = budget.refused, time.process_time(), marked(Path(path))
    found = walk.look(Path(path), budget)
    none = found is None
    found = found or Found(path=path, maker="unknown")
    after = marked(Path(path))
    return Checked(
        path=path,
        complete=found.complete,
        intact=found.intact,
        finite=found.finite,
        problem=found.problem,
        notes=found.notes,
        whole=budget.refused == refused,
        seconds=round(time.process_time() - began, 3),
        there=after.inode is not None,
        changed=before != after,
        maker=found.maker,
        healthy=found.healthy,
        size_bytes=None if none else found.size_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What tells whether a file, or a folder with its files, was written to between two looks."""

    inode: int | None = None  # None: it is not there
    size: int = 0
    saved_at: float | None = None
    names: frozenset[str] = frozenset()


def marked(path: Path) -> Mark:
    """Return the mark of what lies at a path."""
    try:
        seen = path.stat()
    except OSError as error:
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
        return Mark(inode=None if gone else 0)
    except ValueError:  # a zero byte in the name
        return Mark()
    if not stat.S_ISDIR(seen.st_mode):
        return Mark(inode=seen.st_ino, size=seen.st_size, saved_at=seen.st_mtime)
    inside = folders.listed(path)
    return Mark(inode=seen.st_ino, size=inside.size_bytes, saved_at=inside.saved_at, names=frozenset(inside.files))


def end_with_parent(parent: int) -> None:
    """Be killed when the parent dies; end at once if it has died before this could be said."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with_pipe() -> None:
    """End when nobody holds the other end of stdin any more."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(1)


def step_back() -> None:
    """Take the processor and the disk only when nobody else wants them; where the system refuses, be nice at least."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    set_io_priority(IOPRIO_IDLE)


if __name__ == "__main__":
    sys.exit(main())
