"""Llama and the families that are built like it: RMSNorm, a gated feed-forward, rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from overnight.modelsize.families import windows
from overnight.modelsize.families.decoder import Recipe, Shape, sizes
from overnight.modelsize.fields import ConfigError, Fields
from overnight.modelsize.tally import Weights, norm

_LLAMA = sizes(32000, 4096, 11008, 32, 32, None, 2048)
_MISTRAL = sizes(32000, 4096, 14336, 32, 32, 8, 131072)
_QWEN = sizes(151936, 4096, 22016, 32, 32, 32, 32768, max_window_layers=28, sliding_window=4096)


def _without_rope(fields: Fields, layers: int) -> Sequence[int | None]:
    """SmolLM3: layers without rotary positions slide where ``use_sliding_window`` says so."""
    every = fields.size("no_rope_layer_interval")
    rope = fields.per_layer("no_rope_layers", layers) or [(index + 1) % every for index in range(layers)]
    return windows.by_types(fields, layers, lambda index: not rope[index], windows.switched(fields))


def _bitnet(fields: Fields, shape: Shape) -> Weights:
    """BitNet: one more norm inside the attention and one inside the feed-forward."""
    return norm(shape.width) + norm(fields.size("intermediate_size"))


def _whole_heads(fields: Fields, shape: Shape) -> Weights:
    """Helium: its output projection is width by width, so that the heads must fill the width."""
    if shape.heads * shape.head != shape.width:
        raise ConfigError(f"{fields.family}: {shape.heads} heads of {shape.head} do not fill hidden_size {shape.width}")
    return Weights()


FAMILIES: Mapping[str, Recipe] = {
    "llama": Recipe(defaults=_LLAMA, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "mistral": Recipe(defaults={**_MISTRAL, "sliding_window": 4096}, windows=windows.everywhere),
    "ministral": Recipe(
        defaults={**_MISTRAL, "sliding_window": 4096},
        windows=lambda fields, layers: windows.by_types(
            fields, layers, lambda _index: True, fields.maybe("sliding_window")
        ),
    ),
    "ministral3": Recipe(
        defaults=sizes(131072, 4096, 14336, 34, 32, 8, 262144, head_dim=128), windows=windows.everywhere
    ),
    "qwen2": Recipe(defaults=_QWEN, qkv_bias=True, windows=windows.later_layers),
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text"),
        Recipe(
            defaults=sizes(152064, 8192, 29568, 80, 64, 8, 32768, max_window_layers=80, sliding_window=4096),
            qkv_bias=True,
            windows=windows.later_layers,
        ),
    ),
    "qwen3_vl_text": Recipe(
        defaults=sizes(151936, 4096, 22016, 32, 32, 32, 128000, head_dim=128),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
    ),
    "internlm2": Recipe(
        defaults=sizes(103168, 4096, 11008, 32, 32, None, 2048, bias=True), qkv_bias="bias", out_bias="bias"
    ),
    "qwen3": Recipe(
        defaults={**_QWEN, "head_dim": 128},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        windows=windows.later_layers,
    ),
    "phi3": Recipe(defaults=sizes(32064, 3072, 8192, 32, 32, None, 4096), windows=windows.everywhere),
    "olmo": Recipe(
        defaults=sizes(50304, 4096, 11008, 32, 32, None, 2048),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=0,
        last_norm=False,
    ),
    "olmo2": Recipe(
        defaults=sizes(50304, 4096, 11008, 32, 32, None, 2048),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        qk_wide=True,
    ),
    "olmo3": Recipe(
        defaults=sizes(50304, 4096, 11008, 32, 32, None, 2048, sliding_window=4096),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        qk_wide=True,
        windows=lambda fields, layers: windows.by_types(
            fields, layers, lambda index: (index + 1) % 4 != 0, fields.maybe("sliding_window")
        ),
    ),
    "granite": Recipe(defaults=_LLAMA, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "smollm3": Recipe(
        defaults=sizes(128256, 2048, 11008, 36, 16, 4, 32768, no_rope_layer_interval=4, tie_word_embeddings=True),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        windows=_without_rope,
    ),
    "glm": Recipe(
        defaults=sizes(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
        qkv_bias="attention_bias",
    ),
    "glm4": Recipe(
        defaults=sizes(151552, 4096, 13696, 40, 32, 2, 131072, head_dim=128, attention_bias=True),
        qkv_bias="attention_bias",
        norms=4,
    ),
    "ernie4_5": Recipe(
        defaults=sizes(103424, 1024, 3072, 18, 16, 2, 131072, head_dim=128, tie_word_embeddings=True),
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
    ),
    "exaone4": Recipe(
        defaults=sizes(102400, 4096, 16384, 32, 32, 32, 2048, sliding_window=4096, sliding_window_pattern=4),
        qk_norm=True,
        windows=windows.all_but_every(4),
    ),
    "seed_oss": Recipe(
        defaults=sizes(155136, 4096, 27648, 64, 80, 8, 524288, head_dim=128, attention_bias=True),
        qkv_bias="attention_bias",
        out_bias="attention_out_bias",
        mlp_bias="mlp_bias",
    ),
    "hunyuan_v1_dense": Recipe(
        defaults=sizes(290943, 4096, 11008, 32, 32, None, 2048),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
    ),
    "helium": Recipe(
        defaults=sizes(48000, 2560, 7040, 24, 20, 20, 4096, head_dim=128),
        qkv_bias="attention_bias",
        mlp_bias="mlp_bias",
        more=_whole_heads,
    ),
    "apertus": Recipe(
        defaults=sizes(131072, 4096, 14336, 32, 32, None, 65536),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        gated=False,
        more=lambda _fields, _shape: Weights(other=2),  # two numbers of its activation, xIELU
    ),
    "arcee": Recipe(
        defaults=sizes(32000, 2560, 18432, 32, 32, None, 4096),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        gated=False,
        mlp_bias="mlp_bias",
    ),
    "nanochat": Recipe(
        defaults=sizes(50304, 768, 8192, 12, 6, None, 2048),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        gated=False,
        norms=0,
        last_norm=False,
    ),
    "bitnet": Recipe(
        defaults=sizes(128256, 2560, 6912, 30, 20, 5, 2048),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        more=_bitnet,
    ),
    "internlm3": Recipe(
        defaults=sizes(128512, 4096, 10240, 48, 32, 2, 32768, head_dim=128),
        names={"attention_bias": ("attention_bias", "qkv_bias"), "mlp_bias": ("mlp_bias", "bias")},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
}
