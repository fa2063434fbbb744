"""FLOPs per trained token, by named convention: the number that turns tokens per second into TFLOP/s and MFU.

Pure arithmetic on counts that somebody else established: no table of models or devices, no clock, no import of ours.
One multiply-add is two FLOPs. An unknown count is None and makes the result None; nothing is ever guessed.
Two conventions differ by 15% and more on the same run, so every figure is shown beside its convention's name.

Here are the words and the two oldest conventions; all others lie in files by family, and ``conventions`` lists them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SIX_N: Final = "6N"
SIX_N_ATTENTION: Final = "6N + 12*L*H*h*T"

Kind = Literal["model", "hardware"]
"""MFU divides FLOPs of the model, each once; HFU those of the hardware, with what is computed a second time."""

Recompute = Literal["none", "selective", "full"]
"""What the backward pass computes anew: nothing, the attention core alone, or every layer."""


class Convention(msgspec.Struct, frozen=True, kw_only=True):
    """One way to count. ``key`` is what ``--convention`` takes, ``label`` what stands beside a figure.

    ``needs``: what must be known, in words. ``alias_of``: it is only another name of that one.
    """

    key: str
    label: str
    formula: str
    needs: tuple[str, ...]
    source: str
    kind: Kind = "model"
    alias_of: str | None = None


class FlopsFigure(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one trained token by one convention, with the line that shows how they come about.

    ``label`` says what was done here ("6N (active)", "4N_f + 6N_t"). ``working`` is arithmetic that anyone can repeat.
    ``note``: what makes the figure wrong or not comparable, "" if nothing does. Exact integers, floats for fractions.
    """

    convention: str
    label: str
    flops_per_token: int | float
    formula: str
    working: str
    source: str
    kind: Kind = "model"
    note: str = ""


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
    """Return 6N + 12*L*H*h*T: ``six_n`` and the attention scores; None if any of the four counts is unknown.

    ``layers`` is L, ``seq_len`` T in tokens, ``width`` H*h = heads * head size. In each layer every token multiplies
    its query with T keys of together H*h numbers and sums T values weighted by the result: 2 products * 2 FLOPs *
    T * H*h forward, and twice that backward: 3 * 2 * 2 = 12. The half that a causal mask leaves out is not taken off.

    Source: Chowdhery et al. 2022, PaLM, appendix B (arXiv 2204.02311), with H*h for its H * Q.
    Worked: GPT-2 small, L = 12, T = 1024, H*h = 12 * 64 = 768 -> 113,246,208 more than 6N.
    """
    if params is None or layers is None or seq_len is None or width is None:
        return None
    return 6 * params + 12 * layers * seq_len * width
