"""Saves as they are noticed from outside: real files in a real folder, and which of them are saves of the training.

The time is an argument everywhere, so that nothing is waited for; only the last tests start runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import Run, until

from overnight.saves import Saves, SaveWatch

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "saved"


class Watched:
    """A SaveWatch, the time that its looks have, and what it has told."""

    def __init__(self, root: Path) -> None:
        self.now = 1000.0
        self.told: list[dict[str, Any]] = []
        self.watch = SaveWatch(root, skip=(), saved=lambda **facts: self.told.append(facts))
        self.saves: Saves = self.watch.saves

    def look(self, step: int | None, *, after_s: float = 0.0, **how: bool) -> bool:
        self.now += after_s
        stepping, at_last = how.get("stepping", step is not None), how.get("at_last", False)
        return self.watch.look(self.now, step, 0.5, stepping=stepping, at_last=at_last)

    @property
    def paths(self) -> list[str]:
        return [os.path.basename(one["path"]) for one in self.told if one.get("path")]

    @property
    def slowest_s(self) -> float:
        return max(one["seconds"] for one in self.told)


Watch = Callable[[Path], Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Return ``watch(root)``: a Watched whose handle is closed at the end of the test."""
    made: list[Watched] = []

    def make(root: Path) -> Watched:
        made.append(Watched(root))
        return made[-1]

    yield make
    for one in made:
        one.saves.inotify.close()


def save(path: Path) -> None:
    path.write_bytes(b"weights")


# -- the folder ------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_made_later_is_watched_from_then_on(root: Path, watch: Watch) -> None:
    watched = watch(root / "deep")
    assert not watched.look(1)
    (root / "deep").mkdir(parents=True)
    assert not watched.look(2, after_s=1)
    save(root / "deep" / "ckpt_3.pt")
    watched.look(3, after_s=1)
    assert watched.look(4, after_s=2)
    assert (watched.paths, watched.told[0]["step"]) == (["ckpt_3.pt"], 3)


def test_what_was_saved_together_with_the_folder_is_seen(root: Path, watch: Watch) -> None:
    watched = watch(root)
    watched.look(1)
    (root / "step-5").mkdir(parents=True)
    save(root / "step-5" / "weights.pt")
    watched.look(5, after_s=1)
    assert watched.look(6, after_s=2)
    assert watched.told[0]["path"] == str(root / "step-5")


def test_a_folder_that_is_removed_or_moved_and_made_again_is_watched_again(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(1)
    root.rmdir()
    watched.look(2, after_s=1)
    root.mkdir()
    watched.look(3, after_s=1)
    save(root / "ckpt_3.pt")
    watched.look(4, after_s=1)
    assert watched.look(4, after_s=2)
    root.rename(root.with_name("old"))
    root.mkdir()
    watched.look(5, after_s=1)
    save(root / "ckpt_5.pt")
    watched.look(6, after_s=1)
    assert watched.look(6, after_s=2)
    save(root.with_name("old") / "ckpt_7.pt")
    watched.look(7, after_s=1)
    assert not watched.look(7, after_s=2)
    assert watched.paths == ["ckpt_3.pt", "ckpt_5.pt"]


def test_a_link_to_a_folder_is_followed(root: Path, watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    root.symlink_to("disk")
    watched = watch(root)
    watched.look(1)
    save(tmp_path / "disk" / "ckpt_2.pt")
    watched.look(2, after_s=1)
    assert watched.look(2, after_s=2)
    assert watched.told[0]["path"] == str(root / "ckpt_2.pt")


def test_a_folder_in_which_much_happens_is_given_up_alone(root: Path, watch: Watch) -> None:
    (root / "ckpt").mkdir(parents=True)
    saves = watch(root).saves
    for number in range(2100):
        (root / f"note{number % 7}.txt").write_text("x")
        if number % 100 == 0:
            saves.look(1.0)
    for at in (2.0, 3.0):
        saves.look(at)
    assert [os.path.basename(path) for path, _ in saves.folders.values()] == ["ckpt"]
    save(root / "ckpt" / "a.pt")
    assert saves.look(4.0) is None
    assert saves.look(6.0) is not None


# -- before the first step -------------------------------------------------------------------------------------------


def test_a_cache_that_was_written_before_the_first_step_is_no_save(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    with (root / "train.bin").open("wb") as cache:
        watched.look(None)
        cache.write(b"tokens")
        watched.look(None, after_s=300)
    watched.look(None, after_s=0.5)
    assert not watched.look(1, after_s=0.2)  # over, but not yet for a second
    assert not watched.look(2, after_s=5)
    save(root / "ckpt_3.pt")
    watched.look(3, after_s=1)
    assert watched.look(3, after_s=2)
    assert watched.paths == ["ckpt_3.pt"]
    assert watched.slowest_s < 2


def test_a_cache_that_is_over_long_before_the_first_step_is_a_sign_of_life_and_no_save(
    root: Path, watch: Watch
) -> None:
    root.mkdir()
    watched = watch(root)
    save(root / "train.bin")
    watched.look(None)
    assert watched.look(None, after_s=2)
    watched.look(1, after_s=2)
    watched.look(2, after_s=2)
    assert watched.told == []


def test_a_cache_that_is_over_only_just_before_the_first_step_is_no_save(root: Path, watch: Watch) -> None:
    """Its folder was new, so that its beginning was not told; its end and the step both came since the last look."""
    root.mkdir()
    watched = watch(root)
    (root / "data").mkdir()
    with (root / "data" / "train.bin").open("wb"):
        watched.look(None)
        watched.look(None, after_s=2)
        watched.look(None, after_s=300)
    watched.now += 0.001
    watched.saves.absorb(watched.now)
    watched.look(1, after_s=0.001)
    watched.look(2, after_s=2)
    assert watched.told == []
    assert not watched.watch.saving()


def test_a_cache_that_stays_open_is_no_part_of_the_first_save_and_its_end_is_none(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    with (root / "train.bin").open("wb"):
        watched.look(None)
        watched.look(1, after_s=300)
        save(root / "ckpt_2.pt")
        watched.look(2, after_s=1)
        assert watched.look(2, after_s=2)
    watched.look(3, after_s=100)
    assert not watched.look(3, after_s=2)
    assert watched.paths == ["ckpt_2.pt"]
    assert watched.slowest_s < 2
    save(root / "train.bin")  # and a file of that name may be a save later
    watched.look(4, after_s=1)
    assert watched.look(4, after_s=2)


def test_a_save_directly_behind_the_first_step_is_one(root: Path, watch: Watch) -> None:
    """Both came since the last look: the wake-up takes in the files before the log is read."""
    root.mkdir()
    watched = watch(root)
    watched.look(None)
    save(root / "ckpt_1.pt")
    watched.now += 0.001
    watched.saves.absorb(watched.now)
    watched.look(1, after_s=0.001)
    assert watched.look(1, after_s=2)
    assert watched.paths == ["ckpt_1.pt"]


def test_each_attempt_has_its_own_first_step(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(7)
    unfinished = (root / "ckpt_7.pt").open("wb")
    watched.look(7, after_s=0.1)
    unfinished.close()  # by its death
    os.truncate(root / "ckpt_7.pt", 0)
    assert watched.look(7, at_last=True)
    half = (root / "ckpt_8.pt").open("wb")
    watched.look(8, after_s=1)
    assert not watched.look(8, at_last=True)
    half.close()
    with (root / "train.bin").open("wb"):
        watched.look(8, stepping=False, after_s=10)
        watched.look(8, stepping=False, after_s=600)
    watched.look(8, stepping=False, after_s=0.1)
    watched.look(8, stepping=True, after_s=0.1)
    watched.look(9, after_s=0.5)
    save(root / "ckpt_9.pt")
    watched.look(9, after_s=0.1)
    assert watched.look(9, after_s=2)
    assert watched.paths == ["ckpt_7.pt", "ckpt_9.pt"]
    assert watched.slowest_s < 2


def test_the_way_to_the_next_attempt_is_no_silence_round_the_last_save(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(4)
    watched.look(5, after_s=0.5)
    save(root / "ckpt_5.pt")
    watched.look(5, after_s=0.1)
    assert watched.look(5, after_s=2)
    watched.look(5, stepping=False, after_s=1)
    watched.look(5, stepping=False, after_s=600)
    watched.look(6, after_s=1)
    watched.look(7, after_s=0.5)
    assert watched.paths == ["ckpt_5.pt"]
    assert watched.slowest_s < 2


def test_a_silence_round_a_save_counts(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(4)
    watched.look(5, after_s=0.5)
    save(root / "ckpt_5.pt")
    watched.look(5, after_s=0.1)
    watched.look(5, after_s=2)
    watched.look(6, after_s=20)
    assert watched.slowest_s == pytest.approx(21.6)


# -- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_the_newest_does_not_hold_the_save_up(root: Path, watch: Watch, link: Callable[..., None]) -> None:
    """Nobody writes through it, so that no end of it is ever told."""
    root.mkdir()
    watched = watch(root)
    watched.look(1)
    for step in (2, 3):
        save(root / f"ckpt_{step}.pt")
        (root / "latest.pt").unlink(missing_ok=True)
        link(root / f"ckpt_{step}.pt", root / "latest.pt")
        watched.look(step, after_s=1)
        assert watched.look(step, after_s=2)
        watched.look(step, after_s=600)
    assert watched.paths == ["ckpt_2.pt", "ckpt_3.pt"]
    assert max(one["seconds"] for one in watched.told if one.get("path")) == 0


def test_a_folder_that_is_only_made_begins_no_save(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(1)
    (root / "checkpoints").mkdir()
    watched.look(2, after_s=1)
    watched.look(900, after_s=7200)
    save(root / "checkpoints" / "step_900.pt")
    watched.look(901, after_s=0.5)
    assert watched.look(902, after_s=2)
    assert watched.slowest_s < 10, "and not two hours"


# -- a run -----------------------------------------------------------------------------------------------------------

LATE = """\
import os, sys, time
print("step: 1, loss: 3.0, dt: 0.1", flush=True)
time.sleep(1.5)
os.makedirs("later/deep")
for step in range(2, 200):
    print(f"step: {step}, loss: 3.0, dt: 0.1", flush=True)
    if step % 20 == 0:
        with open(f"later/deep/ckpt_{step}.pt.tmp", "wb") as out:
            out.write(b"weights")
        os.replace(f"later/deep/ckpt_{step}.pt.tmp", f"later/deep/ckpt_{step}.pt")
    time.sleep(0.1)
"""


def test_saves_into_a_folder_that_the_script_makes_are_seen(start: Start) -> None:
    run = start("night", sys.executable, "-c", LATE, flags=("--checkpoints", "later/deep"))
    found = until(lambda: run.status["checkpoint"], "a save is seen")
    assert (found["step"] % 20, os.path.basename(found["path"])) == (0, f"ckpt_{found['step']}.pt")


HANGS = """\
import time
for step in range(1, 6):
    print(f"step: {step}, loss: 3.0, dt: 0.1", flush=True)
    time.sleep(0.1)
time.sleep(600)
"""

NEIGHBOUR = """\
import os, time
os.makedirs("ckpt", exist_ok=True)
for number in range(600):
    with open(f"ckpt/step_{number}.pt", "wb") as out:
        out.write(b"weights")
    time.sleep(0.3)
"""


def test_the_saves_of_a_neighbour_excuse_no_silence(start: Start, work: Path) -> None:
    """Two runs in one folder: whose the files are cannot be told, so only what the run itself holds open counts."""
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR], cwd=work) as neighbour:
        try:
            run = start("hangs", sys.executable, "-c", HANGS, flags=("--stall", "6s"))
            assert run.wait(40) == 104
        finally:
            neighbour.kill()
    found = [one for one in run.status["verdicts"] if one["rule"] == "stall"]
    assert [one["action"] for one in found] == ["alert", "stop"], "no note that a save explains it"
