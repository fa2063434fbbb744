"""Checkpoints compared bit for bit: every maker's form, every tensor and number by its name, and what is no result."""

from __future__ import annotations

import copy
import json
import pickle
import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from overnight.checkpoint import Checkpointer  # noqa: E402 - after what the test needs
from overnight.errors import FolderError  # noqa: E402
from overnight.inspector import contents, digesting, flattening  # noqa: E402
from overnight.inspector.findings import Damage  # noqa: E402
from overnight.resumeproof import states  # noqa: E402
from overnight.resumeproof.words import StateComparison  # noqa: E402

Save = Callable[[dict[str, Any], Path], Path]


def state(seed: int = 0, steps: int = 3) -> dict[str, Any]:
    """Return what a script would save after some steps: the same for the same seed, bit for bit."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    ema = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(steps):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        ema.update_parameters(model)
    rng = {"torch": torch.get_rng_state(), "python": random.Random(seed).getstate()}
    rng["numpy"] = np.random.RandomState(seed).get_state()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": {"scale": 65536.0, "_growth_tracker": 3},
        "ema": ema.state_dict(),
        "rng": rng,
        "loader": {"epoch": 1, "position": 12, "order": list(range(5000))},
        "step": steps,
        "saved_at": random.random(),
    }


def as_torch(made: dict[str, Any], folder: Path) -> Path:
    path = folder / "step-3.pt"
    torch.save(made, path)
    return path


def as_lightning(made: dict[str, Any], folder: Path) -> Path:
    path = folder / "epoch=1-step=3.ckpt"
    named = {
        "model": "state_dict",
        "optimizer": "optimizer_states",
        "scheduler": "lr_schedulers",
        "step": "global_step",
    }
    laid = {named.get(key, key): value for key, value in made.items()}
    laid["optimizer_states"] = [laid["optimizer_states"]]
    torch.save({**laid, "pytorch-lightning_version": "2.6.6"}, path)
    return path


def as_trainer(made: dict[str, Any], folder: Path) -> Path:
    path = folder / "checkpoint-3"
    path.mkdir()
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(made["model"], path / "model.safetensors", metadata={"format": "pt"})
    for part, name in (("optimizer", "optimizer.pt"), ("scheduler", "scheduler.pt"), ("rng", "rng_state.pth")):
        torch.save(made[part], path / name)
    for part in ("scaler", "ema", "loader"):
        torch.save(made[part], path / f"{part}.pt")
    told = {
        "global_step": made["step"],
        "epoch": 0.5,
        "log_history": [{"loss": 1.25, "step": 2, "runtime": random.random()}],
    }
    (path / "trainer_state.json").write_text(json.dumps(told))
    return path


def as_accelerate(made: dict[str, Any], folder: Path) -> Path:
    path = folder / "checkpoint_0"
    path.mkdir()
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(made["model"], path / "model.safetensors")
    torch.save(made["rng"], path / "random_states_0.pkl")
    for part in ("optimizer", "scheduler", "sampler"):
        torch.save(made.get(part, made["loader"]), path / f"{part}.bin")
    for part in ("scaler", "ema"):
        torch.save(made[part], path / f"{part}.pt")
    return path


def as_dcp(made: dict[str, Any], folder: Path) -> Path:
    from torch.distributed import checkpoint as dcp

    path = folder / "step-3"
    dcp.save({key: value for key, value in made.items() if key != "saved_at"}, checkpoint_id=path, no_dist=True)
    return path


SAVES: list[Save] = [as_torch, as_lightning, as_trainer, as_accelerate, as_dcp]


def saved(save: Save, made: dict[str, Any], tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return save(made, folder)


def bump(tensor: Any) -> None:
    """Change the lowest bit of the last number of a tensor."""
    tensor.view(-1).view(torch.int32)[-1] ^= 1


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "model": lambda made: bump(made["model"]["2.weight"]),
    "buffers": lambda made: bump(made["model"]["1.running_mean"]),
    "optimizer": lambda made: bump(made["optimizer"]["state"][3]["exp_avg_sq"]),
    "scheduler": lambda made: made["scheduler"].update(last_epoch=made["scheduler"]["last_epoch"] + 1),
    "scaler": lambda made: made["scaler"].update(scale=32768.0),
    "ema": lambda made: bump(made["ema"]["module.0.weight"]),
    "rng": lambda made: made["rng"]["torch"].__setitem__(1000, made["rng"]["torch"][1000] ^ 1),
    "loader": lambda made: made["loader"]["order"].__setitem__(4999, 7),
}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_same_state_is_equal_and_each_part_that_differs_is_named(save: Save, tmp_path: Path) -> None:
    """Saved twice it is equal but for the times; one bit of one part is found, and called by that part's name."""
    reference = saved(save, state(), tmp_path, "one")
    same = states.compare(reference, saved(save, state(), tmp_path, "two"), None)
    assert same.equal, same.differences
    assert same.compared > 60
    assert same.step == 3
    for part, change in CHANGES.items():
        made = copy.deepcopy(state())
        change(made)
        found = states.compare(reference, saved(save, made, tmp_path, part), None)
        assert [(one.part, one.count) for one in found.differences] == [(part, 1)], part
        assert found.differences[0].of >= 1
        assert found.compared == same.compared


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_keys_name_the_parts(save: Save, tmp_path: Path) -> None:
    names = states.keys(saved(save, state(), tmp_path, "one"))
    assert len(names) == len(set(names))
    parts = {states.part_of(name) for name in names}
    assert {"model", "optimizer", "scheduler", "rng", "loader", "ema"} <= parts
    assert all(name.count(".") < 2 for name in names)


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "rng", "ema"])
def test_a_part_that_is_not_there_is_named(part: str, tmp_path: Path) -> None:
    made = state()
    reference = saved(as_torch, made, tmp_path, "one")
    other = saved(as_torch, {key: value for key, value in made.items() if key != part}, tmp_path, "two")
    found = states.compare(reference, other, None)
    assert [one.part for one in found.differences] == [part]
    assert found.differences[0].count == found.differences[0].of > 0
    assert found.differences[0].names[0].endswith("(missing)")
    back = states.compare(other, reference, None)
    assert back.differences[0].names[0].endswith("(only in the resumed run)")


def test_what_differs_between_the_unbroken_runs_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    """A noise in both, and a fault beside it in the resumed one."""
    one, two, other = state(), state(), state()
    for at, made in enumerate((one, two, other)):
        made["noise"], made["host"] = torch.full((3,), float(at)), f"node-{at}"
        made["model"]["0.bias"] += at
    bump(other["optimizer"]["state"][0]["exp_avg"])
    paths = [saved(as_torch, made, tmp_path, name) for made, name in ((one, "a"), (two, "b"), (other, "c"))]
    found = states.compare(paths[0], paths[2], paths[1])
    assert [(part.part, part.names) for part in found.differences] == [("optimizer", ("optimizer.state.0.exp_avg",))]
    assert {"noise", "host", "saved_at", "model.0.bias"} <= set(found.left_out)
    without = states.compare(paths[0], paths[2], None)
    assert {part.part for part in without.differences} == {"model", "noise", "optimizer"}
    assert {"host", "saved_at"} <= set(without.left_out)


def test_names_that_only_sound_like_times_are_compared(tmp_path: Path) -> None:
    one = {"timesteps": 100, "time_embedding": torch.ones(3), "file_index": 3, "best_step": 4, "seconds": 1.0}
    two = {**one, "timesteps": 101, "time_embedding": torch.zeros(3), "file_index": 4, "best_step": 5, "seconds": 2.0}
    found = compared(one, two, tmp_path)
    assert sum(part.count for part in found.differences) == 4
    assert found.left_out == ("seconds",)


def compared(one: Any, two: Any, tmp_path: Path) -> StateComparison:
    paths = []
    for name, made in (("one.pt", one), ("two.pt", two)):
        torch.save(made, tmp_path / name)
        paths.append(tmp_path / name)
    return states.compare(paths[0], paths[1], None)


VALUES: dict[str, Any] = {
    "f64": lambda: torch.arange(6, dtype=torch.float64).view(2, 3),
    "bf16": lambda: torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "complex": lambda: torch.arange(6).to(torch.complex128).view(2, 3),
    "bool": lambda: torch.tensor([[True, False, True], [False, False, True]]),
    "int8": lambda: torch.arange(6, dtype=torch.int8).view(2, 3),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_tensor_is_its_numbers_whatever_its_strides(kind: str, tmp_path: Path) -> None:
    """Transposed, with holes, a view of a larger one, expanded: equal to a copy of the numbers, and to no other."""
    base = VALUES[kind]()
    padded = torch.zeros(4, 5, dtype=base.dtype)
    padded[1:3, 1:4] = base
    forms = [
        base,
        base.t().contiguous().t(),
        padded[1:3, 1:4],
        torch.cat([padded.flatten(), base.flatten()])[20:].view(2, 3),
    ]
    forms.append(base.unsqueeze(1).contiguous().squeeze(1))
    for form in forms:
        assert torch.equal(form, base)
        assert compared({"w": base}, {"w": form}, tmp_path).equal
        assert not compared({"w": base.t()}, {"w": form}, tmp_path).equal  # the same bytes in another shape
        other = form.clone()
        other[1, 2] = base[0, 1]
        assert compared({"w": base}, {"w": other}, tmp_path).equal == bool(base[1, 2] == base[0, 1])
    row = base[0]
    assert compared({"w": row.expand(3, 3)}, {"w": row.repeat(3, 1)}, tmp_path).equal
    assert compared({"w": row.view(3, 1).expand(3, 3)}, {"w": row.view(3, 1).repeat(1, 3)}, tmp_path).equal
    last = base.permute(1, 0).unsqueeze(-1).expand(3, 2, 2)
    assert compared({"w": last}, {"w": last.contiguous()}, tmp_path).equal


def test_holes_in_a_storage_are_nobodys_numbers(tmp_path: Path) -> None:
    one, two = torch.zeros(100), torch.ones(100)
    two[10:20] = 0.0
    assert compared({"w": one[10:20]}, {"w": two[10:20]}, tmp_path).equal
    assert compared({"w": one[10:20:3]}, {"w": two[10:20:3]}, tmp_path).equal
    assert not compared({"w": one[10:21]}, {"w": two[10:21]}, tmp_path).equal


def test_views_of_one_storage_beyond_what_is_read_again_are_compared_by_their_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand views of one storage: equal, and one changed number is found in those that hold it or share it."""
    monkeypatch.setattr(digesting, "MOST_AGAIN", 1000)
    base = torch.arange(10_000.0)
    one = {str(at): base[at : at + 5_000] for at in range(200)}
    other = base.clone()
    other[0] = -1.0
    two = {str(at): other[at : at + 5_000] for at in range(200)}
    assert compared(one, one, tmp_path).equal
    found = compared(one, two, tmp_path)
    assert not found.equal
    assert found.compared == 200


def test_numbers_are_compared_by_bits(tmp_path: Path) -> None:
    """NaN is that same NaN, minus zero is not zero, one is not 1.0, a large whole number is what it is."""
    nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    alike = {
        "a": float("nan"),
        "b": -0.0,
        "c": 1 << 200,
        "d": None,
        "e": "word",
        "f": (0.9, 0.999),
        "t": torch.tensor(float("nan")),
    }
    assert compared(alike, copy.deepcopy(alike), tmp_path).equal
    for key, value in {
        "a": nan,
        "b": 0.0,
        "c": (1 << 200) + 1,
        "d": 0,
        "e": "words",
        "f": (0.9, 0.99),
        "t": torch.tensor(0.0),
    }.items():
        found = compared(alike, {**alike, key: value}, tmp_path)
        assert [part.names for part in found.differences] == [(key,)]
    assert not compared({"a": 1}, {"a": 1.0}, tmp_path).equal
    assert not compared({"a": True}, {"a": 1}, tmp_path).equal
    assert not compared({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int32)}, tmp_path).equal
    assert not compared({"a": torch.zeros(2)}, {"a": torch.zeros(1, 2)}, tmp_path).equal


def test_one_tensor_under_two_names_is_compared_under_both(tmp_path: Path) -> None:
    shared = torch.ones(4)
    assert compared({"a": shared, "b": shared}, {"a": torch.ones(4), "b": torch.ones(4)}, tmp_path).equal
    found = compared({"a": shared, "b": shared}, {"a": torch.ones(4), "b": torch.zeros(4)}, tmp_path)
    assert [part.names for part in found.differences] == [("b",)]
    betas = (0.9, 0.999)
    assert (
        compared({"g": [{"betas": betas}, {"betas": betas}]}, {"g": [{"betas": (0.9, 0.999)}] * 2}, tmp_path).compared
        == 2
    )


def test_parameters_and_quantized_tensors(tmp_path: Path) -> None:
    made = {
        "p": torch.nn.Parameter(torch.ones(3)),
        "d": torch.float16,
        "s": torch.Size((2, 3)),
        "n": np.float64(2.5),
        "a": np.arange(5),
    }
    assert compared(made, copy.deepcopy(made), tmp_path).equal
    for key, value in {
        "p": torch.nn.Parameter(torch.zeros(3)),
        "d": torch.float32,
        "s": torch.Size((3, 2)),
        "n": np.float64(2.6),
        "a": np.arange(1, 6),
    }.items():
        assert not compared(made, {**made, key: value}, tmp_path).equal, key


def test_arrays_of_numpy(tmp_path: Path) -> None:
    def save(name: str, **arrays: Any) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        np.savez(tmp_path / name / "ckpt-3.npz", **arrays)
        return tmp_path / name / "ckpt-3.npz"

    one = save("a", w=np.arange(6.0), **{"optimizer.m": np.ones(3)}, step=np.int64(3))
    assert states.compare(one, save("b", w=np.arange(6.0), **{"optimizer.m": np.ones(3)}, step=np.int64(3)), None).equal
    found = states.compare(one, save("c", w=np.arange(6.0), **{"optimizer.m": np.zeros(3)}, step=np.int64(3)), None)
    assert [part.part for part in found.differences] == ["optimizer"]
    assert found.step == 3
    np.savez_compressed(
        tmp_path / "c" / "ckpt-3.npz", w=np.arange(6.0), **{"optimizer.m": np.ones(3)}, step=np.int64(3)
    )
    assert states.compare(one, tmp_path / "c" / "ckpt-3.npz", None).equal
    for name, array in (("x.npy", np.arange(4)), ("y.npy", np.arange(4)), ("z.npy", np.arange(1, 5))):
        np.save(tmp_path / name, array)
    assert states.compare(tmp_path / "x.npy", tmp_path / "z.npy", None).equal is False


def test_json_beside_a_file_and_inside_a_folder(tmp_path: Path) -> None:
    paths = []
    for name, position in (("a", 5), ("b", 5), ("c", 6)):
        (tmp_path / name).mkdir()
        torch.save({"model": {"w": torch.ones(2)}}, tmp_path / name / "last.pt")
        (tmp_path / name / "last.json").write_text(
            json.dumps({"step": 7, "sampler": {"position": position}, "seconds": random.random()})
        )
        paths.append(tmp_path / name / "last.pt")
    assert states.compare(paths[0], paths[1], None).equal
    found = states.compare(paths[0], paths[2], None)
    assert [(part.part, part.names) for part in found.differences] == [("loader", ("sampler.position",))]
    assert "model.w" in states.keys(paths[0])
    folders = states.compare(paths[0].parent, paths[2].parent, None)
    assert [part.part for part in folders.differences] == ["loader"]


def test_checkpoints_of_overnight(tmp_path: Path) -> None:
    """The manifest, with its times and ids, is no part of the state; another momentum is, and its part is named."""

    def train(name: str, *, beta: float = 0.9) -> Path:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), betas=(beta, 0.999))
        with Checkpointer(tmp_path / name, every=2, keep_last=9, model=model, optimizer=optimizer) as checkpointer:
            for step in checkpointer.steps(4):
                loss = model(torch.randn(3, 4)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                checkpointer.report(step, loss=loss.item())
        return tmp_path / name / "step-00000002"

    one, other = train("a"), train("b", beta=0.5)
    copied = tmp_path / "copied" / one.name
    shutil.copytree(one, copied)
    manifest = json.loads((copied / "MANIFEST.json").read_text())
    (copied / "MANIFEST.json").write_text(json.dumps({**manifest, "run": "another", "saved_at": "at another time"}))
    same = states.compare(one, copied, None)
    assert same.equal, same.differences
    assert same.step == 2
    assert same.compared > 20
    assert not same.left_out
    found = states.compare(one, other, copied)
    assert "optimizer" in [part.part for part in found.differences]
    assert "rng" not in [part.part for part in found.differences]
    assert {"model.0", "optimizer.state", "rng.torch"} <= set(states.keys(one))


def test_many_names_are_bounded_and_still_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_NAMES", 100)
    one = {"history": [{"a": at, "b": float(at)} for at in range(500)]}
    two = copy.deepcopy(one)
    two["history"][400]["b"] = -1.0
    assert compared(one, copy.deepcopy(one), tmp_path).equal
    found = compared(one, two, tmp_path)
    assert [part.names for part in found.differences] == [(f"history.{states.BEYOND}",)]
    assert found.compared == 101


def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    one = {"model": {"w": torch.zeros(10 << 20)}}
    torch.save(one, tmp_path / "a.pt")
    tracemalloc.start()
    assert states.compare(tmp_path / "a.pt", tmp_path / "a.pt", None).equal
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_what_is_no_checkpoint_is_compared_as_bytes(tmp_path: Path) -> None:
    """Truncated, of an unknown form, a pickle of its own: never a traceback, never called equal when it is not."""
    whole = saved(as_torch, state(), tmp_path, "whole")
    cut = tmp_path / "cut.pt"
    cut.write_bytes(whole.read_bytes()[:5000])
    assert states.compare(cut, cut, None).equal
    assert not states.compare(whole, cut, None).equal
    for name, data in (("a.bin", b"abc"), ("b.bin", b"abd"), ("c.bin", b"")):
        (tmp_path / name).write_bytes(data)
    assert not states.compare(tmp_path / "a.bin", tmp_path / "b.bin", None).equal
    assert not states.compare(tmp_path / "a.bin", tmp_path / "c.bin", None).equal
    for name, weights in (("p.pkl", 1.0), ("q.pkl", 2.0)):
        (tmp_path / name).write_bytes(pickle.dumps({"w": np.full(3, weights), "lr": 0.1, "text": "x" * 9000}))
    found = states.compare(tmp_path / "p.pkl", tmp_path / "q.pkl", None)
    assert [part.names for part in found.differences] == [("w",)]
    with pytest.raises(FolderError, match="is not there"):
        states.compare(tmp_path / "none.pt", whole, None)
    with pytest.raises(FolderError, match="is not there"):
        states.keys(tmp_path / "none.pt")


def test_a_bomb_ends_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that holds a list a million times over, one that holds itself, and one that is too deep: not for ever."""
    monkeypatch.setattr(flattening, "MOST_VISITS", 20_000)
    wide: list[Any] = [{"a": 1}]
    for _ in range(40):
        wide = [wide, wide]
    itself: list[Any] = [{"a": 1}]
    itself.append(itself)
    deep: list[Any] = [{"a": 1}]
    for _ in range(150):
        deep = [deep, 1]
    for made in (wide, itself, deep):
        path = tmp_path / "a.pkl"
        path.write_bytes(pickle.dumps(made))
        leaves = list(contents.leaves(path))
        assert leaves[-1].name == "a.pkl"  # all of it, as bytes
        assert states.compare(path, path, None).equal


def test_a_file_that_changes_while_it_is_read_is_said_to(tmp_path: Path) -> None:
    path = saved(as_torch, state(), tmp_path, "one")
    found = contents.leaves(path)
    next(found)
    path.write_bytes(b"something else")
    with pytest.raises(Damage, match="changed while it was read"):
        [leaf.digest() for leaf in found]


def test_leftovers_and_lists_of_files_are_passed_over(tmp_path: Path) -> None:
    one = saved(as_trainer, state(), tmp_path, "one")
    two = tmp_path / "two" / one.name
    shutil.copytree(one, two)
    (two / "model.safetensors.index.json").write_text("{}")
    (two / ".tmp-1").mkdir()
    (two / "optimizer.pt.tmp").write_bytes(b"half")
    assert states.compare(one, two, None).equal
    (two / "more.pt").write_bytes(b"more")
    assert not states.compare(one, two, None).equal
