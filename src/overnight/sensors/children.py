"""One sensor's process as its supervisor keeps it: started, watched for silence, killed, started again with back-off.

Nothing here waits. Which sensors there are, and what they say, does not enter here.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence

from overnight.processes import start_apart

NOTHING_THERE = 3
"""The exit code of a sensor that has nothing to measure here."""

AGAIN_S = 2.0
"""Doubled with each start in a row that came to nothing."""

RARELY_S = 600.0
UNKILLABLE_S = 10.0
HEALTHY_SAMPLES = 6
SLOWEST_LOOK_S = 10.0
FASTEST_LOOK_S = 0.2
STARTS_WITHIN_S = 0.3


class Child:
    """One sensor. ``name`` as in a sentence; ``argv`` starts it; ``now`` is always a time of the boot clock.

    ``first_at``: when it was first started, since the epoch; ``resting``: it said that there is nothing to measure.
    """

    again_s = AGAIN_S
    rarely_s = RARELY_S

    def __init__(self, name: str, argv: Sequence[str], say: Callable[[str], None]) -> None:
        self.name = name
        self.argv = list(argv)
        self.say = say
        self.pid: int | None = None
        self.first_at: float | None = None
        self.resting = False
        self._said: set[str] = set()
        self._ended = ""
        self._tries = 0
        self._given = 0
        self._silent_s = 0.0
        self._looked_at = 0.0
        self._heard = False
        self._killed_at: float | None = None
        self._start_at = 0.0
        self._closed = False

    def complain(self, text: str) -> None:
        """Say something, but each sentence only once."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    def heard(self, samples: int, ago_s: float) -> None:
        """Note that it has given samples, the last one ``ago_s`` seconds ago. It is told before ``look``."""
        if samples:
            self._given += samples
            self._silent_s = ago_s
            self._heard = True
            self.resting = False
            if self._given >= HEALTHY_SAMPLES:
                self._tries = 0

    def look(self, now: float, limit_s: float) -> None:
        """See whether it has ended, and kill it after a silence of ``limit_s`` seconds."""
        if self.pid is None:
            return
        # Time in which nobody looked (a suspended machine) is not its silence, nor is what passed before it was heard.
        if not self._heard:
            self._silent_s += min(max(0.0, now - self._looked_at), 2 * SLOWEST_LOOK_S)
        self._looked_at, self._heard = now, False
        try:
            gone, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            gone, status = self.pid, 0
        if gone:
            self._over(now, os.waitstatus_to_exitcode(status))
        elif self._killed_at is None and self._silent_s > limit_s:
            self._killed_at = now
            self._kill()
            self.complain(f"the {self.name} sensor did not answer for {limit_s:.0f} s; it is killed and started again")
        elif self._killed_at is not None and now - self._killed_at > UNKILLABLE_S:
            self.complain(
                f"the {self.name} sensor (pid {self.pid}) hangs in the kernel and cannot be killed; it is left"
            )

    def start_if_due(self, now: float, at: float) -> None:
        """Start it if it does not run and its time has come. ``at``: now, since the epoch."""
        if self.pid is not None or now < self._start_at or self._closed:
            return
        self.first_at = at if self.first_at is None else self.first_at
        self._given, self._silent_s, self._looked_at, self._killed_at = 0, 0.0, now, None
        try:
            # The role, so that it is not taken for a part of the training.
            self.pid = start_apart(self.argv, {**os.environ, "OVERNIGHT_ROLE": "sensors"})
        except OSError as error:
            self._postpone(now)
            self._ended = f"could not be started: {error.strerror}"
            self.complain(f"the {self.name} sensor {self._ended}; it is tried again")

    def next_look_s(self, now: float, pace_s: float) -> float:
        """Return in how many seconds to look again; ``pace_s``: seconds between two of its samples."""
        if self.pid is None:
            wait_s = self._start_at - now if self.first_at is not None else SLOWEST_LOOK_S
        elif self._killed_at is not None:
            wait_s = (now - self._killed_at) / 2
        else:
            due_s = (pace_s if self._given else STARTS_WITHIN_S) - self._silent_s
            wait_s = due_s + 0.1 if due_s > 0 else -due_s / 2
        return min(SLOWEST_LOOK_S, max(FASTEST_LOOK_S, wait_s))

    def why(self) -> str:
        """Return why nothing new has come from it, as a clause."""
        if self.pid is None:
            return f"the sensor {self._ended or 'is not running'}"
        if self._killed_at is not None and self._looked_at - self._killed_at > UNKILLABLE_S:
            return "the sensor hangs in the kernel and cannot be killed"
        if not self._given and self._silent_s < SLOWEST_LOOK_S:
            return "the sensor has just been started"
        return "the sensor does not answer"

    def close(self) -> None:
        """Kill it and start it no more; whoever becomes its parent reaps it, if it is not gone at once."""
        self._closed = True
        if self.pid is not None:
            self._kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            self.pid = None

    def _kill(self) -> None:
        # It is ours and not reaped: nobody else can have this number. What it may have started goes with it.
        assert self.pid is not None
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def _over(self, now: float, code: int) -> None:
        killed = self._killed_at is not None
        self.pid, self._killed_at = None, None
        self._postpone(now)
        self.resting = code == NOTHING_THERE
        if self.resting:
            self._start_at = now + self.rarely_s  # a driver may come
            self._ended = "found nothing to measure"
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._ended = "did not answer and was killed" if killed else how
        if not killed:
            self.complain(f"the {self.name} sensor {how}; it is started again, and supervisor.log may say why")

    def _postpone(self, now: float) -> None:
        self._tries += 1
        self._start_at = now + min(self.rarely_s, self.again_s * 2.0 ** min(self._tries - 1, 20))
