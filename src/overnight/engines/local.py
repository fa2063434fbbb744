"""Places a run on this machine: guard and shim in a session of their own, with nothing of the caller's terminal left.

It starts one process and returns; waiting, reading and judging may not enter here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from overnight.engines import SHIM, Handle, Placement, keepers_argv
from overnight.errors import LaunchError
from overnight.processes import Identity, identify, is_alive

# Popen objects of guards: they are never waited for, and one that is dropped early warns. ``look`` reaps a dead one.
_started: dict[int, subprocess.Popen[bytes]] = {}


class Local:
    """The engine of one machine."""

    name = "local"

    def check(self, placement: Placement) -> None:
        """Refuse nothing."""

    def start(self, placement: Placement) -> Handle:
        """Start the guard of the run. LaunchError if the log or the process cannot be made."""
        argv = keepers_argv(placement)
        log = placement.run_dir.absolute() / "shim.log"
        try:
            handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LaunchError(f"{log} cannot be opened: {error.strerror}; check the run folder") from error
        try:
            with _signals_blocked():
                guard = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=handle,
                    stderr=handle,
                    cwd="/",
                    # The mark keeps a run that another run's training starts from being cleared away with that.
                    env={**placement.env, "OVERNIGHT_ROLE": "guard"},
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"the guard cannot be started ({argv[0]} {SHIM}): {error.strerror}") from error
        finally:
            os.close(handle)
        _started[guard.pid] = guard
        known = identify(guard.pid)  # a child that nobody has waited for is there, if only as a zombie
        if known is None:
            raise LaunchError("/proc does not show the started guard; Overnight needs a mounted /proc")
        return Handle(engine=self.name, pid=known.pid, start_ticks=known.start_ticks, boot_id=known.boot_id)

    def look(self, handle: Handle) -> bool | None:
        """Say whether the guard of ``handle`` is alive."""
        mine = _started.get(handle.pid)
        if mine is not None and mine.poll() is not None:
            del _started[handle.pid]
        return is_alive(Identity(pid=handle.pid, start_ticks=handle.start_ticks, boot_id=handle.boot_id))

    def stop(self, handle: Handle, run_dir: Path) -> None:
        """Do nothing more: the supervisor lives on this machine and reads the inbox."""

    def attach(self, handle: Handle) -> tuple[str, ...] | None:
        """Return None: ``overnight attach`` is all there is."""

    def forget(self, handle: Handle, run_dir: Path) -> None:
        """Do nothing: an ended run leaves nothing outside of its folder."""


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let the guard inherit blocked signals: a TERM in its first milliseconds is then a request, not its death."""
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
