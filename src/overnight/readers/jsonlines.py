"""Lines that are a JSON object or end with one: ``{"step": 10, "loss": 2.3}``, ``... train_inner | {"loss": "2.3"}``.

What is in front of an object may only name a rank or an evaluation. A line needs no other line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from overnight.readers.fields import EVAL_WORDS
from overnight.readers.mappings import Place, flat, read_pairs, record_of
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

    NaN and Infinity may stand bare, as Python writes them, or quoted, as any number may.
    """

    name = "jsonlines"
    always = frozenset({"loss"})

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Return the records of ``line``; () for an object that tells no progress of its own, None for no object."""
        text = line.text
        if "{" not in text or "}" not in text:
            return None
        records: list[Record] = []
        mine = False
        for begin, content in _objects(text):
            reading = read_pairs(flat(content))
            if reading.step is None and "epoch" not in reading.values:
                continue
            mine = True
            before = text[:begin]
            evaluating = not EVAL_WORDS.isdisjoint(re.split(r"[^a-z]+", before.lower())) if begin else False
            evaluating = evaluating or _says(content, EVAL_WORDS)
            nothing = reading.kind is None and _PROGRESS.isdisjoint(reading.named)
            if nothing or _retells(content) or "train_num_updates" in content:
                continue
            kind: Literal["train", "eval"] = "eval" if evaluating or reading.kind == "eval" else "train"
            rank = strip_prefix(text, 0, begin)[0] if begin else None
            here = Place(at, source, len(records))
            records.append(record_of(reading, line, reader=self.name, kind=kind, rank=rank, place=here))
        return tuple(records) if records or mine else None

    def snapshot(self) -> None:
        """Return None: a line needs no other line."""

    def restore(self, state: Any) -> None:
        """Nothing to restore."""


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (begin, content) of the objects in ``text``: one up to its end, or several that two writers have glued."""
    found = _START.search(text)
    if found is None:
        return
    begin = found.start()
    try:
        content = msgspec.json.decode(text[begin:])
    except (msgspec.DecodeError, RecursionError):
        yield from _glued(text, begin)
        return
    if isinstance(content, dict):
        yield begin, content


def _glued(text: str, begin: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects that begin at ``begin`` or behind it, also with bare NaN and with text between them."""
    decoder = json.JSONDecoder()
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


def _says(content: dict[str, Any], words: frozenset[str]) -> bool:
    """Say whether an object calls itself one of ``words``."""
    return any(
        isinstance(value, str) and len(value) <= 32 and not words.isdisjoint(re.split(r"[^a-z]+", value.lower()))
        for key, value in content.items()
        if key.lower() in _ABOUT
    )


def _retells(content: dict[str, Any]) -> bool:
    """Say whether an object only speaks of a step: of one saved, resumed from or skipped."""
    return any(
        isinstance(value, str) and _RETELLING.search(value[:200]) is not None
        for key, value in content.items()
        if key.lower() in _ABOUT
    )
