"""One row of the table with the names it goes by, and short ways to write its peaks. No rows here, no matching."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from overnight.accelerators import Accelerator, Peak

Pair = tuple[float, float]
"""A dense peak and the sparse one beside it, in TFLOP/s."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and what must and may stand in a name that means it.

    ``models``: spellings of the model, lower case, whole tokens apart ("rtx 4090"). ``words``: what may follow
    ("sxm4", "generation"); sizes of its memory are added by the matching. ``needs``: words without which the name does
    not mean this row. ``bare``: the model alone means this form, although there are others ("NVIDIA H200").
    ``by_units``: its unit count tells it from others of the same model, so that ``needs`` may be missing then.
    ``arch``: what ROCm calls its architecture ("gfx942"). ``parts``: counts of units that a partition of it shows.
    """

    row: Accelerator
    models: tuple[str, ...]
    words: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    bare: bool = False
    by_units: bool = False
    arch: str = ""
    parts: tuple[int, ...] = ()


def peaks(**given: float | Pair) -> tuple[Peak, ...]:
    """Return peaks by dtype, each a dense figure or (dense, sparse), in TFLOP/s."""
    return tuple(
        Peak(dtype=dtype, dense=one[0], sparse=one[1]) if isinstance(one, tuple) else Peak(dtype=dtype, dense=one)
        for dtype, one in given.items()
    )


def doubling(fp32: float, tf32: Pair, half: Pair, eight: Pair | None = None, *, fp8: bool = True) -> tuple[Peak, ...]:
    """Return the peaks of a card whose tensor cores do both 16-bit types alike, and both 8-bit types.

    ``fp8`` False: the 8-bit peak is that of integers only (before Ada and Hopper).
    """
    found = peaks(fp32=fp32, tf32=tf32, bf16=half, fp16=half)
    if eight is None:
        return found
    return found + (peaks(fp8=eight, int8=eight) if fp8 else peaks(int8=eight))


def words(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


def share_of(chip: Iterable[Peak], devices: int) -> tuple[Peak, ...]:
    """Return the peaks of one device of a chip that programs see as several."""
    return tuple(
        Peak(dtype=one.dtype, dense=one.dense / devices, sparse=None if one.sparse is None else one.sparse / devices)
        for one in chip
    )
