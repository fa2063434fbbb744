"""How much of an accelerator is visible: MIG slices and partitions by their count of SMs or CUs. No names here.

What is no known part of the chip is a chip of another kind under the same name, and nobody's peak is scaled to it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from overnight.accelerators.entry import Entry
from overnight.accelerators.spelling import Slice

_AMPERE: Final = {1: 14, 2: 28, 3: 42, 4: 56, 7: 98}
_AMPERE_SMALL: Final = {1: 14, 2: 28, 4: 56}
_HOPPER: Final = {1: 16, 2: 32, 3: 60, 4: 64, 7: 132}
_HOPPER_WIDE: Final = 26  # the slice of one instance and two shares of memory
_SMS: Final = {
    **dict.fromkeys("a100 a100-sxm4 a100-pcie a100-40gb a100-80gb".split(), _AMPERE),
    **dict.fromkeys("a100-sxm4-40gb a100-sxm4-80gb a100-pcie-40gb a100-pcie-80gb".split(), _AMPERE),
    **dict.fromkeys("a800 a800-sxm4 a800-pcie".split(), _AMPERE),
    "a30": _AMPERE_SMALL,
    **dict.fromkeys("h100-sxm h100-nvl h200-sxm h200-nvl h800-sxm gh200".split(), _HOPPER),
}
"""SMs of a slice by its instances, as NVIDIA's guide and ``nvidia-smi mig -lgip`` list them."""
_SLICED: Final = frozenset("h100-pcie h800-pcie h20 b100 b200 gb200 b300 gb300 rtx-pro-6000-workstation".split())
"""Those that can be sliced, but whose slices are not known here."""
_LARGEST: Final = 0.6  # of the units: a slice that is not in the list is smaller than this; more is another chip


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is visible. ``share`` None: nobody can say, and ``said`` tells why."""

    share: float | None
    said: str = ""


def visible(entry: Entry, units: int | None, part: Slice | None, *, memory_gb: float | None = None) -> Part:
    """Return how much of an accelerator a device shows that reports a count of units, or a slice in its name.

    ``memory_gb``: what it reports; a device with all the memory and few units is no slice of an unlisted size.
    """
    if part is not None:
        return _sliced(entry, units, part)
    full = entry.row.units
    if units is None or full is None or units == full:
        return Part(share=1.0)
    name = _unit(entry)
    said = f"{units} of {full} {name} are visible"
    if units < full and units in entry.parts:
        return Part(share=units / full, said=f"a partition: {said}")
    known = _SMS.get(entry.row.key)
    can = known is not None or entry.row.key in _SLICED
    whole = memory_gb is not None and memory_gb >= 0.9 * min(entry.row.memory_gb, default=math.inf)
    small = units <= full * _LARGEST and not whole
    if can and units < full and (small or units in (known or {}).values()):
        return Part(share=units / full, said=said)
    if entry.row.key == "mi300x" and units in (20, 40, 80):
        return Part(share=None, said=f"{units} CUs are an MI308X, which may give the name MI300X; it has no row")
    return Part(
        share=None, said=f"the device has {units} {name} and a {entry.row.name} has {full}: it is another chip"
    )  # fmt: skip


def _sliced(entry: Entry, units: int | None, part: Slice) -> Part:
    """Return the share of a MIG slice: by its units where they are reported, otherwise by its profile."""
    full, listed = entry.row.units, _listed(entry, part)
    if full is None:
        return Part(share=None, said=f"a MIG slice of a {entry.row.name}, whose count of SMs is not known here")
    whole = units == full and part.instances != 7  # reported of the card and not of the slice
    count = units if units is not None and units <= full and not whole else listed
    if count is None:
        return Part(
            share=None,
            said=f"a MIG slice of a {entry.row.name}, and how many of its {full} SMs it has is not known: "
            f"it is known where the device reports them",
        )
    return Part(share=count / full, said=f"a MIG slice: {count} of {full} SMs")


def _listed(entry: Entry, part: Slice) -> int | None:
    """Return the SMs of a slice by its profile, None where no list has it."""
    known = _SMS.get(entry.row.key)
    if known is None or part.instances is None:
        return None
    whole = known.get(part.instances)
    if part.compute is not None and part.compute != part.instances:
        each = known[1]  # Ampere's compute instances are alike, Hopper's are not
        return each * part.compute if known is not _HOPPER and whole and part.compute < part.instances else None
    total = min(entry.row.memory_gb, default=0)
    if known is _HOPPER and part.instances == 1 and part.memory_gb and part.memory_gb > total / 6:
        return _HOPPER_WIDE
    return whole


def _unit(entry: Entry) -> str:
    """Return what a maker calls its units."""
    return {"NVIDIA": "SMs", "AMD": "CUs"}.get(entry.row.vendor, "units")


def units_of(entry: Entry) -> str:
    """Return a row's count of units with its name, "" where it is not known."""
    return f"{entry.row.units} {_unit(entry)}" if entry.row.units else ""
