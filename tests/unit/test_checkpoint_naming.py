"""Numbers in names of checkpoints: a date hides no step, and what is of one series with what."""

from __future__ import annotations

import pytest

from overnight.inspector.naming import Alike, read


@pytest.mark.parametrize(
    ("name", "others"),
    [
        # four digits behind a day are a count
        *((f"ckpt-20240101-{step}.pt", (step,)) for step in (500, 1000, 1059, 1500, 2359, 2500, 25000)),
        ("ckpt-20240101-100000.pt", (100000,)),
        ("2024-01-01_1250.pt", (1250,)),
        ("20240101-10-500.pt", (10, 500)),
        # two counts are no day, nor is a year that nobody trains in
        ("model-2000-1012.pt", (2000, 1012)),
        ("model_2024-0512.pt", (2024, 512)),
        ("ckpt_20001012.pt", (20001012,)),
        # a planned amount is no reading of a clock
        ("ckpt-1600000000.pt", (1600000000,)),
        ("ckpt_1500000000_tokens.pt", (1500000000,)),
        ("ckpt_1512345678_tokens.pt", (1512345678,)),
        ("tokens_1512345678.pt", (1512345678,)),
        ("ckpt-2600000123.pt", (2600000123,)),
    ],
)
def test_a_count_is_seen_beside_a_date(name: str, others: tuple[int, ...]) -> None:
    assert read(name).others == others


@pytest.mark.parametrize(
    "time",
    [
        "20260101", "2026-01-01", "2026_01_01",
        "20260101_125033", "20260101-100001", "20260101-12-50", "20260101_12h50",
        "2026-01-01-12-50-33", "2026-01-01T12-50-33", "20260101T1250", "20260101t125033", "20260101T12", "1767271833",
        "1767271833123", "2026.01.01 12:50",
    ],
)  # fmt: skip
def test_a_time_is_no_count_and_hides_none(time: str) -> None:
    assert read(f"model_{time}.pt").others == ()
    assert read(f"model_{time}_300.pt").others == (300,)
    assert read(f"{time}_ckpt-1000.pt").others == (1000,)
    assert read(f"step_20260101_{time}.pt").step == 20260101, "unless it is called a step"


def alike(*known: str) -> Alike:
    found = Alike()
    for name in known:
        found.add(name)
    return found


@pytest.mark.parametrize(
    ("known", "like", "unlike"),
    [
        (["run7-10.bin"], ["run7-10.bin"], ["run7-20.bin", "run8-10.bin", "run7-10.pt"]),
        (["run7-10.bin", "run7-20.bin"], ["run7-2000.bin"], ["run8-30.bin", "run7b-30.bin", "run-30.bin"]),
        (["checkpoint-500"], ["checkpoint-1000"], ["checkpoint-1000-best", "ckpt-1000"]),
        (["step_00000100.pt"], ["step_00000200.pt"], ["a_step_00000200.pt"]),
        (["exp3_step10.pt"], ["exp3_step20.pt"], ["exp4_step20.pt"]),
        (["epoch=1-step=20.ckpt"], ["epoch=2-step=40.ckpt"], ["epoch=2.ckpt"]),
        (["rl7_500_steps.zip"], ["rl7_1000_steps.zip"], ["rl8_1000_steps.zip"]),
        (["model.pt"], ["model.pt"], ["model2.pt", "best.pt"]),
        (["model7.bin"], ["model7.bin"], ["model8.bin"]),
        (["gpt2.5_step10.pt"], ["gpt2.5_step20.pt"], ["gpt2.6_step20.pt"]),
    ],
)
def test_only_what_counts_may_differ(known: list[str], like: list[str], unlike: list[str]) -> None:
    found = alike(*known)
    assert [name for name in like if not found.like(name)] == []
    assert [name for name in unlike if found.like(name)] == []


def test_what_is_known_is_bounded_and_what_is_news_is_said() -> None:
    found = Alike()
    assert [found.add(name) for name in ("run7-10.bin", "run7-20.bin", "run7-30.bin", "a.pt")] == [
        True,
        True,
        False,
        True,
    ]
    for number in range(Alike.MOST):
        found.add("x" * (number + 1))
    assert not found.like("a.pt")
