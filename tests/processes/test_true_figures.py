"""Whole runs whose figures are known: clean and wall-clock speed, micro-steps, devices, refusals, provenance."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, until

import nvml

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]

SAVING = """\
import time
step = 0
for turn in range(3):
    before = time.monotonic()
    for _ in range(40):
        time.sleep(0.05)
        now = time.monotonic()
        step += 1
        print(f"step: {step}, loss: {4 - step / 100:.3f}, tokens: 50, dt: {now - before:.6f}", flush=True)
        before = now
    print("saving checkpoint", flush=True)
    time.sleep(2.0)
    print("saved checkpoint", flush=True)
"""

CRASHING = """\
import os, sys, time
first = 1 if os.environ["OVERNIGHT_ATTEMPT"] == "1" else 21
for step in range(first, 61):
    time.sleep(0.02)
    print(f"step: {step}, loss: {4 - step / 100:.3f}, tokens: 100, dt: 0.02", flush=True)
    if step == 40 and first == 1:
        sys.exit("the node has lost its file system")
"""

LINES = """\
import sys
lines, dt = int(sys.argv[1]), float(sys.argv[2])
for step in range(60):
    for _ in range(lines):
        print(f"step: {step}, loss: 3.000, dt: {dt}", flush=True)
"""

TOY = """\
import sys, time
for step in range(40):
    print(eval(sys.argv[1]), flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def script(work: Path, start: Start) -> Callable[..., Run]:
    """Return a function that starts a run of a script."""

    def begin(name: str, source: str, *words: object, flags: tuple[object, ...] = ()) -> Run:
        path = work / f"{name}.py"
        path.write_text(source)
        return start(name, sys.executable, path, *words, flags=flags)

    return begin


def report(run: Run) -> dict[str, Any]:
    """Return what `overnight report --json` says of a run."""
    done = run.runs.overnight("report", run.name, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


# ---- clean and wall-clock figures


def test_half_of_the_time_stepping(script: Callable[..., Run]) -> None:
    run = script("half", SAVING, flags=("--params", "1M", "--peak-tflops", "0.1"))
    assert run.wait(60) == 0
    told = run.status
    lines = [line for line in run.log.decode().splitlines() if line.startswith("step")]
    dts = dict(enumerate((float(line.rpartition(" ")[2]) for line in lines), 1))
    stepped_s = sum(dts.values())
    clean = [dt for step, dt in dts.items() if step > 10 and step not in (41, 81)]
    assert told["tokens_per_second_avg"] == pytest.approx(120 * 50 / stepped_s, rel=1e-6)
    assert told["tokens_per_second_clean"] == pytest.approx(len(clean) * 50 / sum(clean), rel=1e-6)
    assert told["goodput"] == pytest.approx(stepped_s / told["elapsed_s"], rel=0.03)
    assert told["tokens_per_second_wall"] == pytest.approx(120 * 50 / told["elapsed_s"], rel=1e-3)
    assert told["goodput"] < stepped_s / (stepped_s + 6.0) + 0.01, "6 s of saves lie between the steps"
    assert told["mfu_wall"] == pytest.approx(6e6 * told["tokens_per_second_wall"] / 1e11)
    assert told["mfu_clean"] == pytest.approx(6e6 * told["tokens_per_second_clean"] / 1e11)
    assert told["mfu_avg"] > told["mfu_wall"] * (stepped_s + 5.9) / stepped_s
    good = report(run)["goodput"]
    assert good["stepping_tokens_per_s"] == pytest.approx(told["tokens_per_second_avg"], rel=1e-3)
    assert good["overall_tokens_per_s"] == pytest.approx(told["tokens_per_second_wall"], rel=0.02)
    assert good["goodput"] == pytest.approx(told["goodput"], rel=0.02)


def test_steps_that_a_crash_has_cost_do_not_count(script: Callable[..., Run]) -> None:
    run = script("crash", CRASHING, flags=("--restarts", 1, "--backoff", "0.3"))
    assert run.wait(60) == 0
    told = run.status
    assert told["attempt"] == 2
    assert told["tokens_per_second_avg"] == pytest.approx(5000)
    assert told["tokens_per_second_clean"] == pytest.approx(5000)
    assert told["tokens_per_second_wall"] == pytest.approx(60 * 100 / told["elapsed_s"], rel=1e-3)
    assert told["goodput"] == pytest.approx(60 * 0.02 / told["elapsed_s"], rel=1e-3)
    good = report(run)["goodput"]
    assert good["redone_steps"] == 20
    assert good["goodput"] == pytest.approx(told["goodput"], rel=0.05)


def test_the_figures_outlive_a_supervisor(script: Callable[..., Run]) -> None:
    run = script("killed", SAVING)
    run.wrote("step: 60,")
    before = run.pid("supervisor")
    os.kill(before, signal.SIGKILL)
    assert run.wait(60) == 0
    told = run.status
    assert told["records"] == 120
    assert told["tokens_per_second_wall"] == pytest.approx(120 * 50 / told["elapsed_s"], rel=1e-3)


# ---- micro-steps (G1-04) and counters (G2-01)


def test_lines_of_micro_steps_and_of_optimizer_steps_give_the_same(script: Callable[..., Run]) -> None:
    flags = ("--batch", 4, "--seq-len", 1024, "--accumulate", 8, "--world-size", 2)
    found = []
    for name, lines, dt in (("micro", 8, 0.125), ("whole", 1, 1.0)):
        run = script(name, LINES, lines, dt, flags=flags)
        assert run.wait() == 0
        told = run.status
        assert told["tokens_source"] == "batch 4 * seq-len 1,024 * accumulate 8 * world-size 2"
        assert (told["tokens_per_step"], told["devices"], told["dt"]) == (65536, 2, 1.0)
        found += [told["tokens_per_second"], told["tokens_per_second_avg"], told["tokens_per_second_clean"]]
        found.append(report(run)["goodput"]["stepping_tokens_per_s"])
    assert found == pytest.approx([65536] * len(found), rel=1e-6)


def test_a_counter_alone_gives_the_speed(script: Callable[..., Run]) -> None:
    run = script("counter", TOY, "f'step: {step + 1000}, loss: 3.0, tokens_seen: {10**9 + step * 500}'", 0.1)
    until(lambda: run.status["records"] >= 1, "a first line")
    first = run.status["tokens_per_second"]
    assert first is None or first < 50_000, "not 1e9 tokens in a second"
    assert run.wait() == 0
    told = run.status
    assert told["tokens_source"] == "as the log prints them"
    assert told["tokens_per_step"] == 500
    assert 1000 < told["tokens_per_second"] <= 5100


# ---- devices and tokens (G1-03), useful tokens (G2-04), recomputation (G1-07), shards (G1-06)


def test_tokens_of_all_devices_over_the_peak_of_all(script: Callable[..., Run]) -> None:
    flags = ("--params", "1e9", "--devices", 8, "--peak-tflops", 312)
    for name, more in (("global", "tok/s: 80000"), ("each", "tokens_per_second_per_gpu: 10000")):
        run = script(name, TOY, f"f'step: {{step}}, loss: 3.0, {more}, dt: 1.0'", 0, flags=flags)
        assert run.wait() == 0
        told = run.status
        assert told["tokens_per_second"] == pytest.approx(80_000)
        assert told["tflops"] == pytest.approx(60)
        assert told["mfu"] == pytest.approx(0.1923, abs=1e-4)
        assert told["disagreements"] == []


def test_useful_tokens_recomputation_and_shards(script: Callable[..., Run]) -> None:
    words = "f'step: {step}, loss: 3.0, tokens: 4096, non_pad: 2900, dt: 1.0' if step else '[rank0] params 875M'"
    flags = ("--params", "7B", "--peak-tflops", 312, "--devices", 8, "--recompute", "full")
    run = script("mixed", TOY, words, 0, flags=flags)
    assert run.wait() == 0
    told = run.status
    assert (told["tokens_per_second"], told["useful_tokens_per_second"]) == (4096, 2900)
    assert told["mfu"] == pytest.approx(42e9 * 4096 / (8 * 312e12))
    assert told["hfu"] == pytest.approx(told["mfu"] * 4 / 3)
    assert told["params"] == 7_000_000_000
    (said,) = told["disagreements"]
    assert "875,000,000" in said
    assert "8 shards" in said


# ---- what cannot be, and what disagrees


def test_more_than_all_is_said_not_to_be(script: Callable[..., Run]) -> None:
    words = "f'step: {step}, loss: 3.0, tokens: 65536, dt: 1.0'"
    run = script("beyond", TOY, words, 0, flags=("--params", "7B", "--peak-tflops", 312))
    assert run.wait() == 0
    told = run.status
    assert told["mfu"] > 1
    assert "cannot be" in told["mfu_trouble"]
    shown = run.runs.overnight("status", run.name).stdout
    assert "cannot be" in shown


def test_a_printed_time_that_is_not_what_passes(script: Callable[..., Run]) -> None:
    run = script("lies", TOY.replace("range(40)", "range(1000)"), "f'step: {step}, loss: 3.0, dt: 0.02'", 0.1)
    said = until(lambda: run.status["disagreements"], "a disagreement", limit_s=60)
    assert "the printed step time, 0.02 s" in said[0]
    assert re.search(r"between two steps, 0\.\d+ s", said[0])
    assert "the printed one is used" in said[0]
    assert run.status["dt"] == pytest.approx(0.02)
    run.stop("--now")


# ---- which device (G1-01)


DEVICES = {
    "NVIDIA H100 80GB HBM3": (132 * 128, 989.4e12),
    "NVIDIA A100-SXM4-80GB": (108 * 64, 312e12),
    "FooGPU 9000": (132 * 128, None),
}


@pytest.mark.parametrize("name", DEVICES)
def test_the_peak_is_that_of_the_device_the_driver_names(
    tmp_path: Path, runs: Runs, script: Callable[..., Run], name: str
) -> None:
    cores, peak = DEVICES[name]
    stub = nvml.Stub(tmp_path / "nvml")
    stub.write([nvml.card(0, name=name, cores=cores, capability="9.0" if cores > 7000 else "8.0")])
    runs.env.update({**stub.environ(), "CUDA_VISIBLE_DEVICES": "0"})
    flags = ("--params", "1M", "--tokens-per-step", 1000, "--dtype", "bf16", "--sensor-interval", "1s")
    run = script(
        "gpu", TOY.replace("range(40)", "range(1000)"), "f'step: {step}, loss: 3.0, dt: 0.1'", 0.1, flags=flags
    )
    told = until(lambda: run.status if run.status["gpus"] else None, "a GPU that was seen", limit_s=30)
    assert told["gpus"][0]["name"] == name
    if peak is None:
        assert told["mfu"] is None
        assert "FooGPU 9000" in told["unknown"]["mfu"]
        assert until(lambda: run.status["tflops"], "TFLOP/s") > 0
    else:
        told = until(lambda: run.status if run.status["mfu"] else None, "an MFU")
        assert told["peak_flops"] == pytest.approx(peak, rel=1e-3)
        assert "dense bf16" in told["peak_source"]
    run.stop("--now")


# ---- settings by the command line


def test_explain_shows_where_each_number_comes_from(runs: Runs, work: Path) -> None:
    (work / "overnight.toml").write_text('gpu = "a100"\nbatch = 4\n')
    runs.env["OVERNIGHT_DTYPE"] = "bf16"
    done = runs.overnight("run", "--explain", "--model", "gpt2", "--seq-len", "1024", "--", "true")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["gpu"] == ["a100", str(work / "overnight.toml")]
    assert rows["dtype"] == ["bf16", "OVERNIGHT_DTYPE"]
    assert rows["model"] == ["gpt2", "flag --model"]
    assert rows["params"] == ["124439808", "gpt2, by name"]
    assert rows["peak-tflops"] == ["312", "gpu a100, dtype bf16"]
    assert rows["tokens-per-step"] == ["4096", "batch 4 * seq-len 1,024 * accumulate 1 * 1 device"]
    assert rows["convention"] == ["6n", "default"]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--config", "no.json"), "no.json"),
        (("--config", "broken.json"), "broken.json"),
        (("--model", "gpt-2"), "gpt2"),
        (("--gpu", "h100", "--dtype", "bf16"), "h100-pcie"),
        (("--dtype", "fp64"), "bf16"),
        (("--batch", "0"), "batch"),
        (("--convention", "six"), "6n"),
        (("--params", "1M", "--trainable-params", "2M"), "2,000,000"),
        (("--config", "a.json", "--model", "gpt2"), "both"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(runs: Runs, work: Path, flags: tuple[str, ...], word: str) -> None:
    (work / "broken.json").write_text('{"model_type": "gpt2", "n_layer"')
    done = runs.overnight("run", *flags, "--", "true")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert word in done.stderr
