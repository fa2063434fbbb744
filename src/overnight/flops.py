"""FLOPs per trained token, by named convention: the number that turns tokens per second into TFLOP/s and MFU.

Pure arithmetic on counts that somebody else established: no table of models or devices, no clock, no import of ours.
One multiply-add is two FLOPs. An unknown count is None and makes the result None; nothing is ever guessed.
Two conventions differ by 15% and more on the same run, so every figure is shown beside its convention's name.
"""

from __future__ import annotations

SIX_N = "6N"
SIX_N_ATTENTION = "6N + 12*L*T*d"


def six_n(params: int | None) -> int | None:
    """Return 6N, the FLOPs of one token's forward and backward pass through ``params`` weights; None if unknown.

    Each weight takes part in one multiply-add per token in the forward pass: 2N. The backward pass needs two products
    of that size, one for the gradient of the input and one for the gradient of the weight: 4N. Together 6N. The reads
    of keys by queries are not in it, and an embedding that is only looked up is counted as if it were multiplied.

    Source: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1 (arXiv 2001.08361), there with N
    without embeddings; with every parameter as N: Hoffmann et al. 2022 (arXiv 2203.15556).
    Worked: GPT-2 small without linear biases, N = 124,356,864 -> 746,141,184 FLOPs per token.
    """
    return None if params is None else 6 * params


def six_n_attention(params: int | None, layers: int | None, seq_len: int | None, width: int | None) -> int | None:
    """Return 6N + 12*L*T*d: ``six_n`` and the attention scores; None if any of the four counts is unknown.

    ``layers`` is L, ``seq_len`` T in tokens, ``width`` d = heads * head size. In each layer every token multiplies its
    query with T keys of together d numbers and sums T values weighted by the result: 2 products * 2 FLOPs * T * d
    forward, and twice that backward: 3 * 2 * 2 = 12. The half that a causal mask leaves out is not taken off.

    Source: Chowdhery et al. 2022, PaLM, appendix B (arXiv 2204.02311), with d for its H * Q.
    Worked: GPT-2 small, L = 12, T = 1024, d = 768 -> 113,246,208 more than 6N.
    """
    if params is None or layers is None or seq_len is None or width is None:
        return None
    return 6 * params + 12 * layers * seq_len * width
