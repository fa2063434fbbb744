"""A copy of a folder for one run of a proof: what goes into it, how large that is, and the copying and removing.

The copy shares no byte with the user's files (never a hard link); what is only read and may be huge (environments,
repositories) is a link. Nothing outside of the target is written, and the user's folder is only read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

LINKED = frozenset({".git", ".hg", ".svn", "node_modules", "site-packages"})
"""Folders that runs only read, and that may be larger than all the rest: a link stands in the place of each."""
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
"""What a Python environment has in it; a link stands in its place too, whatever its name."""
LEFT_OUT = frozenset({"__pycache__", "wandb", "mlruns"})
"""Made anew by whoever needs them; in a link to the user's nothing could be written."""
MOST_ENTRIES = 200_000
MOST_NAMED = 3
FICLONE = 0x40049409
PIECE = 1 << 24
NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
"""What a file system answers that cannot copy by itself."""

Kind = Literal["folder", "file", "symlink", "linked", "special"]


class Entry(NamedTuple):
    """One thing that goes into the copy: its path relative to the folder, what it is, and its lstat."""

    path: str
    kind: Kind
    look: os.stat_result


class Selection:
    """What of a folder goes into its copies.

    ``leave_out`` are patterns of names, or with a slash of relative paths; ``skip`` are absolute paths that are no part
    of it (the copies themselves). ``own``: asked for each folder whether it is one of Overnight's that stays behind.
    What could not be read is kept in ``unread``; what was left out as ``own`` in ``own_left_out``.
    """

    def __init__(
        self,
        folder: str,
        *,
        leave_out: Sequence[str] = (),
        skip: Sequence[str] = (),
        own: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.folder = folder
        self.leave_out = [pattern.removeprefix("./").rstrip("/") for pattern in leave_out]
        self.skip = {os.path.realpath(path) for path in skip}
        self.own = own
        self.unread: dict[str, None] = {}
        self.own_left_out: dict[str, None] = {}

    def entries(self) -> Iterator[Entry]:
        """Yield all that goes into the copy, a folder before what lies in it."""
        todo = [""]
        while todo:
            relative = todo.pop()
            try:
                with os.scandir(os.path.join(self.folder, relative)) as found:
                    names = sorted(found, key=lambda one: one.name)
            except OSError:
                self.unread[relative] = None
                continue
            below = []
            for one in names:
                path = os.path.join(relative, one.name)
                if self._unwanted(path, one.name):
                    continue
                try:
                    look = one.stat(follow_symlinks=False)
                except OSError:
                    self.unread[path] = None
                    continue
                kind = self._kind(path, one.name, look.st_mode)
                if kind is not None:
                    yield Entry(path, kind, look)
                if kind == "folder":
                    below.append(path)
            todo += reversed(below)

    def _unwanted(self, path: str, name: str) -> bool:
        if any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in self.leave_out):
            return True
        return bool(self.skip) and os.path.join(self.folder, path) in self.skip

    def _kind(self, path: str, name: str, mode: int) -> Kind | None:
        """Return what an entry is in the copy, None if it stays behind."""
        if stat.S_ISLNK(mode):
            return "symlink"
        if stat.S_ISREG(mode):
            return "file"
        if not stat.S_ISDIR(mode):
            return "special"
        if name in LEFT_OUT:
            return None
        full = os.path.join(self.folder, path)
        if name in LINKED or any(os.path.exists(os.path.join(full, mark)) for mark in ENVIRONMENT):
            return "linked"
        if self.own(path):
            self.own_left_out[path] = None
            return None
        return "folder"


def is_own(folder: str) -> bool:
    """Say whether Overnight's library keeps its checkpoints in a folder: step folders with manifests, or its lock."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return False
    if any(one.startswith("step-") and os.path.isfile(f"{folder}/{one}/MANIFEST.json") for one in names):
        return True
    if "LOCK" not in names or not os.path.isfile(f"{folder}/LOCK"):
        return False
    with contextlib.suppress(OSError, ValueError), open(f"{folder}/LOCK", "rb") as stream:
        found = json.loads(stream.read(4096))
        return isinstance(found, dict) and {"pid", "host", "run"} <= found.keys()
    return False


class Count(NamedTuple):
    """How large a copy would be: bytes on the disk, entries, its ``largest`` folders with their bytes, what is linked.

    ``whole`` is false if counting was given up at MOST_ENTRIES. ``saves`` are folders with checkpoints in them.
    """

    size: int
    entries: int
    largest: list[tuple[str, int]]
    linked: tuple[str, ...]
    whole: bool
    saves: tuple[str, ...]


def count(selection: Selection, looks_like_save: Callable[[str], bool]) -> Count:
    """Return how large a copy would be; of a file with holes only what is there counts."""
    size = entries = 0
    by_folder: dict[str, int] = {}
    linked: list[str] = []
    saves: dict[str, None] = {}
    for entry in selection.entries():
        entries += 1
        if entries > MOST_ENTRIES:
            break
        if entry.kind == "linked":
            linked.append(entry.path)
        elif entry.kind == "file":
            taken = min(entry.look.st_blocks * 512, entry.look.st_size)
            size += taken
            parts = entry.path.split("/")
            for depth in (1, 2):
                if len(parts) >= depth:
                    place = "/".join(parts[:depth])
                    by_folder[place] = by_folder.get(place, 0) + taken
            if looks_like_save(entry.path):
                saves[os.path.dirname(entry.path) or "."] = None
    return Count(size, entries, _largest(by_folder), tuple(linked), entries <= MOST_ENTRIES, tuple(saves))


def _largest(by_folder: dict[str, int]) -> list[tuple[str, int]]:
    """Return the places that most lies in, the narrower one where it holds nearly all of the wider one."""
    found: list[tuple[str, int]] = []
    tops = sorted((one for one in by_folder if "/" not in one), key=lambda one: -by_folder[one])
    for top in tops[:MOST_NAMED]:
        inner = [one for one in by_folder if one.startswith(top + "/") and by_folder[one] > 0.8 * by_folder[top]]
        place = inner[0] if inner else top
        found.append((place, by_folder[place]))
    return found


class Copied(NamedTuple):
    """What a copy has not got: files that ``vanished`` or could not be read, and special ones; and its stamps."""

    missing: tuple[str, ...]
    special: tuple[str, ...]
    stamps: dict[str, tuple[int, int]]


def copy(selection: Selection, target: str) -> Copied:
    """Copy a folder to ``target``, which must not be there. OSError if the target cannot be written (a full disk).

    What vanishes or cannot be read meanwhile is left out and named. ``stamps``: size and time of each file as copied.
    """
    os.makedirs(target, mode=0o700)
    missing: dict[str, None] = {}
    special: list[str] = []
    folders: list[tuple[str, os.stat_result]] = []
    stamps: dict[str, tuple[int, int]] = {}
    for entry in selection.entries():
        source, here = os.path.join(selection.folder, entry.path), os.path.join(target, entry.path)
        if entry.kind == "special":
            special.append(entry.path)
        elif entry.kind == "folder":
            os.mkdir(here, 0o700)
            folders.append((here, entry.look))
        elif entry.kind == "linked":
            os.symlink(source, here)
        elif entry.kind == "symlink":
            try:
                pointed = os.readlink(source)
            except OSError:
                missing[entry.path] = None
                continue
            os.symlink(link_in_copy(pointed, entry.path, selection.folder, target), here)
        elif _copy_file(source, here):
            stamps[entry.path] = (entry.look.st_size, entry.look.st_mtime_ns)
        else:
            missing[entry.path] = None
    for here, look in reversed(folders):  # at last, since making something in a folder changes its time
        os.chmod(here, stat.S_IMODE(look.st_mode) & 0o777 | 0o700)
        os.utime(here, ns=(look.st_atime_ns, look.st_mtime_ns))
    return Copied(tuple({**missing, **selection.unread}), tuple(special), stamps)


def link_in_copy(pointed: str, path: str, folder: str, target: str) -> str:
    """Return what a symbolic link at ``path`` must say in the copy to lead to the same: in the copy if it is there.

    One that leads out of the folder by ``..`` is made absolute, since the copy lies elsewhere.
    """
    here = os.path.join(folder, os.path.dirname(path))
    full = os.path.join(os.path.realpath(here), pointed)
    plain = os.path.normpath(full)
    within = plain == folder or plain.startswith(folder.rstrip("/") + "/")
    if not os.path.isabs(pointed):
        return pointed if within else full
    return os.path.normpath(os.path.join(target, os.path.relpath(plain, folder))) if within else pointed


def _copy_file(source: str, target: str) -> bool:
    """Copy one file with its mode and times; False if it is not there any more or may not be read."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        look = os.fstat(handle)
        if not stat.S_ISREG(look.st_mode):
            return False
        out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy_bytes(handle, out, look.st_size)
            os.fchmod(out, stat.S_IMODE(look.st_mode) & 0o777)
            os.utime(out, ns=(look.st_atime_ns, look.st_mtime_ns))
        finally:
            os.close(out)
    finally:
        os.close(handle)
    return True


def _copy_bytes(source: int, target: int, size: int) -> None:
    """Share the blocks where the file system can do that safely (they part at the first write), else copy them."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        os.ftruncate(target, size)
        for begin, end in _filled(source, size):
            _copy_range(source, target, begin, end)


def _filled(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are no holes."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(handle, at, os.SEEK_DATA)
            end = os.lseek(handle, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system that knows nothing of holes
                yield at, size
            return
        yield begin, min(end, size)
        at = end


def _copy_range(source: int, target: int, begin: int, end: int) -> None:
    at, by_kernel = begin, True
    while at < end:
        wanted = min(PIECE, end - at)
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, wanted, at, at)
            except OSError as error:
                if error.errno not in NO_COPY:
                    raise
                by_kernel = False
                continue
            if done == 0:  # some file systems say so of files in /proc and the like; reading tells
                by_kernel = False
                continue
            at += done
            continue
        piece = os.pread(source, wanted, at)
        if not piece:
            return  # it has become shorter
        view = memoryview(piece)
        while view:
            done = os.pwrite(target, view, at)
            view, at = view[done:], at + done


def remove(folder: str) -> None:
    """Remove a folder with all in it, whatever modes a script has left there; what cannot be removed stays."""

    def again(_: Callable[..., object], path: str, __: object) -> None:
        with contextlib.suppress(OSError):
            if path != folder:  # what lies above it is nobody's to change
                os.chmod(os.path.dirname(path), 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    for _ in range(3):  # a process of the run may be writing its last
        shutil.rmtree(folder, onerror=again)
        if not os.path.lexists(folder):
            return
