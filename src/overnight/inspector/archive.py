"""Arrays of numpy (.npz, .npy) and zip archives of other makers: CRCs, bounded headers, numbers that are not finite.

Arrays of objects are pickles; they are left unread. Archives of torch inside other archives are looked at as such.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from overnight.inspector import torchzip, zips
from overnight.inspector.counts import Counts
from overnight.inspector.findings import Budget, Damage, Found
from overnight.inspector.objects import LARGEST_COUNT, MOST_DIMENSIONS, NUMPY, SIZES, Storage, Tensor, count_of, number
from overnight.inspector.places import Place
from overnight.inspector.scanning import dense_strides, finite_piece, finite_tensor
from overnight.inspector.source import Window
from overnight.inspector.torchzip import Inside, look_with

NPY = b"\x93NUMPY"
LARGEST_HEADER = 1 << 16
MOST_WINDOWS = 1_000  # archives inside an archive
_SAID = r"\{'descr': (.*), 'fortran_order': (True|False), 'shape': \(([\d, ]*)\),? ?\}\s*"
_DESCRIBED = r"'([^'\\]{1,200})'|\[.*\]"
_FIRST = 256  # bytes of an array's file that hold all of an ordinary header and one number
_BEGIN = 12 + LARGEST_HEADER


def look(path: Path, budget: Budget) -> Found:
    """Look at a ``.npz``, ``.npy`` or other zip file. Structure always; content as far as the budget allows."""
    return look_with(path, lambda window, inside: inspect(window, budget, inside))


def inspect(window: Window, budget: Budget, inside: Inside) -> None:
    """Look at one file; Damage ends the look."""
    inside.maker = "numpy"
    if window.read(0, 6) == NPY or window.name.endswith(".npy"):
        _npy_file(window, budget, inside)
        return
    if not zips.is_zip(window):
        inside.maker = "unknown"
        raise Damage(f"{window.name} is {'no zip archive' if window.size else 'empty'}",
                     complete=None if window.size else False, intact=None if window.size else False)  # fmt: skip
    npz = window.name.endswith(".npz")
    inside.form, inside.maker = ("npz", "numpy") if npz else ("zip", "unknown")
    archive = zips.read(window, strict=npz)
    inside.complete = True
    inside.keys = tuple(name.removesuffix(".npy") for name in archive.members)[:10_000]
    _structure(archive, inside, npz=npz)
    size = sum(member.size for member in archive.members.values())
    if not budget.spend(size):
        inside.notes.append(f"the content of {window.name} was not looked at: it has {size:,} bytes")
        return
    inside.finite = True if npz or inside.tensors else None
    for name, member in archive.members.items():
        _member(archive, name, member, inside)
    inside.intact = True
    if not npz:
        _inner(archive, inside)


def opened(window: Window) -> Iterator[tuple[str, Callable[[], Iterator[memoryview]]]]:
    """Yield each member of a ``.npz`` by its name, and what yields its bytes, header and all; Damage as ``inspect``."""
    found = zips.read(window, strict=True)
    for name, member in found.members.items():
        yield name.removesuffix(".npy"), partial(found.content, member)


def _header(window_name: str, begin: bytes) -> tuple[str | None, tuple[int, ...], bool, int]:
    """Dtype (None: not known here), shape, whether its numbers are big-endian, and the header's bytes."""
    major = begin[6] if len(begin) > 6 else 0
    wide = 2 if major == 1 else 4
    if not begin.startswith(NPY) or major not in (1, 2, 3) or len(begin) < 8 + wide:
        raise Damage(f"{window_name} is no array of numpy, or its begin is damaged", complete=False)
    size = int.from_bytes(begin[8 : 8 + wide], "little")
    text = begin[8 + wide : 8 + wide + size].decode("latin-1")
    if size > LARGEST_HEADER or len(text) < size:
        raise Damage(f"{window_name} claims a header of {size:,} bytes", complete=False)
    found = re.fullmatch(_SAID, text, re.DOTALL)
    if found is None:
        raise Damage(f"{window_name} has a header that says no shape")
    said = [one for one in found[3].replace(" ", "").split(",") if one]
    shape = tuple(int(one) if len(one) < 20 else LARGEST_COUNT for one in said[:MOST_DIMENSIONS])
    described = re.fullmatch(_DESCRIBED, found[1], re.DOTALL)
    if described is None:
        raise Damage(f"{window_name} has a header that says no dtype")
    if len(said) > MOST_DIMENSIONS or count_of(shape) >= LARGEST_COUNT:
        raise Damage(f"{window_name} has a header that says an absurd shape", complete=False)
    plain = described[1] or ""
    shape = shape if found[2] == "False" else shape[::-1]
    return NUMPY.get(plain.lstrip("<>|=")), shape, plain.startswith(">"), 8 + wide + size


def _begin(archive: zips.Archive, member: zips.Member) -> bytes:
    """The begin of an array's file, with its header and a number."""
    begin = archive.begin(member, _FIRST)
    long = int.from_bytes(begin[8:12], "little") if begin[6:7] != b"\1" else int.from_bytes(begin[8:10], "little")
    return begin if long + 32 < _FIRST else archive.begin(member, min(long + 32, _BEGIN))


def _structure(archive: zips.Archive, inside: Inside, *, npz: bool) -> None:
    """Look at the begin of each array, and take the step from an array of one number that is named so."""
    counts = Counts(lambda _: None)
    for name, member in archive.members.items():
        if not name.endswith(".npy"):
            if npz:
                inside.notes.append(f"{archive.window.name} holds {name[:80]}, which is no array")
            continue
        where = f"{name[:80]} in {archive.window.name}"
        begin = _begin(archive, member)
        dtype, shape, big, header = _header(where, begin)
        inside.tensors += 1
        if dtype is None:
            continue
        wanted = count_of(shape) * SIZES[dtype]
        if header + wanted != member.size:
            raise Damage(f"{where} has not the bytes that its shape needs", complete=False)
        if count_of(shape) == 1:
            value = number(dtype, begin[header : header + SIZES[dtype]], big=big)
            counts.take(_place(name), value)
    inside.step, inside.values = counts.step, counts.values


def _place(name: str) -> Place:
    return Place().path(name.removesuffix(".npy").replace("/", "."))


def _member(archive: zips.Archive, name: str, member: zips.Member, inside: Inside) -> None:
    """Compare the CRC of one member, and look at its numbers if it is an array."""
    key = name.removesuffix(".npy")
    dtype, shape, big, header = _header(name, _begin(archive, member)) if key != name else (None, (), False, 0)
    if dtype is None or not _place(name).watches(shape):
        for _ in archive.content(member):
            pass
        return
    suspect = False
    rest = b""
    left = header
    for piece in archive.content(member):
        view = piece[min(left, len(piece)) :]
        left -= len(piece) - len(view)
        if suspect:
            continue
        if rest:
            view = memoryview(rest + view)
        whole = len(view) // SIZES[dtype] * SIZES[dtype]
        suspect = not finite_piece(dtype, view[:whole], big=big)
        rest = bytes(view[whole:])
    if suspect and not _meant(archive, member, dtype, shape, header, big=big):
        inside.finite = False
        inside.problem = inside.problem or f"{archive.window.name}: {key[:80]} holds NaN or infinity"


def _meant(
    archive: zips.Archive, member: zips.Member, dtype: str, shape: tuple[int, ...], header: int, *, big: bool
) -> bool:
    """Whether an array that is not finite is a mask; one that is compressed is taken at its word."""
    if member.method != zips.STORED:
        return False
    data = archive.data(member).part(header, member.size - header, member.name)
    return finite_tensor(data, dense(dtype, shape), mask=_place(member.name).mask(), big=big)


def dense(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor whose numbers lie one after the other."""
    storage = Storage(key="", dtype=dtype, numel=count_of(shape))
    return Tensor(storage=storage, dtype=dtype, offset=0, shape=shape, stride=dense_strides(shape))


def _npy_file(window: Window, budget: Budget, inside: Inside) -> None:
    inside.form, inside.tensors = "npy", 1
    dtype, shape, big, header = _header(window.name, window.read(0, _BEGIN))
    if dtype is None:
        inside.notes.append(f"{window.name} holds what is no plain number; it is not read")
        return
    data = count_of(shape) * SIZES[dtype]
    if header + data != window.size:
        have = window.size - header
        raise Damage(f"{window.name} has {have:,} bytes of numbers instead of {data:,}", complete=have > data and None)
    inside.complete = True
    if not budget.spend(window.size):
        inside.notes.append(f"the numbers of {window.name} were not looked at: it has {window.size:,} bytes")
        return
    numbers = window.part(header, data, window.name)
    inside.finite = finite_tensor(numbers, dense(dtype, shape), mask=_place(window.name).mask(), big=big)
    if not inside.finite:
        raise Damage(f"{window.name} holds NaN or infinity", intact=None)


def _inner(archive: zips.Archive, inside: Inside) -> None:
    """Look at archives of torch that lie unpacked in this one; their bytes have been paid for."""
    for name, member in list(archive.members.items())[:MOST_WINDOWS]:
        if member.method != zips.STORED or not name.endswith((".pt", ".pth", ".ckpt", ".bin")):
            continue
        found = Inside()
        torchzip.inspect(archive.data(member), Budget(), found)
        inside.tensors += found.tensors
        inside.step = inside.step if inside.step is not None else found.step
        inside.globals = tuple(dict.fromkeys((*inside.globals, *found.globals)))
        if found.finite is not None:
            inside.finite = found.finite and inside.finite is not False
        inside.problem = inside.problem or found.problem
