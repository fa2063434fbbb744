"""Folders of torch.distributed.checkpoint: every byte of a shard is accounted for, lists of another save are told."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dcp_of_torch = pytest.importorskip("torch.distributed.checkpoint")

from specimens import flips, lengths, limited, nested, trained, zeroed  # noqa: E402 - it imports torch

from overnight.inspector import dcp, files  # noqa: E402
from overnight.inspector.findings import Budget, Found  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says that a save of one process is one
MODEL, OPTIMIZER = trained()


def save(folder: Path, **more: Any) -> Path:
    state = {"model": MODEL.state_dict(), "optim": OPTIMIZER.state_dict(), "epoch": 2, "step": 12, **more}
    dcp_of_torch.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("dcp") / "step-12")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "step-12"))


def look(folder: Path, limit: int | None = None) -> Found:
    return dcp.look(folder, Budget(limit))


def test_what_is_good_is_called_good(folder: Path) -> None:
    found = look(folder)
    assert (found.problem, found.complete, found.intact, found.finite, found.notes) == (None, True, True, True, ())
    assert (found.step, found.maker, found.form) == (12, "dcp", "dcp")
    assert found.tensors == len(MODEL.state_dict()) + 3 * 6
    assert found.values["epoch"] == 2
    assert found.values["optim.param_groups.0.lr"] == 0.001
    assert "model.0.weight" in found.keys
    assert found.size_bytes == sum(one.stat().st_size for one in folder.iterdir())
    assert files.look(folder, Budget()) == found


def test_other_contents(tmp_path: Path) -> None:
    found = look(save(tmp_path / "a", step=torch.tensor(77), none=torch.empty(0), c=torch.ones(3, dtype=torch.cfloat),
                      b=torch.ones(4).bfloat16(), rng=torch.get_rng_state(), words=["a", {"b": 1}],
                      loss=torch.tensor(float("nan"))))  # fmt: skip
    assert (found.problem, found.complete, found.intact, found.finite, found.step) == (None, True, True, True, 77)
    dcp_of_torch.save({"app": {"train_state": {"step": 5, "loss": 0.5}}, "w": torch.ones(3)},
                      checkpoint_id=str(tmp_path / "b"), no_dist=True)  # fmt: skip
    assert look(tmp_path / "b").step == 5
    dcp_of_torch.save(OPTIMIZER.state_dict(), checkpoint_id=str(tmp_path / "c"), no_dist=True)
    assert look(tmp_path / "c").step == 5


def test_several_files(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import FileSystemWriter

    writer = FileSystemWriter(tmp_path / "a", single_file_per_rank=False, thread_count=2)
    dcp_of_torch.save({"model": MODEL.state_dict(), "step": 3}, storage_writer=writer, no_dist=True)
    shards = sorted((tmp_path / "a").glob("*.distcp"))
    assert len(shards) > 2
    assert (look(tmp_path / "a").problem, look(tmp_path / "a").intact) == (None, True)
    shards[1].unlink()
    found = look(tmp_path / "a")
    assert found.complete is False
    assert found.problem == f"a/{shards[1].name} is missing"


def test_without_a_budget(folder: Path) -> None:
    found = look(folder, 0)
    assert (found.complete, found.intact, found.finite, found.step) == (True, None, None, 12)
    assert "was not looked at" in found.notes[0]


def test_every_flipped_bit_of_a_shard_is_found(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    good = path.read_bytes()
    for bit, data in flips(good, 100, 1):
        path.write_bytes(data)
        assert look(folder).intact is False, bit


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_every_cut_and_every_end_of_zeros_is_found(name: str, folder: Path) -> None:
    path = folder / name
    good = path.read_bytes()
    for length in lengths(good, 100, 2):
        path.write_bytes(good[:length])
        found = look(folder, 0)
        assert (found.complete, found.intact) == (False, False), (length, found)
        assert name in str(found.problem)
    path.write_bytes(zeroed(good))
    assert look(folder).intact is False


def test_flips_in_the_list_end_in_a_sentence_or_change_no_tensor(folder: Path) -> None:
    """It has no checksum; what it says of tensors is compared with the shards."""
    path = folder / ".metadata"
    good = path.read_bytes()
    whole = look(folder)
    for bit, data in flips(good, 200, 3):
        path.write_bytes(data)
        found = look(folder)
        if found.problem is None:
            assert (found.tensors, len(found.keys)) == (whole.tensors, len(whole.keys)), bit


def test_a_save_that_was_broken_off(folder: Path) -> None:
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    found = look(folder)
    assert (found.complete, found.problem) == (False, "step-12/.metadata is missing: the save was broken off")


def test_a_list_of_one_save_and_shards_of_another(folder: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "other", words="more words than before")
    shutil.copy(other / "__0_0.distcp", folder)
    found = look(folder, 0)
    assert found.complete is False
    assert "of another save" in str(found.problem)


def test_shards_of_the_same_size_and_other_shapes(folder: Path, tmp_path: Path) -> None:
    for name, shape in (("a", (6, 10)), ("b", (10, 6))):
        dcp_of_torch.save({"w": torch.ones(shape)}, checkpoint_id=str(tmp_path / name), no_dist=True)
    assert (tmp_path / "a/__0_0.distcp").stat().st_size == (tmp_path / "b/__0_0.distcp").stat().st_size
    shutil.copy(tmp_path / "a/__0_0.distcp", tmp_path / "b")
    assert "is not of the shape" in str(look(tmp_path / "b", 0).problem)


def test_a_later_save_into_the_same_folder_was_broken_off(folder: Path) -> None:
    shutil.copy(folder / ".metadata", folder / ".metadata.tmp")
    found = look(folder)
    assert found.complete is False
    assert ".metadata.tmp is there" in str(found.problem)


def test_files_that_the_list_does_not_name(folder: Path) -> None:
    shutil.copy(folder / "__0_0.distcp", folder / "__3_0.distcp")
    found = look(folder)
    assert (found.problem, found.complete) == (None, True)
    assert found.notes == ("step-12/.metadata does not name __3_0.distcp: of another save",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["model", "optim"])
def test_a_number_that_is_not_finite(bad: float, where: str, tmp_path: Path) -> None:
    found = look(save(tmp_path / "a", **{where: {"w": torch.tensor([1.0, bad, 2.0])}}))
    assert (found.complete, found.intact, found.finite, found.step) == (True, True, False, 12)
    assert found.problem == f"{where}.w in a/__0_0.distcp: it holds NaN or infinity"


class Outside:
    """A list that would run something, or leads out of the folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, (f"touch {self.proof}",)


def test_hostile_lists(folder: Path, tmp_path: Path) -> None:
    path = folder / ".metadata"
    good = path.read_bytes()
    proof = tmp_path / "proof"
    for data in (pickle.dumps(Outside(proof)), nested(200_000), b"", bytes(500), pickle.dumps({"a": 1}), good + b"x"):
        path.write_bytes(data)
        found = look(folder)
        assert (found.complete, found.intact) == (False, False)
        assert ".metadata is damaged" in str(found.problem)
    assert not proof.exists()
    path.write_bytes(good.replace(b"__0_0.distcp", b"../_0.distcp"))
    assert "outside of the folder" in str(look(folder).problem)
    path.write_bytes(good.replace(b"__0_0.distcp", b"/_0_0.distcp"))
    assert "outside of the folder" in str(look(folder).problem)


def test_what_is_no_file_at_all(folder: Path, tmp_path: Path) -> None:
    shard = folder / "__0_0.distcp"
    shard.unlink()
    shard.symlink_to("nowhere")
    assert look(folder).complete is False
    shard.unlink()
    os.mkfifo(shard)
    assert look(folder).complete is False
    (folder / ".metadata").unlink()
    os.mkfifo(folder / ".metadata")
    assert ".metadata is no file" in str(look(folder).problem)
    assert look(tmp_path / "never").complete is False


def test_memory_is_bounded(tmp_path: Path) -> None:
    dcp_of_torch.save({"w": torch.ones(24 << 20), "step": 5}, checkpoint_id=str(tmp_path / "a"), no_dist=True)
    done = subprocess.run([*limited("dcp", 32), str(tmp_path / "a")], capture_output=True, text=True, check=False)
    assert done.stdout == "True True True None\n", done.stderr
