"""What a prune may take, and what it leaves alone or refuses: from findings, and from folders as people have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import own, trainer
from overnight.inspector import choosing, pruning, walk
from overnight.inspector.findings import Budget, Found
from overnight.inspector.joining import NO_OPTIMIZER
from overnight.sweep import each


def found(name: str, step: int | None = None, **more: Any) -> Found:
    return Found(path=f"/out/{name}", **{"maker": "trainer", "complete": True, "step": step, **more})


def file(name: str, step: int | None = None, **more: Any) -> Found:
    return found(name, step, **{"maker": "torch", **more})


def ours(step: int, *, run: str = "r1", number: int = 1) -> Found:
    about = {"maker": "overnight", "order": (0, step), "values": {"run": run, "number": number}}
    return found(f"step-{step:08d}.{run}", step, **about)


def plan(keep: int, *several: Found, **more: Any) -> pruning.Plan:
    return pruning.plan(choosing.with_owner(several), keep, stranger=lambda *_: None, **more)


def gone(made: pruning.Plan) -> list[str]:
    return [choosing.name_of(one) for one in made.going]


def why(made: pruning.Plan) -> dict[str, str]:
    return {path.removeprefix("/out/"): one for path, one in made.why.items()}


def test_good_ones_only_are_counted() -> None:
    several = [found(f"checkpoint-{step}", step) for step in (100, 200, 300)]
    broken = found("checkpoint-400", 400, complete=False, problem="trainer_state.json missing")
    mixed = found("checkpoint-350", 350, problem="files of two saves may be mixed")
    made = plan(2, broken, mixed, *several)
    assert gone(made) == ["checkpoint-100"]
    assert why(made) == {"checkpoint-400": broken.problem, "checkpoint-350": mixed.problem}


def test_another_run_and_another_maker_are_left_alone() -> None:
    made = plan(1, ours(10), ours(20), ours(900, run="old", number=0), found("checkpoint-1000", 1000))
    assert gone(made) == ["step-00000010.r1"]
    assert why(made) == {
        "step-00000900.old": "of another run", "checkpoint-1000": "made by trainer, not of this run",
    }  # fmt: skip


def test_what_is_pointed_to_or_called_the_best_stays() -> None:
    several = [found(f"checkpoint-{step}", step) for step in (100, 200, 300)]
    made = plan(1, *several, pointed=frozenset({"/out/checkpoint-100"}))
    assert (gone(made), why(made)) == (["checkpoint-200"], {"checkpoint-100": "a link leads to it"})
    best = {"best": ("epoch=0-step=2.ckpt", "last.ckpt")}
    files = [file(f"epoch=0-step={step}.ckpt", step, maker="lightning", values=best) for step in (2, 4, 6)]
    assert gone(plan(1, *files)) == ["epoch=0-step=4.ckpt"]


@pytest.mark.parametrize("keep", [0, -1])
def test_all_are_never_removed(keep: int) -> None:
    assert not plan(keep, found("checkpoint-1", 1), found("checkpoint-2", 2)).going


@pytest.mark.parametrize("name", ["gpt2_best.pt", "last_3.pt", "ema_4.pt", "final-5.pt", "resnet50-acc0.93.pt", "x.pt"])
def test_what_is_none_of_the_series_stays(name: str) -> None:
    made = plan(1, *(file(f"ckpt_{step}.pt", step) for step in (100, 200, 300)), file(name, 7))
    assert gone(made) == ["ckpt_100.pt", "ckpt_200.pt"]
    assert list(why(made)) == [name]


def test_what_was_saved_for_its_own_sake_stays() -> None:
    several = [file(f"w_{step}.pt", step, notes=(NO_OPTIMIZER,)) for step in (1, 2, 3)]
    assert not gone(plan(1, *several))


@pytest.mark.parametrize(
    ("several", "said"),
    [
        ([file(f"{kind}_{step}.pth", step) for step in (1, 2) for kind in "GD"], "parts of one checkpoint"),
        ([file(f"c_{step}_rank{rank}.pt", step) for step in (1, 2) for rank in range(3)], "parts of one checkpoint"),
        ([file("c_1.pt", 1), file("c_2.pt", 2), file("ema_1.pt", 1)], "parts of one checkpoint"),
        ([file(f"step_{step}.pt") for step in (1, 2)], "no step lies in step_"),
        ([file("c_1.pt", 1), file("c_2.pt", 2), file("c_3.pt")], "no step lies in c_3.pt"),
        ([file("c_1.pt", 20), file("c_2.pt", 10)], "disagree"),
        ([file("e1_9.pt", 90, values={"epoch": 1}), file("e2_1.pt", 10, values={"epoch": 2})], "epochs and steps"),
        ([file(f"epoch{at}_step{step}.pt", step) for at, step in ((1, 90), (2, 10))], "epochs and steps"),
        ([found(f"x-{step}", step, maker="unknown") for step in (1, 2)], "no known maker"),
    ],
)
def test_where_it_is_in_doubt_nothing_goes(several: list[Found], said: str) -> None:
    made = plan(1, *several)
    assert not made.going
    assert said in str(made.refused)
    assert plan(len(several), *several).refused is None  # there is nothing to remove


def test_files_beside_with_the_same_number_make_a_set() -> None:
    several = [file(f"model_{step}.pt", step) for step in (1, 2, 3)]
    assert gone(plan(1, *several, names=("model_1.pt", "last_1.pt", "log_1.txt")))
    assert "may be parts" in str(plan(1, *several, names=("optimizer_2.bin",)).refused)


def made(folder: Path, keep: int = 1) -> pruning.Plan:
    seen = walk.survey(folder, Budget(), each)
    links = seen.pointed | pruning.pointed_to(folder)
    return pruning.plan(choosing.with_owner(seen.found), keep, pointed=links, names=seen.names)


def test_a_folder_with_anything_else_in_it_stays(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400):
        trainer(tmp_path, step)
    (tmp_path / "checkpoint-100" / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-200" / "runs").mkdir()
    (tmp_path / "checkpoint-200" / "runs" / "train.py").write_text("mine")
    plan = made(tmp_path)
    assert gone(plan) == ["checkpoint-300"]
    assert "holds notes.txt" in plan.why[str(tmp_path / "checkpoint-100")]
    assert "holds runs/train.py" in plan.why[str(tmp_path / "checkpoint-200")]
    ours = tmp_path / "ours"
    for step in (1, 2, 3):
        own(ours, step)
    (ours / "step-00000001" / "sample.png").write_bytes(b"x")
    assert gone(made(ours)) == ["step-00000002"]


def test_whole_experiments_are_no_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name in ("exp1", "exp2", "exp3"):
        (tmp_path / name).mkdir()
        for step in (100, 200):
            torch.save({"model": {}, "optimizer": {}, "step": step}, tmp_path / name / f"ckpt_{step}.pt")
        (tmp_path / name / "train.py").write_text("x")
    assert not walk.survey(tmp_path, Budget(), each).found
    for name in ("exp1", "exp2", "exp3"):
        (tmp_path / name / "ckpt_200.pt").unlink()
    assert not made(tmp_path).going


def test_links_from_anywhere_near_hold_what_they_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for step in (1, 2, 3, 4, 5):
        own(folder, step)
    (tmp_path / "latest").symlink_to("out/step-00000001")
    (folder / "best").mkdir()
    (folder / "best" / "model").symlink_to(folder / "step-00000002" / "model.safetensors")
    (folder / "self").symlink_to(".")
    (folder / "up").symlink_to("..")
    assert gone(made(folder)) == ["step-00000003", "step-00000004"]
