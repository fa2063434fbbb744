"""Every path of a run folder, and the only ways in which its files are read and written.

Publishing is: write a temporary file beside the target, (fsync where the file is the truth), rename onto the target.
Nothing is ever removed first. The journal is append-only. No decision is taken here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from overnight.errors import FolderError, UsageError
from overnight.events import jsonable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
BALLAST_BYTES = 1 << 20
FULL_BYTES = 1 << 20
"""With less than this left a disk counts as full: what fails there may succeed once somebody has made room."""

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def check_name(name: str) -> str:
    """Return ``name`` if it may name a run; raise UsageError otherwise, so that no name can leave the folder."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run: use 1 to 64 letters, digits, '_' and '-', starting with a letter or digit"
        )
    return name


def utc(at: float | None = None) -> str:
    """Return seconds since the epoch as an RFC 3339 time in UTC with milliseconds."""
    try:
        moment = datetime.fromtimestamp(time.time() if at is None else at, tz=UTC)
    except (ValueError, OverflowError, OSError):  # somebody's number in a file, or a clock that is set to nonsense
        moment = datetime.max.replace(tzinfo=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def write_atomic(path: Path, data: bytes, *, fsync: bool = False, mode: int = 0o600) -> None:
    """Publish ``data`` at ``path`` by rename, so that a reader sees the old file or the new one and nothing between."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")  # a third of what Path costs, every few seconds
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            if fsync:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if fsync:
        sync_directory(path.parent)


def write_in_place(path: Path, data: bytes) -> None:
    """Write JSON over the JSON in a file, within the blocks that it has: what is left to do on a full disk.

    OSError if it does not fit. A reader may meet half of it for a moment, and has to look again then.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        look = os.fstat(handle)
        if not stat.S_ISREG(look.st_mode) or len(data) > look.st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        data = data.ljust(look.st_size)
        if os.pwrite(handle, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, fsync: bool = False) -> None:
    """Publish ``value`` as JSON by rename."""
    write_atomic(path, encode_json(jsonable(value)), fsync=fsync)


def encode_json(value: Any) -> bytes:
    """Return one line of JSON; what is no Unicode (a file name in an old encoding) is escaped and comes back as is."""
    try:
        return _ENCODER.encode(value).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value).encode() + b"\n"


def read_regular(path: Path) -> bytes:
    """Return a file's bytes; OSError if it is none, so that a pipe under its name holds nobody up for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a third of what Path.read_bytes costs
    try:
        look = os.fstat(handle)
        if not stat.S_ISREG(look.st_mode):
            raise PermissionError(errno.EPERM, "it is not a regular file", str(path))
        return os.read(handle, look.st_size + 1)
    finally:
        os.close(handle)


def sensor_file(run_dir: Path, kind: str) -> Path:
    """Return the file that the sensor of this kind ("gpu", "host") appends its samples to."""
    return run_dir / "sensors" / f"{kind}.jsonl"


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``; None if there is no such file; FolderError if it is not a JSON object."""
    try:
        text = read_regular(path)
    except FileNotFoundError:
        return None
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}; check who owns the run folder") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FolderError(
            f"{path} is not valid JSON ({error}); it was edited or damaged: restore it or clean the run"
        ) from error
    if not isinstance(value, dict):
        raise FolderError(f"{path} does not hold a JSON object; it was edited or damaged: restore it or clean the run")
    return value


class RunFolder:
    """The paths of one run, ``<home>/runs/<name>``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.run_json = path / "run.json"
        self.run_env = path / "run.env"
        self.engine_json = path / "engine.json"
        self.output_log = path / "output.log"
        self.attempts = path / "attempts"
        self.status_json = path / "status.json"
        self.journal = path / "journal.jsonl"
        self.metrics_db = path / "metrics.db"
        self.inbox = path / "inbox"
        self.owner = path / "owner"
        self.lock = path / "owner" / "supervisor.lock"
        self.hooks = path / "hooks"
        self.evidence = path / "evidence"
        self.ballast = path / "evidence" / "ballast"
        self.report_html = path / "report.html"
        self.report_json = path / "report.json"
        self.shim_json = path / "shim.json"
        self.shim_log = path / "shim.log"
        self.supervisor_log = path / "supervisor.log"

    def attempt(self, number: int) -> AttemptFolder:
        """Return the folder of attempt ``number`` (1 is the first)."""
        return AttemptFolder(self.attempts / f"{number:03d}")

    def attempt_numbers(self) -> list[int]:
        """Return the numbers of all attempts that have a folder, in order."""
        try:
            names = os.listdir(self.attempts)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # a link to itself in the folder's place has none
                raise
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def create(self) -> None:
        """Make the folder and its parts with mode 0700; FileExistsError if the name is taken."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700)
        for part in (self.attempts, self.inbox, self.owner, self.evidence):
            part.mkdir(mode=0o700)

    def is_full(self) -> bool:
        """Say whether the disk of the folder has next to no room left."""
        try:
            look = os.statvfs(self.path)
        except OSError:
            return False
        return look.f_bavail * look.f_frsize < FULL_BYTES

    def put_ballast(self) -> None:
        """Keep a little real disk space, to be freed when a full disk would swallow the last facts."""
        if not self.ballast.exists():
            handle = os.open(self.ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, BALLAST_BYTES)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EOPNOTSUPP, errno.EDQUOT):
                    raise
            finally:
                os.close(handle)

    def drop_ballast(self) -> bool:
        """Free the ballast; True if there was any to free."""
        try:
            self.ballast.unlink()
        except OSError:  # none, or a disk that has become read-only
            return False
        return True


class AttemptFolder:
    """The files of one attempt: start.json and stop.json (supervisor), started.json and exit.json (shim)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start_json = path / "start.json"
        self.start_withdrawn = path / "start.withdrawn"
        self.stop_json = path / "stop.json"
        self.started_json = path / "started.json"
        self.exit_json = path / "exit.json"
        self.reaped = path / "reaped"


class Journal:
    """The append-only list of facts, one write() each; ``sync`` makes them durable and never comes before an action."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unsynced = False
        self.handle = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _find(self) -> None:
        """Come back to the file of our name: put its facts back if it was removed, go on in what has replaced it."""
        here = os.fstat(self.handle)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            write_atomic(self.path, os.pread(self.handle, here.st_size, 0), fsync=True)
        else:
            if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                return
        found = self._open()
        os.close(self.handle)
        self.handle = found

    def append(self, fact: str, at: float, **details: Any) -> None:
        """Write one fact. OSError (a full disk) is the caller's to handle; half a line is closed by the next call."""
        line = {"at": utc(at), "fact": fact, **jsonable(details)}
        data = encode_json(line)
        self._find()
        size = os.fstat(self.handle).st_size
        if size > 0 and os.pread(self.handle, 1, size - 1) != b"\n":
            # A supervisor killed within a write, a full disk or an editor left half a line: this fact stands alone.
            data = b"\n" + data
        view = memoryview(data)
        while view:
            view = view[os.write(self.handle, view) :]
        self.unsynced = True

    def sync(self) -> None:
        """Make the facts written so far durable."""
        if self.unsynced:
            os.fsync(self.handle)
            self.unsynced = False

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every whole fact of a journal in order; torn or foreign lines are passed over."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for line in stream:
            with contextlib.suppress(ValueError, RecursionError):
                fact = json.loads(line)
                if isinstance(fact, dict) and isinstance(fact.get("fact"), str):
                    yield fact


def drop_request(folder: RunFolder, kind: str, **details: Any) -> Path:
    """Put one request into the inbox; the supervisor takes it from there (or the next one, if this one is dead).

    On a full disk the ballast is given up for it: it lies there for what must be written all the same.
    """
    at = time.time()
    path = folder.inbox / f"{time.time_ns()}-{os.getpid()}-{kind}.json"
    request = {"kind": kind, "at": at, **details}
    try:
        write_json(path, request, fsync=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not folder.drop_ballast():
            raise
        write_json(path, request, fsync=True)
    return path


def machine_id() -> str:
    """Return the identity of this machine (/etc/machine-id), or its host name where there is none."""
    try:
        text = Path("/etc/machine-id").read_text().strip()
    except OSError:
        text = ""
    return text or os.uname().nodename
