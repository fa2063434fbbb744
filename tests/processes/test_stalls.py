"""Trainings that stop moving: found at the limit, written down, ended by the ladder, started again where that is asked.

Real processes and real limits. What a silence is worth is tested with numbers elsewhere; here it is whether the run
that hangs ends, and the one that does not goes on.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, read, toy, until

pytestmark = pytest.mark.timeout(90)

Start = Callable[..., Run]
LIMIT_S = 3.0
HANGS = ("--steps", 5000, "--hang-at", 20)
STALL = ("--stall", "3s")

SAVER = """\
import signal, sys, time
from pathlib import Path

def save(number, frame):
    print("saving", flush=True)
    Path("saved.pt").write_text("weights")
    sys.exit(0)

def wait_for_peer():
    while True:
        pass

signal.signal(signal.SIGTERM, save)
for step in range(1, 20):
    print(f"step: {step}, loss: 3.0, dt: 0.05", flush=True)
    time.sleep(0.05)
wait_for_peer()
"""

DEAF = """\
import signal, time

def wait_for_ever():
    while True:
        time.sleep(1000)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGABRT, signal.SIG_IGN)
for step in range(1, 20):
    print(f"step: {step}, loss: 3.0, dt: 0.05", flush=True)
    time.sleep(0.05)
wait_for_ever()
"""


CACHE = """\
import time

cache = open("tokens.bin", "wb")
for step in range(1, 20):
    cache.write(b"x" * 4096)
    print(f"step: {step}, loss: 3.0, dt: 0.05", flush=True)
    time.sleep(0.05)
time.sleep(600)
"""


def verdicts(run: Run, action: str) -> list[dict[str, Any]]:
    """Return what the rule found that asked for ``action``."""
    return [one for one in run.facts("verdict") if one["rule"] == "stall" and one["action"] == action]


def found_s(run: Run, limit_s: float = LIMIT_S) -> float:
    """Check that the stall was found once, at its limit, and return after how many seconds."""
    (verdict,) = verdicts(run, "stop")
    silent_s = float(verdict["evidence"]["silent_s"])
    assert limit_s * 0.8 <= silent_s <= limit_s * 1.2
    assert verdict["evidence"]["limit_s"] == limit_s
    return silent_s


def summary(run: Run, reason: str = "stopped for a stall") -> str:
    """Return the summary of the dump that was made for this reason."""
    paths = [Path(fact["path"]) for fact in run.facts("dump") if fact["reason"] == reason]
    assert paths, run.facts("dump")
    assert paths[0].parent == run.folder / "evidence"
    return (paths[0] / "summary.txt").read_text()


def stopped(run: Run) -> dict[str, Any]:
    """Wait for the end of a run that was ended for a stall; nothing of it may be left."""
    assert run.wait(45) == 104
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "stall")
    assert not run.left()
    return seen


# -- a hang that is ended --------------------------------------------------------------------------------------------


LONG = pytest.mark.long


# What it does meanwhile makes no difference to what is seen of it: one way in each run of the tests.
@pytest.mark.parametrize("how", ["busy", *(pytest.param(how, marks=LONG) for how in ("warn", "sleep", "lock"))])
def test_a_hang_is_found_at_its_limit_and_ended(start: Start, how: str) -> None:
    """D3-01: whatever it does meanwhile: TERM, and at half of the grace ABRT, which shows where it was."""
    command = toy(*HANGS, "--hang-how", how, "--ignore-term")
    run = start("night", *command, flags=(*STALL, "--grace", "4s"))
    seen = stopped(run)
    found_s(run)
    assert "no new step for" in seen["cause_text"]
    assert "hang" in summary(run)
    (told,) = run.facts("stopping")
    assert told["signal"] == "SIGTERM"
    (other,) = run.facts("other_signal")
    assert other["signal"] == "SIGABRT"
    assert 1.8 <= seconds_between(told, other) <= 3.5
    assert not run.facts("killed")
    assert seen["signal"] == "SIGABRT"
    log = run.log.decode()
    assert "Fatal Python error: Aborted" in log
    assert re.search(r"line \d+ in hang\b", log)
    assert seen["last_lines"] is None or len(seen["last_lines"]) <= 10


def seconds_between(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the seconds between two facts."""

    def of_day(fact: dict[str, Any]) -> float:
        hours, minutes, seconds = str(fact["at"])[11:-1].split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)

    return (of_day(second) - of_day(first)) % 86400


def test_one_that_is_deaf_to_everything_is_killed(start: Start, work: Path) -> None:
    (work / "deaf.py").write_text(DEAF)
    run = start("night", "sh", "-c", "ulimit -c unlimited; exec python deaf.py", flags=(*STALL, "--grace", "3s"))
    until(lambda: run.facts("other_signal"), "the abort")
    limits = read(f"/proc/{run.command}/limits").decode()
    assert re.search(r"Max core file size +0 ", limits), "a training's memory in a core file would fill the disk"
    seen = stopped(run)
    found_s(run)
    assert [fact["signal"] for fact in run.facts("other_signal")] == ["SIGABRT"]
    (killed,) = run.facts("killed")
    assert 3.0 <= killed["seconds"] <= 4.5
    assert seen["signal"] == "SIGKILL"
    assert "wait_for_ever" in summary(run)


def test_one_that_saves_when_it_is_told_is_left_to_do_so(start: Start, work: Path) -> None:
    (work / "saver.py").write_text(SAVER)
    run = start("night", sys.executable, "saver.py", flags=(*STALL, "--grace", "20s"))
    stopped(run)
    found_s(run)
    assert (work / "saved.pt").read_text() == "weights"
    assert not run.facts("other_signal")
    assert not run.facts("killed")
    assert "wait_for_peer" in summary(run)
    assert run.status["checkpoint"]["path"].endswith("saved.pt")


def test_the_processes_below_a_shell_are_all_written_down_and_ended(start: Start) -> None:
    """Two ranks, one in a lock, the other busy waiting for it: both are named, and the shell goes with them."""
    ranks = [
        shlex.join(toy("--rank", rank, *HANGS, "--hang-how", how)) for rank, how in enumerate(["busy", "lock"])
    ]  # fmt: skip
    run = start("night", "sh", "-c", f"{ranks[0]} & {ranks[1]} & wait", flags=(*STALL, "--grace", "4s"))
    stopped(run)
    found_s(run)
    said = summary(run)
    assert said.count("hang") >= 2, said
    (told,) = run.facts("stopping")
    assert len(told["pids"]) == 2


def test_it_is_alerted_at_half_the_limit_and_dumped_then_too_and_dies_of_nothing_but_the_stop(start: Start) -> None:
    """There are two looks, so that two of them can be compared."""
    run = start("night", *toy(*HANGS), flags=STALL)
    seen = stopped(run)
    (alert,) = verdicts(run, "alert")
    assert 1.5 <= alert["evidence"]["silent_s"] <= 2.2
    (first, second) = run.facts("dump")
    assert first["reason"] == alert["text"]
    assert second["reason"] == "stopped for a stall"
    assert "hang" in (Path(first["path"]) / "summary.txt").read_text()
    # Without a handler SIGTERM is enough, and it is sent once: the fact says who ended it and how.
    assert seen["signal"] == signal.Signals.SIGTERM.name
    assert len(run.facts("stopping")) == 1
    assert not run.facts("other_signal")


def test_a_file_that_stays_open_for_ever_is_no_save(start: Start, work: Path) -> None:
    """It has the name of a checkpoint, but the training has gone on since it was begun: it explains no silence."""
    (work / "cache.py").write_text(CACHE)
    run = start("night", sys.executable, "cache.py", flags=STALL)
    stopped(run)
    (alert,) = verdicts(run, "alert")
    assert alert["evidence"]["phase"] is None


def test_a_silence_goes_on_for_the_next_supervisor(start: Start) -> None:
    run = start("night", *toy(*HANGS), flags=("--stall", "8s"), log="step: 19,")
    began = time.monotonic()
    until(lambda: verdicts(run, "alert"), "the alert at half the limit")
    until(lambda: time.monotonic() - began > 5.5, "it is stored; killed before that, it would be counted from there")
    os.kill(run.pid("supervisor"), signal.SIGKILL)
    until(lambda: verdicts(run, "stop"), "the end")
    assert 7.0 <= time.monotonic() - began <= 8 * 1.2 + 1.5
    stopped(run)
    found_s(run, 8.0)


def test_only_an_alert_where_that_is_asked(start: Start) -> None:
    command = toy("--steps", 30, "--silent-at", 20, "--silent-sec", 4.5)
    run = start("night", *command, flags=(*STALL, "--action", "stall=alert"))
    assert run.wait() == 0
    (alert, over) = (one for one in run.facts("verdict") if one["rule"] == "stall")
    assert (alert["action"], over["action"]) == ("alert", "note")
    assert alert["evidence"]["silent_s"] == pytest.approx(LIMIT_S, rel=0.2)
    assert "going on after" in over["text"]
    assert len(run.facts("dump")) == 1


# -- and started again -----------------------------------------------------------------------------------------------


def test_a_hang_is_started_again_and_finishes(start: Start) -> None:
    hang, good = shlex.join(toy(*HANGS)), shlex.join(toy("--steps", 40))
    script = f'if [ "$OVERNIGHT_ATTEMPT" = 1 ]; then exec {hang}; else exec {good}; fi'
    run = start("night", "sh", "-c", script, flags=(*STALL, "--restarts", 1, "--backoff", "0.2", "--steps", 40))
    assert run.wait() == 0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("finished", "completed", 2)
    assert [(one["cause"], one["last_step"]) for one in seen["attempts"]] == [("stall", 19), ("completed", 40)]
    found_s(run)
    assert not run.left()


def test_one_that_hangs_for_ever_is_given_up(start: Start) -> None:
    flags = ("--stall", "1s", "--restarts", 9, "--backoff", "0.2", "--steps", 5000)
    run = start("night", *toy("--steps", 5000, "--dt", 0.02, "--hang-at", 20), flags=flags)
    assert run.wait(60) == 106
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("gave_up", "stall", 3)
    assert "no further than step 19" in seen["cause_text"]
    assert len(verdicts(run, "stop")) == 3, "each attempt has a finding of its own"
    assert not run.left()


def test_a_user_who_stops_it_in_the_middle_of_that_is_obeyed(start: Start) -> None:
    """It is not started again: somebody wanted the run to end."""
    command = toy(*HANGS, "--ignore-term")
    run = start("night", *command, flags=(*STALL, "--grace", "4s", "--restarts", 3, "--backoff", "0.2"))
    until(lambda: run.facts("stopping"), "the stop")
    run.stop()
    assert run.wait() == 103
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "user", 1)
    assert not run.left()


def test_a_user_who_stops_it_while_its_stacks_are_read_is_obeyed(start: Start) -> None:
    run = start("night", *toy(*HANGS), flags=(*STALL, "--restarts", 3, "--backoff", "20s"))
    until(lambda: verdicts(run, "stop"), "the verdict")
    run.stop()
    assert run.wait() == 103
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("stopped", "user", 1)


# -- the beginning and the end ---------------------------------------------------------------------------------------


def test_a_hang_before_the_first_step_is_ended_at_its_own_limit(start: Start) -> None:
    """D3-07."""
    run = start("night", *toy("--steps", 50, "--hang-at", 1), flags=("--start-limit", "3s", "--stall", "1s"))
    seen = stopped(run)
    (verdict,) = verdicts(run, "stop")
    assert 2.9 <= verdict["evidence"]["silent_s"] <= 4.0
    assert seen["cause_text"] == "no first step within 3 s"
    assert "hang" in summary(run)


def test_a_slow_start_is_fine(start: Start) -> None:
    run = start("night", *toy("--steps", 40, "--start-sec", 2), flags=("--start-limit", "3.5s", "--stall", "1.5s"))
    assert run.wait() == 0
    assert not run.facts("verdict")


def test_a_hang_at_exit_has_finished(start: Start, work: Path) -> None:
    """D3-06: the steps were all made: no failure, no restart, and whoever waits for the end is told."""
    command = toy("--steps", 20, "--checkpoints", "saved", "--linger-sec", 600)
    flags = ("--steps", 20, "--exit-limit", "3s", "--restarts", 3, "--on-end", "touch well:success",
             "--on-end", "touch badly:failure")  # fmt: skip
    run = start("night", *command, flags=flags)
    assert run.wait() == 0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("finished", "bad_teardown", 1)
    assert "the last step was reached, and the command is still there" in seen["cause_text"]
    (verdict,) = verdicts(run, "stop")
    assert 2.9 <= verdict["evidence"]["silent_s"] <= 4.0
    until((work / "well").exists, "the hook")
    assert not (work / "badly").exists()
    assert not run.left()


def test_a_slow_exit_is_fine(start: Start) -> None:
    command = toy("--steps", 20, "--linger-sec", 2)
    run = start("night", *command, flags=("--steps", 20, "--exit-limit", "4s", "--stall", "1s"))
    assert run.wait() == 0
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    assert not run.facts("verdict")


# -- what must not be ended ------------------------------------------------------------------------------------------


def test_a_limit_that_was_not_asked_for_ends_nothing(start: Start) -> None:
    """Three seconds are thirty of the gaps before: far from the minute that is needed for an alert."""
    run = start("night", *toy("--steps", 20, "--dt", 0.1, "--silent-at", 15, "--silent-sec", 3))
    assert run.wait() == 0
    assert not run.facts("verdict")
    assert not run.facts("dump")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_silent_minutes_after_quick_steps_are_only_alerted(start: Start) -> None:
    run = start("night", *toy("--steps", 50, "--dt", 0.25, "--silent-at", 25, "--silent-sec", 180))
    assert run.wait(280) == 0
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    (alert,) = verdicts(run, "alert")
    assert 59 <= alert["evidence"]["silent_s"] <= 66
    (over,) = verdicts(run, "note")
    assert "going on after" in over["text"]
    assert len(run.facts("dump")) == 1, "what it did in its silence stands there"
    assert not run.facts("stopping")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_silent_start_evaluation_and_save_are_no_alarms(start: Start) -> None:
    """D5-01, first half: 25 s before the first step, 20 s of evaluation, 20 s of a save."""
    command = toy(
        *("--steps", 40, "--dt", 0.25, "--start-sec", 25, "--silent-at", 20, "--silent-sec", 20),
        *("--announce", "evaluating on 500 batches", "--checkpoints", "saved", "--save-every", 30, "--save-sec", 20),
    )
    run = start("night", *command)
    assert run.wait(200) == 0
    assert not [one for one in run.facts("verdict") if one["action"] != "note"]
    assert not run.facts("dump")


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["sleep", "busy"])
def test_a_true_hang_is_an_alarm(start: Start, how: str) -> None:
    """D5-01, second half: nothing was announced, and it lasts many times as long as any gap before."""
    run = start("night", *toy("--steps", 4000, "--dt", 0.25, "--hang-at", 20, "--hang-how", how))
    until(lambda: verdicts(run, "alert"), "the alert", 90.0)
    assert 59 <= verdicts(run, "alert")[0]["evidence"]["silent_s"] <= 66
    (dump,) = until(lambda: run.facts("dump"), "a dump")
    until(lambda: b"hang" in read(Path(dump["path"]) / "summary.txt"), "where it hangs", 30.0)
    assert run.status["state"] == "running"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_announced_silence_beyond_a_minute_is_only_noted(start: Start) -> None:
    command = toy(
        "--steps", 40, "--dt", 0.25, "--silent-at", 20, "--silent-sec", 75, "--announce", "Running validation"
    )
    run = start("night", *command)
    until(lambda: run.status["phase"] == "evaluating" or None, "the phase", 30.0)
    assert run.wait(150) == 0
    (note,) = run.facts("verdict")
    assert note["action"] == "note"
    assert "announced: evaluating" in note["text"]
    assert not run.facts("dump")
