"""All rows, and which of them a name may mean: whole tokens, from the first to the last. No choice among forms here.

A row is found by a spelling of its model at the beginning, and by nothing but its own words after it: "RTX 4090 Laptop
GPU" begins like an RTX 4090 and is none. Where a person writes words together ("rtx4090", "h100pcie") it is the same
name; where one is taken apart ("L 40S") it is another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from overnight.accelerators import Accelerator, amd, geforce, nvidia, others, workstation
from overnight.accelerators.entry import Entry
from overnight.accelerators.spelling import HARMLESS

ENTRIES: Final[tuple[Entry, ...]] = (
    nvidia.ENTRIES + geforce.ENTRIES + workstation.ENTRIES + amd.ENTRIES + others.ENTRIES
)
ACCELERATORS: Final[tuple[Accelerator, ...]] = tuple(one.row for one in ENTRIES)
"""Every accelerator in every form."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One way to read a name. ``rest``: the words after the model; ``strange``: those of them that the row has not."""

    entry: Entry
    model: str
    rest: frozenset[str]
    strange: frozenset[str]
    form: frozenset[str]


class _Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """A spelling with its words written together. ``bounds``: where a separator may stand, in characters."""

    entry: Entry
    model: str
    word: str | None
    bounds: frozenset[int]


def _joints(spelling: str) -> frozenset[int]:
    """Return the places between the words of a spelling, its end included, in characters without separators."""
    found, at = set(), 0
    for one in spelling.split():
        at += len(one)
        found.add(at)
    return frozenset(found)


def _beginnings() -> dict[str, list[_Beginning]]:
    """Return every way in which a name may begin, by its letters without separators."""
    found: dict[str, list[_Beginning]] = {}
    for entry in ENTRIES:
        spellings: dict[str, tuple[str, str | None]] = {}
        for model in entry.models:
            spellings |= {f"{model} {word}": (model, word) for word in entry.words if word[0].isalpha()}
        spellings |= {model: (model, None) for model in entry.models}
        spellings.setdefault(entry.row.key.replace("-", " "), (entry.row.key.replace("-", " "), None))
        for spelling, (model, word) in spellings.items():
            one = _Beginning(entry=entry, model=model, word=word, bounds=_joints(spelling))
            found.setdefault(spelling.replace(" ", ""), []).append(one)
    return found


_BEGINNINGS: Final = _beginnings()
_BY_KEY: Final = {one.key: one for one in ACCELERATORS}


def by_key(key: str) -> Accelerator | None:
    """Return the accelerator of a key, None where there is none of that key."""
    return _BY_KEY.get(key)


def _memory_words(entry: Entry) -> frozenset[str]:
    """Return how names tell the sizes of a row's memory."""
    sizes = {f"{size:g}" for size in entry.row.memory_gb}
    return frozenset({f"{size}gb" for size in sizes} | {f"{size}g" for size in sizes})


def readings(tokens: tuple[str, ...]) -> Iterator[Reading]:
    """Yield every way to read a name that begins with a model of the table; several of one row are possible."""
    at, letters, bounds = 0, "", set[int]()
    for count, token in enumerate(tokens, 1):
        letters += token
        at += len(token)
        bounds.add(at)
        for one in _BEGINNINGS.get(letters, ()):
            if bounds <= one.bounds:
                yield _reading(one, tokens[count:])


def _reading(one: _Beginning, after: tuple[str, ...]) -> Reading:
    """Return what a beginning makes of the words behind it."""
    own, sizes = one.entry.words, _memory_words(one.entry)
    if one.entry.row.vendor == "Google" and after and after[-1].isascii() and after[-1].isdigit():
        after = after[:-1]  # "v5p-128": how many, not what
    rest = frozenset(after) | ({one.word} if one.word else set())
    named = one.model == one.entry.row.key.replace("-", " ") and one.model not in one.entry.models
    return Reading(
        entry=one.entry,
        model=one.model,
        rest=rest | one.entry.needs if named else rest,
        strange=rest - own - sizes - one.entry.needs - HARMLESS,
        form=(rest & own) | (one.entry.needs if named else frozenset()),
    )
