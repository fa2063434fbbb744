"""How a name is taken apart: noise, makers, tokens, and the MIG slice in it. No rows here, and no choice among them."""

from __future__ import annotations

import re
from typing import Final

import msgspec

LONGEST: Final = 200
"""Characters of the longest text that is looked at as a name."""
MAKERS: Final = {
    "nvidia": "NVIDIA", "tesla": "NVIDIA", "geforce": "NVIDIA", "amd": "AMD", "instinct": "AMD", "google": "Google",
    "cloud": "Google", "aws": "AWS", "intel": "Intel", "habana": "Intel", "apple": "Apple",
}  # fmt: skip
"""Words that stand before a name and change nothing in it, and whose they are."""
HARMLESS: Final = frozenset("gpu tensor core accelerator graphics card".split())
"""Words behind a name that change nothing in it."""
GENERIC: Final = frozenset(("", "radeon graphics", "graphics", "radeon", "n/a", "unknown", "none"))
"""What ROCm gives for a name where it has none; the maker's words are off."""
VARIANTS: Final = frozenset("laptop mobile max q maxq d dd super ti xt m".split())
"""Words that make a name that of another chip."""

_PLACE: Final = re.compile(r"^gpu\s*[0-9]+\s*:\s*", re.IGNORECASE)
_IDENTITY: Final = re.compile(r"\(uuid:.*$", re.IGNORECASE)
_LSPCI: Final = re.compile(r"^.*\[([^\[\]]+)\]\s*(?:\(rev [0-9a-f]+\))?$", re.IGNORECASE)
_MARKS: Final = re.compile(r"\((?:r|tm|c)\)|[®™©]", re.IGNORECASE)
_BETWEEN: Final = re.compile(r"[\s_,/()-]+")
_MIG: Final = re.compile(r"^(.*?)[\s_-]+mig(?:[\s_-]+(.*))?$", re.IGNORECASE)
_PROFILE: Final = re.compile(r"(?:([1-9])c\.)?([1-9])g\.([0-9]{1,3})gb(?:[+-][a-z.]+)*", re.IGNORECASE)


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG slice as its name says it. ``compute``, ``instances``: 1 and 3 of "1c.3g.20gb"; None where not said."""

    instances: int | None = None
    compute: int | None = None
    memory_gb: int | None = None


class Spelled(msgspec.Struct, frozen=True, kw_only=True):
    """A name in parts. ``vendor``: whose word stood before it, None for nobody's. ``shown``: for a sentence."""

    tokens: tuple[str, ...]
    shown: str
    vendor: str | None = None
    slice: Slice | None = None

    @property
    def generic(self) -> bool:
        """Whether this is no name at all, but what a driver prints for want of one."""
        return " ".join(self.tokens) in GENERIC or self.tokens == ("n", "a")


def shown(reported: str) -> str:
    """Return a name for a sentence: one line, printable, not long."""
    text = " ".join("".join(one if one.isprintable() else " " for one in reported[: 4 * LONGEST]).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def spell(reported: str) -> Spelled | None:
    """Take a name apart; None for a text too long to be one."""
    text = _IDENTITY.sub("", _PLACE.sub("", reported.strip()[: LONGEST + 1])).strip()
    if len(text) > LONGEST:
        return None
    listed = _LSPCI.match(text)
    text = _MARKS.sub(" ", listed[1] if listed else text)
    found = _MIG.match(text)
    base, part = (found[1], _slice(found[2] or "")) if found else (text, None)
    tokens = [one for one in _BETWEEN.split(base.lower()) if one]
    vendor = None
    while tokens and tokens[0] in MAKERS:
        vendor = MAKERS[tokens.pop(0)]
    return Spelled(tokens=tuple(tokens), shown=shown(reported), vendor=vendor, slice=part)


def _slice(profile: str) -> Slice:
    """Return what the profile behind "MIG" says."""
    found = _PROFILE.fullmatch(profile.strip())
    if found is None:
        return Slice()
    return Slice(instances=int(found[2]), compute=int(found[1]) if found[1] else None, memory_gb=int(found[3]))
