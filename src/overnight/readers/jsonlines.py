"""Lines that are a JSON object or end with one: ``{"step": 10, "loss": 2.3}``, ``... train_inner | {"loss": "2.3"}``.

What is in front of an object may only name a rank or an evaluation. An object may be printed over several lines.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overnight.readers.fields import EVAL_WORDS
from overnight.readers.joining import Opened, joined, opening, whole
from overnight.readers.leading import counted
from overnight.readers.mappings import (
    Place,
    flat,
    is_no_progress,
    is_of_evaluation,
    number_of,
    read_pairs,
    record_of,
    unwrapped,
)
from overnight.readers.prefix import strip_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overnight.events import Record
    from overnight.tail import Line

_START = re.compile(r'\{\s{0,8}"')
_MOST_OBJECTS = 16
_PROGRESS = frozenset("dt_s tokens_per_s samples_per_s grad_norm tokens".split())
# names under which a line says what it is about
_ABOUT = frozenset("mode split phase stage event kind type prefix set subset msg message".split())
_RETELLING = re.compile(
    r"(?<![a-z])(?:checkpoint|ckpt|sav(?:e|ed|ing)|resum\w{0,4}|restor\w{0,4}|load\w{0,4}|skip\w{0,4}|best|summary"
    r"|config|finish\w{0,4}|final)(?![a-z])",
    re.IGNORECASE,
)


class JsonLines:
    """Reads JSON objects with a step or an epoch; one with only the loss of an evaluation is kind "eval".

    NaN and Infinity may stand bare, as Python writes them, or quoted, as any number may; of a name that stands twice
    the one that is no finite number counts, else the last.
    """

    name = "jsonlines"
    always = frozenset({"loss"})

    def __init__(self) -> None:
        """Begin with no object open."""
        self._opened: Opened | None = None

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``; () for an object that tells no progress of its own, None for no object."""
        if self._opened is not None:
            self._opened = joined(self._opened, line, source)
            full = None if self._opened is None else whole(self._opened)
            if self._opened is not None and full is None:
                return None
            self._opened, line = None, full or line
        if "{" not in line.text:
            return None
        opened = opening(line, source, '"')
        if opened is not None:
            self._opened, line = opened
        return self._read(line, at, source) if "}" in line.text else None

    def holds(self, source: int, offset: int) -> bool:
        """Say whether an object that began on the line at ``offset`` is not whole yet."""
        opened = self._opened
        return opened is not None and (opened.source, opened.offset) == (source, offset)

    def snapshot(self) -> Any:
        """Return the object that is open; None for none."""
        return None if self._opened is None else msgspec.to_builtins(self._opened)

    def restore(self, state: Any) -> None:
        """Go on from a snapshot."""
        self._opened = None if state is None else msgspec.convert(state, Opened)

    def _read(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        text = line.text
        records: list[Record] = []
        mine = False
        for begin, content in _objects(text):
            wrapper, about = unwrapped(content)
            reading = counted(read_pairs(flat(content), wrapper), text[text.rfind("}", 0, begin) + 1 : begin])
            if reading.step is None and "epoch" not in reading.values:
                continue
            mine = True
            before = text[:begin]
            evaluating = not EVAL_WORDS.isdisjoint(re.split(r"[^a-z]+", before.lower())) if begin else False
            evaluating = evaluating or is_of_evaluation(before, about)
            nothing = reading.kind is None and _PROGRESS.isdisjoint(reading.named)
            if nothing or is_no_progress(before) or _retells(about) or "train_num_updates" in content:
                continue
            kind: Literal["train", "eval"] = "eval" if evaluating or reading.kind == "eval" else "train"
            rank = strip_prefix(text, 0, begin)[0] if begin else None
            here = Place(at, source, len(records))
            records.append(record_of(reading, line, reader=self.name, kind=kind, rank=rank, place=here))
        return tuple(records) if records or mine else None


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (begin, content) of the objects in ``text``: one up to its end, or several that two writers have glued."""
    found = _START.search(text)
    if found is None:
        return
    begin = found.start()
    if text.count('"loss"') > 1:
        yield from _glued(text, begin)
        return
    try:
        content = msgspec.json.decode(text[begin:])
    except (msgspec.DecodeError, RecursionError):
        yield from _glued(text, begin)
        return
    if isinstance(content, dict):
        yield begin, content


def _glued(text: str, begin: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects that begin at ``begin`` or behind it, also with bare NaN and with text between them."""
    decoder = json.JSONDecoder(object_pairs_hook=_odd_first)
    at: int | None = begin
    for _ in range(_MOST_OBJECTS):
        if at is None:
            return
        try:
            content, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            # what is broken here may hold objects of its own, which are not the whole: go on behind it
            end = text.find("}{", at) + 1 or len(text)
        else:
            if isinstance(content, dict):
                yield at, content
        found = _START.search(text, end)
        at = None if found is None else found.start()


def _odd_first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object in which a name that stands twice has the value that is NaN or infinite, if one is."""
    content = dict(pairs)
    if len(content) < len(pairs):
        for key, value in pairs:
            number = number_of("", value)
            if number is not None and not math.isfinite(number):
                content[key] = value
    return content


def _retells(content: dict[str, Any]) -> bool:
    """Say whether an object only speaks of a step: of one saved, resumed from or skipped."""
    return any(
        isinstance(value, str) and _RETELLING.search(value[:200]) is not None
        for key, value in content.items()
        if key.lower() in _ABOUT
    )
