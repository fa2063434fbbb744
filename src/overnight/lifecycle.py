"""The states of a run, the table of transitions between them, and ``decide``: what to do about what happened.

Pure: no clock, file or process. The table below is the only place that says which state may follow which; the docs draw
their diagram from it. ``decide`` returns a new state and the actions that somebody else carries out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overnight.events import Exit, Request, StopOrder, Verdict

State = Literal["pending", "starting", "running", "stopping", "backoff", "finished", "stopped", "failed", "gave_up"]

ENDED: frozenset[str] = frozenset({"finished", "stopped", "failed", "gave_up"})

TRANSITIONS: dict[str, frozenset[str]] = {
    "pending": frozenset({"starting", "stopped", "failed"}),
    "starting": frozenset({"running", "stopping", "backoff", "finished", "failed", "gave_up"}),
    "running": frozenset({"stopping", "backoff", "finished", "failed", "gave_up"}),
    "stopping": frozenset({"backoff", "finished", "stopped", "failed", "gave_up"}),
    "backoff": frozenset({"starting", "stopped", "failed", "gave_up"}),
    "finished": frozenset(),
    "stopped": frozenset(),
    "failed": frozenset({"starting"}),  # host_rebooted only, by recover
    "gave_up": frozenset(),
}

LIMITS: frozenset[str] = frozenset({"wall_clock", "cost", "max_steps", "until"})
FAILURES: frozenset[str] = frozenset(
    {
        "crash",
        "ended_early",
        "usage",
        "import_error",
        "out_of_memory_gpu",
        "out_of_memory_host",
        "disk_full",
        "collective_timeout",
        "hardware",
        "load_failure",
        "host_rebooted",
        "unknown_kill",
    }
)


SIGNAL_CODES = 128
"""A shell whose child was ended by signal N exits with 128 + N."""


class TransitionError(Exception):
    """A transition that the table does not admit was asked for: a defect of ours, never the user's."""


def exit_code(state: str, cause: str | None) -> int:
    """Return the exit code of ``wait`` for an ended run; a cause that is no other kind of stop is a health rule's."""
    if state == "finished":
        return 0
    if state == "failed":
        return 100
    if state == "gave_up":
        return 106
    if cause == "user":
        return 103
    if cause in LIMITS:
        return 105
    if cause == "preempted":
        return 107
    return 104


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a healthy run looks like: ``steps`` planned, ``interval`` steps between two progress lines."""

    steps: int | None = None
    interval: int = 1
    last_step: int | None = None

    def reached(self) -> bool:
        """Say whether the planned end was reached: the last step is within one logging interval of the plan."""
        if self.steps is None or self.last_step is None:
            return False
        return self.last_step >= self.steps - max(1, min(self.interval, self.steps - 1))

    def complete(self) -> bool:
        """Say whether the very last step (counted from 0 or from 1) was reached: a stop came too late to matter."""
        return self.steps is not None and self.last_step is not None and self.last_step >= self.steps - 1


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """A state with its own facts: an ended run has a cause and a sentence, a stopping one the order it obeys.

    ``asked`` says that the user has asked for the end already: from then on another request means impatience.
    """

    state: State = "pending"
    attempt: int = 0
    order: StopOrder | None = None
    asked: bool = False
    cause: str | None = None
    cause_text: str | None = None
    exit: Exit | None = None

    @property
    def ended(self) -> bool:
        """Say whether nothing more will happen."""
        return self.state in ENDED


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Action: fork attempt ``attempt``."""

    attempt: int


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Action: begin the ladder, write the order down first."""

    order: StopOrder


class Climb(msgspec.Struct, frozen=True, kw_only=True):
    """Action: climb one rung now (a second stop by the user), or kill at once."""

    now: bool = False


class Reorder(msgspec.Struct, frozen=True, kw_only=True):
    """Action: the ladder goes on, but the order on disk changes (a NaN after a stop was asked: save no more)."""

    order: StopOrder


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Action: the run is over; write the last facts."""

    state: str
    cause: str


Action = Start | Stop | Climb | Reorder | End


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A new state and what is to be done, in this order."""

    state: RunState
    actions: tuple[Action, ...] = ()


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the supervisor owns the run and nothing has been started yet."""


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the command of attempt ``attempt`` has been executed."""

    attempt: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the command ended, and its tree is gone. ``target`` is the training process below a wrapper, if known."""

    exit: Exit
    target: Exit | None = None
    started: bool = True


class Rebooted(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the machine was started anew while the run was not yet over."""


Event = Launched | Alive | Ended | Rebooted | Verdict | Request


def move(state: RunState, to: State, **facts: object) -> RunState:
    """Return ``state`` moved on to ``to`` with its facts; TransitionError if the table does not admit it."""
    reopened = state.state == "failed" and state.cause != "host_rebooted"
    if to not in TRANSITIONS[state.state] or reopened:
        raise TransitionError(f"a run cannot go from {state.state} ({state.cause}) to {to}")
    return msgspec.structs.replace(state, state=to, **facts)


def stopping_again(state: RunState, order: StopOrder) -> RunState:
    """Return the state of a run whose stop an earlier supervisor has begun."""
    return move(state, "stopping", order=order)


def decide(state: RunState, event: Event, plan: Plan) -> Decision:
    """Return what follows from one event. An event that changes nothing returns the same state and no action."""
    if state.ended:
        return Decision(state=state)
    if isinstance(event, Launched):
        return _launched(state)
    if isinstance(event, Alive):
        if state.state == "starting":
            return Decision(state=move(state, "running"))
        return Decision(state=state)
    if isinstance(event, Verdict):
        return _judged(state, event)
    if isinstance(event, Request):
        return _asked(state, event)
    if isinstance(event, Rebooted):
        return _end(state, "failed", "host_rebooted", "the machine was started anew while the run was going on")
    return _exited(state, event, plan)


def _launched(state: RunState) -> Decision:
    if state.state != "pending":
        return Decision(state=state)
    attempt = state.attempt + 1
    return Decision(state=move(state, "starting", attempt=attempt), actions=(Start(attempt=attempt),))


def _judged(state: RunState, verdict: Verdict) -> Decision:
    if verdict.action not in ("stop", "terminate"):
        return Decision(state=state)
    save = verdict.action == "stop"
    order = StopOrder(cause=verdict.rule, save=save, at=verdict.at or 0.0, text=verdict.text)
    if state.state == "stopping":
        if not save and state.order is not None and state.order.save:
            # The reason why the run ends stays the first one; what changes is that the weights are not worth saving.
            kept = msgspec.structs.replace(state.order, save=False)
            return Decision(state=msgspec.structs.replace(state, order=kept), actions=(Reorder(order=kept),))
        return Decision(state=state)
    return _stop(state, order)


def _asked(state: RunState, request: Request) -> Decision:
    asked = state.asked or request.by == "user"
    if state.state == "stopping" and state.order is not None:
        known = msgspec.structs.replace(state, asked=asked)
        if request.now:
            order = msgspec.structs.replace(state.order, save=False, now=True)
            known = msgspec.structs.replace(known, order=order)
            return Decision(state=known, actions=(Reorder(order=order), Climb(now=True)))
        if request.by == "user" and state.asked:
            return Decision(state=known, actions=(Climb(),))
        # A scheduler repeats its signal, and a user who joins a stop that a rule began is not impatient yet.
        return Decision(state=known)
    text = "stopped on request" if request.by == "user" else f"stopped on request of the {request.by}"
    order = StopOrder(cause="user", save=not request.now, at=request.at or 0.0, text=text, now=request.now)
    return _stop(msgspec.structs.replace(state, asked=asked), order)


def _stop(state: RunState, order: StopOrder) -> Decision:
    if state.state in ("pending", "backoff"):
        return _end(state, "stopped", order.cause, order.text)
    return Decision(state=move(state, "stopping", order=order), actions=(Stop(order=order),))


def _end(state: RunState, to: State, cause: str, text: str, exit_: Exit | None = None) -> Decision:
    ended = move(state, to, cause=cause, cause_text=text, exit=exit_ or state.exit)
    return Decision(state=ended, actions=(End(state=to, cause=cause),))


def _exited(state: RunState, event: Ended, plan: Plan) -> Decision:
    if state.state == "backoff" or (state.state == "pending" and event.started):
        return Decision(state=state)  # no attempt is going on: an end that was told before is told again
    how = event.exit
    done = plan.reached()
    if state.state == "stopping" and state.order is not None:
        too_late = state.order.cause == "user" or state.order.cause in LIMITS
        if too_late and plan.complete() and how.exit_code == 0:
            return _end(state, "finished", "completed", f"reached step {plan.last_step} of {plan.steps}", how)
        return _end(state, "stopped", state.order.cause, state.order.text, how)
    if not event.started:
        return _end(state, "failed", "usage", how.text or "the command could not be executed", how)
    if how.exit_code == 0:
        return _ended_well(state, event, plan)
    if done:
        text = f"reached step {plan.last_step} of {plan.steps}, then {describe(how)}"
        return _end(state, "finished", "bad_teardown", text, how)
    cause, text = _failure(how, event.target)
    return _end(state, "failed", cause, text, how)


def _failure(how: Exit, target: Exit | None) -> tuple[str, str]:
    """Return cause and sentence of an end that was none of ours; a wrapper's code may stand for a training's signal."""
    if how.exit_code is not None and how.exit_code > SIGNAL_CODES and target is not None and target.signal is not None:
        cause, text = _failure(target, None)
        return cause, f"{describe(how)}: the training process below it {text}"
    if how.exit_code is None and how.signal is None:
        return "unknown_kill", how.text or "ended while nobody could learn its exit status"
    if how.signal == "SIGKILL":
        return "unknown_kill", (
            "was killed by SIGKILL from outside; "
            "the kernel's out-of-memory killer, another user or a scheduler may have done it"
        )
    return "crash", describe(how)


def _ended_well(state: RunState, event: Ended, plan: Plan) -> Decision:
    # `python train.py | tee log` and `sh -c 'train; true'` exit 0 whatever became of the training in them.
    target = event.target
    crash = target if target is not None and (target.signal is not None or target.exit_code not in (0, None)) else None
    if plan.reached():
        text = f"reached step {plan.last_step} of {plan.steps}"
        if crash is None:
            return _end(state, "finished", "completed", text, event.exit)
        text += f", then the training process below the command {describe(crash)}"
        return _end(state, "finished", "bad_teardown", text, event.exit)
    if crash is not None:
        text = f"the command exited 0, but the training process below it {describe(crash)}"
        return _end(state, "failed", "crash", text, event.exit)
    if plan.steps is not None:
        at = "before its first step" if plan.last_step is None else f"at step {plan.last_step}"
        return _end(state, "failed", "ended_early", f"exited 0 {at} of {plan.steps} planned", event.exit)
    return _end(state, "finished", "completed", "exited 0", event.exit)


def describe(how: Exit) -> str:
    """Return a clause for an exit: "exited with code 7", "was ended by SIGHUP (terminal closed)"."""
    if how.signal == "SIGHUP":
        return "was ended by SIGHUP (terminal closed)"
    if how.signal is not None:
        return f"was ended by {how.signal}"
    if how.exit_code is None:
        return "ended with an unknown status"
    return f"exited with code {how.exit_code}"
