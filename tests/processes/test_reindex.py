"""``overnight reindex``: metrics.db from log and journal is what the supervisor had, whatever happened that night."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, until

from overnight.history.store import records_of

# Prints as nanoGPT does, evaluates every 20 steps, goes back from 60 to 50, has a NaN, crashes in its first attempts.
TRAINING = """
import os, sys, time
attempt = int(os.environ["OVERNIGHT_ATTEMPT"])
first = {1: 0, 2: 30, 3: 40}[attempt]
def say(step):
    if step % 20 == 0:
        print(f"step {step}: train loss {3 - step / 100:.4f}, val loss {3.1 - step / 100:.4f}", flush=True)
    loss = "nan" if step == 55 and attempt == 1 else f"{3 - step / 1000:.4f}"
    print(f"iter {step}: loss {loss}, time {10 + step % 3}.00ms, mfu 12.34%", flush=True)
    time.sleep(0.003)
for step in range(first, 61): say(step)
for step in range(50, 120): say(step)
if "--truncate" in sys.argv and attempt == 3:
    os.truncate(1, 0)
    time.sleep(0.3)
    for step in range(120, 160): say(step)
sys.exit(0 if attempt == 3 else 3)
"""

FLAGS = ("--restarts", 3, "--backoff", "0.1", "--action", "nonfinite=alert")


def stored(path: Path) -> tuple[list[dict[str, object]], list[tuple[Any, ...]]]:
    """Return all records and verdicts of a metrics.db."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        verdicts = db.execute("SELECT * FROM verdicts ORDER BY source, offset, part, rule").fetchall()
    return list(records_of(path)), verdicts


def night(runs: Runs, *switches: str, kills: int = 0) -> Run:
    """Return a run that has ended, with three attempts; its supervisor is killed now and then."""
    script = runs.work / "train.py"
    script.write_text(TRAINING)
    run = runs.start("night", sys.executable, script, *switches, flags=FLAGS)
    for _ in range(kills):
        time.sleep(0.35)
        os.kill(run.pid("supervisor"), signal.SIGKILL)
    assert run.wait() == 0, run.log[-2000:]
    until(lambda: not (run.folder / "metrics.db-wal").exists(), "the supervisor has closed metrics.db")
    return run


@pytest.mark.parametrize("kills", [0, 2])
@pytest.mark.parametrize("lost", ["kept", "gone", "noise"])
def test_it_is_what_the_supervisor_had(runs: Runs, kills: int, lost: str) -> None:
    run = night(runs, kills=kills)
    path = run.folder / "metrics.db"
    records, verdicts = stored(path)
    journal = (run.folder / "journal.jsonl").read_bytes()
    assert len({row["attempt"] for row in records}) == 3
    assert len({row["segment"] for row in records}) == 6
    assert {row["kind"] for row in records} == {"train", "eval"}
    assert "nonfinite" in {one[4] for one in verdicts}
    if lost == "gone":
        path.unlink()
    elif lost == "noise":
        path.write_bytes(os.urandom(5000))
    (run.folder / ".reindex-0001").mkdir()  # of one that was killed
    said = runs.overnight("reindex", "night", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {
        "records": len(records), "kept": 0, "verdicts": len(verdicts), "file": str(path),
    }  # fmt: skip
    assert not [one.name for one in run.folder.iterdir() if one.name.startswith((".reindex", "metrics.db-"))]
    assert stored(path) == (records, verdicts)
    assert (run.folder / "journal.jsonl").read_bytes() == journal
    assert runs.overnight("status", "night").returncode == 0


def test_what_a_truncated_log_has_lost_is_kept(runs: Runs) -> None:
    run = night(runs, "--truncate")
    path = run.folder / "metrics.db"
    records, verdicts = stored(path)
    assert {row["source"] for row in records} == {0, 1}
    said = runs.overnight("reindex", "night", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["kept"] == sum(row["source"] == 0 for row in records)
    assert stored(path) == (records, verdicts)
    assert "kept from log files that are gone" in runs.overnight("reindex", "night").stdout
    assert stored(path) == (records, verdicts)


def test_a_log_that_lies_elsewhere(runs: Runs, tmp_path: Path) -> None:
    run = night(runs)
    path = run.folder / "metrics.db"
    before = stored(path)
    data = path.read_bytes()
    elsewhere = tmp_path / "archived.log"
    (run.folder / "output.log").rename(elsewhere)
    said = runs.overnight("reindex", "night")
    assert said.returncode == 1
    assert "--log" in said.stderr
    assert said.stderr.count("\n") == 1
    assert path.read_bytes() == data
    said = runs.overnight("reindex", "night", "--log", elsewhere)
    assert said.returncode == 0, said.stderr
    assert stored(path) == before


def test_a_live_run_is_refused(runs: Runs) -> None:
    script = "import time\nfor step in range(10**6): print(f'step: {step}, loss: 1.0', flush=True), time.sleep(0.01)"
    run = runs.start("live", sys.executable, "-c", script, log="step: 20")
    inode = (run.folder / "metrics.db").stat().st_ino
    said = runs.overnight("reindex", "live")
    assert said.returncode == 2
    assert "live" in said.stderr
    assert said.stderr.count("\n") == 1
    assert (run.folder / "metrics.db").stat().st_ino == inode
    assert run.stop("--now").returncode == 0


def test_a_supervisor_that_holds_the_lock_is_not_disturbed(runs: Runs) -> None:
    run = night(runs)
    lock = run.folder / "owner" / "supervisor.lock"
    with lock.open("r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        said = runs.overnight("reindex", "night")
    assert said.returncode == 2
    assert "live" in said.stderr
