"""When a save is due: every so many steps, every so often, or as often as pays.

Only arithmetic: times come in as arguments (seconds of a clock that never goes back); nothing is saved or measured.
"""

from __future__ import annotations

import math
import re
from collections import deque

from overnight.checkpoint.errors import UsageError

PRIOR_S = 86_400.0
"""What is assumed before anything is known: one failure in a day of training."""

FIRST_S = 60.0
"""With ``auto`` the first save comes so soon, to learn what one costs."""

LEAST_S = 10.0
"""With ``auto`` no two saves come closer, however little one costs."""

REMEMBERED = 5
"""So many saves, the last ones, say what the next will cost."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([dhms])")
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


class Interval:
    """Decides when the next save is due.

    ``every`` is a number of steps, a time (``"10m"``, ``"600s"``, ``"1h30m"``), ``"auto"``, or None: never by itself;
    UsageError for anything else. ``overhead`` is the part of the time that ``auto`` may cost at most, 0 to 1.
    ``failures`` and ``trained_s`` (seconds) are what is known of this run so far.
    """

    def __init__(
        self, every: int | str | None, *, overhead: float = 0.01, failures: int = 0, trained_s: float = 0.0
    ) -> None:
        self.steps, self.period_s, self.auto = parse(every)
        if type(overhead) not in (int, float) or not 0 < overhead < 1:
            raise UsageError(f"overhead={overhead!r} is no part of the time; give a number such as 0.01, for 1 %")
        self.overhead = float(overhead)
        self.failures = max(0, failures)
        self.trained_s = max(0.0, trained_s)
        self._began: float | None = None
        self._from: float | None = None  # when the last save began, else when training began
        self._last: int | None = None  # the step of the last save, or the one that training goes on after
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._writes: deque[float] = deque(maxlen=REMEMBERED)

    def begin(self, step: int, now: float) -> None:
        """Take in that training begins, or goes on, behind ``step``."""
        self._began = self._from = now
        self._last = step

    def due(self, step: int, now: float) -> bool:
        """Say whether a save is due now that ``step`` is done; asking changes nothing."""
        if step == self._last:
            return False
        if self.steps is not None:
            return step % self.steps == 0
        wait_s = self.seconds(now)
        return wait_s is not None and now - (now if self._from is None else self._from) >= wait_s

    def started(self, step: int, now: float) -> None:
        """Take in that a save of ``step`` was begun; from here the next interval counts, whatever becomes of it."""
        self._last = step
        self._from = now

    def saved(self, step: int, now: float, *, stall_s: float, write_s: float) -> None:
        """Take in what a save cost that is done ``now``: seconds that training waited, and until it was durable."""
        if self._last is None or step > self._last:  # nobody said when it was begun
            self.started(step, now - max(stall_s, write_s))
        self._stalls.append(max(0.0, stall_s))
        self._writes.append(max(0.0, write_s))

    def seconds(self, now: float) -> float | None:
        """Return how far two saves lie apart at present; None if that is counted in steps, or there is no interval.

        With ``auto`` it is ``sqrt(2 C M)``, the first-order optimum for a save that costs C seconds of training and a
        mean time M between failures: J. W. Young, "A first order approximation to the optimum checkpoint interval",
        Communications of the ACM 17(9), 1974; J. T. Daly, "A higher order estimate of the optimum checkpoint interval
        for restart dumps", Future Generation Computer Systems 22(3), 2006. C is what training waits (the mean of the
        last saves): what is written behind it costs no step. It is never shorter than ``overhead`` allows, than a
        write takes, or than LEAST_S; before the first save it is FIRST_S.
        """
        if not self.auto:
            return self.period_s
        if not self._stalls:
            return FIRST_S
        cost_s = sum(self._stalls) / len(self._stalls)
        best_s = math.sqrt(2 * cost_s * self.mtbf_s(now))
        return max(best_s, cost_s / self.overhead, LEAST_S, *self._writes)

    def mtbf_s(self, now: float) -> float:
        """Return the mean time between failures in seconds, as far as this run tells.

        One failure in PRIOR_S is taken as seen before: (PRIOR_S + trained) / (1 + failures), the posterior mean rate
        of a Poisson process whose prior is a gamma distribution of shape 1.
        """
        since_s = 0.0 if self._began is None else max(0.0, now - self._began)
        return (PRIOR_S + self.trained_s + since_s) / (1 + self.failures)


def parse(every: int | str | None) -> tuple[int | None, float | None, bool]:
    """Return steps, seconds, and whether it is ``auto``; at most one of the three is something."""
    if every is None:
        return None, None, False
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return every, None, False
    if isinstance(every, str):
        text = every.strip().lower()
        if text == "auto":
            return None, None, True
        seconds = duration_s(text)
        if seconds:
            return None, seconds, False
    raise UsageError(
        f"every={every!r} is no interval; give steps as a whole number from 1 on, a time such as '10m' or '1h30m', "
        f"'auto', or None"
    )


def duration_s(text: str) -> float | None:
    """Return the seconds of ``10m``, ``600s`` or ``1h30m``; None if it is no such text."""
    parts = _PART.findall(text)
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        return None
    units = [unit for _, unit in parts]
    if units != sorted(set(units), key="dhms".index):
        return None
    return math.fsum(float(amount) * _UNITS[unit] for amount, unit in parts)
