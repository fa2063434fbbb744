"""--pattern: the user's own regular expression."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.errors import UsageError
from overnight.readers import Reader
from overnight.readers.pattern import Pattern
from overnight.tail import Line

REGEX = (
    r"it=(?P<step>\S+) L=(?P<loss>[^ ]+?)(?: t=(?P<dt_ms>\S+)ms)?(?: lr=(?P<lr>\S+))?(?: who=(?P<who>\S+))?"
    r"(?: n=(?P<n>\d+))?(?: r=(?P<rank>\d+))?$"
)


def test_named_groups_become_fields() -> None:
    (record,) = Pattern(REGEX)(Line("x it=1,234 L=2.5 t=12.5ms lr=1e-4 who=me n=3 r=2", 9), 5.0, 1) or ()
    assert (record.step, record.loss, record.dt_s, record.lr, record.rank) == (1234, 2.5, 0.0125, 1e-4, 2)
    assert record.extra == {"who": "me", "n": 3.0}
    assert (record.reader, record.source, record.offset, record.at, record.glued) == ("pattern", 1, 9, 5.0, False)


def test_a_group_that_took_no_part_is_unknown() -> None:
    (record,) = Pattern(REGEX)(Line("it=5 L=2.5", 0), 0.0, 0) or ()
    assert (record.step, record.loss, record.dt_s, record.rank, record.extra) == (5, 2.5, None, None, None)


def test_values_are_read_by_the_shared_grammar() -> None:
    reader = Pattern(r"(?P<step>\S+) (?P<loss>\S+) ?(?P<dt>\S*)")
    (record,) = reader(Line("5 NaN 0.5", 0), 0.0, 0) or ()
    assert (record.step, record.dt_s) == (5, 0.5)
    assert math.isnan(record.loss or 0.0)
    (record,) = reader(Line("5 banana 0.5", 0), 0.0, 0) or ()
    assert record.loss is None
    (record,) = reader(Line("x -inf 1e", 0), 0.0, 0) or ()
    assert (record.step, record.loss, record.dt_s) == (None, -math.inf, None)
    assert reader(Line("x banana 3", 0), 0.0, 0) is None
    assert reader(Line("nothing", 0), 0.0, 0) is None


@pytest.mark.parametrize(
    "value", ["nan(ind)", "1.#IND", "[nan]", "'nan'", '"nan"', "*nan*", "NaN.", "nan,", "array(nan)"]
)
def test_a_nan_is_seen_however_it_is_printed(value: str) -> None:
    (record,) = (
        Pattern(r"it (?P<step>\d+) (?P<loss>\S+) (?P<grad_norm>\S+)")(Line(f"it 5 {value} {value}", 0), 0.0, 0) or ()
    )
    assert math.isnan(record.loss or 0.0)
    assert math.isnan(record.grad_norm or 0.0)


def test_a_wrapped_number_is_read_and_a_text_stays_one() -> None:
    reader = Pattern(r'"step": (?P<step>\d+), "loss": (?P<loss>[^,}]+), "who": (?P<who>[^,}]+)')
    for value in ('"2.31"', "2.31", "[2.31]", "array(2.31)"):
        (record,) = reader(Line(f'{{"step": 5, "loss": {value}, "who": "3"}}', 0), 0.0, 0) or ()
        assert (record.loss, record.extra) == (2.31, {"who": '"3"'})
    for value in ("[info]", "(nan values)", "[2.31", "nan%"):
        (record,) = reader(Line(f'{{"step": 5, "loss": {value}, "who": "3"}}', 0), 0.0, 0) or ()
        assert record.loss is None


def test_the_rank_tag_before_the_line_counts() -> None:
    (record,) = Pattern(r"loss=(?P<loss>\S+)")(Line("[rank3]: 2026-01-01 10:00:00 loss=2", 0), 0.0, 0) or ()
    assert (record.rank, record.loss, record.step) == (3, 2.0, None)


def test_several_matches_are_several_records_and_touching_ones_say_so() -> None:
    reader = Pattern(r"s(?P<step>\d+) l(?P<loss>[\d.]+)")
    records = reader(Line("s1 l2.5s2 l3.5 s3 l4", 0), 0.0, 0) or ()
    assert [(r.part, r.step, r.loss, r.glued) for r in records] == [
        (0, 1, 2.5, True),
        (1, 2, 3.5, False),
        (2, 3, 4.0, False),
    ]
    (record,) = reader(Line("s1 l2.5", 0, cut=True), 0.0, 0) or ()
    assert record.glued
    assert len(reader(Line("s1 l2 " * 500, 0), 0.0, 0) or ()) == 64


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("(?P<step>[0-9", "is not a regular expression"),
        ("(?P<step>a){99999999999999999999}", "is not a regular expression"),
        (r"step (\d+)", "has no named groups"),
        (r"(?P<lr>\d+)", r"--pattern '\(\?P<lr>\\d\+\)' names neither step nor loss: at least one of"),
    ],
)
def test_a_wrong_pattern_is_told_in_one_sentence(regex: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Pattern(regex)
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.text(max_size=60), st.booleans())
def test_no_line_raises(text: str, cut: bool) -> None:
    for regex in (REGEX, r"(?P<step>.*?)(?P<loss>\d*)(?P<dt>.?)(?P<epoch>.?)(?P<rank>.?)(?P<other>.*?)"):
        Pattern(regex)(Line(text, 0, cut), 0.0, 0)


def test_the_reader_needs_no_memory() -> None:
    reader: Reader = Pattern(r"(?P<step>\d+) (?P<x>\d+)")
    assert reader.snapshot() is None
    reader.restore(None)
    assert reader.always == {"step"}
