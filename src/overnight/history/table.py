"""Records of one kind as columns: what is told of each of them, number by number and key by key. No database here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

from overnight.batches import Batch, Entry
from overnight.history.cleaning import read_extra

NUMBERS = (
    "loss", "dt_s", "tokens", "tokens_total", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "epoch",
)  # fmt: skip
PLACE = ("offset", "part", "at", "step")

MOST_COLUMNS = 256
"""So many keys as printed get a column as they come: a log may print a new one with every line."""

SPARSE = 16
"""Of the others gets one what at least one record in so many has."""

_fields = attrgetter(*PLACE, *NUMBERS, "extra")
Value = float | str | None


class Table:
    """Records of one key in order, as columns of equal length.

    ``extras`` has a column for each key as printed; ``shapes`` the lists of keys that occur (None: no extra at all),
    ``shape`` the number of its list for each record. Keys beyond ``MOST_COLUMNS`` are ``loose``: by the number of the
    record, and in no shape.
    """

    __slots__ = (
        *("_known", "ats", "extras", "loose", "numbers", "offsets", "parts", "segments", "shape", "shapes", "steps"),
    )

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.parts: list[int] = []
        self.ats: list[float] = []
        self.segments: list[int] = []
        self.steps: list[int | None] = []
        self.numbers: dict[str, list[float | None]] = {}
        self.extras: dict[str, list[Value]] = {}
        self.shapes: list[tuple[str, ...] | None] = []
        self.shape: list[int] = []
        self._known: dict[tuple[str, ...] | None, int] = {}
        self.loose: dict[int, dict[str, Value]] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def add_entries(self, entries: Sequence[Entry]) -> None:
        """Add records of this table's key."""
        offsets, parts, ats, steps, *rest = zip(*(_fields(one[0]) for one in entries), strict=True)
        self._add_places(offsets, parts, ats, [one[2] for one in entries], steps)
        self._add_numbers(dict(zip(NUMBERS, rest[:-1], strict=True)), len(entries))
        self._add_extras(rest[-1])

    def add_rows(self, segments: Sequence[int], columns: Sequence[Sequence[Any]], extras: Sequence[Any]) -> None:
        """Add rows of the database: ``columns`` are those of PLACE and NUMBERS, with "nan" and the like as texts."""
        offsets, parts, ats, steps, *rest = columns
        self._add_places(offsets, parts, ats, segments, steps)
        self._add_numbers({name: told(one) for name, one in zip(NUMBERS, rest, strict=True)}, len(offsets))
        self._add_extras([None if text is None else read_extra(text) for text in extras])

    def add_batch(self, batch: Batch) -> None:
        """Add a batch of this table's key."""
        count = len(batch)
        self._add_places(
            batch.offsets, repeat(0, count), repeat(batch.at, count), repeat(batch.segment, count), batch.steps
        )
        self._add_numbers({"loss": batch.loss, **batch.columns}, count)
        before = len(self.shape)
        self._shapes(tuple(batch.extra) or None, count)
        for key, values in batch.extra.items():
            self._extra(key, before).extend(values)
        self._fill(self.extras)

    def cut(self, size: int) -> Iterator[Table]:
        """Yield the records in tables of at most ``size``, of about equal length."""
        pieces = -(-len(self) // size)
        for piece in range(pieces):
            part = slice(piece * len(self) // pieces, (piece + 1) * len(self) // pieces)
            inside = range(part.start, part.stop)
            loose = {number - part.start: said for number, said in self.loose.items() if number in inside}
            yield self._with(itemgetter(part), loose) if pieces > 1 else self

    def ordered(self) -> Table:
        """Return the records in the order of the log; this table if they are."""
        if self.offsets == sorted(self.offsets) and not any(self.parts):  # to sort what is sorted is the quickest look
            return self
        places = list(zip(self.offsets, self.parts, strict=True))
        order = sorted(range(len(self)), key=places.__getitem__)
        if order == list(range(len(self))):
            return self
        loose = {new: self.loose[old] for new, old in enumerate(order) if old in self.loose}
        return self._with(lambda values: list(map(values.__getitem__, order)), loose)

    def _with(self, some: Callable[[list[Any]], list[Any]], loose: dict[int, dict[str, Value]]) -> Table:
        """Return the records that ``some`` picks out of each column; ``loose`` is theirs."""
        one = Table()
        for name in ("offsets", "parts", "ats", "segments", "steps", "shape"):
            setattr(one, name, some(getattr(self, name)))
        one.numbers = {name: some(values) for name, values in self.numbers.items()}
        one.extras = {name: some(values) for name, values in self.extras.items()}
        one.shapes, one._known = self.shapes, self._known
        one.loose = {number: dict(said) for number, said in loose.items()}
        return one

    def settle(self) -> None:
        """Give those loose keys a column that many records have; to be called when all records are there."""
        counts = Counter(chain.from_iterable(self.loose.values()))
        many = {key for key, count in counts.items() if count * SPARSE >= len(self)}
        if not many:
            return
        for index in list(self.loose):
            said = self.loose[index]
            moved = [key for key in said if key in many]
            for key in moved:
                self._extra(key, len(self))[index] = said.pop(key)
            if not said:
                del self.loose[index]
            self.shape[index] = self._number_of((*(self.shapes[self.shape[index]] or ()), *moved))

    def extra(self, index: int) -> dict[str, Value] | None:
        """Return what a line said besides."""
        keys = self.shapes[self.shape[index]] if self.shape else None
        return None if keys is None else {key: self.extras[key][index] for key in keys} | self.loose.get(index, {})

    def _add_places(
        self,
        offsets: Iterable[int],
        parts: Iterable[int],
        ats: Iterable[float],
        segments: Iterable[int],
        steps: Iterable[int | None],
    ) -> None:
        self.offsets.extend(offsets)
        self.parts.extend(parts)
        self.ats.extend(ats)
        self.segments.extend(segments)
        self.steps.extend(steps)

    def _add_numbers(self, columns: dict[str, Any], count: int) -> None:
        before = len(self.offsets) - count
        for name, values in columns.items():
            known = self.numbers.get(name)
            if known is None:
                if values.count(None) == count:
                    continue
                known = self.numbers[name] = [None] * before
            known.extend(values)
        self._fill(self.numbers)

    def _add_extras(self, extras: Sequence[dict[str, Value] | None]) -> None:
        if extras.count(None) == len(extras):
            self._shapes(None, len(extras))
            self._fill(self.extras)
            return
        for extra in extras:
            before = len(self.shape)
            keys = None if extra is None else tuple(extra)
            if extra and len(self.extras) + len(extra) > MOST_COLUMNS:
                keys = self._loosen(extra, before)
            self._shapes(keys, 1)
            for key in keys or ():
                column = self._extra(key, before)
                column.extend(repeat(None, before - len(column)))
                column.append(extra[key])  # type: ignore[index]
        self._fill(self.extras)

    def _loosen(self, extra: dict[str, Value], index: int) -> tuple[str, ...]:
        """Keep what has no column, nor gets one, beside the columns; return the other keys."""
        fresh = [key for key in extra if key not in self.extras]
        loose = fresh[max(0, MOST_COLUMNS - len(self.extras)) :]
        if loose:
            said = {key: extra[key] for key in loose}
            self.loose[index] = {key: float(one) if isinstance(one, (int, float)) else one for key, one in said.items()}
        return tuple(key for key in extra if key not in self.loose.get(index, ()))

    def _shapes(self, keys: tuple[str, ...] | None, count: int) -> None:
        self.shape.extend(repeat(self._number_of(keys), count))

    def _number_of(self, keys: tuple[str, ...] | None) -> int:
        if keys not in self._known:
            self._known[keys] = len(self.shapes)
            self.shapes.append(keys)
        return self._known[keys]

    def _extra(self, key: str, before: int) -> list[Value]:
        if key not in self.extras:
            self.extras[key] = [None] * before
        return self.extras[key]

    def _fill(self, columns: dict[str, Any]) -> None:
        for values in columns.values():
            values.extend(repeat(None, len(self) - len(values)))


def told(values: Sequence[Any]) -> Sequence[Any]:
    """Return numbers of the database, where "nan", "inf" and "-inf" are texts, as numbers."""
    if str not in set(map(type, values)):
        return values
    return [float(value) if isinstance(value, str) else value for value in values]
