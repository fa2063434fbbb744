"""Adding up a model: the weights of its layers and of what stands outside them become ``Counts``. No family here.

Kinds of weight are kept apart until the end, because conventions differ in which they count: matrices that multiply
tokens, the biases of those, norms and their biases, and the rest (sinks, scales, position biases, convolutions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from overnight.modelsize import Attention, Counts, EncoderDecoder
from overnight.modelsize.fields import ConfigError


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of weights by kind."""

    matmul: int = 0
    bias: int = 0
    norm: int = 0
    norm_bias: int = 0
    other: int = 0

    def __add__(self, more: Weights) -> Weights:
        return Weights(
            matmul=self.matmul + more.matmul,
            bias=self.bias + more.bias,
            norm=self.norm + more.norm,
            norm_bias=self.norm_bias + more.norm_bias,
            other=self.other + more.other,
        )

    def __mul__(self, times: int) -> Weights:
        return Weights(
            matmul=self.matmul * times,
            bias=self.bias * times,
            norm=self.norm * times,
            norm_bias=self.norm_bias * times,
            other=self.other * times,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.matmul + self.bias + self.norm + self.norm_bias + self.other


NOTHING = Weights()


def linear(inputs: int, outputs: int, *, bias: bool = False) -> Weights:
    """Return a linear layer's weights."""
    return Weights(matmul=inputs * outputs, bias=outputs if bias else 0)


def norm(size: int, *, bias: bool = False) -> Weights:
    """Return a norm's weights: RMSNorm has no bias, LayerNorm usually one."""
    return Weights(norm=size, norm_bias=size if bias else 0)


def gated(width: int, inner: int, *, bias: bool = False) -> Weights:
    """Return a feed-forward block of three matrices: gate, up, down (SwiGLU, GeGLU)."""
    return linear(width, inner, bias=bias) * 2 + linear(inner, width, bias=bias)


def plain(width: int, inner: int, *, bias: bool = False) -> Weights:
    """Return a feed-forward block of two matrices: up, down."""
    return linear(width, inner, bias=bias) + linear(inner, width, bias=bias)


def summed(parts: Iterable[Weights]) -> Weights:
    """Return the sum of some weights."""
    found = NOTHING
    for one in parts:
        found += one
    return found


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One layer: the weights every token uses, and one routed expert's, of which each token uses ``chosen``."""

    weights: Weights
    expert: Weights = NOTHING
    experts: int = 0
    chosen: int = 0
    attention: Attention | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model, ready to be added up.

    ``embedding``, ``position`` and ``head`` (the output projection) in weights; a tied head is the embedding again.
    ``outside``: weights of no layer: the last norm, the head's bias, projections.
    """

    layers: tuple[Layer, ...]
    embedding: int
    head: int
    tied: bool
    outside: Weights
    width: int
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    vocab_size: int
    context: int | None
    position: int = 0
    encoder_decoder: EncoderDecoder | None = None
    notes: tuple[str, ...] = ()


class Biases(msgspec.Struct, frozen=True, kw_only=True):
    """Which biases a model is trained with where its code differs from the family's: False leaves them out."""

    linear: bool | None = None
    layernorm: bool | None = None

    def kept(self, weights: Weights) -> Weights:
        """Return weights without the biases that are left out."""
        return Weights(
            matmul=weights.matmul,
            bias=0 if self.linear is False else weights.bias,
            norm=weights.norm,
            norm_bias=0 if self.layernorm is False else weights.norm_bias,
            other=weights.other,
        )


def count(model: Model, *, family: str, source: str, biases: Biases, notes: tuple[str, ...]) -> Counts:
    """Return the counts of a model."""
    whole, active = _bodies(model)
    _check_biases(whole, biases, family)
    body, used = biases.kept(whole), biases.kept(active)
    untied = 0 if model.tied else model.head
    total = model.embedding + model.position + untied + body.total
    experts = {(layer.experts, layer.chosen) for layer in model.layers if layer.experts}
    many, few = max(experts, default=(None, None))
    return Counts(
        total=total,
        source=source,
        family=family,
        active=total - body.total + used.total,
        matmul=body.matmul + model.head,
        active_matmul=used.matmul + model.head,
        embedding=model.embedding,
        position=model.position,
        untied_head=untied,
        norms_and_biases=body.total - body.matmul,
        kaplan=body.total,
        layers=len(model.layers),
        width=model.width,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
        vocab_size=model.vocab_size,
        context=model.context,
        experts=many,
        experts_per_token=few,
        tied=model.tied,
        attention=grouped(model.layers),
        encoder_decoder=model.encoder_decoder,
        notes=(*model.notes, *notes),
    )


def _bodies(model: Model) -> tuple[Weights, Weights]:
    """Return the weights of all but embeddings and head: all of them, and those that one token uses."""
    whole = active = model.outside
    for layer, times in Counter(model.layers).items():
        whole += (layer.weights + layer.expert * layer.experts) * times
        active += (layer.weights + layer.expert * layer.chosen) * times
    return whole, active


def _check_biases(body: Weights, biases: Biases, family: str) -> None:
    """Refuse biases that are asked for and that the family does not have."""
    if biases.linear and not body.bias:
        raise ConfigError(f"{family}: linear_bias is true, and this model has no biases in its linear layers")
    if biases.layernorm and not body.norm_bias:
        raise ConfigError(f"{family}: layernorm_bias is true, and this model's norms have no bias")


def grouped(layers: Iterable[Layer]) -> tuple[Attention, ...]:
    """Return the kinds of attention of some layers, each with how many layers have it, in their order."""
    kinds = Counter(layer.attention for layer in layers if layer.attention is not None)
    return tuple(msgspec.structs.replace(kind, layers=kind.layers * times) for kind, times in kinds.items())
