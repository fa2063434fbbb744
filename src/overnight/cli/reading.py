"""Reads a log for ``read``: its bytes once, in blocks, through the readers; memory does not grow with the log.

No rule judges here and nothing is measured: what comes out is what the readers say.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from overnight.printable import STRANGE
from overnight.readers.programs import ENOUGH_LINES, recognise
from overnight.readers.sniff import Sniffer
from overnight.tail import Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, BinaryIO

    from overnight.events import Record
    from overnight.past.rereading import Bounds
    from overnight.readers import Reader
    from overnight.readers.programs import Program
    from overnight.tail import Line

BLOCK = 256 << 10

_LOOKED_AT = 20_000
_SHOWN = 5
_MOST_SHAPES = 2000
_WORD = 6  # what a word of progress is worth, beside at most 4 numbers
_LONGEST = 2000
_NUMBER = re.compile(r"[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?|(?<![a-z])(?:nan|inf)(?![a-z])", re.IGNORECASE)
_WORDS = re.compile(r"(?<![a-z])(?:loss|step|iter|iteration|epoch|batch|lr|s/it|it/s)(?![a-z])", re.IGNORECASE)
_STRANGE = re.compile(STRANGE)


class Found:
    """What a log turned out to be, as far as it was read.

    ``lines`` and ``size`` (bytes) are all that was read; ``records`` counts by kind; ``readers`` by the reader's name.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.size = 0
        self.records: Counter[str] = Counter()
        self.readers: Counter[str] = Counter()
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.chosen: str | None = None
        self.why = ""
        self._head: list[str] = []
        self._near: dict[str, list[Any]] = {}  # by shape: how often, how near, the first line
        self._strange = self._signs = 0

    @property
    def fits(self) -> bool:
        """Say whether a reader fits: one has read records that get on, or any training record at all."""
        return self.chosen is not None or self.records["train"] > 0

    @property
    def text(self) -> bool:
        """Say whether it is text at all, and no picture or archive."""
        return self._strange * 10 <= self._signs

    def program(self) -> Program | None:
        """Return the program that has printed the log, None if none is certain."""
        return recognise(self._head)

    def nearest(self) -> list[str]:
        """Return the lines that look most like progress, one of each shape, in their order."""
        near = [one for one in self._near.values() if one[1] > _WORD] or list(self._near.values())
        best = sorted(range(len(near)), key=lambda n: -min(near[n][0], _SHOWN) * near[n][1])[:_SHOWN]
        return [near[n][2] for n in sorted(best)]

    def hear(self, lines: Sequence[Line]) -> None:
        """Take in lines, before they are read."""
        room = min(ENOUGH_LINES - len(self._head), len(lines))
        if room > 0:
            self._head += [line.text[:_LONGEST] for line in lines[:room]]
        if self.lines < _LOOKED_AT:
            for line in lines[: _LOOKED_AT - self.lines]:
                self._weigh(line.text[:_LONGEST])
        self.lines += len(lines)

    def note(self, records: Sequence[Record]) -> None:
        """Take in records."""
        self.records.update([record.kind for record in records])
        self.readers.update([record.reader for record in records])
        trained = (record.step for record in records if record.kind == "train" and record.step is not None)
        if self.first_step is None:
            self.first_step = self.last_step = next(trained, None)
        back = (record.step for record in reversed(records) if record.kind == "train" and record.step is not None)
        self.last_step = next(back, self.last_step)

    def _weigh(self, text: str) -> None:
        self._signs += len(text)
        self._strange += len(_STRANGE.findall(text))
        numbers = len(_NUMBER.findall(text))
        if not numbers:
            return
        shape = _NUMBER.sub("0", text).strip()[:200]
        known = self._near.get(shape)
        if known is not None:
            known[0] += 1
        elif len(self._near) < _MOST_SHAPES:
            self._near[shape] = [1, min(numbers, 4) + _WORD * min(len(_WORDS.findall(text)), 4), text.strip()]


def read_records(
    stream: BinaryIO, makers: Sequence[Callable[[], Reader]], bounds: Bounds, found: Found
) -> Iterator[list[Record]]:
    """Yield the records of each block of ``stream``, which stands at ``bounds.start``; ``found`` is kept up to date.

    A record that was released early is not among them: it comes whole later.
    """
    begins = [offset for offset, _ in bounds.attempts if offset > bounds.start]
    tail, sniffer = Tail(offset=bounds.start), Sniffer([make() for make in makers])
    place = bounds.start
    while True:
        room = min(BLOCK, begins[0] - place) if begins else BLOCK
        data = _some(stream, room)
        place += len(data)
        found.size += len(data)
        ended = not data
        lines = tail.feed(data)
        over = ended or bool(begins and place >= begins[0])
        if over:
            lines += tail.flush()
        found.hear(lines)
        records = [record for line in lines for record in sniffer(line, 0.0, bounds.source)]
        if over:
            records += sniffer.flush()
            if sniffer.chosen is not None or not found.chosen:
                found.chosen, found.why = sniffer.chosen, sniffer.why()
        whole = [record for record in records if not record.early]
        found.note(whole)
        yield whole
        if ended:
            return
        if over:
            while begins and begins[0] <= place:  # an attempt that printed nothing begins where the next one does
                begins.pop(0)
            sniffer = Sniffer([make() for make in makers])


def _some(stream: BinaryIO, room: int) -> bytes:
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)  # of a pipe what is there by now
    return read(room)


class LowestRank:
    """Lets through the records of the lowest rank that prints; no rank counts as rank 0.

    Which rank is the lowest is only known at the end: until ``MOST`` records of higher ranks wait, one that turns up
    lower still takes their place. ``sick`` names the first non-finite record of each other rank.
    """

    MOST = 4096
    _MOST_RANKS = 4096

    def __init__(self) -> None:
        self.lowest: int | None = None
        self.ranks: set[int] = set()
        self.sick: dict[int, Record] = {}
        self.late = False
        self._waiting: list[Record] = []
        self._decided = False

    def __call__(self, records: Sequence[Record], *, ended: bool = False) -> list[Record]:
        """Return what of ``records``, and of those that waited, is of the lowest rank so far."""
        if self._decided and not self.lowest and not any(record.rank for record in records):
            return list(records)
        out: list[Record] = []
        for record in records:
            rank = record.rank or 0
            if len(self.ranks) < self._MOST_RANKS:
                self.ranks.add(rank)
            if rank not in self.sick and not _finite(record):
                self.sick[rank] = record
            if self.lowest is None or rank < self.lowest:
                self.late = self.late or self._decided
                self.lowest = rank
                self._waiting.clear()
            if rank == self.lowest:
                self._waiting.append(record)
                self._decided = self._decided or not rank or len(self._waiting) > self.MOST
            if self._decided and self._waiting:
                out += self._waiting
                self._waiting.clear()
        if ended:
            out += self._waiting
            self._waiting.clear()
        return out


def _finite(record: Record) -> bool:
    return all(value is None or math.isfinite(value) for value in (record.loss, record.grad_norm))
