"""What a pickle is read into: stand-ins for what it would import, call and fetch, and the keys of its dicts.

Values only. Keys are hashed only where that is cheap: the hash of a tuple that holds itself many times over takes for
ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

LONGEST_KEY = 16
"""Scalars in a tuple that is a key of a dict."""


class Unreadable(Exception):  # noqa: N818 - says what the bytes are; becomes a Found
    """The bytes are no pickle, not a whole one, or a larger one than is read."""


class TooLarge(Unreadable):
    """The pickle may well be good, and is larger than what is read."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a pickle would import: module and name, as Python 3 spells them."""

    name: str


@dataclass(eq=False, slots=True)
class Call:
    """An object as its pickle would make it: what is called, with which arguments, and what is put into it then."""

    name: str
    args: Any = ()
    state: Any = None
    items: dict[Any, Any] | None = None
    more: list[Any] | None = None


@dataclass(eq=False, slots=True)
class Persistent:
    """What lies outside the pickle: ``pid`` is what the pickle says of it."""

    pid: Any


@dataclass(eq=False, slots=True)
class Opaque:
    """A key of a dict that is not a number, a word or a short tuple of them; or bytes from elsewhere."""

    value: Any = None


_SAFE_KEYS = (str, bytes, bool, float, type(None), Symbol)


def key_of(value: Any) -> Hashable:
    """Return a key for a dict that is cheap to hash: the value itself where it is, else a stand-in for it."""
    if _plain_key(value) or isinstance(value, (Call, Persistent, Opaque)):
        key: Hashable = value
        return key
    if type(value) is tuple and len(value) <= LONGEST_KEY and all(map(_plain_key, value)):
        return value
    return Opaque(value)


def _plain_key(value: Any) -> bool:
    return isinstance(value, _SAFE_KEYS) or (type(value) is int and -(1 << 63) <= value < 1 << 64)
