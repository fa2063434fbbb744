"""From a spec to what its figures rest on: each convention, experts, adapters, recomputation, peaks seen and given."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.accelerators import DevicePeak
from overnight.flops.conventions import CONVENTIONS, figure_of
from overnight.meter import Meter
from overnight.modelsize import Counts
from overnight.modelsize.adapters import with_adapters
from overnight.modelsize.named import from_name
from overnight.spec import RunSpec
from overnight.yardsticks.sizing import counts_of, figures_of

GPT2 = from_name("gpt2")
MIXTRAL = from_name("mistralai/Mixtral-8x7B-v0.1")


def spec(**facts: Any) -> RunSpec:
    """Return a spec."""
    return RunSpec(name="n", argv=("x",), executable="/bin/true", cwd="/", log="/l", **facts)


def flops(**facts: Any) -> tuple[float | None, float | None, str, str]:
    """Return FLOPs per token of the headline and with attention, with their conventions, as a meter has them."""
    figures = figures_of(spec(**facts))
    measure = Meter(figures).measure()
    return measure.flops_per_token, measure.flops_per_token_attention, figures.convention, figures.convention_attention


# ---- numbers by hand


def test_without_parameters_nothing_is_known() -> None:
    assert counts_of(spec()) is None
    assert flops()[:2] == (None, None)


def test_six_n_and_the_attention_beside_it() -> None:
    found = flops(params=124_356_864, layers=12, seq_len=1024, width=768)
    assert found == (746_141_184, 859_387_392, "6N", "6N + 12*L*H*h*T")
    assert flops(params=124_356_864, layers=12, width=768)[:2] == (746_141_184, None)


def test_by_hand_the_width_stands_for_the_heads() -> None:
    wide = counts_of(spec(params=10, layers=2, width=96))
    headed = counts_of(spec(params=10, layers=2, heads=8, head_size=12))
    assert wide is not None
    assert headed is not None
    assert [one.heads * one.qk for one in (*wide.attention, *headed.attention)] == [96, 96]


# ---- models by config


def test_the_window_of_attention_is_the_models_own() -> None:
    long = flops(counts=GPT2, params=GPT2.total, seq_len=32768)
    assert long[0] == 6 * 124_439_808
    assert long[1] == 6 * 124_439_808 + 12 * 12 * 768 * 32768


def test_of_experts_the_active_ones_count() -> None:
    found = flops(counts=MIXTRAL, params=MIXTRAL.total, seq_len=4096)
    assert MIXTRAL.active is not None
    assert MIXTRAL.active < MIXTRAL.total
    assert found[0] == 6 * MIXTRAL.active
    assert found[2] == "6N (active)"


def test_frozen_weights_have_no_gradient() -> None:
    tuned = with_adapters(GPT2, 1_000_000)
    assert tuned.total == GPT2.total + 1_000_000
    found = flops(counts=tuned, params=tuned.total)
    assert found[0] == 4 * GPT2.total + 6 * 1_000_000
    assert found[2] == "4N_f + 6N_t"


@pytest.mark.parametrize("key", [key for key, one in CONVENTIONS.items() if one.kind == "model"])
def test_each_convention_leads_where_it_is_asked_for(key: str) -> None:
    counts = from_name("t5-small") if key == "encoder-decoder" else GPT2
    expected = figure_of(key, counts, seq_len=512)
    if isinstance(expected, str):  # an encoder-decoder with one length only
        assert flops(counts=counts, params=counts.total, seq_len=512, convention=key)[2] == "6N"
        return
    found = flops(counts=counts, params=counts.total, seq_len=512, convention=key)
    assert (found[0], found[2]) == (expected.flops_per_token, expected.label)


def test_of_two_sides_no_attention_figure_is_made_up() -> None:
    t5 = from_name("t5-small")
    found = flops(counts=t5, params=t5.total, layers=t5.layers, width=t5.width, seq_len=512)
    assert found[:2] == (6 * t5.total, None)
    unknown = Meter(figures_of(spec(counts=t5, params=t5.total, layers=12, width=512, seq_len=512))).measure().unknown
    assert "target" in unknown["flops_per_token_attention"]
    short = Meter(figures_of(spec(counts=GPT2, params=GPT2.total))).measure().unknown
    assert short["flops_per_token_attention"] == "give --seq-len"


def test_what_is_computed_again_is_no_mfu() -> None:
    plain = {"params": 1_000_000, "tokens_per_step": 1000.0, "peak_tflops": 1.0}
    once, again = figures_of(spec(**plain)), figures_of(spec(**plain, recompute="full"))
    assert once.flops_hardware is None
    meter, hard = Meter(once), Meter(again)
    assert meter.measure().flops_per_token == hard.measure().flops_per_token == 6_000_000
    assert again.flops_hardware == pytest.approx(6_000_000 * 4 / 3)
    assert again.convention_hardware == "8N"
    model = figures_of(spec(counts=GPT2, params=GPT2.total, seq_len=1024, recompute="selective"))
    assert model.flops_per_token == 6 * GPT2.total
    assert model.flops_hardware is not None
    assert figures_of(spec(params=10, recompute="selective")).flops_hardware is None  # the scores are not known


# ---- the peak


def test_a_given_peak_leads_over_what_is_seen() -> None:
    seen = DevicePeak(flops=312e12, source="312 TFLOP/s: dense bf16 of A100")
    unknown = DevicePeak(flops=None, source="give --dtype")
    given = figures_of(spec(peak_tflops=100.0), seen)
    assert (given.peak_flops, given.peak_source) == (1e14, "--peak-tflops")
    by_driver = figures_of(spec(), seen)
    assert (by_driver.peak_flops, by_driver.peak_source) == (312e12, seen.source)
    none = figures_of(spec(params=10, tokens_per_step=10.0), unknown)
    assert (none.peak_flops, none.peak_unknown) == (None, "give --dtype")
    assert Meter(none).measure().unknown["mfu"].startswith("give --dtype")
    assert figures_of(spec()).peak_flops is None


def test_sources_go_along() -> None:
    figures = figures_of(spec(params=10, tokens_per_step=5.0, accumulate=4, devices=2))
    assert (figures.params_source, figures.tokens_source) == ("--params", "--tokens-per-step")
    assert (figures.accumulate, figures.devices) == (4, 2)
    told = figures_of(spec(params=10, params_source="gpt2, by name", tokens_per_step=5.0, tokens_source="batch 5"))
    assert (told.params_source, told.tokens_source) == ("gpt2, by name", "batch 5")
    assert figures_of(spec()).params_source is None


def test_a_spec_with_counts_is_read_again_as_it_was_written() -> None:
    import msgspec

    one = spec(counts=MIXTRAL, params=MIXTRAL.total, seq_len=128)
    assert msgspec.convert(msgspec.to_builtins(one), RunSpec) == one
    assert isinstance(counts_of(one), Counts)
