"""Conventions of FLOPs: worked numbers of published models to six digits, and what happens where something lacks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from overnight.flops import FlopsFigure
from overnight.flops.conventions import CONVENTIONS, all_of, figure_of, headline, known, with_attention
from overnight.flops.counting import COUNTINGS
from overnight.modelsize import Attention, Counts, EncoderDecoder
from overnight.modelsize.adapters import with_adapters
from overnight.modelsize.named import NAMED, from_name

GPT2 = Counts(
    total=124_439_808, source="test", family="gpt2", active=124_439_808, matmul=123_532_032, active_matmul=123_532_032,
    embedding=38_597_376, position=786_432, untied_head=0, norms_and_biases=121_344, kaplan=85_056_000, layers=12,
    width=768, heads=12, kv_heads=12, head_size=64, vocab_size=50_257, context=1024, tied=True,
    attention=(Attention(layers=12, heads=12, qk=64, v=64),),
)  # fmt: skip
LLAMA3 = Counts(
    total=8_030_261_248, source="test", family="llama", active=8_030_261_248, matmul=7_504_658_432,
    active_matmul=7_504_658_432, embedding=525_336_576, position=0, untied_head=525_336_576, layers=32, width=4096,
    heads=32, kv_heads=8, head_size=128, vocab_size=128_256, context=8192, tied=False,
    attention=(Attention(layers=32, heads=32, qk=128, v=128),),
)  # fmt: skip
MIXTRAL = Counts(
    total=46_702_792_704, source="test", family="mixtral", active=12_879_925_248, matmul=46_571_454_464,
    active_matmul=12_748_587_008, embedding=131_072_000, position=0, untied_head=131_072_000, layers=32, width=4096,
    heads=32, kv_heads=8, head_size=128, vocab_size=32_000, experts=8, experts_per_token=2, tied=False,
    attention=(Attention(layers=32, heads=32, qk=128, v=128),),
)  # fmt: skip
DEEPSEEK = Counts(
    total=671_026_404_352, source="test", family="deepseek_v3", active=37_552_282_624, matmul=670_098_718_720,
    active_matmul=36_624_596_992, embedding=926_679_040, untied_head=926_679_040, layers=61, width=7168, heads=128,
    vocab_size=129_280, experts=256, experts_per_token=8, tied=False,
    attention=(Attention(layers=61, heads=128, qk=192, v=128),),
)  # fmt: skip
LLAMA2 = Counts(
    total=6_738_415_616, source="test", family="llama", active=6_738_415_616, matmul=6_607_077_376,
    active_matmul=6_607_077_376, embedding=131_072_000, untied_head=131_072_000, layers=32, width=4096, heads=32,
    kv_heads=32, head_size=128, vocab_size=32_000, tied=False,
    attention=(Attention(layers=32, heads=32, qk=128, v=128),),
)  # fmt: skip
T5_BASE = Counts(
    total=222_903_552, source="test", family="t5", active=222_903_552, matmul=222_855_168, active_matmul=222_855_168,
    embedding=24_674_304, untied_head=0, layers=12, width=768, heads=12, head_size=64, vocab_size=32_128, tied=True,
    encoder_decoder=EncoderDecoder(
        encoder_matmul=84_934_656, decoder_matmul=113_246_208, cross_kv=14_155_776, encoder_layers=12,
        decoder_layers=12, attention_width=768,
    ),
)  # fmt: skip
BARE = Counts(total=124_356_864, source="--params")


def figure(key: str, counts: Counts, seq_len: int | None, **asked: Any) -> FlopsFigure:
    found = figure_of(key, counts, seq_len=seq_len, **asked)
    assert isinstance(found, FlopsFigure), found
    return found


def flops(key: str, counts: Counts, seq_len: int | None, **asked: Any) -> float:
    return figure(key, counts, seq_len, **asked).flops_per_token


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("6n", 746_638_848),
        ("palm", 859_885_056),
        ("causal", 803_261_952),
        ("6n-matmul", 741_192_192),
        ("matmul", 854_438_400),
        ("causal-exact", 797_870_592),
        ("megatron", 797_815_296),
        ("nanogpt", 855_166_464),
        ("kaplan", 509_607_936),
        ("kaplan-attention", 566_231_040),
        ("chinchilla", 1_087_349_760),
        ("narayanan", 854_438_400),
    ],
)
def test_gpt2_small(key: str, expected: int) -> None:
    assert flops(key, GPT2, 1024) == expected


@pytest.mark.parametrize(
    ("key", "tflops", "mfu"),
    [
        ("6n", 97.863447, 31.366489),
        ("6n-matmul", 97.149543, 31.137674),
        ("causal", 105.285151, 33.745241),
        ("causal-exact", 104.578494, 33.518749),
        ("matmul", 111.992950, 35.895176),
        ("palm", 112.706854, 36.123992),
    ],
)
def test_the_same_run_has_other_figures_by_other_conventions(key: str, tflops: float, mfu: float) -> None:
    rate = flops(key, GPT2, 1024) * 131_072
    assert rate / 1e12 == pytest.approx(tflops, rel=1e-8)
    assert rate / 312e12 * 100 == pytest.approx(mfu, abs=1e-6)


@pytest.mark.parametrize(
    ("key", "expected", "mfu"),
    [
        ("6n", 48_181_567_488, 48.697764),
        ("megatron", 51_470_401_536, 52.021833),
        ("maxtext", 51_470_401_536, 52.021833),
        ("torchtitan", 57_914_449_920, 58.534920),
        ("nemo", 57_912_852_480, 58.533305),
        ("levanter", 57_988_349_952, 58.609612),
        ("palm", 61_066_469_376, 61.720709),
    ],
)
def test_llama_3_8b(key: str, expected: int, mfu: float) -> None:
    found = flops(key, LLAMA3, 8192)
    assert found == expected
    assert found * 10_000 / 989.4e12 * 100 == pytest.approx(mfu, abs=1e-6)


def test_megatron_term_by_term_is_the_weights_that_are_multiplied() -> None:
    d, layers, heads, shared, size, inner, vocab, length = 4096, 32, 32, 8, 128, 14336, 128_256, 8192
    weights = layers * (d * (heads * size + 2 * shared * size) + heads * size * d + 3 * d * inner) + d * vocab
    assert flops("megatron", LLAMA3, length) == 6 * weights + 6 * layers * heads * size * length


def test_litgpt_takes_attention_five_times() -> None:
    """It is no convention here; its figure is 14.1% above the sound one."""
    sound = flops("palm", LLAMA3, 8192)
    five = 6 * LLAMA3.total + (sound - 6 * LLAMA3.total) * 5 / 3
    assert five == 69_656_403_968
    assert five / sound == pytest.approx(1.141, abs=5e-4)
    assert not any("litgpt" in key for key in CONVENTIONS)


def test_palm_540b_by_its_width() -> None:
    """The paper's 46.2 and 45.7% follow from 238.3K tokens/s on 6,144 chips of 275 TFLOP/s."""
    palm = Counts(total=540_350_000_000, source="--params", layers=118, width=48 * 256)
    assert flops("palm", palm, 2048) == 3_277_734_806_784
    peak = 6144 * 275e12 / 238_300 / 100
    assert flops("palm", palm, 2048) / peak == pytest.approx(46.2289, abs=1e-4)
    assert flops("6n", palm, 2048) / peak == pytest.approx(45.7263, abs=1e-4)


@pytest.mark.parametrize(
    ("total", "key", "mfu"),
    [
        (124_356_864, "6n", 31.345582),
        (124_356_864, "palm", 36.103085),
        (124_356_864, "causal", 33.724334),
        (124_356_864, "nanogpt", 35.904855),
        (124_000_000, "6n", 31.255631),
        (124_439_808, "6n", 31.366489),
        (124_337_664, "6n", 31.340743),
        (123_570_432, "6n", 31.147353),
    ],
)
def test_small_differences_of_n(total: int, key: str, mfu: float) -> None:
    counts = msgspec.structs.replace(GPT2, total=total, active=total)
    assert flops(key, counts, 1024) * 131_072 / 312e12 * 100 == pytest.approx(mfu, abs=1e-6)


def test_nanogpt_on_eight_devices_is_the_same_per_rank() -> None:
    own = msgspec.structs.replace(GPT2, total=124_373_760, active=124_373_760)  # no biases, 50,304 words
    found = flops("nanogpt", own, 1024)
    assert found == 854_770_176
    assert found * 491_520 / 0.25 / (8 * 312e12) * 100 == pytest.approx(67.329589, abs=1e-6)
    assert found * 60 * 1024 / 0.25 / 312e12 * 100 == pytest.approx(67.329589, abs=1e-6)


def test_experts_count_where_they_are_active() -> None:
    assert flops("6n-matmul", MIXTRAL, None) == 76_491_522_048
    assert flops("megatron", MIXTRAL, 4096) == 79_712_747_520
    six = figure("6n", MIXTRAL, 4096)
    assert (six.label, six.flops_per_token) == ("6N (active)", 6 * 12_879_925_248)
    assert figure("moe-active", MIXTRAL, 4096) == six
    assert 6 * MIXTRAL.total / six.flops_per_token == pytest.approx(3.626, abs=5e-4)


def test_mla_has_two_sizes_of_heads() -> None:
    found = figure("megatron", DEEPSEEK, 4096)
    assert found.flops_per_token == 250_449_887_232
    assert found.flops_per_token - flops("6n-matmul", DEEPSEEK, None) == 30_702_305_280
    assert "3 * 61 * 128 * (192 + 128) * 4,096" in found.working


def test_what_is_run_again_is_of_the_hardware() -> None:
    model = flops("megatron", LLAMA3, 8192)
    full = figure("hfu-full", LLAMA3, 8192, recompute="full")
    selective = figure("hfu-selective", LLAMA3, 8192, recompute="selective")
    assert (full.flops_per_token, selective.flops_per_token) == (67_576_528_896, 53_617_885_184)
    assert full.flops_per_token / model == pytest.approx(1.312920, abs=1e-6)
    assert selective.flops_per_token / model == pytest.approx(1.041723, abs=1e-6)
    eight = figure("hfu-8n", LLAMA3, None, recompute="full")
    assert eight.flops_per_token / flops("6n", LLAMA3, None) == pytest.approx(4 / 3)
    assert {full.kind, selective.kind, eight.kind} == {"hardware"}


def test_narayanan_with_every_layer_run_again() -> None:
    """96 * L * d^2 * (...) is 4/3 of the layers, and the head once."""
    found = flops("hfu-narayanan", GPT2, 1024, recompute="full")
    assert found == pytest.approx((509_607_936 + 113_246_208) * 4 / 3 + 231_584_256)


def test_recomputation_never_changes_the_model() -> None:
    bare = all_of(LLAMA3, seq_len=8192)
    assert {one.kind for one in bare} == {"model"}
    for asked, keys in (("full", {"hfu-8n", "hfu-full"}), ("selective", {"hfu-selective"})):
        found = all_of(LLAMA3, seq_len=8192, recompute=asked)
        assert [one for one in found if one.kind == "model"] == bare
        assert {one.convention for one in found if one.kind == "hardware"} == keys
    with pytest.raises(ValueError, match="HFU"):
        headline(LLAMA3, 8192, "hfu-full")


def test_frozen_weights_cost_four() -> None:
    lora = with_adapters(LLAMA2, 4_194_304)
    bare = figure("lora", lora, None)
    assert bare.flops_per_token == 26_453_475_328
    assert bare.working == "4 * 6,607,077,376 + 6 * 4,194,304"
    assert flops("lora-attention", lora, 2048) == 29_674_700_800
    unaware = 6 * (6_607_077_376 + 4_194_304)
    assert unaware == 39_667_630_080
    assert bare.flops_per_token / unaware == pytest.approx(0.666878, abs=1e-6)
    six = headline(lora, None)
    assert six is not None
    assert six.label == "4N_f + 6N_t"
    assert six.flops_per_token == 4 * 6_738_415_616 + 6 * 4_194_304
    said = figure_of("torchtitan", lora, seq_len=2048)
    assert isinstance(said, str)
    assert "frozen" in said


def test_frozen_part_of_the_weights() -> None:
    half = msgspec.structs.replace(GPT2, trainable=24_439_808)
    assert flops("6n", half, None) == 4 * 100_000_000 + 6 * 24_439_808
    whole = msgspec.structs.replace(GPT2, trainable=GPT2.total)
    assert figure("6n", whole, None) == figure("6n", GPT2, None)


def test_encoder_decoder_by_the_tokens_of_each_side() -> None:
    found = figure("encoder-decoder", T5_BASE, 512, target_len=114)
    pair = found.flops_per_token * (512 + 114)
    assert pair == pytest.approx(425_225_576_448, rel=1e-12)
    assert "425,225,576,448 per pair" in found.note
    six = figure("6n", T5_BASE, 512)
    assert 6 * T5_BASE.total * 626 == 837_225_741_312
    assert six.flops_per_token * 626 / pair == pytest.approx(1.968898, abs=1e-6)
    assert "twice too high" in six.note
    assert with_attention(T5_BASE, 512, target_len=114) == found
    assert with_attention(T5_BASE, 512) is None
    for asked in (None, 114):
        keys = {one.convention for one in all_of(T5_BASE, seq_len=512, target_len=asked, recompute="full")}
        assert keys == {"6n", "6n-matmul"} | ({"encoder-decoder"} if asked else set())


def test_windows_and_several_kinds_of_layers() -> None:
    """Half of the layers see 4,096 tokens, half all 8,192."""
    kinds = (Attention(layers=13, heads=8, qk=256, v=256, window=4096), Attention(layers=13, heads=8, qk=256, v=256))
    counts = msgspec.structs.replace(LLAMA3, attention=kinds)
    per_key = 12 * 13 * 8 * 256
    weights = 6 * counts.total
    assert flops("palm", counts, 8192) == weights + per_key * (4096 + 8192)
    assert flops("palm", counts, 2048) == weights + per_key * 2 * 2048
    assert flops("causal", counts, 8192) == weights + per_key * (3072.25 + 4096)
    exact = figure("causal-exact", counts, 8192)
    assert exact.flops_per_token == 6 * LLAMA3.matmul + per_key * (3072.25 + 4096.5)  # type: ignore[operator]
    assert "12 * 13 * 8 * 256 * 3,072.25" in exact.working
    assert isinstance(figure_of("narayanan", counts, seq_len=8192), str)
    assert exact.note == "in 13 of 26 layers a token sees 4,096 at most"
    assert not figure("6n", counts, 8192).note
    assert not figure("palm", counts, 2048).note


def test_heads_set_apart_from_the_width() -> None:
    """Qwen3-0.6B: 1,024 wide, but 16 heads of 128."""
    counts = Counts(total=596_049_920, source="test", layers=28, width=1024, heads=16, head_size=128)
    assert flops("palm", counts, 4096) == 6 * counts.total + 12 * 28 * 16 * 128 * 4096


CASES = [
    (GPT2, 1024, None), (GPT2, 1000, None), (LLAMA3, 8192, None), (MIXTRAL, 4096, None), (DEEPSEEK, 4096, None),
    (with_adapters(LLAMA2, 4_194_304), 2048, None), (T5_BASE, 512, 114), (BARE, None, None),
    (msgspec.structs.replace(BARE, layers=12, width=768), 1024, None),
    (msgspec.structs.replace(LLAMA3, attention=(Attention(layers=32, heads=32, qk=128, v=64, window=100),)), 333, None),
]  # fmt: skip


@pytest.mark.parametrize(("counts", "seq_len", "target_len"), CASES)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_working_is_arithmetic_that_gives_the_figure(
    counts: Counts, seq_len: int | None, target_len: int | None, recompute: Any
) -> None:
    found = all_of(counts, seq_len=seq_len, target_len=target_len, recompute=recompute)
    assert found[0].convention == "6n"
    for one in found:
        assert eval(one.working.replace(",", "")) == pytest.approx(one.flops_per_token, rel=1e-9), one
        assert all((one.label, one.formula, one.source))
    assert len({one.convention for one in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "key", "seq_len", "expected"),
    [
        ("gpt2", "nanogpt", 1024, 855_166_464),
        ("gpt2", "narayanan", 1024, 854_438_400),
        ("gpt2", "kaplan", None, 509_607_936),
        ("meta-llama/Meta-Llama-3-8B", "megatron", 8192, 51_470_401_536),
        ("meta-llama/Meta-Llama-3-8B", "torchtitan", 8192, 57_914_449_920),
        ("meta-llama/Meta-Llama-3-8B", "levanter", 8192, 57_988_349_952),
        ("mistralai/Mixtral-8x7B-v0.1", "megatron", 4096, 79_712_747_520),
        ("deepseek-ai/DeepSeek-V3", "megatron", 4096, 250_449_887_232),
        ("Qwen/Qwen2.5-0.5B", "6n-matmul", None, 6 * 493_961_216),
        ("google/gemma-2-2b", "palm", 8192, 6 * 2_614_341_888 + 12 * 13 * 8 * 256 * (4096 + 8192)),
        ("google/gemma-2-2b", "causal-exact", 8192, 6 * 2_614_099_968 + 12 * 13 * 8 * 256 * (3072.25 + 4096.5)),
    ],
)
def test_public_models_by_their_own_configs(name: str, key: str, seq_len: int | None, expected: float) -> None:
    assert flops(key, from_name(name), seq_len) == expected


@pytest.mark.parametrize("name", NAMED)
def test_every_public_model_has_figures_whose_working_holds(name: str) -> None:
    counts = from_name(name)
    paired = counts.encoder_decoder is not None
    found = all_of(counts, seq_len=8192, target_len=100 if paired else None, recompute="full")
    assert len(found) >= (3 if paired else 8)
    for one in found:
        assert eval(one.working.replace(",", "")) == pytest.approx(one.flops_per_token, rel=1e-9), one
    assert ("(active)" in found[0].label) == (counts.active != counts.total)


def test_t5_base_by_its_own_config() -> None:
    found = figure("encoder-decoder", from_name("t5-base"), 512, target_len=114)
    assert found.flops_per_token * 626 == pytest.approx(425_225_576_448, rel=1e-12)


def test_which_n_matters() -> None:
    assert LLAMA3.total / 7_504_658_432 == pytest.approx(1.070, abs=5e-4)
    small = from_name("Qwen/Qwen2.5-0.5B")
    assert small.kaplan == 357_898_112
    assert 1 - small.kaplan / small.total == pytest.approx(0.276, abs=5e-4)


def test_only_n_is_known() -> None:
    assert [one.convention for one in all_of(BARE, seq_len=1024)] == ["6n"]
    six = headline(BARE, None)
    assert six is not None
    assert (six.label, six.working, six.flops_per_token) == ("6N", "6 * 124,356,864", 746_141_184)
    assert with_attention(BARE, 1024) is None
    shaped = msgspec.structs.replace(BARE, layers=12, width=768)
    beside = with_attention(shaped, 1024)
    assert beside is not None
    assert (beside.label, beside.flops_per_token) == ("6N + 12*L*H*h*T", 859_387_392)
    assert beside.working == "6 * 124,356,864 + 12 * 12 * 768 * 1,024"
    assert with_attention(shaped, None) is None


@pytest.mark.parametrize(
    ("key", "counts", "seq_len", "said"),
    [
        ("palm", BARE, 1024, "--layers"),
        ("palm", GPT2, None, "--seq-len"),
        ("matmul", BARE, 1024, "--config"),
        ("6n-matmul", BARE, None, "--config"),
        ("6n", msgspec.structs.replace(BARE, experts=8), None, "--active-params"),
        ("matmul", msgspec.structs.replace(BARE, experts=8, matmul=9), 8, "--active-params"),
        ("narayanan", LLAMA3, 1024, "12*d^2"),
        ("levanter", msgspec.structs.replace(GPT2, attention=(), heads=None), 1024, "--heads"),
        ("encoder-decoder", GPT2, 1024, "no encoder-decoder"),
        ("encoder-decoder", T5_BASE, None, "--seq-len"),
        ("encoder-decoder", T5_BASE, 512, "target"),
        ("hfu-full", GPT2, 1024, "--recompute"),
        ("palm", T5_BASE, 512, "encoder-decoder"),
        ("causal", msgspec.structs.replace(GPT2, family="bert"), 512, "nothing is masked"),
        ("nanogpt", msgspec.structs.replace(GPT2, position=None), 512, "--config"),
        ("torchtitan", msgspec.structs.replace(GPT2, tied=None), 512, "--config"),
    ],
)
def test_what_lacks_is_said(key: str, counts: Counts, seq_len: int | None, said: str) -> None:
    found = figure_of(key, counts, seq_len=seq_len)
    assert isinstance(found, str)
    assert said in found
    assert headline(counts, seq_len, key if CONVENTIONS[key].kind == "model" else "palm") is None or key == "hfu-full"


def test_a_model_that_sees_both_ways_is_not_halved_when_run_again() -> None:
    bert = msgspec.structs.replace(GPT2, family="bert")
    found = figure("hfu-selective", bert, 512, recompute="selective")
    assert found.flops_per_token == 6 * 123_532_032 + 16 * 12 * 768 * 512
    assert "12*L*H*h*T" in found.label


def test_every_convention_is_listed_with_all_its_words() -> None:
    own = {key for key, one in CONVENTIONS.items() if one.alias_of is None}
    assert own == set(COUNTINGS)
    for key, one in CONVENTIONS.items():
        assert one.key == key == key.lower()
        assert all((one.label, one.formula, one.needs, one.source))
        assert known(key).alias_of is None
    wanted = (
        "6n palm causal matmul megatron kaplan chinchilla narayanan torchtitan llmc moe-active lora hfu-full "
        "hfu-selective encoder-decoder"
    )
    assert set(wanted.split()) <= set(CONVENTIONS)


def test_an_unknown_convention_names_close_ones() -> None:
    with pytest.raises(ValueError, match=r"'megatro'.*megatron"):
        headline(GPT2, 1024, "megatro")
    assert headline(GPT2, 1024, "Megatron") == figure("megatron", GPT2, 1024)


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_one_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match="tokens"):
        all_of(GPT2, seq_len=length)
    with pytest.raises(ValueError, match="tokens"):
        all_of(T5_BASE, seq_len=5, target_len=length)
