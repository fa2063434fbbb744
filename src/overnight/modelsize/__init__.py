"""How many parameters a model has, and of which kind: the words. No family, no file, no rounding here.

Counts are exact integers. A count that cannot be known is None; nothing is guessed from a name.
"""

from __future__ import annotations

import msgspec


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of attention layer of a model: ``layers`` of it, ``heads`` query heads.

    ``qk`` and ``v`` are the sizes of one head in the score and in the value product (equal but for MLA).
    ``window`` in tokens: only so many of the last ones are seen; None: all of them.
    """

    layers: int
    heads: int
    qk: int
    v: int
    window: int | None = None


class EncoderDecoder(msgspec.Struct, frozen=True, kw_only=True):
    """What only an encoder-decoder has: matmul weights of each side, and of the cross-attention's K and V."""

    encoder_matmul: int
    decoder_matmul: int
    cross_kv: int
    encoder_layers: int
    decoder_layers: int
    attention_width: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one model. Tied weights count once, buffers not at all.

    ``matmul``: weights that multiply the token stream, an output head included even when it is tied to the embedding.
    ``active`` and ``active_matmul``: with the routed experts that one token uses; equal to the others in a dense model.
    ``embedding``: token embedding; ``kaplan``: no token, position or output embedding (Kaplan et al. 2020, 2.1);
    ``trainable`` where some weights are frozen. ``source`` for people: "config.json of llama", "--params".
    """

    total: int
    source: str
    family: str | None = None
    active: int | None = None
    matmul: int | None = None
    active_matmul: int | None = None
    embedding: int | None = None
    position: int | None = None
    untied_head: int | None = None
    norms_and_biases: int | None = None
    kaplan: int | None = None
    trainable: int | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    vocab_size: int | None = None
    context: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    tied: bool | None = None
    attention: tuple[Attention, ...] = ()
    encoder_decoder: EncoderDecoder | None = None
    notes: tuple[str, ...] = ()
