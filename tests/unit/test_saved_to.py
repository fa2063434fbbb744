"""Where a line of a log says that a checkpoint is saved to: only what leads out of the working folder is asked for."""

from __future__ import annotations

import pytest

from overnight.hearing import Hearing, saved_to


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("Saving model checkpoint to /data/run7/checkpoint-500", "/data/run7/checkpoint-500"),
        (
            "Model weights saved in /data/run7/checkpoint-500/model.safetensors",
            "/data/run7/checkpoint-500/model.safetensors",
        ),
        ("Checkpoint saved at '../out/step 300.pt' (3.2 s)", "../out/step 300.pt"),
        ('saved state to "/a/my runs/c.pt".', "/a/my runs/c.pt"),
        ("Saved checkpoint: /a/b/c.pt.", "/a/b/c.pt"),
        ("[rank0] /scratch/iter_30.pth saved", "/scratch/iter_30.pth"),
        ("=> saving checkpoint '/a/b/checkpoint.pth.tar'", "/a/b/checkpoint.pth.tar"),
        ("wrote state dict to path=/a/b/c", "/a/b/c"),
        ("successfully saved checkpoint at iteration 100 to /m/ckpts [ t 1/1 ]", "/m/ckpts"),
    ],
)
def test_the_path_is_found(line: str, path: str) -> None:
    assert saved_to(line) == path


@pytest.mark.parametrize(
    "line",
    [
        "saving checkpoint to out/ckpt-300.pt",
        "saved metrics of step 3 to /a/b/metrics.json",
        "Configuration saved in /data/checkpoint-500/config.json",
        "Saved model to https://host.invalid/model",
        "model saved to s3://bucket/model.pt",
        "Saving the predictions to /a/b",
        "loading checkpoint /a/b/ckpt.pt",
        "saved 3/4 of the model",
        "",
    ],
)
def test_other_lines_name_none(line: str) -> None:
    assert saved_to(line) is None


def test_what_was_heard_waits_until_it_is_taken_and_is_bounded() -> None:
    hearing = Hearing()
    for number in (1, 1, *range(2, 40)):
        hearing.take(f"Saving model checkpoint to /data/checkpoint-{number}")
    assert len(hearing.places) == 8
    assert hearing.places[-1] == "/data/checkpoint-39"
