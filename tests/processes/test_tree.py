"""Nothing of a run's tree is left after any end, and nothing else is touched."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import PYTHON, TOY, Run, Runs, alive, read, spawned, state_of, toy, until, whole

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]


def by_stop(run: Run) -> None:
    assert run.stop().returncode == 0


def by_stop_now(run: Run) -> None:
    assert run.stop("--now").returncode == 0


def by_scheduler(run: Run) -> None:
    os.kill(run.pid("shim"), signal.SIGTERM)


def by_a_kill_from_outside(run: Run) -> None:
    os.kill(run.command, signal.SIGKILL)


def by_its_own_end(run: Run) -> None:
    """Do nothing: the toy comes to its last step."""


ENDS = [
    (by_stop, "stopped"),
    (by_stop_now, "stopped"),
    (by_scheduler, "stopped"),
    (by_a_kill_from_outside, "failed"),
    (by_its_own_end, "finished"),
]


@pytest.mark.parametrize(("end", "state"), ENDS)
def test_children_of_every_kind_are_gone_after_every_end(start: Start, end: Callable[[Run], None], state: str) -> None:
    """B1-01, B1-04, B1-06: workers that ignore SIGINT, one in a session of its own, forked twice, and a stranger."""
    stranger = subprocess.Popen(toy("--steps", 5000), stdout=subprocess.DEVNULL)  # the same name, not of the run
    try:
        steps = 40 if end is by_its_own_end else 5000
        run = start("night", *toy("--steps", steps, "--handle", "int", "--spawn", 4, "--spawn-setsid"), log="step: 3,")
        children = spawned(run.log)
        assert len(children) == 5
        assert all(map(alive, children))
        end(run)
        run.wait()
        assert run.status["state"] == state
        assert not [pid for pid in children if alive(pid)]
        assert not run.left()
        assert stranger.poll() is None, "a process of the same name that is not ours lives"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_leftover_of_a_success_is_ended_and_named(start: Start) -> None:
    """B1-06: main exits 0 and leaves a `sleep`: finished, the child gone within 10 s, noted."""
    run = start("night", *toy("--steps", 10, "--leave-child"), log="left")
    (child,) = (int(line.split()[2]) for line in run.log.decode().splitlines() if line.endswith(" left"))
    until(lambda: run.facts("exit"), "the end of the command")
    until(lambda: not alive(child), "the child is gone", 10.0)
    assert run.wait() == 0
    (fact,) = run.facts("leftovers")
    assert (fact["count"], fact["names"]) == (1, ["sleep"])
    assert any("leftover" in note and "1" in note and "sleep" in note for note in run.status["notes"])


def by_a_signal_to_the_supervisor(run: Run) -> None:
    os.kill(run.pid("supervisor"), signal.SIGTERM)


# What is asked comes by one of two ways, a file and a signal: one of each in each run of the tests.
@pytest.mark.parametrize(
    "ask",
    [
        by_stop,
        by_scheduler,
        pytest.param(by_stop_now, marks=pytest.mark.long),
        pytest.param(by_a_signal_to_the_supervisor, marks=pytest.mark.long),
    ],
)
def test_a_stop_that_comes_when_only_leftovers_are_there_changes_nothing(
    start: Start, ask: Callable[[Run], None]
) -> None:
    run = start("night", *toy("--steps", 10, "--leave-child"), log="left")
    until(lambda: run.facts("exit"), "the end of the command")
    ask(run)
    until(lambda: run.facts("request"), "the request is taken")
    assert run.wait() == 0
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    assert not run.facts("stopping")
    assert not run.left()


def test_a_leftover_without_the_mark_is_ended_too(start: Start, work: Path) -> None:
    """`env -i setsid` takes both the environment and the session away; the parents still have it."""
    (work / "run.sh").write_text("env -i setsid sleep 300 &\necho child $!\nexit 0\n")
    run = start("night", "bash", "run.sh", log="child")
    assert run.wait() == 0
    until(lambda: not [pid for pid in _named("sleep") if str(work).encode() in read(f"/proc/{pid}/cwd")], "no sleep")
    (fact,) = run.facts("leftovers")
    assert fact["count"] == 1


def _named(name: str) -> list[int]:
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    return [pid for pid in pids if read(f"/proc/{pid}/comm").strip() == name.encode()]


def test_a_writer_that_outlives_the_command_may_finish(start: Start, work: Path) -> None:
    """A background process that still writes a checkpoint when main has ended keeps its time."""
    text = (
        "import os, time\n"
        "if os.fork():\n    print('step: 1, loss: 1, dt: 1', flush=True); os._exit(0)\n"
        "with open('model.ckpt.tmp', 'wb', buffering=0) as stream:\n"
        "    for _ in range(70):\n        stream.write(b'x' * 4096); time.sleep(0.1)\n"
        "os.rename('model.ckpt.tmp', 'model.ckpt')\n"
    )
    run = start("night", PYTHON, "-c", text)
    assert run.wait() == 0
    assert (work / "model.ckpt").stat().st_size == 70 * 4096
    assert not run.facts("leftovers")


def test_a_tree_that_forks_and_dies_is_ended(start: Start) -> None:
    """A chain in which every process lives for a moment and leaves a child."""
    text = "import os, time\nprint('begun', flush=True)\nwhile 1: time.sleep(0.002); os.fork() and os._exit(0)\n"
    chain = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])\ntime.sleep(600)\n"
    run = start("night", PYTHON, "-c", chain, text, log="begun")
    assert run.stop().returncode == 0
    assert not run.left()


def test_dead_children_do_not_stay_as_zombies(start: Start) -> None:
    run = start("night", *toy("--steps", 5000, "--spawn-zombies", 30), log="step: 3,")
    children = spawned(run.log)
    assert len(children) == 30
    until(lambda: not [pid for pid in children if state_of(pid)], "all reaped while the training goes on")
    assert alive(run.command)


def test_a_port_is_free_for_the_next_run(start: Start) -> None:
    """B1-09, first half: the worker holds the port too, main crashes; the next run gets it."""
    port = 20000 + os.getpid() % 20000
    first = start("one", *toy("--steps", 5000, "--hold-port", port, "--spawn", 1, "--crash-at", 20), log="step: 3,")
    children = spawned(first.log)
    assert first.wait() == 100
    assert not any(map(alive, children))
    second = start("two", *toy("--steps", 5000, "--hold-port", port), log="step: 3,")
    assert second.status["state"] == "running"


def test_two_runs_do_not_touch_each_other(start: Start) -> None:
    """Stopping one leaves the other, its children and its keepers alone."""
    one = start("one", *toy("--steps", 5000, "--spawn", 2), log="step: 3,")
    two = start("one-more", *toy("--steps", 5000, "--spawn", 2, "--spawn-setsid"), log="step: 3,")
    others = [two.command, two.pid("shim"), two.pid("guard"), two.pid("supervisor"), *spawned(two.log)]
    assert one.stop().returncode == 0
    assert not one.left()
    assert all(map(alive, others))
    assert two.status["state"] == "running"


def test_a_run_started_within_a_run_lives_on(start: Start, runs: Runs) -> None:
    """`overnight run` called by a training's own script is a run of its own: it must not be taken for a leftover."""
    inner = f"overnight run --name inner --settle 0.1 -- {PYTHON} {TOY} --steps 5000"
    outer = start("outer", "bash", "-c", f"{inner} && echo started")
    assert outer.wait() == 0
    assert b"started" in outer.log
    found = runs.run("inner")
    until(lambda: found.status["state"] == "running" and found.status["step"], "its first steps")
    assert alive(found.command)
    step = found.status["step"]
    until(lambda: (found.status["step"] or 0) > step, "it goes on")


def test_both_parents_killed_still_nothing_is_left(start: Start) -> None:
    """Guard and shim are dead: the tree is found by the mark in its environment."""
    run = start("night", *toy("--steps", 5000, "--handle", "int", "--spawn", 3, "--spawn-setsid"), log="step: 3,")
    children = spawned(run.log)
    for role in ("guard", "shim"):
        os.kill(int(run.file("shim.json")[role]["pid"]), signal.SIGKILL)
        time.sleep(0.05)  # the guard sees the shim die, or not any more
    assert run.stop().returncode == 0
    assert run.wait() == 103
    assert not [pid for pid in children if alive(pid)]
    assert not run.left()


def test_what_had_to_be_removed_after_a_stop_is_named(start: Start, work: Path) -> None:
    command = toy("--steps", 5000, "--handle", "int", "--spawn", 3, "--checkpoints", "saved")
    run = start("night", *command, log="step: 3,")
    assert run.stop().returncode == 0
    assert len(whole(work / "saved")) == 1
    (fact,) = run.facts("leftovers")
    assert fact["count"] == 3
    assert all(re.match("python", name) for name in fact["names"])
