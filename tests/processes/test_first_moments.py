"""A supervisor that is slower than the command, or that finds the attempt's files edited: no order may be lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, alive, read, toy, until

pytestmark = pytest.mark.timeout(90)

NAN_AT_ONCE = ("sh", "-c", 'echo "step: 1, loss: nan, dt: 1"; exec sleep 60')


def kept(home: Path, name: str) -> dict[str, Any]:
    """Return shim.json as far as it is there."""
    data = read(home / "runs" / name / "shim.json")
    found: dict[str, Any] = json.loads(data) if data else {}
    return found


def paused_supervisor(home: Path, name: str, after_s: float) -> int:
    """Stop the run's first supervisor ``after_s`` after it was made; return its pid."""

    def made() -> int | None:
        return (kept(home, name).get("supervisor") or {}).get("pid")

    pid = until(made, "a supervisor")
    time.sleep(after_s)
    with contextlib.suppress(ProcessLookupError):  # so late that it had done its work already
        os.kill(pid, signal.SIGSTOP)
    return pid


LONG = pytest.mark.long


def first_few(values: list[Any], few: int = 2) -> list[Any]:
    """Return all values for a long run of the tests, of which the first ``few`` stand for the others in each run."""
    return [*values[:few], *(pytest.param(value, marks=LONG) for value in values[few:])]


@pytest.mark.parametrize("after_s", first_few([0.0, 0.1, 0.05, 0.15, 0.2]))
def test_a_nan_on_the_first_line_ends_a_run_whose_supervisor_was_slow(runs: Runs, home: Path, after_s: float) -> None:
    environ = {**os.environ, "OVERNIGHT_HOME": str(home)}
    argv = [sys.executable, "-m", "overnight", "run", "--name", "late", "--settle", "0", "--", *NAN_AT_ONCE]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launching:
        pid = paused_supervisor(home, "late", after_s)
        time.sleep(0.4)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        launching.wait(20)
    run = runs.run("late")
    assert run.wait() == 104
    assert run.status["cause"] == "nonfinite"
    assert run.status["verdicts"][0]["step"] == 1


def attempt_file(home: Path, name: str) -> Path:
    return home / "runs" / "night" / "attempts" / "001" / name


def kill_supervisor(run: Run, home: Path) -> None:
    """Kill the supervisor and wait for the next one."""
    old = run.pid("supervisor")
    os.kill(old, signal.SIGKILL)
    until(lambda: (kept(home, "night").get("supervisor") or {}).get("pid") not in (None, old), "the next supervisor")


def started(runs: Runs) -> Run:
    return runs.start("night", *toy("--steps", 100000, "--dt", 0.02, "--handle", "int"), log="step: 3,")


@pytest.mark.parametrize(
    "text", first_few(['{"pid": 1, "start_ticks": 2, "at": "now"}', "no json", "{}", "[1]", '{"pid": "x"}'])
)
def test_an_edited_started_json_costs_nothing(runs: Runs, home: Path, text: str) -> None:
    run = started(runs)
    attempt_file(home, "started.json").write_text(text)
    kill_supervisor(run, home)
    assert run.stop().returncode == 0
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")
    assert b"Traceback" not in read(home / "runs" / "night" / "supervisor.log")


@pytest.mark.parametrize(
    "text", first_few(['{"cause": "user", "save": 1, "signalled": 1}', "no json", "{}", "[]", '{"cause": "user"}'])
)
def test_an_edited_stop_json_begins_the_stop_anew(runs: Runs, home: Path, text: str) -> None:
    run = started(runs)
    attempt_file(home, "stop.json").write_text(text)
    kill_supervisor(run, home)
    assert run.wait() == 103
    assert b"Traceback" not in read(home / "runs" / "night" / "supervisor.log")


def test_an_exit_json_edited_into_nonsense_is_an_unknown_exit(runs: Runs, home: Path) -> None:
    run = started(runs)
    supervisor, command = run.pid("supervisor"), run.status["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(command, signal.SIGKILL)
    path = attempt_file(home, "exit.json")
    until(path.exists, "exit.json")
    path.write_text('{"exit_code": "many", "signal": 9}')
    os.kill(supervisor, signal.SIGCONT)
    assert run.wait() == 100
    assert run.status["cause"] == "unknown_kill"


def test_a_stop_left_over_from_another_boot_touches_nobody(runs: Runs, home: Path) -> None:
    run = started(runs)
    command = run.status["pid"]
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        # As after a power loss: the pid is a stranger's now, the stop was written but not yet sent.
        told = json.loads(attempt_file(home, "started.json").read_text())
        attempt_file(home, "started.json").write_text(json.dumps({**told, "pid": stranger.pid, "boot_id": "another"}))
        attempt_file(home, "stop.json").write_text('{"cause": "user", "save": true, "signalled": false}')
        for name, change in (("run.json", {"boot_id": "another"}), ("shim.json", {"boot_id": "another"})):
            path = home / "runs" / "night" / name
            path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        assert run.wait() == 100
        assert run.status["cause"] == "host_rebooted"
        assert stranger.poll() is None
        assert "T" not in read(f"/proc/{stranger.pid}/stat").decode().split()[2]
    finally:
        stranger.kill()
        stranger.wait()
        os.kill(command, signal.SIGKILL)
        until(lambda: not alive(command), "the end of the old training")


def test_save_false_reaches_the_disk_on_the_ballast(runs: Runs, home: Path, work: Path) -> None:
    """No room for a new file, one megabyte of ballast: the order is written before the signal all the same."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    home.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(home)], check=False)
    if done.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        script = work / "train.py"
        script.write_text(
            "import json, os, signal, sys, time\n"
            "def asked(*_):\n"
            "    path = os.environ['OVERNIGHT_RUN_DIR'] + '/attempts/001/stop.json'\n"
            "    open('seen', 'w').write(open(path).read() if os.path.exists(path) else 'nothing')\n"
            "    sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, asked)\n"
            "step = 0\n"
            "while True:\n"
            "    step += 1\n"
            "    loss = 'nan' if os.path.exists('sick') else 3.0\n"
            "    print(f'step: {step}, loss: {loss}, dt: 0.1', flush=True)\n"
            "    time.sleep(0.1)\n"
        )
        run = runs.start("night", sys.executable, str(script), log="step: 3,")
        until((home / "runs" / "night" / "evidence" / "ballast").exists, "the ballast")
        with (home / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    pass
        (work / "sick").touch()
        until((work / "seen").exists, "the signal")
        assert json.loads((work / "seen").read_text())["save"] is False
        (home / "filler").unlink()
        assert run.wait() == 104
    finally:
        runs.end()
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.fixture
def small_disk(home: Path, runs: Runs) -> Iterator[Callable[[int], Path]]:
    """Return a function that makes ``home`` a disk of its own with so many bytes left; it returns the filler."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(home)], check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")

    def fill(left: int) -> Path:
        filler = home / "filler"
        with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"x" * 4096)
        os.truncate(filler, filler.stat().st_size // 4096 * 4096 - left)
        return filler

    yield fill
    runs.end()
    subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_launch_that_failed_starts_nothing_later(
    runs: Runs, small_disk: Callable[[int], Path], work: Path, tmp_path: Path
) -> None:
    """The launcher gives up after five seconds here, for the sake of the test; by itself it waits half a minute."""
    filler = small_disk(24 << 10)
    log = tmp_path / "late.log"
    impatient = "import sys; from overnight import cli, launch; launch.PLACED_WITHIN_S = 5.0; sys.exit(cli.main())"
    words = ["run", "--name", "late", "--settle", "0", "--log", log, "--", "sh", "-c", "echo TRAINING; sleep 30"]
    done = subprocess.run(
        [sys.executable, "-c", impatient, *words], env=runs.env, cwd=work, capture_output=True, timeout=60, check=False
    )
    assert done.returncode != 0
    filler.unlink()
    time.sleep(3.0)
    assert b"TRAINING" not in read(log)
    assert json.loads(runs.overnight("ls", "--json").stdout) == []


def test_a_full_home_keeps_no_stop_away(runs: Runs, small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    log = tmp_path / "full.log"
    run = runs.start("full", *toy("--steps", 100000, "--dt", 0.02, "--handle", "int"), flags=("--log", log))
    until(lambda: b"step: 3," in read(log), "the first steps")
    until((run.folder / "evidence" / "ballast").exists, "the ballast")
    small_disk(0)
    began = time.monotonic()
    done = run.stop()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")


def test_what_cannot_start_can_be_stopped(runs: Runs, home: Path) -> None:
    """The shim hangs (as it would without descriptors or processes to be had): the wish is taken back."""
    environ = {**os.environ, "OVERNIGHT_HOME": str(home)}
    argv = [
        sys.executable,
        "-m",
        "overnight",
        "run",
        "--name",
        "stuck",
        "--settle",
        "0",
        "--",
        "touch",
        str(home / "ran"),
    ]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launching:
        until(lambda: kept(home, "stuck").get("supervisor"), "a supervisor")
        shim = kept(home, "stuck")["shim"]["pid"]
        os.kill(shim, signal.SIGSTOP)
        run = runs.run("stuck")
        try:
            until((run.folder / "attempts" / "001" / "start.json").exists, "the wish")
            assert not (run.folder / "attempts" / "001" / "started.json").exists()
            assert run.stop().returncode == 0
            assert (run.status["state"], run.status["cause"]) == ("stopped", "user")
        finally:
            os.kill(shim, signal.SIGCONT)
            launching.wait(10)
    until(lambda: not alive(shim), "the end of the shim")
    assert run.status["state"] == "stopped"
    assert not (home / "ran").exists()


def test_a_pipe_in_the_inbox_holds_nobody_up(runs: Runs, home: Path) -> None:
    run = started(runs)
    os.mkfifo(run.folder / "inbox" / "d.json")
    time.sleep(0.5)
    assert run.stop().returncode == 0
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")


def test_a_deleted_working_folder_needs_no_name(runs: Runs, home: Path, work: Path) -> None:
    run = started(runs)
    gone = work / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m overnight stop night"
    environ = {**os.environ, "OVERNIGHT_HOME": str(home)}
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert run.status["state"] == "stopped"
