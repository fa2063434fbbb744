"""Folders of torch.distributed.checkpoint: what ``.metadata`` names, and whether the shards hold exactly that.

``.metadata`` is a pickle and is read symbolically; each range that it names in a ``.distcp`` file is an archive of
torch.save of its own, with CRCs. A folder that was saved into twice may hold the list of one save and the shards of
another: sizes, archives and shapes tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from overnight.inspector import opcodes, tensors, torchzip
from overnight.inspector.counts import Counts
from overnight.inspector.findings import UNFORESEEN, Budget, Damage, Found, beyond
from overnight.inspector.objects import DTYPES, LARGEST_COUNT, MOST_DIMENSIONS, Tensor, walk
from overnight.inspector.places import Place
from overnight.inspector.source import Source, Window
from overnight.inspector.symbols import Call, Symbol, TooLarge, Unreadable
from overnight.inspector.torchzip import Inside

METADATA = ".metadata"
MOST_LOOKED = 1_000  # ranges whose structure is looked at where the budget does not reach for the content
LONGEST = 10_000  # characters of a name
_KINDS = ("TensorStorageMetadata", "BytesStorageMetadata")
_STEPS = re.compile(r"(.*\.)?(global_)?(train_)?(step|iteration|iter|train_state|progress|trainer)s?(_\w+)?")


@dataclass(frozen=True, kw_only=True)
class _Range:
    """Bytes of a file that hold one tensor or object: its name, and where the list has its shape, the shape."""

    name: str
    parts: tuple[Any, ...]
    file: str
    at: int
    size: int
    shape: tuple[int, ...] | None
    dtype: str | None
    changed: bool  # its bytes went through something (compression) on the way


def look(path: Path, budget: Budget) -> Found:
    """Look at a folder of torch.distributed.checkpoint. Structure always; content as far as the budget allows."""
    inside = Inside(form="dcp", maker="dcp")
    sizes, saved_at = _files(path)
    try:
        _inspect(path, sizes, budget, inside)
    except Damage as damage:
        inside.damaged(damage)
    except UNFORESEEN as error:
        inside.damaged(beyond(path.name, error))
    return Found(
        path=str(path), maker="dcp", form="dcp", step=inside.step, size_bytes=sum(sizes.values()), saved_at=saved_at,
        complete=inside.complete, intact=inside.intact, finite=inside.finite, problem=inside.problem,
        notes=tuple(inside.notes), keys=inside.keys, values=inside.values, tensors=inside.tensors,
        globals=inside.globals, tree=inside.tree,
    )  # fmt: skip


def windows(path: Path) -> Iterator[tuple[str, Window, bool]]:
    """Yield the name and the bytes of each piece of a tensor or object that a folder holds.

    The bytes are an archive of torch of their own unless the last value is True: then they are in no form that is known
    here. They are good until the next is asked for. Damage, Unreadable: the list is not whole, or a file is not.
    """
    with Source(path / METADATA) as source:
        ranges = _read(source, Inside())
        source.unchanged()
    for file, held in _by_file(ranges).items():
        with Source(path / file) as source:
            if file.endswith(".safetensors"):
                yield "", source.whole(), True
                continue
            for one in held:
                yield (
                    one.name,
                    source.whole().part(one.at, one.size, f"{one.name[:80]} in {path.name}/{file}"),
                    one.changed,
                )
            source.unchanged()


def _files(path: Path) -> tuple[dict[str, int], float | None]:
    """The files of the folder with their sizes, and when the list of them was written, or else the last of them."""
    sizes: dict[str, int] = {}
    times: dict[str, float] = {}
    try:
        with os.scandir(path) as found:
            for entry in found:
                if entry.is_file():
                    facts = entry.stat()
                    sizes[entry.name], times[entry.name] = facts.st_size, facts.st_mtime
    except OSError:  # a folder or a file that goes away: what is missing is named below
        pass
    return sizes, times.get(METADATA, max(times.values(), default=None))


def _inspect(path: Path, sizes: Mapping[str, int], budget: Budget, inside: Inside) -> None:
    if METADATA not in sizes and not os.path.lexists(path / METADATA):
        if any(re.fullmatch(r"__\d+\.metadata", name) for name in sizes):
            inside.notes.append(f"{path.name} has a list of its own for each rank; they are not read")
            return
        raise Damage(f"{path.name}/{METADATA} is missing: the save was broken off", complete=False)
    with Source(path / METADATA) as source:
        try:
            ranges = _read(source, inside)
        except TooLarge as error:
            inside.notes.append(f"{path.name}/{METADATA} was not read: {error}")
            return
        except Unreadable as error:
            source.unchanged()
            raise Damage(f"{path.name}/{METADATA} is damaged: {error}", complete=False) from None
        source.unchanged()
    named = {one.file for one in ranges}
    missing = sorted(named - sizes.keys())
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise Damage(f"{path.name}/{missing[0]}{more} is missing", complete=False)
    _check_places(path, ranges, sizes)
    inside.complete = True
    others = sorted(name for name in sizes.keys() - named if name.endswith(".distcp"))
    if others:
        more = f" and {len(others) - 1:,} more files" if len(others) > 1 else ""
        inside.notes.append(f"{path.name}/{METADATA} does not name {others[0]}{more}: of another save")
    _shards(path, ranges, budget, inside)
    if f"{METADATA}.tmp" in sizes:
        raise Damage(f"{path.name}/{METADATA}.tmp is there: a later save into this folder was broken off",
                     complete=False, intact=inside.intact)  # fmt: skip


def _read(source: Source, inside: Inside) -> list[_Range]:
    """What the list names, in the order of files and bytes."""
    window = source.whole()
    if window.size > opcodes.LARGEST:
        raise TooLarge(f"it has {window.size:,} bytes")
    pickled = opcodes.read(window.read(0, window.size))
    state = _state(pickled.value)
    if pickled.size != window.size or state is None or type(state.get("state_dict_metadata")) is not dict:
        raise Unreadable("it lists no state")
    inside.globals = pickled.globals
    entries: dict[Any, Any] = state["state_dict_metadata"]
    inside.keys = tuple(one for one in list(entries)[:10_000] if type(one) is str)
    storage = state.get("storage_data")
    planner = state.get("planner_data")
    listing = _List(entries, planner if type(planner) is dict else {})
    found = [listing.range(index, info) for index, info in _items(storage)]
    inside.tensors = sum(one.shape is not None for one in found)
    if {one.name for one in found} != set(entries):
        raise Unreadable("what it describes is not what it places")
    return sorted(found, key=lambda one: (one.file, one.at))


def _items(storage: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if type(storage) is not dict:
        raise Unreadable("it names no files")
    for key, value in storage.items():
        index, info = _state(key), _state(value)
        if index is None or info is None:
            raise Unreadable("it names no files")
        yield index, info


def _state(value: Any) -> dict[str, Any] | None:
    """The attributes of an object; frozen dataclasses with slots keep them in the second half of a pair."""
    if not isinstance(value, Call):
        return None
    state = value.state[1] if type(value.state) is tuple and len(value.state) == 2 else value.state
    return state if type(state) is dict else None


class _List:
    """What the list says of each tensor and object, whose pieces lie at several places."""

    def __init__(self, entries: Mapping[Any, Any], planner: Mapping[Any, Any]) -> None:
        self.entries = entries
        self.planner = planner
        self._known: dict[str, tuple[dict[Any, Any] | None, str | None]] = {}
        self._chunks = 0

    def range(self, index: Mapping[str, Any], info: Mapping[str, Any]) -> _Range:
        """Return where one piece lies; Unreadable where that makes no sense."""
        name, offset = index.get("fqn"), _numbers(index.get("offset"))
        file, at, size = info.get("relative_path"), info.get("offset"), info.get("length")
        if type(name) is not str or type(file) is not str or len(name) > LONGEST or len(file) > LONGEST:
            raise Unreadable("it does not say where something lies")
        if not all(type(one) is int and 0 <= one < LARGEST_COUNT for one in (at, size)):
            raise Unreadable("it does not say where something lies")
        if PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts or "\0" in file:
            raise Unreadable("it names a place outside of the folder")
        shapes, dtype = self._entry(name)
        shape = None
        if shapes is not None:
            shape = shapes.get(offset) if offset is not None else next(iter(shapes.values()), None)
            if shape is None:
                raise Unreadable(f"it does not say which piece of {name[:80]} lies where")
        changed = bool(info.get("transform_descriptors"))
        return _Range(
            name=name, parts=self._parts(name), file=file, at=at or 0, size=size or 0, shape=shape, dtype=dtype,
            changed=changed,
        )  # fmt: skip

    def _parts(self, name: str) -> tuple[Any, ...]:
        """The keys that a name was made of."""
        parts = self.planner.get(name)
        if type(parts) is not tuple:
            return tuple(name.split(".")[:12])
        plain = len(parts) <= len(name) + 1 and all(
            (type(one) is str and len(one) <= len(name)) or (type(one) is int and 0 <= one < LARGEST_COUNT)
            for one in parts
        )
        if not plain or (len(parts) <= MOST_DIMENSIONS and ".".join(map(str, parts)) != name):
            raise Unreadable(f"it gives {name[:80]!r} two names")
        return parts

    def _entry(self, name: str) -> tuple[dict[Any, Any] | None, str | None]:
        """The shapes of a tensor's pieces by their offsets, None for what is no tensor; and its dtype, where known."""
        if name not in self._known:
            entry = self.entries.get(name)
            kind = entry.name.rpartition(".")[2] if isinstance(entry, Call) else ""
            if kind not in _KINDS:
                raise Unreadable(f"it describes {name[:80]} in a way that is not known here")
            self._known[name] = self._tensor(_state(entry) or {}) if kind == _KINDS[0] else (None, None)
        return self._known[name]

    def _tensor(self, state: Mapping[str, Any]) -> tuple[dict[Any, Any], str | None]:
        chunks = state.get("chunks")
        known = [_state(one) or {} for one in chunks] if type(chunks) is list else []
        self._chunks += len(known)  # the same list may stand in many entries
        if self._chunks > opcodes.MOST:
            raise TooLarge(f"it lists more than {opcodes.MOST:,} pieces")
        shapes = {_numbers(one.get("offsets")): _numbers(one.get("sizes")) for one in known}
        made = state.get("properties")
        first = made.state[0] if isinstance(made, Call) and type(made.state) is tuple and made.state else None
        return shapes, DTYPES.get(first.name.removeprefix("torch.")) if isinstance(first, Symbol) else None


def _numbers(value: Any) -> tuple[int, ...] | None:
    """A torch.Size, or what else is a tuple of whole numbers."""
    if isinstance(value, Call) and type(value.args) is tuple and value.args:
        value = value.args[0]
    if type(value) is not tuple or len(value) > MOST_DIMENSIONS:
        return None
    return value if all(type(one) is int and -LARGEST_COUNT < one < LARGEST_COUNT for one in value) else None


def _check_places(path: Path, ranges: list[_Range], sizes: Mapping[str, int]) -> None:
    """The ranges of a file join each other and fill it: a shard of another save has another size."""
    ends: dict[str, int] = {}
    for one in ranges:
        if one.file.endswith(".safetensors"):
            continue
        end = ends.get(one.file, 0)
        if one.at != end:
            clause = f"{one.name[:80]} does not begin in {one.file} where what is before it ends"
            raise Damage(f"{path.name}/{METADATA} is damaged: {clause}", complete=False)
        ends[one.file] = one.at + one.size
    for file, end in ends.items():
        have = sizes[file]
        if have != end:
            few = "is cut off or of another save" if have < end else "is of another save"
            raise Damage(f"{path.name}/{file} {few}: it has {have:,} bytes, and {METADATA} says {end:,}",
                         complete=False)  # fmt: skip


def _shards(path: Path, ranges: list[_Range], budget: Budget, inside: Inside) -> None:
    """Look at each range. Where the budget does not reach, at some of them, and at their structure only."""
    counts = Counts(lambda _: None)
    size = sum(one.size for one in ranges)
    full = budget.spend(size)
    if not full:
        inside.notes.append(f"the content of {path.name} was not looked at: it has {size:,} bytes")
        first = sorted(ranges, key=lambda one: _STEPS.fullmatch(one.name) is None)[:MOST_LOOKED]
        ranges = sorted(first, key=lambda one: (one.file, one.at))
    intact = finite = True
    for file, held in _by_file(ranges).items():
        if file.endswith(".safetensors"):
            found = tensors.look(path / file, Budget() if full else Budget(0))
            intact, finite = False, finite and found.finite is True
            if found.problem is not None:
                inside.finite = found.finite
                raise Damage(f"{path.name}/{found.problem}", complete=found.complete, intact=found.intact)
            continue
        with Source(path / file) as source:
            try:
                for one in held:
                    if not _look_at(source, one, counts, inside, full=full):
                        intact = finite = False
            except Damage:
                source.unchanged()
                raise
            source.unchanged()
    inside.step, inside.values = counts.step, counts.values
    if full:
        inside.intact = True if intact else None
        if inside.finite is None:
            inside.finite = True if finite else None


def _by_file(ranges: list[_Range]) -> dict[str, list[_Range]]:
    found: dict[str, list[_Range]] = {}
    for one in ranges:
        found.setdefault(one.file, []).append(one)
    return found


def _look_at(source: Source, one: _Range, counts: Counts, inside: Inside, *, full: bool) -> bool:
    """Look at one range; False if its content is of a kind that is not read."""
    if one.changed:
        return False
    place = Place()
    for part in one.parts:
        place = place.below(part)
    window = Window(source, one.at, one.size, f"{one.name[:80]} in {source.path.parent.name}/{source.name}")
    found = Inside()
    torchzip.inspect(window, Budget() if full else Budget(0), found, place)
    if found.form != "torch zip":
        return False
    if one.shape is not None and found.shapes != [(one.dtype or next(iter(found.shapes), (None,))[0], one.shape)]:
        raise Damage(f"{window.name} is not of the shape and dtype that {METADATA} says: it is of another save")
    if found.finite is False:
        inside.finite = False
        said = found.problem if one.shape is None else f"{window.name}: it holds NaN or infinity"
        inside.problem = inside.problem or said
    if len(inside.globals) < opcodes.MOST_KEPT and not set(found.globals) <= set(inside.globals):
        inside.globals = tuple(dict.fromkeys((*inside.globals, *found.globals)))
    if found.single is not None:
        counts.take(place, found.single)
        return True
    for below, value in walk(found.tree, place) if one.shape is None else ():
        if not isinstance(value, Tensor):
            counts.take(below, value)
    return True
