"""Trains a tiny model with a maker of checkpoints and stands still in the middle of a save, to be killed there.

argv: maker, folder, what to do. ``train`` prints HALF when the save in which it stands still is half on the disk;
``latest`` prints as JSON which checkpoint the maker itself takes for the latest, and what loading that one says.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

REAL_SAVE = torch.save
MODEL = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))


def say(line: str) -> None:
    """Print a line at once, on a line of its own."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


def stand_still() -> None:
    """Say that half is written, and wait for the end."""
    say("HALF")
    time.sleep(600)


def save_half_of(is_it: Callable[[Path], bool], *, nothing: bool = False) -> None:
    """Have torch.save write only the first half of the file that ``is_it`` knows, or ``nothing`` of it."""

    def save(value: Any, target: Any, *words: Any, **more: Any) -> None:
        if not isinstance(target, (str, os.PathLike)) or not is_it(Path(target)):
            REAL_SAVE(value, target, *words, **more)
            return
        whole = io.BytesIO()
        REAL_SAVE(value, whole)
        if not nothing:
            Path(target).write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
        stand_still()

    torch.save = save


def trainer(folder: Path, *, train: bool, where: str) -> Any:
    """Hugging Face's Trainer: checkpoint-2 whole, checkpoint-4 killed in its weights or its optimizer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    config = GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir=str(folder), max_steps=6, save_steps=2, report_to=[], use_cpu=True, per_device_train_batch_size=4,
        disable_tqdm=True, save_total_limit=1,
    )  # fmt: skip
    made = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=rows)
    if not train:
        latest = get_last_checkpoint(str(folder))
        return latest, lambda: made.train(resume_from_checkpoint=True)
    if where == "weights":
        import transformers.modeling_utils as weights

        real = weights.safe_save_file

        def save_file(tensors: Any, path: Any, *words: Any, **more: Any) -> None:
            if "checkpoint-4" not in str(path):
                real(tensors, path, *words, **more)
                return
            Path(path).with_name(".tmpAb12Cd").write_bytes(bytes(5000))  # as the library itself
            stand_still()

        weights.safe_save_file = save_file
    save_half_of(lambda path: path.name == "optimizer.pt" and path.parent.name == "checkpoint-4")
    made.train()
    return None


def accelerate(folder: Path, *, train: bool, where: str) -> Any:
    """Accelerate with its own naming: checkpoint_0 whole, checkpoint_1 killed in or ``before`` the file ``where``."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    plan = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    made = Accelerator(cpu=True, project_config=plan)
    optimizer = torch.optim.AdamW(MODEL.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    model, optimizer, scheduler = made.prepare(MODEL, optimizer, scheduler)
    made.register_for_checkpointing(scheduler)
    if not train:
        inside = folder / "checkpoints"
        latest = max(os.listdir(inside), key=lambda name: int(name.rpartition("_")[2]))
        return str(inside / latest), made.load_state
    name, before = where.removeprefix("before "), where.startswith("before ")
    save_half_of(lambda path: path.name == name and path.parent.name == "checkpoint_1", nothing=before)
    for step in range(1, 7):
        made.backward(model(torch.ones(2, 64)).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            made.save_state()
    return None


def lightning(folder: Path, *, train: bool, where: str) -> Any:
    """Lightning, its temporary folder on another disk, so that a rename is a copy: killed while it renews last.ckpt."""
    import logging

    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning").setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MODEL

        def training_step(self, batch: Any, _at: int) -> Any:
            return self.inner(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    keeper = ModelCheckpoint(dirpath=folder, every_n_train_steps=2, save_last=True, save_top_k=-1)
    made = Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[keeper], default_root_dir=folder,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=2)
    if not train:
        latest = max(keeper._find_last_checkpoints(made), key=os.path.getmtime)
        return latest, lambda: made.fit(Module(), loader, ckpt_path="last", weights_only=False)

    def copy(source: Any, target: Any, *_more: Any) -> None:
        data = source.read()
        again = Path(target.name).name == "last.ckpt" and (folder / "epoch=0-step=4.ckpt").exists()
        target.write(data[: len(data) // 2] if again else data)
        if again:
            target.flush()
            stand_still()

    shutil._USE_CP_SENDFILE = False  # type: ignore[attr-defined]
    shutil.copyfileobj = copy
    made.fit(Module(), loader)
    return None


def dcp(folder: Path, *, train: bool, where: str) -> Any:
    """torch.distributed.checkpoint: step-2 whole, step-4 killed before its metadata is written."""
    import torch.distributed.checkpoint as dist
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    state = {"model": MODEL.state_dict(), "step": 2}
    if not train:
        return str(folder / "step-4"), lambda: dist.load(state, checkpoint_id=folder / "step-4")
    dist.save(state, checkpoint_id=folder / "step-2")

    def finish(*_words: Any, **_more: Any) -> None:
        stand_still()

    FileSystemWriter.finish = finish
    dist.save({**state, "step": 4}, checkpoint_id=folder / "step-4")
    return None


def main() -> None:
    """Train, or say what is the latest and what comes of it."""
    maker, folder, what, where = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = globals()[maker](folder, train=what == "train", where=where)
    if what == "train":
        say("ENDED")
        return
    latest, load = found
    try:
        load()
    except BaseException as error:  # noqa: BLE001 - whatever it says is what the user of the maker gets to see
        said = f"{type(error).__name__}: {error}"
    else:
        said = None
    say("LATEST " + json.dumps({"latest": latest, "error": said}))


if __name__ == "__main__":
    main()
