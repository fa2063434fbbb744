"""The process that writes checkpoints beside a training: it waits for a job, does it, says what became of it.

It never signals anybody, prints nothing, and is deaf to the signals that end a training: when the training is gone, the
job in flight is finished, and the process ends. How a checkpoint is written may not enter here.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import platform
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overnight.checkpoint.jobs import Job, Outcome

DEAF = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}
)
"""What a terminal, a scheduler or Overnight sends to a training and all around it."""

ORDER = struct.Struct("=BQQ")
"""What the training sends: a word, and where in the shared memory the job lies, and its length."""

TORCH, JOB = 1, 2
LENGTH = struct.Struct("=Q")
"""Before each answer, its length in bytes; the first one is empty and says that the process is there."""

NICE = 5
"""A training on all cores keeps three quarters of them: its steps take 4/3 as long while a save goes on.

A higher one would cost it no less, for the work stays the same, and leave each save unfinished for longer.
"""

IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
IOPRIO_LOW = (2 << 13) | 7  # best effort, the last of its eight levels
PARENT_LOOK_MS = 1000
FLAGS = {"-I": "isolated", "-E": "ignore_environment", "-s": "no_user_site", "-S": "no_site", "-P": "safe_path"}

Perform = Callable[[Job, Sequence[memoryview]], Outcome]


# --- for the training's side ------------------------------------------------------------------------------------------


def command(handle: int, arena: int, parent: int, perform: str) -> list[str]:
    """Return the command line that starts a writer with the interpreter and the import path of this process.

    Neither ``-m`` nor a file of ours is run: the path must be set before anything of ours, or a wrong namesake of it,
    is imported. The script of the training plays no part, so it needs no main guard.
    """
    boot = "import sys; sys.path[:] = sys.argv[2:]; import overnight.checkpoint.writer as w; w.main(sys.argv[1])"
    return [sys.executable, *_flags(), "-c", boot, f"{handle},{arena},{parent},{perform}", *_import_path()]


def _flags() -> list[str]:
    return [flag for flag, name in FLAGS.items() if getattr(sys.flags, name)]


def _import_path() -> list[str]:
    here = str(Path(__file__).resolve().parents[2])
    known: list[Any] = [*sys.path]  # some put a Path there, which import leaves out
    found = [os.fsdecode(one) for one in known if isinstance(one, (str, bytes))]
    with contextlib.suppress(OSError):  # a current folder that is gone
        found = [os.path.abspath(one) for one in found]
    return found if here in found else [*found, here]


def environ() -> dict[str, str]:
    """Return the environment of a writer: one thread, no GPU, no warning that is an error elsewhere."""
    left_out = ("PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONSTARTUP")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**kept, **threads, "CUDA_VISIBLE_DEVICES": ""}


# --- the process ------------------------------------------------------------------------------------------------------


def main(words: str) -> None:
    """Serve one training until it is gone."""
    for number in DEAF:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    handle, arena, parent, perform = words.split(",")
    step_back()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as stream:
        stream.write("ckpt-writer")
    gone = contextlib.suppress(BrokenPipeError, ConnectionResetError)
    with socket.socket(fileno=int(handle)) as talk:
        with gone:
            talk.sendall(LENGTH.pack(0))
        with gone:  # a training that has died already may have left a job all the same
            _serve(talk, int(arena), int(parent), perform)


def step_back() -> None:
    """Leave processor and disk to the training: this process, and its session where Linux counts by sessions."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    for _ in range(10):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as stream:
                stream.write(str(NICE))
            break
        except BlockingIOError:  # it may be changed ten times a second
            time.sleep(0.02)
        except OSError:
            break
    set_io_priority(IOPRIO_LOW)


def set_io_priority(value: int) -> None:
    """Set this process's place before the disk: class and level as ``ioprio_set(2)`` has them. Refusals are ignored."""
    number = IOPRIO_SET.get(platform.machine())
    if number is not None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, value)


def _serve(talk: socket.socket, arena: int, parent: int, perform: str) -> None:
    """Take orders until there will be no more."""
    training = _Training(talk, parent)
    memory: mmap.mmap | None = None
    while (order := training.order()) is not None:
        word, place, length = order
        if word == TORCH:
            import torch

            torch.set_num_threads(1)
            continue
        size = os.fstat(arena).st_size
        if memory is None or len(memory) != size:
            memory = mmap.mmap(arena, size)
        outcome = _write(memory, place, length, perform)
        message = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
        talk.sendall(LENGTH.pack(len(message)) + message)


def _write(memory: mmap.mmap, place: int, length: int, perform: str) -> Outcome:
    view = memoryview(memory)
    job, places = pickle.loads(view[place : place + length])  # noqa: S301 -- from the process that started this one
    data = [view[at : at + leaf.size] for at, leaf in zip(places, job.leaves, strict=False)]
    return _work(perform)(job, data)


def _work(perform: str) -> Perform:
    """Return what writes; a test names another."""
    if perform:
        import pkgutil

        work: Perform = pkgutil.resolve_name(perform)
        return work
    from overnight.checkpoint import writing

    return writing.perform


class _Training:
    """The process at the other end, as long as it lives."""

    def __init__(self, talk: socket.socket, parent: int) -> None:
        self.talk = talk
        self.parent = parent
        self.look = select.poll()
        self.look.register(talk, select.POLLIN)
        self.wait_ms: int | None = PARENT_LOOK_MS
        # A child forked in C may hold the other end open for ever: the process itself is looked at, too.
        with contextlib.suppress(OSError, AttributeError):
            self.handle = os.pidfd_open(parent)
            self.look.register(self.handle, select.POLLIN)
            self.wait_ms = None

    def order(self) -> tuple[Any, ...] | None:
        """Return the next order; None when there is nobody left to give one. One given before the end still counts."""
        while True:
            ready = [handle for handle, _ in self.look.poll(self.wait_ms)]
            if self.talk.fileno() in ready:
                data = self._exactly(ORDER.size)
                return None if data is None else ORDER.unpack(data)
            if os.getppid() != self.parent:
                ready = [handle for handle, _ in self.look.poll(0)]
                if self.talk.fileno() not in ready:  # or it spoke between the two looks
                    return None

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            part = self.talk.recv(size - len(data))
            if not part:
                return None
            data += part
        return data
