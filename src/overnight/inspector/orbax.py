"""Folders of orbax (JAX): finalized step folders, their metadata, and the OCDBT databases in which the arrays lie.

Orbax writes into a folder with ``.orbax-checkpoint-tmp`` in its name and renames it when all is there; such a folder is
no checkpoint. The arrays are compressed and carry no sums of their own, so ``intact`` is never True here; manifests and
the nodes of the databases do carry sums, which are checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from overnight.inspector.findings import Budget, Damage, Found
from overnight.inspector.folders import Folder, listed, read_object, read_small
from overnight.inspector.joining import joined

ROOT, TREE, MANIFEST, DATA = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "d"
PROCESS = re.compile(r"ocdbt\.process_\d+")
NAME = re.compile(r"(?:[^\d]*[_-])?(\d{1,18})")
_TREE = r"(?:_METADATA|_sharding|_strings\.json|metadata|manifest\.ocdbt|d/[0-9a-f]{32}|array_metadatas/process_\d+)"
BELONGS = re.compile(
    rf"_CHECKPOINT_METADATA|commit_success\.txt|descriptor/[^/]+|(?:[^/]+/)?(?:ocdbt\.process_\d+/)?{_TREE}"
    r"|(?:[^/]+/){0,2}(?:\.zarray|zarr\.json|[\d.]+|c(?:/\d+)*)"
)
"""All that orbax puts into a folder, as paths below it."""
MAGIC_MANIFEST, MAGIC_NODE = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
LARGEST_MANIFEST = 1 << 20
LARGEST_NODE = 1 << 20
"""Bytes of a node whose sum is computed at most: 0.2 s; nodes have some hundred kilobytes."""
ZERO_TAIL = 4096


def claims(folder: Folder) -> bool:
    """Say whether a folder is a finalized checkpoint of orbax: a step with its items, or one item by itself."""
    return ROOT in folder.files or (TREE in folder.files and (MANIFEST in folder.files or DATA in folder.folders))


def look(folder: Folder, budget: Budget) -> Found:
    """Return what a finalized folder holds; its step is the number that orbax gave the folder, its only record."""
    missing: list[str] = []
    damage: list[str] = []
    about: dict[str, Any] = {}
    if ROOT in folder.files:
        about = _object(folder.path / ROOT, missing, damage)
        if about and about.get("init_timestamp_nsecs") and not about.get("commit_timestamp_nsecs"):
            missing.append(f"{ROOT} says that the save was not committed")
    items = about.get("item_handlers")
    names = [name for name in items if isinstance(name, str) and "/" not in name] if isinstance(items, dict) else []
    missing += [f"{name} missing" for name in names if name not in folder.folders]
    inside = [name for name in sorted(folder.folders) if name in names or (folder.path / name / TREE).is_file()]
    for item in [folder, *(listed(folder.path / name) for name in inside if name in folder.folders)]:
        _item(item, "" if item is folder else f"{item.name}/", budget, missing, damage)
    if not names and not _has_tree(folder) and not inside:
        missing.append(f"{TREE} missing")
    found = joined(
        folder, "orbax", [], step=_step(folder.name), missing=missing, damage=damage,
        notes=[] if missing or damage else ["the arrays of orbax carry no sums: flipped bits in them cannot be seen"],
    )  # fmt: skip
    return found if about.get("commit_timestamp_nsecs") is None else _committed(found, about["commit_timestamp_nsecs"])


def _committed(found: Found, at_ns: object) -> Found:
    from dataclasses import replace

    whole = isinstance(at_ns, int) and not isinstance(at_ns, bool) and 0 < at_ns < 1 << 63
    return replace(found, saved_at=at_ns / 1e9) if whole and isinstance(at_ns, int) else found


def _step(name: str) -> int | None:
    parts = NAME.fullmatch(name)
    return int(parts[1]) if parts else None


def _has_tree(folder: Folder) -> bool:
    return TREE in folder.files or MANIFEST in folder.files


def _object(path: Path, missing: list[str], damage: list[str]) -> dict[str, Any]:
    try:
        return read_object(path)
    except Damage as found:
        (missing if found.complete is False else damage).append(found.clause)
        return {}


def _item(item: Folder, prefix: str, budget: Budget, missing: list[str], damage: list[str]) -> None:
    """Check one tree of arrays: its metadata, and the database or the files of its arrays."""
    if item.unreadable is not None:
        damage.append(f"{prefix.rstrip('/')} {item.unreadable}")
        return
    if not _has_tree(item):
        return  # JSON, proto or a random key: files of their own, which nothing says anything about
    lacking: list[str] = []
    wrong: list[str] = []
    tree = _object(item.path / TREE, lacking, wrong) if TREE in item.files else {}
    if TREE not in item.files:
        lacking.append(f"{TREE} missing")
    if tree.get("use_ocdbt", True):
        _database(item, "", budget, lacking, wrong)
        for name in sorted(item.folders):
            if PROCESS.fullmatch(name):
                _database(listed(item.path / name), f"{name}/", budget, lacking, wrong)
    else:
        lacking += [f"{name} missing" for name in _arrays(tree) if not _is_array(item, name)]
    missing += [prefix + one for one in lacking]
    damage += [prefix + one for one in wrong]


def _arrays(tree: dict[str, Any]) -> Iterable[str]:
    """Yield the names under which the arrays of a tree lie, where each has a folder of its own."""
    known = tree.get("tree_metadata")
    for key in known if isinstance(known, dict) else ():
        try:
            path = ast.literal_eval(key)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(path, tuple) and path and all(isinstance(one, str) for one in path):
            yield ".".join(path)


def _is_array(item: Folder, name: str) -> bool:
    if "/" in name or name not in item.folders:
        return False
    return any((item.path / name / one).is_file() for one in (".zarray", "zarr.json"))


def _database(database: Folder, prefix: str, budget: Budget, missing: list[str], damage: list[str]) -> None:
    if MANIFEST not in database.files:
        missing.append(f"{prefix}{MANIFEST} missing")
        return
    try:
        data = read_small(database.path / MANIFEST, LARGEST_MANIFEST)
    except Damage as found:
        damage.append(prefix + found.clause)
        return
    if (wrong := _wrong(data, MAGIC_MANIFEST)) is not None:
        (missing if wrong == "is cut off" else damage).append(f"{prefix}{MANIFEST} {wrong}")
        return
    inside = listed(database.path / DATA) if DATA in database.folders else None
    if inside is None or not inside.files:
        missing.append(f"{prefix}{DATA} missing" if inside is None else f"{prefix}{DATA} is empty")
        return
    for name, size in inside.files.items():
        if (said := _data_file(inside.path / name, size, budget)) is not None:
            (missing if said == "is empty" else damage).append(f"{prefix}{DATA}/{name} {said}")


def _wrong(data: bytes, magic: bytes) -> str | None:
    """Return what is wrong with a record of OCDBT (magic, length, body, CRC-32C); None if nothing is."""
    if len(data) < 17:
        return "is cut off"
    if data[:4] != magic:
        return "is not what its name says"
    size = int.from_bytes(data[4:12], "little")
    if size != len(data):
        return "is cut off" if size > len(data) else "is longer than it says"
    return None if crc32c(data[:-4]) == int.from_bytes(data[-4:], "little") else "is damaged: its CRC differs"


def _data_file(path: Path, size: int, budget: Budget) -> str | None:
    """Return what is wrong with a file of values and nodes, as far as it can be seen: nodes come last."""
    if size == 0:
        return "is empty"
    length = min(size, LARGEST_NODE)
    if not budget.spend(length):
        length = min(size, ZERO_TAIL)  # its end is structure
    try:
        with path.open("rb") as stream:
            stream.seek(size - length)
            end = stream.read(length)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not end[-ZERO_TAIL:].strip(b"\0"):
        return "ends in zeros"
    return _last_node(end)


def _last_node(end: bytes) -> str | None:
    """Return what is wrong with the node that ends a file; of values without a node nothing can be said."""
    at = end.rfind(MAGIC_NODE)
    while at >= 0:
        claimed = int.from_bytes(end[at + 4 : at + 12], "little")
        if claimed == len(end) - at:
            return _wrong(end[at:], MAGIC_NODE)
        if len(end) - at < claimed <= LARGEST_NODE and len(end) - at >= 12:
            return "is cut off"  # compressed bytes that look like this by chance: one in 10^13
        at = end.rfind(MAGIC_NODE, 0, at)
    return None


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes; 5 MB/s, so for small records only."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
