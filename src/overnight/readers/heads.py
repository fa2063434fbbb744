"""Which lines look like those that came before: by their heads, the text in front of the first number.

A program prints its progress in the same words all night. A sentence that only looks like progress (a summary, a
target, a generated sample, a traceback) has a head that was never seen. Only text is looked at here.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from overnight.events import Record
    from overnight.tail import Line

FIRST: Final = 20
"""Training records at the beginning whose heads are all taken as known."""

KNOWN: Final = 3
"""Lines with the same head from which on it is known."""

_MOST_HEADS: Final = 256
_MOST_WAITING: Final = 128
_MOST_FIRST: Final = FIRST // 2  # more heads than this among the first records: here they mean nothing
_LONGEST: Final = 512
_KEPT: Final = 160
# Words that stand where a number would are numbers, too.
_NUMBER = re.compile(r"[0-9]|(?<![A-Za-z])(?i:nan|inf(?:inity)?|none|null|n/a|true|false)(?![A-Za-z])")
_NAMES_OF_DATES = re.compile(
    r"(?<![A-Za-z])(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?![A-Za-z])"
)
# What Python prints round a number that is still a tensor: `tensor(nan)` is where `2.5` was.
_CALL = re.compile(r"(?:(?:np|numpy|jnp|torch)\.)?(?:[tT]ensor|[aA]rray|DeviceArray|b?float)\(?$")
_ROUND_NUMBERS = " \t+-.\"'`([{*$"


def raw_head(text: str) -> str:
    """Return what stands before the first number of a line, as it is printed."""
    found = _NUMBER.search(text, 0, _LONGEST)
    return text[: _LONGEST if found is None else found.start()]


@lru_cache(maxsize=1024)
def head_of(raw: str) -> str:
    """Return a head without what may differ in lines of one kind: names of days, padding, signs, quotes."""
    bare = _NAMES_OF_DATES.sub("", raw).strip(" \t").rstrip(_ROUND_NUMBERS)
    return _CALL.sub("", bare).rstrip(_ROUND_NUMBERS)[:_KEPT]


class Heads:
    """The heads of the lines that gave training records.

    Those of the first ``FIRST`` records are known at once, others with their ``KNOWN``-th line that has no NaN or
    infinity for a loss: a program that is ill prints the lines it has always printed. ``usual`` are the beginnings of
    lines like the latest one whose head is known, up to the first digit: lines that begin so need not be asked about.
    It is empty while every record counts. Where nearly every line has a head of its own, all are trusted.
    """

    __slots__ = ("_counts", "_vain", "_waiting", "_young", "usual")

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._counts: dict[str, int] = {}
        self._young = FIRST
        self._vain = False
        self._waiting: dict[tuple[int, int], str] = {}
        self.usual: tuple[str, ...] = ()

    @property
    def waiting(self) -> bool:
        """Say whether there are lines whose records are still to come."""
        return bool(self._waiting)

    def knows(self, text: str) -> bool:
        """Say whether records of lines that begin as ``text`` does are trusted and would change nothing here."""
        return not self._young and (self._vain or self._counts.get(head_of(raw_head(text)), 0) >= KNOWN)

    def hold(self, line: Line, source: int) -> None:
        """Remember the head of a line whose record is held back by a reader."""
        if (source, line.offset) not in self._waiting:
            while len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[source, line.offset] = head_of(raw_head(line.text))

    def judge(self, records: tuple[Record, ...], line: Line | None) -> tuple[Record, ...]:
        """Return the records that came with ``line`` (None: at the end), those on a line with an unknown head marked.

        What was read from an earlier line has that line's head; a record of which nobody knows the line is trusted.
        """
        judged: list[Record] = []
        counted: str | None = None
        for record in records:
            head = self._head(record, line)
            if record.kind != "train" or head is None or self._accept(head, record, again=head == counted):
                judged.append(record)
            else:
                judged.append(msgspec.structs.replace(record, strange=True, glued=True))
            if record.kind == "train" and head is not None:
                counted = head
        return tuple(judged)

    def snapshot(self) -> dict[str, Any]:
        """Return all that decides about the next line, as builtins."""
        return {
            "counts": dict(self._counts),
            "young": self._young,
            "vain": self._vain,
            "waiting": [[source, offset, head] for (source, offset), head in self._waiting.items()],
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Heads:
        """Go on where ``snapshot`` was taken."""
        one = cls()
        one._counts = dict(state["counts"])
        one._young, one._vain = state["young"], state["vain"]
        one._waiting = {(source, offset): head for source, offset, head in state["waiting"]}
        return one

    def _head(self, record: Record, line: Line | None) -> str | None:
        key = record.source, record.offset
        if key in self._waiting:
            return self._waiting[key] if record.early else self._waiting.pop(key)
        if line is None or line.offset != record.offset:
            return None
        raw = raw_head(line.text)
        head = head_of(raw)
        if not self._young and self._counts.get(head, 0) >= KNOWN:
            self.usual = tuple(raw + digit for digit in "0123456789")
        return head

    def _accept(self, head: str, record: Record, *, again: bool) -> bool:
        """Say whether a record is trusted, and count its line; ``again``: the line was counted."""
        if self._young:
            self._note(head, KNOWN)
            self._young -= not record.early
            self._vain = not self._young and len(self._counts) > _MOST_FIRST
            return True
        count = self._counts.get(head, 0)
        if self._vain or count >= KNOWN:
            return True
        if not record.early and not again and (record.loss is None or math.isfinite(record.loss)):
            count += 1
            self._note(head, count)
        return count >= KNOWN

    def _note(self, head: str, count: int) -> None:
        """Keep a head; of too many the oldest that is not known goes, and with none of these it is not kept."""
        if head not in self._counts and len(self._counts) >= _MOST_HEADS:
            oldest = next((one for one, seen in self._counts.items() if seen < KNOWN), None)
            if oldest is None:
                return
            del self._counts[oldest]
        self._counts[head] = count
