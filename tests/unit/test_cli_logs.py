"""``logs`` and what it stands on: bytes to lines for the eye, the follower through truncation and rotation."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight import cli, client
from overnight.cli.follow import BLOCK, LONGEST_LINE, Follower, Lines, offset_of_last
from overnight.cli.logs import View, shown_lines
from overnight.cli.render import clean_line
from overnight.folder import RunFolder, write_json

RAW = b"one\n\x1b[31mtwo\x1b[0m\r\n 1%|#|\r100%|##|\nbad \xff byte\nnul\0l\nlast"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path))
    made = RunFolder(tmp_path / "runs" / "r")
    made.create()
    write_json(made.status_json, {"state": "finished", "cause": "completed", "log": str(made.output_log)})
    return made


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"crlf\r", "crlf"),
        (b" 1%\r 50%\r100%", "100%"),
        (b" 1%\r 50%\r", " 50%"),
        (b"abc\b\b\bxyz", "xyz"),
        (b"\b\bab\bc", "ac"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1b(B \x1b7", "red x  "),
        (b"\x1b]8;;http://a\x1b\\link", "link"),
        (b"cut \x1b[3", "cut "),
        (b"bell\x07 del\x7f c1\xc2\x9b", "bell\ufffd del\ufffd c1\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("tab\tä 語 \u202ex".encode(), "tab\tä 語 \ufffdx"),
        (b"\0" * 9 + b"x", "x"),
    ],
)
def test_a_line_for_the_eye(raw: bytes, text: str) -> None:
    assert clean_line(raw) == text


@given(st.binary(max_size=400))
def test_no_line_holds_anything_a_terminal_obeys(raw: bytes) -> None:
    assert not set(clean_line(raw)) & (set(map(chr, range(32))) - {"\t"} | {"\x7f", "\x9b", "\u202e"})


@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_lines_do_not_depend_on_how_the_bytes_arrive(raw: bytes, seed: int) -> None:
    def lines(chunks: list[bytes]) -> list[tuple[int, str]]:
        feed = Lines()
        return [(*line,) for chunk in chunks for line in feed.feed(chunk)] + [(*line,) for line in feed.flush()]

    cuts = sorted(random.Random(seed).sample(range(len(raw) + 1), k=min(5, len(raw) + 1)))
    chunks = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    whole = lines([raw])
    assert lines(chunks) == whole
    rows = raw.split(b"\n")
    assert [offset for offset, _ in whole] == [sum(len(row) + 1 for row in rows[:at]) for at in range(len(whole))]


def test_endless_lines_stay_bounded() -> None:
    feed = Lines()
    pieces = [line for _ in range(50) for line in feed.feed(b"x" * 100_000)]
    assert all(len(line.text) <= LONGEST_LINE for line in pieces)
    assert sum(len(line.text) for line in (*pieces, *feed.flush())) == 5_000_000
    feed = Lines()
    assert [line for at in range(50) for line in feed.feed(b"%9d%% \r" % at * 10_000)] == []
    assert feed.pending() == "       49% "
    assert [line.text for line in feed.feed(b"done\n")] == ["done"]


@pytest.mark.parametrize("newline", [b"\n", b""])
def test_where_the_last_lines_begin(tmp_path: Path, newline: bytes) -> None:
    path = tmp_path / "log"
    rows = [b"%d " % at + b"y" * (at * 997 % 3000) for at in range(600)]
    path.write_bytes(b"\n".join(rows) + newline)
    assert path.stat().st_size > 2 * BLOCK
    for count in (1, 2, 10, 599, 600, 700):
        data = path.read_bytes()[offset_of_last(str(path), count) :]
        assert data == b"\n".join(rows[-count:]) + newline
    assert offset_of_last(str(path), 0) == path.stat().st_size
    assert offset_of_last(str(tmp_path / "none"), 5) == 0


def test_raw_is_byte_identical_and_plain_is_harmless(
    folder: RunFolder, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder.output_log.write_bytes(RAW)
    assert cli.main(["logs", "r", "--raw"]) == 0
    assert capsysbinary.readouterr().out == RAW
    assert cli.main(["logs"]) == 0
    assert capsysbinary.readouterr().out.decode() == "one\ntwo\n100%|##|\nbad \ufffd byte\nnull\nlast\n"
    assert cli.main(["logs", "--raw", "-n", "2"]) == 0
    assert capsysbinary.readouterr().out == b"nul\0l\nlast"
    assert cli.main(["logs", "-n", "0"]) == 0
    assert capsysbinary.readouterr().out == b""


def test_json_lines_have_the_offset_of_their_first_byte(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.output_log.write_bytes(RAW)
    cli.main(["logs", "--json"])
    for line in map(json.loads, capsys.readouterr().out.splitlines()):
        assert clean_line(RAW[line["offset"] :].split(b"\n")[0]) == line["text"]
    cli.main(["logs", "--json", "-n", "1"])
    assert json.loads(capsys.readouterr().out) == {"offset": RAW.index(b"last"), "text": "last"}


def test_a_log_that_is_not_there_is_one_sentence(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs"]) == 1
    assert str(folder.output_log) in capsys.readouterr().err


def test_following_ends_with_the_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(folder.status_json, {"state": "running", "log": str(folder.output_log)})
    folder.output_log.write_bytes(b"".join(b"%d\n" % at for at in range(20)))

    def go_on() -> None:
        with folder.output_log.open("ab") as log:
            log.write(b"more\n")
        write_json(folder.status_json, {"state": "finished", "log": str(folder.output_log)})

    later = threading.Timer(0.2, go_on)
    later.start()
    assert cli.main(["logs", "-f"]) == 0
    later.join()
    assert capsys.readouterr().out.split() == [*map(str, range(10, 20)), "more"]


def test_attach_shows_the_end_of_the_log_and_how_the_run_ended(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.output_log.write_bytes(b"".join(b"%d\n" % at for at in range(20)) + b"tail")
    assert cli.main(["attach"]) == 0
    assert capsys.readouterr().out.splitlines() == [*map(str, range(11, 20)), "tail", "r finished (completed)"]


# -- the follower ----------------------------------------------------------------------------------------------------


def drain(follower: Follower) -> bytes:
    data = b""
    while more := follower.read():
        data += more
    return data


def test_a_log_may_begin_grow_be_truncated_moved_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Follower(str(path)) as follower:
        assert follower.read() == b""
        path.write_bytes(b"one\n")
        assert drain(follower) == b"one\n"
        with path.open("ab") as log:
            log.write(b"two\n")
        assert drain(follower) == b"two\n"
        os.truncate(path, 0)
        path.write_bytes(b"new\n")
        assert drain(follower) == b"new\n"
        path.rename(tmp_path / "log.1")
        with (tmp_path / "log.1").open("ab") as log:
            log.write(b"late\n")
        assert drain(follower) == b"late\n"
        path.write_bytes(b"third\n")
        assert drain(follower) == b"third\n"
        path.unlink()
        assert drain(follower) == b""
        path.write_bytes(b"fourth\n")
        assert drain(follower) == b"fourth\n"


def test_offsets_begin_again_after_a_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"long enough\nhalf")
    turns = iter([False, True])

    def over() -> bool:
        ended = next(turns)
        if not ended:
            path.write_bytes(b"new\n")
        return ended

    with Follower(str(path)) as follower:
        follower.wait(0.001)
        shown = [tuple(line) for line in shown_lines(follower, Lines(), over)]
    assert shown == [(0, "long enough"), (12, "half"), (0, "new")]


def test_the_follower_wakes_for_the_log_the_folder_and_the_bell(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x")
    bell = os.pipe()
    wakers = [
        lambda: path.write_bytes(b"more"),
        lambda: write_json(tmp_path / "status.json", {}),
        lambda: os.write(bell[1], b"!"),
    ]
    with Follower(str(path), also=str(tmp_path)) as follower:
        follower.read()
        follower.wait(0.001)  # the watch is set before the first waker
        for wake in wakers:
            timer = threading.Timer(0.1, wake)
            timer.start()
            follower.wait(50, bell=bell[0])  # the time limit of the test is the assertion
            timer.join()
    os.close(bell[0])
    os.close(bell[1])


def test_without_a_log_field_the_usual_place_is_meant(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(folder.status_json, {"state": "finished"})
    folder.output_log.write_text("here\n")
    assert cli.main(["logs"]) == 0
    assert capsys.readouterr().out == "here\n"
    assert client.find_home() == os.environ["OVERNIGHT_HOME"]


def test_a_terminal_without_a_size_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()  # a new one has 0 columns
    one = {**dict.fromkeys(client.FIELDS), "name": "night", "state": "running", "step": 7}
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", terminal)
        View(bar=True).below(one, "x" * 100)
        shown = screen.read(1000).decode()
    assert shown.startswith("\r\x1b[Knight | running | step 7 | xxx")
    assert len(shown.removeprefix("\r\x1b[K")) == 79
