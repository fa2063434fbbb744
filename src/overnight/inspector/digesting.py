"""Digests of the values that ``flattening`` yields: two are alike if type, shape and every bit are.

A tensor counts as its numbers in the order of its shape, whatever its strides are, as far as that can be done in a
bounded time and memory; beyond that as its storage and the view of it, which may tell equal ones apart, and never calls
different ones equal. Nothing here is safe against who makes two values with one digest on purpose.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import xxhash

from overnight.inspector.objects import SIZES, Array, Storage, Tensor, raw_bytes, raw_size
from overnight.inspector.scanning import dense_strides
from overnight.inspector.source import Window
from overnight.inspector.symbols import Symbol

MOST_IN_MEMORY = 64 << 20
"""Bytes of a view with holes, or of another order, that are taken into memory to be put into the order of its shape."""
MOST_ROWS = 1 << 20  # rows of such a view
MOST_AGAIN = 1 << 28  # bytes beyond four times those of all storages that are read, for views of one storage
_CODES: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LONG = 4096  # characters or bytes from which on a digest is kept, for the case that many share the value


def of_window(window: Window) -> bytes:
    """Return the digest of all bytes of a window."""
    return of_pieces(window.pieces())


def of_pieces(pieces: Iterable[memoryview], kind: str = "") -> bytes:
    """Return the digest of bytes that come in pieces."""
    state = xxhash.xxh3_128(kind.encode(errors="replace") + b"\0")
    for piece in pieces:
        state.update(piece)
    return state.digest()


def of_numbers(dtype: str | None, shape: tuple[int, ...], window: Window, *, big: bool = False) -> bytes:
    """Return the digest of a tensor whose numbers lie one after the other in a window."""
    return of_pieces(window.pieces(), _kind(dtype, shape, big=big))


class Digester:
    """Makes the digests of one file's values. ``bytes_of`` finds a storage, ``big``: its numbers are big-endian."""

    def __init__(
        self, bytes_of: Callable[[Storage], Window] | None = None, *, size: int = 0, big: bool = False
    ) -> None:
        self._bytes_of = bytes_of
        self._big = big
        self._left = 4 * size + MOST_AGAIN
        self._storages: dict[str, bytes] = {}
        self._long: dict[int, bytes] = {}

    def of(self, value: Any) -> bytes:
        """Return the digest of a value; Damage if its bytes are not there."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Storage):
            return self._digest("storage", self._storage(value))
        if isinstance(value, Array):
            return self._digest(_kind(value.dtype, value.shape, big=value.big), self._kept(value.held))
        if isinstance(value, Symbol):
            return self._digest("symbol", value.name.encode(errors="surrogatepass"))
        if isinstance(value, (list, tuple)):
            state = xxhash.xxh3_128(b"list")
            for one in value:
                state.update(self.of(one))
            return state.digest()
        return self._plain(value)

    def _plain(self, value: Any) -> bytes:
        if type(value) is float:
            return self._digest("float", struct.pack("<d", value))
        if type(value) is int:
            return self._digest("int", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if raw_size(value) is not None or type(value) is str:
            return self._digest("words" if type(value) is str else "bytes", self._kept(value))
        return self._digest(type(value).__name__, str(value).encode() if type(value) is bool else b"")

    @staticmethod
    def _digest(kind: str, data: bytes) -> bytes:
        return of_pieces([memoryview(data)], kind)

    def _kept(self, value: Any) -> bytes:
        """Bytes or words as bytes; of long ones the digest, which is made once."""
        known = self._long.get(id(value))
        if known is not None:
            return known
        raw = value.encode(errors="surrogatepass") if type(value) is str else raw_bytes(value) or b""
        if len(raw) < _LONG:
            return raw
        self._long[id(value)] = xxhash.xxh3_128_digest(raw)
        return self._long[id(value)]

    # -- tensors -----------------------------------------------------------------------------------------------------

    def _storage(self, storage: Storage) -> bytes:
        assert self._bytes_of is not None
        if storage.key not in self._storages:
            self._storages[storage.key] = of_window(self._bytes_of(storage))
        return self._storages[storage.key]

    def _tensor(self, tensor: Tensor) -> bytes:
        assert self._bytes_of is not None
        kind = _kind(tensor.dtype, tensor.shape, big=self._big)
        if not tensor.numel:
            return self._digest(kind, b"")
        size = SIZES.get(tensor.dtype or "", 0)
        pieces = self._in_order(self._bytes_of(tensor.storage), tensor, size) if size else None
        if pieces is None:
            return self._digest(f"{kind} {tensor.offset} {tensor.stride}", self._storage(tensor.storage))
        return of_pieces(pieces, kind)

    def _in_order(self, data: Window, tensor: Tensor, size: int) -> Iterator[memoryview] | None:
        """The numbers in the order of the shape; None if that would take too much."""
        shape, wanted = tensor.shape, dense_strides(tensor.shape)
        whole = tensor.numel * size
        if all(one == 1 or has == should for one, has, should in zip(shape, tensor.stride, wanted, strict=True)):
            self._left -= whole
            return data.part(tensor.offset * size, whole, data.name).pieces() if self._left >= 0 else None
        span = (tensor.reach - tensor.offset) * size
        self._left -= span + whole
        if max(span, whole) > MOST_IN_MEMORY or self._left < 0:
            return None
        return _rows(data.read(tensor.offset * size, span), tensor, size)


def _rows(raw: bytes, tensor: Tensor, size: int) -> Iterator[memoryview] | None:
    """The rows of a view whose span is in memory, one after the other."""
    sizes = [(count, step) for count, step in zip(tensor.shape, tensor.stride, strict=True) if count != 1]
    wide = size // 8 if size > 8 else 1  # a complex number is two
    code = _CODES[size // wide]
    sizes = [(count, step * wide) for count, step in sizes] + ([(wide, 1)] if wide > 1 else [])
    *outer, (count, step) = sizes
    rows = 1
    for one, _ in outer:
        rows *= one
    if rows > MOST_ROWS:
        return None
    numbers = memoryview(raw).cast(code)

    def made() -> Iterator[memoryview]:
        for places in itertools.product(*(range(0, one * by, by) if by else [0] * one for one, by in outer)):
            at = sum(places)
            row = numbers[at : at + (count - 1) * step + 1 : step] if step else numbers[at : at + 1]
            yield memoryview(row.tobytes() * (1 if step else count))

    return made()


def _kind(dtype: str | None, shape: tuple[int, ...], *, big: bool) -> str:
    return f"{dtype} {shape}{' big' if big else ''}"
