"""The general reader's words: what counts steps, what a name and a unit mean, and what is no progress at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record
from overnight.readers.fields import field_of, field_value
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Line

NAMES = [name for name in Record.__struct_fields__ if name not in {"reader", "source", "offset", "at", "extra"}]
EMPTY = Record(reader="keyvalue")


def read(text: str) -> list[Record]:
    return list(KeyValue()(Line(text, 0), 0.0, 0) or ())


def one(text: str) -> dict[str, Any]:
    """What a line's only record says, extras apart, NaN as text."""
    (record,) = read(text)
    found = {name: getattr(record, name) for name in NAMES if getattr(record, name) != getattr(EMPTY, name)}
    return {name: "nan" if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()}


@pytest.mark.parametrize(
    "text",
    [
        *("step: 12, loss: 2.5", "steps: 12 loss: 2.5", "STEP=12 loss=2.5", "Step 12 - Loss: 2.5", "step 12: loss 2.5"),
        *("step:12/300 loss:2.5", "Step 12 of 300 | loss 2.5", "Step [12/300], Loss: 2.5", "step [12] loss: 2.5"),
        *("iter 12: loss 2.5", "iter: 12  loss: 2.5", "Iteration 12, loss = 2.5", "iterations: 12 loss: 2.5"),
        *(
            " iteration       12/   300 | loss: 2.5",
            "[iter 12/300] loss=2.5",
            "ITER 12 | loss 2.5",
            "step #12: loss 2.5",
        ),
        *(
            "global_step: 12, loss: 2.5",
            "global step 12: loss = 2.5",
            "num_updates=12, loss=2.5",
            "update 12 | loss 2.5",
        ),
        *(
            "Epoch: batch idx: 12, loss: 2.5",
            "batch_idx=12 loss=2.5",
            "Batch 12/300 - loss: 2.5",
            "completed step: 12, loss: 2.5",
        ),
        *("train step 12 | loss: 2.5", "Training step 12/300: loss 2.5", "optimizer_step: 12, loss: 2.5"),
        *(
            "loss: 2.5 | iteration 12/300",
            "loss: 2.5, step: 12",
            "INFO loss=2.5 global_step=12",
            "train loss 2.5, step: 12",
        ),
        *("step 12 (4.00%) | loss: 2.5", "step 00012/00300 (4.00%) | loss: 2.5", "step 12/300 ( 4%) - loss: 2.5"),
    ],
)
def test_every_word_for_a_step_in_every_spelling(text: str) -> None:
    assert one(text) == {"step": 12, "loss": 2.5}


def test_the_total_is_kept() -> None:
    for text in ("step:12/300 loss:2.5", " iteration   12/   300 | loss: 2.5", "Step 12 of 300 | loss 2.5"):
        assert read(text)[0].extra == {"total_steps": 300.0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iter 8 step 2 | loss train: 7.5, val: n/a | iter time: 300 ms (step)", {"step": 2, "loss": 7.5}),
        (
            "Training epoch 0, iteration 5/99 | lr: 3e-06 | global_step: 41 | loss: 2",
            {"step": 41, "loss": 2.0, "lr": 3e-06, "epoch": 0.0},
        ),
        ("step: 3, micro_step: 12, loss: 2, dt: 0.5", {"step": 3, "loss": 2.0, "dt_s": 0.5}),
        ("step: 3, loss: 2, batch: 12, dt: 0.5", {"step": 3, "loss": 2.0, "dt_s": 0.5}),
    ],
)
def test_of_several_counters_the_optimizer_step_counts(text: str, expected: dict[str, Any]) -> None:
    assert one(text) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *((f"{name}: 2.5", {}) for name in ("loss", "train_loss", "Train Loss", "train/loss", "lm loss", "lm_loss")),
        *((f"{name}: 2.5", {}) for name in ("total_loss", "reduced_train_loss", "loss train", "training_loss")),
        ("loss_a: 1.5  total_loss: 2.5", {}),
        ("local_loss: 1.5, reduced_llm_loss: 2.5", {}),
        ("loss: 1.5, total_loss: 2.5", {}),
        ("loss: 2.5, lm_loss: 1.5", {}),
        ("loss 2.5 (+nanz)| norm 1.5 (-0.31z)| lr 1e-4", {"grad_norm": 1.5, "lr": 1e-4}),
        ("loss: 2.5 (nan), grad_norm: 1.5 (nan)", {"grad_norm": 1.5}),
        *((f"loss: 2.5 | {name}: 1.5", {"grad_norm": 1.5}) for name in ("norm", "grad norm", "gnorm", "gradient_norm")),
        ("loss 2.5, grad_norm:p2 1.5, lr: 1e-4", {"grad_norm": 1.5, "lr": 1e-4}),
        *((f"loss: 2.5 | {name}: 1e-4", {"lr": 1e-4}) for name in ("lr", "LR", "learning rate", "learning_rate")),
        *((f"loss: 2.5 | {name} 250 ms", {"dt_s": 0.25}) for name in ("dt", "time", "iter time", "step time")),
        *((f"loss: 2.5, {name}: 0.25", {"dt_s": 0.25}) for name in ("time", "seconds", "step_time", "iter time (s)")),
        *(
            (f"loss: 2.5, {name}: 250.0", {"dt_s": 0.25})
            for name in ("elapsed time per iteration (ms)", "dt_ms", "time (ms)")
        ),
        *(
            (f"loss: 2.5 | {text}", {"dt_s": 0.25})
            for text in ("250 ms", "0.25 sec/step", "0.25s/it", "4 it/s", "250ms/step")
        ),
        *(
            (f"loss: 2.5 {text}", {"dt_s": 0.25})
            for text in ("(took 250.0 ms)", "step_avg:250.00ms", "steps_per_second: 4")
        ),
        ("loss: 2.5, time: 1.5 min", {"dt_s": 90.0}),
        ("loss: 2.5, time: 250us", {"dt_s": 0.00025}),
        ("loss: 2.5, time: 9.0, dt: 0.25", {"dt_s": 0.25}),
        ("loss: 2.5, step_avg:nanms", {}),
        ("loss: 2.5, time: 1767225600.5", {}),
        ("loss: 2.5, It/sec 4", {"dt_s": 0.25}),
        ("loss: 2.5, data_time: 9, last_time: 9, total time: 9.0m, eta: 9, val time: 9 ms", {}),
        *(
            (f"loss: 2.5 | {text}", {"tokens_per_s": 1234.0})
            for text in ("tok/s: 1,234", "1,234 tok/s", "tok/sec: 1234.0")
        ),
        *(
            (f"loss: 2.5 | {text}", {"tokens_per_s": 1200.0})
            for text in ("tokens/s: 1.2K", "1.2k tok/s", "tokens_per_second=1200")
        ),
        *(
            (f"loss: 2.5 {name}:1200", {"tokens_per_s": 1200.0, "per_device": True})
            for name in (
                "tps",
                "tgs",
                "Tokens/s/device",
                "tokens_per_second_per_gpu",
                "tokens per gpu per second (tgs)",
            )
        ),
        ("loss: 2.5, tokens/s/gpu: 300, tokens/s: 1200", {"tokens_per_s": 1200.0}),
        ("loss: 2.5 - 1,234.5 samples/s", {"samples_per_s": 1234.5}),
        ("loss: 2.5 samples/sec: 30.5", {"samples_per_s": 30.5}),
        ("loss: 2.5 | samples per second: 14.5", {"samples_per_s": 14.5}),
        *(
            (f"loss: 2.5 | {text}", {"mfu": 48.5})
            for text in ("48.5% bf16 MFU", "mfu: 48.5%", "bf16_mfu: 48.5", "MFU: 48.5%", "mfu 48.5%")
        ),
        *(
            (f"loss: 2.5 | {text}", {})
            for text in ("mfu: N/A", "mfu: n/a", "mfu -100.00%", "-1.0% bf16 MFU", "val: n/a")
        ),
        *((f"loss: 2.5 | {text}", {"epoch": 2.0}) for text in ("epoch: 2", "epoch 2", "Epoch 2/10", "epoch=2")),
        *(
            (f"loss: 2.5, {name}: 1.5B", {"tokens_total": 1.5e9})
            for name in ("tokens_seen", "consumed tokens", "num_tokens", "total_tokens", "tokens_total", "total tokens")
        ),
        ("loss: 2.5, tokens: 1.5M", {"tokens": 1.5e6}),
    ],
)
def test_names_and_units(fields: str, expected: dict[str, Any]) -> None:
    assert one(f"step: 7/90 | {fields}") == {"step": 7, "loss": 2.5, **expected}
    assert one(f"[rank0]: 2026-02-03 04:05:06 iter 7/90 | {fields}") == {"rank": 0, "step": 7, "loss": 2.5, **expected}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "validate step: 9  loss:  4.5",
            "Completed eval step: 9, loss=4.5",
            "step 9: val loss 4.5",
            "eval | step 9 | loss: 4.5",
        ),
        *("step 9: train loss 4.1, val loss 4.5", "step:9/90 val_loss:4.5 train_time:9ms step_avg:1.5ms"),
        *(
            " validation loss at iteration 9 | lm loss value: 4.5E+00 | lm loss PPL: 9.0E+01 | ",
            "iter 9: val loss 4.5, val time: 9 ms",
        ),
        *("Completed eval after train step 9, loss=4.5, perplexity=90", "split: val, step: 9, loss: 4.5"),
    ],
)
def test_an_evaluation_is_never_training(text: str) -> None:
    (record,) = read(text)
    assert (record.kind, record.step, record.loss) == ("eval", 9, 4.5)


def test_beside_the_loss_of_training_another_of_the_validation_changes_nothing() -> None:
    (record,) = read("step 9 | loss train: 4.5, val: 4.7 | dt: 1")
    assert (record.kind, record.loss, record.extra) == ("train", 4.5, {"val": 4.7})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step:9/90 train_time:900ms step_avg:100.5ms", {"step": 9, "dt_s": 0.1005}),
        ("step:9/90 train_time:900ms step_avg:nanms", {"step": 9}),
        (
            " iteration  9/ 90 | elapsed time per iteration (ms): 843.5 | loss scale: 1.0 | grad norm: nan |",
            {"step": 9, "dt_s": 0.8435, "grad_norm": "nan"},
        ),
        ("step=9, loss=None, dt=0.25", {"step": 9, "dt_s": 0.25}),
        ("iter: 9, loss: N/A, dt: 0.25", {"step": 9, "dt_s": 0.25}),
        (
            "completed step: 9, seconds: 4.5, Tokens/s/device: 118.5, total_weights: 32",
            {"step": 9, "dt_s": 4.5, "tokens_per_s": 118.5, "per_device": True},
        ),
    ],
)
def test_a_line_without_a_loss_is_a_step_if_nothing_else_can_be_meant(text: str, expected: dict[str, Any]) -> None:
    assert one(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "step: 9, dt: 0.25",
            "step 9/90",
            "Step 3/10 : RUN pip install torch",
            "step 3/10 (took 5.2 ms)",
            "[step=9/90,epoch=1,eta=2 days]",
        ),
        *(
            "Total steps: 90, lr: 0.1, time: 200",
            "warmup steps: 9, loss: 3",
            "steps = 500, loss = mse, lr = 0.1",
            "max_steps=9, loss=3",
        ),
        *(
            "iterations: 100, lr: 0.1, time: 20",
            "batch = 32, loss = mse",
            "batch size: 256, loss: 2.3",
            "global batch size: 9, loss: 3",
        ),
        *(
            "number of skipped iterations: 0 | loss: 3",
            "tokens per step: 9, loss: 3",
            "gradient accumulation steps: 9 loss: 3",
        ),
        *(
            "Step 00250 | Validation bpb: 1.21",
            "Step 02000 | CORE metric: 0.12",
            "step 9 | Validation bpb: 1.2 | dt: 250ms | lr: 1",
        ),
        *(
            "step 250: saving checkpoint to out (val loss 3.21)",
            "Saved iter 9 with loss 3.2",
            "best loss 3.2 at step 9",
            "Best val loss: 3.2, step 9",
        ),
        *("Epoch 3: loss 2.1 reached at step 5", "training for 9 steps, loss: 3", "loss: 2, step: 1loss: 1.9, step: 2"),
        *(
            'print(f"step 5/10: loss 3.2")',
            'logger.info("step: 5, loss: 3.2")',
            "# step: 5, loss: 3.2",
            "  // step 5 | loss 3.2",
        ),
        *(
            'print0(f"step:{step}/{args.steps} train_time:{t:.0f}ms step_avg:{t/step:.2f}ms")',
            'printf("step %4d/%d | loss %f")',
        ),
        *(
            "Downloading 5/10",
            "Downloading shards:  50%|#####     | 5/10 [00:03<00:03,  1.52it/s]",
            "Map: 100%|##| 5/5 [00:12<00:00, 4.1 examples/s]",
        ),
        *(
            "12/12 - 2s - 164ms/step - loss: 5.61 - mae: 1.93",
            " 1/12 ━━━━ 0s 89ms/step - loss: 7.91 - mae: 2.59",
            "Epoch 1/4",
        ),
        *(
            "Epoch 0:  50%|###| 8/16 [00:00<00:00, 73.5it/s, v_num=0, train_loss_step=1.24]",
            "    train/CE loss=10.43",
            "s:1 trl:10.4 lr:0.1 norm:1.2",
        ),
        *(
            "[batch=1/4800]:",
            "\t Train loss/train/total: 10.9",
            "Train: 0 [  20/100 ( 21%)]  Loss: 6.91 (6.93)  Time: 0.402s, 2547.3/s",
        ),
        *(
            "11/29 15:26:46 - mmengine - INFO - Epoch(train) [1][10/32]  lr: 1.0e-02  time: 0.0141  loss: 0.2057",
            "Iter(train) [40/60]  loss: 0.2",
        ),
        *(
            "[2026-03-01 06:51:30,648] [INFO] [Rank 0] step=20, skipped=1, lr=[2.9e-06, 2.9e-06], mom=[(0.9, 0.95)]",
            "{'loss': 2, 'step': 5}",
        ),
        *("epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=15.1, CurrSamplesPerSec=15, Mem=8GB",),
        *(
            "train | epoch 001 | loss 6.2 | ppl 73.5 | wps 31234 | num_updates 5430 | lr 0.0001",
            "step-5 loss: 3",
            "step: 5s, loss: 3",
        ),
        *(
            "      1/100      2.31G        1.2        2.5: 50% ━━━━ 20/40 8.2it/s 2.2s<3.1s",
            "0         2.3         2.1         0.5         00:12",
        ),
        *(
            "skipping update due to loss z-score of 5.12",
            "FloatingPointError: Loss became infinite or NaN at iteration=231!",
        ),
    ],
)
def test_what_is_no_progress(text: str) -> None:
    assert read(text) == []


def test_a_count_of_skipped_steps_takes_nothing_back() -> None:
    text = "iteration 9/ 90 | lm loss: 2.5E+00 | number of skipped iterations:   1 | number of nan iterations:   0 |"
    assert one(text) == {"step": 9, "loss": 2.5}
    assert read("iteration 9/ 90 | lm loss: 2.5E+00 | skipped") == []


def test_a_bar_on_the_same_line_is_not_the_line() -> None:
    bar = "1|9|Loss: 9.9:  10%|█         | 9/90 [00:01<00:09,  1.01s/it]"
    assert one(f"{bar}Step 9 | loss:2.5 lr:1e-05 ") == {"step": 9, "loss": 2.5, "lr": 1e-05}
    assert one("10%|█  | 9/90 [00:01<00:09, 1.5it/s, loss=2.5, step=9]") == {"step": 9, "loss": 2.5}


def test_metrics_before_the_step_stay_with_it() -> None:
    text = " samples/sec: 30.5 | iteration 9/ 90 | lm_loss: NAN | load_time: 0.1"
    assert one(text) == {"step": 9, "loss": "nan", "samples_per_s": 30.5}
    records = read("loss: 2, step: 1 loss: 1.9, step: 2 loss: 1.8, step: 3 | dt: 0.5")
    assert [(r.step, r.loss, r.dt_s) for r in records] == [(1, 2.0, None), (2, 1.9, None), (3, 1.8, 0.5)]
    assert one("dt: 0.25step: 6, loss: 3.1") == {"step": 6, "loss": 3.1}


@pytest.mark.parametrize(
    "shape",
    [
        "step    {n}/1886 | loss {x} (+0.{d}z)| norm {y} (-1.{d}z)| lr 8e-07 | 8{d} ms | 49.{d}% bf16 MFU | 4{d} tok/s",
        "step {n:05d}/21400 (0.{d}%) | loss: {x} | lrm: 1.00 | dt: 49{d}.15ms | tok/sec: 1,050,3{d} | epoch: 1 pq: 0",
        " [2026-08-22 15:22:{d}] iteration {n}/ 500 | elapsed time per iteration (ms): 8{d}.1 | lm loss: 1.0{d}E+01",
        "[titan] 2026-08-20 10:00:{d} - INFO - step: {n}  loss: {x}  mem: {d}GiB(5.{d}%)  tps: 6,0{d}  mfu: N/A",
        "Epoch 1/2 - Step {n}/1000 - Loss: {x} - LR: 1.2e-05 - 1,2{d}.5 samples/s",
        "step:{n}/1390 train_time:{d}ms step_avg:1{d}.39ms",
        "[default0]:ep 1 train, step {n}, loss {x}, grad_norm:p2 {y}, 0.{d} sec/step, elapsed 0:16:{d}",
    ],
)
def test_the_shapes_of_programs_are_learned(shape: str) -> None:
    reader = KeyValue()
    for n in range(1000, 1040):
        text = shape.format(n=n, x=f"{n / 300:.4f}", y=f"{n / 700:.3f}", d=10 + n % 80)
        (record,) = reader(Line(text, 0), 0.0, 0) or ()
        assert record == read(text)[0]
    assert reader._may_learn >= 62


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            "step iter iteration global_step batch 5 5/90 7 : = | , ( ) [ ] loss train val lr norm dt time tok/s ms "
            "% MFU nan 2.5 1,234 it/s epoch took skipped saved (+nanz) 1.5E-05 None eval tps {} n/a \t".split(" ")
        ),
        max_size=24,
    ),
    st.sampled_from(["", " "]),
    st.booleans(),
)
def test_no_order_of_words_raises_and_a_second_look_is_like_the_first(words: list[str], glue: str, cut: bool) -> None:
    line, reader = Line(glue.join(words), 0, cut), KeyValue()
    assert repr(reader(line, 0.0, 0)) == repr(reader(line, 0.0, 0))


@pytest.mark.parametrize(
    "name", ["tokens", "step time", "dt (h)", "s/s", "tok/tok/s", "steps/gpu/s", "", "loss scale", "loss scale (s)"]
)
def test_names_that_mean_no_rate(name: str) -> None:
    assert field_of(name) in {"", "tokens", "dt_s"}


def test_values_that_stand_for_none() -> None:
    assert field_value("steps_per_s", "0", None) is None
    assert field_value("steps_per_s", "inf", None) is None
    assert field_value("step_avg", "nan", "ms") is None
    assert field_value("dt_s", "x", "min") is None
    assert field_of("norm (x)") == "grad_norm"
    assert field_of("lr (group)") == ""
