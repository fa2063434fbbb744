"""What wakes the supervisor: writes to the log, requests, exits, signals, and a slow timer for all that was missed.

inotify and pidfds tell within a fraction of a millisecond and cost nothing while nothing happens. On network disks
inotify does not see what other hosts write, so there the timer is short instead. Signal handlers only leave a note.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inotify_simple import INotify, flags

from overnight.processes import Identity, is_alive

WATCHED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Woke(NamedTuple):
    """Why it woke: bytes in the log, a new name in a watched folder, an exit, signals that came. All may be empty.

    ``due``: everything is to be looked at whatever was told, since that was long ago.
    """

    log: bool
    names: frozenset[str]
    exits: frozenset[int]
    signals: tuple[int, ...]
    due: bool = False

    @property
    def by_timer(self) -> bool:
        """Say whether nothing was told."""
        return not (self.log or self.names or self.exits or self.signals)

    @property
    def to_all(self) -> bool:
        """Say whether this is the moment to look at everything, in case something was missed."""
        return self.due or self.by_timer

    @property
    def by_log(self) -> bool:
        """Say whether the log alone has grown."""
        return self.log and not (self.names or self.exits or self.signals)


class Wake:
    """One place to sleep. ``watch_*`` and ``watch_process`` may be called at any time and are idempotent."""

    def __init__(self) -> None:
        self.inotify = INotify()
        self.poll = select.poll()
        self.poll.register(self.inotify, select.POLLIN)
        self.folders: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self.others: dict[int, Callable[[], bool]] = {}
        self.notes: list[int] = []
        self.reading, self.writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.poll.register(self.reading, select.POLLIN)

    def catch_signals(self) -> None:
        """Turn TERM, INT and HUP into notes."""
        signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
        for number in WATCHED_SIGNALS:
            signal.signal(number, lambda got, _frame: self.notes.append(got))

    def watch_folder(self, path: Path) -> None:
        """Wake when a file appears in ``path``."""
        with contextlib.suppress(OSError):
            self.folders[self.inotify.add_watch(path, flags.CREATE | flags.MOVED_TO | flags.ONLYDIR)] = str(path)

    def watch_log(self, handle: int) -> None:
        """Wake at every write to the open file ``handle``, whatever its name has become."""
        mask = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF
        with contextlib.suppress(OSError):
            self.inotify.add_watch(f"/proc/self/fd/{handle}", mask)

    def watch_handle(self, handle: int, absorb: Callable[[], bool]) -> None:
        """Call ``absorb`` when ``handle`` has something to read; wake only if it says that this matters."""
        self.poll.register(handle, select.POLLIN)
        self.others[handle] = absorb

    def watch_process(self, who: Identity) -> None:
        """Wake when the process ends; a process that has ended already wakes at once."""
        if who.pid in self.pids.values():
            return
        try:
            handle = os.pidfd_open(who.pid)
        except OSError:
            return
        if not is_alive(who):
            os.close(handle)
            return
        self.pids[handle] = who.pid
        self.poll.register(handle, select.POLLIN)

    def pidfd(self, pid: int) -> int | None:
        """Return the descriptor that watches ``pid``, if one does."""
        return next((handle for handle, one in self.pids.items() if one == pid), None)

    def forget_process(self, pid: int) -> None:
        """Watch this process no more."""
        handle = self.pidfd(pid)
        if handle is not None:
            del self.pids[handle]
            with contextlib.suppress(KeyError):
                self.poll.unregister(handle)
            os.close(handle)

    def sleep(self, timeout_s: float) -> Woke:
        """Sleep until something happens or the time is over."""
        until = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            woke = self._take(self.poll.poll(left_s * 1000.0))
            now = time.monotonic()
            if woke is None and now < until:
                continue
            return woke or Woke(log=False, names=frozenset(), exits=frozenset(), signals=())

    def _take(self, ready: list[tuple[int, int]]) -> Woke | None:
        """Return what happened; None if none of it matters."""
        log, names, exits, matters = False, set(), set(), False
        for handle, _event in ready:
            if handle == self.reading:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self.reading, 256):
                        pass
            elif handle in self.pids:
                exits.add(self.pids[handle])
                self.poll.unregister(handle)  # it stays readable for ever; one waking is enough
            elif handle in self.others:
                matters = self.others[handle]() or matters
            else:
                for event in self.inotify.read(timeout=0):
                    overflow = bool(event.mask & flags.Q_OVERFLOW)  # some were dropped, and nobody knows of what
                    if event.wd in self.folders or overflow:
                        names.add(event.name)
                    log = log or event.wd not in self.folders
        signals = tuple(self.notes)
        del self.notes[: len(signals)]  # in place: a handler may leave one more in between
        if not (log or names or exits or signals or matters):
            return None
        return Woke(log, frozenset(names), frozenset(exits), signals)
