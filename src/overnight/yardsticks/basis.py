"""What the figures of a run rest on: what is known of model, tokens and hardware.

Only values. Where they come from is said in words beside them; unknown is None.
"""

from __future__ import annotations

import msgspec

from overnight.flops import SIX_N, SIX_N_ATTENTION


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a run before its first line. ``peak_flops`` is the dense peak of ONE device, in FLOP/s.

    ``tokens_per_step`` counts the tokens of one optimizer step over all ``devices``; the sources say where a number
    came from ("--params"), for whoever shows it. ``steps`` is the plan, and only the time to go depends on it.
    ``flops_per_token`` by ``convention`` is the headline, ``flops_attention`` the figure with attention; where they are
    None, 6N and 6N + 12*L*T*d of the numbers beside them are taken; not where ``attention_unknown`` says why there can
    be none.
    """

    params: int | None = None
    params_source: str | None = None
    flops_per_token: float | None = None
    convention: str = SIX_N
    flops_attention: float | None = None
    convention_attention: str = SIX_N_ATTENTION
    attention_unknown: str | None = None
    flops_hardware: float | None = None
    convention_hardware: str | None = None
    tokens_per_step: float | None = None
    tokens_source: str | None = None
    peak_flops: float | None = None
    peak_source: str | None = None
    peak_unknown: str | None = None
    dtype: str | None = None
    devices: int = 1
    accumulate: int = 1
    layers: int | None = None
    seq_len: int | None = None
    width: int | None = None
    steps: int | None = None
