"""Rollback as a decision: a rule takes a run back to before its trouble, so often and no more, and what undoes that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overnight.events import Exit, Request, Verdict
from overnight.exits.causes import Finding
from overnight.lifecycle import decide, lost_with_the_machine
from overnight.rules import onset_of
from overnight.states import BackOff, Decision, End, Ended, Plan, RunState, Start, Stop, Stranded, Waited
from overnight.stops.orderfile import read_order, written_order

RUNNING = RunState(state="running", attempt=1)
SPIKE = Verdict(
    rule="spike",
    severity="warn",
    action="rollback",
    text="loss 8 at step 312",
    step=312,
    offset=77,
    evidence={"onset": 300},
)
KILLED = Ended(exit=Exit(signal="SIGTERM", at=1.0))


def plan(**more: Any) -> Plan:
    return Plan(**{"last_step": 320, "rollbacks": 2, "rollback_steps": 10, "backoff_s": 1.0, **more})


def rolled_back(state: RunState = RUNNING, **more: Any) -> Decision:
    stopping = decide(state, SPIKE, plan(**more))
    assert [type(one) for one in stopping.actions] == [Stop]
    return decide(stopping.state, KILLED, plan(**more))


def test_the_stop_of_a_rollback_wants_no_save() -> None:
    (stop,) = decide(RUNNING, SPIKE, plan()).actions
    assert isinstance(stop, Stop)
    assert (stop.order.save, stop.order.rollback, stop.order.onset) == (False, True, 300)
    assert read_order(written_order(stop.order)) == stop.order


def test_it_goes_back_to_before_the_trouble_and_leaves_its_steps_out() -> None:
    found = rolled_back()
    (wait,) = found.actions
    assert isinstance(wait, BackOff)
    assert found.state.state == "backoff"
    assert (found.state.rollbacks, found.state.restarts) == (1, 0)
    assert wait.rollback is not None
    assert (wait.rollback.before, wait.rollback.skip, wait.rollback.last) == (291, (291, 320), 320)
    again = decide(found.state, Waited(), plan())
    assert [type(one) for one in again.actions] == [Start]
    assert again.state.attempt == 2


@pytest.mark.parametrize("restarts", [0, 5])
def test_the_third_time_it_is_stopped_whatever_restarts_are_left(restarts: int) -> None:
    state = msgspec.structs.replace(RUNNING, rollbacks=2)
    found = rolled_back(state, restarts=restarts)
    assert [type(one) for one in found.actions] == [End]
    assert (found.state.state, found.state.cause) == ("stopped", "spike")
    assert "2 rollbacks used" in (found.state.cause_text or "")


def test_none_allowed() -> None:
    assert "no rollback is allowed" in (rolled_back(rollbacks=0).state.cause_text or "")


def test_nothing_to_go_back_to_ends_it_as_the_rule_would() -> None:
    waiting = rolled_back().state
    found = decide(waiting, Stranded(text="there is no healthy save"), plan())
    assert (found.state.state, found.state.cause) == ("stopped", "spike")
    assert found.state.cause_text == "loss 8 at step 312; there is no healthy save"
    assert (waiting.rollbacks, found.state.rollbacks) == (1, 0), "what was not carried out is not used up"


def test_a_failure_that_cannot_go_on_has_failed() -> None:
    crashed = decide(RUNNING, Ended(exit=Exit(exit_code=1)), plan(restarts=3))
    assert crashed.state.state == "backoff"
    found = decide(crashed.state, Stranded(text="no save is left"), plan(restarts=3))
    assert (found.state.state, found.state.cause) == ("failed", "crash")
    assert (crashed.state.restarts, found.state.restarts) == (1, 0)
    assert decide(found.state, Stranded(text="again"), plan()).state is found.state


def test_who_asks_for_the_end_meanwhile_gets_it() -> None:
    stopping = decide(RUNNING, SPIKE, plan()).state
    asked = decide(stopping, Request(kind="stop"), plan())
    ended = decide(asked.state, KILLED, plan())
    assert (ended.state.state, ended.state.cause) == ("stopped", "user")
    assert asked.state.order is not None
    assert not asked.state.order.save  # the weights are no better for that


@pytest.mark.parametrize("now", [True, False])
def test_a_user_in_a_hurry_too(now: bool) -> None:
    stopping = decide(RUNNING, SPIKE, plan()).state
    asked = decide(stopping, Request(kind="stop", now=now), plan()).state
    assert decide(asked, KILLED, plan(restarts=3)).state.cause == "user"


def test_a_limit_that_is_reached_meanwhile_ends_it() -> None:
    stopping = decide(RUNNING, SPIKE, plan()).state
    limit = Verdict(rule="wall_clock", severity="warn", action="stop", text="8 h are over")
    found = decide(stopping, limit, plan()).state
    assert found.order is not None
    assert (found.order.rollback, found.order.save) == (False, False)
    assert decide(found, KILLED, plan()).state.cause == "wall_clock"


def test_a_second_finding_does_not_undo_it() -> None:
    stopping = decide(RUNNING, SPIKE, plan()).state
    nan = Verdict(rule="nonfinite", severity="critical", action="terminate", text="NaN", step=321, offset=99)
    assert decide(decide(stopping, nan, plan()).state, KILLED, plan()).state.state == "backoff"


def test_a_reboot_in_the_middle_is_no_reason_to_end() -> None:
    order = decide(RUNNING, SPIKE, plan()).state.order
    assert order is not None
    assert lost_with_the_machine(order)


def test_the_step_may_be_learned_later() -> None:
    early = msgspec.structs.replace(SPIKE, rule="nonfinite", step=None, evidence={"onset": 290})
    stopping = decide(RUNNING, early, plan()).state
    whole = msgspec.structs.replace(early, step=295, text="NaN at step 295", evidence={"onset": 295})
    assert decide(stopping, whole, plan()).state.order.onset == 295  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("step", "evidence", "onset"),
    [
        (312, {}, 312),
        (312, {"records": 3}, 292),
        (None, {}, 320),
        (7000, {"strange": True}, 320),
        (5, {"records": 20}, 0),
    ],
)
def test_trouble_began_before_it_was_told(step: int | None, evidence: dict[str, Any], onset: int) -> None:
    verdict = Verdict(rule="x", severity="critical", action="rollback", text="", step=step, evidence=evidence)
    assert onset_of(verdict, last=320, interval=10) == onset


# -- a save that cannot be loaded -------------------------------------------------------------------------------------


LOAD = Finding(cause="load_failure", text="cannot load 300", restartable=False)


def test_another_save_is_tried_and_counts_as_no_try() -> None:
    state = RunState(state="running", attempt=2, restarts=1, tries=1, reached=(0.0, 320))
    allowed = plan(restarts=5, last_step=None)
    ended = Ended(exit=Exit(exit_code=1), finding=LOAD, unloaded=True, elsewhere=True)
    found = decide(state, ended, allowed).state
    assert (found.state, found.tries, found.restarts) == ("backoff", 1, 2)


def test_without_another_save_a_load_failure_is_the_end() -> None:
    state = RunState(state="running", attempt=2, restarts=1, tries=1, reached=(0.0, 320))
    ended = Ended(exit=Exit(exit_code=1), finding=LOAD, unloaded=True)
    assert decide(state, ended, plan(restarts=5, last_step=None)).state.cause == "load_failure"
