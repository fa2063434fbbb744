"""Files under the names of torch that a stranger, a crash or a file system has made: a sentence, never a traceback."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specimens import (  # noqa: E402 - it imports torch
    Runs,
    archive,
    claim,
    doubling,
    end_of_zip,
    limited,
    nested,
    opened,
    saved,
    sparse,
    trained,
)  # fmt: skip

from overnight.inspector import files, torchzip  # noqa: E402
from overnight.inspector.findings import Budget, Found  # noqa: E402

MODEL, OPTIMIZER = trained()
STATE = {"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict(), "step": 7, "epoch": 1}
GOOD = saved(STATE)


def look(data: bytes, folder: Path, limit: int | None = None) -> Found:
    path = folder / "a.pt"
    path.write_bytes(data)
    return torchzip.look(path, Budget(limit))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_something(protocol: int, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    members = opened(GOOD)
    members["data.pkl"] = pickle.dumps({"model": Runs(proof), "step": 4}, protocol)
    found = look(archive(members), tmp_path)
    assert not proof.exists()
    assert found.step == 4
    assert any(name.endswith(".system") for name in found.globals)


HOSTILE = {
    "deep": nested(20_000), "wide": doubling(250), "wide key": doubling(250, key=True), "empty": b"", "noise": b"abc",
    "absurd word": claim(b"X", (1 << 31) - 1), "absurd bytes": claim(b"\x8e", 1 << 62), "goes on": b"N." + bytes(9),
    "bad storage": b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\xff\xff\xff\x7ftQ.",
}  # fmt: skip


@pytest.mark.parametrize("name", list(HOSTILE))
@pytest.mark.parametrize("limit", [0, None])
def test_hostile_pickles_end_in_a_sentence(name: str, limit: int | None, tmp_path: Path) -> None:
    found = look(archive({**opened(GOOD), "data.pkl": HOSTILE[name]}), tmp_path, limit)
    assert found.problem is None or "\n" not in found.problem
    assert (found.problem is None) == (name in ("deep", "wide", "wide key"))


def test_a_tensor_that_reaches_beyond_its_storage(tmp_path: Path) -> None:
    members = opened(saved({"w": torch.ones(200, 200)}))
    longer = members["data.pkl"].replace(b"K\xc8K\xc8\x86", b"K\xc9K\xc8\x86", 1)
    assert longer != members["data.pkl"]
    found = look(archive({**members, "data.pkl": longer}), tmp_path)
    assert "reaches beyond its storage" in str(found.problem)


@pytest.mark.parametrize(
    "data",
    [end_of_zip(count=65534, size=0xFFFFFFF0, start=0), end_of_zip(count=60000, size=0, start=0),
     b"PK\3\4" + bytes(500) + end_of_zip(count=60000, size=504, start=0), end_of_zip(count=0, size=0, start=0),
     b"PK\3\4" + bytes(98) + b"PK\6\6" + b"\xff" * 52 + b"PK\6\7" + b"\xff" * 16
     + end_of_zip(count=65535, size=9, start=9),
     b"PK\3\4" + b"\xff" * 4000],
)  # fmt: skip
def test_absurd_archives(data: bytes, tmp_path: Path) -> None:
    found = look(data, tmp_path)
    assert found.problem
    assert found.complete is not True
    assert found.intact is not True


def test_members_that_overlap(tmp_path: Path) -> None:
    """The second entry of the list points at the first one's bytes."""
    data = bytearray(saved({"a": torch.ones(4), "b": torch.ones(4)}))
    entries = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    names = [bytes(data[at + 46 : at + 46 + data[at + 28]]) for at in entries]
    one, two = (entries[names.index(name)] for name in (b"archive/data/0", b"archive/data/1"))
    data[two + 42 : two + 46] = data[one + 42 : one + 46]
    found = look(bytes(data), tmp_path)
    assert found.intact is False
    data[two : two + 46 + len(names[0])] = data[one : one + 46 + len(names[0])]
    assert look(bytes(data), tmp_path).problem


def test_older_forms_are_named_and_left_unread(tmp_path: Path) -> None:
    legacy = look(saved(STATE, _use_new_zipfile_serialization=False), tmp_path)
    assert (legacy.form, legacy.complete, legacy.intact, legacy.finite) == ("torch legacy", None, None, None)
    assert legacy.problem is None
    assert "before 1.6" in legacy.notes[0]
    tar = look(tarred("sys_info", "pickle", "tensors", "storages"), tmp_path)
    assert (tar.form, tar.maker, tar.problem) == ("torch tar", "torch", None)
    assert "before 0.1.10" in tar.notes[0]


def tarred(*names: str) -> bytes:
    """A tar archive, with times that need headers of their own."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as made:
        for name in names:
            about = tarfile.TarInfo(name)
            about.size, about.mtime = 600, 1.5
            made.addfile(about, io.BytesIO(bytes(600)))
    return stream.getvalue()


def test_other_tar_archives_are_nothing_of_torch(tmp_path: Path) -> None:
    """Data sets lie in such files by the thousand, beside checkpoints."""
    for data in (tarred("000000.jpg", "000000.cls"), bytes(257) + b"ustar\x0000" + bytes(800)):
        found = look(data, tmp_path)
        assert (found.maker, found.form, found.notes) == ("unknown", "", ())
        assert "tar archive of something else" in str(found.problem)


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "is empty"), (bytes(5000), "zeros"), (b"<html>", "no file of torch")]
)
def test_what_is_no_file_of_torch(data: bytes, words: str, tmp_path: Path) -> None:
    found = look(data, tmp_path)
    assert words in str(found.problem)
    assert found.maker == "unknown"


def test_what_is_no_file_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "gone.pt").symlink_to("nowhere")
    (tmp_path / "round.pt").symlink_to("round.pt")
    (tmp_path / "zero.pt").symlink_to("/dev/zero")
    (tmp_path / "folder.pt").mkdir()
    wanted = {"pipe.pt": "a pipe", "gone.pt": "a link to what is not there", "round.pt": "back to itself",
              "zero.pt": "a device", "folder.pt": "a folder", "never.pt": "not there any more"}  # fmt: skip
    for name, words in wanted.items():
        found = torchzip.look(tmp_path / name, Budget())
        assert words in str(found.problem)
        assert name in str(found.problem)
        assert (found.intact, found.finite) == (None, None)
    assert torchzip.look(tmp_path / "gone.pt", Budget()).complete is False


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    look(GOOD, tmp_path)
    (tmp_path / "last.ckpt").symlink_to("a.pt")
    assert torchzip.look(tmp_path / "last.ckpt", Budget()).intact is True


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    look(GOOD, tmp_path)
    (tmp_path / "a.pt").chmod(0)
    assert "cannot be read" in str(torchzip.look(tmp_path / "a.pt", Budget()).problem)


@pytest.mark.parametrize("change", ["grow", "cut", "vanish", "replace"])
def test_a_file_that_changes_while_it_is_read(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(GOOD)
    checked = torchzip.finite_piece

    def meddle(*args: Any, **more: Any) -> bool:
        if change == "vanish":
            path.unlink(missing_ok=True)
        elif change == "replace":
            (tmp_path / "b.pt").write_bytes(GOOD)
            (tmp_path / "b.pt").replace(path)
        else:
            os.truncate(path, len(GOOD) * 2 if change == "grow" else 4000)
        return checked(*args, **more)

    monkeypatch.setattr(torchzip, "finite_piece", meddle)
    found = torchzip.look(path, Budget())
    assert "while it was read" in str(found.problem)
    assert found.intact is None


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A file of 96 MiB, and two that claim far more than they have, with 48 MiB to look at them."""
    big = tmp_path / "big.pt"
    big.write_bytes(saved({"w": torch.ones(24 << 20), "step": 5}))
    done = subprocess.run([*limited("torchzip", 48), str(big)], capture_output=True, text=True, check=False)
    assert done.stdout == "True True True None\n", done.stderr
    for name, data in (("word", claim(b"\x8d", 1 << 40)), ("bytes", claim(b"B", (1 << 32) - 1))):
        path = tmp_path / f"{name}.pt"
        path.write_bytes(archive({"data.pkl": data}))
        done = subprocess.run([*limited("torchzip", 16), str(path)], capture_output=True, text=True, check=False)
        assert "data.pkl cannot be read" in done.stdout, done.stderr


def test_more_than_four_gigabytes(tmp_path: Path) -> None:
    """Sizes and places of 64 bits, as torch 2.13 writes them; the numbers are a hole in the file."""
    path = tmp_path / "large.pt"
    members = opened(saved({"w": torch.ones(9), "step": 3}))
    members["data.pkl"] = members["data.pkl"].replace(b"K\x09tq", b"\x8a\x05\x00\x00\x00\x80\x00tq")
    assert b"\x8a\x05" in members["data.pkl"]
    size = 1 << 33
    ends = sparse(path, members, size)
    found = torchzip.look(path, Budget(0))
    assert (found.problem, found.complete, found.intact, found.step) == (None, True, None, 3)
    assert found.size_bytes > size
    for at in ends:
        with path.open("r+b") as stream:
            stream.seek(at)
            was = stream.read(1)
            stream.seek(at)
            stream.write(bytes([was[0] ^ 1]))
        assert torchzip.look(path, Budget(0)).intact is False, at
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(was)


def test_the_dispatch_by_name(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "x.pt", "x.pth", "last.ckpt"):
        (tmp_path / name).write_bytes(GOOD)
        assert files.look(tmp_path / name, Budget()).step == 7


def test_a_pickle_that_is_too_large_to_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight.inspector.opcodes.LARGEST", 100)
    found = look(GOOD, tmp_path)
    assert (found.problem, found.complete, found.intact, found.finite) == (None, None, True, None)
    assert "was not read" in found.notes[0]
