"""Chunks: whatever stood in a log comes back exactly, and the summaries beside it are those of brute force."""

from __future__ import annotations

import math
import random
import struct
import sys
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.batches import Batch, Entry, Places
from overnight.events import Record
from overnight.history import coding
from overnight.history.chunks import BLOCK, COARSE, coarser, pack, summed, unpack_places
from overnight.history.spans import Part, joined, set_bases, spans_of
from overnight.history.table import NUMBERS, Table

doubles = st.floats(width=64)
integers = st.integers(-(2**63), 2**63 - 1)


def bits(values: Any) -> list[bytes]:
    """Return doubles by their bits, so that NaN equals NaN and 0.0 is not -0.0."""
    return [struct.pack("<d", value) for value in values]


@given(st.lists(doubles, min_size=1) | st.builds(lambda one, n: [one] * n, doubles, st.integers(1, 300)))
def test_doubles_come_back_bit_by_bit(values: list[float]) -> None:
    packed = coding.pack_floats(array("d", values))
    assert bits(coding.unpack_floats(packed, len(values))) == bits(values)


@given(
    st.lists(integers)
    | st.builds(lambda first, gain, n: [first + gain * i for i in range(n)], st.integers(-9, 9), st.integers(-9, 9),
                st.integers(0, 300))
    | st.lists(st.integers(0, 2**20), max_size=300).map(sorted)
)  # fmt: skip
def test_integers_come_back(values: list[int]) -> None:
    assert list(coding.unpack_ints(coding.pack_ints(values), len(values))) == values


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_integer_beyond_64_bits_is_refused(value: int, at: int) -> None:
    values = [1, 5, 7]
    values[at] = value
    with pytest.raises(OverflowError):
        coding.pack_ints(values)


@pytest.mark.parametrize("damage", [b"", b"x123", b"z123", b"r123", b"c1", b"l12", b"db1", b"dq12345678abc"])
def test_damaged_columns_are_value_errors(damage: bytes) -> None:
    with pytest.raises(ValueError, match="column"):
        coding.unpack_floats(damage if damage[:1] != b"l" else b"z", 3)
    with pytest.raises(ValueError, match=r"column|item"):
        coding.unpack_ints(damage if damage[:1] != b"c" else b"x", 3)


texts = st.text(max_size=5)
extras = st.none() | st.dictionaries(st.sampled_from(["a", "b c", "loss", ""]) | texts, doubles | texts, max_size=3)
records = st.lists(
    st.builds(
        Record,
        reader=st.just("t"),
        offset=st.integers(0, 50),
        part=st.integers(0, 2),
        at=st.floats(0, 1e10),
        step=st.none() | integers,
        extra=extras,
        **{name: st.none() | doubles for name in NUMBERS},
    ),
    min_size=1,
    max_size=40,
)


def table_of(some: list[Record], segments: list[int] | None = None) -> Table:
    """Return records as a table, added in two pieces."""
    entries = [Entry(one, 1, segment) for one, segment in zip(some, segments or [1] * len(some), strict=True)]
    table = Table()
    for piece in (entries[: len(some) // 2], entries[len(some) // 2 :]):
        if piece:
            table.add_entries(piece)
    return table


@given(records)
def test_every_record_comes_back(some: list[Record]) -> None:
    table = table_of(some).ordered()
    order = sorted(range(len(some)), key=lambda row: (some[row].offset, some[row].part))
    wanted = [some[row] for row in order]
    packed = pack(table)
    places = unpack_places(packed.places, len(some))
    assert list(places.offsets) == [one.offset for one in wanted]
    assert list(places.parts) == [one.part for one in wanted]
    assert bits(places.ats) == bits([one.at for one in wanted])
    absent = places.steps.absent or bytes(len(some))
    steps = [None if gone else step for step, gone in zip(places.steps.values, absent, strict=True)]
    assert steps == [one.step for one in wanted]
    columns = {name: (value, mask) for name, value, mask, _ in packed.columns}
    for name in NUMBERS:
        said = [getattr(one, name) for one in wanted]
        assert (name in columns) == any(value is not None for value in said)
        if name in columns:
            values = coding.unpack_floats(columns[name][0], len(some))
            mask = coding.unpack_mask(columns[name][1], len(some)) or bytes(len(some))
            assert [bool(gone) for gone in mask] == [value is None for value in said]
            assert bits(value for value, gone in zip(values, mask, strict=True) if not gone) == bits(
                value for value in said if value is not None
            )
    for row, one in enumerate(wanted):
        found = table.extra(row)
        assert (found is None) == (one.extra is None)
        assert list(found or {}) == list(one.extra or {})
        for key, value in (one.extra or {}).items():
            other = (found or {})[key]
            assert other == value if isinstance(value, str) else bits([other]) == bits([value])


@given(st.lists(st.tuples(doubles, doubles, texts), min_size=1, max_size=20), st.booleans())
def test_a_batch_is_what_its_entries_are(said: list[tuple[float, float, str]], keys: bool) -> None:
    count = len(said)
    batch = Batch(
        reader="t", source=2, at=5.0, rank=1, steps=list(range(count)), loss=[one[0] for one in said],
        columns={"dt_s": [one[1] for one in said]}, extra={"mode": [one[2] for one in said]} if keys else {},
        places=Places(b"x\n\n" * count, 7), attempt=3, segment=4,
    )  # fmt: skip
    whole, single = Table(), Table()
    whole.add_batch(batch)
    single.add_entries(list(batch))
    for table in (whole, single):  # and more of them
        table.add_entries([Entry(Record(reader="t", offset=10**6, extra={"other": 1.0}), 3, 4)])
        table.add_batch(batch)
    assert repr(pack(whole)) == repr(pack(single))
    assert [whole.extra(row) for row in range(len(whole))] == [single.extra(row) for row in range(len(single))]


@given(st.lists(doubles | st.none(), min_size=1, max_size=3 * BLOCK))
def test_summaries_are_those_of_brute_force(said: list[float | None]) -> None:
    mask = bytes(value is None for value in said)
    values = array("d", [math.nan if value is None else value for value in said])
    series, level = summed("x", values, mask if any(mask) else None)
    known = [value for value in said if value is not None]
    finite = [value for value in known if math.isfinite(value)]
    assert (series.values, series.nonfinite) == (len(known), len(known) - len(finite))
    assert (series.first, series.last) == ((finite[0], finite[-1]) if finite else (None, None))
    assert (series.least, series.largest) == ((min(finite), max(finite)) if finite else (None, None))
    if finite:
        assert said[series.least_index] == min(finite)
    blocks = [[one for one in said[at : at + BLOCK] if one is not None and math.isfinite(one)]
              for at in range(0, len(said), BLOCK)]  # fmt: skip
    assert list(level[: len(blocks)]) == [min(block, default=math.inf) for block in blocks]
    assert list(level[len(blocks) :]) == [max(block, default=-math.inf) for block in blocks]


@pytest.mark.parametrize("count", [1, BLOCK, COARSE - 1, COARSE, COARSE + 1, 4096, 8191])
def test_the_coarser_level(count: int) -> None:
    dice = random.Random(count)
    said = [dice.random() for _ in range(count)]
    level = coarser(summed("x", array("d", said), None)[1])
    blocks = [said[at : at + COARSE] for at in range(0, count, COARSE)]
    assert level.tolist() == [*map(min, blocks), *map(max, blocks)]


def test_what_a_point_takes(capsys: pytest.CaptureFixture[str]) -> None:
    dice = random.Random(1)
    form: dict[str, list[float]] = {
        "loss of four digits": [float(f"{3.2 + dice.random() / 10:.4f}") for _ in range(4096)],
        "step time": [float(f"0.25{row % 10}") for row in range(4096)],
        "noise in all its digits": [3.2 + dice.random() for _ in range(4096)],
    }
    sizes = {name: len(coding.pack_floats(array("d", values))) / 4096 for name, values in form.items()}
    with capsys.disabled():
        sys.stdout.write("\nbytes a point: " + ", ".join(f"{name} {size:.2f}" for name, size in sizes.items()) + "\n")
    assert sizes["loss of four digits"] < 4
    assert sizes["step time"] < 1
    assert sizes["noise in all its digits"] <= 8 + 1 / 1024


# -- segments on the x axis ------------------------------------------------------------------------------------------


def laid(*segments: tuple[int, list[int], float | None]) -> list[tuple[float, float]]:
    """Return (base, limit) of segments given as (attempt, steps, epoch)."""
    parts, offset = [], 0
    for number, (attempt, steps, epoch) in enumerate(segments, 1):
        some = [
            Record(reader="t", offset=offset + row, step=step, epoch=epoch, loss=1.0) for row, step in enumerate(steps)
        ]
        offset += len(steps)
        (run,) = pack(table_of(some, [number] * len(steps))).runs
        parts.append(Part(0, attempt, run))
    found, _ = joined(parts)
    set_bases(found)
    return [(one.base, one.limit) for one in spans_of(found, found)]


def test_a_resumed_attempt_supersedes_what_it_does_again() -> None:
    assert laid((1, [*range(1, 213)], None), (2, [*range(200, 301)], None)) == [(0.0, 200.0), (0.0, math.inf)]


def test_a_fall_within_an_attempt_is_a_rewind_unless_it_counts_anew() -> None:
    inf = math.inf
    assert laid((1, [583600, 607500], None), (1, [583700, 583800], None)) == [(0.0, 583700.0), (0.0, inf)]
    epoch = [*range(1, 11)]
    assert laid((1, epoch, None), (1, epoch, None), (1, epoch, None)) == [(0.0, inf), (10.0, inf), (20.0, inf)]
    tens = [*range(10, 101, 10)]
    assert laid((1, tens, None), (1, tens, None)) == [(0.0, inf), (100.0, inf)]
    zero = [*range(100)]
    assert laid((1, zero, None), (1, zero, None)) == [(0.0, inf), (100.0, inf)]
    # Twice back to the same checkpoint.
    assert laid((1, [*range(1, 60)], None), (1, [*range(40, 70)], None), (1, [*range(40, 80)], None)) == [
        (0.0, 40.0), (0.0, 40.0), (0.0, inf),
    ]  # fmt: skip


def test_the_epoch_decides_across_attempts() -> None:
    inf, steps = math.inf, [*range(1, 11)]
    # Killed in the third epoch, resumed at its beginning.
    assert laid((1, steps, 1.0), (1, steps, 2.0), (1, steps[:4], 3.0), (2, steps, 3.0), (2, steps, 4.0)) == [
        (0.0, inf), (10.0, inf), (20.0, 21.0), (20.0, inf), (30.0, inf),
    ]  # fmt: skip
    # Begun again from scratch.
    assert laid((1, steps, 1.0), (1, steps, 2.0), (2, steps, 1.0)) == [(0.0, 1.0), (10.0, 1.0), (0.0, inf)]
    assert laid((1, steps, None), (2, steps, None)) == [(0.0, 1.0), (0.0, inf)]
    # An epoch that has risen, and steps that rise over all of them.
    assert laid((1, [*range(1, 50)], 1.0), (2, [*range(40, 60)], 1.0)) == [(0.0, 40.0), (0.0, inf)]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 25)), min_size=1, max_size=8))
def test_rewinds_leave_one_value_per_step(resumed: list[tuple[int, int]]) -> None:
    segments = [(attempt, [*range(first, first + many)], None) for attempt, (first, many) in enumerate(resumed, 1)]
    newest: list[int] = []
    for _, steps, _ in segments:
        newest = [step for step in newest if step < steps[0]] + steps
    found = laid(*segments)
    assert all(base == 0 for base, _ in found)
    kept = [step for (_, steps, _), (_, limit) in zip(segments, found, strict=True) for step in steps if step < limit]
    assert kept == newest
    assert all(one < other for one, other in pairwise(kept))
