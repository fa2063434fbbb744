"""How far a resumed run may lie from two unbroken ones that do not agree with each other either.

Three runs of the same training are taken as draws of one kind: the two unbroken ones, and the third one before its stop
and after it. So their spread says how far the third may lie off, at one step and on average, and how they behaved
before the stop says how heavy the tails are and how slowly they drift. Pure arithmetic: no clock, file or process.

The numbers were set by simulating thousands of trainings (tests/unit/test_resume_noise.py): less than 1 in 100 of those
that resume rightly fail, all metrics and both tests together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean, median
from typing import Final

import msgspec

POOL: Final = 24  # values for the spread, at least, where there are as many
LEVEL: Final = 24  # steps before the stop that say on which level a run lies
FEWEST: Final = 4  # values below which a spread is not told at all
ALPHA: Final = 0.002  # of each of the two tests
HEAVIER: Final = 3.0  # power by which an average that was further off than ordinary noise before is taken
HEAVIER_STEP: Final = 4.0  # the same of single steps
UNSEEN: Final = 10.0  # times what was ever seen, which nothing is allowed to lie off, where much was seen
BLOCKS: Final = 4  # windows whose averages are looked at, at most
MOST_WINDOWS: Final = 40  # of the past that are looked at, however long it is
LONGEST: Final = 200  # steps of one window

Values = Mapping[int, float]


class MetricNoise(msgspec.Struct, frozen=True, kw_only=True):
    """What two unbroken runs leave open about one metric, and where the resumed run lies outside.

    ``floor`` is how far a single step may lie from the middle of the unbroken runs, ``mean_floor`` how far the average
    over ``mean_steps`` may, in the metric's own unit. ``beyond`` are the steps outside; ``biased``: the average is;
    ``mean_unbroken`` and ``mean_resumed`` are the averages.
    """

    floor: float
    mean_floor: float
    mean_steps: tuple[int, int]
    beyond: tuple[int, ...]
    biased: bool
    mean_unbroken: float
    mean_resumed: float


class _Third(msgspec.Struct, frozen=True):
    """A run beside two others: its distance from their middle, and theirs from each other, by step."""

    off: Values
    apart: Values


class _Score(msgspec.Struct, frozen=True):
    """How far a run lies off within a window, in units of what one step may: at its worst step, and on average."""

    worst: float
    mean: float


def student(tail: float, freedom: float) -> float:
    """Return what Student's t with some degrees of freedom exceeds with a probability of ``tail``, by expansion."""
    z = NormalDist().inv_cdf(1.0 - tail)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def granularity(values: Iterable[float]) -> float:
    """Return the smallest distance between two values that a metric was seen to take, 0.0 if it was always the same."""
    seen = sorted({value for value in values if math.isfinite(value)})
    gaps = (after - before for before, after in itertools.pairwise(seen))
    return min(gaps, default=0.0)


def examine(
    first: Values, second: Values, before: Values, after: Values, *, share: int = 1, places: Sequence[int]
) -> MetricNoise | None:
    """Compare one metric of a resumed run with two unbroken ones, at the steps ``places`` of it.

    ``share``: among how many metrics the probability of a false alarm is divided. None: there are too few values to
    tell a spread from. All values are finite or not looked at.
    """
    window = [step for step in places if _finite(first, second, after, step)]
    past = sorted(step for step in before if window and step < window[0] and _finite(first, second, before, step))
    known = sorted(step for step in first if _finite(first, second, second, step) and window and step <= window[-1])
    if not window or len(known) + len(past) < FEWEST:
        return None
    grain = granularity([*first.values(), *second.values()])
    third = _third(after, first, second, known, past=before)
    length = max(min(len(window), 5, LONGEST), -(-len(window) // BLOCKS), min(len(window), len(past) // 6))
    blocks = [window[at : at + length] for at in range(0, len(window), length)]
    if len(blocks) > 1 and len(blocks[-1]) < length:
        blocks[-2:] = [blocks[-2] + blocks[-1]]
    stretch = _history(first, second, before, past, length=length, blocks=len(blocks), grain=grain)
    return _verdict(third, past, blocks, stretch=stretch, share=share, grain=grain, runs=(first, second, after))


def _verdict(
    third: _Third,
    past: Sequence[int],
    blocks: Sequence[Sequence[int]],
    *,
    stretch: _Score,
    share: int,
    grain: float,
    runs: tuple[Values, Values, Values],
) -> MetricNoise:
    """Judge each block; the spread is that of all of them together, or of the steps before the stop if it is larger."""
    window = [step for block in blocks for step in block]
    unit, freedom = _unit(third, past, window, grain)
    if unit > 0.0:  # how the unbroken runs lie to each other there tells of the same
        score = _score([third.apart[step] / math.sqrt(4 / 3) for step in window], None, unit)
        stretch = _further(stretch, score, freedom, tail=0.1, length=len(window))
        for block in blocks:
            score = _score([third.apart[step] / math.sqrt(4 / 3) for step in block], None, unit)
            stretch = _further(stretch, _Score(0.0, score.mean), freedom, tail=0.1 / len(blocks), length=1)
    scarce = 1.0 + min(2.0, 10.0 / (1 + len(past)))
    longer = 1.0 + 0.5 * min(1.0, len(window) / (1 + len(past)))  # more is seen than there was a past to learn from
    at_step = 1.2 * student(ALPHA / (2 * len(window) * share), freedom) * unit
    at_step *= longer * max(scarce, stretch.worst**HEAVIER_STEP)
    on_average = student(ALPHA / (2 * len(blocks) * share), freedom) * unit
    on_average *= longer * max(scarce, stretch.mean**HEAVIER)
    if len(past) >= LEVEL:
        seen = [*(third.off[step] for step in past), *(third.apart[step] for step in (*past, *window))]
        bound = UNSEEN * max(grain, *map(abs, seen))
        at_step, on_average = min(at_step, bound), min(on_average, bound * math.sqrt(min(map(len, blocks))))
    level = _level(third, past)
    off = [_least(fmean(third.off[step] for step in block), level) * math.sqrt(len(block)) for block in blocks]
    biased = [len(block) > 1 and size > on_average for block, size in zip(blocks, off, strict=True)]
    block = blocks[biased.index(True) if any(biased) else 0]
    first, second, after = runs
    return MetricNoise(
        floor=at_step,
        mean_floor=on_average / math.sqrt(len(block)),
        mean_steps=(block[0], block[-1]),
        beyond=tuple(step for step in window if _least(third.off[step], level) > at_step),
        biased=any(biased),
        mean_unbroken=fmean((first[step] + second[step]) / 2 for step in block),
        mean_resumed=fmean(after[step] for step in block),
    )


def _history(
    first: Values, second: Values, before: Values, past: Sequence[int], *, length: int, blocks: int, grain: float
) -> _Score:
    """Return how far beyond ordinary noise the runs lay off before the stop: 1.0, or more.

    Each run in turn is taken for the third one in windows of the past. Where a window of the resumed run lies
    ``blocks`` lengths behind the stop, so do those that are looked at. Independent noise with ordinary tails gives
    scores that its theory knows. What is beyond them is raised to the power ``HEAVIER``, since tails that are heavier
    there are heavier still where nothing was seen yet.
    """
    trios = ((before, first, second), (first, second, before), (second, before, first))
    stretch = _Score(1.0, 1.0)
    ends = range(len(past), length + FEWEST - 2, -max(1, length // 2))[:MOST_WINDOWS]
    tail = 0.1 / max(2, len(ends))
    for one, two, three in trios:
        third = _third(one, two, three, past)
        for end in ends:
            start = end - length
            unit, freedom = _unit(third, past[:start], past[start:end], grain)
            for gap in range(min(blocks, BLOCKS)):
                earlier = past[: max(0, start - gap * length)]
                if unit == 0.0 or (gap and len(earlier) < FEWEST):
                    break
                score = _score([third.off[step] for step in past[start:end]], _level(third, earlier), unit)
                stretch = _further(stretch, score, freedom, tail=tail, length=length)
    return stretch


def _score(off: Sequence[float], level: float | None, unit: float) -> _Score:
    """Return how far a run lies off within a window."""
    worst = max(_least(value, level) for value in off)
    return _Score(worst / unit, _least(fmean(off), level) * math.sqrt(len(off)) / unit)


def _further(stretch: _Score, score: _Score, freedom: float, *, tail: float, length: int) -> _Score:
    """Return what is further beyond ordinary noise: what is known so far, or one more window of some length."""
    worst, mean = score.worst / student(tail / length, freedom), score.mean / student(tail, freedom)
    return _Score(max(stretch.worst, worst), max(stretch.mean, mean))


def _third(run: Values, one: Values, two: Values, steps: Iterable[int], *, past: Values | None = None) -> _Third:
    """Set a run beside two others; ``past`` are its values where it has none."""
    have = {**(past or {}), **run}
    middle = {step: (one[step] + two[step]) / 2 for step in steps if step in one and step in two}
    off = {step: have[step] - value for step, value in middle.items() if step in have and math.isfinite(have[step])}
    return _Third(off, {step: one[step] - two[step] for step in middle})


def _unit(third: _Third, past: Sequence[int], window: Sequence[int], grain: float) -> tuple[float, float]:
    """Return how far a single step of a third run lies off as a rule (a standard deviation), and its freedom.

    Distances of two draws have the variance 2, those of one draw from the middle of two 1.5. The nearest values count;
    one alone never makes the spread. What is printed coarsely is spread by its grain at least.
    """
    inside = [abs(third.apart[step]) / math.sqrt(2.0) for step in window]
    nearest = past[-POOL:]
    outside = [abs(third.apart[step]) / math.sqrt(2.0) for step in nearest]
    outside += [abs(third.off[step]) / math.sqrt(1.5) for step in nearest]
    pools = [pool for pool in (inside, outside) if len(pool) >= 2 * FEWEST] or [inside + outside]
    return math.sqrt(1.5) * max(*map(_spread, pools), 0.3 * grain), max(3.0, 0.88 * len(inside + outside))


def _spread(sizes: Sequence[float]) -> float:
    """Return the standard deviation of what has these sizes; one alone never makes it."""
    typical = median(sizes)
    capped = [min(size, 8.0 * typical) for size in sizes] if typical > 0.0 else sizes
    return math.sqrt(math.pi / 2) * fmean(capped)


def _level(third: _Third, past: Sequence[int]) -> float | None:
    """Return how far the run lay off on average just before; None: that is not known."""
    near = [third.off[step] for step in past[-LEVEL:]]
    return fmean(near) if len(near) >= FEWEST - 1 else None


def _least(off: float, level: float | None) -> float:
    """Return how far a value lies off: from the middle, or from where the run was before, whichever is less."""
    return abs(off) if level is None else min(abs(off), abs(off - level))


def _finite(first: Values, second: Values, third: Values, step: int) -> bool:
    """Say whether three runs have a finite number at a step."""
    return all(math.isfinite(run.get(step, math.nan)) for run in (first, second, third))
