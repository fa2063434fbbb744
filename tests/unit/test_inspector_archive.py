"""Arrays of numpy and archives of other makers: every flipped bit of an .npz is found, and no header is believed."""

from __future__ import annotations

import io
import os
import random
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from specimens import flips, lengths, limited, saved, zeroed  # noqa: E402 - it imports torch

from overnight.inspector import archive  # noqa: E402
from overnight.inspector.findings import Budget, Found  # noqa: E402


def npz(*, packed: bool = False, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, **arrays)
    return stream.getvalue()


CHANCE = np.random.default_rng(1)
ARRAYS = {"params.w": CHANCE.standard_normal((40, 9)).astype("f4"), "params.b": CHANCE.standard_normal(9),
          "m": CHANCE.standard_normal((40, 9)), "step": np.int64(31), "epoch": np.array(2)}  # fmt: skip
GOOD = npz(**ARRAYS)


def look(data: bytes, folder: Path, limit: int | None = None, name: str = "state.npz") -> Found:
    (folder / name).write_bytes(data)
    return archive.look(folder / name, Budget(limit))


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_good_is_called_good(packed: bool, tmp_path: Path) -> None:
    found = look(npz(packed=packed, **ARRAYS), tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, True, True)
    assert (found.step, found.maker, found.form, found.tensors) == (31, "numpy", "npz", 5)
    assert set(found.keys) == set(ARRAYS)
    assert found.values["epoch"] == 2


@pytest.mark.parametrize(
    "kind", ["f2", "f4", "f8", "c8", "c16", "i1", "i8", "u2", "?", ">f4", ">i8", "S5", "U3", "M8[s]"]
)
def test_every_dtype(kind: str, tmp_path: Path) -> None:
    arrays = {"a": np.zeros((3, 5), kind), "f": np.asfortranarray(np.ones((4, 6))), "none": np.zeros((0, 3))}
    found = look(npz(**arrays), tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, True, True)


def test_records_and_objects_are_left_unread(tmp_path: Path) -> None:
    found = look(npz(r=np.zeros(3, [("a", "f4"), ("b", "i8")]), o=np.array([{"a": 1}], object)), tmp_path)
    assert (found.problem, found.complete, found.intact) == (None, True, True)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "c16", ">f8", ">f2"])
def test_a_number_that_is_not_finite(kind: str, packed: bool, tmp_path: Path) -> None:
    value = CHANCE.integers(0, 9, 600_000).astype(kind)
    value[524_288 - 9 :: 7_001] = np.inf
    found = look(npz(packed=packed, a=np.ones(4), w=value), tmp_path)
    assert (found.complete, found.intact, found.finite) == (True, True, False)
    assert found.problem == "state.npz: w holds NaN or infinity"


def test_masks_and_records_of_losses_are_meant(tmp_path: Path) -> None:
    arrays = {"causal": np.where(np.tri(9) > 0, 0.0, -np.inf), "best_loss": np.array(np.inf)}
    assert look(npz(loss_history=np.array([1, np.nan]), **arrays), tmp_path).finite is True


@pytest.mark.parametrize("seed", range(2))
def test_every_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    for bit, data in flips(GOOD, 100, seed):
        found = look(data, tmp_path)
        assert found.intact is False, (bit, found)


def test_flipped_bits_in_a_compressed_one_are_found_or_change_nothing(tmp_path: Path) -> None:
    good = npz(packed=True, **ARRAYS)
    for bit, data in flips(good, 200, 5):
        if look(data, tmp_path).intact is not False:
            with np.load(tmp_path / "state.npz") as held:
                assert all(np.array_equal(held[name], one) for name, one in ARRAYS.items()), bit


@pytest.mark.parametrize("packed", [False, True])
def test_every_cut_is_found(packed: bool, tmp_path: Path) -> None:
    data = npz(packed=packed, **ARRAYS)
    for length in lengths(data, 100, 2):
        found = look(data[:length], tmp_path)
        assert (found.complete, found.intact) == (False, False), (length, found)
    assert "zeros" in str(look(zeroed(data), tmp_path).problem)
    assert look(data + b"x", tmp_path).intact is False


def test_without_a_budget(tmp_path: Path) -> None:
    found = look(GOOD, tmp_path, limit=0)
    assert (found.complete, found.intact, found.finite, found.step) == (True, None, None, 31)


def replaced(name: str, begin: bytes) -> bytes:
    """An archive with one more member, which begins so."""
    stream = io.BytesIO(GOOD)
    with zipfile.ZipFile(stream, "a") as opened, opened.open(name, "w", force_zip64=True) as member:
        member.write(begin)
    return stream.getvalue()


@pytest.mark.parametrize(
    "begin",
    [b"", b"abc", b"\x93NUMPY\x09\x00\x10\x00" + b"x" * 16, b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
     b"\x93NUMPY\x01\x00\x10\x00" + b"{" * 16, b"\x93NUMPY\x01\x00\x4a\x00" + b"{'descr': " + b"(" * 60,
     b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999,), }".ljust(70)],
)  # fmt: skip
def test_absurd_headers(begin: bytes, tmp_path: Path) -> None:
    found = look(replaced("w.npy", begin), tmp_path)
    assert found.problem
    assert "w.npy" in found.problem


def test_noise_ends_in_a_sentence(tmp_path: Path) -> None:
    chance = random.Random(4)
    for _ in range(200):
        data = bytearray(GOOD)
        for _ in range(4):
            data[chance.randrange(len(data))] = chance.randrange(256)
        found = look(bytes(data), tmp_path)
        assert found.problem is None or "\n" not in found.problem


def test_a_bomb_is_paid_for_and_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    np.savez_compressed(path, w=np.zeros(24 << 20, "f4"))
    assert path.stat().st_size < 1 << 20
    assert archive.look(path, Budget(1 << 20)).intact is None
    done = subprocess.run([*limited("archive", 24), str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True True True None\n", done.stderr


def test_a_member_that_says_less_than_it_holds(tmp_path: Path) -> None:
    """Its size, wherever it stands, is made smaller: nothing is unpacked beyond it, and it is named."""
    data = npz(packed=True, w=np.zeros(4 << 20, "u1"))
    size = ((4 << 20) + 128).to_bytes(8, "little")
    assert data.count(size[:4]) >= 2
    found = look(data.replace(size[:4], (4096).to_bytes(4, "little")), tmp_path)
    assert found.intact is False or found.complete is False


def test_other_archives(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("data.json", '{"a": 1}' * 500)
        made.writestr("folder/notes.txt", "words", zipfile.ZIP_STORED)
        made.comment = b"by hand"
    found = look(stream.getvalue(), tmp_path, name="other.zip")
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, True, None)
    turned = bytearray(stream.getvalue())
    turned[60] ^= 8
    assert look(bytes(turned), tmp_path, name="other.zip").intact is False


def test_files_of_torch_inside_an_archive(tmp_path: Path) -> None:
    def zipped(weights: list[float]) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as made:
            made.writestr("data", '{"n": 1}')
            made.writestr("policy.pth", saved({"w": torch.tensor(weights), "num_timesteps": 2048}))
        return stream.getvalue()

    found = look(zipped([1.0, 2.0]), tmp_path, name="ppo.zip")
    assert (found.problem, found.intact, found.finite, found.step) == (None, True, True, 2048)
    found = look(zipped([1.0, float("nan")]), tmp_path, name="ppo.zip")
    assert (found.intact, found.finite) == (True, False)
    assert "policy.pth in ppo.zip" in str(found.problem)


def test_single_arrays(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(99.0))
    data = stream.getvalue()
    found = look(data, tmp_path, name="a.npy")
    assert (found.problem, found.complete, found.intact, found.finite) == (None, True, None, True)
    for length in lengths(data, 50, 3):
        assert look(data[:length], tmp_path, name="a.npy").complete is False
    assert look(data + b"x", tmp_path, name="a.npy").problem
    np.save(tmp_path / "a.npy", np.array([1, np.nan]))
    assert archive.look(tmp_path / "a.npy", Budget()).finite is False


def test_what_is_no_file_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "gone.npz").symlink_to("nowhere")
    assert "a pipe" in str(archive.look(tmp_path / "pipe.npz", Budget()).problem)
    assert "not there" in str(archive.look(tmp_path / "gone.npz", Budget()).problem)
    assert "no zip archive" in str(look(b"<html>", tmp_path).problem)
