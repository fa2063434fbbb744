"""Folders of Hugging Face's Trainer, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoint_folders import safetensors, trainer
from overnight.inspector import choosing, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each

torch = pytest.importorskip("torch")

REFUSED = "rng_state.pth holds numpy objects: torch.load refuses it with weights_only=True, its default since torch 2.6"


def look(path: Path, budget: int | None = None) -> Found:
    found = walk.look(path, Budget(budget))
    assert found is not None
    assert found.maker == "trainer"
    return found


def test_a_whole_one(tmp_path: Path) -> None:
    found = look(trainer(tmp_path, 200, best_model_checkpoint="out/checkpoint-100"))
    assert (found.complete, found.finite, found.step, found.problem, found.notes) == (True, True, 200, None, ())
    assert found.intact is None  # safetensors carries no sums
    assert found.size_bytes == sum(one.stat().st_size for one in Path(found.path).iterdir())
    assert found.values["best_model_checkpoint"] == "out/checkpoint-100"


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors", "scheduler.pt"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    found = look(trainer(tmp_path, 200, lacks=(name,)))
    assert (found.complete, found.problem) == (False, f"{name} missing")


def test_a_truncated_state_is_incomplete_and_nonsense_is_damage(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200)
    whole = (path / "trainer_state.json").read_text()
    (path / "trainer_state.json").write_text(whole[:20])
    assert look(path).problem == "trainer_state.json is cut off"
    assert look(path).complete is False
    (path / "trainer_state.json").write_text("[]")
    assert (look(path).intact, look(path).problem) == (False, "trainer_state.json is no JSON object")
    (path / "trainer_state.json").write_text('{"global_step": "many"}')
    assert look(path).problem == "trainer_state.json names no global_step"
    (path / "trainer_state.json").write_text("")
    assert look(path).problem == "trainer_state.json is empty"


def test_the_step_is_the_one_inside(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 150}))
    assert (look(path).step, look(path).notes) == (150, ("is named 200, but holds step 150",))


def test_weights_only_is_told_at_once(tmp_path: Path) -> None:
    """Row C4-03."""
    found = look(trainer(tmp_path, 200, lacks=("optimizer.pt", "scheduler.pt", "rng_state.pth")))
    assert found.complete is True
    assert found.notes == ("no optimizer state: resume will not be exact",)


def test_numpy_in_the_random_states_is_told_before_a_restart_needs_them(tmp_path: Path) -> None:
    """Row C4-01: torch itself agrees with what the note says."""
    numpy = pytest.importorskip("numpy")
    path = trainer(tmp_path, 200)
    torch.save({"numpy": numpy.random.RandomState(0).get_state()}, path / "rng_state.pth")
    assert look(path).notes == (REFUSED,)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        torch.load(path / "rng_state.pth", weights_only=True)


def test_each_rank_has_its_random_states(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200, lacks=("rng_state.pth",))
    for rank in (0, 1, 3):
        torch.save({}, path / f"rng_state_{rank}.pth")
    assert (look(path).complete, look(path).problem) == (False, "rng_state_2.pth missing")
    torch.save({}, path / "rng_state_2.pth")
    assert look(path).complete is True


def test_sharded_weights_belong_together(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200, lacks=("model.safetensors",))
    names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    for name, key in zip(names, "ab", strict=True):
        safetensors(path / name, {key: [1.0, 2.0]})
    assert look(path).problem == "the index of the sharded weights missing"
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": names[0], "b": names[1]}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (look(path).complete, look(path).problem) == (True, None)
    (path / names[1]).unlink()
    assert look(path).complete is False
    assert names[1] in str(look(path).problem)


def test_an_adapter_is_weights_too(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200, lacks=("model.safetensors",))
    safetensors(path / "adapter_model.safetensors", {"lora_A": [1.0]})
    assert (look(path).complete, look(path).problem) == (True, None)


def test_nan_is_found_where_the_budget_reaches(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200)
    safetensors(path / "model.safetensors", {"wte.weight": [1.0, float("nan")]})
    assert look(path).finite is False
    assert "wte.weight" in str(look(path).problem)
    assert (look(path, 0).finite, look(path, 0).problem) == (None, None)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_flipped_bit_in_a_file_of_torch_is_found(tmp_path: Path, name: str) -> None:
    path = trainer(tmp_path, 200)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 3] ^= 4
    (path / name).write_bytes(data)
    found = look(path)
    assert found.intact is False or found.complete is False
    assert name in str(found.problem)


def test_a_leftover_of_the_killed_save_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-300"
    path.mkdir()
    (path / ".tmpAb12Cd").write_bytes(bytes(100))
    found = look(path)
    assert found.problem == "trainer_state.json missing"
    assert ".tmpAb12Cd is a leftover of a killed save" in found.notes


def test_files_of_two_saves_are_told(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200)
    other = trainer(tmp_path / "other", 300)
    (path / "optimizer.pt").write_bytes((other / "optimizer.pt").read_bytes())
    found = look(path)
    assert found.intact is False
    assert found.problem == "optimizer.pt is of step 300, trainer_state.json of step 200: files of two saves are mixed"
    (other / "optimizer.pt").write_bytes((trainer(tmp_path, 100) / "optimizer.pt").read_bytes())
    assert look(other).intact is None  # steps that a scaler has skipped are not counted by the optimizer


def test_shards_of_deepspeed_are_looked_at(tmp_path: Path) -> None:
    path = trainer(tmp_path, 200, lacks=("model.safetensors", "optimizer.pt", "scheduler.pt"))
    shards = path / "global_step200"
    shards.mkdir()
    torch.save({"module": {"w": torch.ones(2)}}, shards / "mp_rank_00_model_states.pt")
    assert (look(path).complete, look(path).problem, look(path).notes) == (True, None, ())
    data = (shards / "mp_rank_00_model_states.pt").read_bytes()
    (shards / "mp_rank_00_model_states.pt").write_bytes(data[: len(data) // 2])
    assert look(path).complete is False


def beside(path: Path) -> dict[str, Found]:
    return {Path(one.path).name: one for one in walk.survey(path, Budget(0), each).found}


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_an_older_state_in_a_newer_folder_is_told_and_ranks_behind(tmp_path: Path, name: str) -> None:
    for step in (100, 200, 300):
        trainer(tmp_path, step)
    (tmp_path / "checkpoint-300" / name).write_bytes((tmp_path / "checkpoint-100" / name).read_bytes())
    found = beside(tmp_path)
    assert str(found["checkpoint-300"].problem).startswith(f"{name} is of step 100, trainer_state.json of step 300")
    assert choosing.newest(list(found.values())).step == 200  # type: ignore[union-attr]
    torch.save({"_scale": 1.0}, tmp_path / "checkpoint-300" / "scaler.pt")  # skips a few steps, but not so many
    assert beside(tmp_path)["checkpoint-300"].problem


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth"])
def test_what_all_neighbours_have_is_missed(tmp_path: Path, name: str) -> None:
    for step in (100, 200, 300):
        trainer(tmp_path, step)
    (tmp_path / "checkpoint-300" / name).unlink()
    if name == "optimizer.pt":
        (tmp_path / "checkpoint-300" / "scheduler.pt").unlink()
    found = beside(tmp_path)
    assert str(found["checkpoint-300"].problem).endswith("missing, which those beside it have")
    assert choosing.newest(list(found.values())).step == 200  # type: ignore[union-attr]
    assert found["checkpoint-100"].problem is None


def test_a_folder_with_the_name_and_other_files_is_not_trainers(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7").mkdir()
    torch.save({"model": {}, "optimizer": {}, "step": 7}, tmp_path / "checkpoint-7" / "state.pt")
    found = beside(tmp_path)["checkpoint-7"]
    assert (found.maker, found.step, found.complete, found.problem) == ("torch", 7, True, None)
