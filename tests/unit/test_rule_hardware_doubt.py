"""A fault with which a run goes on: told, and its end only once the steps do not come any more."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.events import Verdict
from overnight.rules.hardware import ANNOUNCED_S, DOUBT_S, FATAL_XIDS, STILL_S, Hardware
from overnight.sensors import Gpu, GpuSample, Sensed, Xid

GOOD = Gpu(index=0, name="NVIDIA A100", uuid="GPU-0", bus_id="00000000:3B:00.0", ours=True, ecc_uncorrected=0)


def gpu(**more: Any) -> Gpu:
    return Gpu(**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | more)


def night(*moments: tuple[float, float, Gpu, dict[str, Any]]) -> list[list[Verdict]]:
    """Judge samples, each (seconds, seconds since the last step, GPU, more of the sample or of what was sensed)."""
    rule = Hardware()
    memory = rule.fresh()
    found = []
    for seconds, moved_s, one, more in moments:
        sample = GpuSample(at=1e6 + seconds, gpus=(one,), xids=more.get("xids", ()))
        sensed = Sensed(
            sample=sample, active_s=1e4 + seconds, step=40, moved_s=moved_s,
            step_s=more.get("step_s", 1.0), phase=more.get("phase"), file_s=more.get("file_s"), gap_s=more.get("gap_s"),
        )  # fmt: skip
        found.append(list(rule.on_sample(sensed, memory)))
    return found


FAULTS = {
    "memory": {"ecc_uncorrected": 3},
    "no answer": {"lost": "it only answers: Unknown Error"},
    "lost, and nobody knows whose it is": {"ours": None, "lost": "GPU is lost"},
    "row": {"remap_failed": True},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_run_whose_steps_go_on_is_told_of_it_and_goes_on(fault: dict[str, Any]) -> None:
    before = gpu(remap_failed=False, **({"ours": None} if "ours" in fault else {}))
    sick = gpu(**fault)
    found = night((0, 0.5, before, {}), *((10.0 * n, 0.5, sick, {}) for n in range(1, 40)))
    verdicts = [one for some in found for one in some]
    assert [(one.severity, one.action) for one in verdicts] == [("warn", "alert")]
    assert verdicts[0].text.endswith("; the steps go on")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_it_ends_once_they_do_not(fault: dict[str, Any]) -> None:
    before = gpu(remap_failed=False, **({"ours": None} if "ours" in fault else {}))
    sick = gpu(**fault)
    healthy = [(10.0 * n, 0.5, sick, {}) for n in range(1, 4)]
    hangs = [(30 + second, second, sick, {}) for second in (10.0, STILL_S + 1, STILL_S + 11)]
    found = night((0, 0.5, before, {}), *healthy, *hangs)
    assert [[one.action for one in some] for some in found[4:]] == [[], ["stop"], []]
    (last,) = found[5]
    assert (last.severity, last.evidence["device"]) == ("critical", 0)
    assert last.text.endswith(f"; no step since {STILL_S + 1:.0f} s")
    assert len({one.key for some in found for one in some}) == 2


def test_slow_steps_and_announced_work_are_no_standing_still() -> None:
    sick = gpu(ecc_uncorrected=1)
    slow = night((0, 1, GOOD, {"step_s": 60.0}), (10, 1, sick, {"step_s": 60.0}), (200, 200, sick, {"step_s": 60.0}))
    assert [len(one) for one in slow] == [0, 1, 0]
    saving = {"phase": "saving"}
    longest = ANNOUNCED_S + 1
    said = night((0, 1, GOOD, {}), (10, 1, sick, {}), (300, 290, sick, saving), (10 + longest, longest, sick, saving))
    assert [[one.action for one in some] for some in said] == [[], ["alert"], [], ["stop"]]  # no save takes so long


def test_a_save_that_grows_and_a_usual_gap_are_signs_of_life() -> None:
    sick = gpu(ecc_uncorrected=1)
    begun = [(0.0, 1.0, GOOD, {}), (10.0, 1.0, sick, {})]
    grows = night(*begun, (100, 90, sick, {"file_s": 0.5}), (150, 140, sick, {"file_s": 3.0}), (200, 190, sick, {}))
    assert [[one.action for one in some] for some in grows[2:]] == [[], [], ["stop"]]
    usual = night(*begun, (100, 90, sick, {"gap_s": 60.0}), (150, 140, sick, {"gap_s": 60.0}))
    assert [[one.action for one in some] for some in usual[2:]] == [[], ["stop"]]


def test_what_has_gone_on_for_long_is_not_the_reason_any_more() -> None:
    sick = gpu(ecc_uncorrected=1)
    found = night(
        (0, 1, GOOD, {}), (10, 1, sick, {}), (20 + DOUBT_S, 1, sick, {}), (90 + DOUBT_S, 70, sick, {})
    )  # fmt: skip
    assert [len(one) for one in found] == [0, 1, 0, 0]


def test_one_that_answers_again_is_not_blamed_later() -> None:
    odd = gpu(lost="it only answers: Unknown Error")
    found = night((0, 1, GOOD, {}), (10, 1, odd, {}), (20, 1, odd, {}), (30, 1, GOOD, {}), (90, 61, GOOD, {}))
    assert [len(one) for one in found] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(("code", "ours", "action"), [
    *((code, True, "stop") for code in sorted(FATAL_XIDS)),
    (79, None, "alert"),
    (92, True, "alert"),
    (74, True, "alert"),
])  # fmt: skip
def test_only_some_events_end_a_run_that_steps(code: int, ours: bool | None, action: str) -> None:
    event = Xid(code=code, at=1e6 + 10, device="PCI:0000:3b:00")
    found = night((0, 1, gpu(ours=ours), {}), (10, 1, gpu(ours=ours), {"xids": (event,)}))
    assert [one.action for one in found[1]] == [action]


def test_its_own_lost_gpu_ends_a_run_at_once() -> None:
    (one,) = night((0, 0.1, GOOD, {}), (10, 0.1, gpu(lost="GPU is lost"), {}))[1]
    assert (one.severity, one.action) == ("critical", "stop")
