"""The learned shape: once the general parse has read a line, the exact shape of that line as one regular expression.

Programs print the same shape a million times. A shape only ever repeats what the general parse found: the same literal
text, with other digits in dates and texts, and other plain numbers in the fields. Whatever differs goes back to the
general parse, so that a shape changes the speed of a reader and never what it reads; nothing of it need be remembered.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from overnight.events import Record
from overnight.readers.numbers import PLAIN, parse_number
from overnight.readers.prefix import DATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNSIGNED = PLAIN.removeprefix("-?")
_WHOLE = r"[0-9]{1,18}"
_WITH_COMMAS = r"[0-9]{1,3}(?:,[0-9]{3}){0,5}(?:\.[0-9]{1,20})?"
_DATES = re.compile(DATE)
_MOST_SLOTS = 48
_MOST_PADDING = 16


class Slot(NamedTuple):
    """One value of a line: its place, its field of ``Record`` ("" for extra), its key, power of ten, whether text."""

    begin: int
    end: int
    field: str
    key: str
    exponent: int = 0
    text: bool = False


class Shape:
    """One shape of line: ``match`` is tried on the text, ``record`` makes the record of a match."""

    __slots__ = ("_extra", "_fields", "_rank", "_reader", "match")

    def __init__(self, reader: str, rank: int | None, pattern: str, slots: Sequence[Slot]) -> None:
        """Compile ``pattern``, whose groups are the numbers of ``slots`` in their order."""
        self.match = re.compile(pattern).fullmatch
        self._reader = reader
        self._rank = rank
        numbered = list(enumerate(slots, 1))
        self._fields = [(slot.field, group, _converter(slot)) for group, slot in numbered if slot.field]
        self._extra = [(slot.key, group, _converter(slot)) for group, slot in numbered if not slot.field]

    def record(self, match: re.Match[str], offset: int, at: float, source: int) -> Record:
        """Return the record of a line that ``match`` matched."""
        fields: dict[str, Any] = {name: convert(match[group]) for name, group, convert in self._fields}
        return Record(
            reader=self._reader,
            source=source,
            offset=offset,
            at=at,
            rank=self._rank,
            extra={key: convert(match[group]) for key, group, convert in self._extra} if self._extra else None,
            **fields,
        )


def learn(text: str, record: Record, slots: Sequence[Slot]) -> Shape | None:
    """Return the shape of ``text``, which the general parse read as ``record`` from ``slots``; None when it has none.

    ``slots`` are the values in the order of the line, the step first. A shape that would not read the very line it was
    learned from as the same record (a text field, a NaN, a field that stands twice) is not returned.
    """
    if len(slots) > _MOST_SLOTS:
        return None
    pattern = _dates_free(text[: slots[0].begin], keep_digits=record.rank is not None)
    at = slots[0].begin
    for slot in slots:
        between = text[at : slot.begin]
        literal = between.rstrip(" ")
        if literal[-1:] in {":", "="}:
            pattern += re.escape(literal) + f" {{0,{_MOST_PADDING}}}+"
        else:
            pattern += re.escape(between)
        pattern += f"({_value(text, slot)})"
        at = slot.end
    shape = Shape(record.reader, record.rank, pattern + re.escape(text[at:]), slots)
    match = shape.match(text)
    if match is None or shape.record(match, record.offset, record.at, record.source) != record:
        return None
    return shape


def _dates_free(head: str, *, keep_digits: bool) -> str:
    """Return a pattern for what stands before the step: free digits in dates, and anywhere if there is no rank."""
    if not keep_digits:
        return _digits_free(head)
    pattern, at = "", 0
    for date in _DATES.finditer(head):
        pattern += re.escape(head[at : date.start()]) + _digits_free(date[0])
        at = date.end()
    return pattern + re.escape(head[at:])


def _digits_free(text: str) -> str:
    return "".join("[0-9]" if "0" <= character <= "9" else re.escape(character) for character in text)


def _value(text: str, slot: Slot) -> str:
    if slot.text:
        return re.sub("[0-9]+", "[0-9]{1,20}+", re.escape(text[slot.begin : slot.end]))
    if slot.field == "step":
        return _WHOLE
    if "," in text[slot.begin : slot.end]:
        return _WITH_COMMAS
    # a negative utilization is a program's word for "unknown"
    return _UNSIGNED if slot.field == "mfu" else PLAIN


def _converter(slot: Slot) -> Callable[[str], Any]:
    if slot.text:
        return str
    if slot.field == "step":
        return int
    if slot.exponent:
        return partial(parse_number, exponent=slot.exponent)
    return _float


def _float(text: str) -> float:
    return float(text.replace(",", ""))
