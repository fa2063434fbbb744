"""The disk fails in every way that it can while a training saves: what was saved stays, the error is named, it goes on.

Errors that no disk gives when it is asked to are made by ``faultydisk.c``, in the process that writes; full disks and
read-only folders are real ones, where they can be mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import checkpoint_toy
import pytest

from overnight.checkpoint import manifest, newest

TOY = Path(__file__).with_name("checkpoint_toy.py")
SOURCE = Path(__file__).with_name("faultydisk.c")
LIBC = ctypes.CDLL(None, use_errno=True)
pytestmark = pytest.mark.timeout(300)  # some start a dozen trainings
MNT_DETACH = 2  # of <sys/mount.h>
MODES = pytest.mark.parametrize("more", [(), ("--sync",)], ids=["async", "sync"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that makes a disk fail."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here to build a faulty disk with")
    made = tmp_path_factory.mktemp("faulty") / "faulty.so"
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the faulty disk cannot be built here: {built.stderr.strip()}")
    return made


@contextlib.contextmanager
def mounted(size: str) -> Iterator[Path]:
    """Mount a disk, not below pytest's folders: it removes those, and cannot remove a disk; skip if not allowed."""
    point = Path(tempfile.mkdtemp(prefix="overnight-disk-"))
    try:
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        yield point
    finally:
        unmounted(point)
        point.rmdir()


def unmounted(point: Path) -> None:
    """Take away all that is mounted at a place, in use or not; nothing if nothing is."""
    while LIBC.umount2(os.fsencode(point), MNT_DETACH) == 0:
        pass


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Mount a disk of 8 MiB; skip where that is not allowed."""
    with mounted("8m") as point:
        yield point


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    """Return the path of a folder over which may be mounted."""
    folder = tmp_path / "checkpoints"
    yield folder
    unmounted(folder)


class Toy:
    """A training whose disk fails as told; ``do`` names the shell command to run before a step."""

    def __init__(self, folder: Path, library: Path | None = None) -> None:
        self.folder = folder
        self.faults = folder.parent / "faults"
        self.env = dict(os.environ)
        if library is not None:
            self.env |= {"LD_PRELOAD": str(library), "FAULTS": str(self.faults)}

    def fault(self, call: str, code: int, *, part: str, skip: int = 0, times: int = -1) -> str:
        """Return the shell command that makes calls fail from then on."""
        return f"echo '{call} {code} {skip} {times} {part}' > '{self.faults}'"

    @property
    def mended(self) -> str:
        return f": > '{self.faults}'"

    @property
    def felt(self) -> list[tuple[int, str, str]]:
        """Return (pid, call, path) of all that has failed."""
        lines = Path(f"{self.faults}.log").read_text().splitlines()
        return [(int(pid), call, path) for pid, call, path in (line.split(" ", 2) for line in lines)]

    def run(
        self, *more: str, do: Mapping[int, str] | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        table = self.folder.parent / "do.json"
        table.write_text(json.dumps(do or {}))
        words = [sys.executable, str(TOY), str(self.folder), f"--do={table}", *more]
        return subprocess.run(
            words, env={**self.env, **(env or {})}, capture_output=True, text=True, check=False, timeout=100
        )

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, each verified to the last byte; nothing else lies in the folder."""
        found = []
        for path in self.folder.iterdir():
            if path.name == "LOCK":
                continue
            known = manifest.read(path)
            manifest.check_content(path, known)
            assert path.name == f"step-{known.step:08d}"
            found.append(known.step)
        return sorted(found)


def assert_trained(done: subprocess.CompletedProcess[str], last: int) -> None:
    """Assert that the training went on to its end as if nothing had been."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    losses = checkpoint_toy.losses(last)
    printed = dict(re.findall(r"^step: (\d+), loss: ([^,]+)", done.stdout, re.MULTILINE))
    assert printed == {str(step): loss for step, loss in losses.items()}


def failures(done: subprocess.CompletedProcess[str]) -> dict[int, str]:
    """Return what was said of each save that failed."""
    return {int(step): why for step, why in re.findall(r"warning: the save of step (\d+) failed: (.*)", done.stderr)}


FAULTS = {
    "no space": ("write", errno.ENOSPC, ".tmp-", "ENOSPC", "free some space"),
    "quota": ("write", errno.EDQUOT, ".tmp-", "EDQUOT", "quota"),
    "error while writing": ("write", errno.EIO, ".tmp-", "EIO", "look after that disk"),
    "error while writing the manifest": ("write", errno.EIO, "MANIFEST.json", "EIO", "look after that disk"),
    "error of fsync": ("fsync", errno.EIO, "train_state.safetensors", "EIO", "look after that disk"),
    "error of the manifest's fsync": ("fsync", errno.EIO, "MANIFEST.json", "EIO", "look after that disk"),
    "quota at fsync, as on a network disk": ("fsync", errno.EDQUOT, ".tmp-", "EDQUOT", "quota"),
    "error of rename": ("rename", errno.EIO, "step-", "EIO", "look after that disk"),
    "quota at rename": ("rename", errno.EDQUOT, "step-", "EDQUOT", "quota"),
    "read-only at mkdir": ("mkdir", errno.EROFS, ".tmp-", "EROFS", "read-only"),
    "not allowed to make a file": ("open", errno.EACCES, "train_state.json", "EACCES", "permissions"),
}


@MODES
def test_each_error_in_one_training(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    toy = Toy(tmp_path / "checkpoints", library)
    do: dict[int, str] = {}
    for at, (call, code, part, _, _) in enumerate(FAULTS.values()):
        # The save at 10, 30, 50... succeeds; the one at 20, 40, 60... fails.
        do[20 * at + 12] = toy.fault(call, code, part=part)
        do[20 * at + 22] = toy.mended
    last = 20 * len(FAULTS) + 10
    done = toy.run("--every=10", f"--steps={last}", *more, do=do)
    assert_trained(done, last)
    said = failures(done)
    assert sorted(said) == list(range(20, last, 20))
    assert len(re.findall("^warning: ", done.stderr, re.MULTILINE)) == len(FAULTS)
    for at, (call, _, part, name, advice) in enumerate(FAULTS.values()):
        why = said[20 * at + 20]
        assert str(tmp_path / "checkpoints") in why
        assert f"({name})" in why
        assert advice in why
        assert any(felt == call and part in path for _, felt, path in toy.felt)
    assert toy.steps() == list(range(10, last + 1, 20))
    assert len({pid for pid, _, _ in toy.felt}) == 1, "one process writes"


@MODES
def test_no_space_at_any_byte(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    """A checkpoint has some 46 kB in four files: each of these moments lies somewhere else in them."""
    toy = Toy(tmp_path / "checkpoints", library)
    places = sorted(random.sample(range(40_000), 14))
    do = {}
    for at, skip in enumerate(places):
        do[20 * at + 12] = toy.fault("write", errno.ENOSPC, part=".tmp-", skip=skip)
        do[20 * at + 22] = toy.mended
    last = 20 * len(places) + 10
    done = toy.run("--every=10", f"--steps={last}", "--ballast=20000", *more, do=do)
    assert_trained(done, last)
    said = failures(done)
    sys.stdout.write(f"{places}\n")
    assert sorted(said) == list(range(20, last, 20))
    assert all("No space left on device (ENOSPC)" in why and str(toy.folder) in why for why in said.values())
    assert toy.steps() == list(range(10, last + 1, 20))


@MODES
def test_the_name_may_be_lost_but_nothing_else(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    """The last fsync, that of the folder, fails: the checkpoint is whole, only its name may not outlive a power cut."""
    toy = Toy(tmp_path / "checkpoints", library)
    do = {12: toy.fault("fsync", errno.EIO, part="/checkpoints$"), 22: toy.mended}
    done = toy.run("--every=10", "--steps=30", "--keep=1", *more, do=do)
    assert_trained(done, 30)
    assert "Input/output error (EIO)" in failures(done)[20]
    assert "step-00000010" in done.stdout
    assert toy.steps() == [30]


@MODES
def test_nothing_is_removed_for_a_save_that_failed(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    toy = Toy(tmp_path / "checkpoints", library)
    do = {22: toy.fault("write", errno.ENOSPC, part=".tmp-", skip=9000)}
    done = toy.run("--every=10", "--steps=49", "--keep=2", *more, do={**do, 45: f"ls '{toy.folder}'; {toy.mended}"})
    assert_trained(done, 49)
    assert sorted(failures(done)) == [30, 40]
    assert re.search("^LOCK\nstep-00000010\nstep-00000020\nstep: 45", done.stdout, re.MULTILINE)
    assert toy.steps() == [20, 49]


ASKING = """\
import sys
sys.path.insert(0, sys.argv[1])
import checkpoint_toy as toy
from overnight.checkpoint import Checkpointer, SaveError
with Checkpointer(sys.argv[2], every=None, async_="--sync" not in sys.argv, **toy.Training().parts()) as ckpt:
    for step in ckpt.steps(6):
        if step in (2, 4):
            ckpt.save()
        if step in (3, 5):
            try:
                ckpt.wait()
                print(f"step {step}: saved")
            except SaveError as error:
                print(f"step {step}: {error}")
            open(sys.argv[3], "w").close()
"""


@MODES
def test_errors_surface_at_the_next_call(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    """``wait()`` raises what the save that was asked for ran into, and only once."""
    (tmp_path / "script.py").write_text(ASKING)
    toy = Toy(tmp_path / "checkpoints", library)
    toy.faults.write_text("fsync 5 0 -1 MANIFEST.json\n")
    words = [sys.executable, str(tmp_path / "script.py"), str(TOY.parent), str(toy.folder), str(toy.faults), *more]
    done = subprocess.run(words, env=toy.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^step 3: the save of step 2 failed: .*/checkpoints.*\(EIO\)", done.stdout, re.MULTILINE)
    assert "step 5: saved" in done.stdout.splitlines()
    assert toy.steps() == [4, 6]


# -- the last save ---------------------------------------------------------------------------------------------------


@MODES
def test_a_last_save_that_never_succeeds_ends_the_training_badly(
    tmp_path: Path, library: Path, more: tuple[str, ...]
) -> None:
    toy = Toy(tmp_path / "checkpoints", library)
    do = {12: toy.fault("write", errno.EDQUOT, part=".tmp-", skip=100)}
    done = toy.run("--every=10", "--steps=20", "--keep=1", *more, do=do)
    assert done.returncode not in (0, -6, -11)
    assert "step: 20, " in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "SaveError: the save of step 20 failed: " in last
    assert str(toy.folder) in last
    assert "Disk quota exceeded (EDQUOT); your quota there is used up" in last
    assert toy.steps() == [10]


@MODES
def test_a_last_save_is_tried_again(tmp_path: Path, library: Path, more: tuple[str, ...]) -> None:
    toy = Toy(tmp_path / "checkpoints", library)
    do = {12: toy.fault("write", errno.ENOSPC, part=".tmp-", times=1)}
    done = toy.run("--every=10", "--steps=20", *more, do=do)
    assert_trained(done, 20)
    assert list(failures(done)) == [20]
    assert toy.steps() == [10, 20]


# -- real disks ------------------------------------------------------------------------------------------------------


def fill(disk: Path, left: int) -> str:
    """Return the shell command that leaves so many bytes of a disk."""
    free = f"$(stat -f -c '%a' '{disk}') * $(stat -f -c '%S' '{disk}')"
    return f"head -c $(( {free} - {left} )) /dev/zero > '{disk}/filler'"


@MODES
def test_a_really_full_disk_that_claims_to_have_room(
    tmp_path: Path, small_disk: Path, library: Path, more: tuple[str, ...]
) -> None:
    """As with a quota, which no question for free space sees: it is full in the middle of the save."""
    toy = Toy(small_disk / "checkpoints", library)
    toy.faults = tmp_path / "faults"
    toy.env["FAULTS"] = str(toy.faults)
    do = {}
    for at in range(4):
        room = toy.fault("room", 0, part=str(small_disk))
        do[20 * at + 12] = f"{room}; {fill(small_disk, random.randrange(900_000))}"
        do[20 * at + 22] = f"rm '{small_disk}/filler'"
    done = toy.run("--every=10", "--steps=90", "--keep=2", "--ballast=900000", *more, do=do)
    assert_trained(done, 90)
    said = failures(done)
    assert sorted(said) == [20, 40, 60, 80]
    assert all("No space left on device (ENOSPC); free some space there" in why for why in said.values())
    assert all(str(toy.folder) in why for why in said.values())
    assert toy.steps() == [70, 90]


@MODES
def test_a_full_disk_is_seen_before_a_byte_is_written(small_disk: Path, more: tuple[str, ...]) -> None:
    toy = Toy(small_disk / "checkpoints")
    do = {12: fill(small_disk, 800_000), 25: f"rm '{small_disk}/filler'"}
    done = toy.run("--every=10", "--steps=30", "--ballast=900000", *more, do=do)
    assert_trained(done, 30)
    (why,) = failures(done).values()
    assert re.search(r"/checkpoints has [\d.]+ kB free and a checkpoint needs 1\.\d MB; free some space", why)
    assert toy.steps() == [10, 30]


def test_c1_03_a_save_that_failed_is_forgotten_and_loudly_said(own_folder: Path) -> None:
    """The folder is made read-only for root as well, by a mount over it; elsewhere by its permissions."""
    folder = own_folder
    toy = Toy(folder)
    shut, again = f"chmod a-w '{folder}'", f"chmod u+w '{folder}'"
    if os.geteuid() == 0:
        shut = f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}'"
        again = f"umount '{folder}'"
        if subprocess.run(["sh", "-c", f"mkdir '{folder}' && {shut} && {again}"], check=False).returncode:
            pytest.skip("nothing can be mounted here, and root may write everywhere")
    for more in ((), ("--sync",)):
        shutil.rmtree(folder, ignore_errors=True)
        done = toy.run("--every=50", "--steps=260", *more, do={160: shut, 210: again})
        assert_trained(done, 260)
        (why,) = failures(done).values()
        assert "the save of step 200 failed" in done.stderr
        assert str(folder) in why
        assert "read-only" in why if os.geteuid() == 0 else "permissions" in why
        assert "saved step-00000250" in done.stdout
        assert toy.steps() == [50, 100, 150, 250, 260]
        assert newest(folder) == folder / "step-00000260"


def test_a_folder_that_cannot_be_written_is_said_before_the_first_step(own_folder: Path) -> None:
    folder = own_folder
    folder.mkdir()
    mount = f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}'"
    if os.geteuid() != 0:
        folder.chmod(0o500)
    elif subprocess.run(["sh", "-c", mount], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here, and root may write everywhere")
    done = Toy(folder).run("--steps=3")
    assert done.returncode == 1
    assert "step: 1" not in done.stdout
    assert re.search(rf"CheckpointError: {folder} cannot be written: .*; mend that or give another folder", done.stderr)


def test_c1_06_a_full_tmpdir_does_not_matter(tmp_path: Path, small_disk: Path) -> None:
    """Everything is written beside its name: no other place can be full, and none is written to."""
    subprocess.run(["sh", "-c", fill(small_disk, 0)], check=True)
    toy = Toy(tmp_path / "checkpoints")
    for more in ((), ("--sync",)):
        shutil.rmtree(toy.folder, ignore_errors=True)
        done = toy.run("--every=10", "--steps=20", *more, env={"TMPDIR": str(small_disk), "TEMP": str(small_disk)})
        assert_trained(done, 20)
        assert done.stderr == ""
        assert toy.steps() == [10, 20]
        assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_c1_07_a_disk_that_is_too_small_is_known_before_the_first_step() -> None:
    """The new checkpoint is whole before an old one goes, so that one which is kept takes room for two."""
    for size, keep, says in [
        # A resume counts in those that are there already, of which one goes for each that comes.
        ("12m", 2, "then resumed"),
        ("8m", 3, r"warning: .*/checkpoints will not hold 4 checkpoints \(3 kept and one being written; 3\.0 MB each,"),
        ("8m", 1, None),
        ("8m", 2, "warning: .*will not hold 3 checkpoints"),
        ("2m", 1, r"CheckpointError: .*/checkpoints has no room for a single checkpoint \(3\.0 MB each, 2\.1 MB"),
    ]:
        with mounted(size) as point:
            toy = Toy(point / "checkpoints")
            toy.folder.mkdir()
            done = toy.run("--every=10", "--steps=10", f"--keep={keep}", "--ballast=3000000")
            if says == "then resumed":
                more = toy.run("--every=10", "--steps=20", f"--keep={keep}", "--ballast=3000000")
                more = toy.run("--every=10", "--steps=30", f"--keep={keep}", "--ballast=3000000")
                assert (done.stderr, more.stderr, toy.steps()) == ("", "", [20, 30])
                continue
            assert bool(re.search(says or "warning", done.stderr)) == (says is not None), done.stderr
            assert (done.returncode, "step: 1," in done.stdout) == ((1, False) if size == "2m" else (0, True))
