"""Acceptance 4: guard, shim and supervisor may be killed with -9 at any moment.

The training does not notice, no line is lost or counted twice, no verdict differs, and the exit status is the true one.
What a supervisor costs to restart (0.4 to 1.5 s, and 30 s after five deaths in a minute) bounds how often one run can
be killed; therefore several runs are killed side by side.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import Home, Run, a_place, living, load, rebuild, until

PAUSE_S = 0.35
"""More than a busy machine takes from a process, less than the shortest restart of a supervisor (0.4 s)."""

KILLS_A_RUN = 4
ALERTS = ("--max-loss", "20", "--action", "divergence=alert", "--action", "nonfinite=alert")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


def writer(place: Home, name: str, *, seconds: int, more: tuple[str, ...] = ()) -> Run:
    """Start a run that writes 200 lines a second, each by two write calls; it diverges halfway and ends with code 7."""
    steps = 200 * seconds
    switches = ["--steps", str(steps + 100), "--rate", "200", "--two-writes", "--diverge-at", str(steps // 2)]
    switches += ["--nan-at", str(steps // 2 + 150), "--exit-at", str(steps), "--exit-code", "7", *more]
    return place.toy(name, *switches, options=ALERTS)


def longest_step_s(run: Run) -> float:
    found = re.search(r"toy: longest step ([0-9.]+) s", run.log())
    assert found is not None, run.log()[-500:]
    return float(found[1])


def kill_at_random(runs: list[Run], role: str, kills: int) -> None:
    """SIGKILL ``role`` of every run ``kills`` times, each at a random moment of its life (its first ones included)."""
    seen = dict.fromkeys(runs, 0)
    left = dict.fromkeys(runs, kills)
    due: dict[Run, float] = {}
    while any(left.values()):
        for run in runs:
            pid = run.pid(role)
            if left[run] and run not in due and pid and pid != seen[run]:
                due[run] = time.monotonic() + random.uniform(0.0, 0.9)
                seen[run] = pid
            elif run in due and time.monotonic() >= due[run]:
                del due[run]
                os.kill(seen[run], signal.SIGKILL)
                left[run] -= 1
        time.sleep(0.005)


def assert_whole(run: Run, twin: Run, tmp_path: Path) -> None:
    """Assert that a run that was killed at says the same as its log, and as a run that was left in peace."""
    assert run.wait(90.0) == twin.wait(90.0) == 100
    status = run.status()
    assert (status["state"], status["cause"], status["exit_code"], status["signal"]) == ("failed", "crash", 7, None)
    assert longest_step_s(run) < max(longest_step_s(twin), 0.1) + PAUSE_S
    run.gone()
    records, verdicts = rebuild(run, tmp_path)
    steps = int(re.findall(r"^step: (\d+),", run.log(), re.MULTILINE)[-1])
    assert run.steps() == list(range(1, steps + 1))
    assert run.records() == records
    assert run.verdicts() == verdicts == twin.verdicts()
    assert {verdict[4] for verdict in verdicts} == {"divergence", "nonfinite", "spike"}
    told = [(one["rule"], one["offset"]) for one in run.facts("verdict")]
    assert sorted(told) == sorted({(verdict[4], verdict[2]) for verdict in verdicts})
    run.clean_logs()


def test_supervisor_killed_at_random_moments(place: Home, tmp_path: Path) -> None:
    runs = [writer(place, f"killed{n}", seconds=11) for n in range(2)]
    twin = writer(place, "peace", seconds=11)
    kill_at_random(runs, "supervisor", KILLS_A_RUN)
    for run in runs:
        assert_whole(run, twin, tmp_path)
        assert len(run.facts("supervisor")) >= 2


@pytest.mark.parametrize("role", ["shim", "guard"])
def test_shim_or_guard_killed_at_a_random_moment(place: Home, tmp_path: Path, role: str) -> None:
    runs = [writer(place, f"killed{n}", seconds=5) for n in range(2)]
    twin = writer(place, "peace", seconds=5)
    for run in runs:
        until(lambda run=run: run.pid(role) and run.child(), "all are there")
    kill_at_random(runs, role, 1)
    for run in runs:
        assert_whole(run, twin, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_", range(13))
def test_supervisor_killed_at_fifty_random_moments(place: Home, tmp_path: Path, round_: int) -> None:
    run = writer(place, "killed", seconds=12)
    twin = writer(place, "peace", seconds=12)
    kill_at_random([run], "supervisor", KILLS_A_RUN)
    assert_whole(run, twin, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["shim", "guard"] * 5)
def test_shim_or_guard_killed_at_ten_random_moments(place: Home, tmp_path: Path, role: str) -> None:
    run = writer(place, "killed", seconds=4)
    twin = writer(place, "peace", seconds=4)
    kill_at_random([run], role, 1)
    assert_whole(run, twin, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_five_deaths_in_a_minute_slow_the_restarts_and_lose_nothing(place: Home, tmp_path: Path) -> None:
    run = writer(place, "killed", seconds=55)
    twin = writer(place, "peace", seconds=55)
    kill_at_random([run], "supervisor", 5)
    until(lambda: run.status()["unguarded"], "status says that nobody restarts the supervisor at once", every_s=0.2)
    assert_whole(run, twin, tmp_path)


def test_supervisor_killed_as_soon_as_the_run_is_over(place: Home, tmp_path: Path) -> None:
    """The last moments are where facts, records and status are written: kill there, again and again."""
    for n in range(4):
        run = place.toy(
            f"last{n}", "--steps", "40", "--rate", "200", "--two-writes", "--exit-at", "40", "--exit-code", "3"
        )
        supervisor = run.pid("supervisor")
        exit_json = run.path / "attempts/001/exit.json"
        until(exit_json.exists, "the exit", every_s=0.0005)
        time.sleep(n * 0.002)
        try:
            os.kill(supervisor, signal.SIGKILL)
        except ProcessLookupError:
            continue
        assert run.wait(10.0) == 100  # at once, not by the slow timer
        assert run.status()["exit_code"] == 3
        run.gone()
        assert run.steps() == list(range(1, 41))
        assert run.records() == rebuild(run, tmp_path)[0]
        assert run.status()["attempts"][0]["cause"] == "crash"
        run.clean_logs()


def test_deleted_metrics_are_rebuilt_by_the_next_supervisor(place: Home) -> None:
    run = place.toy("lost", "--steps", "800", "--rate", "200", "--nan-at", "100", options=ALERTS)
    run.until(lambda seen: (seen.get("records") or 0) > 150, "records")
    before = run.verdicts()
    run.kill("supervisor")
    for tail in ("", "-wal", "-shm"):
        (run.path / f"metrics.db{tail}").unlink(missing_ok=True)
    assert run.wait() == 0
    run.gone()
    assert run.steps() == list(range(1, 801))
    assert run.verdicts() == before
    assert len(run.facts("verdict")) == len(before) == 1


# -- in the middle of a stop -------------------------------------------------------------------------------------------


# Three moments of one stop; in each run of the tests the one in the middle.
@pytest.mark.parametrize("delay_s", [0.05, *(pytest.param(one, marks=pytest.mark.long) for one in (0.0, 0.3))])
def test_supervisor_killed_in_the_middle_of_a_stop_signals_once(place: Home, delay_s: float) -> None:
    signals = place.work / "signals"
    saves = place.work / "saves"
    run = place.toy(
        "stopped", "--steps", "100000", "--dt", "0.02", "--handle", "term", "--signals", str(signals),
        "--checkpoints", str(saves), "--save-sec", "2.5",
    )  # fmt: skip
    run.until(lambda seen: seen.get("records"), "records")
    assert run.stop("--no-wait").returncode == 0
    until(lambda: signals.exists() and signals.read_text().strip(), "the signal")
    until(lambda: load(run.path / "attempts/001/stop.json").get("signalled"), "the stop is written down")
    time.sleep(delay_s)
    run.kill("supervisor")
    assert run.wait() == 103
    heard = [line.split()[0] for line in signals.read_text().splitlines()]
    assert heard.count("SIGTERM") == 1
    assert "SIGINT" not in heard
    assert [path.suffix for path in saves.iterdir()] == [".txt"]
    assert run.status()["state"] == "stopped"
    assert run.status()["exit_code"] == 0
    run.clean_logs()


def test_supervisor_killed_while_a_shell_is_frozen_thaws_and_ends_it(place: Home) -> None:
    after = place.work / "after"
    toy = f"{sys.executable} {Path(__file__).parents[1] / 'toy.py'} --steps 100000 --dt 0.02 --handle term --save-sec 2"
    script = place.work / "run.sh"
    script.write_text(f"{toy} --checkpoints {place.work}/saves\ntouch {after}\n")
    run = place.start("shell", "bash", str(script))
    run.until(lambda seen: seen.get("records"), "records")
    assert run.stop("--no-wait").returncode == 0
    until(lambda: "SIGTERM came" in run.log(), "the signal")
    run.kill("supervisor")
    assert run.wait() == 103
    assert list((place.work / "saves").glob("*.txt"))
    assert not after.exists()
    until(lambda: not [pid for pid in place.processes() if living(pid)], "nothing is left")


def test_killed_right_after_the_fatal_line_still_ends_the_run(place: Home) -> None:
    """A supervisor that dies between its verdict and the signal is followed by one that finds the same."""
    run = place.toy("nan", "--steps", "100000", "--dt", "0.02", "--nan-at", "60", "--handle", "term", "--save-sec", "1")
    run.until(lambda seen: (seen.get("step") or 0) >= 40, "step 40")
    until(lambda: "loss: nan" in run.log(), "the NaN", every_s=0.0005)
    run.kill("supervisor")
    assert run.wait() == 104
    status = run.status()
    assert (status["cause"], status["verdicts"][0]["step"]) == ("nonfinite", 60)
    assert len(run.facts("verdict")) == 1


# -- more than one of them ---------------------------------------------------------------------------------------------


def test_both_parents_killed_supervisor_goes_on_and_learns_the_exit(place: Home) -> None:
    run = place.toy("orphan", "--steps", "100", "--dt", "0.02", "--exit-at", "80", "--exit-code", "7", "--leave-child")
    supervisor = run.pid("supervisor")
    run.until(lambda seen: seen.get("records"), "records")
    run.kill("guard", "shim")
    run.until(lambda seen: (seen.get("step") or 0) >= 60, "the supervisor goes on")
    assert living(supervisor)
    seen = run.status()
    assert (seen["supervisor"], seen["shim"]["alive"]) == ({"pid": supervisor, "alive": True}, False)
    assert run.wait() == 100
    status = run.status()
    assert (status["cause"], status["exit_code"]) == ("crash", 7)
    assert run.steps() == list(range(1, 81))
    until(lambda: not [pid for pid in place.processes() if living(pid)], "the child that was left is cleared")
    run.clean_logs()


def test_all_three_killed_and_the_training_goes_on(place: Home, tmp_path: Path) -> None:
    run = place.toy("alone", "--steps", "240", "--rate", "40", "--two-writes", "--leave-child")
    run.until(lambda seen: seen.get("records"), "records")
    child, supervisor = run.child(), run.pid("supervisor")
    run.kill("guard", "shim", "supervisor")
    until(lambda: not living(supervisor), "the supervisor is dead")
    looks = [place.begin("ls"), place.begin("ls", "--json")]  # at once: whoever looks gives it another supervisor
    (shown, error), (document, _) = (one.communicate(timeout=30) for one in looks)
    assert "running, unkept" in shown, shown + error
    listed = json.loads(document)
    assert [(one["state"], one["stale"]) for one in listed] == [("running", True)]
    assert not listed[0]["supervisor"]["alive"]
    assert not listed[0]["shim"]["alive"]
    assert run.status()["state"] == "running"
    assert living(child)
    assert run.wait() == 0
    status = run.status()
    assert (status["state"], status["cause"], status["step"]) == ("finished", "completed", 240)
    until(lambda: not [pid for pid in place.processes() if living(pid)], "everything is cleared, the adopter leaves")
    assert run.steps() == list(range(1, 241))
    assert run.records() == rebuild(run, tmp_path)[0]
    run.clean_logs()


def test_all_three_killed_then_stopped(place: Home) -> None:
    signals = place.work / "signals"
    saves = place.work / "saves"
    run = place.toy(
        "alone", "--steps", "100000", "--dt", "0.02", "--handle", "term", "--signals", str(signals),
        "--checkpoints", str(saves), "--spawn", "2",
    )  # fmt: skip
    run.until(lambda seen: seen.get("records"), "records")
    run.kill("guard", "shim", "supervisor")
    said = run.stop()
    assert said.returncode == 0, said.stderr
    assert run.wait() == 103
    assert run.status()["state"] == "stopped"
    assert [line.split()[0] for line in signals.read_text().splitlines()] == ["SIGTERM"]
    assert list(saves.glob("*.txt"))
    until(lambda: not [pid for pid in place.processes() if living(pid)], "nothing is left")
    run.clean_logs()


def test_all_four_killed_is_settled_as_unknown(place: Home) -> None:
    run = place.toy("dead", "--steps", "100000", "--dt", "0.02")
    run.until(lambda seen: seen.get("records"), "records")
    run.kill("guard", "shim", "supervisor", "child")
    until(lambda: not living(run.child()), "dead")
    assert run.status()["stale"]
    assert run.wait(10.0) == 100  # at once, not by the slow timer
    status = run.status()
    assert (status["state"], status["cause"]) == ("failed", "unknown_kill")
    assert status["exit_code"] is None
    run.clean_logs()


def test_adopting_supervisor_killed_is_followed_by_another(place: Home) -> None:
    run = place.toy("again", "--steps", "300", "--rate", "50")
    run.until(lambda seen: seen.get("records"), "records")
    first = run.pid("supervisor")
    run.kill("guard", "shim", "supervisor")
    assert run.home.call("wait", "again", "--timeout", "0.5s").returncode == 101
    seen = run.until(lambda seen: seen["supervisor"]["pid"] not in (None, first), "an adopting supervisor")
    os.kill(seen["supervisor"]["pid"], signal.SIGKILL)
    assert run.wait() == 0
    assert run.steps() == list(range(1, 301))


def test_killed_child_is_told_truly_whoever_is_alive(place: Home) -> None:
    for role in ("shim", "guard"):
        run = place.toy(role, "--steps", "100000", "--dt", "0.02")
        run.until(lambda seen: seen.get("records"), "records")
        run.kill(role, "child")
        assert run.wait() == 100
        status = run.status()
        assert (status["cause"], status["signal"], status["exit_code"]) == ("unknown_kill", "SIGKILL", None)


# -- another boot ------------------------------------------------------------------------------------------------------


def reboot(run: Run) -> None:
    """Make the folder that of an earlier boot: the identities in it were given by another kernel."""
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in (run.path / "run.json", run.path / "shim.json", run.path / "attempts/001/started.json"):
        path.write_text(path.read_text().replace(here, "00000000-1111-2222-3333-444444444444"))


def test_run_of_an_earlier_boot_has_failed(place: Home) -> None:
    run = place.toy("old", "--steps", "100000", "--dt", "0.02")
    run.until(lambda seen: seen.get("records"), "records")
    stranger = run.child()  # stands for whatever has the number after the reboot: it must not be touched
    run.kill("guard", "shim", "supervisor")
    reboot(run)
    steps = len(run.steps())
    seen = run.status()
    assert (seen["state"], seen["cause"]) == ("failed", "host_rebooted")
    assert "host_rebooted" in place.call("ls").stdout or "reboot" in place.call("ls").stdout
    assert run.wait() == 100
    os.kill(stranger, signal.SIGKILL)
    seen = run.status()
    assert (seen["state"], seen["cause"]) == ("failed", "host_rebooted")
    assert len(run.steps()) >= steps
    run.clean_logs()


def test_adopting_supervisor_writes_the_reboot_down(place: Home) -> None:
    """`wait` need not start one for it, but one that is started finds the same truth, and then it is on disk."""
    run = place.toy("old", "--steps", "60", "--rate", "50")
    run.until(lambda seen: seen.get("records"), "records")
    run.kill("guard", "shim", "supervisor", "child")
    reboot(run)
    adopt = "import sys, pathlib as p; from overnight import folder, launch; "
    adopt += "launch.adopt(folder.RunFolder(p.Path(sys.argv[1])))"
    subprocess.run([sys.executable, "-W", "ignore", "-c", adopt, str(run.path)], check=True, env=place.env)
    seen = run.until(lambda seen: seen["state"] == "failed", "the end on disk")
    assert (seen["cause"], seen["code"]) == ("host_rebooted", 100)
    assert [fact["cause"] for fact in run.facts("ended")] == ["host_rebooted"]
    until(lambda: not [pid for pid in place.processes() if living(pid)], "it leaves")
    run.clean_logs()
