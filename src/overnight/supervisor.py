"""One process per run: the only place where decisions meet effects. It may be killed at any moment without harm.

One turn of the loop:

 1. sleep until something happens: a log write, a request, an exit, or the time that a rule or the ladder asked for
 2. read what was logged and judge it; a verdict is acted upon before anything is stored
 3. look at what has started, what has ended and what has been saved
 4. take the requests from the inbox
 5. ask the rules that judge time
 6. take the next step of a stop, or of clearing away what a dead command left behind
 7. commit records, verdicts and the place in the log in one transaction; publish the status

What a kill between two of these steps would lose is found again in the files: the attempt's start, started, stop and
exit files say where the run stands, the database says how far the log was read.
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

from overnight.attempt import Attempt
from overnight.clocks import boot_clock
from overnight.errors import OvernightError
from overnight.events import Exit, Request, Verdict
from overnight.facts import Facts, complain
from overnight.folder import RunFolder, utc
from overnight.inbox import Inbox
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
    Start,
    Stop,
    stopping_again,
)
from overnight.ownership import Owned, Owner
from overnight.publishing import Publisher
from overnight.remains import Remains
from overnight.rules import Moment
from overnight.saves import SaveWatch
from overnight.standing import Standing, read_asked
from overnight.stopping import Stopping
from overnight.waking import Wake, Woke
from overnight.wiring import make_monitor

TIMER_S = 20.0
NETWORK_TIMER_S = 1.0
STARTING_TIMER_S = 0.1
MISSING_TIMER_S = 0.1
COMMIT_EVERY_S = 5.0
"""A commit is much of what a line a second costs at rest; what a kill leaves uncommitted is read again."""

COMMIT_RECORDS = 5000
DISK_EVERY_S = 10.0
LOCK_WAIT_S = 5.0

OVER, NOT_MINE, DAMAGED = 0, 3, 4


class Supervisor:
    """The owner of one run while it lives."""

    stopping: Stopping | None = None
    remains: Remains | None = None

    def __init__(self, folder: RunFolder, *, adopting: bool) -> None:
        self.folder = folder
        self.adopting = adopting
        self.owner = Owner(folder, wait_s=LOCK_WAIT_S)
        self.asked = read_asked(folder)
        spec = self.spec = self.asked.spec
        facts = self.facts = Facts(folder)
        self.wake = Wake()
        self.keepers = Keepers(folder, self.wake)
        self.inbox = Inbox(folder, facts)
        self.monitor = make_monitor(spec, facts.note)
        self.publisher = Publisher(folder, spec, self.monitor, facts, created_at=self.asked.epoch)
        skip = (folder.path, *folder.path.parents[:2])
        self.saves = SaveWatch(Path(spec.checkpoints or spec.cwd), skip=skip, saved=facts.saved)
        self.watched_logs: tuple[tuple[int, int], ...] = ()
        self.committed_at = self.disk_at = 0.0
        self.signalled_at: float | None = None
        standing = Standing(folder, spec, facts, keepers=self.keepers, wake=self.wake)
        self.attempt, self.order, self.monitor.state = standing.attempt, standing.order, standing.state
        pids = () if self.attempt is None or self.attempt.command is None else (self.attempt.command.pid,)
        self.intake = Intake(folder, spec, self.monitor, facts, start=self.asked.log_start, pids=pids)
        for verdict in self.intake.history.verdicts():
            facts.judge(verdict)  # known to the journal, unless somebody damaged that
        self.intake.bounds.extend(standing.begins(self.monitor.attempt))

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Own the run until it is over; return the exit status that the shim understands."""
        self.wake.catch_signals()
        self.wake.watch_folder(self.folder.inbox)
        saves = self.saves.saves
        self.wake.watch_handle(saves.inotify.fileno(), lambda: saves.absorb(boot_clock()))
        self.facts.say("supervisor", pid=os.getpid(), owner=self.owner.number, adopting=self.adopting)
        if self._over():
            if not self.intake.restored:  # metrics.db was deleted: it is rebuilt
                self._read_all()
            self._complete_end()
            self._finish()
            return OVER
        with contextlib.suppress(OSError):
            self.folder.put_ballast()
        self._happen(Launched())
        if self.attempt is not None and self.asked.rebooted:
            self._happen(Rebooted())
        elif self.attempt is not None and self.order is not None:
            self.stopping = Stopping(spec=self.spec, attempt=self.attempt, keepers=self.keepers, say=self.facts.say)
            self.monitor.state = stopping_again(self.monitor.state, self.stopping.resume(self.order))
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
        if self._placed():
            self._read()
        self._look(woke)
        self._take_requests(woke)
        self._ask_time()
        self._step()
        self._store()

    def _placed(self) -> bool:
        """Learn that the command has been started; until then nothing is read, for nothing could be stopped yet."""
        attempt = self.attempt
        if self.monitor.state.state != "starting" or attempt is None:
            return True
        if attempt.look_started():
            self.facts.say("started", attempt=attempt.number, pid=attempt.line()["pid"])
            self._happen(Alive(attempt=attempt.number))
            return True
        if not self.adopting:
            attempt.request(self.intake.log.position(), self.keepers)
        elif not self.keepers.alive():
            attempt.give_up("guard and shim were killed before they could start the command")
        return False

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
        if self.attempt is not None and self._going_on():
            waits.append(self.attempt.next_look_s(now))
            waits.append(max(0.01, self.monitor.due_s(self._moment())))
        waits += [
            wait for wait in (self.saves.saves.next_look_s(now), self.publisher.next_turn_s(now)) if wait is not None
        ]
        return min(waits)

    def _going_on(self) -> bool:
        """Say whether the command runs and nobody has asked for its end: only then are the rules over time asked."""
        return self.monitor.state.state == "running" and self.attempt is not None and self.attempt.exit is None

    # -- 2. the log --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        for verdict in self.intake.read(clock=boot_clock()):
            self._judge(verdict)
        self._look_at_saves()
        followed = tuple((source.source, source.handle) for source in self.intake.log.sources)
        if followed != self.watched_logs:  # all of them: a renamed log is written to until its writer opens a new one
            self.watched_logs = followed
            self.committed_at = 0.0  # and at once: a renamed log is found again by what is stored of it
            for _, handle in followed:
                self.wake.watch_log(handle)

    def _look_at_saves(self, *, at_last: bool = False) -> None:
        meter = self.monitor.meter
        if self.saves.look(boot_clock(), meter.step, meter.step_s, at_last=at_last):
            self.publisher.urgent = True

    def _judge(self, verdict: Verdict) -> None:
        known = not self.facts.judge(verdict)
        self.publisher.urgent = self.publisher.urgent or not known
        # A verdict on an attempt that is over has been acted upon (or came too late to be).
        if verdict.attempt == self.monitor.state.attempt:
            self._happen(verdict)

    # -- 4. requests -------------------------------------------------------------------------------------------------

    def _take_requests(self, woke: Woke) -> None:
        if signal.SIGHUP in woke.signals:
            self.facts.say("hangup_ignored")
        if signal.SIGTERM in woke.signals or signal.SIGINT in woke.signals:
            self.facts.say("request", kind="stop", by="scheduler", signal=True)
            self.signalled_at = time.time()
        attempt = self.attempt
        if self.monitor.state.state == "starting" and attempt is not None and attempt.exit is None:
            wanted = self.signalled_at is not None or self.inbox.waiting()
            if not wanted or not attempt.withdraw():
                self.inbox.postpone()  # the shim is about to fork: there is nothing to stop yet
                return
            attempt.give_up("stopped before the command could be started")
        ended = attempt is not None and attempt.exit is not None and attempt.withdrawn_at is None
        if self.signalled_at is not None and not ended:
            self._happen(Request(kind="stop", by="scheduler", at=self.signalled_at))
        self.signalled_at = None
        for request, fresh in self.inbox.requests(woke):
            # A request that was obeyed and is found again (killed before it was removed) is no second one; one that
            # comes after the command has ended by itself does not change how it ended.
            if ended:
                if self.remains is not None and request.now:
                    self.remains.killed = True  # only leftovers are waited for: they get no more time
            elif fresh or self.stopping is None:
                self._happen(request)
            self.publisher.urgent = True

    # -- 3. what started, what ended ---------------------------------------------------------------------------------

    def _look(self, woke: Woke) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        for pid in woke.exits:
            attempt.target_ended(pid)
        for text in self.keepers.deaths(woke.exits):
            self.facts.note(text)
        told = (
            bool(woke.names or woke.exits) or woke.by_timer or attempt.gone_at is not None or self.stopping is not None
        )
        how = attempt.look_ended(kept=bool(self.keepers.alive())) if attempt.exit is None and told else None
        if how is not None:
            self.facts.say("exit", attempt=attempt.number, exit_code=how.exit_code, signal=how.signal)

    # -- 5. time -----------------------------------------------------------------------------------------------------

    def _moment(self) -> Moment:
        active_s = 0.0 if self.attempt is None else self.attempt.active_s()
        return Moment(active_s=active_s, save_s=self.facts.save_s, step_s=self.monitor.meter.step_s, at=time.time())

    def _ask_time(self) -> None:
        attempt = self.attempt
        if attempt is None or not self._going_on():
            return
        for verdict in self.monitor.tick(self._moment()):
            self._judge(verdict)
        now = boot_clock()
        # Not before the log is there, or the first look finds nothing to keep space for and the next is long to come.
        if now - self.disk_at >= DISK_EVERY_S and self.intake.log.handle() is not None:
            self.disk_at = now
            trouble = self.intake.disk_trouble()
            if trouble is not None:
                self._judge(trouble)
        attempt.watch_targets(now, self.intake.grew_at)

    # -- 6. stopping and clearing ------------------------------------------------------------------------------------

    def _step(self) -> None:
        going_on = self.stopping is not None and not self.stopping.turn(self.intake.grew_at)
        if going_on or self.attempt is None or self.attempt.exit is None:
            return
        now = boot_clock()
        if self.remains is None:
            stopped = self.monitor.state.state == "stopping"
            self.remains = Remains(
                keepers=self.keepers,
                log=self.spec.log,
                grace_s=self.spec.grace_s,
                stopped=stopped,
                killed=self.stopping is not None and self.stopping.killed(),
                began=now,
                say=self.facts.say,
            )
        if self.remains.turn(now):
            self._close_attempt(self.attempt, self.attempt.exit)

    def _close_attempt(self, attempt: Attempt, how: Exit) -> None:
        """Nothing is left that could write: read the log to its end, then decide what the exit means."""
        self._read_all()
        self._happen(Ended(exit=how, target=attempt.target_exit, started=attempt.executed()))
        self.facts.attempt_ended(attempt.number, how, self.monitor, attempt.active_s())
        self.stopping = self.remains = None

    def _read_all(self) -> None:
        """Read the log to its end and store it: once the end is a fact nobody reads it again."""
        self._read()
        while self.intake.more:
            self._store()  # a log that is far ahead of us must not be held in memory as a whole
            self._read()
        self._look_at_saves(at_last=True)
        for verdict in self.intake.flush():
            self._judge(verdict)
        self.intake.commit(at_last=True)

    def _complete_end(self) -> None:
        """Write the very last fact of a supervisor that was killed before it could."""
        attempt = self.attempt
        if attempt is not None and attempt.exit is not None and attempt.number not in self.facts.attempt_ends:
            self.facts.attempt_ended(attempt.number, attempt.exit, self.monitor, attempt.active_s())

    # -- decisions meet effects --------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        before = self.monitor.state.state
        decision = self.monitor.happen(event)
        if decision.state.state != before:
            self.facts.say("state", state=decision.state.state, was=before, attempt=decision.state.attempt)
            self.publisher.urgent = True
        for action in decision.actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        attempt = self.attempt
        if isinstance(action, Start):
            attempt = self.attempt = Attempt(
                action.attempt, folder=self.folder, spec=self.spec, wake=self.wake, say=self.facts.say
            )
            attempt.request(self.intake.begin_attempt(action.attempt), self.keepers)
        elif isinstance(action, Stop) and attempt is not None and attempt.command is not None and attempt.exit is None:
            self.stopping = Stopping(spec=self.spec, attempt=attempt, keepers=self.keepers, say=self.facts.say)
            self.stopping.begin(action.order)
        elif isinstance(action, Climb) and self.stopping is not None:
            self.stopping.urge(at_once=action.now)
        elif isinstance(action, Reorder) and self.stopping is not None:
            self.stopping.reorder(action.order)
        elif isinstance(action, End):
            self.facts.say("ended", state=action.state, cause=action.cause, text=self.monitor.state.cause_text)

    # -- 7. storing --------------------------------------------------------------------------------------------------

    def _store(self) -> None:
        now = boot_clock()
        moved = self.intake.dirty
        much = bool(self.intake.judged) or len(self.intake.pending) >= COMMIT_RECORDS
        if moved and (much or now - self.committed_at >= COMMIT_EVERY_S):
            self.committed_at = now
            self.intake.commit()
            self.facts.sync()
        self.publisher.turn(self.attempt, moved=moved)

    def _finish(self) -> None:
        self.intake.close()
        self.facts.sync()
        self.publisher.urgent = True
        self.publisher.publish(self.attempt)
        self.folder.drop_ballast()


def main(argv: list[str] | None = None) -> int:
    """Run as ``python -m overnight.supervisor [--adopt] RUNDIR``; 0 tells the shim that the run is over."""
    words = sys.argv[1:] if argv is None else argv
    adopting = "--adopt" in words
    folder = RunFolder(Path(words[-1]))
    said: Exception
    os.umask(0o077)
    try:
        return Supervisor(folder, adopting=adopting).run()
    except Owned as error:
        code, said = NOT_MINE, error
    except (OvernightError, OSError, sqlite3.Error) as error:
        # Somebody's hand, or a disk: one sentence. The shim starts the next one, which may find it mended.
        code, said = DAMAGED, error
    complain(json.dumps({"at": utc(), "error": str(said)}))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
