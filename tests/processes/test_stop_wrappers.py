"""A stop reaches the training through shells, launchers and pipes; nothing that stands above it goes on afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import BIN, PYTHON, Run, alive, signals, spawned, toy, whole

pytestmark = pytest.mark.timeout(60)

Make = Callable[[Path, list[str]], list[str]]


def script(work: Path, name: str, text: str) -> str:
    path = work / name
    path.write_text(text)
    path.chmod(0o755)
    return name


def bash_script(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"{shlex.join(train)}\ntouch next\n")]


def executable_script(work: Path, train: list[str]) -> list[str]:
    return ["./" + script(work, "run.sh", f"#!/bin/bash\nset -euo pipefail\n{shlex.join(train)}\ntouch next\n")]


def bash_that_ignores_errors(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"{shlex.join(train)} || true\ntouch next\nsleep 300\n")]


def sh_and(work: Path, train: list[str]) -> list[str]:
    return ["sh", "-c", f"{shlex.join(train)} && touch next"]


def bash_semicolon(work: Path, train: list[str]) -> list[str]:
    return ["bash", "-c", f"cd . ; {shlex.join(train)} ; touch next"]


def script_in_script(work: Path, train: list[str]) -> list[str]:
    script(work, "inner.sh", f"#!/bin/sh\n{shlex.join(train)}\ntouch next\n")
    return ["bash", script(work, "run.sh", "./inner.sh\ntouch next\n")]


def subshell(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"( {shlex.join(train)}; touch next )\ntouch next\n")]


def restart_loop(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"while true; do {shlex.join(train)}; touch next; sleep 0.1; done\n")]


def trap_and_wait(work: Path, train: list[str]) -> list[str]:
    return [
        "bash",
        script(work, "run.sh", f"{shlex.join(train)} &\npid=$!\ntrap 'kill -TERM $pid' TERM\nwait $pid\nwait $pid\n"),
    ]


def background_and_wait(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"{shlex.join(train)} &\nwait\ntouch next\n")]


def env(work: Path, train: list[str]) -> list[str]:
    return ["env", "X=1", *train]


def nice(work: Path, train: list[str]) -> list[str]:
    return ["nice", "-n", "5", *train]


def timeout(work: Path, train: list[str]) -> list[str]:
    return ["timeout", "600", *train]


def timeout_in_bash(work: Path, train: list[str]) -> list[str]:
    return ["bash", script(work, "run.sh", f"timeout 600 nice {shlex.join(train)}\ntouch next\n")]


def tee(work: Path, train: list[str]) -> list[str]:
    return ["sh", "-c", f"{shlex.join(train)} 2>&1 | tee -a x.log"]


def tee_then_next(work: Path, train: list[str]) -> list[str]:
    return ["bash", "-c", f"set -o pipefail; {shlex.join(train)} 2>&1 | tee -a x.log && touch next"]


def tee_by_process_substitution(work: Path, train: list[str]) -> list[str]:
    return ["bash", "-c", f"{shlex.join(train)} > >(tee -a x.log) 2>&1; touch next"]


def uv_run(work: Path, train: list[str]) -> list[str]:
    if shutil.which("uv", path=f"{BIN}:{os.environ['PATH']}") is None:
        pytest.skip("uv is not installed")
    return ["uv", "run", "--no-project", "--offline", "--python", PYTHON, *train]


def make(work: Path, train: list[str]) -> list[str]:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    script(work, "Makefile", f"all: train\n\ttouch next\ntrain:\n\t{shlex.join(train)}\n")
    return ["make"]


def launcher_run(work: Path, train: list[str]) -> list[str]:
    text = f"import subprocess, sys\nsys.exit(subprocess.run({train!r}).returncode)\n"
    return [PYTHON, script(work, "launch.py", text)]


def launcher_check_call(work: Path, train: list[str]) -> list[str]:
    return [PYTHON, "-c", f"import subprocess\nsubprocess.check_call({train!r})\n"]


def launcher_that_reads_a_pipe(work: Path, train: list[str]) -> list[str]:
    text = (
        f"import subprocess, sys\nchild = subprocess.Popen({train!r}, stdout=subprocess.PIPE, text=True)\n"
        "for line in child.stdout:\n    print(line, end='', flush=True)\nsys.exit(child.wait())\n"
    )
    return [PYTHON, script(work, "launch.py", text)]


def launcher_of_a_shell(work: Path, train: list[str]) -> list[str]:
    text = f"import subprocess\nsubprocess.run({shlex.join(train) + '; touch next'!r}, shell=True)\n"
    return [PYTHON, script(work, "launch.py", text)]


WRAPPERS: list[Make] = [
    bash_script, executable_script, bash_that_ignores_errors, sh_and, bash_semicolon, script_in_script, subshell,
    restart_loop, trap_and_wait, background_and_wait, env, nice, timeout, timeout_in_bash, tee, tee_then_next,
    tee_by_process_substitution, uv_run, make, launcher_run, launcher_check_call, launcher_that_reads_a_pipe,
    launcher_of_a_shell,
]  # fmt: skip


# Every wrapper in each run of the tests, with one of the two signals in turn; both with each in the long one.
@pytest.mark.parametrize(
    ("handle", "wrapper"),
    [
        pytest.param(handle, wrapper, marks=[] if (at + also) % 2 == 0 else pytest.mark.long)
        for also, handle in enumerate(["int", "term"])
        for at, wrapper in enumerate(WRAPPERS)
    ],
)
def test_a_stop_goes_through(start: Callable[..., Run], work: Path, wrapper: Make, handle: str) -> None:
    train = toy("--steps", 2000, "--handle", handle, "--checkpoints", "saved", "--signals", "signals", "--spawn", 1)
    run = start("night", *wrapper(work, train), log="step: 3,")
    children = spawned(run.log)
    assert len(children) == 1
    done = run.stop()
    assert done.returncode == 0
    seen = run.status
    assert (seen["state"], seen["cause"], run.wait()) == ("stopped", "user", 103)
    assert len(whole(work / "saved")) == 1, "the checkpoint was written"
    assert run.log.count(b"finishing after step") == 5
    assert signals(work / "signals") == [f"SIG{handle.upper()}"], "the training got its signal once"
    assert not (work / "next").exists(), "the next command was not started"
    assert not run.facts("killed")
    assert not any(map(alive, children))
    assert not run.left()
    if "tee" in wrapper.__name__:
        assert (work / "x.log").read_text().count("finishing after step") == 5


@pytest.mark.parametrize("wrapper", [bash_script, trap_and_wait, tee, launcher_run, timeout])
def test_a_wrapper_that_gets_no_stop_ends_as_it_would(start: Callable[..., Run], work: Path, wrapper: Make) -> None:
    run = start("night", *wrapper(work, toy("--steps", 20)))
    assert run.wait() == 0
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    assert (work / "next").exists() == (wrapper is bash_script)


def test_two_trainings_side_by_side_both_save(start: Callable[..., Run], work: Path) -> None:
    """A script that starts one training per device and waits for them: each is asked, each once."""
    lines = [
        shlex.join(toy("--steps", 2000, "--handle", "int", "--checkpoints", f"saved{n}", "--signals", f"signals{n}"))
        for n in (1, 2)
    ]
    text = "".join(f"{line} &\n" for line in lines) + "wait\ntouch next\n"
    run = start("night", "bash", script(work, "run.sh", text))
    run.wrote("step: 3,")
    assert run.stop().returncode == 0
    assert run.wait() == 103
    for number in (1, 2):
        assert len(whole(work / f"saved{number}")) == 1
        assert signals(work / f"signals{number}") == ["SIGINT"]
    assert not (work / "next").exists()
    assert not run.left()


def test_a_stop_between_two_commands_of_a_script(start: Callable[..., Run], work: Path) -> None:
    """The shell is in a plain `sleep`: it is ended itself, and nothing that follows is started."""
    run = start("night", "bash", script(work, "run.sh", "echo prepared\nsleep 300\ntouch next\n"), log="prepared")
    assert run.stop().returncode == 0
    assert (run.status["state"], run.wait()) == ("stopped", 103)
    assert not (work / "next").exists()
    assert not run.facts("killed"), "well within the grace"
    assert not run.left()
