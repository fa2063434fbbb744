"""The values of a resumed run beside those of two unbroken ones: what is compared, and where they differ.

What a difference comes from is not asked here. No clock, no file, no process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec

from overnight.resumeproof.noise import MetricNoise, examine
from overnight.resumeproof.vocabulary import (
    decimals,
    is_of_data,
    is_rate,
    main_metric,
    of_an_evaluation,
    of_the_machine,
)
from overnight.resumeproof.words import Course, Series

OF_THE_MACHINE: Final = "a time, a rate or an amount of memory"
VARIES: Final = "differs between the unbroken runs, which agree in {}"
DRAWN: Final = "tells of the data, which are others in each unbroken run"
TOO_FEW: Final = "too few values to tell how far the unbroken runs differ"
ABSENT: Final = "not printed by the resumed run"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is not what it should be. ``upto``: not that of a step, but the average from there to this one."""

    step: int
    metric: str
    unbroken: float
    resumed: float
    upto: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All that was compared. ``steps`` are in order; ``missing`` those that the resumed run should have printed.

    ``main``: the metric that says how the training goes. ``noise`` is known of metrics that are not compared exactly;
    ``floor``: how far a value may lie off, 0.0: not at all. ``differences`` are in order of steps, the main metric
    first. ``before``: the first difference of the part before the stop from unbroken runs that are equal.
    """

    steps: tuple[int, ...]
    missing: tuple[int, ...]
    main: str | None
    metrics: tuple[str, ...]
    left_out: Mapping[str, str]
    exact: bool
    floor: Mapping[str, float]
    noise: Mapping[str, MetricNoise]
    differences: tuple[Difference, ...]
    compared: int
    before: Difference | None


def same(one: float, two: float) -> bool:
    """Say whether two values are equal in every digit; NaN is equal to NaN."""
    return one == two or (math.isnan(one) and math.isnan(two))


def training_steps(series: Series) -> list[int]:
    """Return the steps that were trained, in order: those where not only an evaluation printed something."""
    return sorted(s for s, row in series.items() if not row or any(not of_an_evaluation(name) for name in row))


def column(series: Series, metric: str) -> dict[int, float]:
    """Return the values of one metric by step."""
    return {step: row[metric] for step, row in series.items() if metric in row}


def compare(
    first: Course, second: Course, before: Course, after: Course, *, until: int, tolerance: float | None
) -> Comparison:
    """Compare each value that both unbroken runs and the resumed one have, from its first step up to ``until``.

    ``tolerance``: how far a value may lie off, as a part of the larger of the two; None: what the unbroken runs say.
    """
    trained = training_steps(after.series)
    start = trained[0] if trained else min(after.series, default=until + 1)
    unbroken = [step for step in training_steps(first.series) if step in second.series and step <= until]
    done = before.last_step if before.last_step is not None else start
    missing = tuple(step for step in unbroken if step > min(start - 1, done) and step not in after.series)
    names = {name for row in first.series.values() for name in row}
    names &= {name for row in second.series.values() for name in row}
    left_out = {name: OF_THE_MACHINE for name in sorted(names) if of_the_machine(name)}
    runs = (first.series, second.series)
    main = main_metric(names - left_out.keys())
    apart = {name for name in names - left_out.keys() if _apart(*runs, name, until)}
    if main is not None and main not in apart:
        left_out |= {name: VARIES.format(main) for name in sorted(apart)}
    span = [step for step in sorted(after.series) if start <= step <= until and step in runs[0] and step in runs[1]]
    wanted = {name for step in span for name in runs[0][step] if name in runs[1][step]} - left_out.keys()
    left_out |= {name: ABSENT for name in sorted(wanted) if not any(name in after.series[step] for step in span)}
    metrics = sorted(wanted - left_out.keys(), key=lambda name: (name != main, name))
    strayed = _strayed(first.series, before.series, metrics, until) if not apart - left_out.keys() else None
    exact = not (apart - left_out.keys() or strayed)
    table = _Table(runs, before.series, after.series, span)
    found = table.judge(metrics, exact=exact, tolerance=tolerance)
    return Comparison(
        steps=tuple(step for step in span if step in trained or not trained),
        missing=missing,
        main=main,
        metrics=tuple(name for name in metrics if name not in found.left_out),
        left_out=left_out | found.left_out,
        exact=exact,
        floor=found.floor,
        noise=found.noise,
        differences=tuple(sorted(found.differences, key=lambda one: (one.step, metrics.index(one.metric)))),
        compared=sum(len(table.places(name)) for name in metrics if name not in found.left_out),
        before=strayed,
    )


def _apart(one: Series, two: Series, metric: str, until: int) -> bool:
    """Say whether two runs differ in a metric at any step up to one."""
    left, right = column(one, metric), column(two, metric)
    return any(not same(value, right[step]) for step, value in left.items() if step in right and step <= until)


def _strayed(first: Series, before: Series, metrics: Sequence[str], until: int) -> Difference | None:
    """Return where a run had left the unbroken ones before it was stopped."""
    for step in sorted(before):
        for name in metrics:
            if step <= until and name in before[step] and name in first.get(step, {}):
                expected, value = first[step][name], before[step][name]
                if not same(expected, value):
                    return Difference(step=step, metric=name, unbroken=expected, resumed=value)
    return None


class _Found(msgspec.Struct):
    """What came out, metric by metric."""

    differences: list[Difference] = []
    floor: dict[str, float] = {}
    noise: dict[str, MetricNoise] = {}
    left_out: dict[str, str] = {}


class _Table:
    """The series side by side."""

    def __init__(self, runs: tuple[Series, Series], before: Series, after: Series, span: Sequence[int]) -> None:
        self._first, self._second = runs
        self._before, self._after, self._span = before, after, span

    def places(self, metric: str) -> list[int]:
        """Return the steps at which a metric is compared."""
        rows = (self._first, self._second, self._after)
        return [step for step in self._span if all(metric in run[step] for run in rows)]

    def judge(self, metrics: Sequence[str], *, exact: bool, tolerance: float | None) -> _Found:
        """Compare each metric: within a tolerance that was given, exactly, or within the noise of the unbroken runs."""
        found = _Found()
        noisy = [] if exact or tolerance is not None else [name for name in metrics if not self._certain(name)]
        for name in metrics:
            if name in noisy and is_of_data(name):
                found.left_out[name] = DRAWN
            elif name in noisy:
                self._noisy(name, found, share=len(noisy))
            if name in noisy:
                continue
            expected = {step: self._first[step][name] for step in self.places(name)}
            room = tolerance or 0.0
            for step, value in expected.items():
                resumed = self._after[step][name]
                if not same(value, resumed) and not abs(value - resumed) <= room * max(abs(value), abs(resumed)):
                    found.differences.append(Difference(step=step, metric=name, unbroken=value, resumed=resumed))
            found.floor[name] = room * abs(next(iter(expected.values()))) if room and expected else 0.0
        return found

    def _certain(self, metric: str) -> bool:
        """Say whether a metric is the same in every run although the loss is not: the learning rate, what was read.

        Others may agree because they are printed coarsely, and are no evidence that they always do.
        """
        one, two, three = (column(run, metric) for run in (self._first, self._second, self._before))
        if any(not same(one[step], run[step]) for run in (two, three) for step in run if step in one):
            return False
        values = list(one.values())
        wide = len({*values}) >= 8 and all(value == math.floor(value) for value in values if math.isfinite(value))
        return is_rate(metric) or is_of_data(metric) or (wide and max(values) - min(values) > 100.0)

    def _noisy(self, metric: str, found: _Found, *, share: int) -> None:
        """Compare one metric of a training that is not the same twice."""
        first, second, before, after = (
            column(run, metric) for run in (self._first, self._second, self._before, self._after)
        )
        places = self.places(metric)
        odd = [
            Difference(step=step, metric=metric, unbroken=first[step], resumed=after[step])
            for step in places
            if math.isfinite(first[step]) == math.isfinite(second[step]) != math.isfinite(after[step])
        ]
        found.differences += odd
        noise = examine(first, second, before, after, share=share, places=places)
        if noise is None or (noise.floor == 0.0 and len({*first.values(), *second.values()}) == 1):
            if not odd:
                found.left_out[metric] = TOO_FEW
            return
        found.noise[metric], found.floor[metric] = noise, noise.floor
        for step in noise.beyond:
            middle = _rounded(fmean((first[step], second[step])), first[step], second[step])
            found.differences.append(Difference(step=step, metric=metric, unbroken=middle, resumed=after[step]))
        if noise.biased and not noise.beyond:
            begin, end = noise.mean_steps
            digits = [after[step] for step in places]
            found.differences.append(
                Difference(
                    step=begin,
                    metric=metric,
                    unbroken=_rounded(noise.mean_unbroken, *digits),
                    resumed=_rounded(noise.mean_resumed, *digits),
                    upto=end,
                )
            )


def _rounded(value: float, *printed: float) -> float:
    """Return a value that was computed with one digit more than those that were printed."""
    return round(value, 1 + max((decimals(one) for one in printed if math.isfinite(one)), default=5))
