"""``decide``: what to do about what happened to a run.

Pure: no clock, file or process. It returns a new state and the actions that somebody else carries out; which state may
follow which stands in ``states.py``. The restart policy is at the end: when a failed attempt is followed by another.
"""

from __future__ import annotations

import msgspec

from overnight.events import Exit, Request, StopOrder, Verdict
from overnight.exits.causes import Finding, classify, describe
from overnight.states import (
    FAILURES,
    LIMITS,
    Alive,
    BackOff,
    Climb,
    Decision,
    End,
    Ended,
    Event,
    Launched,
    Plan,
    Rebooted,
    Recovered,
    Reorder,
    Rollback,
    RunState,
    Start,
    State,
    Stop,
    Stranded,
    Waited,
    move,
)

MOST_TRIES = 3
"""So many attempts in a row may end without any of them coming further than the ones before; then more would not."""

LONGEST_BACKOFF_S = 300.0

NOT_BACK = "it was not brought back"
"""What is said of a run that a reboot has ended and that has nothing to go on from."""


def lost_with_the_machine(order: StopOrder) -> bool:
    """Say whether a stop that a reboot has interrupted was no reason for the run to end for good.

    Neither is a stall; nor what a scheduler asked for, for init signals everybody before it turns the machine off.
    """
    return goes_on(order) or order.cause == "host_rebooted" or (order.cause == "user" and order.by != "user")


def goes_on(order: StopOrder) -> bool:
    """Say whether a stop ends an attempt only, and not the run."""
    return order.cause == "stall" or order.rollback


NO_STOPS = ("host_rebooted", "hardware")
"""Whoever ended it, the machine had failed: another one may go on, this one would only fail again."""


def stopping_again(state: RunState, order: StopOrder) -> RunState:
    """Return the state of a run whose stop an earlier supervisor has begun."""
    return move(state, "stopping", order=order)


def decide(state: RunState, event: Event, plan: Plan) -> Decision:
    """Return what follows from one event. An event that changes nothing returns the same state and no action."""
    if isinstance(event, (Launched, Waited, Recovered)):
        return _due(state, event)
    if state.ended:
        return Decision(state=state)
    if isinstance(event, Alive):
        if state.state == "starting":
            return Decision(state=move(state, "running"))
        return Decision(state=state)
    if isinstance(event, Verdict):
        return _judged(state, event)
    if isinstance(event, Request):
        return _asked(state, event)
    if isinstance(event, Stranded):
        return _stranded(state, event)
    if isinstance(event, Rebooted):
        if state.order is not None and not lost_with_the_machine(state.order):
            return _end(
                state, "stopped", state.order.cause, f"{state.order.text}; the machine was started anew meanwhile"
            )
        return _end(state, "failed", "host_rebooted", "the machine was started anew while the run was going on")
    return _exited(state, event, plan)


def _due(state: RunState, event: Launched | Waited | Recovered) -> Decision:
    """Start an attempt, if the run waits for just that."""
    if isinstance(event, Recovered):
        due = state.state == "failed" and state.cause == "host_rebooted"
    else:
        due = state.state == ("pending" if isinstance(event, Launched) else "backoff")
    return _start(state) if due else Decision(state=state)


def _start(state: RunState) -> Decision:
    attempt = state.attempt + 1
    begun = move(state, "starting", attempt=attempt, order=None, exit=None, cause=None, cause_text=None)
    return Decision(state=begun, actions=(Start(attempt=attempt),))


def _judged(state: RunState, verdict: Verdict) -> Decision:
    if verdict.action not in ("stop", "terminate", "rollback"):
        return Decision(state=state)
    save = verdict.action == "stop"
    place = (verdict.source, verdict.offset, verdict.part) if verdict.offset >= 0 else None
    back = verdict.action == "rollback"
    order = StopOrder(
        cause=verdict.rule, save=save, at=verdict.at or 0.0, text=verdict.text, place=place, rollback=back,
        onset=verdict.evidence.get("onset", verdict.step) if back else None,
    )  # fmt: skip
    if state.state == "stopping" and state.order is not None:
        if place is not None and (state.order.cause, state.order.place) == (order.cause, place):
            return _told_again(state, state.order, order)
        if state.order.cause == "stall" and order.cause != "stall":
            return _overrule(state, msgspec.structs.replace(order, save=save and state.order.save))
        if state.order.rollback and order.cause in LIMITS:
            return _overrule(state, msgspec.structs.replace(order, save=False))
        if not save and state.order.save:
            # The reason why the run ends stays the first one; what changes is that the weights are not worth saving.
            kept = msgspec.structs.replace(state.order, save=False)
            return Decision(state=msgspec.structs.replace(state, order=kept), actions=(Reorder(order=kept),))
        return Decision(state=state)
    return _stop(state, order)


def _told_again(state: RunState, order: StopOrder, again: StopOrder) -> Decision:
    """Take over what is known by now of the record that has ended the run: a NaN does not wait for its step."""
    if order.text == again.text:
        return Decision(state=state)
    kept = msgspec.structs.replace(order, text=again.text, onset=again.onset if order.rollback else None)
    return Decision(state=msgspec.structs.replace(state, order=kept), actions=(Reorder(order=kept),))


def _asked(state: RunState, request: Request) -> Decision:
    asked = state.asked or request.by == "user"
    cause, text = "user", "stopped on request" + ("" if request.by == "user" else f" of the {request.by}")
    if request.by == "shutdown":  # somebody turned the machine off, but nobody wanted the run to end for good
        cause, text = "host_rebooted", "the machine was shut down while the run was going on"
    if state.state == "stopping" and state.order is not None:
        known = msgspec.structs.replace(state, asked=asked)
        if goes_on(state.order) and not request.now:
            order = msgspec.structs.replace(state.order, cause=cause, text=text, by=request.by, rollback=False)
            return _overrule(known, order)
        if request.now:
            if not goes_on(state.order):
                cause, text = state.order.cause, state.order.text
            order = msgspec.structs.replace(state.order, save=False, now=True, cause=cause, text=text, rollback=False)
            known = msgspec.structs.replace(known, order=order)
            return Decision(state=known, actions=(Reorder(order=order), Climb(now=True)))
        if request.by == "user" and state.asked:
            return Decision(state=known, actions=(Climb(),))
        # A scheduler repeats its signal, and a user who joins a stop that a rule began is not impatient yet.
        return Decision(state=known)
    order = StopOrder(
        cause=cause, save=not request.now, at=request.at or 0.0, text=text, now=request.now, by=request.by
    )
    return _stop(msgspec.structs.replace(state, asked=asked), order)


def _stop(state: RunState, order: StopOrder) -> Decision:
    if state.state in ("pending", "backoff"):
        return _end(state, "failed" if order.cause in NO_STOPS else "stopped", order.cause, order.text)
    return Decision(state=move(state, "stopping", order=order), actions=(Stop(order=order),))


def _overrule(state: RunState, order: StopOrder) -> Decision:
    """An attempt that hangs is being ended, to be started again: now there is a reason for not doing that."""
    return Decision(state=msgspec.structs.replace(state, order=order), actions=(Reorder(order=order),))


def _end(
    state: RunState, to: State, cause: str, text: str, exit_: Exit | None = None, *, hint: str | None = None
) -> Decision:
    if state.state == "backoff":  # what was ordered last was not carried out, and is not used up
        again = "restarts" if state.cause in FAILURES else "rollbacks"
        state = msgspec.structs.replace(state, **{again: max(0, getattr(state, again) - 1)})
    ended = move(state, to, cause=cause, cause_text=text, exit=exit_ or state.exit)
    return Decision(state=ended, actions=(End(state=to, cause=cause, hint=hint),))


def _exited(state: RunState, event: Ended, plan: Plan) -> Decision:
    if state.state == "backoff" or (state.state == "pending" and event.started):
        return Decision(state=state)  # no attempt is going on: an end that was told before is told again
    how = event.exit
    if state.state == "stopping" and state.order is not None:
        return _stopped(state, state.order, event, plan)
    if not event.started:
        return _end(state, "failed", "usage", how.text or "the command could not be executed", how)
    if how.exit_code == 0:
        return _ended_well(state, event, plan)
    if plan.reached():
        text = f"reached step {plan.last_step} of {plan.steps}, then {describe(how)}"
        return _end(state, "finished", "bad_teardown", text, how)
    return _again(state, event, plan, event.finding or classify(how, event.target, ()), otherwise="failed")


def _stopped(state: RunState, order: StopOrder, event: Ended, plan: Plan) -> Decision:
    too_late = order.cause in ("user", "host_rebooted") or order.cause in LIMITS
    if too_late and plan.complete() and event.exit.exit_code == 0:
        return _end(state, "finished", "completed", f"reached step {plan.last_step} of {plan.steps}", event.exit)
    found = event.finding
    if goes_on(order) and found is not None and found.cause in NO_STOPS and not plan.reached():
        return _end(state, "failed", found.cause, found.text, event.exit)
    if order.rollback:
        return _back(state, order, event, plan)
    if order.cause == "stall":
        if plan.reached():
            return _end(state, "finished", "bad_teardown", order.text, event.exit)
        stalled = Finding(cause="stall", text=order.text, restartable=True)
        return _again(state, event, plan, stalled, otherwise="stopped")
    to: State = "failed" if order.cause in NO_STOPS else "stopped"
    return _end(state, to, order.cause, order.text, event.exit)


def _ended_well(state: RunState, event: Ended, plan: Plan) -> Decision:
    # `python train.py | tee log` and `sh -c 'train; true'` exit 0 whatever became of the training in them.
    target = event.target
    crash = target if target is not None and target.bad else None
    if plan.reached():
        text = f"reached step {plan.last_step} of {plan.steps}"
        if crash is None:
            return _end(state, "finished", "completed", text, event.exit)
        text += f", then the training process below the command {describe(crash)}"
        return _end(state, "finished", "bad_teardown", text, event.exit)
    if crash is not None:
        found = event.finding or classify(crash, None, ())
        text = f"the command exited 0, but the training process below it {describe(crash)}"
        if found.text != describe(crash):
            text += f": {found.text}"
        return _again(state, event, plan, msgspec.structs.replace(found, text=text), otherwise="failed")
    if plan.steps is not None and not plan.folded:
        early = Finding(
            cause="ended_early", text=_early_words(state, event, plan), restartable=plan.last_step is not None
        )
        return _again(state, event, plan, early, otherwise="failed")
    text = "exited 0"
    if plan.steps is not None:
        text += f"; its steps went back on the way, so nobody can tell whether all {plan.steps} were made"
    return _end(state, "finished", "completed", text, event.exit)


def _early_words(state: RunState, event: Ended, plan: Plan) -> str:
    if plan.last_step is not None:
        return f"exited 0 at step {plan.last_step} of {plan.steps} planned"
    if state.reached is not None or event.reached is not None:  # another attempt's lines were read
        return f"exited 0 before its first step of {plan.steps} planned"
    return (
        f"exited 0, but no progress line with a step was read, so nobody knows how far it came of {plan.steps} planned "
        "steps: see `overnight read` and `--pattern`"
    )


def _back(state: RunState, order: StopOrder, event: Ended, plan: Plan) -> Decision:
    """Let the run go on from before the trouble, as often as that is allowed; whether it can is found out meanwhile."""
    if state.rollbacks >= plan.rollbacks:
        used = "no rollback is allowed" if not plan.rollbacks else f"{counted(state.rollbacks, 'rollback')} used"
        return _end(state, "stopped", order.cause, f"{order.text}; {used}", event.exit)
    onset, last = order.onset, plan.last_step
    before = None if onset is None else max(0, onset - plan.rollback_steps) + 1
    skip = None if before is None or last is None else (min(before, last), last)
    back = Rollback(rule=order.cause, onset=onset, before=before, last=last, skip=skip)
    waiting = move(
        state, "backoff", rollbacks=state.rollbacks + 1, order=None, cause=order.cause, cause_text=order.text,
        exit=event.exit,
    )  # fmt: skip
    return Decision(
        state=waiting, actions=(BackOff(wait_s=plan.backoff_s, cause=order.cause, text=order.text, rollback=back),)
    )


def _stranded(state: RunState, event: Stranded) -> Decision:
    """End a run that has nothing to go on from."""
    if state.state != "backoff":
        return Decision(state=state)
    text = f"{state.cause_text}; {event.text}"
    rule = state.cause not in FAILURES
    return _end(state, "stopped" if rule else "failed", state.cause or "crash", text)


def _again(state: RunState, event: Ended, plan: Plan, found: Finding, *, otherwise: State) -> Decision:
    """Start the command again after a back-off, if that is allowed and can help; else end the run."""
    further = event.reached is not None and (state.reached is None or event.reached > state.reached)
    # Who could not load what it was given has tried nothing: the next one gets something else.
    another = event.unloaded and event.elsewhere
    tries = 1 if further else state.tries + (not another)
    if another:
        found = msgspec.structs.replace(found, restartable=True)
    state = msgspec.structs.replace(
        state, tries=tries, reached=event.reached if further else state.reached, exit=event.exit
    )
    if plan.restarts == 0:
        looks_mendable = found.restartable and plan.last_step is not None and otherwise == "failed"
        return _end(state, otherwise, found.cause, found.text, event.exit, hint=HINT if looks_mendable else None)
    if not found.restartable:
        return _end(state, otherwise, found.cause, f"{found.text}; starting it again would not mend that", event.exit)
    if tries >= MOST_TRIES:
        return _end(state, "gave_up", found.cause, f"{_no_further(state, tries)}: {found.text}", event.exit)
    if state.restarts >= plan.restarts:
        text = f"{found.text}; {counted(state.restarts, 'restart')} used, no more allowed"
        return _end(state, "gave_up", found.cause, text, event.exit)
    longest_s = max(LONGEST_BACKOFF_S, plan.backoff_s)
    wait_s = min(longest_s, plan.backoff_s * 2 ** max(0, tries - 1)) * (0.75 + 0.5 * event.luck)
    waiting = move(state, "backoff", restarts=state.restarts + 1, order=None, cause=found.cause, cause_text=found.text)
    return Decision(state=waiting, actions=(BackOff(wait_s=wait_s, cause=found.cause, text=found.text),))


HINT = "a restart may mend this: with --restarts 3 it would have been started again"


def _no_further(state: RunState, tries: int) -> str:
    if state.reached is None:
        return f"{tries} attempts in a row came to no step at all"
    return f"{tries} attempts in a row came no further than step {state.reached[1]}"


def counted(number: int, what: str) -> str:
    """Return "1 restart", "2 restarts"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
