"""The general reader: what a line with a step says, and all that may stand round it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record
from overnight.readers import Reader
from overnight.readers.keyvalue import KeyValue
from overnight.tail import Line

NAN = "nan"


def read(text: str, *, cut: bool = False) -> list[Record]:
    return list(KeyValue()(Line(text, 40, cut), 7.5, 3) or ())


def told(record: Record) -> dict[str, Any]:
    """What differs from an empty training record, NaN as text so that it can be compared."""
    empty = Record(reader="keyvalue", source=3, offset=40, at=7.5)
    names = record.__struct_fields__
    found = {name: getattr(record, name) for name in names if getattr(record, name) != getattr(empty, name)}
    return {name: NAN if value != value else value for name, value in found.items()}  # noqa: PLR0124


def one(text: str) -> dict[str, Any]:
    (record,) = read(text)
    return told(record)


PLAIN = {"step": 12, "loss": 3.21, "dt_s": 0.25}


@pytest.mark.parametrize(
    "prefix",
    [
        *(
            "",
            "2026-01-01 10:00:00 ",
            "2026-01-01 10:00:00,123 ",
            "2026-01-01T10:00:00.123Z ",
            "[2026-01-01 10:00:00] ",
        ),
        *("01/02 10:00:00 ", "10:00:00 | ", "Jan  1 10:00:00 ", "INFO ", "[INFO] ", "[    INFO] - ", "root - INFO - "),
        *("[titan] 2026-01-01 10:00:00,555 - root - INFO - ", "trainer: ", "INFO:root:", "WARNING:__main__:"),
        *("[2026-01-01 10:00:00,123][root][INFO] - ", "2026-01-01 10:00:00.123 | INFO     | __main__:main:12 - "),
        *("I0101 10:00:00.123456 4242 train.py:55] ", "(Trainer pid=12) ", "[train] "),
        *("INFO some.module ", "worker-0 says "),
    ],
)
def test_anything_may_stand_before_the_line(prefix: str) -> None:
    assert one(prefix + "step: 12, loss: 3.210, dt: 0.25") == PLAIN


@pytest.mark.parametrize(
    "prefix",
    [
        "Epoch 3 | ",
        "epoch 3: ",
        "Epoch: 3 ",
        "ep 3 train, ",
        "Training epoch 3, ",
        "Epoch [3/10], ",
        "INFO Epoch 3/10 - ",
    ],
)
def test_the_epoch_before_the_line_is_kept(prefix: str) -> None:
    assert one(prefix + "step: 12, loss: 3.210, dt: 0.25") == {**PLAIN, "epoch": 3.0}


@pytest.mark.parametrize(
    "prefix",
    [
        *("[rank2]: ", "[rank2]:", "[default2]:", "[Rank 2] ", "rank 2: ", "Rank 2 | ", "2: ", "[1,2]<stdout>:"),
        *("[rank2]: 2026-01-01 10:00:00 INFO ", "2026-01-01 10:00:00 INFO [rank2]: ", "[rank0]: [Rank 2] "),
        "[titan] [default2]:INFO:root:",
    ],
)
def test_the_rank_before_the_line_is_kept(prefix: str) -> None:
    assert one(prefix + "step: 12, loss: 3.210, dt: 0.25") == {**PLAIN, "rank": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step: 5, loss: nan, dt: 0.25", {"step": 5, "loss": NAN, "dt_s": 0.25}),
        ("[rank0]: 2026-01-01 10:00:00 INFO step: 5, loss: NaN", {"rank": 0, "step": 5, "loss": NAN}),
        ("step: 5, loss: -Infinity", {"step": 5, "loss": -math.inf}),
        ("step: 5, loss: INF", {"step": 5, "loss": math.inf}),
        ("step: 5, dt: 0.25, loss: 3.2", {"step": 5, "loss": 3.2, "dt_s": 0.25}),
        ("step:5,loss:3.2,dt:0.25", {"step": 5, "loss": 3.2, "dt_s": 0.25}),
        ("step :  5 ,  loss :\t3.2  dt = 0.25", {"step": 5, "loss": 3.2, "dt_s": 0.25}),
        ("STEP: 5; Loss: 3.2", {"step": 5, "loss": 3.2}),
        ("step: 1,234, loss: 1,234.5", {"step": 1234, "loss": 1234.5}),
        ("step: 00012, loss: 2", {"step": 12, "loss": 2.0}),
        ("step: 12.0, loss: 2", {"step": 12, "loss": 2.0}),
        ("step: 5/100, loss: 3.", {"step": 5, "loss": 3.0, "extra": {"total_steps": 100.0}}),
        ("step: 5 (50.00%) | loss: .5", {"step": 5, "loss": 0.5}),
        ("step 5 loss 2.1", {"step": 5, "loss": 2.1}),
        ("step 5 | loss: 2.1 | lr 8.4e-07 | norm: 5.2", {"step": 5, "loss": 2.1, "lr": 8.4e-07, "grad_norm": 5.2}),
        ("step: 5 | loss 2.1 | dt 338.1ms", {"step": 5, "loss": 2.1, "dt_s": 0.3381}),
        ("step: 5, loss: 3, dt: 250 ms", {"step": 5, "loss": 3.0, "dt_s": 0.25}),
        ("step: 5, loss: 3, dt: 250us", {"step": 5, "loss": 3.0, "dt_s": 0.00025}),
        ("step: 5, loss: 3, dt_ms: 2.5e2", {"step": 5, "loss": 3.0, "dt_s": 0.25}),
        ("step: 5, loss: 3, dt: 0", {"step": 5, "loss": 3.0, "dt_s": 0.0}),
        ("step: 5, loss: 3, dt: 1e", {"step": 5, "loss": 3.0}),
        ("step: 5, loss: 3, dt: 3%", {"step": 5, "loss": 3.0}),
        ("step: 5, loss: abc, dt: 0.25", {"step": 5, "dt_s": 0.25}),
        ("step: 5, loss: , dt: 0.25", {"step": 5, "dt_s": 0.25}),
        ("step: 5, loss: dt: 0.25", {"step": 5, "dt_s": 0.25}),
        ("step: 5, loss:", {"step": 5}),
        ("step: 5, loss: banana, dt: info", {"step": 5}),
        ("step: 5, loss: 1,2345", {"step": 5}),
        ("step: 5, loss: 3 (+nanz)| mfu: N/A", {"step": 5, "loss": 3.0}),
        ("step: 5, loss: 3, mfu: 34.15%", {"step": 5, "loss": 3.0, "mfu": 34.15}),
        ("step: 5, loss: 3, mfu: -100.00%", {"step": 5, "loss": 3.0}),
        (
            "step: 5, loss: 3, tokens: 1.5M, tok/s: 131,072",
            {"step": 5, "loss": 3.0, "tokens": 1.5e6, "tokens_per_s": 131072.0},
        ),
        ("step: 5, loss: 3 | 131,072 tok/s", {"step": 5, "loss": 3.0, "tokens_per_s": 131072.0}),
        ("step: 5, loss: 3 | 12.5 samples/sec", {"step": 5, "loss": 3.0, "samples_per_s": 12.5}),
        ("step: 5, loss: 3, rank: 4", {"step": 5, "loss": 3.0, "rank": 4}),
        ("step: 5, loss: 3, rank: nan", {"step": 5, "loss": 3.0}),
        ("step: 5, loss: 3, epoch: 0.5, learning rate: 1e-4", {"step": 5, "loss": 3.0, "epoch": 0.5, "lr": 1e-4}),
        ("step: 5, loss: 3, loss: 9, dt: 1", {"step": 5, "loss": 3.0, "dt_s": 1.0}),
        ("step: 5, train_loss: 3", {"step": 5, "loss": 3.0}),
        (
            "step: 5, loss: 3, val_loss: 4, memory: 47.65GiB(50%), eta: 0:10:00, tps: 6,096, note: ,",
            {
                "step": 5,
                "loss": 3.0,
                "tokens_per_s": 6096.0,
                "per_device": True,
                "extra": {"val_loss": 4.0, "memory": "47.65GiB(50%)", "eta": "0:10:00", "note": ""},
            },
        ),
        ("step: 100, val_loss: 3.2", {"kind": "eval", "step": 100, "loss": 3.2}),
        ("step: 100, validation loss: nan", {"kind": "eval", "step": 100, "loss": NAN}),
        ("eval step: 100, loss: 3.2", {"kind": "eval", "step": 100, "loss": 3.2}),
        ("test step: 100, loss: 3.2", {"kind": "eval", "step": 100, "loss": 3.2}),
        ("[eval] step: 100, train_loss: 3.2", {"kind": "eval", "step": 100, "loss": 3.2}),
        (
            "step: 100, train_loss: 3.1, val_loss: 3.2",
            {"kind": "eval", "step": 100, "loss": 3.2, "extra": {"train_loss": 3.1}},
        ),
        ("INFO:test:step: 5, loss: nan", {"step": 5, "loss": NAN}),
    ],
)
def test_what_a_line_says(text: str, expected: dict[str, Any]) -> None:
    assert one(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "learning_rate = 6e-4 # max learning rate",
            "max_iters = 5000",
            "loss: CrossEntropyLoss(ignore_index=-100)",
        ),
        *("training for 1000 steps with loss scale 1.0", "step 250: saving checkpoint to out (val loss 3.2100)"),
        *("nan values in input: 0", "INFO finance module loaded, info: banana=3", "validation loss: 3.2812"),
        "Warning: lr_scheduler.step() called before optimizer.step(); loss may be inf",
        *("step: -1, loss: 3", "step: 1.5, loss: 3", "step: nan, loss: 3", "step: 1e3, loss: 3", "step: , loss: 3"),
        *("substep: 5, loss: 3", "tokens_per_step: 5, loss: 3", "step: 5, dt: 0.25", "step: 5, lossy: 3", "Step 5"),
        *("Saved checkpoint at step: 250, loss: 3.2", "Resuming from step: 100, loss: nan", "best step: 5, loss: 3"),
        "step: " + "9" * 30 + ", loss: 3",
        *("previous run ended at step: 100, loss: nan", "checkpoint: step: 5, loss: inf", "# if step: 10, loss: nan"),
        *("args: Namespace(step: 1, loss: nan)", "Note: step: 9, loss: nan would be bad"),
        *("Gradient overflow, step: 43, loss: inf, skipping", "step: 42, loss: nan (skipped)"),
    ],
)
def test_what_is_no_record(text: str) -> None:
    assert KeyValue()(Line(text, 0), 0.0, 0) is None


@pytest.mark.parametrize(
    "value", ["tensor(nan)", "tensor(nan, device='cuda:0')", "np.float32(nan)", "tensor(nan, grad_fn=<MeanBackward0>)"]
)
def test_a_number_that_is_still_a_tensor_is_read(value: str) -> None:
    for text in (f"step: 8, loss: {value}, dt: 0.25", f"step: 9, loss: {value}"):
        (record,) = read(text)
        assert math.isnan(record.loss or 0.0)
    (plain,) = read(f"step: 8, loss: {value.replace('nan', '2.5')}, dt: 0.25")
    assert (plain.loss, plain.dt_s) == (2.5, 0.25)


ODD = [
    *(
        "nan(ind)",
        "-nan(ind)",
        "nan(0x8000)",
        "1.#QNAN",
        "-1.#IND",
        "1.#IND00",
        "NaN.",
        "nan!",
        "[nan]",
        "(nan)",
        "'nan'",
    ),
    *('"nan"', "`nan`", "*nan*", "**nan**", "array(nan)", "array(nan, dtype=float32)", "tensor([nan])", "[[nan]]"),
    *(
        "tensor([nan], device='cuda:0')",
        "tensor([[nan]], requires_grad=True)",
        "numpy.float32(nan)",
        "torch.tensor(nan)",
    ),
]
WRAPPED = ["[{}]", "'{}'", '"{}"', "({})", "*{}*", "array({}, dtype=float32)", "tensor([{}], device='cuda:0')", "{}."]
AROUND = ["step: 8, loss: {}, dt: 0.25", "step: 8 | loss: {} | dt: 250ms", "step 8 loss {}, dt: 0.25"]


@pytest.mark.parametrize("value", ODD)
def test_a_nan_is_seen_however_it_is_printed(value: str) -> None:
    for text in AROUND:
        (record,) = read(text.format(value))
        assert (math.isnan(record.loss or 0.0), record.dt_s, record.glued) == (True, 0.25, False)
    for text in ("step: 8, loss: {}", "step 8 loss {}", "(step: 8, loss: {})"):
        assert math.isnan(read(text.format(value))[0].loss or 0.0)
    for text in ("step: 8, loss: 2, grad_norm: {}, dt: 1", "step: 8, loss: 2 | norm {} | dt: 1"):
        (record,) = read(text.format(value))
        assert (record.loss, math.isnan(record.grad_norm or 0.0), record.dt_s) == (2.0, True, 1.0)


@pytest.mark.parametrize(("value", "meant"), [("1.#INF", math.inf), ("-1.#INF00", -math.inf), ("[-inf]", -math.inf)])
def test_an_infinite_loss_is_seen_however_it_is_printed(value: str, meant: float) -> None:
    assert [read(text.format(value))[0].loss for text in AROUND] == [meant] * 3


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_what_stands_round_a_nan_may_stand_round_any_number(wrapped: str) -> None:
    reader = KeyValue()
    for step, number in enumerate(("2.31", "1,234.5", "-3e-05", "2.5", "nan", "2.25")):
        for text in AROUND:
            (record,) = reader(Line(text.format(wrapped.format(number)).replace("8", str(step)), 0), 0.0, 0) or ()
            meant = float(number.replace(",", ""))
            assert (repr(record.loss), record.dt_s) == (repr(meant), 0.25)


def test_the_shape_of_a_wrapped_number_is_learned() -> None:
    reader = KeyValue()
    reader(Line("step: 1, loss: [2.31], dt: '0.25'", 0), 0.0, 0)
    (record,) = reader(Line("step: 2, loss: [2.32], dt: '0.26'", 0), 0.0, 0) or ()
    assert (record.loss, record.dt_s, reader._may_learn, len(reader._shapes)) == (2.32, 0.26, 63, 1)


@pytest.mark.parametrize(
    "value",
    [
        *("banana", "nano", "info", "[info]", "'banana'", "array(banana)", "nan_count", "nan.txt", "inf.py", "nand"),
        *("(nan values: 3)", "[2.31, 2.5]", "(2.31, nan)", "[nan", "'nan", "\"nan'", "[nan)", "1.#2", "1.#QNANS"),
        *("nan(values)", "nan(3 of 5)", "bananas(3)", "len(3)", "((((3))))", "[]", "''", "tensor()", "$nan"),
    ],
)
def test_what_only_looks_like_a_number_is_none(value: str) -> None:
    for text in ("step: 8, loss: {}, dt: 0.25", "step: 8, loss: {}"):
        assert [record.loss for record in read(text.format(value))] == [None]
    assert [record.loss for record in read(f"step 8 loss {value}")] in ([], [None])


def test_a_wrapped_number_is_whole_at_a_seam_and_an_open_one_is_not() -> None:
    for value, glued in (
        ("[3.1]", False),
        ("'3.1'", False),
        ("tensor(3.1)", False),
        ("tensor(3.1", True),
        ("3.1.", True),
    ):
        first, second = read(f"step: 7, loss: {value}step: 8, loss: 3.0")
        assert (first.loss, first.glued, second.loss, second.glued) == (3.1, glued, 3.0, False)
        assert [(record.loss, record.glued) for record in read(f"step: 7, loss: {value}", cut=True)] == [(3.1, glued)]
    for value, glued in (("nan(ind)", False), ("1.#QNAN", True), ('"nan"', False)):
        first, second = read(f"step: 7, loss: {value}step: 8, loss: 3.0")
        assert (math.isnan(first.loss or 0.0), first.glued, second.loss) == (True, glued, 3.0)


def test_other_texts_in_brackets_and_quotes_stay_texts() -> None:
    (record,) = read("step: 8, loss: 2.5, note: 'x', shape: [3], (bad values: 3) | who: \"5\"")
    assert record.extra == {"note": "'x'", "shape": "[3]", "bad values": 3.0, "who": '"5"'}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step: 5, loss: 3.2, dt: 0.25step: 6, loss: 3.1, dt: 0.25", [(5, 3.2, None, False), (6, 3.1, 0.25, False)]),
        (
            "step: 5, loss: 3.2, dt: 0.25step: 6, loss: 3.1, dt: 0.25step: 7, loss: 3, dt: 1",
            [(5, 3.2, None, False), (6, 3.1, None, False), (7, 3.0, 1.0, False)],
        ),
        ("step: 5, loss: 3.2, dt: 0.25 step: 6, loss: 3.1", [(5, 3.2, 0.25, False), (6, 3.1, None, False)]),
        ("step: 7, loss: 3.step: 8, loss: 3.0, dt: 0.2", [(7, 3.0, None, True), (8, 3.0, 0.2, False)]),
        ("step: 7, loss: 3,step: 8, loss: 3.0", [(7, 3.0, None, True), (8, 3.0, None, False)]),
        ("step: 7, loss: -step: 8, loss: 3.0", [(7, None, None, True), (8, 3.0, None, False)]),
        ("step: 7, loss: step: 8, loss: 3.0", [(7, None, None, True), (8, 3.0, None, False)]),
        ("step: 7, loss: 3.0, dstep: 8, loss: 3.0", [(7, 3.0, None, False), (8, 3.0, None, False)]),
        ("step: 7, losstep: 8, loss: 3.0, dt: 0.2", [(8, 3.0, 0.2, False)]),
        ("step: 7step: 8, loss: 3.0, dt: 0.2", [(8, 3.0, 0.2, False)]),
        ("step: 5, loss: 3, dt: 250msstep: 6, loss: 3", [(5, 3.0, 0.25, False), (6, 3.0, None, False)]),
        ("step: 5, loss: 3 | 12 tok/s | step: 6, loss: 3", [(5, 3.0, None, False), (6, 3.0, None, False)]),
        ("step: 5, loss: 3.2, best step: 3, loss: 3.0", [(5, 3.2, None, False)]),
        ("step: 5, loss: 3.2, next save at step: 100", [(5, 3.2, None, False)]),
        ("0.25step: 6, loss: 3.1", [(6, 3.1, None, False)]),
    ],
)
def test_glued_records_come_apart(text: str, expected: list[tuple[Any, ...]]) -> None:
    records = read(text)
    assert [(r.step, r.loss, r.dt_s, r.glued) for r in records] == expected
    assert [r.part for r in records] == list(range(len(expected)))


def test_a_glued_nan_is_one_and_touches() -> None:
    first, second = read("step: 7, loss: nanstep: 8, loss: 3.0")
    assert math.isnan(first.loss or 0.0)
    assert (first.glued, second.loss, second.glued) == (True, 3.0, False)


def test_a_nan_clear_of_the_seam_counts_and_the_number_at_the_seam_is_dropped() -> None:
    first, second = read("step: 5, loss: nan, dt: 0.25step: 6, loss: 3.1, dt: 0.25")
    assert math.isnan(first.loss or 0.0)
    assert (first.dt_s, first.glued, second.dt_s) == (None, False, 0.25)
    (noted,) = read("step: 5, loss: 3.1, kl: 7", cut=True)
    assert (noted.extra, noted.glued) == (None, False)


def test_ranks_of_glued_records() -> None:
    records = read("[rank0]: step: 5, loss: 3, dt: 0.25[rank1]: step: 6, loss: 3step: 7, loss: 3")
    assert [(r.rank, r.step, r.dt_s, r.glued) for r in records] == [
        (0, 5, None, False),
        (1, 6, None, True),
        (1, 7, None, False),
    ]
    dated = read("step: 5, loss: 3.2, dt: 0.252026-01-01 10:00:00 INFO step: 6, loss: 3")
    assert [(r.step, r.dt_s, r.glued) for r in dated] == [(5, None, False), (6, None, False)]
    strange = read("step: 5, loss: 3, at: 2026-01-01 now step: 6, loss: 3")
    assert [(r.step, r.glued) for r in strange] == [(5, False), (6, False)]


def test_a_number_at_the_cut_of_a_long_line_is_not_trusted() -> None:
    assert [(r.dt_s, r.glued) for r in read("step: 5, loss: 3.2, dt: 0.25", cut=True)] == [(None, False)]
    assert [r.glued for r in read("step: 5, dt: 0.25, loss: 3.2", cut=True)] == [True]
    assert [r.glued for r in read("step: 5, loss: 3.2, note: x yyyyy", cut=True)] == [False]
    reader = KeyValue()
    for text in ("step: 5, loss: 3.2, lr: 1", "step: 6, loss: 3.2, lr: 1"):
        reader(Line(text, 0), 0.0, 0)
    (record,) = reader(Line("step: 7, loss: 3.2, lr: 1", 0, cut=True), 0.0, 0) or ()
    assert (record.lr, record.glued) == (None, False)


def test_a_line_with_too_many_fields_is_read_without_the_rest() -> None:
    (record,) = read("step: 1, loss: 2" + "".join(f", f{n}: {n}" for n in range(400)) + ", dt: 0.5")
    assert (record.loss, record.dt_s, len(record.extra or {})) == (2.0, 0.5, 256)


SHAPES = st.sampled_from(
    [
        "step: {n}, loss: {x}, dt: {y}, lr: {z}",
        "[rank0]: 2026-01-{d} 10:00:{d},123 INFO step: {n}, loss: {x}",
        "[rank{r}]: step: {n}, loss: {x}",
        "epoch {r} | step: {n}/{n} | loss: {x} | dt: {y}ms | mfu: {z}%",
        "step:  {n}  loss: {x}  grad_norm:  {y}  memory: {r}.65GiB({d}.16%)  tps: {c}  eta: {r}:{d}:{d}  mfu: N/A",
        "step: {n} | loss {x} | lr {y} | {z} tok/s",
        "step: {n}, train_loss: {x}, aux_loss: {y}",
        "step: {n}, loss: {x}, val_loss: {y}",
        "step: {n}, loss: {x}, loss: {y}, rank: {r}",
        "eval step: {n}, loss: {x}",
        "step: {n}, loss: {x}, tokens: {z}K, dt_ms: {y}",
        "step {n} loss: {x}, dt: {y}",
        "step: {c}, loss: {x}, note: {x}abc, {y}",
        "step: {n}, loss: [{x}], grad_norm: '{y}', lr: ({z})",
        "Epoch {x}/9 | iter {r} step {n} | loss train: {y}, val: {z} | iter time: {d}.46 ms (step)",
        "step {n}/{r}00 ({x}%) | loss {y} (-{z}z)| norm {z} | lr 1e-4 | {d}.5 ms | {d}.5% bf16 MFU | {c} tok/s",
        "loss: {x} | lr: {y} | iteration {n}/{z}",
        "[default{r}]:ep {x} train, step {n}, loss {y}, grad_norm:p2 {z}, 0.8{r} sec/step, elapsed 0:16:{d}",
        "step:{n}/{x} train_time:{r}ms step_avg:{y}ms",
        "step: {n}, loss: {x}, time: {y}, dt: {z}, tps: {x}, tokens/s: {y}, it/s: {z}",
        "step: {n} loss {x}, grad_norm: tensor({y}, device='cuda:{r}'), note: [{z}].",
    ]
)
NUMBERS = st.one_of(
    st.floats().map(str),
    st.floats(-100, 100).map("{:.4f}".format),
    st.sampled_from(
        [
            "nan",
            "NaN",
            "inf",
            "nan(ind)",
            "1.#INF",
            "[3.5]",
            "*nan*",
            "NaN.",
            "-100.00",
            "1.2e-05",
            "3.",
            ".5",
            "1e",
            "",
            "1,234.5",
            "-0.0",
            "1e400",
        ]
    ),
)


@settings(deadline=None)
@given(
    lines=st.lists(
        st.tuples(
            SHAPES,
            st.integers(0, 10**20),
            st.tuples(NUMBERS, NUMBERS, NUMBERS),
            st.integers(0, 9),
            st.integers(10, 59),
            st.integers(0, 10**7),
        ),
        min_size=2,
        max_size=20,
    )
)
def test_a_learned_shape_never_changes_what_is_read(lines: list[tuple[Any, ...]]) -> None:
    experienced = KeyValue()
    for shape, n, (x, y, z), r, d, c in lines * 2:
        text = shape.format(n=n, x=x, y=y, z=z, r=r, d=d, c=f"{c:,}")
        fresh = KeyValue()(Line(text, 0), 0.0, 0)
        assert repr(experienced(Line(text, 0), 0.0, 0)) == repr(fresh)


def test_shapes_are_learned_and_the_oldest_goes() -> None:
    reader = KeyValue()
    for turn in range(30):
        for step in (1, 2):
            (record,) = reader(Line(f"step: {step}, loss: 2, key{turn}: 5", 0), 0.0, 0) or ()
            assert record.extra == {f"key{turn}": 5.0}
    assert len(reader._shapes) == 8
    many = "step: 1, loss: 2" + "".join(f", f{n}: {n}" for n in range(100))
    assert reader(Line(many, 0), 0.0, 0)
    for turn in range(100):
        reader(Line(f"step: 1, loss: 2, again{turn}: 5", 0), 0.0, 0)
    assert reader._may_learn == 0


@settings(deadline=None)
@given(st.text(alphabet="step: lossdtnaif0123456789.,+-e[]()|=/%ranktvl\t \x1bé", max_size=120), st.booleans())
def test_no_line_raises(text: str, cut: bool) -> None:
    reader = KeyValue()
    for line in (text, "step: 5, loss: 3" + text, "step: 5, loss: " + text, text + "step: 5, loss: 3.2"):
        for record in reader(Line(line, 0, cut), 0.0, 0) or ():
            assert record.step is None or record.step >= 0


@pytest.mark.parametrize(
    "text", ["step: 1", "step: 1, loss: 2 ", "step: 1, loss: 1,234", "[rank0]: ", "a: ", "- x ", "1 tok/s "]
)
def test_the_longest_line_of_anything_is_read_at_once(text: str) -> None:
    line = Line((text * 65_536)[:65_536], 0, cut=True)
    for _ in range(3):
        KeyValue()(line, 0.0, 0)


def test_the_reader_needs_no_memory() -> None:
    reader: Reader = KeyValue()
    assert reader.snapshot() is None
    reader.restore(None)
    assert reader.always == {"step", "loss"}
