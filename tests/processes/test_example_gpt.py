"""examples/train_gpt.py keeps its word: stopped and resumed equals never stopped, in every bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the example cannot run")

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SMALL = "--layers 1 --width 32 --heads 2 --context 16 --batch 4 --horizon 500 --save-every 1000".split()


def train(folder: Path, steps: int, *, stop_at: int | None = None, environ: dict[str, str] | None = None) -> str:
    """Run the example to ``steps``, or send SIGTERM once it has printed ``stop_at``; return its output."""
    command = [sys.executable, str(SCRIPT), *SMALL, "--steps", str(steps), "--checkpoints", str(folder)]
    environ = {**os.environ, **(environ or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if stop_at is not None and line.startswith(f"step: {stop_at},"):
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, printed
    return printed


def losses(printed: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step: (\d+), loss: ([\d.]+), dt: [\d.]+, lr: ", printed)}


def test_resume_equals_an_unbroken_run(tmp_path: Path) -> None:
    first = train(tmp_path / "broken", 100_000, stop_at=5)
    cut = max(losses(first))
    assert f"saved checkpoint-{cut:06d}.pt" in first
    second = train(tmp_path / "broken", cut + 8)
    assert f"resumed from checkpoint-{cut:06d}.pt" in second
    unbroken = train(tmp_path / "unbroken", cut + 8)
    assert list(losses(second)) == list(range(cut + 1, cut + 9))
    assert losses(first) | losses(second) == losses(unbroken)
    ends = [
        torch.load(tmp_path / name / f"checkpoint-{cut + 8:06d}.pt", weights_only=True)
        for name in ("broken", "unbroken")
    ]
    for name, weight in ends[0]["model"].items():
        assert torch.equal(weight, ends[1]["model"][name]), name
    for number, moments in ends[0]["optimizer"]["state"].items():
        assert torch.equal(moments["exp_avg_sq"], ends[1]["optimizer"]["state"][number]["exp_avg_sq"])


def test_order_that_wants_no_save_is_obeyed(tmp_path: Path) -> None:
    attempt = tmp_path / "run" / "attempts" / "001"
    attempt.mkdir(parents=True)
    (attempt / "stop.json").write_text('{"cause": "nonfinite", "save": false, "at": 1.0}')
    environ = {"OVERNIGHT_RUN_DIR": str(tmp_path / "run"), "OVERNIGHT_ATTEMPT": "1"}
    printed = train(tmp_path / "saved", 100_000, stop_at=2, environ=environ)
    assert "not saving" in printed
    assert not (tmp_path / "saved").exists()
