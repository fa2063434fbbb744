"""Runs that everything was killed of: whoever looks next settles them, nothing blocks, and nothing hangs for ever."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, alive, keepers, read, toy, until

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]
KEEPERS = ("guard", "shim", "supervisor")


def kill_all(run: Run, *, training: bool = True) -> None:
    """SIGKILL the keepers and, unless told otherwise, the training; return once all of them are gone."""
    pids = [*(run.pid(role) for role in KEEPERS), *([run.command] if training else ())]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), "they die")


def on_disk(run: Run) -> dict[str, Any]:
    """Return status.json as it lies there, without asking a verb that might settle something."""
    found = json.loads(read(run.folder / "status.json") or b"{}")
    assert isinstance(found, dict)
    return found


def in_back_off(start: Start, *flags: object) -> Run:
    """Return a run that waits between its first and its second attempt."""
    run = start("waits", *toy("--crash-at", 4), flags=("--restarts", 1, *flags))
    until(lambda: on_disk(run).get("state") == "backoff", "the back-off")
    return run


@pytest.mark.parametrize("verb", ["ls", "status", "wait", "stop"])
def test_the_next_look_settles_a_run_that_everything_was_killed_of(start: Start, runs: Runs, verb: str) -> None:
    run = start("night", *toy("--steps", 5000), log="step: 3,")
    kill_all(run)
    assert on_disk(run)["state"] == "running", "nobody could write it down"
    runs.overnight(*([verb] if verb == "ls" else [verb, "night"]))
    until(lambda: on_disk(run)["state"] == "failed", "it is written down")
    seen = on_disk(run)
    assert (seen["cause"], seen["code"]) == ("unknown_kill", 100)
    assert run.wait(20) == 100
    assert "failed" in runs.overnight("ls").stdout


def test_what_was_killed_can_be_removed_and_its_name_used_again(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000), log="step: 3,")
    kill_all(run)
    taken = runs.overnight("run", "--name", "night", "--", "true")
    assert taken.returncode == 2, "a name is not given twice"
    assert run.wait(20) == 100
    assert runs.overnight("clean", "night").returncode == 0
    assert not run.folder.exists()
    again = start("night", *toy("--steps", 5))
    assert again.wait() == 0, "and no lock keeps it from that"


def test_clean_settles_it_by_itself(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000), log="step: 3,")
    kill_all(run)
    done = runs.overnight("clean", "night")
    assert done.returncode == 0, done.stderr
    assert not run.folder.exists()


def test_a_training_that_outlived_its_keepers_is_watched_again(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.1), flags=("--max-steps", 60), log="step: 3,")
    kill_all(run, training=False)
    assert alive(run.command)
    assert run.wait(40) == 105, "and its limit counts"
    assert run.status["cause"] == "max_steps"


# -- killed while it waits for its next attempt ------------------------------------------------------------------------


def test_killed_in_the_back_off_it_goes_on_once_somebody_waits(start: Start) -> None:
    run = in_back_off(start, "--backoff", "3s")
    kill_all(run, training=False)
    assert on_disk(run)["state"] == "backoff"
    assert run.status["state"] == "backoff", "which is the truth: it has not ended"
    assert run.wait(60) == 106
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"], seen["restarts_used"]) == ("gave_up", "crash", 2, 1)
    until(lambda: not keepers(run.folder), "its new keepers leave")
    assert len(run.facts("backoff")) == 1
    assert len(run.facts("attempt_ended")) == 2


def test_killed_in_a_long_back_off_it_can_be_stopped_at_once(start: Start, runs: Runs) -> None:
    run = in_back_off(start, "--backoff", "1000s")
    kill_all(run, training=False)
    began = time.monotonic()
    assert run.stop().returncode == 0
    assert time.monotonic() - began < 10
    assert run.wait(5) == 103
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("stopped", "user", 1)
    until(lambda: not keepers(run.folder), "whoever settled it leaves")
    assert runs.overnight("clean", "waits").returncode == 0


def test_its_limits_count_for_whoever_takes_over_a_back_off(start: Start) -> None:
    run = in_back_off(start, "--backoff", "1000s", "--price", "3600/h", "--max-cost", "6")
    kill_all(run, training=False)
    assert run.wait(30) == 105
    assert (run.status["cause"], run.status["attempt"]) == ("cost", 1)
    assert 6 <= run.status["elapsed_s"] < 10


def test_a_dead_guard_and_a_killed_adopter_do_not_lose_the_back_off(start: Start, runs: Runs) -> None:
    """All three are killed, somebody looks, and the one that was started for that is killed as well."""
    run = in_back_off(start, "--backoff", "6s")
    kill_all(run, training=False)
    assert runs.overnight("status", "waits").returncode == 0
    adopter = until(lambda: next(iter(keepers(run.folder)), None), "an adopting supervisor")
    os.kill(adopter.pid, signal.SIGKILL)
    until(lambda: not alive(adopter.pid), "it dies")
    assert run.wait(60) == 106
    assert run.status["attempt"] == 2
    assert len(run.facts("backoff")) == 1


# -- a log of gradients ------------------------------------------------------------------------------------------------

GRADIENTS = """\
import sys, time
odd = set(map(int, sys.argv[1].split(",")))
for step in range(1, 140):
    norm = "inf" if step in odd else f"{1 + step % 7 / 10:.4f}"
    print(f"step: {step}, loss: {4 - step / 100:.4f}, grad_norm: {norm}", flush=True)
    time.sleep(0.02)
"""


def test_a_gradient_that_is_infinite_now_and_then_ends_nothing(start: Start, work: Path) -> None:
    (work / "train.py").write_text(GRADIENTS)
    run = start("scaled", sys.executable, "train.py", "10,60,110", flags=("--steps", 139))
    assert run.wait() == 0
    seen = run.status
    assert (seen["grad_norm_nonfinite"], seen["verdicts"], seen["step"]) == (3, [], 139)


def test_a_gradient_that_stays_infinite_ends_it(start: Start, work: Path) -> None:
    (work / "train.py").write_text(GRADIENTS)
    odd = ",".join(map(str, range(40, 140)))
    run = start("ruined", sys.executable, "train.py", odd, flags=("--steps", 139))
    assert run.wait() == 104
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "nonfinite")
    (verdict,) = seen["verdicts"]
    assert (verdict["step"], verdict["action"]) == (59, "terminate")
    assert "gradient norm is infinite" in verdict["text"] or "gradient norm is inf" in verdict["text"]
    assert 20 <= seen["grad_norm_nonfinite"] <= 40
