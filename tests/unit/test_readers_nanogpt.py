"""nanoGPT's two lines, glued and prefixed, and two recorded runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import jsonable
from overnight.readers import Reader
from overnight.readers.nanogpt import NanoGPT
from overnight.tail import Line, Tail

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "formats" / "real"

LOG = b"""Overriding: learning_rate = 0.001
learning_rate = 1e-3 # with baby networks can afford to go a bit higher
number of parameters: 0.10M
step 0: train loss 4.2874, val loss 4.2823
[rank1]: iter 0: loss 4.2649, time 1204.10ms, mfu -100.00%
iter 1: loss nan, time 14.01ms, mfu 0.01%
saving checkpoint to out
iter 2: loss 4.1, time 14.5ms, mfu 1.25%, lr 1e-4, tok/s 12.5K, foo 3
"""


def read(text: str, *, cut: bool = False) -> list[tuple[Any, ...]]:
    records = NanoGPT()(Line(text, 40, cut), 7.5, 3) or ()
    return [(r.part, r.kind, r.step, jsonable(r.loss), r.dt_s, r.mfu, r.glued) for r in records]


def test_a_small_log() -> None:
    lines = Tail().feed(LOG)
    records = [record for line in lines for record in NanoGPT()(line, 1.0, 0) or ()]
    assert [(r.kind, r.rank, r.step, jsonable(r.loss), r.dt_s, r.mfu) for r in records] == [
        ("eval", None, 0, 4.2823, None, None),
        ("train", 1, 0, 4.2649, 1.2041, None),
        ("train", None, 1, "nan", 0.01401, 0.01),
        ("train", None, 2, 4.1, 0.0145, 1.25),
    ]
    assert records[0].extra == {"train_loss": 4.2874}
    assert (records[3].lr, records[3].tokens_per_s, records[3].extra) == (1e-4, 12500.0, {"foo": 3.0})
    assert LOG[records[2].offset :].startswith(b"iter 1:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iter 5: loss 3.1484, time 14.01ms, mfu 0.01%", [(0, "train", 5, 3.1484, 0.01401, 0.01, False)]),
        ("iter 5: loss 3.1484, time 14.01ms, mfu -100.00%", [(0, "train", 5, 3.1484, 0.01401, None, False)]),
        ("iter 5: loss NaN, time 0.5s, mfu nan%", [(0, "train", 5, "nan", 0.5, "nan", False)]),
        ("iter 5: loss 3.1", [(0, "train", 5, 3.1, None, None, False)]),
        ("iter 5: loss abc, time 14.01ms", [(0, "train", 5, None, 0.01401, None, False)]),
        ("iter 5: loss , time 14.01ms", [(0, "train", 5, None, 0.01401, None, False)]),
        ("iter 5: loss 3, val loss 2ms", [(0, "train", 5, 3.0, None, None, False)]),
        ("iter 5: loss 3, val loss 2, train_loss 4", [(0, "train", 5, 3.0, None, None, False)]),
        (
            "iter 5: loss 3, time 1ms, mfu 1%iter 6: loss 4, time 2ms, mfu 2%",
            [(0, "train", 5, 3.0, 0.001, 1.0, False), (1, "train", 6, 4.0, 0.002, 2.0, False)],
        ),
        (
            "iter 5: loss 3.1iter 6: loss 4",
            [(0, "train", 5, 3.1, None, None, True), (1, "train", 6, 4.0, None, None, False)],
        ),
        (
            "iter 5: loss 3, time 1step 6: train loss 4, val loss 5.0",
            [(0, "train", 5, 3.0, None, None, False), (1, "eval", 6, 5.0, None, None, False)],
        ),
        (
            "iter 5: loss nan, time 14ms, mfu 1%, lr 0.0iter 6: loss 3, time 2ms, mfu 2%",
            [(0, "train", 5, "nan", 0.014, 1.0, False), (1, "train", 6, 3.0, 0.002, 2.0, False)],
        ),
        (
            "step 5: train loss 4, val loss 5.iter 6: loss 4",
            [(0, "eval", 5, 5.0, None, None, True), (1, "train", 6, 4.0, None, None, False)],
        ),
        ("step 6: train loss abc, val loss 5.0", [(0, "eval", 6, 5.0, None, None, False)]),
        ("step 6: train loss 5.260146 (took 1718.165953 ms)", []),
        ("step 250: saving checkpoint to out (val loss 3.2100)", []),
        ("subiter 5: loss 3.1", []),
        ("loss: CrossEntropyLoss()", []),
        ("iter -1: loss 3", []),
        ("", []),
    ],
)
def test_what_a_line_says(text: str, expected: list[tuple[Any, ...]]) -> None:
    found = [tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in row) for row in read(text)]
    assert found == expected


@pytest.mark.parametrize(
    "value", ["nan(ind)", "1.#QNAN", "array(nan)", "tensor([nan])", "[nan]", "'nan'", '"nan"', "NaN."]
)
def test_a_nan_is_seen_however_it_is_printed(value: str) -> None:
    for text in (f"iter 5: loss {value}, time 14.01ms, mfu 0.01%", f"step 5: train loss 3, val loss {value}"):
        ((_, _, step, loss, *_, glued),) = read(text)
        assert (step, jsonable(loss), glued) == (5, "nan", False)
    (record,) = NanoGPT()(Line(f"iter 5: loss 3, grad_norm {value}, time 1ms", 0), 0.0, 0) or ()
    assert (record.loss, jsonable(record.grad_norm), record.dt_s) == (3.0, "nan", 0.001)


@pytest.mark.parametrize("value", ["[2.31]", "'2.31'", '"2.31"', "array(2.31, dtype=float32)", "2.31."])
def test_a_wrapped_number_is_read(value: str) -> None:
    assert read(f"iter 5: loss {value}, time 14.01ms") == [(0, "train", 5, 2.31, 0.01401, None, False)]
    ((*_, loss, _, _, glued),) = read(f"iter 5: loss {value}", cut=True)
    assert (loss, glued) == (2.31, value[-1] == ".")


@pytest.mark.parametrize("value", ["nano", "[info]", "(nan values)", "[2.31, 2.5]"])
def test_what_only_looks_like_a_number_is_none(value: str) -> None:
    assert read(f"iter 5: loss {value}, time 14.01ms") == [(0, "train", 5, None, 0.01401, None, False)]


def test_a_number_at_the_cut_of_a_long_line_is_not_trusted() -> None:
    assert read("iter 5: loss 3.1", cut=True)[0][-1] is True
    assert read("iter 5: loss 3.1484, time 14.01ms, mfu 0.01%", cut=True)[0][-1] is False


def test_unknown_fields_keep_their_unit_and_rank_is_no_float() -> None:
    (record,) = NanoGPT()(Line("iter 5: loss 3, mem 12G, rank 3, mfu 3ms", 0), 0.0, 0) or ()
    assert (record.extra, record.rank, record.mfu) == ({"mem": "12G", "rank": 3.0}, None, None)


@settings(deadline=None)
@given(st.text(alphabet="iter step: lossvalmfu0123456789.,%-", max_size=100), st.booleans())
def test_no_line_raises(text: str, cut: bool) -> None:
    for line in (text, "iter 5: loss" + text, "iter 5: loss 3" + text, "step 5: train loss 3" + text):
        NanoGPT()(Line(line, 0, cut), 0.0, 0)


@pytest.mark.parametrize("name", ["nanogpt", "nanogpt-nan"])
def test_recorded_runs(name: str) -> None:
    log = CASES / f"{name}.log"
    if not log.exists():
        pytest.skip(f"no recorded logs beside the repository: {CASES}")
    tail, reader = Tail(), NanoGPT()
    lines = tail.feed(log.read_bytes()) + tail.flush()
    records = [r for line in lines for r in reader(line, 0.0, 0) or () if r.kind == "train"]
    rows = [{"step": r.step, "loss": jsonable(r.loss), "dt_s": r.dt_s, "mfu": r.mfu} for r in records]
    expected = [json.loads(row) for row in (CASES / f"{name}.expected.jsonl").read_text().splitlines()]
    assert rows == [{"mfu": None, **row} for row in expected]


def test_the_reader_needs_no_memory() -> None:
    reader: Reader = NanoGPT()
    assert reader.snapshot() is None
    reader.restore(None)
