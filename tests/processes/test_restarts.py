"""``--restarts``: what is started again for real, what it is told, and that its budget outlives the supervisor."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from looking import Run, Runs, alive, toy, until

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]

FLAKY = """\
import os, sys, time
attempt = int(os.environ["OVERNIGHT_ATTEMPT"])
print("argv", sys.argv[1:], os.environ["OVERNIGHT_RUN_ID"], os.environ["MARK"], flush=True)
first = 1 if attempt == 1 else (attempt - 1) * 10 + 1
for step in range(first, 1000):
    if step == attempt * 10 + 1:
        if attempt < 3:
            sys.exit("the node has lost its file system")
        break
    print(f"step: {step}, loss: {4 - step / 100:.4f}, dt: 0.02", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def flaky(work: Path) -> Path:
    """Return a script that comes ten steps further in each attempt and is done in the third."""
    path = work / "flaky.py"
    path.write_text(FLAKY)
    return path


def quick(restarts: int, *flags: object) -> tuple[object, ...]:
    """Return flags for restarts without long waits."""
    return ("--restarts", restarts, "--backoff", "0.3", *flags)


def test_it_goes_on_where_it_was_until_it_is_done(runs: Runs, start: Start, flaky: Path) -> None:
    runs.env["MARK"] = "kept"
    flags = quick(5, "--steps", 30, "--resume-args", "--resume 'the last'")
    run = start("night", sys.executable, flaky, "one", flags=flags)
    assert run.wait() == 0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"], seen["restarts_used"]) == ("finished", "completed", 3, 2)
    log = run.log.decode()
    assert "argv ['one'] night kept" in log
    assert log.count("argv ['one', '--resume', 'the last'] night kept") == 2, "from the second attempt on, and once"
    assert [int(one) for one in re.findall(r"step: (\d+)", log)] == list(range(1, 31)), "one log, appended to"
    assert [(one["cause"], one["first_step"], one["last_step"]) for one in seen["attempts"]] == [
        ("crash", 1, 10),
        ("crash", 11, 20),
        ("completed", 21, 30),
    ]
    assert [one["exit_code"] for one in seen["attempts"]] == [1, 1, 0]
    assert any("lost its file system" in line for line in run.facts("attempt_ended")[0]["lines"])
    assert not run.left()


def test_the_same_step_three_times_is_given_up(start: Start) -> None:
    run = start("loop", *toy("--steps", 50, "--crash-at", 6), flags=quick(20))
    assert run.wait() == 106
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("gave_up", "crash", 3)
    assert "no further than step 5" in seen["cause_text"]
    waits = [fact["wait_s"] for fact in run.facts("backoff")]
    assert 0.2 <= waits[0] <= 0.4
    assert 0.44 <= waits[1] <= 0.76
    started = [fact["at"] for fact in run.facts("started")]
    assert len(started) == 3


def test_usage_and_import_errors_and_nan_are_not_started_again(start: Start, work: Path) -> None:
    (work / "imports.py").write_text("import no_such_module_anywhere\n")
    (work / "usage.py").write_text("import argparse\nargparse.ArgumentParser().parse_args(['--lr'])\n")
    cases = {
        "imports": ([sys.executable, work / "imports.py"], "import_error", 100),
        "usage": ([sys.executable, work / "usage.py"], "usage", 100),
        "nan": (toy("--steps", 50, "--nan-at", 8), "nonfinite", 104),
        "done": (toy("--steps", 5), "completed", 0),
    }
    for name, (command, cause, code) in cases.items():
        run = start(name, *command, flags=quick(5))
        assert run.wait() == code, name
        assert (run.status["cause"], run.status["attempt"]) == (cause, 1), name


def test_without_restarts_the_hint_is_given(start: Start) -> None:
    run = start("once", *toy("--steps", 50, "--crash-at", 6))
    assert run.wait() == 100
    assert any("--restarts 3" in note for note in run.status["notes"])


def test_a_stop_in_the_back_off_ends_it_at_once(start: Start) -> None:
    run = start("waits", *toy("--steps", 50, "--crash-at", 4), flags=("--restarts", 5, "--backoff", "60s"))
    until(lambda: run.status["state"] == "backoff" or None, "the back-off")
    assert run.status["backoff_until"]
    began = time.monotonic()
    assert run.stop().returncode == 0
    assert time.monotonic() - began < 10
    assert run.wait() == 103
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("stopped", "user", 1)


def another(run: Run, supervisor: int) -> bool:
    """Say whether another supervisor is there than the one with this pid."""
    who = run.file("shim.json").get("supervisor")
    return bool(who) and who["pid"] != supervisor


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("times", "steps"), [(2, 60), pytest.param(5, 400, marks=pytest.mark.long)])
def test_a_supervisor_that_is_killed_again_and_again_counts_on(start: Start, times: int, steps: int) -> None:
    """The budget, the steps and the back-off stand in the journal, so it does not matter who reads them."""
    run = start(
        "killed",
        *toy("--steps", 4000, "--dt", 0.05, "--crash-at", steps),
        flags=("--restarts", 9, "--backoff", "1s"),
    )
    for _ in range(times):
        supervisor = run.pid("supervisor")
        os.kill(supervisor, signal.SIGKILL)
        until(partial(another, run, supervisor), "the next one", 45.0)  # the fifth comes after half a minute
    assert run.wait(60) == 106
    seen = run.status
    assert (seen["cause"], seen["attempt"], seen["restarts_used"]) == ("crash", 3, 2)
    assert [fact["attempt"] for fact in run.facts("backoff")] == [1, 2]
    assert sorted({fact["attempt"] for fact in run.facts("attempt_ended")}) == [1, 2, 3]
    assert len(run.facts("attempt_ended")) == 3


def test_a_long_back_off_outlives_the_supervisor(start: Start) -> None:
    run = start("waits", *toy("--steps", 50, "--crash-at", 4), flags=("--restarts", 1, "--backoff", "5s"))
    until(lambda: run.status["state"] == "backoff" or None, "the back-off")
    supervisor = run.pid("supervisor")
    os.kill(supervisor, signal.SIGKILL)
    until(partial(another, run, supervisor), "the next one")
    assert run.wait() == 106
    (backoff,) = run.facts("backoff")
    first, second = run.facts("started")
    assert second["epoch"] - backoff["epoch"] if "epoch" in second else True
    assert (seconds(second) - seconds(backoff)) == pytest.approx(backoff["wait_s"], abs=1.0)
    assert first["attempt"] == 1


def seconds(fact: dict[str, object]) -> float:
    """Return when a fact was written, in seconds of its day."""
    hours, minutes, rest = str(fact["at"])[11:-1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def test_guard_and_shim_killed_does_not_keep_it_from_being_started_again(start: Start) -> None:
    run = start("orphan", *toy("--steps", 300, "--dt", 0.02, "--crash-at", 60), flags=quick(1))
    for role in ("guard", "shim"):
        os.kill(run.pid(role), signal.SIGKILL)
    assert run.wait(45) == 106
    assert run.status["attempt"] == 2
    assert [one["exit_code"] for one in run.status["attempts"]] == [1, 1]
    until(lambda: not run.left() or None, "nothing is left")


def test_active_time_counts_over_the_attempts(start: Start) -> None:
    """Three seconds in all: two crashes on the way, and the limit still comes after three seconds of running."""
    limit_s = 3.0
    command = toy("--steps", 5000, "--dt", 0.05, "--crash-at", 21)
    script = "import os, sys; n = int(os.environ['OVERNIGHT_ATTEMPT']); a = sys.argv[1:]; i = a.index('--crash-at'); "
    script += "a[i + 1] = str(10 * n + 1) if n < 3 else '100000'; os.execv(a[0], a)"
    run = start(
        "limited", sys.executable, "-c", script, *command, flags=quick(5, "--max-hours", f"{limit_s / 3600:.8f}")
    )
    assert run.wait() == 105
    ended = run.facts("attempt_ended")
    assert len(ended) == 3
    assert sum(fact["seconds"] for fact in ended) == pytest.approx(limit_s, abs=0.6)
    assert run.status["active_s"] == pytest.approx(sum(fact["seconds"] for fact in ended), abs=0.01)
    assert run.status["elapsed_s"] > run.status["active_s"]
    assert run.status["cause"] == "wall_clock"


def test_leftovers_of_one_attempt_are_gone_before_the_next(start: Start) -> None:
    run = start("litter", *toy("--steps", 50, "--crash-at", 5, "--spawn", 2), flags=quick(1))
    assert run.wait(60) == 106
    pids = [int(one) for one in re.findall(r"toy: .*?pid (\d+)", run.log.decode())]
    assert not [pid for pid in pids if alive(pid)]
