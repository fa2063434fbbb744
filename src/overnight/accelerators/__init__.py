"""What an accelerator can do at most, by dtype: the words of the table. No rows here, no matching of names, no clock.

Only dense peaks are ever divided by. What is not known is None and stays so: there is no default device.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Dtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]

DTYPES: Final[tuple[Dtype, ...]] = ("bf16", "fp16", "tf32", "fp32", "fp8")
"""The dtypes a training can be said to compute in."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The peak of ONE device in one dtype, in TFLOP/s. ``sparse`` is shown beside ``dense`` and never divided by.

    ``dtype`` may be one that only the table knows ("fp16_fp16acc", "int8", "fp4").
    """

    dtype: str
    dense: float
    sparse: float | None = None


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator in one form: what programs see as one device (an MI250X is two).

    ``key`` is what ``--gpu`` takes ("h100-pcie"), ``name`` for people. ``units``: SMs or CUs. ``confidence`` of the
    16-bit peaks: A read in a table of a public program, B the maker's figure and units * rate * clock agree, C
    uncertain. ``bandwidth`` in GB/s.
    """

    key: str
    vendor: str
    name: str
    form: str
    peaks: tuple[Peak, ...]
    memory_gb: tuple[float, ...] = ()
    bandwidth: float | None = None
    units: int | None = None
    boost_mhz: float | None = None
    confidence: Literal["A", "B", "C"]
    source: str
    note: str = ""

    def peak(self, dtype: str) -> Peak | None:
        """Return the peak in a dtype; None where it has none."""
        return next((one for one in self.peaks if one.dtype == dtype), None)


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for. ``accelerator`` is None where nobody can say, and ``said`` tells why.

    ``share``: the part of its units that is visible (a MIG slice of 14 of 108 SMs: 0.1296); peaks are multiplied by it.
    ``closest``: keys of what was perhaps meant.
    """

    accelerator: Accelerator | None = None
    share: float = 1.0
    said: str = ""
    closest: tuple[str, ...] = ()


class DevicePeak(msgspec.Struct, frozen=True, kw_only=True):
    """The dense peak of one device in FLOP/s, and where it comes from; ``flops`` None: unknown, ``source`` says why.

    ``sparse_flops`` is beside it and never used.
    """

    flops: float | None
    source: str
    dtype: str | None = None
    sparse_flops: float | None = None
    confidence: str | None = None
