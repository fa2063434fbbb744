"""What is about to be stored: grouped by what it has in common, and made storable where a line said the impossible.

A log may say anything: an integer beyond 64 bits, half of a surrogate pair. SQLite, columns and UTF-8 hold neither, and
no record may stop the commit of all others. No database here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from overnight.batches import Batch, Entry
from overnight.events import Record, Verdict, jsonable
from overnight.history.chunks import Key
from overnight.history.cleaning import clean_extra, clean_text, number
from overnight.history.table import NUMBERS

_LEAST, _MOST = -(2**63), 2**63 - 1
_names = attrgetter("source", "kind", "rank", "reader", "glued", "per_device")


def grouped(entries: Iterable[Entry | Batch]) -> dict[Key, list[Batch | list[Entry]]]:
    """Return records by what they have in common, those of a group in the order in which they came."""
    groups: dict[Key, list[Batch | list[Entry]]] = {}
    loose: list[Entry] = []
    for piece in entries:
        if not isinstance(piece, Batch):
            loose.append(piece)
        elif len(piece):
            if loose:
                _group(loose, groups)
                loose = []
            key = Key(piece.source, piece.attempt, "train", piece.rank, piece.reader, False, piece.per_device)
            groups.setdefault(key, []).append(piece)
    if loose:
        _group(loose, groups)
    return groups


def _group(loose: list[Entry], groups: dict[Key, list[Batch | list[Entry]]]) -> None:
    """Put single records, at least one, behind what ``groups`` has of their kinds."""
    names = list(zip(map(itemgetter(1), loose), map(_names, map(itemgetter(0), loose)), strict=True))
    if names.count(names[0]) == len(names):
        parts = {names[0]: loose}
    else:
        parts = {}
        for name, entry in zip(names, loose, strict=True):
            parts.setdefault(name, []).append(entry)
    for (attempt, (source, *rest)), some in parts.items():
        groups.setdefault(Key(source, attempt, *rest), []).append(some)


def storable(pieces: Iterable[Entry | Batch]) -> tuple[list[Entry | Batch], int]:
    """Return every record as one that can be stored, and how many cannot be at all and are left out."""
    entries = list(chain.from_iterable(piece if isinstance(piece, Batch) else (piece,) for piece in pieces))
    kept: list[Entry | Batch] = [one for one in map(_storable, entries) if one is not None]
    return kept, len(entries) - len(kept)


def _storable(entry: Entry) -> Entry | None:
    """Return a record with what does not fit into 64 bits unknown (a float, of numbers that need not be whole)."""
    record = entry.record
    try:
        said = msgspec.structs.replace(
            record,
            reader=clean_text(record.reader),
            at=record.at if isfinite(record.at) else 0.0,
            rank=_whole(record.rank),
            step=_whole(record.step),
            extra=None if record.extra is None else clean_extra(record.extra),
            **{name: number(getattr(record, name)) for name in NUMBERS},
        )
        msgspec.convert(msgspec.to_builtins(said), Record)  # a plug-in's reader may have put anything in
    except (TypeError, ValueError, AttributeError, msgspec.MsgspecError):
        return None
    places = (said.source, said.offset, said.part, entry.attempt, entry.segment)
    return entry._replace(record=said) if all(_LEAST <= one <= _MOST for one in places) else None


def _whole(value: int | None) -> int | None:
    return value if value is None or _LEAST <= value <= _MOST else None


def storable_verdict(one: Verdict) -> Verdict:
    """Return a verdict as one that can be stored."""
    return msgspec.structs.replace(
        one,
        text=clean_text(one.text),
        step=_whole(one.step),
        evidence=json.loads(json.dumps(clean_tree(jsonable(one.evidence)))),
    )


def clean_tree(value: Any) -> Any:
    """Return builtins with every text and integer as one that can be stored; integers stay integers."""
    if isinstance(value, dict):
        return {clean_tree(key): clean_tree(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_tree(one) for one in value]
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, _LEAST), _MOST)
    return value
