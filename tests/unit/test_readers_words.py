"""The shared words of the readers: numbers, units, names and prefixes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.readers.fields import PARTIAL_WORDS, field_of, field_value
from overnight.readers.numbers import parse_number, parse_printed, parse_whole
from overnight.readers.prefix import strip_prefix


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3.0), ("-3.5", -3.5), ("+.5", 0.5), ("3.", 3.0), ("1,234.5", 1234.5), ("1,234,567", 1234567.0)),
        *(("1.2e-05", 1.2e-05), ("1E5", 1e5), ("inf", math.inf), ("-Infinity", -math.inf), ("+INF", math.inf)),
    ],
)
def test_numbers(text: str, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text", ["nan", "NaN", "NAN", "-nan", "nan(ind)", "-NaN(IND)", "1.#QNAN", "-1.#IND", "1.#IND00"]
)
def test_nan_in_any_case(text: str) -> None:
    assert math.isnan(parse_number(text) or 0.0)


@pytest.mark.parametrize(
    "text",
    [None, "", "-", ".", "1e", "1,23", "12,34,567", "nanz", "+nanz", "banana", "info", "1_000", "٣", "0x1", " 1"],
)
def test_what_is_no_number(text: str | None) -> None:
    assert parse_number(text) is None
    assert parse_whole(text) is None


def test_what_c_prints_for_no_number_needs_no_unit() -> None:
    assert parse_number("-1.#INF", -3) == -math.inf
    assert math.isnan(parse_number("nan(ind)", -3) or 0.0)


@pytest.mark.parametrize(
    "text", ["[2]", "'2'", '"2."', "(2).", "*2*", "tensor(2", "array([2])", "np.float16(2)", "2,", "2)"]
)
def test_numbers_in_wrappers(text: str) -> None:
    assert parse_printed(text) == 2.0
    assert parse_number(text) is None
    assert parse_whole(text) is None


@pytest.mark.parametrize("text", ["[2", "(2]", "[2,3]", "''", "[]", "x(2)", "((((2))))", "2x", "[2] ", "banana"])
def test_wrappers_round_anything_else(text: str) -> None:
    assert parse_printed(text) is None


@settings(deadline=None)
@given(st.floats())
def test_every_float_is_read_as_printed(value: float) -> None:
    assert repr(parse_number(repr(value))) == repr(value)


def test_whole_numbers() -> None:
    assert [parse_whole(text) for text in ("12", "1,234", "12.0", "12.", "007")] == [12, 1234, 12, 12, 7]
    assert [parse_whole(text) for text in ("-1", "1.5", "1e3", "9" * 19, "nan")] == [None] * 5


def test_units_are_applied_in_decimal() -> None:
    assert field_value("dt_s", "349.53", "ms") == 0.34953
    assert field_value("dt_s", "3.4953e2", "ms") == pytest.approx(0.34953)
    assert field_value("dt_s", "inf", "ms") == math.inf
    assert field_value("tokens_per_s", "1.2", "M") == 1.2e6
    assert field_value("tokens", "5", "ms") is None
    assert field_value("lr", "5", "%") is None
    assert field_value("mfu", "-100.00", "%") is None
    assert field_value("mfu", None, None) is None


def test_names() -> None:
    assert [field_of(key) for key in ("Grad Norm", "learning rate", "val_loss", "eval/loss", "aux_loss", "foo")] == [
        *("grad_norm", "lr", "val_loss", "val_loss", "", "")
    ]
    assert "tokens_per_" not in PARTIAL_WORDS
    assert "los" in PARTIAL_WORDS


@pytest.mark.parametrize(
    ("text", "rank", "rest"),
    [
        ("step: 5", None, "step: 5"),
        ("loss: nan", None, "loss: nan"),
        ("epoch: 1", None, "epoch: 1"),
        ("global_step: 1", None, "global_step: 1"),
        ("2026-01-01 10:00:00,123 - root - INFO - step: 5", None, "step: 5"),
        ("2026/01/01 10:00:00.5 +0000 hello there", None, "hello there"),
        ("[INFO] trainer: [rank12]: step: 5", 12, "step: 5"),
        ("(Worker(3) pid=12) step: 5", None, "(Worker(3) pid=12) step: 5"),
        ("(RayTrainWorker pid=12, ip=10.0.0.1) step: 5", None, "step: 5"),
        ("http://x/y", None, "http://x/y"),
        ("informal: 5", None, "informal: 5"),
        ("", None, ""),
        ("a: " * 30 + "step", None, "a: " * 14 + "step"),
    ],
)
def test_prefixes(text: str, rank: int | None, rest: str) -> None:
    found, begin = strip_prefix(text)
    assert (found, text[begin:]) == (rank, rest)


@settings(deadline=None)
@given(st.text(max_size=80))
def test_a_prefix_ends_within_the_text(text: str) -> None:
    _, begin = strip_prefix(text)
    assert 0 <= begin <= len(text)
