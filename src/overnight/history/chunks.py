"""Many records as columns: a table of them, packed into a chunk of blobs with a summary beside each, and back.

Lossless: every number and text comes back as it was, with NaN, infinite and unknown told apart. No database here.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Any, NamedTuple

import msgspec

from overnight.history import coding
from overnight.history.table import Table

BLOCK = 64
COARSE = 1024
"""So many records have one minimum and one maximum in the finer level, and in the coarser."""

LOOSE = "*"
"""The name under which the keys stand that have no column: JSON, by the number of the record."""

STEP_LIMIT = 2**53
"""A step beyond it is a number of something else (or glued): it is kept, and has no place on an x axis."""


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
    table.settle()
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
        short, level = summed(name, values, mask, plain if mask is None else None)
        series.append(short)
        levels[name] = coding.little(level)
        coarse[name] = coding.little(coarser(level))
    if table.loose:
        columns.append((LOOSE, b"", b"", coding.deflate(json.dumps(table.loose).encode())))
    steps: list[Any] = table.steps
    even = None not in steps and coding.evenly(steps)
    if None not in steps and not even:
        levels["step"] = coding.little(array("q", steps[::BLOCK]))
        coarse["step"] = coding.little(array("q", steps[::COARSE]))
    return Packed(runs_of(table), pack_places(table, even=even), series, levels, coarse, columns)


def summed(
    name: str, values: array[float], mask: bytes | None, plain: Sequence[float] | None = None
) -> tuple[Series, array[float]]:
    """Return a column in short, and of each block the least and then of each block the largest finite value.

    A block without any has inf and -inf. ``plain``: the values as numbers, where somebody has them.
    """
    count = len(values) - (sum(mask) if mask else 0)
    lows, highs, nonfinite = _extremes(values.tolist() if plain is None else plain, mask)
    least, largest = min(lows), max(highs)
    if least > largest:
        return Series(name, count, nonfinite, None, -1, None, None, None), lows + highs
    where = values.index(least) if plain is None else plain.index(least)
    first = next(value for value in values if isfinite(value))
    last = next(value for value in reversed(values) if isfinite(value))
    return Series(name, count, nonfinite, least, where, largest, first, last), lows + highs


def coarser(level: array[float]) -> array[float]:
    """Return the coarser level of a finer one: least values first, then the largest."""
    said, half, many = level.tolist(), len(level) // 2, COARSE // BLOCK
    lows = [min(said[at : min(at + many, half)]) for at in range(0, half, many)]
    return array("d", lows + [max(said[at : at + many]) for at in range(half, 2 * half, many)])


def _extremes(said: Sequence[float], mask: bytes | None) -> tuple[array[float], array[float], int]:
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


def pack_places(table: Table, *, even: bool = False) -> bytes:
    """Return where the records stand: offsets, parts, arrival, steps and their mask, and the shapes of the extras.

    ``even``: the steps are known to be evenly spaced.
    """
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
            coding.pack_ints(steps, even=even or None),
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
