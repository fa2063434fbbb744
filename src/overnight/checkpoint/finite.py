"""Whether numbers are finite, from their bytes alone: NaN and infinity have one pattern in each dtype.

Works with the standard library; numpy is used where it is loaded already, and never loaded for its sake. No file is
read here, and nothing is said about values other than that they are finite.
"""

from __future__ import annotations

import sys
from typing import Any

PIECE = 256 << 10
"""Bytes looked at in one go: they stay in the processor's cache, and are all the memory that is taken."""

_TOPS = {
    "F16": (2, (*range(0x7C, 0x80), *range(0xFC, 0x100))), "F8_E5M2": (1, (*range(0x7C, 0x80), *range(0xFC, 0x100))),
    "F8_E4M3": (1, (0x7F, 0xFF)), "F8_E4M3FNUZ": (1, (0x80,)), "F8_E5M2FNUZ": (1, (0x80,)), "F8_E8M0": (1, (0xFF,)),
    "BF16": (2, (0x7F, 0xFF)), "F32": (4, (0x7F, 0xFF)), "C64": (4, (0x7F, 0xFF)),
    "F64": (8, (0x7F, 0xFF)), "C128": (8, (0x7F, 0xFF)),
}  # fmt: skip
"""By dtype: bytes of a number, and its top byte where it is not finite; in some dtypes the byte below decides."""

_NEXT = {"BF16": 0x80, "F32": 0x80, "C64": 0x80, "F64": 0xF0, "C128": 0xF0}
"""By dtype: from what value on the byte below a suspect top byte means that the exponent is all ones."""

_LIMITS = {"F16": 0x7C00, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F, "BF16": 0x7F80, "F32": 0x7F80_0000, "C64": 0x7F80_0000,
           "F64": 0x7FF0_0000_0000_0000, "C128": 0x7FF0_0000_0000_0000}  # fmt: skip
"""By dtype: the smallest pattern without a sign that is not finite; all patterns above it are not finite either."""


def all_finite(dtype: str, data: memoryview) -> bool:
    """Say whether no number is NaN or infinite; little-endian, ``dtype`` by safetensors' name.

    Integers are finite, and so is what has a dtype that is not known here. Bytes at the end that make no whole number
    are not looked at. Reads ``data`` once, in pieces; looks no further than the first piece that is not finite.
    """
    if dtype not in _TOPS or not data.nbytes:
        return True
    data = data.cast("B")
    data = data[: len(data) - len(data) % _TOPS[dtype][0]]
    numpy = sys.modules.get("numpy")
    for at in range(0, len(data), PIECE):
        piece = data[at : at + PIECE]
        if not (_by_bytes(dtype, piece) if numpy is None else _by_numpy(numpy, dtype, piece)):
            return False
    return True


def _by_numpy(numpy: Any, dtype: str, piece: memoryview) -> bool:
    """As the largest signed pattern is the largest positive number, the largest unsigned one the largest negative."""
    size = _TOPS[dtype][0]
    unsigned = numpy.frombuffer(piece, f"<u{size}")
    if dtype in ("F8_E4M3FNUZ", "F8_E5M2FNUZ"):  # the pattern of what would be -0 is the only NaN
        return int(unsigned.view("i1").min()) != -0x80
    if dtype == "F8_E8M0":
        return int(unsigned.max()) != 0xFF
    limit = _LIMITS[dtype]
    sign = 1 << (8 * size - 1)
    return int(unsigned.view(f"<i{size}").max()) < limit and int(unsigned.max()) < limit | sign


def _by_bytes(dtype: str, piece: memoryview) -> bool:
    """As :func:`_by_numpy`: looks for suspect top bytes, which few finite numbers have."""
    size, suspects = _TOPS[dtype]
    raw = bytes(piece)
    tops = raw[size - 1 :: size]
    if not any(one in tops for one in suspects):
        return True
    least = _NEXT.get(dtype)
    if least is None:
        return False
    suspect = tops.translate(bytes(one in suspects for one in range(256)))
    full = raw[size - 2 :: size].translate(bytes(one >= least for one in range(256)))
    return not int.from_bytes(suspect, "little") & int.from_bytes(full, "little")
