"""The bench runs, and what it shows has the right order. Ratios within one run are asserted, never times."""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


@pytest.fixture
def bench() -> Iterator[dict[str, ModuleType]]:
    """The bench's sections, imported as ``python bench/run.py`` does."""
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in ("latency", "listing", "pipeline", "run")}
    finally:
        sys.path.remove(str(BENCH))


def test_a_nan_is_answered_sooner_than_a_follower_that_polls_could(bench: dict[str, ModuleType]) -> None:
    ours, polled, _ = bench["latency"].tries(5, 5)
    assert len(ours) == len(polled) == 5
    assert statistics.median(ours) < statistics.median(polled)


def test_ls_of_1000_runs_costs_little_more_than_starting_python(bench: dict[str, ModuleType]) -> None:
    times = {name: statistics.median(took) for name, took in bench["listing"].turns(5).items()}
    assert times["python, nothing"] < times["python, argparse + sqlite3"] < times["overnight ls"]
    assert times["overnight ls"] < 12 * times["python, nothing"]


def test_the_intake_keeps_up_with_a_plain_loop(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    bench["pipeline"].make_log(log, 20_000)
    bench["pipeline"].by_intake(log)
    turns = [(bench["pipeline"].by_intake(log), bench["pipeline"].by_regex(log)) for _ in range(3)]
    assert statistics.median(ours for ours, _ in turns) < 60 * statistics.median(plain for _, plain in turns)


def test_every_section_makes_a_table(bench: dict[str, ModuleType]) -> None:
    rows = bench["pipeline"].measure(quick=True)
    text = bench["run"].table(rows)
    assert text.count("\n") == len(rows) + 1
    assert "grep -c" in text
