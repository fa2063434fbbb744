"""Whoever is killed between two facts, whatever is full then: the next one goes on as if nothing had been.

Where the moment is too short to be hit, what a kill in it leaves behind is put there by the test.
"""

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
from looking import BIN, PYTHON, Run, Runs, alive, belonging, keepers, read, toy, until

from overnight.folder import RunFolder, drop_request

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
Overnight = Callable[..., subprocess.CompletedProcess[str]]
ENDED = ("finished", "failed", "stopped", "gave_up")

SLOW_SECOND = """\
import os, sys, time
if os.environ["OVERNIGHT_ATTEMPT"] == "2":
    time.sleep(float(sys.argv[1]))
for step in range(1, 41):
    print(f"step: {step}, loss: {4 - step / 100:.4f}, dt: 0.02", flush=True)
    time.sleep(0.02)
    if step == 15 and os.environ["OVERNIGHT_ATTEMPT"] == "1":
        sys.exit(7)
"""

EPOCHS = """\
import time
for epoch in range(3):
    for step in range(1, 11):
        print(f"step: {step}, loss: {4 - epoch - step / 20:.4f}, dt: 0.01", flush=True)
        time.sleep(0.01)
"""

MANAGER = """\
#!/bin/bash
'{python}' -S -c 'import sys, time; time.sleep({helper_s}); sys.exit(1)'
exec '{python}' {trainer}
"""

TRAINER = """\
import time
for step in range(1, 16):
    print(f"step: {step}, loss: {4 - step / 20:.4f}, dt: 0.05", flush=True)
    time.sleep(0.05)
"""


def on_disk(run: Run) -> str:
    """Return the state that status.json says, without asking anybody to look after the run."""
    with contextlib.suppress(ValueError):
        return str(json.loads(read(run.folder / "status.json") or b"{}").get("state"))
    return ""


def attempts(run: Run) -> list[str]:
    """Return the names of the attempts' folders."""
    return sorted(os.listdir(run.folder / "attempts"))


def another(run: Run, supervisor: int) -> None:
    """Wait for another supervisor than the one with this pid."""
    until(lambda: (run.file("shim.json").get("supervisor") or {}).get("pid") not in (None, supervisor), "the next one")


def while_dead(run: Run, change: Callable[[], object]) -> None:
    """Kill the supervisor, change something while there is none, and wait for the next."""
    pids = [run.pid(role) for role in ("guard", "shim")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    supervisor = run.pid("supervisor")
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not alive(supervisor), "it is dead")
    change()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    another(run, supervisor)


def add(run: Run, *facts: dict[str, Any]) -> None:
    """Write facts at the end of the journal."""
    with (run.folder / "journal.jsonl").open("a") as stream:
        stream.writelines(json.dumps(fact) + "\n" for fact in facts)


def lose(run: Run, *kinds: str) -> None:
    """Take the facts of these kinds out of the journal."""
    path = run.folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if json.loads(line)["fact"] not in kinds))


def kill_all(run: Run) -> None:
    """Kill the guard, the shim, the supervisor and the command: the one above would take a dead one's work over."""
    for one in sorted(keepers(run.folder), key=lambda process: process.pid) + belonging(run.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    until(lambda: not [*keepers(run.folder), *belonging(run.folder)], "everything of it is dead")


# -- kills between two facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["while it starts up", "before it is seen"])
def test_a_slow_second_start_is_no_stall(start: Start, work: Path, moment: str) -> None:
    """What the first attempt has printed is no measure for how long the second may be silent before its first step."""
    (work / "slow.py").write_text(SLOW_SECOND)
    flags = ("--restarts", 1, "--backoff", "1s", "--stall", "4s")
    run = start("r", PYTHON, work / "slow.py", 7, flags=flags)
    supervisor = run.pid("supervisor")
    if moment == "before it is seen":
        until((run.folder / "attempts/002/start.json").exists, "the wish for a second attempt")
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(run.pid("shim"), signal.SIGUSR1)  # it may have been stopped between its wish and telling the shim of it
    until((run.folder / "attempts/002/started.json").exists, "the second attempt")
    if moment == "while it starts up":
        until(lambda: len(run.facts("started")) == 2, "it is seen")
    os.kill(supervisor, signal.SIGKILL)
    assert run.wait(40) == 0
    assert (run.status["cause"], run.status["attempt"]) == ("completed", 2)
    assert not [one for one in run.status["verdicts"] if one["rule"] == "stall"]


def test_an_attempt_that_was_not_closed_counts_all_the_same(start: Start) -> None:
    """Killed right after the back-off was written down, before how the attempt ended was."""
    run = start("r", *toy("--steps", 400, "--exit-at", 12, "--exit-code", 7), flags=("--restarts", 1, "--backoff", "4"))
    until(lambda: run.facts("attempt_ended"), "the back-off")
    seconds = run.facts("attempt_ended")[0]["seconds"]
    while_dead(run, lambda: lose(run, "attempt_ended"))
    until(lambda: run.facts("attempt_ended"), "it is written down")
    (told,) = run.status["attempts"]
    assert (told["n"], told["exit_code"], told["last_step"]) == (1, 7, 12)
    assert run.facts("attempt_ended")[0]["seconds"] == pytest.approx(seconds, abs=0.5)
    assert run.status["active_s"] == pytest.approx(seconds, abs=0.5)
    assert run.wait(30) == 106
    assert [one["exit_code"] for one in run.status["attempts"]] == [7, 7]
    assert len(run.facts("attempt_ended")) == 2


def test_a_note_and_a_change_outlive_a_kill_right_after_they_were_taken(start: Start) -> None:
    run = start("r", *toy("--steps", 3000), log="step: 2,")

    def taken() -> None:
        folder = RunFolder(run.folder)
        note = drop_request(folder, "note", by="user", text="mind the gap")
        change = drop_request(folder, "set", by="user", values={"max_steps": 7000})
        for kind, path in (("note", note), ("set", change)):
            add(run, {"fact": "request", "file": path.name, "kind": kind, "by": "user", "now": False})

    while_dead(run, taken)
    until(lambda: not list((run.folder / "inbox").iterdir()), "the requests are gone")
    assert run.status["notes"].count("user: mind the gap") == 1
    (changed,) = run.facts("set")
    assert changed["values"] == {"max_steps": 7000}
    assert run.status["limits"]["max_steps"] == 7000

    def found_again() -> None:
        """Killed after they were obeyed, before they were removed."""
        folder = RunFolder(run.folder)
        for fact in run.facts("request"):
            details = {"text": "mind the gap"} if fact["kind"] == "note" else {"values": {"max_steps": 7000}}
            made = drop_request(folder, fact["kind"], by="user", **details)
            made.rename(made.with_name(fact["file"]))

    while_dead(run, found_again)
    until(lambda: not list((run.folder / "inbox").iterdir()), "the requests are gone again")
    assert run.status["notes"].count("user: mind the gap") == 1
    assert len(run.facts("set")) == 1
    assert on_disk(run) == "running"


def test_guard_and_shim_killed_before_they_could_fork(start: Start) -> None:
    """They sleep when the second attempt is asked for, and are killed before they wake up."""
    flags = ("--restarts", 1, "--backoff", "1s")
    run = start("r", *toy("--steps", 400, "--exit-at", 5, "--exit-code", 7), flags=flags)
    pids = [run.pid(role) for role in ("guard", "shim")]
    until(lambda: run.facts("backoff"), "the back-off")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until((run.folder / "attempts/002/start.json").exists, "the wish for a second attempt")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert run.wait(40) == 106
    assert [one["exit_code"] for one in run.status["attempts"]] == [7, 7]
    assert any("new ones were placed" in note for note in run.status["notes"])
    until(lambda: not keepers(run.folder), "nobody is left")


EDITED: dict[str, dict[str, Any]] = {
    "back-off": {"fact": "backoff", "attempt": 1, "cause": "crash", "text": ""},
    "clock": {"fact": "clock", "elapsed_s": "a while", "uptime_s": "long", "epoch": "noon", "boot_id": "x"},
    "start": {"fact": "started", "attempt": [], "memory": 5},
    "end": {"fact": "attempt_ended", "attempt": "one", "seconds": "long"},
    "recovery": {"fact": "recovered", "attempt": 1},
    "hooks": {"fact": "hook_ended", "key": 5, "ok": False},
}


def test_a_journal_with_edited_facts_keeps_nobody_from_going_on(start: Start) -> None:
    run = start("r", *toy("--steps", 200, "--dt", 0.03), flags=["--on-end", "true"], log="step: 2,")
    while_dead(run, lambda: add(run, *EDITED.values()))
    assert run.wait(30) == 0
    assert run.status["cause"] == "completed"
    assert len(run.facts("supervisor")) == 2, "nobody else had to come"
    assert b"Traceback" not in read(run.folder / "supervisor.log")


# -- what was killed as a whole --------------------------------------------------------------------------------------


def test_one_look_at_all_runs_settles_what_was_killed_as_a_whole(start: Start, overnight: Overnight) -> None:
    run = start("r", *toy("--steps", 3000), log="step: 2,")
    kill_all(run)

    def looked() -> bool:
        # A process that was killed has no words any more a little before the kernel has let go of all it held, and a
        # look at that very moment finds it alive: so look again, as whoever wants to know does.
        done = overnight("ls")
        assert done.returncode == 0, done.stderr
        end = time.monotonic() + 10
        while on_disk(run) != "failed" and time.monotonic() < end:
            time.sleep(0.05)
        return on_disk(run) == "failed"

    until(looked, "it is written down", 30)
    until(lambda: not keepers(run.folder), "nobody is left")
    (told,) = json.loads(overnight("ls", "--json").stdout)
    assert told["state"] == "failed"


def test_cleaning_settles_what_was_killed_as_a_whole(start: Start, overnight: Overnight) -> None:
    run = start("r", *toy("--steps", 3000), log="step: 2,")
    kill_all(run)
    done = overnight("clean", "r")
    assert done.returncode == 0, done.stderr + done.stdout
    assert not run.folder.exists()


def test_a_hook_that_waits_for_its_run_does_not_wait_for_itself(start: Start, work: Path) -> None:
    (work / "hook.sh").write_text('overnight wait "$OVERNIGHT_RUN_ID" > said; echo $? > code\n')
    run = start("r", *toy("--steps", 5), flags=["--on-end", "sh hook.sh", "--hook-timeout", "20s"])
    assert run.wait(40) == 0
    assert (work / "code").read_text() == "0\n"
    assert run.status["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}


# -- helpers of version managers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("helper_s", [0.05, 0.6])
def test_a_helper_that_ends_badly_is_not_the_training(start: Start, work: Path, helper_s: float) -> None:
    (work / "trainer.py").write_text(TRAINER)
    script = work / "manager"
    script.write_text(MANAGER.format(python=sys.executable, helper_s=helper_s, trainer=work / "trainer.py"))
    script.chmod(0o755)
    run = start("r", script, flags=("--restarts", 3, "--backoff", "0.2"))
    assert run.wait() == 0
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("finished", "completed", 1)


@pytest.mark.parametrize("code", ["crash", "silent"])
def test_a_training_that_ends_badly_below_a_command_that_ends_well(start: Start, work: Path, code: str) -> None:
    end = "raise ValueError('torn')" if code == "crash" else "import os; os._exit(3)"
    (work / "trainer.py").write_text(TRAINER + end + "\n")
    run = start("r", "sh", "-c", f"'{PYTHON}' trainer.py; true")
    assert run.wait() == 100
    assert run.status["state"] == "failed"
    assert run.status["attempts"][0]["exit_code"] == 0
    assert "the command exited 0" in run.status["cause_text"]


# -- programs that count their steps anew ----------------------------------------------------------------------------


def test_steps_that_go_back_are_not_held_to_a_plan(start: Start, work: Path) -> None:
    (work / "epochs.py").write_text(EPOCHS)
    run = start("r", PYTHON, work / "epochs.py", flags=("--steps", 400, "--restarts", 3, "--backoff", "0.2"))
    assert run.wait() == 0
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("finished", "completed", 1)
    assert "went back" in run.status["cause_text"]
    assert "400" in run.status["cause_text"]


def test_steps_that_only_go_on_still_are(start: Start) -> None:
    run = start("r", *toy("--steps", 9, "--dt", 0.02), flags=("--steps", 400))
    assert run.wait() == 100
    assert run.status["cause"] == "ended_early"


# -- full disks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(home: Path) -> Iterator[Path]:
    """Mount a disk of 24 MiB below all runs; skip where that is not allowed."""
    home.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(home)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)


@pytest.fixture
def on_disk_runs(disk: Path, work: Path) -> Iterator[Runs]:
    """Return the command line bound to the small disk; it has room again before the runs are ended."""
    found = Runs(disk, work)
    yield found
    (disk / "filler").unlink(missing_ok=True)
    found.end()


def fill(disk: Path, run: Run, *, kept_bytes: int = 0) -> None:
    """Use up what is free, and all but ``kept_bytes`` of what the run folder keeps for its last facts."""
    ballast = run.folder / "evidence" / "ballast"
    ballast.unlink(missing_ok=True)
    if kept_bytes:
        ballast.write_bytes(bytes(kept_bytes))
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(handle, b"f" * size)
    finally:
        os.close(handle)
    assert os.statvfs(disk).f_bavail == 0


def test_a_stop_on_a_full_disk(disk: Path, on_disk_runs: Runs) -> None:
    run = on_disk_runs.start("r", *toy("--steps", 3000), log="step: 2,")
    until(lambda: on_disk(run) == "running", "it runs")
    command = run.command
    fill(disk, run)
    done = run.stop("--no-wait")
    assert done.returncode == 0, done.stderr
    assert "by a signal instead" in done.stderr
    until(lambda: not alive(command), "the training ends")
    (disk / "filler").unlink()
    assert run.wait() == 103
    assert run.status["state"] == "stopped"


def test_the_next_attempt_comes_once_there_is_room(disk: Path, on_disk_runs: Runs) -> None:
    flags = ("--restarts", 1, "--backoff", "2s")
    run = on_disk_runs.start("r", *toy("--steps", 400, "--exit-at", 8, "--exit-code", 7), flags=flags)
    until(lambda: run.facts("attempt_ended") and on_disk(run) == "backoff", "the back-off")
    fill(disk, run)
    supervisor = run.pid("supervisor")
    time.sleep(4.0)  # it is over by now, and nothing can be written
    assert alive(supervisor), "which is no reason to end"
    assert not (run.folder / "attempts/002/start.json").exists()
    (disk / "filler").unlink()
    assert run.wait(40) == 106
    assert [one["exit_code"] for one in run.status["attempts"]] == [7, 7]
    assert b"Traceback" not in read(run.folder / "supervisor.log")


def test_hooks_of_an_end_on_a_full_disk_run(disk: Path, on_disk_runs: Runs, work: Path) -> None:
    """Overnight gives back what it has kept for itself before it runs them."""
    (work / "hook.sh").write_text(f"echo $OVERNIGHT_STATE > {work}/told\n")
    run = on_disk_runs.start("r", *toy("--steps", 60, "--dt", 0.05), flags=["--on-end", "sh hook.sh"], log="step: 2,")
    until(lambda: on_disk(run) == "running", "it runs")
    fill(disk, run, kept_bytes=8192)  # enough for the exit's code, too little for a hook
    assert run.wait(40) == 0
    assert os.statvfs(disk).f_bavail > 0, "what was kept ahead of the log"
    assert (work / "told").read_text() == "finished\n"
    assert run.status["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}


# -- a machine without systemctl -------------------------------------------------------------------------------------


def test_a_signal_to_the_supervisor_where_nobody_knows_of_a_shutdown(runs: Runs, start: Start) -> None:
    runs.env["PATH"] = BIN
    run = start("r", *toy("--steps", 3000, "--handle", "both"), log="step: 2,")
    os.kill(run.pid("supervisor"), signal.SIGTERM)
    assert run.wait() == 103
    assert (run.status["state"], run.status["cause"]) == ("stopped", "user")
    assert b"Traceback" not in read(run.folder / "supervisor.log")
