"""examples/train_gpt.py keeps its word: stopped and resumed equals never stopped, in every bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overnight.checkpoint import load

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
    return {
        int(step): loss
        for step, loss in re.findall(r"step: (\d+), loss: ([\d.]+), dt: [\d.e-]+, tokens: 64, lr: ", printed)
    }


def test_resume_equals_an_unbroken_run(tmp_path: Path) -> None:
    first = train(tmp_path / "broken", 100_000, stop_at=5)
    cut = max(losses(first))
    assert f"saved step-{cut:08d}" in first
    second = train(tmp_path / "broken", cut + 8)
    assert f"resumed from {tmp_path}/broken/step-{cut:08d}: step {cut} is done" in second
    unbroken = train(tmp_path / "unbroken", cut + 8)
    assert list(losses(second)) == list(range(cut + 1, cut + 9))
    assert losses(first) | losses(second) == losses(unbroken)
    ends = [load(tmp_path / name / f"step-{cut + 8:08d}").parts for name in ("broken", "unbroken")]
    assert ends[0]["model"].keys() == ends[1]["model"].keys()
    for name, weight in ends[0]["model"].items():
        assert torch.equal(weight, ends[1]["model"][name]), name
    assert len(ends[0]["optimizer"]["state"]) == len(ends[0]["model"])
    for number, moments in ends[0]["optimizer"]["state"].items():
        for name, moment in moments.items():
            assert torch.equal(moment, ends[1]["optimizer"]["state"][number][name]), (number, name)
    assert torch.equal(ends[0]["rng"]["torch"], ends[1]["rng"]["torch"])


def test_checkpoint_is_plain(tmp_path: Path) -> None:
    train(tmp_path / "saved", 3)
    folder = tmp_path / "saved" / f"step-{3:08d}"
    state = torch.load(folder / "train_state.pt", weights_only=True)
    assert {"optimizer", "rng"} <= state.keys()
    weights = pytest.importorskip("safetensors.torch").load_file(folder / "model.safetensors")
    assert weights["tokens.weight"].shape == (256, 32)


def test_order_that_wants_no_save_is_obeyed(tmp_path: Path) -> None:
    attempt = tmp_path / "run" / "attempts" / "001"
    attempt.mkdir(parents=True)
    (attempt / "stop.json").write_text('{"cause": "nonfinite", "save": false, "at": 1.0}')
    environ = {"OVERNIGHT_RUN_DIR": str(tmp_path / "run"), "OVERNIGHT_ATTEMPT": "1"}
    printed = train(tmp_path / "saved", 100_000, stop_at=2, environ=environ)
    assert "not saving" in printed
    assert [entry.name for entry in (tmp_path / "saved").iterdir()] == ["LOCK"]
