"""Encoder-decoders: T5, mT5, UMT5; BART and mBART. Their two sides see different numbers of tokens, and count apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overnight.modelsize import EncoderDecoder
from overnight.modelsize.families.decoder import Recipe
from overnight.modelsize.fields import ConfigError, Fields
from overnight.modelsize.tally import NOTHING, Layer, Model, Weights, gated, linear, norm, plain

_TIED_NOTE = (
    "counted with an output head of its own, as the config says (tie_word_embeddings false) and the checkpoint holds; "
    "transformers 5 ties it on building"
)


def _t5(fields: Fields, _recipe: Recipe) -> Model:
    """T5: no biases; the relative position bias is in the first layer of each side, in UMT5 in every layer."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    inner, queries = fields.size("intermediate_size"), fields.size("head_dim") * heads
    encoders = fields.layers()
    decoders = fields.layers("num_decoder_layers") if fields.maybe("num_decoder_layers") else encoders
    attention = linear(width, queries) * 3 + linear(queries, width)
    block = _t5_block(fields, width, inner)
    biases = Weights(other=fields.size("relative_attention_num_buckets") * heads)
    each = biases if fields.family == "umt5" else NOTHING
    encoder = attention + block + norm(width) * 2 + each
    decoder = attention * 2 + block + norm(width) * 3 + each
    vocab, tied = fields.size("vocab_size"), fields.flag("tie_word_embeddings")
    return Model(
        layers=(Layer(weights=encoder),) * encoders + (Layer(weights=decoder),) * decoders,
        embedding=vocab * width,
        head=vocab * width,
        tied=tied,
        outside=norm(width) * 2 + (NOTHING if fields.family == "umt5" else biases * 2),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=queries // heads,
        vocab_size=vocab,
        context=None,
        encoder_decoder=EncoderDecoder(
            encoder_matmul=encoder.matmul * encoders,
            decoder_matmul=decoder.matmul * decoders,
            cross_kv=2 * width * queries * decoders,
            encoder_layers=encoders,
            decoder_layers=decoders,
            attention_width=queries,
        ),
        notes=() if tied else (_TIED_NOTE,),
    )


def _t5_block(fields: Fields, width: int, inner: int) -> Weights:
    """Return a feed-forward: gated in T5 1.1, mT5 and UMT5, of two matrices in the first T5."""
    first, *rest = fields.text("feed_forward_proj").split("-")
    if len(rest) > 1 or (rest and first != "gated"):
        raise ConfigError(f"{fields.family}: feed_forward_proj {fields.text('feed_forward_proj')!r} is not known")
    return gated(width, inner) if first == "gated" else plain(width, inner)


def _bart(fields: Fields, _recipe: Recipe) -> Model:
    """BART: biases everywhere, learned positions on each side (two unused); mBART has one more norm on each side."""
    width, encoders, decoders = fields.size("hidden_size"), fields.layers(), fields.layers("decoder_layers")
    heads, more = fields.size("num_attention_heads"), fields.size("decoder_attention_heads")
    if width % heads or width % more:
        raise ConfigError(f"{fields.family}: d_model {width} is not a multiple of {heads} and {more} heads")
    if not fields.flag("tie_word_embeddings"):
        raise ConfigError(f"{fields.family}: embeddings that are not tied are not counted; give --params")
    attention = linear(width, width, bias=True) * 4
    one = norm(width, bias=True)
    encoder = attention + plain(width, fields.size("intermediate_size"), bias=True) + one * 2
    decoder = attention * 2 + plain(width, fields.size("decoder_ffn_dim"), bias=True) + one * 3
    vocab, context = fields.size("vocab_size"), fields.size("max_position_embeddings")
    return Model(
        layers=(Layer(weights=encoder),) * encoders + (Layer(weights=decoder),) * decoders,
        embedding=vocab * width,
        head=vocab * width,
        tied=True,
        outside=one * (4 if fields.family == "mbart" else 2),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        vocab_size=vocab,
        context=context,
        position=2 * (context + 2) * width,
        encoder_decoder=EncoderDecoder(
            encoder_matmul=encoder.matmul * encoders,
            decoder_matmul=decoder.matmul * decoders,
            cross_kv=2 * width * width * decoders,
            encoder_layers=encoders,
            decoder_layers=decoders,
            attention_width=width,
        ),
    )


_T5_NAMES = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
    "head_dim": ("d_kv", "head_dim"),
    "intermediate_size": ("d_ff",),
}
_BART_NAMES = {
    "hidden_size": ("d_model", "hidden_size"),
    "num_hidden_layers": ("encoder_layers",),
    "num_attention_heads": ("encoder_attention_heads", "num_attention_heads"),
    "intermediate_size": ("encoder_ffn_dim",),
}


def _t5_defaults(vocab: int, inner: int, layers: int, heads: int, forward: str) -> dict[str, Any]:
    """Return a config class's defaults."""
    return {
        "vocab_size": vocab,
        "hidden_size": 512,
        "head_dim": 64,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": forward,
        "tie_word_embeddings": True,
    }


_BART_DEFAULTS = {
    "vocab_size": 50265,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "decoder_layers": 12,
    "num_attention_heads": 16,
    "decoder_attention_heads": 16,
    "intermediate_size": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}

FAMILIES: Mapping[str, Recipe] = {
    "t5": Recipe(defaults=_t5_defaults(32128, 2048, 6, 8, "relu"), names=_T5_NAMES, build=_t5),
    "mt5": Recipe(defaults=_t5_defaults(250112, 1024, 8, 6, "gated-gelu"), names=_T5_NAMES, build=_t5),
    "umt5": Recipe(defaults=_t5_defaults(250112, 1024, 8, 6, "gated-gelu"), names=_T5_NAMES, build=_t5),
    "bart": Recipe(defaults=_BART_DEFAULTS, names=_BART_NAMES, build=_bart),
    "mbart": Recipe(defaults=_BART_DEFAULTS, names=_BART_NAMES, build=_bart),
}
