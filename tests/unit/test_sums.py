"""Tests of ``overnight.pacing.sums``: many numbers at once against a loop, bit by bit, whatever ``sum`` does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.pacing import sums
from overnight.pacing.sums import all_between, plus, plus_products

numbers = st.lists(st.floats(0, 1e300) | st.sampled_from([0.1, 1e16, 1.0, 3.0]), max_size=60)


def looped(start: float, values: list[float]) -> float:
    for value in values:
        start += value
    return start


@pytest.mark.parametrize("in_order", [True, False])
@given(start=st.floats(0, 1e300), values=numbers)
def test_plus_is_the_loop(in_order: bool, start: float, values: list[float]) -> None:
    if in_order and not sums._IN_ORDER:
        pytest.skip("this Python's sum keeps what rounding loses")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_IN_ORDER", in_order)
        assert plus(start, values) == looped(start, values)


def test_what_sum_does_is_known() -> None:
    assert looped(0.0, [1e100, 1.0, -1e100]) == 0.0
    assert (sum([1e100, 1.0, -1e100], 0.0) == 0.0) is sums._IN_ORDER


@given(start=st.floats(0, 1e9), values=numbers, count=st.sampled_from([1, 10]))
def test_products_are_the_loop(start: float, values: list[float], count: int) -> None:
    counts = [count] * len(values)
    if counts:
        counts[0] = 7
    assert plus_products(start, values, counts) == looped(start, [a * b for a, b in zip(values, counts, strict=True)])
    ones = [1] * len(values)
    assert plus_products(start, values, ones) == looped(start, values)


@given(values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_between_is_each(values: list[float]) -> None:
    assert all_between(values, 1e-9, 1e9) == all(1e-9 < value < 1e9 for value in values)
    assert not all_between([*values, math.inf], 1e-9, 1e9)
    assert all_between([9e8, 9e8], 1e-9, 1e9), "their sum is above, and neither of them"
