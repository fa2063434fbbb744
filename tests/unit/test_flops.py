"""FLOPs per token: worked numbers of published models, and None for whatever is unknown."""

from __future__ import annotations

import pytest

from overnight.flops import SIX_N, SIX_N_ATTENTION, six_n, six_n_attention

GPT2_NO_LINEAR_BIAS = 124_356_864


@pytest.mark.parametrize(
    ("params", "flops"),
    [(GPT2_NO_LINEAR_BIAS, 746_141_184), (124_439_808, 746_638_848), (124_000_000, 744_000_000), (0, 0)],
)
def test_six_n_counts_six_flops_per_weight(params: int, flops: int) -> None:
    assert six_n(params) == flops


def test_attention_adds_twelve_l_t_d() -> None:
    assert six_n_attention(GPT2_NO_LINEAR_BIAS, 12, 1024, 768) == 746_141_184 + 113_246_208
    # PaLM 540B: 118 layers, 48 heads of 256, T = 2048; the paper's 46.2% MFU follows from this count.
    assert six_n_attention(540_350_000_000, 118, 2048, 48 * 256) == 3_277_734_806_784


def test_counts_beyond_float_precision_stay_exact() -> None:
    assert six_n(2**53 + 1) == 6 * 2**53 + 6


@pytest.mark.parametrize("missing", range(4))
def test_one_unknown_count_makes_the_figure_unknown(missing: int) -> None:
    counts: list[int | None] = [GPT2_NO_LINEAR_BIAS, 12, 1024, 768]
    counts[missing] = None
    assert six_n_attention(*counts) is None


def test_unknown_parameters_make_six_n_unknown() -> None:
    assert six_n(None) is None


def test_conventions_have_names() -> None:
    assert (SIX_N, SIX_N_ATTENTION) == ("6N", "6N + 12*L*H*h*T")
