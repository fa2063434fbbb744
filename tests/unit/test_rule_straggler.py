"""A rank that is slower than the others: what is told, when, and what is not; the same for many records at once."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Places
from overnight.events import Record, Verdict
from overnight.rules import CalmRule, RecordRule
from overnight.rules.straggler import BLOCK, BLOCKS, MOST_RANKS, WARM_UP, Straggler


def ranks(times: dict[int, list[float]], memory: dict[str, Any] | None = None) -> list[Verdict]:
    """Return what is told of ranks that print each step, one after the other."""
    rule, memory = Straggler(), Straggler().fresh() if memory is None else memory
    found, offset = [], 0
    for index in range(max(map(len, times.values()))):
        for rank, column in times.items():
            if index < len(column):
                offset += 1
                record = Record(
                    reader="t", step=index + 1, loss=1.0, dt_s=column[index], rank=rank, at=1.0 + index, offset=offset
                )
                verdict = rule(record, memory)
                found += [] if verdict is None else [verdict]
    return found


def noisy(level: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [level * chance.uniform(0.6, 1.4) for _ in range(count)]


def test_it_is_a_rule_that_can_be_asked_of_many() -> None:
    assert isinstance(Straggler(), RecordRule)
    assert isinstance(Straggler(), CalmRule)
    assert Straggler().action == "alert"
    assert Straggler(action="stop").action == "stop"


def test_one_of_four_is_twice_as_slow() -> None:
    memory = Straggler().fresh()
    (one,) = ranks({0: [0.1] * 300, 1: [0.1] * 300, 2: [0.1] * 100 + [0.2] * 200, 3: [0.1] * 300}, memory)
    assert (one.severity, one.action) == ("warn", "alert")
    assert one.text.startswith("rank 2 is slow: 0.2 s a step since step ~")
    assert one.text.endswith(", the others 0.1 s (2 times)")
    assert one.evidence["ranks"] == [2]
    assert 90 <= one.evidence["since"] <= 110
    assert one.step is not None
    assert one.step <= 100 + (BLOCKS + 2) * BLOCK
    msgspec.json.encode(memory)


def test_slow_from_the_beginning_is_slow() -> None:
    (one,) = ranks({0: [0.1] * 200, 1: [0.1] * 200, 2: [0.2] * 200, 3: [0.1] * 200})
    assert one.evidence["ranks"] == [2]


def test_several_are_told_together_and_again_only_after_they_were_equal() -> None:
    slow = [0.1] * 60 + [0.3] * 200 + [0.1] * 100 + [0.3] * 200
    equal = [0.1] * 560
    found = ranks({0: equal, 1: slow, 2: equal, 3: equal, 4: slow})
    assert [one.action for one in found] == ["alert", "note", "alert"]
    assert found[0].text.startswith("ranks 1, 4 are slow: 0.3, 0.3 s a step since step ~")
    assert found[1].text.startswith("ranks 1, 4 are as fast as the others again at step ")
    assert len({one.key for one in found}) == 3


@pytest.mark.parametrize(
    "times",
    [
        {rank: noisy(0.1, 2000, rank) for rank in range(4)},
        {0: [0.1] * 500, 1: [0.14] * 500, 2: [0.1] * 500},
        {0: [0.1] * 200 + [0.5] * 300, 1: [0.1] * 200 + [0.5] * 300},  # all of them: nobody is late
        {0: [5.0 if number % 8 == 0 else 0.1 for number in range(500)], 1: [0.1] * 500},  # rank 0 saves
        {0: [60.0] * WARM_UP + [0.1] * 300, 1: [0.1] * 310},
        {0: [0.1] * 300, 1: [0.1] * 100 + [0.3] * 20 + [0.1] * 180},  # a moment
        {0: [0.0] * 300, 1: [0.1] * 300},
        {2: [0.1] * 100 + [0.4] * 300},  # one rank prints
        {0: [0.1] * 100, 1: [0.1] * 20, 2: [0.1] * 100},  # one that prints no more
    ],
)
def test_equal_ranks_are_silent(times: dict[int, list[float]]) -> None:
    assert not ranks(times)


def test_records_without_a_rank_leave_no_trace() -> None:
    memory = Straggler().fresh()
    for step in range(200):
        assert Straggler()(Record(reader="t", step=step, loss=1.0, dt_s=0.1), memory) is None
        assert Straggler()(Record(reader="t", step=step, loss=1.0, dt_s=0.1, rank=1, glued=True), memory) is None
        assert Straggler()(Record(reader="t", step=step, loss=1.0, dt_s=0.1, rank=1, kind="eval"), memory) is None
    assert memory == Straggler().fresh()


def test_the_memory_is_bounded() -> None:
    memory = Straggler().fresh()
    ranks({rank: [0.1] * 40 for rank in range(3 * MOST_RANKS)}, memory)
    assert len(memory["ranks"]) == MOST_RANKS
    assert len(memory) <= 5 * MOST_RANKS


def test_ranks_that_do_not_wait_for_each_other_are_told_by_their_arrivals() -> None:
    rule, memory, found = Straggler(), Straggler().fresh(), []
    for second in range(1200):
        for rank in range(4):
            if rank != 2 or second % 2 == 0:
                step = second // 2 if rank == 2 else second
                verdict = rule(Record(reader="t", step=step, loss=1.0, rank=rank, at=1e6 + 5 * (second // 5)), memory)
                found += [] if verdict is None else [verdict]
    (one,) = found
    assert one.evidence["ranks"] == [2]
    assert one.evidence["step_s"] == [pytest.approx(2.0, rel=0.1)]


# -- many records at once --------------------------------------------------------------------------------------------


def batch(first: int, times: list[float] | None, count: int, rank: int | None, at: float) -> Batch:
    return Batch(
        reader="t", source=0, at=at, rank=rank, loss=[1.0] * count, extra={}, places=Places(b"x\n" * count, 0),
        steps=list(range(first, first + count)), columns={} if times is None else {"dt_s": times},
    )  # fmt: skip


pieces = st.tuples(
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([0.1, 0.2, 1.0, 0.0, None]),
    st.integers(1, 70),
    st.integers(0, 90),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=40))
def test_as_one_by_one(course: list[tuple[int | None, float | None, int, int]]) -> None:
    rule = Straggler()
    memory, steps, at = rule.fresh(), dict.fromkeys([None, 0, 1, 2], 0), 1e6
    for rank, dt, count, passed in course:
        at += passed
        times = None if dt is None else [dt * (1 + number % 3 / 50) for number in range(count)]
        records = batch(steps[rank], times, count, rank, at)
        steps[rank] += count
        kept = repr(memory)
        calm, changes = rule.calm(records, memory)
        assert repr(memory) == kept
        expected = dict(memory)
        said = [rule(entry.record, expected) for _, entry in zip(range(calm), records, strict=False)]
        assert said == [None] * calm
        assert calm == 0 or {**memory, **changes} == expected
        if calm:
            assert rule.calm(records.part(0, calm, attempt=1, segment=1), memory) == (calm, changes)
        for entry in records:
            rule(entry.record, memory)


def test_a_batch_ends_where_a_straggler_is_told() -> None:
    rule, memory = Straggler(), Straggler().fresh()
    turns, found = 0, False
    for turn in range(12):
        for rank, dt in ((0, 0.1), (1, 0.3)):
            records = batch(1 + 20 * turn, [dt] * 20, 20, rank, 1.0)
            calm, _ = rule.calm(records, memory)
            verdicts = [rule(entry.record, memory) for entry in records]
            if any(verdicts):
                found = True
                assert verdicts[calm] is not None
                assert verdicts[:calm] == [None] * calm
            turns += calm == 20
    assert found
    assert turns >= 18


def test_many_records_of_no_rank_cost_nothing() -> None:
    assert Straggler().calm(batch(1, [0.1] * 500, 500, None, 1.0), Straggler().fresh()) == (500, {})
