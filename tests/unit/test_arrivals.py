"""Step times as printed beside the arrivals of the lines: which are compared, and when nothing is."""

from __future__ import annotations

from math import inf, nan

import pytest

from overnight.pacing.advance import Moved
from overnight.pacing.arrivals import LEAST_S, MOST_S, Arrivals

STEP = Moved(1, redone=False, clean=True, part=1.0)


def fed(rows: list[tuple[float, float | None]], moved: Moved = STEP, one: Arrivals | None = None) -> Arrivals:
    """Return arrivals that have taken in rows of (arrival, printed dt)."""
    one = one or Arrivals()
    for at, dt_s in rows:
        one.take(dt_s, at, moved)
    return one


def test_both_times_of_a_step_are_known_after_a_while() -> None:
    assert fed([(0.5 * n, 0.1) for n in range(int(2 * LEAST_S))]).latest is None
    assert fed([(0.5 * n, 0.1) for n in range(2 * int(LEAST_S) + 1)]).latest == pytest.approx((0.1, 0.5))


def test_lines_that_come_together_share_an_arrival() -> None:
    rows = [(10.0 * (n // 20), 0.1) for n in range(81)]  # twenty steps of half a second come at a time
    assert fed(rows).latest == pytest.approx((0.1, 0.5))


def test_several_steps_of_a_line_count_as_such() -> None:
    ten = Moved(10, redone=False, clean=True, part=1.0)
    assert fed([(5.0 * n, 0.4) for n in range(10)], ten).latest == pytest.approx((0.4, 0.5))


def test_what_is_compared_is_of_late() -> None:
    rows = [(1.0 * n, 1.0) for n in range(200)]
    assert fed(rows).latest == pytest.approx((1.0, 1.0))
    slower = [(200 + 2.0 * n, 1.0) for n in range(int(MOST_S))]
    assert fed(slower, one=fed(rows)).latest == pytest.approx((1.0, 2.0))


@pytest.mark.parametrize("dt_s", [None, 0.0, -1.0, nan, inf])
def test_a_line_without_a_time_parts_what_is_compared(dt_s: float | None) -> None:
    rows = [(1.0 * n, dt_s if n % 8 == 7 else 1.0) for n in range(100)]
    assert fed(rows).latest is None


@pytest.mark.parametrize(
    "odd",
    [
        STEP._replace(clean=False),
        STEP._replace(redone=True),
        STEP._replace(part=0.0, gain=0),  # one more rank
        STEP._replace(part=0.5, gain=2),
    ],
)
def test_only_clean_new_steps_are_compared(odd: Moved) -> None:
    one = Arrivals()
    for n in range(100):
        one.take(1.0, 1.0 * n, odd if n % 8 == 7 else STEP)
    assert one.latest is None


def test_a_save_between_two_steps_is_no_step_time() -> None:
    one, at = Arrivals(), 0.0
    for _ in range(6):
        for _ in range(12):
            at += 1.0
            one.take(1.0, at, STEP)
        one.part()
        at += 100.0
    assert one.latest == pytest.approx((1.0, 1.0))


def test_micro_steps_add_up_to_their_step() -> None:
    one = Arrivals()
    for n in range(200):
        one.take(0.25, 0.25 * n, Moved(int(n % 4 == 0), redone=False, clean=True, part=0.25))
    assert one.latest == pytest.approx((1.0, 1.0))


def test_a_clock_that_was_set_back_parts_it() -> None:
    one = fed([(1000.0 + n, 1.0) for n in range(8)])
    assert fed([(float(n), 1.0) for n in range(40)], one=one).latest == pytest.approx((1.0, 1.0))


def test_saved_anywhere_it_goes_on_the_same() -> None:
    rows = [(1.5 * (n // 3), 0.4) for n in range(120)]
    straight = fed(rows)
    for cut in (0, 1, 2, 50, 119):
        assert fed(rows[cut:], one=Arrivals.restore(fed(rows[:cut]).snapshot())).snapshot() == straight.snapshot()
    assert Arrivals.restore(None).latest is None


@pytest.mark.parametrize("unclean", [0, 3])
@pytest.mark.parametrize("odd", [0.2, 0.0, inf])
def test_many_at_once_are_as_one_by_one(unclean: int, odd: float) -> None:
    many, single = fed([(0.0, 0.2)]), fed([(0.0, 0.2)])
    for number in range(1, 9):
        dts = [0.2, 0.3, 0.2, 0.2, odd if number == 6 else 0.1]
        gains, at = [1, 1, 10, 1, 1], 7.0 * (number // 2)
        out = unclean if number == 1 else 0
        many.take_many(dts, at, gains, out)
        for place, (dt_s, gain) in enumerate(zip(dts, gains, strict=True)):
            single.take(dt_s, at, Moved(gain, redone=False, clean=place >= out, part=1.0))
        assert many.snapshot() == single.snapshot()
    many.take_many(None, 100.0, [1, 1], 0)
    for _ in "ab":
        single.take(None, 100.0, STEP)
    assert many.snapshot() == single.snapshot()
