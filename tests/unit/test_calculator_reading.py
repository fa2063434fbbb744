"""What the calculator says a result means: published ranges by size and device, and the run's own evidence first."""

from __future__ import annotations

import random
from typing import Any

import pytest

from overnight.calculator import Evidence, Question
from overnight.calculator.answer import answer
from overnight.calculator.observed import FIRST_STEPS, Observed
from overnight.calculator.published import PUBLISHED, family_of, published
from overnight.events import Record
from overnight.modelsize import Counts


def reading(params: int = 10**9, speed: float = 20_000.0, gpu: str = "a100", **known: Any) -> list[str]:
    """Return the sentences for a run with this evidence; without any, for a calculation by hand."""
    evidence = Evidence(kind="run", name="quiet", **known) if known else None
    question = Question(
        counts=Counts(total=params, source="--params"), tokens_per_second=speed, gpu=gpu, dtype="bf16",
        evidence=evidence, sources={"tokens_per_second": "--tokens-per-second"},
    )  # fmt: skip
    return list(answer(question).reading)


# -- what is typical ---------------------------------------------------------------------------------------------------


def test_every_published_range_is_one_and_has_a_source() -> None:
    for one in PUBLISHED:
        assert 0.1 < one.low <= one.high < 0.7
        assert one.least_params < one.most_params
        assert one.source


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("A100 SXM4 80GB", "A100"), ("A800 SXM", "A100"), ("H100 PCIe", "H100"), ("H200 SXM", "H100"),
        ("TPU v4", "TPU v4"), ("V100 PCIe", "V100"), ("RTX A1000", None), ("RTX 4090", None), ("A10G", None),
        ("MI300X", None), (None, None),
    ],
)  # fmt: skip
def test_which_devices_have_published_ranges(name: str | None, family: str | None) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(("speed", "place"), [(5_000.0, "below"), (30_500.0, "within"), (48_000.0, "above")])
def test_where_a_result_stands(speed: float, place: str) -> None:
    said = reading(speed=speed)[0]
    assert f"is {place} the 57 to 61%" in said
    assert "no limits" in said
    assert "MosaicML" in said


def test_a_device_of_which_nothing_is_published() -> None:
    said = reading(gpu="NVIDIA GeForce RTX 4090", speed=5_000.0)[0]
    assert "nothing is published here for a model of this size on" in said
    assert "A100 57 to 61%" in said


def test_sizes_do_not_overlap_within_a_source() -> None:
    assert {one.what for one in published(1.3e9, "H100")} == {"1.3B"}
    assert published(4.05e11, "H100")[0].what == "Llama 3 405B"
    assert published(5.4e11, "TPU v4")[0].high == 0.462
    assert published(1e6, "A100") == []


# -- what to look at ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "first"),
    [
        ({"data_wait": 0.3}, "look first at the data loader: the log says that 30.00%"),
        ({"evaluation": 0.12, "evaluations": 7}, "look first at the evaluations (7)"),
        ({"stepping": 0.5, "wall_s": 100.0}, "look first at what happens between the steps: 50.00%"),
        ({"utilisation": 0.4, "gpu_samples": 60}, "look first at what the GPUs wait for: they ran kernels 40.00%"),
        ({"utilisation": 0.95, "low": 0.2, "gpu_samples": 60}, "look first at the dips"),
        ({"throttled": 0.5, "throttle": ("thermal",), "gpu_samples": 60}, "look first at the clocks: the GPUs were"),
        ({"median_s": 1.0, "slow_s": 1.5}, "look first at the jitter of the steps"),
    ],
)
def test_each_kind_of_evidence_is_named(known: dict[str, Any], first: str) -> None:
    said = [one for one in reading(**known) if one.startswith("look")]
    assert len(said) == 1
    assert said[0].startswith(first)


def test_the_costliest_comes_first() -> None:
    said = reading(data_wait=0.1, evaluation=0.3, evaluations=2, throttled=0.04, gpu_samples=9, utilisation=0.99)
    order = [one for one in said if one.startswith(("look", "then"))]
    assert [one.split(":")[0] for one in order] == [
        "look first at the evaluations (2)", "then at the data loader", "then at the clocks"
    ]  # fmt: skip


def test_a_healthy_run_is_told_so_with_what_was_looked_at() -> None:
    said = reading(data_wait=0.01, median_s=1.0, slow_s=1.1, utilisation=0.99, low=0.0, throttled=0.0, gpu_samples=9)
    assert any("nothing stands out" in one and "waits for data" in one and "GPU samples" in one for one in said)
    assert not any(one.startswith("look first") for one in said)


def test_a_log_that_tells_nothing_gives_no_evidence() -> None:
    assert any("tells nothing" in one for one in reading(clean=True))


def test_by_hand_nothing_is_known_of_a_run() -> None:
    assert any("overnight mfu RUN" in one for one in reading())


def test_a_small_batch_by_the_time_it_needs_at_the_peak() -> None:
    tiny = Question(
        counts=Counts(total=10**8, source="--params"), batch=1, seq_len=512, dt_s=0.01, gpu="a100", dtype="bf16"
    )
    said = answer(tiny).reading
    assert any(
        one.startswith("look first at the batch: a micro-step of 512 tokens") and "0.98 ms" in one for one in said
    )
    large = Question(
        counts=Counts(total=10**10, source="--params"), batch=8, seq_len=4096, dt_s=20.0, gpu="a100", dtype="bf16"
    )
    assert not any("batch" in one for one in answer(large).reading)


# -- what records tell -------------------------------------------------------------------------------------------------


def train(step: int, dt_s: float | None = 1.0, **more: Any) -> Record:
    return Record(reader="test", step=step, dt_s=dt_s, loss=1.0, **more)


def test_first_steps_and_those_behind_an_evaluation_are_apart() -> None:
    observed = Observed()
    for step in range(200):
        if step in (100, 150):
            observed.take(Record(reader="test", kind="eval", step=step, loss=1.0))
        slow = 30.0 if step == 0 else 11.0 if step in (100, 150) else 1.0
        observed.take(train(step, slow))
    assert observed.at(0.5) == observed.at(0.95) == 1.0
    assert observed.clean == 200 - FIRST_STEPS - 2
    assert observed.evaluations == 2
    assert observed.evaluation == pytest.approx(20 / (188 + 22))


def test_a_new_attempt_is_slow_at_first_again() -> None:
    observed = Observed()
    for _ in range(2):
        for step in range(50):
            observed.take(train(step, 9.0 if step < FIRST_STEPS else 1.0))
        observed.begin_attempt()
    assert observed.at(0.99) == 1.0


def test_waits_for_data_by_seconds_milliseconds_and_percent() -> None:
    for key, value in (("data_time", 0.25), ("data_ms", 250.0), ("data_loading(%)", 25.0), ("time/data", 0.25)):
        observed = Observed()
        for step in range(40):
            observed.take(train(step, 1.0, extra={key: value, "lr": 0.1}))
        assert observed.data_wait == pytest.approx(0.25), key


def test_what_cannot_be_a_wait_is_none() -> None:
    observed = Observed()
    for step in range(40):
        observed.take(train(step, 1.0, extra={"data": 4096.0, "data_loading(%)": "much"}))
        observed.take(train(step, None, extra={"data_time": 0.2}))
    assert observed.data_wait is None
    assert observed.evaluation is None
    assert Observed().at(0.5) is None


def test_only_the_lowest_rank_counts() -> None:
    observed = Observed()
    for step in range(60):
        observed.take(train(step, 1.0, rank=0))
        observed.take(train(step, 5.0, rank=1))
    assert observed.at(0.99) == 1.0
    assert observed.clean == 60 - FIRST_STEPS


def test_memory_stays_bounded_and_the_middle_true() -> None:
    observed, rng = Observed(), random.Random(5)
    for step in range(300_000):
        observed.take(train(step, rng.uniform(1.0, 2.0)))
    assert observed.at(0.5) == pytest.approx(1.5, abs=0.02)
    assert len(observed._times) <= 1 << 16


def test_a_missing_mfu_of_the_first_lines_is_no_value() -> None:
    observed = Observed()
    for step in range(30):
        observed.take(train(step, 1.0, mfu=-100.0 if step < 20 else 31.0))
    assert observed.mfu == pytest.approx(0.31)
