"""The attempts of a run, one after the other: ask for one, see it start, stop it, clear up after it, wait for the next.

What is to be done is decided elsewhere; here it is done. The supervisor calls ``placed``, ``look`` and ``step`` in each
of its turns and hears what came of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overnight import processes
from overnight.aftermath.remains import Remains
from overnight.aftermath.sequence import Aftermath
from overnight.clocks import boot_clock, uptime_s
from overnight.errors import FolderError
from overnight.events import Exit, StopOrder
from overnight.exits import postmortem
from overnight.exits.causes import Finding
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.keepers import Keepers
from overnight.lifecycle import goes_on
from overnight.monitor import Monitor
from overnight.processes import boot_id
from overnight.resumption.displacing import displaced
from overnight.resumption.point import Point
from overnight.resumption.steering import asks
from overnight.sensors import GpuSample
from overnight.sensors.gpulook import GpuLook
from overnight.sensors.holders import device_files
from overnight.spec import RunSpec
from overnight.stalls.dumps import Dump
from overnight.states import BackOff, RunState
from overnight.stops.orderfile import read_order
from overnight.stops.stopping import Stopping
from overnight.supervision.attempt import Attempt
from overnight.supervision.ownership import Owned
from overnight.supervision.standing import Standing
from overnight.supervision.waking import Wake, Woke

UNKEPT_S = 5.0
"""So long a supervisor waits for a guard or shim to show itself; both may have been killed before they could fork."""


class Attempts:
    """What is going on with the command. ``current`` is the newest attempt, None before the first.

    ``devices`` returns the device files of the GPUs: other files stand for them in tests.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        facts: Facts,
        *,
        keepers: Keepers,
        wake: Wake,
        standing: Standing,
        devices: Callable[[], Sequence[str | Path]] = device_files,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.facts = facts
        self.keepers = keepers
        self.wake = wake
        self.current = standing.attempt
        self.stopping: Stopping | None = None
        self.devices = devices
        self.gpu_look = GpuLook()
        self.aftermath: Aftermath | None = None
        self.resume_at = standing.resume_at
        self.dumps: list[Dump] = []

    # -- what is decided elsewhere -----------------------------------------------------------------------------------

    def begin(self, number: int, position: tuple[int, int], point: Point | None) -> None:
        """Ask for attempt ``number``, which goes on at ``point``; its log begins at ``position`` (source, offset)."""
        self.resume_at = None
        self.current = Attempt(
            number, folder=self.folder, spec=self.spec, wake=self.wake, say=self.facts.say, point=point
        )
        self._ask(self.current, position)

    def _ask(self, attempt: Attempt, position: tuple[int, int]) -> None:
        """Ask the shim for the attempt; on a full disk that is tried again, for one day there is room."""
        try:
            attempt.request(position, self.keepers)
        except OSError as error:
            if attempt.number == 1 or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.facts.note(f"attempt {attempt.number} cannot be asked for: {error.strerror}; free some space")

    def stop(self, order: StopOrder, *, saving: bool = False, reached: int | None = None) -> None:
        """Begin the ladder; ``saving``: a save seems to be going on. ``reached``: the last step that was read."""
        attempt = self.current
        if attempt is not None and attempt.command is not None and attempt.exit is None:
            self.stopping = self._stopping(attempt)
            self.stopping.begin(order if saving else self._sparing(order, reached))

    def _sparing(self, order: StopOrder, reached: int | None) -> StopOrder:
        """Return the order, without time to save where a save in trouble would take the place of the healthy ones."""
        asked = self.spec.nonfinite_signal != "auto" or self.spec.stop_signal != "auto"
        if order.save or order.now or order.by != "rule" or order.cause == "stall" or asked:
            return order
        last = displaced(self.facts.book, os.path.lexists, reached=reached)
        if last is None or asks(self.spec):
            return order
        self.facts.note(
            f"ended at once: a save at the signal might have taken the place of {last.path}, the last healthy one"
        )
        return msgspec.structs.replace(order, now=True)

    def resume_stop(self, written: dict[str, Any], *, lost: bool) -> StopOrder | None:
        """Go on with a stop that an earlier supervisor began; ``written`` is its stop.json.

        ``lost``: a reboot has ended the attempt meanwhile, so there is nobody left to stop.
        """
        if self.current is None or self.current.command is None:
            return None
        if lost:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                return read_order(written)
            return None
        self.stopping = self._stopping(self.current)
        return self.stopping.resume(written)

    def wait(self, action: BackOff, state: RunState) -> None:
        """Write down that the next attempt comes later, and how the run stands until then."""
        until_s = uptime_s() + action.wait_s
        self.facts.say(
            "backoff",
            attempt=state.attempt,
            cause=action.cause,
            text=action.text,
            wait_s=round(action.wait_s, 3),
            until_s=until_s,
            boot_id=boot_id(),
            tries=state.tries,
            reached=state.reached,
            rollback=None if action.rollback is None else msgspec.structs.asdict(action.rollback),
        )
        self.resume_at = until_s

    def resume_in_s(self) -> float | None:
        """Return the seconds until the back-off is over; None if there is none."""
        return None if self.resume_at is None else max(0.0, self.resume_at - uptime_s())

    def keep_again(self) -> None:
        """Place new keepers for a run whose guard and shim were killed: only they can start the command again.

        Their supervisor takes the run over from this one: Owned. OvernightError if that cannot be done.
        """
        from overnight import launch, wiring  # for this rare case only: it brings subprocess with it, 2.4 MB

        try:
            environ = launch.read_env(self.folder)
        except FolderError:  # restarts were allowed later, by `overnight set`
            environ = {name: value for name, value in os.environ.items() if name != "OVERNIGHT_ROLE"}
        wiring.make_engine("local", self.facts.note).start(launch.placement(self.folder, self.spec, environ))
        self.facts.note("guard and shim were killed: new ones were placed, to start the command")
        raise Owned("new keepers were placed, with a supervisor of their own")

    def why_again(self) -> dict[str, Any]:
        """Return what the newest back-off is about."""
        return {name: (self.facts.backoff or {}).get(name) for name in ("cause", "text", "wait_s")}

    def waited(self) -> bool:
        """Say whether a back-off is over. Owned if new keepers had to be placed: theirs is the run then."""
        over = self.resume_at is not None and uptime_s() >= self.resume_at
        if over and not self.keepers.alive():
            self.keep_again()
        return over

    # -- the turn ----------------------------------------------------------------------------------------------------

    def placed(self, position: tuple[int, int], *, adopting: bool) -> bool:
        """Learn that the command has been started; True once it has."""
        attempt = self.current
        if attempt is None:
            return False
        if attempt.look_started():
            self.tell_started(attempt)
            return True
        if not adopting:
            if not self.keepers.alive() and boot_clock() - attempt.wished_at >= UNKEPT_S:
                self.keep_again()
            self._ask(attempt, position)
        elif not self.keepers.alive():
            attempt.give_up("guard and shim were killed before they could start the command")
        return False

    def tell_started(self, attempt: Attempt) -> None:
        """Write down that the command runs, with the kernel's out-of-memory counters as they are now."""
        if self.facts.memory[0] == attempt.number or attempt.command is None:
            return
        memory = postmortem.oom_counters(attempt.command.pid)
        told = None if memory is None else msgspec.structs.asdict(memory)
        self.facts.say("started", attempt=attempt.number, pid=attempt.command.pid, memory=told)

    def look(self, woke: Woke, log_grew_at: float | None) -> None:
        """See who has ended."""
        attempt = self.current
        if attempt is None:
            return
        for pid in woke.exits:
            attempt.target_ended(pid, log_grew_at)
        for text in self.keepers.deaths(woke.exits):
            self.facts.note(text)
        told = bool(woke.names or woke.exits) or woke.to_all or attempt.gone_at is not None or self.stopping is not None
        how = attempt.look_ended(kept=bool(self.keepers.alive())) if attempt.exit is None and told else None
        if how is not None:
            self.facts.say("exit", attempt=attempt.number, exit_code=how.exit_code, signal=how.signal)

    def step(self, log_grew_at: float | None, *, stopped: bool) -> bool:
        """Take the next step of a stop, or of clearing up; True once nothing of an ended attempt is left."""
        for dump in [one for one in self.dumps if one.done()]:
            self.dumps.remove(dump)
            if dump.error is None:
                self.facts.note(f"where it hung: {dump.innermost()}; all of it is in {dump.path}")
                if (kernel := dump.kernel()) is not None:
                    self.facts.note(f"when it hung, {kernel}")
            else:
                self.facts.note(f"where the training hangs could not be written down: {dump.error}")
        going_on = self.stopping is not None and not self.stopping.turn(log_grew_at)
        attempt = self.current
        self._look_hung(attempt)
        if going_on or attempt is None or attempt.exit is None or self.resume_at is not None:
            return False
        now = boot_clock()
        if self.aftermath is None:
            self.aftermath = self._aftermath(attempt, attempt.exit, log_grew_at, stopped=stopped, now=now)
        return self.aftermath.turn(now)

    def _look_hung(self, attempt: Attempt | None) -> None:
        """Let an attempt end whose command hangs in the kernel, where nothing reaches it; what follows names it."""
        if attempt is None or attempt.exit is not None or self.stopping is None or not self.stopping.hung:
            return
        attempt.give_up("the command hangs in the kernel and cannot be killed")
        self.facts.say("exit", attempt=attempt.number, exit_code=None, signal=None)

    def _aftermath(
        self, attempt: Attempt, how: Exit, log_grew_at: float | None, *, stopped: bool, now: float
    ) -> Aftermath:
        remains = Remains(
            keepers=self.keepers,
            log=self.spec.log,
            grace_s=self.spec.grace_s,
            stopped=stopped,
            killed=self.stopping is not None and self.stopping.killed(),
            began=now,
            say=self.facts.say,
        )
        if self.stopping is not None and self.stopping.hung:
            remains.hung_at = now - processes.HUNG_S  # it was waited for
        order = None if self.stopping is None else self.stopping.order
        target = attempt.target_of(log_grew_at)
        failed = how.exit_code != 0 or (target is not None and target.bad)
        # After a stop that ends the run for good nobody asks what the GPUs say: another one may be on them.
        bad = goes_on(order) if order is not None else failed and not stopped
        return Aftermath(
            self.folder.path,
            attempt.number,
            remains=remains,
            look=self.gpu_look,
            files=self.devices(),
            bad=bad and self.spec.sensors == "on",
            say=self.facts.say,
        )

    def samples(self) -> Sequence[GpuSample] | None:
        """Return what the GPUs said after the current attempt has ended badly; None where nobody asked."""
        return None if self.aftermath is None else self.aftermath.samples()

    def going_on(self, state: str) -> bool:
        """Say whether nobody has asked for the end of a run in this state: only then are rules over time asked."""
        running = state == "running" and self.current is not None and self.current.exit is None
        return running or state == "backoff"

    def calm(self) -> bool:
        """Say whether the command runs and nothing is being done about it."""
        attempt = self.current
        idle = self.stopping is None and self.aftermath is None and not self.dumps
        return idle and attempt is not None and attempt.exit is None and attempt.gone_at is None

    def close(self, monitor: Monitor, finding: Finding | None = None) -> None:
        """Write down how the ended attempt ended, unless that is done, and forget how it was stopped."""
        attempt = self.current
        if attempt is not None and attempt.exit is not None and attempt.number not in self.facts.attempt_ends:
            self.facts.attempt_ended(attempt.line(), attempt.exit, monitor, attempt.active_s(), finding)
        if self.aftermath is not None:
            self.aftermath.close()
        self.stopping = self.aftermath = None

    def finding(self, how: Exit, target: Exit | None) -> Finding | None:
        """Return why the attempt ended, if nobody had asked it to and it did not end well; or that its GPU failed."""
        attempt = self.current
        if attempt is None or attempt.command is None:
            return None
        if self.stopping is not None:
            order = self.stopping.order
            return self._of_device(attempt) if order is not None and goes_on(order) else None
        if how.exit_code == 0 and (target is None or not target.bad):
            return None
        found = postmortem.examine(
            how=how,
            target=target,
            log=Path(self.spec.log),
            start=attempt.log_begins()[1],
            end=None,
            pid=attempt.command.pid,
            started_at=attempt.started_at,
            before=self._memory_before(),
            pids=attempt.known_pids(),
        )
        device = self._of_device(attempt) if found.restartable else None
        if device is None:
            return found
        return msgspec.structs.replace(device, text=f"{device.text}; the command {found.text}", lines=found.lines)

    def _of_device(self, attempt: Attempt) -> Finding | None:
        """Return that a GPU of this attempt has failed, whatever else happened: another start would be in vain."""
        for verdict in self.facts.verdicts:
            if (verdict.rule, verdict.severity, verdict.attempt) == ("hardware", "critical", attempt.number):
                return Finding(cause="hardware", text=verdict.text, restartable=False)
        return None if self.aftermath is None else self.aftermath.stuck()

    def _memory_before(self) -> postmortem.OomCounters | None:
        """Return the kernel's out-of-memory counters of when the command was started, as the journal has them."""
        number, counters = self.facts.memory
        if self.current is None or number != self.current.number:
            return None  # of an earlier attempt: what the kernel has counted since may be that one's end
        try:
            return msgspec.convert(counters, postmortem.OomCounters)
        except msgspec.ValidationError:
            return None

    # -- when to come back -------------------------------------------------------------------------------------------

    def next_look_s(self, now: float, *, going_on: bool) -> float | None:
        """Return when ``step`` wants to be called though nothing happens; None if it does not."""
        waits = []
        if self.stopping is not None:
            waits.append(self.stopping.next_look_s())
        after_s = None if self.aftermath is None else self.aftermath.next_look_s(now)
        if after_s is not None:
            waits.append(after_s)
        resume_in_s = self.resume_in_s()
        if resume_in_s is not None:
            waits.append(resume_in_s)
        if self.current is not None and self.current.gone_at is not None and self.resume_at is None:
            waits.append(0.2)
        if self.current is not None and going_on:
            waits.append(self.current.next_look_s(now))
        return min(waits, default=None)

    # -- stacks ------------------------------------------------------------------------------------------------------

    def dump(self, reason: str) -> Dump | None:
        """Let a side process write down where the processes of the attempt are; None if they cannot be told."""
        attempt = self.current
        if attempt is None or attempt.command is None or not processes.is_alive(attempt.command):
            return None
        pids = [attempt.command.pid, *processes.descendants(attempt.command.pid)]
        dump = Dump.begin(self.folder, pids, reason, self.spec.log)
        self.facts.say("dump", attempt=attempt.number, path=str(dump.path), reason=reason)
        self.dumps.append(dump)
        return dump

    def _stopping(self, attempt: Attempt) -> Stopping:
        return Stopping(
            spec=self.spec,
            attempt=attempt,
            keepers=self.keepers,
            say=self.facts.say,
            dump=lambda: self.dump("stopped for a stall"),
        )
