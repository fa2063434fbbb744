"""Files of torch.save: what is good is called good, and every flipped bit, cut, hole and strange number is named."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from specimens import (  # noqa: E402 - it imports torch
    archive,
    flips,
    lengths,
    opened,
    saved,
    trained,
    zeroed,
)  # fmt: skip

from overnight.inspector import torchzip  # noqa: E402
from overnight.inspector.findings import Budget, Found  # noqa: E402

MODEL, OPTIMIZER = trained()
STATE = {"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict(), "step": 7, "epoch": 1}
GOOD = saved(STATE)


@dataclasses.dataclass
class Config:
    step: int = 3
    width: Any = None


def look(data: bytes, folder: Path, limit: int | None = None) -> Found:
    path = folder / "a.pt"
    path.write_bytes(data)
    return torchzip.look(path, Budget(limit))


def tensor() -> Any:
    return torch.arange(100, dtype=torch.float32).view(10, 10)


def shapes() -> dict[str, Any]:
    """States of many kinds, all of them healthy, and the step that each says."""
    one = tensor()
    holes = torch.full((50,), float("nan"))
    holes[10:20] = 1.0
    rows = torch.full((6, 8), float("nan"))
    rows[:, 2:5] = 1.0
    two = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)
    return {
        "training": (STATE, 7), "optimizer": (OPTIMIZER.state_dict(), 5), "module": (MODEL, None),
        "two optimizers": ({"gen": {"opt": OPTIMIZER.state_dict()}, "dis": {"opt": two.state_dict()}, "iter": 9}, 9),
        "scheduler": (torch.optim.lr_scheduler.StepLR(OPTIMIZER, 3).state_dict(), 0),
        "complex": ({"a": torch.randn(3, dtype=torch.complex64), "b": torch.randn(3, dtype=torch.complex128)}, None),
        "conjugated": (torch.randn(3, dtype=torch.complex64).conj(), None),
        "small floats": ([one.bfloat16(), one.half(), one.to(torch.float8_e4m3fn), one.to(torch.float8_e5m2)], None),
        "integers": ([torch.ones(3, dtype=kind) for kind in
                      (torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.int64, torch.bool)], None),
        "tied": ({"a": one, "b": one, "c": one.view(-1)}, None), "views": ([one[2:5, 1:3], one.t(), one[:, 3]], None),
        "expanded": (torch.ones(1).expand(5, 4), None), "empty": ([torch.empty(0), torch.empty(3, 0)], None),
        "zero-dimensional": ({"global_step": torch.tensor(11), "w": one}, 11),
        "sparse": (torch.eye(4).to_sparse(), None),
        "parameter": (torch.nn.Parameter(one.clone()), None), "meta": (torch.empty(4, device="meta"), None),
        "ordered": (collections.OrderedDict(a=one, step=4), 4), "storage": (one.untyped_storage(), None),
        "dataclass": ({"config": Config(width=one), "step": 8}, 8), "namespace": (argparse.Namespace(step=6, w=one), 6),
        "numpy": ({"a": np.arange(4.0), "step": np.int64(9), "b": np.float32(2), "c": np.zeros((2, 2), ">f4")}, 9),
        "random": ({"py": random.getstate(), "np": np.random.get_state(), "torch": torch.get_rng_state()}, None),
        "plain values": ({"step": 3, "names": ["a", "b"], "nested": {"x": (1, 2.5, None)}}, 3),
        "types": ([torch.float32, torch.device("cpu"), torch.Size([1, 2]), torch.nn.functional.relu], None),
        "nan outside of a view": ({"w": holes[10:20]}, None), "nan between rows": ({"w": rows[:, 2:5]}, None),
        "mask": ({"model": {"mask": torch.full((8, 8), float("-inf")).triu(1), "w": one}}, None),
        "mask of another name": ({"model": {"causal": torch.full((8, 8), float("-inf")).triu(1)}}, None),
        "best so far": ({"w": one, "best_loss": torch.tensor(float("inf")), "loss": torch.tensor(float("nan")),
                         "callbacks": {"stop": {"best_score": torch.tensor(float("inf"))}}}, None),
        "early stopping": ({"w": one, "best": float("inf"), "loss": float("nan")}, None),
    }  # fmt: skip


SHAPES = shapes()


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_good_is_called_good(name: str, protocol: int, tmp_path: Path) -> None:
    value, step = SHAPES[name]
    found = look(saved(value, pickle_protocol=protocol), tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, True, True)
    assert (found.step, found.maker, found.form, found.notes) == (step, "torch", "torch zip", ())


@pytest.mark.filterwarnings("ignore")
def test_quantized_and_compressed_tensors(tmp_path: Path) -> None:
    scales = torch.full((10,), 0.1)
    value = [torch.eye(4).to_sparse_csr(), torch.quantize_per_tensor(tensor(), 0.1, 0, torch.qint8),
             torch.quantize_per_channel(tensor(), scales, torch.zeros(10), 0, torch.quint8)]  # fmt: skip
    found = look(saved(value), tmp_path)
    assert (found.problem, found.intact, found.finite, found.notes) == (None, True, True, ())


def test_what_is_in_it_is_told(tmp_path: Path) -> None:
    found = look(GOOD, tmp_path)
    assert found.keys == ("model", "optimizer", "step", "epoch")
    assert found.values["epoch"] == 1
    assert found.values["optimizer.param_groups.0.lr"] == 0.001
    assert found.values["optimizer.state.0.step"] == 5.0
    assert found.tensors == len(MODEL.state_dict()) + 3 * 6
    assert "collections.OrderedDict" in found.globals
    assert found.size_bytes == len(GOOD)
    assert found.saved_at == (tmp_path / "a.pt").stat().st_mtime


def test_without_a_budget_structure_is_looked_at_all_the_same(tmp_path: Path) -> None:
    found = look(GOOD, tmp_path, limit=0)
    assert (found.complete, found.intact, found.finite, found.step) == (True, None, None, 7)
    assert "was not looked at" in found.notes[0]
    assert look(GOOD[:-1], tmp_path, limit=0).intact is False
    budget = Budget(len(GOOD))
    assert torchzip.look(tmp_path / "a.pt", budget).problem is not None
    (tmp_path / "a.pt").write_bytes(GOOD)
    assert torchzip.look(tmp_path / "a.pt", budget).intact is True
    assert budget.left is not None
    assert 0 <= budget.left < len(GOOD)
    assert torchzip.look(tmp_path / "a.pt", budget).intact is None


def test_saved_without_checksums(tmp_path: Path) -> None:
    """As torch.serialization.set_crc32_options(False) does, and skip_data for the numbers."""
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        data = saved(STATE)
    finally:
        torch.serialization.set_crc32_options(compute_crc32=True)
    found = look(data, tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite, found.step) == (None, True, None, True, 7)
    assert "without checksums" in found.notes[0]
    with torch.serialization.skip_data():
        data = saved(STATE)
    found = look(data, tmp_path)
    assert (found.problem, found.complete, found.intact, found.step) == (None, True, None, 7)


@pytest.mark.filterwarnings("ignore")
def test_a_script_of_torch(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 3)), stream)
    found = look(stream.getvalue(), tmp_path)
    assert (found.problem, found.form, found.complete, found.intact) == (None, "torch script", True, True)


@pytest.mark.parametrize("seed", range(2))
def test_every_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    for bit, data in flips(GOOD, 100, seed):
        found = look(data, tmp_path)
        assert found.intact is False, (bit, found)
        assert found.problem is not None
        assert "a.pt" in found.problem


def test_every_single_bit_of_a_small_file(tmp_path: Path) -> None:
    data = saved({"w": torch.ones(3), "none": torch.empty(0), "step": 3})
    for bit in range(0, len(data) * 8, 61):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        assert look(bytes(turned), tmp_path).intact is False, bit


def test_every_cut_is_found(tmp_path: Path) -> None:
    for length in lengths(GOOD, 100, 1):
        found = look(GOOD[:length], tmp_path)
        assert (found.complete, found.intact) == (False, False), (length, found)
        assert found.problem


@pytest.mark.parametrize("part", [0.25, 0.01, 0.9, 1.0])
def test_an_end_of_zeros_is_named(part: float, tmp_path: Path) -> None:
    found = look(zeroed(GOOD, part), tmp_path)
    assert (found.complete, found.intact) == (False, False)
    assert found.problem is not None
    assert "zeros" in found.problem


def test_zeros_in_the_middle(tmp_path: Path) -> None:
    for at in range(0, len(GOOD) - 600, 997):
        if GOOD[at : at + 512] != bytes(512):
            assert look(GOOD[:at] + bytes(512) + GOOD[at + 512 :], tmp_path).intact is False


@pytest.mark.parametrize("more", [b"x", bytes(100), b"PK\5\6", GOOD])
def test_bytes_after_the_end(more: bytes, tmp_path: Path) -> None:
    found = look(GOOD + more, tmp_path)
    assert found.intact is False
    assert found.problem


def test_two_writers_in_one_file(tmp_path: Path) -> None:
    """Each wrote its own bytes at the same places, and the last one to end wrote the list."""
    one, two = saved({"w": torch.zeros(5000), "step": 1}), saved({"w": torch.ones(5000), "step": 1})
    assert len(one) == len(two)
    found = look(one[: len(one) // 2] + two[len(one) // 2 :], tmp_path)
    assert found.intact is False


def test_a_member_is_missing(tmp_path: Path) -> None:
    members = opened(GOOD)
    del members["data/3"]
    found = look(archive(members), tmp_path)
    assert (found.complete, found.step) == (False, 7)
    assert found.problem == "a.pt: the member data/3 is missing"
    del members["data.pkl"]
    assert "data.pkl is missing" in str(look(archive(members), tmp_path).problem)


def test_a_member_is_too_short_or_too_many(tmp_path: Path) -> None:
    members = opened(GOOD)
    assert look(archive({**members, "data/3": members["data/3"][:-4]}), tmp_path).complete is False
    found = look(archive({**members, "data/999": b"abcd"}), tmp_path)
    assert (found.problem, found.notes) == (None, ("a.pt holds 1 members that nothing refers to",))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"])
@pytest.mark.parametrize("where", ["model", "optimizer"])
def test_one_number_that_is_not_finite(bad: float, kind: str, where: str, tmp_path: Path) -> None:
    value = torch.arange(5000).to(getattr(torch, kind))
    value[4321] = bad
    state = {"model": {"w": value}} if where == "model" else {"optimizer": {"state": {0: {"exp_avg": value}}}}
    found = look(saved({**state, "step": 3}), tmp_path)
    assert (found.complete, found.intact, found.finite, found.step) == (True, True, False, 3)
    wanted = "model.w" if where == "model" else "optimizer.state.0.exp_avg"
    assert found.problem == f"a.pt: {wanted} holds NaN or infinity"


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats_that_are_not_finite(kind: Any, tmp_path: Path) -> None:
    assert look(saved({"w": torch.tensor([1.0, float("nan")]).to(kind)}), tmp_path).finite is False


def test_not_finite_elsewhere(tmp_path: Path) -> None:
    nan = float("nan")
    assert look(saved({"w": torch.tensor(nan)}), tmp_path).finite is False
    assert look(saved({"w": np.array([1, nan])}), tmp_path).finite is False
    assert look(saved({"w": np.array([1, nan], ">f8")}), tmp_path).finite is False
    assert look(saved({"w": torch.full((9, 9), nan)}), tmp_path).finite is False
    assert look(saved({"w": torch.full((9, 9), float("inf"))}), tmp_path).finite is False
    assert look(saved({"w": torch.tensor([[1.0, nan], [2.0, 3.0]]).t()}), tmp_path).finite is False
    assert look(saved({"w": torch.tensor([1.0, nan]).to_sparse()}), tmp_path).finite is False
    broken = torch.nn.Linear(2, 2)
    with torch.no_grad():
        broken.weight[0, 0] = nan
    assert look(saved(broken), tmp_path).finite is False
    bad = OPTIMIZER.state_dict()
    bad["param_groups"][0]["lr"] = nan
    assert look(saved({"optimizer": bad}), tmp_path).finite is False


def test_the_order_of_bytes(tmp_path: Path) -> None:
    members = opened(saved({"w": torch.tensor([1.0, 128.0, 3.5]), "step": torch.tensor(258)}))
    assert members["byteorder"] == b"little"
    members |= {"byteorder": b"big", "data/0": np.array([1.0, 128.0, 3.5], ">f4").tobytes(),
                "data/1": np.array(258, ">i8").tobytes()}  # fmt: skip
    found = look(archive(members), tmp_path)
    assert (found.problem, found.finite, found.step) == (None, True, 258)
    members["data/0"] = np.array([1.0, np.nan, 3.5], ">f4").tobytes()
    assert look(archive(members), tmp_path).finite is False
    assert look(archive({**members, "byteorder": b"odd"}), tmp_path).intact is False


def test_torch_itself_reads_what_is_called_good_and_misses_what_is_found(tmp_path: Path) -> None:
    """The reason for all of this: torch.load does not compare the CRCs that torch.save has written."""
    data = saved({"w": torch.arange(5000.0)})
    turned = bytearray(data)
    turned[data.index(torch.arange(2500.0, 2510.0).numpy().tobytes())] ^= 4
    found = look(bytes(turned), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert not torch.equal(loaded["w"], torch.arange(5000.0))
    assert (found.intact, found.problem) == (False, "a.pt: the content of archive/data/0 is not what its CRC says")
