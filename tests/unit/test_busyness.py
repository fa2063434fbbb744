"""What GPU samples come to as evidence: only the run's own GPUs, how busy, in a dip, throttled, near their limit."""

from __future__ import annotations

import pytest

from overnight.calculator.busyness import Busyness
from overnight.sensors import Gpu, GpuSample


def samples(*busy: float, throttle: tuple[str, ...] = ()) -> list[GpuSample]:
    return [
        GpuSample(
            at=float(at),
            gpus=(
                Gpu(index=0, utilisation=one, power_w=300.0, power_limit_w=400.0, ours=True, throttle=throttle),
                Gpu(index=1, utilisation=0.0, power_w=40.0, power_limit_w=400.0, ours=False),
                Gpu(index=2, utilisation=0.0, ours=True, lost="is lost"),
            ),
        )
        for at, one in enumerate(busy)
    ]


def fields(*found: GpuSample) -> dict[str, object]:
    busyness = Busyness()
    for one in found:
        busyness.take(one)
    return busyness.fields()


def test_nothing_without_a_gpu_of_the_run() -> None:
    assert fields() == {}
    assert fields(GpuSample(at=0.0, gpus=(Gpu(index=0, utilisation=0.9, ours=None),))) == {}


def test_busy_with_dips() -> None:
    found = fields(*samples(*[0.9] * 9, 0.1))
    assert found["gpu_samples"] == 10
    assert found["utilisation"] == pytest.approx(0.82)
    assert found["low"] == pytest.approx(0.1)
    assert found["power"] == pytest.approx(0.75)
    assert (found["throttled"], found["throttle"]) == (0.0, ())


def test_throttled_for_part_of_the_time() -> None:
    found = fields(*samples(0.9, 0.9, 0.9), *samples(0.9, throttle=("thermal",)))
    assert (found["throttled"], found["throttle"]) == (0.25, ("thermal",))


def test_what_a_card_does_not_measure_is_unknown() -> None:
    found = fields(GpuSample(at=0.0, gpus=(Gpu(index=0, ours=True),)))
    assert (found["gpu_samples"], found["utilisation"], found["low"], found["power"]) == (1, None, None, None)
