"""Shutdowns, power cuts and reboots in the worst moments: what comes back, what stays ended, and what is never twice.

The reboot is played: everything of a run is killed, and its files are made those of another boot. Whether the machine
is being shut down is asked of a ``systemctl`` that the test has put on the PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from looking import BIN, PYTHON, Run, Runs, alive, belonging, keepers, read, toy, until

from overnight import launch
from overnight.folder import RunFolder
from overnight.processes import boot_id, identify

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
Overnight = Callable[..., subprocess.CompletedProcess[str]]
RECOVER = ("--recover", "--resume-args=--resume")
ENDED = ("finished", "failed", "stopped", "gave_up")

ADOPT = """
import pathlib, sys
from overnight import folder, launch
launch.adopt(folder.RunFolder(pathlib.Path(sys.argv[1])))
"""


class Init:
    """What ``systemctl is-system-running`` answers in the runs of this test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.answer = folder / "answer"
        self.say("running")
        script = folder / "systemctl"
        script.write_text(f"#!/bin/sh\nread -r answer < '{self.answer}'\necho \"$answer\"\n")
        script.chmod(0o755)

    def say(self, text: str) -> None:
        """Answer this from now on."""
        self.answer.write_text(text + "\n")


@pytest.fixture
def init(tmp_path: Path, runs: Runs) -> Init:
    found = Init(tmp_path / "init")
    runs.env["PATH"] = f"{tmp_path / 'init'}:{runs.env['PATH']}"
    return found


def kill_all(run: Run) -> None:
    """Kill the guard, the shim, the supervisor and the command: the one above would take a dead one's work over."""
    for one in sorted(keepers(run.folder), key=lambda process: process.pid) + belonging(run.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    until(lambda: not [*keepers(run.folder), *belonging(run.folder)], "everything of it is dead")


def reboot(run: Run) -> None:
    """Kill everything of a run, and make every file of it one of an earlier boot."""
    kill_all(run)
    other = str(uuid.uuid4()).encode()
    for path in run.folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", "") and path.parent.name != "evidence":
            path.write_bytes(path.read_bytes().replace(boot_id().encode(), other))


def lose(run: Run, *kinds: str) -> None:
    """Take the facts of these kinds out of the journal, as a power cut does with what was not synced yet."""
    path = run.folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if json.loads(line)["fact"] not in kinds))


def on_disk(run: Run) -> str:
    """Return the state that status.json says, without asking anybody to look after the run."""
    return str(run.file("status.json").get("state"))


def term(run: Run, roles: Sequence[str]) -> None:
    """Send SIGTERM as init does: to all, in an order that nobody knows."""
    pids = [run.command if role == "command" else run.pid(role) for role in roles]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def attempts(run: Run) -> list[str]:
    """Return the names of the attempts' folders."""
    return sorted(os.listdir(run.folder / "attempts"))


# -- shutdowns ---------------------------------------------------------------------------------------------------------

ORDERS = {
    "keepers first": ("guard", "shim", "supervisor", "command"),
    "training first": ("command", "supervisor", "shim", "guard"),
    "training alone": ("command",),
    "supervisor first": ("supervisor", "command", "guard", "shim"),
}


# Every order in each run of the tests, with one of the two scripts; both in the long one.
@pytest.mark.parametrize(
    ("order", "handle"),
    [
        pytest.param(order, handle, marks=[] if (at + also) % 2 == 0 else pytest.mark.long)
        for at, order in enumerate(ORDERS)
        for also, handle in enumerate(["both", "none"])
    ],
)
def test_a_shutdown_is_nobodys_wish(start: Start, overnight: Overnight, init: Init, order: str, handle: str) -> None:
    run = start("r", *toy("--steps", 3000, "--handle", handle), flags=RECOVER, log="step: 2,")
    init.say("stopping")
    term(run, ORDERS[order])
    until(lambda: on_disk(run) in ENDED, "it ends")
    assert (run.file("status.json")["state"], run.file("status.json")["cause"]) == ("failed", "host_rebooted")
    reboot(run)
    init.say("running")
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "goes on: attempt 2" in done.stdout
    assert run.stop().returncode == 0
    assert run.status["state"] == "stopped"
    assert attempts(run) == ["001", "002"]


def test_a_shutdown_that_had_no_time_to_finish_comes_back(start: Start, overnight: Overnight, init: Init) -> None:
    """Init kills what has not ended after its own patience: the stop is still under way then."""
    flags = (*RECOVER, "--grace", "60s")
    run = start("r", *toy("--steps", 3000, "--ignore-int", "--ignore-term"), flags=flags, log="step: 2,")
    init.say("stopping")
    term(run, ORDERS["keepers first"])
    until(lambda: run.facts("stopping"), "the stop begins")
    reboot(run)
    init.say("running")
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "goes on: attempt 2" in done.stdout
    assert attempts(run) == ["001", "002"]


@pytest.mark.parametrize("roles", ["supervisor", "guard"])
def test_a_shutdown_in_a_back_off_comes_back(start: Start, overnight: Overnight, init: Init, roles: str) -> None:
    command = toy("--steps", 400, "--exit-at", 5, "--exit-code", 7)
    run = start("r", *command, flags=(*RECOVER, "--restarts", "2", "--backoff", "60s"), log="step: 5,")
    until(lambda: on_disk(run) == "backoff", "the back-off")
    init.say("stopping")
    term(run, (roles,))
    until(lambda: on_disk(run) in ENDED, "it ends")
    reboot(run)
    init.say("running")
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    until(lambda: len(run.facts("started")) == 2, "the second attempt")
    assert attempts(run) == ["001", "002"]


def test_a_users_stop_before_the_shutdown_stays_one(start: Start, overnight: Overnight, init: Init) -> None:
    flags = (*RECOVER, "--grace", "60s")
    run = start("r", *toy("--steps", 3000, "--ignore-int", "--ignore-term"), flags=flags, log="step: 2,")
    assert run.stop("--no-wait").returncode == 0
    until(lambda: run.facts("stopping"), "the stop begins")
    init.say("stopping")
    term(run, ORDERS["keepers first"])
    reboot(run)
    init.say("running")
    done = overnight("recover", "r")
    assert done.returncode == 0
    assert "asked to stop before the reboot" in done.stdout
    assert attempts(run) == ["001"]


@pytest.mark.parametrize("without", [False, True], ids=["init runs", "no systemctl"])
def test_a_schedulers_signal_ends_it_for_good(
    runs: Runs, start: Start, overnight: Overnight, init: Init, *, without: bool
) -> None:
    init.say("running")
    if without:
        runs.env["PATH"] = BIN
    run = start("r", *toy("--steps", 3000), flags=RECOVER, log="step: 2,")
    term(run, ("supervisor",))
    assert run.wait() == 103
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")
    until(lambda: not keepers(run.folder), "its keepers leave")
    reboot(run)
    assert overnight("recover", "r").stdout == "r: already stopped: nothing to do\n"
    assert attempts(run) == ["001"]


# -- power cuts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [("ended",), ("ended", "attempt_ended", "exit"), ("ended", "attempt_ended", "state")])
def test_what_had_finished_is_not_started_again(start: Start, overnight: Overnight, lost: tuple[str, ...]) -> None:
    run = start("r", *toy("--steps", 12, "--linger-sec", 1), flags=RECOVER, log="step: 3,")
    until(lambda: on_disk(run) == "running", "it runs")
    earlier = read(run.folder / "status.json")
    assert run.wait() == 0
    until(lambda: not keepers(run.folder), "its keepers leave")
    lose(run, *lost)
    (run.folder / "status.json").write_bytes(earlier)  # only exit.json is as durable as that
    reboot(run)
    overnight("recover", "r")
    until(lambda: on_disk(run) in ENDED, "it is settled")
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    assert attempts(run) == ["001"]
    assert overnight("recover").stdout == "nothing to bring back\n"
    assert not belonging(run.folder)


def test_a_failure_that_would_have_been_followed_by_another_attempt_still_is(
    start: Start, overnight: Overnight
) -> None:
    flags = (*RECOVER, "--restarts", "2", "--backoff", "60s")
    command = toy("--steps", 400, "--exit-at", 5, "--exit-code", 7)
    run = start("r", *command, flags=flags, log="step: 5,")
    until(lambda: run.facts("backoff"), "the back-off")
    kill_all(run)
    lose(run, "backoff", "attempt_ended", "state", "exit")
    reboot(run)
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    until(lambda: len(run.facts("started")) == 2, "the second attempt")
    assert attempts(run) == ["001", "002"]
    assert run.status["attempts"][0]["exit_code"] == 7


def test_rebooted_before_its_first_attempt_it_is_started_once(start: Start, overnight: Overnight) -> None:
    run = start("r", *toy("--steps", 3000), flags=RECOVER, log="step: 2,")
    reboot(run)
    for path in (*run.folder.glob("attempts/*/*"), *run.folder.glob("attempts/*")):
        path.rmdir() if path.is_dir() else path.unlink()
    for name in ("journal.jsonl", "metrics.db", "status.json", "output.log"):
        (run.folder / name).unlink()
    done = overnight("recover", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    until(lambda: on_disk(run) == "running", "it runs")
    assert attempts(run) == ["001"]
    assert len(run.facts("started")) == 1
    assert len([one for one in belonging(run.folder) if "toy.py" in " ".join(one.words)]) == 1


# -- what is over stays as it was --------------------------------------------------------------------------------------


def test_time_and_money_of_an_ended_run_stand_still(start: Start, overnight: Overnight) -> None:
    run = start("r", *toy("--steps", 4), flags=["--price", "3600"])
    assert run.wait() == 0
    until(lambda: not keepers(run.folder), "its keepers leave")
    before = run.status
    assert before["elapsed_s"] > 0
    assert before["cost"] > 0
    time.sleep(1.5)
    assert overnight("note", "r", "what a night").returncode == 0
    subprocess.run([PYTHON, "-c", ADOPT, str(run.folder)], check=True)
    until(lambda: len(run.facts("supervisor")) > 1 and not keepers(run.folder), "somebody has looked at it again")
    again = run.status
    assert (again["elapsed_s"], again["cost"]) == (before["elapsed_s"], before["cost"])
    reboot(run)
    subprocess.run([PYTHON, "-c", ADOPT, str(run.folder)], check=True)
    until(lambda: len(run.facts("supervisor")) > 2 and not keepers(run.folder), "and again, after a reboot")
    again = run.status
    assert (again["elapsed_s"], again["cost"]) == (before["elapsed_s"], before["cost"])


@pytest.mark.parametrize("asked", ["wait", "status"])
def test_hooks_that_were_stranded_run_once(start: Start, work: Path, overnight: Overnight, asked: str) -> None:
    """The end is published, the first hook has begun, the second waits: then guard, shim and supervisor are killed."""
    (work / "one.sh").write_text("echo ran >> one; while [ ! -e go ]; do sleep 0.05; done\n")
    (work / "two.sh").write_text("echo ran >> two\n")
    run = start("r", *toy("--steps", 4), flags=["--on-end", "sh one.sh", "--on-end", "sh two.sh"])
    until(lambda: on_disk(run) == "finished" and (work / "one").exists(), "the first hook begins")
    pids = [run.pid(role) for role in ("guard", "shim", "supervisor")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), "they are dead")
    (work / "go").touch()
    overnight(asked, "r")
    until((work / "two").exists, "the second hook runs")
    until(lambda: not keepers(run.folder), "nobody is left")
    overnight("wait", "r")
    assert [(work / name).read_text() for name in ("one", "two")] == ["ran\n", "ran\n"]
    assert run.status["hooks"]["pending"] == 0


def test_hooks_of_an_end_that_was_only_written_down_run_once(start: Start, work: Path, overnight: Overnight) -> None:
    """As above, but killed right after the end became a fact: nobody may know yet which hooks there are."""
    for name in ("one", "two"):
        (work / f"{name}.sh").write_text(f"echo ran >> {name}\n")
    run = start("r", *toy("--steps", 6, "--dt", 0.1), flags=["--on-end", "sh one.sh", "--on-end", "sh two.sh"])
    pids = [run.pid(role) for role in ("guard", "shim", "supervisor")]
    limit = time.monotonic() + 20.0
    while b'"fact": "ended"' not in read(run.folder / "journal.jsonl"):
        assert time.monotonic() < limit, "it does not end"
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), "they are dead")
    overnight("wait", "r")
    until(lambda: not keepers(run.folder), "nobody is left")
    overnight("wait", "r")
    assert [(work / name).read_text() for name in ("one", "two")] == ["ran\n", "ran\n"]


def test_numbers_of_processes_of_another_boot_are_strangers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.create()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        who = until(lambda: identify(stranger.pid), "it lives")
        one = {"pid": who.pid, "start_ticks": who.start_ticks}
        folder.shim_json.write_text(json.dumps({"boot_id": str(uuid.uuid4()), "guard": one, "shim": one}))
        launch.revoke(folder)
        assert stranger.poll() is None
        folder.shim_json.write_text(json.dumps({"boot_id": boot_id(), "guard": one}))
        launch.revoke(folder)
        assert stranger.wait(10) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()
