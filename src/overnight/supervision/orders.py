"""What people and schedulers ask of a run while it goes on: stop, note, set. Taken from the inbox and from signals.

A request becomes an event for ``lifecycle``, a fact, or another spec; what follows from it is decided there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import msgspec

from overnight import processes
from overnight.events import Request
from overnight.facts import Facts
from overnight.monitor import Monitor
from overnight.requests.changes import changed
from overnight.spec import RunSpec
from overnight.states import Event
from overnight.supervision.attempts import Attempts
from overnight.supervision.inbox import Inbox
from overnight.supervision.shutdown import shutting_down
from overnight.supervision.waking import Woke


class Orders:
    """One run's requests. ``happen`` gets the events, ``change`` the spec that takes the place of the old one."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        facts: Facts,
        attempts: Attempts,
        monitor: Monitor,
        happen: Callable[[Event], None],
        change: Callable[[RunSpec], None],
    ) -> None:
        self.inbox = inbox
        self.facts = facts
        self.attempts = attempts
        self.monitor = monitor
        self.happen = happen
        self.change = change
        self.signalled_at: float | None = None

    def take(self, woke: Woke) -> bool:
        """Obey what has come since the last time; True if there was a new request in the inbox."""
        self._hear(woke)
        attempt = self.attempts.current
        if self.monitor.state.state == "starting" and attempt is not None and attempt.exit is None:
            wanted = self.signalled_at is not None or self.inbox.holds("stop")
            if not wanted or not attempt.withdraw():
                self.inbox.postpone()  # the shim is about to fork: there is nothing to stop yet
                return False
            attempt.give_up("stopped before the command could be started")
        if self.signalled_at is not None and not self._ended_by_itself():
            self.happen(Request(kind="stop", by=_who("scheduler"), at=self.signalled_at))
            self.signalled_at = None
        taken = False
        for file, request, fresh in self.inbox.requests(woke):
            self._obey(request, file, fresh=fresh)
            taken = taken or fresh
        return taken

    def _hear(self, woke: Woke) -> None:
        if signal.SIGHUP in woke.signals:
            self.facts.say("hangup_ignored")
        if signal.SIGTERM in woke.signals or signal.SIGINT in woke.signals:
            self.facts.say("request", kind="stop", by="scheduler", signal=True)
            self.signalled_at = time.time()

    def _ended_by_itself(self) -> bool:
        """Say whether the command has ended and only what it left behind is waited for."""
        attempt = self.attempts.current
        if attempt is None or self.monitor.state.state == "backoff":
            return False
        return attempt.exit is not None and attempt.withdrawn_at is None

    def _obey(self, request: Request, file: str, *, fresh: bool) -> None:
        if request.kind == "note":
            text = request.text if request.by == "overnight" else f"{request.by}: {request.text}"
            self.facts.note(text, file=file)
        elif request.kind == "set" and file not in self.facts.obeyed:
            self._set(request, file)
        elif request.kind == "stop":
            # A request that was obeyed and is found again (killed before it was removed) is no second one; one that
            # comes after the command has ended by itself does not change how it ended, but whether it comes again.
            if self._ended_by_itself() and not self.monitor.state.ended:
                if self.attempts.aftermath is not None and request.now:
                    # Only leftovers are waited for: they get no more time.
                    self.attempts.aftermath.remains.killed = True
                self.inbox.postpone()  # until it is decided what follows from that end
            elif fresh or self.attempts.stopping is None:
                self.happen(msgspec.structs.replace(request, by=_who(request.by)))

    def _set(self, request: Request, file: str) -> None:
        spec = self.attempts.spec
        try:
            wanted = changed(spec, request.values)
        except ValueError as error:
            self.facts.note(f"a change was refused: {error}", file=file)
            return
        was = {name: getattr(spec, name) for name in request.values}
        if wanted.comes_again() and self.attempts.keepers.alive():
            self._keep_environment()
        self.facts.say("set", values=request.values, was=was, file=file)
        self.change(wanted)

    def _keep_environment(self) -> None:
        """Keep what the command was started in, as a run that may be started again from its beginning on has it kept.

        Guard and shim hand theirs to this process; a supervisor without them has that of whoever has looked at the run.
        """
        from overnight import launch  # for this rare case only: it brings subprocess with it, 2.4 MB

        path = self.attempts.folder.run_env
        environ = processes.environ(os.getpid())
        if path.exists() or not environ:
            return
        environ.pop("OVERNIGHT_ROLE", None)
        try:
            launch.write_env(self.attempts.folder, environ)
        except OSError as error:
            self.facts.note(f"{path} cannot be written, so it can only be started again by its shim: {error.strerror}")


def _who(by: str) -> str:
    """Return who asks: init signals all of us when it shuts the machine down, and looks like a scheduler then."""
    return "shutdown" if by == "scheduler" and shutting_down() else by
