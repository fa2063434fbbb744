"""Records as a table for people: the columns that have values, and lines within 80 columns where they fit."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overnight.events import Record

COLUMNS = {
    "kind": "kind",
    "step": "step",
    "loss": "loss",
    "dt_s": "dt s",
    "tokens_per_s": "tokens/s",
    "samples_per_s": "samples/s",
    "mfu": "MFU %",
    "lr": "lr",
    "grad_norm": "grad norm",
    "epoch": "epoch",
}
_DIGITS = {"loss": 7, "step": 12, "tokens_per_s": 7}


class RecordTable:
    """Learns which columns there are and how wide they must be, then prints rows: two passes, constant memory."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def learn(self, record: Record) -> None:
        """Make room for ``record``."""
        for name, title in COLUMNS.items():
            cell = _cell(record, name)
            if cell:
                self._widths[name] = max(self._widths.get(name, len(title)), len(cell))

    def head(self) -> str:
        """Return the line of titles."""
        return self._line({name: COLUMNS[name] for name in self._widths})

    def row(self, record: Record) -> str:
        """Return one record; what it does not say is a dash."""
        return self._line({name: _cell(record, name) or "-" for name in self._widths})

    def _line(self, cells: dict[str, str]) -> str:
        shown = [name for name in COLUMNS if name in self._widths]
        gap = "  " if sum(self._widths.values()) + 2 * len(shown) <= 80 else " "
        first, *others = shown
        words = [cells[first].ljust(self._widths[first]), *(cells[name].rjust(self._widths[name]) for name in others)]
        return ("  " + gap.join(words)).rstrip()


class Excerpt:
    """The first and the last ``most`` records of many, in constant memory; ``whole``: all of them are shown later."""

    def __init__(self, most: int, *, whole: bool) -> None:
        self.table = RecordTable()
        self._most = most
        self._whole = whole
        self._first: list[Record] = []
        self._last: deque[Record] = deque(maxlen=most)
        self._count = 0

    def add(self, records: Sequence[Record]) -> None:
        """Take in the next records."""
        self._count += len(records)
        if self._whole:
            for record in records:
                self.table.learn(record)
            return
        room = self._most - len(self._first)
        self._first += records[:room]
        self._last.extend(records[room:][-self._most :] if self._most else ())

    def lines(self) -> list[str]:
        """Return the table, with a line for what is left out."""
        for record in (*self._first, *self._last):
            self.table.learn(record)
        left_out = self._count - len(self._first) - len(self._last)
        gap = [f"  ... {left_out:,} more; --all prints every one"] if left_out else []
        if not self._first:
            return gap
        rows = [[self.table.row(record) for record in some] for some in (self._first, self._last)]
        return [self.table.head(), *rows[0], *gap, *rows[1]]


def _cell(record: Record, name: str) -> str:
    value = getattr(record, name)
    if value is None or isinstance(value, str):
        return value or ""
    return str(value) if isinstance(value, int) else f"{value:.{_DIGITS.get(name, 4)}g}"
