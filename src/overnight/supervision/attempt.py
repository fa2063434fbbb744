"""One attempt of the command as its supervisor sees it: ask the shim for it, learn its process, learn how it ended.

The shim's files are the protocol (start, started, exit); the processes are looked at as well, for the case that both
guard and shim were killed and nobody is left to write the exit down.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from overnight import processes, targets
from overnight.clocks import boot_clock, uptime_s
from overnight.errors import FolderError
from overnight.events import Exit, jsonable
from overnight.folder import RunFolder, read_json, utc, write_json
from overnight.keepers import Keepers, read_identity
from overnight.processes import Identity
from overnight.resumption.point import Point
from overnight.spec import RunSpec
from overnight.supervision.waking import Wake

OOM_STEP = 10
OOM_MAX = 1000
LOOK_EVERY_S = 10.0
YOUNG_S = 5.0
EXIT_PATIENCE_S = 15.0
WISH_PATIENCE_S = 5.0
WITHDRAWN_S = 1.0
LEAST_LOOK_S = 0.02

UNSEEN = "ended; how could not be learnt, for it was not started by Overnight"


class Attempt:
    """Attempt ``number`` of the command."""

    def __init__(
        self,
        number: int,
        *,
        folder: RunFolder,
        spec: RunSpec,
        wake: Wake,
        say: Callable[..., None],
        point: Point | None = None,
    ) -> None:
        """``point``: where it goes on, for one that is still to be asked for."""
        self.number = number
        self.point = point
        self.folder = folder
        self.files = folder.attempt(number)
        self.spec = spec
        self.wake = wake
        self.say = say
        self.command: Identity | None = None
        self.started_at: float | None = None
        self.targets: dict[int, Identity] = {}
        self.program: str | None = None  # what the command was when a training below it was seen last
        self.grew_before = self.ended_young = False
        self.seen: set[int] = set()
        self.target_exit: Exit | None = None
        self.target_ended_at = 0.0
        self.looked_at = 0.0
        self.leads_on = True
        self.gone_at: float | None = None
        self.wished_at = boot_clock()
        self.withdrawn_at: float | None = None
        self.exit: Exit | None = None
        self.ended_s: float | None = None

    def request(self, position: tuple[int, int], keepers: Keepers) -> None:
        """Write the start request down and wake the shim. Doing it again changes nothing.

        OSError where the disk holds not even this; the ballast is given up for it.
        """
        if self.withdrawn_at is None and not self.files.start_json.exists():
            try:
                self._wish(position)
            except OSError:
                if not self.folder.drop_ballast():
                    raise
                self._wish(position)
        self.wake.watch_folder(self.files.path)
        keepers.ask()

    def _wish(self, position: tuple[int, int]) -> None:
        self.files.path.mkdir(mode=0o700, exist_ok=True)
        self.wake.watch_folder(self.files.path)  # before the shim can see the wish: its answer comes at once
        write_json(self.files.start_json, self._order(position), fsync=True)

    def look_started(self) -> bool:
        """Learn the command's process; True once it is known."""
        if self.command is not None:
            return True
        self.wake.watch_folder(self.files.path)
        written = read_json(self.files.started_json)
        if written is None:
            return False
        found, at = read_identity(written), written.get("at")
        if found is None or not isinstance(at, (int, float)):
            raise FolderError(f"{self.files.started_json} was edited: restore it; without it nobody knows the command")
        self._is(found, float(at))
        return True

    def found(self, command: Identity) -> None:
        """Take a command that was found among the processes, since its file is of no use."""
        self._is(command, time.time() - _age_s(command))

    def _is(self, command: Identity, at: float) -> None:
        self.command, self.started_at = command, at
        self.wake.watch_process(command)

    def look_ended(self, *, kept: bool) -> Exit | None:
        """Learn how the command ended, and return it once it is known. ``kept``: a guard or shim is there to tell."""
        if self.exit is not None:
            return self.exit
        written = read_json(self.files.exit_json)
        if written is not None:
            return self._ended(_read_exit(written))
        if self.command is None or processes.is_alive(self.command):
            return None
        if self.gone_at is None:
            self.gone_at = boot_clock()
        if kept and not self.spec.watched and boot_clock() - self.gone_at < EXIT_PATIENCE_S:
            return None  # it will be written in a moment; on a full disk the shim keeps trying
        handle = self.wake.pidfd(self.command.pid)
        found = processes.exit_of(handle, self.command.pid) if handle is not None else None
        return self._ended(found or Exit(at=time.time(), text=UNSEEN if self.spec.watched else None))

    def rebooted(self, last_life: float) -> None:
        """The machine was started anew since: the command ended when the run gave its last sign of life, or before."""
        self.ended_s = max(0.0, last_life - self.started_at) if self.started_at is not None else 0.0
        self.exit = Exit(at=last_life, text="the machine was started anew")

    def withdraw(self) -> bool:
        """Take the wish back if it has not been fulfilled for some seconds; True once the command can start no more.

        A shim that has forked just now is not cut off: its child finds no start.json, or started.json names it.
        """
        now = boot_clock()
        if self.withdrawn_at is None and now - self.wished_at >= WISH_PATIENCE_S:
            with contextlib.suppress(FileNotFoundError):
                self.files.start_json.rename(self.files.start_withdrawn)
            self.withdrawn_at = now
        return self.withdrawn_at is not None and now - self.withdrawn_at >= WITHDRAWN_S

    def give_up(self, text: str) -> None:
        """The command will never start; ``text`` says why."""
        self._ended(Exit(at=time.time(), text=text))

    def recall(self, told: dict[str, Any] | None) -> None:
        """Take over from the journal how a training process below the command ended, if that was of this attempt."""
        if told is not None and told.get("attempt") == self.number:
            with contextlib.suppress(msgspec.ValidationError, TypeError, ValueError):  # edited by hand
                ended_at = float(told.get("boot_s") or 0.0)
                how = {"exit_code": told.get("exit_code"), "signal": told.get("signal")}
                self.target_exit, self.target_ended_at = msgspec.convert(how, Exit), ended_at

    def executed(self) -> bool:
        """Say whether the command was really executed (an exec error is written as code 126 or 127 with its text)."""
        written = read_json(self.files.exit_json)
        return written is None or "error" not in written

    def log_begins(self) -> tuple[int, int]:
        """Return (source, offset) where this attempt begins in the log; zeros where nobody can tell any more."""
        with contextlib.suppress(FolderError, TypeError, ValueError, LookupError):
            source, offset = (read_json(self.files.start_json) or {})["position"]
            return int(source), int(offset)
        return 0, 0

    def watch_targets(self, now: float, log_grew_at: float | None) -> None:
        """Find the training processes below a wrapper, to learn how they end: the wrapper may hide it.

        Looks now and then, and often while none is known and the command is young, or has just gone on to its next
        program: a training that crashes in its first step is there for a moment only.
        """
        if self.command is None or not self._look_is_due(now, log_grew_at):
            return
        self.looked_at = now
        if not processes.is_alive(self.command):
            return
        found = targets.find_targets(self.command.pid, sample=False)
        # In its first moments it is still a fork of the shim, or a script of a version manager that will exec.
        young = self.active_s() < YOUNG_S
        self.leads_on = young or bool(found.shells or found.launchers) or targets.leads_on(self.command.pid)
        self._look_at_itself()
        for pid in found.pids:
            who = processes.identify(pid)
            forked = young and targets.leads_on(pid)  # of a shell, and not yet the program it is going to be
            if who is not None and pid != self.command.pid and pid not in self.targets and not forked:
                self._watch_target(who)

    def next_look_s(self, now: float) -> float:
        """Return when ``watch_targets`` wants to be called though nothing happens, in seconds."""
        if self.command is None or self.targets or not self.leads_on:
            return LOOK_EVERY_S
        since_s = min(self.active_s(), now - self.target_ended_at)
        if since_s > YOUNG_S:
            return LOOK_EVERY_S
        return max(0.0, self.looked_at + max(LEAST_LOOK_S, since_s / 4) - now)

    def _look_is_due(self, now: float, log_grew_at: float | None) -> bool:
        if now - self.looked_at >= LOOK_EVERY_S or self.next_look_s(now) == 0.0:
            return True
        if self.targets or not self.leads_on or log_grew_at is None or log_grew_at < self.looked_at:
            return False
        since_s = min(self.active_s(), now - self.target_ended_at)
        return now - self.looked_at >= min(LOOK_EVERY_S, since_s / 10)

    def _watch_target(self, who: Identity) -> None:
        self.wake.watch_process(who)
        if self.wake.pidfd(who.pid) is None:
            return  # it has just ended: nobody would tell, and the next look may find another
        self.targets[who.pid] = who
        self.seen.add(who.pid)
        self.program = None if self.command is None else processes.exe(self.command.pid)
        if self.target_exit is not None and who.start_ticks / os.sysconf("SC_CLK_TCK") >= self.target_ended_at - 0.02:
            self._went_on(who.pid)

    def _look_at_itself(self) -> None:
        """Learn whether the command has become another program since: a version manager's script that did its work."""
        if self.command is None or self.target_exit is None or self.program is None:
            return
        now = processes.exe(self.command.pid)
        if now is not None and now != self.program:
            self._went_on(self.command.pid)

    def _went_on(self, pid: int) -> None:
        """The command went on to a next program: how the one before it ended was the command's own affair."""
        self.target_exit = None
        self.say("target_started", attempt=self.number, pid=pid)

    def target_of(self, log_grew_at: float | None) -> Exit | None:
        """Return how the training below the command ended, as far as that tells something about the run.

        One that ended young and without a word, before the command itself went on to print, was a helper of the
        command: a version manager asks another program for the interpreter's path, for instance.
        """
        helper = self.ended_young and not self.grew_before and (log_grew_at or 0.0) > self.target_ended_at
        return None if helper else self.target_exit

    def target_ended(self, pid: int, log_grew_at: float | None) -> None:
        """A training process ended: note how, if the kernel still tells."""
        if pid not in self.targets:
            return
        self.looked_at = 0.0  # what the command does next is looked at soon
        self.grew_before = log_grew_at is not None and log_grew_at > self.wished_at
        self.ended_young = self.active_s() < YOUNG_S
        handle = self.wake.pidfd(pid)
        how = processes.exit_of(handle, pid) if handle is not None else None
        how = how or self._reaped(pid)
        del self.targets[pid]
        self.wake.forget_process(pid)
        if how is not None and (self.target_exit is None or self.target_exit.exit_code == 0):
            self.target_exit = how  # of several ranks the one that failed counts, whichever ends last
            self.target_ended_at = boot_clock()
            self.say(
                "target_ended",
                attempt=self.number,
                pid=pid,
                exit_code=how.exit_code,
                signal=how.signal,
                boot_s=self.target_ended_at,
            )

    def known_pids(self) -> tuple[int, ...]:
        """Return the pids of all processes that are known to have belonged to this attempt."""
        reaped: list[int] = []
        with contextlib.suppress(OSError):
            reaped = [one.pid for one in processes.read_reaped(self.files.reaped.read_bytes())]
        return tuple(self.seen.union(reaped))

    def _reaped(self, pid: int) -> Exit | None:
        """Return how an orphan ended, as the shim that reaped it wrote down: for a kernel that does not tell."""
        try:
            data = self.files.reaped.read_bytes()
        except OSError:
            return None
        return next((one.exit for one in reversed(processes.read_reaped(data)) if one.pid == pid), None)

    def line(self) -> dict[str, Any]:
        """Return the attempt as status shows it, without what the meter adds."""
        return {
            "n": self.number,
            "pid": None if self.command is None else self.command.pid,
            "started_at": None if self.started_at is None else utc(self.started_at),
            "ended_at": None,
            "exit_code": None,
            "signal": None,
            "cause": None,
            "cause_text": None,
            "first_step": None,
            "last_step": None,
        }

    def active_s(self) -> float:
        """Return the seconds the command has run, on a clock that neither jumps nor stops in suspend.

        0 before it starts; once it has ended the figure stands still.
        """
        if self.ended_s is not None:
            return self.ended_s
        if self.command is None:
            return 0.0
        return _age_s(self.command)

    def _ended(self, how: Exit) -> Exit:
        # The exit may be older than this look: of a supervisor that was dead, or is only now adopting the run.
        ago_s = time.time() - how.at if how.at is not None else 0.0
        self.ended_s = max(0.0, self.active_s() - max(0.0, ago_s))
        self.exit = how
        return how

    def _order(self, position: tuple[int, int]) -> dict[str, Any]:
        own = 0
        with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj") as stream:
            own = int(stream.read())
        given = {
            "OVERNIGHT_RUN_ID": self.spec.name,
            "OVERNIGHT_RUN_DIR": str(self.folder.path),
            "OVERNIGHT_ATTEMPT": str(self.number),
        }
        # What makes an unmodified script readable from outside, unless its user decided otherwise.
        readable = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "COLUMNS": "300"}
        given.update({name: value for name, value in readable.items() if name not in os.environ})
        argv, executable = list(self.spec.argv), self.spec.executable
        if self.point is not None:
            argv += self.point.words(self.spec.resume_args)
            given.update(self.point.environment())
        stdbuf = None
        if self.spec.line_buffered:
            from shutil import which  # 2 MB that few runs need

            stdbuf = which("stdbuf")
        if stdbuf is not None:
            # For programs that are not Python: stdbuf sets its library up and then becomes the command.
            argv, executable = [stdbuf, "-oL", "-eL", executable, *argv[1:]], stdbuf
        order: dict[str, Any] = jsonable(
            {
                "attempt": self.number,
                "argv": argv,
                "executable": executable,
                "cwd": self.spec.cwd,
                "log": self.spec.log,
                "set": given,
                "unset": [],
                "oom_score_adj": min(OOM_MAX, own + OOM_STEP),
                "position": list(position),
            }
        )
        return order


def _age_s(who: Identity) -> float:
    """Return the seconds since a process of this boot was started."""
    return max(0.0, round(uptime_s() - who.start_ticks / os.sysconf("SC_CLK_TCK"), 3))


def _read_exit(written: dict[str, Any]) -> Exit:
    """Return what exit.json says; what somebody edited into nonsense is unknown."""
    named = {"exit_code": "exit_code", "signal": "signal", "at": "at", "text": "error"}
    try:
        return msgspec.convert({name: written.get(key) for name, key in named.items()}, Exit)
    except msgspec.ValidationError:
        return Exit(at=time.time())
