"""What a token costs in the weights it passes: those that are frozen, and those of the experts it is sent to.

Numbers of weights in; no attention, which multiplies tokens with tokens, and nothing that is run a second time.
"""

from __future__ import annotations


def partly_frozen(frozen: int, trainable: int, *, below: int = 0) -> int:
    """Return 4*N_f + 6*N_t: frozen weights need no gradient of their own, but hand one on to what lies before them.

    Forward 2(N_f + N_t), the gradient of the input 2(N_f + N_t), the gradient of the weights 2*N_t. ``below``: frozen
    weights before the first trained one, which nothing flows back through: 2 each, and they are not in ``frozen``.
    Weights that LoRA adds are trained ones. To unpack quantised weights is no work of the model. The attention core
    still counts in full: its scores pass gradients on.

    Source: Hu et al. 2021 (arXiv 2106.09685) for LoRA; counted as Kaplan et al. 2020 count 6N.
    Worked: Llama-2-7B with LoRA of rank 8 on q and v, N_f = 6,607,077,376 that multiply, N_t = 4,194,304 ->
    26,453,475,328, two thirds of 6N.
    """
    return 2 * below + 4 * frozen + 6 * trainable


def active(total: int, *, layers: int, experts: int, per_token: int, expert: int) -> int:
    """Return the weights that one token meets: all but the routed experts that it is not sent to.

    ``layers`` that have experts, ``experts`` in each of them, ``per_token`` of them used, ``expert`` weights in one (3
    * d * f with a gate, 2 * d * f without). Shared experts and the whole router are met by every token. Tokens that a
    full expert drops, or that fill one up, are no work of the model.

    Source: Fedus et al. 2021, Switch Transformer (arXiv 2101.03961); Jiang et al. 2024, Mixtral (arXiv 2401.04088).
    Worked: Mixtral 8x7B, 46,702,792,704 with 32 layers of 8 experts, 2 used, 3 * 4096 * 14336 each -> 12,879,925,248.
    """
    return total - layers * (experts - per_token) * expert
