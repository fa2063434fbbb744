"""Makes files of torch for tests: as torch.save does, and as nobody should."""

from __future__ import annotations

import io
import pickle
import random
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch


def trained(steps: int = 5) -> tuple[Any, Any]:
    """A small model after some steps of AdamW, and its optimizer."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def saved(value: Any, **more: Any) -> bytes:
    """What torch.save makes of a value."""
    stream = io.BytesIO()
    torch.save(value, stream, **more)
    return stream.getvalue()


def archive(members: Mapping[str, bytes]) -> bytes:
    """An archive as torch lays it out, with any members; their CRCs are right."""
    stream = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(stream)
    for name, data in members.items():
        writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return stream.getvalue()


def opened(data: bytes) -> dict[str, bytes]:
    """The members of an archive of torch."""
    reader = torch._C.PyTorchFileReader(io.BytesIO(data))
    return {name: reader.get_record(name) for name in reader.get_all_records() if not name.startswith(".data/")}


def flips(data: bytes, count: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """The data with one bit turned, at so many random places."""
    chance = random.Random(seed)
    for _ in range(count):
        bit = chance.randrange(len(data) * 8)
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(turned)


def lengths(data: bytes, count: int, seed: int) -> list[int]:
    """So many random lengths shorter than the data; 0 and one less among them."""
    chance = random.Random(seed)
    return [0, len(data) - 1, *(chance.randrange(len(data)) for _ in range(count - 2))]


def zeroed(data: bytes, part: float = 0.25) -> bytes:
    """The data with its last part as zeros, of the same length."""
    lost = int(len(data) * part)
    return data[: len(data) - lost] + bytes(lost)


def sparse(path: Path, members: Mapping[str, bytes], size: int) -> list[int]:
    """Write an archive as torch lays out one of more than 4 GiB, data/0 as a hole of ``size`` bytes.

    Returns places of bytes that say where things are, each of which matters.
    """
    full, central, places = 0xFFFFFFFF, b"", []
    with path.open("wb") as stream:
        for name, data in {**members, "data/0": b""}.items():
            at, raw = stream.tell(), f"large/{name}".encode()
            length = size if name == "data/0" else len(data)
            crc = zlib.crc32(data)
            wide = [*([length] if length > full else []), *([at] if at > full else [])]
            local = [length, 0, *wide[1:]] if length > full else wide
            extra = (struct.pack(f"<HH{len(local)}Q", 1, 8 * len(local), *local) if local else b"") + b"FB\3\0ZZZ"
            stream.write(
                struct.pack("<4s5H3L2H", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(raw), len(extra)) + raw + extra
            )
            places += [at + 26, at + 30, stream.tell() - 1]
            stream.write(data) if name != "data/0" else stream.seek(size, 1)
            stream.write(b"PK\7\x08" + struct.pack("<LQQ" if wide else "<LLL", crc, length, length))
            places.append(stream.tell() - 1)
            wide = [length, *wide] if length > full else wide
            more = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
            sizes = (min(length, full), min(length, full))
            central += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, 0, 0x808, 0, 0, 0, crc, *sizes, len(raw), len(more),
                                   0, 0, 0, 0, min(at, full)) + raw + more  # fmt: skip
        start, count = stream.tell(), len(members) + ("data/0" not in members)
        stream.write(central)
        end = stream.tell()
        stream.write(struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, len(central), start))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
        stream.write(struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, len(central), full, 0))
        places += [start + 5, start + 20, end + 5, end + 40, end + 60, stream.tell() - 8]
    return places


class Runs:
    """Unpickled, it would write a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        import os

        return os.system, (f"touch {self.proof}",)


def nested(levels: int) -> bytes:
    """A pickle of a list in a list in a list ..., which is as deep as it is long."""
    return b"\x80\x04" + b"]" * levels + b"a" * (levels - 1) + b"."


def doubling(levels: int, *, key: bool = False) -> bytes:
    """A pickle of a tuple that holds a tuple twice, which holds ...: 2 ** levels, for who walks it all or hashes it."""
    body = b"\x80\x04K\x01" + b"".join(b"\x94h" + bytes([at]) + b"\x86" for at in range(levels))
    return body + b"\x94}h" + bytes([levels]) + b"K\x01s." if key else body + b"."


def claim(opcode: bytes, size: int) -> bytes:
    """A pickle with a word or bytes of a size that is not there."""
    form = {b"X": "<I", b"\x8d": "<Q", b"\x8e": "<Q", b"B": "<I", b"\x96": "<Q", b"T": "<i", b"\x8b": "<i"}[opcode]
    return b"\x80\x05" + opcode + struct.pack(form, size) + b"abc."


def end_of_zip(*, count: int, size: int, start: int) -> bytes:
    """The record at a zip's end, which claims so many members in a list of so many bytes at such a place."""
    return struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, size, start, 0)


def pickled(value: Any, protocol: int) -> bytes:
    """A plain pickle."""
    return pickle.dumps(value, protocol=protocol)


LIMITED = """
import resource, sys
from pathlib import Path
from overnight.inspector import archive, dcp, tensors, torchzip
from overnight.inspector.findings import Budget
free = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (free + {room}, free + {room}))
found = {reader}.look(Path(sys.argv[1]), Budget())
print(found.complete, found.intact, found.finite, found.problem)
"""


def limited(reader: str, room_mib: int) -> list[str]:
    """A command that looks at a file with so much memory beyond what Python itself takes."""
    return [sys.executable, "-c", LIMITED.format(reader=reader, room=room_mib << 20)]
