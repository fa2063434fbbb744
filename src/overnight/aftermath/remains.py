"""After the command has ended: what it left behind gets a little time, is asked, and is ended. Nothing of a run stays.

Leftovers that do something (burn CPU, write a file) get longer than those that sleep; one whose file grows is a
checkpoint writer and gets the grace. After the ladder's last rung nobody gets any time. ``clearing.py`` does the
killing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from overnight import processes
from overnight.clearing import Found
from overnight.keepers import AGAIN_S, KILL_S, Keepers
from overnight.saves.growth import Growth

BUSY_S = 10.0
IDLE_S = 4.0
AFTER_STOP_S = 2.0
TERM_S = 2.0
LOOK_S = 0.25


class Remains:
    """What is left of one attempt's tree."""

    def __init__(
        self,
        *,
        keepers: Keepers,
        log: str,
        grace_s: float,
        stopped: bool,
        killed: bool,
        began: float,
        say: Callable[..., None],
    ) -> None:
        self.keepers = keepers
        self.grace_s = grace_s
        self.idle_s = min(AFTER_STOP_S if stopped else IDLE_S, grace_s)
        self.killed = killed
        self.began = began
        self.say = say
        self.busy_at = began
        self.looked_at = 0.0
        self.work: dict[int, int] = {}
        self.growth = Growth(log)
        self.saved_at: float | None = None
        self.asked_at: float | None = None
        self.removed: dict[int, str] = {}
        self.hung: tuple[Found, ...] = ()
        self.hung_at: float | None = None

    def turn(self, now: float) -> bool:
        """Take the next step; True when nothing is left."""
        left = self.keepers.leftovers()
        if not left:
            if self.removed:
                names = ", ".join(sorted(set(self.removed.values())))
                self.say("note", text=f"leftover processes ended: {len(self.removed)} ({names})")
            return True
        if self.killed or (self.asked_at is not None and now - self.asked_at >= TERM_S):
            return self._end(left, now)
        if self.asked_at is not None:
            return False
        if now - self.looked_at >= LOOK_S:
            self.looked_at = now
            self._look(left, now)
            if self._patience_over(now):
                self.asked_at = now
                self._name(left)
                for one in left:
                    processes.send(one.pid, one.start_ticks, signal.SIGTERM)
        return False

    def _patience_over(self, now: float) -> bool:
        if self.saved_at is not None and now - self.saved_at < self.idle_s:
            return now - self.began >= self.grace_s
        if now - self.began >= BUSY_S:
            return True
        return now - self.busy_at >= self.idle_s

    def _look(self, left: Sequence[Found], now: float) -> None:
        work = {one.pid: _ticks(one.pid) for one in left}
        if any(pid in self.work and done != self.work[pid] for pid, done in work.items()):
            self.busy_at = now
        self.work = work
        if self.growth.look({one.pid for one in left}):
            self.saved_at = now

    def _name(self, left: Sequence[Found]) -> None:
        """Write down who is about to be ended, before it is done."""
        new = [one for one in left if one.pid not in self.removed]
        if new:
            self.say(
                "leftovers", count=len(new), names=sorted({one.name for one in new}), pids=[one.pid for one in new]
            )
        self.removed.update((one.pid, one.name) for one in new)

    def _end(self, left: Sequence[Found], now: float) -> bool:
        """Kill what is left; True once nothing is left but what hangs in the kernel and has not died for long."""
        self._name(left)
        hung = self.keepers.kill_all(KILL_S if self.hung_at is None else AGAIN_S).left
        if not hung or not all(processes.hangs(one.pid) for one in hung):
            self.hung_at = None
            return False
        self.hung_at = now if self.hung_at is None else self.hung_at
        if now - self.hung_at < processes.HUNG_S:
            return False
        self.hung = hung
        names = ", ".join(f"{one.pid} ({one.name})" for one in hung)
        self.say("note", text=f"processes that hang in the kernel cannot be killed, and are left: {names}")
        return True


def _ticks(pid: int) -> int:
    """Return the CPU time a process has used, in clock ticks."""
    fields = (processes.read_proc(pid, "stat") or b"").rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0
