"""Units behind numbers and in names, rates with their unit, and words of units in front of a name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from overnight.events import Record
from overnight.readers.jsonlines import JsonLines
from overnight.readers.keyvalue import KeyValue
from overnight.readers.nanogpt import NanoGPT
from overnight.tail import Line

FIELDS = ("dt_s", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "tokens", "tokens_total")


def records(*texts: str) -> list[Record]:
    reader = KeyValue()
    return [record for text in texts for record in reader(Line(text, 0), 0.0, 0) or ()]


def known(fields: str) -> dict[str, Any]:
    """Return what is known of a line with step, loss and these fields; the loss must be read whatever they are."""
    record = records(f"step 7, loss: 2.5, {fields}")[0]
    assert (record.step, record.loss) == (7, 2.5)
    return {name: value for name in FIELDS if (value := getattr(record, name)) is not None}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        *(
            (f"time: {one}", 0.31)
            for one in ("310 ms/step", "310ms/it", "310 ms per step", "310 milliseconds", "310ms")
        ),
        *((f"time {one}", 0.31) for one in ("310 ms/step", "310 milliseconds", "0.31 s/it", "0.31 seconds")),
        *(
            (f"dt={one}", 0.31)
            for one in ("310 millis", "310000 us", "310000 microseconds", "310000000 ns", "0.31s/step")
        ),
        *((one, 0.31) for one in ("310 ms/step", "310ms per step", "0.31 s per step", "310000us/step")),
        *((f"{name}: 310", 0.31) for name in ("step time [ms]", "step_time[ms]", "step_time_ms", "time_per_step_ms")),
        *((f"{name}: 310", 0.00031) for name in ("step_time_us", "step time (us)", "step time [us]", "us/step")),
        *((f"{name}: 4 it/s", 0.25) for name in ("time", "speed", "rate", "step time")),
        *((one, 0.25) for one in ("speed: 4 steps/s", "4 steps per second", "throughput: 4.0 it/s")),
        *((f"time: {one}", 120.0) for one in ("2 min", "2 minutes", "120 s")),
        *((f"dt: {one}", 7200.0) for one in ("2h", "2 hours", "120 min")),
        *((f"{name}: 0.25", 0.25) for name in ("avg_step_time", "mean_step_time")),
        ("speed: 310 ms/step, lr: 3e-4", 0.31),
        ("time: 310 ms/step | 1200 tok/s", 0.31),
    ],
)
def test_a_time_is_in_the_unit_that_stands_behind_it(fields: str, seconds: float) -> None:
    assert math.isclose(known(fields)["dt_s"], seconds)


@pytest.mark.parametrize(
    "fields",
    [
        *(
            "time: 310 ms/epoch",
            "time: 2 min 3 s",
            "time: 2min 3s",
            "time: 1h 3m",
            "time: 1h3m",
            "dt: 2m",
            "dt: 3.1 s/epoch",
        ),
        *("time: 3 steps/min", "tokens/s (M): 3.2", "tok/s (k): 3", "samples/s (thousands): 3", "time: 12 MB/s"),
        *(
            "took 3.1 sec for 10 steps",
            "dt: 3.1s per 10 steps",
            "time: 3.1s over the last 50 iterations",
            "time: 3.1s/10steps",
        ),
        *("time: 310 ms/step 1200 it/x", "speed: 12 MB/s", "step time (weeks): 3", "tok/s: 3 ms"),
    ],
)
def test_a_number_in_a_unit_that_is_not_known_says_nothing(fields: str) -> None:
    assert known(fields) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        *(
            (f"throughput: {one}", {"tokens_per_s": 32100.0})
            for one in ("32.1k tokens/s", "32,100 tok/s", "32.1 k tok/s")
        ),
        ("speed: 32,100 tokens per second", {"tokens_per_s": 32100.0}),
        ("throughput: 12 samples/s", {"samples_per_s": 12.0}),
        ("tokens: 3.2 million", {"tokens": 3.2e6}),
        ("tokens_seen: 4.2 billion", {"tokens_total": 4.2e9}),
        ("tok/s: 1200 lr: 3e-4", {"tokens_per_s": 1200.0, "lr": 3e-4}),
        ("tok/s 1200 lr 3e-4", {"tokens_per_s": 1200.0, "lr": 3e-4}),
        ("mfu=41.3% 2.5 s/it", {"mfu": 41.3, "dt_s": 2.5}),
        ("grad_norm: 0.5(0.7), lr: 3e-4(x2)", {"grad_norm": 0.5, "lr": 3e-4}),
    ],
)
def test_rates_and_counts_with_their_unit(fields: str, expected: dict[str, Any]) -> None:
    assert known(fields) == pytest.approx(expected)


@pytest.mark.parametrize("unit", ["GB", "GiB", "MB/s", "C", "W", "tokens", "TFLOPS", "hours"])
def test_the_unit_of_one_number_is_no_part_of_the_next_name(unit: str) -> None:
    (record,) = records(f"step: 5 used: 12.3 {unit} loss: 2.1 lr: 3e-4")
    assert (record.loss, record.lr) == (2.1, 3e-4)
    (other,) = records(f"step: 5 loss: 2.1 used: 12.3 {unit} grad_norm: 0.5")
    assert (other.loss, other.grad_norm) == (2.1, 0.5)


def test_a_word_that_is_no_unit_belongs_to_the_name() -> None:
    (record,) = records("step: 5 loss: 2.1 acc: 0.5 aux loss: 9.5 acc: 3 val loss: 8.5")
    assert record.loss == 2.1


def test_a_nan_is_no_word_in_front_of_the_next_name() -> None:
    (record,) = records("step 5 loss nan lr 1e-4 norm inf")
    assert math.isnan(record.loss or 0.0)
    assert (record.lr, record.grad_norm) == (1e-4, math.inf)


@pytest.mark.parametrize("form", ["speed: {} ms/step", "speed: {} it/s", "{} ms per step", "step time [ms]: {}"])
def test_the_learned_shape_reads_the_same(form: str) -> None:
    texts = [f"step {n}, loss: 2.5, {form.format(100 + n)}, lr: 0.1" for n in range(1, 40)]
    assert records(*texts) == [record for text in texts for record in records(text)]


@pytest.mark.parametrize("form", ["throughput: {} tok/s", "seen: {}", "total: {}, lr: 0.1"])
def test_what_is_nearly_a_number_is_not_learned_as_text(form: str) -> None:
    texts = [
        f"step 1, loss: 2.5, {form.format(one)}" for one in ("123,45", "12,34", "12,345", "123,456", "7,345.5", "7")
    ]
    assert records(*texts) == [record for text in texts for record in records(text)]


def test_a_bar_that_changes_its_unit_is_read_in_each() -> None:
    texts = ("step 1 loss: 2.5 4.0 it/s", "step 2 loss: 2.5 1.5 s/it", "step 3 loss: 2.5 350 ms/it")
    assert [record.dt_s for record in records(*texts)] == [0.25, 1.5, 0.35]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ('"tokens/s (M)": 3.2', {}),
        ('"step_time_us": 250000', {"dt_s": 0.25}),
        ('"dt": "250 milliseconds"', {"dt_s": 0.25}),
    ],
)
def test_units_in_json(pair: str, expected: dict[str, Any]) -> None:
    (record,) = JsonLines()(Line(f'{{"step": 5, "loss": 2.5, {pair}}}', 0), 0.0, 0) or ()
    assert {name: value for name in FIELDS if (value := getattr(record, name)) is not None} == expected


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        *((time, 0.31) for time in ("310 ms", "310ms", "310 milliseconds", "310ms (avg 300ms)", "0.31 s", "0.31")),
        *((time, 0.31) for time in ("310 ms/iter", "310ms/iter", "310 ms/it", "310.00ms/step", "0.31 s/it")),
        *((time, None) for time in ("310 ms/epoch", "2 min 3 s", "3.1s for 10 iterations", "310 ticks")),
    ],
)
def test_the_time_of_a_child_of_nanogpt(time: str, seconds: float | None) -> None:
    (record,) = NanoGPT()(Line(f"iter 5: loss 2.5, time {time}, lr 0.1", 0), 0.0, 0) or ()
    assert (record.step, record.loss, record.dt_s, record.lr) == (5, 2.5, seconds, 0.1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"step: 5 | loss: 2.5 | lr{sign}3e-4 {word} | 3", {"lr": 3e-4}) for sign in (" ", ": ") for word in "hs"),
        ("step: 5 | loss: 2.5 min | grad_norm: 3 hours", {"grad_norm": 3.0}),
        ("step: 5 | loss: 2.5 | lr: 3 million", {}),
        ("step: 5 | loss: 2.5 | lr: 3 %", {}),
    ],
)
def test_a_unit_of_time_behind_what_is_no_time_is_another_word(text: str, expected: dict[str, Any]) -> None:
    (record,) = KeyValue()(Line(text, 0), 0.0, 0) or ()
    assert {name: value for name in FIELDS if (value := getattr(record, name)) is not None} == expected
    assert (record.step, record.loss) == (5, 2.5)


@pytest.mark.parametrize(
    ("pair", "name", "value"),
    [
        *(('"step_time": "310 ms/step"', "dt_s", 0.31), ('"dt": "0.31 s/it"', "dt_s", 0.31)),
        *(('"dt": "310 ms/epoch"', "dt_s", None), ('"dt": "5 tok/s"', "dt_s", None)),
        *(('"tokens_per_sec": "1.2M tok/s"', "tokens_per_s", 1.2e6), ('"lr": "1 tok/s"', "lr", None)),
    ],
)
def test_a_text_of_a_mapping_may_say_what_its_number_is_of(pair: str, name: str, value: float | None) -> None:
    (record,) = JsonLines()(Line(f'{{"step": 5, "loss": 2.5, {pair}}}', 0), 0.0, 0) or ()
    assert getattr(record, name) == value


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ("tokens_seen 1000", "tokens_total", 1000.0), ("consumed_tokens 1,024,000", "tokens_total", 1024000.0),
        ("tokens 16384", "tokens", 16384.0), ("num_tokens 1.2M", "tokens_total", 1.2e6),
    ],
)  # fmt: skip
def test_tokens_need_no_colon(said: str, field: str, value: float) -> None:
    for text in (f"step 5 loss 2.9 dt 0.5s {said}", f"step 5 | loss 2.9 | {said} | lr 1e-4"):
        assert getattr(records(text)[0], field) == value
