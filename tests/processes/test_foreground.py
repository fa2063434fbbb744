"""``run --foreground``: on a terminal, under a scheduler, and as the first process of a container."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from looking import Run, Runs, alive, all_processes, read, signals, spawned, state_of, toy, until, whole

pytestmark = pytest.mark.timeout(60)

TRAIN = ("--steps", 5000, "--handle", "int", "--checkpoints", "saved", "--signals", "signals")


def test_a_second_control_c_waits_for_a_growing_save(runs: Runs, work: Path) -> None:
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *toy(*TRAIN, "--save-sec", 4))
    run = runs.run("night")
    run.wrote("step: 3,")
    terminal.type(b"\x03")
    until(lambda: any((work / "saved").glob("*.tmp")), "a save that grows")
    terminal.type(b"\x03")
    assert terminal.wait() == 103
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == ["SIGINT"]


def test_two_control_c_for_a_script_that_hangs(runs: Runs) -> None:
    command = toy("--steps", 5000, "--handle", "int", "--hang-at", 4)
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *command)
    run = runs.run("night")
    run.wrote("step: 3,")
    terminal.type(b"\x03")
    until(lambda: run.facts("stopping"), "the first signal")
    until(lambda: b"Ctrl-C again: " in terminal.shown, "what comes next")
    terminal.type(b"\x03")
    assert terminal.wait() == 103
    assert run.status["signal"] == "SIGTERM"
    shown = b" ".join(terminal.shown.split()).decode()
    assert "overnight: night is asked to stop" in shown
    assert f"asked with SIGINT (pid {run.status['pid']}); killed in 60 s unless it saves; " in shown
    assert "Ctrl-C again: the other signal, SIGTERM" in shown
    assert "overnight: night is asked to stop again; a save that has begun is waited for" in shown


def requested(run: Run, count: int) -> bool:
    return len(run.facts("request")) >= count


def test_a_repeated_sigterm_is_one_request(runs: Runs, work: Path) -> None:
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *toy(*TRAIN, "--save-sec", 3))
    run = runs.run("night")
    run.wrote("step: 3,")
    for _ in range(3):
        more = len(run.facts("request")) + 1
        terminal.process.terminate()
        until(partial(requested, run, more), "the request was taken")
    assert terminal.wait() == 103
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == ["SIGINT"]
    assert "scheduler" in run.status["cause_text"]


def test_control_c_in_the_very_first_moments(runs: Runs) -> None:
    """Typed while the run is being placed: obeyed all the same, and never a traceback."""
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *toy("--steps", 5000))
    until((runs.home / "runs" / "night").exists, "the folder of the run")
    terminal.type(b"\x03")
    assert terminal.wait() == 103
    assert b"Traceback (most recent call last)" not in terminal.shown.partition(b"KeyboardInterrupt")[2]
    assert not runs.run("night").left()


def test_killed_with_9_the_run_goes_on(runs: Runs) -> None:
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--", *toy("--steps", 60))
    run = runs.run("night")
    run.wrote("step: 3,")
    terminal.process.kill()
    assert run.wait() == 0
    assert b"step: 60," in run.log


def test_the_output_is_passed_on_whole_and_the_code_too(runs: Runs) -> None:
    done = runs.overnight("run", "--name", "night", "--foreground", "--", *toy("--steps", 30, "--dt", 0.01))
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("step: ")] == [
        line for line in runs.run("night").log.decode().splitlines() if line.startswith("step: ")
    ]
    assert done.stdout.encode() == runs.run("night").log


# -- PID 1 -----------------------------------------------------------------------------------------------------------


class Container:
    """A pid namespace whose first process is ``overnight run --foreground``."""

    def __init__(self, runs: Runs, *words: object) -> None:
        self.outer = subprocess.Popen(
            ["unshare", "-pf", "--mount-proc", "--kill-child", "overnight", *map(str, words)],
            env=runs.env,
            cwd=runs.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def first(self) -> int:
        """Return the pid that the container's PID 1 has outside."""
        return int(until(lambda: read(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").split(), "PID 1")[0])

    def inside(self) -> list[int]:
        """Return the outer pids of all processes of the container, zombies included."""
        namespace = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                        found.append(int(name))
                except OSError:
                    continue
        return found

    def wait(self) -> tuple[int, bytes]:
        """Return (exit status, output)."""
        shown, _ = self.outer.communicate(timeout=40)
        return self.outer.returncode, shown


@pytest.fixture
def unshared() -> None:
    """Skip where a pid namespace cannot be made."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    probe = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no pid namespace may be made here: {probe.stderr.decode().strip()}")


@pytest.mark.usefixtures("unshared")
def test_as_pid_1_it_reaps_and_passes_the_stop_on(runs: Runs, work: Path) -> None:
    """B2-01: fifty orphans die, none stays a zombie; SIGTERM to PID 1 ends all within the grace, with a save."""
    train = toy(*TRAIN, "--spawn-zombies", 50, "--spawn", 2, "--spawn-setsid")
    box = Container(runs, "run", "--name", "night", "--foreground", "--grace", "10s", "--", *train)
    run = runs.run("night")
    run.wrote("step: 3,")
    assert len(spawned(run.log)) == 53
    until(lambda: not [pid for pid in box.inside() if state_of(pid) == "Z"], "no zombie", 10.0)
    os.kill(box.first, signal.SIGTERM)
    code, shown = box.wait()
    assert code == 103, shown
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == ["SIGINT"]
    seen = run.status
    assert (seen["state"], seen["exit_code"]) == ("stopped", 0)
    assert not [one for one in all_processes() if f"OVERNIGHT_HOME={runs.home}" in one.environ]


@pytest.mark.usefixtures("unshared")
def test_pid_1_ends_within_the_grace_though_all_are_deaf(runs: Runs) -> None:
    train = toy("--steps", 5000, "--ignore-int", "--ignore-term", "--spawn", 4)
    box = Container(runs, "run", "--name", "night", "--foreground", "--grace", "3s", "--", *train)
    run = runs.run("night")
    run.wrote("step: 3,")
    inside = box.inside()
    os.kill(box.first, signal.SIGTERM)
    code, shown = box.wait()
    assert code == 103, shown
    assert run.status["signal"] == "SIGKILL"
    (killed,) = run.facts("killed")
    assert 3.0 <= killed["seconds"] <= 5.0
    assert not any(map(alive, inside))


@pytest.mark.usefixtures("unshared")
@pytest.mark.parametrize(("switches", "code"), [((), 0), (("--exit-at", 10, "--exit-code", 7), 100)])
def test_pid_1_ends_when_the_training_ends(runs: Runs, switches: tuple[object, ...], code: int) -> None:
    train = toy("--steps", 30, "--spawn", 2, *switches)
    box = Container(runs, "run", "--name", "night", "--foreground", "--", *train)
    ended, shown = box.wait()
    assert ended == code, shown
    assert b"step: 10," in shown
    assert Run(runs, "night").status["state"] == ("failed" if code else "finished")
