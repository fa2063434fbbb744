"""What counts as a file of a checkpoint by its name, and what only lies beside checkpoints."""

from __future__ import annotations

import pytest

from overnight.saves.names import looks_like_save


@pytest.mark.parametrize(
    "path",
    [
        "/w/model.pt", "/w/run/epoch_3/weights", "/w/checkpoints/latest", "/w/checkpoints/step-5/state",
        "/w/checkpoint-20/trainer_state.json", "/w/model.safetensors.index.json",
    ],
)  # fmt: skip
def test_files_of_a_checkpoint(path: str) -> None:
    assert looks_like_save(path)


@pytest.mark.parametrize(
    "name",
    ["LOCK", "run.lock", "train.log", "log.txt", "metrics.csv", "metrics.jsonl", "README.md", "config.yaml", "train.py",
     "events.out.tfevents.1796000000.host.1.0", "stderr.err", "slurm-5.out"],
)  # fmt: skip
def test_files_beside_checkpoints(name: str) -> None:
    assert not looks_like_save(f"/w/checkpoints/{name}")
    assert not looks_like_save(f"/w/elsewhere/{name}")
