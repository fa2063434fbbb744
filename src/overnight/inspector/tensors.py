"""Files of safetensors, and the index files that say in which of several files each tensor lies.

The form holds no checksum: a flipped bit in a number cannot be seen, and ``intact`` is never True here. What can be
seen is said: a header that does not fit its file, numbers that are not finite, and an end that was never written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overnight.inspector import boundedjson, torchzip
from overnight.inspector.counts import Counts
from overnight.inspector.findings import Budget, Damage, Found
from overnight.inspector.objects import MOST_DIMENSIONS, SIZES, Storage, Tensor, count_of, number
from overnight.inspector.places import Place
from overnight.inspector.scanning import dense_strides, finite_piece, finite_tensor
from overnight.inspector.source import Window
from overnight.inspector.torchzip import Inside, look_with

MOST_FILES = 10_000
_SUB = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # bits of dtypes that are no whole number of bytes
_ZEROS = 4096  # bytes at a file's end that are looked at as lost: a page


def look(path: Path, budget: Budget) -> Found:
    """Look at one ``.safetensors`` file. Structure always; numbers as far as the budget allows."""
    return look_with(path, lambda window, inside: inspect(window, budget, inside))


def parse_json(window: Window, at: int, size: int) -> Any:
    """Return JSON that lies in a file. Damage: it is none, or too large or too deep to be read."""
    if size > boundedjson.LARGEST:
        raise Damage(f"{window.name} has a header of {size:,} bytes, more than is read", intact=None)
    try:
        return boundedjson.loads(window.read(at, size), once=True)
    except boundedjson.TooMuch as error:
        raise Damage(f"{window.name} has a header that is not read: {error}", intact=None) from None
    except ValueError:
        raise Damage(f"{window.name} is damaged: its header is not JSON, or names something twice") from None


def inspect(window: Window, budget: Budget, inside: Inside) -> None:
    """Look at one file; Damage ends the look."""
    inside.form, inside.maker = "safetensors", "safetensors"
    size = int.from_bytes(window.read(0, 8), "little")
    if window.size < 8:
        raise Damage(f"{window.name} is {'cut off' if window.size else 'empty'}", complete=False)
    if not size or size > window.size - 8:
        inside.maker = inside.maker if window.name.endswith(".safetensors") else "unknown"
        zeros = window.zeros_at_end() == window.size
        clause = "holds nothing but zeros" if zeros else f"claims a header of {size:,} bytes, which it has not"
        raise Damage(f"{window.name} {clause}", complete=False)
    header = parse_json(window, 8, size)
    if not isinstance(header, dict):
        raise Damage(f"{window.name} is damaged: its header lists no tensors")
    tensors = _places(window, header, 8 + size)
    inside.complete = True
    inside.keys = tuple(tensors)[:10_000]
    inside.tensors = len(tensors)
    inside.tree = header
    _count(window, header, tensors, 8 + size, inside)
    lost = _lost_end(window, tensors, 8 + size, window.zeros_at_end())
    if not budget.spend(window.size - 8 - size):
        inside.notes.append(f"the numbers of {window.name} were not looked at: it has {window.size:,} bytes")
        return
    if not lost:
        _lost_end(window, tensors, 8 + size, window.zeros_at_end(window.size))
    inside.finite = True
    for name, tensor in tensors.items():
        if not _finite(window, name, tensor, 8 + size):
            inside.finite = False
            raise Damage(f"{window.name}: {name} holds NaN or infinity", intact=None)


_Entry = tuple[str, tuple[int, ...], int, int]
"""Dtype, shape, first byte and last."""


def opened(window: Window) -> tuple[dict[str, tuple[str, tuple[int, ...], Window]], dict[str, Any]]:
    """Return dtype, shape and bytes of each tensor of a file by its name, and its metadata; Damage as ``inspect``."""
    size = int.from_bytes(window.read(0, 8), "little")
    if not size or size > window.size - 8:
        raise Damage(f"{window.name} claims a header of {size:,} bytes, which it has not", complete=False)
    header = parse_json(window, 8, size)
    if not isinstance(header, dict):
        raise Damage(f"{window.name} is damaged: its header lists no tensors")
    start = 8 + size
    found = {
        name: (dtype, shape, window.part(start + begin, end - begin, f"{name[:80]} in {window.name}"))
        for name, (dtype, shape, begin, end) in _places(window, header, start).items()
    }
    metadata = header.get("__metadata__")
    return found, metadata if isinstance(metadata, dict) else {}


def _entry(window: Window, name: str, entry: Any) -> _Entry:
    """What a header says of one tensor."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise Damage(f"{window.name} is damaged: its header does not say where {name[:80]} lies") from None
    if len(shape) > MOST_DIMENSIONS:
        raise Damage(f"{window.name} is damaged: {name[:80]} has {len(shape):,} dimensions")
    if type(dtype) is not str or not all(type(one) is int and 0 <= one < 1 << 62 for one in (*shape, begin, end)):
        raise Damage(f"{window.name} is damaged: its header does not say what {name[:80]} is")
    bits = _SUB.get(dtype) or 8 * SIZES.get(dtype, 0)
    if bits and count_of(shape) * bits != (end - begin) * 8:
        raise Damage(f"{window.name} is damaged: {name[:80]} has not the bytes that its shape needs")
    return dtype, shape, begin, end


def _places(window: Window, header: Mapping[str, Any], start: int) -> dict[str, _Entry]:
    """Each tensor's entry in the order of the bytes; they must fill the file exactly."""
    found: dict[str, _Entry] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        found[name] = _entry(window, name, entry)
    ordered = dict(sorted(found.items(), key=lambda one: one[1][2:]))
    at = 0
    for name, (_, _, begin, end) in ordered.items():
        if begin != at or end < begin:
            raise Damage(f"{window.name} is damaged: {name[:80]} does not begin where the tensor before it ends")
        at = end
    have = window.size - start
    if at > have:
        raise Damage(f"{window.name} is cut off: {at - have:,} bytes are missing at its end", complete=False)
    if at < have:
        raise Damage(f"{window.name} has {have - at:,} bytes after its end")
    return ordered


def _tensor(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> Tensor:
    storage = Storage(key="", dtype=None, numel=end - begin)
    return Tensor(storage=storage, dtype=dtype, offset=0, shape=shape, stride=dense_strides(shape))


def _finite(window: Window, name: str, entry: _Entry, start: int) -> bool:
    dtype, shape, begin, end = entry
    data = window.part(start + begin, end - begin, window.name)
    place = Place().path(name)
    if dtype not in SIZES or not place.watches(shape):
        return True
    if all(finite_piece(dtype, piece) for piece in data.pieces()):
        return True
    return finite_tensor(data, _tensor(dtype, shape, begin, end), mask=place.mask())


def _lost_end(window: Window, tensors: Mapping[str, _Entry], start: int, zeros: int) -> bool:
    """A crash leaves a file of the right length whose end is zeros. A tensor may be zeros too, but begins as such.

    Damage if zeros begin inside a row of a tensor of numbers with a point, or with a page inside one that is the last
    and has no rows, and reach to the end of the file. False if
    the file may end with more zeros than the ``zeros`` that were looked at.
    """
    at = window.size - start - zeros  # the first zero
    if zeros < _ZEROS and zeros * 8 < window.size:
        return True
    if not window.zeros_known(zeros):
        return False
    for name, (dtype, shape, begin, end) in tensors.items():
        if not begin < at < end or dtype not in ("F64", "F32", "F16", "BF16"):
            continue
        size = SIZES[dtype]
        row = shape[-1] * size if len(shape) > 1 else 0
        first = begin + -(-(at - begin) // size) * size  # zeros may begin with the low bytes of a number
        beyond = sum(one[3] > one[2] for one in tensors.values() if one[2] >= end)
        # What a file system had not written out begins with a page; a flat tensor that is not full begins anywhere.
        page = not row and (start + first) % _ZEROS == 0
        if (row > size and (first - begin) % row) or (not row and beyond) or page:
            raise Damage(f"{window.name}: its last {zeros:,} bytes are zeros, from the middle of {name[:80]} on",
                         complete=False)  # fmt: skip
    return True


def _count(window: Window, header: Mapping[str, Any], tensors: Mapping[str, Any], start: int, inside: Inside) -> None:
    """Take the step from the metadata, where values are words, or from a tensor that is named so."""

    def scalar(tensor: Tensor) -> int | float | bool | None:
        found = window.read(start + tensor.offset, SIZES.get(tensor.dtype or "", 0))
        return number(tensor.dtype, found)

    counts = Counts(scalar)
    metadata = header.get("__metadata__")
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        plain: Any = value
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            plain = int(value)
        counts.take(Place().below(key), plain)
    for name, (dtype, shape, begin, end) in tensors.items():
        if count_of(shape) == 1 and dtype in SIZES:
            tensor = _tensor(dtype, shape, begin, end)
            tensor.offset = begin
            counts.take(Place().path(name), tensor)
    inside.step, inside.values = counts.step, counts.values


def look_index(path: Path, budget: Budget) -> Found:
    """Look at an index (``*.safetensors.index.json``, ``*.bin.index.json``) and at every file that it names."""
    return look_with(path, lambda window, inside: _index(path, window, budget, inside))


def _index(path: Path, window: Window, budget: Budget, inside: Inside) -> None:
    torch = path.name.endswith(".bin.index.json")
    inside.form, inside.maker = ("torch index", "torch") if torch else ("safetensors index", "safetensors")
    value = parse_json(window, 0, window.size)
    where = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(where, dict) or not where or not all(type(one) is str for one in where.values()):
        raise Damage(f"{path.name} does not say where tensors lie")
    files = sorted(set(where.values()))
    if len(files) > MOST_FILES or any(os.path.basename(one) != one or one in ("", ".", "..") for one in files):
        raise Damage(f"{path.name} names files outside of its folder, or too many")
    reader: Callable[[Path, Budget], Found] = torchzip.look if torch else look
    shards = {name: reader(path.parent / name, budget) for name in files}
    _join(path, where, shards, inside)
    inside.tree = value
    inside.keys = tuple(where)[:10_000]


def _join(path: Path, where: Mapping[str, str], shards: Mapping[str, Found], inside: Inside) -> None:
    """What the files are together: the worst of each is what all of them are."""
    inside.tensors = sum(one.tensors for one in shards.values())
    inside.notes += [f"{sum(one.size_bytes for one in shards.values()):,} bytes in {len(shards):,} files"]
    inside.globals = tuple(dict.fromkeys(name for one in shards.values() for name in one.globals))
    inside.finite = _together([one.finite for one in shards.values()])
    inside.intact = _together([one.intact for one in shards.values()])
    inside.complete = True
    held = {name: set(one.keys) for name, one in shards.items()}
    for name, found in shards.items():
        if found.problem is not None:
            if found.complete is False or not os.path.lexists(path.parent / name):
                inside.complete = False
            elif found.complete is None:
                inside.complete = None
            raise Damage(found.problem, complete=inside.complete, intact=found.intact)
    for tensor, name in where.items():
        if tensor not in held[name] and len(held[name]) < 10_000:
            raise Damage(f"{path.name}: {tensor[:80]} is not in {name}, where the index has it", complete=False)
    unnamed = [one for names in held.values() for one in names if one not in where]
    if unnamed:
        inside.notes.append(f"{path.name} does not name {len(unnamed):,} tensors that its files hold")
    steps = {one.step for one in shards.values() if one.step is not None}
    if len(steps) > 1:
        raise Damage(f"{path.name}: its files are of different steps: {', '.join(map(str, sorted(steps)))}")
    inside.step = steps.pop() if steps else None


def _together(said: list[bool | None]) -> bool | None:
    return False if False in said else None if None in said else True
