"""The table of known programs: each told by its own lines, none by a weak sign."""

# ruff: noqa: E501 - a line of a log is one line here, too

from __future__ import annotations

import re

import pytest

from overnight.readers.pattern import Pattern
from overnight.readers.programs import ENOUGH_LINES, PROGRAMS, recognise
from overnight.readers.sniff import Sniffer
from overnight.tail import Line
from overnight.wiring import READERS

SAMPLES: dict[str, str] = {
    "nanochat": "step 0000{n}/21400 (0.02%) | loss: 9.01 | lrm: 1.00 | dt: 499.41ms | tok/sec: 1,049,816 | bf16_mfu: 48.31",
    "llm.c train_gpt2.cu": "step    {n}/18865 | loss 10.9 (+nanz)| norm 15.5 (+nanz)| lr 8.57e-07 | 118.70 ms | 48.9% bf16"
    " MFU | 4416916 tok/s",
    "llm.c main.log": "s:{n} trl:10.95 lr:0.000001 norm:15.43",
    "llm.c train_gpt2.c or .py": "step {n}: train loss 5.35 (took 1712.3 ms)",
    "build-nanogpt": "step     {n} | loss: 10.9 | lr 8.4e-07 | norm: 15.4 | dt: 338.10ms | tok/sec: 1550000.00",
    "modded-nanogpt": "step:{n}/1390 train_time:118ms step_avg:118.00ms",
    "nanoGPT": "iter {n}: loss 3.1484, time 14.01ms, mfu 0.01%",
    "litGPT": "Epoch 1 | iter {n} step {n} | loss train: 10.1, val: n/a | iter time: 331.2 ms (step)",
    "torchtitan": "[titan] 2026-08-20 10:00:01,123 - root - INFO - step:  {n}  loss: 10.9  grad_norm:  1.87  tps: 5,929",
    "torchtune": "1|{n}|Loss: 1.9:   1%|    | {n}/100 [00:01<01:38,  1.01s/it]Step {n} | loss:1.9 lr:2e-07 grad_norm:1.06",
    "NeMo": "Training epoch 0, iteration {n}/999 | lr: 3.6e-06 | global_step: {n} | train_step_timing in s: 1.11 |"
    " reduced_train_loss: 10.3",
    "GPT-NeoX": " samples/sec: 30.2 | iteration {n}/ 320000 | elapsed time per iteration (ms): 1058.3 | lm_loss: 1.03E+01 |",
    "Megatron-DeepSpeed": " iteration {n}/ 250000 | elapsed time per iteration (ms): 4282.6 | lm loss: 1.04E+01 | tokens per"
    " gpu per second (tgs): 3912.1 |",
    "Megatron-LM": " [2026-08-22 15:22:41] iteration {n}/ 500000 | elapsed time per iteration (ms): 843.7 | lm loss: 1.0E+01 |",
    "DeepSpeed pipeline": "steps: {n} loss: 6.7 iter time (s): 0.842 samples/sec: 304.0",
    "Megatron-SWIFT": "{{'loss': '2.1', 'learning_rate': '1e-5', 'iteration': '{n}/40', 'epoch': '0.1'}}",
    "ms-swift": "{{'loss': 2.1, 'learning_rate': 1e-5, 'epoch': 0.1, 'global_step/max_steps': '{n}/40'}}",
    "axolotl": "{{'loss': '2.1', 'learning_rate': '1e-5', 'tokens/train_per_sec_per_gpu': '2211', 'epoch': '{n}'}}",
    "unsloth": "==((====))==  Unsloth 2026.10: Fast Llama patching\n{{'loss': 2.1, 'grad_norm': 1.0, 'epoch': 0.{n}}}",
    "LLaMA-Factory": '{{"current_steps": {n}, "total_steps": 100, "loss": 2.3, "lr": 9e-05, "epoch": 0.2}}',
    "TRL": "{{'loss': '0.002', 'learning_rate': '1e-5', 'num_tokens': '1.204e+05', 'epoch': '0.{n}'}}",
    "Hugging Face Trainer": "{{'loss': '4.05', 'grad_norm': '1.0', 'learning_rate': '0.0005', 'epoch': '0.{n}'}}",
    "fairseq with JSON": '2026 | INFO | train_inner | {{"epoch": 1, "loss": "13.4", "num_updates": "{n}"}}',
    "fairseq": "2026-05-02 11:00:05 | INFO | train_inner | epoch 001: {n} / 5430 loss=14.1, num_updates={n}, lr=1.25e-05",
    "MaxText": "completed step: {n}, seconds: 4.15, TFLOP/s/device: 184.2, Tokens/s/device: 11843.8, loss: 8.2",
    "levanter": "INFO :: Progress on:train {n}.20kit/10.0kit rate:1.1s/it remaining:2:53:12 elapsed:21:00 postfix:loss=4.71",
    "OLMo-core": "INFO\t[step={n}/476837,epoch=1,eta=14 days]\n    optim/LR (group 0)=4.00E-07\n    train/CE loss=10.43",
    "Composer": "[batch={n}/4800]:\n\t Train loss/train/total: 10.9\n\t Train time/batch: 0",
    "EasyLM": "{{'accuracy': 0.5,\n 'gradient_norm': 1.2,\n 'loss': 2.3,\n 'step': {n}}}",
    "PaddleNLP": "[2026-08-20 10:00:01,123] [    INFO] - loss: 2.2, learning_rate: 3e-06, global_step: {n}, interval_runtime:"
    " 5.1, interval_steps_per_second: 1.95",
    "xtuner": "[XTuner][RANK 0][2026-01-01 10:00:00][INFO] Epoch 1 Step {n}/500 lr: 4e-06 time: 3.29 reduced_llm_loss: 2.2",
    "verl": "(TaskRunner pid=123) step:{n} - actor/pg_loss:-0.001 - actor/grad_norm:0.26 - perf/time_per_step:49.1",
    "timm": "Train: 0 [  {n}/100 ( 21%)]  Loss: 6.91 (6.93)  Time: 0.402s, 2547.3/s  (0.41s, 1/s)  LR: 1.0e-03",
    "mmengine": "01/01 10:00:10 - mmengine - INFO - Epoch(train)  [1][ {n}/250]  lr: 1.0e-03  eta: 0:12:54  time: 0.2642 "
    " data_time: 0.0062  loss: 2.8598",
    "detectron2": "[08/20 10:00:19 d2.utils.events]:  eta: 6:12:58  iter: {n}  total_loss: 3.839  loss_cls: 1.9  time: 0.25",
    "Keras": " {n}/12 ━━━━━━━━━━━━━━━━━━━━ 0s 89ms/step - loss: 7.9106 - mae: 2.5984",
    "ultralytics": "      1/100      2.31G        1.2        2.5        1.1         31        640: 2% ──── {n}/40 8.1it/s 1.2s",
    "Lightning": "Epoch 0:  50%|###| {n}/16 [00:00<00:00, 73.5it/s, v_num=0, train_loss_step=1.24, val_loss=1.06]",
    "fastai": "epoch     train_loss  valid_loss  mae       time    \n{n}         2.008319    2.043017    1.004160  00:01   ",
    "DeepSpeed engine": "[2026-03-01] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.0001], mom=[0.9]",
    "ColossalAI": "Epoch 0:  5%|..| {n}/20 [00:01<00:10,  2it/s, Loss=2.41]",
    "Accelerate examples": "08/20/2026 10:00:10 - INFO - __main__ - epoch {n}: perplexity: 25.0 eval_loss: 3.3",
    "a tqdm bar": " {n}%|▊         | {n}/300 [00:01<01:00, 11.5it/s, val_loss=3.3, loss=2.71]",
    "one line for each epoch": "Epoch {n}/12: val_loss=3.3 train_loss=2.71 time=3.1s",
}
BY_NAME = {program.name: program for program in PROGRAMS}


def lines(name: str) -> list[str]:
    return [line for n in range(1, 7) for line in SAMPLES[name].format(n=n).splitlines()]


def test_every_program_has_a_sample_and_every_advice_is_a_sentence() -> None:
    assert set(SAMPLES) == set(BY_NAME)
    assert len(PROGRAMS) == len(BY_NAME) >= 38
    for program in PROGRAMS:
        assert (program.reader is None) == bool(program.advice)
        assert program.reader is None or program.reader in READERS
        assert program.pattern is None or "--pattern" in program.advice


@pytest.mark.parametrize("name", SAMPLES)
def test_each_program_is_told_by_its_own_lines(name: str) -> None:
    program = recognise(lines(name))
    assert program is not None
    assert program.name == name


@pytest.mark.parametrize("name", SAMPLES)
def test_the_reader_of_the_table_is_the_one_that_reads(name: str) -> None:
    sniffer = Sniffer([make() for make in READERS.values()])
    for n, text in enumerate(lines(name)):
        sniffer(Line(text, n), 0.0, 0)
    sniffer.flush()
    assert sniffer.chosen == BY_NAME[name].reader


@pytest.mark.parametrize("name", [program.name for program in PROGRAMS if program.pattern])
def test_the_pattern_that_is_advised_reads(name: str) -> None:
    reader = Pattern(str(BY_NAME[name].pattern))
    records = [record for text in lines(name) for record in reader(Line(text, 0), 0.0, 0) or ()]
    assert len(records) == 6
    if "(?P<loss>" in str(BY_NAME[name].pattern):
        assert all(record.loss is not None for record in records)


@pytest.mark.parametrize("name", [name for name in SAMPLES if BY_NAME[name].mark is None])
def test_one_line_is_not_enough(name: str) -> None:
    assert recognise(lines(name)[:1]) is None


@pytest.mark.parametrize(
    "text",
    [
        "step: 5, loss: 2.1, dt: 0.25",
        "step 5 | loss 2.1",
        "epoch 1 iteration 5 loss 2.1",
        "{'loss': 2.0, 'epoch': 1}",
        '{"step": 5, "loss": 2.0}',
        "  5%|█     | 5/100 [00:01<00:20,  5.0it/s]",
        "I read about nanoGPT, Megatron-LM and torchtitan",
        "saved at iteration 100",
        "",
    ],
)
def test_weak_signs_are_none(text: str) -> None:
    assert recognise([text] * 50) is None


BARS = [
    ("{n}%|▊   | {n}/300 [00:01<01:00, 11.5it/s, loss=2.71]", None),
    ("\x1b[AEpoch {n}/3:  8%|▊   | {n}/300 [00:01<01:00, 11.5it/s, acc=0.5, loss=2.71, lr=1e-4]", "n"),
    ("training epoch {n}:   8%|8   | {n}/300 [00:01<01:00, 1.5s/it, train_loss=2.71, val_loss=9.9]", "n"),
    ("100%|█████| {n}/{n} [1:00:01<00:00, 11.5it/s, Loss=2.71]", None),
]


@pytest.mark.parametrize(("text", "epoch"), BARS)
def test_a_bar_with_its_loss_behind_it_is_told_and_read(text: str, epoch: str | None) -> None:
    some = [text.format(n=n) for n in (2, 3)]
    program = recognise(some)
    assert program is not None
    assert (program.name, program.plain) == ("a tqdm bar", True)
    for n, line in enumerate(some, 2):
        (record,) = Pattern(str(program.pattern))(Line(line, 0), 0.0, 0) or ()
        assert (record.step, record.loss, record.epoch) == (n, 2.71, n if epoch else None)


EPOCHS = [
    "Epoch {n}/12: train_loss=2.71",
    "Epoch [{n}/12] Train Loss: 2.71 | Val Loss: 3.3",
    "Epoch {n} - val loss: 9.9 - loss: 2.71",
    "2026-11-29 23:00:01 INFO epoch: {n}, validation loss 9.9, training loss 2.71, acc: 50%",
    "[Epoch {n}] loss 2.71",
    "epoch={n} loss=2.71",
]


@pytest.mark.parametrize("text", EPOCHS)
def test_a_line_for_each_epoch_is_told_and_read(text: str) -> None:
    some = [text.format(n=n) for n in (2, 3)]
    program = recognise(some)
    assert program is not None
    assert program.name == "one line for each epoch"
    for n, line in enumerate(some, 2):
        (record,) = Pattern(str(program.pattern))(Line(line, 0), 0.0, 0) or ()
        assert (record.step, record.loss, record.epoch) == (None, 2.71, n)


@pytest.mark.parametrize(
    "text",
    [
        "Epoch [{n}/4], Step [10/150], Loss: 2.71",
        "epoch {n} iteration 5 loss 2.1",
        "Train Epoch: {n} [640/60000 (1%)]\tLoss: 2.300039",
        "Epoch {n}: val_loss=3.1",
        "Epoch {n} began; the last one's loss was not printed",
        "{{'loss': 2.0, 'epoch': {n}}}",
        "  5%|█     | {n}/100 [00:01<00:20,  5.0it/s, val_loss=3.1]",
    ],
)
def test_what_says_more_or_less_than_an_epoch_and_a_loss_is_not_taken_for_it(text: str) -> None:
    assert recognise([text.format(n=n) for n in range(1, 9)]) is None


def test_only_the_beginning_is_looked_at_and_long_lines_cost_nothing() -> None:
    assert recognise(["noise"] * ENOUGH_LINES + lines("nanoGPT")) is None
    assert recognise(["step:1 - " + "a:b - " * 9000, "{'loss': " * 9000, " " * 60_000, "1 " * 30_000]) is None


def test_no_name_of_a_group_is_misspelt() -> None:
    known = {"step", "loss", "dt", "lr", "grad_norm", "epoch", "skipped"}
    assert {name for one in PROGRAMS if one.pattern for name in re.compile(one.pattern).groupindex} <= known
