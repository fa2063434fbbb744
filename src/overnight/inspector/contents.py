"""Everything that lies in a checkpoint of any maker, by dotted name: what it is, and a digest of its bytes.

A file or a folder; what no reader knows is one value, the whole file. Nothing is judged here, and what belongs to a
checkpoint in the sense of its maker is not asked: in a folder all counts, but what a killed save has left over and
what only repeats the rest. Memory holds the structure of one file and a piece of its bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from overnight.checkpoint import lock as locks
from overnight.checkpoint import manifest as manifests
from overnight.inspector import archive, boundedjson, dcp, digesting, naming, opcodes, tensors, torchzip, zips
from overnight.inspector.digesting import Digester
from overnight.inspector.findings import UNFORESEEN, Damage, beyond
from overnight.inspector.flattening import below, named
from overnight.inspector.folders import is_leftover
from overnight.inspector.objects import Array, Tensor
from overnight.inspector.source import Source, Window
from overnight.inspector.symbols import Unreadable

MOST_FILES = 10_000
DEEPEST = 8  # folders in folders
LARGEST_TREE = 4 << 20
"""Bytes of a JSON file that are taken apart; of a larger one all is one value."""
_REPEATS = (".index.json",)  # say again which file holds what
_SHARD = re.compile(r"[-_.]\d{5}-of-\d{5}$")
_OWN_STATE = "train_state"

Digest = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value. ``plain`` is it itself where it is a number or words, else None; ``digest`` may read the file.

    ``tensor``: it is one, or an array; ``dtype`` and ``shape`` are then its own where they are known. A digest can be
    asked for until the next leaf is.
    """

    name: str
    plain: int | float | bool | str | None
    tensor: bool
    digest: Digest
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


def leaves(path: Path) -> Iterator[Leaf]:
    """Yield all that lies in a checkpoint. Damage if it cannot be read, or changes while it is.

    Names begin with the file's name without its end where it lies in a folder; names may come twice.
    """
    try:
        if path.is_dir():
            yield from _folder(path)
            return
        yield from _file(path, "")
        beside = path.with_name(naming.stem(path.name) + ".json")  # scripts write their counters beside the tensors
        if beside != path and beside.is_file():
            yield from _file(beside, "")
    except Unreadable as error:
        raise Damage(f"{path.name} cannot be read: {error}", intact=None) from None
    except UNFORESEEN as error:
        raise beyond(path.name, error) from None


def _folder(path: Path) -> Iterator[Leaf]:
    counted = 0
    fronts: dict[str, str] = {}
    for where, folder_names, file_names in os.walk(path, onerror=_unlisted):
        folder = Path(where)
        inside = folder.relative_to(path).parts
        listed = dcp.METADATA in file_names
        folder_names[:] = sorted(name for name in folder_names if not is_leftover(name) and len(inside) < DEEPEST)
        if listed:
            yield from _shards(folder, ".".join(inside))
        for name in sorted(file_names):
            if _passed_over(name) or (listed and (name == dcp.METADATA or name.endswith(".distcp"))):
                continue
            counted += 1
            if counted > MOST_FILES:
                raise Damage(f"{path.name} has more than {MOST_FILES:,} files", intact=None)
            front = ".".join((*inside, *filter(None, (_front(name),))))
            if fronts.setdefault(front, _SHARD.sub("", naming.stem(name))) != _SHARD.sub("", naming.stem(name)):
                front = below(".".join(inside), name)
            yield from _file(folder / name, front)


def _unlisted(error: OSError) -> None:
    raise error


def _passed_over(name: str) -> bool:
    return name in (manifests.NAME, locks.NAME) or is_leftover(name) or name.endswith(_REPEATS)


def _front(name: str) -> str:
    """What the names of a file's values begin with in a folder."""
    front = _SHARD.sub("", naming.stem(name).removesuffix(".json"))
    return "" if front == _OWN_STATE else front


def _file(path: Path, front: str) -> Iterator[Leaf]:
    with Source(path) as source:
        window = source.whole()
        yield from _or_whole(_known(window, front), below(front, path.name), window)
        source.unchanged()


def _or_whole(found: Iterator[Leaf], name: str, window: Window) -> Iterator[Leaf]:
    """The values of a window, and all of it as one where it is in no form that is known here, or not whole."""
    try:
        yield from found
    except (Damage, Unreadable, *UNFORESEEN):
        yield Leaf(name, None, tensor=False, digest=partial(digesting.of_window, window))


def _known(window: Window, front: str) -> Iterator[Leaf]:
    """The values of a file by its form; Damage or Unreadable if it has none that is known, or is not whole."""
    name = window.name
    if name.endswith(".safetensors"):
        yield from _safetensors(window, front)
    elif name.endswith((".npz", ".npy")):
        yield from _numpy(window, front)
    elif name.endswith(".json"):
        if window.size > LARGEST_TREE:
            raise Damage(f"{name} is not taken apart", intact=None)
        yield from _tree(boundedjson.loads(window.read(0, window.size)), front, name, Digester())
    elif zips.is_zip(window):
        yield from _torch(window, front)
    elif window.read(0, 1) == b"\x80" and window.size <= opcodes.LARGEST:
        pickled = opcodes.read(window.read(0, window.size))
        if pickled.size != window.size:
            raise Damage(f"{name} goes on after its end", intact=None)
        yield from _tree(pickled.value, front, name, Digester())
    else:
        raise Damage(f"{name} is in no form that is known here", intact=None)


def _tree(tree: Any, front: str, where: str, digester: Digester) -> Iterator[Leaf]:
    for name, value in named(tree, front, where):
        yield _leaf(name or where, value, digester)


def _leaf(name: str, value: Any, digester: Digester) -> Leaf:
    plain = value if type(value) in (bool, int, float, str) else None
    digest = partial(digester.of, value)
    if isinstance(value, (Tensor, Array)):
        return Leaf(name, plain, tensor=True, digest=digest, dtype=value.dtype, shape=value.shape)
    return Leaf(name, plain, tensor=False, digest=digest)


def _torch(window: Window, front: str) -> Iterator[Leaf]:
    opened = torchzip.Opened(window)
    if not opened.known:
        raise Damage(f"{window.name} is not taken apart", intact=None)
    digester = Digester(opened.bytes_of, size=window.size, big=opened.big)
    yield from _tree(opened.tree, front, window.name, digester)


def _safetensors(window: Window, front: str) -> Iterator[Leaf]:
    found, metadata = tensors.opened(window)
    for name, (dtype, shape, data) in found.items():
        yield Leaf(below(front, name), None, tensor=True, digest=partial(digesting.of_numbers, dtype, shape, data))
    digester = Digester()
    for name, value in metadata.items():
        yield _leaf(below(front, name), value, digester)


def _numpy(window: Window, front: str) -> Iterator[Leaf]:
    if window.name.endswith(".npy"):
        yield Leaf(front or window.name, None, tensor=True, digest=partial(digesting.of_window, window))
        return
    for name, content in archive.opened(window):
        yield Leaf(below(front, name), None, tensor=True, digest=partial(_read, content))


def _read(content: Callable[[], Iterator[memoryview]]) -> bytes:
    return digesting.of_pieces(content())


def _shards(folder: Path, front: str) -> Iterator[Leaf]:
    """The values of a folder of torch.distributed.checkpoint, in the order of its files and their bytes."""
    for name, window, changed in dcp.windows(folder):
        place = below(front, name or None)
        found = _safetensors(window, place) if not name else iter(()) if changed else _torch(window, place)
        yield from _or_whole(found, place or window.name, window)
        if changed and name:
            yield Leaf(place, None, tensor=False, digest=partial(digesting.of_window, window))
