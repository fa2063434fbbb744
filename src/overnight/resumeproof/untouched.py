"""What of the user's files changed during a proof: everything is looked at before and after, and nothing is written.

Of each file kind, size, mode and times count, of what looks like a checkpoint the bytes too. Who changed something is
not known here: it may have been the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import xxhash

from overnight.report.units import size as bytes_words
from overnight.saves.names import looks_like_save

MOST_ENTRIES = 200_000
MOST_BYTES = 2 << 30
PIECE = 1 << 20
UNSEEN = frozenset({".git", ".hg", ".svn", "__pycache__"})
"""Changed by editors, prompts and interpreters all day long, and no results."""


class Look(msgspec.Struct, frozen=True, array_like=True):
    """What lstat said of one path; ``link`` is where a symbolic link points to."""

    mode: int
    size: int
    inode: int
    changed_ns: int
    link: str | None = None


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """All that was there at one time, by absolute path: how it looked, and digests of what looks like a checkpoint.

    ``whole`` is false if there was more than MOST_ENTRIES; ``undigested`` counts checkpoints beyond MOST_BYTES.
    """

    folders: tuple[str, ...]
    skip: tuple[str, ...]
    looks: Mapping[str, Look]
    digests: Mapping[str, str]
    whole: bool
    undigested: int

    def notes(self) -> list[str]:
        """Return what was not looked at, in sentences for the user."""
        said = []
        if not self.whole:
            said.append(f"only the first {len(self.looks):,} files of {self.folders[0]} were compared before and after")
        if self.undigested:
            said.append(
                f"of {self.undigested:,} checkpoints only size and time were compared: the others had "
                f"{bytes_words(MOST_BYTES)} already"
            )
        return said


def fingerprint(
    folder: str,
    *,
    saves: Sequence[str] = (),
    skip: Sequence[str] = (),
    most_entries: int = MOST_ENTRIES,
    most_bytes: int = MOST_BYTES,
) -> Fingerprint:
    """Look at a folder, and at ``saves`` (files or folders of checkpoints elsewhere), but not at what is in ``skip``.

    Links are looked at and never followed, but for the places themselves. What cannot be read is left out.
    """
    places = tuple(dict.fromkeys(os.path.realpath(path) for path in (folder, *saves)))
    passed = tuple(os.path.realpath(path) for path in skip)
    looks: dict[str, Look] = {}
    whole = True
    for path in _paths(places, frozenset(passed)):
        if len(looks) >= most_entries:
            whole = False
            break
        look = _look(path)
        if look is not None:
            looks[path] = look
    digests: dict[str, str] = {}
    left, undigested = most_bytes, 0
    for path, look in looks.items():
        if not stat.S_ISREG(look.mode) or not (looks_like_save(path) or path in places):
            continue
        if look.size > left:
            undigested += 1
            continue
        found = _digest(path)
        if found is not None:
            digests[path] = found
            left -= look.size
    return Fingerprint(folders=places, skip=passed, looks=looks, digests=digests, whole=whole, undigested=undigested)


def changes(before: Fingerprint) -> list[str]:
    """Look again at all that a fingerprint is of, and return a sentence for each thing that is different now."""
    said = []
    altered: list[str] = []
    for path, old in before.looks.items():
        new = _look(path)
        if new is None:
            if os.path.dirname(path) not in altered:  # of a folder that is gone, the folder is enough
                said.append(f"{path} is gone")
            altered.append(path)
        elif new != old:
            how = _difference(path, old, new, before.digests.get(path))
            if how is not None:
                said.append(f"{path} {how}")
                altered.append(path)
        elif path in before.digests and _digest(path) != before.digests[path]:
            said.append(f"{path} has other bytes now, though size and time are as before")
            altered.append(path)
    if before.whole:
        new_ones = [path for path in _paths(before.folders, frozenset(before.skip)) if path not in before.looks]
        tops = [path for path in new_ones if os.path.dirname(path) in before.looks or path in before.folders]
        said += [f"{path} is new" for path in tops]
        altered += tops
    return said + _passing(before, altered)


def _difference(path: str, old: Look, new: Look, digest: str | None) -> str | None:
    """Return in words how one path differs; None of a folder that only has other things in it."""
    if stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode):
        return f"is no {_kind(old.mode)} any more, but a {_kind(new.mode)}"
    if old.link != new.link:
        return f"points to {new.link} now, before to {old.link}"
    if old.mode != new.mode:
        return f"has the permissions {stat.S_IMODE(new.mode):o} now, before {stat.S_IMODE(old.mode):o}"
    if not stat.S_ISREG(old.mode):
        return None
    if digest is not None and _digest(path) == digest:
        return "was written again, with the same bytes"
    if old.size != new.size:
        return f"was changed: {new.size:,} bytes, before {old.size:,}"
    return "was changed" if digest is not None else "was written to"


def _passing(before: Fingerprint, altered: Sequence[str]) -> list[str]:
    """Return sentences for folders in which something was made and is gone again."""
    if not before.whole:
        return []  # what was made there may be there still, and is not known
    explained = {os.path.dirname(path) for path in altered}
    said = []
    for path, old in before.looks.items():
        if not stat.S_ISDIR(old.mode) or path in explained:
            continue
        new = _look(path)
        # What lies in `skip` may come and go, and so may what is not looked at.
        excused = any(os.path.dirname(one) == path for one in before.skip)
        if new is not None and new.changed_ns != old.changed_ns and not excused and not _unseen_in(path):
            said.append(f"in {path} something was made and is gone again")
    return said


def _unseen_in(folder: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, name)) for name in UNSEEN)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "special file"


def _paths(places: Sequence[str], skip: frozenset[str]) -> Iterator[str]:
    """Yield the places and all below them, each once, in the order of names."""
    seen: set[str] = set()
    for place in places:
        todo = [place]
        while todo:
            path = todo.pop()
            if path in seen or path in skip or _is_our_output(path):
                continue
            seen.add(path)
            yield path
            try:
                with os.scandir(path) as found:
                    names = sorted((one.name for one in found if one.name not in UNSEEN), reverse=True)
            except OSError:  # a file, a link to somewhere, or nothing to be read by us
                continue
            if not os.path.islink(path):
                todo += [os.path.join(path, name) for name in names]


def _is_our_output(path: str) -> bool:
    """Say whether what the proof itself says is written there."""
    try:
        found = os.lstat(path)
        ours = [os.fstat(number) for number in (1, 2)]
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and any((one.st_dev, one.st_ino) == (found.st_dev, found.st_ino) for one in ours)


def _look(path: str) -> Look | None:
    try:
        found = os.lstat(path)
        link = os.readlink(path) if stat.S_ISLNK(found.st_mode) else None
    except OSError:
        return None
    return Look(
        found.st_mode, found.st_size if not stat.S_ISDIR(found.st_mode) else 0, found.st_ino, found.st_mtime_ns, link
    )


def _digest(path: str) -> str | None:
    """Return a digest of a file's bytes; None if it is no file that can be read."""
    digest = xxhash.xxh3_128()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(handle, "rb", buffering=0) as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        while piece := stream.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
