"""From what was asked of a run, and what was seen of its device, to what its figures rest on.

Pure: everything was read before. Unknown stays None; what would make it known is said where it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overnight.accelerators import DevicePeak
from overnight.modelsize import Attention, Counts
from overnight.spec import RunSpec
from overnight.yardsticks.basis import Figures


def counts_of(spec: RunSpec) -> Counts | None:
    """Return what is known of the model's size; None without its parameters."""
    if spec.counts is not None:
        return spec.counts
    if spec.params is None:
        return None
    heads, size = spec.heads, spec.head_size
    if heads is None or size is None:  # one head of the whole width is the same product
        heads, size = (None, None) if spec.width is None else (1, spec.width)
    attention: tuple[Attention, ...] = ()
    if spec.layers is not None and heads is not None and size is not None:
        attention = (Attention(layers=spec.layers, heads=heads, qk=size, v=size),)
    return Counts(
        total=spec.params,
        source=spec.params_source or "--params",
        layers=spec.layers,
        width=spec.width,
        vocab_size=spec.vocab_size,
        attention=attention,
    )


def figures_of(spec: RunSpec, seen: DevicePeak | None = None) -> Figures:
    """Return what the meter must know about model and hardware.

    ``seen``: the peak of the device that the driver named, for where none was given; or why it is not known.
    """
    given: dict[str, Any] = {} if spec.peak_tflops is None else {
        "peak_flops": spec.peak_tflops * 1e12,
        "peak_source": spec.peak_source or "--peak-tflops",
    }  # fmt: skip
    if not given and seen is not None:
        given = {"peak_unknown": seen.source} if seen.flops is None else {
            "peak_flops": seen.flops,
            "peak_source": seen.source,
        }  # fmt: skip
    return Figures(
        params=spec.params,
        params_source=None if spec.params is None else spec.params_source or "--params",
        tokens_per_step=spec.tokens_per_step,
        tokens_source=None if spec.tokens_per_step is None else spec.tokens_source or "--tokens-per-step",
        devices=spec.devices,
        accumulate=spec.accumulate or 1,
        dtype=spec.dtype,
        layers=spec.layers,
        seq_len=spec.seq_len,
        width=spec.width,
        steps=spec.steps,
        **given,
        **_flops(spec),
    )


def _flops(spec: RunSpec) -> dict[str, Any]:
    """Return FLOPs per token of the headline, of the figure with attention, and of the hardware where asked for."""
    counts = counts_of(spec)
    # The library of conventions is no light import, and most runs do not need it.
    plain = counts is None or (spec.counts is None and spec.convention == "6n" and spec.recompute == "none")
    if plain or counts is None:
        return {}  # the meter's own arithmetic: 6N, and 6N + 12*L*H*h*T
    from overnight.flops.conventions import figure_of, headline, with_attention, with_recompute

    found: dict[str, Any] = {}
    leading = headline(counts, spec.seq_len, spec.convention)
    if leading is not None:
        found |= {"flops_per_token": leading.flops_per_token, "convention": leading.label}
    beside = with_attention(counts, spec.seq_len)
    if beside is not None:
        found |= {"flops_attention": beside.flops_per_token, "convention_attention": beside.label}
    else:
        key = "palm" if counts.encoder_decoder is None else "encoder-decoder"
        found["attention_unknown"] = str(figure_of(key, counts, seq_len=spec.seq_len))
    if spec.recompute != "none":
        again = with_recompute(counts, spec.seq_len, spec.recompute, beside=spec.convention)
        if again is not None:
            found |= {"flops_hardware": again.flops_per_token, "convention_hardware": again.label}
    return found


def peak_seen(gpus: Sequence[dict[str, Any]], dtype: str | None) -> DevicePeak:
    """Return the peak of the devices that the driver has named; unknown where they differ, or nobody gave a dtype."""
    from overnight.accelerators.naming import match
    from overnight.accelerators.peaks import peak_of

    names = sorted({str(gpu["name"]) for gpu in gpus})
    if len(names) > 1:
        return DevicePeak(flops=None, source=f"the run is on different devices ({', '.join(names)}): --peak-tflops")
    memory = gpus[0].get("memory")
    found = match(
        names[0],
        units=gpus[0].get("units"),
        memory_gb=memory / 1e9 if isinstance(memory, (int, float)) else None,
        arch=gpus[0].get("arch"),
    )
    if found.accelerator is None:
        return DevicePeak(flops=None, source=f"{names[0]}: {found.said}; give --gpu or --peak-tflops")
    return peak_of(found, dtype)
