"""When the supervisor has to come back though nothing happens: the time that a rule, the ladder or a look asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from overnight.clocks import boot_clock
from overnight.intake.reading import Intake
from overnight.monitor import Monitor
from overnight.rules import Moment
from overnight.saves.noticing import Saves
from overnight.supervision.attempts import Attempts
from overnight.supervision.gauges import Gauges

TIMER_S = 20.0
NETWORK_TIMER_S = 1.0
STARTING_TIMER_S = 0.1
MISSING_TIMER_S = 0.1


class Alarm:
    """The next turn of one run. ``due_at``: when the next whole turn is due (boot clock); 0 while one is going on.

    ``others`` say in how many seconds they want to be called, given the time; None: they do not.
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
    ) -> None:
        self.gauges = gauges
        self.intake = intake
        self.monitor = monitor
        self.attempts = attempts
        self.others = (saves.next_look_s, *others)
        self.due_at = 0.0

    def timeout_s(self, moment: Moment | None) -> float:
        """Return how long to sleep at most; ``moment`` is that of this turn, if the rules were asked in it."""
        now = boot_clock()
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
        wait_s = min(wait for wait in waits if wait is not None)
        self.due_at = now + wait_s
        return wait_s
