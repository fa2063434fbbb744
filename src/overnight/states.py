"""The states of a run, the table of transitions between them, and the events and actions that decisions are made of.

Pure values. The table below is the only place that says which state may follow which; the docs draw their diagram from
it. What follows from an event is decided in ``lifecycle.py``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overnight.events import Exit, Request, StopOrder, Verdict
from overnight.exits.causes import Finding

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


Reached = tuple[float, int]
"""How far a run came: (epoch, step), since there are programs that count their steps anew in each epoch."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a healthy run looks like: ``steps`` planned, ``interval`` steps between two progress lines.

    ``folded`` says that the steps went back within the attempt: a program that counts anew in each epoch cannot be held
    to a number of steps. ``restarts`` are allowed in all, the first after ``backoff_s`` seconds; ``rollbacks`` beside
    them, each to a save at least ``rollback_steps`` before the trouble.
    """

    steps: int | None = None
    interval: int = 1
    last_step: int | None = None
    folded: bool = False
    restarts: int = 0
    backoff_s: float = 2.0
    rollbacks: int = 0
    rollback_steps: int = 0

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
    ``restarts`` and ``rollbacks`` were used, ``reached`` is how far it came, ``tries`` attempts in a row have come no
    further than that.
    """

    state: State = "pending"
    attempt: int = 0
    restarts: int = 0
    rollbacks: int = 0
    tries: int = 0
    reached: Reached | None = None
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


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run goes back to, and which steps are then left out.

    ``rule`` found trouble that began with step ``onset`` (None: nobody knows). The save to go on from is of a step
    below ``before``; ``last`` is the last step that was made. ``skip``: the first and the last step that the script is
    asked to leave out.
    """

    rule: str
    onset: int | None = None
    before: int | None = None
    last: int | None = None
    skip: tuple[int, int] | None = None


class BackOff(msgspec.Struct, frozen=True, kw_only=True):
    """Action: wait ``wait_s`` seconds, find the save to go on from, then tell ``Waited``, or ``Stranded``.

    ``cause`` and ``text`` say what ended the attempt.
    """

    wait_s: float
    cause: str
    text: str
    rollback: Rollback | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Action: the run is over; write the last facts. ``hint`` is a sentence for the user, if there is one."""

    state: str
    cause: str
    hint: str | None = None


Action = Start | Stop | Climb | Reorder | BackOff | End


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
    """Event: the command ended, and its tree is gone. ``target`` is the training process below a wrapper, if known.

    ``finding`` is what the log and the kernel say about an end that was not asked for, ``reached`` how far the run has
    come by now, ``luck`` a random number from 0 to 1 that spreads the restarts of several runs. ``unloaded``: it ended
    before its first step, and so could not load the save that it was given; ``elsewhere``: there is another one.
    """

    exit: Exit
    target: Exit | None = None
    started: bool = True
    finding: Finding | None = None
    reached: Reached | None = None
    luck: float = 0.5
    unloaded: bool = False
    elsewhere: bool = False


class Waited(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the back-off is over, and it is known where to go on."""


class Stranded(msgspec.Struct, frozen=True, kw_only=True):
    """Event: there is nothing to go on from; ``text`` says why, as the end of a sentence."""

    text: str


class Rebooted(msgspec.Struct, frozen=True, kw_only=True):
    """Event: the machine was started anew while the run was not yet over."""


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """Event: somebody wants a run back that a reboot has ended."""


Event = Launched | Alive | Ended | Waited | Stranded | Rebooted | Recovered | Verdict | Request


def move(state: RunState, to: State, **facts: object) -> RunState:
    """Return ``state`` moved on to ``to`` with its facts; TransitionError if the table does not admit it."""
    reopened = state.state == "failed" and state.cause != "host_rebooted"
    if to not in TRANSITIONS[state.state] or reopened:
        raise TransitionError(f"a run cannot go from {state.state} ({state.cause}) to {to}")
    return msgspec.structs.replace(state, state=to, **facts)
