"""When the supervisor has to come back though nothing happens: the time that a rule, the ladder or a look asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from overnight.clocks import boot_clock
from overnight.intake.reading import Intake
from overnight.intake.rhythm import PATIENCE_S, Rhythm
from overnight.monitor import Monitor
from overnight.rules import Moment
from overnight.saves.noticing import Saves
from overnight.supervision.attempts import Attempts
from overnight.supervision.gauges import Gauges
from overnight.supervision.waking import Woke

TIMER_S = 20.0
NETWORK_TIMER_S = 1.0
STARTING_TIMER_S = 0.1
MISSING_TIMER_S = 0.1

WHOLE_EVERY_S = 3.0
"""Lines that nobody waits for are read and judged; what else a turn does is done so often: it costs most of a turn."""

LOOK_EVERY_S = 5.0
"""However much is told, everything is looked at so often: where the kernel's watches ran out, nobody tells."""


class Late(NamedTuple):
    """What can wait some seconds longer for a line that is expected: when it is due, and until when it can."""

    due_at: float
    latest_at: float


class Alarm:
    """The next turn of one run. ``due_at``: when the next whole turn is due (boot clock); 0 while one is going on.

    ``others`` say in how many seconds they want to be called, given the time; None: they do not. ``soon`` are those who
    do what they do every few seconds along with a line of the log that comes about then; ``late`` can wait some seconds
    longer, if a line is expected in that time: each with how many. ``calm`` say whether nothing of theirs depends on
    the very next lines.
    """

    def __init__(
        self,
        *,
        gauges: Gauges,
        intake: Intake,
        monitor: Monitor,
        attempts: Attempts,
        saves: Saves,
        others: Sequence[Callable[[float], float | None]],
        soon: Sequence[Callable[[float], float | None]],
        late: Sequence[tuple[Callable[[float], float | None], float]],
        calm: Sequence[Callable[[], bool]],
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.clock = clock
        self.gauges = gauges
        self.intake = intake
        self.monitor = monitor
        self.attempts = attempts
        self.others = (saves.next_look_s, *others)
        self.soon = tuple(soon)
        self.late = tuple(late)
        self.calm = tuple(calm)
        self.rhythm = Rhythm()
        self.due_at = self.fixed_at = self.whole_at = self.looked_at = 0.0
        self.soon_at = math.inf  # what ``soon`` waits for
        self.late_at: list[Late] = []

    def can_wait(self, woke: Woke) -> bool:
        """Say whether the rest of this turn can wait for a whole one, since the log alone has grown and nothing is due.

        By half a line, whose end comes a moment later: unbuffered programs write it apart. Or by lines in which nothing
        was found.
        """
        now = self.clock()
        if not woke.by_log or now >= self.due_at:
            return False
        if self.intake.halfway:
            return True
        self.rhythm.heard(self.intake.grew_at)
        if self.monitor.state.state != "running" or self.intake.more or not all(calm() for calm in self.calm):
            return False
        self.soon_at = min(self.soon_at, self.whole_at + WHOLE_EVERY_S)
        too_late = now + min(self.rhythm.gap_s, WHOLE_EVERY_S / 2) > self.soon_at + PATIENCE_S
        if too_late or now >= min([self.soon_at, *(one.due_at for one in self.late_at)]):
            return False
        self._set(now)
        return True

    def begin(self, woke: Woke) -> Woke:
        """A whole turn begins: when the next one is due is to be found out anew. Return what it is to look at."""
        self.rhythm.heard(self.intake.grew_at)
        self.due_at, self.whole_at = 0.0, self.clock()
        if not woke.to_all and self.whole_at - self.looked_at < LOOK_EVERY_S:
            return woke
        self.looked_at = self.whole_at
        return woke._replace(due=True)

    def timeout_s(self, moment: Moment | None) -> float:
        """Return how long to sleep at most; ``moment`` is that of this turn, if the rules were asked in it."""
        now = self.clock()
        if self.due_at:
            return max(0.0, self.due_at - now)
        state = self.monitor.state.state
        waits: list[float | None] = [NETWORK_TIMER_S if self.intake.network else TIMER_S]
        if self.intake.more:
            waits.append(0.0)
        if self.intake.log.missing:
            waits.append(MISSING_TIMER_S)
        if state in ("pending", "starting"):
            waits.append(STARTING_TIMER_S)
        going_on = self.attempts.going_on(state)
        if going_on:
            # Between two attempts active time stands still, and what is nearly due stays so.
            least_s = 1.0 if state == "backoff" else 0.01
            waits.append(max(least_s, self.monitor.due_s(moment or self.gauges.moment())))
        waits.append(self.attempts.next_look_s(now, going_on=going_on))
        waits += [ask(now) for ask in self.others]
        self.fixed_at = now + min(wait for wait in waits if wait is not None)
        self.soon_at = now + min((wait for ask in self.soon if (wait := ask(now)) is not None), default=math.inf)
        late = [(ask(now), patience_s) for ask, patience_s in self.late]
        self.late_at = [Late(now + wait, now + wait + patience_s) for wait, patience_s in late if wait is not None]
        self._set(now)
        return max(0.0, self.due_at - now)

    def _set(self, now: float) -> None:
        """Set the time of the next whole turn, as what waits for it and the lines that are expected have it."""
        waiting = [Late(self.soon_at, self.soon_at + PATIENCE_S), *self.late_at]
        put_off = (self.rhythm.put_off(one.due_at, one.latest_at, now) for one in waiting)
        self.due_at = min(self.fixed_at, *put_off)
