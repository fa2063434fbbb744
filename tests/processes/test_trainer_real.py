"""The real Hugging Face Trainer writes logs, with and without its bar, and ``read`` finds every step that it logged."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overnight.cli import main

SCRIPT = Path(__file__).parent / "trainer_script.py"
BASE: dict[str, Any] = {"save_strategy": "no", "max_steps": 24, "logging_steps": 2}
EVALS: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 6}
RUNS: dict[str, list[dict[str, Any]]] = {
    "evaluated": [{**BASE, **EVALS, "evals": 2, "eval_on_start": True, "logging_steps": 1}],
    "same totals": [{**BASE, **EVALS, "evals": 1, "max_steps": 6, "eval_steps": 2, "per_device_eval_batch_size": 4}],
    "accumulated": [{**BASE, "gradient_accumulation_steps": 3, "logging_steps": 5}],
    "hidden nan": [{**BASE, "nan_at": 11}],
    "open nan": [{**BASE, "nan_at": 11, "logging_nan_inf_filter": False}],
    "no bar": [{**BASE, "nan_at": 11, "disable_tqdm": True, "include_num_input_tokens_seen": "all"}],
    "resumed": [
        {**BASE, "save_strategy": "steps", "save_steps": 10},
        {**BASE, "save_strategy": "steps", "save_steps": 10, "max_steps": 34, "resume": True},
    ],
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once for all tests, in a plain process of its own."""
    for name in ("transformers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -r requirements/test.txt")
    folder = tmp_path_factory.mktemp("trainer")
    asked = {
        str(folder / f"{name}.log"): [{**one, "output_dir": str(folder / name)} for one in settings]
        for name, settings in RUNS.items()
    }
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HOME": str(folder / "hf"),
        "COLUMNS": "300",
    }
    argv = [sys.executable, str(SCRIPT), json.dumps(asked)]
    done = subprocess.run(argv, capture_output=True, env=env, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr.decode() + "".join(Path(log).read_text()[-2000:] for log in asked)
    return folder


def read(log: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["read", "--json", str(log)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_every_record_has_the_step_at_which_it_was_logged(
    logs: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read(logs / f"{name}.log", capsys)
    truth = [json.loads(line) for line in (logs / name / "truth.jsonl").read_text().splitlines()]
    assert len(truth) >= 4
    if name == "no bar":
        truth = [[None, kind] for _, kind in truth]
    assert [[row["step"], row["kind"]] for row in rows] == truth


def test_the_nan_is_as_it_was_printed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, loss in (("hidden nan", 0.0), ("open nan", "nan"), ("no bar", 0.0)):
        rows = read(logs / f"{name}.log", capsys)
        sick = [row for row in rows if row["grad_norm"] == "nan"]
        assert len(rows) == 12
        assert sick == rows[5:]  # steps 11 and 12 are one record
        assert [row["loss"] for row in sick[1:]] == [loss] * 6
        assert all(isinstance(row["loss"], float) and row["loss"] > 3 for row in rows[:5])


def test_without_a_bar_the_epoch_rises_and_tokens_are_counted(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read(logs / "no bar.log", capsys)
    epochs = [row["epoch"] for row in rows]
    assert epochs == sorted(set(epochs))
    assert all(row["tokens_per_s"] > 0 for row in rows)
