"""The restart policy: what is started again, after how long, and when that is given up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overnight.events import Exit, Request, StopOrder, Verdict
from overnight.exits.causes import Finding
from overnight.lifecycle import HINT, LONGEST_BACKOFF_S, decide
from overnight.states import Alive, BackOff, Decision, End, Ended, Plan, Reached, Reorder, RunState, Start, Waited

CRASH = Finding(cause="crash", text="exited with code 7", restartable=True)
OOM = Finding(cause="out_of_memory_gpu", text="CUDA out of memory", restartable=True)
IMPORT = Finding(cause="import_error", text="no module named torhc", restartable=False)
STALL = Verdict(rule="stall", severity="critical", action="stop", text="no new step for 30 min", step=40, at=9.0)
RUNNING = RunState(state="running", attempt=1)


def crash(
    state: RunState, *, restarts: int = 3, reached: Reached | None = (0.0, 20), found: Finding = CRASH, **plan: Any
) -> Decision:
    """Return what follows when the command of ``state`` fails at ``reached``."""
    step = None if reached is None else reached[1]
    event = Ended(exit=Exit(exit_code=7), finding=found, reached=reached, luck=0.5)
    return decide(state, event, Plan(**{"restarts": restarts, "last_step": step, **plan}))


def go_on(state: RunState) -> RunState:
    """Return the state of the next attempt once it runs."""
    decision = decide(state, Waited(), Plan())
    assert decision.actions == (Start(attempt=state.attempt + 1),)
    return decide(decision.state, Alive(attempt=state.attempt + 1), Plan()).state


def test_a_crash_is_followed_by_a_back_off_and_another_attempt() -> None:
    decision = crash(RUNNING, backoff_s=4.0)
    assert decision.actions == (BackOff(wait_s=4.0, cause="crash", text="exited with code 7"),)
    assert (decision.state.state, decision.state.cause, decision.state.restarts) == ("backoff", "crash", 1)
    again = go_on(decision.state)
    assert (again.state, again.attempt, again.cause, again.exit) == ("running", 2, None, None)


def test_the_same_step_three_times_is_given_up() -> None:
    state = RUNNING
    for expected_s in (2.0, 4.0):
        decision = crash(state, restarts=50, found=OOM)
        (action,) = decision.actions
        assert isinstance(action, BackOff)
        assert action.wait_s == expected_s
        state = go_on(decision.state)
    over = crash(state, restarts=50, found=OOM).state
    assert (over.state, over.cause) == ("gave_up", "out_of_memory_gpu")
    assert over.cause_text == "3 attempts in a row came no further than step 20: CUDA out of memory"


def test_attempts_that_come_to_no_step_are_given_up_after_three() -> None:
    state = RUNNING
    for _ in range(2):
        state = go_on(crash(state, reached=None).state)
    over = crash(state, reached=None).state
    assert (over.state, over.cause_text) == (
        "gave_up",
        "3 attempts in a row came to no step at all: exited with code 7",
    )


def test_an_attempt_that_comes_further_starts_the_count_and_the_back_off_anew() -> None:
    state = RUNNING
    waits = []
    for step in (20, 20, 30, 30, 40):
        decision = crash(state, restarts=9, reached=(0.0, step))
        (action,) = decision.actions
        assert isinstance(action, BackOff)
        waits.append(action.wait_s)
        state = go_on(decision.state)
    assert waits == [2.0, 4.0, 2.0, 4.0, 2.0]
    assert state.restarts == 5


def test_a_later_epoch_is_further_though_its_steps_begin_anew() -> None:
    state = RUNNING
    for epoch in (1.0, 2.0, 3.0, 4.0):
        decision = crash(state, restarts=9, reached=(epoch, 99))
        assert decision.state.tries == 1
        state = go_on(decision.state)


def test_the_budget_is_spent() -> None:
    state = go_on(crash(RUNNING, restarts=1).state)
    over = crash(state, restarts=1, reached=(0.0, 30)).state
    assert (over.state, over.cause) == ("gave_up", "crash")
    assert over.cause_text == "exited with code 7; 1 restart used, no more allowed"


def test_a_budget_that_was_raised_meanwhile_counts() -> None:
    state = go_on(crash(RUNNING, restarts=1).state)
    assert crash(state, restarts=2, reached=(0.0, 30)).state.state == "backoff"


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_the_back_off_is_spread_and_never_longer_than_it_may_be(luck: float) -> None:
    state = msgspec.structs.replace(RUNNING, tries=1, reached=(0.0, 20))
    event = Ended(exit=Exit(exit_code=7), finding=CRASH, reached=(0.0, 20), luck=luck)
    (action,) = decide(state, event, Plan(restarts=9, backoff_s=1000.0)).actions
    assert isinstance(action, BackOff)
    assert action.wait_s == 1000.0 * (0.75 + luck / 2)
    (action,) = decide(state, event, Plan(restarts=9, backoff_s=200.0)).actions
    assert isinstance(action, BackOff)
    assert action.wait_s == LONGEST_BACKOFF_S * (0.75 + luck / 2)


def test_what_a_restart_cannot_mend_is_not_started_again() -> None:
    over = crash(RUNNING, found=IMPORT, reached=None).state
    assert (over.state, over.cause) == ("failed", "import_error")
    assert over.cause_text == "no module named torhc; starting it again would not mend that"


def test_a_command_that_could_not_be_executed_is_not_started_again() -> None:
    over = decide(RUNNING, Ended(exit=Exit(exit_code=127, text="not found"), started=False), Plan(restarts=3)).state
    assert (over.state, over.cause) == ("failed", "usage")


def test_finished_runs_stay_finished() -> None:
    done = decide(RUNNING, Ended(exit=Exit(exit_code=0)), Plan(restarts=3)).state
    assert done.state == "finished"
    plan = Plan(steps=20, last_step=20, restarts=3)
    torn = decide(RUNNING, Ended(exit=Exit(signal="SIGSEGV"), finding=CRASH, reached=(0.0, 20)), plan).state
    assert (torn.state, torn.cause) == ("finished", "bad_teardown")


def test_without_restarts_a_crash_in_the_middle_comes_with_a_hint() -> None:
    (action,) = crash(RUNNING, restarts=0).actions
    assert action == End(state="failed", cause="crash", hint=HINT)
    (action,) = crash(RUNNING, restarts=0, reached=None).actions
    assert action == End(state="failed", cause="crash")  # before its first step it would only do that again
    (action,) = crash(RUNNING, restarts=0, found=IMPORT).actions
    assert action == End(state="failed", cause="import_error")


def test_an_early_end_is_started_again() -> None:
    plan = Plan(steps=100, last_step=20, restarts=3)
    waiting = decide(RUNNING, Ended(exit=Exit(exit_code=0), reached=(0.0, 20)), plan).state
    assert (waiting.state, waiting.cause) == ("backoff", "ended_early")


# ---- stalls


def stalled() -> RunState:
    """Return a run that is being ended because it hangs."""
    decision = decide(RUNNING, STALL, Plan(restarts=3))
    assert decision.state.order == StopOrder(cause="stall", save=True, at=9.0, text=STALL.text)
    return decision.state


def test_a_stall_is_started_again_while_there_is_budget() -> None:
    killed = Ended(exit=Exit(signal="SIGKILL"), reached=(0.0, 40), luck=0.5)
    waiting = decide(stalled(), killed, Plan(restarts=3, last_step=40)).state
    assert (waiting.state, waiting.cause, waiting.order) == ("backoff", "stall", None)
    over = decide(stalled(), killed, Plan(last_step=40)).state
    assert (over.state, over.cause) == ("stopped", "stall")
    spent = msgspec.structs.replace(stalled(), restarts=3)
    over = decide(spent, killed, Plan(restarts=3, last_step=40)).state
    assert (over.state, over.cause) == ("gave_up", "stall")


def test_a_hang_after_the_last_step_is_a_bad_teardown() -> None:
    over = decide(stalled(), Ended(exit=Exit(signal="SIGKILL")), Plan(steps=40, last_step=40, restarts=3)).state
    assert (over.state, over.cause) == ("finished", "bad_teardown")


@pytest.mark.parametrize("now", [False, True])
def test_a_person_who_stops_a_stalled_run_means_it(now: bool) -> None:
    decision = decide(stalled(), Request(kind="stop", at=10.0, now=now), Plan(restarts=3))
    assert decision.state.order is not None
    assert decision.state.order.cause == "user"
    assert isinstance(decision.actions[0], Reorder)
    over = decide(decision.state, Ended(exit=Exit(signal="SIGKILL"), reached=(0.0, 40)), Plan(restarts=3)).state
    assert (over.state, over.cause) == ("stopped", "user")


def test_a_shutdown_in_the_middle_of_that_is_no_users_wish() -> None:
    down = decide(stalled(), Request(kind="stop", by="shutdown", at=10.0), Plan(restarts=3)).state
    over = decide(down, Ended(exit=Exit(signal="SIGTERM")), Plan(restarts=3)).state
    assert (over.state, over.cause) == ("failed", "host_rebooted")


def test_a_nan_in_the_last_lines_of_a_stalled_run_is_no_reason_to_start_it_again() -> None:
    nan = Verdict(rule="nonfinite", severity="critical", action="terminate", text="loss is NaN", step=41, at=10.0)
    state = decide(stalled(), nan, Plan(restarts=3)).state
    assert state.order == StopOrder(cause="nonfinite", save=False, at=10.0, text="loss is NaN")


# ---- what ends a run between two attempts


def test_a_stop_in_the_back_off_ends_the_run_at_once() -> None:
    waiting = crash(RUNNING).state
    over = decide(waiting, Request(kind="stop", at=1.0), Plan(restarts=3)).state
    assert (over.state, over.cause) == ("stopped", "user")
    cost = Verdict(rule="cost", severity="warn", action="stop", text="cost limit of 40 reached")
    over = decide(waiting, cost, Plan(restarts=3)).state
    assert (over.state, over.cause) == ("stopped", "cost")


def test_a_back_off_that_is_over_twice_starts_one_attempt() -> None:
    waiting = crash(RUNNING).state
    begun = decide(waiting, Waited(), Plan()).state
    assert decide(begun, Waited(), Plan()).actions == ()
