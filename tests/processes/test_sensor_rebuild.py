"""What sensors told is stored beside the step it belongs to, and is the same when it is built anew; and it is replayed.

Real runs on a stand-in for NVIDIA's library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, toy, until

import nvml
from overnight.history.store import records_of

pytestmark = pytest.mark.timeout(120)

# Silent before its first step, crashes at 100, goes on from 60, stands still at 120, goes back from 150 to 140.
TRAINING = """
import os, sys, time
attempt = int(os.environ["OVERNIGHT_ATTEMPT"])
time.sleep(1.2)
def say(step):
    print(f"step: {step}, loss: {3 - step / 1000:.4f}, dt: 0.02", flush=True)
    time.sleep(2.5 if step == 120 else 0.02)
for step in range({1: 0, 2: 60}[attempt], 151):
    say(step)
    if attempt == 1 and step == 100: sys.exit(3)
for step in range(140, 260): say(step)
"""
FLAGS = ("--restarts", 1, "--backoff", "0.5", "--sensor-interval", "1s")


@pytest.fixture
def stub(runs: Runs, tmp_path: Path) -> nvml.Stub:
    made = nvml.Stub(tmp_path / "nvml")
    made.write([nvml.card(0), nvml.card(1, temperature=70)])
    runs.env |= {**made.environ(), "CUDA_VISIBLE_DEVICES": "0,1"}
    return made


def samples(rows: list[dict[str, Any]], kind: str = "gpu") -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def in_file(run: Run, kind: str = "gpu") -> int:
    """Return how many samples a sensor has written by now."""
    path = run.folder / "sensors" / f"{kind}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(run: Run, *, delete: bool) -> None:
    """Kill the supervisor once there are new samples; ``delete``: its metrics.db is gone before."""
    before = in_file(run)
    until(lambda: in_file(run) > before, "another sample")
    pid = run.pid("supervisor")
    if delete:
        (run.folder / "metrics.db").unlink()
    os.kill(pid, signal.SIGKILL)
    until(lambda: run.pid("supervisor") not in (0, pid), "another supervisor")


@pytest.mark.parametrize("what", ["nothing", "killed", "deleted"])
def test_a_rebuild_puts_every_sample_where_the_supervisor_had_it(runs: Runs, stub: nvml.Stub, what: str) -> None:
    assert stub.cards
    script = runs.work / "train.py"
    script.write_text(TRAINING)
    run = runs.start("night", sys.executable, script, flags=FLAGS)
    for _ in range(2 if what != "nothing" else 0):
        killed(run, delete=what == "deleted")
    assert run.wait() == 0, run.log[-2000:]
    until(lambda: not (run.folder / "metrics.db-wal").exists(), "the supervisor has closed metrics.db")
    path = run.folder / "metrics.db"
    had = list(records_of(path))
    own = samples(had)
    assert len(own) == in_file(run) >= 5, "each sample once, the first and the last as well"
    assert len(samples(had, "host")) == in_file(run, "host")
    assert {row["attempt"] for row in own} == {1, 2}
    assert len({row["step"] for row in own}) > 2
    path.unlink()
    said = runs.overnight("reindex", "night", "--json")
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    assert told["samples"] == in_file(run) + in_file(run, "host")
    assert told["records"] == len(had) - told["samples"]
    assert list(records_of(path)) == had
    assert runs.overnight("reindex", "night").stdout.count(f"{told['samples']} samples of sensors") == 1
    assert list(records_of(path)) == had
    # a file that is gone leaves what is stored of it
    (run.folder / "sensors" / "gpu.jsonl").unlink()
    assert runs.overnight("reindex", "night").returncode == 0
    assert list(records_of(path)) == had


def test_a_lost_gpu_comes_out_again_and_under_another_action(runs: Runs, stub: nvml.Stub, toy_run: Start) -> None:
    run = toy_run("lost", "--sensor-interval", "1s", "--restarts", "2", "--backoff", "0.1")
    until(lambda: in_file(run) >= 2, "two samples")
    stub.lose(0)
    assert run.wait() == 100
    found = json.loads(runs.overnight("replay", "lost", "--json").stdout)
    assert found["end"]["rule"] == "hardware"
    assert found["end"]["then"] == "failed (hardware)"
    mine = [one for one in found["verdicts"] if one["rule"] == "hardware"]
    assert [one["night"]["how"] for one in mine[:1]] == ["same"]
    assert mine[0]["evidence"]["device"] == 0
    assert not {"hardware", "throttle", "low_utilisation"} & set(found["unjudged"])
    assert "hardware" not in {one["rule"] for one in found["night"]["missing"]}
    other = json.loads(runs.overnight("replay", "lost", "--action", "hardware=alert", "--json").stdout)
    assert other["end"] is None
    assert other["changed"]["actions"][1] == {"hardware": "alert"}
    (run.folder / "sensors" / "gpu.jsonl").unlink()
    blind = json.loads(runs.overnight("replay", "lost", "--json").stdout)
    assert blind["unjudged"]["hardware"] == "there are no samples of GPUs"
    assert {one["how"] for one in blind["night"]["missing"] if one["rule"] == "hardware"} == {"not asked"}
    text = " ".join(runs.overnight("replay", "lost").stdout.split())
    assert "no samples to judge it by now" in text
    assert "there are no samples of GPUs" in text


Start = Callable[..., Run]


@pytest.fixture
def toy_run(runs: Runs) -> Start:
    """Return a function that starts a long toy training."""

    def start(name: str, *flags: str) -> Run:
        return runs.start(name, *toy("--steps", 100000, "--dt", 0.05), flags=flags, log="step: 2,")

    return start
