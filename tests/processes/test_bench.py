"""The bench runs, and what it shows has the right order. Ratios within one run are asserted, never times."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "bench"


@pytest.fixture
def bench() -> Iterator[dict[str, ModuleType]]:
    """The bench's sections, imported as ``python bench/run.py`` does."""
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in ("checkpoints", "latency", "listing", "pipeline", "run")}
    finally:
        sys.path.remove(str(BENCH))


def test_a_nan_is_answered_sooner_than_a_follower_that_polls_could(bench: dict[str, ModuleType]) -> None:
    ours, polled, _ = bench["latency"].tries(3, 3)
    assert len(ours) == len(polled) == 3
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


SMALLEST = ["--size", "0.001", "--saves", "2", "--idle", "1", "--loads", "1", "--quiet-s", "0.1", "--longest-s", "1"]


def measured(bench: dict[str, ModuleType], savers: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let savers take turns, and return the figures of each, which are possible ones."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two threads wait for each other on a machine where others work, too
    for needed in ("torch", "xxhash"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    found = bench["checkpoints"].turns(Path(sys.executable), savers, folder, 1, SMALLEST)
    assert list(found) == savers
    assert not list(folder.iterdir()), "nothing of the state is left on the disk"
    for (figures,) in found.values():
        assert len(figures["training"]) == 2
        assert all(one["done_s"] is None or one["kept_s"] <= one["done_s"] for one in figures["training"])
        (rested,) = figures["durable"]
        assert 0 < rested["done_s"] <= rested["durable_s"] <= rested["verified_s"]
    return found


@pytest.mark.long  # as the test below; the saver itself has tests of its own
@pytest.mark.timeout(400)  # torch is imported twice, once by a writer that lets others go first
def test_a_saver_loads_what_it_saved(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = bench["checkpoints"].ASYNC
    found = measured(bench, [saver], tmp_path, monkeypatch)
    assert found[saver][0]["memory"]["shared"] >= found[saver][0]["size"]


@pytest.mark.long
@pytest.mark.timeout(400)  # three trainings with torch, one after the other
def test_savers_take_turns_and_load_what_they_saved(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = bench["checkpoints"]
    savers = [checkpoints.TORCH, checkpoints.ASYNC, checkpoints.SYNC]
    found = measured(bench, savers, tmp_path, monkeypatch)
    held = {saver: figures["memory"]["shared"] for saver, (figures,) in found.items()}
    assert held[checkpoints.ASYNC] >= found[checkpoints.ASYNC][0]["size"] > held[checkpoints.SYNC]
    tables = checkpoints.Tables(found).all()
    text = bench["run"].tables(tables)
    assert text.count("### ") == len(tables) == 5
    assert "overnight, resumed (verified)" in text


def saver_figures(kept: float, during: float | None, durable: float) -> list[dict[str, object]]:
    """What a process of a saver with a state of one GB would have written: a slow first save, and a usual one."""
    usual = {"kept_s": kept, "quiet_s": 0.1, "during_s": during, "during_largest_s": during, "steps": 9, "done_s": 5.0}
    rest = {"done_s": durable, "durable_s": durable, "verified_s": durable}
    memory = {"trainer": 0, "others": 0, "shared": 0}
    training = [usual | {"kept_s": 100.0}, usual]
    return [{"size": 10**9, "training": training, "memory": memory, "durable": [rest], "loads": {}}]


@pytest.mark.parametrize(
    ("kept", "during", "durable", "met"),
    [(0.29, 0.2, 2.9, True), (0.31, 0.2, 2.9, False), (0.29, 0.21, 2.9, False), (0.29, 0.2, 3.1, False)],
)
def test_a_budget_that_is_not_kept_is_said(
    bench: dict[str, ModuleType], kept: float, during: float, durable: float, met: bool
) -> None:
    checkpoints = bench["checkpoints"]
    found = {
        checkpoints.TORCH: saver_figures(1.0, None, 2.0),
        checkpoints.PROCESS: saver_figures(0.5, 0.3, 9.0),
        checkpoints.ASYNC: saver_figures(kept, during, durable),
    }
    text = bench["run"].tables(checkpoints.Tables(found).all())
    assert text.count(": met") == (4 if met else 3)
    assert text.count("NOT met") == (0 if met else 1)


def test_a_peer_that_fails_is_left_out_and_told(
    bench: dict[str, ModuleType], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoints = bench["checkpoints"]
    assert checkpoints.turns(Path("/bin/false"), [checkpoints.TORCH], tmp_path, 1, []) == {}
    assert "torch.save ended with 1" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="overnight, async ended with 1"):
        checkpoints.turns(Path("/bin/false"), [checkpoints.ASYNC], tmp_path, 1, [])
