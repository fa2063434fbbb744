"""The verb ``read``: what is read, by whom and why, as text and as JSON; and what it says of what is no log."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overnight.cli import main
from overnight.cli.reading import Found, LowestRank, read_records
from overnight.events import Record
from overnight.past.rereading import Bounds
from overnight.readers.keyvalue import KeyValue

KEYS = "kind step loss dt_s tokens_per_s samples_per_s mfu lr grad_norm epoch".split()
TELEMETRY = "".join(
    f"step: {n}, loss: {3 + n / 100}, dt: 0.25, tok/s: {1000 + n}, MFU: 34.{n}%\n" for n in range(1, 31)
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))


def log(folder: Path, text: str | bytes, name: str = "train.log") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def rows(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    told = capsys.readouterr()
    found = [json.loads(line) for line in told.out.splitlines()]
    assert all(list(one) == KEYS for one in found)
    return found, told.err


def test_text_says_who_reads_and_why_and_shows_the_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log(tmp_path, TELEMETRY)
    monkeypatch.chdir(tmp_path)  # a long path would be a long line
    assert main(["read", "train.log", "-n", "2"]) == 0
    out = capsys.readouterr().out
    told = " ".join(out.split())
    assert "train.log is read by keyvalue: 30 training records (step 1 to 30) in 30 lines." in told
    assert "Why: keyvalue has read 30 credible records in 30 lines (nanogpt 0, trainer 0, jsonlines 0)." in told
    table = out.split("\n\n")[1].splitlines()
    assert table[0].split() == ["kind", "step", "loss", "dt", "s", "tokens/s", "MFU", "%"]
    assert [row.split()[1] for row in table[1:]] == ["1", "2", "26", "29", "30"]
    assert table[1].split() == ["train", "1", "3.01", "0.25", "1001", "34.1"]
    assert max(map(len, out.splitlines())) <= 80


def test_all_prints_every_record_also_from_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["read", log(tmp_path, TELEMETRY), "--all"]) == 0
    whole = capsys.readouterr().out
    assert len(whole.split("\n\n")[1].splitlines()) == 31
    read_end, write_end = os.pipe()
    os.write(write_end, TELEMETRY.encode())
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        assert main(["read", "-", "--all"]) == 0
    assert capsys.readouterr().out.split("\n\n")[1] == whole.split("\n\n")[1]


def test_json_has_exactly_these_keys_and_values_as_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "step: 1, loss: 2.30250001, dt: 250.5ms, mfu: 34.1%\nstep: 2, loss: nan\nstep: 3, loss: -inf\n"
    assert main(["read", log(tmp_path, text + "step: 3, val_loss: 2.5\n"), "--json"]) == 0
    found, err = rows(capsys)
    assert [(one["kind"], one["step"], one["loss"]) for one in found] == [
        ("train", 1, 2.30250001),
        ("train", 2, "nan"),
        ("train", 3, "-inf"),
        ("eval", 3, 2.5),
    ]
    assert (found[0]["dt_s"], found[0]["mfu"], found[0]["lr"]) == (0.2505, 34.1, None)
    assert err == ""


def test_a_file_of_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '{"step": 1, "loss": NaN}\n{"step": 2, "loss": 2.5, "tokens_per_s": 9.5}'
    assert main(["read", log(tmp_path, text, "metrics.jsonl"), "--json"]) == 0
    found, _ = rows(capsys)
    assert [(one["step"], one["loss"], one["tokens_per_s"]) for one in found] == [(1, "nan", None), (2, 2.5, 9.5)]


def test_a_record_that_was_held_back_comes_out_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "  0%|  | 0/9 [00:00<?, ?it/s]\r{'loss': nan, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': 0.5}\n"
    assert main(["read", log(tmp_path, text), "--json"]) == 0
    found, _ = rows(capsys)
    assert [(one["step"], one["loss"], one["epoch"]) for one in found] == [(None, "nan", 0.5)]


def test_only_the_lowest_rank_and_the_nan_of_another_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(
        f"[rank{r}]: step: {n}, loss: {'nan' if r == 2 and n > 3 else n}\n" for n in range(1, 6) for r in (2, 1)
    )
    assert main(["read", log(tmp_path, text), "--json"]) == 0
    found, err = rows(capsys)
    assert [(one["step"], one["loss"]) for one in found] == [(n, n) for n in range(1, 6)]
    assert "ranks 1, 2 print; shown is rank 1" in err
    assert "rank 2 has loss nan at step 4 (byte " in err


def test_a_pattern_reads_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, "it=1 L=2.5\nit=2 L=2.4\n")
    assert main(["read", path, "--json"]) == 1
    assert main(["read", path, "--json", "--pattern", r"it=(?P<step>\d+) L=(?P<loss>\S+)"]) == 0
    found, _ = rows(capsys)
    assert [(one["step"], one["loss"]) for one in found] == [(1, 2.5), (2, 2.4)]
    assert main(["read", path, "--pattern", "(?P<step>x)"]) == 1
    assert "matches --pattern" in " ".join(capsys.readouterr().out.split())
    assert main(["read", path, "--pattern", "(("]) == 2


def test_no_reader_fits_names_the_program_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "Epoch 1/4\n" + "".join(f"{n}/12 - 2s - 164ms/step - loss: 5.6174 - mae: 1.9\n" for n in range(1, 9))
    assert main(["read", log(tmp_path, text)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "no training record was found in 9 lines; it looks like the log of Keras: give --pattern" in told
    assert "The lines that look most like progress: Epoch 1/4 1/12 - 2s - 164ms/step - loss: 5.6174" in told
    advised = told.split("--pattern '")[1].split("'")[0]
    assert main(["read", str(tmp_path / "train.log"), "--json", "--pattern", advised]) == 0
    assert [one["loss"] for one in rows(capsys)[0]] == [5.6174] * 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty: nothing has been written into it yet"),
        (os.urandom(4096), "is not text, so that no reader fits"),
        (b"hello\nworld 3\n\x1b]0;evil\x07", "no training record was found in 2 lines; give --pattern"),
    ],
)
def test_what_is_no_log_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    path = log(tmp_path, data)
    assert main(["read", path]) == 1
    out = capsys.readouterr().out
    assert said in " ".join(out.split())
    assert "\x1b" not in out
    assert main(["read", path, "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err


def test_wrong_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["read", str(tmp_path / "none.log")]) == 2
    assert main(["read", str(tmp_path)]) == 2
    assert main(["read", "norun"]) == 102
    assert main(["read", "a\0b"]) in (2, 102)
    err = capsys.readouterr().err
    assert "none.log is not there; give the path of a log" in err
    assert "is a folder; give the log inside it" in err
    assert "Traceback" not in err


def test_attempts_are_read_apart_and_rank_zero_that_comes_late_is_noticed() -> None:
    text = b"step: 5, loss: 2\nstep: 6, loss: 2\nstep: 7, lo"
    more = b"step: 5, loss: 3\n"
    found = Found()
    bounds = Bounds(2, 0, (), ((0, 1), (len(text), 2)))
    records = [one for block in read_records(io.BytesIO(text + more), [KeyValue], bounds, found) for one in block]
    assert [(one.step, one.loss, one.source, one.offset) for one in records] == [
        (5, 2.0, 2, 0),
        (6, 2.0, 2, 17),
        (5, 3.0, 2, len(text)),
    ]
    assert (found.lines, found.chosen, found.first_step, found.last_step) == (4, "keyvalue", 5, 5)


@pytest.mark.parametrize("silent", [1, 2, 5])
def test_attempts_that_printed_nothing_are_not_the_end(silent: int) -> None:
    text, more, last = b"step: 5, loss: 2\n", b"step: 6, loss: 3\n", b"step: 7, loss: 4\n"
    begins = [0, *[len(text)] * (silent + 1), len(text + more), len(text + more + last)]
    bounds = Bounds(0, 0, (), tuple((offset, number) for number, offset in enumerate(begins, 1)))
    stream, found = io.BytesIO(text + more + last), Found()
    records = [one for block in read_records(stream, [KeyValue], bounds, found) for one in block]
    assert [one.step for one in records] == [5, 6, 7]
    assert (found.lines, found.size) == (3, len(text + more + last))


def test_a_lower_rank_that_comes_after_very_many_takes_over_and_is_told() -> None:
    lowest = LowestRank()
    high = [Record(reader="x", rank=3, step=n) for n in range(LowestRank.MOST + 2)]
    assert lowest(high) == high
    low = Record(reader="x", rank=1, step=9)
    assert lowest([low, high[0]], ended=True) == [low]
    assert (lowest.lowest, lowest.late, lowest.ranks) == (1, True, {1, 3})


def test_evaluations_alone_are_named_as_what_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evals = "".join(f"iter {n}/1000 train_loss: 3.59 val_loss: 3.68\n" for n in range(0, 1000, 50))
    assert main(["read", log(tmp_path, evals)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Only evaluations were read from ")
    assert "20 records in 20 lines: no rule judges the loss between them; give --pattern" in said
    assert main(["read", log(tmp_path, evals), "--json"]) == 1
    assert "only evaluations were read" in capsys.readouterr().err


BAR = "".join(f"\rEpoch {e}/3:  {n}%|█  | {n}/100 [00:01<00:09, loss=2.{n:02d}]" for e in (1, 2) for n in range(1, 101))
EPOCHS = "".join(f"Epoch {n}/12: train_loss=2.{n:02d} val_loss=9.9\n" for n in range(1, 13))


@pytest.mark.parametrize(
    ("text", "name", "records"), [(BAR, "a tqdm bar", 200), (EPOCHS, "one line for each epoch", 12)]
)
def test_the_pattern_that_read_offers_reads(
    text: str, name: str, records: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path, text)
    assert main(["read", path]) == 1
    told = capsys.readouterr().out
    assert f"it has {name}: give --pattern" in " ".join(told.split())
    (pattern,) = re.findall(r"^  '(.*)'$", told, re.MULTILINE)
    assert main(["read", path, "--pattern", pattern, "--json"]) == 0
    found, _ = rows(capsys)
    assert len(found) == records
    assert (found[0]["loss"], found[0]["epoch"]) == (2.01, 1)
    assert all(one["loss"] < 3 for one in found)
    assert main(["read", path, "--pattern", pattern]) == 0
    assert "looks like the log of" not in capsys.readouterr().out
