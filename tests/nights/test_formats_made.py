"""Logs made by the hundred: many forms of one progress line, with other text around them, cut and prefixed at random.

What is printed is known, so every value can be compared. Each form is home-made or follows a known program.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overnight.cli.replay import replayed_words
from overnight.events import Record
from overnight.readers.sniff import Sniffer
from overnight.tail import Tail
from overnight.wiring import READERS

LINES = 50
NAN_FROM = 40
FIELDS = ("step", "loss", "dt_s", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "epoch")
SCALES = {"k": 1e3, "M": 1e6, "ms": 1e-3, "us": 1e-6}

# Each `{name}` is a number of its own; `{n}` is the step, `{loss}` the loss, and `%` behind a name its format and unit.
FORMS = {
    "pipes": "step {n:5d} | loss: {loss} | lr {lr} | norm: {grad_norm} | dt: {dt_ms}ms | tok/sec: {tokens_per_s}",
    "commas": "Step {n:,}/20,000, Loss={loss}, LR={lr}, Time/step={dt_s}s",
    "megatron": " iteration {n:8d}/ 500000 | consumed samples: 512 | elapsed time per iteration (ms): {dt_ms} |"
    " learning rate: {lr} | lm loss: {loss} | loss scale: 1.0 | grad norm: {grad_norm} |"
    " number of skipped iterations: 0 |",
    "pipeline": "steps: {n} loss: {loss} iter time (s): {dt_s} samples/sec: {samples_per_s} ",
    "titan": "[titan] 2026-08-20 10:00:01,123 - root - INFO - step: {n:2d}  loss: {loss}  grad_norm: {grad_norm}"
    "  memory: 47.65GiB(50.16%)  tps: {tokens_per_s}  tflops: 337.73  mfu: {mfu}%",
    "reversed": "loss: {loss}  lr: {lr}  step: {n}",
    "sentence": "Training step {n} of 900 - loss {loss} - lr {lr} - took {dt_ms} ms",
    "rates": "iter: {n}/900 ({n}%) loss: {loss} (avg 2.5) speed: {dt_ms} ms/step throughput: {tokens_per_s} tok/s",
    "memory": "global_step={n} mem: 12.5 GB loss: {loss} power: 300 W lr: {lr} | {dt_s} s/it",
    "micro": "update {n}: train/loss: {loss}, train/lr: {lr}, step_time: {dt_us}us",
    "maxtext": "completed step: {n}, seconds: {dt_s}, TFLOP/s/device: 184.231, Tokens/s/device: {tokens_per_s},"
    " total_weights: 393216, loss: {loss}, perplexity: 3000.1",
    "tabs": "\tSTEP: {n}\tLOSS: {loss}\tLR: {lr}\tgnorm: {grad_norm}",
    "json": '{{"step": {n}, "loss": {loss}, "lr": {lr}, "grad_norm": {grad_norm}, "dt": {dt_s}}}',
    "wrapped": '{{"level": "info",'
    ' "message": {{"global_step": "{n}/900", "loss": "{loss}", "step_time_ms": {dt_ms}}}}}',
    "step and json": 'step {n}/900: {{"loss": {loss}, "lr": {lr}, "grad_norm": {grad_norm}}}',
    "step and dict": "Step {n} - metrics: {{'loss': {loss}, 'lr': {lr}, 'epoch': {epoch}}}",
}
PREFIXES: dict[str, Callable[[int], str]] = {
    "none": lambda _n: "",
    "rank": lambda _n: "[rank0]: ",
    "logging": lambda n: f"2026-11-30 12:42:{n % 60:02d},123 - train - INFO - ",
    "kubernetes": lambda n: f"2026-11-30T12:42:{n % 60:02d}.123456789Z stdout F ",
    "journal": lambda n: f"Nov 30 12:42:{n % 60:02d} box python3[4242]: ",
    "ray": lambda _n: "\x1b[36m(TaskRunner pid=4242)\x1b[0m ",
    "seconds": lambda n: f"[{n * 1.5:10.3f}] ",
}
AROUND = r"""
Downloading shards:  50%|#####     | 1/2 [00:12<00:12, 12.3s/it]
Map: 100%|##########| 51760/51760 [00:03<00:00, 15000.0 examples/s]
Traceback (most recent call last):
  File "train.py", line 341, in train_step
    loss = model(batch)["loss"]  # step 5, loss 2.5
    print(f"step {step} | loss: {loss.item():.6f} | lr {lr:.4e}")
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)
wandb:         step 500
wandb:   train/loss 2.31
max_steps: 10000
  learning_rate: 0.0003
{'learning_rate': 0.0003, 'max_steps': 1000, 'batch_size': 32}
| 0   N/A  N/A      4242      C   python                          71000MiB |
Saved checkpoint at step 100 (loss 2.5) in 3.2s
Resuming from checkpoint step 100, loss 2.5
best: step 5, loss 2.5
gpu util 99% mem 71.2GB temp 65C power 400W
Once upon a time, at 3:15 pm, 5 people walked 10 steps in 2.5 hours.
{"step": 100, "event": "checkpoint", "path": "x"}
2026-01-01 10:00:00 INFO eval: perplexity 12.3 accuracy 0.41
Validation: step 5, loss: 2.5
Test: step 5, loss: 2.5
val loss 3.21
Iteration time: 310 ms (fwd 120 ms)
total 120 steps in 34.5 s (3.48 steps/s)
throughput: 1.2M tok/s over the last 100 steps
""".strip("\n").split("\n")

# What these are only shows beside a training; KeyValue takes them for one before.
BESIDE = frozenset(
    {'    loss = model(batch)["loss"]  # step 5, loss 2.5', "best: step 5, loss 2.5", "Test: step 5, loss: 2.5"}
)
BESIDE_FROM = 6


def made(form: str, dice: random.Random) -> list[tuple[str, dict[str, float] | None]]:
    """Return lines with what they say; None for lines that say nothing about the training."""
    lines: list[tuple[str, dict[str, float] | None]] = []
    for n in range(1, LINES + 1):
        while dice.random() < 0.3:
            line = dice.choice(AROUND)
            if n >= BESIDE_FROM or line not in BESIDE:
                lines.append((line, None))
        loss = "NaN" if n >= NAN_FROM else f"{dice.uniform(1.5, 11):.{dice.choice((2, 4, 6))}f}"
        printed = {
            "loss": loss,
            "lr": f"{dice.uniform(1e-7, 1e-3):.4g}",
            "grad_norm": f"{dice.uniform(0.1, 20):.3f}",
            "dt_s": f"{dice.uniform(0.1, 9):.3f}",
            "dt_ms": f"{dice.uniform(9, 9000):.2f}",
            "dt_us": f"{dice.uniform(9000, 90000):.0f}",
            "tokens_per_s": f"{dice.randrange(900, 10**7):,}",
            "samples_per_s": f"{dice.uniform(1, 900):.2f}",
            "mfu": f"{dice.uniform(5, 60):.1f}",
            "epoch": f"{n / 9:.3f}",
        }
        said = {"step": float(n)}
        for name, text in printed.items():
            if f"{{{name}}}" in form:
                field, _, unit = name.partition("_") if name.startswith("dt_") else (name, "", "")
                value = float(text.replace(",", "")) * SCALES.get(unit, 1.0)
                said["dt_s" if field == "dt" else name] = value
        lines.append((form.format(n=n, **printed), said))
    return lines


def read(data: bytes, sizes: Callable[[], int]) -> list[Record]:
    """Return the training records of a log that arrives in pieces of these sizes."""
    tail, sniffer = Tail(), Sniffer([make() for make in READERS.values()])
    lines, at = [], 0
    while at < len(data):
        size = sizes()
        lines += tail.feed(data[at : at + size])
        at += size
    found = [record for line in [*lines, *tail.flush()] for record in sniffer(line, 0.0, 0)]
    return [one for one in [*found, *sniffer.flush()] if one.kind == "train" and not one.early]


def differences(record: Record, said: dict[str, float]) -> list[tuple[str, Any, Any]]:
    pairs = [(name, getattr(record, name), said.get(name)) for name in FIELDS]
    return [
        (name, value, expected)
        for name, value, expected in pairs
        if not (
            value is expected is None
            or (value is not None and expected is not None and math.isclose(value, expected, rel_tol=1e-9))
            or (
                name == "loss"
                and value is not None
                and expected is not None
                and math.isnan(value)
                and math.isnan(expected)
            )
        )
    ]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("form", FORMS)
def test_every_value_of_a_made_log_is_read_and_nothing_else(form: str, prefix: str) -> None:
    dice = random.Random(f"{form} {prefix}")
    lines = made(FORMS[form], dice)
    end = dice.choice(("\n", "\r\n"))
    data = "".join(f"{PREFIXES[prefix](n)}{text}{end}" for n, (text, _) in enumerate(lines)).encode()
    records = read(data, lambda: len(data))
    expected = [said for _, said in lines if said is not None]
    assert [record.step for record in records] == [said["step"] for said in expected]
    assert [wrong for record, said in zip(records, expected, strict=True) for wrong in differences(record, said)] == []
    assert repr(read(data, lambda: dice.randrange(1, 60))) == repr(records)


@pytest.mark.parametrize(
    ("form", "odd"),
    [
        *(("step: {n}, loss: {loss}({loss}), lr: 0.1", odd) for odd in ("nan", "inf", "NaN")),
        *(("iter {n}: loss {loss}({loss}), time 14.01ms, mfu 3.10%", odd) for odd in ("nan", "-inf")),
        ("step {n} | loss {loss} ({loss}) | lr 0.1", "nan"),
        ("2026-01-01 10:00:00 INFO test: step: {n}, loss: {loss}", "nan"),
        *((f"{words}step: {{n}}, loss: {{loss}}", "nan") for words in ("test: ", "exp=test ", "env: dev | ", "best: ")),
        *((f"{words} step {{n}}, loss {{loss}}", "nan") for words in ("sampling", "final:", "dry run:", "smoke test:")),
    ],
)
def test_the_first_loss_that_is_no_number_ends_the_run(form: str, odd: str, tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    losses = [f"{9 / n + 2:.4f}" if n < NAN_FROM else odd for n in range(1, LINES + 1)]
    log.write_text("".join(form.format(n=n, loss=loss) + "\n" for n, loss in enumerate(losses, 1)))
    found = replayed_words([str(log)])
    assert (found["end"]["rule"], found["end"]["step"]) == ("nonfinite", NAN_FROM)
    assert {one["step"] for one in found["verdicts"] if one["rule"] == "nonfinite"} == {NAN_FROM}
    assert found["read"]["evals"] == 0
