"""Token counters: rates from what a cumulative count gains, and telling a counter from the tokens of single steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Places
from overnight.events import Record
from overnight.meter import Figures, Meter

UNKNOWN = Figures()


def line(step: int | None = None, **said: Any) -> Record:
    """Return a train record as a reader would."""
    return Record(reader="test", step=step, **said)


def fed(records: list[Record], figures: Figures = UNKNOWN, window: int = 10) -> Meter:
    """Return a meter that has seen ``records``."""
    meter = Meter(figures, window)
    for record in records:
        meter.add(record)
    return meter


def test_a_cumulative_count_gives_the_rate() -> None:
    meter = fed([line(step, loss=3.0, dt_s=0.25, tokens_total=step * 32768.0) for step in range(1, 20)])
    assert meter.measure().tokens_per_second == meter.measure().tokens_per_second_avg == 131072.0


def test_after_a_resume_the_first_line_has_no_rate() -> None:
    records = [line(10_000 + n, loss=3.0, dt_s=0.25, tokens_total=1e9 + n * 32768) for n in range(20)]
    assert fed(records[:1]).measure().tokens_per_second is None
    for count in range(2, 20):
        assert fed(records[:count]).measure().tokens_per_second == pytest.approx(131072, rel=0.05)
        assert fed(records[:count]).measure().tokens_per_second_avg == pytest.approx(131072, rel=0.05)


def test_the_next_attempt_begins_without_a_rate_of_its_own() -> None:
    meter = fed([line(n, dt_s=1.0, tokens_total=n * 100.0) for n in range(1, 11)])
    meter.begin_attempt()
    meter.add(line(5, dt_s=1.0, tokens_total=1e9))
    assert meter.measure().tokens_per_second is None
    meter.add(line(6, dt_s=1.0, tokens_total=1e9 + 100))
    assert meter.measure().tokens_per_second == 100.0
    assert meter.measure().tokens_per_second_avg == 100.0


def test_lines_that_are_ten_steps_apart() -> None:
    meter = fed([line(n * 10, dt_s=0.5, tokens_total=n * 10 * 4096.0) for n in range(1, 20)])
    assert meter.measure().tokens_per_second == 8192.0


def test_with_arrivals_only() -> None:
    """A mark each ten seconds, 40 steps between two, counters rounded to thousands."""
    dice = random.Random(1)
    total = 0.0
    meter = Meter(UNKNOWN, 10)
    for step in range(1, 2001):
        total += 1000 + dice.uniform(-100, 100)
        at = 1e9 + (step // 40) * 10.0
        meter.add(line(step, loss=3.0, at=at, tokens_total=float(round(total, -3))))
    assert meter.measure().tokens_per_second_avg == pytest.approx(4000, rel=0.02)


def test_given_tokens_lead_over_a_count_and_printed_ones_over_both() -> None:
    given = Figures(tokens_per_step=1000)
    assert fed([line(n, dt_s=1.0, tokens_total=n * 7.0) for n in range(9)], given).measure().tokens_per_second == 1000
    both = [line(n, dt_s=1.0, tokens=50.0, tokens_total=n * 7.0) for n in range(9)]
    assert fed(both, given).measure().tokens_per_second == 50


def test_a_count_that_falls_or_cannot_be_is_passed_over() -> None:
    totals = [100.0, 200.0, 50.0, 150.0, float("nan"), float("inf"), -5.0, 250.0]
    meter = fed([line(n, dt_s=1.0, tokens_total=total) for n, total in enumerate(totals)])
    assert meter.measure().tokens_per_second == pytest.approx((100 + 100 + 100 / 4) / 3)
    assert fed([line(None, dt_s=1.0, tokens_total=total) for total in totals]).measure().tokens_per_second is None


# ---- tokens that are a counter


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_printed_tokens_that_are_a_counter_are_not_taken_for_a_step(first: int, interval: int, noise: float) -> None:
    dice = random.Random(first + interval)
    total = 0.0
    records = []
    for step in range(first, 400):
        total += 32768 * (1 + noise * dice.uniform(-1, 1))
        if step % interval == 0:
            records.append(line(step, loss=3.0, dt_s=0.25, tokens=float(round(total))))
    measure = fed(records).measure()
    assert measure.tokens_per_second == pytest.approx(131072, rel=max(noise, 0.001))
    assert measure.tokens_per_second_avg == pytest.approx(131072, rel=max(noise / 5, 0.001))


def test_a_counter_of_a_run_that_was_resumed_elsewhere() -> None:
    records = [line(1000 + n, dt_s=0.25, tokens=(1000 + n) * 32768.0) for n in range(50)]
    assert fed(records).measure().tokens_per_second_avg == 131072.0


def test_a_counter_that_begins_anew_while_the_steps_go_on() -> None:
    records = [line(1000 + n, dt_s=0.25, tokens=(n + 1) * 32768.0) for n in range(50)]
    assert fed(records).measure().tokens_per_second_avg == 131072.0


def test_what_was_learned_of_a_counter_stays_over_a_restart() -> None:
    meter = fed([line(n, dt_s=1.0, tokens=n * 100.0) for n in range(1, 30)])
    meter.begin_attempt()
    meter.add(line(20, dt_s=1.0, tokens=2000.0))
    assert meter.measure().tokens_per_second is None
    meter.add(line(21, dt_s=1.0, tokens=2100.0))
    assert meter.measure().tokens_per_second == 100.0


@pytest.mark.parametrize("first", [0, 1, 1000])
@pytest.mark.parametrize("spread", [0, 9, 3000])
def test_tokens_of_single_steps_stay_so(first: int, spread: int) -> None:
    dice = random.Random(first)
    values = [32768.0 + dice.randint(-spread, spread) for _ in range(300)]
    records = [line(first + n, dt_s=0.25, tokens=value) for n, value in enumerate(values)]
    assert fed(records).measure().tokens_per_second_avg == pytest.approx(sum(values) / (0.25 * 300))
    for count in range(1, 12):
        assert fed(records[:count]).measure().tokens_per_second == pytest.approx(
            sum(values[:count][-10:]) * 4 / min(count, 10)
        )


def test_a_batch_that_grows_is_no_counter() -> None:
    """As in GPT-3: from 32k to 3.2M tokens, linearly, over 100 lines."""
    values = [32768.0 * (20 + n) for n in range(60)]
    records = [line(500 + n, dt_s=1.0, tokens=value) for n, value in enumerate(values)]
    assert fed(records).measure().tokens_per_second_avg == pytest.approx(sum(values) / 60)


@pytest.mark.parametrize("first", [1, 1001, 50001])
@pytest.mark.parametrize("base", [24_000_000, 1_000_000_000])
def test_a_counter_that_began_somewhere_else(first: int, base: int) -> None:
    """With other batches before, or in another run: tokens and steps are in no proportion."""
    records = [line(first + n, dt_s=0.5, tokens=base + 16384.0 * (n + 1)) for n in range(60)]
    measure = fed(records).measure()
    assert measure.tokens_per_second == 32768.0
    assert measure.tokens_per_second_avg == pytest.approx(32768.0)
    few = fed(records[:8]).measure().tokens_per_second
    assert few == (32768.0 if base > 2**27 else pytest.approx(2 * base, rel=0.01))  # nobody could know


@pytest.mark.parametrize("began", [20, 100, 300])
def test_a_batch_that_is_still_growing_after_a_resume_is_no_counter(began: int) -> None:
    values = [32768.0 * (began + n) for n in range(60)]
    records = [line(5000 + n, dt_s=1.0, tokens=value) for n, value in enumerate(values)]
    assert fed(records).measure().tokens_per_second_avg == pytest.approx(sum(values) / 60)


def test_one_that_stops_rising_was_none() -> None:
    ramp = [line(n, dt_s=1.0, tokens=n * 100.0) for n in range(1, 10)]
    flat = [line(n, dt_s=1.0, tokens=900.0) for n in range(10, 30)]
    assert fed(ramp + flat).measure().tokens_per_second == 900.0


def test_rates_of_one_device_are_multiplied() -> None:
    eight = Figures(devices=8)
    one = [line(n, dt_s=0.5, tokens_per_s=1000.0, per_device=True) for n in range(5)]
    assert fed(one, eight).measure().tokens_per_second == 8000.0
    bare = [line(n, tokens_per_s=1000.0, per_device=True) for n in range(5)]
    assert fed(bare, eight).measure().tokens_per_second == fed(bare, eight).measure().tokens_per_second_avg == 8000.0
    known = Figures(devices=8, tokens_per_step=4000)
    assert fed(bare, known).measure().dt_s == 0.5
    every = [line(n, dt_s=0.5, tokens_per_s=1000.0) for n in range(5)]
    assert fed(every, eight).measure().tokens_per_second == 1000.0


# ---- many at once

numbers = st.floats(0.001, 1e9)
odd = numbers | st.sampled_from([0.0, -1.0, float("inf")])
COLUMNS = ("dt_s", "tokens", "tokens_total", "tokens_per_s", "grad_norm", "epoch")


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """Return batches that go on from step to step, each with columns of its own."""
    step, found = 1, []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 30))
        gaps = draw(st.lists(st.sampled_from([1, 1, 1, 10]), min_size=count, max_size=count))
        steps = []
        for gap in gaps:
            step += gap
            steps.append(step)
        columns: dict[str, list[float]] = {}
        for name in draw(st.sets(st.sampled_from(COLUMNS))):
            columns[name] = draw(st.lists(draw(st.sampled_from([numbers, odd])), min_size=count, max_size=count))
        if draw(st.booleans()):
            columns["tokens"] = [one * 100.0 for one in steps]
        if draw(st.booleans()):
            columns["dt_s"] = [0.25] * count
        losses = draw(st.lists(numbers, min_size=count, max_size=count))
        places, at = Places(b"x\n" * count, 0), 1e9 + draw(st.sampled_from([0, number]))
        one = Batch(
            reader="test",
            source=0,
            at=at,
            rank=None,
            steps=steps,
            loss=losses,
            columns=columns,
            extra={},
            places=places,
            per_device=draw(st.booleans()),
        )
        found.append(one)
    return found


@settings(max_examples=300, deadline=None)
@given(
    found=batches(),
    figures=st.sampled_from([UNKNOWN, Figures(tokens_per_step=1000, devices=8), Figures(devices=2)]),
    window=st.sampled_from([1, 10, 40]),
)
def test_many_at_once_are_as_one_by_one(found: list[Batch], figures: Figures, window: int) -> None:
    many, single = Meter(figures, window), Meter(figures, window)
    for meter in (many, single):
        meter.add(line(1, loss=3.0, at=1e9, dt_s=0.1))
    for batch in found:
        assert many.follows(batch.rank, batch.steps[0])
        many.add_many(batch)
        for entry in batch:
            single.add(entry.record)
        assert repr(many.snapshot()) == repr(single.snapshot())
        assert repr(many.measure()) == repr(single.measure())


@given(found=batches(), cut=st.integers(0, 4))
def test_saved_in_the_middle(found: list[Batch], cut: int) -> None:
    straight, meter = Meter(UNKNOWN), Meter(UNKNOWN)
    for number, batch in enumerate(found):
        if number == cut:
            again = Meter(UNKNOWN)
            again.restore(meter.snapshot())
            meter = again
        for entry in batch:
            straight.add(entry.record)
            meter.add(entry.record)
    assert repr(meter.snapshot()) == repr(straight.snapshot())


def test_what_follows() -> None:
    meter = fed([line(5, loss=3.0)])
    assert meter.follows(None, 6)
    assert meter.follows(0, 6)
    assert not meter.follows(1, 6)
    assert not meter.follows(None, 5)
    assert not meter.follows(None, 2**53)
    assert not Meter(UNKNOWN).follows(None, 1)
