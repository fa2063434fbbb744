"""What the report shows of a log: the line at a place in it, its last lines, how many there are, times that they carry.

Reads little and in bounded memory; a file that is gone or cut shorter gives nothing, never an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from overnight import postmortem
from overnight.readers.programs import recognise
from overnight.tail import MAX_LINE, Tail

CHARS = 300
"""So much of a line is shown."""

LAST_LINES = 12
COUNTED_BYTES = 4 << 30
_BLOCK = 1 << 20
_TIMES_BYTES = 64 << 10
_HEAD_BYTES = 1 << 20
_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?!\d)(Z|[+-]\d\d:?\d\d)?")


def cut(text: str) -> str:
    """Return a line as it is shown, without what stands too far right."""
    text = text.rstrip()
    return text if len(text) <= CHARS else text[: CHARS - 1] + "…"


def line_at(path: Path, offset: int) -> str | None:
    """Return the line whose first byte stands at ``offset``, as a reader saw it; None if it cannot be had any more."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.pread(handle, MAX_LINE, offset) if offset >= 0 else b""
    except OSError:
        return None
    finally:
        os.close(handle)
    tail = Tail(offset=offset)
    found = [*tail.feed(data), *tail.flush()]
    return cut(found[0].text) if found else None


def last_lines(path: Path, start: int = 0, count: int = LAST_LINES) -> list[str]:
    """Return the last lines of a log from byte ``start`` on."""
    return [cut(text) for text in postmortem.last_lines(path, start, None)[-count:]]


def no_reader_words(path: Path | None, start: int = 0) -> str:
    """Say that no reader fits, and of which program the log looks, with what to do about it."""
    program = None if path is None else recognise(_head(path, start))
    if program is None:
        return "no reader fits, and its program is not known"
    advice = "" if not program.advice else f"; {program.advice}"
    pattern = "" if program.pattern is None else f": --pattern '{program.pattern}'"
    return f"no reader fits; it looks like a log of {program.name}{advice}{pattern}"


def _head(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read(_HEAD_BYTES)
    except OSError:
        return []
    tail = Tail(offset=start)
    return [line.text for line in (*tail.feed(data), *tail.flush())]


def all_last_lines(path: Path, start: int) -> list[str]:
    """Return the lines from byte ``start`` on as a reader saw them: of more than 64 KiB the last."""
    return postmortem.last_lines(path, start, None)


def count_lines(path: Path, start: int = 0) -> int | None:
    """Return how many newlines there are from ``start`` on, an unfinished last line counted too; None: not to be had.

    Nor is it of a log so long that counting would take minutes.
    """
    try:
        if path.stat().st_size - start > COUNTED_BYTES:
            return None
        found, last = 0, b"\n"
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while data := stream.read(_BLOCK):
                found += data.count(b"\n")
                last = data[-1:]
    except OSError:
        return None
    return found + (last != b"\n")


def first_and_last_time(path: Path) -> tuple[datetime, datetime] | None:
    """Return the first and the last moment that lines carry (a date and a time of day); None if they carry none.

    Both are of the program's own clock, with its zone if it is printed. Looked for are the first and the last 64 KiB.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(_TIMES_BYTES)
            stream.seek(max(0, path.stat().st_size - _TIMES_BYTES))
            end = stream.read(_TIMES_BYTES)
    except (OSError, ValueError):
        return None
    first = next(_times(head), None)
    last = None
    for moment in _times(end):
        last = moment
    if first is None or last is None or (first.tzinfo is None) != (last.tzinfo is None):
        return None
    return (first, last) if last > first else None


def _times(data: bytes) -> Iterator[datetime]:
    for match in _TIME.finditer(data.decode("utf-8", "replace")):
        day, clock, zone = match.groups()
        try:
            yield datetime.fromisoformat(f"{day}T{clock.replace(',', '.')}{zone or ''}")
        except ValueError:
            continue
