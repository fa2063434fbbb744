"""The state table, every (state, event) pair, the exit codes, and the stories of design: stops, crashes, ends."""

from __future__ import annotations

from itertools import product
from typing import get_args

import msgspec
import pytest

from overnight.events import Exit, Request, StopOrder, Verdict
from overnight.exits.causes import describe
from overnight.lifecycle import decide
from overnight.states import (
    ENDED,
    FAILURES,
    LIMITS,
    TRANSITIONS,
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
    RunState,
    Start,
    State,
    Stop,
    TransitionError,
    Waited,
    exit_code,
    move,
)

STATES: tuple[State, ...] = get_args(State)

ADMITTED = {
    ("pending", "starting"),
    ("pending", "stopped"),
    ("pending", "failed"),
    ("starting", "running"),
    ("starting", "stopping"),
    ("starting", "backoff"),
    ("starting", "finished"),
    ("starting", "failed"),
    ("starting", "gave_up"),
    ("running", "stopping"),
    ("running", "backoff"),
    ("running", "finished"),
    ("running", "failed"),
    ("running", "gave_up"),
    ("stopping", "backoff"),
    ("stopping", "finished"),
    ("stopping", "stopped"),
    ("stopping", "failed"),
    ("stopping", "gave_up"),
    ("backoff", "starting"),
    ("backoff", "stopped"),
    ("backoff", "failed"),
    ("backoff", "gave_up"),
    ("failed", "starting"),
}

NAN = Verdict(rule="nonfinite", severity="critical", action="terminate", text="loss is NaN at step 21", step=21, at=5.0)
LIMIT = Verdict(rule="wall_clock", severity="warn", action="stop", text="wall-clock limit of 8 h reached", at=6.0)
ALERT = Verdict(rule="divergence", severity="warn", action="alert", text="loss 25 is above 20 at step 1")
NOTE = Verdict(rule="nonfinite", severity="note", action="note", text="loss reads NaN")
USER = Request(kind="stop", by="user", at=1.0)
SCHEDULER = Request(kind="stop", by="scheduler", at=2.0)
NOW = Request(kind="stop", by="user", now=True, at=3.0)

EXITS = (
    Exit(exit_code=0),
    Exit(exit_code=7),
    Exit(signal="SIGSEGV"),
    Exit(signal="SIGKILL"),
    Exit(signal="SIGHUP"),
    Exit(),
)

EVENTS: tuple[Event, ...] = (
    Launched(),
    Alive(attempt=1),
    Rebooted(),
    Waited(),
    *(NAN, LIMIT, ALERT, NOTE, USER, SCHEDULER, NOW),
    *(
        Ended(exit=how, target=target, started=started)
        for how, target, started in product(EXITS, (None, *EXITS), (True, False))
    ),
)

PLANS = (
    Plan(),
    Plan(steps=100),
    Plan(steps=100, last_step=7),
    Plan(steps=100, last_step=100),
    Plan(restarts=1),
    Plan(steps=100, last_step=7, restarts=3),
)


def at(state: State, cause: str = "user", *, save: bool = True) -> RunState:
    """Return a run in ``state`` with the facts that belong to it."""
    order = (
        StopOrder(cause=cause, save=save, at=1.0, text="stopped on request", by="user") if state == "stopping" else None
    )
    return RunState(
        state=state, attempt=0 if state == "pending" else 1, order=order, cause=cause if state in ENDED else None
    )


def ended(state: RunState, how: Exit, plan: Plan | None = None, target: Exit | None = None) -> RunState:
    """Return what becomes of a run when its command ends."""
    return decide(state, Ended(exit=how, target=target), plan or Plan()).state


# ---- the table


@pytest.mark.parametrize(("old", "new"), list(product(STATES, STATES)))
def test_no_other_transition_exists(old: State, new: State) -> None:
    cause = "host_rebooted" if old == "failed" else "user"
    if (old, new) in ADMITTED:
        assert move(at(old, cause), new, cause_text="why").cause_text == "why"
    else:
        with pytest.raises(TransitionError, match=f"from {old} .* to {new}"):
            move(at(old, cause), new)


def test_the_table_names_every_state_and_only_states() -> None:
    assert set(TRANSITIONS) == set(STATES)
    assert set().union(*TRANSITIONS.values()) <= set(STATES)
    assert {state for state in STATES if RunState(state=state).ended} == ENDED


@pytest.mark.parametrize("cause", sorted(FAILURES - {"host_rebooted"}))
def test_only_a_rebooted_run_may_be_recovered(cause: str) -> None:
    with pytest.raises(TransitionError):
        move(at("failed", cause), "starting")


@pytest.mark.parametrize("state", STATES)
def test_every_event_in_every_state_leads_only_to_admitted_states(state: State) -> None:
    for event, plan in product(EVENTS, PLANS):
        for before in (at(state), at(state, "nonfinite", save=False)):
            decision = decide(before, event, plan)
            after = decision.state
            assert after.state == state or (state, after.state) in ADMITTED, (state, event, after)
            assert all(type(action) in (Start, Stop, Climb, Reorder, BackOff, End) for action in decision.actions)
            if after.state != state and after.ended:
                (action,) = decision.actions
                assert isinstance(action, End)
                assert (action.state, action.cause) == (after.state, after.cause)
                assert after.cause
                assert after.cause_text
            if after.state == "stopping":
                assert after.order is not None


@pytest.mark.parametrize("state", sorted(ENDED))
def test_an_ended_run_stays_as_it_is(state: State) -> None:
    for event in EVENTS:
        assert decide(at(state), event, Plan()) == Decision(state=at(state))


def test_acting_twice_on_an_end_is_harmless() -> None:
    for event in EVENTS:
        if isinstance(event, Ended):
            once = decide(at("running"), event, Plan())
            assert decide(once.state, event, Plan()) == Decision(state=once.state)
            assert decide(at("backoff"), event, Plan()) == Decision(state=at("backoff"))


# ---- exit codes


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        ("finished", "completed", 0),
        ("finished", "bad_teardown", 0),
        ("stopped", "user", 103),
        ("stopped", "nonfinite", 104),
        ("stopped", "divergence", 104),
        ("stopped", "collapse", 104),
        ("stopped", "stall", 104),
        ("stopped", "my_own_rule", 104),
        ("stopped", "wall_clock", 105),
        ("stopped", "cost", 105),
        ("stopped", "max_steps", 105),
        ("stopped", "until", 105),
        ("stopped", "preempted", 107),
        *(("failed", cause, 100) for cause in sorted(FAILURES)),
        ("gave_up", "crash", 106),
        ("gave_up", "user", 106),
    ],
)
def test_exit_codes_of_wait(state: str, cause: str, code: int) -> None:
    assert exit_code(state, cause) == code


def test_causes_are_those_of_the_docs() -> None:
    limits = {"wall_clock", "cost", "max_steps", "until"}
    failures = {
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
    assert limits == LIMITS
    assert failures == FAILURES


# ---- the planned end


@pytest.mark.parametrize(
    ("steps", "interval", "last_step", "reached"),
    [
        (100, 1, 98, False),
        (100, 1, 99, True),
        (100, 1, 100, True),
        (100, 1, 101, True),
        (100, 10, 89, False),
        (100, 10, 90, True),
        (100, 0, 98, False),
        (100, 0, 99, True),
        (100, 1, None, False),
        (None, 1, 99, False),
    ],
)
def test_planned_end(steps: int | None, interval: int, last_step: int | None, reached: bool) -> None:
    assert Plan(steps=steps, interval=interval, last_step=last_step).reached() is reached


# ---- the way of a healthy run


def test_a_healthy_night() -> None:
    decision = decide(RunState(), Launched(), Plan())
    assert decision == Decision(state=RunState(state="starting", attempt=1), actions=(Start(attempt=1),))
    running = decide(decision.state, Alive(attempt=1), Plan()).state
    assert running.state == "running"
    assert decide(running, Alive(attempt=1), Plan()) == Decision(state=running)
    assert decide(running, Launched(), Plan()) == Decision(state=running)
    plan = Plan(steps=100, last_step=100)
    over = decide(running, Ended(exit=Exit(exit_code=0)), plan)
    assert over.actions == (End(state="finished", cause="completed"),)
    assert over.state.cause_text == "reached step 100 of 100"
    assert over.state.exit == Exit(exit_code=0)


def test_exit_zero_without_a_plan_is_the_end() -> None:
    over = ended(at("running"), Exit(exit_code=0))
    assert (over.state, over.cause, over.cause_text) == ("finished", "completed", "exited 0")


def test_alerts_and_notes_change_nothing() -> None:
    for event in (ALERT, NOTE):
        assert decide(at("running"), event, Plan()) == Decision(state=at("running"))


# ---- how a run is stopped


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_nan_stops_without_a_save(state: State) -> None:
    decision = decide(at(state), NAN, Plan())
    order = StopOrder(cause="nonfinite", save=False, at=5.0, text="loss is NaN at step 21")
    assert decision.actions == (Stop(order=order),)
    assert (decision.state.state, decision.state.order) == ("stopping", order)
    over = ended(decision.state, Exit(signal="SIGKILL"))
    assert (over.state, over.cause, over.cause_text) == ("stopped", "nonfinite", "loss is NaN at step 21")
    assert over.exit == Exit(signal="SIGKILL")


def test_a_nan_that_waited_for_its_step_is_told_with_it_in_the_end() -> None:
    early = msgspec.structs.replace(NAN, step=None, text="loss is NaN on a line without a step", offset=400)
    whole = msgspec.structs.replace(NAN, offset=400)
    stopping = decide(at("running"), early, Plan()).state
    again = decide(stopping, whole, Plan())
    assert again.state.order is not None
    assert again.state.order.text == "loss is NaN at step 21"
    assert again.actions == (Reorder(order=again.state.order),)
    assert decide(again.state, whole, Plan()) == Decision(state=again.state)
    other = msgspec.structs.replace(whole, offset=500, text="loss is NaN at step 22")
    assert decide(again.state, other, Plan()) == Decision(state=again.state)  # the first one has ended it


def test_a_limit_stops_with_a_save() -> None:
    order = decide(at("running"), LIMIT, Plan()).state.order
    assert order is not None
    assert (order.cause, order.save) == ("wall_clock", True)


def test_the_user_stops_with_a_save() -> None:
    decision = decide(at("running"), USER, Plan())
    assert decision.state.order == StopOrder(cause="user", save=True, at=1.0, text="stopped on request", by="user")
    over = ended(decision.state, Exit(exit_code=0))
    assert (over.state, over.cause, exit_code(over.state, over.cause)) == ("stopped", "user", 103)


def test_the_schedulers_stop_says_so() -> None:
    order = decide(at("running"), SCHEDULER, Plan()).state.order
    text = "stopped on request of the scheduler"
    assert order == StopOrder(cause="user", save=True, at=2.0, text=text, by="scheduler")


def test_now_asks_for_no_save_and_kills_at_once() -> None:
    decision = decide(at("running"), NOW, Plan())
    asked = StopOrder(cause="user", save=False, at=3.0, text="stopped on request", now=True, by="user")
    assert decision.state.order == asked
    again = decide(at("stopping"), NOW, Plan())
    order = StopOrder(cause="user", save=False, at=1.0, text="stopped on request", now=True, by="user")
    assert again.actions == (Reorder(order=order), Climb(now=True))
    assert again.state.order == order


def test_a_second_stop_climbs_and_a_repeated_signal_does_not() -> None:
    stopping = decide(at("running"), USER, Plan()).state
    assert decide(stopping, USER, Plan()) == Decision(state=stopping, actions=(Climb(),))
    assert decide(stopping, SCHEDULER, Plan()) == Decision(state=stopping)


def test_the_first_stop_of_a_user_who_joins_a_rules_or_a_schedulers_stop_does_not_climb() -> None:
    for first in (LIMIT, SCHEDULER):
        joined = decide(decide(at("running"), first, Plan()).state, USER, Plan())
        assert joined.actions == ()
        assert joined.state.asked
        assert decide(joined.state, USER, Plan()).actions == (Climb(),)


@pytest.mark.parametrize(
    ("target", "cause", "words"),
    [
        (Exit(signal="SIGSEGV"), "crash", "below it was ended by SIGSEGV"),
        (Exit(signal="SIGKILL"), "unknown_kill", "below it was killed by SIGKILL"),
        (Exit(exit_code=3), "crash", "exited with code 139"),
        (None, "crash", "exited with code 139"),
    ],
)
def test_a_wrappers_code_stands_for_its_trainings_signal(target: Exit | None, cause: str, words: str) -> None:
    over = decide(at("running"), Ended(exit=Exit(exit_code=139), target=target), Plan()).state
    assert (over.state, over.cause) == ("failed", cause)
    assert words in (over.cause_text or "")
    assert over.exit == Exit(exit_code=139)


def test_a_log_that_prints_once_at_the_start_does_not_prove_the_end() -> None:
    assert not Plan(steps=10, interval=10, last_step=0).reached()


def test_a_nan_after_a_stop_forbids_the_save_and_keeps_the_reason() -> None:
    stopping = decide(at("running"), USER, Plan()).state
    decision = decide(stopping, NAN, Plan())
    order = StopOrder(cause="user", save=False, at=1.0, text="stopped on request", by="user")
    assert decision.actions == (Reorder(order=order),)
    assert decision.state.order == order
    assert decide(decision.state, NAN, Plan()) == Decision(state=decision.state)
    assert ended(decision.state, Exit(exit_code=0)).cause == "user"


def test_a_limit_after_a_stop_changes_nothing() -> None:
    for stopping in (at("stopping"), at("stopping", "nonfinite", save=False)):
        assert decide(stopping, LIMIT, Plan()) == Decision(state=stopping)


@pytest.mark.parametrize("state", ["pending", "backoff"])
def test_a_stop_while_nothing_lives_ends_the_run(state: State) -> None:
    decision = decide(at(state), USER, Plan())
    assert decision.actions == (End(state="stopped", cause="user"),)
    assert decision.state.cause_text == "stopped on request"


@pytest.mark.parametrize(
    ("how", "last_step", "state", "cause"),
    [
        (Exit(exit_code=0), 100, "finished", "completed"),
        (Exit(exit_code=0), 50, "stopped", "user"),
        (Exit(exit_code=1), 100, "stopped", "user"),
        (Exit(signal="SIGINT"), 50, "stopped", "user"),
    ],
)
def test_a_stop_that_met_the_planned_end(how: Exit, last_step: int, state: str, cause: str) -> None:
    over = ended(at("stopping"), how, Plan(steps=100, last_step=last_step))
    assert (over.state, over.cause) == (state, cause)


def test_a_sick_run_is_never_finished_by_its_last_step() -> None:
    over = ended(at("stopping", "nonfinite", save=False), Exit(exit_code=0), Plan(steps=100, last_step=100))
    assert (over.state, over.cause) == ("stopped", "nonfinite")


# ---- how a run ends by itself

CRASHED = Exit(signal="SIGSEGV")


@pytest.mark.parametrize("state", ["starting", "running"])
@pytest.mark.parametrize(
    ("how", "cause", "text"),
    [
        (Exit(exit_code=7), "crash", "exited with code 7"),
        (Exit(signal="SIGSEGV"), "crash", "was ended by SIGSEGV"),
        (Exit(signal="SIGHUP"), "crash", "was ended by SIGHUP (terminal closed)"),
        (Exit(signal="SIGKILL"), "unknown_kill", "killed by SIGKILL from outside"),
        (Exit(), "unknown_kill", "ended while nobody could learn its exit status"),
    ],
)
def test_failures(state: State, how: Exit, cause: str, text: str) -> None:
    over = ended(at(state), how, Plan(steps=100, last_step=7))
    assert (over.state, over.cause, over.exit) == ("failed", cause, how)
    assert text in (over.cause_text or "")
    assert exit_code(over.state, over.cause) == 100


def test_exit_zero_before_the_planned_end_is_a_failure() -> None:
    over = ended(at("running"), Exit(exit_code=0), Plan(steps=100, last_step=7))
    assert (over.state, over.cause) == ("failed", "ended_early")
    assert over.cause_text == "exited 0 at step 7 of 100 planned"


def test_an_early_end_without_a_step_says_that_nothing_was_read() -> None:
    """Nobody knows whether it came to its first step: the log of a bar that no reader reads has none."""
    over = ended(at("running"), Exit(exit_code=0), Plan(steps=100))
    assert (over.state, over.cause, exit_code(over.state, over.cause)) == ("failed", "ended_early", 100)
    for part in ("no progress line with a step was read", "how far it came of 100", "`overnight read`", "--pattern"):
        assert part in (over.cause_text or "")
    known = msgspec.structs.replace(at("running"), reached=(0.0, 40))  # by the attempt before
    assert (
        ended(known, Exit(exit_code=0), Plan(steps=100)).cause_text == "exited 0 before its first step of 100 planned"
    )


@pytest.mark.parametrize("how", [CRASHED, Exit(exit_code=1), Exit(signal="SIGKILL"), Exit()])
def test_a_crash_after_the_last_step_is_a_bad_teardown(how: Exit) -> None:
    over = ended(at("running"), how, Plan(steps=100, last_step=100))
    assert (over.state, over.cause, over.exit) == ("finished", "bad_teardown", how)
    assert over.cause_text == f"reached step 100 of 100, then {describe(how)}"


@pytest.mark.parametrize("target", [CRASHED, Exit(exit_code=1)])
def test_a_wrapper_that_exits_zero_does_not_hide_a_crash(target: Exit) -> None:
    over = ended(at("running"), Exit(exit_code=0), Plan(), target)
    assert (over.state, over.cause) == ("failed", "crash")
    assert describe(target) in (over.cause_text or "")
    late = ended(at("running"), Exit(exit_code=0), Plan(steps=100, last_step=99), target)
    assert (late.state, late.cause) == ("finished", "bad_teardown")
    assert describe(target) in (late.cause_text or "")


@pytest.mark.parametrize("target", [None, Exit(), Exit(exit_code=0)])
def test_a_target_of_which_no_ill_is_known_changes_nothing(target: Exit | None) -> None:
    assert ended(at("running"), Exit(exit_code=0), Plan(), target).cause == "completed"


@pytest.mark.parametrize("state", ["pending", "starting"])
def test_a_command_that_could_not_be_executed(state: State) -> None:
    how = Exit(exit_code=127, text="train.sh: not found")
    over = decide(at(state), Ended(exit=how, started=False), Plan()).state
    assert (over.state, over.cause, over.cause_text) == ("failed", "usage", "train.sh: not found")
    bare = decide(at(state), Ended(exit=Exit(exit_code=126), started=False), Plan()).state
    assert bare.cause_text == "the command could not be executed"


@pytest.mark.parametrize("state", ["pending", "starting", "running", "backoff"])
def test_a_reboot_fails_whatever_was_going_on(state: State) -> None:
    over = decide(at(state), Rebooted(), Plan()).state
    assert (over.state, over.cause) == ("failed", "host_rebooted")
    assert move(over, "starting").state == "starting"


def test_a_run_that_was_to_end_is_over_after_a_reboot() -> None:
    over = decide(at("stopping"), Rebooted(), Plan()).state
    assert (over.state, over.cause) == ("stopped", "user")
    assert decide(over, Recovered(), Plan()).actions == ()


@pytest.mark.parametrize("by", ["scheduler", "shutdown"])
def test_a_shutdown_is_no_reason_to_end_for_good(by: str) -> None:
    """Init signals everybody before it turns the machine off; it may look like a scheduler."""
    asked = decide(at("running"), Request(kind="stop", by=by, at=1.0), Plan()).state
    assert asked.order is not None
    assert asked.order.cause == ("host_rebooted" if by == "shutdown" else "user")
    over = decide(asked, Rebooted(), Plan()).state
    assert (over.state, over.cause) == ("failed", "host_rebooted")
    saved = decide(asked, Ended(exit=Exit(exit_code=0)), Plan()).state
    assert (saved.state, saved.cause) == (("failed", "host_rebooted") if by == "shutdown" else ("stopped", "user"))
    done = decide(asked, Ended(exit=Exit(exit_code=0)), Plan(steps=9, last_step=9)).state
    assert done.state == "finished"


def test_only_what_a_reboot_ended_is_recovered() -> None:
    lost = decide(msgspec.structs.replace(at("running"), restarts=2), Rebooted(), Plan()).state
    decision = decide(lost, Recovered(), Plan())
    assert decision.actions == (Start(attempt=2),)
    assert (decision.state.state, decision.state.restarts, decision.state.cause) == ("starting", 2, None)
    for state in STATES:
        assert state == "failed" or decide(at(state), Recovered(), Plan()).actions == ()
    assert decide(at("failed", "crash"), Recovered(), Plan()).actions == ()


def test_describe_knows_every_kind_of_exit() -> None:
    assert describe(Exit()) == "ended with an unknown status"
