"""Two sources of one figure that say different things: both are named, with what leads and why it may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from overnight.crosscheck import disagreements, impossible
from overnight.monitor import Monitor
from overnight.snapshot import Saves, Used, build
from overnight.spec import RunSpec
from overnight.states import RunState
from overnight.wiring import make_monitor

AT = 1_700_000_000.0


def spec_of(**facts: Any) -> RunSpec:
    """Return a spec."""
    return RunSpec(name="n", argv=("x",), executable="/bin/true", cwd="/", log="/l", **facts)


def fed(words: Callable[[int], str], *, every_s: float = 0.5, count: int = 120, **facts: Any) -> Monitor:
    """Return a monitor that has read a line every so many seconds."""
    one = make_monitor(spec_of(**facts), lambda _: None)
    one.begin_attempt(1)
    for n in range(count):
        one.feed(f"{words(n)}\n".encode(), AT + every_s * n)
    return one


def said(one: Monitor) -> list[str]:
    """Return what disagrees."""
    return disagreements(one.meter, one.hearing.stated)


def status(one: Monitor, **facts: Any) -> dict[str, Any]:
    """Return the status of a run that goes on."""
    return build(
        spec=spec_of(**facts), monitor=one, state=RunState(state="running", attempt=1), attempts=[], verdicts=[],
        created_at=AT, now=AT + 60, used=Used(active_s=60.0, elapsed_s=60.0), keepers={}, saves=Saves(), notes=[],
        hooks=None, engine="local", sensed={"disagreements": ["the run is on 2 GPUs"]},
    )  # fmt: skip


def step(dt: object, more: str = "") -> Callable[[int], str]:
    """Return how a line looks."""
    return lambda n: f"step: {n}, loss: 3.0{more}, dt: {dt}"


# ---- step times as printed and as the lines come


@pytest.mark.parametrize(("dt", "apart"), [(0.5, False), (0.42, False), (0.59, False), (0.4, True), (0.65, True)])
def test_beyond_a_fifth_both_are_said(dt: float, apart: bool) -> None:
    found = said(fed(step(dt)))
    assert bool(found) is apart
    if apart:
        assert f"{dt:g} s" in found[0]
        assert "0.5 s" in found[0]
        assert "the printed one is used" in found[0]


def test_both_stand_in_the_status_beside_what_sensors_say() -> None:
    found = status(fed(step(0.1)))["disagreements"]
    assert found[0] == "the run is on 2 GPUs"
    assert re.search(r"0\.1 s.*0\.5 s", found[1])


@pytest.mark.parametrize(
    ("dt", "why"),
    [
        ("500", "another unit"),
        ("500ms", None),
        ("0.0005", "another unit"),
        ("0.0625", "micro-step"),
        ("0.2", "leaves out"),
    ],
)
def test_what_may_lie_behind_it(dt: str, why: str | None) -> None:
    found = said(fed(step(dt), accumulate=8))
    assert found == [] if why is None else why in found[0]


def test_each_micro_step_that_prints_the_whole_time_is_noticed() -> None:
    found = said(fed(lambda n: f"step: {n // 4}, loss: 3.0, dt: 1.0", every_s=0.25, accumulate=4))
    assert len(found) == 1
    assert "each of 4 lines" in found[0]


def test_saves_and_evaluations_are_no_disagreement() -> None:
    one, at = make_monitor(spec_of(), lambda _: None), AT
    one.begin_attempt(1)
    for n in range(300):
        at += 0.5
        one.feed(f"step: {n}, loss: 3.0, dt: 0.5\n".encode(), at)
        if n % 30 == 29:
            one.feed(b"saving checkpoint\n", at)
            at += 20
    assert said(one) == []


# ---- tokens


def test_printed_tokens_lead_over_given_ones_and_both_are_said() -> None:
    one = fed(step(0.5, ", tokens: 4096"), tokens_per_step=32768.0, accumulate=8)
    (found,) = said(one)
    assert "32,768" in found
    assert "4,096" in found
    assert "micro-step" in found
    assert "the latter is used" in found
    told = status(one, tokens_per_step=32768.0)
    assert told["tokens_per_second"] == 8192.0
    assert (told["tokens_source"], told["tokens_per_step"]) == ("as the log prints them", 4096)


def test_given_tokens_lead_over_a_counter_and_both_are_said() -> None:
    one = fed(lambda n: f"step: {n}, loss: 3.0, tokens_seen: {4096 * n}, dt: 0.5", tokens_per_step=32768.0, devices=8)
    (found,) = said(one)
    assert "one device's beside that of all 8" in found
    assert "the former is used" in found
    told = status(one, tokens_per_step=32768.0, devices=8)
    assert told["tokens_per_second"] == 65536.0
    assert told["tokens_per_step"] == 32768.0


def test_a_rate_of_one_device_beside_tokens_of_all() -> None:
    one = fed(step(0.5, ", tok/s: 8192"), tokens_per_step=32768.0, devices=8, tokens_source="batch 4 * seq-len 1,024")
    (found,) = said(one)
    assert "65,536 by batch 4 * seq-len 1,024" in found
    assert "8,192 as the log prints them" in found
    assert "one device's" in found


def test_a_rate_that_is_called_one_of_a_device_is_multiplied_and_agrees() -> None:
    assert said(fed(step(0.5, ", tokens_per_second_per_gpu: 8192"), tokens_per_step=32768.0, devices=8)) == []


def test_tokens_without_padding_are_perhaps_what_is_printed() -> None:
    (found,) = said(fed(step(0.5, ", tokens: 2900"), tokens_per_step=4096.0))
    assert "padding" in found


def test_a_whole_factor_is_perhaps_what_nobody_told_of() -> None:
    (found,) = said(fed(step(0.5, ", tokens: 4096"), tokens_per_step=32768.0))
    assert "8 micro-steps or devices that were not told of" in found


def test_sequences_of_all_lengths_are_compared_over_the_window() -> None:
    one = fed(lambda n: f"step: {n}, loss: 3.0, tokens: {2000 + 4000 * (n % 2)}, dt: 0.5", tokens_per_step=4000.0)
    assert said(one) == []


def test_what_agrees_says_nothing() -> None:
    assert said(fed(step(0.5, ", tokens: 32768, tok/s: 65000"), tokens_per_step=32768.0)) == []
    assert said(fed(lambda _: "nothing here")) == []


# ---- parameters (fault G1-06)


def test_parameters_of_a_shard_are_not_those_of_the_model() -> None:
    one = make_monitor(spec_of(params=7_000_000_000, params_source="config.json", devices=8), lambda _: None)
    one.begin_attempt(1)
    one.feed(b"".join(b"[rank%d] params 875M\n" % rank for rank in range(8)), AT)
    (found,) = said(one)
    assert "875,000,000" in found
    assert "7,000,000,000" in found
    assert "8 shards" in found
    assert one.meter.figures.params == 7_000_000_000


@pytest.mark.parametrize("line", [b"number of parameters: 6.74B\n", b"params: 5.5B\n", b"trainable parameters: 4M\n"])
def test_a_count_that_is_rounded_or_of_a_part_is_none(line: bytes) -> None:
    one = make_monitor(spec_of(params=6_738_415_616), lambda _: None)
    one.begin_attempt(1)
    one.feed(line, AT)
    assert said(one) == []


# ---- more than there can be


def test_more_than_all_is_an_input_error_with_the_likely_reason() -> None:
    facts: dict[str, Any] = {"params": 7_000_000_000, "peak_tflops": 989.0, "tokens_per_step": 20_000.0}
    one = fed(step(0.5), **facts)
    told = status(one, **facts)
    assert told["mfu"] > 1
    for word in ("cannot be", "--devices", "wrong N", "experts", "peak of another dtype"):
        assert word in told["mfu_trouble"]
    assert status(fed(step(0.5), **facts, devices=8), **facts, devices=8)["mfu_trouble"] is None


def test_a_factor_that_explains_it_comes_first() -> None:
    facts: dict[str, Any] = {"params": 1_000_000_000, "peak_tflops": 100.0, "tokens_per_step": 60_000.0}
    micro = fed(step(1.0), **facts, devices=2, accumulate=4)
    text = impossible(micro.meter, micro.measure())
    assert text is not None
    assert text.index("micro-step") < text.index("wrong N")
    ranks = fed(step(1.0), **facts, devices=3)
    text = impossible(ranks.meter, ranks.measure())
    assert text is not None
    assert "all devices taken 3 times" in text


def test_of_the_attention_alone_it_is_noticed_too() -> None:
    facts: dict[str, Any] = {"params": 1_000_000, "peak_tflops": 1.0, "tokens_per_step": 50_000.0}
    one = fed(step(0.5), **facts, layers=12, seq_len=32768, width=768)
    text = impossible(one.meter, one.measure())
    assert text is not None
    assert text.startswith("MFU with attention")
    assert impossible(fed(step(0.5)).meter, fed(step(0.5)).measure()) is None
