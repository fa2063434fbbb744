"""Files of safetensors and their indexes: no checksum to lean on, so all else that can be told is told."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from specimens import flips, lengths, limited, saved, trained, zeroed  # noqa: E402 - it imports torch

from overnight.inspector import files, tensors  # noqa: E402
from overnight.inspector.findings import Budget, Found  # noqa: E402

MODEL, _ = trained()
STATE = {name: one for name, one in MODEL.state_dict().items() if one.numel()}
GOOD = safetensors.save(STATE, {"format": "pt", "step": "42"})
HEADER = 8 + int.from_bytes(GOOD[:8], "little")


def look(data: bytes, folder: Path, limit: int | None = None) -> Found:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return tensors.look(path, Budget(limit))


def made(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def test_what_is_good_is_called_good(tmp_path: Path) -> None:
    found = look(GOOD, tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, None, True)
    assert (found.step, found.maker, found.form, found.tensors) == (42, "safetensors", "safetensors", len(STATE))
    assert set(found.keys) == set(STATE)


@pytest.mark.parametrize(
    "kind", ["float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "uint16", "bool", "complex64",
             "float8_e4m3fn", "float8_e5m2"],
)  # fmt: skip
def test_every_dtype(kind: str, tmp_path: Path) -> None:
    state = {"a": torch.ones(33).to(getattr(torch, kind)), "none": torch.empty(0, 4), "one": torch.tensor(2.0)}
    found = look(safetensors.save(state), tmp_path)
    assert (found.problem, found.complete, found.finite) == (None, True, True)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_number_that_is_not_finite(kind: str, bad: float, tmp_path: Path) -> None:
    value = torch.arange(3000).to(getattr(torch, kind))
    value[2222] = bad
    found = look(safetensors.save({"a": torch.ones(7), "w": value}), tmp_path)
    assert (found.complete, found.intact, found.finite) == (True, None, False)
    assert found.problem == "model.safetensors: w holds NaN or infinity"


def test_masks_are_meant(tmp_path: Path) -> None:
    mask = torch.full((9, 9), float("-inf")).triu(1)
    assert look(safetensors.save({"attn.mask": mask, "attn.causal": mask.clone()}), tmp_path).problem is None


def test_a_step_that_is_a_tensor(tmp_path: Path) -> None:
    assert look(safetensors.save({"w": torch.ones(3), "trainer.global_step": torch.tensor(17)}), tmp_path).step == 17


def test_every_cut_is_found(tmp_path: Path) -> None:
    for length in lengths(GOOD, 100, 2):
        found = look(GOOD[:length], tmp_path, limit=0)
        assert (found.complete, found.intact) == (False, False), (length, found)


def test_bytes_after_the_end(tmp_path: Path) -> None:
    assert "1 bytes after its end" in str(look(GOOD + b"x", tmp_path).problem)


@pytest.mark.parametrize("part", [0.25, 0.3, 0.5, 0.75, 1.0])
def test_an_end_of_zeros(part: float, tmp_path: Path) -> None:
    data = safetensors.save({f"layer{at}": torch.randn(101, 77) for at in range(9)})
    found = look(zeroed(data, part), tmp_path)
    assert (found.complete, found.intact) == (False, False)
    assert "zeros" in str(found.problem)


def test_an_end_of_zeros_in_a_flat_tensor_begins_with_a_page(tmp_path: Path) -> None:
    data = safetensors.save({"flat": torch.rand(100_000) + 1})
    for at in (4096, 200_704, 393_216):
        found = look(data[:at] + bytes(len(data) - at), tmp_path)
        assert (found.complete, found.intact) == (False, False)
    assert look(data[:200_708] + bytes(len(data) - 200_708), tmp_path).problem is None  # a buffer that is half full


def test_zeros_that_are_meant(tmp_path: Path) -> None:
    """Whole tensors and whole rows of zeros: what is not trained yet looks like that."""
    state = {f"layer{at}": torch.randn(101, 77) for at in range(3)}
    assert look(safetensors.save({**state, "z.lora_B": torch.zeros(300, 300)}), tmp_path).problem is None
    rows = torch.randn(101, 77)
    rows[60:] = 0
    assert look(safetensors.save({"layer": rows}), tmp_path).problem is None
    assert look(safetensors.save({"all": torch.zeros(99, 99)}), tmp_path).problem is None


def test_flips_in_the_header_change_nothing_unseen(tmp_path: Path) -> None:
    """There is no checksum; but what is accepted has the same bytes in as many tensors, or names that differ."""
    for bit, data in flips(GOOD[:HEADER], 100, 3):
        found = look(data + GOOD[HEADER:], tmp_path)
        assert found.intact is not True, bit
        assert found.problem or found.tensors == len(STATE)


def test_noise_ends_in_a_sentence(tmp_path: Path) -> None:
    chance = random.Random(4)
    for _ in range(200):
        data = bytearray(GOOD)
        for _ in range(5):
            data[chance.randrange(HEADER)] = chance.randrange(256)
        found = look(bytes(data), tmp_path)
        assert found.problem is None or "\n" not in found.problem


@pytest.mark.parametrize(
    ("data", "words"),
    [((1 << 60).to_bytes(8, "little") + b"{}", "claims a header of 1,152,921,504,606,846,976 bytes"),
     (made(b"[" * 100_000), "deeper than what is read"), (made(b"9" * 100_000), "not JSON"),
     (made([1]), "lists no tensors"),
     (made({"a": 1}), "does not say where"), (made({"a": entry(0, 8)}, bytes(7)), "1 bytes are missing"),
     (made({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "b does not begin where"),
     (made({"a": entry(0, 8), "b": entry(12, 16)}, bytes(16)), "b does not begin where"),
     (made({"a": entry(8, 0)}, bytes(8)), "does not say what"), (made({"a": entry(-8, 0)}), "does not say what"),
     (made({"a": entry(0, 8, [3])}, bytes(8)), "has not the bytes"), (made(b'{"a":1,"a":2}'), "names something twice"),
     (made({"a": entry(0, 8, [1 << 61, 1 << 61])}, bytes(8)), "has not the bytes"),
     (made({"a": entry(0, 8, ["x"])}, bytes(8)), "does not say what"), (b"", "empty"),
     (bytes(4000), "nothing but zeros"),
     (made({"a": entry(0, 8, dtype="F32" * 9)}, bytes(9)), "after its end"), (b"abc", "cut off"),
     (made({"a": entry(0, 8) | {"data_offsets": [0, 8, 9]}}, bytes(8)), "does not say where")],
)  # fmt: skip
def test_absurd_headers(data: bytes, words: str, tmp_path: Path) -> None:
    found = look(data, tmp_path)
    assert words in str(found.problem)
    assert found.complete is not True


def test_headers_that_would_not_fit_into_memory(tmp_path: Path) -> None:
    data = made(b"[" + b"[]," * 6_000_000 + b"[]]")
    assert "more items than are read" in str(look(data, tmp_path).problem)
    done = subprocess.run([*limited("tensors", 160), str(tmp_path / "model.safetensors")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "more items" in done.stdout, done.stderr
    path = tmp_path / "sparse.safetensors"
    path.write_bytes((1 << 33).to_bytes(8, "little"))
    os.truncate(path, 1 << 34)
    assert "more than is read" in str(tensors.look(path, Budget(0)).problem)


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    safetensors.save_file({"w": torch.ones(24 << 20)}, path)
    done = subprocess.run([*limited("tensors", 24), str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True None True None\n", done.stderr


def test_what_is_no_file_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "gone.safetensors").symlink_to("nowhere")
    assert "a pipe" in str(tensors.look(tmp_path / "pipe.safetensors", Budget()).problem)
    assert "not there" in str(tensors.look(tmp_path / "gone.safetensors", Budget()).problem)


def shards(folder: Path, ending: str = "safetensors") -> Path:
    """A model in three files and its index."""
    names = sorted(STATE)
    where = {name: f"model-{at % 3 + 1:05}-of-00003.{ending}" for at, name in enumerate(names)}
    for file in set(where.values()):
        part = {name: STATE[name] for name in names if where[name] == file}
        (folder / file).write_bytes(safetensors.save(part) if ending == "safetensors" else saved(part))
    size = sum(one.numel() * one.element_size() for one in STATE.values())
    index = folder / ("model.safetensors.index.json" if ending == "safetensors" else "pytorch_model.bin.index.json")
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": where}))
    return index


@pytest.mark.parametrize(("ending", "intact"), [("safetensors", None), ("bin", True)])
def test_an_index_and_its_files(ending: str, intact: bool | None, tmp_path: Path) -> None:
    found = files.look(shards(tmp_path, ending), Budget())
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, intact, True)
    assert found.tensors == len(STATE)
    assert set(found.keys) == set(STATE)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_file_of_an_index_is_missing_cut_or_another(ending: str, tmp_path: Path) -> None:
    index = shards(tmp_path, ending)
    one, two = (tmp_path / f"model-0000{at}-of-00003.{ending}" for at in (1, 2))
    data = one.read_bytes()
    one.unlink()
    found = tensors.look_index(index, Budget())
    assert found.complete is False
    assert one.name in str(found.problem)
    one.write_bytes(data[:-5])
    found = tensors.look_index(index, Budget())
    assert (found.complete, found.intact) == (False, False)
    one.write_bytes(two.read_bytes())
    found = tensors.look_index(index, Budget())
    assert found.complete is False
    assert "where the index has it" in str(found.problem)
    one.unlink()
    one.symlink_to("nowhere")
    assert tensors.look_index(index, Budget()).complete is False


def test_a_nan_in_one_of_several_files(tmp_path: Path) -> None:
    index = shards(tmp_path)
    value = json.loads(index.read_text())
    name, file = next(iter(value["weight_map"].items()))
    part = {one: STATE[one] for one, other in value["weight_map"].items() if other == file}
    part[name] = torch.full_like(part[name], math.nan)
    (tmp_path / file).write_bytes(safetensors.save(part))
    found = tensors.look_index(index, Budget())
    assert (found.complete, found.finite) == (True, False)
    assert f"{file}: {name}" in str(found.problem)


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[1]", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": "../b"}}',
              b'{"weight_map": {"a": "/etc/passwd"}}', b'{"weight_map": {"a": ".."}}', b'{"weight_map": ', b"\xff\xfe",
              b"[" * 100_000, b'{"weight_map": {"a": "a\\u0000b"}}'],
)  # fmt: skip
def test_absurd_indexes(value: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(value)
    found = tensors.look_index(tmp_path / "model.safetensors.index.json", Budget())
    assert found.problem
    assert found.complete is not True
