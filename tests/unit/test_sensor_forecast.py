"""When a disk will be full: falls that last, saves that come and go, and what shows nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from overnight.sensors.forecast import time_to_full

GB = 1e9


def seen(free: Callable[[float], float], span_s: float = 3600.0, every_s: float = 10.0) -> list[tuple[float, float]]:
    """Return the points of a function of time, as a sensor would give them, since some moment of this century."""
    return [(1.7e9 + number * every_s, free(number * every_s)) for number in range(int(span_s / every_s))]


def test_a_steady_fall_is_told_exactly() -> None:
    points = seen(lambda at: 100 * GB - 1e6 * at)
    assert time_to_full(points) == pytest.approx(points[-1][1] / 1e6, rel=1e-6)


def test_the_order_of_points_does_not_matter_and_what_is_no_number_is_left_out() -> None:
    points = seen(lambda at: 100 * GB - 1e6 * at)
    mixed = [*points, (math.nan, 1.0), (1.0, math.inf)]
    random.Random(3).shuffle(mixed)
    assert time_to_full(mixed) == time_to_full(points)


def test_a_disk_that_is_full_is_full_now() -> None:
    assert time_to_full([(1.0, 0.0)]) == 0.0
    assert time_to_full(seen(lambda at: max(0.0, GB - 1e6 * at))) == 0.0


@pytest.mark.parametrize(
    "free",
    [
        lambda _: 5 * GB,
        lambda at: 5 * GB + 1e6 * at,
        lambda at: 5 * GB - (1e6 * at if at < 1000 else 1e9),  # fell, and does not any more
        lambda at: 5 * GB if at < 3000 else 4 * GB,  # one save
        lambda at: 5 * GB - max(0.0, at - 3500) * 1e7,  # a save that is being written
    ],
)
def test_no_lasting_fall_is_none(free: Callable[[float], float]) -> None:
    assert time_to_full(seen(free)) is None


def test_one_save_is_no_trend_whenever_it_comes() -> None:
    for begun in range(0, 3600, 50):
        assert time_to_full(seen(lambda at, begun=begun: 5 * GB - (GB if at > begun else 0.0))) is None


@pytest.mark.parametrize("points", [[], [(0.0, GB)], [(0.0, 2 * GB), (1000.0, GB)]])
def test_too_little_shows_nothing(points: list[tuple[float, float]]) -> None:
    assert time_to_full(points) is None


def test_five_minutes_are_needed() -> None:
    assert time_to_full(seen(lambda at: 100 * GB - 1e6 * at, span_s=290)) is None
    assert time_to_full(seen(lambda at: 100 * GB - 1e6 * at, span_s=320)) is not None


def test_saves_that_come_and_go_are_no_fall() -> None:
    source = random.Random(7)
    for _ in range(300):
        period, phase, size = source.choice([120, 300, 600, 900, 1500]), source.random(), source.uniform(0.1, 50) * GB
        grows = source.random() < 0.5

        def free(
            at: float, period: int = period, phase: float = phase, size: float = size, grows: bool = grows
        ) -> float:
            part = (at / period + phase) % 1.0
            return 200 * GB - size * (part if grows else float(part < 0.2))

        assert time_to_full(seen(free, span_s=source.choice([1800, 3600, 7200]))) is None


def test_a_fall_below_saves_that_come_and_go_is_seen() -> None:
    source = random.Random(8)
    for _ in range(100):
        period, phase, size = source.choice([120, 300, 600]), source.random(), source.uniform(0.1, 50) * GB
        a_second = source.choice([2e6, 6e6])

        def free(
            at: float, period: int = period, phase: float = phase, size: float = size, a_second: float = a_second
        ) -> float:
            return 200 * GB - size * ((at / period + phase) % 1.0) - a_second * at

        left_s = time_to_full(seen(free, span_s=7200))
        assert left_s == pytest.approx((200 * GB - size) / a_second - 7190, rel=0.2)  # the lowest point counts


def test_saves_that_stay_are_a_fall() -> None:
    left_s = time_to_full(seen(lambda at: 500 * GB - at // 1200 * 10 * GB, span_s=14400))
    assert left_s == pytest.approx((500 - 110) / 10 * 1200, rel=0.1)


def test_what_began_a_short_while_ago_is_seen_when_it_is_more_than_ever_came_back() -> None:
    def runaway(at: float) -> float:
        save = 20 * GB if at % 600 < 60 else 0.0
        return 900 * GB - save - max(0.0, at - 2500) * 0.3 * GB

    left_s = time_to_full(seen(runaway))
    assert left_s is not None
    assert left_s == pytest.approx((900 - 1090 * 0.3) / 0.3, rel=0.1)
    # the same fall where such falls have come back before
    assert time_to_full(seen(lambda at: 900 * GB - (at % 1300) * 0.3 * GB, span_s=3800)) is None


def test_jitter_of_others_does_not_cry_wolf() -> None:
    source = random.Random(9)
    soon = 0
    for _ in range(200):
        left_s = time_to_full(seen(lambda _: 20 * GB + source.gauss(0, 1) * GB))
        soon += left_s is not None and left_s < 4 * 3600
    assert soon <= 2
