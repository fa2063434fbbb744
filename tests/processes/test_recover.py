"""After a reboot `overnight recover` goes on with what was started with --recover, once, and with nothing else.

The reboot is played: everything of a run is killed, and its files are made those of another boot.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, alive, belonging, keepers, toy, until

from overnight.processes import boot_id

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
Overnight = Callable[..., subprocess.CompletedProcess[str]]

TRAINER = """
import os, sys, time
print("words", *sys.argv[1:], "given", os.environ.get("GIVEN"), "attempt", os.environ["OVERNIGHT_ATTEMPT"], flush=True)
step = 100 if "--resume" in sys.argv else 0
while not (step >= 105 and "--short" in sys.argv):
    print(f"step: {step}, loss: 2.5, dt: 0.05", flush=True)
    time.sleep(0.05)
    step += 1
"""

ADOPT = """
import pathlib, sys
from overnight import folder, launch
launch.adopt(folder.RunFolder(pathlib.Path(sys.argv[1])))
"""


def reboot(*runs: Run) -> None:
    """Kill guards, shims, supervisors and commands, and make every file of the runs one of an earlier boot."""
    for run in runs:
        # Guards and shims before the rest: the one above would take a dead one's work over.
        for one in sorted(keepers(run.folder), key=lambda process: process.pid) + belonging(run.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        until(lambda run=run: not [*keepers(run.folder), *belonging(run.folder)], "everything of it is dead")
    other = str(uuid.uuid4()).encode()
    for run in runs:
        for path in run.folder.rglob("*"):
            if path.is_file() and path.suffix in (".json", ".jsonl", "") and path.parent.name != "evidence":
                path.write_bytes(path.read_bytes().replace(boot_id().encode(), other))


@pytest.fixture
def script(work: Path) -> Path:
    path = work / "trainer.py"
    path.write_text(TRAINER)
    return path


@pytest.fixture
def interrupted(start: Start, script: Path) -> Callable[..., Run]:
    """Return ``interrupted(name, *words, flags)``: a run that a reboot has ended."""

    def make(name: str, *words: str, flags: tuple[str, ...] = ("--recover", "--resume-args=--resume latest")) -> Run:
        run = start(name, PYTHON, script, *words, flags=flags, log="step: 3,")
        until(lambda: run.file("status.json").get("step"), "a step in its status")
        reboot(run)
        return run

    return make


def test_a_run_goes_on_with_the_next_attempt(runs: Runs, start: Start, script: Path, overnight: Overnight) -> None:
    runs.env["GIVEN"] = "at launch"
    run = start("r", PYTHON, script, "--short", flags=["--recover", "--resume-args", "--resume latest"], log="step: 3,")
    runs.env["GIVEN"] = "later"
    reboot(run)
    listed = json.loads(overnight("ls", "--json").stdout)
    assert [(one["state"], one["cause"]) for one in listed] == [("failed", "host_rebooted")]
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("r: goes on: attempt 2, pid ")
    assert run.wait() == 0
    first, second = (line for line in run.log.decode().splitlines() if line.startswith("words"))
    assert first == "words --short given at launch attempt 1"
    assert second == "words --short --resume latest given at launch attempt 2"
    one = run.status
    assert (one["state"], one["attempt"], one["step"]) == ("finished", 2, 104)
    assert [attempt["cause"] for attempt in one["attempts"]] == ["host_rebooted", "completed"]
    (fact,) = run.facts("recovered")
    assert fact["boot_id"] == boot_id()


def test_all_that_went_on_is_brought_back(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    one, other = interrupted("one"), interrupted("other")
    interrupted("third", flags=())
    done = overnight("recover", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(fact["name"], fact["result"], fact["attempt"]) for fact in told] == [
        ("one", "recovered", 2),
        ("other", "recovered", 2),
    ]
    assert all(alive(fact["pid"]) for fact in told)
    assert overnight("recover").stdout == "nothing to bring back\n"
    for run in (one, other):
        assert run.stop().returncode == 0
        assert run.status["state"] == "stopped"


def test_it_comes_back_from_every_reboot(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    run = interrupted("r")
    assert overnight("recover").returncode == 0
    run.wrote("attempt 2")
    until(lambda: run.file("status.json").get("state") == "running", "it runs")
    reboot(run)
    assert overnight("recover").returncode == 0
    run.wrote("attempt 3")
    assert run.stop().returncode == 0
    assert len(run.facts("recovered")) == 2


def test_one_that_was_settled_before_comes_back_too(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    run = interrupted("r")
    subprocess.run([PYTHON, "-c", ADOPT, str(run.folder)], check=True)
    until(lambda: run.file("status.json")["cause"] == "host_rebooted", "the reboot is written down")
    assert run.wait() == 100
    assert overnight("recover", "r").returncode == 0
    run.wrote("attempt 2")
    assert run.stop().returncode == 0


def test_asked_twice_at_once_it_is_started_once(runs: Runs, interrupted: Callable[..., Run]) -> None:
    run = interrupted("r")
    words = ["overnight", "recover", "r"]
    both = [
        subprocess.Popen(words, env=runs.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=60) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sorted("goes on" in out for out, _ in said) == [False, True]
    run.wrote("attempt 2")
    trainings = [process for process in belonging(run.folder) if "trainer.py" in " ".join(process.words)]
    assert len(trainings) == 1
    assert sorted(one.pid for one in keepers(run.folder)) == sorted(
        run.pid(role) for role in ("guard", "shim", "supervisor")
    )
    assert not (run.folder / "attempts" / "003").exists()


def test_a_live_run_is_left_alone(start: Start, script: Path, overnight: Overnight) -> None:
    run = start("r", PYTHON, script, flags=["--recover"], log="step: 1,")
    command = run.command
    done = overnight("recover", "r")
    assert (done.returncode, done.stdout) == (0, "r: is running: left alone\n")
    assert overnight("recover").stdout == "nothing to bring back\n"
    assert alive(command)
    assert not (run.folder / "attempts" / "002").exists()


@pytest.mark.parametrize(
    ("words", "code", "state"), [(("--steps", "3"), 0, "finished"), (("--crash-at", "1"), 100, "failed")]
)
def test_what_has_ended_stays_so(
    start: Start, overnight: Overnight, words: tuple[str, ...], code: int, state: str
) -> None:
    run = start("r", *toy(*words), flags=["--recover"])
    assert run.wait() == code
    until(lambda: not keepers(run.folder), "its keepers leave")
    reboot(run)
    before = (run.folder / "journal.jsonl").read_bytes()
    done = overnight("recover", "r")
    assert (done.returncode, done.stdout) == (0, f"r: already {state}: nothing to do\n")
    assert overnight("recover").returncode == 0
    assert (run.folder / "journal.jsonl").read_bytes() == before


def test_a_stopped_one_stays_stopped(start: Start, script: Path, overnight: Overnight) -> None:
    run = start("r", PYTHON, script, flags=["--recover"], log="step: 1,")
    run.stop()
    until(lambda: not keepers(run.folder), "its keepers leave")
    reboot(run)
    done = overnight("recover", "r")
    assert (done.returncode, done.stdout) == (0, "r: already stopped: nothing to do\n")


def test_one_whose_stop_was_under_way_is_not_brought_back(start: Start, overnight: Overnight) -> None:
    flags = ["--recover", "--grace", "60s"]
    run = start("r", *toy("--steps", 2000, "--ignore-int", "--ignore-term"), flags=flags, log="step: 1,")
    assert run.stop("--no-wait").returncode == 0
    until(lambda: run.facts("stopping"), "the stop begins")
    reboot(run)
    done = overnight("recover", "r")
    assert done.returncode == 0
    assert "asked to stop before the reboot" in done.stdout
    assert not (run.folder / "attempts" / "002").exists()


def test_one_without_recover_is_named_with_the_reason(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    run = interrupted("r", flags=())
    done = overnight("recover", "r")
    assert (done.returncode, done.stdout) == (1, "")
    assert "r: was not started with --recover" in done.stderr
    assert overnight("recover").returncode == 0
    assert not (run.folder / "attempts" / "002").exists()
    assert not list((run.folder / "inbox").iterdir())


def test_what_is_not_there_yet_keeps_it_waiting(
    work: Path, interrupted: Callable[..., Run], runs: Runs, home: Path
) -> None:
    run = interrupted("r")
    away = work.with_name("away")
    work.rename(away)
    runs.work = home
    done = runs.overnight("recover")
    assert done.returncode == 1
    assert f"its folder {work} is not there" in done.stderr
    away.rename(work)
    runs.work = work
    assert runs.overnight("recover").returncode == 0
    run.wrote("attempt 2")


def test_without_its_environment_it_is_not_started_in_another(
    interrupted: Callable[..., Run], overnight: Overnight
) -> None:
    run = interrupted("r")
    (run.folder / "run.env").unlink()
    done = overnight("recover")
    assert done.returncode == 1
    assert "its environment" in done.stderr
    assert not (run.folder / "attempts" / "002").exists()


def test_another_machines_run_is_left_to_it(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    run = interrupted("r")
    asked: dict[str, Any] = run.file("run.json")
    (run.folder / "run.json").write_text(json.dumps({**asked, "machine_id": "elsewhere", "host": "node7"}))
    done = overnight("recover", "r")
    assert done.returncode == 1
    assert "another machine (node7)" in done.stderr
    assert overnight("recover").returncode == 0
    assert not (run.folder / "attempts" / "002").exists()


def test_killed_keepers_alone_are_no_reboot(start: Start, script: Path, overnight: Overnight) -> None:
    run = start("r", PYTHON, script, flags=["--recover"], log="step: 1,")
    pids = [run.pid(role) for role in ("guard", "shim", "supervisor")]
    for pid in (*pids, run.command):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), "they are dead")
    done = overnight("recover", "r")
    assert done.returncode == 1
    assert "was not interrupted by a reboot" in done.stderr
    assert not (run.folder / "attempts" / "002").exists()


def test_a_damaged_run_is_said_and_keeps_no_other_back(interrupted: Callable[..., Run], overnight: Overnight) -> None:
    broken, run = interrupted("broken"), interrupted("whole")
    (broken.folder / "run.json").write_text("{")
    done = overnight("recover")
    assert done.returncode == 1
    assert "broken: is damaged" in done.stderr
    assert "whole: goes on: attempt 2" in done.stdout
    run.wrote("attempt 2")
    (broken.folder / "run.json").write_text((run.folder / "run.json").read_text())


def test_a_name_that_no_run_has_is_said_before_anything_is_done(
    interrupted: Callable[..., Run], overnight: Overnight
) -> None:
    run = interrupted("r")
    assert overnight("recover", "r", "nosuch").returncode == 102
    assert not (run.folder / "attempts" / "002").exists()
