"""``--on-end`` waits while other work goes on on this machine, says so, and runs exactly once when that is over."""

from __future__ import annotations

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

from overnight.cli import ends

pytestmark = pytest.mark.timeout(150)

Start = Callable[..., Run]
LONG = toy("--steps", 100000, "--dt", 0.1)
SHORT = toy("--steps", 5, "--dt", 0.02)
STILL = "run other is still running"


def hook(name: str) -> str:
    """Return a command that notes that it ran."""
    return f"echo ran >> {name}"


def ran(work: Path, name: str) -> int:
    """Return how often it ran."""
    return len(read(work / name).split())


def on_disk(run: Run) -> dict[str, Any]:
    """Return status.json; nothing is started for this look."""
    found: dict[str, Any] = json.loads(read(run.folder / "status.json") or b"{}")
    return found


def held(run: Run) -> str | None:
    """Return what its hooks wait for, as status.json has it."""
    text: str | None = (on_disk(run).get("hooks") or {}).get("held")
    return text


def kill_keepers(run: Run) -> None:
    """Kill guard, shim and supervisor, as close together as can be."""
    pids = [run.pid(role) for role in ("guard", "shim", "supervisor")]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(alive, pids)), "they are dead")


def test_it_waits_for_another_run_and_says_so(start: Start, runs: Runs, work: Path) -> None:
    other = start("other", *LONG, log="step: 2,")
    flags = (
        "--on-end",
        hook("off"),
        "--on-event",
        'echo "$OVERNIGHT_EVENT $OVERNIGHT_TEXT" >> told',
        "--price",
        "36/h",
    )
    run = start("mine", *SHORT, flags=flags)
    done = runs.overnight("wait", "mine", "--timeout", "40s", limit_s=50)
    assert done.returncode == 0, "a run that has ended well is not late because its machine stays on"
    assert f"turning off waits: {STILL}" in done.stdout
    assert held(run) == STILL
    page = runs.overnight("status", "mine").stdout
    assert f"turning off waits: {STILL}" in page
    assert "stop mine --now" in page
    assert f"mine: turning off waits: {STILL}" in runs.overnight("ls").stdout
    until(lambda: b"hook_held" in read(work / "told"), "the message")
    refused = runs.overnight("clean", "mine")
    assert refused.returncode == 2
    assert "turning off waits" in refused.stderr
    time.sleep(2.5)
    assert ran(work, "off") == 0
    assert [(fact["kind"], fact["text"], fact["who"]) for fact in run.facts("hook_held")] == [("run", STILL, ["other"])]
    assert run.status["idle_s"] == 0.0, "another run goes on"
    assert other.stop().returncode == 0
    until(lambda: ran(work, "off") == 1, "the hook", 25)
    until(lambda: run.status["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}, "all is told")
    assert [fact["key"] for fact in run.facts("hook_ended") if fact["key"].startswith("end-")] == ["end-001-1"]
    assert len(run.facts("hook_released")) == 1
    assert read(work / "told").decode().splitlines()[1] == f"hook_held turning off waits: {STILL}"
    assert run.wait() == 0
    seen = run.status
    assert seen["idle_s"] > 0
    assert seen["idle_cost"] == pytest.approx(seen["idle_s"] / 100)
    shown = runs.overnight("status", "mine").stdout
    assert "the box has cost" in shown


def test_without_the_guard_it_runs_at_once(start: Start, work: Path) -> None:
    start("other", *LONG, log="step: 2,")
    run = start("mine", *SHORT, flags=("--on-end", hook("off"), "--on-end-guard", "off"))
    assert run.wait() == 0
    assert ran(work, "off") == 1
    assert run.facts("hook_held") == []


def test_a_held_hook_survives_its_supervisor(start: Start, work: Path) -> None:
    other = start("other", *LONG, log="step: 2,")
    run = start("mine", *SHORT, flags=("--on-end", hook("one"), "--on-end", hook("two"), "--on-event", hook("told")))
    until(lambda: held(run) == STILL, "it is held")
    for _ in range(2):
        before = run.pid("supervisor")
        os.kill(before, signal.SIGKILL)
        until(lambda before=before: run.pid("supervisor") != before and held(run) == STILL, "the next one")  # type: ignore[misc]
    time.sleep(2.0)
    assert (ran(work, "one"), ran(work, "two")) == (0, 0)
    assert len(run.facts("hook_held")) == 1, "told once, whoever keeps it"
    assert other.stop("--now").returncode == 0
    until(lambda: on_disk(run)["hooks"]["pending"] == 0, "both have run", 30)
    assert (ran(work, "one"), ran(work, "two")) == (1, 1)
    assert ran(work, "told") == 2, "the end and that it waits"


def test_all_keepers_killed_while_it_is_held(start: Start, runs: Runs, work: Path) -> None:
    other = start("other", *LONG, log="step: 2,")
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    until(lambda: held(run) == STILL, "it is held")
    kill_keepers(run)
    assert "not known to have ended" in runs.overnight("status", "mine").stdout  # and this look has it looked after
    until(lambda: run.status["supervisor"]["alive"], "a new supervisor")
    assert run.wait() == 0
    assert ran(work, "off") == 0
    other.stop("--now")
    until(lambda: ran(work, "off") == 1, "the hook", 25)


def test_two_that_have_ended_do_not_wait_for_each_other(start: Start, work: Path) -> None:
    """The first is held for the second; the second finds it ended, whatever its own hooks wait for."""
    slow, waits = toy("--steps", 40, "--dt", 0.1), "while [ ! -e go ]; do sleep 0.1; done"
    first = start("first", *SHORT, flags=("--on-end", hook("one"), "--on-end", waits))
    assert first.facts("hook_held") == []
    until(lambda: ran(work, "one") == 1, "the first hook: its run is over, its next hook goes on for long")
    second = start("second", *slow, flags=("--on-end", hook("two")))
    third = start("third", *slow, flags=("--on-end", hook("three")))
    until(lambda: ran(work, "two") == ran(work, "three") == 1, "both", 40)
    for run in (second, third):
        until(lambda run=run: on_disk(run)["hooks"]["pending"] == 0, "all is told")  # type: ignore[misc]
        assert all(fact["who"] in (["second"], ["third"]) for fact in run.facts("hook_held"))
    assert on_disk(first)["hooks"]["pending"] == 1, "it was not over yet, and nobody has waited for it"
    (work / "go").touch()


def test_a_run_in_its_back_off_is_waited_for(start: Start, work: Path) -> None:
    other = start("other", *toy("--crash-at", 3), flags=("--restarts", 3, "--backoff", "200s"))
    until(lambda: on_disk(other).get("state") == "backoff", "the back-off")
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    until(lambda: held(run) == "run other is waiting for its next attempt", "it is held")
    other.stop("--now")
    until(lambda: ran(work, "off") == 1, "the hook", 25)


def test_a_run_that_nobody_keeps_is_waited_for_only_while_its_command_lives(start: Start, work: Path) -> None:
    other = start("other", *LONG, log="step: 2,")
    command = other.command
    kill_keepers(other)
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    until(lambda: held(run) == STILL, "what trains on is work, whoever keeps it")
    os.kill(command, signal.SIGKILL)
    until(lambda: ran(work, "off") == 1, "the hook", 25)
    assert on_disk(other)["state"] == "running", "nobody has looked at it: it is as it was left"


def test_what_waits_can_be_given_up(start: Start, runs: Runs, work: Path) -> None:
    start("other", *LONG, log="step: 2,")
    run = start("mine", *SHORT, flags=("--on-end", hook("off"), "--on-event", hook("told")))
    until(lambda: held(run) == STILL, "it is held")
    asked = runs.overnight("stop", "mine")
    assert asked.returncode == 0
    assert STILL in asked.stdout
    assert held(run) == STILL, "asking for a stop of what has ended gives nothing up"
    done = runs.overnight("stop", "mine", "--now")
    assert done.returncode == 0
    assert "given up" in done.stderr
    assert "turning off waits" not in done.stdout
    until(lambda: not run.status["supervisor"]["alive"], "its supervisor leaves")
    assert ran(work, "off") == 0
    (fact,) = [fact for fact in run.facts("hook_ended") if fact["key"] == "end-001-1"]
    assert fact["ok"] is None
    assert run.status["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}
    assert runs.overnight("clean", "mine").returncode == 0


def test_what_waits_can_be_let_go(start: Start, runs: Runs, work: Path) -> None:
    start("other", *LONG, log="step: 2,")
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    until(lambda: held(run) == STILL, "it is held")
    assert runs.overnight("set", "mine", "--price", "2/h").returncode == 2
    done = runs.overnight("set", "mine", "--on-end-guard", "off")
    assert done.returncode == 0, done.stderr
    assert "on-end-guard auto -> off" in done.stdout
    until(lambda: ran(work, "off") == 1, "the hook")
    assert run.wait() == 0


def test_a_stop_does_not_wait_for_what_is_held(start: Start, runs: Runs, work: Path) -> None:
    start("other", *LONG, log="step: 2,")
    run = start("mine", *toy("--steps", 5000, "--handle", "int"), flags=("--on-end", hook("off")), log="step: 3,")
    done = run.stop()
    assert done.returncode == 0
    assert f"turning off waits: {STILL}" in done.stdout
    assert ran(work, "off") == 0
    stayed = runs.overnight("run", "--foreground", "--name", "fore", "--on-end", hook("fore"), "--", *SHORT, limit_s=50)
    assert stayed.returncode == 0
    assert f"turning off waits: {STILL}" in stayed.stderr


def test_explain_and_check_tell_what_would_happen(start: Start, runs: Runs, work: Path) -> None:
    flags = ("--on-end", "echo good:success", "--on-end", "echo off")
    free = runs.overnight("run", *flags, "--explain")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in free.stdout.splitlines() if line[:4] == "end-"}
    assert rows == {
        "end-success": "echo good; echo off at once, for nothing else goes on here now",
        **dict.fromkeys(
            ("end-failure", "end-limit", "end-stopped"), "echo off at once, for nothing else goes on here now"
        ),
    }
    other = start("other", *LONG, log="step: 2,")
    waits = runs.overnight("run", *flags[:2], "--explain", "--json")
    found = {one["setting"]: one for one in json.loads(waits.stdout)}
    assert found["end-success"]["value"] == "echo good"
    assert found["end-success"]["origin"] == f"turning off would wait now: {STILL}"
    assert found["end-failure"]["value"] == ends.NOTHING
    off = runs.overnight("run", *flags, "--on-end-guard", "off", "--explain")
    assert "whatever else goes on" in off.stdout
    run = start("mine", *LONG, flags=flags, log="step: 2,")
    checked = json.loads(runs.overnight("check", "mine", "--interval", "1s", "--json", limit_s=90).stdout)
    assert [(one["end"], one["commands"], one["held"]) for one in checked["at_end"]] == [
        ("success", ["echo good", "echo off"], STILL),
        *((end, ["echo off"], STILL) for end in ("failure", "limit", "stopped")),
    ]
    assert not (work / "good").exists()
    said = runs.overnight("check", "mine", "--interval", "1s", limit_s=90).stdout
    assert f"turning off would wait now: {STILL}" in " ".join(said.split())
    assert run.status["state"] == other.status["state"] == "running"


# -- GPUs --------------------------------------------------------------------------------------------------------------

nvml = pytest.importorskip("nvml")


@pytest.fixture
def stub(tmp_path: Path, runs: Runs) -> Any:
    """Return a machine with one idle GPU, for every command line of this test."""
    pytest.importorskip("overnight.sensors.gpu")
    found = nvml.Stub(tmp_path / "nvml")
    found.write([nvml.card(0)])
    runs.env.update(found.environ())
    return found


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that is of no run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield process
    process.kill()
    process.wait()


def test_somebody_elses_process_on_a_gpu_is_waited_for(
    start: Start, runs: Runs, work: Path, stub: Any, stranger: subprocess.Popen[bytes]
) -> None:
    stub.change(0, compute=[stranger.pid])
    waits = runs.overnight("run", "--on-end", "true", "--explain").stdout
    assert f"turning off would wait now: process {stranger.pid} (" in waits
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    text = until(lambda: held(run), "it is held")
    assert text.startswith(f"process {stranger.pid} (")
    assert text.endswith(" uses GPU 0")
    done = runs.overnight("wait", "mine")
    assert done.returncode == 0
    assert f"turning off waits: process {stranger.pid} (" in done.stdout
    assert ran(work, "off") == 0
    stub.change(0, compute=[])
    until(lambda: ran(work, "off") == 1, "the hook", 30)
    assert [fact["kind"] for fact in run.facts("hook_held")] == ["gpu"]


@pytest.mark.parametrize("case", ["idle", "graphics", "no driver", "lost"])
def test_a_gpu_that_nobody_computes_on_holds_nothing_up(
    start: Start, work: Path, stub: Any, stranger: subprocess.Popen[bytes], case: str
) -> None:
    if case == "graphics":
        stub.change(0, graphics=[stranger.pid])
    elif case == "no driver":
        stub.fail(nvml.DRIVER_NOT_LOADED, "nvmlInitWithFlags")
    elif case == "lost":
        stub.change(0, compute=[stranger.pid])
        stub.lose(0)
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    assert run.wait(60) == 0
    assert ran(work, "off") == 1
    assert run.facts("hook_held") == []


def test_a_driver_that_hangs_is_said_and_waited_for(start: Start, runs: Runs, work: Path, stub: Any) -> None:
    stub.sleep(60)
    run = start("mine", *SHORT, flags=("--on-end", hook("off")))
    text = until(lambda: held(run), "it is held", 40)
    assert text.startswith("the GPUs cannot be looked at: ")
    assert "; not waited for beyond 2" in text
    assert run.wait(5) == 0
    assert ran(work, "off") == 0
    stub.heal()
    until(lambda: ran(work, "off") == 1, "it answers again: the hook", 40)
