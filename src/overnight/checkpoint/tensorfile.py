"""Files in the format of safetensors, streamed: hashed as they are written, and mapped, not loaded, when they are read.

Only the format: which tensors belong in a file, and under what names, is decided elsewhere. Nothing in a file is
trusted: whatever its header claims, the memory and the time to read it grow with the header's true length only.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from overnight.checkpoint.direct import BLOCK, DirectFile
from overnight.checkpoint.errors import CheckpointError, DamagedError
from overnight.checkpoint.jobs import Leaf

WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4,
    "U64": 8, "BOOL": 1, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes of one number, for each of safetensors' dtypes whose numbers are whole bytes."""

LONGEST_HEADER = 100_000_000
"""Bytes; the library refuses longer ones."""

METADATA = "__metadata__"

_BEGIN = 8  # bytes: the length of the header, little-endian
_LARGEST = 1 << 63  # of a dimension, as torch counts them
_SPACE = re.compile(r"[ \t\r\n]*+")
_ENTRY = re.compile(r"\{[^{}]{0,65536}\}")  # one tensor's: holds no braces, as no name of a dtype does
_decode = json.JSONDecoder().raw_decode


def write(
    out: DirectFile,
    names: Sequence[str],
    leaves: Sequence[Leaf],
    data: Sequence[memoryview],
    metadata: Mapping[str, str],
) -> None:
    """Write a whole file: ``data[i]`` are the bytes of the tensor ``names[i]``, described by ``leaves[i]``.

    CheckpointError, before a byte is written, names the tensor that the format cannot hold (a dtype of complex128, say)
    or whose size is wrong; OSError comes from ``out``.
    """
    order = sorted(range(len(names)), key=lambda at: _rank(leaves[at]))
    out.write(_header(names, leaves, data, metadata, order))
    for at in order:
        out.write(data[at])


def _rank(leaf: Leaf) -> tuple[bool, int]:
    """Order tensors so that each is aligned: first whole blocks, which can be written from where they lie."""
    return leaf.size % BLOCK != 0, -WIDTHS.get(leaf.dtype, 0)


def _header(
    names: Sequence[str],
    leaves: Sequence[Leaf],
    data: Sequence[memoryview],
    metadata: Mapping[str, str],
    order: list[int],
) -> bytes:
    """Return the length and the header, padded with spaces (as the format allows) so that the data begins a block."""
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    place = 0
    for at, piece in ((at, data[at]) for at in order):
        name, leaf = names[at], leaves[at]
        if leaf.dtype not in WIDTHS:
            raise CheckpointError(f"{name} has the dtype {leaf.dtype}, which safetensors files cannot hold; "
                                  "convert it, or keep it in a part that holds more than tensors")  # fmt: skip
        if name in header or name == METADATA:
            raise CheckpointError(f"two tensors are called {name!r}, or it is a name that safetensors keeps for itself")
        if not prod(leaf.shape) * WIDTHS[leaf.dtype] == leaf.size == piece.nbytes:
            raise CheckpointError(f"{name} has {piece.nbytes:,} bytes, which does not fit {leaf.dtype} {leaf.shape}")
        header[name] = {"dtype": leaf.dtype, "shape": list(leaf.shape), "data_offsets": [place, place + leaf.size]}
        place += leaf.size
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"a name or a word of the metadata is no text: {error.object[:80]!a}") from None
    if not all(isinstance(one, str) for pair in metadata.items() for one in pair):
        raise CheckpointError("the metadata of a safetensors file holds something that is no text")
    text += b" " * (-(_BEGIN + len(text)) % BLOCK)
    if len(text) > LONGEST_HEADER:
        raise CheckpointError(f"{len(names):,} tensors need a header of {len(text):,} bytes; safetensors reads no more "
                              f"than {LONGEST_HEADER:,}; split the part or shorten the names")  # fmt: skip
    return len(text).to_bytes(_BEGIN, "little") + text


def read(path: Path) -> tuple[dict[str, tuple[Leaf, memoryview]], dict[str, str]]:
    """Return a file's tensors by name, in the order of the header, with their bytes; and its metadata.

    The bytes are the file's, mapped privately: they are read when they are looked at, and changes to them stay in this
    process. DamagedError, in a few words, if the file cannot be read or is not, to the byte, what its header says.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of that name is not waited for
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise DamagedError(f"{path.name} is not a file")
        text = _header_text(path, fd, facts.st_size)
        begin = _BEGIN + len(text)
        tensors, metadata = _parsed(path, text.decode(), facts.st_size - begin)
        content = _mapped(fd)[begin:]
        if len(content) != facts.st_size - begin:
            raise DamagedError(f"{path.name} changed while it was read")
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DamagedError(f"{path.name} has a header that is no text") from None
    finally:
        os.close(fd)
    return {name: (leaf, content[at : at + leaf.size]) for name, (leaf, at) in tensors.items()}, metadata


def _header_text(path: Path, fd: int, size: int) -> bytes:
    length = int.from_bytes(os.pread(fd, _BEGIN, 0), "little") if size >= _BEGIN else 0
    if size < _BEGIN or length > size - _BEGIN:
        raise DamagedError(f"{path.name} has {size:,} bytes, fewer than its header needs")
    if length > LONGEST_HEADER:
        raise DamagedError(f"{path.name} claims a header of {length:,} bytes; no more than {LONGEST_HEADER:,} are read")
    text = os.pread(fd, length, _BEGIN)
    if len(text) != length:
        raise DamagedError(f"{path.name} changed while it was read")
    return text


def _mapped(fd: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    except OSError:  # more than the machine's memory, and it does not promise what it may have to give
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))


def _parsed(path: Path, text: str, size: int) -> tuple[dict[str, tuple[Leaf, int]], dict[str, str]]:
    """Return each tensor with its place in the data, which has ``size`` bytes and no gaps; and the metadata."""
    tensors: dict[str, tuple[Leaf, int]] = {}
    metadata: dict[str, str] | None = None
    try:
        for name, value in _entries(text):
            if name in tensors or (name == METADATA and metadata is not None):
                raise DamagedError(f"{path.name} has two entries called {name[:80]!a}")
            if isinstance(value, str):
                tensors[name] = _tensor(path, json.loads(value))
            else:
                metadata = value
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError(f"{path.name} has a header that is not one of safetensors") from None
    end = 0
    for leaf, place in sorted(tensors.values(), key=lambda one: (one[1], one[0].size)):
        if place != end:
            raise DamagedError(f"{path.name} has tensors that overlap or leave a hole at byte {min(place, end):,}")
        end += leaf.size
    if end != size:
        raise DamagedError(f"{path.name} has {size:,} bytes of tensors instead of {end:,}")
    return tensors, metadata or {}


def _entries(text: str) -> Iterator[tuple[str, str | dict[str, str]]]:
    """Yield each name of a header with its value: text in JSON for a tensor, a dict for the metadata.

    Entry by entry, as a whole header read by ``json`` may become objects of thirty times its size.
    """
    if not text.startswith("{"):
        raise ValueError(text[:1])
    at = _skip(text, 1)
    more = text[at : at + 1] != "}"
    while more:
        name, at = _word(text, at)
        at = _sign(text, at, ":")
        if name == METADATA:
            value, at = _words(text, at)
            yield name, value
        else:
            found = _ENTRY.match(text, at := _skip(text, at))
            if found is None:
                raise ValueError(name)
            at = found.end()
            yield name, found[0]
        at = _skip(text, at)
        more = text[at : at + 1] == ","
        at += more
    if _SPACE.fullmatch(text, _sign(text, at, "}")) is None:
        raise ValueError(at)


def _words(text: str, at: int) -> tuple[dict[str, str], int]:
    """Return an object of words only, and where it ends."""
    found: dict[str, str] = {}
    at = _skip(text, _sign(text, at, "{"))
    while text[at : at + 1] != "}":
        if found:
            at = _sign(text, at, ",")
        name, at = _word(text, at)
        found[name], at = _word(text, _sign(text, at, ":"))
        at = _skip(text, at)
    return found, at + 1


def _word(text: str, at: int) -> tuple[str, int]:
    at = _skip(text, at)
    if text[at : at + 1] != '"':
        raise ValueError(at)
    found: tuple[str, int] = _decode(text, at)
    return found


def _sign(text: str, at: int, wanted: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != wanted:
        raise ValueError(at)
    return at + 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _tensor(path: Path, entry: dict[str, object]) -> tuple[Leaf, int]:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(dtype)
    if dtype not in WIDTHS:
        raise DamagedError(f"{path.name} holds a tensor of the dtype {dtype[:20]!a}, which is not known here")
    begin, end = offsets
    if len(entry) != 3 or any(type(one) is not int or not 0 <= one < _LARGEST for one in (*shape, begin, end)):
        raise ValueError(shape)
    leaf = Leaf(kind="torch", dtype=dtype, shape=tuple(shape), size=end - begin)
    if _count(shape) * WIDTHS[dtype] != leaf.size:
        raise ValueError(shape)
    return leaf, begin


def _count(shape: list[int]) -> int:
    """Return how many numbers a shape holds; ValueError where they are more than can be, without counting on."""
    count = 1
    for one in shape if 0 not in shape else [0]:
        count *= one
        if count >= _LARGEST:
            raise ValueError(shape)
    return count
