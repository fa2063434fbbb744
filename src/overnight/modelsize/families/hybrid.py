"""Models whose layers are not all attention: Qwen3-Next and 3.5, LFM2, Mamba 1 and 2.

Layers of linear attention, convolution or state space have no score that grows with the sequence: they stand in no
kind of attention here, and what they do besides multiplying their matrices is counted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from overnight.modelsize import Attention
from overnight.modelsize.families.decoder import (
    Forward,
    Forwards,
    Recipe,
    Shape,
    assemble,
    attention_weights,
    layer_of,
    shape_of,
    sizes,
)
from overnight.modelsize.families.moe import qwen_forwards, routed
from overnight.modelsize.families.windows import FULL
from overnight.modelsize.fields import ConfigError, Fields, shown
from overnight.modelsize.tally import Layer, Model, Weights, gated, linear, norm

_NOTE = "what layers without attention do besides their matrices is not counted"
_LINEAR, _CONV = "linear_attention", "conv"


def _kinds(fields: Fields, layers: int, other: str, full: Callable[[int], bool]) -> list[str]:
    """Return what each layer is: ``layer_types`` of the config, or the family's pattern."""
    kinds = fields.per_layer("layer_types", layers) or [FULL if full(index) else other for index in range(layers)]
    strange = [kind for kind in kinds if kind not in (FULL, other)]
    if strange:
        raise ConfigError(f"{fields.family}: layers of type {shown(strange[0])} are not known to this family")
    return kinds


def _delta(fields: Fields, width: int) -> Weights:
    """Return one layer of gated delta net: queries, keys, values and a gate, through a short convolution."""
    heads, values = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    keys = heads * fields.size("linear_key_head_dim")
    one = fields.size("linear_value_head_dim")
    mixed = 2 * keys + values * one
    found = linear(width, mixed + values * one) + linear(width, 2 * values) + linear(values * one, width)
    return found + Weights(other=mixed * fields.size("linear_conv_kernel_dim") + 2 * values) + norm(one)


def _qwen(fields: Fields, recipe: Recipe) -> Model:
    """Qwen3-Next and 3.5: every fourth layer is attention with a gate beside its queries, the others are delta nets."""
    shape = shape_of(fields, recipe)
    if recipe.forwards is not None:
        blocks = recipe.forwards(fields, shape)
    else:
        blocks = [Forward(weights=gated(shape.width, shape.inner or 0))] * shape.layers
    gate = linear(shape.width, shape.heads * shape.head, bias=fields.flag("attention_bias"))
    full = attention_weights(fields, recipe, shape) + gate + norm(shape.width) * 2
    delta = _delta(fields, shape.width) + norm(shape.width) * 2
    every = fields.size("full_attention_interval")
    kinds = _kinds(fields, shape.layers, _LINEAR, lambda index: (index + 1) % every == 0)
    return _mixed(fields, recipe, shape, [(full if kind == FULL else delta, kind) for kind in kinds], blocks)


def _mixed(
    fields: Fields, recipe: Recipe, shape: Shape, mixers: Sequence[tuple[Weights, str]], blocks: Sequence[Forward]
) -> Model:
    """Return the model of layers of which only those of full attention have scores."""
    seen = Attention(layers=1, heads=shape.heads, qk=shape.head, v=shape.head)
    layers = [
        layer_of(weights, block, seen if kind == FULL else None)
        for (weights, kind), block in zip(mixers, blocks, strict=True)
    ]
    return assemble(fields, recipe, shape, layers)


def _qwen35_moe(fields: Fields, shape: Shape) -> Sequence[Forward]:
    """Qwen3.5-MoE: experts and a shared one with a gate in every layer."""
    shared = gated(shape.width, fields.size("shared_expert_intermediate_size")) + linear(shape.width, 1)
    expert = gated(shape.width, fields.size("moe_intermediate_size"))
    return [routed(fields, shape.width, expert, many="num_experts", shared=shared)] * shape.layers


def _lfm2(fields: Fields, recipe: Recipe) -> Model:
    """LFM2: attention on some layers, a short gated convolution on the others; the feed-forward's size is adjusted."""
    shape = shape_of(fields, recipe)
    inner = fields.size("intermediate_size")
    if fields.flag("block_auto_adjust_ff_dim"):
        multiple, ratio = fields.size("block_multiple_of"), fields.raw("block_ffn_dim_multiplier")
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1000:
            raise ConfigError(f"{fields.family}: block_ffn_dim_multiplier must be a number, and is {shown(ratio)}")
        inner = -(-int(ratio * int(2 * inner / 3)) // multiple) * multiple
    bias = fields.flag("conv_bias")
    conv = linear(shape.width, 3 * shape.width, bias=bias) + linear(shape.width, shape.width, bias=bias)
    conv += Weights(other=shape.width * fields.size("conv_L_cache"), bias=shape.width if bias else 0)
    full = attention_weights(fields, recipe, shape)
    chosen = fields.items("full_attn_idxs")
    kinds = _kinds(fields, shape.layers, _CONV, lambda index: chosen is None or index in chosen)
    norms = norm(shape.width) * 2
    blocks = [Forward(weights=gated(shape.width, inner))] * shape.layers
    return _mixed(fields, recipe, shape, [((full if kind == FULL else conv) + norms, kind) for kind in kinds], blocks)


def _mamba(fields: Fields, _recipe: Recipe) -> Model:
    """Mamba: in and out, a projection of what steers the state, and one of its time step."""
    width, state = fields.size("hidden_size"), fields.size("state_size")
    inner, bias = fields.maybe("intermediate_size") or fields.size("expand") * width, fields.flag("use_bias")
    rank = -(-width // 16) if fields.raw("time_step_rank") == "auto" else fields.size("time_step_rank")
    found = linear(width, 2 * inner, bias=bias) + linear(inner, rank + 2 * state)
    found += linear(rank, inner, bias=True) + linear(inner, width, bias=bias)
    found += _convolution(fields, inner) + Weights(other=inner * state + inner)
    return _state_space(fields, found + norm(width))


def _mamba2(fields: Fields, _recipe: Recipe) -> Model:
    """Mamba 2: one projection for all that steers the state, heads that share it by groups."""
    width, heads = fields.size("hidden_size"), fields.size("num_heads")
    inner, bias = fields.size("expand") * width, fields.flag("use_bias")
    if inner != heads * fields.size("head_dim"):
        raise ConfigError(
            f"mamba2: {heads} heads of {fields.size('head_dim')} are not expand times hidden_size {width}"
        )
    mixed = inner + 2 * fields.size("n_groups") * fields.size("state_size")
    found = linear(width, inner + mixed + heads, bias=bias) + linear(inner, width, bias=bias)
    found += _convolution(fields, mixed) + Weights(other=3 * heads)
    return _state_space(fields, found + norm(inner) + norm(width))


def _convolution(fields: Fields, channels: int) -> Weights:
    """Return a convolution over each channel alone."""
    bias = channels if fields.flag("use_conv_bias") else 0
    return Weights(other=channels * fields.size("conv_kernel"), bias=bias)


def _state_space(fields: Fields, weights: Weights) -> Model:
    """Return a model all of whose layers are state spaces."""
    width, vocab = fields.size("hidden_size"), fields.size("vocab_size")
    return Model(
        layers=(Layer(weights=weights),) * fields.layers(),
        embedding=vocab * width,
        head=vocab * width,
        tied=fields.flag("tie_word_embeddings"),
        outside=norm(width),
        width=width,
        heads=None,
        kv_heads=None,
        head_size=None,
        vocab_size=vocab,
        context=None,
        notes=(_NOTE,),
    )


_DELTA = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
_STATE = {"expand": 2, "conv_kernel": 4, "use_conv_bias": True}


def _qwen_recipe(defaults: Mapping[str, object], forwards: Forwards | None = None) -> Recipe:
    """Return the recipe of a Qwen with delta nets."""
    return Recipe(
        defaults={**defaults, **_DELTA},
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm=True,
        forwards=forwards,
        build=_qwen,
        notes=(_NOTE,),
    )


FAMILIES: Mapping[str, Recipe] = {
    "qwen3_next": _qwen_recipe(
        sizes(151936, 2048, 5632, 48, 16, 2, 32768, num_experts=512, num_experts_per_tok=10)
        | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1},
        forwards=lambda fields, shape: qwen_forwards(fields, shape, shared=True),
    ),
    "qwen3_5_text": _qwen_recipe(sizes(248320, 4096, 12288, 32, 16, 4, 32768)),
    "qwen3_5_moe_text": _qwen_recipe(
        sizes(248320, 2048, None, 40, 16, 2, 32768, num_experts=256, num_experts_per_tok=8)
        | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512},
        forwards=_qwen35_moe,
    ),
    "lfm2": Recipe(
        defaults=sizes(65536, 2560, 12288, 32, 32, 8, 128000, tie_word_embeddings=True, conv_L_cache=3)
        | {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True},
        names={
            "intermediate_size": ("intermediate_size", "block_ff_dim"),
            "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"),
        },
        own_head=False,
        qk_norm=True,
        build=_lfm2,
        notes=(_NOTE,),
    ),
    "mamba": Recipe(
        defaults={"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, **_STATE}
        | {"time_step_rank": "auto", "tie_word_embeddings": True},
        build=_mamba,
    ),
    "mamba2": Recipe(
        defaults={"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128, **_STATE}
        | {"num_heads": 128, "head_dim": 64, "n_groups": 8, "tie_word_embeddings": False},
        build=_mamba2,
    ),
}
