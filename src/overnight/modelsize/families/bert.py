"""Encoders that fill in masked words: BERT, RoBERTa and its kin, DistilBERT, ModernBERT; counted with that head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from overnight.modelsize import Attention
from overnight.modelsize.families.decoder import Recipe, attention_weights, dense_forward, shape_of
from overnight.modelsize.families.windows import by_types
from overnight.modelsize.fields import Fields
from overnight.modelsize.tally import Layer, Model, Weights, gated, linear, norm

_BOTH = "every token sees those after it too: causal discounts do not apply"


def _bert(fields: Fields, recipe: Recipe) -> Model:
    """BERT: three embeddings and their norm, norms after each block, a head with a layer of its own and a bias."""
    shape = shape_of(fields, recipe)
    fields.refuse("is_decoder")
    weights = attention_weights(fields, recipe, shape) + norm(shape.width, bias=True) * 2
    weights += dense_forward(fields, recipe, shape.width, shape.inner or 0).weights
    kind = Attention(layers=1, heads=shape.heads, qk=shape.head, v=shape.head)
    tied = fields.flag("tie_word_embeddings")
    head = linear(shape.width, shape.width, bias=True) + norm(shape.width, bias=True) + Weights(bias=shape.vocab)
    if not tied and fields.family != "distilbert":  # an untied head has a bias besides the one the tied one shares
        head += Weights(bias=shape.vocab)
    places = fields.size("max_position_embeddings") + (fields.maybe("type_vocab_size", least=0) or 0)
    return Model(
        layers=(Layer(weights=weights, attention=kind),) * shape.layers,
        embedding=shape.vocab * shape.width,
        head=shape.vocab * shape.width,
        tied=tied,
        outside=norm(shape.width, bias=True) + head,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head,
        vocab_size=shape.vocab,
        context=shape.context,
        position=places * shape.width,
        notes=(_BOTH,),
    )


def _modernbert(fields: Fields, recipe: Recipe) -> Model:
    """ModernBERT: gated blocks, rotary positions, windows on two of three layers; the first layer has one norm less."""
    shape = shape_of(fields, recipe)
    one = norm(shape.width, bias=fields.flag("norm_bias"))
    weights = attention_weights(fields, recipe, shape) + one * 2
    weights += gated(shape.width, fields.size("intermediate_size"))
    if fields.flag("mlp_bias"):
        weights += Weights(bias=2 * fields.size("intermediate_size") + shape.width)
    first = weights + Weights(norm=-one.norm, norm_bias=-one.norm_bias)
    every = fields.size("global_attn_every_n_layers")
    windows = by_types(fields, shape.layers, lambda index: index % every != 0, fields.size("local_attention"))
    kind = Attention(layers=1, heads=shape.heads, qk=shape.head, v=shape.head)
    head = linear(shape.width, shape.width, bias=fields.flag("classifier_bias")) + one
    if fields.flag("decoder_bias"):
        head += Weights(bias=shape.vocab)
    return Model(
        layers=tuple(
            Layer(weights=weights if index else first, attention=msgspec.structs.replace(kind, window=window))
            for index, window in enumerate(windows)
        ),
        embedding=shape.vocab * shape.width,
        head=shape.vocab * shape.width,
        tied=fields.flag("tie_word_embeddings"),
        outside=one * 2 + head,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head,
        vocab_size=shape.vocab,
        context=shape.context,
        notes=(_BOTH, "a window reaches half to each side"),
    )


_BERT: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}
_RECIPE = Recipe(
    defaults=_BERT,
    names={"num_key_value_heads": ()},
    own_head=False,
    qkv_bias=True,
    out_bias=True,
    gated=False,
    mlp_bias=True,
    build=_bert,
)

FAMILIES: Mapping[str, Recipe] = {
    "bert": _RECIPE,
    "roberta": msgspec.structs.replace(_RECIPE, defaults={**_BERT, "vocab_size": 50265}),
    "xlm-roberta": _RECIPE,
    "camembert": msgspec.structs.replace(_RECIPE, defaults={**_BERT, "vocab_size": 30522}),
    "distilbert": msgspec.structs.replace(
        _RECIPE,
        defaults={**_BERT, "num_hidden_layers": 6, "type_vocab_size": 0},
        names={
            "hidden_size": ("dim", "hidden_size"),
            "intermediate_size": ("hidden_dim",),
            "num_hidden_layers": ("n_layers", "num_hidden_layers"),
            "num_attention_heads": ("n_heads", "num_attention_heads"),
            "num_key_value_heads": (),
            "type_vocab_size": (),
        },
    ),
    "modernbert": Recipe(
        defaults={
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "max_position_embeddings": 8192,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "decoder_bias": True,
            "tie_word_embeddings": True,
        },
        names={"num_key_value_heads": ()},
        own_head=False,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        build=_modernbert,
    ),
}
