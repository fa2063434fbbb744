"""Values that are none, names that nobody can store, and words that make a mapping an evaluation's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from overnight.events import Record
from overnight.readers.jsonlines import JsonLines
from overnight.readers.keyvalue import KeyValue
from overnight.readers.nanogpt import NanoGPT
from overnight.readers.pattern import Pattern
from overnight.readers.trainer import Trainer
from overnight.tail import Line

HUGE = "99999999999999999999"


def read(reader: Any, text: str) -> list[Record]:
    records = list(reader(Line(text, 0), 0.0, 0) or ())
    return [record for record in (*records, *getattr(reader, "flush", tuple)()) if not record.early]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("loss: nan step: 300 lr: 0.001", 300),
        ("lr 0.1 loss=nan iter=60", 60),
        ("loss nan iteration 60/500", 60),
        ("Loss: nan Step: 60 of 500", 60),
        ("LOSS: NaN STEP: 60", 60),
        ("train_loss: -nan step: 60", 60),
        ("loss: [nan] step: 60", 60),
        ("loss=tensor(nan) step=60", 60),
    ],
)
def test_a_nan_before_the_step(text: str, step: int) -> None:
    (record,) = read(KeyValue(), text)
    assert record.step == step
    assert math.isnan(record.loss or 0.0)


def test_a_gradient_norm_before_the_step() -> None:
    (record,) = read(KeyValue(), "grad_norm nan step 60 loss 3.0")
    assert (record.step, record.loss) == (60, 3.0)
    assert math.isnan(record.grad_norm or 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "iteration 7/10 | loss: 3.0 | number of skipped iterations: 0 | number of nan iterations: 12 |",
        "iteration 7/10 | loss: 3.0 | nan iterations: 12 |",
        "step: 7, loss: 3.0, nan_steps: 12",
    ],
)
def test_a_count_of_nans_is_no_step(text: str) -> None:
    (record,) = read(KeyValue(), text)
    assert (record.step, record.loss) == (7, 3.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (KeyValue, f"step 51 | loss 3.1 | rank={HUGE}"),
        (KeyValue, f"step: {HUGE}, loss: 3.1"),
        (KeyValue, f"step: 51/{HUGE}, loss: 3.1"),
        (KeyValue, f"[rank{HUGE}] step: 51, loss: 3.1, epoch: {HUGE}, tokens: {HUGE}"),
        (JsonLines, f'{{"step": {HUGE}, "epoch": 1, "loss": 3.1}}'),
        (JsonLines, f'{{"step": 51, "rank": {HUGE}, "loss": 3.1, "tokens": {HUGE}, "x": {HUGE}}}'),
        (JsonLines, f'{{"step": "{HUGE}", "rank": "{HUGE}", "epoch": 2, "loss": 3.1}}'),
        (JsonLines, f'{{"step": 51, "rank": 1e17, "loss": {"9" * 5000}, "dt_ms": {"9" * 5000}, "lr": NaN}}'),
        (Trainer, f"{{'loss': 3.1, 'epoch': 1.0, 'learning_rate': 0.1, 'step': {HUGE}, 'rank': {HUGE}}}"),
        (NanoGPT, f"iter {HUGE}: loss 3.1, time 14.01ms, mfu 0.01%"),
        (lambda: Pattern(r"s=(?P<step>\d+) r=(?P<rank>\d+) l=(?P<loss>\S+)"), f"s={HUGE} r={HUGE} l=3.1"),
    ],
)
def test_whole_numbers_fit_64_bits(make: Any, text: str) -> None:
    for record in read(make(), text):
        assert record.step is None or 0 <= record.step < 2**63
        assert record.rank is None or 0 <= record.rank < 10**9
        assert record.loss is None or record.loss in (3.1, math.inf)


def test_a_huge_float_is_a_float() -> None:
    (record,) = read(KeyValue(), "step: 5, loss: 1.7e308, lr: 1e-300")
    assert (record.loss, record.lr) == (1.7e308, 1e-300)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            JsonLines,
            '{"step": 1, "loss": 3.0, "t\\ud800": 4, "note": "a\\udfffb", "k\\u0000\\n": 5, "%s": 6}' % ("k" * 9999),
        ),
        (JsonLines, '{"step": 1, "loss": NaN, "t\\ud800": 4, "eval_\\ud800loss": 5}'),
        (JsonLines, '{"step": 1, "x_\\ud800": {"y\\ud801": 3.0}, "loss": 3.0}'),
        (Trainer, "{'loss': 3.0, 'epoch': 1.0, 'learning_rate': 0.1, 'x\\ud800': 4, 'note': '\\udfff'}"),
    ],
)
def test_names_and_texts_can_be_stored(make: Any, text: str) -> None:
    (record,) = read(make(), text)
    extra = record.extra or {}
    assert extra
    for key, value in extra.items():
        key.encode()
        assert len(key) <= 128
        assert key.isprintable()
        if isinstance(value, str):
            value.encode()
    assert "t\ufffd" in extra or "x\ufffd" in extra or "x_\ufffd/y\ufffd" in extra


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Trainer, "Evaluation: {'loss': nan, 'accuracy': 0.5, 'epoch': 3.0}"),
        (Trainer, "val metrics: {'loss': nan, 'step': 50, 'learning_rate': 0.1}"),
        (Trainer, "Test set: {'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (Trainer, "{'split': 'eval', 'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (Trainer, "{'is_eval': True, 'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (JsonLines, '{"dataset":"dev","step":5,"loss":NaN}'),
        (JsonLines, '{"is_eval":true,"step":5,"loss":NaN}'),
        (JsonLines, '{"eval":"true","step":5,"loss":NaN}'),
        (JsonLines, '{"training":false,"step":5,"loss":NaN}'),
        (JsonLines, '{"name":"val","step":5,"loss":NaN}'),
        (JsonLines, '{"name":"Validation set","step":5,"loss":NaN}'),
        (JsonLines, '{"stage":"validate/val","step":5,"loss":NaN}'),
        (JsonLines, 'val metrics: {"step":5,"loss":NaN}'),
        (JsonLines, 'Test: {"step":5,"loss":NaN}'),
    ],
)
def test_of_an_evaluation(make: Any, text: str) -> None:
    (record,) = read(make(), text)
    assert (record.kind, math.isnan(record.loss or 0.0)) == ("eval", True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Trainer, "train: {'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (Trainer, "INFO:/data/test/x.py:3: {'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (Trainer, "[best_run] {'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1, 'name': 'test-run'}"),
        (Trainer, "[default0]:{'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1, 'is_eval': False}"),
        (Trainer, "checkpoint-dir | {'loss': nan, 'epoch': 1.0, 'learning_rate': 0.1}"),
        (JsonLines, '{"name":"test-1","step":5,"loss":NaN}'),
        (JsonLines, '{"name":"test","step":5,"loss":NaN}'),
        (JsonLines, '{"dataset":"wikitext-test","step":5,"loss":NaN,"training":true}'),
        (JsonLines, '{"split":"train","step":5,"loss":NaN}'),
    ],
)
def test_of_the_training(make: Any, text: str) -> None:
    (record,) = read(make(), text)
    assert (record.kind, math.isnan(record.loss or 0.0)) == ("train", True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Trainer, "EarlyStopping state: {'loss': inf, 'epoch': 0, 'step': 0, 'learning_rate': 0.1}"),
        (Trainer, "Best: {'loss': inf, 'epoch': 0, 'learning_rate': 0.1}"),
        (Trainer, "config = {'loss': nan, 'epoch': 0, 'learning_rate': 0.1}"),
        (JsonLines, 'EarlyStopping state: {"step":5,"loss":Infinity}'),
        (JsonLines, 'resumed from {"step":5,"loss":Infinity}'),
    ],
)
def test_no_progress_at_all(make: Any, text: str) -> None:
    assert read(make(), text) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"step":30,"loss":NaN,"loss":3.0}',
        '{"step":30,"loss":3.0,"loss":NaN}',
        '{"step":30,"loss":"nan","loss":3.0}',
        '{"step":30,"lr":NaN,"loss":Infinity,"lr":0.1,"loss":3.0}',
    ],
)
def test_of_a_name_that_stands_twice_the_one_that_is_no_number_counts(text: str) -> None:
    (record,) = read(JsonLines(), text)
    assert not math.isfinite(record.loss or 0.0)


def test_of_two_numbers_the_last_counts() -> None:
    (record,) = read(JsonLines(), '{"step":30,"loss":2.0,"loss":3.0}')
    assert record.loss == 3.0


@pytest.mark.parametrize("value", ["nan", "-nan", "NaN", "NAN", "inf", "-inf", "+inf", "Infinity", "np.float32(nan)"])
def test_a_dict_that_python_has_not_written(value: str) -> None:
    (record,) = read(Trainer(), f"{{'loss': {value}, 'epoch': 1.0, 'learning_rate': 0.1}}")
    assert not math.isfinite(record.loss or 0.0)
