"""Saves looked into beside a training, and the search for the one to go on from: real files, real side processes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from overnight.clocks import boot_clock
from overnight.inspector import side
from overnight.resumption import search as searching
from overnight.resumption import vetting
from overnight.resumption.choice import Choice, Wanted
from overnight.resumption.known import GONE, SavesBook
from overnight.resumption.search import Search, folders_of
from overnight.resumption.vetting import Bad, Vetting

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(120)


def weights(path: Path, step: int, *, value: float = 1.0, most: int | None = None) -> Path:
    """A file of torch.save with a step and an optimizer's state in it; ``most``: only so many bytes of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": {"w": torch.full((100,), value)}, "optimizer": {"exp_avg": torch.ones(100)}, "step": step}
    torch.save(state, path)
    if most is not None:
        os.truncate(path, most)
    return path


def sparse(path: Path, size: int) -> Path:
    """A file of safetensors of so many bytes of zeros, which take no room and some time to be read."""
    head = f'{{"w":{{"dtype":"F32","shape":[{size // 4}],"data_offsets":[0,{size}]}}}}'.encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)
    os.truncate(path, 8 + len(head) + size)
    return path


def opened(pid: int, path: Path) -> bool:
    """Say whether a process has a file open."""
    try:
        return str(path) in [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:
        return False


class Night:
    """A book, its journal, and the time of its saves: each one a second after the one before, all in the past."""

    def __init__(self) -> None:
        self.book = SavesBook()
        self.began = time.time() - 1000.0
        self.journal: list[dict[str, Any]] = []

    def say(self, fact: str, **details: Any) -> None:
        self.journal.append({"fact": fact, **details})
        self.book.recall(self.journal[-1])

    def saved(self, path: Path, step: int | None, *, attempt: int = 1, segment: int = 0) -> None:
        """Say that a save was seen, and let its files look as old."""
        at = self.began + len(self.journal) + 1.0
        for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
            os.utime(one, (at, at))
        self.say(
            "saved", seconds=0.1, path=str(path), step=step, epoch=at, attempt=attempt, segment=segment
        )  # fmt: skip

    def checks(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.journal if one["fact"] == "checked" and Path(one["path"]).name == name]

    @property
    def attempts(self) -> tuple[tuple[int, float, float | None], ...]:
        return ((1, self.began, None),)

    def search(self, *folders: Path, **wanted: Any) -> Choice:
        """Search as the supervisor does."""
        places = [str(one) for one in folders] or folders_of(None, self.book, "/")
        found = Search(places, self.book, Wanted(attempts=self.attempts, **wanted))
        try:
            until(found.done)
            assert found.error is None
        finally:
            found.close()
        assert found.choice is not None
        return found.choice


def until(true: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def night() -> Night:
    return Night()


@pytest.fixture
def vet(night: Night) -> Iterator[Vetting]:
    made = Vetting(night.book, say=night.say)
    yield made
    made.close()


def looked(one: Vetting) -> list[Bad]:
    """Let it look at all there is to look at, and return what was bad."""
    bad: list[Bad] = []

    def quiet() -> bool:
        bad.extend(one.turn(boot_clock()))
        return not one.busy()

    until(quiet)
    assert one.handle is None
    assert one.next_look_s(boot_clock()) is None
    return bad


# -- each save soon after it has appeared ----------------------------------------------------------------------------


def test_good_and_bad_saves_are_told_apart_and_the_newest_good_one_is_known(
    night: Night, vet: Vetting, tmp_path: Path
) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    night.saved(weights(tmp_path / "ck_200.pt", 200, most=900), 200)
    night.saved(weights(tmp_path / "ck_300.pt", 300, value=float("nan")), 300)
    bad = looked(vet)
    assert [one.step for one in bad] == [300, 200]  # the newest first
    assert "ck_300.pt" in bad[0].text
    assert [one.valid for one in night.book.saves] == [True, False, False]
    assert [one.finite for one in night.book.saves] == [True, None, False]
    newest = night.book.newest_good()
    assert newest is not None
    assert (newest.step, newest.maker) == (100, "torch")
    assert newest.check_s is not None
    assert newest.check_s > 0.0
    assert len(night.checks("ck_100.pt")) == 1
    assert looked(vet) == []  # nothing twice
    assert len(night.checks("ck_100.pt")) == 1


def test_a_form_that_nobody_knows_is_not_bad(night: Night, vet: Vetting, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000012.txt").write_text("12\nweights\nend\n")
    (tmp_path / "raw.bin").write_bytes(os.urandom(5000))
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "state.dat").write_bytes(b"weights")
    for name in ("checkpoint-000012.txt", "raw.bin", "step-3"):
        night.saved(tmp_path / name, 12)
    assert looked(vet) == []
    assert [(one.valid, night.book.usable(one)) for one in night.book.saves] == [(None, True)] * 3
    assert {one.problem for one in night.book.saves} == {"it is not of a form that can be checked"}


@pytest.mark.parametrize("name", ["checkpoint-000012.txt", "ck_5.pt", "step-5"])
def test_what_is_empty_is_bad_whatever_its_form(night: Night, vet: Vetting, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if name == "step-5" else (tmp_path / name).touch()
    night.saved(tmp_path / name, 12)
    assert [one.step for one in looked(vet)] == [12]
    assert night.book.saves[0].valid is False


def test_one_of_a_series_that_begins_otherwise_is_bad(night: Night, vet: Vetting, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    looked(vet)
    (tmp_path / "ck_200.pt").write_bytes(b"garbage!" * 100)
    night.saved(tmp_path / "ck_200.pt", 200)
    assert [one.step for one in looked(vet)] == [200]
    assert "ck_100.pt" in str(night.book.saves[-1].problem)


def test_safetensors(night: Night, vet: Vetting, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for step, value in ((1, 1.0), (2, float("inf"))):
        save_file({"w": torch.full((10,), value)}, tmp_path / f"model_{step}.safetensors")
        night.saved(tmp_path / f"model_{step}.safetensors", step)
    shutil.copy(tmp_path / "model_1.safetensors", tmp_path / "model_3.safetensors")
    os.truncate(tmp_path / "model_3.safetensors", 90)
    night.saved(tmp_path / "model_3.safetensors", 3)
    assert [one.step for one in looked(vet)] == [3, 2]
    assert night.book.saves[0].valid is True


LIBRARY = """
import sys, torch
from overnight.checkpoint import Checkpointer
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
with Checkpointer(sys.argv[1], every=2, keep_last=5, model=model, optimizer=optimizer) as ckpt:
    for step in ckpt.steps(6):
        optimizer.zero_grad(); model(torch.ones(1, 8)).sum().backward(); optimizer.step()
        ckpt.report(step, loss=float(step))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 2, 4 and 6, written by the library."""
    folder = tmp_path_factory.mktemp("library") / "checkpoints"
    subprocess.run([sys.executable, "-c", LIBRARY, str(folder)], check=True, capture_output=True)
    return folder


def test_checkpoints_of_the_library(night: Night, vet: Vetting, tmp_path: Path, library: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(library, folder)
    saves = sorted(folder.glob("step-*"))
    for step, path in zip((2, 4, 6), saves[-3:], strict=True):
        night.saved(path, step)
    data = next(saves[-1].glob("*.safetensors"))
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    night.saved(saves[-1], 6)
    assert [one.step for one in looked(vet)] == [6]
    assert [one.valid for one in night.book.saves] == [True, True, False]
    choice = night.search()
    assert (choice.path, choice.step, choice.maker) == (str(saves[-2]), 4, "overnight")
    assert [(one.step, one.kind) for one in choice.passed_over] == [(6, "damaged")]
    os.remove(saves[-2] / "MANIFEST.json")
    choice = night.search(folder)
    assert (choice.step, [one.step for one in choice.passed_over]) == (2, [6, 4])


def hugging_face(path: Path, step: int) -> Path:
    """A folder as the Trainer of transformers saves it."""
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    save_file({"w": torch.ones(10)}, path / "model.safetensors")
    torch.save({"state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.ones(10)}}, "param_groups": []},
               path / "optimizer.pt")  # fmt: skip
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    torch.save({"python": 1}, path / "rng_state.pth")
    (path / "trainer_state.json").write_text(f'{{"global_step": {step}, "epoch": 1.0, "log_history": []}}')
    (path / "config.json").write_text("{}")
    return path


def test_folders_of_trainer_and_files_of_lightning(night: Night, vet: Vetting, tmp_path: Path) -> None:
    for step in (100, 200):
        night.saved(hugging_face(tmp_path / f"checkpoint-{step}", step), step)
    os.truncate(tmp_path / "checkpoint-200" / "optimizer.pt", 500)
    night.saved(tmp_path / "checkpoint-200", 200)
    light = tmp_path / "light" / "epoch=0-step=300.ckpt"
    light.parent.mkdir()
    torch.save({"epoch": 0, "global_step": 300, "pytorch-lightning_version": "2.5", "state_dict": {"w": torch.ones(3)},
                "optimizer_states": [], "lr_schedulers": [], "loops": {}, "callbacks": {}}, light)  # fmt: skip
    night.saved(light, 300)
    assert [one.step for one in looked(vet)] == [200]
    assert [(one.valid, one.maker) for one in night.book.saves] == [
        (True, "trainer"), (False, "trainer"), (True, "lightning"),
    ]  # fmt: skip
    assert night.search().path == str(light)
    os.remove(light)
    assert night.search().path == str(tmp_path / "checkpoint-100")


def test_a_save_that_is_removed_is_forgotten_and_never_called_bad(night: Night, vet: Vetting, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    looked(vet)
    night.saved(weights(tmp_path / "ck_200.pt", 200), 200)
    for step in (100, 200):
        os.remove(tmp_path / f"ck_{step}.pt")
    assert looked(vet) == []
    assert [(one.valid, one.problem) for one in night.book.saves] == [(True, GONE), (None, GONE)]
    assert night.book.newest_good() is None
    assert night.search(tmp_path) == Choice()


def test_a_save_that_is_written_again_while_it_is_looked_at_is_looked_at_again(
    night: Night, vet: Vetting, tmp_path: Path
) -> None:
    last = weights(tmp_path / "last.pt", 100)
    night.saved(last, 100)
    vet.turn(boot_clock())
    assert vet.busy()
    night.saved(weights(last, 200), 200)
    vet.saw(str(last))
    assert looked(vet) == []
    assert [(one.step, one.valid) for one in night.book.saves] == [(200, True)]
    assert [one["step"] for one in night.checks("last.pt")] == [200]


def test_a_save_that_grows_while_it_is_looked_at_is_looked_at_again_later(
    night: Night, vet: Vetting, tmp_path: Path
) -> None:
    large = sparse(tmp_path / "large_100.safetensors", 1 << 29)
    night.saved(large, 100)
    vet.hurry = True
    vet.turn(boot_clock())
    child = vet._child
    assert child is not None
    until(lambda: opened(child.pid, large))
    with large.open("ab") as stream:
        stream.write(b"more")
    until(lambda: vet.turn(boot_clock()) or vet.handle is None)
    assert night.checks(large.name) == []
    assert vet.busy()
    assert 0.0 < (vet.next_look_s(boot_clock()) or 0.0) <= vetting.AGAIN_S
    weights(tmp_path / "small.pt", 100).replace(large)
    os.truncate(large, 100)
    assert [one.step for one in looked(vet)] == [100]  # it has stopped growing, and is none


def killed(one: Vetting) -> None:
    child = one._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: one.turn(boot_clock()) or one.handle is None)


def test_a_look_that_is_killed_is_tried_once_more(night: Night, vet: Vetting, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    vet.turn(boot_clock())
    killed(vet)
    assert night.checks("ck_100.pt") == []
    vet.turn(boot_clock() + vetting.AGAIN_S)
    assert looked(vet) == []
    assert night.book.saves[0].valid is True


def test_a_look_that_is_killed_twice_leaves_it_unknown(night: Night, vet: Vetting, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    vet.turn(boot_clock())
    killed(vet)
    vet.turn(boot_clock() + vetting.AGAIN_S)
    killed(vet)
    (told,) = night.checks("ck_100.pt")
    assert (told["valid"], told["check_s"]) == (None, None)
    assert "-9" in told["problem"]
    assert not vet.busy()
    assert night.book.usable(night.book.saves[0])


def test_a_process_that_cannot_look_leaves_it_unknown(
    night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vetting, "MODULE", "overnight.resumption.not_there")
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    vet = Vetting(night.book, say=night.say)
    now = boot_clock()
    for turn in range(200):  # a module that is not there ends at once with 1
        vet.turn(now + turn)
        time.sleep(0.02)
        if not vet.busy():
            break
    assert night.book.saves[0].valid is None
    assert "ended with 1" in str(night.book.saves[0].problem)
    vet.close()


def test_a_look_that_takes_too_long_is_broken_off(night: Night, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    vet = Vetting(night.book, say=night.say, limit_s=0.0)
    now = boot_clock()
    vet.turn(now)
    child = vet._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    vet.turn(now + 1.0)
    assert vet.handle is None
    until(lambda: vet.turn(now + 1.0) or not os.path.exists(f"/proc/{child.pid}"))
    assert night.checks("ck_100.pt") == []
    vet.close()


BESIDE = """
import json, os, sys, time
from overnight.resumption.child import Child
asked = {"parent": os.getpid(), "path": sys.argv[1], "fellow": None, "others": [], "idle": False}
print(Child("overnight.resumption.looking", json.dumps(asked).encode()).pid, flush=True)
time.sleep(600)
"""


def state_of(pid: int) -> str:
    """The letter of a process's state; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_the_process_ends_with_the_supervisor(tmp_path: Path) -> None:
    large = sparse(tmp_path / "large.safetensors", 1 << 40)
    parent = subprocess.Popen([sys.executable, "-c", BESIDE, large], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        until(lambda: opened(pid, large))
        assert b"OVERNIGHT_ROLE=checkpoints" in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) == pid
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: state_of(pid) in ("", "Z"))


def test_after_its_end_nothing_is_looked_at(night: Night, vet: Vetting, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    vet.close()
    assert vet.turn(boot_clock()) == []
    assert (vet.handle, vet.busy()) == (None, False)


def test_the_inspectors_process_tells_what_each_path_took(tmp_path: Path) -> None:
    large, small = sparse(tmp_path / "large.safetensors", 1 << 26), weights(tmp_path / "ck_1.pt", 1)
    with side.Side([str(large), str(small), str(tmp_path / "gone.pt")], None, 0) as process:
        first, second, third = process
    assert first.seconds > second.seconds >= 0.0
    assert (first.maker, second.maker, third.there) == ("safetensors", "torch", False)
    assert (first.there, first.changed) == (True, False)


# -- the search ------------------------------------------------------------------------------------------------------


def test_of_100_and_a_truncated_200_and_a_300_of_nan_the_restart_uses_100(night: Night, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    night.saved(weights(tmp_path / "ck_200.pt", 200, most=900), 200)
    night.saved(weights(tmp_path / "ck_300.pt", 300, value=float("nan")), 300)
    for choice in (night.search(), night.search(tmp_path)):
        assert (choice.path, choice.step, choice.maker) == (str(tmp_path / "ck_100.pt"), 100, "torch")
        assert [(one.step, one.kind) for one in choice.passed_over] == [(300, "nonfinite"), (200, "damaged")]


def test_what_nobody_saw_is_found_where_the_folder_is_named(night: Night, tmp_path: Path) -> None:
    for step in (100, 200):
        os.utime(weights(tmp_path / f"ck_{step}.pt", step), (night.began + step, night.began + step))
    assert night.search(tmp_path).step == 200
    assert night.search(tmp_path, before=200).step == 100
    assert night.search() == Choice()


def test_trouble_leaves_the_last_healthy_one(night: Night, tmp_path: Path) -> None:
    for step in (200, 300):
        night.saved(weights(tmp_path / f"ck_{step}.pt", step), step)
        if step == 200:
            night.say("sick", attempt=1, segment=0, step=250)
    choice = night.search()
    assert choice.step == 200
    assert [(one.step, one.kind) for one in choice.passed_over] == [(300, "unhealthy")]
    night.say("load_failure", attempt=2, path=str(tmp_path / "ck_200.pt"), step=200, text="it crashed")
    choice = night.search()
    assert choice.path is None
    assert [one.kind for one in choice.passed_over] == ["unhealthy", "load_failure"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck_200.pt", "ck_300.pt"]


def test_reading_stops_at_the_first_good_one(night: Night, tmp_path: Path) -> None:
    for step in (100, 200):
        night.saved(weights(tmp_path / f"ck_{step}.pt", step, value=float("nan") if step == 100 else 1.0), step)
    choice = night.search()
    assert (choice.step, choice.passed_over) == (200, ())


def test_unknown_forms_are_taken_by_what_was_seen_and_said_to_be_so(night: Night, tmp_path: Path) -> None:
    for step in (10, 12):
        path = tmp_path / f"checkpoint-0000{step}.txt"
        path.write_text("weights\nend\n")
        night.saved(path, step)
    choice = night.search()
    assert (choice.path, choice.step, choice.maker) == (str(tmp_path / "checkpoint-000012.txt"), 12, None)
    assert any("not of a form" in note for note in choice.notes)
    night.saved(weights(tmp_path / "ck_5.pt", 5), 5)
    assert night.search().step == 5  # what can be verified counts first


def test_strange_things_in_the_folder_end_nothing(night: Night, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "dangling.pt").symlink_to(tmp_path / "nowhere.pt")
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    (tmp_path / "closed").mkdir(mode=0o000)
    (tmp_path / "noise.pt").write_bytes(b"no checkpoint")
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    night.say("saved", seconds=0.1, path=str(tmp_path / "pipe.pt"), step=200, epoch=time.time(), attempt=1, segment=0)
    choice = night.search(tmp_path, tmp_path / "nowhere", tmp_path / "ck_100.pt" / "below")
    assert choice.step == 100
    (tmp_path / "closed").chmod(stat.S_IRWXU)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told(night: Night, tmp_path: Path) -> None:
    path = weights(tmp_path / "ck_100.pt", 100)
    night.saved(path, 100)
    path.chmod(0)
    choice = night.search()
    assert [one.kind for one in choice.passed_over] == ["unreadable"]


def test_a_folder_of_thousands_is_looked_at_in_part(night: Night, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"noise_{number}.pt").write_bytes(b"")
        os.utime(tmp_path / f"noise_{number}.pt", (night.began + 5.0, night.began + 5.0))
    path = weights(tmp_path / "ck_100.pt", 100)
    night.saved(path, 100)
    choice = night.search(tmp_path)
    assert choice.step == 100
    assert any("were not looked at" in note for note in choice.notes)
    assert len(choice.passed_over) <= searching.MOST_PASSED


def test_a_search_that_hangs_ends_at_its_limit_with_what_is_known(night: Night, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    night.saved(weights(tmp_path / "ck_200.pt", 200), 200)
    night.say("load_failure", attempt=2, path=str(tmp_path / "ck_200.pt"), step=200, text="it crashed")
    found = Search([str(tmp_path)], night.book, Wanted(attempts=night.attempts), limit_s=0.0)
    child = found._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)
    assert found.done()
    assert found.choice is not None
    assert found.error is not None
    assert found.choice.step == 100
    assert any("not verified" in note for note in found.choice.notes)
    assert found.handle is None


def test_a_search_that_is_killed_says_what_is_known(night: Night, tmp_path: Path) -> None:
    night.saved(weights(tmp_path / "ck_100.pt", 100), 100)
    found = Search([str(tmp_path)], night.book, Wanted(attempts=night.attempts))
    child = found._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    until(found.done)
    assert found.choice is not None
    assert (found.choice.step, found.error) == (100, "the process that looks at the saves ended with -9")


def test_where_nothing_was_ever_saved_nothing_is_started(night: Night) -> None:
    found = Search([], night.book, Wanted())
    assert found.done()
    assert (found.choice, found.handle) == (Choice(), None)


def test_an_empty_or_missing_folder_gives_no_choice_and_nothing_passed_over(night: Night, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        choice = night.search(folder)
        assert (choice.path, choice.passed_over) == (None, ())


def test_where_to_look(night: Night, tmp_path: Path) -> None:
    assert folders_of(None, night.book, "/") == []
    assert folders_of("out", night.book, "/home") == ["/home/out"]
    for number in range(20):
        night.saved(weights(tmp_path / str(number) / "ck.pt", number), number)
    places = folders_of("out", night.book, str(tmp_path))
    assert places[:2] == [str(tmp_path / "out"), str(tmp_path / "19")]
    assert len(places) == searching.MOST_FOLDERS


def test_names_in_an_old_encoding(night: Night, vet: Vetting, tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes no such names")
    path = weights(Path(folder) / "ck_100.pt", 100)
    night.saved(path, 100)
    assert looked(vet) == []
    assert night.book.saves[0].valid is True
    assert night.search().path == str(path)


def test_the_supervisors_side_loads_no_inspector() -> None:
    code = (
        "import sys, overnight.resumption.search, overnight.resumption.vetting\n"
        "print([name for name in sys.modules if name.startswith('overnight.inspector.')], 'subprocess' in sys.modules)"
    )
    words: Sequence[str] = (sys.executable, "-c", code)
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert said == "['overnight.inspector.naming'] False"
