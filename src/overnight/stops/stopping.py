"""Carries a stop out on real processes: freeze the shells, signal the training, climb the rungs, say which one worked.

Every step is written to stop.json before (or, for the signal itself, right after) it is taken, so that a supervisor
killed in the middle of a stop is followed by one that goes on with it. Only one that is killed in the tenth of a
millisecond between the signal and its note makes the next one send it again. What to do next is decided in
``ladder.py``; here it is only done.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from overnight import processes, targets
from overnight.clocks import boot_clock
from overnight.events import StopOrder
from overnight.folder import write_json
from overnight.keepers import AGAIN_S, KILL_S, Keepers
from overnight.processes import Identity
from overnight.saves.growth import Growth
from overnight.spec import RunSpec
from overnight.stops.ladder import NEXT, Ladder, Look, talked
from overnight.stops.orderfile import read_order, written_order
from overnight.supervision.attempt import Attempt

LAUNCHER_PATIENCE_S = 0.7
"""A launcher that outlives its training this long may be starting it again: torchrun --max-restarts does."""

TRAP_PATIENCE_S = 10.0
"""A shell with a trap of its own for SIGTERM is given this long to run it."""

FILES_EVERY_S = 0.5

URGE_LOOK_S = 0.6
"""An impatient user's wish waits so long: a save that has just begun is seen to grow only by a second look."""

KILL_AGAIN_S = 1.0

DUMP_PATIENCE_S = 15.0
"""So long a stalled training is left as it is while its stacks are being read."""

OTHER = {signal.SIGINT: signal.SIGTERM, signal.SIGTERM: signal.SIGINT}

Say = Callable[..., None]


class Dump(Protocol):
    """Something that is being written down about processes before they are disturbed."""

    def done(self) -> bool:
        """Say whether it is written."""


def send(who: Identity, number: int) -> bool:
    """Send a signal to exactly this process; False if it is gone."""
    return processes.send(who.pid, who.start_ticks, number)


class Stopping:
    """One stop of one attempt, from the order to the moment when command and training processes are gone."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        attempt: Attempt,
        keepers: Keepers,
        say: Say,
        dump: Callable[[], Dump | None] | None = None,
    ) -> None:
        """Prepare the stop of a started attempt; ValueError for one whose command is not known.

        ``dump`` writes down where the processes hang; a stalled training is not disturbed before that is done.
        """
        if attempt.command is None:
            raise ValueError(f"attempt {attempt.number} has no command that could be stopped")
        self.spec = spec
        self.attempt = attempt.files
        self.command = attempt.command
        self.keepers = keepers
        self.say = say
        self.order: StopOrder | None = None
        self.ladder = Ladder(began=boot_clock(), grace_s=spec.grace_s, grace_max_s=spec.grace_max_s)
        self.targets: list[Identity] = []
        self.frozen: list[Identity] = []
        self.signal = 0
        self.signalled = False
        self.targets_gone_at: float | None = None
        self.shells_told_at: float | None = None
        self.command_told_at: float | None = None
        self.growth = Growth(spec.log)
        self.killed_at = self.files_seen_at = 0.0
        self.file_grew_at: float | None = None
        self.hung_at: float | None = None
        self.hung = False
        self.urges: list[float] = []
        self.make_dump = dump
        self.dump: Dump | None = None
        self.dump_from = 0.0
        self.log_grew_at: float | None = None

    # -- the order ---------------------------------------------------------------------------------------------------

    def begin(self, order: StopOrder) -> None:
        """Write the order down, freeze the shells on the path, send the first signal."""
        if order.by == "rule":  # a rule's finding has the time of its line's mark, which may be some seconds old
            order = msgspec.structs.replace(order, at=time.time())
        self.order = order
        if processes.is_alive(self.command):  # or its pid may be a stranger's by now, with a tree of its own
            found = targets.find_targets(self.command.pid)
            self.targets = _identities(found.pids)
            self.frozen = _identities(found.shells)
        self.targets = self.targets or [self.command]
        self.signal = self._first_signal()
        self._write()  # save: false must be readable before the signal arrives, and who is frozen before he is
        if order.now or self.signal == signal.SIGKILL:
            self.ladder = self.ladder.urged(at_once=True)
            self.say("stopping", cause=order.cause, save=order.save, signal="SIGKILL", pids=[self.command.pid])
            self._climb(None)
            return
        if order.cause == "stall" and self.make_dump is not None:
            self.dump = self.make_dump()
            self.dump_from = boot_clock()
        if self.dump is None:
            self._strike(order)

    def _strike(self, order: StopOrder) -> None:
        """Send the first signal; the grace runs from here."""
        hangs, spec = order.cause == "stall", self.spec
        limits_s = (spec.stall_s, spec.start_limit_s, spec.exit_limit_s)
        talks = hangs and self.dump is not None and talked(self.log_grew_at, self.dump_from, limits_s)
        self.dump = None
        self.ladder = msgspec.structs.replace(self.ladder, began=boot_clock(), hangs=hangs, talks=talks)
        self._freeze()
        for target in self.targets:
            send(target, self.signal)
        self.signalled = True
        self._write()
        self.say(
            "stopping",
            cause=order.cause,
            save=order.save,
            signal=signal.Signals(self.signal).name,
            pids=[target.pid for target in self.targets],
            frozen=[shell.pid for shell in self.frozen],
        )

    def resume(self, written: dict[str, Any]) -> StopOrder:
        """Go on with a stop that an earlier supervisor began, and return its order; ``written`` is its stop.json.

        If somebody edited it so that it cannot be understood, the stop begins anew, as one that the user asked for.
        """
        try:
            self._recall(written)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self.say("note", text=f"{self.attempt.stop_json} was edited ({error!r}); the stop begins anew")
            self.signalled, self.targets, self.frozen = False, [], []
        order = self.order or StopOrder(cause="user", save=True, at=0.0, text="stopped on request")
        if not self.signalled:
            self.thaw(self.frozen)
            self.begin(order)
        return order

    def _recall(self, written: dict[str, Any]) -> None:
        self.order = read_order(written)
        self.targets = _read_identities(written.get("targets"))
        self.frozen = _read_identities(written.get("frozen"))
        if not written.get("signalled"):
            return
        self.signal = signal.Signals(int(written["signal"]))
        rung = str(written.get("rung", "asked"))
        if rung not in NEXT:
            raise ValueError(rung)
        hangs = self.order.cause == "stall"
        self.ladder = msgspec.structs.replace(
            self.ladder, began=float(written["began"]), rung=rung, hangs=hangs, talks=bool(written.get("talks"))
        )
        self.signalled = True

    def reorder(self, order: StopOrder) -> None:
        """Change what is asked of the script while the ladder goes on."""
        at = order.at if self.order is None else self.order.at
        self.order = msgspec.structs.replace(order, at=at)
        self._write()

    def urge(self, *, at_once: bool) -> None:
        """The user asks again: one rung up (after a look whether a save has just begun), or everything at once."""
        if at_once:
            self.ladder = self.ladder.urged(at_once=True)
        else:
            self.urges.append(boot_clock())

    # -- one turn ----------------------------------------------------------------------------------------------------

    def turn(self, log_grew_at: float | None) -> bool:
        """Take the next step if it is time for one; True when nothing of command and training is left."""
        now = boot_clock()
        alive = [target for target in self.targets if processes.is_alive(target)]
        command_alive = processes.is_alive(self.command)
        if not alive and not command_alive:
            self.thaw(self.frozen)
            return True
        if self._hung(now, [*alive, self.command] if command_alive else alive):
            return True
        self.log_grew_at = log_grew_at
        if self._dumping(now):
            return False
        if not alive:
            self._finish_command(now)
        self._climb(log_grew_at)
        return False

    def _hung(self, now: float, living: list[Identity]) -> bool:
        """Say whether all that lives has hung in the kernel for long, for all the kills: it may never end."""
        if not self.killed() or not all(processes.hangs(one.pid) for one in living):
            self.hung_at = None
            return False
        self.hung_at = now if self.hung_at is None else self.hung_at
        self.hung = now - self.hung_at >= processes.HUNG_S
        return self.hung

    def _dumping(self, now: float) -> bool:
        """Say whether the first signal still waits for the stacks to be written down; send it when they are."""
        if self.dump is None or self.order is None:
            return False
        if (
            not self.dump.done()
            and now < self.dump_from + DUMP_PATIENCE_S
            and not self.ladder.at_once
            and not self.urges
        ):
            return True
        self._strike(self.order)
        return False

    def next_look_s(self) -> float:
        """Return when ``turn`` wants to be called again, in seconds."""
        if self.targets_gone_at is not None or self.dump is not None:
            return 0.05
        if self.urges:
            return URGE_LOOK_S / 4
        return self.ladder.next_look_s(boot_clock())

    def killed(self) -> bool:
        """Say whether the ladder came to its last rung."""
        return self.ladder.rung == "kill"

    def thaw(self, shells: list[Identity]) -> None:
        """Let frozen shells go on; harmless for those that are gone."""
        for shell in shells:
            if processes.is_alive(shell):
                send(shell, signal.SIGCONT)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _first_signal(self) -> int:
        asked = self.spec.nonfinite_signal
        if self.order is not None and self.order.cause == "stall" and self.spec.stop_signal == "auto":
            return signal.SIGTERM  # SIGINT is for a program that is listening
        if self.order is not None and self.order.cause == "nonfinite" and asked != "auto":
            return signal.SIGKILL if asked == "kill" else targets.choose_signal(self.targets[0].pid, asked)
        return targets.choose_signal(self.targets[0].pid, self.spec.stop_signal)

    def _freeze(self) -> None:
        for shell in self.frozen:
            send(shell, signal.SIGSTOP)

    def _finish_command(self, now: float) -> None:
        """The training is gone: end the shells before they start their next command, and a launcher that lingers."""
        if self.targets_gone_at is None:
            self.targets_gone_at = now
            self.say("training_ended", seconds=round(now - self.ladder.began, 3))
        shells = [shell for shell in self.frozen if processes.is_alive(shell)]
        if shells and self.shells_told_at is None:
            for shell in shells:
                send(shell, signal.SIGTERM)
            for shell in shells:
                send(shell, signal.SIGCONT)
            self.shells_told_at = now
        elif shells and self.shells_told_at is not None:
            trapped = any(signal.SIGTERM in processes.caught(shell.pid) for shell in shells)
            if now - self.shells_told_at >= (TRAP_PATIENCE_S if trapped else LAUNCHER_PATIENCE_S):
                for shell in shells:
                    send(shell, signal.SIGKILL)
        elif self.command_told_at is None and now - self.targets_gone_at >= LAUNCHER_PATIENCE_S:
            send(self.command, signal.SIGTERM)
            self.command_told_at = now
            self.say("launcher_told", pid=self.command.pid, signal="SIGTERM")

    def _climb(self, log_grew_at: float | None) -> None:
        now = boot_clock()
        self._look_at_files(now)
        while self.urges and now - self.urges[0] >= URGE_LOOK_S:
            del self.urges[0]
            self.ladder = self.ladder.urged()
        first = next(filter(processes.is_alive, self.targets), self.command)
        catches = self.signal in processes.caught(first.pid)
        look = Look(now=now, file_grew_at=self.file_grew_at, log_grew_at=log_grew_at, catches=catches)
        higher = self.ladder.climb(look)
        if self.killed() and now - self.killed_at >= KILL_AGAIN_S:
            self._kill(now)  # after a supervisor that wrote the rung down and was killed itself, or a fork in between
        if higher is None:
            return
        before, self.ladder = self.ladder, higher
        if higher.rung == before.rung:
            return
        self._write()
        if higher.rung == "kill":
            why = _why_killed(higher, look)
            self.say("killed", reason=why, seconds=round(now - higher.began, 3))
            self.say("note", text=f"killed: {why}")
            self._kill(now)
            return
        # With PYTHONFAULTHANDLER an abort writes every thread's stack to the log.
        other = signal.SIGABRT if higher.hangs else OTHER.get(signal.Signals(self.signal), signal.SIGTERM)
        self.say("other_signal", signal=other.name, pids=[target.pid for target in self.targets])
        for target in self.targets:
            if other == signal.SIGABRT and processes.is_alive(target):
                with contextlib.suppress(OSError):  # all its memory in a core file would fill the disk
                    resource.prlimit(target.pid, resource.RLIMIT_CORE, (0, 0))
            send(target, other)

    def _kill(self, now: float) -> None:
        self.killed_at = now
        below: list[Identity] = []
        if self.spec.watched:  # no keeper of ours is above it, so its children are known only while it lives
            below = _identities(tuple(processes.descendants(self.command.pid)))
        for one in [*self.targets, *self.frozen, self.command, *below]:
            if processes.is_alive(one):
                send(one, signal.SIGKILL)
        self.keepers.kill_all(KILL_S if self.hung_at is None else AGAIN_S)

    def _look_at_files(self, now: float) -> None:
        """Notice whether a file that the training has open for writing grows: that is a save in progress."""
        if now - self.files_seen_at < (URGE_LOOK_S / 4 if self.urges else FILES_EVERY_S):
            return
        self.files_seen_at = now
        pids = {one.pid for one in [self.command, *self.targets]}
        for root in list(pids):
            pids.update(processes.descendants(root))
        if self.growth.look(pids):
            self.file_grew_at = now

    def _write(self) -> None:
        if self.order is None:
            return
        value = {
            **written_order(self.order),
            "began": self.ladder.began,
            "rung": self.ladder.rung,
            "talks": self.ladder.talks,
            "signal": int(self.signal),
            "signalled": self.signalled,
            "targets": [[one.pid, one.start_ticks, one.boot_id] for one in self.targets],
            "frozen": [[one.pid, one.start_ticks, one.boot_id] for one in self.frozen],
        }
        try:
            self._publish(value)
        except OSError as error:  # a full disk never delays a stop
            self.say("unwritten", path=str(self.attempt.stop_json), error=str(error))

    def _publish(self, value: dict[str, Any]) -> None:
        try:
            write_json(self.attempt.stop_json, value)
        except OSError:
            # The ballast is there for this: save: false keeps a script from writing its NaN over good weights.
            if not self.keepers.folder.drop_ballast():
                raise
            write_json(self.attempt.stop_json, value)


def _why_killed(ladder: Ladder, look: Look) -> str:
    took_s = look.now - ladder.began
    if ladder.at_once:
        return "asked for at once"
    if look.saving() and took_s >= ladder.grace_max_s:
        return f"grace_max of {ladder.grace_max_s:g} s ran out in the middle of a save"
    if took_s >= ladder.grace_s:
        return f"grace of {ladder.grace_s:g} s ran out"
    return "the user asked again"


def _identities(pids: tuple[int, ...]) -> list[Identity]:
    return [found for found in map(processes.identify, pids) if found is not None]


def _read_identities(value: object) -> list[Identity]:
    if not isinstance(value, list):
        return []
    return [Identity(pid=int(one[0]), start_ticks=int(one[1]), boot_id=str(one[2])) for one in value]
