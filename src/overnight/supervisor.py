"""One process per run: the only place where decisions meet effects. It may be killed at any moment without harm.

One turn of the loop:

 1. sleep until something happens: a log write, a request, an exit, or the time that a rule or the ladder asked for
 2. read what was logged and judge it; a verdict is acted upon before anything is stored
 3. look at what has started, what has ended and what has been saved
 4. take the requests from the inbox
 5. ask the rules that judge time
 6. take the next step of a stop, or of clearing away what a dead command left behind
 7. commit records, verdicts and the place in the log in one transaction; publish the status

What a kill between two of these steps would lose is found again in the files: the attempt's start, started, stop and exit
files say where the run stands, the database says how far the log was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from overnight.attempt import Attempt
from overnight.errors import FolderError
from overnight.events import Exit, Request, Verdict
from overnight.facts import Facts, complain
from overnight.folder import RunFolder, boot_id, read_json, utc, write_json
from overnight.intake import Intake
from overnight.keepers import Keepers
from overnight.lifecycle import (
    Action,
    Alive,
    Climb,
    End,
    Ended,
    Event,
    Launched,
    Rebooted,
    Reorder,
    RunState,
    Start,
    Stop,
)
from overnight.ownership import Owned, Owner
from overnight.remains import Remains
from overnight.rules import Moment
from overnight.saves import Saves, Silences
from overnight.snapshot import build
from overnight.spec import RunSpec
from overnight.stopping import Stopping, boot_clock
from overnight.waking import Wake, Woke
from overnight.wiring import make_monitor

TIMER_S = 20.0
NETWORK_TIMER_S = 1.0
STARTING_TIMER_S = 1.0
MISSING_TIMER_S = 0.1
# A rename onto status.json makes ext4 write it out at once (0.7 ms of CPU), a commit costs half of that: at rest, with a
# line a second, they are what watching costs. What a kill makes uncommitted is read again.
COMMIT_EVERY_S = 2.0
COMMIT_RECORDS = 5000
PUBLISH_EVERY_S = 2.0
PUBLISH_EARLY_S = 0.2
EARLY_RECORDS = 10
DISK_EVERY_S = 10.0
LOCK_WAIT_S = 5.0

OVER = 0
NOT_MINE = 3
DAMAGED = 4


class Supervisor:
    """The owner of one run while it lives."""

    attempt: Attempt | None = None
    stopping: Stopping | None = None
    remains: Remains | None = None
    exit: Exit | None = None

    def __init__(self, folder: RunFolder, *, adopting: bool) -> None:
        self.folder = folder
        self.adopting = adopting
        self.owner = Owner(folder, wait_s=LOCK_WAIT_S)
        written = read_asked(folder)
        self.spec = written["spec"]
        self.created_at = written.get("epoch")
        self.log_start = int(written.get("log_start") or 0)
        self.boot = str(written.get("boot_id") or "")
        self.facts = Facts(folder)
        self.wake = Wake()
        self.keepers = Keepers(folder, self.wake)
        self.monitor = make_monitor(self.spec, self.facts.note)
        self.ended_at = 0.0
        root = Path(self.spec.checkpoints or self.spec.cwd)
        self.saves = Saves(root, skip=(folder.path, folder.path.parent, folder.path.parent.parent))
        self.silences = Silences()
        self.watched_logs: tuple[tuple[int, int], ...] = ()
        self.waiting_requests = True
        self.published: dict[str, Any] = {}
        self.urgent = True
        self.unpublished = False
        self.committed_at = self.published_at = self.disk_at = 0.0
        self.disk_full = False
        self._recover()
        pids = () if self.attempt is None or self.attempt.command is None else (self.attempt.command.pid,)
        self.intake = Intake(folder, self.spec, self.monitor, self.facts, start=self.log_start, pids=pids)
        for verdict in self.intake.history.verdicts():
            self.facts.judge(verdict)  # known to the journal, unless somebody damaged that
        self._bounds()

    # -- where the run stands ----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Read from the files where the run stands; the journal alone says whether it is over."""
        numbers = [number for number in self.folder.attempt_numbers() if self.folder.attempt(number).start_json.exists()]
        if not numbers:
            return
        attempt = self._see(numbers[-1])
        started = attempt.look_started()
        if self.facts.ended is not None:
            told = self.facts.ended
            self.exit = attempt.look_ended(kept=False, now=boot_clock())
            self.monitor.state = RunState(
                state=told["state"],
                attempt=attempt.number,
                cause=told.get("cause"),
                cause_text=told.get("text"),
                exit=self.exit,
            )
            return
        asked = self.facts.user_asked
        state = RunState(state="running" if started else "starting", attempt=attempt.number, asked=asked)
        self.monitor.state = state
        order = read_json(attempt.files.stop_json)
        if order is not None and attempt.command is not None:
            self.stopping = self._stopping(attempt)
            self.stopping.resume(order)
            self.monitor.state = msgspec.structs.replace(state, state="stopping", order=self.stopping.order)

    def _bounds(self) -> None:
        """After the loss of metrics.db the log is read from its start: tell where each attempt began."""
        for number in self.folder.attempt_numbers():
            order = read_json(self.folder.attempt(number).start_json)
            if order is not None and number > self.monitor.attempt:
                source, offset = order.get("position") or (0, 0)
                self.intake.bounds.append((int(source), int(offset), number))

    def _see(self, number: int) -> Attempt:
        self.attempt = Attempt(
            number, folder=self.folder, spec=self.spec, wake=self.wake, say=self.facts.say
        )
        if self.facts.target_exit is not None and self.facts.target_exit.get("attempt") == number:
            told = self.facts.target_exit
            self.attempt.target_exit = Exit(exit_code=told.get("exit_code"), signal=told.get("signal"))
            self.attempt.target_ended_at = float(told.get("boot_s") or 0.0)
        return self.attempt

    def _stopping(self, attempt: Attempt) -> Stopping:
        assert attempt.command is not None  # noqa: S101 - nothing is stopped that has not been started
        return Stopping(
            spec=self.spec,
            attempt=attempt.files,
            command=attempt.command,
            keepers=self.keepers,
            say=self.facts.say,
        )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Own the run until it is over; return the exit status that the shim understands."""
        self.wake.catch_signals()
        self.wake.watch_folder(self.folder.inbox)
        self.wake.watch_handle(self.saves.inotify.fileno(), lambda: self.saves.absorb(boot_clock()))
        self.facts.say("supervisor", pid=os.getpid(), owner=self.owner.number, adopting=self.adopting)
        if self._over():
            self._complete_end()
            self._finish()
            return OVER
        with contextlib.suppress(OSError):
            self.folder.put_ballast()
        self._happen(Launched())
        if self._rebooted():
            self._happen(Rebooted())
        # As if by the timer: what happened while no supervisor lived has not been told to this one.
        self.turn(Woke(log=False, names=frozenset(), exits=frozenset(), signals=()))
        while not self._over():
            self.turn(self.wake.sleep(self._timeout_s()))
        self._finish()
        return OVER

    def _over(self) -> bool:
        return self.monitor.state.ended

    def turn(self, woke: Woke) -> None:
        """Do what the docstring of this file lists, once."""
        if not self.owner.still():
            raise Owned("a later supervisor has taken the run over")
        self._read()
        self._look(woke)
        self._take_requests(woke)
        self._ask_time()
        self._step()
        self._store()

    def _timeout_s(self) -> float:
        now = boot_clock()
        waits = [NETWORK_TIMER_S if self.intake.network else TIMER_S]
        if self.intake.more:
            waits.append(0.0)
        if self.intake.log.missing:
            waits.append(MISSING_TIMER_S)
        if self.monitor.state.state in ("pending", "starting"):
            waits.append(STARTING_TIMER_S)
        if self.stopping is not None:
            waits.append(self.stopping.next_look_s())
        if self.remains is not None:
            waits.append(0.05)
        if self.attempt is not None and self.attempt.gone_at is not None:
            waits.append(0.2)
        if self.intake.dirty:
            waits.append(max(0.0, self.committed_at + COMMIT_EVERY_S - now))
        if self.intake.dirty or self.unpublished:
            waits.append(max(0.0, self.published_at + self._publish_every_s() - now))
        if self.attempt is not None and self.monitor.state.state == "running" and self.exit is None:
            waits.append(self.attempt.next_look_s(now))
        saved = self.saves.next_look_s(now)
        if saved is not None:
            waits.append(saved)
        waits.append(max(0.01, self.monitor.due_s(self._moment())))
        return min(waits)

    # -- 2. the log --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for verdict in self.intake.read(clock=boot_clock()):
            self._judge(verdict)
        self._look_at_saves(boot_clock())
        followed = tuple((source.handle, source.inode) for source in self.intake.log.sources)
        if followed != self.watched_logs:  # all of them: a renamed log is written to until its writer opens a new one
            self.watched_logs = followed
            for handle, _ in followed:
                self.wake.watch_log(handle)

    def _look_at_saves(self, now: float, *, at_last: bool = False) -> None:
        """Note a finished save, and how long the log was silent around it."""
        step = self.monitor.meter.step
        self.silences.stepped(step, now, self.monitor.meter.step_s)
        save = self.saves.look(now, at_last=at_last)
        if save is not None:
            self.silences.saved(save)
            named = save.step if save.step is not None else step
            self.facts.saved(seconds=save.seconds, path=save.path, step=named)
            self.urgent = True
        for seconds in self.silences.around_saves():
            self.facts.saved(seconds=seconds)

    def _judge(self, verdict: Verdict) -> None:
        known = not self.facts.judge(verdict)
        self.urgent = self.urgent or not known
        # A verdict on an attempt that is over has been acted upon (or came too late to be).
        if verdict.attempt == self.monitor.state.attempt:
            self._happen(verdict)

    # -- 3. requests -------------------------------------------------------------------------------------------------

    def _take_requests(self, woke: Woke) -> None:
        if signal.SIGHUP in woke.signals:
            self.facts.say("hangup_ignored")
        if signal.SIGTERM in woke.signals or signal.SIGINT in woke.signals:
            self.facts.say("request", kind="stop", by="scheduler", signal=True)
            self._happen(Request(kind="stop", by="scheduler", at=time.time()))
        if not woke.names and not woke.by_timer and not self.waiting_requests:
            return
        self.waiting_requests = False
        try:
            names = sorted(name for name in os.listdir(self.folder.inbox) if name.endswith(".json"))
        except OSError:
            return
        for name in names:
            self._take(self.folder.inbox / name)

    def _take(self, path: Path) -> None:
        try:
            request = msgspec.json.decode(path.read_bytes(), type=Request)
        except (msgspec.MsgspecError, ValueError, OSError) as error:
            self.facts.note(f"the request {path.name} cannot be read and is dropped: {error}")
        else:
            if self.monitor.state.state == "starting" and self.attempt is not None and not self.attempt.look_started():
                self.waiting_requests = True
                return  # the shim is about to fork: the request stays in the inbox until there is something to stop
            # A request that was obeyed and is found again (killed before it was removed) is no second one; one that
            # comes after the command has ended by itself does not change how it ended.
            fresh = self.facts.fresh_request(path.name, request)
            if self.exit is not None:
                self._hurry(request)
            elif fresh or self.stopping is None:
                self._happen(request)
            self.urgent = True
        # Only now: a supervisor killed before this point finds the request again, and obeying twice is harmless.
        with contextlib.suppress(OSError):
            path.unlink()

    def _hurry(self, request: Request) -> None:
        """The command has ended and only its leftovers are waited for: ``now`` ends them."""
        if self.remains is not None and request.now:
            self.remains.killed = True

    # -- 4. what started, what ended ---------------------------------------------------------------------------------

    def _look(self, woke: Woke) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        for pid in woke.exits:
            attempt.target_ended(pid)
            for role, one in self.keepers.known.items():
                if one.pid == pid:
                    self.facts.note(f"the {role} (pid {pid}) was killed; the run goes on without it")
        if woke.exits:
            self.keepers.look()
        if attempt.command is None:
            if attempt.look_started():
                self.facts.say("started", attempt=attempt.number, pid=attempt.line()["pid"])
                self._happen(Alive(attempt=attempt.number))
                self.urgent = True
            elif not self.adopting:
                attempt.request(self.intake.log.position(), self.keepers)
        told = bool(woke.names or woke.exits) or woke.by_timer or attempt.gone_at is not None or self.stopping is not None
        if self.exit is None and told:
            self.exit = attempt.look_ended(kept=bool(self.keepers.alive()), now=boot_clock())
            if self.exit is not None:
                # The exit may be older than this look: a supervisor that was dead, or is only now adopting the run.
                ago_s = time.time() - self.exit.at if self.exit.at is not None else 0.0
                self.ended_at = boot_clock() - max(0.0, ago_s)
                self.facts.say(
                    "exit", attempt=attempt.number, exit_code=self.exit.exit_code, signal=self.exit.signal
                )

    def _rebooted(self) -> bool:
        return self.attempt is not None and bool(self.boot) and self.boot != boot_id()

    # -- 5. time -----------------------------------------------------------------------------------------------------

    def _active_s(self) -> float:
        """Return the seconds the command has run, on the boot clock; it stands still once the command has ended."""
        if self.attempt is None:
            return 0.0
        ended_s = (self.facts.attempt_ends.get(self.attempt.number) or {}).get("seconds")
        return self.attempt.active_s(boot_clock()) if ended_s is None else float(ended_s)

    def _moment(self) -> Moment:
        return Moment(active_s=self._active_s(), save_s=self.facts.save_s, step_s=self.monitor.meter.step_s, at=time.time())

    def _ask_time(self) -> None:
        if self.monitor.state.state != "running" or self.exit is not None:
            return
        for verdict in self.monitor.tick(self._moment()):
            self._judge(verdict)
        now = boot_clock()
        # Not before the log is there, or the first look finds nothing to keep space for and the next is long to come.
        if now - self.disk_at >= DISK_EVERY_S and self.intake.log.handle() is not None:
            self.disk_at = now
            self._look_at_disk()
        if self.attempt is not None:
            self.attempt.watch_targets(now, self.intake.grew_at)

    def _look_at_disk(self) -> None:
        said = self.intake.keep_space() or self.intake.space.low()
        if said is not None and not self.disk_full:
            self._judge(
                Verdict(
                    rule="disk_space",
                    severity="warn",
                    action="alert",
                    text=said,
                    at=time.time(),
                    step=self.monitor.meter.last_step,
                    attempt=self.monitor.attempt,
                    offset=self.intake.log.position()[1],
                )
            )
        self.disk_full = said is not None

    # -- 6. stopping and clearing ------------------------------------------------------------------------------------

    def _step(self) -> None:
        over = self.exit is not None
        if self.stopping is not None and not self.stopping.turn(self.intake.grew_at):
            over = False
        if not over or self.attempt is None:
            return
        now = boot_clock()
        if self.remains is None:
            stopped = self.monitor.state.state == "stopping"
            self.remains = Remains(
                keepers=self.keepers,
                grace_s=self.spec.grace_s,
                stopped=stopped,
                killed=self.stopping is not None and self.stopping.killed(),
                began=now,
                say=self.facts.say,
            )
        if self.remains.turn(now):
            self._close_attempt(self.attempt)

    def _close_attempt(self, attempt: Attempt) -> None:
        """Nothing is left that could write: read the log to its end, then decide what the exit means."""
        while True:
            self._read()
            if not self.intake.more:
                break
            self._store()  # a command that ended far ahead of us must not be held in memory as a whole
        self._look_at_saves(boot_clock(), at_last=True)
        for verdict in self.intake.flush():
            self._judge(verdict)
        self.intake.commit(at_last=True)  # before the end is a fact: after that nobody reads the log again
        assert self.exit is not None  # noqa: S101 - only called once the exit is known
        how = self.exit
        if self.monitor.state.state == "starting":
            self._happen(Alive(attempt=attempt.number))
        self._happen(Ended(exit=how, target=attempt.target_exit, started=attempt.executed()))
        self._tell_end(attempt, how)
        self.stopping = self.remains = None

    def _complete_end(self) -> None:
        """Write the very last fact of a supervisor that was killed before it could."""
        attempt = self.attempt
        if attempt is not None and self.exit is not None and attempt.number not in self.facts.attempt_ends:
            self.ended_at = boot_clock()
            self._tell_end(attempt, self.exit)

    def _tell_end(self, attempt: Attempt, how: Exit) -> None:
        meter = self.monitor.meter
        self.facts.say(
            "attempt_ended",
            attempt=attempt.number,
            exit_code=how.exit_code,
            signal=how.signal,
            cause=self.monitor.state.cause,
            first_step=meter.first_step,
            last_step=meter.last_step,
            ended_at=utc(how.at) if how.at is not None else None,
            seconds=round(attempt.active_s(self.ended_at), 3),
        )

    # -- decisions meet effects --------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        before = self.monitor.state.state
        decision = self.monitor.happen(event)
        if decision.state.state != before:
            self.facts.say("state", state=decision.state.state, was=before, attempt=decision.state.attempt)
            self.urgent = True
        for action in decision.actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, Start):
            attempt = self._see(action.attempt)
            attempt.request(self.intake.begin_attempt(action.attempt), self.keepers)
        elif isinstance(action, Stop) and self.exit is None and self.attempt is not None and self.attempt.command is not None:
            self.stopping = self._stopping(self.attempt)
            self.stopping.begin(action.order)
        elif isinstance(action, Climb) and self.stopping is not None:
            self.stopping.urge(at_once=action.now)
        elif isinstance(action, Reorder) and self.stopping is not None:
            self.stopping.reorder(action.order)
        elif isinstance(action, End):
            self.facts.say(
                "ended", state=action.state, cause=action.cause, text=self.monitor.state.cause_text
            )

    # -- 7. storing --------------------------------------------------------------------------------------------------

    def _store(self) -> None:
        now = boot_clock()
        due = now - self.committed_at >= COMMIT_EVERY_S or len(self.intake.pending) >= COMMIT_RECORDS
        self.unpublished = self.unpublished or self.intake.dirty
        if self.intake.dirty and due:
            self.committed_at = now
            self.intake.commit()
            self.facts.sync()
        if self.urgent or now - self.published_at >= self._publish_every_s():
            self._publish(now)

    def _publish_every_s(self) -> float:
        """Return how old status may become: little while everybody looks at the first steps."""
        return PUBLISH_EARLY_S if self.monitor.meter.records < EARLY_RECORDS else PUBLISH_EVERY_S

    def _publish(self, now: float) -> None:
        status = self._status()
        compared = {name: value for name, value in status.items() if name not in ("updated_at", "active_s")}
        self.published_at = now
        self.unpublished = False
        if compared == self.published and not self.urgent:
            return
        self.published, self.urgent = compared, False
        with contextlib.suppress(OSError):  # the next one will come; the journal has the truth
            write_json(self.folder.status_json, status)

    def _status(self) -> dict[str, Any]:
        attempt = self.attempt
        state = self.monitor.state
        lines = []
        if attempt is not None:
            line = attempt.line()
            meter = self.monitor.meter
            line.update(first_step=meter.first_step, last_step=meter.last_step)
            if self.exit is not None:
                line.update(exit_code=self.exit.exit_code, signal=self.exit.signal)
            ended = self.facts.attempt_ends.get(attempt.number) or {}
            line.update({name: ended[name] for name in ended if name in line})
            if state.ended:
                line.update(cause=state.cause, ended_at=utc(self.exit.at) if self.exit and self.exit.at else utc())
            lines.append(line)
        return build(
            spec=self.spec,
            monitor=self.monitor,
            state=state,
            attempts=lines,
            verdicts=self.facts.verdicts,
            created_at=self.created_at,
            now=time.time(),
            active_s=None if attempt is None or attempt.command is None else round(self._active_s(), 3),
            keepers={"supervisor": os.getpid()},
            checkpoint=self._checkpoint(),
            notes=self.facts.notes,
        )

    def _checkpoint(self) -> dict[str, Any] | None:
        """Return the newest save that was seen; whether it is whole inside, nobody has looked (``valid`` is unknown)."""
        newest = self.facts.checkpoint
        if newest is None:
            return None
        sick, step = self.monitor.sick_since, newest["step"]
        healthy = None if step is None else sick is None or step < sick
        return {**newest, "valid": None, "healthy": healthy}

    def _finish(self) -> None:
        self.intake.close()
        self.facts.sync()
        self.urgent = True
        self._publish(boot_clock())
        self.folder.drop_ballast()


def read_asked(folder: RunFolder) -> dict[str, Any]:
    """Return run.json with its spec as a RunSpec; FolderError if it is gone or was edited into something else."""
    written = read_json(folder.run_json)
    if written is None:
        raise FolderError(f"{folder.run_json} is gone; restore it: without it nobody knows how the run is to be read")
    try:
        return {**written, "spec": msgspec.convert(written.get("spec"), RunSpec)}
    except msgspec.ValidationError as error:
        raise FolderError(f"{folder.run_json} was edited ({error}): restore it") from error


def main(argv: list[str] | None = None) -> int:
    """Run as ``python -m overnight.supervisor [--adopt] RUNDIR``; 0 tells the shim that the run is over."""
    words = sys.argv[1:] if argv is None else argv
    adopting = "--adopt" in words
    folder = RunFolder(Path(words[-1]))
    said: Exception
    try:
        return Supervisor(folder, adopting=adopting).run()
    except Owned as error:
        code, said = NOT_MINE, error
    except (FolderError, OSError, sqlite3.Error) as error:
        # Somebody's hand, or a disk: one sentence. The shim starts the next one, which may find it mended.
        code, said = DAMAGED, error
    complain(json.dumps({"at": utc(), "error": str(said)}))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
