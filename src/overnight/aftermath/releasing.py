"""After a command has ended: says who of it still holds the GPUs, has it killed, and says when the devices are free.

Who holds them is found out by ``vacancy.py``, a process of its own, and only where there are such devices; this side
only reads its lines and never waits. What else a command leaves behind is the work of ``remains.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight import processes

ANSWER_S = 5.0
"""So long an answer is waited for once nothing else of the command is left."""

KILL_S = 1.0
GIVE_UP_S = 15.0
"""A holder that has survived so many seconds of kills hangs in the kernel: it is named, and left."""

LOOK_S = 0.05
SLOW_LOOK_S = 0.2
PART_BYTES = 65536

Say = Callable[..., None]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the run that holds device files; ``text`` is the sentence for it."""

    pid: int
    start_ticks: int
    command: str
    paths: tuple[str, ...]
    text: str
    state: str = "S"
    user: str | None = None


class Release:
    """Whether the GPUs are free after one attempt. ``files`` are their device files; without any, nothing is done.

    ``say`` writes a fact, ``note`` a sentence. ``held`` is who holds them now, ``hung`` what could not be ended.
    """

    def __init__(
        self, run_dir: Path, attempt: int, *, files: Sequence[str | Path], say: Say, note: Callable[[str], None]
    ) -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self.files = [os.fspath(path) for path in files]
        self.say = say
        self.note = note
        self.held: tuple[Holding, ...] = ()
        self.hung: tuple[Holding, ...] = ()
        self.pid: int | None = None
        self.out = -1
        self.data = b""
        self.answered = self.named = False
        self.over = not self.files
        self.cleared_at: float | None = None
        self.killed_at = 0.0

    def begin(self) -> None:
        """Start to look."""
        if self.over:
            return
        words = [
            sys.executable,
            "-I",
            "-m",
            "overnight.aftermath.vacancy",
            str(self.run_dir),
            str(os.getpid()),
            *self.files,
        ]
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        try:
            # The role, so that it is not taken for a part of the training.
            self.pid = processes.start_apart(words, {**os.environb, b"OVERNIGHT_ROLE": b"sensors"}, out=writing)
            self.out = reading
        except OSError as error:
            os.close(reading)
            self.note(f"who holds the GPUs cannot be looked at: {error.strerror}")
            self.over = True
        finally:
            os.close(writing)

    def turn(self, now: float, *, cleared: bool) -> bool:
        """Take in what was found; True once the devices are free, or nothing more can be done for that.

        ``cleared``: nothing else of the command is left. Who still holds them then is killed.
        """
        if not self.over:
            self._read()
        if self.over or not cleared:
            return self.over
        self.cleared_at = now if self.cleared_at is None else self.cleared_at
        waited_s = now - self.cleared_at
        if self.held and now - self.killed_at >= KILL_S:
            self.killed_at = now
            for one in self.held:
                processes.send(one.pid, one.start_ticks, signal.SIGKILL)
        hang = self.held and all(one.state == "D" for one in self.held)
        if waited_s >= (GIVE_UP_S if self.answered and not hang else ANSWER_S):
            self._give_up()
        return self.over

    def next_look_s(self) -> float | None:
        """Return when ``turn`` wants to be called though nothing happens; None if it does not."""
        if self.over:
            return None
        return LOOK_S if self.cleared_at is not None else SLOW_LOOK_S

    def close(self) -> None:
        """Stop looking. Nobody waits: who reads of a process that hangs may hang as well."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        if self.out >= 0:
            os.close(self.out)
        self.pid, self.out, self.over = None, -1, True

    # -- what the lines say ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        ended = False
        with contextlib.suppress(BlockingIOError):
            while not ended:
                part = os.read(self.out, PART_BYTES)
                ended = not part
                self.data += part
        *lines, self.data = self.data.split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                self._take(msgspec.convert(json.loads(line), tuple[Holding, ...]))
        if ended and not self.over:
            self.note("who holds the GPUs could not be found out: the process that looks has failed")
            self.close()

    def _take(self, held: tuple[Holding, ...]) -> None:
        new = [one for one in held if one.pid not in {known.pid for known in self.held}]
        self.held, self.answered = held, True
        if new:
            self.named = True
            self.say("devices_held", attempt=self.attempt, holders=[_line(one) for one in held])
            for one in new:
                self.note(f"after the command of attempt {self.attempt} had ended, {one.text}")
        if held:
            return
        self.say("devices_free", attempt=self.attempt)
        if self.named:
            self.note(f"attempt {self.attempt}: the devices are free")
        self.close()

    def _give_up(self) -> None:
        self.hung = self.held
        for one in self.held:
            self.note(f"{one.text}; it cannot be killed, a reset of the device or a reboot ends it")
        if not self.answered:
            self.note("who holds the GPUs could not be found out: what /proc tells of a process does not come")
        self.close()


def _line(one: Holding) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(one).items() if name not in ("text", "start_ticks")}
