"""Decoders with LayerNorm instead of RMSNorm: GPT-NeoX, Phi, StarCoder 2, StableLM, Cohere, Nemotron, Falcon, OPT."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from overnight.modelsize.families import windows
from overnight.modelsize.families.decoder import Recipe, decoder, sizes
from overnight.modelsize.fields import ConfigError, Fields
from overnight.modelsize.tally import Model, linear


def _falcon(fields: Fields, recipe: Recipe) -> Model:
    """Falcon: key/value heads, norms and biases by its three switches."""
    new, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    if fields.size("num_attention_heads") and fields.flag("multi_query") and not new:
        kv_heads: int | None = 1
    else:
        kv_heads = (fields.maybe("num_kv_heads") if new else None) or fields.size("num_attention_heads")
    norms = fields.maybe("num_ln_in_parallel_attn") or (2 if new else 1)
    if not parallel:
        norms = 2
    elif norms == 2 and not new:
        raise ConfigError("falcon: two norms in parallel belong to new_decoder_architecture, which is false")
    return decoder(fields, msgspec.structs.replace(recipe, norms=norms), kv_heads=kv_heads)


def _opt(fields: Fields, recipe: Recipe) -> Model:
    """OPT: learned positions, two of them unused; the embedding may be narrower than the layers."""
    width = fields.size("hidden_size")
    narrow = fields.maybe("word_embed_proj_dim") or width
    if not fields.flag("layer_norm_elementwise_affine"):
        recipe = msgspec.structs.replace(recipe, norms=0, last_norm=False)
    if not fields.flag("do_layer_norm_before") or fields.flag("_remove_final_layer_norm"):
        recipe = msgspec.structs.replace(recipe, last_norm=False)
    model = decoder(fields, recipe)
    if narrow == width:
        return model
    return msgspec.structs.replace(model, outside=model.outside + linear(narrow, width) + linear(width, narrow))


_NEOX = Recipe(
    defaults=sizes(50432, 6144, 24576, 44, 64, None, 2048, attention_bias=True),
    own_head=False,
    qkv_bias="attention_bias",
    out_bias="attention_bias",
    gated=False,
    mlp_bias=True,
    norm_bias=True,
)
_OPT_NAMES = {"intermediate_size": ("ffn_dim",), "num_key_value_heads": ()}

FAMILIES: Mapping[str, Recipe] = {
    "gpt_neox": _NEOX,
    "phi": Recipe(
        defaults=sizes(51200, 2048, 8192, 24, 32, None, 2048),
        qkv_bias=True,
        out_bias=True,
        qk_norm="qk_layernorm",
        qk_norm_bias=True,
        gated=False,
        mlp_bias=True,
        norms=1,
        norm_bias=True,
        head_bias=True,
    ),
    "persimmon": Recipe(
        defaults=sizes(262144, 4096, 16384, 36, 64, None, 16384, qk_layernorm=True),
        names={"num_key_value_heads": ()},
        own_head=False,
        qkv_bias=True,
        out_bias=True,
        qk_norm="qk_layernorm",
        qk_norm_bias=True,
        gated=False,
        mlp_bias=True,
        norm_bias=True,
    ),
    "starcoder2": Recipe(
        defaults=sizes(49152, 3072, 12288, 30, 24, 2, 4096, use_bias=True, tie_word_embeddings=True),
        qkv_bias="use_bias",
        out_bias="use_bias",
        gated=False,
        mlp_bias="use_bias",
        norm_bias=True,
        windows=windows.everywhere,
    ),
    "stablelm": Recipe(
        defaults=sizes(50304, 2560, 6912, 32, 32, 32, 4096),
        own_head=False,
        qkv_bias="use_qkv_bias",
        qk_norm="qk_layernorm",
        qk_wide=True,
        norm_bias=True,
        build=lambda fields, recipe: decoder(
            fields, msgspec.structs.replace(recipe, norms=1 if fields.flag("use_parallel_residual") else 2)
        ),
    ),
    "cohere": Recipe(
        defaults=sizes(256000, 8192, 22528, 40, 64, None, 8192, tie_word_embeddings=True),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="use_qk_norm",
        qk_wide=True,
        norms=1,
    ),
    "cohere2": Recipe(
        defaults=sizes(256000, 8192, 22528, 40, 64, None, 8192, tie_word_embeddings=True, sliding_window=4096),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=1,
        windows=windows.all_but_every(4),
    ),
    "nemotron": Recipe(
        defaults=sizes(256000, 6144, 24576, 32, 48, None, 4096),
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        gated=False,
        mlp_bias="mlp_bias",
        norm_bias=True,
    ),
    "falcon": Recipe(
        defaults=sizes(65024, 4544, 0, 32, 71, None, 2048, tie_word_embeddings=True, multi_query=True)
        | {"intermediate_size": None, "parallel_attn": True},
        names={
            "hidden_size": ("hidden_size", "n_embed"),
            "num_hidden_layers": ("num_hidden_layers", "n_layer"),
            "num_attention_heads": ("num_attention_heads", "n_head"),
            "num_key_value_heads": (),
            "num_kv_heads": ("num_kv_heads", "n_head_kv"),
            "intermediate_size": ("ffn_hidden_size",),
        },
        own_head=False,
        qkv_bias="bias",
        out_bias="bias",
        gated=False,
        mlp_bias="bias",
        four=True,
        norm_bias=True,
        build=_falcon,
    ),
    "opt": Recipe(
        defaults=sizes(50272, 768, 3072, 12, 12, None, 2048, tie_word_embeddings=True, enable_bias=True)
        | {"layer_norm_elementwise_affine": True, "do_layer_norm_before": True},
        names=_OPT_NAMES,
        own_head=False,
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        gated=False,
        mlp_bias="enable_bias",
        norm_bias=True,
        positions=2,
        build=_opt,
    ),
    "biogpt": Recipe(
        defaults=sizes(42384, 1024, 4096, 24, 16, None, 1024, tie_word_embeddings=True),
        names={"num_key_value_heads": ()},
        own_head=False,
        qkv_bias=True,
        out_bias=True,
        gated=False,
        mlp_bias=True,
        norm_bias=True,
        positions=2,
    ),
    "xglm": Recipe(
        defaults=sizes(256008, 1024, 4096, 24, 16, None, 2048, tie_word_embeddings=True),
        names={
            "hidden_size": ("d_model", "hidden_size"),
            "num_hidden_layers": ("num_layers", "num_hidden_layers"),
            "num_attention_heads": ("attention_heads", "num_attention_heads"),
            "intermediate_size": ("ffn_dim",),
            "num_key_value_heads": (),
        },
        own_head=False,
        qkv_bias=True,
        out_bias=True,
        gated=False,
        mlp_bias=True,
        norm_bias=True,
    ),
}
