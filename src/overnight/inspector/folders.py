"""What lies in one folder, as names, sizes and times: the ground on which every maker's folder is judged.

Links are not followed, but those to a file count as that file. Nothing is opened here but small JSON files, and those
are read to a limit. No maker is known here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overnight.checkpoint import publish
from overnight.inspector.findings import Damage
from overnight.inspector.source import why

MOST_ENTRIES = 200_000
"""Names that are counted at most below one folder; a zarr of a large model has some ten thousand."""
DEEPEST = 8
LARGEST_JSON = 64 << 20
"""Bytes of a JSON file that are read at most: a trainer_state.json of a long run has some megabytes."""
MOST_VALUES = 1_000_000
"""Dicts and lists in it: a small file can become much memory."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """One folder: ``files`` with their sizes in bytes and ``folders``, both by name and of the first level only.

    ``size_bytes`` of all regular files below it, ``saved_at`` the time of the last change of one of them (seconds since
    the epoch). ``dangling`` are links to what is not there, ``strange`` what is neither file, folder nor link.
    ``unreadable`` says why the folder could not be listed.
    """

    path: Path
    files: Mapping[str, int] = field(default_factory=dict)
    folders: frozenset[str] = frozenset()
    dangling: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()
    size_bytes: int = 0
    saved_at: float | None = None
    unreadable: str | None = None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def leftovers(self) -> list[str]:
        """Files that a killed save has left under a temporary name."""
        return sorted(name for name in self.files if is_leftover(name))


def is_leftover(name: str) -> bool:
    """Say whether a name is one that only a save in progress has: ours, safetensors', Lightning's or orbax's."""
    ours = publish.TEMPORARY.fullmatch(name) or publish.TRASH.fullmatch(name)
    return bool(ours) or name.startswith(".tmp") or name.endswith(".tmp") or ".orbax-checkpoint-tmp" in name


class _Sum:
    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        self.saved_at: float | None = None

    def file(self, found: os.stat_result) -> None:
        self.size += found.st_size
        if self.saved_at is None or found.st_mtime > self.saved_at:
            self.saved_at = found.st_mtime


def listed(path: Path) -> Folder:
    """Return what lies in a folder; one that cannot be listed says so in ``unreadable``."""
    files: dict[str, int] = {}
    folders, dangling, strange, total = set(), [], [], _Sum()
    try:
        entries = sorted(os.scandir(path), key=lambda one: one.name)
    except OSError as error:
        return Folder(path=path, unreadable=why(error))
    for entry in entries[:MOST_ENTRIES]:
        found = _stat(entry)
        if found is None:
            dangling.append(entry.name)
        elif stat.S_ISREG(found.st_mode):
            files[entry.name] = found.st_size
            total.file(found)
        elif stat.S_ISDIR(found.st_mode):
            folders.add(entry.name)
            if not entry.is_symlink():
                _count(Path(entry.path), total, 1)
        else:
            strange.append(entry.name)
    return Folder(
        path=path,
        files=files,
        folders=frozenset(folders),
        dangling=tuple(dangling),
        strange=tuple(strange),
        size_bytes=total.size,
        saved_at=total.saved_at,
    )


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # a link to nowhere or to itself, or removed in this moment
        return None


def _count(path: Path, total: _Sum, depth: int) -> None:
    """Add the regular files below a folder."""
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        total.count += 1
        if total.count > MOST_ENTRIES:
            return
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            total.file(found)
        elif stat.S_ISDIR(found.st_mode) and depth < DEEPEST:
            _count(Path(entry.path), total, depth + 1)


def read_small(path: Path, largest: int) -> bytes:
    """Return all bytes of a regular file; Damage if it is none, cannot be read or is larger than ``largest``."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Damage(f"{path.name} is no file", intact=None)
        with path.open("rb") as stream:
            data = stream.read(largest + 1)
    except OSError as error:
        raise Damage(f"{path.name} {why(error)}", intact=None) from None
    if len(data) > largest:
        raise Damage(f"{path.name} is larger than {largest >> 20} MB", intact=None)
    return data


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; Damage, with a clause that names the file, if there is none."""
    data = read_small(path, LARGEST_JSON)
    if data.count(b"{") + data.count(b"[") > MOST_VALUES:
        raise Damage(f"{path.name} has more in it than is read", intact=None)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        cut = not data.rstrip(b"\0").rstrip().endswith(b"}")
        said = "is empty" if not data.strip(b"\0 \n") else "is cut off" if cut else "is no JSON"
        raise Damage(f"{path.name} {said}", complete=False if cut else None) from None
    if not isinstance(value, dict):
        raise Damage(f"{path.name} is no JSON object")
    return value


def whole_number(value: object) -> int | None:
    """Return a step as found in somebody's JSON or pickle: a whole number from 0 on, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value < 2**63 or int(value) != value:  # NaN is not below anything
        return None
    return int(value)
