"""One process per run: the only place where decisions meet effects. It may be killed at any moment without harm.

One turn of the loop:

 1. sleep until something happens: a log write, a request, an exit, or the time that a rule or the ladder asked for
 2. read what was logged and judge it; a verdict is acted upon before anything is stored
 3. look at what has started, what has ended and what has been saved
 4. take the requests from the inbox
 5. ask the rules that judge time
 6. take the next step of a stop, of clearing away what a dead command left behind, of a back-off
 7. commit records, verdicts and the place in the log in one transaction; publish the status

Lines in which nothing is found, and that nobody waits for, are read and judged; the rest follows some seconds later.
What a kill between two of these steps would lose is found again in the files: the attempt's start, started, stop and
exit files say where the run stands, the database says how far the log was read.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

from overnight import states
from overnight.clocks import boot_clock
from overnight.errors import OvernightError
from overnight.events import Exit, Request, Verdict
from overnight.facts import Facts, complain
from overnight.folder import RunFolder, utc
from overnight.history.completeness import behind
from overnight.hooks.starting import Hooks
from overnight.intake.instruments import Instruments
from overnight.intake.reading import Intake
from overnight.intake.storing import Storing
from overnight.keepers import Keepers
from overnight.lifecycle import stopping_again
from overnight.progress import Progress
from overnight.reboots.rebooting import Reboot
from overnight.requests.asked import read_asked
from overnight.requests.changes import applied
from overnight.rules import Moment
from overnight.saves.noticing import SaveWatch
from overnight.snapshot import verdict_line
from overnight.spec import RunSpec
from overnight.supervision.alarm import Alarm
from overnight.supervision.attempt import Attempt
from overnight.supervision.attempts import Attempts
from overnight.supervision.comeback import Comeback
from overnight.supervision.gauges import Gauges
from overnight.supervision.inbox import Inbox
from overnight.supervision.orders import Orders
from overnight.supervision.ownership import Owned, Owner
from overnight.supervision.parting import NOBODY, Parting
from overnight.supervision.publishing import Publisher
from overnight.supervision.shutdown import shutting_down
from overnight.supervision.spending import Spending
from overnight.supervision.standing import Standing
from overnight.supervision.waking import Wake, Woke
from overnight.supervision.watching import Watching
from overnight.wiring import change_monitor, make_monitor

LOCK_WAIT_S = 5.0

OVER, NOT_MINE, DAMAGED = 0, 3, 4


class Supervisor:
    """The owner of one run while it lives."""

    def __init__(self, folder: RunFolder, *, adopting: bool) -> None:
        self.folder = folder
        self.adopting = adopting
        self.owner = Owner(folder, wait_s=LOCK_WAIT_S)
        self.asked = read_asked(folder)
        facts = self.facts = Facts(folder)
        spec = self.spec = applied(self.asked.spec, facts.changes)
        self.wake = Wake()
        keepers = Keepers(folder, self.wake)
        # Without a shim nothing can be started: whoever brings the run back places one.
        self.inbox = Inbox(folder, facts, leave=("recover",) if adopting else ())
        self.monitor = make_monitor(spec, facts.note)
        self.saves = SaveWatch(
            Path(spec.checkpoints or spec.cwd),
            skip=(folder.path, *folder.path.parents[:2]),
            saved=self._saved,
        )
        self.standing = Standing(folder, spec, facts, keepers=keepers, wake=self.wake)
        self.monitor.state = self.standing.state
        self.attempts = Attempts(folder, spec, facts, keepers=keepers, wake=self.wake, standing=self.standing)
        attempt = self.attempts.current
        pids = () if attempt is None or attempt.command is None else (attempt.command.pid,)
        self.intake = Intake(folder, spec, self.monitor, facts, start=self.asked.log_start, pids=pids)
        self.comeback = Comeback(folder, spec, facts, self.monitor)
        self.intake.listener = self.comeback.take
        for verdict in self.intake.history.verdicts():
            facts.judge(verdict)  # known to the journal, unless somebody damaged that
        self.intake.bounds.extend(self.standing.begins(self.monitor.attempt))
        self.storing = Storing(self.intake, facts)
        self.progress = Progress(self.monitor, log=spec.log)
        if attempt is not None and attempt.number != self.progress.attempt:
            self.progress.begin_attempt(attempt.number, ago_s=attempt.active_s())
        watched = (self.intake, self.saves, self.progress, self.monitor, self.wake)
        self.watching = Watching(*watched, cwd=spec.cwd, alone=spec.checkpoints is not None)
        self._furnish()

    def _furnish(self) -> None:
        """Make what looks at the parts above or acts for them."""
        facts, monitor, attempts = self.facts, self.monitor, self.attempts
        spending = Spending(facts)
        self.gauges = Gauges(
            facts=facts,
            monitor=monitor,
            attempts=attempts,
            watching=self.watching,
            progress=self.progress,
            spending=spending,
        )
        self.reboot = Reboot(self.asked, self.standing, facts, self.inbox, spending, adopting=self.adopting)
        self.instruments = Instruments(
            self.folder, self.spec, facts=facts, monitor=monitor, intake=self.intake, progress=self.progress,
            change=self._change,
        )  # fmt: skip
        self.hooks = Hooks(self.folder, self.spec, facts, lambda: self.publisher.status(self.gauges.now()))
        self.publisher = Publisher(
            self.folder, self.spec, monitor, facts, created_at=self.asked.epoch, hooks=self.hooks.summary,
            instruments=self.instruments,
        )  # fmt: skip
        self.orders = Orders(
            inbox=self.inbox, facts=facts, attempts=attempts, monitor=monitor, happen=self._happen, change=self._change
        )
        self.parting = Parting(
            self.folder, facts, intake=self.intake, hooks=self.hooks, publisher=self.publisher, gauges=self.gauges,
            wake=self.wake, obey=self._obey, comeback=self.comeback,
        )  # fmt: skip
        self.alarm = Alarm(
            gauges=self.gauges, intake=self.intake, monitor=monitor, attempts=attempts, saves=self.saves.saves,
            others=(self.hooks.next_look_s, self.comeback.next_look_s, self.inbox.next_look_s),
            soon=(self.storing.next_turn_s, self.publisher.next_turn_s),
            late=((self.instruments.next_look_s, self.instruments.patience_s),),
            calm=(attempts.calm, self.saves.calm, self.comeback.calm, self.storing.calm, self.publisher.calm),
        )  # fmt: skip
        if self.hooks.summary() is not None:
            self.wake.watch_folder(self.folder.hooks)
        if self.instruments.devices:
            self._change(self.instruments.spec)
        self.slept_s: float | None = None
        self.moment: Moment | None = None  # of this turn, once the rules were asked

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Own the run until it is over; return the exit status that the shim understands."""
        self.wake.catch_signals()
        self.wake.watch_folder(self.folder.inbox)
        self.facts.say("supervisor", pid=os.getpid(), owner=self.owner.number, adopting=self.adopting)
        if self.reboot.over(self.monitor.state):
            if not self.intake.restored or behind(self.folder):  # metrics.db was deleted, or a disk was full
                self._read_all()
            self.attempts.close(self.monitor)
        else:
            self._begin()
            # As if by the timer: what happened while no supervisor lived has not been told to this one.
            self.turn(NOBODY)
        while not self.monitor.state.ended:
            self.slept_s = self.alarm.timeout_s(self.moment)
            self.turn(self.wake.sleep(self.slept_s))
        self.instruments.close()
        self.parting.see_out(self.monitor.state.exit)
        return OVER

    def _begin(self) -> None:
        """Find the way back into the run: its first start, a stop that was under way, the time after a reboot."""
        with contextlib.suppress(OSError):
            self.folder.put_ballast()
        attempt = self.attempts.current
        if not self.reboot.happened():
            self._happen(states.Launched())
        if self.monitor.state.state == "running" and attempt is not None and not self.standing.lost:
            self.attempts.tell_started(attempt)
            self.comeback.began(attempt)
            self.comeback.missed()
        if self.monitor.state.state == "backoff":
            self.attempts.close(self.monitor)  # by a supervisor that was killed before it could
        if self.standing.order is not None:
            resumed = self.attempts.resume_stop(self.standing.order, lost=self.standing.lost)
            if resumed is not None:
                self.monitor.state = stopping_again(self.monitor.state, resumed)
        if self.standing.ended_before is not None and attempt is not None:
            self._close_attempt(attempt, self.standing.ended_before)
        if self.reboot.happened() and not self.monitor.state.ended:
            self._happen(states.Rebooted())
        if self.reboot.returning(self.monitor.state):
            self._read_all()
            self.monitor.state = self.reboot.bring_back(self.monitor.state)
            self.attempts.close(self.monitor)
            stranded = self.comeback.found_soon()
            if stranded is None:
                self._happen(states.Recovered())
            else:
                self.reboot.leave(stranded, self.monitor.state)

    def turn(self, woke: Woke) -> None:
        """Do what the docstring of this file lists, once."""
        if not self.owner.still():
            raise Owned("a later supervisor has taken the run over")
        self.progress.tick(self.slept_s)
        self.moment = None
        if placed := self._placed():
            self._read()
        if placed and self.alarm.can_wait(woke):
            return
        woke = self.alarm.begin(woke)
        self.attempts.look(woke, self.intake.grew_at)
        self._obey(woke)
        self._ask_time()
        for verdict in self.comeback.turn(self.intake.log.position()[1]):
            self._judge(verdict)
        self._step()
        self._store()

    def _placed(self) -> bool:
        """Learn that the command has been started; until then nothing is read, for nothing could be stopped yet."""
        if self.monitor.state.state != "starting":
            return True
        if not self.attempts.placed(self.intake.log.position(), adopting=self.adopting):
            return False
        self.progress.begin_attempt(self.monitor.state.attempt)
        self.storing.at_once()  # or the next supervisor measures by the attempt before
        self._happen(states.Alive(attempt=self.monitor.state.attempt))
        self.comeback.began(self.attempts.current)
        return True

    # -- 2. the log --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        attempt = self.attempts.current
        for verdict in self.watching.read(None if attempt is None else attempt.command):
            self._judge(verdict)
        if self.watching.moved_on:
            self.watching.moved_on, self.storing.committed_at = False, 0.0

    def _saved(self, **told: Any) -> None:
        self.comeback.saved(**told)

    def _judge(self, verdict: Verdict) -> None:
        known = not self.facts.judge(verdict)
        self.comeback.judged(verdict)
        self.publisher.urgent = self.publisher.urgent or not known
        # A verdict on an attempt that is over has been acted upon (or came too late to be).
        if verdict.attempt == self.monitor.state.attempt:
            self._happen(verdict)
        if not known and verdict.action != "note":
            ahead, line = verdict.evidence.get("ahead"), verdict_line(verdict)
            self.hooks.tell("limit_ahead" if ahead else "verdict", boot_clock(), verdict=line)
        if not known and verdict.rule == "stall" and verdict.action == "alert":
            self.attempts.dump(verdict.text)

    # -- 4. requests -------------------------------------------------------------------------------------------------

    def _obey(self, woke: Woke) -> None:
        self.publisher.urgent = self.orders.take(woke) or self.publisher.urgent

    def _change(self, spec: RunSpec) -> None:
        for one in (self, self.attempts, self.publisher, self.comeback, self.hooks, self.instruments):
            one.spec = spec
        change_monitor(self.monitor, spec, self.facts.note, self.instruments.peak)

    # -- 5. time -----------------------------------------------------------------------------------------------------

    def _ask_time(self) -> None:
        attempt = self.attempts.current
        if attempt is None or not self.attempts.going_on(self.monitor.state.state):
            return
        self.moment = self.gauges.moment()
        found = [self.instruments.beside(one) for one in self.monitor.tick(self.moment)]
        now = boot_clock()
        found += self.instruments.turn(now, active_s=self.moment.active_s)
        trouble = self.storing.disk_trouble(now)
        for verdict in found if trouble is None else (trouble, *found):
            self._judge(verdict)
        if found:
            self.storing.at_once()  # what the rules have told must not be told again
        if attempt.exit is None:
            attempt.watch_targets(now, self.intake.grew_at)

    # -- 6. stopping, clearing, waiting ------------------------------------------------------------------------------

    def _step(self) -> None:
        attempt = self.attempts.current
        cleared = self.attempts.step(self.intake.grew_at, stopped=self.monitor.state.state == "stopping")
        if cleared and attempt is not None and attempt.exit is not None:
            self._close_attempt(attempt, attempt.exit)
        if self.monitor.state.state == "backoff":
            found = self.comeback.found()  # while it waits
            if found is not None and self.attempts.waited():
                self._happen(found)

    def _close_attempt(self, attempt: Attempt, how: Exit) -> None:
        """Nothing is left that could write: read the log to its end, then decide what the exit means."""
        self._read_all()
        if self.spec.recover and self.monitor.state.state == "running" and shutting_down():
            self._happen(Request(kind="stop", by="shutdown", at=how.at))
        target, started = attempt.target_of(self.intake.grew_at), attempt.executed()
        for verdict in self.instruments.at_end(self.attempts.samples(), self.gauges.spending.active_s(attempt)):
            self._judge(verdict)
        finding = self.attempts.finding(how, target)
        luck, reached = random.random(), self.monitor.reached()  # noqa: S311 - no secret
        unloaded = self.comeback.ended(attempt, finding, stopped=self.attempts.stopping is not None)
        for verdict in self.comeback.told():
            self._judge(verdict)
        more = {"unloaded": unloaded, "elsewhere": unloaded and self.comeback.elsewhere()}
        ended = states.Ended(
            exit=how, target=target, started=started, finding=finding, reached=reached, luck=luck, **more
        )
        self._happen(ended)
        self.attempts.close(self.monitor, finding)
        if not self.reboot.happened():  # then `recover` is asked for, and not yet
            self._obey(NOBODY)  # a stop that has come since the command ended
        if self.monitor.state.state == "backoff":
            self.hooks.tell("restart", boot_clock(), **self.attempts.why_again())

    def _read_all(self) -> None:
        """Read the log to its end and store it: once the end is a fact nobody reads it again."""
        self._read()
        while self.intake.more:
            self._store()  # a log that is far ahead of us must not be held in memory as a whole
            self._read()
        self.watching.look_at_saves(at_last=True)
        for verdict in self.intake.flush():
            self._judge(verdict)
        self.intake.commit(at_last=True)

    # -- decisions meet effects --------------------------------------------------------------------------------------

    def _happen(self, event: states.Event) -> None:
        before = self.monitor.state.state
        decision = self.monitor.happen(event)
        if decision.state.state != before:
            self.facts.say("state", state=decision.state.state, was=before, attempt=decision.state.attempt)
            self.publisher.urgent = True
        for action in decision.actions:
            self._act(action)

    def _act(self, action: states.Action) -> None:
        attempts = self.attempts
        if isinstance(action, states.Start):
            point = self.comeback.point(action.attempt, used_s=self.gauges.spending.active_s(attempts.current))
            attempts.begin(action.attempt, self.intake.begin_attempt(action.attempt), point)
        elif isinstance(action, states.Stop):
            saving = self.watching.before_stop(save=action.order.save)
            attempts.stop(action.order, saving=saving, reached=self.monitor.meter.last_step)
        elif isinstance(action, states.Climb) and attempts.stopping is not None:
            attempts.stopping.urge(at_once=action.now)
        elif isinstance(action, states.Reorder) and attempts.stopping is not None:
            attempts.stopping.reorder(action.order)
        elif isinstance(action, states.BackOff):
            attempts.wait(action, self.monitor.state)
        elif isinstance(action, states.End):
            used_s = self.gauges.spending.elapsed_s(attempts.current)
            text = self.monitor.state.cause_text
            self.facts.say("ended", state=action.state, cause=action.cause, text=text, elapsed_s=used_s)
            if action.hint is not None:
                self.facts.note(action.hint)

    # -- 7. storing --------------------------------------------------------------------------------------------------

    def _store(self) -> None:
        now, gap_s = boot_clock(), self.alarm.rhythm.gap_s
        moved, told = self.storing.turn(now, gap_s=gap_s), self.hooks.turn(now)
        self.publisher.urgent = self.publisher.urgent or told or self.watching.saved
        self.watching.saved = False
        if not self.monitor.state.ended:  # what is published then says already which hooks are waited for
            self.publisher.turn(self.gauges, moved=moved, gap_s=gap_s)


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
