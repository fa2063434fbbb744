"""The peak that is divided by: of one device, dense, in the dtype that is computed in, and where it comes from.

Pure: the table is asked, or what was given by hand is taken and compared with it. There is no default device.
"""

from __future__ import annotations

import msgspec

from overnight.accelerators import DTYPES, Accelerator, DevicePeak, Dtype, Match
from overnight.accelerators.naming import match
from overnight.accelerators.peaks import peak_of
from overnight.calculator import Line, Question
from overnight.calculator.numbers import near, peak, times

NEEDS_PEAK = "give --gpu NAME and --dtype, or --peak-tflops"
_CALLED = {
    "bf16": "bf16 bfloat16",
    "fp16": "fp16 float16 half f16",
    "tf32": "tf32 tensorfloat32",
    "fp32": "fp32 float32 float f32",
    "fp8": "fp8 float8 fp8_e4m3 fp8_e5m2 float8_e4m3fn float8_e5m2",
}
ALIASES: dict[str, Dtype] = {word: dtype for dtype in DTYPES for word in _CALLED[dtype].split()}
"""What people call the dtypes of the table."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of one device in FLOP/s with its line; ``needs`` says what would make it known where it is None."""

    flops: float | None = None
    source: str | None = None
    dtype: str | None = None
    name: str | None = None
    sparse_flops: float | None = None
    table_flops: float | None = None
    confidence: str | None = None
    accelerator: Accelerator | None = None
    share: float = 1.0
    line: Line | None = None
    disagreements: tuple[str, ...] = ()
    needs: str = ""


def dtype_of(text: str) -> str:
    """Return the table's name of a dtype; ValueError, one sentence, for one that it has not."""
    found = ALIASES.get(text.strip().lower().removeprefix("torch."))
    if found is None:
        message = f"--dtype cannot be {text!r}: give what the matmuls are computed in, one of {', '.join(DTYPES)}"
        raise ValueError(message)
    return found


def peak_for(question: Question) -> Known:
    """Return the peak. One given by hand leads, and is compared with the table where the device is known too."""
    if question.gpu is None:
        found, table = Match(), DevicePeak(flops=None, source=NEEDS_PEAK)
    else:
        found = match(question.gpu, units=question.gpu_units, memory_gb=question.gpu_memory_gb, arch=question.gpu_arch)
        table = peak_of(found, question.dtype)
    name = found.accelerator.name if found.accelerator is not None else question.gpu
    base = Known(
        dtype=question.dtype, name=name, accelerator=found.accelerator, share=found.share, table_flops=table.flops,
        sparse_flops=table.sparse_flops, confidence=table.confidence,
    )  # fmt: skip
    if question.peak_tflops is not None:
        return _by_hand(question, question.peak_tflops * 1e12, base, table)
    if table.flops is None:
        return msgspec.structs.replace(base, needs=table.source)
    result = f"{peak(table.flops)} TFLOP/s"
    line = Line(name="peak", label="peak of one device", result=result, source=table.source.removeprefix(f"{result}: "))
    return msgspec.structs.replace(base, flops=table.flops, source=table.source, line=line)


def _by_hand(question: Question, flops: float, base: Known, table: DevicePeak) -> Known:
    source = question.source("peak_tflops")
    line = Line(name="peak", label="peak of one device", result=f"{peak(flops)} TFLOP/s", source=source)
    odd: tuple[str, ...] = ()
    if table.flops is not None and not near(flops, table.flops, 0.01):
        said = f"peak: {peak(flops)} TFLOP/s ({source}) is used; the table has {table.source}"
        if table.sparse_flops is not None and near(flops, table.sparse_flops, 0.01):
            said = (
                f"peak: {peak(flops)} TFLOP/s ({source}) is used; that is the sparse peak, which no training reaches: "
                f"dense is {peak(table.flops)}, and the MFU comes out too low by {times(flops / table.flops)}"
            )
        odd = (said,)
    return msgspec.structs.replace(
        base, flops=flops, source=source, line=line, disagreements=odd, sparse_flops=None, confidence=None
    )
