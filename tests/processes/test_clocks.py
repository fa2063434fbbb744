"""What a run is given in seconds is counted in seconds that passed: whatever is done to clocks, or to the supervisor.

Clocks that jump (libfaketime, around everything), a machine with a time of its own (a time namespace), processes that
stand still for a while, supervisors that are killed. Which silences and limits there are is tested elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, alive, toy, until

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
LOAD_S = 1.0
"""What two busy cores may add to a time that is compared."""

# The first attempt fails, the second goes on. It waits where a rule has seen a part of what it needs.
HALF_ARMED = """\
import os, sys, time

def say(step, loss):
    print(f"step: {step}, loss: {loss:.4f}, dt: 0.02", flush=True)
    time.sleep(0.02)

def pause(what):
    print(f"# {what}", flush=True)
    time.sleep(1.5)

def usual(first, last):
    for step in range(first, last + 1):
        say(step, 3.0 + (step * 7919 % 100) / 1000)

if os.environ["OVERNIGHT_ATTEMPT"] == "1":
    usual(1, 3)
    pause("three of the five losses that arm divergence")
    usual(4, 8)
    say(9, 25.0)
    usual(10, 40)
    sys.exit("a node has gone")
usual(41, 130)
for step in (131, 132, 133):
    say(step, 9.0)
pause("three of the losses that make a spike")
for step in range(134, 141):
    say(step, 9.0)
usual(141, 170)
pause("nothing to see")
usual(171, 100000)
"""


WALL_CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *told) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, told), before = errno, file;
    char text[16] = "";
    if (failed || which != CLOCK_REALTIME) return failed;
    if ((file = open(getenv("FAKETIME_TIMESTAMP_FILE"), O_RDONLY | O_CLOEXEC)) >= 0) {
        if (read(file, text, sizeof text - 1) > 0) told->tv_sec += atol(text);
        close(file);
    }
    errno = before;
    return failed;
}
"""


def hours(seconds: float) -> str:
    """Return ``seconds`` as ``--max-hours`` wants them."""
    return f"{seconds / 3600:.8f}"


def used_s(run: Run) -> float:
    """Return the seconds that the attempts took, as they were written down."""
    return float(sum(fact["seconds"] for fact in run.facts("attempt_ended")))


# -- clocks that jump ------------------------------------------------------------------------------------------------


class Clocks:
    """The clocks of all that ``runs`` starts. ``every``: the monotonic ones jump as well, which no real clock does."""

    def __init__(self, told: Path, seconds: int, *, every: bool) -> None:
        self.told = told
        self.seconds = seconds
        self.every = every

    def jump(self) -> None:
        """Let them jump."""
        aside = self.told.with_suffix(".new")
        aside.write_text(f"{self.seconds:+d}\n")
        aside.replace(self.told)


def wall_clock_only(folder: Path) -> Path:
    """Build what moves the wall clock alone; libfaketime cannot: with it Python's sleep fails then."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler; on Debian: apt-get install gcc libc6-dev")
    (folder / "clock.c").write_text(WALL_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"], cwd=folder, check=True)
    return folder / "clock.so"


# No real clock goes back by hours, and no real machine's monotonic ones jump at all: those in the long run only.
@pytest.fixture(
    params=["+3 h", *(pytest.param(one, marks=pytest.mark.long) for one in ("-3 h", "+3 h of every clock"))]
)
def clocks(request: pytest.FixtureRequest, runs: Runs, tmp_path: Path) -> Clocks:
    """Return clocks that can be made to jump while runs go on."""
    every = "every" in request.param
    if every and FAKETIME is None:
        pytest.skip("libfaketime is not installed; on Debian: apt-get install faketime")
    told = tmp_path / "clock"
    told.write_text("+0\n")
    library = FAKETIME if every else wall_clock_only(tmp_path)
    runs.env |= {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(told), "FAKETIME_NO_CACHE": "1"}
    return Clocks(told, -10800 if request.param.startswith("-") else 10800, every=every)


def clock_of(runs: Runs) -> float:
    """Return what a program that ``runs`` starts takes for the time."""
    command = [sys.executable, "-c", "import time; print(time.time())"]
    return float(subprocess.run(command, env=runs.env, capture_output=True, check=True, timeout=20).stdout)


def test_a_clock_that_jumps_fires_no_limit_and_no_stall(start: Start, runs: Runs, clocks: Clocks) -> None:
    """D5-04: three hours are more than any of these limits, and none of them has passed."""
    flags = ("--max-hours", 1, "--stall", "1h", "--start-limit", "1h", "--exit-limit", "1h", "--max-cost", 1,
             "--price", "1/h", "--steps", 60)  # fmt: skip
    run = start("night", *toy("--steps", 60, "--dt", 0.1), flags=flags, log="step: 10,")
    before = clock_of(runs)
    clocks.jump()
    assert abs(clock_of(runs) - before) > 10000, "the clock of these programs has jumped"
    assert run.wait() == 0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["step"]) == ("finished", "completed", 60)
    assert not run.facts("verdict")
    assert 6.0 <= seen["active_s"] <= 20.0
    assert seen["active_s"] <= seen["elapsed_s"] <= 25.0
    assert seen["cost"] == pytest.approx(seen["elapsed_s"] / 3600, abs=0.001)


def test_a_true_limit_counts_over_two_attempts_though_the_clock_jumps(start: Start, clocks: Clocks) -> None:
    script = 'if [ "$OVERNIGHT_ATTEMPT" = 1 ]; then set -- "$@" --crash-at 31; fi; exec "$@"'
    flags = ("--max-hours", hours(4), "--restarts", 3, "--backoff", "0.3")
    run = start("night", "sh", "-c", script, "sh", *toy("--steps", 5000), flags=flags, log="step: 10,")
    clocks.jump()
    assert run.wait() == 105
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "wall_clock", 2)
    assert used_s(run) == pytest.approx(4.0, abs=LOAD_S)
    assert seen["active_s"] == pytest.approx(used_s(run), abs=0.01)


def test_a_true_hang_is_found_though_the_clock_jumps(start: Start, clocks: Clocks) -> None:
    """The jump is no part of the silence; of one of the monotonic clock, ten seconds are."""
    limit_s = 13 if clocks.every else 5
    flags = ("--stall", f"{limit_s}s")
    run = start("night", *toy("--steps", 5000, "--hang-at", 20), flags=flags, log="step: 19,")
    began = time.monotonic()
    clocks.jump()
    assert run.wait(60) == 104
    passed_s = time.monotonic() - began
    assert passed_s <= limit_s + 5
    assert passed_s >= (1.0 if clocks.every else limit_s - 1)


# -- a machine with a time of its own --------------------------------------------------------------------------------


def in_a_time_namespace() -> list[str]:
    """Return the words before a command that let the machine be up for 10,000 seconds longer."""
    words = ["unshare", "--time", "--boottime", "10000", "--monotonic", "5000"]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed; on Debian: apt-get install util-linux")
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no time namespace can be made here: {tried.stderr.strip()}")
    return words


def test_in_a_time_namespace_limits_and_active_time_are_right(runs: Runs, work: Path) -> None:
    """As in a container that was moved from another host."""
    script = 'if [ "$OVERNIGHT_ATTEMPT" = 1 ]; then set -- "$@" --crash-at 31; fi; exec "$@"'
    flags = f"--max-hours {hours(4)} --restarts 3 --backoff 0.3 --stall 1h --settle 0.05"
    (work / "script.sh").write_text(script + "\n")
    (work / "night.sh").write_text(
        f"overnight run --name night {flags} -- sh script.sh {' '.join(toy('--steps', 5000))} >&2\n"
        "overnight wait night --timeout 30 >&2\n"
        "overnight status night --json\n"
    )
    before_s = time.monotonic()
    done = subprocess.run(
        [*in_a_time_namespace(), "sh", "night.sh"],
        env=runs.env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    passed_s = time.monotonic() - before_s
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    run = runs.run("night")
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "wall_clock", 2)
    assert used_s(run) == pytest.approx(4.0, abs=LOAD_S)
    assert seen["active_s"] == pytest.approx(used_s(run), abs=0.01)
    assert seen["active_s"] < seen["elapsed_s"] < passed_s
    assert {one["rule"] for one in seen["verdicts"]} == {"wall_clock"}


# -- processes that stand still --------------------------------------------------------------------------------------


@contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """Stop these processes, and let them go on."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(pids):
            if alive(pid):
                os.kill(pid, signal.SIGCONT)


def test_a_supervisor_that_stood_still_sees_the_steps_first(start: Start) -> None:
    """Five seconds without a look are no silence of the training's, though the limit is three."""
    run = start("night", *toy("--steps", 140), flags=("--stall", "3s", "--steps", 140), log="step: 10,")
    supervisor = run.pid("supervisor")
    with standing_still(supervisor):
        time.sleep(5.0)
    assert run.wait() == 0
    assert run.status["cause"] == "completed"
    assert not run.facts("verdict")
    assert run.pid("supervisor") == supervisor


def test_a_hang_that_began_while_the_supervisor_stood_still_is_found(start: Start) -> None:
    run = start("night", *toy("--steps", 200, "--hang-at", 20), flags=("--stall", "3s"), log="step: 5,")
    with standing_still(run.pid("supervisor")):
        time.sleep(5.0)
    assert run.wait() == 104
    assert run.status["cause"] == "stall"


def test_a_machine_that_stood_still_is_no_stall(start: Start) -> None:
    """Training and supervisor both: a paused virtual machine. At most ten seconds of that are counted."""
    run = start("night", *toy("--steps", 100), flags=("--stall", "12.5s", "--steps", 100), log="step: 40,")
    with standing_still(run.command, run.pid("supervisor")):
        time.sleep(13.5)
    assert run.wait() == 0
    assert run.status["cause"] == "completed"
    assert not [one for one in run.facts("verdict") if one["action"] == "stop"]


def test_a_training_that_stands_still_is_a_stall(start: Start) -> None:
    """Only the training: whoever has stopped it (a debugger, a job control) makes it hang."""
    run = start("night", *toy("--steps", 5000), flags=("--stall", "3s", "--grace", "2s"), log="step: 10,")
    with standing_still(run.command):
        assert run.wait() == 104
    assert run.status["cause"] == "stall"
    assert not run.left()


# -- supervisors that are killed -------------------------------------------------------------------------------------


def judged(run: Run) -> list[tuple[Any, ...]]:
    """Return the verdicts without what depends on the moment."""
    moving = ("active_s", "elapsed_s", "left_s", "save_s", "eta_s")
    return sorted(
        (
            one["rule"], one["action"], one["severity"], one["part"], one["attempt"], one["offset"],
            json.dumps({name: value for name, value in one["evidence"].items() if name not in moving}, sort_keys=True),
        )
        for one in run.facts("verdict")
    )  # fmt: skip


def another(run: Run, supervisor: int) -> bool:
    """Say whether another supervisor is there than the one with this pid."""
    who = run.file("shim.json").get("supervisor")
    return bool(who) and who["pid"] != supervisor


def kill_at(run: Run, texts: tuple[str, ...]) -> None:
    """Kill the supervisor each time the log comes to one of the texts."""
    for text in texts:
        run.wrote(text, 60.0)
        known = run.pid("supervisor")
        os.kill(known, signal.SIGKILL)
        until(partial(another, run, known), "the next one", 45.0)


HALVES = ("# three of the five", "# three of the losses", "# nothing to see")


@pytest.mark.parametrize(
    ("texts", "limit_s"),
    [
        (HALVES, 13),
        pytest.param(
            (*HALVES, "step: 300,", "step: 400,"), 60, marks=[pytest.mark.long, pytest.mark.timeout(240)]
        ),  # after the fifth the next one comes half a minute later
    ],
)
def test_killed_supervisors_hand_on_what_was_used_and_half_seen(
    start: Start, work: Path, texts: tuple[str, ...], limit_s: int
) -> None:
    """E3-03: the same verdicts, the same number of starts and the same limit as in a run that was left in peace."""
    (work / "night.py").write_text(HALF_ARMED)
    flags = ("--restarts", 2, "--backoff", "0.3", "--max-hours", hours(limit_s), "--stall", "20s",
             "--vocab-size", 50257, "--action", "divergence=alert")  # fmt: skip
    twin = start("peace", sys.executable, "night.py", flags=flags)
    run = start("killed", sys.executable, "night.py", flags=flags)
    kill_at(run, texts)
    for one in (run, twin):
        assert one.wait(limit_s + 60) == 105
        seen = one.status
        assert (seen["state"], seen["cause"]) == ("stopped", "wall_clock")
        assert (seen["attempt"], seen["restarts_used"]) == (2, 1)
        assert used_s(one) == pytest.approx(limit_s, abs=LOAD_S)
        assert seen["active_s"] == pytest.approx(used_s(one), abs=0.01)
        assert len(one.facts("attempt_ended")) == 2
        assert len(one.facts("backoff")) == 1
    assert len(run.facts("supervisor")) == len(texts) + 1
    assert judged(run) == judged(twin)
    told = {(one["rule"], one["action"]) for one in twin.facts("verdict")}
    expected = {("divergence", "alert"), ("spike", "alert"), ("spike", "note"), ("wall_clock", "alert"),
                ("wall_clock", "stop")}  # fmt: skip
    assert told == expected
    assert [one["severity"] for one in run.facts("verdict") if one["rule"] == "divergence"] == ["critical"]
    assert not run.left()
