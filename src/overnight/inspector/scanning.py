"""Whether the numbers of a tensor are finite, looked at where they lie in a file, in pieces of bounded size.

What is finite is decided by bits in ``checkpoint.finite``. Here is the rest: byte order, views with holes (what lies in
a storage outside of its tensors is nobody's number), and masks, whose infinities are meant.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterator, Sequence

from overnight.checkpoint.finite import all_finite
from overnight.inspector.objects import SIZES, Array, Tensor
from overnight.inspector.source import Window

MOST_ROWS = 100_000  # pieces of a view that are read one by one
MOST_MASK = 1 << 20  # rows of a mask
_CODES = {2: "H", 4: "I", 8: "Q"}
_SWAPPED = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "C64": 4, "C128": 8}  # the size of what is swapped
_MASKS = {
    "F64": (0xFFF0 << 48, 0x3FF0 << 48), "F32": (0xFF80 << 16, 0x3F80 << 16), "F16": (0xFC00, 0x3C00),
    "BF16": (0xFF80, 0x3F80),
}  # fmt: skip
"""By dtype of a mask: the bits of minus infinity and of one."""

Read = Callable[[int, int], memoryview]
"""Returns so many bytes from a place on, little-endian."""


def finite_piece(dtype: str, piece: memoryview, *, big: bool = False) -> bool:
    """Say whether all numbers of a piece are finite."""
    return all_finite(dtype, _little(dtype, piece) if big else piece)


def _little(dtype: str, piece: memoryview) -> memoryview:
    size = _SWAPPED.get(dtype)
    if size is None:
        return piece
    turned = array.array(_CODES[size], bytes(piece[: len(piece) // size * size]))
    turned.byteswap()
    return memoryview(turned).cast("B")


def cost(tensor: Tensor) -> int:
    """Return about how many bytes :func:`finite_tensor` reads."""
    return min(tensor.numel, tensor.reach) * SIZES.get(tensor.dtype or "", 0)


def finite_tensor(data: Window, tensor: Tensor, *, mask: bool | None, big: bool = False) -> bool:
    """Say whether a tensor in the bytes of its storage is finite, or a mask. Slow: for what a quick look has found.

    ``mask`` says whether its name is that of a mask; None where there can be none.
    """
    dtype = tensor.dtype
    if dtype is None or not tensor.numel:
        return True
    if all(finite_piece(dtype, piece, big=big) for piece in _numbers(data, tensor, SIZES[dtype])):
        return True
    start = tensor.offset * SIZES[dtype]

    def read(at: int, size: int) -> memoryview:
        piece = memoryview(data.read(start + at, size))
        return _little(dtype, piece) if big else piece

    dense = all(one == 1 or step == wanted for one, step, wanted in
                zip(tensor.shape, tensor.stride, dense_strides(tensor.shape), strict=True))  # fmt: skip
    return dense and _is_mask(dtype, tensor.shape, read, named=mask)


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose numbers lie one after the other, the last dimension's first."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def finite_array(value: Array, *, mask: bool | None) -> bool:
    """Say whether an array that lies in a pickle is finite, or a mask."""
    if value.dtype is None or value.dtype not in _SWAPPED:
        return True
    view = memoryview(value.data)
    view = _little(value.dtype, view) if value.big else view
    if all_finite(value.dtype, view):
        return True
    return _is_mask(value.dtype, value.shape, lambda at, size: view[at : at + size], named=mask)


def _is_mask(dtype: str, shape: Sequence[int], read: Read, *, named: bool | None) -> bool:
    """Say whether numbers, some of them not finite, are an attention's mask, by name or by shape.

    By name: nothing but minus infinity, zero and one. By shape: square, minus infinity above the diagonal and nowhere
    else, and below it nothing but zero and one; where the name says mask too, any finite numbers (alibi).
    """
    if named is None or dtype not in _MASKS:
        return False
    low, one = _MASKS[dtype]
    size = SIZES[dtype]
    side = shape[-1] if shape else 1
    square = len(shape) >= 2 and shape[-2] == side
    rows = 1
    for count in shape[:-1]:
        rows *= count
    if rows > MOST_MASK or side * size > 1 << 24:
        return False
    plain, triangle = True, square and side >= 2
    above = low.to_bytes(size, "little") * side
    for row in range(rows):
        raw = bytes(read(row * side * size, side * size))
        if len(raw) < side * size:
            return False
        values = set(array.array(_CODES[size], raw)) - {low}
        plain = plain and values <= {0, one, 1 << (8 * size - 1)}
        if triangle:
            until = (row % side + 1) * size
            lower = memoryview(raw)[:until]
            triangle = raw[until:] == above[until:] and all_finite(dtype, lower)
        if not ((triangle or plain) if named else (triangle and plain)):
            return False
    return True


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
