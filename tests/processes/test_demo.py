"""``overnight demo`` shows what it says, says so when something fails, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="the demo trains with numpy: pip install 'overnight[demo]'")

from overnight.checkpoint import load
from overnight.demo import stages
from overnight.demo.place import FailedError, Place

DEMO = [sys.executable, "-m", "overnight", "demo"]


def belonging_to(folder: Path) -> list[int]:
    """Return the pids of all processes whose environment names a folder below ``folder`` as their OVERNIGHT_HOME."""
    mark = f"OVERNIGHT_HOME={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and any(v.startswith(mark) for v in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def test_every_stage_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--dir", str(tmp_path / "new"), "--keep"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.findall(r"^(\d)\. ", done.stdout, re.MULTILINE) == list("123456789")
    assert "FAILED" not in done.stdout
    assert f"export OVERNIGHT_HOME={tmp_path}/new/home" in done.stdout
    too_wide = [line for line in done.stdout.splitlines() if len(line) > 80 and str(tmp_path) not in line]
    assert too_wide == []
    resumed_at = int(re.findall(r"Resumed at step (\d+)", done.stdout)[0])
    # Looked at once more by other means than the demo's own: the log of the resumed run, and both last checkpoints.
    log = (tmp_path / "new/home/runs/resumed/output.log").read_text()
    assert f"resumed from {tmp_path}/new/first/step-{resumed_at:08d}: step {resumed_at} is done" in log
    names = ("first", "killed", "unbroken")
    *others, unbroken = [load(tmp_path / "new" / name / f"step-{resumed_at + 10:08d}").parts for name in names]
    assert unbroken["model"].keys() == unbroken["optimizer"]["m"].keys() == unbroken["optimizer"]["v"].keys()
    for one in others:
        for name, array in unbroken["model"].items():
            assert (one["model"][name] == array).all()
            assert all((one["optimizer"][m][name] == unbroken["optimizer"][m][name]).all() for m in "mv")
        assert one["rng"]["own"] == unbroken["rng"]["own"]
    again = (tmp_path / "new/home/runs/killed/output.log").read_text()
    assert again.count("resumed from ") == 1
    # numpy is all it takes: nothing of torch is in the checkpoints, and no leftover of a save.
    for name in (*names, "poisoned"):
        assert not [path for path in (tmp_path / "new" / name).rglob("*") if path.suffix == ".pt"]
        assert not list((tmp_path / "new" / name).glob(".*"))
    assert belonging_to(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_takes_its_runs_along(number: signal.Signals, tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--dir", str(tmp_path / "new")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert demo.stdout is not None
    with demo:
        lines = iter(demo.stdout)
        assert any(line.startswith("2. ") for line in lines)
        assert belonging_to(tmp_path) != []
        demo.send_signal(number)
        assert "interrupted" in "".join(lines)
    assert demo.returncode == 130
    assert belonging_to(tmp_path) == []
    assert not (tmp_path / "new").exists()


def test_failed_stage_fails_the_demo_and_ends_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pids = []

    def hopeless(place: Place) -> Iterator[str]:
        place.start("first", "--steps", "4000", "--slow", "50", checkpoints="first")
        pids.append(place.status("first")["pid"])
        yield "this much was seen"
        raise FailedError("pigs to fly", "a pig on the ground")

    def never(_: Place) -> Iterator[str]:
        yield "this is not reached"

    code = stages.play(tmp_path, keep=False, stages=[("pigs", hopeless), ("more", never)])
    printed = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "this much was seen FAILED: expected pigs to fly; seen: a pig on the ground" in printed
    assert "this is not reached" not in printed
    assert str(tmp_path) in printed
    assert belonging_to(tmp_path) == []
    until = time.monotonic() + 10
    while Path(f"/proc/{pids[0]}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pids[0]}").exists()
    assert (tmp_path / "home/runs/first/output.log").exists()


def test_facts_that_are_missing_fail_the_demo_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(place: Place) -> Iterator[str]:
        yield (place.folder / "no such file").read_text()

    assert stages.play(tmp_path, keep=False, stages=[("lost", lost)]) == 1
    assert "FAILED: expected" in capsys.readouterr().out


def test_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(FailedError) as failure:
        Place(tmp_path).overnight("status", "nothing")
    assert "overnight status nothing" in failure.value.expected
    assert "102" in failure.value.seen


def test_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run([*DEMO, "--dir", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "mine").read_text() == "precious"


def test_without_numpy_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['numpy'] = None\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        DEMO,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("overnight: ")
    assert "`pip install '.[demo]'`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
