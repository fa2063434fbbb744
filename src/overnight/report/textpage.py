"""A page of text for a terminal: lines, titles and labelled rows, none wider than it is, every text cleaned.

Pure: texts in, lines out. What is said is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap

_LABEL = 14
_WIDEST = 26
_ROOMY = 70

Clean = Callable[[str], str]


class Page:
    """Lines of at most ``width`` columns, all of them cleaned."""

    def __init__(self, clean: Clean, width: int) -> None:
        self.clean = clean
        self.width = width
        self.lines: list[str] = []

    def add(self, said: str, indent: str = "", first: str | None = None) -> None:
        """Add a text, folded; a path too long for a line is broken rather than cut."""
        lead = indent if first is None else first
        self.lines += wrap(
            self.clean(said), self.width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False
        ) or [lead.rstrip()]

    def line(self, said: str) -> None:
        """Add one line, cut where the page ends."""
        shown = self.clean(said)
        self.lines.append((shown if len(shown) <= self.width else shown[: self.width - 1] + "…").rstrip())

    def title(self, said: str) -> None:
        """Begin a section."""
        self.lines += ["", said]

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Add labelled rows, all texts as far right as the longest label asks for; no section without any."""
        if rows:
            self.title(title)
        longest = max((len(self.clean(label)) + 1 for label, _ in rows), default=0)
        wide = max(_LABEL, min(longest, _WIDEST if self.width >= _ROOMY else _LABEL))
        for label, said in rows:
            name, first = self.clean(label), " " * (wide + 2)
            if len(name) < wide:
                first = f"  {name:<{wide - 1}} "
            else:  # on a line of its own, or the text beside it would stand out of its column
                self.add(label, "    ", "  ")
            self.add(said, " " * (wide + 2), first=first)
