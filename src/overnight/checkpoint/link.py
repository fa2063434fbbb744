"""The training's side of a save beside it: copy the state, hand it over, and hear later what became of it.

The writer is a process of its own, started by exec and never by fork alone; when it dies, the next save starts another.
What is in a checkpoint, and when one is due, may not enter here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from overnight.checkpoint import lock, writer
from overnight.checkpoint.errors import SaveError
from overnight.checkpoint.jobs import Job, Outcome
from overnight.checkpoint.staging import Arena

START_LIMIT_S = 120.0
"""A process that has not said a word after so long is no Python of ours."""

END_LIMIT_S = 20.0
"""An idle writer that is told to go is given so long; stopped or frozen ones do not hold up the end of a training."""

LOOK_S = 0.5
PLAIN = "use async_=False, which saves within the training's own process"


class Link:
    """A writer process and the memory shared with it. For one thread: the one that trains.

    ``held`` is an open handle whose lock the writer shall hold as well, until it has ended. ``perform`` names the
    function that writes ("module:function") where it is not writing.perform: in tests only.
    """

    def __init__(self, folder: Path, held: int | None, *, perform: str = "") -> None:
        self.folder = folder
        self.lock = held
        self._perform = perform
        self._clear()
        _LINKS.add(self)

    def _clear(self) -> None:
        self._arena: Arena | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._theirs: socket.socket | None = None  # the writer's end, while the writer is being started
        self._said = -1  # a memory file that is the writer's stderr
        self._look = select.poll()
        self._received = bytearray()
        self._greeted = False
        self._started = self._looked = 0.0
        self._job: Job | None = None
        self._step = 0
        self._outcome: Outcome | None = None
        self._courier: threading.Thread | None = None
        self._lost: str | None = None  # why the courier could not hand the job over

    @property
    def busy(self) -> Job | None:
        """The job that is being written; None if there is none."""
        return self._job

    @property
    def pid(self) -> int | None:
        """The writer's process, None if none was started."""
        return None if self._process is None else self._process.pid

    # -- starting ------------------------------------------------------------------------------------------------------

    def warm(self, size: int, *, torch: bool) -> None:
        """Start the writer and have ``size`` bytes made ready in the background; SaveError if it cannot be started."""
        arena = self._start()
        if torch:
            with contextlib.suppress(OSError):  # it has died; the next look says so
                self._tell(writer.TORCH, 0, 0)
        thread = threading.Thread(target=_warm, args=(arena, size), name="overnight-warm", daemon=True)
        thread.start()

    def _start(self) -> Arena:
        """Return the arena of a living writer; SaveError if none can be started."""
        if self._process is not None and self._job is None and self._dead():
            self._drop()  # nothing was lost with it
        if self._process is None or self._arena is None:
            if not sys.executable:
                raise SaveError(f"Python does not say where it lies (sys.executable), so no writer can start; {PLAIN}")
            try:
                self._arena = Arena()
                self._spawn(self._arena)
            except OSError as error:
                self._drop()
                raise SaveError(
                    f"no process for saving to {self.folder} can be started with {sys.executable}: "
                    f"{error.strerror or error}; {PLAIN}"
                ) from None
        return self._arena

    def _spawn(self, arena: Arena) -> None:
        self._socket, self._theirs = (_above_standard(end) for end in socket.socketpair())
        self._said = lock.above_standard(os.memfd_create("overnight-writer", os.MFD_CLOEXEC))
        handles = [self._theirs.fileno(), arena.fd, *([] if self.lock is None else [self.lock])]
        words = writer.command(handles[0], arena.fd, os.getpid(), self._perform)
        # Blocked from before the fork until the writer ignores them: there is no moment in which they could end it, or
        # in which it looks, from outside, like a training that can be interrupted.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, writer.DEAF)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=writer.environ(),
                pass_fds=handles,
                start_new_session=True,
            )
            self._started = self._looked = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._theirs.close()
        self._theirs = None
        self._socket.setblocking(False)
        self._look.register(self._socket, select.POLLIN)

    # -- one job -------------------------------------------------------------------------------------------------------

    def submit(self, job: Job, live: Sequence[Any]) -> float:
        """Copy a state and hand it over; return the seconds for which the training was kept.

        SaveError if there is no memory for it or no writer to be had; nothing is written then.
        """
        began = time.monotonic()
        if self._job is not None:
            raise SaveError(f"step {job.step} cannot be saved while step {self._job.step} is being written")
        arena = self._start()
        try:
            places = arena.offsets([leaf.size for leaf in job.leaves])
            order = _pickled(replace(job, folder=os.path.abspath(job.folder)), places)
            arena.reserve(places[-1] + len(order))
            arena.copy(live, job.leaves)
            arena.put(places[-1], order)
        except SaveError:
            if arena.broken:
                self._drop()
            raise
        except OSError as error:
            raise SaveError(f"step {job.step} cannot be handed to its writer: {error.strerror or error}") from None
        self._job, self._step = job, job.step
        self._hand_over(arena, places[-1], len(order))
        return time.monotonic() - began

    def _hand_over(self, arena: Arena, place: int, length: int) -> None:
        """Tell the writer; where parts of the state still come from a GPU, as soon as they are there."""
        pending, self._lost = arena.pending, None
        if pending is None:
            with contextlib.suppress(OSError):  # it has died: the next look finds it out and says so
                self._tell(writer.JOB, place, length)
            return
        talk = self._socket
        assert talk is not None

        def carry() -> None:
            try:
                pending.wait()
                talk.sendall(writer.ORDER.pack(writer.JOB, place, length))
            except (SaveError, RuntimeError, OSError) as error:  # RuntimeError is how CUDA fails
                self._lost = f"step {self._step} could not be handed to its writer: {error}"

        self._courier = threading.Thread(target=carry, name="overnight-courier", daemon=True)
        self._courier.start()

    def _tell(self, word: int, place: int, length: int) -> None:
        assert self._socket is not None
        self._socket.sendall(writer.ORDER.pack(word, place, length))

    # -- what became of it ---------------------------------------------------------------------------------------------

    def poll(self) -> Outcome | None:
        """Return what became of the job, once; None while there is nothing new. Never waits.

        A writer that died is an Outcome with an error, also if it had nothing to do (then of the last step saved).
        """
        if self._outcome is None and self._process is not None:
            self._outcome = self._news(0.0)
        outcome, self._outcome = self._outcome, None
        return outcome

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Return what became of the job as soon as that is known; None if there is none, or after ``timeout_s``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            outcome = self.poll()
            if outcome is not None or self._job is None:
                return outcome
            left_s = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
            if left_s <= 0:
                return None
            if self._courier is not None and self._courier.is_alive():
                self._courier.join(min(left_s, 0.01))
            self._outcome = self._news(left_s)

    def _news(self, wait_s: float) -> Outcome | None:
        if self._lost is not None and self._courier is not None and not self._courier.is_alive():
            return self._fail(self._lost)
        if self._look.poll(wait_s * 1000):
            return self._receive()
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            if self._dead():
                return self._receive()
            if not self._greeted and now - self._started > START_LIMIT_S:
                self._kill()
                return self._fail(f"{sys.executable} has not begun to save within {START_LIMIT_S:g} s; {PLAIN}")
        return None

    def _receive(self) -> Outcome | None:
        """Take what the writer says; an Outcome if it is whole, or if the writer is gone."""
        assert self._socket is not None
        gone = False
        try:
            while data := self._socket.recv(1 << 16):
                self._received += data
            gone = True
        except BlockingIOError:
            gone = self._dead()
        except OSError:
            gone = True
        while len(self._received) >= writer.LENGTH.size:
            (length,) = writer.LENGTH.unpack_from(self._received)
            message = bytes(self._received[writer.LENGTH.size : writer.LENGTH.size + length])
            if len(message) < length:
                break
            del self._received[: writer.LENGTH.size + length]
            self._greeted = True
            if message:
                outcome = pickle.loads(message)  # noqa: S301 -- from our own process, over our own socket
                assert isinstance(outcome, Outcome)
                self._job = None
                return outcome
        return self._fail(self._obituary()) if gone else None

    def _fail(self, why: str) -> Outcome:
        step, self._job, self._lost, self._courier = self._step, None, None, None
        if self._process is not None and self._dead():
            self._drop()
        return Outcome(step=step, error=why)

    # -- its end -------------------------------------------------------------------------------------------------------

    def _dead(self) -> bool:
        """Say whether the writer has ended; it is reaped then."""
        return self._process is not None and self._process.poll() is not None

    def _obituary(self) -> str:
        """Return in a sentence how the writer ended; it closes its socket only by ending."""
        assert self._process is not None
        try:
            code = self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
            code = self._process.returncode
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by {_signal(-code)}"
        if code == -signal.SIGKILL:
            how += " (by somebody, or by the system for want of memory)"
        said = self._last_words()
        what = "had nothing to do" if self._job is None else f"was saving step {self._step} to {self.folder}"
        return f"the process that {what} {how}{f': {said}' if said else ''}; the next save starts a new one"

    def _last_words(self) -> str:
        """Return the last line that the writer wrote to its stderr."""
        size = os.fstat(self._said).st_size
        lines = os.pread(self._said, 4000, max(0, size - 4000)).decode("utf-8", "replace").split("\n")
        return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _drop(self) -> None:
        """Let go of writer and memory; the next save begins with new ones."""
        process, arena = self._process, self._arena
        for end in (self._socket, self._theirs):
            if end is not None:
                end.close()
        if self._said >= 0:
            os.close(self._said)
        courier, outcome, step = self._courier, self._outcome, self._step
        self._clear()
        self._outcome, self._step = outcome, step
        if courier is not None:
            courier.join()
        if arena is not None:
            arena.close()
        if process is not None:
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Wait for the job in flight and end the writer; what became of the job is still to be had from ``poll``."""
        if self._job is not None:
            self._outcome = self.wait()
        self._drop()

    def forked(self) -> None:
        """Let go of everything in a forked child: it is the training's, and the child may live longer than that."""
        for end in (self._socket, self._theirs):
            if end is not None:
                end.close()
        if self._said >= 0:
            os.close(self._said)
        if self._arena is not None:
            self._arena.abandon()
        if self._process is not None:
            self._process.returncode = 0  # not a child of this process: nothing is to be reaped, or complained about
        if self.lock is not None:
            lock.let_go(self.lock)
            self.lock = None
        self._clear()


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()


def _forked() -> None:
    for link in list(_LINKS):
        link.forked()


os.register_at_fork(after_in_child=_forked)


def _warm(arena: Arena, size: int) -> None:
    with contextlib.suppress(SaveError):  # the save that needs the memory says so
        arena.reserve(size, gently=True)
        arena.pin()


def _pickled(job: Job, places: Sequence[int]) -> bytes:
    try:
        return pickle.dumps((job, list(places)), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise SaveError(f"step {job.step} holds what cannot be handed to another process: {error}; {PLAIN}") from None


def _above_standard(end: socket.socket) -> socket.socket:
    return socket.socket(fileno=lock.above_standard(end.detach()))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
