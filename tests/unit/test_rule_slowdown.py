"""Steps that take longer than they did: what is told, when, and what is not; the same for many records at once."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Places
from overnight.events import Record, Verdict
from overnight.rules import CalmRule, RecordRule, SensorRule
from overnight.rules.slowblocks import BLOCK, CLEAR_S, STEEP_BLOCKS
from overnight.rules.slowdown import WARM_UP, Slowdown
from overnight.sensors import Gpu, GpuSample, Sensed


def judged(times: list[float], memory: dict[str, Any] | None = None, first: int = 1, **more: Any) -> list[Verdict]:
    """Return what is told of records with these step times."""
    rule, memory = Slowdown(), Slowdown().fresh() if memory is None else memory
    found = []
    for number, dt in enumerate(times):
        record = Record(reader="t", step=first + number, loss=1.0, dt_s=dt, at=1000.0 + number, offset=number, **more)
        verdict = rule(record, memory)
        if verdict is not None:
            found.append(verdict)
    return found


def jittered(level: float, count: int, part: float = 0.02, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.uniform(-part, part)) for _ in range(count)]


def gpu_sample(at: float, celsius: float, *throttle: str, ours: bool | None = True) -> Sensed:
    gpu = Gpu(index=0, temperature_c=celsius, throttle=throttle, ours=ours)
    return Sensed(sample=GpuSample(at=at, gpus=(gpu,)), active_s=at)


def test_it_is_a_rule_of_three_kinds() -> None:
    rule = Slowdown(action="note")
    assert isinstance(rule, RecordRule)
    assert isinstance(rule, CalmRule)
    assert isinstance(rule, SensorRule)
    assert rule.action == "note"
    assert Slowdown().action == "alert"
    msgspec.json.encode(rule.fresh())


def test_a_hot_gpu_makes_one_alert_with_its_temperature() -> None:
    """The training slows from 0.1 to 0.25 s after step 300; one alert, however long it lasts."""
    rule = Slowdown()
    memory = rule.fresh()
    found = []
    for step in range(1, 601):
        at = 1000.0 + step
        if step % 10 == 0:
            assert rule.on_sample(gpu_sample(at, *((91.0, "thermal") if step > 300 else (60.0,))), memory) == ()
        record = Record(reader="t", step=step, loss=1.0, dt_s=0.25 if step > 300 else 0.1, at=at)
        verdict = rule(record, memory)
        if verdict is not None:
            found.append(verdict)
    (one,) = found
    assert (one.severity, one.action) == ("warn", "alert")
    told = "step time 0.1 -> 0.25 s since step ~301 (speed -60%); GPU 0 at 91 C, throttled (thermal)"
    assert one.text == told
    assert one.step is not None
    assert 300 + (STEEP_BLOCKS - 1) * BLOCK < one.step <= 300 + (STEEP_BLOCKS + 1) * BLOCK
    assert one.evidence["temperature_c"] == 91.0
    assert one.evidence["throttle"] == "thermal"
    assert one.evidence["speed_change"] == pytest.approx(-0.6)
    assert one.evidence["since"] == 301


def test_an_old_sample_or_another_ones_gpu_says_nothing() -> None:
    for at, ours in ((10.0, True), (1350.0, False)):
        memory = Slowdown().fresh()
        Slowdown().on_sample(gpu_sample(at, 91.0, "thermal", ours=ours), memory)
        (one,) = judged([0.1] * 300 + [0.25] * 100, memory)
        assert "GPU" not in one.text
        assert "temperature_c" not in one.evidence


def test_throttling_that_was_seen_a_moment_ago_is_not_forgotten() -> None:
    memory = Slowdown().fresh()
    Slowdown().on_sample(gpu_sample(1330.0, 91.0, "hw_slowdown", "sync_boost"), memory)
    Slowdown().on_sample(gpu_sample(1340.0, 88.0), memory)
    (one,) = judged([0.1] * 300 + [0.25] * 100, memory)
    assert one.text.endswith("GPU 0 at 91 C, throttled (hw_slowdown)")
    memory = Slowdown().fresh()
    Slowdown().on_sample(gpu_sample(1000.0, 91.0, "hw_slowdown"), memory)
    Slowdown().on_sample(gpu_sample(1340.0, 70.0), memory)
    (one,) = judged([0.1] * 300 + [0.25] * 100, memory)
    assert one.text.endswith("GPU 0 at 70 C, not throttled")


def test_it_is_over_and_armed_anew() -> None:
    found = judged([0.1] * 300 + [0.25] * 120 + [0.1] * 200 + [0.3] * 120 + [0.1] * 200)
    assert [one.action for one in found] == ["alert", "note", "alert", "note"]
    assert found[1].text.startswith("step time is 0.1 s again at step ")
    assert found[1].text.endswith("; it was 0.25 s since step ~301")
    assert len({one.key for one in found}) == 4


def test_what_swings_is_told_less_and_less() -> None:
    found = judged(([0.1] * 200 + [0.17] * 200) * 12)
    assert 1 <= sum(one.action == "alert" for one in found) <= 2


def test_a_new_level_becomes_the_usual_one() -> None:
    found = judged([0.1] * 300 + [0.25] * 1500 + [0.5] * 300)
    assert [one.action for one in found] == ["alert", "alert"]
    assert "0.25 -> 0.5 s" in found[1].text


def test_a_mild_rise_takes_longer_and_a_faint_one_is_nothing() -> None:
    (one,) = judged([1.0] * 300 + [1.3] * 300)
    assert one.step is not None
    assert one.step >= 300 + 7 * BLOCK
    assert not judged([1.0] * 300 + [1.2] * 2000)


@pytest.mark.parametrize(
    "times",
    [
        [30.0] * WARM_UP + [0.1] * 500,  # compiling
        [5.0 if number % 10 == 0 else 0.1 for number in range(3000)],  # evaluations
        [0.1] * 300 + [60.0] + [0.1] * 300 + [20.0] * 5 + [0.1] * 300,  # saves, a pause
        [0.1] * 300 + [0.3] * 20 + [0.1] * 300,  # too short
        [0.3] * 100 + [0.1] * 900,  # faster
        [0.0001] * 300 + [0.0003] * 10000,  # slower for 3 s
        [0.0] * 500,
        [float("nan"), float("inf"), -1.0] * 200,
        jittered(0.1, 20000, 0.5),
        [0.1 * (1 + number % 7) for number in range(5000)],  # batches of many lengths
    ],
)
def test_healthy_trainings(times: list[float]) -> None:
    assert not judged(times)


def test_what_came_and_went_has_to_be_outlasted() -> None:
    (one,) = judged([0.1] * 400 + [0.2] * 64)
    assert CLEAR_S < 64 * 0.2
    visits = ([0.1] * 400 + [0.2] * 20) * 4  # other work on the machine, 4 s each time
    assert not judged([*visits, *([0.1] * 400), *([0.2] * 64)])
    (one,) = judged([*visits, *([0.1] * 400), *([0.2] * 200)])
    assert one.step is not None
    assert one.step > 4 * 420 + 400 + 64


def test_the_lowest_rank_and_only_records_of_training() -> None:
    memory = Slowdown().fresh()
    assert not judged([0.1] * 200, memory, rank=0)
    kept = dict(memory)
    assert not judged([9.0] * 200, memory, rank=1)
    assert not judged([9.0] * 200, memory, rank=0, kind="eval")
    assert not judged([9.0] * 200, memory, rank=0, glued=True)
    assert memory == kept


def test_printed_rates_will_do() -> None:
    rule = Slowdown()
    memory = rule.fresh()
    found = []
    for step in range(1, 601):
        rate = 400.0 if step > 300 else 1000.0
        verdict = rule(Record(reader="t", step=step, loss=1.0, tokens_per_s=rate), memory)
        if verdict is not None:
            found.append(verdict)
    (one,) = found
    assert one.text == "speed 1000 -> 400 tokens/s since step ~301 (speed -60%)"
    assert one.evidence["unit"] == "tokens/s"


def arrivals(steps: list[tuple[int, float]]) -> list[Verdict]:
    rule, memory = Slowdown(), Slowdown().fresh()
    records = [Record(reader="t", step=step, loss=1.0, at=at) for step, at in steps]
    return [verdict for record in records if (verdict := rule(record, memory)) is not None]


def test_arrivals_stand_in_where_no_time_is_printed() -> None:
    at, steps = 1e6, []
    for step in range(1, 3001):
        at += 1.0 if step <= 1500 else 2.5
        steps.append((step, float(10 * round(at / 10))))  # known to 10 s
    (one,) = arrivals(steps)
    assert "1 -> 2.5 s" in one.text
    assert 1700 > one.evidence["since"] > 1400
    assert not arrivals(steps[:1500])


def test_a_backlog_and_a_suspended_machine_are_no_slowdown() -> None:
    steady = [(step, 1e6 + step) for step in range(1, 1001)]
    backlog = [(step, 1e6 + 2000) for step in range(1001, 2001)]  # the reader was away, then read all at once
    after = [(step, 1e6 + step) for step in range(2001, 3001)]
    assert not arrivals(steady + backlog + after)
    slept = [(step, at + 30000) for step, at in after]
    assert not arrivals(steady + slept)
    assert not arrivals(steady + [(step, at - 90000) for step, at in after])


def test_what_is_usual_is_handed_on() -> None:
    memory = Slowdown().fresh()
    assert Slowdown.carry(memory) is None
    judged([0.1] * 300, memory)
    handed = Slowdown.carry(memory)
    assert handed is not None
    (one,) = judged([0.25] * 200, handed, first=301)
    assert "0.1 -> 0.25 s" in one.text
    again = Slowdown.carry(handed)
    assert again is not None
    assert not judged([0.25] * 200, again, first=501)  # the same event


# -- many records at once --------------------------------------------------------------------------------------------


def batch(times: list[float] | None, first: int, count: int, name: str, **more: Any) -> Batch:
    return Batch(
        reader="t", source=0, loss=[1.0] * count, extra={}, places=Places(b"x\n" * count, 0),
        steps=list(range(first, first + 3 * count, 3)), columns={} if times is None else {name: times}, **more,
    )  # fmt: skip


levels = st.builds(
    lambda level, noise, count, seed: jittered(level, count, noise, seed),
    st.sampled_from([0.1, 0.13, 0.17, 0.25, 1.0, 40.0]),
    st.sampled_from([0.0, 0.02, 0.4]),
    st.integers(1, 200),
    st.integers(0, 5),
)
odd = st.sampled_from([[0.0], [-1.0], [float("inf")], [1e308] * 3, [60.0]])
courses = st.lists(levels | odd, min_size=1, max_size=7).map(lambda parts: [one for part in parts for one in part])


@settings(max_examples=300, deadline=None)
@given(
    before=courses, then=courses, name=st.sampled_from(["dt_s", "tokens_per_s", "samples_per_s"]),
    other=st.sampled_from([None, "dt_s", "tokens_per_s"]), rank=st.sampled_from([None, 0, 1]), fresh=st.booleans(),
)  # fmt: skip
def test_as_one_by_one(
    *, before: list[float], then: list[float], name: str, other: str | None, rank: int | None, fresh: bool
) -> None:
    rule = Slowdown()
    memory = rule.fresh()
    if not fresh:
        for entry in batch(before, 1, len(before), other or name, at=5.0, rank=0):
            rule(entry.record, memory)
    compare(rule, memory, batch(then, 3 * len(before) + 1, len(then), name, at=9.0, rank=rank))


@settings(max_examples=200, deadline=None)
@given(
    groups=st.lists(
        st.tuples(st.floats(-100, 400).map(round), st.integers(1, 40)) | st.tuples(st.just(70), st.just(9)),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_arrivals_as_one_by_one(groups: list[tuple[int, int]]) -> None:
    rule = Slowdown()
    memory, at, first = rule.fresh(), 1e6, 1
    for passed, count in groups:
        at += passed
        records = batch(None, first, count, "", at=at, rank=None)
        compare(rule, memory, records)
        for entry in records:
            rule(entry.record, memory)
        first += 3 * count


def compare(rule: Slowdown, memory: dict[str, Any], records: Batch) -> None:
    kept = repr(memory)
    count, changes = rule.calm(records, memory)
    assert repr(memory) == kept
    assert 0 <= count <= len(records)
    expected = dict(memory)
    said = [rule(entry.record, expected) for _, entry in zip(range(count), records, strict=False)]
    assert said == [None] * count
    assert count == 0 or {**memory, **changes} == expected
    if count:
        assert rule.calm(records.part(0, count, attempt=1, segment=1), memory) == (count, changes)


def test_a_steady_stretch_is_calm_to_its_end() -> None:
    rule = Slowdown()
    memory = rule.fresh()
    judged([0.1] * 100, memory)
    times = jittered(0.1, 1000)
    assert rule.calm(batch(times, 101, 1000, "dt_s", at=1.0, rank=None), memory)[0] == 1000
    slow = [0.1] * 28 + [0.25] * 1000
    count, _ = rule.calm(batch(slow, 101, 1028, "dt_s", at=1.0, rank=None), memory)
    assert 28 + STEEP_BLOCKS * BLOCK - BLOCK < count < 28 + (STEEP_BLOCKS + 2) * BLOCK


@pytest.mark.parametrize("seed", range(4))
def test_a_long_run_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    times: list[float] = []
    while len(times) < 12_000:  # until only every eighth block is kept, and each kind of odd stretch has come then
        times += jittered(0.1, chance.randrange(1, 900), chance.choice([0.0, 0.02, 0.2]), chance.randrange(9))
        times += [chance.choice([0.1, 0.126, 0.3, 9.0])] * chance.choice([1, 1, 40, 300])
    rule = Slowdown()
    alone, together, place = rule.fresh(), rule.fresh(), 0
    told: list[int] = []
    while place < len(times):
        size = chance.choice([1, 5, 16, 100, 1024])
        records = batch(
            times[place : place + size], 1 + 3 * place, len(times[place : place + size]), "dt_s", at=1.0, rank=0
        )
        count, changes = rule.calm(records, together)
        together.update(changes if count else {})
        if count < len(records):
            count += 1
            told += [place] * (rule(records.record(count - 1), together) is not None)
        alone_told = [rule(records.record(number), alone) is not None for number in range(count)]
        assert any(alone_told) == (told[-1:] == [place])
        assert alone == together
        place += count
    assert told
    assert alone["stride"] >= 8
