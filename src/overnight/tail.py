"""Bytes to lines: the first room of the flow, pure and incremental.

What may not enter: clocks, files, processes, any import of ours. Bytes come as an argument in pieces of any size, and
the lines that come out do not depend on how the bytes were cut.
"""

from __future__ import annotations

import re
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LINE = 65_536

# Carriage returns and backspaces end a line as a newline does. A translation keeps every byte's place, so offsets stay.
_ENDS = bytes.maketrans(b"\r\x08", b"\n\n")

# ECMA-48 sequences: operating system commands and other strings up to BEL or ST, control sequences, two-byte and
# charset escapes. None crosses a line's end and each may be unfinished (cut by the cap or by a writer that died).
_ESCAPES = re.compile(
    r"\x1b(?:"
    r"[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\[[0-?]*[ -/]*[@-~]?"
    r"|[ -/]+[0-~]?"
    r"|[0-~]"
    r")?"
)


class Line(NamedTuple):
    """One line without its end and without escapes, and where it stood.

    ``offset`` counts bytes from the start of the source to the line's first byte; ``cut`` says that the line was longer
    than the cap and only its beginning is here, so that a number at its very end may be half a number.
    """

    text: str
    offset: int
    cut: bool = False


class Tail:
    r"""Cuts a stream of bytes into lines.

    Lines end at ``\n``, at ``\r`` and at backspaces; escape sequences and NUL bytes are removed, invalid UTF-8 becomes
    U+FFFD and empty lines are dropped. Of a line longer than ``max_line`` bytes (NUL bytes not counted) the beginning
    is kept and the rest is skipped, so memory stays bounded and time linear whatever is written.
    """

    __slots__ = ("_cut", "_max_line", "_partial", "_start", "offset")

    def __init__(self, max_line: int = MAX_LINE, *, offset: int = 0) -> None:
        """Start at byte ``offset`` of a source; ``max_line`` is in bytes and at least 1."""
        self._max_line = max_line
        self._partial = bytearray()
        self._start = offset
        self._cut = False
        self.offset = offset

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that ``data``, the next bytes of the source, completes."""
        lines, block, start = self.take(data)
        return lines + self.split(block, start) if block else lines

    def take(self, data: bytes) -> tuple[list[Line], bytes, int]:
        """Return the unfinished line if ``data`` completes it, the whole lines behind it uncut, and where they begin.

        For whoever reads many lines at a time; ``split`` cuts them. Every line of them ends with a newline.
        """
        if b"\r" in data or b"\x08" in data:
            data = data.translate(_ENDS)
        begin = self.offset
        self.offset += len(data)
        end = data.rfind(b"\n") + 1
        if not end:
            self._hold(data)
            return [], b"", begin
        lines: list[Line] = []
        first = 0
        if self._partial or self._start != begin:
            first = data.index(b"\n") + 1
            self._hold(data[: first - 1])
            lines = self._release(begin + first)
        self._start = begin + end
        if end < len(data):
            self._hold(data[end:])
        return lines, data[first:end], begin + first

    def flush(self) -> list[Line]:
        """Return the unfinished line, if there is one, and begin a new line: the writer has ended."""
        return self._release(self.offset)

    def snapshot(self) -> tuple[int, int, int, bytes, bool]:
        """Return all that ``restore`` needs, as builtins."""
        return (self._max_line, self.offset, self._start, bytes(self._partial), self._cut)

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Tail:
        """Return a tail that goes on exactly where ``snapshot`` was taken."""
        max_line, offset, start, partial, cut = state
        tail = cls(max_line)
        tail.offset = offset
        tail._start = start
        tail._partial = bytearray(partial)
        tail._cut = cut
        return tail

    def _hold(self, data: bytes) -> None:
        """Keep ``data``, which holds no line end, as the next part of the unfinished line."""
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        room = self._max_line - len(self._partial)
        if len(data) > room:
            self._cut = True
            data = data[:room]
        self._partial += data

    def _release(self, start: int) -> list[Line]:
        """Return the held line (none when it is empty) and let the next one start at ``start``."""
        text = _ESCAPES.sub("", self._partial.decode("utf-8", "replace"))
        lines = [Line(text, self._start, self._cut)] if text else []
        self._partial.clear()
        self._cut = False
        self._start = start
        return lines

    def split(self, block: bytes, start: int) -> list[Line]:
        """Return the lines of ``block``: whole lines that ``take`` gave, or some of them, the first at ``start``."""
        pieces = block.splitlines(keepends=True)
        if len(block) > self._max_line and max(map(len, pieces)) > self._max_line:
            return self._split_long(pieces, start)
        text = block.decode("utf-8", "replace")
        if "\0" in text:
            text = text.replace("\0", "")
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        # zip and map keep the loop in C: it runs a million times a second
        rows = zip(text.split("\n"), accumulate(map(len, pieces), initial=start), repeat(False))
        return [line for line in map(Line._make, rows) if line[0]]

    def _split_long(self, pieces: list[bytes], start: int) -> list[Line]:
        """Return the lines of ``pieces`` one by one, because some of them exceed the cap."""
        lines: list[Line] = []
        single = Tail(self._max_line, offset=start)
        for piece in pieces:
            single._hold(piece[:-1])
            lines += single._release(single._start + len(piece))
        return lines
