"""Row F4-03: the list of a thousand runs, on a home whose every file operation takes 50 ms, reads summaries only.

Seconds depend on the machine, so rounds are counted: how often the busiest thread had to wait for the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs import Home, a_place

from overnight.folder import RunFolder, machine_id, write_json

RUNS = 1000
MOST_ROUNDS = 40
"""Waits of 50 ms one after the other; 60 of them are three seconds."""

SOURCE = Path(__file__).with_name("slowdisk.c")
GONE = {"pid": 1 << 22, "start_ticks": 1}  # above the kernel's highest pid


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Home]:
    yield from a_place(tmp_path)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes the home slow."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here to build a slow disk with")
    made = tmp_path_factory.mktemp("slow") / "slow.so"
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the slow disk cannot be built here: {built.stderr.strip()}")
    return made


def many(home: Path, count: int = RUNS) -> None:
    """Make ended runs as a supervisor leaves them, with metrics and logs that nobody may open for a list."""
    for at in range(count):
        path = home / "runs" / f"run-{at:04d}"
        path.mkdir(parents=True)
        at_utc = f"2026-11-{1 + at // 100:02d}T20:{at // 60 % 60:02d}:{at % 60:02d}.000Z"
        one = {"name": path.name, "state": "finished", "cause": "completed", "created_at": at_utc, "step": at}
        (path / "status.json").write_text(json.dumps({**one, "log": str(path / "output.log"), "loss": 3.25}))
        (path / "run.json").write_text(json.dumps({"name": path.name, "created_at": at_utc}))
        for name in ("metrics.db", "output.log", "journal.jsonl", "run.env"):
            (path / name).write_text("not for a list")


def odd_ones(home: Path) -> None:
    """Put runs among them that are damaged, foreign, abandoned, just born."""

    def make(name: str, status: Any, shim: Any = None) -> RunFolder:
        folder = RunFolder(home / "runs" / name)
        folder.create()
        write_json(folder.run_json, {"name": name, "created_at": "2026-12-01", "spec": {"log": "/x"}})
        if status is not None:
            write_json(folder.status_json, status)
        if shim is not None:
            write_json(folder.shim_json, shim)
        return folder

    make("damaged", {}).status_json.write_bytes(b"{")
    make("empty", None).run_json.unlink()
    make("newborn", None)
    make("abandoned", {"state": "running", "step": 7}, {"shim": GONE, "supervisor": GONE})
    foreign = make("foreign", {"state": "running", "step": 9}, {"boot_id": "another", "shim": GONE})
    (foreign.owner / "1").write_text(json.dumps({"machine_id": machine_id() + "x"}))
    (home / "runs" / "a-file").write_text("no run")


def rounds(log: Path) -> tuple[int, list[str]]:
    """Return how often the busiest thread waited, and all paths that were looked at."""
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    return max(Counter(line[0] for line in lines).values()), [line[2] for line in lines]


def slowly(
    place: Home, library: Path, *words: str, ms: int = 50
) -> tuple[subprocess.CompletedProcess[str], int, list[str]]:
    """Run `overnight WORDS` on a slow home; return what it said, its rounds and the paths it looked at."""
    log = place.work / "looks.txt"
    log.unlink(missing_ok=True)
    slow = {"LD_PRELOAD": str(library), "SLOW_BELOW": str(place.path), "SLOW_LOG": str(log), "SLOW_MS": str(ms)}
    said = place.call(*words, env=slow, timeout=110)
    assert log.exists(), f"the slow disk was not felt: {said.stderr}"
    return said, *rounds(log)


def test_f4_03_a_thousand_runs_on_a_slow_disk(place: Home, library: Path) -> None:
    many(place.path)
    quick = place.call("ls")
    said, waits, paths = slowly(place, library, "ls")
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[1].startswith("run-0000 ")
    assert [line.split()[0] for line in said.stdout.splitlines()] == [
        line.split()[0] for line in quick.stdout.splitlines()
    ]
    assert waits <= MOST_ROUNDS
    assert Counter(Path(path).name for path in paths) == {"status.json": RUNS, "runs": 1}, "summaries, once each"


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (["status"], "run-0999: finished"),
        (["status", "run-0500"], "run-0500: finished"),
        (["ls", "--json"], '"run-0999"'),
        (["stop"], "no run is live"),
        (["logs", "-n", "1"], "not for a list"),
    ],
)
def test_f4_03_what_else_has_to_look_at_all_runs(place: Home, library: Path, words: list[str], shows: str) -> None:
    many(place.path)
    said, waits, _ = slowly(place, library, *words)
    assert shows in said.stdout + said.stderr
    assert waits <= MOST_ROUNDS


def test_f4_03_watching_a_slow_disk(place: Home, library: Path) -> None:
    many(place.path)
    log = place.work / "looks.txt"
    slow = {"LD_PRELOAD": str(library), "SLOW_BELOW": str(place.path), "SLOW_LOG": str(log), "SLOW_MS": "50"}
    words = [sys.executable, "-m", "overnight", "ls", "--watch", "--json", "--interval", "0.1s"]
    with subprocess.Popen(words, env={**place.env, **slow}, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert len(json.loads(watching.stdout.readline())) == RUNS
        first, _ = rounds(log)
        write_json(place.path / "runs/run-0007/status.json", {"state": "failed", "created_at": "2026-10-01"})
        assert json.loads(watching.stdout.readline())[0]["state"] == "failed"
        watching.terminate()
    assert first <= MOST_ROUNDS


def test_odd_runs_are_shown_rightly_on_a_slow_disk_too(place: Home, library: Path) -> None:
    many(place.path, 40)
    odd_ones(place.path)
    log = place.work / "looks.txt"
    slow = {"LD_PRELOAD": str(library), "SLOW_BELOW": str(place.path), "SLOW_LOG": str(log), "SLOW_MS": "20"}
    # `ls` would have the abandoned run looked after at once, and it would be another one the second time.
    source = (
        "import json, sys; from overnight import client; print(json.dumps(client.list_runs(sys.argv[1], full=True)))"
    )
    words = [sys.executable, "-c", source, str(place.path)]
    before, after = (
        json.loads(subprocess.run(words, env={**place.env, **more}, capture_output=True, check=True).stdout)
        for more in ({}, slow)
    )
    assert len({line.split()[0] for line in log.read_text().splitlines()}) > 10, "many threads looked"
    assert after == before
    found = {one["name"]: one for one in after}
    assert len(found) == 45
    assert {name for name, one in found.items() if one["state"] == "damaged"} == {"damaged", "empty"}
    assert found["foreign"]["foreign"]
    assert found["newborn"]["state"] == "pending"
    assert found["abandoned"]["stale"]
    assert (found["abandoned"]["step"], found["foreign"]["step"]) == (7, 9)


def test_f4_a_list_reads_summaries_and_nothing_else(place: Home) -> None:
    """Metrics, logs and journals are FIFOs here: whoever opened one would hang for ever."""
    many(place.path, 20)
    for run in (place.path / "runs").iterdir():
        for name in ("metrics.db", "output.log", "journal.jsonl", "run.env", "supervisor.log"):
            (run / name).unlink(missing_ok=True)
            os.mkfifo(run / name)
    for words in (["ls"], ["ls", "--json"]):
        said = place.call(*words, timeout=20)
        assert said.returncode == 0
        assert said.stdout.count("run-") >= 20


def test_a_run_that_is_removed_while_others_are_looked_at_is_left_out(place: Home, library: Path) -> None:
    many(place.path, 200)
    log = place.work / "looks.txt"
    slow = {"LD_PRELOAD": str(library), "SLOW_BELOW": str(place.path), "SLOW_LOG": str(log), "SLOW_MS": "400"}
    listing = subprocess.Popen(
        [sys.executable, "-m", "overnight", "ls", "--json"],
        env={**place.env, **slow},
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while not (log.exists() and "run-0000/status.json" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.005)
    shutil.rmtree(place.path / "runs/run-0199")
    names = [one["name"] for one in json.loads(listing.communicate(timeout=60)[0])]
    assert listing.returncode == 0
    assert names[-1] in ("run-0198", "run-0199")
    assert len(names) == len(set(names)) >= 199
