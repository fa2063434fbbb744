"""Goodput against calculations by hand: what counts, what was done again, what is not known and why."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from overnight.pacing.goodput import Goodput, Times, measure

NAN = math.nan


class Column(NamedTuple):
    values: array[float]
    missing: bytes | None = None


class Span(NamedTuple):
    attempt: int = 1
    segment: int = 1


class Stretch(NamedTuple):
    span: Span
    steps: Column
    at: array[float]
    columns: dict[str, Column]
    kept: int
    per_device: bool = False


def column(values: Sequence[float | None]) -> Column:
    missing = bytes(value is None for value in values)
    return Column(array("d", [NAN if value is None else value for value in values]), missing if any(missing) else None)


def stretch(
    steps: Sequence[float | None],
    *,
    dt: float | Sequence[float | None] | None = None,
    at: Sequence[float] | None = None,
    kept: int | None = None,
    attempt: int = 1,
    segment: int | None = None,
    **series: Sequence[float | None],
) -> Stretch:
    columns = {name: column(values) for name, values in series.items()}
    if dt is not None:
        columns["dt_s"] = column([dt] * len(steps) if isinstance(dt, (int, float)) else dt)
    return Stretch(
        Span(attempt, attempt if segment is None else segment),
        column(steps),
        array("d", at or [0.0] * len(steps)),
        columns,
        len(steps) if kept is None else kept,
    )


def close(found: float | None) -> object:
    return pytest.approx(found, rel=1e-12)


def test_ten_seconds_of_steps_and_ten_of_saving_are_half() -> None:
    found = measure([stretch(range(1, 11), dt=1.0)], wall_s=20.0, tokens_per_step=1000.0)
    assert (found.stepping_tokens_per_s, found.overall_tokens_per_s, found.goodput) == (1000.0, 500.0, 0.5)
    assert (found.productive_s, found.productive_steps, found.redone_steps, found.lost_s) == (10.0, 10, 0, 0.0)
    assert found.unknown is None
    assert found.told == "step times as printed"


def rewound() -> list[Stretch]:
    return [
        stretch(range(1, 117), dt=0.5, attempt=1, kept=80),
        stretch(range(81, 101), dt=0.5, attempt=2, kept=0),
        stretch(range(81, 141), dt=0.5, attempt=3),
    ]


def test_what_is_done_again_counts_once() -> None:
    times = [
        Times(attempt=1, started=1.0, ended=70.0),
        Times(attempt=2, started=75.0, ended=95.0),
        Times(attempt=3, started=100.0, ended=140.0),
    ]
    found = measure(rewound(), wall_s=140.0, attempts=times, tokens_per_step=1000.0, price=3600.0)
    assert found.productive_steps == 140
    assert found.productive_s == 70.0
    assert found.goodput == 0.5
    assert found.redone_steps == 36 + 20
    assert found.lost_s == 28.0
    assert found.lost_cost == 28.0
    assert found.stepping_tokens_per_s == 2000.0
    assert found.overall_tokens_per_s == 1000.0
    assert [(one.attempt, one.first_step, one.last_step, one.productive_s, one.lost_steps) for one in found.parts] == [
        (1, 1, 116, 40.0, 36),
        (2, 81, 100, 0.0, 20),
        (3, 81, 140, 30.0, 0),
    ]
    assert found.restart_s == 10.0
    assert found.unfinished_s is None  # nobody knows when the lines arrived


def test_cut_anywhere_it_comes_to_the_same() -> None:
    whole = measure(rewound(), wall_s=140.0, tokens_per_step=10.0)
    for size in (1, 2, 7, 79, 80, 81):
        assert measure(pieces(rewound(), size), wall_s=140.0, tokens_per_step=10.0) == whole


def pieces(stretches: list[Stretch], size: int) -> Iterator[Stretch]:
    for one in stretches:
        for begin in range(0, len(one.at), size):
            piece = slice(begin, begin + size)
            yield Stretch(
                one.span,
                Column(one.steps.values[piece]),
                one.at[piece],
                {name: Column(each.values[piece]) for name, each in one.columns.items()},
                max(0, min(size, one.kept - begin)),
            )


def test_the_time_around_a_crash_is_told_apart() -> None:
    stretches = [
        stretch([1, 2, 3], dt=1.0, at=[11.0, 12.0, 13.0], attempt=1),
        stretch([4, 5], dt=1.0, at=[31.0, 32.0], attempt=2),
    ]
    times = [Times(attempt=1, started=10.0, ended=18.0), Times(attempt=2, started=25.0, ended=33.0)]
    found = measure(stretches, wall_s=23.0, attempts=times)
    assert (found.unfinished_s, found.restart_s, found.redone_steps) == (5.0, 12.0, 0)  # attempt 2 began to step at 30


def test_a_line_every_ten_steps_stands_for_ten() -> None:
    found = measure([stretch([0, 10, 20, 30], dt=2.0)], wall_s=100.0)
    assert (found.productive_steps, found.productive_s) == (31, 62.0)
    found = measure([stretch([10, 20, 30], dt=2.0)], wall_s=100.0)
    assert (found.productive_steps, found.productive_s) == (30, 60.0)
    found = measure([stretch([9, 19, 29], dt=2.0)], wall_s=100.0)
    assert found.productive_steps == 30


def test_after_a_rewind_the_first_line_stands_for_the_interval() -> None:
    stretches = [
        stretch([10, 20, 30, 40, 50], dt=1.0, attempt=1, kept=3),
        stretch([40, 50, 60], dt=1.0, attempt=2),
    ]
    found = measure(stretches, wall_s=100.0)
    assert (found.productive_steps, found.redone_steps, found.goodput) == (60, 20, 0.6)


def test_steps_without_a_time_count_as_the_mean_and_that_is_said() -> None:
    found = measure([stretch([1, 2, 3, 4], dt=[None, 2.0, 2.0, 2.0])], wall_s=16.0)
    assert (found.productive_s, found.goodput) == (8.0, 0.5)
    assert found.told == "step times as printed; 1 step without one counts as the mean of the others"
    for odd in (NAN, math.inf, 0.0, -3.0):
        found = measure([stretch([1, 2, 3, 4], dt=[2.0, odd, 2.0, 2.0])], wall_s=16.0)
        assert found.productive_s == 8.0, odd


def test_arrivals_stand_in_and_a_gap_is_not_stepping() -> None:
    at = [100.0 + second for second in range(10)] + [169.0 + second for second in range(10)]
    found = measure([stretch(range(1, 21), at=at)], wall_s=100.0)
    assert found.productive_s == close(20.0)
    assert found.goodput == close(0.2)
    assert found.told.startswith("arrival times of lines")


def test_many_lines_share_one_arrival() -> None:
    at = [100.0] * 10 + [110.0] * 10 + [120.0] * 10
    found = measure([stretch(range(1, 31), at=at)], wall_s=60.0)
    assert found.productive_s == close(30.0)
    assert measure(list(pieces([stretch(range(1, 31), at=at)], 7)), wall_s=60.0) == found


def test_unknown_is_none_and_says_why() -> None:
    found = measure([stretch(range(1, 5))], wall_s=10.0)
    assert (found.goodput, found.productive_s, found.lost_s, found.stepping_tokens_per_s) == (None,) * 4
    assert found.redone_steps == 0
    assert found.unknown is not None
    assert "nobody knows when the lines arrived" in found.unknown
    found = measure([stretch(range(1, 5), dt=1.0)], wall_s=None, no_wall="its lines carry no times")
    assert (found.goodput, found.productive_s) == (None, 4.0)
    assert found.unknown == "goodput is unknown: its lines carry no times"
    empty = measure([], wall_s=10.0)
    assert empty.unknown == "goodput is unknown: no progress line was read"
    assert (empty.goodput, empty.redone_steps, empty.parts) == (None, None, ())
    stepless = measure([stretch([None, None], dt=1.0)], wall_s=10.0)
    assert stepless.unknown == "goodput is unknown: its lines print no step"


def test_more_seconds_than_passed_are_no_goodput() -> None:
    found = measure([stretch(range(1, 101), dt=1000.0)], wall_s=100.0)
    assert found.goodput is None
    assert "check the unit" in str(found.unknown)
    assert measure([stretch(range(1, 101), dt=1.01)], wall_s=100.0).goodput == 1.0


def speed(found: Goodput) -> float | None:
    return found.stepping_tokens_per_s


def test_tokens_come_from_where_they_are_printed() -> None:
    steps = range(1, 5)
    assert speed(measure([stretch(steps, dt=2.0, tokens=[10.0] * 4)], wall_s=9, tokens_per_step=99.0)) == 5.0
    assert speed(measure([stretch(steps, dt=2.0, tokens_total=[110, 120, 130, 140])], wall_s=9)) == 5.0
    rates = stretch(steps, dt=2.0, tokens_per_s=[5.0] * 4)
    assert speed(measure([rates], wall_s=9)) == 5.0
    assert speed(measure([rates], wall_s=9, devices=8)) == 5.0
    assert speed(measure([rates._replace(per_device=True)], wall_s=9, devices=8)) == 40.0
    assert speed(measure([stretch(steps, dt=2.0)], wall_s=9)) is None


def test_a_running_count_goes_on_over_pieces_and_not_over_a_resume() -> None:
    one = stretch([1, 2, 3, 4], dt=1.0, tokens_total=[1e9 + 5, 1e9 + 10, 1e9 + 15, 1e9 + 20])
    two = stretch([3, 4, 5], dt=1.0, tokens_total=[1e9 + 15, 1e9 + 20, 1e9 + 25], attempt=2)
    first = Stretch(one.span, one.steps, one.at, one.columns, 2)
    assert speed(measure([first, two], wall_s=9)) == 5.0
    assert speed(measure(pieces([first, two], 2), wall_s=9)) == 5.0


def test_printed_tokens_that_are_a_counter_are_taken_for_one_wherever_it_is_cut() -> None:
    counted = [
        stretch(range(1, 51), dt=0.5, tokens=[step * 100.0 for step in range(1, 51)], kept=20),
        stretch(range(21, 41), dt=0.5, tokens=[step * 100.0 for step in range(21, 41)], attempt=2),
    ]
    for given, expected in ((None, 200.0), (50.0, 100.0)):
        whole = measure(counted, wall_s=99, tokens_per_step=given)
        assert speed(whole) == close(expected)
        for size in (2, 3, 7, 30):
            assert speed(measure(pieces(counted, size), wall_s=99, tokens_per_step=given)) == close(expected)
    broken = [100.0 * step for step in range(1, 6)] + [100.0] * 5  # no counter after all
    assert speed(measure([stretch(range(1, 11), dt=0.5, tokens=broken)], wall_s=99)) == close(200.0)
    assert speed(measure([stretch(range(1, 4), dt=1.0, tokens=[7.0, 9.0, 8.0])], wall_s=99)) == close(8.0)
    assert speed(measure([stretch([1, 2, 3], dt=1.0, tokens=[7.0, None, 8.0])], wall_s=99, tokens_per_step=3.0)) == 6.0


def test_all_parts_together_fit_into_the_time_that_passed() -> None:
    two = [
        stretch(range(1, 11), dt=1.0, at=[float(second) for second in range(101, 111)]),
        stretch(range(11, 21), dt=1.0, at=[float(second) for second in range(161, 171)], attempt=2),
    ]
    times = [Times(attempt=1, started=100.0, ended=110.0), Times(attempt=2, started=150.0, ended=170.0)]
    found = measure(two, wall_s=70.0, attempts=times)
    assert (found.productive_s, found.unfinished_s, found.restart_s, found.unknown) == (20.0, 0.0, 50.0, None)
    assert found.goodput == close(20 / 70)
    short = measure(two, wall_s=60.0, attempts=times)
    assert (short.goodput, short.overall_tokens_per_s) == (None, None)
    assert "50 s more lay between attempts" in str(short.unknown)
    assert "check the unit" in str(short.unknown)
    redone = [stretch(range(1, 11), dt=1.0, kept=2), stretch(range(3, 11), dt=1.0, attempt=2)]
    assert measure(redone, wall_s=18.0).goodput == close(10 / 18)
    assert measure(redone, wall_s=12.0).goodput is None


def test_a_rank_that_lags_behind_adds_nothing() -> None:
    found = measure([stretch([1, 2, 1, 3, 2, 4, 3, 4], dt=1.0)], wall_s=8.0)
    assert (found.productive_steps, found.productive_s, found.goodput) == (4, 4.0, 0.5)


@pytest.mark.parametrize("timed", [True, False])
def test_one_odd_step_far_ahead_is_no_work_that_was_lost(timed: bool) -> None:
    """F3-04: 607,500 between 583,700 and 583,800. Nobody made the 23,800 steps up to it."""
    before, after = [583_500.0, 583_600.0, 583_700.0], [583_800.0, 583_900.0, 584_000.0]
    dt, at = (0.25, None) if timed else (None, 25.0)

    def arrived(first: int, count: int) -> list[float] | None:
        return None if at is None else [1e9 + at * (first + row) for row in range(count)]

    parts = [
        stretch([*before, 607_500.0], dt=dt, at=arrived(0, 4), kept=3),
        stretch(after, dt=dt, at=arrived(4, 3), segment=2),
    ]
    found = measure(parts, wall_s=10_000.0, tokens_per_step=100.0)
    assert (found.redone_steps, found.lost_s) == (0, pytest.approx(0.0, abs=1e-9))
    assert found.productive_steps == 600
    assert found.productive_s == pytest.approx(150.0, rel=0.01)
    assert found.stepping_tokens_per_s == pytest.approx(400.0, rel=0.01)
    assert measure(pieces(parts, 1), wall_s=10_000.0, tokens_per_step=100.0) == found


def test_a_way_back_that_is_long_is_lost_work_however_far_the_last_line_jumped() -> None:
    first = stretch([*range(1, 11), 1000], dt=1.0, kept=5)
    found = measure([first, stretch(range(6, 30), dt=1.0, segment=2)], wall_s=5000.0)
    assert found.redone_steps == 5 + 990
    found = measure([first, stretch(range(11, 30), dt=1.0, attempt=2)], wall_s=5000.0)  # a crash: they may be real
    assert found.redone_steps == 5 + 990


def slow_starts() -> list[Stretch]:
    """Each start takes its first step with a warm-up in it; once a save lies in a step."""
    first = [4.0, *[0.05] * 99]
    again = [6.0, *[0.05] * 29, 3.95, *[0.05] * 69]
    return [stretch(range(1, 101), dt=first, kept=50), stretch(range(51, 151), dt=again, attempt=2)]


def test_a_warm_up_or_a_save_within_a_step_counts_as_a_usual_one() -> None:
    for size in (1, 2, 7, 1000):
        found = measure(pieces(slow_starts(), size), wall_s=30.0)
        assert (found.productive_s, found.productive_steps) == (pytest.approx(150 * 0.05), 150), size
        assert (found.lost_s, found.redone_steps) == (pytest.approx(50 * 0.05), 50), size
        assert found.printed_s == pytest.approx(200 * 0.05 + 3.9), size
    assert found.told == (
        "step times as printed; 3 steps without one or with far more than a usual one count as the mean of the others"
    )


def test_times_that_scatter_or_change_for_good_are_no_warm_up() -> None:
    scattered = [0.1 * (1 + n % 4) for n in range(400)]
    found = measure([stretch(range(1, 401), dt=scattered)], wall_s=200.0)
    assert found.productive_s == pytest.approx(sum(scattered))
    slower = measure([stretch(range(1, 401), dt=[0.1] * 200 + [1.0] * 200)], wall_s=300.0)
    assert slower.productive_s == pytest.approx(20 + 200, rel=0.05)


def test_arrivals_that_were_seen_live_lead_where_no_time_is_printed() -> None:
    at = [10.0 * (n // 300) + 1000 for n in range(400)]
    found = measure([stretch(range(1, 401), at=at, kept=300)], wall_s=45.0, live_step_s=0.022)
    assert (found.productive_s, found.lost_s) == (pytest.approx(6.6), pytest.approx(2.2))
    printed = measure([stretch(range(1, 401), dt=0.05)], wall_s=45.0, live_step_s=0.022)
    assert printed.productive_s == pytest.approx(20.0)
