"""One folder and several processes: trainings one after another and at once, their writers, their forked children."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoint_toy
import pytest

from overnight.checkpoint import manifest, newest

TOY = Path(__file__).with_name("checkpoint_toy.py")
MODES = pytest.mark.parametrize("more", [(), ("--sync",)], ids=["async", "sync"])
LIMIT_S = 150.0
pytestmark = pytest.mark.timeout(600)


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, f"not {what}"
        time.sleep(0.01)


class Toys:
    """Trainings in one folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "checkpoints"
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.stopped: set[int] = set()

    def start(self, *more: str, shows: str = "step: ") -> tuple[subprocess.Popen[bytes], Path]:
        """Start one and wait until its log shows something; return it and its log."""
        log = self.place / f"{len(self.started)}.log"
        words = [sys.executable, str(TOY), str(self.folder), *more]
        with log.open("wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
        self.started.append((process, log))
        until(lambda: shows in log.read_text() or process.poll() is not None, f"showing {shows!r}")
        assert shows in log.read_text(), log.read_text()
        return process, log

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(TOY), str(self.folder), *more]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def flying(self) -> dict[str, int]:
        """Return the folders of saves that are going on or were killed, with their steps."""
        return {name: int(name.split("-")[1]) for name in self.names() if name.startswith(".tmp-")}

    def stop_in_a_save(self, process: subprocess.Popen[bytes]) -> tuple[int, int]:
        """Stop the writer of a training when a save is half on the disk; return its pid and the step of the save."""
        writer = writer_of(process)
        left = set(self.flying())
        self.stopped.add(writer)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            os.kill(writer, signal.SIGSTOP)
            until(lambda: state(writer) == "T", "stopped")
            going = [step for name, step in self.flying().items() if name not in left]
            if going:
                return writer, going[0]
            os.kill(writer, signal.SIGCONT)
            time.sleep(0.002)
        raise AssertionError("not one save was met half done")

    def in_peace(self, text: str) -> None:
        """Assert that all losses in a log are those of an unbroken training."""
        printed = re.findall(r"^step: (\d+), loss: ([^,\n]+), dt", text, re.MULTILINE)
        losses = checkpoint_toy.losses(max(int(step) for step, _ in printed))
        assert all(losses[int(step)] == loss for step, loss in printed)


def state(pid: int) -> str:
    """Return the letter that says how a process is; "Z" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def writer_of(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of a training's writer."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(children.read_text().split()) == 1, "started its writer")
    return int(children.read_text())


@pytest.fixture
def toys(tmp_path: Path) -> Iterator[Toys]:
    found = Toys(tmp_path)
    yield found
    for pid in found.stopped:  # one whose training is dead ends by itself, once it goes on
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    for process, _ in found.started:
        if process.poll() is None:
            pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for pid in [process.pid, *map(int, pids)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def free(folder: Path) -> bool:
    """Say whether nobody holds the lock of a folder."""
    handle = os.open(folder / "LOCK", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@MODES
def test_the_second_training_is_refused_while_the_first_one_lives(toys: Toys, more: tuple[str, ...]) -> None:
    first, log = toys.start("--steps=100000", "--every=5", "--pause=0.05", *more, shows="saved step-")
    for words in ((), ("--resume=no",), ("--sync",)):
        second = toys.run("--steps=10", *words)
        assert second.returncode == 1
        assert second.stdout == "", "it does not wait, and it trains not a single step"
        said = second.stderr.splitlines()[-1]
        assert re.fullmatch(rf".*LockedError: {toys.folder} is being written to by process {first.pid} on .*", said)
    assert first.poll() is None
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(LIMIT_S) == 0
    toys.in_peace(log.read_text())
    third = toys.run("--steps=1")
    assert third.returncode == 0, third.stderr
    assert "nothing is left to do" in third.stdout


def test_two_that_begin_at_the_same_moment(toys: Toys) -> None:
    """Row C5-03: one of them trains and its checkpoints are whole; the other one has written nothing."""
    words = [sys.executable, str(TOY), str(toys.folder), "--steps=40", "--every=10", "--pause=0.02"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=LIMIT_S) for one in both]
    # Either at once, or one after the other where the machine was slow to start the second one.
    assert sorted(one.returncode for one in both) in ([0, 1], [0, 0])
    for one, (out, err) in zip(both, said, strict=True):
        assert (one.returncode == 0) == ("step: 40," in out or "nothing is left to do" in out)
        assert (one.returncode == 1) == ("LockedError" in err)
    assert toys.names() == ["LOCK", *(f"step-{step:08d}" for step in (10, 20, 30, 40))]
    for path in toys.folder.glob("step-*"):
        manifest.check_content(path, manifest.read(path))


def test_the_save_that_a_dead_training_left_in_flight_is_waited_for(toys: Toys) -> None:
    more = ("--steps=100000", "--every=10", "--pause=0.005", "--ballast=4000000")
    first, log = toys.start(*more, shows="saved step-")
    writer, flying = toys.stop_in_a_save(first)
    # The training waits for it before it hands over the next one.
    until(lambda: f"step: {flying + 10}," in log.read_text(), "at the next boundary")
    first.kill()
    first.wait()
    assert flying % 10 == 0
    assert not (toys.folder / f"step-{flying:08d}").exists()
    second, log = toys.start(f"--steps={flying + 20}", *more[1:], shows="waiting for the save")
    assert "step: " not in log.read_text()
    os.kill(writer, signal.SIGCONT)
    assert second.wait(LIMIT_S) == 0
    assert f"resumed from {toys.folder / f'step-{flying:08d}'}: step {flying} is done" in log.read_text()
    toys.in_peace(log.read_text())
    assert all(not name.startswith(".") for name in toys.names())


@MODES
def test_a_forked_child_holds_nothing(toys: Toys, more: tuple[str, ...]) -> None:
    """A data worker that outlives its training must not keep the folder from the next one."""
    first, log = toys.start("--steps=100000", "--every=5", "--pause=0.01", "--fork-child", *more, shows="saved step-")
    found = re.search(r"^child (\d+)$", log.read_text(), re.MULTILINE)
    assert found is not None
    child = int(found[1])
    try:
        pids = [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
        pids.remove(child)
        for pid in (first.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        first.wait()
        until(lambda: all(state(pid) == "Z" for pid in pids), "its writer is gone")
        assert free(toys.folder)
        handles = [os.readlink(one) for one in Path(f"/proc/{child}/fd").iterdir()]
        assert not [one for one in handles if "LOCK" in one or "overnight" in one]
        second = toys.run("--steps=1")
        assert second.returncode == 0
        assert "waiting" not in second.stdout
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_killed_writers_leave_is_swept_by_the_next_save(toys: Toys) -> None:
    """Or a disk fills up with the halves of saves whose writer the system ends for want of memory, time after time."""
    first, log = toys.start("--steps=100000", "--every=5", "--pause=0.002", "--keep=2", "--ballast=4000000")
    left: set[str] = set()
    for count in (1, 2, 3):
        writer, _ = toys.stop_in_a_save(first)
        os.kill(writer, signal.SIGKILL)
        left |= set(toys.flying())
        assert len(left) >= count
        until(lambda writer=writer: state(writer) == "Z", "killed")
        place = len(log.read_text())
        until(lambda place=place: "saved step-" in log.read_text()[place:], "saved again")
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(LIMIT_S) == 0
    assert [name for name in toys.names() if not name.startswith("step-")] == ["LOCK"]
    assert len(toys.names()) == 3
    toys.in_peace(log.read_text())


def test_an_idle_writer_that_is_killed_has_lost_nothing(toys: Toys) -> None:
    kill = """for pid in $(cat /proc/$PPID/task/$PPID/children); do
        [ $pid = $$ ] || { kill -9 $pid; until grep -q "^State:.Z" /proc/$pid/status; do sleep 0.01; done; }
    done"""
    (toys.place / "do.json").write_text(json.dumps({"15": kill}))
    done = toys.run("--steps=30", "--every=10", "--pause=0.1", f"--do={toys.place / 'do.json'}")
    assert done.returncode == 0
    assert "failed" not in done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("warning: the process that had nothing to do was ended by SIGKILL (by somebody, or ")
    assert toys.names() == ["LOCK", "step-00000010", "step-00000020", "step-00000030"]
    toys.in_peace(done.stdout)


def test_a_writer_that_is_killed_in_a_save_is_said_with_its_step(toys: Toys) -> None:
    more = ("--steps=100000", "--every=10", "--pause=0.005", "--ballast=4000000")
    first, log = toys.start(*more, shows="saved step-00000010")
    writer, flying = toys.stop_in_a_save(first)
    os.kill(writer, signal.SIGKILL)
    until(lambda: "warning: " in log.read_text(), "said")
    place = len(log.read_text())
    until(lambda: "saved step-" in log.read_text()[place:], "saved again")
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(LIMIT_S) == 0
    text = log.read_text()
    found = re.search(r"warning: the save of step (\d+) failed: .* \(by somebody, or by the system for want", text)
    assert found is not None, text
    assert int(found[1]) == flying
    assert f"step-{flying:08d}" not in toys.names()
    toys.in_peace(text)


@MODES
def test_c4_03_weights_alone_are_said_before_the_first_save(toys: Toys, more: tuple[str, ...]) -> None:
    done = toys.run("--steps=10", "--every=5", "--weights-only", *more)
    assert done.returncode == 0
    said = done.stdout[: done.stdout.index("step: 1,")]
    assert "no optimizer state: a resume will not be exact" in said


def test_taken_back_by_the_environment(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Overnight does it: the next start goes on from there, and the start after that from what came then."""
    assert toys.run("--steps=30", "--every=10").returncode == 0
    monkeypatch.setenv("OVERNIGHT_CHECKPOINT", str(toys.folder / "step-00000010"))
    back = toys.run("--steps=25", "--every=10", "--keep=2")
    assert f"resumed from {toys.folder}/step-00000010: step 10 is done" in back.stdout
    toys.in_peace(back.stdout)
    monkeypatch.delenv("OVERNIGHT_CHECKPOINT")
    assert newest(toys.folder) == toys.folder / "step-00000025"
    on = toys.run("--steps=40", "--every=10", "--keep=2")
    assert f"resumed from {toys.folder}/step-00000025: step 25 is done" in on.stdout
    toys.in_peace(on.stdout)
    assert toys.names() == ["LOCK", "step-00000030", "step-00000040"]
    monkeypatch.setenv("OVERNIGHT_CHECKPOINT", str(toys.folder / "step-00000010"))
    gone = toys.run("--steps=50")
    assert gone.returncode == 1
    assert "step-00000010 is no checkpoint of this library" in gone.stderr.splitlines()[-1]
