"""What a line that is no record says about the silence to come: wordings of real programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.announce import announced

WORDS = ["evaluating", "saving", "compiling", "loading", "downloading", "preparing", "uploading"]

ANNOUNCED = """
nanoGPT, build-nanogpt, nanochat
    saving      | saving checkpoint to out
    compiling   | compiling the model... (takes a ~minute)
    loading     | Resuming training from out
    loading     | loading weights from pretrained gpt: gpt2-xl
    loading     | Loading dataset shard 3 of 100
Hugging Face Trainer, datasets, hub, accelerate, TRL
    evaluating  | ***** Running Evaluation *****
    evaluating  | ***** Running Prediction *****
    evaluating  | [INFO|trainer.py:4307] 2026-08-20 10:00:01,123 >> ***** Running Evaluation *****
    evaluating  | Evaluating:  40%|████      | 4/10 [00:05<00:07,  1.20s/it]
    saving      | Saving model checkpoint to out/checkpoint-500
    saving      | [INFO|trainer.py:3993] 2026-08-20 10:00:01,123 >> Saving model checkpoint to out/checkpoint-500
    loading     | Loading checkpoint shards:  33%|███▎      | 1/3 [00:04<00:08,  4.2s/it]
    loading     | loading weights file model.safetensors from cache at /home/me/.cache/model.safetensors
    downloading | Downloading data:  10%|█         | 12.3M/120M [00:03<00:20, 5.1MB/s]
    downloading | Fetching 5 files:  40%|████      | 2/5 [00:12<00:18,  6.1s/it]
    preparing   | Map:  10%|█         | 1000/10000 [00:03<00:30, 300.00 examples/s]
    preparing   | Map (num_proc=8):  10%|█         | 1000/10000 [00:03<00:30, 300.00 examples/s]
    preparing   | Tokenizing train dataset:   5%|▌         | 500/10000 [00:03<00:30, 300.00 examples/s]
    preparing   | Running tokenizer on dataset:   5%|▌         | 500/10000 [00:03<00:30, 300.00 examples/s]
    preparing   | Generating train split: 21000 examples [00:02, 10012.11 examples/s]
    preparing   | Applying chat template to train dataset:  12%|█▏   | 120/1000 [00:01<00:09, 97.1 examples/s]
    uploading   | Upload 3 LFS files:   0%|          | 0/3 [00:00<?, ?it/s]
    uploading   | Uploading...: 100%|██████████| 498M/498M [00:10<00:00, 45.1MB/s]
    uploading   | Pushing model to the hub
Lightning
    evaluating  | Validation DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 73.51it/s]
    evaluating  | Validation: |          | 0/? [00:00<?, ?it/s]
    evaluating  | Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 41.2it/s]
    evaluating  | Testing DataLoader 0:  50%|█████     | 5/10 [00:00<00:00, 73.51it/s]
    saving      | Epoch 0, global step 100: 'val_loss' reached 0.31 (best 0.31), saving model to 'ckpt/e0' as top 1
    loading     | Restoring states from the checkpoint path at ckpt/e0.ckpt
Megatron-LM, DeepSpeed, NeMo
    saving      | saving checkpoint at iteration   10000 to /data/ckpts in torch_dist format
    saving      | [2026-08-22 15:22:41,123] [INFO] [torch_engine.py:21:save] [Torch] Saving ckpt/mp_rank_00.pt...
    saving      | [2026-08-22 15:22:41,123] [INFO] [logging.py:96:log_dist] [Rank 0] Saving model checkpoint: ckpt/x.pt
    evaluating  | Evaluating on 327680 samples
    evaluating  | Evaluating iter 1/10
    loading     | loading checkpoint from /data/ckpts at iteration 10000
    compiling   | > compiling dataset index builder ...
    compiling   | > compiling and loading fused kernels ...
    preparing   | > building train, validation, and test datasets ...
    loading     | Loading extension module cpu_adam...
    compiling   | Building extension module cpu_adam...
torchtitan, torch, vLLM, JAX
    saving      | [titan] 2026-08-20 10:00:01,123 - root - Saving the checkpoint (or staging if async is enabled).
    loading     | [rank0]:[titan] 2026-08-20 10:00:01,123 - root - INFO - Loading the checkpoint from out/step-100.
    compiling   | [titan] 2026-08-20 10:00:01,123 - root - INFO - Compiling each TransformerBlock with torch.compile
    preparing   | [titan] 2026-08-20 10:00:01,123 - root - INFO - Preparing c4 dataset from allenai/c4
    compiling   | AUTOTUNE mm(4096x4096, 4096x11008)
    compiling   | Using torch.compile
    compiling   | Capturing CUDA graph shapes:  34%|███▍      | 12/35 [00:05<00:10,  2.21it/s]
    compiling   | INFO 08-20 10:00:01 cudagraph capture for batch size 8
    compiling   | Compiling train_step with global shapes and types [ShapedArray(float32[8,128])]
    compiling   | warming up...
    compiling   | Tracing the model
OLMo, MaxText, timm, home-made
    saving      | 2026-08-20 10:00:01 host:0 olmo.train:651 INFO Saving checkpoint...
    saving      | Rank 0: writing sharded checkpoint shard 3 of 8
    saving      | checkpoint is being written to /data/ckpt
    saving      | Saved best model; now saving checkpoint to out/last.pt
    saving      | val loss improved to 3.1, saving checkpoint to out
    saving      | => saving checkpoint 'out/epoch3.pth'
    saving      | Started async checkpoint at step 100
    evaluating  | evaluating
    evaluating  | evaluating...
    evaluating  | Running eval on 500 batches
    evaluating  | running validation
    evaluating  | Starting evaluation at step 1000
    evaluating  | Evaluation at step 1000
    evaluating  | === Validation ===
    evaluating  | 2026-08-20 10:00:01 | INFO | begin validation on "valid" subset
    evaluating  | Training of epoch 3 done, evaluating on the dev set
    preparing   | preprocessing...
    loading     | loading dataset from saved arrow files
    uploading   | wandb: uploading artifact model-3
    compiling   | start compilation
    evaluating  | val:  40%|####      | 4/10 [00:05<00:07,  1.20s/it]
    evaluating  | test:  40%|####      | 4/10 [00:05<00:07,  1.20s/it]
"""

OVER = """
    saved checkpoint
    saved checkpoint to out/ckpt.pt
    Saved checkpoint at step 500 (12.1 s)
    successfully saved checkpoint from iteration   10000 to /data/ckpts
    [2026-08-22 15:22:41,123] [INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved ckpt/mp_rank_00_model_states.pt.
    Finished saving the checkpoint (or staging if async is enabled) in 1.23 seconds.
    [titan] 2026-08-20 10:00:01,123 - root - INFO - Finished loading the checkpoint in 2.15 seconds.
    done with compiling
    >>> done with compiling and loading fused kernels. Compilation time: 5.211 seconds
    finished compiling
    Compiling the model... done
    compiling took 31.2 s
    evaluation done
    Evaluation finished in 40 s
    eval loss 3.1
    eval_loss: 3.1, eval_runtime: 40.1
    {'eval_loss': '3.052', 'eval_runtime': '40.12', 'epoch': '1'}
    validation loss at iteration 1000 | lm loss value: 3.05E+00 | lm loss PPL: 2.1E+01 |
    Validation accuracy: 0.81
    Evaluation results:
    end of validation
    checkpoint saved
    successfully loaded checkpoint from /data/ckpts [ t 0, p 0 ] at iteration 10000
    Loading extension module cpu_adam... took 2.1 s
    Finished XLA compilation of jit(train_step) in 12.3 sec
    Finished tracing + transforming train_step for pjit in 0.12 sec
    Graph capturing finished in 20 secs, took 0.45 GiB
"""

NEITHER = """

    hello
    Epoch 3
    step: 21, loss: 3.2, dt: 0.25
    Epoch 0:  50%|█████     | 8/16 [00:00<00:00, 73.5it/s, v_num=0]
     12%|█▏        | 120/1000 [00:30<03:40,  4.00it/s]
    Traceback (most recent call last):
      File "train.py", line 31, in evaluate
        raise RuntimeError("while loading the dataset")
    RuntimeError: Error(s) in loading state_dict for GPT
    ERROR: saving checkpoint failed: No space left on device
    FutureWarning: You are using `torch.load` with `weights_only=False`, loading may be unsafe
    OSError: [Errno 28] No space left on device while saving checkpoint
    eval_interval = 250
    evaluation_strategy: steps
    save_steps: 500
    load_best_model_at_end=True
    --compile=True
    Overriding: compile = False
    gradient_checkpointing: True
    gradient checkpointing is enabled
    Using activation checkpointing
    validation: true
    loading: true
    data loading time: 0.31 s
    memory saving is enabled
    skipping evaluation
    loss is not improving; saving skipped
    Training:  10%|█         | 3/30 [00:01<00:05,  5.1it/s]
    Skipping loading of the optimizer state
    Evaluating the loss is disabled
    Consider saving more often
    No checkpoint found, not loading anything
    torch.compile is disabled
    Not using torch.compile
    checkpoints will be saved to /data/saving/ckpts
    /home/me/evaluating/train.py
    Configuration saved in out/checkpoint-500/config.json
    Model weights saved in out/checkpoint-500/model.safetensors
    tokenizer config file saved in out/checkpoint-500/tokenizer_config.json
    number of parameters: 123.59M
    Training starts at step 1.
    using fused AdamW: True
    lr warmup steps: 100
    validation set: 5000 samples
    wandb: Tracking run with wandb version 0.19
"""


def cases(table: str) -> list[tuple[str, str]]:
    """Return what is expected of each line of a table; lines without an indent name programs."""
    rows = [line[4:].split("| ", 1) for line in table.splitlines() if line.startswith("    ")]
    return [(said.strip(), line) for said, line in rows]


def plain(table: str) -> list[str]:
    return [line[4:] for line in table.splitlines()]


@pytest.mark.parametrize(("said", "line"), cases(ANNOUNCED))
def test_what_begins_is_announced(said: str, line: str) -> None:
    assert announced(line.encode()) == said


@pytest.mark.parametrize("line", plain(OVER)[1:])
def test_what_is_over_ends_a_silence(line: str) -> None:
    assert announced(line.encode()) == ""


@pytest.mark.parametrize("line", plain(NEITHER))
def test_other_lines_say_nothing(line: str) -> None:
    assert announced(line.encode()) is None


def test_the_case_of_the_words_does_not_matter() -> None:
    assert announced(b"EVALUATING") == announced(b"Evaluating") == "evaluating"


def test_only_the_beginning_of_a_line_counts() -> None:
    assert announced(b"x" * 500 + b" saving checkpoint") is None


@given(st.binary(max_size=600))
def test_any_bytes_are_read(line: bytes) -> None:
    assert announced(line) in {
        "evaluating",
        "saving",
        "compiling",
        "loading",
        "downloading",
        "preparing",
        "uploading",
        "",
        None,
    }
