"""SIGKILL at random moments, to the training, to its writer, to both: what is under a final name is always whole.

The kills are chained: each life of a training goes on from what the one before has left, so that hundreds of them cost
minutes. The seed of the moments is printed; OVERNIGHT_TEST_SEED repeats them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoint_toy
import pytest

from overnight.checkpoint import errors, manifest, newest

EVERY = 5
KEEP = 3
TOY = Path(__file__).with_name("checkpoint_toy.py")
SCRIPT = Path(__file__).with_name("checkpoint_script.py")
LINE = re.compile(r"^step: (\d+), loss: ([^,\n]+).*\n", re.MULTILINE)


class Chain:
    """One training that is killed again and again; ``words`` start it. Each life has a log of its own."""

    def __init__(self, folder: Path, words: list[str], *, seed: int) -> None:
        self.folder = folder
        self.words = words
        self.random = random.Random(seed)
        self.lives = 0
        self.seen: dict[int, str] = {}  # step -> the loss that was printed first
        self.process: subprocess.Popen[bytes] | None = None
        self.expected: Path | None = None  # what the next life has to go on from

    @property
    def log(self) -> Path:
        return self.folder.parent / f"life-{self.lives:03d}.log"

    def text(self) -> str:
        return self.log.read_text()

    def begin(self) -> None:
        """Start the next life."""
        self.lives += 1
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(self.words, stdout=out, stderr=out, start_new_session=True)

    def until(self, true: Callable[[], object], what: str, *, limit_s: float = 200.0) -> None:
        end = time.monotonic() + limit_s
        while not true():
            assert self.process is not None
            assert self.process.poll() is None, f"life {self.lives} ended before {what}: {self.text()}"
            assert time.monotonic() < end, f"life {self.lives}: not {what}: {self.text()}"
            time.sleep(0.004)

    def writers(self) -> list[int]:
        """Return the writer among the children of the training, if it was started; data workers are others."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            pids = children.read_text().split()
            return [int(pid) for pid in pids if b"checkpoint.writer" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return []

    def kill(self, who: str) -> None:
        """Wait for a random moment and kill: "all", "trainer", or "writer" and later all."""
        assert self.process is not None
        if self.random.random() < 0.2:
            time.sleep(self.random.uniform(0.0, 0.5))  # while it starts, sweeps, resumes
        else:
            self.until(lambda: "step: " in self.text(), "in its first step")
            time.sleep(self.random.uniform(0.0, 0.3))
        if who == "writer" and (writers := self.writers()):
            # All of what is killed lies behind this place in the log, and one save more must come after it.
            place = len(self.text())
            for pid in writers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # One that had nothing to do yet is replaced without a word: three saves, for two may have been told late.
            self.until(lambda: self.text()[place:].count("saved step-") > 2, "saving again")
        pids = [self.process.pid, *(self.writers() if who != "trainer" else [])]
        self.random.shuffle(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def check(self, losses: dict[int, str]) -> None:
        """Look at what a life has left: nothing half under a final name, not old, and every loss as it should be."""
        self.whole(settled=False)
        with settled(self.folder):
            found = self.whole(settled=True)
        text = self.text()
        assert "mixed" not in text
        assert "Traceback" not in text, text
        self.same(text, losses)
        steps = [int(step) for step, _ in LINE.findall(text)]
        last = max([*self.seen, 0])
        newest_step = max((one.step for one in found.values()), default=0)
        assert last - newest_step <= 2 * EVERY, f"life {self.lives}: step {last} is done, the newest is {newest_step}"
        self.resumed(text, steps)
        self.expected = newest(self.folder)
        assert (self.expected is None) == (not found)
        if self.expected is not None:
            assert found[self.expected.name].step == newest_step

    def resumed(self, text: str, steps: list[int]) -> None:
        """A life that got so far has gone on after the newest checkpoint that the one before had left."""
        said = re.search(r"^resumed from (.*): step (\d+) is done$", text, re.MULTILINE)
        if said is not None:
            assert Path(said[1]) == self.expected
            assert steps[:1] in ([], [int(said[2]) + 1])
        elif steps:
            assert self.expected is None
            assert steps[0] == 1

    def same(self, text: str, losses: dict[int, str]) -> None:
        for step, loss in ((int(step), loss) for step, loss in LINE.findall(text)):
            where = f"life {self.lives}: step {step} differs from"
            assert self.seen.setdefault(step, loss) == loss, f"{where} an earlier life"
            assert losses.get(step, loss) == loss, f"{where} the unbroken training"

    def whole(self, *, settled: bool) -> dict[str, manifest.Manifest]:
        """Verify every byte of all that has a final name; a checkpoint may be removed meanwhile if not ``settled``."""
        found = {}
        for path in [path for path in self.folder.glob("*") if path.name != "LOCK"]:
            if path.name.startswith("."):
                continue
            try:
                known = manifest.read(path)
                manifest.check_content(path, known)
            except errors.DamagedError as error:
                if settled or path.exists():
                    pytest.fail(f"life {self.lives}: {path.name}: {error}")
                continue
            assert path.name == f"step-{known.step:08d}"
            found[path.name] = known
        return found

    def clear(self) -> None:
        """End what is left of a failed test."""
        if self.process is not None and self.process.poll() is None:
            for pid in [self.process.pid, *self.writers()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()

    def end(self, losses: dict[int, str], last: int) -> str:
        """Let the last life come to its end, and look at all of it; return its log."""
        self.begin()
        assert self.process is not None
        assert self.process.wait(200) == 0, self.text()
        self.check(losses)
        steps = sorted(step for path in self.folder.glob("step-*") for step in [manifest.read(path).step])
        assert steps[-1] == last
        assert len(steps) == KEEP
        assert sorted(path.name for path in self.folder.iterdir() if path.name.startswith(".")) == []
        assert sorted(self.seen) == list(range(1, last + 1))
        return self.text()


@contextlib.contextmanager
def settled(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder: whoever still wrote into it has ended."""
    if not (folder / "LOCK").exists():
        yield
        return
    handle = os.open(folder / "LOCK", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the writer of a dead training finishes its save
        yield
    finally:
        os.close(handle)


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("OVERNIGHT_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"OVERNIGHT_TEST_SEED={chosen}\n")
    return chosen


def kill_a_toy(folder: Path, *, seed: int, kills: int, more: tuple[str, ...]) -> None:
    """Kill the toy so often, then let it end."""
    steps = 100_000
    words = [sys.executable, str(TOY), str(folder), f"--every={EVERY}", f"--keep={KEEP}", "--pause=0.002"]
    chain = Chain(folder, [*words, "--ballast=1500000", f"--steps={steps}", *more], seed=seed)
    losses = checkpoint_toy.losses(3000)
    whom = ["all", "trainer"] if "--sync" in more else ["all", "trainer", "writer"]
    try:
        for at in range(kills):
            chain.begin()
            chain.kill(whom[at % len(whom)])
            chain.check(losses)
        last = max(chain.seen) + 2 * EVERY + 3
        chain.words[chain.words.index(f"--steps={steps}")] = f"--steps={last}"
        chain.end(losses, last)
    finally:
        chain.clear()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [(), ("--sync",)], ids=["async", "sync"])
def test_killed_ten_times(tmp_path: Path, seed: int, more: tuple[str, ...]) -> None:
    kill_a_toy(tmp_path / "checkpoints", seed=seed, kills=10, more=more)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_", range(4))
@pytest.mark.parametrize("more", [(), ("--read-back",), ("--sync",)], ids=["async", "read back", "sync"])
def test_killed_two_hundred_times(tmp_path: Path, seed: int, more: tuple[str, ...], round_: int) -> None:
    kill_a_toy(tmp_path / "checkpoints", seed=seed + round_, kills=20, more=more)


def kill_torch(
    tmp_path: Path, *, seed: int, lives: list[tuple[str, list[str]]], steps: int, more: tuple[str, ...] = ()
) -> None:
    """Kill a training with torch in each of its ``lives`` (whom, how it saves), and let the next one come to its end.

    All of its state is then that of one which was left in peace.
    """
    words = [sys.executable, str(SCRIPT), "--kind=full", f"--steps={steps}", f"--every={EVERY}", *more]
    peace = subprocess.run(
        [*words, "--sync", str(tmp_path / "peace")], capture_output=True, text=True, check=True
    ).stdout
    losses = {int(step): loss for step, loss in LINE.findall(peace)}
    chain = Chain(tmp_path / "checkpoints", words, seed=seed)
    try:
        for who, how in lives:
            chain.words = [*words, *how, str(tmp_path / "checkpoints")]
            chain.begin()
            chain.kill(who)
            chain.check(losses)
        text = chain.end(losses, steps)
    finally:
        chain.clear()
    digests = [json.loads(line.removeprefix("digests ")) for line in (peace + text).splitlines() if "digests" in line]
    assert len(digests) == 2
    assert digests[0] == digests[1]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_torch_killed_twice(tmp_path: Path, seed: int) -> None:
    kill_torch(tmp_path, seed=seed, lives=[("trainer", []), ("all", ["--sync"])], steps=120)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [(), ("--workers=2",)], ids=["no workers", "workers"])
def test_torch_killed_ten_times(tmp_path: Path, seed: int, more: tuple[str, ...]) -> None:
    lives = [("trainer", []), ("all", []), ("writer", []), ("all", ["--sync"]), ("trainer", [])] * 2
    kill_torch(tmp_path, seed=seed, lives=lives, steps=400, more=more)
