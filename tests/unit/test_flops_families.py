"""The small functions behind the conventions: averages of keys, experts, papers' formulas, by worked numbers."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from overnight.flops import papers, programs, recompute, weights
from overnight.flops.attention import keys_seen, packed_keys, scores, softmax
from overnight.modelsize import Attention

LLAMA3 = (Attention(layers=32, heads=32, qk=128, v=128),)


def test_average_keys_of_a_window_and_without() -> None:
    assert keys_seen(8192, "exact", 4096) == Fraction("3072.25")
    assert keys_seen(8192, "exact") == Fraction("4096.5")
    assert keys_seen(8192, "half") == 4096
    assert keys_seen(8192, "none", 4096) == 4096
    assert keys_seen(1024, "none", 4096) == keys_seen(1024, "none") == 1024


def test_average_keys_are_those_that_one_counts() -> None:
    pick = random.Random(7)
    for _ in range(200):
        length, window = pick.randint(1, 60), pick.randint(1, 80)
        seen = [min(at, window) for at in range(1, length + 1)]
        assert keys_seen(length, "exact", window) == Fraction(sum(seen), length)


def test_packed_documents_do_not_see_each_other() -> None:
    assert packed_keys([8192]) == keys_seen(8192, "exact")
    assert packed_keys([1024] * 8) == Fraction("512.5")
    assert packed_keys([100, 300], halved=True) == Fraction(100**2 + 300**2, 2 * 400)
    seen = [key for length in (5, 2, 9) for key in range(1, length + 1)]
    assert packed_keys([5, 2, 9]) == Fraction(sum(seen), len(seen))


@pytest.mark.parametrize("lengths", [[], [0], [-1, 3]])
def test_no_token_has_no_average(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="no token"):
        packed_keys(lengths)


@pytest.mark.parametrize(("length", "window"), [(0, None), (-3, None), (5, 0)])
def test_no_length_has_no_keys(length: int, window: int | None) -> None:
    with pytest.raises(ValueError, match="no keys"):
        keys_seen(length, "none", window)


def test_scores_and_softmax_of_llama_3() -> None:
    assert scores(LLAMA3, 8192, "half") == 6_442_450_944
    assert scores(LLAMA3, 8192, "none") == 12_884_901_888
    assert softmax(LLAMA3, 8192) == 75_497_472
    assert scores((Attention(layers=61, heads=128, qk=192, v=128),), 4096, "half") == 30_702_305_280
    assert scores((), 4096, "half") == 0


@pytest.mark.parametrize(
    ("total", "asked", "expected"),
    [
        (46_702_792_704, {"layers": 32, "experts": 8, "per_token": 2, "expert": 3 * 4096 * 14336}, 12_879_925_248),
        (46_571_454_464, {"layers": 32, "experts": 8, "per_token": 2, "expert": 3 * 4096 * 14336}, 12_748_587_008),
        (671_026_404_352, {"layers": 58, "experts": 256, "per_token": 8, "expert": 3 * 7168 * 2048}, 37_552_282_624),
    ],
)
def test_active_parameters(total: int, asked: dict[str, Any], expected: int) -> None:
    assert weights.active(total, **asked) == expected


def test_frozen_weights() -> None:
    assert weights.partly_frozen(6_607_077_376, 4_194_304) == 26_453_475_328
    assert weights.partly_frozen(10, 3, below=5) == 2 * 5 + 4 * 10 + 6 * 3


def test_kaplan_and_chinchilla_per_sequence() -> None:
    forward = papers.kaplan_forward(84_934_656, layers=12, seq_len=1024, width=768)
    assert (forward, 3 * forward) == (188_743_680, 566_231_040)
    small = (Attention(layers=12, heads=12, qk=64, v=64),)
    products, exponents = int(scores(small, 1024, "none")), softmax(small, 1024)
    token = papers.chinchilla(123_532_032, vocab_size=50_257, width=768, products=products, softmax=exponents)
    assert token == 1_087_349_760
    assert token * 1024 // 3 == 371_148_718_080
    assert 6 * 50_257 * 768 == 231_584_256
    assert token - 231_584_256 == 855_765_504


def test_chinchilla_written_out_by_its_table() -> None:
    """Appendix F by rows, for one sequence, with attention as wide as the model and a feed-forward part of 4d."""
    t, v, d, layers, heads, inner = 1024, 50_257, 768, 12, 12, 3072
    layer = (
        2 * 3 * t * d * d + 2 * t * t * d + 3 * heads * t * t + 2 * t * t * d + 2 * t * d * d + 2 * t * 2 * d * inner
    )
    forward = 2 * t * v * d + layers * layer + 2 * t * d * v
    assert forward == 371_148_718_080


def test_narayanan() -> None:
    assert papers.narayanan(12, 768, seq_len=1024, vocab_size=50_257) == 854_438_400
    assert 509_607_936 + 113_246_208 + 231_584_256 == 854_438_400
    again = papers.narayanan(12, 768, seq_len=1024, vocab_size=50_257, recomputed=True)
    assert again == Fraction(4 * (509_607_936 + 113_246_208), 3) + 231_584_256


def test_programs() -> None:
    assert programs.llm_c(124_439_808, 56_623_104) == 803_261_952
    assert programs.nanogpt(124_373_760, 786_432, 12 * 12 * 768 * 1024) == 854_770_176
    assert programs.matmul(7_504_658_432, 12_884_901_888) == 57_912_852_480
    assert programs.megatron(7_504_658_432, 6_442_450_944) == 51_470_401_536
    assert programs.torchtitan(8_030_261_248, 525_336_576, 12_884_901_888) == 57_914_449_920
    assert programs.levanter(7_504_658_432, 12_884_901_888, 75_497_472) == 57_988_349_952


def test_nemo_written_out_is_the_same_as_the_weights_that_are_multiplied() -> None:
    d, layers, length = 4096, 32, 8192
    inner = 12 + 12 * 8 / 32 + 18 * 14336 / d + 12 * length / d + 6 * 128_256 / (layers * d)
    assert layers * d * d * inner == programs.matmul(7_504_658_432, 12_884_901_888)


def test_recomputation() -> None:
    model, core = Fraction(51_470_401_536), Fraction(6_442_450_944)
    assert recompute.full(model, body=6_979_321_856, core=core) == 67_576_528_896
    assert recompute.selective(model, core=core) == 53_617_885_184
    assert recompute.eight_n(8_030_261_248) == 64_242_089_984


def test_pair_of_an_encoder_decoder() -> None:
    pair = papers.encoder_decoder_pair(
        encoder=84_934_656, decoder=113_246_208, cross_kv=14_155_776, head=24_674_304, layers=(12, 12), width=768,
        lengths=(512, 114),
    )  # fmt: skip
    assert pair == 425_225_576_448
