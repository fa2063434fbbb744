"""``logs`` and what it stands on: bytes to lines for the eye, the follower through truncation and rotation."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight import cli, client
from overnight.cli.follow import BLOCK, Follower, offset_of_last, offset_of_last_shown
from overnight.cli.logs import View, shown_lines
from overnight.folder import RunFolder, write_json
from overnight.printable import clean_line
from overnight.screen import Lines

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


def test_where_the_last_lines_that_are_shown_begin(tmp_path: Path) -> None:
    path = tmp_path / "log"
    bar = b"".join(b"\r %d%%|#| %d/100 [00:01<00:02, 9it/s]" % (at % 100, at) for at in range(100_000))
    path.write_bytes(b"".join(b"loss %d\n" % at for at in range(50)) + b"\rnote" + bar)
    data = path.read_bytes()
    assert data[offset_of_last_shown(str(path), 1) :].count(b"%") <= 2, "not the whole line of bars"
    assert data[offset_of_last_shown(str(path), 2) :].startswith(b"note\r")
    assert data[offset_of_last_shown(str(path), 12) :].startswith(b"loss 40\n")
    assert offset_of_last_shown(str(path), 1000) == 0
    assert offset_of_last_shown(str(path), 0) == len(data)
    assert offset_of_last_shown(str(tmp_path / "none"), 5) == 0
    # redraws are lines to the disk, but not to anybody who looks
    redraw = b"\n\rinner %d%%|\x1b[A\router %d%%|"
    path.write_bytes(b"".join(b"loss %d\n" % at for at in range(50)) + b"".join(redraw % (at, at) for at in range(99)))
    assert path.read_bytes()[offset_of_last_shown(str(path), 4) :].startswith(b"loss 48\n")


def test_a_bar_longer_than_anybody_reads_back_is_begun_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight.cli.follow.FURTHEST_LINE", BLOCK)
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"\r %9d%%" % 1 * 100_000)
    found = offset_of_last(str(path), 3)
    assert found > BLOCK // 2
    assert path.read_bytes()[found - 1 : found] == b"\r"


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


def test_a_flood_of_bars_is_little_and_every_metric_is_there(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = [b"\r %d%%|####      | %d/100000 [00:09<00:11, 4999it/s]" % (at // 1000, at) for at in range(100_000)]
    for at in range(0, 100_000, 2000):
        bars[at] = b"\n{'loss': %d, 'epoch': 0.1}\n" % at if at % 4000 else b"\r{'loss': %d, 'epoch': 0.1}" % at
    folder.output_log.write_bytes(b"".join(bars))
    assert cli.main(["logs"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 100_000
    for at in range(0, 100_000, 2000):
        assert f"{{'loss': {at}, 'epoch': 0.1}}\n" in out
    assert out.endswith("99999/100000 [00:09<00:11, 4999it/s]\n")
    cli.main(["logs", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(f"{line['text']}\n" for line in lines) == out
    raw = folder.output_log.read_bytes()
    assert all(raw[line["offset"] :].startswith(line["text"].encode()) for line in lines)
    cli.main(["logs", "-n", "3"])
    assert capsys.readouterr().out.splitlines() == out.splitlines()[-3:]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_followed_through_a_pipe_a_bar_is_a_line_now_and_then(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("overnight.cli.logs.time.monotonic", lambda: now[0])
    write_json(folder.status_json, {"state": "running", "log": str(folder.output_log)})
    folder.output_log.write_bytes(b"begin\n")
    turns = iter(range(100))

    def turn(_follower: Follower, _most_s: float = 1.0) -> None:
        now[0] += 0.25
        at = next(turns)
        with folder.output_log.open("ab") as log:
            log.write(b"\r%3d%%|#|" % at if at < 90 else b"\n")
        if at >= 90:
            write_json(folder.status_json, {"state": "finished", "log": str(folder.output_log)})

    monkeypatch.setattr(Follower, "wait", turn)
    assert cli.main(["logs", "-f", *form]) == 0
    out = capsys.readouterr().out.splitlines()
    texts = [json.loads(line)["text"] for line in out] if form else out
    assert texts[0] == "begin"
    assert 20 <= len(texts) - 1 <= 24, "90 states in 22 seconds"
    assert texts[-1] == " 89%|#|"
    assert len(set(texts)) == len(texts), "the last state is not told twice"


@pytest.mark.parametrize("words", [["--tail", "3"], ["--tail=3"], ["run", "--head", "3"]])
def test_what_other_tools_call_the_last_lines_is_hinted_at(
    folder: RunFolder, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["logs", *words]) == 2
    assert "did you mean -n?" in capsys.readouterr().err
    assert cli.main(["logs", "--jsno"]) == 2
    assert "did you mean --json?" in capsys.readouterr().err


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
    monkeypatch.setattr("overnight.cli.logs.time.monotonic", lambda: 7.0)
    one = {**dict.fromkeys(client.FIELDS), "name": "night", "state": "running", "step": 7}
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", terminal)
        view = View(bar=True)
        view.below(one, "x" * 100)
        shown = screen.read(1000).decode()
        view.below(one, "too soon to be drawn")
        view.clear()
        view.below(one, "語" * 100)
        again = ""
        while "語" not in again:  # a terminal gives what each write left
            again += screen.read(1000).decode()
    assert shown.startswith("\r\x1b[Knight | running | step 7 | xxx")
    assert len(shown.removeprefix("\r\x1b[K")) == 79
    assert again.startswith("\r\x1b[K\r\x1b[Knight | running | step 7 | ")
    assert again.count("語") == 26, "a wide sign takes two columns"
