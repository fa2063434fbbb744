"""Folders of Accelerate's save_state and files of Lightning, as their makers lay them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import safetensors
from overnight.inspector import choosing, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each

torch = pytest.importorskip("torch")


def state(folder: Path, name: str, step: int | None, *, lacks: tuple[str, ...] = (), ranks: int = 1) -> Path:
    path = folder / name
    safetensors(path / "model.safetensors")
    moments = {} if step is None else {0: {"step": torch.tensor(float(step)), "exp_avg": torch.ones(2)}}
    torch.save({"state": moments, "param_groups": [{"lr": 0.1}]}, path / "optimizer.bin")
    torch.save({"last_epoch": 0}, path / "scheduler.bin")
    for rank in range(ranks):
        torch.save({"step": 0, "random_state": (3, (1,), None)}, path / f"random_states_{rank}.pkl")
    torch.save({"best": 1.0}, path / "custom_checkpoint_0.pkl")
    for one in lacks:
        (path / one).unlink()
    return path


def survey(folder: Path) -> dict[str, Found]:
    return {Path(one.path).name: one for one in walk.survey(folder, Budget(), each).found}


def test_a_whole_one_has_the_step_of_its_optimizer(tmp_path: Path) -> None:
    found = survey(state(tmp_path, "epoch_3", 120))["epoch_3"]
    assert (found.maker, found.complete, found.step, found.problem) == ("accelerate", True, 120, None)


@pytest.mark.parametrize("name", ["model.safetensors", "random_states_0.pkl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    found = survey(state(tmp_path, "checkpoint_1", 3, lacks=(name,)))["checkpoint_1"]
    assert (found.complete, found.problem) == (False, f"{name} missing")


def test_what_those_before_it_have_is_missed(tmp_path: Path) -> None:
    state(tmp_path, "checkpoint_0", 3)
    state(tmp_path, "checkpoint_1", 6)
    state(tmp_path, "checkpoint_2", 9, lacks=("custom_checkpoint_0.pkl",))
    found = survey(tmp_path)
    assert found["checkpoint_2"].problem == "custom_checkpoint_0.pkl missing, which those saved before it have"
    assert choosing.newest(list(found.values())).step == 6  # type: ignore[union-attr]


def test_an_object_that_was_registered_later_breaks_nothing(tmp_path: Path) -> None:
    state(tmp_path, "checkpoint_0", 3, lacks=("custom_checkpoint_0.pkl",))
    state(tmp_path, "checkpoint_1", 6)
    assert {one.complete for one in survey(tmp_path).values()} == {True}


def test_fewer_ranks_than_before_are_no_damage_but_a_gap_is(tmp_path: Path) -> None:
    state(tmp_path, "checkpoint_0", 3, ranks=4)
    state(tmp_path, "checkpoint_1", 6, ranks=2)
    state(tmp_path, "checkpoint_2", 9, ranks=3, lacks=("random_states_1.pkl",))
    found = survey(tmp_path)
    assert found["checkpoint_1"].complete is True
    assert found["checkpoint_2"].problem == "random_states_1.pkl missing"


def test_without_a_step_inside_the_folders_number_has_to_do(tmp_path: Path) -> None:
    for number in (9, 10):
        state(tmp_path, f"checkpoint_{number}", None)
    found = list(survey(tmp_path).values())
    assert [one.step for one in found] == [None, None]
    assert choosing.newest(found).path.endswith("checkpoint_10")  # type: ignore[union-attr]


def test_folders_of_accelerate_under_the_names_of_trainer(tmp_path: Path) -> None:
    """The examples of diffusers save so; what a kill has left of the last one is judged as theirs."""
    state(tmp_path, "checkpoint-500", 500)
    safetensors(tmp_path / "checkpoint-1000" / "model.safetensors")
    found = survey(tmp_path)
    assert found["checkpoint-500"].maker == found["checkpoint-1000"].maker == "accelerate"
    assert found["checkpoint-1000"].problem == "random_states_0.pkl missing"


def lightning(path: Path, step: int, **more: Any) -> Path:
    value = {
        "state_dict": {"w": torch.ones(3)}, "pytorch-lightning_version": "2.6.6", "global_step": step, "epoch": 0,
        "optimizer_states": [{"state": {0: {"step": torch.tensor(1.0)}}}], **more,
    }  # fmt: skip
    torch.save({key: one for key, one in value.items() if one is not None}, path)
    return path


def test_a_file_of_lightning(tmp_path: Path) -> None:
    lightning(tmp_path / "a.ckpt", 40)
    lightning(tmp_path / "b.ckpt", 50, optimizer_states=None)
    lightning(tmp_path / "c.ckpt", 60, state_dict=None)
    lightning(tmp_path / "d.ckpt", 70, state_dict={"w": torch.tensor([1.0, float("inf")])})
    found = survey(tmp_path)
    assert {one.maker for one in found.values()} == {"lightning"}
    assert (found["a.ckpt"].step, found["a.ckpt"].intact, found["a.ckpt"].notes) == (40, True, ())
    assert found["b.ckpt"].notes == ("no optimizer state: resume will not be exact",)
    assert (found["c.ckpt"].complete, found["c.ckpt"].problem) == (False, "c.ckpt holds no state_dict")
    assert found["d.ckpt"].finite is False
    assert choosing.newest(list(found.values())).step == 50  # type: ignore[union-attr]


def test_half_a_file_beside_whole_ones_is_lightnings_too(tmp_path: Path) -> None:
    whole = lightning(tmp_path / "a.ckpt", 40).read_bytes()
    (tmp_path / "last.ckpt").write_bytes(whole[: len(whole) // 2])
    found = survey(tmp_path)["last.ckpt"]
    assert (found.maker, found.complete) == ("lightning", False)
    assert "last.ckpt is cut off" in str(found.problem)
