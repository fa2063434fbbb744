"""What the report shows of a log: the line at a place in it, its last lines, how many there are, times that they carry.

Reads little and in bounded memory; a file that is gone or cut shorter gives nothing, never an error.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from overnight.bars import folded
from overnight.exits import postmortem
from overnight.past.dates import Dates
from overnight.printable import STRANGE
from overnight.readers.programs import recognise
from overnight.screen import Lines
from overnight.tail import MAX_LINE, Tail

CHARS = 300
"""So much of a line is shown."""

LAST_LINES = 12
NO_FILE = "it is a pipe or device, not a file"
COUNTED_BYTES = 4 << 30
_BLOCK = 1 << 20
_TIMES_BYTES = 64 << 10
_HEAD_BYTES = 1 << 20
_END_BYTES = 256 << 10
_REACH_BYTES = 16 << 20
_LONG_BYTES = 8 << 10
_ENDS = bytes.maketrans(b"\r\x08", b"\n\n")


def cut(text: str) -> str:
    """Return a line as it is shown, without what stands too far right."""
    text = text.rstrip()
    return text if len(text) <= CHARS else text[: CHARS - 1] + "…"


def line_at(path: Path, offset: int) -> str | None:
    """Return the line whose first byte stands at ``offset``, as a reader saw it; None if it cannot be had any more."""
    try:
        with _opened(path) as stream:
            data = os.pread(stream.fileno(), MAX_LINE, offset) if offset >= 0 else b""
    except OSError:
        return None
    tail = Tail(offset=offset)
    found = [*tail.feed(data), *tail.flush()]
    return cut(found[0].text) if found else None


def time_at(path: Path, offset: int) -> float | None:
    """Return the moment (since the epoch) that the line at ``offset`` carries; None if it carries none."""
    line = line_at(path, offset)
    return None if line is None else Dates().read(line.encode("utf-8", "replace"))


def last_lines(path: Path, start: int = 0, count: int = LAST_LINES) -> list[str]:
    """Return the last lines of a log from byte ``start`` on, as a terminal would show them: of a bar its last state.

    Looked at are its last 256 KiB, and up to 16 MiB where long lines leave fewer than ``count`` there.
    """
    reach = _END_BYTES
    try:
        with _opened(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            first = start if start <= size else 0
            while True:
                begin = max(first, size - reach)
                stream.seek(begin)
                shown = _ended(stream.read(size - begin), whole=begin == first)
                if len(shown) >= count or begin == first or reach >= _REACH_BYTES:
                    return [cut(text) for text in shown[-count:]]
                reach *= 4
    except OSError:
        return []


def _ended(data: bytes, *, whole: bool) -> list[str]:
    """Return the lines at the end of a log, bars folded; ``whole``: the data begins with a line, not within one."""
    if not whole:  # what is left of that line is shown only if nothing else is there
        cut_at = min((at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0), default=-1)
        data = data[cut_at + 1 :] or data
    lines = Lines()
    short = b"\n".join(one if len(one) <= _LONG_BYTES else _shortened(one) for one in data.split(b"\n"))
    return folded([line.text for line in (*lines.feed(short), *lines.flush())])


def _shortened(line: bytes) -> bytes:
    """Return a long line so that it stays one: its beginning, or of a bar that was drawn again and again its end."""
    if b"\r" not in line.rstrip(b"\r") and b"\x08" not in line:
        return line[:_LONG_BYTES]
    kept = line[-_END_BYTES:]
    return kept if len(kept) == len(line) else kept[kept.find(b"\r") + 1 :]


def is_text(path: Path, start: int = 0) -> bool:
    """Say whether the beginning of a log is text at all, and no picture or archive."""
    said = "".join(_head(path, start))
    return len(re.findall(STRANGE, said)) * 10 <= len(said)


def no_reader_words(path: Path | None, start: int = 0, *, evaluations: bool = False) -> str:
    """Say that nothing was read but ``evaluations``, and of which program the log looks, with what to do about it."""
    program = None if path is None else recognise(_head(path, start))
    none = "only evaluations were read" if evaluations else "no reader fits"
    if program is None:
        return f"{none}, and its program is not known"
    advice = "" if not program.advice else f"; {program.advice}"
    pattern = "" if program.pattern is None else f": --pattern '{program.pattern}'"
    looks = f"it has {program.name}" if program.plain else f"it looks like a log of {program.name}"
    return f"{none}; {looks}{advice}{pattern}"


def _head(path: Path, start: int) -> list[str]:
    try:
        with _opened(path) as stream:
            stream.seek(start)
            data = stream.read(_HEAD_BYTES)
    except OSError:
        return []
    tail = Tail(offset=start)
    return [line.text for line in (*tail.feed(data), *tail.flush())]


def all_last_lines(path: Path, start: int) -> list[str]:
    """Return the lines from byte ``start`` on as a reader saw them: of more than 64 KiB the last."""
    return postmortem.last_lines(path, start, None)


def size_of(path: Path) -> int:
    """Return the bytes of a log; OSError if it is not there, or a pipe."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    return found.st_size


def count_lines(path: Path, start: int = 0) -> int | None:
    """Return how many lines there are from ``start`` on, as readers see them; None: not to be had.

    Each state of a bar is one, an empty line is none, an unfinished last one is. Of a log so long that counting would
    take minutes it is not had.
    """
    try:
        if path.stat().st_size - start > COUNTED_BYTES:
            return None
        found, last = 0, b"\n"
        with _opened(path) as stream:
            stream.seek(start)
            while data := stream.read(_BLOCK):
                if b"\r" in data or b"\x08" in data:
                    data = data.translate(_ENDS)
                # An end that stands right behind another one ends an empty line.
                empty = data.startswith(b"\n") and last == b"\n"
                found += data.count(b"\n") - empty
                found -= len(data) - len(re.sub(rb"\n\n+", b"\n", data)) if b"\n\n" in data else 0
                last = data[-1:]
    except OSError:
        return None
    return found + (last != b"\n")


def first_and_last_time(path: Path) -> tuple[datetime, datetime] | None:
    """Return the first and the last moment that lines carry (a date and a time of day); None if they carry none.

    Both are without a zone (local time) if none is printed. Looked for are the first and the last 64 KiB, and only what
    stands where the dates of most dated lines do.
    """
    try:
        with _opened(path) as stream:
            head = stream.read(_TIMES_BYTES)
            stream.seek(max(_TIMES_BYTES, os.fstat(stream.fileno()).st_size - _TIMES_BYTES))
            end = stream.read(_TIMES_BYTES)
    except OSError:
        return None
    dates = Dates()
    first, last = re.split(rb"[\r\n]+", head), re.split(rb"[\r\n]+", end)[1:]
    dates.learn(first, last)
    began = next((at for at in map(dates.read, first) if at is not None), None)
    ended = next((at for at in map(dates.read, reversed([*first, *last])) if at is not None), None)
    if began is None or ended is None or ended <= began:
        return None
    zone = None if dates.local else UTC
    return datetime.fromtimestamp(began, zone), datetime.fromtimestamp(ended, zone)


def _opened(path: Path) -> BinaryIO:
    """Open a file to read; OSError if it is none: a pipe would be waited for, and who writes to it would notice."""
    size_of(path)
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
