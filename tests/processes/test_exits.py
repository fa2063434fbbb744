"""State, cause and exit code are those of the user's own command, whatever wraps it and however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import PYTHON, Run, Runs, alive, signals, toy, until, whole

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
LONG = pytest.mark.long


def ended(run: Run) -> tuple[object, ...]:
    """Return (state, cause, exit_code, signal) as status has them, after checking that the attempt says the same."""
    seen = run.status
    (attempt,) = seen["attempts"]
    assert (attempt["exit_code"], attempt["signal"]) == (seen["exit_code"], seen["signal"])
    assert attempt["cause"] == seen["cause"]
    assert not run.left()
    return (seen["state"], seen["cause"], seen["exit_code"], seen["signal"])


# -- plain ends ------------------------------------------------------------------------------------------------------


def test_exit_7_in_the_first_moments(runs: Runs) -> None:
    done = runs.overnight("run", "--name", "night", "--", "sh", "-c", "echo one; echo two >&2; exit 7")
    assert done.returncode == 100
    assert "one\ntwo\n" in done.stderr, "the last lines of the log say why"
    assert ended(runs.run("night")) == ("failed", "crash", 7, None)
    assert "7" in runs.run("night").status["cause_text"]
    assert runs.run("night").wait() == 100


def test_exit_7_later(start: Start) -> None:
    run = start("night", *toy("--steps", 1000, "--exit-at", 10, "--exit-code", 7), log="step: 3,")
    assert run.wait() == 100
    assert ended(run) == ("failed", "crash", 7, None)
    assert run.status["attempts"][0]["last_step"] == 10


# 3 is the row's own, 127 a shell's word, 103 one of ours; the others differ in nothing from the first.
@pytest.mark.parametrize("code", [3, 103, 127, *(pytest.param(code, marks=LONG) for code in (1, 2, 255))])
def test_the_commands_own_code(runs: Runs, code: int) -> None:
    """A3-01: `exit 3` in the foreground is a failure by our table, and 3 on demand; never a success."""
    words = ("--foreground", "--", "sh", "-c", f"exit {code}")
    assert runs.overnight("run", "--name", "one", *words).returncode == 100
    assert runs.overnight("run", "--name", "two", "--pass-exit-code", *words).returncode == code
    cause = "usage" if code == 127 else "crash"  # a shell's word for a command that it did not find
    assert ended(runs.run("one")) == ("failed", cause, code, None)
    assert runs.overnight("wait", "one", "--pass-exit-code").returncode == code


def test_exit_0_without_a_plan_is_a_success(start: Start) -> None:
    run = start("night", *toy("--steps", 20))
    assert run.wait() == 0
    assert ended(run) == ("finished", "completed", 0, None)


def test_an_exception_is_a_crash(start: Start) -> None:
    run = start("night", *toy("--steps", 1000, "--crash-at", 10), log="step: 3,")
    assert run.wait() == 100
    assert ended(run) == ("failed", "crash", 1, None)
    assert b"crashed at step 10 as asked" in run.log


@pytest.mark.parametrize(
    "name", ["SEGV", "TERM", "INT", *(pytest.param(one, marks=LONG) for one in ("ABRT", "BUS", "USR1"))]
)
def test_a_signal_by_name(start: Start, name: str) -> None:
    run = start("night", *toy("--steps", 1000, "--kill-self", name, "--kill-self-at", 10), log="step: 3,")
    assert run.wait() == 100
    assert ended(run) in (("failed", "crash", None, f"SIG{name}"), ("failed", "crash", 1, None))
    if name in ("SEGV", "ABRT", "BUS", "TERM", "USR1"):
        assert run.status["signal"] == f"SIG{name}"
        assert f"SIG{name}" in run.status["cause_text"]
        assert run.runs.overnight("wait", "night", "--pass-exit-code").returncode == 128 + signal.Signals[f"SIG{name}"]


def test_sigkill_from_outside_is_no_crash_of_the_script(start: Start) -> None:
    run = start("night", *toy("--steps", 1000), log="step: 3,")
    os.kill(run.command, signal.SIGKILL)
    assert run.wait() == 100
    assert ended(run) == ("failed", "unknown_kill", None, "SIGKILL")


def test_a_hangup_of_the_child_is_told_in_plain_words(start: Start) -> None:
    """A1-03, second half."""
    run = start("night", *toy("--steps", 1000), log="step: 3,")
    os.kill(run.command, signal.SIGHUP)
    assert run.wait() == 100
    assert ended(run) == ("failed", "crash", None, "SIGHUP")
    assert "SIGHUP (terminal closed)" in run.status["cause_text"]


# -- the planned end -------------------------------------------------------------------------------------------------


def test_exit_0_before_the_planned_end(start: Start) -> None:
    """A3-03: a zero exit without reaching the planned end is no success."""
    run = start("night", *toy("--steps", 100, "--quit-quietly-at", 7), flags=("--steps", 100))
    assert run.wait() == 100
    assert ended(run) == ("failed", "ended_early", 0, None)
    assert "step 7 of 100" in run.status["cause_text"]


def test_exit_0_before_the_first_step(runs: Runs) -> None:
    done = runs.overnight("run", "--name", "night", "--steps", 100, "--", "sh", "-c", "echo no such checkpoint")
    assert done.returncode == 100
    assert ended(runs.run("night")) == ("failed", "ended_early", 0, None)


@pytest.mark.parametrize("steps", [20, 21])
def test_the_planned_end(start: Start, steps: int) -> None:
    """A script may count from 0 or from 1: 20 steps of 21 planned are its end too."""
    run = start("night", *toy("--steps", 20), flags=("--steps", steps))
    assert run.wait() == 0
    assert ended(run) == ("finished", "completed", 0, None)


def test_a_crash_after_the_planned_end(start: Start, work: Path) -> None:
    """A3-04: finished and saved, then the teardown dies of SIGSEGV."""
    run = start("night", *toy("--steps", 20, "--segv-after-end", "--checkpoints", "saved"), flags=("--steps", 20))
    assert run.wait() == 0
    assert ended(run) == ("finished", "bad_teardown", None, "SIGSEGV")
    assert "SIGSEGV" in run.status["cause_text"]
    assert whole(work / "saved") == ["checkpoint-000020.txt"]
    assert run.status["checkpoint"]["step"] == 20


def test_a_crash_at_the_last_but_a_few(start: Start) -> None:
    run = start("night", *toy("--steps", 20, "--segv-at", 15), flags=("--steps", 20))
    assert run.wait() == 100
    assert ended(run) == ("failed", "crash", None, "SIGSEGV")


# -- commands that cannot be executed --------------------------------------------------------------------------------


def refused(runs: Runs, *command: str) -> str:
    done = runs.overnight("run", "--name", "night", "--", *command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (runs.home / "runs" / "night").exists(), "no run was made"
    return done.stderr


def test_a_command_that_is_not_there(runs: Runs) -> None:
    assert "no-such-program" in refused(runs, "no-such-program", "--x")
    assert "./no/such.sh" in refused(runs, "./no/such.sh")


def test_a_command_that_is_not_executable(runs: Runs, work: Path) -> None:
    (work / "train.py").write_text("print(1)\n")
    assert "train.py" in refused(runs, "./train.py")
    assert str(work) in refused(runs, str(work)), "a folder"


def test_a_script_whose_interpreter_is_missing(runs: Runs, work: Path) -> None:
    """Found only by executing it: a run was made, and it says so in one sentence."""
    (work / "train.py").write_text("#!/no/such/python\nprint(1)\n")
    (work / "train.py").chmod(0o755)
    done = runs.overnight("run", "--name", "night", "--", "./train.py")
    assert done.returncode == 100
    seen = runs.run("night").status
    assert (seen["state"], seen["cause"], seen["exit_code"]) == ("failed", "usage", 127)
    assert "interpreter" in seen["cause_text"]
    assert "train.py" in done.stderr


def test_a_script_without_an_interpreter_line(runs: Runs, work: Path) -> None:
    (work / "train.sh").write_text("echo hello\n")
    (work / "train.sh").chmod(0o755)
    done = runs.overnight("run", "--name", "night", "--", "./train.sh")
    assert done.returncode == 100
    seen = runs.run("night").status
    assert (seen["state"], seen["cause"], seen["exit_code"]) == ("failed", "usage", 126)
    assert "interpreter line" in seen["cause_text"]


# -- wrappers that hide the end --------------------------------------------------------------------------------------


FAULTS = [
    (("--crash-at", 30), "exited with code 1"),
    (("--segv-at", 30), "SIGSEGV"),
    (("--exit-at", 30, "--exit-code", 7), "exited with code 7"),
]
WRAPPERS = ["{} 2>&1 | tee -a x.log", "{}; true", "{} || echo failed", "{} | cat"]


# Every wrapper and every end, the first two wrappers with two of them; all pairs in the long run.
@pytest.mark.parametrize(
    ("wrapper", "fault", "told"),
    [
        pytest.param(wrapper, *fault, marks=[] if (at + also) % 3 == 0 or (at, also) in ((0, 1), (1, 0)) else LONG)
        for at, wrapper in enumerate(WRAPPERS)
        for also, fault in enumerate(FAULTS)
    ],
)
def test_a_crash_behind_a_wrapper_that_exits_0(
    start: Start, wrapper: str, fault: tuple[object, ...], told: str
) -> None:
    command = wrapper.format(" ".join(toy("--steps", 1000, *fault)))
    run = start("night", "bash", "-c", command, log="step: 3,")
    assert run.wait() == 100
    seen = run.status
    assert (seen["state"], seen["cause"], seen["exit_code"]) == ("failed", "crash", 0)
    assert told in seen["cause_text"]


def test_an_early_crash_behind_tee(runs: Runs) -> None:
    """It dies in its first step, before anybody had time to look around twice."""
    command = " ".join(toy("--steps", 1000, "--crash-at", 2)) + " 2>&1 | tee -a x.log"
    done = runs.overnight("run", "--name", "night", "--", "sh", "-c", command)
    assert done.returncode == 100
    assert runs.run("night").status["cause"] == "crash"


def test_a_success_behind_tee_is_a_success(start: Start) -> None:
    run = start("night", "sh", "-c", " ".join(toy("--steps", 30)) + " 2>&1 | tee -a x.log", log="step: 3,")
    assert run.wait() == 0
    assert ended(run) == ("finished", "completed", 0, None)


def test_a_shell_that_reports_its_childs_signal(start: Start) -> None:
    """Bash exits with 139: the cause names SIGSEGV."""
    run = start("night", "bash", "-c", " ".join(toy("--steps", 1000, "--segv-at", 30)) + "; exit $?", log="step: 3,")
    assert run.wait() == 100
    assert ended(run) == ("failed", "crash", 139, None)
    assert "SIGSEGV" in run.status["cause_text"]


def test_commands_before_the_training_do_not_count(start: Start) -> None:
    """A step of preparation that fails and is ignored by the script is no crash of the training."""
    prepare = f"{PYTHON} -c 'import time; time.sleep(0.5); raise SystemExit(3)' || true; "
    run = start("night", "bash", "-c", prepare + " ".join(toy("--steps", 30)) + "; true", log="step: 3,")
    assert run.wait() == 0
    assert ended(run) == ("finished", "completed", 0, None)


# -- signals that were ignored where the run was started -------------------------------------------------------------


def test_a_run_started_in_the_background_of_a_script_gets_its_sigint(runs: Runs, work: Path) -> None:
    """A script's `&` starts its child with SIGINT ignored; the training must not inherit that."""
    train = " ".join(toy("--steps", 1000, "--handle", "int", "--checkpoints", "saved", "--signals", "signals"))
    text = f"overnight run --name night --settle 0.05 -- {train} &\nwait\n"
    subprocess.run(["bash", "-c", text], env=runs.env, cwd=work, check=True, capture_output=True, timeout=30)
    run = runs.run("night")
    run.wrote("step: 3,")
    assert run.stop().returncode == 0
    assert run.wait() == 103
    assert signals(work / "signals") == ["SIGINT"]
    assert len(whole(work / "saved")) == 1


def test_a_plain_python_started_so_is_interrupted(runs: Runs, work: Path) -> None:
    """Python installs its handler only if SIGINT is not ignored when it starts."""
    text = "overnight run --name night --settle 0.05 -- " + " ".join(toy("--steps", 1000)) + " &\nwait\n"
    subprocess.run(["sh", "-c", text], env=runs.env, cwd=work, check=True, capture_output=True, timeout=30)
    run = runs.run("night")
    run.wrote("step: 3,")
    assert run.stop().returncode == 0
    assert b"KeyboardInterrupt" in run.log
    assert run.status["signal"] == "SIGINT"


def test_nohup_and_a_foreground_in_the_background(runs: Runs, work: Path) -> None:
    """`nohup overnight run --foreground ... &` in a script: SIGINT and SIGHUP ignored; SIGTERM still stops well."""
    train = " ".join(toy("--steps", 1000, "--handle", "int", "--checkpoints", "saved"))
    shell = f"nohup overnight run --name night --foreground -- {train} >/dev/null 2>&1 & echo $!; wait $!"
    outer = subprocess.Popen(["bash", "-c", shell], env=runs.env, cwd=work, stdout=subprocess.PIPE, text=True)
    assert outer.stdout is not None
    pid = int(outer.stdout.readline())
    run = runs.run("night")
    run.wrote("step: 3,")
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGINT)
    until(lambda: run.facts("stopping"), "the stop")
    assert outer.wait(30) == 103
    outer.stdout.close()
    assert not alive(pid)
    assert len(whole(work / "saved")) == 1
