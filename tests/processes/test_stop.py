"""A stop of the plain kind: by the user, on a terminal and by a scheduler; the script saves, nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import PYTHON, Run, Runs, alive, signals, spawned, toy, until, whole

pytestmark = pytest.mark.timeout(60)


def by_request(run: Run) -> None:
    done = run.stop()
    assert done.returncode == 0, done.stderr


def by_scheduler(run: Run) -> None:
    os.kill(run.pid("shim"), signal.SIGTERM)


def by_scheduler_through_the_guard(run: Run) -> None:
    os.kill(run.pid("guard"), signal.SIGTERM)


def by_interrupting_the_shim(run: Run) -> None:
    os.kill(run.pid("shim"), signal.SIGINT)


WAYS = [by_request, by_scheduler, by_scheduler_through_the_guard, by_interrupting_the_shim]


def stopped_well(run: Run, work: Path, *, code: int = 103) -> None:
    """Check what every graceful stop has to leave: state, checkpoint, exit, and no process."""
    assert run.wait() == code
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "user")
    assert (seen["exit_code"], seen["signal"]) == (0, None)
    assert len(whole(work / "saved")) == 1
    assert run.log.count(b"finishing after step") == 5
    assert not run.facts("killed")
    assert not run.left()


HANDLED = [("int", "SIGINT"), ("term", "SIGTERM"), ("both", "SIGTERM")]


# A request with every script, and every other way with one, in each run of the tests; all pairs in the long one.
@pytest.mark.parametrize(
    ("handle", "name", "way"),
    [
        pytest.param(*handled, way, marks=[] if way is by_request or (at + also) % 3 == 0 else pytest.mark.long)
        for at, handled in enumerate(HANDLED)
        for also, way in enumerate(WAYS)
    ],
)
def test_a_script_that_saves_on_a_signal(
    start: Callable[..., Run], work: Path, handle: str, name: str, way: Callable[[Run], None]
) -> None:
    command = toy("--steps", 2000, "--handle", handle, "--checkpoints", "saved", "--signals", "signals")
    run = start("night", *command, log="step: 3,")
    way(run)
    stopped_well(run, work)
    assert signals(work / "signals") == [name], "once, and the one it handles"
    order = run.file("attempts/001/stop.json")
    assert (order["cause"], order["save"]) == ("user", True)
    step = int(whole(work / "saved")[0].removeprefix("checkpoint-").removesuffix(".txt"))
    assert run.status["checkpoint"]["step"] == step
    assert run.status["step"] == step, "the lines printed after the signal were read"


@pytest.mark.parametrize("handle", ["int", "term"])
def test_control_c_in_the_foreground(runs: Runs, work: Path, handle: str) -> None:
    command = toy("--steps", 2000, "--handle", handle, "--checkpoints", "saved", "--signals", "signals")
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *command)
    run = runs.run("night")
    run.wrote("step: 3,")
    terminal.type(b"\x03")
    assert terminal.wait() == 103
    stopped_well(run, work)
    assert signals(work / "signals") == [f"SIG{handle.upper()}"]
    assert b"(5/5)" in terminal.shown, "the last lines are shown too"


def test_sigterm_to_the_foreground(runs: Runs, work: Path) -> None:
    command = toy("--steps", 2000, "--handle", "int", "--checkpoints", "saved", "--signals", "signals")
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *command)
    run = runs.run("night")
    run.wrote("step: 3,")
    terminal.process.terminate()
    assert terminal.wait() == 103
    stopped_well(run, work)
    assert signals(work / "signals") == ["SIGINT"]


INTERRUPTED = """
import sys, time
step = 0
try:
    while True:
        step += 1
        print(f"step: {step}, loss: 1.0, dt: 0.05")
        time.sleep(0.05)
except KeyboardInterrupt:
    for line in range(5):
        print(f"finishing after step {step}: {line}")
    open("saved", "w").write(f"{step} end")
"""

BOTH_NAMED = """
import signal, sys, time
asked = []
signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
step = 0
while not asked:
    step += 1
    print(f"step: {step}, loss: 1.0, dt: 0.05")
    time.sleep(0.05)
time.sleep(0.5)  # a second signal would be seen
open("saved", "w").write(f"{asked} end")
"""

CATCHES_TERM_ONLY_BY_EXCEPTION = """
import signal, sys, time
def leave(number, frame):
    raise SystemExit(0)
signal.signal(signal.SIGTERM, leave)
step = 0
try:
    while True:
        step += 1
        print(f"step: {step}, loss: 1.0, dt: 0.05")
        time.sleep(0.05)
finally:
    open("saved", "w").write(f"{step} end")
"""


# Every script and every way to give it in each run of the tests, two of them with each; all pairs in the long one.
@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param(given, text, marks=pytest.mark.long if at == also else [])
        for at, given in enumerate(["file", "command", "module"])
        for also, text in enumerate([INTERRUPTED, BOTH_NAMED, CATCHES_TERM_ONLY_BY_EXCEPTION])
    ],
)
def test_scripts_as_people_write_them(start: Callable[..., Run], work: Path, text: str, given: str) -> None:
    (work / "train.py").write_text(text)
    words = {"file": ["train.py"], "command": ["-c", text], "module": ["-m", "train"]}[given]
    run = start("night", PYTHON, *words, log="step: 3,")
    assert run.stop().returncode == 0
    assert (run.status["state"], run.status["exit_code"], run.wait()) == ("stopped", 0, 103)
    saved = (work / "saved").read_text()
    assert saved.endswith(" end")
    assert "," not in saved, "one signal"
    assert not run.left()


def test_a_script_without_a_handler_just_ends(start: Callable[..., Run]) -> None:
    run = start("night", *toy("--steps", 2000), log="step: 3,")
    assert run.stop().returncode == 0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["signal"], run.wait()) == ("stopped", "user", "SIGINT", 103)
    assert b"KeyboardInterrupt" in run.log


def test_four_children_that_ignore_sigint(start: Callable[..., Run], work: Path) -> None:
    command = toy("--steps", 2000, "--handle", "int", "--spawn", 4, "--checkpoints", "saved", "--signals", "signals")
    run = start("night", *command, log="step: 3,")
    children = spawned(run.log)
    assert len(children) == 4
    assert all(map(alive, children))
    assert run.stop().returncode == 0
    stopped_well(run, work)
    assert signals(work / "signals") == ["SIGINT"]
    assert not any(map(alive, children))
    assert run.facts("leftovers")[0]["count"] == 4


def test_stop_waits_for_a_script_that_takes_its_time(start: Callable[..., Run], work: Path) -> None:
    """B1-07: the first signal asks the script, and it is waited for; no orphan, no SIGKILL."""
    command = toy("--steps", 2000, "--dt", 0.7, "--handle", "int", "--checkpoints", "saved", "--save-silent-sec", 1.5)
    run = start("night", *command, log="step: 1,")
    assert run.stop().returncode == 0
    stopped_well(run, work)


def test_stop_of_an_ended_run_and_without_waiting(start: Callable[..., Run], runs: Runs, work: Path) -> None:
    run = start("night", *toy("--steps", 2000, "--handle", "int", "--checkpoints", "saved"), log="step: 3,")
    assert run.stop("--no-wait").returncode == 0
    stopped_well(run, work)
    assert run.stop().returncode == 0
    assert run.wait() == 103
    assert runs.overnight("stop", "nobody").returncode == 102


def test_a_stop_in_the_first_moments(runs: Runs) -> None:
    """A request that comes before the command lives is obeyed once there is something to stop."""
    first = runs.overnight("run", "--name", "night", "--settle", "0.001", "--", *toy("--steps", 2000))
    assert first.returncode == 0
    run = runs.run("night")
    assert run.stop().returncode == 0
    assert (run.status["state"], run.wait()) == ("stopped", 103)
    assert not run.left()


def test_a_stop_that_a_dead_supervisor_had_begun_goes_on(start: Callable[..., Run], work: Path) -> None:
    command = toy("--steps", 2000, "--handle", "int", "--checkpoints", "saved", "--save-sec", 3, "--signals", "signals")
    run = start("night", *command, log="step: 3,")
    run.stop("--no-wait")
    run.wrote("(5/5)")
    os.kill(run.pid("supervisor"), signal.SIGKILL)
    stopped_well(run, work)
    assert signals(work / "signals") == ["SIGINT"], "the new supervisor does not signal again"
    until(lambda: len(run.facts("supervisor")) >= 2, "a second supervisor")
