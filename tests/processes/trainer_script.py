"""A tiny GPT-2 trained by the real Hugging Face Trainer, once for each log; argv[1] is JSON: {log: [settings, ...]}.

One process for all of them, for importing is what takes long: its stdout and stderr are pointed at one log after the
other. Beside each log stands truth.jsonl, one line for each dict: the step, and whether it is of an evaluation.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Random tokens."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.randint(0, 64, (rows, 16))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[at], "labels": self.rows[at]}


class Sick(Trainer):
    """Its loss is NaN from step ``nan_at`` on."""

    nan_at: int | None = None

    def compute_loss(self, model: Any, inputs: Any, *words: Any, **more: Any) -> Any:
        """Return the loss, ruined where that was asked for."""
        loss = super().compute_loss(model, inputs, *words, **more)
        sick = self.nan_at is not None and model.training and self.state.global_step + 1 >= self.nan_at
        return loss * float("nan") if sick else loss


class Truth(TrainerCallback):
    """Writes down what was logged when."""

    def on_log(self, args: Any, state: Any, _control: Any, logs: Any = None, **_more: Any) -> None:
        """Write one line, not for the summary at the end."""
        if "train_runtime" in logs and "loss" not in logs:
            return
        kind = "eval" if any(name.startswith("eval") for name in logs) else "train"
        with (Path(args.output_dir) / "truth.jsonl").open("a") as out:
            out.write(json.dumps([state.global_step, kind]) + "\n")


def run(asked: dict[str, Any]) -> None:
    """Train once, and once more from its last checkpoint for ``resume``."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    nan_at, evals, resume = asked.pop("nan_at", None), asked.pop("evals", 0), asked.pop("resume", False)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    Path(asked["output_dir"]).mkdir(parents=True, exist_ok=True)
    trainer = Sick(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(report_to=[], use_cpu=True, seed=1, per_device_train_batch_size=4, **asked),
        train_dataset=Tokens(96),
        eval_dataset=[None, Tokens(24), {"a": Tokens(24), "b": Tokens(16)}][evals],
        callbacks=[Truth],
    )
    trainer.nan_at = nan_at
    trainer.train(resume_from_checkpoint=resume or None)


for log, trainings in json.loads(sys.argv[1]).items():
    with Path(log).open("wb") as out:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    for settings in trainings:
        run(settings)
