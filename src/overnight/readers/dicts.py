"""Python dicts as ``print`` writes them, found in a line and decoded. Nothing is ever evaluated, and no name is judged.

JSON decoding with the quotes replaced is 5 times as fast as ``ast.literal_eval``, which is left for what is not JSON.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

import msgspec

LONGEST = 32_768
"""Of one dict, in characters."""

_FLAT = re.compile(r"\{'[^{}]{0,32768}\}")
_PIECE = re.compile(r"""'(?:[^'\\]|\\.){0,4096}'|"(?:[^"\\]|\\.){0,4096}"|[{}\[\]()]""")
_DEEPEST = 16
_BARE = re.compile(r"(?<=[:\[,( ])([-+]?)(nan|NaN|NAN|inf|Inf|INF|Infinity)(?=\s*[,}\]\)])")
_WRAPPED = re.compile(
    r"(?:(?:np|numpy|jnp|torch)\.)?(?:float|int|bfloat|tensor|array)(?:8|16|32|64)?\(\s*"
    r"([-+]?[0-9][-+0-9.eE]{0,40}|'-?(?:nan|inf)'|-?(?:nan|inf))\s*(?:,[^()]{0,80})?\)"
)


def find_dicts(text: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Return (begin, end, content) of every dict with names for keys that stands whole in ``text``, in their order."""
    found = []
    at = text.find("{'")
    while at >= 0:
        flat = _FLAT.match(text, at)
        end = None if flat is None else flat.end()
        content = None if end is None else decode(text[at:end])
        if content is None:  # braces inside
            end = _end_of(text, at)
            content = None if end is None else decode(text[at:end])
        if end is None or content is None:
            end = at + 2
        else:
            found.append((at, end, content))
        at = text.find("{'", end)
    return found


def decode(text: str) -> dict[str, Any] | None:
    """Return the dict that ``text`` is the ``repr`` of, nan and inf as the words they are; None if it is none."""
    if '"' not in text and "\\" not in text:
        content = _as_json(text)
        if content is None and ("None" in text or "True" in text or "False" in text or _BARE.search(text)):
            plain = text.replace(": None", ": null").replace(": True", ": true").replace(": False", ": false")
            content = _as_json(_BARE.sub(r"'\1\2'", plain))
        if content is not None:
            return content
    return _as_literal(text)


def _as_json(text: str) -> dict[str, Any] | None:
    try:
        content = msgspec.json.decode(text.replace("'", '"'))
    except (msgspec.DecodeError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _as_literal(text: str) -> dict[str, Any] | None:
    try:
        with warnings.catch_warnings():  # of a backslash that means nothing
            warnings.simplefilter("ignore")
            content = ast.literal_eval(_WRAPPED.sub(r"\1", _BARE.sub(r"'\1\2'", text)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return {str(key): value for key, value in content.items()}


def _end_of(text: str, begin: int) -> int | None:
    """Return the place behind the brace that closes the one at ``begin``; None if there is none, or it is too far."""
    depth = 0
    for piece in _PIECE.finditer(text, begin, begin + LONGEST):
        sign = piece[0]
        if sign in "{[(":
            depth += 1
            if depth > _DEEPEST:
                return None
        elif sign in "}])":
            depth -= 1
            if not depth:
                return piece.end()
    return None
