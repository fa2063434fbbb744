"""Whole runs on NVIDIA GPUs that a stand-in for the driver's library plays: lost, slow, hot, hung, cut into slices."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import box
from runs import Home, Run, a_place, living, until

import nvml

pytestmark = pytest.mark.timeout(240)

EVERY = ("--sensor-interval", "1s")
GPU_0 = "GPU 0 (NVIDIA A100-SXM4-80GB, 00000000:11:00.0) is lost: GPU is lost"

HANGS = """
import pathlib, sys, time
lost = pathlib.Path(sys.argv[1])
step = 0
while not lost.exists():
    step += 1
    print(f"step: {step}, loss: {1 + 1 / step:.4f}, dt: 0.05", flush=True)
    time.sleep(0.05)
if "crash" in sys.argv:
    raise RuntimeError("CUDA error: unspecified launch failure")
if "killed" in sys.argv:
    import os
    os.kill(os.getpid(), 9)
time.sleep(600)
"""

SLOWS = """
import sys, time
scale, last = float(sys.argv[1]), int(sys.argv[2])
for step in range(1, last + 1):
    dt = 0.1 if step <= 300 else 0.25
    time.sleep(dt * scale)
    print(f"step: {step}, loss: {1 + 1 / step:.4f}, dt: {dt}", flush=True)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return a home of its own; all of it ends with the test."""
    yield from a_place(tmp_path)


@pytest.fixture
def stub(tmp_path: Path, home: Home) -> nvml.Stub:
    """Return two A100 that all runs of the home see; a command is on the first if nothing else is said."""
    found = nvml.Stub(tmp_path / "nvml")
    found.write([nvml.card(0), nvml.card(1)])
    home.env |= found.environ() | {"CUDA_VISIBLE_DEVICES": "0"}
    return found


def script(home: Home, name: str, source: str, *words: str, options: tuple[str, ...] = EVERY) -> Run:
    """Start a run of a script."""
    return home.script(name, source, *words, options=options)


def seen(run: Run, look: Callable[[dict[str, Any]], Any], what: str, limit_s: float = 25.0) -> dict[str, Any]:
    """Return the first status with GPUs that ``look`` likes."""
    return run.until(lambda one: one.get("gpus") and look(one), what, limit_s=limit_s)


def sensors_of(run: Run) -> list[int]:
    """Return the living processes of the run's sensors."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(b"overnight.sensors.") for word in words) and os.fsencode(run.path) in words:
            found.append(int(name))
    return [pid for pid in found if living(pid)]


def left(home: Home, run: Run) -> list[int]:
    """Return what is left of a run that has ended, sensors included, after their moment to end."""
    run.gone()
    until(lambda: not sensors_of(run), "the sensors leave")
    return [pid for pid in home.processes() if living(pid)]


def verdicts(run: Run, rule: str) -> list[dict[str, Any]]:
    """Return the verdicts of a rule."""
    return [one for one in run.facts("verdict") if one["rule"] == rule]


# -- lost --------------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_lost_while_the_command_hangs_ends_the_run(home: Home, stub: nvml.Stub, tmp_path: Path) -> None:
    """D6-01: named as hardware, no blind restart on the same device, an alert; the monitor does not crash."""
    told = home.work / "told"
    options = (*EVERY, "--restarts", "3", "--backoff", "0.1s", "--grace", "2s")
    run = script(
        home, "lost", HANGS, str(tmp_path / "lost"),
        options=(*options, "--on-event", f'echo "$OVERNIGHT_EVENT $OVERNIGHT_TEXT" >> {told}'),
    )  # fmt: skip
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(0)
    (tmp_path / "lost").touch()
    assert run.wait() == 100
    status = run.status()
    assert (status["state"], status["cause"], status["cause_text"]) == ("failed", "hardware", GPU_0)
    assert (status["attempt"], len(run.facts("started"))) == (1, 1)
    (found,) = verdicts(run, "hardware")
    assert (found["severity"], found["action"]) == ("critical", "stop")
    assert (found["evidence"]["device"], found["evidence"]["bus_id"]) == (0, "00000000:11:00.0")
    until(lambda: f"end {GPU_0}" in told.read_text(), "the end is told")
    assert told.read_text().splitlines()[0] == f"verdict {GPU_0}"
    assert left(home, run) == []
    run.clean_logs()


@pytest.mark.long
def test_another_runs_gpu_may_be_lost(home: Home, stub: nvml.Stub, tmp_path: Path) -> None:
    run = script(home, "other", HANGS, str(tmp_path / "never"), options=(*EVERY, "--max-steps", "60"))
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(1)
    run.wait()
    assert run.status()["cause"] == "max_steps"
    assert verdicts(run, "hardware") == []


@pytest.mark.parametrize("end", ["crash", pytest.param("killed", marks=pytest.mark.long)])
def test_a_command_that_crashes_before_the_next_sample_is_not_started_again(
    home: Home, stub: nvml.Stub, tmp_path: Path, end: str
) -> None:
    """D6-01: nobody has said yet that the GPU is lost: it is looked at before another attempt."""
    options = ("--sensor-interval", "60s", "--restarts", "3", "--backoff", "0.1s")
    run = script(home, "crashed", HANGS, str(tmp_path / "lost"), end, options=options)
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(0)
    (tmp_path / "lost").touch()
    assert run.wait() == 100
    status = run.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("failed", "hardware", 1)
    assert status["cause_text"] == GPU_0
    (ended,) = run.facts("attempt_ended")
    assert ended["cause_text"].startswith(f"{GPU_0}; the command ")
    assert (ended["exit_code"], ended["signal"]) == ((1, None) if end == "crash" else (None, "SIGKILL"))
    assert len(verdicts(run, "hardware")) == 1
    assert left(home, run) == []


def test_a_rule_that_only_alerts_starts_nothing_on_a_lost_gpu_either(
    home: Home, stub: nvml.Stub, tmp_path: Path
) -> None:
    options = (*EVERY, "--restarts", "3", "--backoff", "0.1s", "--action", "hardware=alert")
    run = script(home, "alerted", HANGS, str(tmp_path / "lost"), "crash", options=options)
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(0)
    until(lambda: verdicts(run, "hardware"), "the alert")
    assert run.snapshot()["state"] == "running"
    (tmp_path / "lost").touch()
    assert run.wait() == 100
    status = run.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("failed", "hardware", 1)
    assert status["cause_text"].startswith(f"{GPU_0}; the command exited with code 1: RuntimeError")


def test_a_command_that_hangs_is_looked_at_before_it_is_started_again(
    home: Home, stub: nvml.Stub, tmp_path: Path
) -> None:
    options = ("--sensor-interval", "60s", "--restarts", "3", "--backoff", "0.1s", "--stall", "1s", "--grace", "1s")
    run = script(home, "hung", HANGS, str(tmp_path / "lost"), options=options)
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(0)
    (tmp_path / "lost").touch()
    assert run.wait() == 100
    status = run.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("failed", "hardware", 1)
    stalls = [one["evidence"] for one in verdicts(run, "stall")]
    assert stalls, "what the GPU said last stands beside it"
    assert all(one["gpus"][0]["name"] == "NVIDIA A100-SXM4-80GB" for one in stalls)
    assert all(one["gpus"][0]["temperature_c"] == 60.0 and one["silent_s"] > 0 for one in stalls)


def test_a_crash_on_a_healthy_gpu_is_started_again(home: Home, stub: nvml.Stub, tmp_path: Path) -> None:
    options = ("--sensor-interval", "60s", "--restarts", "1", "--backoff", "0.1s")
    run = script(home, "well", HANGS, str(tmp_path / "go"), "crash", options=options)
    seen(run, lambda one: one["gpus"][0]["ours"] and one["step"], "the run is on GPU 0")
    stub.lose(1)  # another's
    (tmp_path / "go").touch()
    run.wait()
    status = run.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("gave_up", "crash", 2)
    assert verdicts(run, "hardware") == []


# -- a driver that does not answer -------------------------------------------------------------------------------------


def test_a_driver_that_hangs_from_the_start_delays_nothing(home: Home, stub: nvml.Stub) -> None:
    """D6-03: steps are read, status answers, the limit ends the run in time, and no process is left."""
    stub.sleep(60)
    begun = time.monotonic()
    switches = ("--steps", "100000", "--dt", "0.05")
    run = home.toy("limited", *switches, options=(*EVERY, "--max-steps", "40", "--grace", "2s"))
    until(lambda: sensors_of(run), "the sensor hangs")
    asked = time.monotonic()
    status = run.status()
    assert time.monotonic() - asked < 5.0
    assert status["state"] == "running"
    run.wait()
    assert time.monotonic() - begun < 20.0
    status = run.status()
    assert (status["state"], status["cause"]) == ("stopped", "max_steps")
    assert 40 <= status["step"] <= 50, "it was stopped where the limit is"
    assert status["gpus"] is None
    assert left(home, run) == []
    run.clean_logs()


@pytest.mark.long
def test_a_stall_and_a_stop_keep_to_time_beside_a_driver_that_hangs(
    home: Home, stub: nvml.Stub, tmp_path: Path
) -> None:
    run = script(
        home, "stalls", HANGS, str(tmp_path / "go"),
        options=(*EVERY, "--stall", "1s", "--grace", "1s", "--restarts", "3", "--backoff", "30s"),
    )  # fmt: skip
    seen(run, lambda one: one["step"], "a sample")
    stub.sleep(60, "nvmlDeviceGetUtilizationRates")
    (tmp_path / "go").touch()
    begun = time.monotonic()
    until(lambda: run.facts("backoff"), "it is ended for the stall, to be started again", limit_s=40)
    assert time.monotonic() - begun < 35.0
    begun = time.monotonic()
    assert run.stop().returncode == 0
    assert time.monotonic() - begun < 20.0
    assert run.status()["state"] == "stopped"
    assert "the GPUs were looked at after the end: the driver does not answer within 5 s" in run.status()["notes"]
    assert left(home, run) == []
    run.clean_logs()


@pytest.mark.long
def test_a_sensor_that_hangs_is_stale_killed_and_started_again(home: Home, stub: nvml.Stub) -> None:
    """D6-03 in full: the sensor's minute of silence, its end, its next start."""
    run = home.toy("night", "--steps", "100000", "--dt", "0.05", options=EVERY)
    seen(run, lambda one: one["step"], "a sample")
    (first,) = [pid for pid in sensors_of(run) if b"sensors.gpu" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    stub.sleep(60, "nvmlDeviceGetTemperature")
    stub.sleep(60, "nvmlDeviceGetTemperatureV")
    stale = run.until(lambda one: one["sensors"]["gpu"]["stale"], "the data is stale", limit_s=45)
    assert stale["sensors"]["gpu"]["stale"].startswith("GPU data stale for 3")
    steps = []
    for _ in range(3):
        asked = time.monotonic()
        status = run.status()
        assert time.monotonic() - asked < 5.0
        steps.append(status["step"])
        time.sleep(4.0)  # it is published every 3 s
    assert steps[0] < steps[1] < steps[2], "the log is followed meanwhile"
    assert "GPU data stale" in home.call("status", "night").stdout
    until(lambda: not living(first), "the sensor is killed", limit_s=60)
    stub.heal()
    run.until(lambda one: one["sensors"]["gpu"]["stale"] is None, "fresh data", limit_s=40)
    assert len([note for note in run.status()["notes"] if "did not answer for 60 s; it is killed" in note]) == 1
    begun = time.monotonic()
    assert run.stop().returncode == 0
    assert time.monotonic() - begun < 15.0
    assert left(home, run) == []
    run.clean_logs()


def test_a_driver_that_is_not_loaded_is_said(home: Home, stub: nvml.Stub) -> None:
    stub.fail(nvml.DRIVER_NOT_LOADED, "nvmlInitWithFlags")
    run = home.toy("none", "--steps", "100000", "--dt", "0.05", options=EVERY)
    status = run.until(lambda one: one.get("gpu_trouble"), "the trouble")
    assert "NVIDIA driver" in status["gpu_trouble"]
    assert status["gpus"] == []
    assert run.stop().returncode == 0
    assert left(home, run) == []


# -- which devices, and what they can do -------------------------------------------------------------------------------

SIZED = ("--params", "1000000000", "--tokens-per-step", "1000", "--dtype", "bf16")


def peak(home: Home, name: str, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the status of a run once its device was seen, and stop it."""
    run = home.start(
        name, sys.executable, str(Path(__file__).parents[1] / "toy.py"), "--steps", "100000", "--dt", "0.05",
        options=(*EVERY, *options), env=env,
    )  # fmt: skip
    until(lambda: run.facts("devices"), "the device is seen")
    found = run.until(lambda one: one["peak_source"] and one["step"] and one["step"] > 20, "its peak is known")
    assert run.stop("--now").returncode in (0, 1)
    return found


def test_the_peak_and_the_price_follow_the_device(home: Home, stub: nvml.Stub, tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('h100-sxm = 3.5\na100-80gb-sxm = 1.5\n"NVIDIA A100-SXM4-80GB" = 1.5\n')
    status = peak(home, "priced", *SIZED, "--price-table", str(table))
    assert "312" in status["peak_source"]
    assert "A100" in status["peak_source"]
    assert [gpu["index"] for gpu in status["gpus"]] == [0], "another's device is not the run's"
    # dt is 0.05 s: 6N * 1000 tokens / 0.05 s over 312 TFLOP/s.
    assert status["mfu"] == pytest.approx(6e9 * 1000 / 0.05 / 312e12, rel=1e-3)
    (fact,) = Run(home, "priced").facts("devices")
    assert [gpu["units"] for gpu in fact["gpus"]] == [108]
    assert [fact["values"]["price"] for fact in Run(home, "priced").facts("set")] == [1.5]


@pytest.mark.long
def test_two_gpus_by_their_uuids(home: Home, stub: nvml.Stub) -> None:
    uuids = ",".join(nvml.card(index)["uuid"] for index in (1, 0))
    status = peak(home, "two", *SIZED, "--devices", "2", env={"CUDA_VISIBLE_DEVICES": uuids})
    assert [gpu["index"] for gpu in status["gpus"]] == [0, 1]
    assert status["disagreements"] == []


def test_processes_say_whose_a_gpu_is(home: Home, stub: nvml.Stub) -> None:
    """Without CUDA_VISIBLE_DEVICES the driver's process list says it."""
    del home.env["CUDA_VISIBLE_DEVICES"]
    run = home.toy("listed", "--steps", "100000", "--dt", "0.05", options=(*EVERY, *SIZED))
    until(lambda: run.child() > 0, "the command runs")
    stub.change(1, compute=[(run.child(), 20 << 30)])
    stub.change(0, compute=[(os.getpid(), 1 << 30)])
    status = seen(run, lambda one: [gpu["index"] for gpu in one["gpus"]] == [1], "GPU 1 is the run's, and 0 is not")
    assert status["gpus"][0]["ours"] is True
    (fact,) = until(lambda: run.facts("devices"), "the device is noted")
    assert [gpu["index"] for gpu in fact["gpus"]] == [1]
    assert run.stop("--now").returncode in (0, 1)


def test_a_gpu_that_is_seen_later_changes_the_price_and_nothing_that_was_set(
    home: Home, stub: nvml.Stub, tmp_path: Path
) -> None:
    """A second rank may come to its device long after the first, and after the user has set a limit."""
    del home.env["CUDA_VISIBLE_DEVICES"]
    table = tmp_path / "prices.csv"
    table.write_text("a100-80gb-sxm,1.5\n")
    options = (*EVERY, *SIZED, "--price-table", str(table), "--peak-tflops", "989.4", "--devices", "2")
    run = home.toy("grows", "--steps", "100000", "--dt", "0.05", options=options)
    until(lambda: run.child() > 0, "the command runs")
    stub.change(0, compute=[(run.child(), 20 << 30)])
    until(lambda: run.facts("devices"), "the first device is noted")
    assert home.call("set", "grows", "--max-hours", "5").returncode == 0
    seen(run, lambda one: one["limits"]["max_hours"] == 5, "the limit is in force")
    stub.change(1, compute=[(run.child(), 20 << 30)])
    until(lambda: len(run.facts("devices")) == 2, "the second device is noted")
    status = seen(run, lambda one: one["limits"]["price"] == 3.0, "two devices are paid for")
    assert status["limits"]["max_hours"] == 5
    (said,) = status["disagreements"]
    assert said.startswith("the peak by --peak-tflops is 989.4 TFLOP/s, and that of the device which the driver names")
    assert said.endswith("312; the former is used")


def test_a_slice_of_a_gpu_is_no_whole_one(home: Home, stub: nvml.Stub) -> None:
    part = {
        "uuid": "MIG-0a0a0a0a-0000-4000-8000-000000000001",
        "name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "units": 42,
        "memory_total": 40 << 30,
        "memory_used": 1 << 30,
        "instance": 1,
    }
    stub.write([nvml.card(0, mig=1, slices=[part])])
    status = peak(home, "slice", *SIZED, env={"CUDA_VISIBLE_DEVICES": part["uuid"]})
    assert status["gpus"][0]["name"] == part["name"]
    assert status["gpus"][0]["memory_total"] == 40 << 30
    mfu = status["mfu"]
    share = None if mfu is None else 6e9 * 1000 / 0.05 / mfu / 312e12
    assert share is None or 0.3 < share < 0.5, "never over the peak of the whole device"
    assert "MIG" in status["peak_source"] or "42" in status["peak_source"]


# -- hot and slow ------------------------------------------------------------------------------------------------------


def slows(home: Home, stub: nvml.Stub, scale: float, last: int) -> tuple[Run, list[dict[str, Any]]]:
    """Let a run become slower after step 300, and its GPU hot; return its slowdown alerts."""
    every = ("--sensor-interval", f"{max(1.0, 3 * scale):g}s")
    run = script(home, "hot", SLOWS, str(scale), str(last), options=every)
    until(lambda: "step: 150," in run.log(), "step 150", limit_s=60)
    stub.change(0, temperature=91, throttle=("thermal",))
    assert run.wait(timeout_s=150) == 0
    return run, [one for one in verdicts(run, "slowdown") if one["action"] == "alert"]


def test_one_slowdown_alert_with_the_temperature_beside_it(home: Home, stub: nvml.Stub) -> None:
    """D4-01: step time 0.1 -> 0.25 s after step 300, 60 -> 91 C, a throttle flag: one alert, not one per step."""
    run, (alert,) = slows(home, stub, 0.1, 420)
    assert "0.1 -> 0.25 s" in alert["text"]
    assert "speed -60%" in alert["text"]
    assert "GPU 0 at 91 C, throttled (thermal)" in alert["text"]
    since = int(alert["text"].partition("since step ~")[2].split()[0])
    assert 290 <= since <= 320
    assert len([one for one in verdicts(run, "throttle") if one["action"] == "alert"]) <= 1
    assert left(home, run) == []


@pytest.mark.long
def test_one_alert_of_each_rule_in_real_time(home: Home, stub: nvml.Stub) -> None:
    run, (alert,) = slows(home, stub, 1.0, 640)
    assert "GPU 0 at 91 C, throttled (thermal)" in alert["text"]
    (throttled,) = [one for one in verdicts(run, "throttle") if one["action"] == "alert"]
    assert "GPU 0" in throttled["text"]


# -- supervisors that are killed ---------------------------------------------------------------------------------------


def stored(run: Run) -> list[tuple[str, int]]:
    """Return (kind, offset) of all samples in metrics.db, in order."""
    db = sqlite3.connect(f"file:{run.path / 'metrics.db'}?mode=ro", uri=True)
    try:
        rows = db.execute("SELECT source, offset FROM records WHERE source < 0 ORDER BY source DESC, offset").fetchall()
    finally:
        db.close()
    return [({-1: "gpu", -2: "host"}[source], offset) for source, offset in rows]


def written(run: Run, kind: str) -> list[int]:
    """Return where the lines of a sensor's file begin."""
    path = run.path / "sensors" / f"{kind}.jsonl"
    data = path.read_bytes() if path.exists() else b""
    lines = data.splitlines(keepends=True)
    assert all(json.loads(line) for line in lines if line.endswith(b"\n"))
    return [sum(map(len, lines[:number])) for number in range(len(lines))]


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.long)])
def test_kill_9_of_the_supervisor_doubles_no_sensor_and_loses_no_sample(
    home: Home, stub: nvml.Stub, kills: int
) -> None:
    run = home.toy("killed", "--steps", "100000", "--dt", "0.05", options=("--sensor-interval", "1s"))
    for number in range(kills):
        until(lambda: len(written(run, "gpu")) > number, "a sample more")  # noqa: B023
        before, sensors = run.pid("supervisor"), sensors_of(run)
        assert len(sensors) <= 2
        os.kill(before, signal.SIGKILL)
        until(lambda: not any(map(living, sensors)), "its sensors end with it")  # noqa: B023
        next_one = lambda: run.pid("supervisor") != before and sensors_of(run)  # noqa: E731, B023
        until(next_one, "the next supervisor has its own", limit_s=60)  # the shim waits 30 s after five of them
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in sensors_of(run)]
        assert sum(b"overnight.sensors.gpu" in one for one in commands) <= 1
    last = len(written(run, "gpu"))
    until(lambda: len(written(run, "gpu")) >= last + 2, "further samples")
    assert run.stop().returncode == 0
    assert left(home, run) == []
    for kind in {kind for kind, _ in stored(run)}:
        found = [offset for one, offset in stored(run) if one == kind]
        lines = written(run, kind)
        assert found == lines[: len(found)], "each line once, in order"
        assert len(lines) - len(found) <= 2, "but for what was written while the run was ending"
    run.clean_logs()


def test_the_real_device_files_are_looked_for_too(home: Home, tmp_path: Path) -> None:
    """A machine with a device file and no library: said, and nothing else changes."""
    card = tmp_path / "card"
    card.touch()
    path = str(Path(__file__).parents[1] / "toy.py")
    words = ("run", "--name", "bare", *EVERY, "--", sys.executable, path, "--steps", "100000", "--dt", "0.05")
    said = home.call(*words, before=box(tmp_path, {"nvidia0": card, "nvidiactl": card}))
    assert said.returncode == 0, said.stderr
    run = Run(home, "bare")
    status = run.until(lambda one: one.get("gpu_trouble"), "the trouble")
    assert status["gpus"] == []
    assert run.stop().returncode == 0
    assert [fact["attempt"] for fact in run.facts("devices_free")] == [1]
    assert not [note for note in run.status()["notes"] if "devices are free" in note], "nobody held them: no word of it"
    assert left(home, run) == []
