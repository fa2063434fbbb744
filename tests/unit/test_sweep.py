"""One look at each of many things: in order, one by one where that is quick, side by side where every look waits."""

from __future__ import annotations

import threading

import pytest

from overnight import sweep


class Disk:
    """Looks that take so many seconds of a clock of its own, and that count how many wait at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.threads: set[int] = set()
        monkeypatch.setattr("overnight.sweep.time.monotonic", lambda: self.now)

    def look(self, item: int) -> int:
        self.now += self.seconds
        self.threads.add(threading.get_ident())
        return item * item


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
@pytest.mark.parametrize("seconds", [0.00002, 0.05])
def test_what_is_seen_is_in_order(monkeypatch: pytest.MonkeyPatch, count: int, seconds: float) -> None:
    disk = Disk(monkeypatch, seconds=seconds)
    assert sweep.each(range(count), disk.look) == [item * item for item in range(count)]


def test_quick_looks_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, seconds=0.0005)
    sweep.each(range(5000), disk.look)
    assert disk.threads == {threading.get_ident()}
    disk = Disk(monkeypatch, seconds=60.0)
    sweep.each(range(sweep.LEAST_AT_ONCE), disk.look)
    assert disk.threads == {threading.get_ident()}, "nor do few slow ones"


def test_slow_looks_wait_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight.sweep.time.monotonic", iter(range(10_000)).__next__)
    together = threading.Barrier(sweep.AT_ONCE)  # nobody comes past it unless so many wait there

    def look(item: int) -> int:
        if 0 < item <= sweep.AT_ONCE:
            together.wait(30)
        return -item

    assert sweep.each(range(500), look) == [-item for item in range(500)]


def test_a_disk_that_becomes_slow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, seconds=0.00002)

    def look(item: int) -> int:
        disk.seconds = 0.00002 if item < 500 else 0.05  # the first ones were in the cache
        return disk.look(item)

    sweep.each(range(1000), look)
    assert len(disk.threads) > 1


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_what_a_look_raises_is_raised(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    disk = Disk(monkeypatch, seconds=seconds)

    def look(item: int) -> int:
        disk.look(item)
        if item == 70:
            raise PermissionError("the disk is locked")
        return item

    with pytest.raises(PermissionError, match="locked"):
        sweep.each(range(100), look)
