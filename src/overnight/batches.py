"""Many records at once: long stretches of a log whose lines all have one shape, as columns instead of records.

Only values: what stands here is exactly what the same lines would give one by one, and iterating shows it. No clock,
no file, no judgement.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from overnight.events import Record, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


class Entry(NamedTuple):
    """A record with its place in the run: the attempt and the segment of rising steps it belongs to."""

    record: Record
    attempt: int
    segment: int


class Places:
    """Where the lines of some text begin, in bytes of the source; worked out when somebody asks.

    ``raw`` is whole lines with their ends, the first of them at ``start``; empty lines are none.
    """

    __slots__ = ("_offsets", "_raw", "_start")

    def __init__(self, raw: bytes, start: int) -> None:
        self._raw = raw
        self._start = start
        self._offsets: list[int] | None = None

    def offsets(self) -> list[int]:
        """Return the offset of every line that is not empty."""
        if self._offsets is None:
            lines = self._raw.splitlines(keepends=True)
            begins = accumulate(map(len, lines), initial=self._start)
            if lines and b"\n\n" not in self._raw and self._raw[:1] != b"\n":
                self._offsets = list(begins)[:-1]
            else:
                self._offsets = [begin for begin, line in zip(begins, lines, strict=False) if len(line) > 1]
            self._raw = b""
        return self._offsets


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive training records of one source, reader and rank that arrived together; none glued, none early.

    ``steps`` and ``loss`` have one value per record, and so has every list in ``columns`` (other fields of ``Record``
    by their names: ``dt_s`` in seconds, ``lr``, ...) and in ``extra`` (keys as printed). What is not there no line
    said. A loss is a number, never None. Iterating gives the entries that reading line by line would have given.
    """

    reader: str
    source: int
    at: float
    rank: int | None
    steps: list[int]
    loss: list[float]
    columns: dict[str, list[float]]
    extra: dict[str, list[float] | list[str]]
    places: Places
    first: int = 0
    attempt: int = 0
    segment: int = 0
    per_device: bool = False

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.steps)

    @property
    def offsets(self) -> list[int]:
        """The offset in bytes of each record's line; worked out anew on each call, so keep it."""
        return self.places.offsets()[self.first : self.first + len(self.steps)]

    def part(self, begin: int, end: int, *, attempt: int, segment: int) -> Batch:
        """Return the records from ``begin`` to before ``end``, as of an attempt and a segment."""
        if begin == 0 and end >= len(self.steps):
            return msgspec.structs.replace(self, attempt=attempt, segment=segment)
        return msgspec.structs.replace(
            self,
            steps=self.steps[begin:end],
            loss=self.loss[begin:end],
            columns={name: values[begin:end] for name, values in self.columns.items()},
            extra={key: values[begin:end] for key, values in self.extra.items()},
            first=self.first + begin,
            attempt=attempt,
            segment=segment,
        )

    def record(self, index: int) -> Record:
        """Return one record, counted from 0."""
        extra = {key: values[index] for key, values in self.extra.items()}
        return Record(
            reader=self.reader,
            source=self.source,
            offset=self.places.offsets()[self.first + index],
            at=self.at,
            rank=self.rank,
            step=self.steps[index],
            loss=self.loss[index],
            extra=extra or None,
            per_device=self.per_device,
            **{name: values[index] for name, values in self.columns.items()},  # type: ignore[arg-type]
        )

    def __iter__(self) -> Iterator[Entry]:
        """Yield every record as the entry it is."""
        for index in range(len(self.steps)):
            yield Entry(self.record(index), self.attempt, self.segment)


class Outcome(NamedTuple):
    """What a piece of log gave, in the order of the log: records, in pieces of one kind or the other, and verdicts."""

    pieces: list[list[Entry] | Batch]
    verdicts: list[Verdict]

    def stored(self) -> Iterator[Entry | Batch]:
        """Yield what there is to store, batches as they are: a million records need not be made for it."""
        for piece in self.pieces:
            if isinstance(piece, Batch):
                yield piece
            else:
                yield from piece

    @property
    def entries(self) -> list[Entry]:
        """Every record as an entry, made anew on each call."""
        return [entry for piece in self.pieces for entry in piece]
