"""How far a resumed run may lie from two unbroken ones that differ: false alarms and power, over made noise.

All draws are seeded: a test gives the same result each time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import NormalDist

import pytest

from overnight.resumeproof.noise import examine, granularity, student

Noise = Callable[[random.Random, int], list[float]]


def independent(draw: random.Random, count: int) -> list[float]:
    return [draw.gauss(0.0, 0.1) for _ in range(count)]


def laplace(draw: random.Random, count: int) -> list[float]:
    return [draw.choice((-0.05, 0.05)) * draw.expovariate(1.0) for _ in range(count)]


def correlated(draw: random.Random, count: int) -> list[float]:
    value = draw.gauss(0.0, 0.05)
    found = []
    for _ in range(count):
        value = 0.97 * value + math.sqrt(1 - 0.97**2) * draw.gauss(0.0, 0.05)
        found.append(value)
    return found


def walk(draw: random.Random, count: int) -> list[float]:
    return list(itertools.accumulate(draw.gauss(0.0, 0.005) for _ in range(count)))


def growing(draw: random.Random, count: int) -> list[float]:
    """Rounding that grows from one in a million to one in a hundred, as trajectories part."""
    sizes = (1e-6 * math.exp(step / 12) for step in range(count))
    slow = [20.0 * value for value in correlated(draw, count)]
    return [
        size / (1 + size / 0.01) * (0.6 * one + 0.8 * draw.gauss(0.0, 1.0))
        for size, one in zip(sizes, slow, strict=True)
    ]


def steep(draw: random.Random, count: int) -> list[float]:
    """A loss that is far noisier at its beginning."""
    return [draw.gauss(0.0, 0.3) * math.exp(-step / 60) for step in range(count)]


def coarse(draw: random.Random, count: int) -> list[float]:
    return [draw.gauss(0.0, 0.02) for _ in range(count)]


ALL: list[Noise] = [independent, laplace, correlated, walk, growing, steep, coarse]


def fails(
    draw: random.Random, noise: Noise, *, stop: int = 100, until: int = 110, bias: float = 0.0, metrics: int = 2
) -> bool:
    """Say whether a run that resumes rightly, but for a bias of its first metric, is found to lie outside."""
    wrong = False
    for metric in range(metrics):
        runs = []
        for _ in range(3):
            values = [2 + 3 * math.exp(-step / 30) + off for step, off in enumerate(noise(draw, until))]
            runs.append({step + 1: round(value, 1 if noise is coarse else 9) for step, value in enumerate(values)})
        before = {step: value for step, value in runs[2].items() if step <= stop}
        after = {step: value + (0.0 if metric else bias) for step, value in runs[2].items() if step > stop}
        found = examine(runs[0], runs[1], before, after, share=metrics, places=sorted(after))
        assert found is not None
        wrong |= bool(found.beyond) or found.biased
    return wrong


@pytest.mark.parametrize("noise", ALL)
def test_an_unbiased_resume_does_not_fail(noise: Noise) -> None:
    draw = random.Random(7)
    assert sum(fails(draw, noise) for _ in range(120)) <= 2


@pytest.mark.parametrize(("stop", "until"), [(100, 102), (100, 160), (20, 30), (4, 14)])
def test_nor_with_other_windows(stop: int, until: int) -> None:
    draw = random.Random(8)
    wrong = sum(
        fails(draw, noise, stop=stop, until=until) for noise in (independent, correlated, growing) for _ in range(30)
    )
    assert wrong <= 2


def test_a_constant_bias_of_a_few_deviations_is_found() -> None:
    draw = random.Random(9)
    assert sum(fails(draw, independent, bias=0.3) for _ in range(60)) >= 45  # three deviations, ten steps
    assert sum(fails(draw, independent, bias=0.6) for _ in range(60)) >= 59
    assert sum(fails(draw, independent, until=160, bias=0.2) for _ in range(30)) >= 25  # two, sixty steps


def test_a_bias_smaller_than_the_noise_of_one_step_is_found_by_the_average_alone() -> None:
    draw = random.Random(10)
    first, second, third = ({s: 2.0 + draw.gauss(0, 0.1) for s in range(1, 161)} for _ in range(3))
    before = {s: v for s, v in third.items() if s <= 100}
    after = {s: v + 0.25 for s, v in third.items() if s > 100}
    found = examine(first, second, before, after, places=sorted(after))
    assert found is not None
    assert found.biased
    assert not found.beyond
    assert found.mean_floor < 0.25 < found.floor
    assert found.mean_resumed - found.mean_unbroken == pytest.approx(0.25, abs=0.06)


def test_a_single_step_far_off_is_found_by_itself() -> None:
    draw = random.Random(11)
    first, second, third = ({s: 2.0 + draw.gauss(0, 0.1) for s in range(1, 111)} for _ in range(3))
    after = {s: v + (2.0 if s == 104 else 0.0) for s, v in third.items() if s > 100}
    found = examine(first, second, {s: third[s] for s in range(1, 101)}, after, places=sorted(after))
    assert found is not None
    assert found.beyond == (104,)


def test_runs_that_part_within_their_first_steps_leave_no_floor_without_end() -> None:
    """Equal at their first step, hardly apart at the next ones: what follows is no heavy tail of that."""
    draw = random.Random(21)
    for _ in range(40):
        sizes = [0.0, 1e-6, 3e-6, 1e-5, 2e-5, *[1e-4] * 55]
        one, two, third = (
            {step: 0.8 + size * draw.gauss(0.0, 1.0) for step, size in enumerate(sizes, 1)} for _ in range(3)
        )
        before = {step: value for step, value in third.items() if step <= 40}
        right = {step: value for step, value in third.items() if step > 40}
        found = examine(one, two, before, right, share=3, places=sorted(right))
        assert found is not None
        assert not found.beyond
        assert not found.biased
        assert found.floor < 0.01
        wrong = {step: value + 0.1 for step, value in right.items()}
        found = examine(one, two, before, wrong, share=3, places=sorted(wrong))
        assert found is not None
        assert len(found.beyond) == 20


def test_noise_without_a_past_is_judged_by_the_window_alone() -> None:
    draw = random.Random(12)
    first, second, third = ({s: 2.0 + draw.gauss(0, 0.1) for s in range(1, 11)} for _ in range(3))
    found = examine(first, second, {}, third, places=range(1, 11))
    assert found is not None
    assert not found.beyond
    far = examine(first, second, {}, {s: v + 9.0 for s, v in third.items()}, places=range(1, 11))
    assert far is not None
    assert far.biased
    assert len(far.beyond) == 10


def test_what_is_printed_coarsely_may_differ_by_its_grain() -> None:
    first = {s: 2.3 if s % 3 else 2.2 for s in range(1, 111)}
    after = {s: 2.2 if s % 3 else 2.3 for s in range(101, 111)}
    before = {s: first[s] for s in range(1, 101)}
    found = examine(first, first, before, after, places=sorted(after))
    assert found is not None
    assert found.floor > 0.1
    assert not found.beyond


def test_too_few_values_tell_no_spread() -> None:
    assert examine({1: 2.0, 2: 2.1}, {1: 2.1, 2: 2.0}, {}, {2: 2.0}, places=[2]) is None
    assert examine({}, {}, {}, {}, places=[]) is None


def test_what_is_no_number_is_not_looked_at() -> None:
    draw = random.Random(13)
    first, second, third = ({s: 2.0 + draw.gauss(0, 0.1) for s in range(1, 111)} for _ in range(3))
    first[105] = second[50] = third[20] = math.nan
    third[106] = math.inf
    found = examine(first, second, third, {s: third[s] for s in range(101, 111)}, places=range(101, 111))
    assert found is not None
    assert math.isfinite(found.floor)
    assert not found.beyond


@pytest.mark.parametrize(("freedom", "tail", "known"), [(10, 0.005, 3.169), (20, 0.001, 3.552), (30, 1e-4, 4.234)])
def test_the_expansion_of_students_t_is_that_of_the_tables(freedom: int, tail: float, known: float) -> None:
    assert student(tail, freedom) == pytest.approx(known, rel=0.02)
    assert student(tail, 1e9) == pytest.approx(NormalDist().inv_cdf(1 - tail), rel=1e-6)


def test_granularity_is_the_smallest_step_between_values() -> None:
    assert granularity([0.5, 0.53125, 0.5, 0.59375]) == pytest.approx(0.03125)
    assert granularity([1.0, 1.0]) == 0.0
    assert granularity([]) == 0.0


def test_thousands_of_steps_are_no_burden() -> None:
    draw = random.Random(14)
    first, second, third = ({s: 2.0 + draw.gauss(0, 0.1) for s in range(1, 6001)} for _ in range(3))
    after = {s: third[s] for s in range(3001, 6001)}
    found = examine(first, second, {s: third[s] for s in range(1, 3001)}, after, places=sorted(after))
    assert found is not None
    assert not found.biased
