"""Lines that hold more than one record: where each begins and ends, and which numbers touch a neighbour.

``PYTHONUNBUFFERED`` makes Python write a text and its newline apart, so that two writers glue their lines. Nothing here
knows a shape: a reader says where records may start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from overnight.readers.fields import PARTIAL_WORDS, UNIT
from overnight.readers.prefix import prefix_before, strip_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WORD_CHARACTERS = _LETTERS + "0123456789_./+-"
_LONGEST_WORD = 32
_NUMBER_LIKE = re.compile(rf"[-+]|[-+]?[0-9.][0-9.eE+-]*{UNIT}?")


class Segment(NamedTuple):
    """One record's part of a line.

    ``mark`` is the match of its start and ``end`` where its text ends; ``before`` are the words before it on the
    line and ``sentence`` the same without dates, levels, names and rank tags.
    """

    mark: re.Match[str]
    end: int
    rank: int | None
    before: str
    sentence: str


def segments(text: str, marks: Iterable[re.Match[str]]) -> list[Segment]:
    """Return the parts of ``text`` that the start marks divide it into.

    A mark inside a longer word (``substep``) is none, unless that word is a number or the rest of a half record.
    """
    found: list[Segment] = []
    for mark in marks:
        start = mark.start()
        if not _begins(text, start, after_another=bool(found)):
            continue
        if not found:
            rank, rest = strip_prefix(text, 0, start)
            found.append(Segment(mark, len(text), rank, text[:start], text[rest:start]))
            continue
        last = found[-1]
        rank, begin = prefix_before(text, last.mark.end(), start)
        found[-1] = last._replace(end=begin)
        # a launcher tags whole lines, so that a glued record without a tag belongs to the rank before it
        words = _last_words(text, begin)
        found.append(Segment(mark, len(text), last.rank if rank is None else rank, words, words))
    return found


def touches(text: str, value_end: int, segment: Segment, *, cut: bool) -> bool:
    """Return whether a value that ends at ``value_end`` touches the next record or the place where the line was cut.

    A comma or a period does not part them: it may be the first half of a thousands comma or of a fraction.
    """
    if segment.end == len(text) and not cut:
        return False
    return text[value_end : segment.end] in {"", ",", "."}


def _last_words(text: str, end: int) -> str:
    before = text[max(0, end - _LONGEST_WORD) : end]
    return before[len(before.rstrip(_LETTERS + " \t")) :]


def _begins(text: str, at: int, *, after_another: bool) -> bool:
    before = text[max(0, at - _LONGEST_WORD) : at]
    word = before[len(before.rstrip(_WORD_CHARACTERS)) :]
    if not word or _NUMBER_LIKE.fullmatch(word):
        return True
    return after_another and word.lower() in PARTIAL_WORDS
