"""What to divide by: the dense peak of one device in one dtype, and the sentence that says where it is from. No names.

Only the dense figure ever leaves as ``flops``. There is no default dtype, and no dtype stands in for another.
"""

from __future__ import annotations

from typing import Final

from overnight.accelerators import DTYPES, Accelerator, DevicePeak, Match, Peak

_TERA: Final = 1e12
_SPELLINGS: Final = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "tfloat32": "tf32",
    "float8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip
_SHOWN: Final = {"fp16_fp16acc": "fp16 with fp16 sums", "fp8_fp16acc": "fp8 with fp16 sums"}
_HALF: Final = ("bf16", "fp16")


def peak_of(match: Match, dtype: str | None) -> DevicePeak:
    """Return the dense peak of a device in FLOP/s; ``flops`` None where it is not known, and ``source`` says why."""
    row = match.accelerator
    if row is None:
        return DevicePeak(flops=None, source=match.said, dtype=dtype)
    has = _offered(row)
    if dtype is None:
        return DevicePeak(flops=None, source=f"the peak of {row.name} depends on the dtype: give --dtype ({has})")
    wanted = dtype.strip().lower().removeprefix("torch.")
    wanted = _SPELLINGS.get(wanted, wanted)
    peak = row.peak(wanted)
    if peak is None:
        return DevicePeak(flops=None, source=_has_not(row, wanted, has), dtype=wanted)
    return DevicePeak(
        flops=peak.dense * match.share * _TERA,
        source=_source(row, peak, match),
        dtype=wanted,
        sparse_flops=None if peak.sparse is None else peak.sparse * match.share * _TERA,
        confidence=_confidence(row, wanted),
    )


def _offered(row: Accelerator) -> str:
    """Return the peaks of a device: those that ``--dtype`` takes, and apart from them what else the table has."""
    told = {one.dtype: f"{_SHOWN.get(one.dtype, one.dtype)} {one.dense:.6g}" for one in row.peaks}
    taken = ", ".join(said for dtype, said in told.items() if dtype in DTYPES)
    others = ", ".join(said for dtype, said in told.items() if dtype not in DTYPES)
    return "; ".join(one for one in (taken, f"also in the table: {others}" if others else "") if one)


def _has_not(row: Accelerator, dtype: str, has: str) -> str:
    """Return that a device has no peak in a dtype."""
    note = f"; {row.note}" if row.note else ""
    return f"{row.name} has no {dtype} peak in the table ({has}){note}: give another --dtype, or --peak-tflops"


def _confidence(row: Accelerator, dtype: str) -> str:
    """Return how sure a figure is. A row's letter is that of its 16-bit peaks; the others were read in fewer places."""
    return row.confidence if dtype in _HALF or row.confidence == "C" else "B"


def _source(row: Accelerator, peak: Peak, match: Match) -> str:
    """Return the sentence: figure, kind, device, what is not used, where it is from, how sure it is."""
    scaled = f"{peak.dense * match.share:.6g} TFLOP/s: dense {_SHOWN.get(peak.dtype, peak.dtype)} of {row.name}"
    if match.share != 1.0:
        scaled += f", {peak.dense:.6g} * {match.share:.4f}"
    if match.said:
        scaled += f" ({match.said})"
    unused = [f"sparse {peak.sparse * match.share:.6g}"] if peak.sparse is not None else []
    others = ("bf16", "fp16_fp16acc") if peak.dtype in ("fp32", "tf32") else ("fp32", "fp16_fp16acc")
    unused += [
        f"{_SHOWN.get(one.dtype, one.dtype)} {one.dense * match.share:.6g}"
        for one in row.peaks
        if one.dtype in others and one.dtype != peak.dtype
    ]
    told = f" (not used: {', '.join(unused)})" if unused else ""
    note = f"; {row.note}" if row.note else ""
    return f"{scaled}{told}, {row.source}, confidence {_confidence(row, peak.dtype)}{note}"
