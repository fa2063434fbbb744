"""The report of runs on a machine with GPUs: what the sensors saw, through NVIDIA's own Python package and a stub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, until

import nvml

pytestmark = pytest.mark.timeout(90)

TRAIN = """\
import os, time
print("Number of parameters: 875M", flush=True)
step = 0
while not os.path.exists("enough"):
    step += 1
    time.sleep(0.05)
    print(f"step: {step}, loss: {4 - step / 1000:.4f}, dt: 0.05, tokens: 4096, non_pad: 2900", flush=True)
"""
FLAGS = (
    "--sensor-interval", "1", "--params", "124356864", "--layers", 12, "--seq-len", 1024, "--width", 768, "--dtype",
    "bf16", "--devices", 2, "--price", "2.49/h",
)  # fmt: skip


@pytest.fixture
def stub(tmp_path: Path, runs: Runs) -> nvml.Stub:
    found = nvml.Stub(tmp_path / "nvml")
    runs.env |= {**found.environ(), "CUDA_VISIBLE_DEVICES": "0,1"}
    return found


def told(runs: Runs) -> tuple[dict[str, Any], str, str]:
    """Return the report as JSON, as text on one line, and as a page."""
    done = [runs.overnight("report", "night", *words) for words in (("--json",), (), ("--html", "-"))]
    assert [one.returncode for one in done] == [0, 0, 0], done
    assert max(len(line) for line in done[1].stdout.splitlines()) <= 80
    return json.loads(done[0].stdout), " ".join(done[1].stdout.split()), done[2].stdout


def samples(run: Run, wanted: str) -> bool:
    path = run.folder / "sensors" / "gpu.jsonl"
    return path.exists() and any(wanted in line for line in path.read_text().splitlines())


def test_the_report_of_a_run_on_two_gpus(stub: nvml.Stub, runs: Runs, start: Callable[..., Run], work: Path) -> None:
    stub.write([nvml.card(0), nvml.card(1, temperature=71)], driver="550.54.15")
    (work / "train.py").write_text(TRAIN)
    run = start("night", PYTHON, "train.py", flags=FLAGS, log="step: 30")
    until(lambda: run.facts("devices"), "the devices in the journal")
    stub.change(1, temperature=93, throttle=("thermal",))
    until(lambda: samples(run, '"temperature_c":93'), "a hot sample")
    stub.xid(0, 43)
    until(lambda: samples(run, '"code":43'), "an Xid")
    (work / "enough").touch()
    assert run.wait() == 0
    value, text, page = told(runs)
    figures = {one["name"]: one for one in value["figures"]}
    status = run.status
    for name, of in (("mfu", "mfu_avg"), ("mfu_clean", "mfu_clean"), ("mfu_attention", "mfu_attention_avg")):
        assert figures[name]["value"] == pytest.approx(status[of])
    assert figures["mfu_wall"]["value"] == pytest.approx(status["mfu_wall"], rel=0.05)
    assert figures["peak_flops"]["value"] == 312e12 == status["peak_flops"]
    assert figures["useful_tokens_per_second"]["value"] == pytest.approx(58_000, rel=0.01)
    assert value["disagreements"] == status["disagreements"]
    assert any("875M" in one for one in value["disagreements"])
    machine = value["hardware"]
    assert [one["name"] for one in machine["gpus"]] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert (machine["gpus"][1]["temperature_most_c"], machine["gpus"][1]["throttle"]) == (93, ["thermal"])
    assert [one["code"] for one in machine["xids"]] == [43]
    assert {"gpu_temperature_c", "gpu_power_w"} <= {one["name"] for one in machine["charts"]}
    assert "driver 550.54.15" in text
    assert "reports Xid 43" in text
    assert "GPU temperature" in page
    assert value["evidence"]["gpu_samples"] == machine["samples"]["gpu"]
    assert value["cost"]["per_billion_tokens"] == pytest.approx(status["cost_per_billion_tokens"], rel=0.05)


def test_a_run_whose_gpu_is_lost(stub: nvml.Stub, runs: Runs, start: Callable[..., Run], work: Path) -> None:
    stub.write([nvml.card(0), nvml.card(1)])
    (work / "train.py").write_text(TRAIN)
    run = start("night", PYTHON, "train.py", flags=(*FLAGS, "--grace", "1"), log="step: 20")
    until(lambda: run.facts("devices"), "the devices in the journal")
    stub.lose(1)
    assert run.wait() == 100
    value, text, _ = told(runs)
    assert (value["outcome"]["state"], value["outcome"]["cause"]) == ("failed", "hardware")
    assert value["hardware"]["gpus"][1]["lost"]
    assert "GPU 1" in value["next"][0]
    assert "CUDA_VISIBLE_DEVICES" in value["next"][0]
    assert "kernel log" in text or "GPU errors none was reported" in text or "GPU error " in text
