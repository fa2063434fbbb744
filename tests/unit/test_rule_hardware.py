"""A GPU of the run that is broken, and everything that is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overnight.events import Verdict
from overnight.exits.symptoms import HARDWARE_XIDS
from overnight.rules import SensorRule
from overnight.rules.hardware import AGAIN_S, MOST_XIDS, Hardware
from overnight.sensors import Gpu, GpuSample, HostSample, Sensed, Xid

BUS = "00000000:3B:00.0"


def gpu(index: int = 0, **more: Any) -> Gpu:
    return Gpu(index=index, **({"name": "NVIDIA A100", "uuid": f"GPU-{index}", "bus_id": BUS, "ours": True} | more))


def told(*samples: GpuSample, rule: Hardware | None = None, active_s: float = 1e6) -> list[list[Verdict]]:
    rule = rule or Hardware()
    memory = rule.fresh()
    found = [list(rule.on_sample(Sensed(sample=one, active_s=active_s, step=40), memory)) for one in samples]
    msgspec.json.encode(memory)
    return found


def at(seconds: float, *gpus: Gpu, **more: Any) -> GpuSample:
    return GpuSample(at=1e6 + seconds, gpus=gpus, **more)


def flat(found: list[list[Verdict]]) -> list[Verdict]:
    return [one for some in found for one in some]


def test_a_lost_gpu_ends_the_run_at_once_and_is_told_once() -> None:
    lost = gpu(lost="GPU is lost")
    found = told(at(0, gpu()), at(10, lost), at(20, lost), at(30, gpu()), at(40, lost))
    assert [len(one) for one in found] == [0, 1, 0, 0, 1]
    (one,) = found[1]
    assert isinstance(Hardware(), SensorRule)
    assert (one.rule, one.severity, one.action, one.step, one.at) == ("hardware", "critical", "stop", 40, 1e6 + 10)
    assert one.text == f"GPU 0 (NVIDIA A100, {BUS}) is lost: GPU is lost"
    assert one.evidence == {"device": 0, "uuid": "GPU-0", "bus_id": BUS, "xid": None, "lost": "GPU is lost"}
    assert len({one.key for one in flat(found)}) == 2


def test_words_that_may_mean_anything_need_a_second_sample() -> None:
    lost = gpu(lost="Unknown Error")
    assert [len(one) for one in told(at(0, lost), at(10, gpu()), at(20, lost), at(30, lost), at(40, lost))] == [
        0, 0, 0, 1, 0,
    ]  # fmt: skip
    sure = gpu(lost="Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error")
    assert len(told(at(0, sure))[0]) == 1


def test_another_ones_gpu_is_nobodys_business_here() -> None:
    assert not flat(told(at(0, gpu(ours=False, lost="GPU is lost"))))
    # A device that does not answer has no processes any more; whose it was is remembered.
    assert not flat(told(at(0, gpu(ours=False)), at(10, gpu(ours=None, lost="GPU is lost"))))
    assert flat(told(at(0, gpu(ours=None, lost="GPU is lost"))))[0].action == "stop"
    event = Xid(code=79, at=1e6, device="0000:3b:00")
    assert not flat(told(at(0, gpu(ours=False), xids=(event,))))


@pytest.mark.parametrize("code", sorted(HARDWARE_XIDS))
def test_the_devices_own_xids_end_the_run(code: int) -> None:
    (one,) = flat(told(at(0, gpu(), xids=(Xid(code=code, at=1e6, device="PCI:0000:3b:00"),))))
    assert (one.severity, one.action, one.evidence["xid"], one.evidence["device"]) == ("critical", "stop", code, 0)
    assert f"reports Xid {code}" in one.text


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 8])
def test_a_programs_xids_only_alert(code: int) -> None:
    (one,) = flat(told(at(0, gpu(), xids=(Xid(code=code, at=1e6, index=0),))))
    assert (one.severity, one.action) == ("warn", "alert")
    assert one.text.endswith("; the program may have caused it")


def test_an_xid_is_told_once_an_hour_and_device() -> None:
    samples = [at(10 * n, gpu(), xids=(Xid(code=13, at=1e6 + 10 * n, index=0),)) for n in range(20)]
    later = at(1e4, gpu(), xids=(Xid(code=13, at=1e6 + 190 + AGAIN_S, index=0),))
    assert [len(one) for one in told(*samples, later)] == [1, *[0] * 19, 1]
    many = at(0, gpu(), xids=tuple(Xid(code=1000 + n, at=1e6, index=0) for n in range(3 * MOST_XIDS)))
    assert len(flat(told(many))) == MOST_XIDS


def test_whose_an_xid_is() -> None:
    two = (gpu(), gpu(1, bus_id="00000000:5E:00.0", ours=False))
    ((one,),) = told(at(0, *two, xids=(Xid(code=79, at=1e6),)))
    assert one.action == "alert"
    assert "may be none of this run's" in one.text
    ((one,),) = told(at(0, two[0], xids=(Xid(code=79, at=1e6),)))
    assert one.action == "stop"
    assert not flat(told(at(0, *two, xids=(Xid(code=79, at=1e6, device="0000:99:00"),))))
    assert not flat(told(at(0, *two, xids=(Xid(code=79, at=1e6, index=1),))))


def test_an_xid_from_before_the_run_is_none_of_its() -> None:
    old = Xid(code=79, at=1e6 - 5000, index=0)
    assert not flat(told(at(0, gpu(), xids=(old,)), active_s=100.0))
    assert flat(told(at(0, gpu(), xids=(old,)), active_s=6000.0))


def test_new_uncorrectable_errors_end_the_run_and_old_ones_do_not() -> None:
    counts = [None, 3, 3, 5, 0, 0, 1]
    found = told(*(at(10 * n, gpu(ecc_uncorrected=count)) for n, count in enumerate(counts)))
    assert [len(one) for one in found] == [0, 0, 0, 1, 0, 0, 1]
    assert found[3][0].text.endswith("has 2 new uncorrectable memory (ECC) errors, 5 in all")
    assert found[3][0].action == "stop"


def test_remapping() -> None:
    found = told(at(0, gpu(remap_failed=False)), at(1, gpu(remap_failed=True)), at(2, gpu(remap_failed=True)))
    assert [[one.action for one in some] for some in found] == [[], ["stop"], []]
    found = told(at(0, gpu(remap_failed=True)), at(1, gpu(remap_failed=True)))
    assert [[one.action for one in some] for some in found] == [["alert"], []]
    found = told(at(0, gpu(remap_pending=True)), at(1, gpu(remap_pending=True)))
    assert [[one.action for one in some] for some in found] == [["alert"], []]


def test_a_driver_that_is_gone_with_its_device() -> None:
    gone = "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error"
    broken = [at(10, trouble=gone), at(20, trouble=gone), at(30, trouble=gone)]
    found = told(at(0, gpu()), *broken)
    assert [[one.action for one in some] for some in found] == [[], [], ["stop"], []]
    found = told(at(0, gpu(), gpu(1, ours=False)), *broken)
    assert [[one.action for one in some] for some in found] == [[], [], ["alert"], []]
    found = told(at(0, gpu()), *(at(n, trouble="the library cannot be read") for n in (10, 20)))
    assert [[one.action for one in some] for some in found] == [[], [], ["alert"]]
    assert not flat(told(*(at(n, trouble="the NVIDIA driver is not loaded") for n in (10, 20, 30))))


def test_a_device_that_is_listed_no_more_alerts() -> None:
    both, one = at(0, gpu(), gpu(1)), at(10, gpu())
    assert [[v.action for v in some] for some in told(both, one, one, one)] == [[], [], ["alert"], []]
    other = at(0, gpu(), gpu(1, ours=False))
    assert not flat(told(other, one, one, one))


def test_healthy_samples_and_what_was_asked_for() -> None:
    assert not flat(
        told(*(at(10 * n, gpu(ecc_corrected=n, nvlink_errors=n, throttle=("thermal",))) for n in range(50)))
    )
    assert Hardware().on_sample(Sensed(sample=HostSample(at=1.0), active_s=1.0), Hardware().fresh()) == ()
    (one,) = flat(told(at(0, gpu(lost="GPU is lost")), rule=Hardware(action="note")))
    assert (one.severity, one.action) == ("critical", "note")
    ((one,),) = told(at(0, gpu(), xids=(Xid(code=13, at=1e6, index=0),)), rule=Hardware(action="note"))
    assert one.action == "note"
