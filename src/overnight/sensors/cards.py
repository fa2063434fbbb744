"""What a maker's library says of the GPUs at one moment, and which card is which from one look to the next.

A card keeps its number as long as the machine runs: one that falls off the bus is told as lost, and the cards behind it
do not move up. Whose a card is stands in ``belonging.py``; no call of any library may enter here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from overnight.errors import FolderError
from overnight.folder import read_json, write_json
from overnight.processes import boot_id, stat
from overnight.sensors import Gpu

UNLISTED = "the driver does not list it any more"


class Absent(Exception):  # noqa: N818 - it is no error that a machine has no GPU
    """There is no driver or library to ask; its text says what is missing, as a clause."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a card under MIG: ``units`` multiprocessors, memory in bytes; ``instance``: the GPU instance's id."""

    uuid: str | None = None
    name: str | None = None
    units: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    instance: int | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One card in one look. ``slices``: its parts under MIG. ``instances``: which part a process is on, by pid."""

    gpu: Gpu
    slices: tuple[Slice, ...] = ()
    instances: Mapping[int, int] = {}


class Maker(Protocol):
    """The library of a maker of GPUs."""

    maker: str
    driver: str | None

    def look(self) -> list[Seen]:
        """Return every card as it is now; Absent if the driver has gone away."""


class Register:
    """The cards of a machine since it was started, by uuid. With a file, the next process knows them too.

    ``path`` is written when a card is seen for the first time. It counts only for the same start of the same machine or
    container, for after the next one other cards may be there.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Gpu] = {}
        first = stat(1)
        self._life = f"{boot_id()}/{first.start_ticks if first else 0}"
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            kept = read_json(path)
            if kept is not None and kept.get("life") == self._life:
                self._known = {one.uuid: one for one in msgspec.convert(kept["cards"], list[Gpu]) if one.uuid}
        except (FolderError, msgspec.ValidationError, KeyError, OSError):
            self._known = {}  # damaged: as if it were the first look

    @property
    def empty(self) -> bool:
        """Say whether no card was ever seen here."""
        return not self._known

    def numbered(self, seen: Sequence[Seen]) -> list[Seen]:
        """Return the cards under their lasting numbers, in order; known ones that are missing are told as lost."""
        named = [self._named(one) for one in seen]
        here = {one.gpu.uuid for one in named}
        taken = {self._known[uuid].index for uuid in here if uuid in self._known}
        found = []
        for one in named:
            index = self._number(one.gpu, taken)
            taken.add(index)
            found.append(msgspec.structs.replace(one, gpu=msgspec.structs.replace(one.gpu, index=index)))
        if self._learn(found) and self._path is not None:
            self._write(self._path)
        gone = [one for uuid, one in self._known.items() if uuid not in here and one.index not in taken]
        found += [Seen(gpu=msgspec.structs.replace(one, lost=UNLISTED)) for one in gone]
        return sorted(found, key=lambda one: one.gpu.index)

    def _number(self, gpu: Gpu, taken: set[int]) -> int:
        if gpu.uuid in self._known:
            return self._known[gpu.uuid].index
        if gpu.index not in taken:
            return gpu.index
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _named(self, seen: Seen) -> Seen:
        """Return a card that says nothing of itself any more under the name it had before."""
        if seen.gpu.uuid is not None:
            return seen
        same = next((one for one in self._known.values() if one.index == seen.gpu.index), None)
        if same is None:
            return seen
        whole = {name: getattr(same, name) for name in ("uuid", "name", "bus_id", "units", "arch")}
        more = {name: value for name, value in whole.items() if getattr(seen.gpu, name) is None}
        return msgspec.structs.replace(seen, gpu=msgspec.structs.replace(seen.gpu, **more))

    def _learn(self, seen: Sequence[Seen]) -> bool:
        fresh = {one.gpu.uuid: _identity(one.gpu) for one in seen if one.gpu.uuid and one.gpu.uuid not in self._known}
        self._known.update(fresh)
        return bool(fresh)

    def _write(self, path: Path) -> None:
        try:
            write_json(path, {"life": self._life, "cards": msgspec.to_builtins(list(self._known.values()))})
        except OSError:
            return  # a full disk: only a later process does without


def _identity(gpu: Gpu) -> Gpu:
    return Gpu(index=gpu.index, name=gpu.name, uuid=gpu.uuid, bus_id=gpu.bus_id, units=gpu.units, arch=gpu.arch)
