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
        ("successfully saved checkpoint at iteration 100 to /m/ckpts", "/m/ckpts"),
        ("  successfully saved checkpoint from iteration     100 to /m/ckpts", "/m/ckpts"),
        ("INFO: saving model to /out/lightning/epoch=1-step=20.ckpt", "/out/lightning/epoch=1-step=20.ckpt"),
        (
            "Epoch 1, global step 20: 'val_loss' reached 1.20 (best 1.20), saving model to '/o/l/e1.ckpt' as top 1",
            "/o/l/e1.ckpt",
        ),
        ("Saved checkpoint at /a/b/step_100", "/a/b/step_100"),
        ("checkpoint written to /a/b/c.pt", "/a/b/c.pt"),
        ("Checkpoint saved to: /a/b/c.pt", "/a/b/c.pt"),
        ("Checkpoint saved to:/a/b/c.pt", "/a/b/c.pt"),
        ("saved best model (metrics improved) to /a/b/best.pt", "/a/b/best.pt"),
        ("Saving current state to /a/run/checkpoint_3", "/a/run/checkpoint_3"),
        ("Saved state dict in `/a/b/state.bin`", "/a/b/state.bin"),
        (
            "[2026-01-02 12:00:00,000] [INFO] Saving ZeRO checkpoint: /d/global_step50/mp_rank_00_model_states.pt",
            "/d/global_step50/mp_rank_00_model_states.pt",
        ),
        ("saving step 100 -> /a/b/step_100.pt", "/a/b/step_100.pt"),
        ("Resumed at step 5; saved checkpoint to /x/y/z.pt", "/x/y/z.pt"),
        ("model copied from /a/b.pt, saved checkpoint to /x/y/z.pt", "/x/y/z.pt"),
        ("saved checkpoint to /x/y/z.pt (resumed from /a/b.pt)", "/x/y/z.pt"),
        ("torch.save: model saved as /a/data/logs/model.pt", "/a/data/logs/model.pt"),
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
        "Writing tensorboard logs to /var/log/model/tb",
        "Dumping step trace to /home/me/trace",
        "Dumping model trace to /home/me/trace",
        "Saving the dataset to /data/model/cache",
        "Saving tokenized dataset to /data/step_1/ckpt",
        "Saving model predictions to /a/b",
        "Model weights loaded from /a/b.pt and stored",
        "model loaded from /a/b.pt, nothing saved yet",
        "reading weights of /a/b.pt to be stored in memory",
        'saved model to "C:/x"',
        "saved model to C:/x/model.pt",
        "saved model to node3:/x/model.pt",
        "using /runs/save/model.pt",
        "initialised the model at /runs/saved/ckpt/a",
        "Saved epoch plot to /a/plots/epoch3",
        "Saving tokenizer to /a/model/tok",
        "Profiler wrote step 3 to /a/model/prof",
        "Saved model config to /a/model",
        "Saved the model card to /a/model",
        "deleting older checkpoint /a/checkpoint-10, one is saved",
        "Saving evaluation results of the checkpoint to /a/b",
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
