"""What would have followed from a verdict of a past night: an end, another attempt, a way back to an earlier save.

Pure. The policy itself is asked, and nothing is said of what a log does not have: the steps that were never made.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from overnight.events import Exit, Verdict, VerdictKey
from overnight.lifecycle import counted, decide
from overnight.spec import RunSpec
from overnight.states import BackOff, Decision, Ended, Plan, Rollback, RunState


class Spot(NamedTuple):
    """Where in a run's course a line stands; ``epoch`` is the latest that was printed."""

    attempt: int
    segment: int
    epoch: float | None


class Backs:
    """The verdicts that would have taken a run back, at most so many as are ``allowed``."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.keys: list[VerdictKey] = []
        self._last: Spot | None = None

    @property
    def left(self) -> int:
        """How many more are allowed."""
        return max(0, self.allowed - len(self.keys))

    def take(self, key: VerdictKey, spot: Spot) -> None:
        """Take in one."""
        self.keys.append(key)
        self._last = spot

    def behind(self, spot: Spot) -> bool:
        """Say whether a place is behind the last one and the log has not begun again from an earlier step since.

        It begins again with an attempt, or where the steps fall, unless a later epoch counts them anew.
        """
        last = self._last
        if last is None or spot.attempt != last.attempt:
            return False
        anew = spot.epoch is not None and last.epoch is not None and spot.epoch > last.epoch
        return spot.segment == last.segment or anew


def outlook(verdict: Verdict, spec: RunSpec, plan: Plan, *, rollbacks: int = 0) -> tuple[bool, str]:
    """Return whether a run that a verdict ends is started again, and the sentence that would stand in its status."""
    ended = decided(verdict, spec, plan, rollbacks=rollbacks).state
    if ended.state == "backoff":
        return True, f"started again (restart {ended.restarts} of {spec.restarts})"
    used = f", {counted(rollbacks, 'rollback')} used" if verdict.action == "rollback" and rollbacks else ""
    return False, f"{ended.state} ({ended.cause}){used}"


def decided(verdict: Verdict, spec: RunSpec, plan: Plan, *, rollbacks: int) -> Decision:
    """Return what follows once a verdict has ended an attempt, ``rollbacks`` having been used before.

    Asked is the policy itself, for a run that has come further in each attempt.
    """
    restarts = max(0, verdict.attempt - 1 - rollbacks)
    state = RunState(state="running", attempt=verdict.attempt, restarts=restarts, rollbacks=rollbacks)
    plan = msgspec.structs.replace(
        plan,
        last_step=verdict.step,
        restarts=spec.restarts,
        backoff_s=spec.backoff_s,
        rollbacks=spec.rollbacks,
        rollback_steps=spec.rollback_steps,
    )
    stopping = decide(state, verdict, plan).state
    reached = None if verdict.step is None else (0.0, verdict.step)
    return decide(stopping, Ended(exit=Exit(signal="SIGTERM"), reached=reached), plan)


def back_of(verdict: Verdict, spec: RunSpec, plan: Plan, *, rollbacks: int) -> Rollback:
    """Return where a verdict that asks for a rollback takes the run; LookupError if none is left."""
    for one in decided(verdict, spec, plan, rollbacks=rollbacks).actions:
        if isinstance(one, BackOff) and one.rollback is not None:
            return one.rollback
    raise LookupError(verdict.rule)
