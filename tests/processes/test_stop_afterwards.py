"""A stop that comes when the command has ended by itself, and only what it left behind is waited for.

It changes nothing about how that command ended, but nothing is started again after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from looking import Run, toy, until

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
LEAVES = (*toy("--steps", 40, "--dt", 0.05, "--exit-at", 20, "--exit-code", 7, "--leave-child"),)


@pytest.mark.parametrize("how", ["stop", "now", pytest.param("signal", marks=pytest.mark.long)])
def test_a_stop_while_leftovers_are_waited_for_is_not_lost(start: Start, how: str) -> None:
    run = start("left", *LEAVES, flags=("--restarts", 3, "--backoff", "60s"), log="step: 2,")
    supervisor = run.pid("supervisor")
    until(lambda: run.facts("exit"), "the command ends", limit_s=20.0)
    assert not run.facts("attempt_ended"), "too late: nothing of it is left"
    if how == "signal":
        os.kill(supervisor, signal.SIGTERM)
    else:
        assert run.stop("--no-wait", *(["--now"] if how == "now" else [])).returncode == 0
    until(lambda: run.facts("ended"), "it ends", limit_s=20.0)
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "user", 1)
    assert seen["attempts"][0]["exit_code"] == 7
    assert len(run.facts("started")) == 1


def test_it_stays_with_whoever_comes_after_a_supervisor_that_was_killed(start: Start) -> None:
    run = start("left", *LEAVES, flags=("--restarts", 3, "--backoff", "60s"), log="step: 2,")
    supervisor = run.pid("supervisor")
    until(lambda: run.facts("exit"), "the command ends", limit_s=20.0)
    assert run.stop("--no-wait").returncode == 0
    until(lambda: run.facts("request"), "the supervisor has read it")
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: run.facts("ended"), "it ends", limit_s=20.0)
    assert (run.status["state"], run.status["attempt"]) == ("stopped", 1)


def test_a_run_that_is_over_with_it_stays_what_it_was(start: Start) -> None:
    words = toy("--steps", 20, "--dt", 0.05, "--leave-child")
    run = start("well", *words, log="step: 2,")
    until(lambda: run.facts("exit"), "the command ends", limit_s=20.0)
    assert run.stop("--no-wait", "--now").returncode == 0
    until(lambda: run.facts("ended"), "it ends", limit_s=20.0)
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    until(lambda: not list((run.folder / "inbox").iterdir()), "the request is gone")
