"""Ends that something stands in the way of: the run is over all the same, and what is left to do is said."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import Run, Runs, alive, toy, until

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]


@pytest.mark.parametrize("full", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_folder_in_the_place_of_metrics_keeps_no_run_from_ending(start: Start, runs: Runs, *, full: bool) -> None:
    run = start("night", *toy("--steps", 60, "--dt", 0.02), flags=("--on-end", "true"), log="step: 3,")
    place = run.folder / "metrics.db"
    supervisor = run.pid("supervisor")
    for path in run.folder.glob("metrics.db*"):
        path.unlink()
    place.mkdir()
    if full:
        (place / "notes").write_text("mine")
    assert run.wait(45) == 0
    until(lambda: not any(alive(run.pid(role)) for role in ("guard", "shim", "supervisor")), "its keepers leave")
    assert supervisor != run.pid("supervisor")
    assert any("`overnight reindex night`" in note for note in run.status["notes"])
    done = runs.overnight("reindex", "night")
    if full:
        assert done.returncode == 1
        assert f"{place} is a folder and no database" in done.stderr
        shutil.rmtree(place)
        done = runs.overnight("reindex", "night")
    assert (done.returncode, done.stdout.split()[1]) == (0, "60"), done.stderr


@pytest.mark.parametrize("killed", [False, True])
def test_the_page_is_there_when_wait_returns(start: Start, *, killed: bool) -> None:
    run = start("night", *toy("--steps", 30, "--dt", 0.02), flags=("--report", "end"), log="step: 3,")
    until((run.folder / "attempts" / "001" / "exit.json").exists, "the end of the training")
    if killed:
        os.kill(run.pid("supervisor"), signal.SIGKILL)
    assert run.wait(40) == 0
    assert (run.folder / "report.html").exists()


def test_a_full_home_still_shows_how_far_its_run_is(home: Path, work: Path, tmp_path: Path) -> None:
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(home)], check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    runs = Runs(home, work)
    try:
        flags = ("--log", tmp_path / "train.log")
        run = runs.start("night", *toy("--steps", 100000, "--dt", 0.02), flags=flags)
        until(lambda: (run.status["step"] or 0) > 30, "the first steps")
        with (home / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"x" * 4096)
        (run.folder / "evidence" / "ballast").unlink(missing_ok=True)
        with (home / "more").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while True:
                stream.write(b"x" * 4096)
        before = run.status["step"] or 0
        until(lambda: (run.status["step"] or 0) > before + 200, "steps of the time after")
        assert run.status["stale"] is False
    finally:
        (home / "filler").unlink(missing_ok=True)
        runs.end()
        subprocess.run(["umount", "-l", str(home)], check=True)


def test_what_cannot_be_removed_stays_a_run(home: Path) -> None:
    """Asked by somebody whom permissions bind; the tests may run as root."""
    folder = home / "runs" / "night"
    (folder / "sub").mkdir(parents=True)
    (folder / "run.json").write_text('{"spec": {}}')
    (folder / "status.json").write_text('{"state": "finished"}')
    (folder / "sub" / "file").touch()
    words = [sys.executable, "-m", "overnight", "clean", "night"]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("nobody here whom permissions bind")
        words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *words]
    (folder / "sub").chmod(0o500)
    done = subprocess.run(
        words, env={**os.environ, "OVERNIGHT_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    (folder / "sub").chmod(0o700)
    assert done.returncode == 1
    assert f"night cannot be removed: {folder / 'sub'}: Permission denied" in done.stderr
    assert sorted(path.name for path in folder.parent.iterdir()) == ["night"]
    assert (folder / "sub" / "file").exists()
