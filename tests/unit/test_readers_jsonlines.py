"""JSON lines: an object alone or behind a prefix, flat or nested, numbers as numbers or as text."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.readers.jsonlines import JsonLines
from overnight.tail import Line

if TYPE_CHECKING:
    from overnight.events import Record


def read(text: str) -> tuple[Record, ...] | None:
    return JsonLines()(Line(text, 40), 5.0, 3)


def one(content: dict[str, Any]) -> Record:
    (record,) = read(json.dumps(content)) or ()
    return record


def test_an_object_alone() -> None:
    record = one(
        {"step": 10, "loss": 2.3, "lr": 1e-4, "epoch": 0.2, "dt": 0.25, "note": "x", "flag": True, "none": None}
    )
    assert (record.reader, record.source, record.offset, record.at, record.kind) == ("jsonlines", 3, 40, 5.0, "train")
    assert (record.step, record.loss, record.lr, record.epoch, record.dt_s) == (10, 2.3, 1e-4, 0.2, 0.25)
    assert record.extra == {"note": "x"}


def test_fairseq_behind_its_prefix_with_numbers_as_text() -> None:
    text = (
        '2026-05-02 11:00:05 | INFO | train_inner | {"epoch": 1, "update": 0.018, "loss": "13.413", "wps": "31234.5", '
    )
    text += '"ups": "9.52", "num_updates": "100", "lr": "1.25e-05", "gnorm": "2.1"}'
    (record,) = read(text) or ()
    assert (record.step, record.loss, record.tokens_per_s, record.grad_norm) == (100, 13.413, 31234.5, 2.1)
    assert record.dt_s == 1 / 9.52


def test_fairseqs_means_of_an_epoch_are_no_second_record() -> None:
    mean = '2026 | INFO | train | {"epoch": 1, "train_loss": "6.2", "train_num_updates": "5430", "train_wps": "3"}'
    assert read(mean) == ()
    (valid,) = read('2026 | INFO | valid | {"epoch": 1, "valid_loss": "5.1", "valid_num_updates": "5430"}') or ()
    assert (valid.kind, valid.step, valid.loss) == ("eval", 5430, 5.1)


def test_llama_factory() -> None:
    base = {"current_steps": 50, "total_steps": 100, "epoch": 1.0, "percentage": 50.0, "elapsed_time": "0:00:50"}
    record = one({**base, "loss": 2.07, "throughput": 5123.45, "total_tokens": 204800})
    assert (record.step, record.tokens_per_s, record.tokens_total) == (50, 5123.45, 204800.0)
    assert (record.extra or {})["total_steps"] == 100.0
    assert one({**base, "loss": 2.07, "throughput": 5123.45}).tokens_per_s is None
    evaluation = one({**base, "eval_loss": 1.51})
    assert (evaluation.kind, evaluation.step, evaluation.loss) == ("eval", 50, 1.51)


def test_ms_swift_mmengine_and_detectron2() -> None:
    record = one({"loss": 2.1, "global_step/max_steps": "5/40", "train_speed(iter/s)": 0.5, "percentage": "12.50%"})
    assert (record.step, record.dt_s, (record.extra or {})["total_steps"]) == (5, 2.0, 40.0)
    record = one({"lr": 0.01, "data_time": 0.001, "loss": 0.42, "time": 0.0126, "epoch": 3, "iter": 10, "step": 74})
    assert (record.step, record.dt_s, record.epoch) == (74, 0.0126, 3.0)
    record = one({"data_time": 0.01, "iteration": 19, "loss_cls": 1.2, "time": 0.25, "total_loss": 3.9})
    assert (record.step, record.loss, record.dt_s) == (19, 3.9, 0.25)
    assert one({"step": 1, "loss": 2.0, "time": 1785000000.5}).dt_s is None


@pytest.mark.parametrize(
    "content",
    [
        {"step": 5, "train": {"loss": 2.5, "lr": 0.1}},
        {"train/global_step": 5, "train/loss": 2.5, "train/learning_rate": 0.1},
        {"step": "5", "loss": "2.5", "optimizer": {"lr": [0.1, 0.1]}},
        {"global_step": 5.0, "metrics": {"loss": 2.5}, "lr": [0.1]},
        {"_step": 5, "train_loss": 2.5, "learning_rate": 0.1},
    ],
)
def test_names_and_nesting(content: dict[str, Any]) -> None:
    record = one(content)
    assert (record.kind, record.step, record.loss, record.lr) == ("train", 5, 2.5, 0.1)


@pytest.mark.parametrize(
    "content",
    [
        {"step": 5, "val_loss": 2.5},
        {"step": 5, "eval/loss": 2.5},
        {"step": 5, "eval": {"loss": 2.5, "tokens_per_s": 9.0}},
        {"step": 5, "loss": 2.5, "split": "val"},
        {"step": 5, "loss": 2.5, "mode": "evaluation"},
        {"step": 5, "train_loss": 2.2, "val_loss": 2.5},
    ],
)
def test_evaluations(content: dict[str, Any]) -> None:
    record = one(content)
    assert (record.kind, record.step, record.loss, record.tokens_per_s) == ("eval", 5, 2.5, None)


def test_a_line_for_each_epoch_with_both_losses_is_of_the_training() -> None:
    record = one({"epoch": 3, "train_loss": 2.2, "val_loss": 2.5})
    assert (record.kind, record.step, record.epoch, record.loss, record.extra) == (
        "train",
        None,
        3,
        2.2,
        {"val_loss": 2.5},
    )


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", '"nan"', '"inf"', '"-inf"', '"NaN"'])
def test_what_is_not_finite(word: str) -> None:
    (record,) = read(f'INFO {{"step": 3, "loss": {word}, "x": NaN}}') or ()
    assert record.step == 3
    assert record.loss is not None
    assert not math.isfinite(record.loss)


def test_a_loss_that_is_null_is_no_loss() -> None:
    assert one({"step": 3, "loss": None, "grad_norm": 1.0}).loss is None


def test_ranks() -> None:
    assert one({"step": 3, "loss": 2.0, "rank": 2}).rank == 2
    (record,) = read('[rank3]: {"step": 3, "loss": 2.0}') or ()
    assert record.rank == 3


def test_two_writers_on_one_line() -> None:
    records = read('{"step": 3, "loss": 2.0}{"step": 4, "loss": NaN} trailing') or ()
    assert [(record.step, record.part) for record in records] == [(3, 0), (4, 1)]
    records = read('{"step": 3, "lo{"step": 4, "loss": 2.5}') or ()
    assert [record.step for record in records] in ([], [4])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, 2]",
        '"step"',
        '{"loss": 2.0}',
        '{"a": {"step": 3, "loss": 2.0}',
        '{"step": -1, "loss": 2.0}',
        '{"step": 1.5, "loss": 2.0}',
        '{"step": true, "loss": 2.0}',
        '{"step": 1e400, "loss": 2.0}',
        "{'step': 3, 'loss': 2.0}",
        "{" * 100_000 + "}",
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        '{"step": ' + "9" * 6000 + ', "loss": 1}',
    ],
)
def test_other_lines_are_not_mine(text: str) -> None:
    assert not read(text)


@pytest.mark.parametrize(
    "content",
    [
        {"step": 500, "event": "checkpoint saved", "loss": 2.0},
        {"step": 500, "type": "resume", "loss": 2.0},
        {"step": 500, "accuracy": 0.5},
        {"epoch": 1, "learning_rate": 0.1},
    ],
)
def test_lines_that_tell_no_progress(content: dict[str, Any]) -> None:
    assert read(json.dumps(content)) == ()


@given(st.text(alphabet='{}[]":,0123456789.eE+-lossteNaInfy \\', max_size=80))
def test_it_never_raises(text: str) -> None:
    for record in read(text) or ():
        assert record.step is not None or record.epoch is not None
