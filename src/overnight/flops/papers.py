"""How papers count, as they were printed: each with its own idea of N and of what attention costs.

Per token, forward and backward, unless a docstring says otherwise. T tokens in a sequence, V words, d width, L layers.
"""

from __future__ import annotations

from fractions import Fraction


def kaplan_forward(params: int, *, layers: int, seq_len: int, width: int) -> int:
    """Return 2N + 2*L*T*d, FORWARD only; N without any embedding, biases and norms left out.

    ``width``: the width of attention, H*h. The mask halves the products, so T/2 keys: 2 products * 2 FLOPs * T/2.

    Source: Kaplan et al. 2020, section 2.1 and table 1 (arXiv 2001.08361).
    Worked: GPT-2 small, N = 84,934,656, T = 1024 -> 188,743,680; three times that is 566,231,040, and 6N 509,607,936.
    """
    return 2 * params + 2 * layers * seq_len * width


def chinchilla(matmul: int, *, vocab_size: int, width: int, products: int, softmax: int) -> int:
    """Return 6*(N_matmul + V*d) + products + softmax: the embedding is multiplied too, as if it were a product.

    ``products``: 12*L*H*h*T, no mask; ``softmax``: 9*L*H*T. In practice the embedding is a look-up of no FLOPs, which
    makes this count 6*V*d too high: said beside the figure. The paper counts one sequence; here it is over T.

    Source: Hoffmann et al. 2022, appendix F (arXiv 2203.15556).
    Worked: GPT-2 small, T = 1024 -> 1,087,349,760, of which 231,584,256 for the embedding; a sequence's forward pass is
    1,024 / 3 of it, 371,148,718,080.
    """
    return 6 * (matmul + vocab_size * width) + products + softmax


def narayanan(layers: int, width: int, *, seq_len: int, vocab_size: int, recomputed: bool = False) -> Fraction:
    """Return 72*L*d^2*(1 + T/(6d) + V/(12*L*d)); the paper gives B*T times that, a whole batch of B sequences.

    ``recomputed``: 96*L*d^2*(1 + T/(6d) + V/(16*L*d)), with every layer run forward a second time (for HFU). It holds
    for layers of 12*d^2 weights only: a feed-forward part of 4d, as many heads of keys as of queries, H*h = d.

    Source: Narayanan et al. 2021, Megatron-LM, section 5.1 (arXiv 2104.04473).
    Worked: GPT-2 small, T = 1024 -> 854,438,400 = 6*N_matmul + 12*L*d*T.
    """
    factor, share = (96, 16) if recomputed else (72, 12)
    inner = 1 + Fraction(seq_len, 6 * width) + Fraction(vocab_size, share * layers * width)
    return factor * layers * width * width * inner


def encoder_decoder_pair(
    *,
    encoder: int,
    decoder: int,
    cross_kv: int,
    head: int,
    layers: tuple[int, int],
    width: int,
    lengths: tuple[int, int],
) -> int:
    """Return the FLOPs of one PAIR of a source of S and a target of R tokens (``lengths``), forward and backward.

    6*(N_enc*S + (N_dec - N_xkv)*R + N_xkv*S + N_head*R) + 12*L_enc*q*S^2 + 6*L_dec*q*R^2 + 12*L_dec*q*R*S. The weights
    that make keys and values of the encoder's output for the decoder (``cross_kv``, N_xkv) run on the source. ``width``
    q = H*h. Only the decoder looks at itself through a mask, which halves that term. A token passes one side only:
    6*N*(S + R) would be about twice as much.

    Source: Raffel et al. 2019, T5 (arXiv 1910.10683), for the layers; counted as PaLM's appendix B counts.
    Worked: T5 base, S = 512, R = 114 -> 425,225,576,448.
    """
    source, target = lengths
    weights = encoder * source + (decoder - cross_kv) * target + cross_kv * source + head * target
    cores = 12 * layers[0] * source**2 + 6 * layers[1] * target**2 + 12 * layers[1] * target * source
    return 6 * weights + width * cores
