"""Goodput as it is counted live and afterwards is one: restarts, fresh starts, saves within steps, a stray number."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from overnight.batches import Batch, Places
from overnight.events import Record
from overnight.meter import Meter
from overnight.overall import whole
from overnight.pacing.goodput import Goodput, measure
from overnight.yardsticks.basis import Figures

USUAL = 0.05
WALL_S = 400.0


class Column(NamedTuple):
    values: array[float]
    missing: bytes | None = None


class Span(NamedTuple):
    attempt: int
    segment: int


class Stretch(NamedTuple):
    span: Span
    steps: Column
    at: array[float]
    columns: dict[str, Column]
    kept: int
    per_device: bool = False


Lines = list[tuple[int, float]]
"""(step, seconds) of each line of an attempt."""


def steps(first: int, last: int, *, opening: float = USUAL, every: int = 0, save: float = USUAL) -> Lines:
    """Return lines of which the first took ``opening``, and each one behind a multiple of ``every`` took ``save``."""
    found = []
    for step in range(first, last + 1):
        saved = every and step % every == 1 and step > first
        found.append((step, opening if step == first else save if saved else USUAL + 0.001 * (step % 7)))
    return found


NIGHTS: dict[str, tuple[list[Lines], int]] = {
    "one start": ([steps(1, 300)], 300),
    "warm-ups": ([steps(1, 120, opening=5.5), steps(101, 220, opening=4.0), steps(201, 300, opening=4.5)], 300),
    "saves of a library": ([steps(1, 160, every=15, save=0.9), steps(151, 300, opening=3.95, every=15, save=0.9)], 300),
    "a fresh start": ([steps(1, 320, opening=2.0), steps(1, 400, opening=2.0)], 400),
    "killed again and again": ([steps(15 * n + 1, 15 * n + 29, opening=3.0) for n in range(20)], 314),
    "killed at once": (
        [steps(1, 100), steps(101, 101, opening=9.0), steps(101, 102, opening=9.0), steps(101, 200)],
        200,
    ),
    "a stray number": ([[*steps(1, 50), (1_000_000, USUAL), *steps(51, 200)], steps(151, 300)], 300),
    "a stray number behind a stall": ([[*steps(1, 50), (7_000, 30.0), *steps(51, 200)]], 200),
}


def live(attempts: list[Lines], *, many: bool = False) -> Meter:
    meter = Meter(Figures(), 10)
    at = 1e9
    for lines in attempts:
        meter.begin_attempt()
        at += 10.0
        place = 0
        while place < len(lines):
            rising = risen(lines, place)
            if many and len(rising) > 1 and meter.follows(None, rising[0][0]):
                batch = Batch(
                    reader="test", source=0, at=at, rank=None, steps=[one for one, _ in rising],
                    loss=[3.0] * len(rising), columns={"dt_s": [dt for _, dt in rising]}, extra={},
                    places=Places(b"x\n" * len(rising), 0),
                )  # fmt: skip
                meter.add_many(batch.part(0, len(rising), attempt=1, segment=0))
                place += len(rising)
                continue
            meter.add(Record(reader="test", step=lines[place][0], dt_s=lines[place][1], loss=3.0, at=at))
            place += 1
    return meter


def risen(lines: Lines, place: int) -> Lines:
    end = place + 1
    while end < len(lines) and lines[end][0] > lines[end - 1][0]:
        end += 1
    return lines[place:end]


def afterwards(attempts: list[Lines]) -> Goodput:
    return measure(segments(attempts), wall_s=WALL_S)


def segments(attempts: list[Lines]) -> Iterator[Stretch]:
    """Yield what the views give: a step counts where it was done last."""
    parts = []
    for number, lines in enumerate(attempts, 1):
        place = 0
        while place < len(lines):
            parts.append((number, risen(lines, place)))
            place += len(parts[-1][1])
    limit = math.inf
    kept = []
    for _, lines in reversed(parts):
        kept.append(sum(step < limit for step, _ in lines))
        limit = min(limit, lines[0][0])
    for place, ((number, lines), count) in enumerate(zip(parts, reversed(kept), strict=True)):
        yield Stretch(
            Span(number, place),
            Column(array("d", [step for step, _ in lines])),
            array("d", [0.0] * len(lines)),
            {"dt_s": Column(array("d", [dt for _, dt in lines]))},
            count,
        )


@pytest.mark.parametrize("name", NIGHTS)
def test_live_and_afterwards_are_one(name: str) -> None:
    attempts, count = NIGHTS[name]
    meter, told = live(attempts), afterwards(attempts)
    assert (meter.advance.steps_done, told.productive_steps) == (count, count)
    now = whole(meter, WALL_S).goodput
    assert now == pytest.approx(told.goodput, rel=0.01)
    assert now == pytest.approx(count * 0.053 / WALL_S, rel=0.02), "a warm-up, a save and what is redone are no work"


@pytest.mark.parametrize("name", NIGHTS)
def test_many_at_once_and_a_pause_change_nothing(name: str) -> None:
    attempts, _ = NIGHTS[name]
    one, many = live(attempts), live(attempts, many=True)
    assert repr(one.snapshot()) == repr(many.snapshot())
    again = Meter(Figures(), 10)
    again.restore(one.snapshot())
    assert repr(again.snapshot()) == repr(one.snapshot())
