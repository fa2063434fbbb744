"""Folders outside the one that is watched, in which the log says that this run saves: which of their files are its own.

Others may save there as well, so a file is the run's only if the log has named it, or one that it is like. Paths are
looked at, and the names that lie there; no file is opened.
"""

from __future__ import annotations

import os
import re

from overnight.inspector.naming import Alike
from overnight.saves.names import FILE

MOST = 8
COMMON = frozenset(
    "/ /bin /boot /data /dev /dev/shm /etc /home /lib /media /mnt /opt /private/tmp /proc /root /run /scratch"
    " /shared /srv /sys /tmp /usr /usr/local /usr/share /Users /var /var/lib /var/log /var/tmp /Volumes /work"
    " /workspace".split()
)
"""Where everybody's files lie: nothing says that what is saved there is of this run."""
_STEP = re.compile(r"(?:checkpoint|ckpt|step|epoch|iter(?:ation)?)s?[-_=]?\d", re.IGNORECASE)
HOMES = frozenset({"/home", "/Users", "/media"})
_DRAFT = re.compile(r"^(?:\.tmp[-_.]?|tmp[-_.]|\.)|(?:\.tmp|\.part|\.incomplete|~)$|\.tmp(?=\.)", re.IGNORECASE)


class Elsewhere:
    """The folders that the log has led to, at most MOST, and which names in each are those of this run."""

    def __init__(self) -> None:
        self.folders: dict[str, Alike | None] = {}  # None: the folder itself was named, and so is all in it

    def hear(self, path: str) -> tuple[str, str, bool] | None:
        """Take in the real path of a save that the log names; return (folder, path in it, whether that is news).

        None where nobody may be led to. The path is that of the whole checkpoint where one of its files was named.
        """
        folder, name = os.path.split(path)
        if os.path.isdir(path) and not (_of_step(name) or FILE.search(os.path.splitext(name)[1])):
            folder, name = path, ""
        while name and _of_step(os.path.basename(folder)) and not is_common(os.path.dirname(folder)):
            folder, name = os.path.split(folder)
        if is_common(folder) or (folder not in self.folders and len(self.folders) >= MOST):
            return None
        if not name:
            news = self.folders.get(folder, False) is not None
            self.folders[folder] = None
            return folder, folder, news
        known = self.folders.setdefault(folder, Alike())
        return folder, os.path.join(folder, name), known is not None and known.add(name)

    def of(self, folder: str) -> str | None:
        """Return which of these folders a folder is, or lies in; the innermost one."""
        inside = [one for one in self.folders if f"{folder}/".startswith(f"{one}/")]
        return max(inside, key=len, default=None)

    def owns(self, path: str) -> bool:
        """Say whether what lies in one of these folders, or deeper, is of this run; what lies elsewhere is."""
        place = self.of(os.path.dirname(path))
        known = None if place is None else self.folders[place]
        if place is None or known is None:
            return True
        name = os.path.relpath(path, place).split("/", maxsplit=1)[0]
        return known.like(name) or known.like(_DRAFT.sub("", name))


def is_common(folder: str) -> bool:
    """Say whether a folder is one in which everybody's files lie, or somebody's home."""
    return folder in COMMON or os.path.dirname(folder) in HOMES or folder == os.path.expanduser("~")


def _of_step(name: str) -> bool:
    return _STEP.search(name) is not None
