"""``overnight export``: one row per step or every record, in three forms, nothing lost on the way."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from overnight.batches import Entry
from overnight.events import Record
from overnight.history import store
from overnight.history.store import History

Overnight = Callable[..., Any]


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run with two attempts, two ranks, evaluations, oddities and a key as printed."""
    monkeypatch.setattr(store, "CHUNK", 32)
    folder = home / "runs" / "night"
    folder.mkdir(parents=True)
    history = History(folder / "metrics.db")
    offset = 0
    for attempt, first, last in ((1, 1, 60), (2, 41, 100)):
        entries = []
        for step in range(first, last + 1):
            loss = math.nan if step == 50 else math.inf if step == 51 else None if step == 52 else step / 10
            extra: dict[str, float | str] = {"mode": 'a,"b"\n' if step % 2 else "c", "lr": 1.0, "gap": -math.inf}
            record = Record(
                reader="t", offset=offset, step=step, loss=loss, lr=0.1 + attempt, at=float(step == 1), extra=extra
            )
            other = Record(reader="t", offset=offset + 50, step=step, loss=9.0, rank=1)
            entries += [Entry(record, attempt, attempt), Entry(other, attempt, attempt)]
            if step % 20 == 0:
                entries.append(
                    Entry(Record(reader="t", offset=offset + 70, step=step, kind="eval", loss=7.0), attempt, attempt)
                )
            offset += 100
        history.commit(entries, [], b"")
    history.close()
    return folder


def chunks(folder: Path) -> int:
    """Return how many chunks a run has."""
    with closing(sqlite3.connect(folder / "metrics.db")) as db:
        return int(db.execute("SELECT count(*) FROM chunks").fetchone()[0])


def test_csv_has_one_row_per_step(run: Path, overnight: Overnight) -> None:
    assert chunks(run) > 2
    said = overnight("export", "night", "--to", "csv")
    assert (said.returncode, said.stderr) == (0, "")
    rows = list(csv.DictReader(said.stdout.splitlines(keepends=True)))
    assert list(rows[0]) == [
        "x", "step", "kind", "attempt", "segment", "at", "loss", "lr", "gap", "extra.lr", "mode",
    ]  # fmt: skip
    assert [int(row["step"]) for row in rows] == list(range(1, 101))
    assert [row["attempt"] for row in rows] == ["1"] * 40 + ["2"] * 60
    assert [row["loss"] for row in rows[49:53]] == ["nan", "inf", "", "5.3"]
    assert {row["lr"] for row in rows} == {"1.1", "2.1"}
    assert {row["gap"] for row in rows} == {"-inf"}
    assert [row["mode"] for row in rows[:2]] == ['a,"b"\n', "c"]
    assert [row["at"] for row in rows[:2]] == ["1", ""]
    assert rows[0]["x"] == "1"


def test_json_lines_have_every_record(run: Path, overnight: Overnight) -> None:
    said = overnight("export", "night", "--to", "jsonl", "--all-attempts", "--kind", "all")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(rows) == 2 * 60 + 2 * 60 + 3 + 3
    places = [(row["source"], row["offset"], row["part"]) for row in rows]
    assert places == sorted(set(places))
    assert {(row["attempt"], row["segment"], row["kind"], row["rank"]) for row in rows} == {
        (attempt, attempt, kind, rank)
        for attempt in (1, 2)
        for kind, rank in (("train", None), ("train", 1), ("eval", None))
    }
    odd = {row["step"]: row["loss"] for row in rows if row["rank"] is None and row["kind"] == "train"}
    assert [odd[step] for step in (50, 51, 52)] == ["nan", "inf", None]
    assert rows[0]["reader"] == "t"
    assert rows[0]["glued"] is False


def test_kinds(run: Path, overnight: Overnight) -> None:
    said = overnight("export", "night", "--to", "jsonl", "--kind", "eval")
    assert [json.loads(line)["step"] for line in said.stdout.splitlines()] == [20, 40, 60, 80, 100]
    said = overnight("export", "night", "--to", "jsonl", "--kind", "all")
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(rows) == 105
    assert sum(row["kind"] == "eval" for row in rows) == 5


def test_parquet_tells_nan_from_unknown(run: Path, overnight: Overnight, work: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    said = overnight("export", "night", "--to", "parquet", "-o", "out.parquet", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["rows"] == 100
    table = parquet.read_table(work / "out.parquet").to_pydict()
    assert list(table) == json.loads(said.stdout)["columns"]
    assert table["step"] == list(range(1, 101))
    assert [repr(value) for value in table["loss"][49:53]] == ["nan", "inf", "None", "5.3"]
    assert table["mode"][0] == 'a,"b"\n'
    every = overnight("export", "night", "--to", "parquet", "-o", "all.parquet", "--all-attempts", "--kind", "all")
    assert every.returncode == 0, every.stderr
    assert parquet.read_table(work / "all.parquet").num_rows == 246
    assert sorted(path.name for path in work.iterdir()) == ["all.parquet", "out.parquet"]


def test_without_pyarrow_one_sentence_says_what_to_install(run: Path, overnight: Overnight, runs: Any) -> None:
    hidden = runs.work / "hidden"
    hidden.mkdir()
    (hidden / "pyarrow.py").write_text("raise ImportError('not here')\n")
    runs.env["PYTHONPATH"] = str(hidden)
    said = overnight("export", "night", "--to", "parquet", "-o", "out.parquet")
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "`pip install pyarrow`" in said.stderr
    assert not (runs.work / "out.parquet").exists()


def test_a_file_is_published_whole_or_not_at_all(run: Path, overnight: Overnight, work: Path) -> None:
    (work / "out.csv").write_text("old")
    said = overnight("export", "night", "--to", "csv", "-o", "out.csv")
    assert said.returncode == 0
    assert said.stdout.startswith("100 rows of 11 columns in out.csv")
    assert len((work / "out.csv").read_text().splitlines()) > 100
    with closing(sqlite3.connect(run / "metrics.db")) as db:
        db.execute("UPDATE columns SET value = x'00' WHERE name = 'loss' AND chunk = (SELECT max(id) FROM chunks)")
        db.commit()
    (work / "out.csv").write_text("old")
    said = overnight("export", "night", "--to", "csv", "-o", "out.csv", "--all-attempts", "--kind", "all")
    assert said.returncode == 1
    assert "reindex" in said.stderr
    assert (work / "out.csv").read_text() == "old"
    assert [path.name for path in work.iterdir()] == ["out.csv"]


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("night", "--to", "parquet"), 2, "-o FILE"),
        (("night", "--to", "csv", "-o", "."), 2, "folder"),
        (("night", "--to", "csv", "-o", "gone/out.csv"), 1, "gone"),
        (("night", "--to", "csv", "--json"), 2, "-o FILE"),
        (("night", "--to", "xml"), 2, "csv"),
        (("nobody", "--to", "csv"), 102, "nobody"),
    ],
)
def test_wrong_use_is_one_sentence(
    run: Path, overnight: Overnight, words: tuple[str, ...], code: int, hint: str
) -> None:
    said = overnight("export", *words)
    assert (said.returncode, said.stdout) == (code, "")
    assert hint in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_run_without_records_says_where_to_get_them(home: Path, overnight: Overnight) -> None:
    (home / "runs" / "empty").mkdir(parents=True)
    said = overnight("export", "empty", "--to", "csv")
    assert said.returncode == 1
    assert "reindex" in said.stderr


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("chunk", [16, 1000])
def test_keys_that_differ_from_line_to_line_and_keys_of_no_text(
    home: Path, work: Path, overnight: Overnight, *, monkeypatch: pytest.MonkeyPatch, form: str, chunk: int
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    monkeypatch.setattr(store, "CHUNK", chunk)
    folder = home / "runs" / "odd"
    folder.mkdir(parents=True)
    history = History(folder / "metrics.db")
    count = 500
    history.commit(
        [
            Entry(
                Record(reader="t", offset=step, step=step, extra={f"k{step}": float(step), "t\ud800": "\udfff"}), 1, 1
            )
            for step in range(count)
        ],
        [],
        b"",
    )
    history.close()
    said = overnight("export", "odd", "--to", form, "-o", f"out.{form}", "--json")
    assert said.returncode == 0, said.stderr
    columns = json.loads(said.stdout)["columns"]
    assert {*(f"k{step}" for step in range(count)), r"t\ud800"} <= set(columns)
    if form == "parquet":
        from pyarrow import parquet

        rows = parquet.read_table(work / "out.parquet").to_pylist()
    elif form == "csv":
        rows = list(csv.DictReader((work / "out.csv").read_text().splitlines()))
    else:
        rows = [json.loads(line) for line in (work / "out.jsonl").read_text().splitlines()]
    assert len(rows) == count
    assert all(float(row[f"k{step}"]) == step and row[r"t\ud800"] == r"\udfff" for step, row in enumerate(rows))
    assert sum(row[f"k{count - 1}"] not in ("", None) for row in rows) == 1


def test_a_pipe_is_written_to_and_stays_one(run: Path, overnight: Overnight, work: Path) -> None:
    pipe = work / "pipe"
    os.mkfifo(pipe)
    for form in ("csv", "jsonl", *(["parquet"] if importlib.util.find_spec("pyarrow") else [])):
        read: list[bytes] = []
        reader = threading.Thread(target=lambda into=read: into.append(pipe.read_bytes()))
        reader.start()
        said = overnight("export", "night", "--to", form, "-o", "pipe")
        reader.join()
        assert said.returncode == 0, said.stderr
        assert overnight("export", "night", "--to", form, "-o", "file").returncode == 0
        assert read == [(work / "file").read_bytes()]
    said = overnight("export", "night", "--to", "csv", "-o", "/proc/self/fd/1")
    assert said.stdout == overnight("export", "night", "--to", "csv").stdout
    assert "100 rows" in said.stderr
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_live_run(runs: Any) -> None:
    script = (
        "import time\n"
        "for step in range(10**6):\n print(f'step: {step}, loss: {1 + step / 10}', flush=True)\n time.sleep(0.002)"
    )
    run = runs.start("live", sys.executable, "-c", script, log="step: 50,")
    seen: list[int] = []
    while len(seen) < 3 or seen[-1] == seen[0]:
        said = runs.overnight("export", "live", "--to", "jsonl")
        assert said.returncode == 0, said.stderr
        rows = [json.loads(line) for line in said.stdout.splitlines()]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert all(row["loss"] == 1 + row["step"] / 10 for row in rows)
        seen.append(len(rows))
    assert run.stop("--now").returncode == 0
