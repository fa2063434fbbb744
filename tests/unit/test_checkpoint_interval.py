"""When a save is due: by steps, by time, and as often as pays."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from overnight.checkpoint.errors import CheckpointError
from overnight.checkpoint.interval import FIRST_S, LEAST_S, PRIOR_S, Interval, duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("600s", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("1h5s", 3605), ("0.5s", 0.5)],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds
    assert Interval(text).seconds(0.0) == seconds
    assert Interval(f" {text.upper()} ").seconds(0.0) == seconds


@pytest.mark.parametrize(
    "every",
    [0, -1, True, 2.5, "", "abc", "10", "0s", "0h0m", "-5m", "5 m", "30m1h", "1m1m", "m", "10m!", "nan", "1e3s", [5]],
)
def test_other_values_are_refused_by_name(every: Any) -> None:
    with pytest.raises(CheckpointError, match="every=") as refused:
        Interval(every)
    assert repr(every) in str(refused.value)


@pytest.mark.parametrize("overhead", [0, 1, -0.1, 5, math.nan, True, "1%", None])
def test_odd_overheads_are_refused(overhead: Any) -> None:
    with pytest.raises(CheckpointError, match="overhead="):
        Interval("auto", overhead=overhead)


def test_steps_are_counted_from_zero_whatever_a_resume_began_with() -> None:
    interval = Interval(50)
    interval.begin(73, 0.0)
    assert [step for step in range(74, 260) if interval.due(step, 0.0)] == [100, 150, 200, 250]


def test_the_step_that_is_saved_already_is_not_due_again() -> None:
    interval = Interval(50)
    interval.begin(100, 0.0)
    assert not interval.due(100, 1e9)
    interval.started(150, 5.0)
    assert not interval.due(150, 6.0)
    assert interval.due(200, 6.0)


def test_without_an_interval_nothing_is_ever_due() -> None:
    interval = Interval(None)
    interval.begin(0, 0.0)
    assert not any(interval.due(step, step * 1e6) for step in range(1, 1000))
    assert interval.seconds(1e9) is None


def test_times_count_from_the_beginning_of_the_save_before() -> None:
    interval = Interval("10m")
    interval.begin(7, 1000.0)
    assert not interval.due(8, 1599.9)
    assert interval.due(9, 1600.0)
    assert interval.due(9, 1600.0)  # asking changes nothing
    interval.started(9, 1600.0)
    interval.saved(9, 1900.0, stall_s=1.0, write_s=300.0)
    assert not interval.due(10, 2199.9)
    assert interval.due(11, 2200.0)


def test_a_save_that_failed_is_tried_at_the_next_interval() -> None:
    interval = Interval("10m")
    interval.begin(0, 0.0)
    interval.started(1, 600.0)  # and never `saved`
    assert not interval.due(2, 1199.0)
    assert interval.due(3, 1200.0)


def test_a_save_whose_beginning_nobody_told_counts_from_it_nevertheless() -> None:
    interval = Interval("10m")
    interval.begin(0, 0.0)
    interval.saved(40, 700.0, stall_s=2.0, write_s=100.0)
    assert not interval.due(41, 1199.0)
    assert interval.due(41, 1200.0)


def learnt(stall_s: float, write_s: float = 0.0, **known: Any) -> Interval:
    interval = Interval("auto", **known)
    interval.begin(0, 0.0)
    interval.started(1, 0.0)
    interval.saved(1, 0.0, stall_s=stall_s, write_s=write_s)
    return interval


def test_auto_saves_early_to_learn_the_cost() -> None:
    interval = Interval("auto")
    interval.begin(0, 500.0)
    assert not interval.due(1, 500.0 + FIRST_S - 0.1)
    assert interval.due(2, 500.0 + FIRST_S)


def test_auto_is_young_s_formula_where_nothing_bounds_it() -> None:
    assert learnt(2.0).seconds(0.0) == pytest.approx(math.sqrt(2 * 2.0 * PRIOR_S))
    known = learnt(2.0, failures=3, trained_s=6 * 3600.0)
    assert known.mtbf_s(0.0) == pytest.approx((24 + 6) * 3600 / 4)
    assert known.seconds(0.0) == pytest.approx(math.sqrt(2 * 2.0 * 7.5 * 3600))
    # Six more hours without a failure.
    assert known.seconds(6 * 3600.0) == pytest.approx(math.sqrt(2 * 2.0 * 9 * 3600))


def test_auto_minimises_what_is_lost() -> None:
    """Simulated nights: half the interval and twice the interval both lose more than the one that is chosen."""
    mtbf_s, cost_s = 3600.0, 4.0
    chosen = Interval("auto", overhead=0.5, failures=10_000, trained_s=10_001 * mtbf_s - PRIOR_S)
    chosen.begin(0, 0.0)
    chosen.saved(1, 0.0, stall_s=cost_s, write_s=0.0)
    best_s = chosen.seconds(0.0)
    assert best_s is not None

    def lost(interval_s: float) -> float:
        night = random.Random(1)
        total = 0.0
        for _ in range(20_000):
            life = night.expovariate(1 / mtbf_s)
            saves = life // (interval_s + cost_s)
            total += saves * cost_s + (life - saves * (interval_s + cost_s))
        return total

    assert lost(best_s) < min(lost(best_s / 2), lost(best_s * 2))


def test_auto_keeps_within_the_overhead() -> None:
    # Often failing and dear: Young would save every minute, one per cent allows every 400 s.
    assert learnt(4.0, failures=500).seconds(0.0) == pytest.approx(400.0)
    assert learnt(4.0, failures=500, overhead=0.05).seconds(0.0) == pytest.approx(80.0)


def test_a_night_under_auto_costs_no_more_than_it_may() -> None:
    dice = random.Random(2)
    interval = Interval("auto", failures=5_000)
    now = stalled = 0.0
    interval.begin(0, now)
    for step in range(1, 40_000):
        now += 1.0
        if interval.due(step, now):
            stall_s = dice.uniform(0.1, 3.0)
            interval.started(step, now)
            now += stall_s
            stalled += stall_s
            interval.saved(step, now, stall_s=stall_s, write_s=20.0)
    assert 0.005 < stalled / now < 0.0115


def test_auto_waits_for_a_write_and_never_saves_all_the_time() -> None:
    assert learnt(0.01, 900.0).seconds(0.0) == 900.0
    assert learnt(0.0).seconds(0.0) == LEAST_S
    assert learnt(1e-6).seconds(0.0) == LEAST_S


def test_the_last_saves_say_what_the_next_one_costs() -> None:
    interval = learnt(1000.0)
    for step in range(2, 7):
        interval.saved(step, 0.0, stall_s=2.0, write_s=3.0)
    assert interval.seconds(0.0) == pytest.approx(math.sqrt(2 * 2.0 * PRIOR_S))
