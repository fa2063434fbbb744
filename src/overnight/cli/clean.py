"""The verb ``clean``: removes the folders of ended runs. What cannot be removed stays a run, under its name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overnight import client
from overnight.cli.end import adopter
from overnight.cli.parser import new_parser
from overnight.cli.render import held_words
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder

CLEAN_EXAMPLES = """\
  overnight clean quiet-harbor  remove the folder of one ended run
  overnight clean --all         of all ended runs; logs elsewhere (--log) stay

a name must be whole here
"""

KEEPERS_LEAVE_S = 3.0


def clean(words: list[str]) -> int:
    """Remove the folders of ended runs."""
    parser = new_parser("clean", CLEAN_EXAMPLES)
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs to remove, each by its whole name")
    parser.add_argument("--all", action="store_true", help="every ended run")
    about = "also a named run whose end nobody could settle, if nothing of it lives"
    parser.add_argument("--force", action="store_true", help=about)
    args = parser.parse_args(words)
    if bool(args.names) == args.all:
        raise UsageError(
            "clean needs the names of ended runs, or --all" if not args.all else "give names or --all, not both"
        )
    if args.all and args.force:
        raise UsageError("--force goes with names and not with --all")
    home = client.find_home()
    if args.all:
        runs = [one["name"] for one in client.list_runs(home)]
        folders = [client.find(home, name) for name in runs]
        doomed = [folder for folder in folders if _obstacle(folder, named=False, force=False) is None]
    else:
        doomed = [client.find(home, name, whole=True) for name in dict.fromkeys(args.names)]
        for folder in doomed:  # all or none: a refusal in the middle would leave a half-done command
            obstacle = _obstacle(folder, named=True, force=args.force)
            if obstacle is not None:
                raise UsageError(f"{folder.name} {obstacle}")
    stayed = [said for folder in doomed if (said := _removed(folder)) is not None]
    _sweep(Path(home) / "runs")
    if args.all:
        removed = len(doomed) - len(stayed)
        kept = len(runs) - len(doomed)
        print(f"{removed} removed" + (f", {kept} kept (live or damaged)" if kept else ""))
    if stayed:
        raise FolderError("; ".join(stayed))
    return 0


def _removed(folder: RunFolder) -> str | None:
    """Remove a run and say so; or return why it is still there."""
    try:
        _remove(folder)
    except OSError as error:
        path = str(error.filename or folder.path)
        return f"{folder.name} cannot be removed: {path}: {error.strerror}; see who owns it, and clean again"
    print(f"removed {folder.name}")
    return None


def _obstacle(folder: RunFolder, *, named: bool, force: bool) -> str | None:
    """Return why a run must not be removed, None if it may be."""
    one = client.status(folder)
    if one["state"] == "damaged":
        return _obstacle_damaged(folder, one, named=named)
    if one["foreign"]:
        return "is kept on another machine; clean it there"
    if force and one["stale"] and not _training_lives(folder):
        return None
    if one["stale"] and one["state"] not in client.ENDED and not force:
        one = _settled(folder, one)
    if one["state"] not in client.ENDED:
        return f"is {one['state']}; `overnight stop {folder.name}` first"
    if (waits := held_words(one)) is not None:
        return f"has ended, but {waits}; `overnight stop {folder.name} --now` gives it up"
    until = time.monotonic() + KEEPERS_LEAVE_S
    while one["supervisor"]["alive"] or one["shim"]["alive"]:
        if time.monotonic() > until:
            return "has ended, but its processes are still tidying up; try again in a moment"
        time.sleep(0.05)
        one = client.status(folder)
    return None


def _settled(folder: RunFolder, one: client.Status) -> client.Status:
    """Return the status of a run that nobody keeps once it is known to have ended, or as it is some seconds later."""
    with contextlib.suppress(FolderError):  # nobody can settle it
        adopter(folder)()
    until = time.monotonic() + KEEPERS_LEAVE_S
    while one["state"] not in client.ENDED and time.monotonic() < until:
        time.sleep(0.05)
        one = client.status(folder)
    return one


def _obstacle_damaged(folder: RunFolder, one: dict[str, Any], *, named: bool) -> str | None:
    if not named:
        return "is damaged; clean it by name"
    if one["supervisor"]["alive"] or one["shim"]["alive"] or _training_lives(folder):
        return f"is live, though its folder is damaged; `overnight stop {folder.name}` first"
    return None


def _training_lives(folder: RunFolder) -> bool:
    for number in folder.attempt_numbers():
        with contextlib.suppress(FolderError):
            if client.alive(client.read_object(str(folder.attempt(number).started_json))):
                return True
    from overnight.clearing import marked

    return bool(marked(folder.path))


def _remove(folder: RunFolder) -> None:
    """Take the run out of sight in one step, then remove it; the next ``clean`` finishes an interrupted removal."""
    if folder.engine_json.exists():
        from overnight import launch

        launch.forget(folder)
    for place in _folders(folder.path):
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    trash = folder.path.with_name(f".trash-{folder.name}-{time.time_ns()}")
    folder.path.rename(trash)
    try:
        _erase(trash)
    except OSError as error:
        # What is left of it stays a run that can be found, and named again.
        trash.rename(folder.path)
        error.filename = str(error.filename or trash).replace(str(trash), str(folder.path), 1)
        raise


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders that must be emptied to remove one; a link needs none."""
    if path.is_symlink():
        return
    yield path
    for place, names, _ in os.walk(path):
        yield from (Path(place, name) for name in names if not os.path.islink(os.path.join(place, name)))


def _erase(trash: Path) -> None:
    if trash.is_symlink():  # a run moved elsewhere by hand: the link is ours, what it points to is theirs
        trash.unlink()
        return

    def said(_: object, path: str, why: tuple[type[BaseException], BaseException, object]) -> None:
        if isinstance(why[1], OSError):
            why[1].filename = path  # whole, where the call that failed knew a name alone
        raise why[1]

    shutil.rmtree(trash, onerror=said)


def _sweep(runs: Path) -> None:
    with contextlib.suppress(OSError), os.scandir(runs) as entries:
        for entry in entries:
            if entry.name.startswith(".trash-"):
                with contextlib.suppress(OSError):  # one that cannot be removed keeps no other
                    _erase(Path(entry.path))
