"""What a word names that may be a run or a log: one answer for every verb that looks back.

A run of exactly that name comes first, then a file, then the beginning of a run's name. What has a ``/`` in it is a
path: of a log, or of a run's folder.
"""

from __future__ import annotations

import os

from overnight import client
from overnight.errors import NoSuchRunError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from overnight.folder import RunFolder


def find_subject(what: str | None) -> RunFolder | Path:
    """Return the run that ``what`` names (None: the latest), or the path of a log that is there.

    NoSuchRunError where nothing has that name; UsageError for a folder that is no run's, and for a path of nothing.
    """
    from pathlib import Path

    from overnight.folder import RunFolder

    home = client.find_home()
    if what is None:
        return client.find(home, None)
    path = Path(what)
    if os.sep not in what and what not in (".", ".."):
        if what in client.run_names(home) or not _there(path):
            return _run(home, what, path)
    elif _there(path / "run.json"):
        return RunFolder(path.resolve())
    if not _there(path):
        raise UsageError(f"{path} is not there; give the path of a log or a run's name")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the log inside it, or a run's name")
    return path


def _run(home: str, what: str, path: Path) -> RunFolder:
    try:
        return client.find(home, what)
    except NoSuchRunError as error:
        if path.suffix:
            raise UsageError(f"{path} is not there; give the path of a log or a run's name") from error
        raise NoSuchRunError(f"{error}; a log is named by its path, and there is no file {what!r} here") from error


def _there(path: Path) -> bool:
    """Say whether there is something of this path: a file, a pipe, a folder."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
