"""Tokens that a program calls useful, beside all that it has processed (fault G2-04)."""

from __future__ import annotations

import pytest

from overnight.pacing.useful import USEFUL, Useful
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

AT = 1_700_000_000.0


def status(log: str, **facts: object) -> tuple[float | None, float | None, float | None]:
    """Return (tokens/s, useful tokens/s, MFU) of a log."""
    spec = RunSpec(name="n", argv=("x",), executable="/bin/true", cwd="/", log="/l", **facts)  # type: ignore[arg-type]
    monitor = make_monitor(spec, pytest.fail)
    monitor.begin_attempt(1)
    monitor.feed(log.encode(), AT)
    measure = monitor.measure()
    return measure.tokens_per_second, measure.useful_tokens_per_second, measure.mfu


def test_both_numbers_are_told_and_mfu_is_of_all_that_was_processed() -> None:
    log = "".join(f"step: {n}, loss: 3.0, tokens: 4096, non_pad: 2900, dt: 0.5\n" for n in range(30))
    speed, useful, mfu = status(log, params=1_000_000_000, peak_tflops=100.0)
    assert (speed, useful) == (8192.0, 5800.0)
    assert mfu == pytest.approx(6e9 * 8192 / 100e12)


@pytest.mark.parametrize("word", [*USEFUL, "Non_Pad"])
def test_words_that_programs_have_for_it(word: str) -> None:
    log = "".join(f"step: {n}, loss: 3.0, {word}: 100, dt: 0.5\n" for n in range(30))
    assert status(log, tokens_per_step=400.0)[:2] == (800.0, 200.0)


def test_a_log_that_says_nothing_of_it_has_none() -> None:
    log = "".join(f"step: {n}, loss: 3.0, tokens: 4096, padding: 3, dt: 0.5\n" for n in range(30))
    assert status(log)[1] is None


def test_more_than_all_or_no_number_is_passed_over() -> None:
    one = Useful(10)
    for value in (-1.0, 101.0, float("nan"), float("inf"), "many"):
        one.take({"non_pad": value}, 100.0, None)
        one.take({"non_pad": 50.0}, value if isinstance(value, float) and value < 50 else None, None)
    assert one.share() is None
    one.take({"non_pad": 0.0}, 100.0, None)
    assert one.share() == 0.0


def test_the_share_is_of_sums_and_of_late() -> None:
    one = Useful(2)
    for value, whole in ((1.0, 100.0), (30.0, 100.0), (10.0, 900.0)):
        one.take({"non_pad": value}, whole, None)
    assert one.share() == 40 / 1000


def test_of_a_micro_step_the_share_is_of_its_own_tokens() -> None:
    lines = (f"step: {n // 4}, loss: 3.0, non_pad: 75, dt: 0.25\n" for n in range(80))
    assert status("".join(lines), tokens_per_step=400.0, accumulate=4)[:2] == (400.0, 300.0)


def test_many_at_once_are_as_one_by_one_and_so_when_saved() -> None:
    many, single = Useful(5), Useful(5)
    for number in range(4):
        values, tokens = [10.0 * n for n in range(7)], None if number == 2 else [100.0 - n for n in range(7)]
        many.take_many({"non_pad": values, "mode": ["warm"] * 7}, tokens, 80.0)
        for place, value in enumerate(values):
            whole = None if tokens is None else tokens[place]
            single.take({"non_pad": value, "mode": "warm"}, whole, 80.0)
        assert many.snapshot() == single.snapshot()
    again = Useful(5)
    again.restore(many.snapshot())
    assert again.share() == many.share() is not None
    again.part()
    assert again.share() is None
