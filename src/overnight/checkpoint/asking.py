"""What a training is asked from outside: to stop, by a signal; not to save; to leave steps out; to stop at a step.

A signal only leaves a note here; whoever steps looks at it between two steps. No save may be started or waited for in
this file, and nothing is printed while a signal is being handled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from overnight.checkpoint.errors import UsageError

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

GRACE_S = 60.0
"""What is assumed between a first signal and SIGKILL where nobody says: Overnight's own default."""

SOON_S = 0.3
"""So long after a data worker's death may the signal to the training come that both were sent."""

_NOT_HERE = (
    "signals are not listened for, because the Checkpointer was not entered in the main thread: "
    "enter it there, or the training will not save when it is asked to stop"
)


class Asking:
    """Signals and orders. ``asked`` names the first signal that came, ``at`` when (seconds of ``time.monotonic``).

    The environment is read once, here: UsageError if OVERNIGHT_SKIP_STEPS or OVERNIGHT_STOP_AT cannot be read.
    ``skipped`` are the ranges of steps to leave out, first and last included, in order; ``stop_at`` is the last step
    to take, None if nobody asked for one. ``say`` is given whole sentences.
    """

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self.asked: str | None = None
        self.at: float | None = None
        self.skipped = skip_ranges(os.environ.get("OVERNIGHT_SKIP_STEPS", ""))
        self.stop_at = stop_step(os.environ.get("OVERNIGHT_STOP_AT", ""))
        self._firsts = [first for first, _ in self.skipped]
        self._say = say
        self._before: dict[int, Any] = {}
        self._told_of_workers: Any = None
        self._listening = False
        self._pid = os.getpid()
        self._said = False

    # -- signals -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 from now on; harmless if it is done already.

        A handler of the user's is called after the note is made. What is ignored stays ignored, and so do SIGUSR1 and
        SIGUSR2 belong to whoever took them without Python (``faulthandler.register``).
        """
        if self._listening:
            return
        self._pid = os.getpid()
        caught = _caught()
        self._before = {}
        self._listening = True  # before the first handler is there: a signal may come at once
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN:
                continue
            foreign = number in caught and not callable(before)
            if foreign and number in (signal.SIGUSR1, signal.SIGUSR2):
                self._say(f"{number.name} already has a handler outside Python: it is left alone")
                continue
            self._before[number] = before
            try:
                signal.signal(number, self._note)
            except ValueError:
                self._not_here()
                return
            if foreign:
                self._say(f"{number.name} had a handler outside Python, which is not called any more")

    def _not_here(self) -> None:
        self._listening = False
        self._before = {}
        if not self._said:
            self._said = True
            self._say(_NOT_HERE)

    def unlisten(self) -> None:
        """Put back what was there before, for each signal whose handler is still ours."""
        if signal.getsignal(signal.SIGCHLD) == self._worker_ended:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGCHLD, self._told_of_workers)
        self._listening = False  # from here on `_note`, should another handler still call it, only passes on
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                try:
                    # None: it was set outside Python, which cannot put it back.
                    signal.signal(number, signal.SIG_DFL if before is None else before)
                except ValueError:
                    return

    def guard_workers(self) -> None:
        """Keep a step that is going on from being broken by data workers that the same signal has ended.

        A scheduler's SIGTERM reaches the whole group. Workers die of it at once, and torch tells that by a RuntimeError
        from its handler of SIGCHLD, wherever the training happens to be.
        """
        before = signal.getsignal(signal.SIGCHLD)
        if self._listening and callable(before) and before != self._worker_ended:
            self._told_of_workers = before
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGCHLD, self._worker_ended)

    def _worker_ended(self, number: int, frame: FrameType | None) -> None:
        try:
            self._told_of_workers(number, frame)
        except RuntimeError:
            if not self.asked_by_now():
                raise

    def asked_by_now(self) -> bool:
        """Say whether a stop was asked for; our own signal may come a moment after that of a data worker."""
        end = time.monotonic() + SOON_S
        while self.asked is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.asked is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal, and call the handler that was there before."""
        before = self._before.get(number)
        if os.getpid() != self._pid:
            self._in_child(number, frame, before)
            return
        if not self._listening:
            _pass_on(number, frame, before)
            return
        if self.asked is None:
            self.at = time.monotonic()
            self.asked = signal.Signals(number).name
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _in_child(self, number: int, frame: FrameType | None, before: Any) -> None:
        """Answer a signal in a forked child (a data worker), which has inherited the handler.

        SIGTERM is how a parent ends its children. The others reach the whole group, by a Ctrl-C or a scheduler, and
        are meant for the training: a worker that died of one would take the save with it.
        """
        if number == signal.SIGTERM:
            _pass_on(number, frame, before)
        elif callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    # -- orders ------------------------------------------------------------------------------------------------------

    def save_wanted(self) -> bool:
        """Say whether a save is wanted: yes, unless the order that ends this attempt says ``"save": false``."""
        return self._order().get("save") is not False

    def grace_left_s(self) -> float | None:
        """Return the seconds left until SIGKILL, at least 0; None while no signal has come.

        Under ``overnight run`` they are counted as its supervisor counts them; otherwise 60 s are assumed. A
        checkpoint that grows is given longer by Overnight, which is not counted on here.
        """
        if self.at is None:
            return None
        spent_s = time.monotonic() - self.at
        order = self._order()
        began = _number(order.get("began"))
        if order.get("signalled") is True and began is not None:
            # On the clock since boot. Python sees a signal only between two of its own instructions, so `at` may be
            # late.
            spent_s = max(spent_s, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
        return max(0.0, self._grace_s() - spent_s)

    def skip(self, step: int) -> bool:
        """Say whether a step is to be left out."""
        at = bisect_right(self._firsts, step) - 1
        return at >= 0 and step <= self.skipped[at][1]

    def _order(self) -> dict[str, Any]:
        """Return what stop.json of this attempt says; empty if there is none, or none that can be read."""
        folder, attempt = os.environ.get("OVERNIGHT_RUN_DIR"), os.environ.get("OVERNIGHT_ATTEMPT", "")
        if not folder or not (attempt.isascii() and attempt.isdigit()):
            return {}
        return _json(Path(folder) / "attempts" / f"{int(attempt):03d}" / "stop.json")

    def _grace_s(self) -> float:
        grace_s = granted_s()
        return GRACE_S if grace_s is None else grace_s


def granted_s() -> float | None:
    """Return the seconds that Overnight leaves between a first signal and SIGKILL, None where nobody says."""
    folder = os.environ.get("OVERNIGHT_RUN_DIR")
    spec = _json(Path(folder) / "run.json").get("spec") if folder else None
    return _number(spec.get("grace_s")) if isinstance(spec, dict) else None


def skip_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of ``"100-200,300"`` in order, those that touch joined; UsageError for anything else."""
    found = []
    for part in text.split(",") if text.strip() else []:
        first, dash, last = (word.strip() for word in part.partition("-"))
        begin, end = _whole(first), _whole(last if dash else first)
        if begin is None or end is None or end < begin:
            raise UsageError(
                f"OVERNIGHT_SKIP_STEPS is {text!r}, of which {part.strip()!r} is no range of steps; "
                f"write for example 100-200,300"
            )
        found.append((begin, end))
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def stop_step(text: str) -> int | None:
    """Return the step of OVERNIGHT_STOP_AT, None if it is empty; UsageError for anything but a step from 1 on."""
    if not text.strip():
        return None
    step = _whole(text.strip())
    if not step:
        raise UsageError(f"OVERNIGHT_STOP_AT is {text!r}, which is no step; give the last step to take, or none")
    return step


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _pass_on(number: int, frame: FrameType | None, before: Any) -> None:
    """Do what would have happened without us."""
    if callable(before):
        before(number, frame)
    elif before is not signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _caught() -> set[int]:
    """Return the signals that this process has any handler for; empty where Linux does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
            mask = next((int(line.split()[1], 16) for line in stream if line.startswith("SigCgt:")), 0)
    except (OSError, ValueError, IndexError):
        return set()
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}
