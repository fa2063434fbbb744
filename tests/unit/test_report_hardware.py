"""The machine in the report: GPUs, errors of the driver with their times, curves over time, what to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_views import FakeViews
from test_report_series import known, records

from overnight.folder import sensor_file, utc
from overnight.printable import harmless
from overnight.report.hardware import Machine
from overnight.report.page import page
from overnight.report.text import text
from overnight.report.timecurves import MOST, Band, Timeline
from overnight.report.value import build
from overnight.sensors import Disk, Gpu, GpuSample, HostSample, Xid
from overnight.sensors.written import written

BEGAN = 1_795_993_000.0
NOTE = "the kernel's log is not readable (/dev/kmsg: Operation not permitted), so Xid lines in it are not seen"


def gpu(index: int = 0, **values: Any) -> Gpu:
    healthy = {
        "name": "NVIDIA A100-SXM4-80GB", "utilisation": 0.9, "memory_used": 40 << 30, "memory_total": 80 << 30,
        "temperature_c": 60.0, "power_w": 300.0, "power_limit_w": 400.0, "ours": True,
    }  # fmt: skip
    return Gpu(index=index, **{**healthy, **values})


def write(folder: Path, *samples: GpuSample | HostSample, end: bytes = b"") -> None:
    """Put samples into the sensors' files of a run's folder."""
    for kind in ("gpu", "host"):
        path = sensor_file(folder, kind)
        path.parent.mkdir(exist_ok=True)
        own = [one for one in samples if isinstance(one, GpuSample) == (kind == "gpu")]
        path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in own) + end)


def value(folder: Path, facts: list[dict[str, Any]] | None = None, **one: Any) -> dict[str, Any]:
    found = known(FakeViews(records((1, 30))), facts, **{"created_at": utc(BEGAN), **one})
    found.run_dir = folder
    return build(found)


def said(found: dict[str, Any]) -> str:
    return " ".join(text(found, clean=harmless).split())


def verdict(rule: str, severity: str, words: str, after_s: float = 100.0) -> dict[str, Any]:
    return {
        "fact": "verdict", "rule": rule, "severity": severity, "action": "alert", "text": words, "attempt": 1,
        "step": 12, "source": None, "offset": None, "epoch": BEGAN + after_s, "part": int(after_s),
    }  # fmt: skip


# -- what the sensors have written -----------------------------------------------------------------------------------


def test_only_whole_lines_of_samples_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    good = msgspec.json.encode(GpuSample(at=1.0))
    path.write_bytes(good + b"\n{}\nnonsense\n\xff\xfe\n" + good + b"\n" + good[:10])
    assert list(written(path)) == [GpuSample(at=1.0)] * 2
    assert list(written(tmp_path / "none")) == []
    assert list(written(path, len(good) + 13)) == [GpuSample(at=1.0)]


def test_the_gpus_of_the_run_and_of_nobody_else(tmp_path: Path) -> None:
    warm = [gpu(0), gpu(1, utilisation=0.7, temperature_c=91.0, throttle=("thermal",)), gpu(2, ours=False)]
    idle = [gpu(0, ours=False, utilisation=0.0), gpu(1, ours=None, utilisation=0.0), gpu(2, ours=False)]
    write(tmp_path, *(GpuSample(at=BEGAN + at, gpus=tuple(idle if not at else warm), driver="550") for at in range(5)))
    found = value(tmp_path)["hardware"]
    assert [one["index"] for one in found["gpus"]] == [0, 1]
    assert [one["utilisation_mean"] for one in found["gpus"]] == pytest.approx([0.9, 0.7])
    assert found["gpus"][1]["temperature_most_c"] == 91.0
    assert (found["gpus"][1]["throttled"], found["gpus"][1]["throttle"]) == (1.0, ["thermal"])
    assert found["gpus"][0]["throttled"] == 0.0
    assert (found["driver"], found["certain"], found["samples"]) == ("550", True, {"gpu": 5, "host": 0})
    told = said(value(tmp_path))
    assert "GPU 1 NVIDIA A100-SXM4-80GB, 70.0% busy on average, at most 91 C" in told
    assert "slowed down in 100.0% of the samples (thermal)" in told
    assert "GPU 2" not in told


def test_where_nobody_can_say_whose_they_are_all_are_shown(tmp_path: Path) -> None:
    write(tmp_path, GpuSample(at=BEGAN, gpus=(gpu(0, ours=None), gpu(1, ours=False))))
    found = value(tmp_path)
    assert [one["index"] for one in found["hardware"]["gpus"]] == [0]
    assert "nobody could say which of them" in said(found)


def test_a_gpu_that_is_lost_is_told_with_its_time(tmp_path: Path) -> None:
    samples = [GpuSample(at=BEGAN, gpus=(gpu(0),)), GpuSample(at=BEGAN + 10, gpus=(gpu(0, ours=None, lost="is lost"),))]
    write(tmp_path, *samples)
    found = value(tmp_path)
    assert found["hardware"]["gpus"][0]["lost_at"] == utc(BEGAN + 10)
    assert f"lost at {utc(BEGAN + 10)[:10]}" in said(found)


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    write(tmp_path, HostSample(at=BEGAN, memory_total=8 << 30, memory_available=2 << 30))
    sensor_file(tmp_path, "gpu").unlink()
    sensor_file(tmp_path, "gpu").mkdir()
    found = value(tmp_path)
    assert "gpu.jsonl cannot be read" in found["unknown"]["gpu sensors"]
    assert found["hardware"]["host"]["memory_least"] == 2 << 30


def test_a_log_and_an_old_run_have_no_hardware(tmp_path: Path) -> None:
    found = value(tmp_path)
    assert (found["hardware"]["gpus"], found["hardware"]["host"], found["hardware"]["charts"]) == ([], None, [])
    assert "hardware" not in text(found, clean=harmless)
    assert ">Hardware<" not in page(found)


# -- errors of the driver --------------------------------------------------------------------------------------------


def stalled(folder: Path, **sample: Any) -> dict[str, Any]:
    write(folder, GpuSample(at=BEGAN, gpus=(gpu(0),), **sample))
    stall = verdict("stall", "critical", "no new step for 31 min", 1900.0)
    return value(folder, [stall], state="failed", cause="stall", cause_text="no new step for 31 min")


def test_a_stalled_run_lists_the_xid_lines_with_their_times(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    found = stalled(tmp_path, xids=(Xid(code=79, at=BEGAN + 60, device="0000:3b:00", index=0, text=line),))
    (one,) = found["hardware"]["xids"]
    assert (one["code"], one["at"], one["text"]) == (79, utc(BEGAN + 60), line)
    entry = next(entry for entry in found["timeline"] if entry["kind"] == "gpu")
    assert (entry["at"], entry["severity"]) == (utc(BEGAN + 60), "warn")
    assert "Xid 79" in entry["text"]
    order = [entry["at"] for entry in found["timeline"] if entry["at"]]
    assert order == sorted(order)
    when = utc(BEGAN + 60)[:19].replace("T", " ")
    assert f"{when} UTC: GPU 0 (0000:3b:00) reports Xid 79: {line}" in said(found)
    assert "fallen off the bus" in page(found)


def test_a_stalled_run_says_that_the_kernel_log_was_not_readable(tmp_path: Path) -> None:
    found = stalled(tmp_path, notes=(NOTE,))
    assert NOTE in said(found)
    assert "log is not readable" in page(found)
    assert "none was reported" not in said(found)


def test_a_stalled_run_says_that_nothing_was_reported_or_that_nobody_looked(tmp_path: Path) -> None:
    assert "GPU errors none was reported" in said(stalled(tmp_path))
    for name in ("gpu", "host"):
        sensor_file(tmp_path, name).unlink()
    stall = verdict("stall", "critical", "no new step for 31 min")
    assert "nobody looked for Xid lines" in said(value(tmp_path, [stall], state="failed", cause="stall"))
    assert "Xid" not in said(value(tmp_path))


def test_an_xid_that_a_verdict_tells_is_not_in_the_timeline_twice(tmp_path: Path) -> None:
    write(tmp_path, GpuSample(at=BEGAN, gpus=(gpu(0),), xids=(Xid(code=79, at=BEGAN), Xid(code=31, at=BEGAN + 1))))
    fact = verdict("hardware", "critical", "GPU 0 reports Xid 79: GPU has fallen off the bus")
    entries = value(tmp_path, [fact])["timeline"]
    assert [one["text"] for one in entries if one["kind"] == "gpu"] == ["a GPU reports Xid 31"]


def test_an_error_of_another_gpu_is_said_to_be_none_of_the_run(tmp_path: Path) -> None:
    xids = (Xid(code=79, at=BEGAN, index=1, device="0000:5e:00"), Xid(code=13, at=BEGAN, index=0))
    write(tmp_path, GpuSample(at=BEGAN, gpus=(gpu(0), gpu(1, ours=False)), xids=xids))
    found = value(tmp_path)
    assert [one["ours"] for one in found["hardware"]["xids"]] == [False, True]
    assert "GPU 1 (0000:5e:00) reports Xid 79; no GPU of this run" in said(found)
    assert [one["text"] for one in found["timeline"] if one["kind"] == "gpu"] == ["GPU 0 reports Xid 13"]


def test_thousands_of_errors_are_counted_and_bounded(tmp_path: Path) -> None:
    many = tuple(Xid(code=31, at=BEGAN + at) for at in range(500))
    write(tmp_path, GpuSample(at=BEGAN, gpus=(gpu(0),), xids=many))
    found = value(tmp_path)
    assert (len(found["hardware"]["xids"]), found["hardware"]["more_xids"]) == (200, 300)
    assert "488 more" in said(found)
    assert len(page(found).encode()) < 3_000_000


# -- curves ----------------------------------------------------------------------------------------------------------


def test_curves_are_over_time_and_hold_all_gpus_between_least_and_largest(tmp_path: Path) -> None:
    samples: list[GpuSample | HostSample] = [
        GpuSample(at=BEGAN + 600 * at, gpus=(gpu(0), gpu(1, temperature_c=80.0 + at))) for at in range(20)
    ]
    disks = (Disk(mount="/data", holds=("log", "checkpoints"), free=50 << 30, total=100 << 30),)
    samples += [
        HostSample(at=BEGAN + 600 * at, memory_available=(20 - at) << 30, rss=1 << 30, disks=disks) for at in range(20)
    ]
    write(tmp_path, *samples)
    found = value(tmp_path, [verdict("throttle", "warn", "GPU 1 has been throttled", 3600.0)])
    charts = {one["name"]: one for one in found["hardware"]["charts"]}
    assert set(charts) == {
        "gpu_utilisation", "gpu_temperature_c", "gpu_power_w", "gpu_memory_used", "host_memory_available", "run_rss",
        "disk_free_log_checkpoints",
    }  # fmt: skip
    warm = charts["gpu_temperature_c"]
    assert (warm["x_label"], warm["unit"]) == ("hour", "°C")
    assert warm["label"] == "GPU temperature, least to largest of 2"
    assert warm["x"] == pytest.approx([at / 6 for at in range(20)], abs=1e-4)
    assert (warm["low"][-1], warm["high"][-1]) == (60.0, 99.0)
    assert [(mark["x"], mark["severity"]) for mark in warm["marks"]] == [(1.0, "warn")]
    assert charts["gpu_utilisation"]["high"][0] == pytest.approx(90.0)
    assert charts["disk_free_log_checkpoints"]["low"][0] == 50.0
    drawn = page(found)
    for label in ("GPU utilisation", "GPU temperature", "GPU power", "GPU memory used", "Host memory available"):
        assert f">{label}" in drawn
    assert "Free disk: log and checkpoints" in drawn


def test_long_curves_are_bounded_and_keep_their_extremes() -> None:
    line, band = Timeline(BEGAN), Band("a", "a", "", 2.0)
    for at in range(50_000):
        line.add(BEGAN + 10 * at, band, 1000.0 if at == 31_234 else float(at % 7))
    (chart,) = line.charts()
    assert MOST / 3 < len(chart["x"]) <= MOST
    assert (max(chart["high"]), min(chart["low"])) == (2000.0, 0.0)
    assert chart["x_label"] == "day"
    peak = chart["high"].index(2000.0)
    assert chart["x"][peak] == pytest.approx(312_340 / 86_400, abs=0.01)
    assert chart["x"] == sorted(chart["x"])


def test_a_clock_that_is_set_back_and_values_that_are_none() -> None:
    line, band = Timeline(None), Band("a", "a", "", 1.0)
    for at, one in ((100.0, 1.0), (90.0, 2.0), (110.0, None), (float("nan"), 3.0), (120.0, float("inf"))):
        line.add(at, band, one)
    (chart,) = line.charts()
    assert (chart["x"], chart["low"], chart["zero"]) == ([0.0, 10.0], [2.0, 1.0], 90.0)
    assert Timeline(None).charts() == []


def test_stale_sensors_are_told_of_a_run_that_goes_on(tmp_path: Path) -> None:
    words = "GPU data stale for 2m10s: the sensor does not answer"
    sensors = {"gpu": {"at": utc(BEGAN), "stale": words}, "host": None}
    assert words in said(value(tmp_path, state="running", cause=None, sensors=sensors))
    assert words not in said(value(tmp_path, sensors=sensors))


def test_the_machine_holds_no_more_for_more_samples() -> None:
    machine = Machine(BEGAN)
    for at in range(5000):
        machine.take_gpu(GpuSample(at=BEGAN + at, gpus=(gpu(0),), notes=("x",)))
    assert max(len(one["x"]) for one in machine.plain()["charts"]) <= MOST
    assert machine.notes == {"x": None}


# -- what to look at next --------------------------------------------------------------------------------------------

ADVICE = {
    "throttle": "cooling",
    "low_utilisation": "wait for something",
    "slowdown": "curves of step time",
    "disk_space": "make room",
    "memory_creep": "grows with the steps",
    "straggler": "that rank's GPU",
}


@pytest.mark.parametrize("rule", ADVICE)
def test_each_finding_says_what_to_look_at(rule: str, tmp_path: Path) -> None:
    words = f"what {rule} found"
    (first, *_) = value(tmp_path, [verdict(rule, "warn", words)])["next"]
    assert first.startswith(f"{rule}: {words}")
    assert ADVICE[rule] in first
    facts = [verdict(rule, "warn", words), verdict(rule, "note", "it is over, after 4m", 200.0)]
    assert "(later: it is over, after 4m)" in value(tmp_path, facts)["next"][0]


def test_a_run_that_its_gpu_ended_is_not_to_be_started_on_it_again(tmp_path: Path) -> None:
    words = "GPU 0 (NVIDIA A100-SXM4-80GB) is lost: GPU is lost"
    outcome = {"state": "failed", "cause": "hardware", "cause_text": words}
    found = value(tmp_path, [verdict("hardware", "critical", words)], **outcome)
    assert found["next"][0].startswith(f"hardware: {words}")
    assert "CUDA_VISIBLE_DEVICES" in found["next"][0]
    assert sum("CUDA_VISIBLE_DEVICES" in one for one in found["next"]) == 1
    told = value(tmp_path, **outcome)["next"]  # by the words of its log alone
    assert any(words in one and "CUDA_VISIBLE_DEVICES" in one for one in told)


def test_an_xid_that_the_program_may_have_caused_is_no_broken_gpu(tmp_path: Path) -> None:
    words = "GPU 0 reports Xid 31: memory page fault; the program may have caused it"
    (first, *_) = value(tmp_path, [verdict("hardware", "warn", words)])["next"]
    assert "an index out of range" in first
    assert "CUDA_VISIBLE_DEVICES" not in first
