"""What wakes the supervisor: writes to the log, requests, exits, signals, and a slow timer for all that was missed.

inotify and pidfds tell within a fraction of a millisecond and cost nothing while nothing happens. On network disks
inotify does not see what other hosts write, so there the timer is short instead. Signal handlers only leave a note.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from pathlib import Path
from typing import NamedTuple

from inotify_simple import INotify, flags

from overnight.processes import Identity, is_alive

WATCHED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Woke(NamedTuple):
    """Why it woke: bytes in the log, a new name in a watched folder, an exit, signals that came. All may be empty."""

    log: bool
    names: frozenset[str]
    exits: frozenset[int]
    signals: tuple[int, ...]


class Wake:
    """One place to sleep. ``watch_*`` and ``watch_process`` may be called at any time and are idempotent."""

    def __init__(self) -> None:
        self.inotify = INotify()
        self.poll = select.poll()
        self.poll.register(self.inotify, select.POLLIN)
        self.folders: dict[int, str] = {}
        self.log_watch: int | None = None
        self.log_name = ""
        self.pids: dict[int, int] = {}
        self.others: set[int] = set()
        self.notes: list[int] = []
        self.reading, self.writing = socket.socketpair()
        self.reading.setblocking(False)
        self.writing.setblocking(False)
        self.poll.register(self.reading, select.POLLIN)

    def catch_signals(self) -> None:
        """Turn TERM, INT and HUP into notes."""
        signal.set_wakeup_fd(self.writing.fileno(), warn_on_full_buffer=False)
        for number in WATCHED_SIGNALS:
            signal.signal(number, lambda got, _frame: self.notes.append(got))

    def watch_folder(self, path: Path) -> None:
        """Wake when a file appears in ``path``."""
        with contextlib.suppress(OSError):
            self.folders[self.inotify.add_watch(path, flags.CREATE | flags.MOVED_TO | flags.ONLYDIR)] = str(path)

    def watch_log_name(self, path: Path) -> None:
        """Wake when a file of the log's name appears (a rotated log begins anew)."""
        self.log_name = path.name
        self.watch_folder(path.parent)

    def watch_log(self, handle: int) -> None:
        """Wake at every write to the open file ``handle``, whatever its name has become."""
        mask = flags.MODIFY | flags.ATTRIB | flags.MOVE_SELF
        with contextlib.suppress(OSError):
            self.log_watch = self.inotify.add_watch(f"/proc/self/fd/{handle}", mask)

    def watch_handle(self, handle: int) -> None:
        """Wake when ``handle`` has something to read, which somebody else does."""
        self.poll.register(handle, select.POLLIN)
        self.others.add(handle)

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
        log, names, exits = False, set(), set()
        for handle, _event in self.poll.poll(max(0.0, timeout_s) * 1000.0):
            if handle == self.reading.fileno():
                with contextlib.suppress(BlockingIOError):
                    while self.reading.recv(256):
                        pass
            elif handle in self.pids:
                exits.add(self.pids[handle])
                self.poll.unregister(handle)  # it stays readable for ever; one waking is enough
            elif handle not in self.others:
                for event in self.inotify.read(timeout=0):
                    if event.wd in self.folders:
                        names.add(event.name)
                        log = log or event.name == self.log_name
                    else:
                        log = True
        signals, self.notes = tuple(self.notes), []
        return Woke(log, frozenset(names), frozenset(exits), signals)
