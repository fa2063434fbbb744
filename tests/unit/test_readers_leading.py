"""Mappings whose step stands before them, and wrappers that say what a mapping is about."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.events import Record
from overnight.readers.jsonlines import JsonLines
from overnight.readers.keyvalue import KeyValue
from overnight.readers.trainer import Trainer
from overnight.tail import Line


def read(text: str) -> list[Record]:
    reader: Any = JsonLines() if '{"' in text else Trainer()
    found = [*(reader(Line(text, 0), 0.0, 0) or ()), *(reader.flush() if isinstance(reader, Trainer) else ())]
    return [record for record in found if not record.early]


PYTHON, JSON = "{'loss': 2.1, 'lr': 0.1}", '{"loss": 2.1, "lr": 0.1}'


@pytest.mark.parametrize("mapping", [PYTHON, JSON])
@pytest.mark.parametrize(
    ("words", "step", "total", "epoch"),
    [
        *(
            (words, 5, None, None)
            for words in ("step 5: ", "step: 5 ", "[step 5] ", "Step 5 - metrics: ", "step=5 | train: ")
        ),
        *((words, 5, 100, None) for words in ("Step 5/100: ", "step 5 of 100 - ", "iteration 5/100 ")),
        *((words, 5, None, 2.0) for words in ("Epoch 2 step 5: ", "epoch: 2, step: 5, ", "epoch=2 iter 40 step=5 ")),
        *(
            (words, 5, None, 2.0)
            for words in ("step 5 epoch 2: ", "Step 5 (Epoch 2/9) - train: ", "step=5, epoch=2 | ")
        ),
        *((words, 5, None, None) for words in ("final step 5: ", "Final: step 5: ", "sampling step 5: ")),
        ("2026-01-01 10:00:00,123 - INFO - [rank0]: step 5: ", 5, None, None),
        *(
            (words, None, None, None)
            for words in ("epoch 2 batch 5: ", "step 5 of the plan is ", "steps 5: ", "total steps 5: ")
        ),
    ],
)
def test_the_step_before_a_mapping(
    mapping: str, words: str, step: int | None, total: int | None, epoch: float | None
) -> None:
    found = read(words + mapping)
    if step is None:
        assert [record.step for record in found] in ([], [None])
        return
    (record,) = found
    assert (record.kind, record.loss, record.lr) == ("train", 2.1, 0.1)
    assert (record.step, record.epoch, (record.extra or {}).get("total_steps")) == (step, epoch, total)


@pytest.mark.parametrize("words", ["saved at step 5: ", "best step 5: ", "resuming from step 5: ", "# step 5: "])
def test_a_step_that_is_only_spoken_of_counts_nothing(words: str) -> None:
    assert [record.step for mapping in (PYTHON, JSON) for record in read(words + mapping) if record.step] == []


@pytest.mark.parametrize("line", ["final step 5{}", "final: step 5{}", "step 5 epoch 2{}", "epoch 2 step 5{}"])
def test_a_line_with_a_mapping_and_one_without_agree(line: str) -> None:
    general = KeyValue()(Line(line.format(", loss 2.1"), 0), 0.0, 0) or ()
    for mapping in (PYTHON, JSON):
        for one, other in zip(general, read(line.format(": " + mapping)), strict=True):
            assert (one.kind, one.step, one.loss, one.epoch) == (other.kind, other.step, other.loss, other.epoch)


@pytest.mark.parametrize("words", ["early stopping at step 5: ", "rolled back to step 5: ", "best: step 5: "])
def test_a_step_of_the_past_before_a_mapping_is_none(words: str) -> None:
    assert [record.step for mapping in (PYTHON, JSON) for record in read(words + mapping) if record.step] == []


@pytest.mark.parametrize(
    "words", ["held-out: ", "holdout set | ", "eval step 5: ", "Validation: step 5: ", "step 5 (val): "]
)
def test_the_mapping_of_an_evaluation_stays_one(words: str) -> None:
    assert {record.kind for mapping in (PYTHON, JSON) for record in read(words + mapping)} == {"eval"}


def test_a_mapping_that_names_its_step_keeps_it() -> None:
    assert [record.step for record in read('step 9: {"step": 5, "loss": 2.1}')] == [5]


def test_each_of_two_mappings_has_its_own_step() -> None:
    assert [record.step for record in read('step 5: {"loss": 2.1}step 6: {"loss": 2.2}')] == [5, 6]


@pytest.mark.parametrize("wrapper", ["message", "event", "metrics", "data", "payload"])
@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        ('"step": 5, "loss": 2.5', "train"),
        ('"phase": "train", "step": 5, "loss": 2.5', "train"),
        ('"phase": "val", "step": 5, "loss": 2.5', "eval"),
        ('"step": 5, "eval_loss": 2.5', "eval"),
        ('"type": "checkpoint", "step": 5, "loss": 2.5', None),
    ],
)
def test_what_is_wrapped_is_read_as_if_it_were_not(wrapper: str, inner: str, kind: str | None) -> None:
    found = read(f'{{"level": "info", "{wrapper}": {{{inner}}}}}')
    assert [(record.kind, record.step, record.loss) for record in found] == ([] if kind is None else [(kind, 5, 2.5)])


@pytest.mark.parametrize(
    ("pairs", "kind", "loss"),
    [
        ("'lm loss': 2.4, 'iteration': '5/40'", "train", 2.4),
        ("'lm_loss': 2.4, 'total_loss': 2.5, 'step': 5", "train", 2.5),
        ("'lm_loss': 2.4, 'loss': 2.5, 'step': 5", "train", 2.5),
        ("'lm_loss': 2.4, 'val_loss': 2.5, 'step': 5", "eval", 2.5),
    ],
)
def test_the_loss_of_the_model_counts_where_no_other_does(pairs: str, kind: str, loss: float) -> None:
    assert [(one.kind, one.step, one.loss) for one in read(f"{{{pairs}}}")] == [(kind, 5, loss)]


@pytest.mark.parametrize(
    ("text", "kind", "lr", "extra"),
    [
        ('{"event": {"step": 1}, "step": 5, "loss": 2.5}', "train", None, {"event/step": 1.0}),
        ('{"values": {"lr": 3}, "step": 5, "loss": 2.5}', "train", None, {"values/lr": 3.0}),
        ('{"step": 5, "loss": 2.5, "extra": {"split": "dev"}}', "train", None, {"extra/split": "dev"}),
        ('{"step": 5, "loss": 2.5, "record": {"stage": "test"}}', "train", None, {"record/stage": "test"}),
        ('{"step": 5, "loss": 2.5, "data": {"split": "val"}}', "train", None, {"data/split": "val"}),
        (
            '{"extra": {"lr": 3}, "payload": {"step": 5, "loss": 2.5, "lr": 1, "a": "b"}}',
            *("train", 1.0, {"extra/lr": 3.0, "payload/a": "b"}),
        ),
        (
            '{"message": {"event": {"global_step": 9, "step": 5, "loss": 2.5, "a": 1}}}',
            *("train", None, {"message/event/a": 1.0}),
        ),
        ('{"Message": {"split": "dev", "step": 5, "loss": 2.5}}', "eval", None, {"Message/split": "dev"}),
    ],
)
def test_only_where_a_mapping_is_no_record_what_it_holds_is(
    text: str, kind: str, lr: float | None, extra: dict[str, Any]
) -> None:
    (record,) = read(text)
    assert (record.kind, record.step, record.loss, record.lr, record.extra) == (kind, 5, 2.5, lr, extra)


@pytest.mark.parametrize("text", ['{"event": {"step": 5}, "loss": 2.5}', '{"step": 5, "values": {"name": "x"}}'])
def test_no_wrapper_lends_a_record_what_it_lacks(text: str) -> None:
    assert read(text) == []
