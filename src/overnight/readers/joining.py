"""A mapping that is printed over several lines, put together into the one line that its reader can read.

Nothing in it is read here. What is opened and not closed within a few lines is given up: each of its lines then counts
as what it is, no mapping.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from overnight.tail import Line

MOST_LINES: Final = 20
LONGEST: Final = 65_536
"""Of one mapping, in characters."""

_VALUE = r"(?:[-+]?(?:[0-9.][-+0-9.eE]*|nan|NaN|inf|Infinity)|None|null|[Tt]rue|[Ff]alse)"
_BRACE = re.compile(r"[{}]")
# What the further lines of a mapping begin with: a name or a text, a bracket, or a value with what must follow it.
_GOES_ON = re.compile(
    rf"\s*(?:['\"}}\])\[,:]|[-+]?{_VALUE}\s*(?:[,}}\])]|$)|(?:[a-z]+\.)?(?:tensor|array|float[0-9]*)\()"
)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a mapping: its text so far, the place of its first line, and how many lines it has."""

    text: str
    offset: int
    source: int
    lines: int = 1


def opening(line: Line, source: int, quote: str) -> tuple[Opened, Line] | None:
    """Return the mapping with names in ``quote`` that ``line`` begins and does not end, and what stands before it.

    None where there is none.
    """
    text = line.text
    if line.cut or text.count("{") <= text.count("}"):
        return None
    stack: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            stack.append(brace.start())
        elif stack:
            stack.pop()
    begin = stack[0] if stack else len(text)
    if text[begin + 1 : begin + 16].lstrip(" ")[:1] not in {"", quote}:
        return None
    words = text.rfind("}", 0, begin) + 1  # what is whole before it is no part of it
    place = line.offset + len(text[:words].encode("utf-8", "replace"))
    return Opened(text=text[words:], offset=place, source=source), Line(text[:begin], line.offset)


def joined(opened: Opened, line: Line, source: int) -> Opened | None:
    """Return ``opened`` with one more line; None if that line is no part of it, or it has become too long."""
    if source != opened.source or line.cut or opened.lines >= MOST_LINES or _GOES_ON.match(line.text) is None:
        return None
    before = opened.text.rstrip()
    text = f"{before}{'' if before.endswith('{') else ' '}{line.text.strip()}"
    return (
        None if len(text) > LONGEST else Opened(text=text, offset=opened.offset, source=source, lines=opened.lines + 1)
    )


def whole(opened: Opened) -> Line | None:
    """Return the line that a mapping is on its own once it is closed, at the place where it began; None before."""
    text = opened.text
    return Line(text, opened.offset) if text.count("{") <= text.count("}") else None
