"""Counts from a config's fields: variants, defaults, nested configs, windows, and one sentence for what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.modelsize import Attention
from overnight.modelsize.config import FAMILIES, ConfigError, from_config
from overnight.modelsize.nanogpt import from_nanogpt

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 100,
    "vocab_size": 97,
}

# layers, heads, width, context, vocabulary, linear biases, LayerNorm biases: total, matmul, norms and biases
VARIANTS = [
    ((12, 12, 768, 1024, 50257, True, True), (124_439_808, 123_532_032, 121_344)),
    ((12, 12, 768, 1024, 50257, False, True), (124_356_864, 123_532_032, 38_400)),
    ((12, 12, 768, 1024, 50257, False, False), (124_337_664, 123_532_032, 19_200)),
    ((12, 12, 768, 1024, 50304, True, True), (124_475_904, 123_568_128, 121_344)),
    ((12, 12, 768, 1024, 50304, False, True), (124_392_960, 123_568_128, 38_400)),
    ((12, 12, 768, 1024, 50304, False, False), (124_373_760, 123_568_128, 19_200)),
    ((6, 6, 384, 256, 65, False, False), (10_745_088, 10_641_792, 4_992)),
    ((24, 16, 1024, 1024, 50257, False, True), (354_601_984, 353_453_056, 100_352)),
    ((36, 20, 1280, 1024, 50257, False, True), (773_615_360, 772_117_760, 186_880)),
    ((48, 25, 1600, 1024, 50257, False, True), (1_556_920_000, 1_554_971_200, 310_400)),
    ((24, 16, 1024, 1024, 50304, False, False), (354_599_936, 353_501_184, 50_176)),
    ((36, 20, 1280, 1024, 50304, False, False), (773_582_080, 772_177_920, 93_440)),
    ((48, 25, 1600, 1024, 50304, False, False), (1_556_840_000, 1_555_046_400, 155_200)),
]


@pytest.mark.parametrize(("values", "expected"), VARIANTS)
def test_gpt2_with_and_without_its_biases(values: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    layers, heads, width, context, vocab, linear, layernorm = values
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": context, "vocab_size": vocab}
    config = {"model_type": "gpt2", **sizes}
    by_argument = from_config(config, linear_bias=linear, layernorm_bias=layernorm)
    assert (by_argument.total, by_argument.matmul, by_argument.norms_and_biases) == expected
    by_field = from_config({**config, "linear_bias": linear, "layernorm_bias": layernorm})
    assert by_field == by_argument
    without_type = from_config({**sizes, "linear_bias": linear, "layernorm_bias": layernorm})
    assert without_type == by_argument
    if linear == layernorm:
        nano = from_nanogpt(layers, heads, width, context, vocab, bias=linear)
        assert (nano.total, nano.matmul, nano.norms_and_biases) == expected


def test_nanogpt_names_its_values_and_what_it_prints_itself() -> None:
    counts = from_nanogpt(n_layer=6, n_head=6, n_embd=384, block_size=256, vocab_size=65, bias=False)
    assert counts.source == "nanoGPT: n_layer 6 n_head 6 n_embd 384 block_size 256 vocab_size 65 bias False"
    assert counts.family == "nanogpt"
    assert any("10.65M" in note for note in counts.notes)
    assert (counts.layers, counts.width, counts.heads, counts.context, counts.tied) == (6, 384, 6, 256, True)


def test_a_nanogpt_set_without_bias_is_refused_because_its_two_defaults_differ() -> None:
    sizes = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304}
    with pytest.raises(ConfigError, match="needs bias true or false"):
        from_config(sizes)
    assert from_config({**sizes, "bias": False}).total == 124_373_760


@pytest.mark.parametrize(
    ("vocab", "multiple", "padded"), [(50257, 128, 50304), (50257, 64, 50304), (50304, 64, 50304), (50257, 1, 50257)]
)
def test_a_vocabulary_is_padded_up_to_a_multiple(vocab: int, multiple: int, padded: int) -> None:
    counts = from_config({**GPT2, "vocab_size": vocab}, pad_to=multiple)
    assert counts.vocab_size == padded
    assert counts == from_config({**GPT2, "vocab_size": padded}) or counts.notes == (
        f"vocabulary {vocab:,} padded to {padded:,}, a multiple of {multiple}",
    )
    assert counts.total == 124_439_808 + (padded - 50257) * 768


def test_an_untied_head_is_padded_too() -> None:
    assert from_config(LLAMA, pad_to=32).total - from_config(LLAMA).total == 2 * (128 - 97) * 64


def test_the_parts_add_up_to_the_whole() -> None:
    counts = from_config(LLAMA)
    assert counts.embedding == counts.untied_head == 97 * 64
    assert counts.kaplan == counts.total - 2 * 97 * 64
    attention, block = 64 * 64 * 2 + 64 * 32 * 2, 3 * 64 * 100
    assert counts.matmul == 3 * (attention + block) + 97 * 64
    assert counts.norms_and_biases == 7 * 64
    assert (counts.heads, counts.kv_heads, counts.head_size, counts.layers) == (4, 2, 16, 3)
    assert counts.attention == (Attention(layers=3, heads=4, qk=16, v=16),)
    assert (counts.active, counts.active_matmul) == (counts.total, counts.matmul)


def test_a_tied_head_still_multiplies() -> None:
    tied, untied = from_config({**LLAMA, "tie_word_embeddings": True}), from_config(LLAMA)
    assert tied.matmul == untied.matmul
    assert tied.total == untied.total - 97 * 64
    assert (tied.untied_head, tied.tied) == (0, True)


def test_a_head_size_of_its_own_widens_the_projections() -> None:
    counts = from_config({**LLAMA, "head_dim": 32})
    assert (counts.matmul or 0) - (from_config(LLAMA).matmul or 0) == 3 * (64 * 64 * 2 + 64 * 32 * 2)
    assert from_config({**LLAMA, "head_dim": None}).total == from_config(LLAMA).total


def test_experts_count_whole_in_the_total_and_as_chosen_in_active() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    counts = from_config(config)
    expert = 3 * 64 * 100
    assert counts.total - (counts.active or 0) == 3 * 6 * expert
    assert (counts.matmul or 0) - (counts.active_matmul or 0) == 3 * 6 * expert
    assert (counts.experts, counts.experts_per_token) == (8, 2)


def test_deepseek_v3_scores_with_more_than_it_sums() -> None:
    counts = from_config({"model_type": "deepseek_v3", "num_hidden_layers": 61})
    assert counts.attention == (Attention(layers=61, heads=128, qk=192, v=128),)
    assert (counts.total, counts.active) == (671_026_404_352, 37_552_282_624)
    assert any("buffer" in note for note in counts.notes)


def test_t5_counts_its_two_sides_apart() -> None:
    config = {"model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    sides = from_config(config).encoder_decoder
    assert sides is not None
    assert (sides.encoder_matmul, sides.decoder_matmul, sides.cross_kv) == (84_934_656, 113_246_208, 14_155_776)
    assert (sides.encoder_layers, sides.decoder_layers, sides.attention_width) == (12, 12, 768)
    untied = from_config({**config, "tie_word_embeddings": False})
    assert untied.total - from_config(config).total == 32128 * 768
    assert any("transformers 5 ties it" in note for note in untied.notes)
    assert (from_config({**config, "num_decoder_layers": 2}).encoder_decoder or sides).decoder_layers == 2


WINDOWS: list[tuple[dict[str, Any], list[tuple[int, int | None]]]] = [
    ({"model_type": "llama", "sliding_window": 8}, [(6, None)]),
    ({"model_type": "mistral", "sliding_window": 8}, [(6, 8)]),
    ({"model_type": "mistral", "sliding_window": None}, [(6, None)]),
    ({"model_type": "mistral"}, [(6, 4096)]),
    ({"model_type": "mixtral"}, [(6, None)]),
    ({"model_type": "qwen2", "sliding_window": 8}, [(6, None)]),
    (
        {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4},
        [(4, None), (2, 8)],
    ),
    ({"model_type": "gemma2", "sliding_window": 8, "num_hidden_layers": 5}, [(3, 8), (2, None)]),
    ({"model_type": "gemma3_text", "sliding_window": 8}, [(5, 8), (1, None)]),
    ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 3}, [(4, 8), (2, None)]),
    ({"model_type": "cohere2", "sliding_window": 8}, [(5, 8), (1, None)]),
    ({"model_type": "olmo3", "sliding_window": 8}, [(5, 8), (1, None)]),
    ({"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLLG"}, [(5, 8), (1, None)]),
    ({"model_type": "exaone4", "sliding_window": None}, [(6, None)]),
    ({"model_type": "gpt_oss", "sliding_window": 8, "num_hidden_layers": 5}, [(3, 8), (2, None)]),
    ({"model_type": "llama4_text", "attention_chunk_size": 8}, [(5, 8), (1, None)]),
    ({"model_type": "smollm3", "sliding_window": 8, "use_sliding_window": True}, [(1, 8), (5, None)]),
    (
        {"model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"] * 5 + ["sliding_attention"]},
        [(5, None), (1, 8)],
    ),
]


@pytest.mark.parametrize(("config", "expected"), WINDOWS)
def test_windows_stand_on_the_layers_that_have_them(
    config: dict[str, Any], expected: list[tuple[int, int | None]]
) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6}
    found = [(kind.layers, kind.window) for kind in from_config({**sizes, **config}).attention]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_gpt_neo_names_its_local_layers() -> None:
    sizes = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 3, "window_size": 8}
    types = [[["global", "local"], 1], [["local"], 1]]
    kinds = from_config({**sizes, "attention_types": types}).attention
    assert [(kind.layers, kind.window) for kind in kinds] == [(1, None), (2, 8)]
    for wrong in (types[:1], [["global", 3]], "global"):
        with pytest.raises(ConfigError, match="attention_types"):
            from_config({**sizes, "attention_types": wrong})


def test_sizes_that_the_config_leaves_out_are_the_family_s_own_and_are_said() -> None:
    config = {name: value for name, value in LLAMA.items() if name not in ("vocab_size", "num_key_value_heads")}
    counts = from_config(config)
    assert counts.vocab_size == 32000
    assert counts.kv_heads == 4
    assert counts.notes == ("not in the config, so llama's own default: vocab_size 32000",)


def test_a_nested_language_model_is_counted_and_its_tower_is_named() -> None:
    inner = {**LLAMA, "tie_word_embeddings": True}
    counts = from_config({"model_type": "llava", "text_config": inner, "vision_config": {"hidden_size": 8}})
    assert counts.total == from_config(inner).total
    assert counts.source == "text_config of config.json of llava"
    assert "the model of vision_config is not counted" in counts.notes
    bare = {"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_hidden_layers": 2}}
    assert from_config(bare).family == "gemma3_text"


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, False), (None, True, True), (False, True, True), (True, None, True), (True, False, True)],
)
def test_either_part_of_a_nested_config_may_tie(outer: bool | None, inner: bool | None, tied: bool) -> None:
    name = "tie_word_embeddings"
    text = LLAMA if inner is None else {**LLAMA, name: inner}
    config = {"model_type": "llava", "text_config": text} | ({} if outer is None else {name: outer})
    assert from_config(config).tied is tied


def test_a_flat_config_with_a_tower_is_its_language_model() -> None:
    config = {**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}
    counts = from_config(config)
    assert counts.family == "qwen2_5_vl_text"
    assert counts.total == from_config({**LLAMA, "model_type": "qwen2"}).total


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "config.json names no model_type"),
    ({"model_type": 3}, "names no model_type"),
    ({"model_type": "lama", "hidden_size": 8}, "model_type 'lama' is not a family that is counted; close to it: llama"),
    ({"model_type": "quantum_rwkv9"}, "model_type 'quantum_rwkv9' is not a family that is counted; give --params"),
    ({"model_type": "llama"}, "llama: config.json gives no size at all, such as num_hidden_layers"),
    ({"model_type": "gpt2"}, "gpt2: config.json gives no size at all, such as n_layer"),
    ({**LLAMA, "hidden_size": 65}, "hidden_size 65 is not a multiple of num_attention_heads 4"),
    ({**LLAMA, "num_key_value_heads": 3}, "4 heads cannot share 3 key/value heads evenly"),
    ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0, which no model has"),
    ({**LLAMA, "num_hidden_layers": -3}, "num_hidden_layers is -3"),
    ({**LLAMA, "num_hidden_layers": 10**8}, "num_hidden_layers is 100000000, which no model has"),
    ({**LLAMA, "vocab_size": 10**12}, "vocab_size is 1000000000000"),
    ({**LLAMA, "vocab_size": "32000"}, "vocab_size must be a whole number, and is '32000'"),
    ({**LLAMA, "vocab_size": 32000.0}, "vocab_size must be a whole number, and is 32000.0"),
    ({**LLAMA, "vocab_size": True}, "vocab_size must be a whole number, and is True"),
    ({**LLAMA, "vocab_size": None}, "the config gives no vocab_size"),
    ({**LLAMA, "intermediate_size": [1, 2]}, "intermediate_size must be a whole number"),
    ({**LLAMA, "attention_bias": "yes"}, "attention_bias must be true or false, and is 'yes'"),
    ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, and is 1"),
    ({**GPT2, "hidden_size": 512}, "n_embd 768 and hidden_size 512 are the same field and differ"),
    ({**GPT2, "n_head": 7}, "n_embd 768 is not a multiple of n_head 7"),
    ({**GPT2, "add_cross_attention": True}, "a model with add_cross_attention true is not counted"),
    ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "'LlamaForSequenceClassification', and only"),
    ({**LLAMA, "linear_bias": True}, "linear_bias is true, and this model has no biases in its linear layers"),
    ({**LLAMA, "layernorm_bias": True}, "layernorm_bias is true, and this model's norms have no bias"),
    (
        {**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
        "num_experts_per_tok 3 is more than num_local_experts 2",
    ),
    ({**LLAMA, "model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types has 1 entries"),
    ({**LLAMA, "model_type": "gemma2", "layer_types": ["mamba"] * 3}, "layers of type 'mamba' are not known"),
    ({**LLAMA, "model_type": "gemma2", "layer_types": "full"}, "layer_types must be a list, and is 'full'"),
    ({"model_type": "llava", "text_config": {"model_type": "mystery"}}, "text_config of config.json: model_type"),
    ({"model_type": "t5", "num_layers": 2, "feed_forward_proj": "swish-gelu"}, "feed_forward_proj 'swish-gelu'"),
]


@pytest.mark.parametrize(("config", "sentence"), WRONG)
def test_what_cannot_be_is_one_sentence(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_config(config)
    text = str(caught.value)
    assert sentence in text
    assert "\n" not in text
    assert len(text) < 250


@pytest.mark.parametrize("config", [None, [], "llama", 3])
def test_what_is_no_group_of_fields_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="a config is a group of fields"):
        from_config(config)


@pytest.mark.parametrize("pad_to", [0, -1, 1.5])
def test_a_padding_that_cannot_be_is_refused(pad_to: Any) -> None:
    with pytest.raises(ConfigError, match="pad_to"):
        from_config(GPT2, pad_to=pad_to)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_fails_on_a_field_of_another_kind(family: str) -> None:
    """Whatever stands in a field, the answer is counts or one sentence."""
    recipe = FAMILIES[family]
    spelled = [recipe.names.get(name, (name,)) for name in (*recipe.defaults, "layer_types", "sliding_window")]
    for names in spelled:
        for value in (None, "x", -1, 0, 1.5, [], {}, [None], [[1]], {"a": 1}, ["x"], True, 10**15):
            for name in names:
                try:
                    from_config({"model_type": family, "num_hidden_layers": 2, "hidden_size": 64, name: value})
                except ConfigError as error:
                    assert "\n" not in str(error)  # noqa: PT017 - counts are an answer as well


def test_architectures_without_a_head_are_counted_with_one_and_it_is_said() -> None:
    counts = from_config({**LLAMA, "architectures": ["LlamaModel"]})
    assert counts.total == from_config(LLAMA).total
    assert "counted as a language model with its output head" in counts.notes[0]
    assert not from_config({**LLAMA, "architectures": ["LlamaForCausalLM"]}).notes


def test_old_and_new_spellings_are_one_field() -> None:
    spelled = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 1024}
    assert from_config({"model_type": "gpt2", "vocab_size": 50257, **spelled}).total == 124_439_808
    assert from_config({**GPT2, "hidden_size": 768}).total == 124_439_808
    old = {"hidden_size": 4544, "n_layer": 32, "n_head": 71, "vocab_size": 65024}
    assert from_config({"model_type": "RefinedWebModel", **old}).total == 6_921_720_704
