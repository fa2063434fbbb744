"""GPUs that are throttled, or have nothing to do: one alert for each event, and none in a healthy night."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from overnight.events import Verdict
from overnight.rules import SensorRule
from overnight.rules.idle import LowUtilisation
from overnight.rules.throttle import Throttle
from overnight.sensors import Gpu, GpuSample, HostSample, Sensed


def night(rule: Any, samples: list[tuple[Gpu, ...]], every: float = 10.0, **more: Any) -> list[Verdict]:
    memory, found = rule.fresh(), []
    for number, gpus in enumerate(samples):
        about = {"step": number, "step_s": 0.1, "moved_s": 0.1} | more
        sample = GpuSample(at=1e6 + every * number, gpus=gpus)
        found += rule.on_sample(Sensed(sample=sample, active_s=every * number, **about), memory)
    msgspec.json.encode(memory)
    assert len({one.key for one in found}) == len(found)
    return found


def one(index: int = 0, *throttle: str, **more: Any) -> Gpu:
    return Gpu(index=index, throttle=throttle, **({"ours": True} | more))


HOT = one(
    0, "thermal", temperature_c=91.0, sm_clock_mhz=900.0, max_sm_clock_mhz=1410.0, power_w=300.0, power_limit_w=400.0
)


# -- throttling ------------------------------------------------------------------------------------------------------


def test_heat_that_lasts_is_told_once() -> None:
    (found,) = night(Throttle(), [(one(),)] * 10 + [(HOT,)] * 100)
    assert isinstance(Throttle(), SensorRule)
    assert (found.severity, found.action) == ("warn", "alert")
    told = "GPU 0 has been throttled (thermal) for 60 s: 91 C, 300 of 400 W, SM clock 900 of 1410 MHz"
    assert found.text == told
    assert found.at == 1e6 + 150
    assert found.evidence["temperature_c"] == 91.0
    assert found.evidence["gpus"] == [0]


def test_it_is_over_after_a_minute_and_armed_anew() -> None:
    found = night(Throttle(), ([(HOT,)] * 30 + [(one(),)] * 30) * 2)
    assert [one.action for one in found] == ["alert", "note", "alert", "note"]
    assert found[1].text.startswith("GPU 0 is throttled no more, after ")


def test_flags_that_come_and_go_are_one_event() -> None:
    chance = random.Random(4)
    samples = [(HOT,) if chance.random() < 0.75 else (one(),) for _ in range(400)]
    assert sum(one.action == "alert" for one in night(Throttle(), samples)) == 1
    assert not night(Throttle(), [(HOT,) if number % 3 == 0 else (one(),) for number in range(400)])


def test_all_gpus_are_one_event() -> None:
    samples = [tuple(one(index, "hw_slowdown", temperature_c=80.0 + index) for index in range(8))] * 50
    (found,) = night(Throttle(), samples)
    assert found.text.startswith(
        "GPUs 0, 1, 2, 3, 4, 5, 6, 7 have been throttled (hardware slowdown) for 60 s: GPU 7 at"
    )


@pytest.mark.parametrize(
    "gpu",
    [
        one(0, "sync_boost", "app_clocks", "display_clocks"),
        one(0, "thermal", ours=False),
        one(0, "thermal", lost="GPU is lost"),
        one(),
    ],
)
def test_what_is_no_throttling_of_the_run(gpu: Gpu) -> None:
    assert not night(Throttle(), [(gpu,)] * 100)


def test_a_power_cap_is_how_busy_gpus_work() -> None:
    usual = one(0, "power_cap", sm_clock_mhz=1300.0, max_sm_clock_mhz=1980.0)
    assert [one.action for one in night(Throttle(), [(usual,)] * 300)] == ["note"]
    low = one(0, "power_cap", sm_clock_mhz=600.0, max_sm_clock_mhz=1980.0)
    found = night(Throttle(), [(usual,)] * 30 + [(low,)] * 30)
    assert [one.action for one in found] == ["note", "alert"]
    assert "(power limit)" in found[1].text


def test_a_sensor_that_was_away_adds_no_hours() -> None:
    assert not night(Throttle(), [(one(),), (HOT,), (one(),)], every=50.0)
    assert night(Throttle(action="note"), [(HOT,)] * 3, every=7200.0)[0].action == "note"
    assert Throttle().on_sample(Sensed(sample=HostSample(at=1.0), active_s=1.0), Throttle().fresh()) == ()


# -- idling ----------------------------------------------------------------------------------------------------------


def busy(*parts: float, **more: Any) -> tuple[Gpu, ...]:
    return tuple(one(index, utilisation=part, **more) for index, part in enumerate(parts))


def test_ten_minutes_below_a_fifth_are_told_once() -> None:
    (found,) = night(LowUtilisation(), [busy(0.08)] * 200)
    assert isinstance(LowUtilisation(), SensorRule)
    assert (found.severity, found.action) == ("warn", "alert")
    told = "GPU 0 was used 8% of the time, below 20% for 10 min while steps go on"
    assert found.text.startswith(told)
    assert 1e6 + 600 <= (found.at or 0) <= 1e6 + 620
    assert not night(LowUtilisation(), [busy(0.08)] * 55)


def test_a_gpu_that_waits_for_the_others_is_named() -> None:
    (found,) = night(LowUtilisation(), [busy(0.95, 0.97, 0.02, 0.96)] * 200)
    assert found.text.startswith("GPU 2 was used 2% of the time")
    assert "while GPUs 0, 1, 3 worked (97%): it waits for others, or nothing uses them" in found.text
    assert found.evidence["gpus"] == [2]
    assert found.evidence["busy"] == [0, 1, 3]


def test_it_is_over_and_armed_anew_with_hysteresis() -> None:
    found = night(LowUtilisation(), [busy(0.05)] * 70 + [busy(0.25)] * 100 + [busy(0.9)] * 40 + [busy(0.05)] * 70)
    assert [one.action for one in found] == ["alert", "note", "alert"]
    assert found[1].text.startswith("GPU 0 works again, after ")


@pytest.mark.parametrize(
    "about",
    [{"moved_s": None}, {"moved_s": 300.0}, {"phase": "evaluating"}, {"phase": "saving"}],
    ids=["before the first step", "no step", "evaluating", "saving"],
)
def test_only_while_steps_go_on(about: dict[str, Any]) -> None:
    assert not night(LowUtilisation(), [busy(0.0)] * 300, **about)


def test_slow_steps_go_on_too() -> None:
    assert len(night(LowUtilisation(), [busy(0.0)] * 300, moved_s=300.0, step_s=200.0)) == 1


def test_healthy_gpus() -> None:
    chance = random.Random(2)
    assert not night(LowUtilisation(), [busy(1.0 if chance.random() < 0.35 else 0.0) for _ in range(3000)])
    assert not night(LowUtilisation(), [busy(0.0, ours=False)] * 300)
    assert not night(LowUtilisation(), [busy(0.0, ours=None)] * 300)
    assert not night(LowUtilisation(), [(one(utilisation=None),)] * 300)
    assert not night(LowUtilisation(), ([busy(0.05)] * 50 + [busy(0.9)] * 10) * 10)
    assert LowUtilisation().on_sample(Sensed(sample=HostSample(at=1.0), active_s=1.0), LowUtilisation().fresh()) == ()
