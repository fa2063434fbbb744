"""What a failed device makes of an attempt that would otherwise be followed by another."""

from __future__ import annotations

import pytest

from overnight.events import Exit, StopOrder
from overnight.exits.causes import Finding
from overnight.lifecycle import decide
from overnight.states import End, Ended, Plan, RunState

HARDWARE = Finding(cause="hardware", text="GPU 0 is lost", restartable=False)
PLAN = Plan(restarts=3, rollbacks=2, rollback_steps=0, last_step=50)
KILLED = Exit(signal="SIGKILL")


def stopping(cause: str, *, rollback: bool = False) -> RunState:
    order = StopOrder(cause=cause, save=False, at=0.0, text="why", rollback=rollback, onset=40 if rollback else None)
    return RunState(state="stopping", attempt=1, order=order)


def ended(finding: Finding | None) -> Ended:
    return Ended(exit=KILLED, target=None, started=True, finding=finding, reached=None, luck=0.5)


@pytest.mark.parametrize("state", [stopping("stall"), stopping("divergence", rollback=True)])
def test_no_other_attempt_follows_on_a_failed_device(state: RunState) -> None:
    assert decide(state, ended(None), PLAN).state.state == "backoff"
    found = decide(state, ended(HARDWARE), PLAN)
    assert (found.state.state, found.state.cause, found.state.cause_text) == ("failed", "hardware", "GPU 0 is lost")
    assert found.actions == (End(state="failed", cause="hardware"),)


@pytest.mark.parametrize("cause", ["user", "max_steps", "nonfinite"])
def test_a_stop_for_good_keeps_its_reason(cause: str) -> None:
    found = decide(stopping(cause), ended(HARDWARE), PLAN)
    assert (found.state.state, found.state.cause) == ("stopped", cause)


def test_a_run_that_had_done_all_its_steps_is_finished() -> None:
    plan = Plan(restarts=3, steps=50, last_step=50)
    found = decide(stopping("stall"), ended(HARDWARE), plan)
    assert (found.state.state, found.state.cause) == ("finished", "bad_teardown")


def test_a_crash_on_a_failed_device_is_not_started_again() -> None:
    found = decide(RunState(state="running", attempt=1), ended(HARDWARE), PLAN)
    assert (found.state.state, found.state.cause) == ("failed", "hardware")
    assert found.state.cause_text == "GPU 0 is lost; starting it again would not mend that"
