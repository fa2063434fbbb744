"""Whether the numbers of a tensor are finite, looked at where they lie in a file, in pieces of bounded size.

What is finite is decided by bits in ``checkpoint.finite``. Here is the rest: byte order, views with holes (what lies in
a storage outside of its tensors is nobody's number), and masks, whose infinities are meant.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterator

from overnight.checkpoint.finite import all_finite
from overnight.inspector.objects import SIZES, Array, Tensor
from overnight.inspector.source import Window

MOST_ROWS = 100_000  # pieces of a view that are read one by one
_CODES = {2: "H", 4: "I", 8: "Q"}
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 4, "C128": 8}  # the size of what is swapped
_INFINITE = {
    "F64": (0x7FF0 << 48, 1 << 63), "C128": (0x7FF0 << 48, 1 << 63), "F32": (0x7F80 << 16, 1 << 31),
    "C64": (0x7F80 << 16, 1 << 31), "F16": (0x7C00, 1 << 15), "BF16": (0x7F80, 1 << 15),
}  # fmt: skip
_FEW = 3  # different values of a mask: nothing, minus infinity, one more


def finite_piece(dtype: str, piece: memoryview, *, big: bool = False) -> bool:
    """Say whether all numbers of a piece are finite."""
    return all_finite(dtype, _little(dtype, piece) if big else piece)


def _little(dtype: str, piece: memoryview) -> memoryview:
    size = _FLOATS.get(dtype)
    if size is None:
        return piece
    turned = array.array(_CODES[size], bytes(piece[: len(piece) // size * size]))
    turned.byteswap()
    return memoryview(turned).cast("B")


def finite_tensor(data: Window, tensor: Tensor, *, big: bool = False) -> bool:
    """Say whether a tensor in the bytes of its storage is finite, or a mask. Slow: for what a quick look has found."""
    dtype = tensor.dtype
    if dtype is None or not tensor.numel:
        return True
    few: set[int] = set()
    bad = False
    for piece in _numbers(data, tensor, SIZES[dtype]):
        view = _little(dtype, piece) if big else piece
        bad = bad or not all_finite(dtype, view)
        if dtype not in _INFINITE:
            if bad:
                return False
        elif len(few) <= _FEW:
            few.update(_patterns(dtype, view))
        if bad and len(few) > _FEW:
            return False
    return not bad or _is_mask(dtype, few, tensor.numel)


def finite_array(value: Array) -> bool:
    """Say whether an array that lies in a pickle is finite, or a mask."""
    if value.dtype is None or value.dtype not in _INFINITE:
        return True
    view = memoryview(value.data)
    view = _little(value.dtype, view) if value.big else view
    if all_finite(value.dtype, view):
        return True
    return _is_mask(value.dtype, set(_patterns(value.dtype, view)), len(view) // _FLOATS[value.dtype])


def _patterns(dtype: str, view: memoryview) -> array.array[int]:
    """Return each number as the whole number of its bits."""
    size = _FLOATS[dtype]
    return array.array(_CODES[size], bytes(view[: len(view) // size * size]))


def _is_mask(dtype: str, few: set[int], numel: int) -> bool:
    """Two or three different values, one of them infinite and one not: nothing that was trained looks like that."""
    limit, sign = _INFINITE[dtype]
    bare = {one & ~sign for one in few}
    return numel >= 4 and 2 <= len(few) <= _FEW and limit in bare and max(bare) == limit and min(bare) < limit


def _numbers(data: Window, tensor: Tensor, size: int) -> Iterator[memoryview]:
    """The bytes of a tensor's numbers: of all between its first and last where there are no holes, else row by row."""
    start, reach = tensor.offset * size, tensor.reach * size
    sizes = [(count, step) for count, step in zip(tensor.shape, tensor.stride, strict=True) if count > 1 and step]
    sizes.sort(key=lambda one: one[1])
    dense, run = 1, 0
    while run < len(sizes) and sizes[run][1] == dense:
        dense *= sizes[run][0]
        run += 1
    outer = sizes[run:]
    rows = 1
    for count, _ in outer:
        rows *= count
    if rows > MOST_ROWS:  # too many: the span, holes included
        yield from data.part(start, reach - start, data.name).pieces()
        return
    for places in itertools.product(*(range(0, count * step, step) for count, step in outer)):
        at = start + sum(places) * size
        yield from data.part(at, dense * size, data.name).pieces()
