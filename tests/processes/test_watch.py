"""`overnight watch` takes over a training that was started by hand: judged, stopped and settled like any other."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, Terminal, alive, keepers, read, toy, until

pytestmark = pytest.mark.timeout(90)

Overnight = Callable[..., subprocess.CompletedProcess[str]]

TRAINER = """
import os, sys, time
print("step: 0, loss: nan, dt: 0.05", flush=True)
step = 1
while True:
    sick = "nan" if os.path.exists("sick") else "2.5"
    print(f"step: {step}, loss: {sick}, dt: 0.05", flush=True)
    if os.path.exists("end"):
        sys.exit(int(open("end").read()))
    time.sleep(0.05)
    step += 1
"""

KERNEL_TELLS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


class ByHand:
    """Trainings that nobody but the test keeps."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.log = runs.work / "train.log"
        self.script = runs.work / "trainer.py"
        self.script.write_text(TRAINER)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: object, log: str = "step: 3,", **how: Any) -> int:
        """Start a command whose output goes to train.log, and return its pid once the log has ``log``."""
        words = [str(word) for word in command or (PYTHON, self.script)]
        with self.log.open("ab") as stream:
            how = {"stdout": stream, "stderr": stream, **how}
            process = subprocess.Popen(words, cwd=self.runs.work, env=self.runs.env, stdin=subprocess.DEVNULL, **how)
        self.started.append(process)
        if log:
            until(lambda: log.encode() in read(self.log), f"{log!r} in its log")
        return process.pid

    def watch(self, pid: int, *flags: object) -> Run:
        done = self.runs.overnight("watch", "--pid", pid, "--name", "w", *flags)
        assert done.returncode == 0, done.stderr
        return self.runs.run("w")

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@pytest.fixture
def by_hand(runs: Runs) -> Iterator[ByHand]:
    found = ByHand(runs)
    yield found
    found.end()


def judged(run: Run) -> dict[str, Any]:
    """Return the first status with a record."""
    return until(lambda: (one := run.file("status.json")).get("records") and one, "a record")


def test_it_is_a_run_like_any_other(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start()
    done = runs.overnight("watch", "--pid", pid, "--name", "w", "--params", "124M", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["name"], told["pid"], told["log"], told["state"]) == ("w", pid, str(by_hand.log), "running")
    run = runs.run("w")
    judged(run)
    one = run.status
    assert (one["state"], one["pid"], one["params"], one["verdicts"]) == ("running", pid, 124_000_000, [])
    assert one["supervisor"]["alive"]
    assert one["shim"]["alive"]
    spec = run.file("run.json")["spec"]
    assert (spec["watched"], spec["argv"], spec["cwd"]) == (True, [PYTHON, str(by_hand.script)], str(runs.work))
    assert os.path.samefile(spec["executable"], sys.executable)
    started = run.file("attempts/001/started.json")
    assert set(started) == {"pid", "start_ticks", "boot_id", "at"}
    assert abs(started["at"] - time.time()) < 60
    assert runs.overnight("ls").stdout.count("running") == 1
    assert alive(pid)


def test_only_new_lines_are_judged_and_a_nan_ends_it(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start()
    run = by_hand.watch(pid)
    first = judged(run)
    assert (first["state"], first["verdict_count"]) == ("running", 0)
    (runs.work / "sick").touch()
    assert run.wait() == 104
    assert not alive(pid)
    one = run.status
    assert (one["state"], one["cause"]) == ("stopped", "nonfinite")
    assert run.file("attempts/001/stop.json")["save"] is False


def test_a_line_that_was_half_written_is_read_as_a_whole(by_hand: ByHand, runs: Runs) -> None:
    script = """if 1:
        import os, time
        print("step: 7, loss: 1.5, dt: 0.1\\nstep: 8, lo", end="", flush=True)
        while not os.path.exists("go"): time.sleep(0.02)
        print("ss: 2.25, dt: 0.1", flush=True)
        time.sleep(600)
    """
    run = by_hand.watch(by_hand.start(PYTHON, "-c", script, log="step: 8, lo"))
    (runs.work / "go").touch()
    one = judged(run)
    assert (one["step"], one["loss"], one["records"]) == (8, 2.25, 1)


def test_a_stop_is_the_ladder_on_the_process_itself(by_hand: ByHand, runs: Runs) -> None:
    saves = runs.work / "saves"
    shell = by_hand.start(
        "sh", "-c", f"{' '.join(toy('--steps', 2000, '--handle', 'int', '--checkpoints', saves))}; sleep 600"
    )
    beside = by_hand.start("sleep", "600", log="")
    run = by_hand.watch(shell)
    judged(run)
    assert run.stop().returncode == 0
    one = run.status
    assert (one["state"], one["cause"]) == ("stopped", "user")
    assert b"toy: SIGINT came" in read(by_hand.log)
    assert list(saves.glob("checkpoint-*.txt"))
    assert not alive(shell)
    assert alive(beside)


def test_one_that_ignores_signals_is_killed_with_all_below_it(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start(*toy("--steps", 2000, "--ignore-int", "--ignore-term", "--spawn", 2), log="step: 2,")
    children = [
        int(line.split()[2]) for line in read(by_hand.log).decode().splitlines() if line.startswith("toy: child ")
    ]
    assert len(children) == 2
    run = by_hand.watch(pid)
    assert run.stop("--now").returncode == 0
    assert run.status["signal"] == "SIGKILL"
    until(lambda: not any(map(alive, (pid, *children))), "nothing of it is left")


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize(
    ("end", "ended"),
    [
        ("0", ("finished", 0, None)),
        ("7", ("failed", 7, None)),
        (signal.SIGKILL, ("failed", None, "SIGKILL")),
    ],
)
def test_its_exit_is_learnt(
    by_hand: ByHand, runs: Runs, end: str | int, ended: tuple[str, int | None, str | None], *, reaped: bool
) -> None:
    """From the zombie while its parent does not look, from the kernel's memory after that."""
    if reaped and not KERNEL_TELLS:
        pytest.skip("this kernel tells nobody but a parent")
    pid = by_hand.start()
    run = by_hand.watch(pid)
    judged(run)
    if isinstance(end, int):
        os.kill(pid, end)
    else:
        (runs.work / "end.new").write_text(end)
        (runs.work / "end.new").rename(runs.work / "end")
    if reaped:
        by_hand.started[0].wait(20)
    run.wait()
    one = run.status
    assert (one["state"], one["exit_code"], one["signal"]) == ended
    assert not (run.folder / "attempts" / "001" / "exit.json").exists()


def test_an_exit_that_nobody_saw_is_called_unknown(by_hand: ByHand) -> None:
    pid = by_hand.start()
    run = by_hand.watch(pid)
    judged(run)
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    until(lambda: not keepers(run.folder), "its keepers are dead")
    assert alive(pid)
    by_hand.started[0].kill()
    by_hand.started[0].wait()
    assert run.wait() == 100
    one = run.status
    assert (one["state"], one["exit_code"], one["signal"]) == ("failed", None, None)
    assert "could not be learnt" in one["cause_text"]


@pytest.mark.parametrize("role", ["supervisor", "shim", "guard"])
def test_a_killed_keeper_changes_nothing(by_hand: ByHand, runs: Runs, role: str) -> None:
    pid = by_hand.start()
    run = by_hand.watch(pid)
    judged(run)
    killed = run.pid(role)
    os.kill(killed, signal.SIGKILL)
    until(
        lambda: (run.file("shim.json").get(role) or {}).get("pid") != killed, "its place is taken, or known to be empty"
    )
    records = run.file("status.json")["records"]
    until(lambda: run.file("status.json")["records"] > records, "it is watched on")
    assert alive(pid)
    attempt = run.folder / "attempts" / "001"
    assert sorted(path.name for path in attempt.iterdir()) == ["start.json", "started.json"]
    assert sorted(path.name for path in attempt.parent.iterdir()) == ["001"]
    (runs.work / "end").write_text("0")
    assert run.wait() == 0


def test_it_is_not_watched_twice(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start()
    run = by_hand.watch(pid)
    done = runs.overnight("watch", "--pid", pid)
    assert done.returncode == 2
    assert "is watched by the run w" in done.stderr
    assert run.file("status.json")["state"] == "running"


def test_a_pipe_needs_the_file_named(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start("sh", "-c", f"{PYTHON} trainer.py 2>/dev/null | tee -a train.log; true")
    below = [int(word) for word in read(f"/proc/{pid}/task/{pid}/children").split()]
    (inner,) = (one for one in below if b"trainer.py" in read(f"/proc/{one}/cmdline"))
    done = runs.overnight("watch", "--pid", inner)
    assert done.returncode == 2
    assert "goes to a pipe" in done.stderr
    assert "--log FILE" in done.stderr
    assert not (runs.home / "runs").exists() or not list((runs.home / "runs").iterdir())
    run = by_hand.watch(inner, "--log", "train.log")
    assert run.file("run.json")["spec"]["log"] == str(by_hand.log)
    judged(run)
    assert run.stop().returncode == 0


def test_a_keeper_that_comes_late_hides_no_exit(by_hand: ByHand, runs: Runs) -> None:
    """The guard takes a dead shim's place while the training has ended and the supervisor has not looked yet."""
    if not KERNEL_TELLS:
        pytest.skip("this kernel tells nobody but a parent")
    run = by_hand.watch(by_hand.start())
    judged(run)
    supervisor, shim = run.pid("supervisor"), run.pid("shim")
    os.kill(supervisor, signal.SIGSTOP)
    (runs.work / "end").write_text("7")
    by_hand.started[0].wait(20)
    os.kill(shim, signal.SIGKILL)
    until(lambda: (run.file("shim.json")["shim"] or {}).get("pid") == run_guard(run), "the guard keeps the run")
    os.kill(supervisor, signal.SIGCONT)
    assert run.wait() == 100
    assert run.status["exit_code"] == 7


def run_guard(run: Run) -> int:
    """Return the pid of the process that keeps a run after its shim was killed."""
    return next((one.pid for one in keepers(run.folder) if "shim.py" in " ".join(one.words)), 0)


def test_one_that_hangs_on_a_terminal_is_named(by_hand: ByHand, runs: Runs) -> None:
    terminal = Terminal([PYTHON, str(by_hand.script)], env=runs.env, cwd=runs.work)
    try:
        until(lambda: b"step: 1," in terminal.shown, "a step on its terminal")
        done = runs.overnight("watch", "--pid", terminal.process.pid, "--name", "w")
        assert done.returncode == 2
        assert "goes to /dev/pts/" in done.stderr
        by_hand.log.touch()
        done = runs.overnight("watch", "--pid", terminal.process.pid, "--name", "w", "--log", by_hand.log)
        assert done.returncode == 0, done.stderr
        assert "still hangs on its terminal" in done.stderr
        assert runs.run("w").stop("--now").returncode == 0
    finally:
        terminal.close()


def test_standard_error_will_do(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start(PYTHON, "-c", "import time; time.sleep(600)", log="", stdout=subprocess.PIPE)
    run = by_hand.watch(pid)
    asked = run.file("run.json")
    assert (asked["spec"]["log"], asked["origins"]["log"]) == (
        str(by_hand.log),
        f"the standard error of process {pid}",
    )


def test_a_file_without_a_name_is_none(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start()
    by_hand.log.unlink()
    done = runs.overnight("watch", "--pid", pid)
    assert done.returncode == 2
    assert "has no name any more" in done.stderr


def test_settings_come_from_the_trainings_folder_and_flags_from_here(by_hand: ByHand, runs: Runs, home: Path) -> None:
    (runs.work / "overnight.toml").write_text("steps = 1234\nrestarts = 3\ngrace = '7s'\n")
    pid = by_hand.start()
    home.mkdir()
    (home / "here").mkdir()
    work, runs.work = runs.work, home
    done = runs.overnight("watch", "--pid", pid, "--name", "w", "--checkpoints", "here")
    runs.work = work
    assert done.returncode == 0, done.stderr
    assert "restarts" in done.stderr
    spec = runs.run("w").file("run.json")["spec"]
    assert (spec["steps"], spec["restarts"], spec["grace_s"]) == (1234, 0, 7.0)
    assert spec["checkpoints"] == str(home / "here")


# -- refusals ----------------------------------------------------------------------------------------------------------


def refused(runs: Runs, *words: object) -> str:
    """Return what was said of a watch that cannot be; one sentence, exit code 2, and no folder is left."""
    done = runs.overnight("watch", *words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert len(done.stderr.strip().splitlines()) == 1
    folder = runs.home / "runs"
    assert not folder.exists() or not [path for path in folder.iterdir() if path.name != "other"]
    return done.stderr


@pytest.mark.parametrize("word", ["0", "-3", "train.py", "", "1.5", "9" * 30])
def test_a_pid_is_a_number(runs: Runs, word: str) -> None:
    assert "--pid" in refused(runs, f"--pid={word}")


def test_a_pid_that_nobody_has(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start("true", log="")
    by_hand.started[0].wait(20)
    assert f"there is no process {pid}" in refused(runs, "--pid", pid)


def test_a_zombie(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start("true", log="")
    until(lambda: not alive(pid), "it ends")
    assert "has ended already" in refused(runs, "--pid", pid)


def test_the_first_process(runs: Runs) -> None:
    assert "process 1 is the init" in refused(runs, "--pid", 1)


def test_the_one_that_asks_or_who_is_above_it(runs: Runs) -> None:
    assert "above this command" in refused(runs, "--pid", os.getpid())


def test_a_thread(by_hand: ByHand, runs: Runs) -> None:
    script = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); time.sleep(600)"
    pid = by_hand.start(PYTHON, "-c", script, log="")
    thread = until(lambda: [one for one in os.listdir(f"/proc/{pid}/task") if one != str(pid)], "a thread")[0]
    assert f"give --pid {pid}" in refused(runs, "--pid", thread)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_another_users_process(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start("sleep", "600", log="", user=65534)
    assert "is another user's (uid 65534)" in refused(runs, "--pid", pid)


def test_a_run_of_our_own(runs: Runs) -> None:
    run = runs.start("other", *toy("--steps", 2000), log="step: 1,")
    assert "belongs to the run other" in refused(runs, "--pid", run.command)
    assert "one of Overnight's own" in refused(runs, "--pid", run.pid("supervisor"))


@pytest.mark.parametrize("flag", ["--restarts=3", "--resume-args=--resume", "--recover", "--backoff=3s"])
def test_what_would_start_it_again(by_hand: ByHand, runs: Runs, flag: str) -> None:
    pid = by_hand.start()
    assert "cannot be started again" in refused(runs, "--pid", pid, flag)
    assert alive(pid)


def test_a_log_that_is_not_there(by_hand: ByHand, runs: Runs) -> None:
    pid = by_hand.start()
    assert "does not exist" in refused(runs, "--pid", pid, "--log", "nosuch.log")


def test_a_name_that_is_taken(by_hand: ByHand, runs: Runs) -> None:
    runs.start("other", *toy("--steps", 1)).wait()
    assert "already used" in refused(runs, "--pid", by_hand.start(), "--name", "other")
