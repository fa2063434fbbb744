"""What is run forward a second time because it was not kept: FLOPs of the hardware (HFU), never of the model (MFU).

FLOPs per token. What fused attention computes again inside its own backward pass is in none of these.
"""

from __future__ import annotations

from fractions import Fraction


def eight_n(params: int) -> int:
    """Return 8N: 6N and one more forward pass through every weight, where nothing else is known.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198), the usual rule of thumb.
    Worked: Llama-3-8B, N = 8,030,261,248 -> 64,242,089,984, 4/3 of 6N.
    """
    return 8 * params


def full(model: Fraction, *, body: int, core: Fraction) -> Fraction:
    """Return the FLOPs of the ``model``, 2*N_body for the layers' weights once more, and a third of its ``core``.

    ``core``: attention's products, three passes. The output head (not in ``body``) is not run again.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198); PaLM, appendix B (arXiv 2204.02311), for HFU as such.
    Worked: Llama-3-8B, T = 8192: 51,470,401,536 + 13,958,643,712 + 2,147,483,648 = 67,576,528,896, which is
    1.3129 times as much.
    """
    return model + 2 * body + core / 3


def selective(model: Fraction, *, core: Fraction) -> Fraction:
    """Return the FLOPs of the ``model`` and a third of its ``core``: attention alone is computed a second time.

    Source: Korthikanti et al. 2022, section 5 (arXiv 2205.05198).
    Worked: Llama-3-8B, T = 8192 -> 53,617,885,184, 1.0417 times as much.
    """
    return model + core / 3
