"""The products of queries with keys, and of their weights with values: the part of FLOPs that grows with the length.

Which weights a model has is not asked here: the projections belong to the weights. Fractions, for averages of whole
numbers of keys are seldom whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from overnight.modelsize import Attention

Mask = Literal["none", "half", "exact"]
"""How much of the square of queries and keys counts: all of it, half of it, the triangle with its diagonal."""


def keys_seen(seq_len: int, mask: Mask, window: int | None = None) -> Fraction:
    """Return A, how many keys a query is multiplied with on average over a sequence of T = ``seq_len`` tokens.

    none: min(w, T), as if nothing were masked. half: T/2. exact: (T + 1)/2, for the first token sees itself, the last
    one T. With a window w < T, both of the masked ones are (w(w + 1)/2 + (T - w)w)/T: w tokens that see 1 to w keys,
    and T - w tokens that see w. ValueError for a length or window below 1.

    Source: counted. Megatron-LM halves; nanochat and levanter take min(w, T).
    Worked: T = 8192, w = 4096 -> 3,072.25; without a window 4,096.5.
    """
    if seq_len < 1 or (window is not None and window < 1):
        raise ValueError(f"a sequence of {seq_len} tokens and a window of {window} have no keys")
    if mask == "none":
        return Fraction(seq_len if window is None else min(window, seq_len))
    if window is not None and window < seq_len:
        return Fraction(window * (window + 1) + 2 * (seq_len - window) * window, 2 * seq_len)
    return Fraction(seq_len if mask == "half" else seq_len + 1, 2)


def packed_keys(lengths: Sequence[int], *, halved: bool = False) -> Fraction:
    """Return A for documents packed into one row that do not see each other: sum l(l + 1)/2 over sum l, in tokens.

    ``halved``: sum l^2 / 2 over sum l, as Megatron-LM counts. ValueError if there is no token.

    Source: counted; Megatron-LM, num_floating_point_operations, for packed data.
    Worked: 8 documents of 1,024 tokens in a row of 8,192 -> 512.5, an eighth of what T alone suggests.
    """
    total = sum(lengths)
    if total < 1 or min(lengths) < 0:
        raise ValueError("there is no token in these documents")
    return Fraction(sum(one * (one if halved else one + 1) for one in lengths), 2 * total)


def scores(layers: Sequence[Attention], seq_len: int, mask: Mask) -> Fraction:
    """Return the FLOPs per token of all attention cores, forward and backward: sum of 6*L*H*(qk + v)*A.

    With one size of heads h = qk = v that is 12*L*H*h*A: 3 passes * 2 products * 2 FLOPs. Query heads count, however
    few heads of keys they share (GQA). In MLA qk is the part without position plus the one with, and v its own size.

    Source: PaLM, appendix B (arXiv 2204.02311), A in the place of T.
    Worked: Llama-3-8B, 32 layers, 32 heads of 128, T = 8192, halved -> 6,442,450,944.
    """
    return sum(
        (6 * one.layers * one.heads * (one.qk + one.v) * keys_seen(seq_len, mask, one.window) for one in layers),
        start=Fraction(0),
    )


def softmax(layers: Sequence[Attention], seq_len: int) -> int:
    """Return 3 * 3*L*H*A FLOPs per token, A = min(w, T): three per score for mask and softmax, and twice as many back.

    Source: Hoffmann et al. 2022, appendix F (arXiv 2203.15556); levanter, lm_flops_per_token.
    Worked: Llama-3-8B, T = 8192 -> 75,497,472.
    """
    return sum(9 * one.layers * one.heads * int(keys_seen(seq_len, "none", one.window)) for one in layers)
