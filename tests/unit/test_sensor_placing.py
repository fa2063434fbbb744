"""Where a sample belongs, by its time only: the same answer live and when a night is read again."""

from __future__ import annotations

from math import inf

import pytest

from overnight.sensors import Gpu, GpuSample, HostSample
from overnight.sensors.placing import KEPT, LIVE, SOURCES, Course, Stand, kind_of, record_of


def now() -> Stand:
    return Stand(1, 9, 900)


def walked(course: Course, marks: int) -> Course:
    """Let a mark come every ten seconds, with ten steps between two."""
    for number in range(marks):
        course.mark(100.0 + 10 * number, Stand(1, 1, 10 * number if number else None))
    return course


@pytest.mark.parametrize("most", [None, LIVE])
def test_a_sample_belongs_before_the_next_mark(most: int | None) -> None:
    course = walked(Course(most), 5)
    assert course.at(99.0, now).step is None
    assert course.at(100.0, now).step == 10  # what came with a mark came at its time or later
    assert course.at(109.9, now).step == 10
    assert course.at(135.0, now).step == 40
    assert course.at(140.0, now) == now()
    assert course.begins == 100.0


def test_before_the_first_mark_it_stands_where_it_stands_now() -> None:
    assert Course().begins == inf
    assert Course().at(5.0, now) == now()


def test_a_followed_run_remembers_few_marks_and_a_rebuild_all() -> None:
    live, whole = walked(Course(), 1000), walked(Course(None), 1000)
    for at in (10_050.0, 9_900.0, 10_089.0):
        assert live.at(at, now) == whole.at(at, now)
    assert whole.at(150.0, now).step == 60
    assert (live.at(150.0, now).step or 0) > 8000  # the oldest that is known
    whole.forget()
    assert whole.at(10_050.0, now) == live.at(10_050.0, now)


def test_a_clock_that_was_set_back_does_not_hold_samples_back() -> None:
    live = walked(Course(), 10)
    live.mark(50.0, Stand(1, 1, 90))
    assert live.at(49.0, now).step == 90
    assert live.at(60.0, now) == now()


def test_a_later_supervisor_knows_the_newest_marks() -> None:
    first, later = walked(Course(), 30), Course()
    later.restore(first.snapshot())
    for at in (100.0 + 290, 385.0, 330.0):
        assert later.at(at, now) == first.at(at, now)
    assert len(first.snapshot()) == KEPT


def test_a_sample_as_a_record() -> None:
    gpu = GpuSample(at=5.0, gpus=(Gpu(index=0, temperature_c=60.0),))
    record = record_of(gpu, 700, 41)
    assert record is not None
    assert (record.kind, record.source, record.offset, record.at, record.step) == ("gpu", SOURCES["gpu"], 700, 5.0, 41)
    assert record.extra == {"gpu0.temperature_c": 60.0}
    host = record_of(HostSample(at=5.0, cpu=0.5), 0, None)
    assert host is not None
    assert (host.kind, host.source) == ("host", SOURCES["host"])
    assert record_of(GpuSample(at=5.0, trouble="no driver"), 0, None) is None
    assert kind_of(gpu) == "gpu"
