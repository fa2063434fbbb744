"""Lost, doubled or crooked data, and slow views, with whole runs: what a person sees after rewinds and odd steps."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs

from overnight.events import Record
from overnight.history.store import History
from overnight.history.views import Views
from overnight.monitor import Entry

Start = Callable[..., Run]

RESUMING = """
import os, sys, time
attempt = int(os.environ["OVERNIGHT_ATTEMPT"])
first, last = ((1, 212), (200, 300))[attempt - 1]
for step in range(first, last + 1):
    print(f"step: {step}, loss: {attempt}.{step:04d}, dt: 0.01, tokens_seen: {1_000_000_000 + step * 8192}", flush=True)
if attempt == 1:
    raise SystemExit("out of luck")
"""


def rows(runs: Runs, *words: str) -> list[dict[str, str]]:
    """Return what `overnight export` writes, by column."""
    done = runs.overnight("export", "night", "--to", "csv", *words)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


@pytest.fixture
def resumed(runs: Runs, start: Start, work: Path) -> Run:
    """Return a run that came to 212, crashed, resumed at 200 and went on to 300."""
    (work / "train.py").write_text(RESUMING)
    run = start("night", PYTHON, "train.py", flags=("--restarts", 1, "--backoff", "0.01s"))
    assert run.wait() == 0
    return run


def test_a_resume_from_an_older_step_supersedes_and_keeps(runs: Runs, resumed: Run) -> None:
    """F3-01: one value per step 1..300, 200-212 the new ones, the old ones there as attempt 1."""
    found = rows(runs)
    assert [int(row["step"]) for row in found] == list(range(1, 301))
    assert all(row["attempt"] == ("1" if int(row["step"]) < 200 else "2") for row in found)
    assert [row["loss"] for row in found if row["step"] in ("199", "200")] == ["1.0199", "2.02"]
    every = rows(runs, "--all-attempts")
    assert len(every) == 212 + 101
    old = {int(row["step"]): row["loss"] for row in every if row["attempt"] == "1"}
    assert old[212] == "1.0212"
    assert len(resumed.facts("attempt_ended")) == 2


def test_charts_and_exports_never_go_back(runs: Runs, resumed: Run) -> None:
    """F3-03: no zig-zag after a resume, in no view."""
    steps = [float(row["x"]) for row in rows(runs)]
    report = json.loads(runs.overnight("report", "night", "--json").stdout)
    curves = [one["x"] for one in report["charts"]]
    assert len(curves) >= 2
    for xs in (steps, *curves):
        assert all(one < other for one, other in pairwise(xs))
    assert resumed.status["attempts"][1]["first_step"] == 200


def test_tokens_counted_since_the_beginning_are_no_tokens_of_a_step(runs: Runs, resumed: Run) -> None:
    """G2-03: after a resume at 1e9 tokens the rate is that of the steps: 8,192 tokens in 0.01 s."""
    assert resumed.status["tokens_per_second"] == pytest.approx(819_200, rel=0.05)
    report = json.loads(runs.overnight("report", "night", "--json").stdout)
    assert report["goodput"]["stepping_tokens_per_s"] == pytest.approx(819_200, rel=0.05)


def test_a_script_with_saves_of_its_own_is_not_said_to_have_begun_anew(runs: Runs, resumed: Run) -> None:
    """Nobody saw a save, and so all 212 steps were thought to be lost: its first line says that it went on at 200."""
    (one,) = json.loads(runs.overnight("report", "night", "--json").stdout)["resumes"]
    assert (one["path"], one["anew"], one["first_step"], one["lost_steps"]) == (None, False, 200, 13)
    said = " ".join(runs.overnight("report", "night").stdout.split())
    assert "2 by itself, at step 200: no save was known lost: 13 steps" in said
    assert "began anew" not in said


@pytest.mark.parametrize("left", [0, 5000])
def test_a_store_that_was_cut_says_so_instead_of_giving_nothing(runs: Runs, resumed: Run, left: int) -> None:
    """Cut to nothing it is a valid database without tables. It is built anew from the log, to the last bit."""
    before = runs.overnight("export", "night", "--to", "jsonl", "--all-attempts").stdout
    (resumed.folder / "metrics.db").write_bytes((resumed.folder / "metrics.db").read_bytes()[:left])
    cut = runs.overnight("export", "night", "--to", "csv")
    assert "overnight reindex" in cut.stderr
    assert runs.overnight("reindex", "night").returncode == 0
    assert runs.overnight("export", "night", "--to", "jsonl", "--all-attempts").stdout == before


def test_an_odd_step_costs_nothing_that_comes_after_it(runs: Runs, start: Start, work: Path) -> None:
    """F3-04: 583600, 607500, 583700, ...: all kept, told once."""
    steps = [583_600, 607_500, *range(583_700, 584_400, 100)]
    text = "".join(f"step: {step}, loss: 2.5, dt: 0.25\\n" for step in steps)
    (work / "train.py").write_text(f'print("{text}", end="", flush=True)\n')
    run = start("night", PYTHON, "train.py")
    assert run.wait() == 0
    assert [int(row["step"]) for row in rows(runs, "--all-attempts")] == steps
    assert [int(row["step"]) for row in rows(runs)] == [step for step in steps if step != 607_500]
    said: list[dict[str, Any]] = [one for one in run.status["verdicts"] if one["rule"] == "rewind"]
    assert [one["text"].partition(" to ")[0] for one in said] == ["step went back from 607500"]
    good = json.loads(runs.overnight("report", "night", "--json").stdout)["goodput"]
    assert (good["redone_steps"], good["lost_s"]) == (0, 0.0)  # nobody made the 23,900 steps up to it


def test_a_long_run_has_a_small_page_and_quick_charts(tmp_path: Path) -> None:
    """F4-01, the side of the data: a chart of half a million points reads a few thousandths of what is stored."""
    path, points = tmp_path / "metrics.db", 500_000
    history = History(path)
    for begin in range(0, points, 50_000):
        entries = [
            Entry(Record(reader="test", offset=step, step=step, loss=2 + step % 97 / 97, lr=1e-3), 1, 1)
            for step in range(begin, begin + 50_000)
        ]
        history.commit(entries, [], b"")
    history.close()
    with closing(Views(path)) as views:
        chart = views.chart("loss", points=2000)
        zoom = views.chart("loss", low=250_000.0, high=250_400.0, points=2000)
    assert 500 < len(chart.x) <= 2000
    assert len(json.dumps([chart.x, chart.low, chart.high])) < 200_000
    assert (min(chart.low), max(chart.high)) == (2.0, pytest.approx(2 + 96 / 97))
    assert zoom.exact
    assert [round(x) for x in zoom.x] == list(range(250_000, 250_401))
