"""Turns a log's bytes into the lines that a terminal would show at the end: bars folded, nothing else lost.

A line that was written over (carriage return, backspace, cursor up) is shown in its last state only. What was written
over and is no earlier state of a bar (``bars`` tells) is shown on a line of its own, so no metric ever vanishes behind
a bar. Memory is bounded. No file, no clock, no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from overnight.bars import superseded, words_of
from overnight.printable import clean_line

LONGEST_LINE = 1 << 16
"""Bytes of a line that are kept together; a longer one comes in pieces."""

REACH = 200
"""Rows above the last one that a cursor may still get to; a terminal has hardly more."""

CALM_ROWS = 1000
"""After so many rows without a move up, rows are no longer held back for one."""

REMEMBERED = 256
"""So many texts that were written over are remembered, so that one which is drawn again and again is shown once."""

_TOKEN = re.compile(
    rb"(?P<text>(?:[^\r\n\x08\x1b\0]|\x1b\[[0-9;:]*m)+)"  # colours are left in the text until it is shown
    rb"|\r+|\n|\x08+|\0+"
    rb"|\x1b\[(?P<args>[0-?]*)[ -/]*(?P<verb>[@-~])"
    rb"|\x1b(?P<string>[\]PX^_])"
    rb"|\x1b[ -/]*(?P<short>[0-~])?"
)
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*m")
_STRING_END = re.compile(rb"\x07|\x1b\\?|(?=[\r\n])")
_CUT = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[ -/]*)")
_CUT_SIGN = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_CUT_BYTES = 64
_UPS = re.compile(rb"(?:\x1b\[\d*[AF](?:\x1b\[\d*K|\r)*)+")
_UP = re.compile(rb"\x1b\[(\d*)[AF]")


class Shown(NamedTuple):
    """One line to show and the offset of its first byte in the log."""

    offset: int
    text: str


def _bare(data: bytes) -> str:
    """Return the signs of a row, of which each takes a column."""
    return _COLOUR.sub(b"", data).decode("utf-8", "replace")


class _Row:
    """One row of the screen: what stands there, what that was written over, and what is to be shown above it."""

    __slots__ = ("above", "before", "begin", "column", "data", "drawn", "ended", "told")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.data = b""
        self.column: int | None = None  # where the next sign goes; None is the end
        self.before: tuple[int, bytes] | None = None
        self.above: list[Shown] = []
        self.drawn = False  # it was written over, or shown in part: if nothing is left there, it is no empty line
        self.ended = False
        self.told: str | None = None


class Lines:
    """Bytes in, lines out, unfinished ones kept back. The lines do not depend on how the bytes arrive.

    One exception: rows that were given out before a cursor first went up to them stay as they were.
    """

    def __init__(self, offset: int = 0) -> None:
        self._begin(offset)
        self._seen: dict[bytes, None] = {}

    def _begin(self, offset: int) -> None:
        self._rest = b""
        self._offset = offset  # of the first byte that was not taken in yet
        self._rows = [_Row(offset)]
        self._at = 0
        self._reach = 0
        self._calm = 0
        self._home = False
        self._in_string = False

    # -- in and out --------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> Iterator[Shown]:
        """Yield every line that ``data`` finishes; a line over 64 KiB comes in pieces."""
        data = self._rest + data
        drawing = b"\x1b" in data or b"\x08" in data or b"\0" in data or self._in_string
        drawing = drawing or bool(self._rows[self._at].column)  # a sign that is cut would be written over two columns
        if drawing:
            data = self._whole(data)
            self._look_ahead(data)
        else:
            self._rest = b""
        if drawing or self._reach or len(self._rows) > 1:
            yield from self._tokens(data)
        else:
            yield from self._plain(data)
        self._offset += len(data)
        yield from self._spill()

    def pending(self) -> str:
        """Return the unfinished line as it stands: a bar, a prompt."""
        for row in (self._rows[self._at], *reversed(self._rows)):
            if row.data.strip():
                return clean_line(row.data)
        return ""

    def standing(self) -> Iterator[Shown]:
        """Yield the rows that stand there unfinished, each state once; it will not come again as a finished line."""
        for row in self._rows:
            text = clean_line(row.data)
            if text.strip() and text != row.told:
                row.told = text
                yield Shown(row.begin, text)

    def flush(self) -> Iterator[Shown]:
        """Yield what is unfinished as the last lines."""
        if self._rest and not self._rest.startswith(b"\x1b"):
            self._write(self._rest, self._offset)
        yield from self._give(len(self._rows))
        self._begin(self._offset + len(self._rest))

    def restart(self) -> Iterator[Shown]:
        """Yield what was unfinished and begin again at offset 0: the log was truncated or replaced."""
        yield from self.flush()
        self._begin(0)

    def _whole(self, data: bytes) -> bytes:
        """Return ``data`` up to an escape sequence or a sign that is cut at its end; the rest waits for more."""
        last = data.rfind(b"\x1b", max(0, len(data) - _CUT_BYTES))
        cut = last if last >= 0 and _CUT.fullmatch(data, last) else len(data)
        if cut == len(data) and (sign := _CUT_SIGN.search(data, max(0, len(data) - 3))):
            cut = sign.start()
        self._rest = data[cut:]
        return data[:cut]

    def _look_ahead(self, data: bytes) -> None:
        """Find how far up the cursor will go, so that the rows it will write over are held back from the first on."""
        for ups in _UPS.finditer(data):
            far = sum(int(up[1][:4] or b"1") for up in _UP.finditer(ups[0]))
            self._reach = min(REACH, max(self._reach, far))

    def _plain(self, data: bytes) -> Iterator[Shown]:
        """Take in what moves no cursor but with carriage returns, which is nearly all that is ever printed."""
        at = self._offset
        rows = data.split(b"\n")
        last = len(rows) - 1
        for number, text in enumerate(rows):
            row = self._rows[0]
            if b"\r" in text:
                self._frames(text, at)
            elif number < last and not row.data and not row.drawn and row.before is None and len(text) <= LONGEST_LINE:
                yield Shown(at if text else row.begin, clean_line(text))
                at += len(text) + 1
                row.begin = at
                row.column = None
                continue
            elif text:
                self._write(text, at)
            at += len(text) + 1
            if number < last:
                yield from self._newline(at)

    def _frames(self, text: bytes, at: int) -> None:
        row = self._rows[0]
        frames = text.split(b"\r")
        said = [words_of(frame) for frame in frames]
        last = len(frames) - 1
        for number, frame in enumerate(frames):
            if number:
                row.column = 0
                # A state of a bar that the next one is written over: it would be forgotten then, so it is skipped now.
                over = number < last and said[number] == said[number + 1] and frames[number + 1]
                if over and len(frame) <= LONGEST_LINE:
                    at += len(frame) + 1
                    continue
            if frame:
                self._write(frame, at)
            at += len(frame) + 1

    def _tokens(self, data: bytes) -> Iterator[Shown]:
        """Take in anything, escape sequences included."""
        at, end = 0, len(data)
        while at < end:
            if self._in_string:  # titles, links, the clipboard: nothing of it is shown
                found = _STRING_END.search(data, at)
                if found is None:
                    return
                # An escape that ends a string without being its terminator begins a sequence of its own.
                at = found.start() if found[0] == b"\x1b" else found.end()
                self._in_string = False
                continue
            token = _TOKEN.match(data, at)
            if token is None:  # pragma: no cover (every byte begins a token)
                return
            first = data[at]
            if first == 0x1B and token["text"] is None:
                yield from self._escape(token, self._offset + at)
            elif first == 0x0A:
                yield from self._newline(self._offset + token.end())
            elif first == 0x0D:
                self._rows[self._at].column = 0
            elif first == 0x08:
                self._left(token.end() - at)
            elif first:
                self._write(token[0], self._offset + at)
            at = token.end()

    # -- the screen --------------------------------------------------------------------------------------------------

    def _write(self, data: bytes, at: int) -> None:
        row = self._rows[self._at]
        if row.column == 0:
            self._new_frame(row)
            row.column = None
        if row.column is None:
            if not row.data:
                row.begin = at
            self._append(row, data, at)
            return
        text, written = _bare(row.data), _bare(data)
        end = row.column + len(written)
        row.data = f"{text[: row.column]:<{row.column}}{written}{text[end:]}".encode()[:LONGEST_LINE]
        row.column = None if end >= len(text) else end

    def _append(self, row: _Row, data: bytes, at: int) -> None:
        while len(row.data) + len(data) > LONGEST_LINE:
            self._settle(row)
            cut = max(0, LONGEST_LINE - len(row.data))
            for _ in range(3):  # no sign is cut in two
                cut -= 0 < cut < len(data) and data[cut] & 0xC0 == 0x80
            row.above.append(Shown(row.begin, clean_line(row.data + data[:cut])))
            row.data, data, at = b"", data[cut:], at + cut
            row.begin, row.drawn = at, True
        row.data += data

    def _new_frame(self, row: _Row) -> None:
        """Begin to write over what stands in a row."""
        if not row.data:
            return
        if row.before is not None and row.data.isspace():  # a bar that was wiped
            row.data = b""
            return
        self._settle(row)
        row.before, row.data, row.drawn = (row.begin, row.data), b"", True

    def _settle(self, row: _Row) -> None:
        """Decide about what was written over: shown above what stands there now, or forgotten."""
        if row.before is None:
            return
        begin, data = row.before
        row.before = None
        bare, over = (_COLOUR.sub(b"", one) if b"\x1b" in one else one for one in (data, row.data))
        if superseded(bare, over) or (said := b"".join(bare.split())) in self._seen:
            return
        self._seen[said] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        text = clean_line(data)
        if text != row.told:
            row.above.append(Shown(begin, text))

    def _newline(self, at: int) -> Iterator[Shown]:
        self._rows[self._at].ended = True
        self._at += 1
        if self._at < len(self._rows):
            self._rows[self._at].column = 0
            return
        self._rows.append(_Row(at))
        self._calm += 1
        if self._calm > CALM_ROWS:
            self._reach, self._home = 0, False
        yield from self._give(min(self._at, len(self._rows) - 1 - self._reach))

    def _give(self, count: int) -> Iterator[Shown]:
        """Yield the first rows and let them go."""
        for row in self._rows[: max(0, count)]:
            self._settle(row)
            yield from row.above
            text = clean_line(row.data)
            if row.data and not (row.drawn and row.data.isspace()):
                if text != row.told:
                    yield Shown(row.begin, text)
            elif row.ended and not row.drawn:
                yield Shown(row.begin, text)
        if count > 0:
            del self._rows[:count]
            self._at -= count

    def _spill(self) -> Iterator[Shown]:
        """Yield what waits above the row of the cursor, if nothing else does or if it has become much."""
        here = self._rows[self._at]
        if here.above and (self._at == 0 or len(here.above) > REMEMBERED):
            yield from self._give(self._at)
            yield from here.above
            here.above.clear()

    def _left(self, count: int) -> None:
        row = self._rows[self._at]
        column = len(_bare(row.data)) if row.column is None else row.column
        row.column = max(0, column - count)

    def _move(self, rows: int) -> None:
        """Go up (below 0) or down; writing goes on at the row's beginning or, from within another row, at its end."""
        column = 0 if self._rows[self._at].column == 0 else None
        self._at = min(len(self._rows) - 1, max(0, self._at + rows))
        self._rows[self._at].column = column
        if rows < 0:
            self._calm = 0
            self._reach = min(REACH, max(self._reach, len(self._rows) - 1 - self._at))

    def _wipe(self, row: _Row) -> None:
        self._new_frame(row)
        row.column = 0

    def _escape(self, token: re.Match[bytes], at: int) -> Iterator[Shown]:
        """Carry out a sequence that moves or erases; what colours or asks is nothing here."""
        if token["string"]:
            self._in_string = True
            return
        if token["short"] == b"M":
            self._move(-1)
        if not token["verb"]:
            return
        verb, args = token["verb"], token["args"].split(b";")
        first = int(args[0][:4]) if args[0].isdigit() else 0
        if verb in b"AF":
            self._move(-max(1, first))
        elif verb in b"BE":
            self._move(max(1, first))
        if verb in b"EF":
            self._rows[self._at].column = 0
        elif verb in b"KJ":
            self._erase(verb, first)
        elif verb in b"Hf":
            yield from self._go_home(first, at)
        elif verb in b"GCD":
            self._sideways(verb, first, at)

    def _sideways(self, verb: bytes, count: int, at: int) -> None:
        row = self._rows[self._at]
        if verb == b"G":
            row.column = min(max(0, count - 1), LONGEST_LINE)
        elif verb == b"D":
            self._left(max(1, count))
        elif row.column is None:
            self._write(b" " * min(max(1, count), 200), at)
        else:
            row.column = min(row.column + max(1, count), LONGEST_LINE)

    def _erase(self, verb: bytes, how: int) -> None:
        row = self._rows[self._at]
        if how or row.column == 0:
            self._wipe(row)
        elif row.column is not None:
            row.data, row.column = _bare(row.data)[: row.column].encode(), None
        if verb == b"J":
            for other in self._rows if how else self._rows[self._at + 1 :]:
                self._wipe(other)

    def _go_home(self, row: int, at: int) -> Iterator[Shown]:
        """Go to a row of the whole screen, which begins where this was first asked for."""
        if not self._home:
            yield from self._give(len(self._rows))
            self._rows, self._at, self._home, self._reach = [_Row(at)], 0, True, REACH
        self._calm = 0
        self._at = min(max(0, row - 1), REACH - 1)
        while len(self._rows) <= self._at:
            self._rows.append(_Row(at))
        self._rows[self._at].column = 0
