"""What can change a training's numbers from outside is recorded, and each change of it is named."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overnight
from overnight.checkpoint import environment
from overnight.checkpoint.environment import changes, facts, versions


def recorded(value: Any) -> Any:
    """Return a value as a manifest gives it back."""
    return json.loads(json.dumps(value, allow_nan=False))


# -- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"batch_size": 32}, {"batch_size": 64}, ["batch_size 32 -> 64"]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, ["a.b.c 1 -> 2"]),
        ({"b": 1, "a": 1}, {"a": 2, "b": 2}, ["a 1 -> 2", "b 1 -> 2"]),
        ({"a": 1}, {"a": 1, "b": 2}, ["b is new: 2"]),
        ({"a": 1, "b": "x"}, {"a": 1}, ["b is gone, it was x"]),
        ({"a": None}, {"a": ":4096:8"}, ["a not set -> :4096:8"]),
        ({"a": True}, {"a": False}, ["a true -> false"]),
        ({"a": True}, {"a": 1}, ["a true -> 1"]),
        ({"a": 8}, {"a": "8"}, ['a 8 -> "8"']),
        ({"a": None}, {"a": "not set"}, ['a null -> "not set"']),
        ({"a": ""}, {"a": "x"}, ['a "" -> x']),
        ({"a": "x\x1b[2J"}, {"a": "y"}, ['a "x\\u001b[2J" -> y']),
        ({"a": 0.1}, {"a": 0.10000000000000002}, ["a 0.1 -> 0.10000000000000002"]),
        ({"a": [1, 2, 3]}, {"a": [1, 5]}, ["a.1 2 -> 5", "a.2 is gone, it was 3"]),
        ({"a": list(range(11))}, {"a": [*range(2), 9, *range(3, 10), 7]}, ["a.2 2 -> 9", "a.10 10 -> 7"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a is gone, it was {}", "a.b is new: 1"]),
        ({"a": [{"lr": 1}]}, {"a": [{"lr": 2}]}, ["a.0.lr 1 -> 2"]),
        ({"a": float("nan")}, {"a": 1.0}, ["a nan -> 1.0"]),
        ({}, {}, []),
        ({}, {"a": 1}, ["a is new: 1"]),
        ([1], [2], ["0 1 -> 2"]),
        (1, 2, ["all of it 1 -> 2"]),
        ({"a": 1.0}, {"a": 1}, []),
    ],
)
def test_each_change_is_named_once_in_order(old: Any, new: Any, said: list[str]) -> None:
    assert changes(old, new) == said


def test_what_a_manifest_holds_of_something_is_no_change() -> None:
    config = {
        "betas": (0.9, 0.95),
        "inf": float("inf"),
        "nan": float("nan"),
        3: "key",
        "path": Path("/data"),
        "no": None,
    }
    held = {"betas": [0.9, 0.95], "inf": "inf", "nan": "nan", "3": "key", "path": "/data", "no": None}
    assert changes(held, config) == changes(config, held) == changes(config, config) == []
    assert changes(recorded(held), config) == []


def test_the_order_of_keys_does_not_matter() -> None:
    one = {"z": 1, "a": {"y": 1, "b": 2}, "list": [1, 2]}
    other = {"list": [3, 2], "a": {"b": 3, "y": 2}, "z": 2}
    turned = {key: one[key] for key in reversed(one)}
    assert changes(one, other) == changes(turned, other) == ["a.b 2 -> 3", "a.y 1 -> 2", "list.0 1 -> 3", "z 1 -> 2"]


def test_long_values_are_cut_but_not_where_they_differ() -> None:
    long = "x" * 200
    (said,) = changes({"a": long + "1"}, {"a": 5})
    assert said == f"a {'x' * 80}... -> 5"
    (said,) = changes({"a": long + "1"}, {"a": long + "2"})
    assert 'x1" -> "x' in said
    assert said.endswith('x2"')


# -- facts and versions ----------------------------------------------------------------------------------------------


def test_without_torch_nothing_is_imported_for_its_sake() -> None:
    code = (
        "import sys, json; from overnight.checkpoint import environment as room\n"
        "found = room.facts(loader=[1, 2], world_size=1); names = room.versions()\n"
        "assert sorted(names) == ['overnight', 'python'], names\n"
        "assert 'torch' not in found and found['loader'] == {'kind': 'list', 'dataset_size': 2}, found\n"
        "assert room.changes(json.loads(json.dumps(found)), found) == []\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_variables_are_recorded_set_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = recorded(facts(loader=None, world_size=1))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert changes(before, facts(loader=None, world_size=2)) == [
        "variables.CUBLAS_WORKSPACE_CONFIG not set -> :4096:8",
        "variables.PYTHONHASHSEED not set -> 0",
        "world_size 1 -> 2",
    ]


def test_an_odd_dataset_does_not_stop_a_training() -> None:
    class Unsized:
        def __len__(self) -> int:
            raise TypeError

        def __getitem__(self, at: int) -> int:
            return at

    found = facts(loader=SimpleNamespace(dataset=Unsized(), batch_size="auto"), world_size=1)
    assert found["loader"] == {"kind": "SimpleNamespace", "dataset_size": None}


class TestWithTorch:
    @pytest.fixture(autouse=True)
    def _as_it_was(self) -> Iterator[None]:
        torch = pytest.importorskip("torch")
        numbers = torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision()
        cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
        yield
        torch.set_num_threads(numbers[0])
        torch.set_default_dtype(numbers[1])
        torch.set_float32_matmul_precision(numbers[2])
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn

    def test_every_switch_is_seen(self) -> None:
        import torch

        torch.set_num_threads(1)
        before = recorded(facts(loader=None, world_size=1))
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = True
        said = changes(before, facts(loader=None, world_size=1))
        for one in (
            "torch.threads 1 -> 2",
            "torch.default_dtype float32 -> float64",
            "torch.deterministic_algorithms false -> true",
            "torch.deterministic_warn_only false -> true",
            "torch.matmul_precision highest -> high",
            "torch.cuda_matmul_tf32 false -> true",
            "torch.cudnn_deterministic false -> true",
            "torch.cudnn_benchmark false -> true",
        ):
            assert one in said
            said.remove(one)
        assert not [one for one in said if "precision" not in one]  # torch's newer names of the same switch

    def test_precision_set_in_torchs_newer_way_is_seen_and_raises_nothing(self) -> None:
        code = (
            "import torch, warnings; warnings.simplefilter('error')\n"
            "from overnight.checkpoint import environment as room\n"
            "before = room.facts(loader=None, world_size=1)\n"
            "torch.backends.fp32_precision = 'tf32'\n"
            "said = room.changes(before, room.facts(loader=None, world_size=1))\n"
            "assert any('cuda_matmul_precision' in one and one.endswith('-> tf32') for one in said), said\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_the_loader_is_seen(self) -> None:
        import torch
        from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(range(3))

            def __len__(self) -> int:
                raise AssertionError("asking a stream for its length makes torch warn later")

        data = torch.arange(10)
        one = recorded(facts(loader=DataLoader(data, batch_size=2), world_size=1))  # type: ignore[arg-type]
        other = facts(loader=DataLoader(data[:9], batch_size=4, num_workers=2), world_size=1)  # type: ignore[arg-type]
        assert changes(one, other) == [
            "loader.batch_size 2 -> 4",
            "loader.dataset_size 10 -> 9",
            "loader.num_workers 0 -> 2",
        ]
        sampled = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 5, drop_last=False))  # type: ignore[arg-type]
        assert facts(loader=sampled, world_size=1)["loader"]["batch_size"] == 5
        stream = facts(loader=DataLoader(Stream(), batch_size=2), world_size=1)
        assert "dataset_size" not in stream["loader"]
        assert changes(recorded(stream), facts(loader=DataLoader(Stream(), batch_size=2), world_size=1)) == []

    def test_devices_are_named_if_they_are_in_use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: f"Card {at}")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert "devices" not in facts(loader=None, world_size=1)["torch"]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert facts(loader=None, world_size=1)["torch"]["devices"] == ["Card 0", "Card 1"]

    def test_facts_draw_nothing_and_are_the_same_twice(self) -> None:
        import torch

        state = torch.get_rng_state()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert facts(loader=[1], world_size=1) == facts(loader=[1], world_size=1)
        assert torch.equal(state, torch.get_rng_state())

    def test_versions_of_what_is_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        found = versions()
        assert found["torch"] == torch.__version__
        assert found["overnight"] == overnight.__version__
        assert all(type(one) is str for one in found.values())
        assert "jax" not in found
        assert "cudnn" not in found or torch.version.cuda is not None
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
        assert versions() == {**found, "cuda": "13.0", "cudnn": "91000"}
