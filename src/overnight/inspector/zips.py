"""The structure of a zip archive, believed nowhere: every claim is compared with the file and with what repeats it.

Python's zipfile takes what a central directory claims; here its size and count are bounded first, every local header
must say the same as the directory, and nothing may overlap. Archives that one known program has written in one go
(torch, numpy) are held to that program's layout: no byte lies between two members, the padding is what the program
writes, and so a flipped bit is found also where it lies in no member. Content is read by who wants it, in pieces.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from overnight.inspector.findings import Damage
from overnight.inspector.source import PIECE, Window

LARGEST_DIRECTORY = 64 << 20
MOST_MEMBERS = 400_000
MOST_EXTRAS = 32  # fields in the header of a member
STORED, DEFLATED = 0, 8

_END, _END64, _LOCATOR = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_END_SIZE, _END64_SIZE, _LOCATOR_SIZE = 22, 56, 20
_CENTRAL, _LOCAL, _DESCRIPTOR = b"PK\1\2", b"PK\3\4", b"PK\7\x08"
_MADE_BY = {(0x031E, 45), (45, 45), (0x032D, 45)}  # miniz in torch; Python; Python, should it ever name its system


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member: sizes in bytes, ``data_at`` where its bytes begin, ``end`` where what belongs to it ends."""

    name: str
    crc: int
    size: int
    packed: int
    method: int
    header_at: int
    data_at: int = 0
    end: int = 0


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The members of an archive in the order of their bytes, checked against each other."""

    window: Window
    members: dict[str, Member]
    strict: bool

    @property
    def unchecked(self) -> int:
        """How many members have no CRC: torch writes 0 where it was told not to compute one."""
        return sum(member.crc == 0 and member.size > 0 for member in self.members.values())

    def data(self, member: Member) -> Window:
        """Return the bytes of a member as they lie in the file."""
        return self.window.part(member.data_at, member.packed, f"{member.name} in {self.window.name}")

    def small(self, member: Member, largest: int) -> bytes:
        """Return the content of a member of ``largest`` bytes at most, its CRC compared."""
        if member.size > largest:
            raise Damage(f"{member.name} in {self.window.name} is longer than what is read", intact=None)
        return b"".join(bytes(piece) for piece in self.content(member))

    def content(self, member: Member) -> Iterator[memoryview]:
        """Yield the content of a member in pieces of 1 MiB; Damage at its end if its CRC or its size is another."""
        crc = size = 0
        for piece in self._unpacked(member):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            yield piece
        if (crc != member.crc and not (self.strict and member.crc == 0)) or size != member.size:
            where = self.window.name
            raise Damage(f"{where}: the content of {member.name} is not what its CRC says{_zeros(self.window)}")

    def begin(self, member: Member, size: int) -> bytes:
        """Return the first bytes of a member's content, nothing compared; ``size`` is a small one."""
        if member.method == STORED:
            return self.data(member).read(0, size)
        try:
            return zlib.decompressobj(-15).decompress(self.data(member).read(0, 2 * size + 1024), size)
        except zlib.error:
            raise Damage(f"{self.window.name}: {member.name} cannot be unpacked") from None

    def _unpacked(self, member: Member) -> Iterator[memoryview]:
        if member.method == STORED:
            yield from self.data(member).pieces()
            return
        unpack = zlib.decompressobj(-15)
        left = member.size
        try:
            for packed in self.data(member).pieces():
                rest: bytes = bytes(packed)
                piece = b""
                while (rest or len(piece) == PIECE) and left >= 0 and not unpack.eof:
                    piece = unpack.decompress(rest, PIECE)
                    rest = unpack.unconsumed_tail
                    left -= len(piece)  # no more than one piece beyond what is claimed
                    if piece:
                        yield memoryview(piece)
        except zlib.error:
            raise Damage(f"{self.window.name}: {member.name} cannot be unpacked") from None
        if not unpack.eof or unpack.unused_data:
            raise Damage(f"{self.window.name}: {member.name} is not as long as it says")


def is_zip(window: Window) -> bool:
    """Say whether a file is a zip archive, or was one before something happened to its beginning or to its end."""
    begin = window.read(0, 4)
    ends = window.read(window.size - _END_SIZE, 4) == _END
    return begin in (_LOCAL, _END) or (0 < len(begin) < 4 and _LOCAL.startswith(begin)) or (ends and bool(begin))


def read(window: Window, *, strict: bool) -> Archive:
    """Return the archive that a window holds. ``strict``: it must be as torch or numpy lay an archive out.

    Damage, in one clause: it is no zip archive, not a whole one, or one of its claims does not hold.
    """
    start, size, count = _directory(window, strict=strict)
    raw = window.read(start, size)
    members = _members(window, raw, count, strict=strict)
    _check_places(window, members, start, strict=strict)
    named = {member.name: member for member in members}
    if len(named) < len(members):
        raise Damage(f"{window.name} holds two members of one name")
    return Archive(window=window, members=named, strict=strict)


def _zeros(window: Window) -> str:
    zeros = window.zeros_at_end()
    return f"; its last {zeros:,} bytes are zeros" if zeros >= 64 else ""


def _directory(window: Window, *, strict: bool) -> tuple[int, int, int]:
    """Where the central directory begins, its bytes, and how many members it lists."""
    at = window.size - _END_SIZE
    tail = window.read(at, _END_SIZE) if at >= 0 else b""
    if tail[:4] != _END or tail[20:] != b"\0\0":
        at = _other_end(window, strict=strict)
        tail = window.read(at, _END_SIZE)
    disk, first_disk, here, count, size, start = struct.unpack("<4xHHHHLL2x", tail)
    if disk or first_disk or here != count:
        raise Damage(f"{window.name} is damaged in the record at its end")
    claims = (start, size, count)
    end = at
    if window.read(at - _LOCATOR_SIZE, 4) == _LOCATOR and at >= _LOCATOR_SIZE + _END64_SIZE:
        end = at - _LOCATOR_SIZE - _END64_SIZE
        claims = _directory64(window, end, claims, strict=strict)
    start, size, count = claims
    if start + size != end:
        clause = f"its list of members should end at byte {start + size:,} and ends at {end:,}"
        raise Damage(f"{window.name} lacks bytes, or has too many: {clause}",
                     complete=False if start + size > end else None)  # fmt: skip
    if count > MOST_MEMBERS or size > LARGEST_DIRECTORY:
        raise Damage(f"{window.name} claims {count:,} members, more than are looked at", intact=None)
    return claims


def _other_end(window: Window, *, strict: bool) -> int:
    """Where the record at the end is, if it is not where a zip without a comment has it; Damage if there is none."""
    reach = min(window.size, (1 << 16) + _END_SIZE)
    tail = window.read(window.size - reach, reach)
    at = tail.rfind(_END)
    zeros = window.zeros_at_end()
    if at >= 0 and reach - at >= _END_SIZE:
        comment = tail[at + 20] | tail[at + 21] << 8
        over = reach - at - _END_SIZE - comment
        if over > 0:
            raise Damage(f"{window.name} has {over:,} bytes after its end")
        if over == 0 and not strict:
            return window.size - reach + at
    if zeros >= 64:
        raise Damage(f"{window.name} is not whole: its last {zeros:,} bytes are zeros", complete=False)
    raise Damage(f"{window.name} is cut off: the list of members at its end is missing", complete=False)


def _directory64(window: Window, at: int, small: tuple[int, int, int], *, strict: bool) -> tuple[int, int, int]:
    """The same from the records for large archives, which repeat what the small one says where it fits in there."""
    form = "<4sQHHLLQQQQ"
    signature, length, made, needed, disk, first, here, count, size, start = struct.unpack(form, window.read(at, 56))
    locator = struct.unpack("<4xLQL", window.read(at + _END64_SIZE, _LOCATOR_SIZE))
    if signature != _END64 or length != _END64_SIZE - 12 or disk or first or here != count or locator != (0, at, 1):
        raise Damage(f"{window.name} is damaged in the records at its end")
    if strict and (made, needed) not in _MADE_BY:
        raise Damage(f"{window.name} is damaged in the records at its end")
    for large, said, full in zip((start, size, count), small, (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF), strict=True):
        if said not in (full, large):
            raise Damage(f"{window.name} is damaged: the records at its end contradict each other")
    return start, size, count


def _members(window: Window, raw: bytes, count: int, *, strict: bool) -> list[Member]:
    found: list[Member] = []
    places: set[int] = set()
    odd: set[tuple[int, ...]] = set()
    at = 0
    for _ in range(count):
        head = raw[at : at + 46]
        if len(head) < 46 or head[:4] != _CENTRAL:
            raise Damage(f"{window.name} is damaged in its list of members")
        fields = struct.unpack("<4x6H3L5H2L", head)
        names, extras, comment = fields[9:12]
        end = at + 46 + names + extras + comment
        if end > len(raw):
            raise Damage(f"{window.name} is damaged in its list of members")
        name, extra = raw[at + 46 : at + 46 + names], raw[at + 46 + names : end - comment]
        if strict:  # one program has written all of them: what it says of itself is the same everywhere
            odd.add((fields[0], fields[13], fields[14]))
            if comment or len(odd) > 1:
                raise Damage(f"{window.name} is damaged in its list of members")
        found.append(_member(window, fields, name, extra, strict=strict))
        if found[-1].header_at in places:
            raise Damage(f"{window.name}: {found[-1].name} overlaps another member")
        places.add(found[-1].header_at)
        at = end
    if at != len(raw):
        raise Damage(f"{window.name} is damaged in its list of members")
    return found


def _member(window: Window, fields: tuple[int, ...], raw_name: bytes, extra: bytes, *, strict: bool) -> Member:
    """One member from its entry in the directory, compared with the header before its bytes."""
    _made, _needed, flags, method, _time, _date, crc, packed, size, *_, disk, _internal, _external, at = fields
    name = raw_name.decode("utf-8", "replace")
    size, packed, at = _large(window, extra, size, packed, at, strict=strict)
    if disk or (method == STORED and size != packed) or at + 30 + packed > window.size:
        raise Damage(f"{window.name}: {name} is longer than the file", complete=False)
    local = window.read(at, 30)
    if local[:4] != _LOCAL:
        raise Damage(f"{window.name}: {name} does not begin where it should")
    *same, local_crc, local_packed, local_size, names, extras = struct.unpack("<4x5H3L2H", local)
    rest = window.read(at + 30, names + extras)
    if same != list(fields[1:6]) or rest[:names] != raw_name:
        raise Damage(f"{window.name}: the header of {name} is not what the list of members says")
    later = bool(flags & 8)  # crc and sizes follow the content
    large = _padding(window, name, rest[names:], (size, packed, at), strict=strict)
    said = (local_crc, local_packed, local_size)
    good = [(crc, packed, size)]
    good += [(0, 0, 0)] if later else []
    good += [(first, 0xFFFFFFFF, 0xFFFFFFFF) for first in (crc, 0)[: 1 + later]] if large else []
    if said not in good:
        raise Damage(f"{window.name}: the header of {name} is not what the list of members says")
    if flags & 1 or method not in (STORED, DEFLATED):
        raise Damage(f"{window.name}: {name} is packed in a way that is not known here", intact=None)
    begin = at + 30 + names + extras
    end = begin + packed
    if later:
        end += _descriptor(window, name, end, (crc, packed, size))
    return Member(name=name, crc=crc, size=size, packed=packed, method=method, header_at=at, data_at=begin, end=end)


def _large(window: Window, extra: bytes, size: int, packed: int, at: int, *, strict: bool) -> tuple[int, int, int]:
    """The numbers of a directory's entry that do not fit into 32 bits lie in an extra field, in this order."""
    for kind, data in _extras(window, extra):
        if kind == 1:
            wanted = [value == 0xFFFFFFFF for value in (size, packed, at)]
            if len(data) != 8 * sum(wanted):
                raise Damage(f"{window.name} is damaged in its list of members")
            values = iter(struct.unpack(f"<{sum(wanted)}Q", data))
            size, packed, at = (next(values) if full else value
                                for full, value in zip(wanted, (size, packed, at), strict=True))  # fmt: skip
        elif strict:
            raise Damage(f"{window.name} is damaged in its list of members")
    return size, packed, at


def _extras(window: Window, extra: bytes) -> Iterator[tuple[int, bytes]]:
    at = count = 0
    while at + 4 <= len(extra) and count < MOST_EXTRAS:
        count += 1
        kind, length = struct.unpack_from("<HH", extra, at)
        if at + 4 + length > len(extra):
            break
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length
    if at != len(extra):
        raise Damage(f"{window.name} is damaged in the header of a member")


def _padding(window: Window, name: str, extra: bytes, known: tuple[int, int, int], *, strict: bool) -> bool:
    """Check what lies between a header and its content; True if sizes of 64 bits are among it.

    ``known`` are size, packed size and place. Python repeats the sizes there; torch the size, or the place, or both.
    """
    size, packed, at = known
    wide = [(size, packed), (size, 0), (0, 0), (at,)]
    wide += [(*sizes, at) for sizes in wide[:3]]
    large = False
    for kind, data in _extras(window, extra):
        if kind == 1:
            good = len(data) % 8 == 0 and struct.unpack(f"<{len(data) // 8}Q", data) in wide
            large = len(data) >= 16
        else:
            good = not strict or (kind == 0x4246 and data == b"Z" * len(data))  # torch pads with FB and Z
        if not good:
            raise Damage(f"{window.name}: the header of {name} is damaged")
    return large


def _descriptor(window: Window, name: str, at: int, known: tuple[int, int, int]) -> int:
    """Check what follows a content whose sizes were not known before it; returns its bytes."""
    raw = window.read(at, 24)
    for form, wide in (("<LQQ", True), ("<LLL", False)):
        if not wide and max(known) > 0xFFFFFFFF:
            continue
        wanted = _DESCRIPTOR + struct.pack(form, *known)
        if raw.startswith(wanted):
            return len(wanted)
    raise Damage(f"{window.name}: what follows {name} is not what the list of members says")


def _check_places(window: Window, members: list[Member], start: int, *, strict: bool) -> None:
    """No two members overlap, nor the directory; where one program wrote all, nothing lies between them."""
    at = 0
    for member in sorted(members, key=lambda one: one.header_at):
        if member.header_at < at:
            raise Damage(f"{window.name}: {member.name} overlaps another member")
        if strict and member.header_at != at:
            raise Damage(
                f"{window.name} has {member.header_at - at:,} bytes before {member.name} that belong to nothing"
            )
        at = member.end
    if at > start or (strict and at != start):
        raise Damage(f"{window.name}: members and their list do not join")
