"""HTML and SVG as values: the one place of the report that escapes, so that no text is forgotten.

A plain ``str`` is always text and is escaped; only ``el``, ``join`` and ``raw`` make ``Markup``. Pure: no file,
clock or network. No content, no style and no word of the page stands here.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

LIMIT: Final = 1000
"""Characters of one text that are shown unless the caller says otherwise; what is cut is counted."""

# What moves a cursor, colours or retitles a terminal is dropped; what could reorder a line, hide in it, or may not
# stand in XML at all is shown as U+FFFD.
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?|\x00")
_HARMFUL: Final = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
_VOID: Final = frozenset({"meta", "link", "br", "hr"})

Attribute = str | int | float | None


class Markup(str):
    """Text that is HTML already. Made by the functions of this file only."""

    __slots__ = ()


Child = str | None
"""What may stand inside an element: ``Markup`` as it is, any other ``str`` as text, None for nothing."""


def shown(text: str, limit: int = LIMIT) -> str:
    """Return text as a person may see it: harmless, and at most ``limit`` characters with a count of the others."""
    over = len(text) - limit
    if over > 0:
        text = text[:limit]
    if not text.isprintable():
        text = _HARMFUL.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text).replace("\r\n", "\n"))
    return f"{text}… ({over:,} more characters)" if over > 0 else text


def begun(name: str) -> str:
    """Return a name as a heading begins: with a capital."""
    return name[:1].upper() + name[1:]


def escaped(child: Child) -> Markup:
    """Return a child as markup; quotes need no escape between tags, and would make a hostile page six times as long."""
    if child is None:
        return Markup()
    if isinstance(child, Markup):
        return child
    return Markup(html.escape(shown(str(child)), quote=False))


def text(value: str, limit: int) -> Markup:
    """Return text with a limit of its own."""
    return Markup(html.escape(shown(value, limit), quote=False))


def unbroken(value: str, limit: int = LIMIT) -> Markup:
    """Return a command whose words stay whole at a line's end: a browser would break "--steps" after its dashes."""
    return each(
        el("span", word, class_="word") if word.strip() else word for word in re.split(r"(\s+)", shown(value, limit))
    )


def sentence(value: str, limit: int) -> Markup:
    """Return text of ours in which flags and arrows stay whole; other long words may be broken."""
    parts = re.split(r"(--[a-z][a-z-]*|->)", shown(value, limit))
    return each(el("span", part, class_="word") if at % 2 else part for at, part in enumerate(parts))


def join(*children: Child) -> Markup:
    """Return children one after the other."""
    return Markup("".join(map(escaped, children)))


def each(children: Iterable[Child]) -> Markup:
    """Return many children one after the other."""
    return join(*children)


def raw(source: str) -> Markup:
    """Return a constant of ours (style, script) as it is. Never call this with anything that was read."""
    return Markup(source)


def el(tag: str, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element. ``class_`` and ``for_`` lose the underscore, others turn it into a dash; None leaves one out.

    An empty text as a value gives the bare attribute, which is what ``tabindex`` and the like never are.
    """
    marks = "".join(_attribute(name, value) for name, value in attributes.items() if value is not None)
    if tag in _VOID:
        return Markup(f"<{tag}{marks}>")
    return Markup(f"<{tag}{marks}>{join(*children)}</{tag}>")


def _attribute(name: str, value: Attribute) -> str:
    plain = name.rstrip("_").replace("_", "-")
    said = shown(value, 20_000_000) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else value
    return f' {plain}="{html.escape(str(said), quote=True)}"'
