"""GPT-2 and the families with its spellings (n_embd, n_layer, n_head): GPT-J, CodeGen, BigCode, GPT-1, BLOOM, MPT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from overnight.modelsize.families.decoder import Recipe, decoder
from overnight.modelsize.fields import ConfigError, Fields, Names
from overnight.modelsize.tally import Model

_NAMES: Names = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
    "intermediate_size": ("n_inner",),
}


def _sizes(vocab: int, width: int, layers: int, heads: int, context: int, **more: Any) -> dict[str, Any]:
    """Return a config class's defaults."""
    return {
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        **more,
    }


def _local_layers(fields: Fields, layers: int) -> Sequence[int | None]:
    """GPT-Neo: layers called local see a window, those called global everything."""
    window, kinds = fields.size("window_size"), []
    try:
        for names, times in fields.items("attention_types") or []:
            kinds += [str(name) for name in names] * int(times)
    except (TypeError, ValueError):
        raise ConfigError("gpt_neo: attention_types must be a list of [[names], times]") from None
    if len(kinds) != layers or set(kinds) - {"global", "local"}:
        raise ConfigError(f"gpt_neo: attention_types name {len(kinds)} layers, and the model has {layers}")
    return [window if kind == "local" else None for kind in kinds]


def _gpt2(fields: Fields, recipe: Recipe) -> Model:
    """GPT-2, refused where it is the decoder of an encoder-decoder."""
    fields.refuse("add_cross_attention")
    return decoder(fields, recipe)


def _bigcode(fields: Fields, recipe: Recipe) -> Model:
    """StarCoder and SantaCoder: GPT-2 with one key/value head for all heads."""
    fields.refuse("add_cross_attention")
    return decoder(fields, recipe, kv_heads=1 if fields.flag("multi_query") else None)


def _mpt(fields: Fields, recipe: Recipe) -> Model:
    """MPT: ALiBi instead of positions, no bias anywhere; what the public ones do not have is refused."""
    attention = fields.raw("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise ConfigError("mpt: attn_config must be a group of fields")
    odd = attention.get("qk_ln") or attention.get("kv_n_heads") or fields.raw("no_bias") is False
    if odd or fields.size("expansion_ratio") != 4:
        raise ConfigError("mpt: biases, qk_ln, kv_n_heads and an expansion_ratio other than 4 are not counted")
    return decoder(fields, recipe)


_GPT2 = Recipe(
    defaults=_sizes(50257, 768, 12, 12, 1024),
    names=_NAMES,
    own_head=False,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    four=True,
    norm_bias=True,
    positions=0,
    build=_gpt2,
)
_GPT1 = Recipe(
    defaults=_sizes(40478, 768, 12, 12, 512),
    names={**_NAMES, "intermediate_size": ()},
    own_head=False,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    four=True,
    norm_bias=True,
    last_norm=False,
    positions=0,
)
_GPTJ = Recipe(
    defaults=_sizes(50400, 4096, 28, 16, 2048, tie_word_embeddings=False),
    names=_NAMES,
    own_head=False,
    gated=False,
    mlp_bias=True,
    four=True,
    norms=1,
    norm_bias=True,
    head_bias=True,
)
_NEO = Recipe(
    defaults=_sizes(50257, 2048, 24, 16, 2048, window_size=256, attention_types=[[["global", "local"], 12]]),
    names={
        "num_hidden_layers": ("num_layers", "num_hidden_layers"),
        "num_attention_heads": ("num_heads", "num_attention_heads"),
    },
    own_head=False,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    four=True,
    norm_bias=True,
    positions=0,
    windows=_local_layers,
)
_BLOOM = Recipe(
    defaults=_sizes(250880, 64, 2, 8, 2048),
    names={
        "hidden_size": ("hidden_size", "n_embed"),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "max_position_embeddings": ("seq_length",),
        "intermediate_size": (),
    },
    own_head=False,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    four=True,
    norm_bias=True,
    embedding_norm=True,
)
_MPT = Recipe(
    defaults=_sizes(50368, 2048, 24, 16, 2048, expansion_ratio=4),
    names={
        "hidden_size": ("d_model", "hidden_size"),
        "num_hidden_layers": ("n_layers", "num_hidden_layers"),
        "num_attention_heads": ("n_heads", "num_attention_heads"),
        "max_position_embeddings": ("max_seq_len",),
        "intermediate_size": (),
    },
    own_head=False,
    gated=False,
    four=True,
    build=_mpt,
)

FAMILIES: Mapping[str, Recipe] = {
    "gpt2": _GPT2,
    "gpt_bigcode": msgspec.structs.replace(
        _GPT2, defaults=_sizes(50257, 768, 12, 12, 1024, multi_query=True), build=_bigcode
    ),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neo": _NEO,
    "openai-gpt": _GPT1,
    "bloom": _BLOOM,
    "mpt": _MPT,
}
