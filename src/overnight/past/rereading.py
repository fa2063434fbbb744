"""A finished log once more through a monitor: its bytes in blocks, with the time marks and attempts of a journal.

Used by whoever looks back: ``read``, ``replay``, ``report`` of a bare log, ``reindex``. The monitor is pure, so that
what comes out is what a supervisor saw that night, or would have seen under other rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from overnight.errors import UsageError
from overnight.folder import RunFolder, read_journal, read_json
from overnight.history.completeness import stored_places
from overnight.monitor import Monitor, Outcome

BLOCK = 256 << 10


class Bounds(NamedTuple):
    """What a journal says about a log, in its order, each with the place in the log (a byte offset of ``source``).

    ``marks`` are (offset, seconds since the epoch), ``attempts`` (offset, number).
    """

    source: int
    start: int
    marks: tuple[tuple[int, float], ...]
    attempts: tuple[tuple[int, int], ...]


NOTHING_KNOWN = Bounds(0, 0, (), ((0, 1),))
"""Of a log that Overnight has not launched: one attempt, and nobody knows when a line was written."""


class Piece(NamedTuple):
    """Some bytes of a log, within one attempt and behind one time mark.

    ``at`` is that mark; 0.0: none is known.
    """

    data: bytes
    place: int
    at: float
    attempt: int


def pieces(path: Path, bounds: Bounds = NOTHING_KNOWN) -> Iterator[Piece]:
    """Yield the log piece by piece; an attempt that wrote nothing has an empty one. UsageError if it cannot be read."""
    events = deque(
        sorted(
            [(offset, 0, float(number)) for offset, number in bounds.attempts]
            + [(offset, 1, at) for offset, at in bounds.marks]
        )
    )
    # What stands before the first mark came with it: the mark of the very first bytes was lost.
    at = next((one[2] for one in events if one[1] == 1), 0.0)
    attempt, place = 0, bounds.start
    with _opened(path) as stream:
        stream.seek(place)
        while True:
            while events and events[0][0] <= place:
                _, kind, value = events.popleft()
                if kind == 1:
                    at = value
                else:
                    attempt = int(value)
                    yield Piece(b"", place, at, attempt)
            room = min(BLOCK, events[0][0] - place) if events else BLOCK
            data = stream.read(room)
            if not data:
                return
            yield Piece(data, place, at, attempt)
            place += len(data)


def reread(monitor: Monitor, path: Path, bounds: Bounds = NOTHING_KNOWN, *, finished: bool = True) -> Iterator[Outcome]:
    """Feed the log to ``monitor`` and yield what each piece gave, the unfinished last line too if it is ``finished``.

    A log that is still written to is not: its last line may be half a number. UsageError if it cannot be read. Memory
    does not grow with the log.
    """
    at = 0.0
    for piece in pieces(path, bounds):
        if piece.attempt != monitor.attempt:
            if monitor.attempt:
                yield monitor.flush(at)
            monitor.begin_attempt(piece.attempt)
        at = piece.at
        if piece.data:
            yield monitor.feed(piece.data, at, bounds.source, piece.place)
    if finished:
        yield monitor.flush(at)


def bounds_of(folder: RunFolder, log: Path) -> Bounds:
    """Return what a run's journal and attempts say about the file that has the log's name now.

    Of a log that was rotated only the newest file can be found again. One that does not hold any more what was read of
    it (metrics.db has its last bytes) is another file, of which nothing is known.
    """
    marks: list[tuple[int, int, float]] = []
    places: list[tuple[int, int]] = []
    for fact in read_journal(folder.journal):
        if not all(_number(fact.get(name)) for name in ("source", "offset", "epoch")):
            continue
        if fact["fact"] == "mark":
            marks.append((int(fact["source"]), int(fact["offset"]), float(fact["epoch"])))
        elif fact["fact"] == "verdict":
            places.append((int(fact["source"]), int(fact["offset"])))
    attempts = list(_begins(folder))
    places += [one[:2] for one in (*marks, *attempts)]
    source = max((one[0] for one in places), default=0)
    if not _holds(folder, log, source, max((one[1] for one in places if one[0] == source), default=0)):
        return Bounds(source + 1, 0, (), ((0, max((one[2] for one in attempts), default=1)),))  # truncated since
    begun = sorted({one[1:] for one in attempts if one[0] == source})
    before = max((one[2] for one in attempts if one[0] < source), default=0)
    start = begun[0][0] if begun and not before else 0
    if before:
        begun.insert(0, (0, before))
    known = sorted(one[1:] for one in marks if one[0] == source)
    return Bounds(source, start, tuple(known), tuple(begun) or ((0, 1),))


_FAR = 1e15  # no place in a log and no time is beyond: an edited journal


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and -_FAR < value < _FAR


def _holds(folder: RunFolder, log: Path, source: int, offset: int) -> bool:
    """Say whether the file that has the log's name is still the one that was read up to ``offset`` at least."""
    size = log.stat().st_size if log.is_file() else 0
    read, before = _last_bytes(folder, source)
    if size < max(offset, read):
        return False
    if not before:
        return True
    with _opened(log) as stream:
        stream.seek(max(0, read - len(before)))
        return stream.read(len(before)) == before


def _last_bytes(folder: RunFolder, source: int) -> tuple[int, bytes]:
    """Return how far a source was read, and the bytes before that place, as metrics.db has it; (0, b"") for nothing."""
    with suppress(ValueError):  # no database, or a damaged one: the journal must do
        for place in stored_places(folder.metrics_db):
            if place.source == source:
                return place.offset, place.before
    return 0, b""


def _begins(folder: RunFolder) -> Iterator[tuple[int, int, int]]:
    """Yield (source, offset, attempt) of every attempt: where each begins in the log."""
    for number in folder.attempt_numbers():
        position = (read_json(folder.attempt(number).start_json) or {}).get("position")
        if isinstance(position, list) and len(position) == 2 and all(isinstance(one, int) for one in position):
            yield position[0], position[1], number


def _opened(path: Path) -> BinaryIO:
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a file; give a run's name or the path of a log")
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; check the path and who owns the file") from error
