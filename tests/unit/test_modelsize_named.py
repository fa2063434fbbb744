"""Counts of public models by name: exact integers, and what a name that is not known gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overnight.modelsize.config import ConfigError, from_config
from overnight.modelsize.named import NAMED, from_name

MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "model_counts.json"

# total, active, matmul, active matmul, Kaplan's N, token embedding: each built once by transformers, on meta.
KNOWN = {
    "gpt2": (124_439_808, 124_439_808, 123_532_032, 123_532_032, 85_056_000, 38_597_376),
    "gpt2-medium": (354_823_168, 354_823_168, 353_453_056, 353_453_056, 302_311_424, 51_463_168),
    "gpt2-large": (774_030_080, 774_030_080, 772_117_760, 772_117_760, 708_390_400, 64_328_960),
    "gpt2-xl": (1_557_611_200, 1_557_611_200, 1_554_971_200, 1_554_971_200, 1_475_561_600, 80_411_200),
    "meta-llama/Llama-2-7b-hf": (
        6_738_415_616,
        6_738_415_616,
        6_607_077_376,
        6_607_077_376,
        6_476_271_616,
        131_072_000,
    ),
    "meta-llama/Llama-2-13b-hf": (
        13_015_864_320,
        13_015_864_320,
        12_851_609_600,
        12_851_609_600,
        12_688_184_320,
        163_840_000,
    ),
    "meta-llama/Llama-2-70b-hf": (
        68_976_648_192,
        68_976_648_192,
        68_713_185_280,
        68_713_185_280,
        68_452_360_192,
        262_144_000,
    ),
    "meta-llama/Meta-Llama-3-8B": (
        8_030_261_248,
        8_030_261_248,
        7_504_658_432,
        7_504_658_432,
        6_979_588_096,
        525_336_576,
    ),
    "meta-llama/Meta-Llama-3-70B": (
        70_553_706_496,
        70_553_706_496,
        69_501_714_432,
        69_501_714_432,
        68_452_360_192,
        1_050_673_152,
    ),
    "meta-llama/Llama-3.1-405B": (
        405_853_388_800,
        405_853_388_800,
        403_747_897_344,
        403_747_897_344,
        401_650_696_192,
        2_101_346_304,
    ),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, 1_235_814_400, 1_235_746_816, 1_235_746_816, 973_146_112, 262_668_288),
    "meta-llama/Llama-3.2-3B": (3_212_749_824, 3_212_749_824, 3_212_574_720, 3_212_574_720, 2_818_747_392, 394_002_432),
    "mistralai/Mistral-7B-v0.1": (
        7_241_732_096,
        7_241_732_096,
        7_110_393_856,
        7_110_393_856,
        6_979_588_096,
        131_072_000,
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        46_702_792_704,
        12_879_925_248,
        46_571_454_464,
        12_748_587_008,
        46_440_648_704,
        131_072_000,
    ),
    "Qwen/Qwen2.5-0.5B": (494_032_768, 494_032_768, 493_961_216, 493_961_216, 357_898_112, 136_134_656),
    "Qwen/Qwen2.5-1.5B": (1_543_714_304, 1_543_714_304, 1_543_569_408, 1_543_569_408, 1_310_340_608, 233_373_696),
    "Qwen/Qwen2.5-3B": (3_085_938_688, 3_085_938_688, 3_085_697_024, 3_085_697_024, 2_774_773_760, 311_164_928),
    "Qwen/Qwen2.5-7B": (7_615_616_512, 7_615_616_512, 7_070_285_824, 7_070_285_824, 6_525_621_760, 544_997_376),
    "Qwen/Qwen2.5-14B": (14_770_033_664, 14_770_033_664, 13_990_625_280, 13_990_625_280, 13_212_898_304, 778_567_680),
    "Qwen/Qwen2.5-32B": (32_763_876_352, 32_763_876_352, 31_984_189_440, 31_984_189_440, 31_206_740_992, 778_567_680),
    "Qwen/Qwen2.5-72B": (72_706_203_648, 72_706_203_648, 71_458_357_248, 71_458_357_248, 70_214_787_072, 1_245_708_288),
    "Qwen/Qwen3-0.6B": (596_049_920, 596_049_920, 595_984_384, 595_984_384, 440_467_456, 155_582_464),
    "Qwen/Qwen3-1.7B": (1_720_574_976, 1_720_574_976, 1_720_451_072, 1_720_451_072, 1_409_410_048, 311_164_928),
    "Qwen/Qwen3-4B": (4_022_468_096, 4_022_468_096, 4_022_272_000, 4_022_272_000, 3_633_511_936, 388_956_160),
    "Qwen/Qwen3-8B": (8_190_735_360, 8_190_735_360, 7_568_097_280, 7_568_097_280, 6_946_075_648, 622_329_856),
    "Qwen/Qwen3-14B": (14_768_307_200, 14_768_307_200, 13_989_969_920, 13_989_969_920, 13_212_482_560, 777_912_320),
    "Qwen/Qwen3-32B": (32_762_123_264, 32_762_123_264, 31_983_534_080, 31_983_534_080, 31_206_298_624, 777_912_320),
    "Qwen/Qwen3-30B-A3B": (30_532_122_624, 3_353_032_704, 30_220_746_752, 3_041_656_832, 29_909_792_768, 311_164_928),
    "Qwen/Qwen3-235B-A22B": (
        235_093_634_560,
        22_190_763_520,
        234_470_506_496,
        21_567_635_456,
        233_848_974_848,
        622_329_856,
    ),
    "google/gemma-2-2b": (2_614_341_888, 2_614_341_888, 2_614_099_968, 2_614_099_968, 2_024_517_888, 589_824_000),
    "google/gemma-2-9b": (9_241_705_984, 9_241_705_984, 9_241_100_288, 9_241_100_288, 8_324_201_984, 917_504_000),
    "google/gemma-2-27b": (
        27_227_128_320,
        27_227_128_320,
        27_226_275_840,
        27_226_275_840,
        26_047_480_320,
        1_179_648_000,
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        3_821_079_552,
        3_821_079_552,
        3_722_379_264,
        3_722_379_264,
        3_624_078_336,
        98_500_608,
    ),
    "microsoft/Phi-3-medium-4k-instruct": (
        13_960_238_080,
        13_960_238_080,
        13_795_655_680,
        13_795_655_680,
        13_631_902_720,
        164_167_680,
    ),
    "allenai/OLMo-2-0425-1B": (1_484_916_736, 1_484_916_736, 1_279_262_720, 1_279_262_720, 1_073_874_944, 205_520_896),
    "allenai/OLMo-2-1124-7B": (7_298_617_344, 7_298_617_344, 6_887_047_168, 6_887_047_168, 6_476_533_760, 411_041_792),
    "allenai/OLMo-2-1124-13B": (
        13_716_198_400,
        13_716_198_400,
        13_201_571_840,
        13_201_571_840,
        12_688_593_920,
        513_802_240,
    ),
    "allenai/OLMo-2-0325-32B": (
        32_234_279_936,
        32_234_279_936,
        31_719_424_000,
        31_719_424_000,
        31_206_675_456,
        513_802_240,
    ),
    "EleutherAI/pythia-70m": (70_426_624, 70_426_624, 44_630_016, 44_630_016, 18_915_328, 25_755_648),
    "EleutherAI/pythia-160m": (162_322_944, 162_322_944, 123_568_128, 123_568_128, 85_056_000, 38_633_472),
    "EleutherAI/pythia-410m": (405_334_016, 405_334_016, 353_501_184, 353_501_184, 302_311_424, 51_511_296),
    "EleutherAI/pythia-1b": (1_011_781_632, 1_011_781_632, 908_328_960, 908_328_960, 805_736_448, 103_022_592),
    "EleutherAI/pythia-1.4b": (1_414_647_808, 1_414_647_808, 1_310_982_144, 1_310_982_144, 1_208_602_624, 103_022_592),
    "EleutherAI/pythia-2.8b": (2_775_208_960, 2_775_208_960, 2_645_360_640, 2_645_360_640, 2_517_652_480, 128_778_240),
    "EleutherAI/pythia-6.9b": (6_857_302_016, 6_857_302_016, 6_649_020_416, 6_649_020_416, 6_444_163_072, 206_569_472),
    "EleutherAI/pythia-12b": (
        11_846_072_320,
        11_846_072_320,
        11_584_143_360,
        11_584_143_360,
        11_327_027_200,
        259_522_560,
    ),
    "HuggingFaceTB/SmolLM2-135M": (134_515_008, 134_515_008, 134_479_872, 134_479_872, 106_203_456, 28_311_552),
    "HuggingFaceTB/SmolLM2-360M": (361_821_120, 361_821_120, 361_758_720, 361_758_720, 314_635_200, 47_185_920),
    "HuggingFaceTB/SmolLM2-1.7B": (
        1_711_376_384,
        1_711_376_384,
        1_711_276_032,
        1_711_276_032,
        1_610_713_088,
        100_663_296,
    ),
    "deepseek-ai/DeepSeek-V3": (
        671_026_404_352,
        37_552_282_624,
        670_098_718_720,
        36_624_596_992,
        669_173_046_272,
        926_679_040,
    ),
    "t5-small": (60_506_624, 60_506_624, 60_489_728, 60_489_728, 44_057_088, 16_449_536),
    "t5-base": (222_903_552, 222_903_552, 222_855_168, 222_855_168, 198_229_248, 24_674_304),
}
PUBLISHED = {  # totals as their publishers state them
    "distilgpt2": 81_912_576,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "EleutherAI/pythia-14m": 14_067_712,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-6.7b": 6_658_473_984,
    "bigscience/bloom-560m": 559_214_592,
    "bigscience/bloom-7b1": 7_069_016_064,
    "bigscience/bloom": 176_247_271_424,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b": 8_537_680_896,
    "google/gemma-3-270m": 268_098_176,
    "google/gemma-3-1b-pt": 999_885_952,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "allenai/OLMo-1B-hf": 1_176_764_416,
    "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "codellama/CodeLlama-34b-hf": 33_743_970_304,
    "01-ai/Yi-34B": 34_388_917_248,
    "deepseek-ai/deepseek-llm-7b-base": 6_910_365_696,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "bert-base-uncased": 109_514_298,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "google/flan-t5-base": 247_577_856,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_public_model_by_name_has_its_exact_counts(name: str) -> None:
    counts = from_name(name)
    found = (counts.total, counts.active, counts.matmul, counts.active_matmul, counts.kaplan, counts.embedding)
    assert found == KNOWN[name]
    assert counts.source == f"{name}, by name"


@pytest.mark.parametrize("name", PUBLISHED)
def test_further_public_models_have_the_totals_that_were_published(name: str) -> None:
    assert from_name(name).total == PUBLISHED[name]


@pytest.mark.parametrize("name", NAMED)
def test_every_name_can_be_counted_and_says_all_its_sizes(name: str) -> None:
    counts = from_name(name)
    assert counts.matmul is not None
    assert 0 < counts.matmul <= counts.total
    assert counts.active is not None
    assert (counts.active < counts.total) == (counts.experts is not None)
    assert not [note for note in counts.notes if "own default" in note]


def test_a_name_is_found_without_its_owner_and_in_any_case() -> None:
    assert from_name("meta-llama-3-8b") == from_name("meta-llama/Meta-Llama-3-8B")
    assert from_name(" GPT2-XL ").total == 1_557_611_200


def test_a_name_that_is_not_known_is_told_the_close_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"no model called 'llama-3-8b' is known here; close to it: .*Meta-Llama-3-8B"
    ):
        from_name("llama-3-8b")
    with pytest.raises(ConfigError, match=r"'xyzzy' is known here; give --config config.json or --params"):
        from_name("xyzzy")


def test_part_of_a_name_is_not_a_name() -> None:
    for name in ("", "meta-llama", "qwen", "gpt"):
        with pytest.raises(ConfigError):
            from_name(name)


def measured() -> list[Any]:
    """Return every model of the measured list, where this machine has it."""
    if not MEASURED.is_file():
        return []
    data = json.loads(MEASURED.read_text())
    groups = (data["models"], data["gpt2_variants"])
    return [pytest.param(one, id=name) for group in groups for name, one in group.items()]


@pytest.mark.skipif(not MEASURED.is_file(), reason="the measured list is not on this machine")
@pytest.mark.parametrize("model", measured())
def test_the_measured_list_agrees_in_every_count(model: dict[str, Any]) -> None:
    counts = from_config({"model_type": model.get("model_type", "gpt2"), **model["config"]})
    found = {
        "total": counts.total,
        "token_embedding": counts.embedding,
        "position_embedding": counts.position,
        "untied_lm_head": counts.untied_head,
        "norms_and_biases": counts.norms_and_biases,
        "non_embedding_kaplan": counts.kaplan,
        "matmul_params": counts.matmul,
        "active_total": counts.active,
        "active_matmul_params": counts.active_matmul,
        "total_minus_position": counts.total - (counts.position or 0),
        "body_matmul": (counts.matmul or 0) - (counts.vocab_size or 0) * (counts.width or 0),
    }
    if counts.encoder_decoder is not None:
        found["encoder_matmul"] = counts.encoder_decoder.encoder_matmul
        found["decoder_matmul"] = counts.encoder_decoder.decoder_matmul
    assert {name: value for name, value in found.items() if name in model["counts"]} == {
        name: value for name, value in model["counts"].items() if name in found
    }
