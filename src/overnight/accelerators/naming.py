"""Which accelerator a name means: what NVML, torch, ROCm, JAX or a person calls it. No rows and no peaks here.

Never by a part of a word, never "the nearest one". Forms with different peaks under one name are told apart by count of
units and memory where those are known; otherwise the answer is that nobody can say, with the names to choose from.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from overnight.accelerators import Match
from overnight.accelerators.entry import Entry
from overnight.accelerators.slices import units_of, visible
from overnight.accelerators.spelling import VARIANTS, Spelled, shown, spell
from overnight.accelerators.table import ENTRIES, Reading, readings

_MAY_DIFFER: Final = (0.9, 1.1)
"""Reported over nominal memory: GiB for GB, and what ECC and firmware keep."""
_ALIKE: Final = 0.6
_HARDLY: Final = 0.3
"""A name that has less in common with another is not near to it."""
_CPU: Final = re.compile(
    r"\b(?:cpu|xeon|epyc|ryzen|threadripper|core(?:\(tm\))? (?:ultra |i)[3579]|x86_64|aarch64|neoverse)\b",
    re.IGNORECASE,
)
_GFX: Final = re.compile(r"gfx[0-9a-f]{3,5}")
_HOW: Final = "give --gpu with a name of the table, or --peak-tflops"


def match(reported: str, *, units: int | None = None, memory_gb: float | None = None, arch: str | None = None) -> Match:
    """Return what a name stands for.

    ``units``: SMs or CUs that the device reports. ``memory_gb``: its memory in GB or GiB. ``arch``: "gfx942:sramecc+".
    A name of somebody else's making never raises.
    """
    units = units if units is not None and units > 0 else None
    memory_gb = memory_gb if memory_gb is not None and math.isfinite(memory_gb) and memory_gb > 0 else None
    spelled = spell(reported)
    if spelled is None:
        return Match(said=f"'{shown(reported)}' is too long to be a device's name: {_HOW}")
    if _CPU.search(reported):
        return Match(said=f"'{spelled.shown}' is a CPU, and no table has its peak: give --peak-tflops")
    if len(spelled.tokens) == 1 and _GFX.fullmatch(spelled.tokens[0]):
        return _by_arch(spelled, spelled.tokens[0], units, memory_gb)
    if spelled.generic and spelled.vendor in (None, "AMD"):
        return _by_arch(spelled, arch or "", units, memory_gb)
    found = [one for one in readings(spelled.tokens) if spelled.vendor in (None, one.entry.row.vendor)]
    fits = _one_each(one for one in found if not one.strange)
    if not fits:
        return _strange(spelled, found)
    meant = _meant(fits, units if spelled.slice is None else None)
    if not meant:
        return _ambiguous(spelled, [one.entry for one in fits])
    if len(meant) > 1:
        meant = _by_units(meant, units if spelled.slice is None else None)
        meant = _bare(meant) or _by_memory(meant, memory_gb if spelled.slice is None else None)
    return _answer(spelled, meant, units, memory_gb)


def _one_each(found: Iterable[Reading]) -> list[Reading]:
    """Return one reading of each row, the longest model first."""
    best: dict[str, Reading] = {}
    for one in sorted(found, key=lambda one: -len(one.model)):
        best.setdefault(one.entry.row.key, one)
    return list(best.values())


def _meant(fits: Sequence[Reading], units: int | None) -> list[Reading]:
    """Return the readings whose necessary words are there, or whose units stand for them."""
    return [
        one
        for one in fits
        if one.entry.needs <= one.rest or (one.entry.by_units and units is not None and units == one.entry.row.units)
    ]


def _by_units(meant: list[Reading], units: int | None) -> list[Reading]:
    """Return those with just that many units, or all where none has."""
    return [one for one in meant if units is not None and one.entry.row.units == units] or meant


def _bare(meant: Sequence[Reading]) -> list[Reading]:
    """Return the one form that the bare model means, where nothing else is said."""
    return [one for one in meant if one.entry.bare and not one.form] if len(meant) > 1 else list(meant)


def _by_memory(meant: list[Reading], memory_gb: float | None) -> list[Reading]:
    """Return those whose memory comes nearest to what is reported, or all where none comes near."""
    if memory_gb is None:
        return meant
    distance = {}
    for at, one in enumerate(meant):
        near = [memory_gb / size for size in one.entry.row.memory_gb if _near(memory_gb, size)]
        if near:
            distance[at] = min(abs(math.log(ratio)) for ratio in near)
    if not distance:
        return meant
    least = min(distance.values())
    return [meant[at] for at, far in distance.items() if far == least]


def _near(memory_gb: float, size: float) -> bool:
    """Whether a reported memory can be that of a nominal size."""
    return _MAY_DIFFER[0] <= memory_gb / size <= _MAY_DIFFER[1]


def _answer(spelled: Spelled, meant: Sequence[Reading], units: int | None, memory_gb: float | None) -> Match:
    """Return the answer for rows that are left: one, several of one peak, or nobody can say."""
    entries = [one.entry for one in meant]
    first = entries[0]
    if any(one.row.peaks != first.row.peaks or one.row.units != first.row.units for one in entries):
        return _ambiguous(spelled, entries)
    entry = first if len(entries) == 1 else _common(entries, meant[0].model)
    part = visible(entry, units, spelled.slice, memory_gb=memory_gb)
    if part.share is None:
        keys = [one.row.key for one in entries]
        same = [one.row.key for one in ENTRIES if units and one.row.units == units and _related(one, first)]
        return Match(said=f"'{spelled.shown}': {part.said}; {_HOW}", closest=tuple(dict.fromkeys(same + keys))[:4])
    return Match(accelerator=entry.row, share=part.share, said=part.said)


def _related(one: Entry, other: Entry) -> bool:
    """Whether two rows share the spelling of a model."""
    return bool(set(one.models) & set(other.models))


def _common(entries: Sequence[Entry], model: str) -> Entry:
    """Return one row for forms that have the same peaks: what they have in common, and nothing else."""
    first = entries[0].row
    keys = [one.row.key.split("-") for one in entries]
    shared = [part for part in keys[0] if all(part in key for key in keys)]
    bandwidths = {one.row.bandwidth for one in entries}
    known = set(model.split()) | set(shared)
    row = msgspec.structs.replace(
        first,
        key="-".join(shared) or first.key,
        name=" ".join(part for part in first.name.split() if part.lower() in known) or first.name,
        form=" or ".join(dict.fromkeys(one.row.form for one in entries)),
        memory_gb=tuple(sorted({size for one in entries for size in one.row.memory_gb})),
        bandwidth=bandwidths.pop() if len(bandwidths) == 1 else None,
    )
    return msgspec.structs.replace(entries[0], row=row)


def _ambiguous(spelled: Spelled, entries: Sequence[Entry]) -> Match:
    """Return that a name stands for several, with the names to choose from."""
    told = ", ".join(dict.fromkeys(one.row.name for one in entries))
    keys = tuple(dict.fromkeys(one.row.key for one in entries))
    if len(keys) == 1:
        said = f"'{spelled.shown}' does not say which one of its kind it is; the table has only {told}"
    else:
        said = f"'{spelled.shown}' may be one of several with different peaks: {told}"
    return Match(said=f"{said}; give --gpu {' or '.join(keys)}, or --peak-tflops", closest=keys)


def _strange(spelled: Spelled, found: Sequence[Reading]) -> Match:
    """Return that a name is in no row; why it is not the one it begins like; and what it is near to."""
    near = sorted(found, key=lambda one: (len(one.strange), -len(one.model)))
    keys = tuple(dict.fromkeys([*(one.entry.row.key for one in near), *_closest(spelled)]))[:3]
    said = f"'{spelled.shown}' is in no row of the table"
    if near and near[0].strange & VARIANTS:
        word = " ".join(one for one in spelled.tokens if one in near[0].strange)
        said = f"'{spelled.shown}' is no {near[0].entry.row.name}: '{word}' makes it another chip, which has no row"
    closest = f"; closest names: {', '.join(keys)}" if keys else ""
    return Match(said=f"{said}{closest}; {_HOW}", closest=keys)


def _closest(spelled: Spelled) -> list[str]:
    """Return the keys that look most like a name, best first; none for a word that names no model."""
    letters = "".join(spelled.tokens)[:80]
    scores: dict[str, float] = {}
    for entry in ENTRIES:
        for other in (entry.row.key, *entry.models):
            ratio = difflib.SequenceMatcher(None, letters, other.replace(" ", "").replace("-", "")).ratio()
            scores[entry.row.key] = max(ratio, scores.get(entry.row.key, 0.0))
    # Without a number it names no model at all; with one, somebody should see what names look like here.
    least = _ALIKE if not any(letter.isdigit() for letter in letters) else _HARDLY
    alike = [key for key, score in scores.items() if score >= least]
    return sorted(alike, key=lambda key: (-scores[key], key))[:3]


def _by_arch(spelled: Spelled, arch: str, units: int | None, memory_gb: float | None) -> Match:
    """Return what a device without a name is, by architecture, count of units and memory."""
    begin = arch.partition(":")[0].strip().lower()
    called = f"'{spelled.shown}'" if spelled.shown else "a device without a name"
    if not _GFX.fullmatch(begin):
        return Match(
            said=f"{called} is what a driver prints for want of a name, and the architecture is not known; {_HOW}"
        )
    kin = [one for one in ENTRIES if one.arch == begin]
    if not kin:
        return Match(said=f"{called} of architecture {begin} is in no row of the table; {_HOW}")
    keys = tuple(one.row.key for one in kin)
    if units is None and len(kin) > 1:
        told = ", ".join(f"{one.row.name} has {units_of(one)}" for one in kin)
        return Match(said=f"{called} of {begin}: the count of CUs is needed ({told}); {_HOW}", closest=keys)
    same = [one for one in kin if units is None or one.row.units == units]
    if not same:
        maybe = "; 80 are an MI308X, which has no row" if begin == "gfx942" and units == 80 else ""
        return Match(
            said=f"{called} of {begin} with {units} CUs is in no row of the table{maybe}; {_HOW}", closest=keys
        )
    sized = [one for one in same if memory_gb is not None and any(_near(memory_gb, gb) for gb in one.row.memory_gb)]
    left = sized or same
    if any(one.row.peaks != left[0].row.peaks for one in left):
        return _ambiguous(spelled, left)
    names = " or ".join(one.row.name for one in left)
    return Match(accelerator=left[0].row, said=f"{begin} with {units_of(left[0])} is {names}")
