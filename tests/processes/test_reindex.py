"""``overnight reindex``: metrics.db from log and journal is what the supervisor had, whatever happened that night."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from looking import Run, Runs, until

from overnight.folder import RunFolder
from overnight.history.completeness import behind
from overnight.history.store import records_of
from overnight.reindexing import put_in_place

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
        "records": len(records), "kept": 0, "lost": 0, "verdicts": len(verdicts), "samples": 0, "file": str(path),
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
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
    folder = runs.overnight("reindex", "night", "--log", elsewhere.parent)
    assert (folder.returncode, f"the log {elsewhere.parent} is no file (check the path)" in folder.stderr) == (1, True)
    assert said.stderr.count("\n") == 1
    assert path.read_bytes() == data
    said = runs.overnight("reindex", "night", "--log", elsewhere)
    assert said.returncode == 0, said.stderr
    assert stored(path) == before


def emptied(log: Path) -> str:
    """Let the log be empty."""
    log.write_bytes(b"")
    return "is empty"


def shortened(log: Path) -> str:
    """Let the log end in its middle."""
    os.truncate(log, log.stat().st_size // 2)
    return "is shorter than it was"


def rewritten(log: Path) -> str:
    """Let the log be another, longer one."""
    log.write_bytes(b"".join(b"step: %d, loss: 1.0\n" % step for step in range(5000)))
    return "holds other lines now"


def beheaded(log: Path) -> str:
    """Let the log begin later, as `tail > new; mv new log` leaves it."""
    log.write_bytes(log.read_bytes()[1000:])
    return "is shorter than it was"


@pytest.mark.parametrize("switches", [(), ("--truncate",)])
def test_what_a_log_has_lost_since_is_not_lost_from_metrics(runs: Runs, switches: tuple[str, ...]) -> None:
    run = night(runs, *switches)
    path, log = run.folder / "metrics.db", run.folder / "output.log"
    whole, data = log.read_bytes(), path.read_bytes()
    records = len(stored(path)[0])
    for spoil in (emptied, shortened, rewritten, beheaded):
        log.write_bytes(whole)
        why = spoil(log)
        said = runs.overnight("reindex", "night")
        assert (said.returncode, said.stdout) == (1, "")
        assert why in said.stderr
        assert f"{records:,} records" in said.stderr
        assert said.stderr.count("\n") == 1
        assert path.read_bytes() == data
    assert not [one.name for one in run.folder.iterdir() if one.name.startswith(".reindex")]
    path.unlink()
    emptied(log)
    assert runs.overnight("reindex", "night").returncode == 1
    assert not path.exists()
    log.write_bytes(whole[: len(whole) // 2])  # nothing is stored: what the log holds is all there is
    said = runs.overnight("reindex", "night", "--json")
    assert said.returncode == 0, said.stderr
    assert 0 < json.loads(said.stdout)["records"] < records


def test_fewer_records_than_were_stored_are_told(runs: Runs) -> None:
    run = night(runs)
    log = run.folder / "output.log"
    data = bytearray(log.read_bytes())
    place = data.index(b"iter 30:")
    data[place : place + 4] = b"####"  # somebody has edited one line, and nothing else
    log.write_bytes(data)
    assert "(1 fewer than were stored" in runs.overnight("reindex", "night").stdout
    assert "fewer than" not in runs.overnight("reindex", "night").stdout


def test_what_could_not_be_stored_at_the_end_is_told_and_read_again(runs: Runs) -> None:
    run = night(runs)
    path, log = run.folder / "metrics.db", run.folder / "output.log"
    before = stored(path)
    assert "reindex" not in runs.overnight("export", "night", "--to", "csv").stderr
    folder = RunFolder(run.folder)
    assert not behind(folder)
    with closing(sqlite3.connect(path)) as db:  # as a commit leaves it that was the last to succeed
        (state,) = db.execute("SELECT value FROM state").fetchone()
        value = msgspec.msgpack.decode(state)
        data = log.read_bytes()
        half = data.index(b"\n", len(data) // 2) + 1
        value["marks"][-1][3:5] = [half, data[half - 64 : half]]
        db.execute("UPDATE state SET value = ?", (msgspec.msgpack.encode(value),))
        db.execute("DELETE FROM records WHERE offset >= ?", (half,))
        db.commit()
    assert behind(folder)
    said = runs.overnight("export", "night", "--to", "csv")
    assert said.returncode == 0
    assert "`overnight reindex night`" in said.stderr
    assert runs.overnight("reindex", "night").returncode == 0
    assert stored(path) == before
    assert not behind(folder)
    later = time.time() + 3600
    with log.open("ab") as stream:
        stream.write(b"appended by another program, after the end\n")
    os.utime(log, (later, later))
    assert not behind(folder)
    log.unlink()
    os.mkfifo(log)
    assert not behind(folder)


def test_a_transaction_cut_short_is_undone_before_its_journal_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk: the old file, and beside it the journal of a transaction that a kill has cut short."""
    live, old, new = (tmp_path / name for name in ("live.db", "old.db", "new.db"))
    with closing(sqlite3.connect(live, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=5")
        db.execute("CREATE TABLE t AS SELECT value AS n, hex(zeroblob(500)) AS x FROM json_each('[1,2,3]')")
        for _ in range(9):
            db.execute("INSERT INTO t SELECT n, x FROM t")
        before = db.execute("SELECT count(*), sum(n) FROM t").fetchone()
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE t SET n = n + 1000")
        shutil.copyfile(live, old)
        shutil.copyfile(f"{live}-journal", f"{old}-journal")
        db.execute("ROLLBACK")
    new.touch()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(new, old)
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*), sum(n) FROM t").fetchone() == before


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
    assert "has not left yet" in said.stderr
