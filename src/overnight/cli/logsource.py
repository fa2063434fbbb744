"""What ``read`` is asked to read: a file, the log of a run, or stdin, with the readers that are to read it."""

from __future__ import annotations

import contextlib
import stat
import sys
from pathlib import Path

import msgspec

from overnight.cli.subject import find_subject
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder
from overnight.past.rereading import NOTHING_KNOWN, bounds_of
from overnight.requests.asked import in_force
from overnight.spec import RunSpec
from overnight.wiring import reader_makers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from overnight.past.rereading import Bounds

STDIN = "-"


class LogSource:
    """A log that is open at the place where reading begins, and what is known of it beforehand.

    ``name`` is what people call it. ``again`` goes back to that place; a pipe is kept in a file for that.
    """

    def __init__(self, name: str, stream: BinaryIO, spec: RunSpec, bounds: Bounds) -> None:
        self.name = name
        self.stream = stream
        self.pattern = spec.pattern
        self.makers = reader_makers(spec, lambda said: print(f"overnight: {said}", file=sys.stderr))
        self.bounds = bounds

    def again(self) -> None:
        """Go back to the place where reading begins."""
        self.stream.seek(self.bounds.start)

    def keep(self, on: contextlib.ExitStack) -> None:
        """Make ``again`` possible also where the bytes come only once."""
        if self.stream.seekable():
            return
        import shutil
        import tempfile

        kept = on.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        shutil.copyfileobj(self.stream, kept)
        kept.seek(0)
        self.stream = kept


@contextlib.contextmanager
def opened(what: str, pattern: str | None) -> Iterator[LogSource]:
    """Yield the log that ``what`` names, ``-`` for stdin; UsageError if it cannot be read."""
    path, bounds = Path(what), NOTHING_KNOWN
    spec = RunSpec(name="log", argv=(), executable="", cwd="", log=what)
    subject = path if what == STDIN else find_subject(what)
    if isinstance(subject, RunFolder):
        spec = in_force(subject)
        path = Path(spec.log)
        if not path.is_file():
            raise FolderError(f"the log of {subject.name}, {path}, is gone; give the path of a copy")
        bounds = bounds_of(subject, path)
    if pattern is not None:
        spec = msgspec.structs.replace(spec, pattern=pattern)
    if what == STDIN:
        yield LogSource("stdin", sys.stdin.buffer, spec, bounds)
        return
    with _open(path) as stream:
        if bounds.start:
            stream.seek(bounds.start)
        yield LogSource(str(path), stream, spec, bounds)


def _open(path: Path) -> BinaryIO:
    """Open a file, or a pipe, which ends when its writers leave; what else is none has no end or no bytes."""
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise UsageError(f"{path} is not a file; give a run's name, the path of a log, or - for what a pipe gives")
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check the path and who owns the file") from error
