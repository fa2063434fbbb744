"""Real makers of checkpoints, killed in the middle of a save: what they take for the latest, and what we do.

Each test starts the maker in a process of its own, lets it stand still when a file is half written, kills it with
SIGKILL, and then asks both: the maker (which fails to load what it picks) and ``overnight checkpoints``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overnight.cli import main

SCRIPT = Path(__file__).parent / "makers_script.py"
pytestmark = pytest.mark.timeout(400)


def need(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -r requirements/test.txt")


@dataclass
class Maker:
    """One maker and the folder that it saves to."""

    name: str
    folder: Path
    where: str
    env: dict[str, str]

    def _argv(self, what: str) -> list[str]:
        return [sys.executable, str(SCRIPT), self.name, str(self.folder), what, self.where]

    def kill_in_mid_save(self) -> None:
        """Train until a save is half on the disk, and kill the process there."""
        log = self.folder.parent / "maker.log"
        with log.open("wb") as err:
            process = subprocess.Popen(self._argv("train"), stdout=subprocess.PIPE, stderr=err, env=self.env)
        assert process.stdout is not None
        try:
            said = any(line.strip() == b"HALF" for line in process.stdout)
        finally:
            process.kill()
            process.stdout.close()
            process.wait()
        assert said, log.read_text()[-3000:]

    def latest(self) -> dict[str, Any]:
        """Return what the maker itself takes for the latest, and the error of loading it."""
        done = subprocess.run(self._argv("latest"), capture_output=True, env=self.env, check=False)
        for line in done.stdout.decode().splitlines():
            if line.startswith("LATEST "):
                found: dict[str, Any] = json.loads(line.removeprefix("LATEST "))
                return found
        raise AssertionError(done.stderr.decode()[-3000:])


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on another file system than the test's own."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system at /dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def maker(tmp_path: Path) -> Any:
    def made(name: str, where: str, **env: str) -> Maker:
        folder = tmp_path / "out"
        folder.mkdir()
        plain = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "CUDA_VISIBLE_DEVICES": ""}
        return Maker(name=name, folder=folder, where=where, env={**os.environ, **plain, **env})

    return made


def inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """Return the name of the newest, and what is said of each by its name; damage makes ``--verify`` exit with 1."""
    assert main(["checkpoints", str(folder), "--verify", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    newest = found["newest"]
    return newest and Path(newest).name, {Path(one["path"]).name: one for one in found["checkpoints"]}


# Each library takes half a minute to be imported three times: accelerate, with which trainer saves, stands for them in
# each run of the tests, and what is said of each one's folders is tested in tests/unit/test_inspector_*.py.
@pytest.mark.long
@pytest.mark.parametrize("where", ["optimizer", "weights"])
def test_trainer_killed_in_mid_save(maker: Any, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows C1-01 and acceptance 6: transformers picks the broken folder for its name, and cannot resume."""
    need("transformers", "accelerate")
    one: Maker = maker("trainer", where)
    one.kill_in_mid_save()
    theirs = one.latest()
    newest, found = inspected(one.folder, capsys)
    assert (Path(theirs["latest"]).name, newest) == ("checkpoint-4", "checkpoint-2")
    assert theirs["error"] is not None
    broken, good = found["checkpoint-4"], found["checkpoint-2"]
    assert (broken["complete"], broken["problem"]) == (False, "trainer_state.json missing")
    assert (good["maker"], good["step"], good["complete"], good["finite"], good["problem"]) == (
        "trainer", 2, True, True, None,
    )  # fmt: skip
    assert main(["checkpoints", str(one.folder)]) == 0
    shown = capsys.readouterr().out
    assert "incomplete: trainer_state.json missing" in shown
    assert "\nresume from checkpoint-2, step 2\n" in shown
    if where == "weights":
        assert any(".tmpAb12Cd is a leftover of a killed save" in note for note in broken["notes"])


@pytest.mark.parametrize(
    "where",
    [
        "optimizer.bin",
        pytest.param("random_states_0.pkl", marks=pytest.mark.long),
        pytest.param("before custom_checkpoint_0.pkl", marks=pytest.mark.long),
    ],
)
def test_accelerate_killed_in_mid_save(maker: Any, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Accelerate's load_state takes the highest number, and fails or, worse, loads half of a state."""
    need("accelerate")
    one: Maker = maker("accelerate", where)
    one.kill_in_mid_save()
    theirs = one.latest()
    newest, found = inspected(one.folder / "checkpoints", capsys)
    assert (Path(theirs["latest"]).name, newest) == ("checkpoint_1", "checkpoint_0")
    assert (found["checkpoint_0"]["maker"], found["checkpoint_0"]["step"]) == ("accelerate", 3)
    broken = found["checkpoint_1"]
    assert broken["complete"] is False
    told = " ".join([broken["problem"], *broken["notes"]])
    assert where.removeprefix("before ") in told
    if where != "random_states_0.pkl":  # its error is logged, and training goes on with other random numbers
        assert theirs["error"] is not None


@pytest.mark.long  # as trainer's
def test_lightning_killed_in_mid_save(maker: Any, other_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With TMPDIR on another disk Lightning's rename is a copy: last.ckpt is half a file, and "last" is that one."""
    need("lightning")
    one: Maker = maker("lightning", "last.ckpt", TMPDIR=str(other_disk))
    one.kill_in_mid_save()
    theirs = one.latest()
    newest, found = inspected(one.folder, capsys)
    assert (Path(theirs["latest"]).name, newest) == ("last.ckpt", "epoch=0-step=4.ckpt")
    assert theirs["error"] is not None
    broken, good = found["last.ckpt"], found["epoch=0-step=4.ckpt"]
    assert (broken["maker"], broken["complete"]) == ("lightning", False)
    assert "last.ckpt is cut off" in broken["problem"]
    assert (good["maker"], good["step"], good["intact"], good["finite"]) == ("lightning", 4, True, True)


@pytest.mark.long
def test_distributed_checkpoint_killed_in_mid_save(maker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    need("torch")
    one: Maker = maker("dcp", "metadata")
    one.kill_in_mid_save()
    theirs = one.latest()
    newest, found = inspected(one.folder, capsys)
    assert (Path(theirs["latest"]).name, newest) == ("step-4", "step-2")
    assert theirs["error"] is not None
    assert (found["step-4"]["maker"], found["step-4"]["complete"]) == ("dcp", False)
    assert ".metadata" in found["step-4"]["problem"]
    assert (found["step-2"]["complete"], found["step-2"]["problem"]) == (True, None)
