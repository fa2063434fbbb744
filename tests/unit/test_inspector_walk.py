"""What lies in a folder: who made what, what is left over, what leads nowhere, and what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoint_folders import own, safetensors, trainer
from overnight.errors import UsageError
from overnight.inspector import choosing, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each

torch = pytest.importorskip("torch")


def survey(path: Path) -> walk.Survey:
    return walk.survey(path, Budget(), each)


def by_name(path: Path) -> dict[str, Found]:
    return {Path(one.path).name: one for one in survey(path).found}


def test_each_maker_is_told_by_what_it_has_written(tmp_path: Path) -> None:
    own(tmp_path, 50)
    trainer(tmp_path, 100)
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": {}, "step": 7}, tmp_path / "ckpt.pt")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2", "global_step": 9, "optimizer_states": []},
               tmp_path / "x.ckpt")  # fmt: skip
    safetensors(tmp_path / "bare.safetensors")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "runs").mkdir()
    found = by_name(tmp_path)
    assert {name: (one.maker, one.step) for name, one in found.items()} == {
        "step-00000050": ("overnight", 50),
        "checkpoint-100": ("trainer", 100),
        "ckpt.pt": ("torch", 7),
        "x.ckpt": ("lightning", 9),
        "bare.safetensors": ("safetensors", None),
    }
    assert not [one for one in found.values() if one.problem]


def test_one_checkpoint_and_one_file_can_be_looked_at_themselves(tmp_path: Path) -> None:
    for path in (own(tmp_path, 50), trainer(tmp_path, 100), safetensors(tmp_path / "a" / "model.safetensors")):
        found = survey(path).found
        assert [one.path for one in found] == [str(path)]
        assert found[0].complete is True


def test_a_folder_of_trainer_with_its_final_weights_is_still_a_folder_of_checkpoints(tmp_path: Path) -> None:
    trainer(tmp_path, 100)
    trainer(tmp_path, 200)
    safetensors(tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 200}')
    (tmp_path / "training_args.bin").write_bytes(b"x")
    assert set(by_name(tmp_path)) == {"checkpoint-100", "checkpoint-200", "model.safetensors"}
    assert choosing.newest(survey(tmp_path).found).path.endswith("checkpoint-200")  # type: ignore[union-attr]


def test_leftovers_are_mentioned_and_are_no_checkpoints(tmp_path: Path) -> None:
    trainer(tmp_path, 100)
    for name in (".tmp-200-17-0123abcd", ".trash-0123abcd-step-00000010", "15.orbax-checkpoint-tmp-3"):
        safetensors(tmp_path / name / "model.safetensors")
    safetensors(tmp_path / ".tmpAb12Cd")
    (tmp_path / "last.pt.tmp").write_bytes(b"half")
    seen = survey(tmp_path)
    assert [Path(one.path).name for one in seen.found] == ["checkpoint-100"]
    assert "left over" in seen.notes[0]
    assert "and 2 more" in seen.notes[0]


def test_a_dangling_link_is_named_and_not_chosen(tmp_path: Path) -> None:
    safetensors(tmp_path / "step=4.safetensors")
    (tmp_path / "last.ckpt").symlink_to("epoch=9.ckpt")
    found = by_name(tmp_path)
    assert found["last.ckpt"].complete is False
    assert found["last.ckpt"].problem == "last.ckpt is a link to what is not there: epoch=9.ckpt"
    assert choosing.newest(list(found.values())).path.endswith("step=4.safetensors")  # type: ignore[union-attr]


def test_a_link_is_a_pointer_and_never_believed(tmp_path: Path) -> None:
    """Acceptance row C1-04: latest points to 100, and 200 is there."""
    trainer(tmp_path, 100)
    newest = trainer(tmp_path, 200)
    (tmp_path / "latest").symlink_to("checkpoint-100")
    seen = survey(tmp_path)
    assert [Path(one.path).name for one in seen.found] == ["checkpoint-100", "checkpoint-200"]
    assert choosing.newest(seen.found).path == str(newest)  # type: ignore[union-attr]
    assert seen.pointed == {str(tmp_path / "checkpoint-100")}
    assert "latest is a link to checkpoint-100" in seen.notes


def test_last_is_the_newest_whatever_is_called_so(tmp_path: Path) -> None:
    """Row C2-09: Lightning's last is a link to the best one, which is older."""
    for step in (100, 200, 300):
        value = {"state_dict": {}, "pytorch-lightning_version": "2", "global_step": step, "optimizer_states": []}
        torch.save(value, tmp_path / f"epoch=0-step={step}.ckpt")
    (tmp_path / "last.ckpt").symlink_to("epoch=0-step=100.ckpt")
    assert choosing.newest(survey(tmp_path).found).step == 300  # type: ignore[union-attr]


def test_what_cannot_be_read_is_told_and_hides_nothing(tmp_path: Path) -> None:
    good = trainer(tmp_path, 100)
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    (tmp_path / "zeros.pt").write_bytes(bytes(5000))
    (tmp_path / b"b\xffd.pt".decode("utf-8", "surrogateescape")).write_bytes(b"nothing")
    seen = survey(tmp_path)
    assert choosing.newest(seen.found).path == str(good)  # type: ignore[union-attr]
    bad = {Path(one.path).name for one in seen.found if one.problem}
    assert bad == {"empty.safetensors", "loop.pt", "zeros.pt", "b\udcffd.pt"}
    assert any("pipe.pt is no file" in note for note in seen.notes)


def test_broken_step_folders_of_no_known_maker_are_named(tmp_path: Path) -> None:
    (tmp_path / "step_300").mkdir()
    torch.save({"model": {"w": torch.ones(2)}, "step": 200}, tmp_path / "step_200.pt")
    safetensors(tmp_path / "best" / "model.safetensors")
    found = by_name(tmp_path)
    assert found["step_300"].complete is False
    assert found["best"].maker == "safetensors"
    assert found["best"].notes == ("no optimizer state: resume will not be exact",)


def test_a_killed_one_of_ours_is_named_as_ours(tmp_path: Path) -> None:
    path = own(tmp_path, 50)
    (path / "MANIFEST.json").unlink()
    (tmp_path / "step-00000060").mkdir()
    for one in survey(tmp_path).found:
        assert (one.maker, one.complete, one.problem) == ("overnight", False, "MANIFEST.json missing")


def test_a_stale_run_with_higher_steps_is_spoken_of(tmp_path: Path) -> None:
    from checkpoint_folders import at

    for step, when in ((1000, 0.0), (10, 50.0), (20, 60.0)):
        at(trainer(tmp_path, step), when)
    assert "checkpoint-20 was written after checkpoint-1000" in " ".join(survey(tmp_path).notes)


def test_where_there_is_nothing_a_likely_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    seen = survey(tmp_path)
    assert not seen.found
    assert seen.notes == [f"nothing here, but there is a folder {tmp_path / 'checkpoints'}"]
    with pytest.raises(UsageError, match="give a folder"):
        survey(tmp_path / "nowhere")


def test_files_of_states_in_a_folder_are_one_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step_100"
    folder.mkdir()
    torch.save({"w": torch.ones(2)}, folder / "model.pt")
    torch.save({"state": {0: {"step": torch.tensor(100.0)}}, "param_groups": []}, folder / "optim.pt")
    found = by_name(tmp_path)["step_100"]
    assert (found.maker, found.complete, found.intact, found.finite, found.notes) == ("torch", True, True, True, ())


def test_what_weights_only_loading_refuses_is_told_before_it_is_needed(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    torch.save({"model": {}, "optimizer": {}, "rng": numpy.random.default_rng(0).random(3)}, tmp_path / "a.pt")
    torch.save({"model": {}, "optimizer": {}, "path": Path("x")}, tmp_path / "b.pt")
    torch.save({"model": {"w": torch.ones(2)}, "optimizer": {}}, tmp_path / "c.pt")
    found = by_name(tmp_path)
    for name in ("a.pt", "b.pt", "c.pt"):
        try:
            torch.load(tmp_path / name, weights_only=True)
        except Exception:  # noqa: BLE001 - torch's own UnpicklingError
            assert "torch.load refuses it with weights_only=True" in found[name].notes[0]
        else:
            assert not found[name].notes
    assert "numpy objects" in found["a.pt"].notes[0]
    assert "objects of pathlib" in found["b.pt"].notes[0]


def test_ranks_in_folders_and_files_belong_together(tmp_path: Path) -> None:
    """Megatron and DeepSpeed: a shard that is missing in the row is missed, the first one too."""
    state = {"model": {"w": torch.ones(2)}, "optimizer": {}, "iteration": 2000}
    for name in ("iter_0002000/mp_rank_00/model_optim_rng.pt", "iter_0002000/mp_rank_01/model_optim_rng.pt"):
        (tmp_path / name).parent.mkdir(parents=True)
        torch.save(state, tmp_path / name)
    assert (by_name(tmp_path)["iter_0002000"].complete, by_name(tmp_path)["iter_0002000"].step) == (True, 2000)
    (tmp_path / "iter_0002000" / "mp_rank_00" / "model_optim_rng.pt").unlink()
    assert by_name(tmp_path)["iter_0002000"].problem == "mp_rank_00/model_optim_rng.pt missing"
    (tmp_path / "global_step5").mkdir()
    torch.save(state, tmp_path / "global_step5" / "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    assert by_name(tmp_path)["global_step5"].problem == "zero_pp_rank_0_mp_rank_00_optim_states.pt missing"


def test_the_best_of_lightning_is_known_however_long_its_path(tmp_path: Path) -> None:
    callbacks = {"ModelCheckpoint{'monitor': 'x.y'}": {"best_model_path": f"/{'d' * 240}/epoch=0-step=2.ckpt"}}
    value = {
        "state_dict": {}, "pytorch-lightning_version": "2", "global_step": 9, "optimizer_states": [],
        "callbacks": callbacks,
    }  # fmt: skip
    torch.save(value, tmp_path / "x.ckpt")
    assert choosing.best_of(by_name(tmp_path)["x.ckpt"]) == ["epoch=0-step=2.ckpt"]
