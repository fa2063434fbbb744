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

from overnight.saves.noticing import Saves, SaveWatch

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


# -- the step --------------------------------------------------------------------------------------------------------


def test_a_save_is_of_the_step_that_was_reached_when_it_was_begun(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    for step in (49, 50):
        watched.look(step, after_s=0.1)
    for at in (50, 100):
        draft = root / "ckpt.json.tmp"
        save(draft)
        watched.look(at, after_s=0.01)
        draft.rename(root / "ckpt.json")
        for step in range(at + 1, at + 9):
            watched.look(step, after_s=0.3)
    assert [one["step"] for one in watched.told if one.get("path")] == [50, 100]


def test_a_file_that_is_written_over_is_of_the_step_of_its_newest_writing(root: Path, watch: Watch) -> None:
    root.mkdir()
    save(root / "model.pt")
    watched = watch(root)
    watched.look(10)
    for step in (20, 30, 40):  # so close together that they are told as one
        save(root / "model.pt")
        watched.look(step, after_s=0.5)
    watched.look(70, after_s=2)
    assert [one["step"] for one in watched.told if one.get("path")] == [40]


def test_what_is_saved_and_told_at_last_has_the_step_of_the_end(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(10)
    save(root / "model.pt")
    watched.look(12, after_s=0.1, at_last=True, stepping=True)
    assert watched.told[0]["step"] == 12


@pytest.mark.parametrize(
    ("saves", "steps"),
    [
        ({"model_0.pt": 150, "model_1.pt": 300, "model_2.pt": 450, "model_3.pt": 600}, [150, 300, 450, 600]),
        ({"model_7.pt": 1200, "model_8.pt": 1350}, [1200, 1350]),
        ({"epoch_1.pt": 2, "epoch_2.pt": 4}, [2, 4]),
        ({"ckpt_100.pt": 101, "ckpt_200.pt": 203}, [100, 200]),
        ({"ckpt_50.pt": 400, "ckpt_100.pt": 800}, [50, 100]),  # the log counts something smaller than the names
        ({"step_1.pt": 400, "step_2.pt": 800}, [1, 2]),
        ({"model_1.pt": 1, "model_2.pt": 2, "model_3.pt": 3}, [1, 2, 3]),
        ({"a_step_50_loss_0.31.pt": 52, "weights.h5": 150, "epoch=3-step=200.ckpt": 201}, [50, 150, 200]),
        # beside a count stand losses, dates, and the number of a kind
        ({"e00_s00150_loss2.400.pt": 150, "e01_s00300_loss2.300.pt": 300}, [150, 300]),
        ({"net_150_loss1.250.pt": 151, "net_300_loss1.125.pt": 302}, [150, 300]),
        ({"model_20260101_125033.pt": 150, "model_20260101_131502.pt": 300}, [150, 300]),
        ({"2026-01-01T12-50-33_ckpt.pt": 150, "ckpt-1767271833.pt": 300}, [150, 300]),
        ({"resnet50_best.pth": 300, "resnet50_last.pth": 450}, [300, 450]),
        ({"checkpoint_1_150.pt": 151, "checkpoint_2_300.pt": 301}, [150, 300]),
        ({"rl_model_150_steps.zip": 155, "snapshot_iter_300": 301}, [150, 300]),
    ],
)
def test_a_number_in_a_name_is_the_step_only_if_it_fits(
    root: Path, watch: Watch, saves: dict[str, int], steps: list[int]
) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(min(saves.values()) - 1)
    for name, step in saves.items():
        save(root / name)
        watched.look(step, after_s=0.1)
        watched.look(step, after_s=2)
    assert [one["step"] for one in watched.told if one.get("path")] == steps


def test_two_saves_within_a_second_have_each_the_step_of_its_own_beginning(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(148)
    for name, step in (("net_a150.pt", 150), ("net_a160.pt", 160), ("net_a170.pt", 170)):
        save(root / name)
        watched.look(step, after_s=0.3)
    watched.look(175, after_s=5)
    assert [one["step"] for one in watched.told if one.get("path")] == [150, 160, 170]


@pytest.mark.parametrize("beside", ["last.ckpt", "best.pt", "ema_{}.pt"])
def test_of_what_is_saved_together_the_one_of_the_series_is_told(root: Path, watch: Watch, beside: str) -> None:
    """A restart takes that one too, so that status and restart name the same."""
    root.mkdir()
    watched = watch(root)
    watched.look(19)
    for step in (20, 40):
        for name in (f"net_{step}.pt", beside.format(step)):
            save(root / name)
            watched.look(step, after_s=0.1)
        watched.look(step + 1, after_s=2)
    save(root / beside.format(60))
    watched.look(60, after_s=0.1)
    watched.look(62, after_s=2)
    assert watched.paths == ["net_20.pt", "net_40.pt", beside.format(60)]
    assert [one["step"] for one in watched.told if one.get("path")][:2] == [20, 40]


# -- elsewhere -------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_made_deep_below_is_watched(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(1)
    deep = root / "outputs/2026-01-02/12-50-33/lightning_logs/version_0/checkpoints"
    deep.mkdir(parents=True)
    watched.look(10, after_s=0.1)
    save(deep / "epoch=0-step=20.ckpt")
    watched.look(20, after_s=0.1)
    watched.look(22, after_s=2)
    assert watched.paths == ["epoch=0-step=20.ckpt"]


@pytest.mark.parametrize("before", [True, False], ids=["after it was written", "before it is written"])
@pytest.mark.parametrize("name", ["step_20.pt", "checkpoint-20/model.safetensors"])
def test_what_the_log_names_is_watched_from_then_on(
    root: Path, watch: Watch, tmp_path: Path, name: str, *, before: bool
) -> None:
    """Where they lie and how the path was told: the file, or the folder that is the checkpoint."""
    root.mkdir()
    watched = watch(root)
    watched.look(19)
    far, first = tmp_path / "far", name.split("/", maxsplit=1)[0]
    for place, step in (((far / name), 20), ((far / name.replace("20", "40")), 40)):
        if before or step == 40:
            place.parent.mkdir(parents=True, exist_ok=True)
            save(place)
        watched.look(step, after_s=0.1)
        if step == 20:
            far.mkdir(exist_ok=True)
            watched.saves.also(str(far / first), watched.now)
        if not before and step == 20:
            place.parent.mkdir(parents=True, exist_ok=True)
            watched.look(step, after_s=0.1)
            save(place)
        watched.look(step + 1, after_s=0.1)
        watched.look(step + 2, after_s=2)
    assert watched.paths == [first, first.replace("20", "40")]
    assert [one["step"] for one in watched.told if one.get("path")] == [20, 40]


def test_no_common_folder_is_watched_for_a_line(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(1)
    known = dict(watched.saves.folders)
    for path in ("/tmp/model.pt", "/", "/tmp", str(root / "model.pt")):
        watched.saves.also(path, watched.now)
    assert watched.saves.folders == known


SAVES_ELSEWHERE = """
import os, sys, time
place, given = sys.argv[1], os.environ.get("OVERNIGHT_CHECKPOINT")
os.makedirs(place, exist_ok=True)
for step in range(int(given.split("-")[-1][:-4]) + 1 if given else 1, 31):
    print(f"step {step} loss {4 * 0.99 ** step}", flush=True)
    if step % 10 == 0:
        path = f"{place}/ckpt-{step}.bin"
        print(f"Saving model checkpoint to {path}", flush=True)
        time.sleep(0.3)
        with open(path, "wb") as stream:
            stream.write(b"weights")
        time.sleep(1.2)
    if step == 25 and not given:
        raise SystemExit(7)
    time.sleep(0.03)
"""


def test_a_run_goes_on_from_a_folder_that_only_its_log_names(start: Start, work: Path, tmp_path: Path) -> None:
    (work / "train.py").write_text(SAVES_ELSEWHERE)
    flags = ("--restarts", 1, "--backoff", "0.2")
    run = start("far", sys.executable, "train.py", tmp_path / "far", flags=flags)
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert (resume["path"], resume["step"]) == (str(tmp_path / "far/ckpt-20.bin"), 20)


def test_another_runs_saves_in_a_folder_that_the_log_names_are_not_told(
    root: Path, watch: Watch, tmp_path: Path
) -> None:
    root.mkdir()
    (far := tmp_path / "shared").mkdir()
    watched = watch(root)
    watched.look(9)
    for step in (10, 20, 30):
        save(far / f"run7-{step}.bin")
        if step < 30:
            watched.saves.also(str(far / f"run7-{step}.bin"), watched.now)
        watched.look(step, after_s=0.1)
        watched.look(step + 1, after_s=2)
        save(far / f"run8-{1000 * step}.bin")
        (far / f"run8_checkpoint-{step}").mkdir()
        save(far / f"run8_checkpoint-{step}" / "model.bin")
        watched.look(step + 2, after_s=0.1)
        watched.look(step + 3, after_s=2)
    assert watched.paths == ["run7-10.bin", "run7-20.bin", "run7-30.bin"]
    assert [path for path, _ in watched.saves.folders.values()] == [str(root), str(far)]


def test_what_is_named_after_it_was_written_is_told_in_a_folder_that_is_known(
    root: Path, watch: Watch, tmp_path: Path
) -> None:
    root.mkdir()
    (far := tmp_path / "shared").mkdir()
    watched = watch(root)
    watched.look(9)
    for step, name in ((10, "a.pt"), (20, "b.pt"), (30, "run7-30.pt")):
        save(far / name)
        watched.look(step, after_s=0.1)
        watched.saves.also(str(far / name), watched.now)
        watched.look(step + 1, after_s=0.1)
        watched.look(step + 2, after_s=2)
    assert watched.paths == ["a.pt", "b.pt", "run7-30.pt"]


def test_a_folder_that_the_log_names_is_watched_with_what_is_made_in_it(
    root: Path, watch: Watch, tmp_path: Path
) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(9)
    far = tmp_path / "far"
    for step in (10, 20):
        if step == 20:
            (far / "ckpts" / "iter_0000020").mkdir(parents=True)
            watched.look(step, after_s=0.1)
            save(far / "ckpts" / "iter_0000020" / "model_optim_rng.pt")
        else:
            far.mkdir()
            watched.saves.also(str(far / "ckpts"), watched.now)  # it is made after that
        watched.look(step, after_s=0.1)
        watched.look(step + 1, after_s=2)
    assert watched.paths == ["iter_0000020"]


def test_what_is_closed_is_told_at_once_where_nobody_can_wait(root: Path, watch: Watch) -> None:
    root.mkdir()
    watched = watch(root)
    watched.look(19)
    save(root / "model.pt")
    watched.look(20, after_s=0.1)
    assert watched.paths == []
    with (root / "half.pt").open("wb"):
        assert not watched.watch.look(watched.now, 21, 0.5, stepping=True, at_once=True), "a file is open still"
    assert watched.watch.look(watched.now, 21, 0.5, stepping=True, at_once=True)
    save(root / "model.pt")
    assert watched.watch.look(watched.now + 0.4, 22, 0.5, stepping=True, at_once=True)
    assert [one["step"] for one in watched.told if one.get("path")] == [20, 22]


SHARED = """
import os, sys, time
place, given = sys.argv[1], os.environ.get("OVERNIGHT_CHECKPOINT")
os.makedirs(place, exist_ok=True)
for step in range(int(given.split("-")[-1][:-4]) + 1 if given else 1, 31):
    print(f"step {step} loss {4 * 0.99 ** step}", flush=True)
    if step % 10 == 0:
        for path in (f"{place}/run7-{step}.bin", f"{place}/run8-{1000 * step}.bin"):
            with open(path, "wb") as stream:
                stream.write(b"weights")
            if "run7" in path:  # the log is that of run7 alone
                print(f"Saved model checkpoint to {path}", flush=True)
                time.sleep(1.3)
    if step == 25 and os.environ["OVERNIGHT_ATTEMPT"] == "1":
        raise SystemExit(7)
    time.sleep(0.03)
"""


@pytest.mark.parametrize(
    "given", [pytest.param(True, marks=pytest.mark.long), False], ids=["--checkpoints", "no --checkpoints"]
)
def test_no_other_runs_save_is_gone_on_from(start: Start, work: Path, tmp_path: Path, *, given: bool) -> None:
    """With --checkpoints nothing outside is looked at at all."""
    (work / "train.py").write_text(SHARED)
    (work / "own").mkdir()
    more = ("--checkpoints", "own") if given else ()
    run = start("shared", sys.executable, "train.py", tmp_path / "s", flags=("--restarts", 1, "--backoff", 0.2, *more))
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert resume["path"] == (None if given else str(tmp_path / "s/run7-20.bin"))
    saves = {os.path.basename(one["path"]) for one in run.facts("saved") if one["path"]}
    assert saves == (set() if given else {"run7-10.bin", "run7-20.bin", "run7-30.bin"})


RENAMED = """
import os, sys, time
def step(number):
    print(f"step {number} loss 3.0", flush=True)
for number in range(1, 51):
    step(number)
with open("ckpt.json.tmp", "w") as stream:
    stream.write("{}")
os.replace("ckpt.json.tmp", "ckpt.json")
while not os.path.exists("go"):
    time.sleep(0.02)
for number in range(51, 75):
    step(number)
    time.sleep(0.1)
"""


def test_a_run_notes_the_step_at_which_a_save_was_begun(start: Start, work: Path) -> None:
    """It is over for a second before it is told, and the training goes on meanwhile."""
    run = start("night", sys.executable, "-c", RENAMED)
    until(lambda: run.status["step"] == 50, "the step of the save is read")
    (work / "go").touch()
    assert run.wait() == 0
    (saved,) = [fact for fact in run.facts("saved") if fact["path"] is not None]
    assert (os.path.basename(saved["path"]), saved["step"]) == ("ckpt.json", 50)


def test_saves_without_a_pause_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    watch = SaveWatch(tmp_path, skip=(), saved=lambda **one: told.append(one))
    watch.look(0.0, 1, 0.1, stepping=True)
    for place, step in enumerate((10, 20, 30), 1):
        part = tmp_path / "ckpt.tmp"
        part.write_bytes(b"x")
        watch.look(place * 0.3, step, 0.1, stepping=True)
        part.rename(tmp_path / f"ckpt-{step}.pt")
        watch.look(place * 0.3 + 0.05, step, 0.1, stepping=True)
    watch.look(9.0, 31, 0.1, stepping=True)
    watch.saves.inotify.close()
    saves = [one for one in told if one.get("path")]
    assert [(Path(one["path"]).name, one["step"]) for one in saves] == [(f"ckpt-{n}.pt", n) for n in (10, 20, 30)]
    assert all(one["seconds"] < 0.2 for one in saves), "none is as long as the way to the next"
    assert saves[0]["ago_s"] < saves[-1]["ago_s"] or saves[-1]["ago_s"] > 1.0, "each has its own time"


def test_the_files_of_several_ranks_are_one_save(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    watch = SaveWatch(tmp_path, skip=(), saved=lambda **one: told.append(one))
    watch.look(0.0, 40, 0.1, stepping=True)
    for rank in range(4):
        (tmp_path / f"optim_rank{rank}.pt").write_bytes(b"x")
        watch.look(1.0 + rank * 0.1, 41, 0.1, stepping=True)
    watch.look(9.0, 42, 0.1, stepping=True)
    watch.saves.inotify.close()
    assert len([one for one in told if one.get("path")]) == 1
