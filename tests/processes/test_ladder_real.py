"""The ladder on real processes: grace, growing saves, impatience, schedulers that repeat themselves, and stop.json."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from looking import Run, alive, signals, spawned, toy, until, whole

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
SAVES = ("--steps", 5000, "--handle", "int", "--checkpoints", "saved", "--signals", "signals")


def stop_order(run: Run) -> dict[str, object]:
    """Return what the toy found in stop.json when its signal came."""
    prefix = b"toy: stop.json "
    lines = [line.removeprefix(prefix) for line in run.log.splitlines() if line.startswith(prefix)]
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found


def requested(run: Run, count: int) -> bool:
    """Say whether so many requests were taken."""
    return len(run.facts("request")) >= count


def seconds_to_kill(run: Run) -> float:
    (killed,) = run.facts("killed")
    return float(killed["seconds"])


# -- the grace -------------------------------------------------------------------------------------------------------


def test_grace_runs_out(start: Start, work: Path) -> None:
    """B2-04: deaf to both signals, killed when the grace of 5 s has run out; the status says so."""
    command = toy("--steps", 5000, "--ignore-int", "--ignore-term", "--spawn", 2, "--checkpoints", "saved",
                  "--save-every", 10)  # fmt: skip
    run = start("night", *command, flags=("--grace", "5s"), log="saved checkpoint-000020")
    children = spawned(run.log)
    newest = whole(work / "saved")[-1]
    assert run.stop().returncode == 0
    assert 5.0 <= seconds_to_kill(run) <= 7.0
    seen = run.status
    assert (seen["state"], seen["cause"], seen["signal"], run.wait()) == ("stopped", "user", "SIGKILL", 103)
    assert any("killed" in note and "grace of 5 s ran out" in note for note in seen["notes"])
    assert seen["checkpoint"]["step"] >= int(newest[11:17])
    assert not any(map(alive, children))
    assert not run.left()


def test_a_save_that_hangs_is_not_waited_for(start: Start, work: Path) -> None:
    """The file does not grow any more: the grace ends it, and the older checkpoint stays the one that counts."""
    saves = ("--save-every", 20, "--save-silent-sec", 0)
    run = start("night", *toy(*SAVES, *saves), flags=("--grace", "2s"), log="saved checkpoint-000020")
    until(lambda: run.status["checkpoint"], "the checkpoint in the status")
    os.kill(run.command, signal.SIGSTOP)  # as a process that hangs in a disk
    newest = whole(work / "saved")[-1]
    assert run.stop().returncode == 0
    assert 2.0 <= seconds_to_kill(run) <= 4.0
    assert run.status["signal"] == "SIGKILL"
    assert run.status["checkpoint"]["path"].endswith(newest)
    assert whole(work / "saved")[-1] == newest


def test_a_growing_save_extends_the_grace(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--save-sec", 3.5), flags=("--grace", "1.5s"), log="step: 3,")
    assert run.stop().returncode == 0
    assert len(whole(work / "saved")) == 1
    assert (run.status["state"], run.status["exit_code"], run.wait()) == ("stopped", 0, 103)
    assert not run.facts("killed")
    assert signals(work / "signals") == ["SIGINT"]


def test_a_growing_save_is_not_waited_for_beyond_grace_max(start: Start, work: Path) -> None:
    flags = ("--grace", "1s", "--grace-max", "3s")
    run = start("night", *toy(*SAVES, "--save-sec", 40), flags=flags, log="step: 3,")
    assert run.stop().returncode == 0
    assert 3.0 <= seconds_to_kill(run) <= 5.0
    assert not whole(work / "saved")
    assert not run.left()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_save_of_forty_seconds_fits_the_usual_grace(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--save-silent-sec", 40), log="step: 3,")
    assert run.runs.overnight("stop", "night", limit_s=90).returncode == 0
    assert len(whole(work / "saved")) == 1
    assert (run.status["exit_code"], run.wait()) == (0, 103)
    assert not run.facts("killed")


def test_half_time_brings_the_other_signal(start: Start, work: Path) -> None:
    """SIGINT was asked for, is ignored, and nothing moves: SIGTERM at half the grace."""
    command = toy("--steps", 5000, "--ignore-int", "--hang-at", 4)
    run = start("night", *command, flags=("--grace", "4s", "--stop-signal", "int"), log="step: 3,")
    assert run.stop().returncode == 0
    (other,) = run.facts("other_signal")
    assert other["signal"] == "SIGTERM"
    assert run.status["signal"] == "SIGTERM"
    assert not run.facts("killed")


@pytest.mark.parametrize("setting", ["int", "term"])
def test_the_first_signal_may_be_given(start: Start, work: Path, setting: str) -> None:
    command = toy("--steps", 5000, "--handle", "both", "--checkpoints", "saved", "--signals", "signals")
    run = start("night", *command, flags=("--stop-signal", setting), log="step: 3,")
    assert run.stop().returncode == 0
    assert signals(work / "signals") == [f"SIG{setting.upper()}"]
    assert len(whole(work / "saved")) == 1


# -- who repeats himself ---------------------------------------------------------------------------------------------


def test_a_second_stop_climbs_one_rung(start: Start) -> None:
    """A script that heard the signal but hangs: the user asks again and it gets the other one."""
    run = start("night", *toy("--steps", 5000, "--handle", "int", "--hang-at", 4), log="step: 3,")
    run.stop("--no-wait")
    until(lambda: run.facts("stopping"), "the first signal")
    assert run.stop().returncode == 0
    assert run.facts("other_signal")
    assert run.status["signal"] == "SIGTERM"
    assert not run.facts("killed")


def test_a_third_stop_kills(start: Start) -> None:
    command = toy("--steps", 5000, "--handle", "int", "--ignore-term", "--hang-at", 4)
    run = start("night", *command, log="step: 3,")
    run.stop("--no-wait")
    until(lambda: run.facts("stopping"), "the first signal")
    run.stop("--no-wait")
    until(lambda: run.facts("other_signal"), "the second rung")
    assert run.stop().returncode == 0
    assert run.status["signal"] == "SIGKILL"
    (killed,) = run.facts("killed")
    assert killed["seconds"] < 20
    assert "grace" not in killed["reason"], "it did not run out: the user asked again"


def test_a_second_stop_waits_for_a_growing_save(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--save-sec", 4), log="step: 3,")
    run.stop("--no-wait")
    until(lambda: any((work / "saved").glob("*.tmp")), "a save that grows")
    assert run.stop().returncode == 0
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == ["SIGINT"], "nothing disturbed the save"
    assert (run.status["exit_code"], run.wait()) == (0, 103)


def test_a_second_stop_right_before_the_file_is_opened(start: Start, work: Path) -> None:
    """The two requests come as fast as a person can type them; the save begins between the two."""
    run = start("night", *toy(*SAVES, "--save-sec", 3), log="step: 3,")
    run.stop("--no-wait")
    until((work / "saved").exists, "the folder of the save")
    run.stop("--no-wait")
    assert run.wait() == 103
    assert len(whole(work / "saved")) == 1


@pytest.mark.parametrize("handle", ["term", pytest.param("int", marks=pytest.mark.long)])  # its own signal, or another
def test_a_scheduler_repeats_its_signal(start: Start, work: Path, handle: str) -> None:
    """B2-03: TERM, a second later TERM again; the save is completed, one checkpoint, one signal."""
    saves = ("--checkpoints", "saved", "--save-sec", 5)
    command = toy("--steps", 5000, "--handle", handle, "--signals", "signals", *saves)
    run = start("night", *command, log="step: 3,")
    shim = run.pid("shim")
    os.kill(shim, signal.SIGTERM)
    for _ in range(3):
        more = len(run.facts("request")) + 1
        os.kill(shim, signal.SIGTERM)
        until(partial(requested, run, more), "the repeated signal was taken")
    assert run.wait() == 103
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == [f"SIG{handle.upper()}"]
    assert run.status["exit_code"] == 0


def test_a_scheduler_that_knocks_on_every_door(start: Start, work: Path) -> None:
    """A cgroup-wide SIGTERM reaches guard, shim and supervisor: one stop."""
    run = start("night", *toy(*SAVES, "--save-sec", 2), log="step: 3,")
    for role in ("supervisor", "shim", "guard"):
        os.kill(run.pid(role), signal.SIGTERM)
    assert run.wait() == 103
    assert len(whole(work / "saved")) == 1
    assert signals(work / "signals") == ["SIGINT"]


def test_now_kills_at_once(start: Start, work: Path) -> None:
    command = toy(*SAVES, "--spawn", 2, "--save-every", 10, "--save-silent-sec", 0)
    run = start("night", *command, log="saved checkpoint-000020")
    children = spawned(run.log)
    assert run.stop("--now").returncode == 0
    assert signals(work / "signals") == []
    seen = run.status
    assert (seen["state"], seen["cause"], seen["signal"], run.wait()) == ("stopped", "user", "SIGKILL", 103)
    assert seconds_to_kill(run) < 1.0
    assert seen["checkpoint"]["path"].endswith(whole(work / "saved")[-1]), "the previous one is the newest"
    assert not any(map(alive, children))
    assert not run.left()


def test_now_after_a_patient_stop_does_not_wait_for_a_save(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--save-sec", 40), log="step: 3,")
    run.stop("--no-wait")
    until(lambda: any((work / "saved").glob("*.tmp")), "a save that grows")
    assert run.stop("--now").returncode == 0
    assert run.status["signal"] == "SIGKILL"
    assert not whole(work / "saved")


@pytest.mark.parametrize("grace_s", [4, pytest.param(20, marks=pytest.mark.long)])  # twenty in the row itself
def test_everything_is_gone_within_a_schedulers_patience(start: Start, grace_s: int) -> None:
    """B1-10: SIGTERM to the shim with a grace of 20 s, deaf processes: all gone at 25 s."""
    command = toy("--steps", 5000, "--spawn", 4, "--ignore-int", "--ignore-term")
    run = start("night", *command, flags=("--grace", f"{grace_s}s"), log="step: 3,")
    children = spawned(run.log)
    command_pid = run.command
    os.kill(run.pid("shim"), signal.SIGTERM)
    until(lambda: not any(map(alive, [command_pid, *children])), "nothing alive", grace_s + 5.0)
    assert run.wait() == 103
    assert grace_s <= seconds_to_kill(run) <= grace_s + 3.0


# -- a run that must not save ----------------------------------------------------------------------------------------


def test_terminate_says_save_false_before_the_signal(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--obey-stop-json", "--nan-at", 5))
    assert run.wait() == 104
    order = stop_order(run)
    assert (order["cause"], order["save"]) == ("nonfinite", False)
    assert signals(work / "signals") == ["SIGINT"]
    assert not whole(work / "saved")


def test_a_stop_by_the_user_says_save_true(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES, "--obey-stop-json"), log="step: 3,")
    assert run.stop().returncode == 0
    order = stop_order(run)
    assert (order["cause"], order["save"]) == ("user", True)
    assert len(whole(work / "saved")) == 1


def test_a_rule_may_ask_for_a_save(start: Start, work: Path) -> None:
    flags = ("--action", "nonfinite=stop")
    run = start("night", *toy(*SAVES, "--obey-stop-json", "--nan-at", 5), flags=flags)
    assert run.wait() == 104
    assert stop_order(run)["save"] is True
    assert len(whole(work / "saved")) == 1


@pytest.mark.parametrize(
    ("setting", "got"), [("auto", ["SIGTERM"]), ("int", ["SIGINT"]), ("term", ["SIGTERM"]), ("kill", [])]
)
def test_the_signal_for_a_nan_may_be_given(start: Start, work: Path, setting: str, got: list[str]) -> None:
    command = toy("--steps", 5000, "--handle", "both", "--checkpoints", "saved", "--signals", "signals", "--nan-at", 5)
    run = start("night", *command, flags=("--nonfinite-signal", setting))
    assert run.wait() == 104
    assert signals(work / "signals") == got
    assert run.status["signal"] == (None if got else "SIGKILL")
    assert len(whole(work / "saved")) == len(got), "a script killed at once cannot overwrite its good weights"
    assert not run.left()


def test_the_signal_for_a_nan_is_not_that_for_a_stop(start: Start, work: Path) -> None:
    run = start("night", *toy(*SAVES), flags=("--nonfinite-signal", "kill"), log="step: 3,")
    assert run.stop().returncode == 0
    assert len(whole(work / "saved")) == 1
