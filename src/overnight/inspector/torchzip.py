"""Files of torch.save: the archive, its CRCs, what data.pkl says without being unpickled, and the numbers beside it.

Also says of the two forms that torch wrote before 1.6 what they are; those are left unread, for they have no CRC and
their tensors lie between pickles. What a folder of such files is together is judged elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overnight.inspector import opcodes, zips
from overnight.inspector.counts import Counts, top_keys
from overnight.inspector.findings import UNFORESEEN, Budget, Damage, Found, beyond
from overnight.inspector.objects import SIZES, Array, Storage, Tensor, number, walk
from overnight.inspector.places import Place
from overnight.inspector.scanning import cost, finite_array, finite_piece, finite_tensor
from overnight.inspector.source import Source, Window
from overnight.inspector.symbols import TooLarge, Unreadable

LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""How files of torch before 1.6 begin: a pickle of a number."""
_TAR = frozenset(("sys_info", "pickle", "tensors", "storages"))  # members of the oldest form
_SMALL = 1 << 16
_MOST_AGAIN = 1 << 28  # bytes beyond four times its own that are read to look at the tensors in a storage one by one
_ABOUT = (".format_version", ".storage_alignment", "byteorder", "version", ".data/serialization_id", ".data/version")


@dataclass(kw_only=True)
class Inside:
    """What a look into an archive has found so far; all of it stands when a Damage ends the look."""

    form: str = ""
    maker: str = "torch"
    complete: bool | None = None
    intact: bool | None = None
    finite: bool | None = None
    step: int | None = None
    problem: str | None = None
    tree: Any = None
    keys: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    tensors: int = 0
    shapes: list[tuple[str | None, tuple[int, ...]]] = field(default_factory=list)
    globals: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    single: int | float | bool | None = None  # where all of it is one number

    def damaged(self, damage: Damage) -> None:
        """Take in what ended the look."""
        self.problem = self.problem or damage.clause
        self.intact = damage.intact if self.intact is None or damage.intact is False else self.intact
        if damage.complete is not None:
            self.complete = damage.complete
        if damage.intact is None:
            self.intact = None


def look(path: Path, budget: Budget) -> Found:
    """Look at a file of torch.save. Structure always; content as far as the budget allows."""
    return look_with(path, lambda window, inside: inspect(window, budget, inside))


def look_with(path: Path, inspector: Callable[[Window, Inside], None]) -> Found:
    """Open a file, have it looked at, and make a Found of it, whatever happens. For all readers of single files."""
    inside = Inside()
    size, saved_at = 0, None
    try:
        with Source(path) as source:
            size, saved_at = source.size, source.saved_at
            try:
                guarded(source, lambda: inspector(source.whole(), inside))
            except Damage:
                source.unchanged()  # what looks damaged may be a file that is being written just now
                raise
            source.unchanged()
    except Damage as damage:
        inside.damaged(damage)
    return Found(
        path=str(path), maker=inside.maker, step=inside.step, size_bytes=size, saved_at=saved_at,
        complete=inside.complete, intact=inside.intact, finite=inside.finite, problem=inside.problem,
        notes=tuple(inside.notes), form=inside.form, keys=inside.keys, values=inside.values, tensors=inside.tensors,
        globals=inside.globals, tree=inside.tree,
    )  # fmt: skip


def guarded(source: Source, act: Callable[[], None]) -> None:
    """Do something with a file; whatever it raises is a Damage, the last guard for what was not thought of."""
    try:
        act()
    except UNFORESEEN as error:
        raise beyond(source.name, error) from None


def inspect(window: Window, budget: Budget, inside: Inside, top: Place | None = None) -> None:
    """Look at one archive, a whole file or a part of one; Damage ends the look. ``top`` is where its value lies."""
    if not zips.is_zip(window):
        _other_form(window, window.read(0, 512), inside)
        return
    inside.form = "torch zip"
    archive = zips.read(window, strict=True)
    prefix = _prefix(archive)
    if f"{prefix}data.pkl" not in archive.members:
        raise Damage(f"{window.name} is no file of torch, or data.pkl is missing in it", complete=False)
    if f"{prefix}constants.pkl" in archive.members:
        inside.form = "torch script"
    checker = _Content(archive, prefix, inside, top)
    checker.structure()
    checker.content(budget)


class Opened:
    """What lies in an archive of torch whose structure holds: its value, and the bytes of each storage.

    ``known``: ``tree`` is its value; not where that is too large to be read, nor in a torch script. ``big``: its
    numbers are big-endian. Damage: the structure does not hold, or it is no such archive.
    """

    def __init__(self, window: Window) -> None:
        archive = zips.read(window, strict=True)
        prefix = _prefix(archive)
        if f"{prefix}data.pkl" not in archive.members:
            raise Damage(f"{window.name} is no file of torch, or data.pkl is missing in it", complete=False)
        self._content = _Content(archive, prefix, Inside(), None)
        if f"{prefix}constants.pkl" in archive.members:
            self._content.inside.form = "torch script"
        self._content.structure()
        self.known = self._content.walked
        self.tree = self._content.inside.tree
        self.big = self._content.big

    def bytes_of(self, storage: Storage) -> Window:
        """Return where the bytes of a storage lie; Damage if it is none of this archive's."""
        member = self._content.member(storage.key)
        if member is None or member.method != zips.STORED:
            raise Damage(f"{self._content.name}: there is no member data/{storage.key[:80]}", complete=False)
        return self._content.archive.data(member)


def _other_form(window: Window, begin: bytes, inside: Inside) -> None:
    if begin.startswith(LEGACY):
        inside.form = "torch legacy"
        inside.notes.append(f"{window.name} has the form of torch before 1.6, which holds no checksums; it is not read")
        return
    if begin[257:262] == b"ustar":
        if _TAR.intersection(_tar_names(window)):
            inside.form = "torch tar"
            inside.notes.append(f"{window.name} has the form of torch before 0.1.10, a tar archive; it is not read")
            return
        inside.maker = "unknown"
        raise Damage(f"{window.name} is a tar archive of something else, no file of torch.save", intact=None)
    inside.maker = "unknown"
    if not window.size:
        raise Damage(f"{window.name} is empty", complete=False)
    if not begin.strip(b"\0"):
        raise Damage(f"{window.name} begins with zeros: it was never written, or lost in a crash", complete=False)
    raise Damage(f"{window.name} is no file of torch.save", intact=None)


def _tar_names(window: Window) -> list[str]:
    """The names of the first members of a tar archive; headers of their attributes come before them."""
    names: list[str] = []
    at = 0
    while len(names) < 8:
        head = window.read(at, 512)
        digits = head[124:136].strip(b"\0 ")
        if head[257:262] != b"ustar" or not digits or digits.strip(b"01234567"):
            break
        names.append(head[:100].rstrip(b"\0").decode("latin-1").removeprefix("./"))
        at += 512 + -(-int(digits, 8) // 512) * 512
    return names


def _prefix(archive: zips.Archive) -> str:
    """The folder that all members lie in: torch takes the file's name for it."""
    first = next(iter(archive.members), "")
    prefix = first.partition("/")[0] + "/"
    if not all(name.startswith(prefix) for name in archive.members):
        raise Damage(f"{archive.window.name} is no file of torch: its members lie in several folders", intact=None)
    return prefix


class _Content:
    """One archive of torch: what lies in it, and whether it is as it should be."""

    def __init__(self, archive: zips.Archive, prefix: str, inside: Inside, top: Place | None) -> None:
        self.top = top or Place()
        self.archive = archive
        self.prefix = prefix
        self.inside = inside
        self.name = archive.window.name
        self.storages: dict[str, Storage] = {}
        self.watched: dict[str, list[Tensor]] = {}
        self.places: dict[int, Place] = {}
        self.big = False
        self.walked = False  # what it holds is known, and so which numbers are to be looked at

    def small(self, name: str) -> bytes:
        member = self.archive.members.get(self.prefix + name)
        return b"" if member is None else self.archive.small(member, _SMALL)

    def structure(self) -> None:
        """Read the small members and data.pkl, and find what belongs to it."""
        for name in _ABOUT:
            self.small(name)
        order = self.small("byteorder")
        if order not in (b"", b"little", b"big"):
            raise Damage(f"{self.name}: the member byteorder says nothing that is known")
        self.big = order == b"big"
        main = self.archive.members[f"{self.prefix}data.pkl"]
        if main.size > opcodes.LARGEST:
            self.inside.notes.append(f"{self.name}: data.pkl has {main.size:,} bytes and was not read")
            return
        try:
            pickled = opcodes.read(self.archive.small(main, opcodes.LARGEST))
        except TooLarge as error:
            self.inside.notes.append(f"{self.name}: data.pkl was not read: {error}")
            return
        except Unreadable as error:
            raise Damage(f"{self.name}: data.pkl cannot be read: {error}", intact=None) from None
        if pickled.size != main.size:
            raise Damage(f"{self.name}: data.pkl goes on after its end", intact=None)
        self.inside.tree, self.inside.globals = pickled.value, pickled.globals
        self.inside.keys = top_keys(pickled.value)
        if self.inside.form == "torch script":
            self.inside.complete = True
            return
        self.walked = True
        try:
            self._walk(pickled.value)
        except Unreadable as error:
            raise Damage(f"{self.name}: data.pkl cannot be read: {error}", intact=None) from None
        missing = [key for key in self.storages if self.member(key) is None]
        if missing:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise Damage(f"{self.name}: the member data/{missing[0][:80]}{more} is missing", complete=False)
        self._check_sizes()
        self.inside.complete = True

    def member(self, key: str) -> zips.Member | None:
        """The member that holds a storage."""
        return self.archive.members.get(f"{self.prefix}data/{key}")

    def _walk(self, root: Any) -> None:
        counts = Counts(self._scalar)
        arrays = opcodes.LARGEST
        for place, value in walk(root, self.top):
            if isinstance(value, Tensor):
                self._tensor(place, value)
            elif isinstance(value, Storage):
                self._storage(value)
            elif isinstance(value, Array):
                self.inside.tensors += 1
                arrays -= value.size  # the bytes of one may be those of many more
                if arrays < 0 and self.walked:
                    self.inside.notes.append(f"{self.name}: not all arrays of numpy in data.pkl were looked at")
                    self.walked = False
                if self.walked and place.watches(value.shape) and not finite_array(value, mask=place.mask()):
                    self._not_finite(place)
            elif place.key == "lr" and isinstance(value, float) and not math.isfinite(value):
                self._not_finite(place)
            counts.take(place, value)
            if place is self.top and self.inside.single is None:
                self.inside.single = self._single(value)
        self.inside.step, self.inside.values = counts.step, counts.values

    def _single(self, value: Any) -> int | float | bool | None:
        if isinstance(value, Tensor):
            return self._scalar(value) if value.numel == 1 else None
        return value if isinstance(value, (int, float)) else None

    def _storage(self, storage: Storage) -> Storage:
        known = self.storages.setdefault(storage.key, storage)
        if (known.dtype, known.numel) != (storage.dtype, storage.numel):
            raise Damage(f"{self.name}: data.pkl says two things of data/{storage.key}", intact=None)
        return known

    def _tensor(self, place: Place, tensor: Tensor) -> None:
        tensor.storage = self._storage(tensor.storage)
        self.inside.tensors += 1
        if len(self.inside.shapes) < 2:
            self.inside.shapes.append((tensor.dtype, tensor.shape))
        size, known = tensor.storage.size, SIZES.get(tensor.dtype or "")
        if size is not None and known is not None and tensor.reach * known > size:
            raise Damage(
                f"{self.name}: {place.words()} reaches beyond its storage data/{tensor.storage.key}", intact=None
            )
        if tensor.dtype is not None and place.watches(tensor.shape):
            self.watched.setdefault(tensor.storage.key, []).append(tensor)
            self.places[id(tensor)] = place

    def _check_sizes(self) -> None:
        for key, storage in self.storages.items():
            member = self.member(key)
            if member is not None and (member.method != zips.STORED or storage.size not in (None, member.size)):
                raise Damage(f"{self.name}: data/{key} has {member.size:,} bytes instead of {storage.size or 0:,}",
                             complete=False)  # fmt: skip
        spare = sum(name.startswith(f"{self.prefix}data/") for name in self.archive.members) - len(self.storages)
        if spare:
            self.inside.notes.append(f"{self.name} holds {spare:,} members that nothing refers to")

    def _scalar(self, tensor: Tensor) -> int | float | bool | None:
        member = self.member(tensor.storage.key)
        size = SIZES.get(tensor.dtype or "")
        if member is None or size is None or member.method != zips.STORED:
            return None
        data = self.archive.data(member).read(tensor.offset * size, size)
        return number(tensor.dtype, data, big=self.big)

    def _not_finite(self, place: Place) -> None:
        self.inside.finite = False
        self.inside.problem = self.inside.problem or f"{self.name}: {place.words()} holds NaN or infinity"

    def content(self, budget: Budget) -> None:
        """Read every byte, if the budget allows it."""
        size = max(self.archive.window.size, sum(member.size for member in self.archive.members.values()))
        if not budget.spend(size):
            self.inside.notes.append(f"the content of {self.name} was not looked at: it has {size:,} bytes")
            return
        for name, member in self.archive.members.items():
            key = name.removeprefix(f"{self.prefix}data/")
            self._member(member, self.watched.get(key, []) if key != name else [])
        if self.archive.unchecked:
            self.inside.notes.append(f"{self.name} was saved without checksums: whether it is intact cannot be told")
        else:
            self.inside.intact = True
        if self.inside.finite is None and self.walked:
            self.inside.finite = True

    def _member(self, member: zips.Member, tensors: list[Tensor]) -> None:
        dtype = tensors[0].dtype if tensors else None
        suspect = False
        for piece in self.archive.content(member):
            if dtype is not None and not suspect and not finite_piece(dtype, piece, big=self.big):
                suspect = True  # but its bytes may lie outside of every tensor, or be a mask
        if not suspect and all(one.dtype == dtype for one in tensors):
            return
        left = 4 * member.size + _MOST_AGAIN
        for tensor in tensors:
            left -= cost(tensor)
            if left < 0:  # thousands of views of one storage
                self.inside.notes.append(f"{self.name}: not all views of {member.name} were looked at")
                self.walked = False
                return
            place = self.places[id(tensor)]
            if not finite_tensor(self.archive.data(member), tensor, mask=place.mask(), big=self.big):
                self._not_finite(place)
                return
