"""The decoder that most families share: a recipe of switches, and the model it makes of a config's fields.

What is peculiar to one family (experts, windows, its own feed-forward) is a function in that family's recipe, and
lives in that family's file. Counted as the language model with its output head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from overnight.modelsize import Attention
from overnight.modelsize.fields import ConfigError, Fields, Names, Switch
from overnight.modelsize.tally import NOTHING, Layer, Model, Weights, gated, linear, norm, plain


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes all layers share. ``head``: of one head; ``inner``: of the feed-forward, None where experts have it."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int | None
    vocab: int
    context: int | None


class Forward(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's feed-forward: what every token uses, and its routed experts."""

    weights: Weights
    expert: Weights = NOTHING
    experts: int = 0
    chosen: int = 0


_SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "max_position_embeddings"
).split()


def sizes(*values: int | None, **more: Any) -> dict[str, Any]:
    """Return a config class's defaults: vocabulary, width, feed-forward, layers, heads, key/value heads, context."""
    return {**dict(zip(_SIZES, values, strict=True)), "tie_word_embeddings": False, **more}


Windows = Callable[[Fields, int], Sequence[int | None]]
Forwards = Callable[[Fields, Shape], Sequence[Forward]]


def no_window(_fields: Fields, layers: int) -> Sequence[int | None]:
    """Return the windows of a model whose layers all see everything."""
    return [None] * layers


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a family builds its layers; ``defaults`` are those of its config class for absent fields.

    ``qk_norm``: no norm of queries and keys, one of a head's size each, or one as wide as all heads.
    ``own_head``: whether ``head_dim`` of the config counts, or width / heads always holds.
    ``four``: the feed-forward is 4 times the width where the config does not say.
    ``norms``: norms in each layer; ``positions``: learned positions, as many as the context and so many more.
    ``build``: a way of its own to make the model; None: ``decoder`` below.
    """

    defaults: Mapping[str, Any]
    names: Names = {}
    own_head: bool = True
    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Switch = False
    qk_wide: bool = False
    qk_norm_bias: bool = False
    gated: bool = True
    mlp_bias: Switch = False
    four: bool = False
    norms: int = 2
    norm_bias: bool = False
    last_norm: bool = True
    embedding_norm: bool = False
    head_bias: Switch = False
    positions: int | None = None
    windows: Windows = no_window
    forwards: Forwards | None = None
    more: Callable[[Fields, Shape], Weights] | None = None
    build: Callable[[Fields, Recipe], Model] | None = None
    notes: tuple[str, ...] = ()


def shape_of(fields: Fields, recipe: Recipe, *, kv_heads: int | None = None, head: int | None = None) -> Shape:
    """Return the sizes of a config, checked against each other; ``kv_heads`` and ``head`` where the family fixes them.

    Raise ConfigError where heads do not fit the width or each other.
    """
    width, layers, heads = fields.size("hidden_size"), fields.layers(), fields.size("num_attention_heads")
    kv_heads = kv_heads or fields.maybe("num_key_value_heads") or heads
    if head is None and recipe.own_head:
        head = fields.maybe("head_dim")
    if head is None:
        if width % heads:
            raise ConfigError(
                f"{fields.family}: {fields.spelled('hidden_size')} {width} is not a multiple of "
                f"{fields.spelled('num_attention_heads')} {heads}"
            )
        head = width // heads
    if heads % kv_heads:
        raise ConfigError(f"{fields.family}: {heads} heads cannot share {kv_heads} key/value heads evenly")
    return Shape(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        inner=_inner(fields, recipe, width),
        vocab=fields.size("vocab_size"),
        context=fields.hint("max_position_embeddings"),
    )


def _inner(fields: Fields, recipe: Recipe, width: int) -> int | None:
    """Return the size of the feed-forward."""
    if recipe.four:
        return fields.maybe("intermediate_size") or 4 * width
    return fields.size("intermediate_size") if recipe.forwards is None else None


def attention_weights(fields: Fields, recipe: Recipe, shape: Shape) -> Weights:
    """Return the weights of one layer's attention: queries, keys, values, output, norms of queries and keys."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    bias = fields.flag(recipe.qkv_bias)
    found = linear(shape.width, queries, bias=bias) + linear(shape.width, keys, bias=bias) * 2
    found += linear(queries, shape.width, bias=fields.flag(recipe.out_bias))
    if fields.flag(recipe.qk_norm):
        sizes = (queries, keys) if recipe.qk_wide else (shape.head, shape.head)
        for size in sizes:
            found += norm(size, bias=recipe.qk_norm_bias)
    return found


def dense_forward(fields: Fields, recipe: Recipe, width: int, inner: int) -> Forward:
    """Return a feed-forward without experts."""
    block = gated if recipe.gated else plain
    return Forward(weights=block(width, inner, bias=fields.flag(recipe.mlp_bias)))


def decoder(fields: Fields, recipe: Recipe, *, kv_heads: int | None = None) -> Model:
    """Return the model that a recipe makes of a config."""
    shape = shape_of(fields, recipe, kv_heads=kv_heads)
    forwards = recipe.forwards
    if forwards is not None:
        blocks = forwards(fields, shape)
    else:
        blocks = [dense_forward(fields, recipe, shape.width, shape.inner or 0)] * shape.layers
    always = attention_weights(fields, recipe, shape) + norm(shape.width, bias=recipe.norm_bias) * recipe.norms
    if recipe.more is not None:
        always += recipe.more(fields, shape)
    kinds = [
        Attention(layers=1, heads=shape.heads, qk=shape.head, v=shape.head, window=window)
        for window in recipe.windows(fields, shape.layers)
    ]
    layers = [layer_of(always, block, kind) for block, kind in zip(blocks, kinds, strict=True)]
    return assemble(fields, recipe, shape, layers)


def layer_of(always: Weights, block: Forward, kind: Attention | None) -> Layer:
    """Return one layer of its attention and its feed-forward."""
    return Layer(
        weights=always + block.weights,
        expert=block.expert,
        experts=block.experts,
        chosen=block.chosen,
        attention=kind,
    )


def assemble(
    fields: Fields, recipe: Recipe, shape: Shape, layers: Sequence[Layer], *, outside: Weights = NOTHING
) -> Model:
    """Return the model of some layers: with embedding, positions, last norm and output head."""
    narrow = fields.maybe("word_embed_proj_dim") or shape.width
    if recipe.last_norm:
        outside += norm(shape.width, bias=recipe.norm_bias)
    if recipe.embedding_norm:
        outside += norm(shape.width, bias=recipe.norm_bias)
    if fields.flag(recipe.head_bias):
        outside += Weights(bias=shape.vocab)
    position = 0
    if recipe.positions is not None:
        position = (fields.size("max_position_embeddings") + recipe.positions) * shape.width
    return Model(
        layers=tuple(layers),
        embedding=shape.vocab * narrow,
        head=shape.vocab * narrow,
        tied=fields.flag("tie_word_embeddings"),
        outside=outside,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head,
        vocab_size=shape.vocab,
        context=shape.context,
        position=position,
        notes=recipe.notes,
    )
