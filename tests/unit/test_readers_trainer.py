"""Trainer's dicts: each with the step of the bar behind it, whatever stands between, however the bytes were cut."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.readers.dicts import decode, find_dicts
from overnight.readers.trainer import Trainer
from overnight.tail import Line, Tail

if TYPE_CHECKING:
    from overnight.events import Record

ERASED = "\r" + " " * 46 + "\r"


def bar(n: int, total: int = 14, title: str = "", unit: str = "6.48it/s", postfix: str = "") -> str:
    before = f"{title}: " if title else ""
    return f"\r{before}{100 * n // total:3d}%|{'█' * (n % 10):10s}| {n}/{total} [00:00<00:02, {unit}{postfix}]"


def said(loss: object = "4.05", norm: object = "1.002", epoch: object = "0.04167", **more: object) -> str:
    return str({"loss": loss, "grad_norm": norm, "learning_rate": "0.0005", "epoch": epoch, **more}) + "\n"


def step(n: int, total: int = 14, **more: object) -> str:
    """Return what is written at a step that is logged: the stale frame stands, is erased, and is drawn anew."""
    return ERASED + said(epoch=n / 10, **more) + bar(n, total)


def read(text: str, reader: Trainer | None = None, *, flush: bool = True) -> list[Record]:
    reader = reader or Trainer()
    tail = Tail()
    lines = tail.feed(text.encode()) + tail.flush()
    records = [record for line in lines for record in reader(line, 5.0, 3) or ()]
    return records + list(reader.flush() if flush else ())


def steps(text: str) -> list[int | None]:
    return [record.step for record in read(text) if not record.early]


def test_the_frame_before_is_stale_and_the_one_behind_counts() -> None:
    (record,) = read(bar(0) + bar(1) + step(2) + bar(3))
    assert (record.step, record.loss, record.grad_norm, record.lr, record.epoch) == (2, 4.05, 1.002, 0.0005, 0.2)
    assert (record.reader, record.source, record.at, record.kind, record.early) == ("trainer", 3, 5.0, "train", False)
    assert record.extra == {"total_steps": 14.0}


def test_a_record_waits_for_its_frame_and_belongs_to_its_own_line() -> None:
    reader = Trainer()
    text = said().rstrip("\n")
    assert reader(Line(text, 100), 1.0, 0) == ()
    (record,) = reader(Line(bar(1).strip("\r"), 300), 2.0, 0) or ()
    assert (record.offset, record.at, record.step) == (100, 1.0, 1)
    assert reader.flush() == ()


def test_numbers_as_version_4_prints_them() -> None:
    (record,) = read(bar(0) + said(2.3632, 1.1211632077229614, 0.25) + bar(5))
    assert (record.loss, record.grad_norm, record.epoch) == (2.3632, 1.1211632077229614, 0.25)


@pytest.mark.parametrize(
    ("loss", "norm"),
    [("'nan'", "'nan'"), ("nan", "1.5"), ("'0'", "'nan'"), ("0.0", "nan"), ("'-inf'", "'2'"), ("inf", "None")],
)
def test_what_is_not_finite_waits_for_nothing_and_comes_whole_later(loss: str, norm: str) -> None:
    reader = Trainer()
    line = f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 0.0, 'epoch': 1.0}}"
    read(bar(6), reader, flush=False)
    (early,) = reader(Line(line, 70), 1.0, 2) or ()
    assert early.early
    assert early.step is None
    (whole,) = reader(Line(bar(7).strip("\r"), 200), 9.0, 2) or ()
    assert (whole.early, whole.step, whole.source, whole.offset, whole.part, whole.at) == (False, 7, 2, 70, 0, 1.0)
    assert [str(value) for value in (whole.loss, whole.grad_norm)] == [str(early.loss), str(early.grad_norm)]


def test_the_hidden_nan_comes_as_it_is_printed() -> None:
    early, whole = read(bar(7) + said("0", "nan") + bar(8))
    assert (early.loss, whole.loss, whole.step) == (0.0, 0.0, 8)
    assert math.isnan(whole.grad_norm or 0.0)


def test_a_missing_last_frame_leaves_the_step_unknown() -> None:
    assert steps(bar(0) + step(1) + ERASED + said(epoch=0.2)) == [1, None]
    early, whole = read(bar(0) + ERASED + said("nan"))
    assert (early.early, whole.early, whole.step) == (True, False, None)


def test_a_missing_frame_leaves_only_its_own_step_unknown() -> None:
    assert steps(bar(0) + step(1) + ERASED + said(epoch=0.2) + step(3) + step(4)) == [1, None, 3, 4]


@pytest.mark.parametrize(
    "other",
    [
        bar(0, 12) + bar(5, 12) + bar(12, 12),
        bar(1, 1, "Writing model shards"),
        bar(3, 14, "Evaluating"),
        bar(9, 14, "Map (num_proc=4)", unit="4210.11 examples/s"),
        bar(9, 14, "model.safetensors", unit="1.2MB/s"),
        bar(5, 14, "Loading checkpoint shards"),
        "\nsome warning with 3/14 [not a bar]\n",
    ],
)
def test_other_bars_are_not_the_training(other: str) -> None:
    assert steps(bar(0) + step(1) + ERASED + said(epoch=0.2) + other + bar(2) + step(3)) == [1, 2, 3]


def test_evaluations_have_the_step_of_the_training() -> None:
    done = ERASED + "{'eval_loss': '4.016', 'eval_runtime': '1.909', 'eval_samples_per_second': '50', 'epoch': '0.8'}\n"
    text = bar(0) + step(4) + "\n" + bar(0, 12) + bar(12, 12) + done + bar(4) + "\n" + bar(12, 12) + step(5)
    records = read(text)
    assert [(record.kind, record.step, record.loss) for record in records] == [
        ("train", 4, 4.05),
        ("eval", 4, 4.016),
        ("train", 5, 4.05),
    ]
    assert records[1].samples_per_s is None


def test_several_evaluations_are_told_apart() -> None:
    text = bar(0) + step(4) + ERASED + "{'eval_a_loss': '3.9', 'epoch': '1'}\n" + bar(4) + bar(2, 2)
    text += ERASED + "{'eval_b_loss': '3.8', 'epoch': '1'}\n" + bar(4)
    found = [(record.step, record.loss, (record.extra or {})["eval_name"]) for record in read(text)[1:]]
    assert found == [(4, 3.9, "eval_a_loss"), (4, 3.8, "eval_b_loss")]


def test_an_evaluation_before_the_first_step_and_one_after_the_last() -> None:
    done = ERASED + "{'eval_loss': '3.898', 'eval_runtime': '0.1', 'epoch': '0'}\n"
    summary = "{'train_runtime': '2.3', 'train_samples_per_second': '9', 'train_loss': '4.0', 'epoch': '2'}\n"
    text = bar(0, 30) + "\n" + bar(0, 3) + done + bar(3, 3) + bar(0, 30) + step(1, 30) + summary + bar(30, 30) + "\n"
    assert steps(text + bar(0, 3) + done + bar(3, 3)) == [0, 1, None]


def test_a_bar_with_the_total_of_the_evaluation() -> None:
    done = ERASED + "{'eval_loss': '3.898', 'epoch': '0.5'}\n"
    begun = bar(0, 6) + step(2, 6) + bar(0, 6) + bar(5, 6) + done
    assert steps(begun + bar(2, 6) + bar(6, 6) + step(3, 6)) == [2, 2, 3]
    assert steps(begun + bar(6, 6) + bar(2, 6) + step(3, 6)) == [2, 2, 3]  # tqdm redraws them in any order
    ended = bar(0, 6) + step(6, 6) + bar(0, 6) + bar(6, 6) + done + bar(6, 6)
    assert steps(ended) == steps(ended + bar(6, 6)) == [6, 6]


def test_the_summary_is_no_record_and_a_second_training_has_a_bar_of_its_own() -> None:
    summary = "{'train_runtime': 2.3, 'train_samples_per_second': 9.1, 'train_loss': 4.0, 'epoch': 2.0}\n"
    assert steps(bar(0) + step(13) + step(14) + summary + bar(14) + bar(0, 40) + step(5, 40)) == [13, 14, 5]


def test_a_run_that_was_resumed_in_the_same_log_with_another_plan() -> None:
    again = "Traceback: killed\n" + bar(0, 400) + bar(90, 400)
    assert steps(bar(0) + step(2) + step(4) + again + step(100, 400) + step(110, 400) + step(120, 400)) == [
        2,
        4,
        100,
        110,
        120,
    ]


def test_a_resumed_run_with_the_same_plan_goes_back() -> None:
    assert steps(bar(0, 200) + step(116, 200) + "killed\n" + bar(0, 200) + bar(79, 200) + step(81, 200)) == [116, 81]


def test_without_a_bar_there_is_no_step_and_only_the_first_waits() -> None:
    reader = Trainer()
    lines = [said(epoch=n / 10).strip() for n in range(1, 5)]
    counts = [len(reader(Line(line, n), 0.0, 0) or ()) for n, line in enumerate(lines)]
    assert counts == [0, 2, 1, 1]
    assert [record.epoch for record in read("\n".join(lines))] == [0.1, 0.2, 0.3, 0.4]


def test_dicts_that_were_buffered_get_no_false_step() -> None:
    buffered = "".join(said(epoch=n / 10) for n in range(1, 5))
    assert steps(bar(0) + bar(3) + "\n" + buffered + bar(9) + "\n" + buffered + bar(14)) == [None] * 8


def test_two_writers_on_one_line() -> None:
    assert steps("[W] slow loader " + said().strip() + bar(1) + "\n") == [1]
    glued = read(bar(3) + said().strip() + said(3.0).strip() + bar(4))
    assert [(record.part, record.loss) for record in glued] == [(0, 4.05), (1, 3.0)]
    assert steps(bar(3) + "[default0]:" + said().strip() + bar(4).strip("\r")) == [4]


def test_a_rank_before_the_dict_and_a_bar_without_one() -> None:
    records = read(bar(0) + "[rank0]: " + said().strip() + "\n[rank8]: " + said(4.1).strip() + "\n" + bar(2))
    assert [(record.rank, record.step, record.loss) for record in records] == [(0, 2, 4.05), (8, 2, 4.1)]


@pytest.mark.parametrize("title", ["Train", "Epoch 1/3", "Steps", "training"])
def test_the_bar_may_have_a_title(title: str) -> None:
    assert steps(bar(0, title=title) + said() + bar(1, title=title, postfix=", loss=4.05")) == [1]


def test_a_bar_that_is_wrapped() -> None:
    wrapped = "\r  7%|▋         \n         | 1/100000 [00:00<00:02,\n  6.48it/s]"
    assert steps(bar(0, 100000) + said() + wrapped) == [1]
    assert steps(bar(0, 100) + said() + "\r 12%|█▎| 1\n2/100 [00:00<00:02, 6.48it/s]" + bar(12, 100)) == [12]


def test_long_runs_and_slow_ones() -> None:
    text = bar(99_999, 250_000, unit="1.92s/it") + said("1.2e-05") + bar(100_000, 250_000, unit="1.92s/it")
    (record,) = read(text.replace("[00:00<", "[53:20:00<"))
    assert (record.step, record.loss) == (100_000, 1.2e-05)


def test_a_step_inside_the_dict_waits_for_nothing() -> None:
    reader = Trainer()
    line = said(**{"global_step/max_steps": "5/40", "train_speed(s/it)": 1.5}).strip()
    (record,) = reader(Line(line, 0), 0.0, 0) or ()
    assert (record.step, record.dt_s, (record.extra or {})["total_steps"]) == (5, 1.5, 40.0)


def test_fields_of_the_programs_built_on_it() -> None:
    more = {
        "step_time": "1.92",
        "num_tokens": "1.204e+05",
        "kl": None,
        "ppl": "inf",
        "completions/mean_length": "212.4",
    }
    record = read(bar(0) + said(**more) + bar(5))[-1]
    assert (record.step, record.dt_s, record.tokens_total) == (5, 1.92, 120400.0)
    assert record.extra == {"completions/mean_length": 212.4, "ppl": math.inf, "total_steps": 14.0}
    (record,) = read(bar(0) + said(**{"tokens/train_per_sec_per_gpu": "2211"}) + bar(5))
    assert (record.tokens_per_s, record.per_device) == (2211.0, True)
    (record,) = read(bar(0) + said(train_tokens_per_second="2242", num_input_tokens_seen=640) + bar(5))
    assert (record.tokens_per_s, record.per_device, record.tokens_total) == (2242.0, False, 640.0)


@pytest.mark.parametrize(
    "text",
    [
        "{'learning_rate': 5e-05, 'num_epochs': 3, 'batch_size': 8}",
        "{'loss': 'mse', 'epochs': 3}",
        "{'my_metric': 0.5, 'epoch': 1.0}",
        "{'loss_cls': nan, 'loss_box_reg': nan}",
        "{'loss': 2.0",
        "{'a': {'b': {'c': 1}}}",
        "{'loss': __import__('os').getcwd(), 'epoch': 1.0}",
        "{'loss': 4.0 + 1j, 'epoch': 1}",
        "{'",
    ],
)
def test_other_dicts_are_no_records(text: str) -> None:
    assert read(bar(0) + text + "\n" + bar(1)) == []


def test_what_is_printed_round_numbers() -> None:
    assert decode("{'loss': np.float64(2.5), 'x': tensor(1.5, device='cuda:0'), 'y': np.float32(nan)}") == {
        "loss": 2.5,
        "x": 1.5,
        "y": "nan",
    }
    assert decode("{'a': True, 'b': None, 'c': -inf, 'd': (1, 2)}") == {"a": True, "b": None, "c": "-inf", "d": (1, 2)}
    assert decode("{'it\\'s': \"don't\"}") == {"it's": "don't"}
    assert [content for _, _, content in find_dicts("x {'a': {'b': 1}} y {'c': '}'} {'d'")] == [
        {"a": {"b": 1}},
        {"c": "}"},
    ]


@pytest.mark.parametrize(
    "text", ["{'" + "[" * 50_000, "{'a': " + "{'b': " * 900 + "1", "{'a': " + "(" * 5000 + "1}", "{'\\x"]
)
def test_nothing_breaks_it(text: str) -> None:
    assert find_dicts(text) == []
    assert Trainer()(Line(text, 0), 0.0, 0) in (None, ())


PIECES = st.lists(
    st.one_of(
        st.integers(1, 14).map(step),
        st.integers(0, 14).map(bar),
        st.sampled_from(
            [
                said(),
                said("nan", "nan"),
                said("0", "nan"),
                bar(3, 12) + "\n",
                "noise\n",
                ERASED,
                "\n",
                "{'eval_loss': 3.5, 'epoch': 1.0}\n",
                "{'train_runtime': 1.0, 'train_loss': 2.0, 'epoch': 1.0}\n",
                "{'loss': 2.0, 'step': 7}\n",
                "[rank1]: " + said(),
            ]
        ),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(first=PIECES, second=PIECES)
def test_restored_between_any_two_lines_it_goes_on_the_same(first: list[str], second: list[str]) -> None:
    reader = Trainer()
    read("".join(first), reader, flush=False)
    state: Any = json.loads(json.dumps(reader.snapshot()))
    again = Trainer()
    again.restore(state)
    assert str(read("".join(second), again)) == str(read("".join(second), reader))
    assert str(again.snapshot()) == str(reader.snapshot())


@settings(deadline=None)
@given(pieces=PIECES)
def test_every_early_record_is_followed_by_the_whole_and_no_record_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    records = read(text)
    whole = [(record.offset, record.part) for record in records if not record.early]
    assert len(whole) == len(set(whole)) == text.count("'loss'") + text.count("'eval_loss'")
    assert {(record.offset, record.part) for record in records if record.early} <= set(whole)
