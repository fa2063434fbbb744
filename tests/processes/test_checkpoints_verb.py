"""The verb ``checkpoints`` as people and scripts call it, with its side process, its budget and its pruning."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import at, own, safetensors, trainer
from overnight.cli import main
from overnight.inspector import side

FIELDS = "path maker step size_bytes saved_at complete intact finite own problem".split()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: object) -> tuple[int, str, str]:
        code = main(["checkpoints", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


Say = Callable[..., tuple[int, str, str]]


def document(say: Say, *words: object) -> dict[str, Any]:
    code, out, _ = say(*words, "--json")
    assert code in (0, 1)
    found: dict[str, Any] = json.loads(out)
    return found


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name != "LOCK")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 64
    path.write_bytes(data)


# -- what it says ----------------------------------------------------------------------------------------------------


def test_json_has_the_promised_fields_first_and_in_order(tmp_path: Path, say: Say) -> None:
    path = own(tmp_path, 50)
    found = document(say, tmp_path)
    assert list(found)[:2] == ["newest", "checkpoints"]
    assert found["newest"] == str(path)
    one = found["checkpoints"][0]
    assert list(one)[: len(FIELDS)] == FIELDS
    assert one["saved_at"] == "2026-11-30T02:00:50.000Z"
    size = sum(entry.stat().st_size for entry in path.iterdir())
    assert {key: one[key] for key in FIELDS if key not in ("path", "saved_at")} == {
        "maker": "overnight", "step": 50, "size_bytes": size, "complete": True, "intact": True, "finite": True,
        "own": True, "problem": None,
    }  # fmt: skip
    assert one["checked"] is True


def test_newest_prints_the_path_and_nothing_else(tmp_path: Path, say: Say) -> None:
    own(tmp_path, 50)
    path = own(tmp_path, 100)
    assert say(tmp_path, "--newest") == (0, f"{path}\n", "")
    flip(path / "model.safetensors")
    assert say(tmp_path, "--newest") == (0, f"{tmp_path}/step-00000050\n", "")
    flip(tmp_path / "step-00000050" / "model.safetensors")
    code, out, err = say(tmp_path, "--newest")
    assert (code, out) == (1, "")
    assert "none in" in err
    assert "model.safetensors" in err


def test_an_empty_folder_has_none(tmp_path: Path, say: Say) -> None:
    assert document(say, tmp_path) == {"newest": None, "checkpoints": [], "notes": []}
    assert say(tmp_path)[0] == 0
    assert say(tmp_path, "--verify")[0] == 0
    code, out, err = say(tmp_path, "--newest")
    assert (code, out, err) == (1, "", f"overnight: there is no checkpoint in {tmp_path}\n")


def test_verify_finds_damage_and_listing_says_the_same_without_failing(tmp_path: Path, say: Say) -> None:
    own(tmp_path, 50)
    assert say(tmp_path, "--verify")[0] == 0
    flip(own(tmp_path, 100) / "train_state.json")
    for words, code in (((tmp_path, "--verify"), 1), ((tmp_path,), 0)):
        found, out, _ = say(*words)
        assert found == code
        assert "damaged: train_state.json is not as it was written" in out
        assert "-> step-00000050" in out


def test_a_dangling_link_is_damage(tmp_path: Path, say: Say) -> None:
    """Row C2-10."""
    safetensors(tmp_path / "step=4.safetensors")
    (tmp_path / "last.ckpt").symlink_to("step=9.ckpt")
    code, out, _ = say(tmp_path, "--verify")
    assert code == 1
    assert "last.ckpt is a link to what is not there: step=9.ckpt" in " ".join(out.split())
    assert document(say, tmp_path)["newest"] == str(tmp_path / "step=4.safetensors")


def test_the_table_keeps_within_80_columns_and_is_harmless(tmp_path: Path, say: Say) -> None:
    own(tmp_path, 50)
    trainer(tmp_path, 123_456_789_012)
    (tmp_path / ("x" * 150 + "\x1b[31m\n.pt")).write_bytes(b"half")
    own(tmp_path, 60, weights=[float("nan")], finite=False, healthy=False)
    code, out, _ = say(tmp_path)
    assert code == 0
    assert not [line for line in out.splitlines() if len(line) > 80]
    assert "\x1b" not in out
    assert "of another run" in out
    assert "NaN" in out
    assert out.splitlines()[0].split() == ["NAME", "STEP", "SIZE", "AGE", "MAKER", "STATE"]


def test_nothing_of_a_checkpoint_is_ever_run(tmp_path: Path, say: Say) -> None:
    torch = pytest.importorskip("torch")
    proof = tmp_path / "proof"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {proof}",)

    (tmp_path / "out").mkdir()
    torch.save({"model": {}, "x": Evil()}, tmp_path / "out" / "a.pt")
    say(tmp_path / "out", "--verify")
    assert not proof.exists()
    torch.load(tmp_path / "out" / "a.pt", weights_only=False)
    assert proof.exists()  # the test's own file would have done it


def test_an_empty_name_is_wrong_use(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, 10)
    own(tmp_path, 20)
    monkeypatch.chdir(tmp_path)
    code, out, err = say("", "--prune", "--keep-last", "1")
    assert (code, out) == (2, "")
    assert "DIR is empty" in err
    assert len(names(tmp_path)) == 2


def test_verify_vouches_only_for_what_it_has_looked_at(tmp_path: Path, say: Say) -> None:
    own(tmp_path, 10)
    code, _, err = say(tmp_path, "--verify", "--verify-max", "1")
    assert code == 0  # no damage was found, and it says what that is worth
    assert "not all content was looked at" in err
    assert say(tmp_path, "--verify", "--verify-max", "0")[0] == 0  # nothing of it was asked for
    (tmp_path / "ckpt_6.pt").write_bytes(b"\x07garbage" * 100)
    assert say(tmp_path, "--verify")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--prune"], ["--keep-last", "2"], ["--dry-run"], ["--prune", "--keep-last", "0"], ["--newest", "--verify"],
        ["--prune", "--keep-last", "-1"], ["--prune", "--keep-last", "abc"], ["--prune", "--keep-last", ""],
        ["--prune", "--keep-last", "1.5"], ["--verify-max", "much"], ["--verify-max", "-1"], ["--nonsense"],
    ],
)  # fmt: skip
def test_wrong_use_is_refused_and_removes_nothing(tmp_path: Path, words: list[str], say: Say) -> None:
    """Row C2-03: odd values never mean "delete all"."""
    for step in (50, 100):
        own(tmp_path, step)
    code, out, err = say(tmp_path, *words)
    assert (code, out) == (2, "")
    assert "overnight" in err
    assert names(tmp_path) == ["step-00000050", "step-00000100"]


def test_a_place_that_is_not_there(tmp_path: Path, say: Say) -> None:
    for words in (["--newest"], ["--prune", "--keep-last", "1"]):
        code, out, err = say(tmp_path / "nowhere", *words)
        assert (code, out) == (2, "")
        assert "No such file" in err
        assert err.count("\n") == 1


# -- times, names, runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 0, 0, 0], [3, 2, 1, 0], [0, 1, 2, 3]])
def test_times_of_files_decide_nothing(tmp_path: Path, order: list[int], say: Say) -> None:
    """Row C2-01: times equal, then reversed."""
    for step, when in zip((100, 200, 300, 400), order, strict=True):
        at(trainer(tmp_path, step), when * 1000.0)
    assert document(say, tmp_path)["newest"] == str(tmp_path / "checkpoint-400")
    assert say(tmp_path, "--prune", "--keep-last", "2")[0] == 0
    assert names(tmp_path) == ["checkpoint-300", "checkpoint-400"]


def test_a_foreign_folder_with_a_higher_number_stays_and_is_named(tmp_path: Path, say: Say) -> None:
    """Row C2-07."""
    trainer(tmp_path, 1000)
    own(tmp_path, 10)
    own(tmp_path, 20)
    code, out, _ = say(tmp_path, "--prune", "--keep-last", "1")
    assert code == 0
    assert names(tmp_path) == ["checkpoint-1000", "step-00000020"]
    assert "left alone checkpoint-1000: made by trainer, not of this run" in out
    found = document(say, tmp_path)
    assert found["newest"] == str(tmp_path / "step-00000020")
    assert {Path(one["path"]).name: one["own"] for one in found["checkpoints"]} == {
        "step-00000020": True,
        "checkpoint-1000": False,
    }


# -- prune -----------------------------------------------------------------------------------------------------------


def test_the_best_and_the_newest_stay(tmp_path: Path, say: Say) -> None:
    """Row C2-04."""
    for step in (100, 200, 300):
        trainer(tmp_path, step, best_model_checkpoint="out/checkpoint-100")
    say(tmp_path, "--prune", "--keep-last", "1")
    assert names(tmp_path) == ["checkpoint-100", "checkpoint-300"]


def test_a_dry_run_removes_nothing_and_says_what_it_would(tmp_path: Path, say: Say) -> None:
    for step in (10, 20, 30):
        own(tmp_path, step)
    found = document(say, tmp_path, "--prune", "--keep-last", "1", "--dry-run")
    assert found["removed"] == [str(tmp_path / "step-00000010"), str(tmp_path / "step-00000020")]
    assert found["dry_run"] is True
    assert len(names(tmp_path)) == 3
    assert document(say, tmp_path, "--prune", "--keep-last", "1")["removed"] == found["removed"]
    assert names(tmp_path) == ["step-00000030"]


def test_damaged_ones_are_neither_counted_nor_removed(tmp_path: Path, say: Say) -> None:
    for step in (10, 20, 30, 40):
        own(tmp_path, step)
    flip(tmp_path / "step-00000040" / "model.safetensors")
    flip(tmp_path / "step-00000020" / "model.safetensors")
    code, out, _ = say(tmp_path, "--prune", "--keep-last", "1")
    assert code == 0
    assert names(tmp_path) == ["step-00000020", "step-00000030", "step-00000040"]
    assert "left alone step-00000040" in out


def test_nothing_is_removed_while_a_training_holds_the_folder(tmp_path: Path, say: Say) -> None:
    own(tmp_path, 10)
    own(tmp_path, 20)
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, out, err = say(tmp_path, "--prune", "--keep-last", "1")
        assert (code, out) == (1, "")
        assert "is being written to by a training" in err
        assert len(names(tmp_path)) == 2
        assert say(tmp_path, "--prune", "--keep-last", "1", "--dry-run")[0] == 0
    assert say(tmp_path, "--prune", "--keep-last", "1")[0] == 0
    assert names(tmp_path) == ["step-00000020"]


def test_links_are_not_followed_and_what_they_lead_to_stays(tmp_path: Path, say: Say) -> None:
    outside = trainer(tmp_path / "elsewhere", 50)
    folder = tmp_path / "out"
    for step in (100, 200, 300):
        trainer(folder, step)
    (folder / "checkpoint-50").symlink_to(outside)
    (folder / "best").symlink_to("checkpoint-100")
    precious = tmp_path / "precious"
    precious.write_text("x")
    (folder / "checkpoint-200" / "link").symlink_to(tmp_path)
    say(folder, "--prune", "--keep-last", "1")
    kept = ["best", "checkpoint-100", "checkpoint-200", "checkpoint-300", "checkpoint-50"]
    assert names(folder) == kept  # one holds a link: it is not only a checkpoint
    (folder / "checkpoint-200" / "link").unlink()
    say(folder, "--prune", "--keep-last", "1")
    assert names(folder) == [name for name in kept if name != "checkpoint-200"]
    assert outside.is_dir()
    assert precious.read_text() == "x"


def test_while_the_budget_does_not_reach_what_is_kept_nothing_is_removed(tmp_path: Path, say: Say) -> None:
    for step in (10, 20, 30):
        own(tmp_path, step)
    code, _, err = say(tmp_path, "--prune", "--keep-last", "1", "--verify-max", "0")
    assert code == 2
    assert "larger --verify-max" in err
    assert len(names(tmp_path)) == 3


def test_long_names_can_be_removed(tmp_path: Path, say: Say) -> None:
    for step in (10, 20, 30):
        own(tmp_path, step, name="日" * 82 + f"_{step:05d}")
    assert say(tmp_path, "--prune", "--keep-last", "1")[0] == 0
    assert names(tmp_path) == ["日" * 82 + "_00030"]


def test_a_path_that_is_no_text_is_printed_as_it_is(tmp_path: Path, capfdbinary: Any) -> None:
    path = own(tmp_path, 10, name=os.fsdecode(b"c\xff"))
    assert main(["checkpoints", str(tmp_path), "--newest"]) == 0
    assert capfdbinary.readouterr().out == os.fsencode(path) + b"\n"


# -- budget and side process -----------------------------------------------------------------------------------------


def test_the_budget_goes_to_the_newest_first(tmp_path: Path, say: Say) -> None:
    for step in (10, 20, 30):
        own(tmp_path, step)
    size = sum(one.stat().st_size for one in (tmp_path / "step-00000030").iterdir() if one.name != "MANIFEST.json")
    found = document(say, tmp_path, "--verify-max", size)
    assert [(one["step"], one["intact"], one["checked"]) for one in found["checkpoints"]] == [
        (30, True, True),
        (20, None, False),
        (10, None, False),
    ]
    none = document(say, tmp_path, "--verify-max", "0")
    assert {one["intact"] for one in none["checkpoints"]} == {None}
    assert none["newest"] == str(tmp_path / "step-00000030")
    assert "good, its content not read" in say(tmp_path, "--verify-max", "0")[1]


@pytest.mark.timeout(300)
def test_thousands_of_entries(tmp_path: Path, say: Say) -> None:
    for step in range(1, 3001):
        safetensors(tmp_path / f"step_{step}.safetensors")
        (tmp_path / f"log_{step}.txt").touch()
    (tmp_path / "step_3001.safetensors").write_bytes(b"half")
    found = document(say, tmp_path)
    assert len(found["checkpoints"]) == 3001
    assert found["newest"] == str(tmp_path / "step_3000.safetensors")
    out = say(tmp_path)[1]
    assert len(out.splitlines()) < 100
    assert "step_3001.safetensors" in out


def large(folder: Path, count: int = 6) -> None:
    """Make files of safetensors with 512 MB of zeros each, which take no room on the disk."""
    size = 512 << 20
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    for at_step in range(1, count + 1):
        with (folder / f"step_{at_step}.safetensors").open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            out.truncate(8 + len(header) + size)


def child_of(pid: int) -> int | None:
    """Return the side process of a verb that runs as ``pid``, once it has stepped back."""
    for line in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"overnight.inspector.side" in Path(f"/proc/{line}/cmdline").read_bytes():
            return int(line)
    return None


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Return a verb that reads much, and its side process."""
    large(tmp_path)
    argv = [sys.executable, "-m", "overnight", "checkpoints", str(tmp_path), "--verify", "--verify-max", "1T"]
    verb = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    found = None
    while found is None and verb.poll() is None:
        found = child_of(verb.pid)
        time.sleep(0.01)
    assert found is not None
    yield verb, found
    verb.kill()
    verb.wait()


def ended(pid: int) -> bool:
    """Wait until a process is gone."""
    end = time.monotonic() + 200  # it has only what nobody else wants, also to end with
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.timeout(300)
def test_the_side_process_takes_only_what_nobody_else_wants(reading: tuple[subprocess.Popen[bytes], int]) -> None:
    verb, pid = reading
    policy = None
    while verb.poll() is None and policy != os.SCHED_IDLE:
        policy = os.sched_getscheduler(pid)
        time.sleep(0.01)
    assert policy == os.SCHED_IDLE
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    done = subprocess.run(["ionice", "-p", str(pid)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() in ("idle", "")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_side_process_ends_with_its_parent(
    reading: tuple[subprocess.Popen[bytes], int], number: signal.Signals
) -> None:
    verb, pid = reading
    verb.send_signal(number)
    verb.wait()
    assert ended(pid)


def test_a_killed_side_process_is_told_and_hides_nothing(
    tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        own(tmp_path, step)
    real = side.Side.__enter__

    def killed(self: side.Side) -> side.Side:
        real(self)
        assert self.process is not None
        self.process.kill()
        return self

    monkeypatch.setattr(side.Side, "__enter__", killed)
    assert say(tmp_path, "--verify")[0] == 1
    code, _, err = say(tmp_path, "--prune", "--keep-last", "1")
    assert code == 1
    assert "was ended; try again" in err
    assert len(names(tmp_path)) == 2
    found = document(say, tmp_path)
    assert found["newest"] == str(tmp_path / "step-00000020")
    assert "the process that read it was ended" in found["notes"][-1]
    assert {one["checked"] for one in found["checkpoints"]} == {False}


def test_it_reads_without_torch_and_numpy(tmp_path: Path) -> None:
    trainer(tmp_path, 100)
    code = (
        "import sys, overnight.inspector.checking as c; r = c.look(sys.argv[1], limit=None); "
        "print(r.newest.step, sorted({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "100 []"


def test_files_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    own(tmp_path / "out", 10)
    for name in ("json", "subprocess", "overnight", "xxhash"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    argv = [sys.executable, "-P", "-m", "overnight", "checkpoints", "out", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True)
    assert json.loads(done.stdout)["checkpoints"][0]["intact"] is True
