"""Bytes to lines: what a line is, and that the way the bytes were cut never shows."""

from __future__ import annotations

import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.tail import MAX_LINE, Line, Tail

PIECES = st.sampled_from(
    [
        *(
            b"step: 5, loss: 3.2",
            b"a",
            b" ",
            b"\n",
            b"\r",
            b"\r\n",
            b"\x08",
            b"\x08\x08\x08",
            b"\0",
            b"\0\0\0\0",
            b"\xff",
        ),
        *(b"\x1b", b"[", b"]", b"\x1b[31m", b"\x1b[38;2;180;60;0m", b"\x1b[K", b"\x1b]0;title\x07", b"\x1b]8;;x\x1b\\"),
        *(
            b"\x1b(B",
            b"\x1bM",
            b"\x1bPq#0\x1b\\",
            b"\x07",
            b"\\",
            "é".encode(),
            "█▏".encode(),
            b"\xe2\x82",
            b"\xf0\x9f",
        ),
        *(b"\x0b", b"\x0c", "\u2028".encode(), b"\xc2\x85", b"\x7f", b"0123456789" * 3),
    ]
)
STREAMS = st.one_of(st.lists(PIECES, max_size=40).map(b"".join), st.binary(max_size=80))
CAPS = st.sampled_from([1, 2, 7, 20, MAX_LINE])


def read(data: bytes, cuts: list[int], max_line: int = MAX_LINE) -> list[Line]:
    tail = Tail(max_line)
    lines: list[Line] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        lines += tail.feed(data[at:cut])
        at = cut
    assert tail.offset == len(data)
    return lines + tail.flush()


def read_slowly(data: bytes, max_line: int) -> list[Line]:
    """A second, naive reading of the same rules: split, cap, decode, strip."""
    lines, start = [], 0
    for raw in re.split(rb"[\n\r\x08]", data):
        whole = raw.replace(b"\0", b"")
        text = whole[:max_line].decode("utf-8", "replace")
        text = re.sub(r"\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?", "", text)
        text = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]?|[ -/]+[0-~]?|[0-Z\\`-~])?", "", text)
        if text:
            lines.append(Line(text, start, len(whole) > max_line))
        start += len(raw) + 1
    return lines


@settings(deadline=None)
@given(data=STREAMS, cuts=st.lists(st.integers(0, 400), max_size=12), max_line=CAPS)
def test_any_chunking_gives_the_same_lines_and_offsets(data: bytes, cuts: list[int], max_line: int) -> None:
    whole = read(data, [], max_line)
    assert read(data, [min(cut, len(data)) for cut in cuts], max_line) == whole
    assert read(data, list(range(len(data))), max_line) == whole


@settings(deadline=None)
@given(parts=st.lists(PIECES.filter(lambda piece: piece not in {b"[", b"]", b"\x1b"}), max_size=30), max_line=CAPS)
def test_lines_equal_a_naive_reading(parts: list[bytes], max_line: int) -> None:
    data = b"".join(parts)
    assert read(data, [], max_line) == read_slowly(data, max_line)


@settings(deadline=None)
@given(data=STREAMS, cut=st.integers(0, 200), max_line=CAPS)
def test_a_tail_restored_between_any_two_bytes_goes_on_the_same(data: bytes, cut: int, max_line: int) -> None:
    cut = min(cut, len(data))
    tail = Tail(max_line)
    lines = tail.feed(data[:cut])
    again = Tail.restore(list(tail.snapshot()))
    assert again.snapshot() == tail.snapshot()
    assert lines + again.feed(data[cut:]) + again.flush() == read(data, [], max_line)


@settings(deadline=None)
@given(data=STREAMS, max_line=CAPS)
def test_an_offset_is_the_place_of_the_first_byte_behind_a_line_end(data: bytes, max_line: int) -> None:
    for line in read(data, [], max_line):
        assert line.offset == 0 or data[line.offset - 1 : line.offset] in {b"\n", b"\r", b"\x08"}


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"one\ntwo\r\nthree\rfour\x08\x08\x08five", ["one", "two", "three", "four", "five"]),
        (b"\n\r\n\x08\n", []),
        (b"\x1b[31mstep: 5\x1b[0m  \x1b[38;2;180;60;0mloss: 3\x1b[K\n", ["step: 5  loss: 3"]),
        (b"\x1b]0;window\x07a\x1b]8;;http://x\x1b\\b\x1b(Bc\x1b=d\x1bPq#1\x1b\\e\n", ["abcde"]),
        (b"\x1b[31", []),
        (b"a\x1b]unfinished\nb\x1b[3\nc\x1b", ["a", "b", "c"]),
        (b"\0\0\0\0step\0: 5\n", ["step: 5"]),
        (b"\x1b\0[3\x001mred\n", ["red"]),
        (b"caf\xff\xe2\x82\n\xc3\xa9\n", ["caf\ufffd\ufffd", "é"]),
        (" 50%|█████▏\r".encode(), [" 50%|█████▏"]),
        (b"a\x0bb\x0cc\x1cd\xe2\x80\xa8e\n", ["a\x0bb\x0cc\x1cd\u2028e"]),
    ],
)
def test_what_a_line_is(data: bytes, texts: list[str]) -> None:
    assert [line.text for line in read(data, [])] == texts


def test_a_bar_without_a_line_end_is_told_at_the_next_frame_or_at_the_end() -> None:
    tail = Tail()
    assert tail.feed(b"\rstep 5 loss 2.1") == []
    assert tail.feed(b"\rstep 6 loss 2.0") == [Line("step 5 loss 2.1", 1)]
    assert tail.flush() == [Line("step 6 loss 2.0", 17)]
    assert tail.flush() == []
    assert tail.feed(b"next\n") == [Line("next", 32)]


def test_a_long_line_keeps_its_beginning_and_says_so() -> None:
    data = b"short\n" + b"x" * 25 + b"\n" + b"y" * 20 + b"\nend\n"
    expected = [Line("short", 0), Line("x" * 20, 6, cut=True), Line("y" * 20, 32), Line("end", 53)]
    assert read(data, [], 20) == expected
    assert read(data, list(range(len(data))), 20) == expected


def test_nul_bytes_before_a_line_do_not_count_towards_the_cap() -> None:
    data = b"first\n" + b"\0" * 100 + b"step: 5\n"
    assert read(data, [], 20) == [Line("first", 0), Line("step: 5", 6)]
    assert read(data, [50], 20) == [Line("first", 0), Line("step: 5", 6)]


def test_a_line_of_200_megabytes_uses_bounded_memory() -> None:
    tail = Tail()
    chunk = b"x" * (1 << 18)
    tracemalloc.start()
    for _ in range(800):
        assert tail.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert tail.feed(b"\nstep: 1\n") == [Line("x" * MAX_LINE, 0, cut=True), Line("step: 1", 800 * len(chunk) + 1)]
