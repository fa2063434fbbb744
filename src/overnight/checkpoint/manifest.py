"""The list that makes a folder a checkpoint: its files with sizes and digests, the step, and where all of it came from.

It is written last, and it vouches for itself: one changed byte anywhere in it is found by its own digest.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from overnight.checkpoint.errors import DamagedError, UsageError

NAME = "MANIFEST.json"
FORMAT = 1
LARGEST, MOST = 32 << 20, 500_000
"""Bytes of a manifest that are read at most, and dicts and lists in it: one of 100,000 tensors has 5 MB."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Size in bytes and XXH3 (128 bits, hexadecimal) of one file."""

    size: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint.

    ``run`` names the run of this folder that it belongs to, ``number`` counts the folder's runs, and ``generation`` how
    often this run was taken back to an older checkpoint: (generation, step) is the order of a run's checkpoints.
    ``ancestors`` are pairs (generation, step): so far of older generations lie the steps that led to this one.
    ``finite``: no parameter, and nothing that an optimizer or an average keeps of them, is NaN or infinite; ``exempt``
    are paths (``part.name``) of tensors that were not finite before training began, and may stay so. ``parts`` says for
    each part handed over in which file it lies, which keys its state has, of which class it is, and what of it lies
    there in other words; ``arrays`` are the paths, by file, of what was numpy's. ``metrics`` are the last figures
    reported since the save before. ``progress`` holds epoch, seconds trained, batches a step, starts after failures.
    ``keep`` is what was to be kept (see ``jobs.Keep``), ``reason`` why it was saved: interval, stop, end, asked.
    """

    step: int
    run: str
    number: int = 1
    generation: int = 0
    ancestors: Sequence[Sequence[int]] = ()
    saved_at: str
    reason: str
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    exempt: Sequence[str] = ()
    finite: bool = True
    healthy: bool = True
    environment: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, Any] = field(default_factory=dict)
    config: Any = None

    @property
    def order(self) -> tuple[int, int]:
        """What this run's checkpoints are ordered by."""
        return self.generation, self.step

    def led_to(self, other: Manifest) -> bool:
        """Say whether ``other``, of the same run, lies on the same way; so does all of its own generation.

        What was left behind when a run was taken back to an older checkpoint has led nowhere.
        """
        return leads(self.order, other.order, other.ancestors)

    @property
    def size(self) -> int:
        """Bytes of all its files but the manifest."""
        return sum(one.size for one in self.files.values())


def leads(order: tuple[int, int], latest: tuple[int, int], ancestors: Sequence[Any]) -> bool:
    """Say the same of orders alone; ``ancestors`` are those of the latest one."""
    return order[0] == latest[0] or any(order[0] == generation and order[1] <= step for generation, step in ancestors)


def digest(data: bytes | memoryview) -> str:
    """Return XXH3 of some bytes, 128 bits in hexadecimal."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(data)


def dump(manifest: Manifest) -> bytes:
    """Return the manifest as JSON with its own digest; numbers that are not finite are the words nan, inf and -inf."""
    value = {"format": FORMAT, "maker": "overnight", **asdict(manifest)}
    value["files"] = {name: asdict(facts) for name, facts in manifest.files.items()}
    text = _canonical(_finite(value))
    return _rendered({**json.loads(text), "digest": digest(text.encode())})


def _rendered(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def plain(value: Any, path: str) -> Any:
    """Return settings as a manifest holds them: dicts, lists, numbers and words; UsageError for what has no words.

    A dataclass and a namespace are dicts of what they hold; a path, an enum, a dtype are what they are printed as.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value if value is None or type(value) in (bool, int, str) else str(value)
    if isinstance(value, float):
        return _finite(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name), f"{path}.{one.name}") for one in fields(value)}
    if isinstance(value, SimpleNamespace) or type(value).__name__ == "Namespace":
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, f"{path}.{at}") for at, one in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in value)
    text = str(value)
    if f"{id(value):x}" in text.lower():  # an address is another one in each run
        raise UsageError(f"{path} is a {type(value).__qualname__}, which says nothing of itself: give plain settings")
    return text


def parse(data: bytes) -> Manifest:
    """Return what :func:`dump` has written; DamagedError, in a few words, for anything else."""
    if data.count(b"{") + data.count(b"[") > MOST:  # a small file can become much memory
        raise DamagedError(f"{NAME} has more in it than any manifest")
    try:
        value = json.loads(data)
        same = _rendered(value) == data  # also what changes no value: 1e-05 for 1E-05, say
        claimed = value.pop("digest")
        found = digest(_canonical(value).encode())
        fmt, maker = value.pop("format"), value.pop("maker")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise DamagedError(f"{NAME} is not whole") from None
    if claimed != found or not same:
        raise DamagedError(f"{NAME} is not as it was written")
    if fmt != FORMAT or maker != "overnight":
        raise DamagedError(f"{NAME} has the format {fmt}, which this version does not know; use a newer Overnight")
    known = {one.name for one in fields(Manifest)}
    value = {key: one for key, one in value.items() if key in known}
    try:
        value["files"] = {str(name): FileFacts(**facts) for name, facts in value["files"].items()}
        made = Manifest(**value)
    except (TypeError, KeyError, AttributeError):
        raise DamagedError(f"{NAME} lacks what a manifest has") from None
    wrong = next((name for name, right in _kinds(made).items() if not right), None)
    if wrong is not None:
        raise DamagedError(f"{NAME} has something of a wrong kind as its {wrong}")
    return made


def _kinds(made: Manifest) -> dict[str, bool]:
    """Return for each field whether it holds what a manifest has there: it may have been made by anybody."""
    mappings = ("parts", "arrays", "metrics", "progress", "environment", "versions", "keep")
    return {
        **{name: _count(getattr(made, name)) for name in ("step", "number", "generation")},
        **{name: isinstance(getattr(made, name), str) for name in ("run", "saved_at", "reason")},
        **{name: isinstance(getattr(made, name), bool) for name in ("finite", "healthy")},
        **{name: isinstance(getattr(made, name), dict) for name in mappings},
        "files": all(_plain_name(name) and _count(one.size) for name, one in made.files.items()),
        "parts' files": all(isinstance(one, dict) and one.get("file") in made.files for one in made.parts.values()),
        "exempt": isinstance(made.exempt, list) and all(isinstance(one, str) for one in made.exempt),
        "ancestors": isinstance(made.ancestors, list)
        and all(isinstance(one, list) and len(one) == 2 and all(map(_count, one)) for one in made.ancestors),
    }


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _plain_name(name: str) -> bool:
    """Say whether this is a name within the checkpoint that a file system takes."""
    return name not in ("", ".", "..", NAME) and name.isprintable() and os.path.basename(name) == name


def read(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint; DamagedError if it has none, or none that can be trusted."""
    try:
        with open(folder / NAME, "rb", opener=_opened) as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise DamagedError(f"{NAME} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise DamagedError(f"{NAME} is longer than {LARGEST >> 20} MB")
    return parse(data)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """DamagedError, in a few words, if a file of the checkpoint is missing or has another size."""
    for name, facts in manifest.files.items():
        try:
            size = os.lstat(folder / name).st_size
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if size != facts.size:
            raise DamagedError(f"{name} has {size:,} bytes instead of {facts.size:,}")


def check_content(folder: Path, manifest: Manifest) -> None:
    """DamagedError if a file is not, byte for byte, what was written; reads all of it."""
    check_sizes(folder, manifest)
    for name, facts in manifest.files.items():
        try:
            found = file_digest(folder / name)
        except OSError as error:
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from None
        if found != facts.xxh3_128:
            raise DamagedError(f"{name} is not as it was written: its digest differs")


def file_digest(path: Path) -> str:
    """Return XXH3 of a file's bytes, read in pieces."""
    import xxhash

    state = xxhash.xxh3_128()
    with open(path, "rb", buffering=0, opener=_opened) as stream:
        piece = bytearray(1 << 20)
        view = memoryview(piece)
        while size := stream.readinto(piece):
            state.update(view[:size])
    return state.hexdigest()


def _opened(path: str, flags: int) -> int:
    """Open a file to be read; a pipe or a device of that name is neither waited for nor read without end."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is no file", path)
