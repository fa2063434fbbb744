"""Error events of the driver, as the GPU sensor's process tells them: by the driver itself, and by the kernel's log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from gpu_child import Sensor, gpu

import nvml

LINE = "NVRM: Xid (PCI:0000:21:00): {code}, pid=4242, name=python, {text}"


@pytest.fixture
def stub(tmp_path: Path) -> nvml.Stub:
    found = nvml.Stub(tmp_path / "nvml")
    found.write([nvml.card(0), nvml.card(1)])
    return found


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


def kernel_says(kmsg: Path, text: str, ago_s: float = 0.0) -> None:
    """Let the kernel write a line, in the form of /dev/kmsg."""
    at = time.clock_gettime(time.CLOCK_MONOTONIC) - ago_s
    with kmsg.open("a") as file:
        file.write(f"4,1000,{round(at * 1e6)},-;{text}\n SUBSYSTEM=pci\n")


def test_an_event_makes_a_sample_of_its_own(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), every_s=300, more=("--kmsg", str(kmsg))) as child:
        child.first()
        began = time.time()
        stub.xid(1, 79)
        sample = child.until("the event", lambda one: one.xids)  # long before the next sample is due
        (xid,) = sample.xids
        assert (xid.code, xid.index, xid.device) == (79, 1, gpu(sample, 1).bus_id)
        assert xid.text == "GPU has fallen off the bus"
        assert began - 1 <= xid.at <= sample.at + 60
        stub.xid(0, 31)
        later = child.until("another event", lambda one: [each.code for each in one.xids] == [31])
        assert later.xids[0].index == 0
        assert sum(len(one.xids) for one in child.samples()) == 2


def test_the_kernels_line_is_told_with_its_words(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    kernel_says(kmsg, LINE.format(code=48, text="of another day"), ago_s=5000)
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        assert child.first().notes == ()
        kernel_says(kmsg, "usb 1-1: new high-speed USB device number 5")
        kernel_says(kmsg, LINE.format(code=63, text="Row Remapper: New row marked for remapping"))
        sample = child.until("the kernel's line", lambda one: one.xids)
        (xid,) = sample.xids
        assert (xid.code, xid.index) == (63, 1)
        assert "New row marked" in xid.text
        assert [each.code for one in child.samples() for each in one.xids] == [63]


def test_what_both_tell_is_told_once(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        child.first()
        kernel_says(kmsg, LINE.format(code=79, text="GPU has fallen off the bus."))
        stub.xid(1, 79)
        child.until("the event", lambda one: one.xids)
        stub.xid(0, 45)
        child.until("a later one", lambda one: any(each.code == 45 for each in one.xids))
        told = [(each.code, each.index) for one in child.samples() for each in one.xids]
        assert sorted(told) == [(45, 0), (79, 1)]


def test_a_sensor_that_is_started_again_tells_what_it_missed(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        child.first()
        child.process.kill()
        child.process.wait()
        path = child.path
    os.utime(path, (time.time() - 60, time.time() - 60))
    kernel_says(kmsg, LINE.format(code=74, text="told before it was killed"), ago_s=120)
    kernel_says(kmsg, LINE.format(code=79, text="missed"), ago_s=30)
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        sample = child.until("what it missed", lambda one: one.xids)
        assert [(one.code, round(time.time() - one.at) >= 29) for one in sample.xids] == [(79, True)]


def test_a_kernels_log_that_may_not_be_read_is_said(stub: nvml.Stub, tmp_path: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(tmp_path / "none"))) as child:
        (note,) = child.first().notes
        assert "kernel's log is not readable" in note
        stub.xid(0, 62)  # the driver's own events still come
        assert child.until("the event", lambda one: one.xids).xids[0].code == 62


def test_events_of_the_others_still_come_while_a_card_is_lost(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        child.first()
        stub.lose(1)
        stub.xid(1, 79)
        sample = child.until("the event", lambda one: one.xids)
        assert (sample.xids[0].code, sample.xids[0].index) == (79, 1)
        stub.xid(0, 13)
        child.until("the other's", lambda one: [each.index for each in one.xids] == [0])


def test_a_storm_of_events_is_bounded(stub: nvml.Stub, tmp_path: Path, kmsg: Path) -> None:
    with Sensor(tmp_path / "run", stub.environ(), more=("--kmsg", str(kmsg))) as child:
        child.first()
        for code in range(1, 200):
            kernel_says(kmsg, LINE.format(code=code, text="x" * 1000))
        sample = child.until("the storm", lambda one: one.xids)
        assert len(sample.xids) <= 64
        assert max(len(one.text) for one in sample.xids) <= 300
