"""Many records as columns: a table of them, packed into a chunk of blobs with a summary beside each, and back.

Lossless: every number and text comes back as it was, with NaN, infinite and unknown told apart. No database here.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from math import inf, isfinite, nan
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from overnight.batches import Batch, Entry
from overnight.history import coding

BLOCK = 64
COARSE = 1024
"""So many records have one minimum and one maximum in the finer level, and in the coarser."""

NUMBERS = (
    "loss", "dt_s", "tokens", "tokens_total", "tokens_per_s", "samples_per_s", "mfu", "lr", "grad_norm", "epoch",
)  # fmt: skip
PLACE = ("offset", "part", "at", "step")
STEP_LIMIT = 2**53
"""A step beyond it is a number of something else (or glued): it is kept, and has no place on an x axis."""

_fields = attrgetter(*PLACE, *NUMBERS, "extra")
Value = float | str | None


class Key(NamedTuple):
    """What all records of one table have in common."""

    source: int
    attempt: int
    kind: str
    rank: int | None
    reader: str
    glued: bool
    per_device: bool


class Run(NamedTuple):
    """Consecutive records of one segment within a table; None and 0 for what no record of it says.

    ``rising``: all have a step (or none has, but all an epoch), and none is smaller than the one before.
    """

    segment: int
    records: int
    first_step: int | None
    last_step: int | None
    first_at: float
    last_at: float
    first_offset: int
    last_offset: int
    first_epoch: float | None
    last_epoch: float | None
    rising: bool


class Table:
    """Records of one key in order, as columns of equal length.

    ``extras`` has a column for each key as printed; ``shapes`` the lists of keys that occur (None: no extra at all),
    ``shape`` the number of its list for each record.
    """

    __slots__ = ("ats", "extras", "numbers", "offsets", "parts", "segments", "shape", "shapes", "steps")

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
        self._add_extras([None if text is None else json.loads(text) for text in extras])

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
            yield self.chosen(range(part.start, part.stop)) if pieces > 1 else self

    def ordered(self) -> Table:
        """Return the records in the order of the log; this table if they are."""
        if self.offsets == sorted(self.offsets) and not any(
            self.parts
        ):  # sorting what is sorted is quickest to look at
            return self
        places = list(zip(self.offsets, self.parts, strict=True))
        order = sorted(range(len(self)), key=places.__getitem__)
        return self if order == list(range(len(self))) else self.chosen(order)

    def chosen(self, order: Sequence[int]) -> Table:
        """Return some of the records, by their numbers."""
        one = Table()
        for name in ("offsets", "parts", "ats", "segments", "steps", "shape"):
            setattr(one, name, list(map(getattr(self, name).__getitem__, order)))
        one.numbers = {name: list(map(values.__getitem__, order)) for name, values in self.numbers.items()}
        one.extras = {name: list(map(values.__getitem__, order)) for name, values in self.extras.items()}
        one.shapes = self.shapes
        return one

    def extra(self, index: int) -> dict[str, Value] | None:
        """Return what a line said besides."""
        keys = self.shapes[self.shape[index]] if self.shape else None
        return None if keys is None else {key: self.extras[key][index] for key in keys}

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
            self._shapes(None if extra is None else tuple(extra), 1)
            for key, value in (extra or {}).items():
                column = self._extra(key, before)
                column.extend(repeat(None, before - len(column)))
                column.append(value)
        self._fill(self.extras)

    def _shapes(self, keys: tuple[str, ...] | None, count: int) -> None:
        if not self.shapes or (self.shapes[-1] != keys and keys not in self.shapes):
            self.shapes.append(keys)
        self.shape.extend(repeat(self.shapes.index(keys), count))

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


# -- packing ---------------------------------------------------------------------------------------------------------


class Series(NamedTuple):
    """One column in short: how many values, of which not finite; extremes of the finite ones.

    ``least_index`` is where the first least one stands; ``first`` and ``last`` are finite. None where there is none.
    """

    name: str
    values: int
    nonfinite: int
    least: float | None
    least_index: int
    largest: float | None
    first: float | None
    last: float | None


class Packed(NamedTuple):
    """A table as what is stored: runs of segments, the places, and per column (name, values, mask, texts)."""

    runs: list[Run]
    places: bytes
    series: list[Series]
    levels: dict[str, bytes]
    coarse: dict[str, bytes]
    columns: list[tuple[str, bytes, bytes, bytes | None]]


def pack(table: Table) -> Packed:
    """Return a table of at least one record as blobs. OverflowError if a step does not fit into 64 bits."""
    series: list[Series] = []
    levels: dict[str, bytes] = {}
    coarse: dict[str, bytes] = {}
    columns: list[tuple[str, bytes, bytes, bytes | None]] = []
    named: dict[str, Sequence[Any]] = {**table.numbers, **{f".{key}": one for key, one in table.extras.items()}}
    for name, said in named.items():
        mask = bytes(one is None for one in said) if None in said else None
        texts = None
        plain = said
        if name[0] == "." and str in set(map(type, said)):
            texts = coding.deflate(json.dumps([one if isinstance(one, str) else None for one in said]).encode())
            mask = bytes(isinstance(one, (str, type(None))) for one in said)
            plain = [None if isinstance(one, str) else one for one in said]
        values = array("d", plain if mask is None else [nan if one is None else one for one in plain])
        columns.append((name, coding.pack_floats(values), coding.pack_mask(mask), texts))
        short, level = summed(name, values, mask)
        series.append(short)
        levels[name] = coding.little(level)
        coarse[name] = coding.little(coarser(level))
    steps: list[Any] = table.steps
    if None not in steps and not coding.evenly(steps):
        levels["step"] = coding.little(array("q", steps[::BLOCK]))
        coarse["step"] = coding.little(array("q", steps[::COARSE]))
    return Packed(runs_of(table), pack_places(table), series, levels, coarse, columns)


def summed(name: str, values: array[float], mask: bytes | None) -> tuple[Series, array[float]]:
    """Return a column in short, and of each block the least and then of each block the largest finite value.

    A block without any has inf and -inf.
    """
    count = len(values) - (sum(mask) if mask else 0)
    lows, highs, nonfinite = _extremes(values, mask)
    least, largest = min(lows), max(highs)
    if least > largest:
        return Series(name, count, nonfinite, None, -1, None, None, None), lows + highs
    where = values.index(least)
    first = next(value for value in values if isfinite(value))
    last = next(value for value in reversed(values) if isfinite(value))
    return Series(name, count, nonfinite, least, where, largest, first, last), lows + highs


def coarser(level: array[float]) -> array[float]:
    """Return the coarser level of a finer one: least values first, then the largest."""
    said, half, many = level.tolist(), len(level) // 2, COARSE // BLOCK
    lows = [min(said[at : min(at + many, half)]) for at in range(0, half, many)]
    return array("d", lows + [max(said[at : at + many]) for at in range(half, 2 * half, many)])


def _extremes(values: array[float], mask: bytes | None) -> tuple[array[float], array[float], int]:
    said = values.tolist()
    blocks = [said[at : at + BLOCK] for at in range(0, len(said), BLOCK)]
    if isfinite(sum(said)):
        return array("d", map(min, blocks)), array("d", map(max, blocks)), 0
    finite = [[one for one in block if -inf < one < inf] for block in blocks]
    odd = len(said) - sum(map(len, finite)) - (sum(mask) if mask else 0)
    return (
        array("d", (min(block, default=inf) for block in finite)),
        array("d", (max(block, default=-inf) for block in finite)),
        odd,
    )


def runs_of(table: Table) -> list[Run]:
    """Return the stretches of one segment each."""
    segments, count = table.segments, len(table)
    cuts = [0]
    if segments.count(segments[0]) != count:
        cuts += [index for index in range(1, count) if segments[index] != segments[index - 1]]
    return [_run(table, begin, end) for begin, end in zip(cuts, [*cuts[1:], count], strict=True)]


def _run(table: Table, begin: int, end: int) -> Run:
    steps: list[Any] = table.steps[begin:end] if end - begin < len(table) else table.steps
    epochs = [one for one in table.numbers.get("epoch", ())[begin:end] if one is not None and isfinite(one)]
    rising = None not in steps
    if rising:
        rising = steps[-1] < STEP_LIMIT and steps[0] > -STEP_LIMIT and steps == sorted(steps)
    known = steps if rising else [one for one in steps if one is not None and abs(one) < STEP_LIMIT]
    if not known:
        rising = len(epochs) == len(steps) and epochs == sorted(epochs)
    return Run(
        segment=table.segments[begin],
        records=end - begin,
        first_step=known[0] if known else None,
        last_step=known[-1] if known else None,
        first_at=table.ats[begin],
        last_at=table.ats[end - 1],
        first_offset=table.offsets[begin],
        last_offset=table.offsets[end - 1],
        first_epoch=epochs[0] if epochs else None,
        last_epoch=epochs[-1] if epochs else None,
        rising=rising,
    )


def pack_places(table: Table) -> bytes:
    """Return where the records stand: offsets, parts, arrival, steps and their mask, and the shapes of the extras."""
    steps: list[Any] = table.steps
    mask = None
    if None in steps:
        mask = bytes(one is None for one in steps)
        last, steps = 0, list(steps)
        for index, one in enumerate(steps):
            last = steps[index] = last if one is None else one
    shapes = [None if keys is None else list(keys) for keys in table.shapes]
    return msgspec.msgpack.encode(
        [
            coding.pack_ints(table.offsets),
            coding.pack_ints(table.parts),
            coding.pack_floats(array("d", table.ats)),
            coding.pack_ints(steps),
            coding.pack_mask(mask),
            shapes,
            coding.pack_ints(table.shape),
        ]
    )


class Steps(NamedTuple):
    """The steps of a chunk; ``absent`` has a 1 where none was printed (the one before stands there then)."""

    values: Sequence[int]
    absent: bytes | None


class Places(NamedTuple):
    """Where the records of a chunk stand, and which keys as printed each of them has."""

    offsets: Sequence[int]
    parts: Sequence[int]
    ats: array[float]
    steps: Steps
    shapes: list[tuple[str, ...] | None]
    shape: Sequence[int]


def unpack_places(packed: bytes, count: int) -> Places:
    """Undo what ``pack`` did with the places; ValueError for anything else."""
    offsets, parts, ats, steps, mask, shapes, shape = _PLACES.decode(packed)
    return Places(
        coding.unpack_ints(offsets, count),
        coding.unpack_ints(parts, count),
        coding.unpack_floats(ats, count),
        Steps(coding.unpack_ints(steps, count), coding.unpack_mask(mask, count)),
        shapes,
        coding.unpack_ints(shape, count),
    )


def unpack_steps(packed: bytes, count: int) -> Steps:
    """Return the steps out of what ``unpack_places`` takes."""
    found = _PLACES.decode(packed)
    return Steps(coding.unpack_ints(found[3], count), coding.unpack_mask(found[4], count))


_PLACES = msgspec.msgpack.Decoder(tuple[bytes, bytes, bytes, bytes, bytes, list[tuple[str, ...] | None], bytes])
