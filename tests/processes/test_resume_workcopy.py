"""Working places of a resume proof: what a copy has, what is refused beforehand, what of the user's changed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight.errors import UsageError
from overnight.resumeproof import copying, fence, untouched
from overnight.resumeproof.workcopy import Place, Workplace

needs_fence = pytest.mark.skipif(not fence.available(), reason="this kernel has no Landlock, or it may not be used")

Open = Callable[..., Workplace]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return the user's folder with a script in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("print('step 1')\n")
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def opened(mine: Path, temporary: Path, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens a work place; all are closed at the end."""
    all_of_them: list[Workplace] = []
    home = tmp_path / "home"
    home.mkdir()

    def make(*argv: str, environ: dict[str, str] | None = None, **others: Any) -> Workplace:
        given = {"PATH": os.environ["PATH"], "HOME": str(home), **(environ or {})}
        made = Workplace(argv or ("python3", "train.py"), cwd=str(mine), environ=given, **others)
        made.__enter__()
        all_of_them.append(made)
        return made

    yield make
    for one in all_of_them:
        one.close()


def run(work: Workplace, place: Place, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a place as a part of a proof would."""
    argv = work.command(place, command or place.argv, log=os.devnull)
    environ = {**os.environ, **place.environ}
    return subprocess.run(argv, cwd=place.cwd, env=environ, capture_output=True, text=True, timeout=100, check=False)


# -- the copy --------------------------------------------------------------------------------------------------------


def test_a_copy_has_the_same_files_and_shares_no_byte(mine: Path, opened: Open) -> None:
    (mine / "pkg").mkdir(mode=0o750)
    (mine / "pkg" / "a.py").write_text("a = 1\n")
    (mine / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (mine / "pkg" / "run.sh").chmod(0o755)
    (mine / "pkg" / "locked").write_text("x")
    (mine / "pkg" / "locked").chmod(0o400)
    os.utime(mine / "pkg" / "a.py", (1_000_000_000, 1_000_000_000))
    os.utime(mine / "pkg", (1_000_000_001, 1_000_000_001))
    os.link(mine / "train.py", mine / "twin.py")
    place = opened().fresh("first")
    copy = Path(place.cwd)
    assert copy.name == "mine"
    assert place.workdir == place.cwd
    for path in mine.rglob("*"):
        there = copy / path.relative_to(mine)
        assert there.stat().st_mode == path.stat().st_mode
        assert there.stat().st_ino != path.stat().st_ino
        if path.is_file():
            assert there.read_bytes() == path.read_bytes()
            assert there.stat().st_mtime_ns == path.stat().st_mtime_ns
            assert there.stat().st_nlink == 1
    assert (copy / "pkg").stat().st_mtime == 1_000_000_001
    (copy / "train.py").write_text("changed")
    assert (mine / "train.py").read_text() == (mine / "twin.py").read_text() == "print('step 1')\n"


def test_what_is_only_read_is_a_link_and_what_is_made_anew_is_left(mine: Path, opened: Open) -> None:
    for name in (".git", ".venv", "myenv", "node_modules", "wandb", "mlruns", "__pycache__", "src/__pycache__", "env"):
        (mine / name).mkdir(parents=True)
        (mine / name / "file").write_text("x" * 1000)
    for name in (".venv", "myenv"):
        (mine / name / "pyvenv.cfg").write_text("")
    copy = Path(opened().fresh("first").cwd)
    linked = {path.name for path in copy.iterdir() if path.is_symlink()}
    assert linked == {".git", ".venv", "myenv", "node_modules"}
    assert (copy / ".venv").resolve() == mine / ".venv"
    assert not (copy / "env").is_symlink(), "a folder of that name may be anything"
    assert (copy / "env" / "file").exists()
    assert not {"wandb", "mlruns", "__pycache__"} & set(os.listdir(copy))
    assert os.listdir(copy / "src") == []


def test_links_lead_to_what_they_led_to(mine: Path, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    (mine / "sub").mkdir()
    links = {
        "inside": "train.py",
        "sub/up": "../train.py",
        "absolute": str(mine / "train.py"),
        "sub/whole": str(mine),
        "outside": str(tmp_path / "data" / "x"),
        "relative_out": "../data/x",
        "sub/deep_out": "../../data",
        "dangling": "nothing/here",
    }
    for name, target in links.items():
        (mine / name).symlink_to(target)
    copy = Path(opened().fresh("first").cwd)
    for name in links:
        here, there = (mine / name), (copy / name)
        assert there.is_symlink()
        before, after = os.path.realpath(here), os.path.realpath(there)
        inside = before == str(mine) or before.startswith(f"{mine}/")
        assert after == (before.replace(str(mine), str(copy), 1) if inside else before), name
    assert os.readlink(copy / "inside") == "train.py"


def test_neighbours_of_the_folder_can_be_read(mine: Path, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("the data")
    work = opened()
    if not work.fenced:
        pytest.skip("no fence here: a run could write there")
    place = work.fresh("first")
    assert run(work, place, "cat", "../data/x").stdout == "the data"
    assert "Permission denied" in run(work, place, "sh", "-c", "echo y > ../data/x").stderr
    assert run(work, place, "sh", "-c", "mkdir ../out && echo y > ../out/y").returncode == 0
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "data" / "x").read_text() == "the data"


def test_holes_stay_holes_and_count_for_nothing(mine: Path, opened: Open) -> None:
    with (mine / "sparse.bin").open("wb") as stream:
        stream.write(b"begin")
        stream.seek(3 << 30)
        stream.write(b"end")
    place = opened(max_copy=10 << 20).fresh("first")
    there = Path(place.cwd) / "sparse.bin"
    assert there.stat().st_size == (3 << 30) + 3
    assert there.stat().st_blocks * 512 < 10 << 20
    with there.open("rb") as stream:
        assert stream.read(5) == b"begin"
        stream.seek(3 << 30)
        assert stream.read() == b"end"


def test_a_file_without_blocks_of_the_kernel_is_copied_by_reading(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(100_000)
    (mine / "blob").write_bytes(content)

    def refuses(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuses)
    monkeypatch.setattr(copying, "PIECE", 4096)
    copying.copy(copying.Selection(str(mine)), str(mine.parent / "copy"))
    assert (mine.parent / "copy" / "blob").read_bytes() == content


def test_pipes_and_sockets_are_skipped_and_named(mine: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(mine / "pipe")
    monkeypatch.chdir(mine)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
    work = opened()
    copy = Path(work.fresh("first").cwd)
    assert set(os.listdir(copy)) == {"train.py"}
    assert "pipes, sockets and devices are not copied: pipe, sock" in work.notes


def test_what_vanishes_meanwhile_is_named(mine: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "fleeting").write_text("x")
    work = opened()
    real = copying._copy_file

    def late(source: str, target: str) -> bool:
        if source.endswith("fleeting"):
            os.unlink(source)
        return real(source, target)

    monkeypatch.setattr(copying, "_copy_file", late)
    place = work.fresh("first")
    assert not (Path(place.cwd) / "fleeting").exists()
    assert "not in the copy first, since it could not be read: fleeting" in work.notes


@pytest.mark.skipif(os.getuid() == 0, reason="root can read everything")
def test_what_may_not_be_read_is_named(mine: Path, opened: Open) -> None:
    (mine / "secret").write_text("x")
    (mine / "secret").chmod(0)
    work = opened()
    work.fresh("first")
    assert any("secret" in note for note in work.notes)


def test_a_change_between_two_copies_is_said(mine: Path, opened: Open) -> None:
    work = opened()
    work.fresh("first")
    work.fresh("second")
    assert not [note for note in work.notes if "differs" in note]
    (mine / "train.py").write_text("print('another')\n")
    (mine / "new.py").write_text("")
    work.fresh("third")
    assert "the copy third differs from the first one, since new.py, train.py changed meanwhile" in work.notes


def test_globs_leave_out_names_and_paths(mine: Path, opened: Open) -> None:
    for path in ("data/a.bin", "src/data/b.bin", "src/keep.py", "src/big.bin"):
        (mine / path).parent.mkdir(parents=True, exist_ok=True)
        (mine / path).write_text("x")
    copy = Path(opened(leave_out=["./data/", "src/*.bin"]).fresh("first").cwd)
    assert sorted(str(one.relative_to(copy)) for one in copy.rglob("*") if one.is_file()) == ["src/keep.py", "train.py"]


def test_the_copies_themselves_are_never_copied(mine: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "tmp").mkdir()
    (mine / "evidence").mkdir()
    (mine / "evidence" / "x").write_text("x")
    monkeypatch.setattr(tempfile, "tempdir", str(mine / "tmp"))
    work = opened(skip=[str(mine / "evidence")])
    for name in ("first", "second", "third"):
        copy = Path(work.fresh(name).cwd)
        assert set(os.listdir(copy)) == {"train.py", "tmp"}
        assert os.listdir(copy / "tmp") == []


def own_checkpoints(folder: Path) -> None:
    """Make what the library leaves in a folder, as far as names go."""
    (folder / "step-00000100").mkdir(parents=True)
    (folder / "step-00000100" / "MANIFEST.json").write_text("{}")
    (folder / "LOCK").write_text(json.dumps({"pid": 1, "started": 1, "host": "h", "run": None}))


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ([], False),
        (["--out", "ckpt"], False),
        (["--ckpt-dir=ckpt"], False),
        (["--resume", "ckpt"], True),
        (["--init-from", "ckpt/step-00000100"], True),
        (["ckpt/step-00000100"], True),
        (["--load_dir", "./ckpt/"], True),
    ],
)
def test_our_own_checkpoints_stay_behind_unless_they_are_an_input(
    mine: Path, opened: Open, words: list[str], there: bool
) -> None:
    own_checkpoints(mine / "ckpt")
    work = opened("python3", "train.py", *words)
    copy = Path(work.fresh("first").cwd)
    assert (copy / "ckpt").exists() == there
    assert ("Overnight's checkpoints in ckpt are not in the copies" in work.notes) != there


def test_a_lock_of_somebody_else_is_no_sign_of_ours(mine: Path, opened: Open) -> None:
    (mine / "leveldb").mkdir()
    (mine / "leveldb" / "LOCK").write_text("")
    assert (Path(opened().fresh("first").cwd) / "leveldb" / "LOCK").exists()


def test_checkpoints_that_are_copied_are_said(mine: Path, opened: Open) -> None:
    (mine / "out").mkdir()
    (mine / "out" / "last.pt").write_text("x")
    work = opened()
    assert any("checkpoints in out" in note and "--leave-out out" in note for note in work.notes)


# -- {workdir} -------------------------------------------------------------------------------------------------------


def test_workdir_is_an_empty_folder_and_the_working_folder_stays(mine: Path, opened: Open) -> None:
    work = opened("python3", "train.py", "--out={workdir}/ckpt", "--log", "{workdir}")
    first, second = work.fresh("first"), work.fresh("second")
    assert first.cwd == second.cwd == str(mine)
    assert first.workdir != second.workdir
    assert os.listdir(first.workdir) == []
    assert first.argv == ("python3", "train.py", f"--out={first.workdir}/ckpt", "--log", first.workdir)
    assert work.words(second, ["--resume", "{workdir}/ckpt/{checkpoint}"]) == (
        "--resume",
        f"{second.workdir}/ckpt/{{checkpoint}}",
    )


@needs_fence
def test_with_workdir_the_working_folder_cannot_be_written(mine: Path, opened: Open) -> None:
    work = opened("bash", "-c", "echo ok > {workdir}/x; echo no > relative.pt")
    place = work.fresh("first")
    done = run(work, place)
    assert (Path(place.workdir) / "x").read_text() == "ok\n"
    assert not (mine / "relative.pt").exists()
    told = work.refused(place, done.stderr)
    assert told is not None
    assert f"the script writes to {mine}/relative.pt, outside its working copy: use {{workdir}}" in told
    assert "--out {workdir}/relative.pt" in told


# -- the words of a command ------------------------------------------------------------------------------------------


def test_absolute_paths_into_the_folder_lead_to_the_copy(mine: Path, tmp_path: Path, opened: Open) -> None:
    (mine / "data").mkdir()
    (mine / "my data").mkdir()
    (mine / ".venv" / "bin").mkdir(parents=True)
    (mine / ".venv" / "pyvenv.cfg").write_text("")
    (mine / ".venv" / "bin" / "python").write_text("")
    (tmp_path / "mine2").mkdir()
    words = [
        f"{mine}/.venv/bin/python",
        f"{mine}/train.py",
        f"--data={mine}/data",
        f"{mine}/my data",
        f"data.path={mine}/data/",
        f"cd {mine} && python3 {mine}/train.py --data '{mine}/data/*.bin' > log.txt; echo {mine}",
        f"{tmp_path}/mine2",
        "/bin/sh",
        "train.py",
    ]
    place = opened(*words).fresh("first")
    copy = place.cwd
    assert place.argv == (
        f"{mine}/.venv/bin/python",
        f"{copy}/train.py",
        f"--data={copy}/data",
        f"{copy}/my data",
        f"data.path={copy}/data/",
        f"cd {copy} && python3 {copy}/train.py --data '{copy}/data/*.bin' > log.txt; echo {copy}",
        f"{tmp_path}/mine2",
        "/bin/sh",
        "train.py",
    )


def test_another_name_of_the_folder_leads_to_the_copy_too(mine: Path, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "alias").symlink_to(mine)
    work = opened("python3", f"{tmp_path}/alias/train.py", environ={"PWD": f"{tmp_path}/alias"})
    place = work.fresh("first")
    assert place.argv[1] == f"{place.cwd}/train.py"
    assert place.environ["PWD"] == place.cwd


@pytest.mark.parametrize(
    ("words", "path", "advice"),
    [
        (["--out", "{mine}/ckpt"], "{mine}/ckpt", "name it relative to the folder (ckpt)"),
        (["--out={mine}/a/ckpt"], "{mine}/a/ckpt", "--out {workdir}/ckpt"),
        (["out_dir={mine}/ckpt"], "{mine}/ckpt", "out_dir={workdir}/ckpt"),
        (["--out", "{up}/results"], "{up}/results", "--allow {up}/results"),
        (["--save_dir={up}/kept"], "{up}/kept", "--save_dir {workdir}/kept"),
        (["-c", "python3 train.py --out {up}/results"], "{up}/results", "--out {workdir}/results"),
        (["-c", "python3 train.py > {mine}/log.txt"], "{mine}/log.txt", "(log.txt)"),
        (["--out", "{mine}/saves"], "{mine}/saves", "(saves)"),
    ],
)
def test_an_absolute_place_to_write_to_is_refused_with_advice(
    tmp_path: Path, opened: Open, words: list[str], path: str, advice: str
) -> None:
    mine, temporary = tmp_path / "mine", tmp_path / "temporary"
    for folder in (tmp_path / "kept", mine / "saves"):
        folder.mkdir()
        (folder / "step_100.pt").write_text("x")

    def filled(text: str) -> str:
        return text.replace("{mine}", str(mine)).replace("{up}", str(tmp_path))

    with pytest.raises(UsageError) as caught:
        opened("python3", "train.py", *map(filled, words))
    said = str(caught.value)
    assert said.startswith(f"the command writes to {filled(path)}, outside the working copies of the runs: ")
    assert filled(advice) in said
    assert "{workdir}" in said
    assert os.listdir(temporary) == [], "nothing was made"


def test_inputs_and_what_is_allowed_are_not_refused(mine: Path, tmp_path: Path, opened: Open) -> None:
    for name in ("datasets", "model", "logs", "ckpt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("x")
    (mine / "init.pt").write_text("x")
    opened(
        *("python3", "train.py", "--data", f"{tmp_path}/datasets", "--model_name_or_path", f"{tmp_path}/model"),
        *("--init", f"{mine}/init.pt", "--resume-from", f"{tmp_path}/ckpt", "--url", "https://example.com/out/x"),
        *("--pattern", "/nowhere/at/all", "--log-dir", f"{tmp_path}/logs/new", "--device", "/dev/nvidia0"),
        allow=[str(tmp_path / "logs")],
    )


def test_words_for_the_second_start_are_looked_at_too(mine: Path, opened: Open) -> None:
    with pytest.raises(UsageError, match="name it relative to the folder"):
        opened("python3", "train.py", resume_args=["--resume", f"{mine}/ckpt/last.pt"])


def test_an_allowed_folder_must_be_there(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(UsageError, match="is not a folder; make it first"):
        opened(allow=[str(tmp_path / "nowhere")])


# -- size and space --------------------------------------------------------------------------------------------------


def test_a_folder_that_is_too_large_is_refused_with_three_ways_out(mine: Path, opened: Open, temporary: Path) -> None:
    for name, size in (("data/big/x.bin", 3 << 20), ("ckpt/y.bin", 1 << 20), ("small.bin", 10)):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_bytes(os.urandom(size))
    with pytest.raises(UsageError) as caught:
        opened(max_copy=2 << 20)
    said = str(caught.value)
    assert "has 4.0 MiB to copy for each run, more than --max-copy 2.0 MiB" in said
    assert "largest: data/big 3.0 MiB, ckpt/y.bin 1.0 MiB" in said
    for way in ("{workdir}", "--leave-out GLOB", "raise --max-copy"):
        assert way in said
    assert os.listdir(temporary) == []
    opened(max_copy=2 << 20, leave_out=["data"]).fresh("first")
    opened("sh", "-c", "x {workdir}", max_copy=2 << 20).fresh("first")


def test_too_many_files_are_refused(mine: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MOST_ENTRIES", 20)
    for number in range(30):
        (mine / f"{number}.txt").write_text("")
    with pytest.raises(UsageError, match="more than 20 files to copy"):
        opened()


def test_a_disk_that_is_too_small_is_said_beforehand(mine: Path, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine / "x.bin").write_bytes(os.urandom(1 << 20))
    real = os.statvfs

    def small(path: str) -> Any:
        found = list(real(path))
        found[0], found[1], found[4] = 4096, 4096, (66 << 20) // 4096
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", small)
    with pytest.raises(UsageError, match="set TMPDIR to a folder on a larger disk"):
        opened(places=4)
    opened(places=1)


# -- environment and removal -----------------------------------------------------------------------------------------


def test_the_environment_of_a_run(mine: Path, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "home" / ".cache").mkdir(parents=True, exist_ok=True)
    outer = {"OVERNIGHT_RUN_ID": "a", "OVERNIGHT_SKIP_STEPS": "1-2", "OVERNIGHT_GRACE": "5", "PWD": str(mine)}
    work = opened(environ={**outer, "PYTHONPATH": f"{mine}/src:/elsewhere"})
    first, second = work.fresh("first"), work.fresh("second")
    assert first.environ["WANDB_MODE"] == "disabled"
    assert first.environ["HF_HUB_OFFLINE"] == "1"
    assert first.environ["TMPDIR"] == first.environ["WANDB_DIR"] == first.tmp != second.tmp
    assert os.path.isdir(first.tmp)
    assert set(first.unset) == {"OVERNIGHT_RUN_ID", "OVERNIGHT_SKIP_STEPS"}
    assert first.environ["PYTHONPATH"] == f"{first.cwd}/src:/elsewhere"
    assert first.environ["PWD"] == first.cwd
    assert ("PYTHONDONTWRITEBYTECODE" in first.environ) != work.fenced
    assert first.environ["TRITON_CACHE_DIR"] == second.environ["TRITON_CACHE_DIR"]
    assert os.path.isdir(first.environ["TRITON_CACHE_DIR"])
    assert not (tmp_path / "home" / ".triton").exists()


def test_sockets_fit_into_tmpdir_however_long_the_path(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    work = opened()
    place = work.fresh("first")
    assert place.cwd.startswith(str(long))
    code = (
        "import multiprocessing.connection as m, tempfile, os; print(tempfile.gettempdir());"
        "m.Listener(family='AF_UNIX', address=tempfile.mkdtemp(prefix='pymp-') + '/listener-12345678')"
    )
    done = run(work, place, sys.executable, "-c", code)
    assert done.stdout.strip() == place.tmp, done.stderr
    tmp_root = work.tmp_root
    work.close()
    assert not os.path.exists(tmp_root)


def test_nothing_is_left_whatever_modes_a_script_has_set(opened: Open, temporary: Path, mine: Path) -> None:
    (mine / ".git").mkdir()
    (mine / ".git" / "config").write_text("x")
    work = opened()
    place = work.fresh("first")
    locked = Path(place.cwd) / "a" / "b"
    locked.mkdir(parents=True)
    (locked / "x").write_text("x")
    locked.chmod(0)
    locked.parent.chmod(0o500)
    mode = stat.S_IMODE(temporary.stat().st_mode)
    work.remove(place)
    assert not os.path.exists(place.cwd)
    assert not os.path.exists(place.tmp)
    work.close()
    work.close()
    assert os.listdir(temporary) == []
    assert stat.S_IMODE(temporary.stat().st_mode) == mode
    assert (mine / ".git" / "config").read_text() == "x"


def test_what_is_kept_is_said(opened: Open) -> None:
    work = opened(keep=True)
    place = work.fresh("first")
    work.close()
    assert os.path.exists(place.cwd)
    assert place.tmp.startswith(os.path.dirname(os.path.dirname(place.cwd))) or not os.path.exists(place.tmp)
    assert any("are kept in" in note for note in work.notes)


def test_nothing_is_left_after_ctrl_c(mine: Path, temporary: Path) -> None:
    code = f"""
import os, sys, tempfile, time
from overnight.resumeproof.workcopy import Workplace
tempfile.tempdir = {str(temporary)!r}
with Workplace(['true'], cwd={str(mine)!r}, environ=dict(os.environ)) as work:
    work.fresh('first')
    print('ready', flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert os.listdir(temporary) != []
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert os.listdir(temporary) == []


# -- a training in a place -------------------------------------------------------------------------------------------


@needs_fence
def test_a_script_with_an_absolute_path_is_refused_harmlessly(mine: Path, opened: Open) -> None:
    (mine / "ckpt").mkdir()
    (mine / "ckpt" / "last.pt").write_text("precious")
    (mine / "train.py").write_text(
        "import os, pickle\npickle.dump(1, open('relative.pt', 'wb'))\n"
        f"pickle.dump(2, open('{mine}/ckpt/last.pt', 'wb'))\n"
    )
    before = untouched.fingerprint(str(mine))
    work = opened(sys.executable, "train.py")
    place = work.fresh("first")
    done = run(work, place)
    assert done.returncode == 1
    assert (Path(place.cwd) / "relative.pt").exists()
    told = work.refused(place, done.stderr)
    assert told is not None
    assert f"the script writes to {mine}/ckpt/last.pt, outside its working copy: use {{workdir}} in the command" in told
    assert f"or --allow {mine}/ckpt if" in told
    assert untouched.changes(before) == []


@needs_fence
def test_torch_does_not_say_where_but_the_script_does(mine: Path, tmp_path: Path, opened: Open) -> None:
    pytest.importorskip("torch")
    (tmp_path / "results").mkdir()
    (mine / "train.py").write_text(f"import torch\nwhere = '{tmp_path}/results/last.pt'\ntorch.save(1, where)\n")
    work = opened(sys.executable, "-W", "ignore", "train.py")
    place = work.fresh("first")
    told = work.refused(place, run(work, place).stderr)
    assert told is not None
    assert f"the script names {tmp_path}/results/last.pt and seems to write there" in told
    allowed = opened(sys.executable, "-W", "ignore", "train.py", allow=[str(tmp_path / "results")])
    assert run(allowed, allowed.fresh("first")).returncode == 0
    assert (tmp_path / "results" / "last.pt").exists()


@needs_fence
def test_caches_that_are_there_may_be_written(tmp_path: Path, opened: Open) -> None:
    cache = tmp_path / "home" / ".cache"
    cache.mkdir(parents=True, exist_ok=True)
    work = opened(environ={"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(cache)})
    place = work.fresh("first")
    assert run(work, place, "sh", "-c", f"mkdir {cache}/torch && echo x > {cache}/torch/x").returncode == 0
    assert run(work, place, "sh", "-c", f"echo x > {tmp_path}/home/.bashrc").returncode != 0


def test_a_cache_that_holds_the_folder_is_not_opened(mine: Path, tmp_path: Path, opened: Open) -> None:
    work = opened(environ={"HF_HOME": str(tmp_path)})
    assert str(tmp_path) not in work.fresh("first").allowed
    assert any("HF_HOME" in note and "holds the folder itself" in note for note in work.notes)


class TestWithoutAFence:
    """What takes the place of the fence on a kernel that has none."""

    @pytest.fixture(autouse=True)
    def unfenced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fence, "_TRIED", [False])

    def test_it_is_said_and_nothing_is_put_in_front(self, opened: Open) -> None:
        work = opened()
        place = work.fresh("first")
        assert not work.fenced
        assert place.allowed == ()
        assert work.command(place, ["true"], log="/dev/null") == ["true"]
        assert any("no Landlock" in note for note in work.notes)
        assert place.environ["PYTHONDONTWRITEBYTECODE"] == "1"

    @pytest.mark.parametrize(
        "text",
        [
            "torch.save(x, '{mine}/ckpt/last.pt')",
            "OUT = '{mine}'",
            "path = f'{up}/results/{{step}}.pt'",
            "save('{up}/old/last.pt')",
        ],
    )
    def test_a_script_that_names_a_place_to_write_to_is_refused(
        self, mine: Path, tmp_path: Path, opened: Open, text: str
    ) -> None:
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "last.pt").write_text("x")
        (mine / "train.py").write_text(text.replace("{mine}", str(mine)).replace("{up}", str(tmp_path)) + "\n")
        with pytest.raises(UsageError, match=r"the script names /.* and may write there.*\{workdir\}.*--allow"):
            opened("python3", "train.py")

    def test_so_are_modules_configurations_and_shell_scripts(self, mine: Path, tmp_path: Path, opened: Open) -> None:
        (mine / "pkg").mkdir()
        (mine / "pkg" / "train.py").write_text(f"OUT = '{tmp_path}/out'\n")
        (mine / "config.yaml").write_text(f"out: {tmp_path}/out\n")
        (mine / "run").write_text(f"#!/bin/sh\npython3 x.py --out {tmp_path}/out\n")
        for words in (["python3", "-m", "pkg.train"], ["python3", "x.py", "--config=config.yaml"], ["./run"]):
            with pytest.raises(UsageError, match="the script names"):
                opened(*words)
            opened(*words, allow=[str(tmp_path)])

    def test_programs_comments_and_addresses_are_no_reason(self, mine: Path, tmp_path: Path, opened: Open) -> None:
        (mine / "train.py").write_text(
            f'#!/usr/bin/env python3\n"""Writes nothing to {tmp_path}/x."""\n# nor to {tmp_path}/y\n'
            "URL = 'https://example.com/out'\nTOOL = '/usr/bin/git'\nNULL = '/dev/null'\nODD = '/nowhere/at/all'\n"
        )
        opened("python3", "train.py")

    def test_links_to_checkpoints_elsewhere_are_taken_out(self, mine: Path, tmp_path: Path, opened: Open) -> None:
        for name in ("big", "data"):
            (tmp_path / name).mkdir()
        (mine / "ckpt").symlink_to(tmp_path / "big")
        (mine / "data").symlink_to(tmp_path / "data")
        work = opened("python3", "train.py")
        assert set(os.listdir(work.fresh("first").cwd)) == {"train.py", "data"}
        assert any("the link ckpt" in note for note in work.notes)


# -- what of the user's changed --------------------------------------------------------------------------------------


def changed(folder: Path, how: Callable[[], object], **others: Any) -> list[str]:
    """Return what is said to have changed, the folder cut off."""
    before = untouched.fingerprint(str(folder), **others)
    how()
    return [one.replace(str(folder) + "/", "") for one in untouched.changes(before)]


def test_every_kind_of_change_is_seen(mine: Path, tmp_path: Path) -> None:
    (mine / "ckpt").mkdir()
    saved, notes = mine / "ckpt" / "last.pt", mine / "notes.txt"
    saved.write_bytes(b"x" * 100)
    notes.write_text("one")
    (mine / "link").symlink_to("notes.txt")
    times = saved.stat()

    def forged() -> None:
        saved.write_bytes(b"y" * 100)
        os.utime(saved, ns=(times.st_atime_ns, times.st_mtime_ns))

    def again() -> None:
        time.sleep(0.01)
        saved.write_bytes(saved.read_bytes())

    def link() -> None:
        (mine / "link").unlink()
        (mine / "link").symlink_to("train.py")

    assert changed(mine, list) == []
    assert changed(mine, saved.read_bytes) == []
    assert changed(mine, forged) == ["ckpt/last.pt has other bytes now, though size and time are as before"]
    assert changed(mine, lambda: saved.write_bytes(b"z" * 50)) == ["ckpt/last.pt was changed: 50 bytes, before 100"]
    assert changed(mine, again) == ["ckpt/last.pt was written again, with the same bytes"]
    assert changed(mine, lambda: notes.write_text("three")) == ["notes.txt was changed: 5 bytes, before 3"]
    assert changed(mine, lambda: notes.chmod(0o600)) == ["notes.txt has the permissions 600 now, before 644"]
    assert changed(mine, link) == ["link points to train.py now, before to notes.txt"]
    assert changed(mine, (mine / "new").mkdir) == ["new is new"]
    assert changed(mine, lambda: saved.rename(mine / "new" / "last.pt")) == [
        "ckpt/last.pt is gone",
        "new/last.pt is new",
    ]
    assert changed(mine, lambda: (notes.unlink(), notes.mkdir())) == ["notes.txt is no file any more, but a folder"]
    assert changed(mine, lambda: ((mine / "t").write_text(""), (mine / "t").unlink())) == [
        f"in {mine} something was made and is gone again"
    ]


def test_a_folder_that_is_gone_is_named_once(mine: Path) -> None:
    (mine / "ckpt").mkdir()
    for number in range(5):
        (mine / "ckpt" / f"{number}.pt").write_text("x")

    def gone() -> None:
        for path in (mine / "ckpt").iterdir():
            path.unlink()
        (mine / "ckpt").rmdir()

    assert changed(mine, gone) == ["ckpt is gone"]


def test_checkpoints_elsewhere_count_and_evidence_does_not(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "last.pt").write_text("x")
    (mine / "evidence").mkdir()
    places = {"saves": [str(tmp_path / "far")], "skip": [str(mine / "evidence"), str(mine / "later")]}
    assert changed(mine, lambda: (mine / "evidence" / "x").write_text("x"), **places) == []
    assert changed(mine, (mine / "later").mkdir, **places) == []
    assert changed(mine, lambda: (tmp_path / "far" / "last.pt").write_text("yy"), **places) == [
        f"{tmp_path}/far/last.pt was changed: 2 bytes, before 1"
    ]


def test_what_was_not_looked_at_is_said(mine: Path) -> None:
    for number in range(10):
        (mine / f"{number}.pt").write_text("xxxxx")
    few = untouched.fingerprint(str(mine), most_entries=5)
    assert not few.whole
    assert "only the first 5 files" in few.notes()[0]
    (mine / "new").write_text("")
    assert untouched.changes(few) == [], "what lies beyond the bound cannot be told from what is new"
    short = untouched.fingerprint(str(mine), most_bytes=22)
    assert (len(short.digests), short.undigested) == (4, 6)
    assert "of 6 checkpoints only size and time were compared" in short.notes()[0]
    assert untouched.fingerprint(str(mine)).notes() == []


def test_a_pipe_and_a_loop_hold_nobody_up(mine: Path) -> None:
    os.mkfifo(mine / "pipe.pt")
    (mine / "loop").symlink_to(".")
    assert changed(mine, list) == []
