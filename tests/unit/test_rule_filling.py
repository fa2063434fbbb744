"""Memory and disks that fill up over a night, and those that only seem to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Verdict
from overnight.rules import SensorRule
from overnight.rules.diskspace import DiskSpace
from overnight.rules.memory import MemoryCreep
from overnight.sensors import Disk, Gpu, GpuSample, HostSample, Sensed
from overnight.sensors.filling import MOST, points_of, taken

GIB = 1 << 30
AT = 1_700_000_000.0


def night(rule: Any, sample: Callable[[float], Any], hours: float, every: float = 10.0) -> list[Verdict]:
    memory, found = rule.fresh(), []
    for number in range(int(hours * 3600 / every)):
        passed = every * number
        found += rule.on_sample(Sensed(sample=sample(passed), active_s=passed, step=number), memory)
    msgspec.json.encode(memory)
    assert len({one.key for one in found}) == len(found)
    assert len(msgspec.json.encode(memory)) < 20_000
    return found


def host(free: float, rss: float | None = None) -> Callable[[float], HostSample]:
    """Return samples of a machine of 64 GiB whose memory shrinks by ``free`` GiB an hour from 40."""

    def sample(passed: float) -> HostSample:
        left = max(0, int((40 - free * passed / 3600) * GIB))
        own = None if rss is None else int((5 + rss * passed / 3600) * GIB)
        return HostSample(at=AT + passed, memory_total=64 * GIB, memory_available=left, rss=own)

    return sample


def disk(free: Callable[[float], float], total: float = 1000.0) -> Callable[[float], HostSample]:
    def sample(passed: float) -> HostSample:
        one = Disk(mount="/data", holds=("log", "checkpoints"), free=int(free(passed) * GIB), total=int(total * GIB))
        return HostSample(at=AT + passed, disks=(one,))

    return sample


def alerts(found: list[Verdict]) -> list[Verdict]:
    return [one for one in found if one.action != "note"]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_leak_is_told_with_its_end_and_once_more_when_it_is_near() -> None:
    found = night(MemoryCreep(), host(8.0, rss=8.0), 4.5)
    assert isinstance(MemoryCreep(), SensorRule)
    assert [one.action for one in found] == ["alert", "alert"]
    first, near = found
    assert first.at is not None
    assert first.at < AT + 6000
    assert first.text.startswith("the machine's memory will be full in 3.")
    assert "the run's processes hold" in first.text
    assert "more than after the start" in first.text
    assert first.at + first.evidence["left_s"] == pytest.approx(AT + 5 * 3600, abs=900)
    assert near.evidence["left_s"] <= 3600


def test_a_leak_of_others_is_told_too_and_a_mapped_file_is_none() -> None:
    assert len(alerts(night(MemoryCreep(), host(8.0), 3))) == 1
    assert not night(MemoryCreep(), host(0.0, rss=5.0), 6)  # pages of a data set: available memory stays


def test_where_only_the_processes_are_known() -> None:
    def sample(passed: float) -> HostSample:
        return HostSample(at=AT + passed, memory_total=64 * GIB, rss=int((20 + 8 * passed / 3600) * GIB))

    assert len(alerts(night(MemoryCreep(), sample, 3))) == 1


def test_memory_that_comes_back_is_no_leak() -> None:
    def sample(passed: float) -> HostSample:
        return HostSample(
            at=AT + passed, memory_total=64 * GIB, memory_available=int((40 - 8 * (passed % 1500) / 1500) * GIB)
        )

    assert not night(MemoryCreep(), sample, 8)


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_wanders_is_no_leak(seed: int) -> None:
    chance = random.Random(seed)

    def sample(passed: float) -> HostSample:
        grown = 8 * min(1.0, passed / 200)  # workers and caches at the start
        return HostSample(
            at=AT + passed, memory_total=64 * GIB, memory_available=int((40 - grown + chance.uniform(-2, 2)) * GIB)
        )

    assert not night(MemoryCreep(), sample, 8)


def test_nearly_nothing_left_is_told_without_a_trend() -> None:
    def sample(passed: float) -> HostSample:
        left = 1.0 if 1000 < passed < 3000 else 30.0
        return HostSample(at=AT + passed, memory_total=64 * GIB, memory_available=int(left * GIB))

    found = night(MemoryCreep(), sample, 3)
    assert [one.action for one in found] == ["alert", "note"]
    assert found[0].text == "the machine's memory is nearly full: 1 GiB of 64 GiB are available"
    assert found[1].text.startswith("the machine's memory is not filling up any more")


def test_a_gpu_of_the_run_that_fills_up() -> None:
    def sample(ours: bool | None) -> Callable[[float], GpuSample]:
        def one(passed: float) -> GpuSample:
            used = int((20 + 10 * passed / 3600) * GIB)
            return GpuSample(at=AT + passed, gpus=(Gpu(index=3, ours=ours, memory_used=used, memory_total=80 * GIB),))

        return one

    (found,) = night(MemoryCreep(), sample(ours=True), 3)
    assert found.text.startswith("the memory of GPU 3 will be full in ")
    assert found.evidence["of"] == "gpu3"
    assert not night(MemoryCreep(), sample(ours=False), 3)


def test_an_allocator_that_has_taken_nearly_all_is_well() -> None:
    def sample(passed: float) -> GpuSample:
        used = int(min(79.5, 40 + 5 * (passed // 60)) * GIB)
        return GpuSample(at=AT + passed, gpus=(Gpu(index=0, ours=True, memory_used=used, memory_total=80 * GIB),))

    assert not night(MemoryCreep(), sample, 4)


# -- disks -----------------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_is_told_with_the_time() -> None:
    found = night(DiskSpace(), disk(lambda passed: 300 - 60 * passed / 3600), 4.6)
    assert isinstance(DiskSpace(), SensorRule)
    assert [one.action for one in found] == ["alert", "alert"]
    assert found[0].text.startswith("the disk of log and checkpoints (/data) will be full in 3.")
    assert ", at 2023-11-15 0" in found[0].text
    assert found[0].evidence["full_at"] == pytest.approx(AT + 5 * 3600, abs=900)
    assert (found[0].at or 0) < AT + 6000


def test_saves_that_stay_fill_a_disk() -> None:
    found = night(DiskSpace(), disk(lambda passed: 300 - 20 * (passed // 1200)), 3)
    assert len(alerts(found)) == 1


def test_saves_that_come_and_go_do_not() -> None:
    assert not night(DiskSpace(), disk(lambda passed: 300 - 15 * (passed // 600 % 4) - 20 * (passed % 600 < 60)), 10)
    assert not night(DiskSpace(), disk(lambda _: 300.0), 3)
    assert not night(DiskSpace(), disk(lambda passed: 300 - passed / 3600), 10)  # 300 h to go


def test_it_is_over_when_somebody_makes_room() -> None:
    found = night(DiskSpace(), disk(lambda passed: 300 - 60 * passed / 3600 if passed < 7200 else 900.0), 4)
    assert [one.action for one in found] == ["alert", "note"]


def test_a_full_disk_and_one_without_room_for_files() -> None:
    (found,) = night(DiskSpace(), disk(lambda _: 5.0), 1)
    assert found.text == "the disk of log and checkpoints (/data) is nearly full: 5 GiB free of 1000 GiB"

    def few(left: int) -> Callable[[float], HostSample]:
        return lambda passed: HostSample(at=AT + passed, disks=(Disk(mount="/", holds=("log",), inodes_free=left),))

    (found,) = night(DiskSpace(action="stop"), few(400), 1)
    assert found.text == "the disk of log (/) has room for only 400 more files (inodes)"
    assert found.action == "stop"
    assert not night(DiskSpace(), few(0), 1)


# -- the course ------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 5000.0), st.floats(0.0, 1e12)), min_size=1, max_size=400))
def test_a_course_is_bounded_and_keeps_the_least(values: list[tuple[float, float]]) -> None:
    course: list[float] = []
    at, least = AT, float("inf")
    for passed, free in values:
        at += passed
        least = min(least, free)
        before, kept = course, list(course)
        course, _ = taken(course, at, free)
        assert before == kept
        points = points_of(course)
        assert len(points) <= MOST
        assert min(value for _, value in points) == least
        assert [moment for moment, _ in points] == sorted(moment for moment, _ in points)
    back, whole = taken(course, AT - 1.0, 5.0)
    assert not whole
    assert points_of(back) == [(AT - 1.0, 5.0)]
