"""``run --foreground``: stays with a run, passes its output on, turns signals into stop requests, works as PID 1.

The run does not depend on this process either: killed with -9, it leaves a run that goes on like any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, Self

from overnight import client
from overnight.cli import lastsave
from overnight.cli.end import adopter
from overnight.cli.follow import Follower
from overnight.cli.notice import StopNews, unguarded_words
from overnight.cli.render import held_words
from overnight.folder import RunFolder

ASKERS = {signal.SIGINT: "user", signal.SIGTERM: "scheduler"}
LAST_CARE_S = 5.0
LOOK_EVERY_S = 0.5


class Foreground:
    """Signal handlers for the time of a stay; they only leave notes, which the loop carries out."""

    def __init__(self) -> None:
        self._notes: list[int] = []
        self._before: dict[int, Any] = {}
        self._bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._echo = True
        self._stale_at = 0.0
        self._asked = False
        self._warned = False
        self._held = False

    def __enter__(self) -> Self:
        # Python resumes an interrupted poll (PEP 475): only a byte in a pipe makes the loop look at its notes at once.
        signal.set_wakeup_fd(self._bell[1], warn_on_full_buffer=False)
        for number in (*ASKERS, signal.SIGHUP):
            # An ignored SIGINT is taken over too (a script's `overnight run --foreground &`); nohup's SIGHUP is not.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for handle in self._bell:
            os.close(handle)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._notes.append(number)

    def until_end(self, folder: RunFolder, log: str, offset: int) -> dict[str, Any]:
        """Pass the log on from ``offset`` until the run has ended; return its last status.

        One turn: carry out the notes, pass on what was written, reap strays, look at the state, sleep.
        """
        news = StopNews(folder)
        with Follower(log, offset, also=str(folder.path)) as follower:
            while True:
                self._carry_out(folder)
                self._tell_stop(news)
                self._pass_on(follower)
                reap()
                one = client.status(folder)
                if one["state"] in client.ENDED:
                    self._pass_on(follower)
                    return self._let_keepers_finish(folder)
                self._mind_stale(folder, one)
                self._warn(folder, one)
                follower.wait(LOOK_EVERY_S, bell=self._bell[0])

    def _carry_out(self, folder: RunFolder) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell[0], 4096)
        while self._notes:
            number = self._notes.pop(0)
            if number == signal.SIGHUP:
                self._echo = False  # the terminal is gone; the run is not
                continue
            client.request_stop(folder, by=ASKERS[signal.Signals(number)])
            again = "asked to stop again; a save that has begun is waited for"
            self._tell(f"{folder.name} is {again if self._asked else 'asked to stop'}")
            self._asked = True

    def _tell_stop(self, news: StopNews) -> None:
        """Say what the stop has done so far and what one more Ctrl-C would do."""
        found = news.look() if self._asked else None
        if found is not None:
            done, again = found
            self._tell(f"{done}; Ctrl-C again: {again}" if again else done)

    def _pass_on(self, follower: Follower) -> None:
        while data := follower.read():
            if not self._echo:
                continue
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            except OSError:  # a closed pipe or terminal, a full disk behind it
                self._echo = False

    def _tell(self, text: str) -> None:
        if self._echo:
            try:
                print(f"overnight: {text}", file=sys.stderr, flush=True)
            except OSError:
                self._echo = False

    def _mind_stale(self, folder: RunFolder, one: dict[str, Any]) -> None:
        if one["stale"] and time.monotonic() - self._stale_at > client.STALE_EVERY_S:
            self._stale_at = time.monotonic()
            adopter(folder)()

    def _warn(self, folder: RunFolder, one: dict[str, Any]) -> None:
        """Say once that nobody restarts a supervisor that dies too often."""
        said = unguarded_words(folder, one)
        if said and not self._warned:
            self._tell(said)
        self._warned = bool(said)

    def _let_keepers_finish(self, folder: RunFolder) -> dict[str, Any]:
        """Wait until the keepers have gone: as PID 1 our exit would kill them in the middle of their last writes.

        Hooks of the end have the time that they were given, and so has a look at the final save; returns the last
        status of all.
        """
        until = time.monotonic() + LAST_CARE_S
        verified_by = time.monotonic() + lastsave.VERIFIED_WITHIN_S
        asked = lastsave.asked_of(folder)
        while True:
            reap()
            one = client.status(folder)
            kept = one["supervisor"]["alive"] or one["shim"]["alive"]
            looking = time.monotonic() < verified_by and lastsave.pending(one, asked)
            # With PID 1 the container ends, and with it whatever goes on in it and is waited for.
            stays = os.getpid() == 1 and client.hooks_held(one) is not None
            self._tell_held(one, stays=stays)
            if not kept or (client.over(one) and time.monotonic() >= until and not looking and not stays):
                return one
            time.sleep(0.5 if stays else 0.02)

    def _tell_held(self, one: dict[str, Any], *, stays: bool) -> None:
        """Say once what PID 1 stays for."""
        if stays and not self._held:
            self._tell(f"{held_words(one)}; staying, for this container would end with this process")
        self._held = stays


def reap() -> None:
    """Take the status of every dead child: as PID 1 the orphans of a whole container come to us."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
