"""What is known of a model when its FLOPs are to be counted, and how its parts are written as arithmetic.

Fills in nothing that is unknown: what lacks is None here, and which words say so is decided by who asks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import msgspec

from overnight.flops import Recompute
from overnight.flops.attention import Mask, keys_seen, scores
from overnight.flops.weights import partly_frozen
from overnight.modelsize import Attention, Counts

BIDIRECTIONAL: Final = frozenset(
    "albert bert camembert deberta deberta-v2 deberta_v2 distilbert electra ernie modernbert mpnet nomic_bert roberta "
    "roberta-prelayernorm vit xlm-roberta xlm-roberta-xl xlm_roberta".split()
)
"""Families whose tokens see what comes after them: no mask halves their products."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A summand: its FLOPs per token, and the arithmetic that gives them."""

    flops: Fraction
    text: str


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The question: of which model, at which length, with what computed again. Lengths in tokens."""

    counts: Counts
    seq_len: int | None = None
    target_len: int | None = None
    recompute: Recompute = "none"

    @property
    def params(self) -> int | None:
        """N: all parameters, with experts those that one token meets; None where those are unknown."""
        counts = self.counts
        return counts.active if counts.active is not None else None if counts.experts else counts.total

    @property
    def matmul(self) -> int | None:
        """N_matmul: weights that are multiplied, of experts those that one token meets."""
        counts = self.counts
        return counts.active_matmul if counts.active_matmul is not None else None if counts.experts else counts.matmul

    @property
    def head(self) -> int | None:
        """Weights of the output head, a matrix of its own or the embedding's; 0 where there is no head."""
        return self.counts.embedding if self.counts.tied else self.counts.untied_head

    @property
    def body(self) -> int | None:
        """Weights that are multiplied in the layers: without the output head."""
        matmul, head = self.matmul, self.head
        return None if matmul is None or head is None or head > matmul else matmul - head

    @property
    def sparse(self) -> bool:
        """Whether a token meets only some of the weights."""
        return self.counts.active is not None and self.counts.active < self.counts.total

    @property
    def frozen(self) -> bool:
        """Whether some of the weights are not trained."""
        return self.counts.trainable is not None and self.counts.trainable < self.counts.total

    @property
    def paired(self) -> bool:
        """Whether it is an encoder-decoder, of which a token passes one side only."""
        return self.counts.encoder_decoder is not None

    @property
    def causal(self) -> bool:
        """Whether a token sees only what comes before it."""
        return (self.counts.family or "") not in BIDIRECTIONAL

    @property
    def attention(self) -> tuple[Attention, ...]:
        """The kinds of attention layers; from heads or from the width alone where no more is known; else ()."""
        counts = self.counts
        if counts.attention or counts.layers is None:
            return counts.attention
        if counts.heads is not None and counts.head_size is not None:
            one, heads = counts.head_size, counts.heads
        elif counts.width is not None:
            one, heads = counts.width, 1
        else:
            return ()
        return (Attention(layers=counts.layers, heads=heads, qk=one, v=one),)

    @property
    def heads_known(self) -> bool:
        """Whether the number of heads is known, and not only how wide they are together."""
        return bool(self.counts.attention) or (self.counts.heads is not None and self.counts.head_size is not None)

    @property
    def windows(self) -> str:
        """Say in which layers a token sees fewer tokens than there are before it; "" if in none."""
        slid = [one for one in self.attention if one.window is not None and one.window < (self.seq_len or 0)]
        if not slid:
            return ""
        layers, most = sum(one.layers for one in slid), max(one.window or 0 for one in slid)
        return f"in {layers:,} of {sum(one.layers for one in self.attention):,} layers a token sees {most:,} at most"

    def weights(self, params: int) -> Part:
        """Return 6 FLOPs for each of these weights, 4 for those that are frozen."""
        if not self.frozen:
            return Part(flops=Fraction(6 * params), text=f"6 * {params:,}")
        trained = min(self.counts.trainable or 0, params)
        return Part(
            flops=Fraction(partly_frozen(params - trained, trained)),
            text=f"4 * {params - trained:,} + 6 * {trained:,}",
        )

    def products(self, mask: Mask) -> Part:
        """Return attention's products, three passes; the length must be known."""
        seq_len = self.seq_len or 0
        terms = [_term(one, seq_len, mask) for one in self.attention]
        return Part(flops=scores(self.attention, seq_len, mask), text=" + ".join(terms))


def _term(one: Attention, seq_len: int, mask: Mask) -> str:
    """One kind of layers as arithmetic: 12 * layers * heads * size * keys, or twice the half of it."""
    alike = one.qk == one.v
    size = f"{one.qk:,}" if alike else f"({one.qk:,} + {one.v:,})"
    factor = 12 if alike else 6
    if mask == "none" or (one.window is not None and one.window < seq_len):
        keys = plain(keys_seen(seq_len, mask, one.window))
    else:
        factor //= 2
        keys = f"{seq_len:,}" if mask == "half" else f"({seq_len:,} + 1)"
    heads = f"{one.heads:,} * " if one.heads != 1 else ""
    return f"{factor} * {one.layers:,} * {heads}{size} * {keys}"


def plain(value: Fraction) -> str:
    """Return a number for people: whole, or with as many decimals as say it to a millionth."""
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.6f}".rstrip("0")


def number(value: Fraction) -> int | float:
    """Return an int where it is whole, else a float."""
    return value.numerator if value.denominator == 1 else float(value)
