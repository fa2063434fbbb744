"""What nobody's training writes, but anybody may: absurd numbers, shapes and names, and holes of a terabyte."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specimens import archive, opened, saved  # noqa: E402 - it imports torch

from overnight.inspector import archive as archives  # noqa: E402
from overnight.inspector import boundedjson, dcp, files, opcodes, tensors, torchzip  # noqa: E402
from overnight.inspector.counts import Counts  # noqa: E402
from overnight.inspector.findings import UNFORESEEN, Budget, Damage, Found  # noqa: E402
from overnight.inspector.objects import walk  # noqa: E402
from overnight.inspector.symbols import TooLarge, Unreadable  # noqa: E402

TERABYTE = 10**12


def look(data: bytes, folder: Path, limit: int | None = None) -> Found:
    path = folder / "a.pt"
    path.write_bytes(data)
    return torchzip.look(path, Budget(limit))


def number(size: int, top: int = 0x7F) -> bytes:
    """An opcode with a whole number of so many bytes."""
    return b"\x8b" + struct.pack("<i", size) + b"\xff" * (size - 1) + bytes([top])


def tensor(numel: bytes = b"K\x02", offset: bytes = b"K\x00", shape: bytes = b"K\x02\x85", step: bytes = b"K\x01\x85",
           key: bytes = b"X\x01\0\0\x000") -> bytes:  # fmt: skip
    """A pickle of a dict with one tensor."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\n" + key + b"X\x03\0\0\0cpu" + numel + b"tQ"
    return (b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + step
            + b"\x89ccollections\nOrderedDict\n)RtRs.")  # fmt: skip


ABSURD = {
    "numel": tensor(number(4000)), "negative numel": tensor(number(4, 0xFF)), "offset": tensor(offset=number(4000)),
    "shape": tensor(shape=number(4000) + b"\x85"), "stride": tensor(step=number(4000) + b"\x85"),
    "dimensions": tensor(shape=b"(" + b"K\x01" * 300_000 + b"t", step=b"(" + b"K\x01" * 300_000 + b"t"),
    "huge dimensions": tensor(shape=b"(" + number(7) * 200 + b"t", step=b"(" + number(7) * 200 + b"t"),
    "no shape": tensor(shape=b"N"), "shape of words": tensor(shape=b"X\x01\0\0\0a\x85"), "key": tensor(key=b"K\x01"),
    "long key": tensor(key=b"X" + struct.pack("<I", 100_000) + b"x" * 100_000),
    "not a storage": b"\x80\x02X\x01\0\0\0aQ.",
    "a long global": b"c" + b"o" * 5000 + b"\nsystem\n.",
}  # fmt: skip


def test_the_pickle_by_hand_is_one_that_is_good_otherwise(tmp_path: Path) -> None:
    found = look(archive({**opened(saved({"w": torch.ones(2)})), "data.pkl": tensor()}), tmp_path)
    assert (found.problem, found.intact, found.finite, found.tensors) == (None, True, True, 1)


@pytest.mark.parametrize("name", list(ABSURD))
@pytest.mark.parametrize("limit", [0, None])
def test_absurd_numbers_in_a_pickle(name: str, limit: int | None, tmp_path: Path) -> None:
    found = look(archive({**opened(saved({"w": torch.ones(2)})), "data.pkl": ABSURD[name]}), tmp_path, limit)
    assert found.problem is not None
    assert "cannot be looked into" not in found.problem
    assert len(found.problem) < 500
    assert (found.complete, found.intact) != (True, True)


ONES = b"K\x01" * 50_000
PAIRS = b"]\x94(" + b"]K\x01aK\x02a" * 1000 + b"e"
ENCODED = b"(c_codecs\nencode\nh\0\x85Rcnumpy\ndtype\nX\x02\0\0\0f4\x85RJ\0\0\4\0\x85X\x01\0\0\0Ct"
SHARED = {
    "pairs": PAIRS + b"0(" + b"ccollections\nOrderedDict\nh\0\x85R" * 20_000 + b"t.",
    "arguments": b"(" + ONES + b"t\x94(" + b"ca\nb\nh\0R" * 20_000 + b"t.",
    "state": b"(" + ONES + b"t\x94(" + b"ca\nb\n)Rh\0b" * 20_000 + b"t.",
    "reconstructed": b"(ca\nb\n" + ONES + b"t\x94(" + b"ccopyreg\n_reconstructor\nh\0R" * 20_000 + b"t.",
    "bytes": b"X\0\0\x10\0" + b"x" * (1 << 20) + b"\x94("
             + (b"cnumpy.core.multiarray\n_frombuffer\n" + ENCODED + b"R") * 2000 + b"t.",
    "bytes in bytes": (b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\0\0\0f4\x85R"
                       + b"c_codecs\nencode\n" * 20_000 + b"X\x04\0\0\0aaaa" + b"\x85R" * 20_000 + b"\x86R."),
}  # fmt: skip
SHARED = {name: b"\x80\x04" + data for name, data in SHARED.items()}


@pytest.mark.parametrize("name", list(SHARED))
def test_what_many_objects_share_is_met_once(name: str, tmp_path: Path) -> None:
    """50,000 values in each of 20,000 objects: a billion, for who copies them or walks them all."""
    steps = 0
    try:
        for _ in walk(opcodes.read(SHARED[name]).value):
            steps += 1
    except TooLarge:
        pass
    assert steps < 300_000
    found = look(archive({**opened(saved({"w": torch.ones(2)})), "data.pkl": SHARED[name]}), tmp_path)
    assert found.problem is None or "cannot be looked into" not in found.problem
    assert found.intact is True


def test_many_views_of_one_storage_are_not_read_for_ever(tmp_path: Path) -> None:
    base = torch.ones(1_000_000)
    base[0] = float("nan")
    found = look(saved({"v": [base[1 + at :] for at in range(1000)]}), tmp_path)
    assert (found.problem, found.intact, found.finite) == (None, True, None)
    assert "not all views" in found.notes[0]
    assert look(saved({"v": [base[at:] for at in range(1000)]}), tmp_path).finite is False


def test_values_that_cannot_even_be_shown_are_left_out(tmp_path: Path) -> None:
    found = look(saved({"run": 10**5000, "step": 5, "lr": -(10**30), "seed": 1 << 62}), tmp_path)
    assert (found.problem, found.step) == (None, 5)
    assert dict(found.values) == {"step": 5, "seed": 1 << 62}
    json.dumps(dict(found.values))


@pytest.mark.parametrize("step", [-5, 10**5000, float("nan"), float("inf"), "5", None, True, 5.5, [5]], ids=range(9))
def test_what_is_no_step_is_none(step: object, tmp_path: Path) -> None:
    assert look(saved({"step": step}), tmp_path).step is None


def test_no_key_breaks_anything(tmp_path: Path) -> None:
    keys: list[Any] = ["x" * 10**6, "\ud800", "a\0b", "\n", "", 10**5000, -1, 1.5, float("nan"), None, True, b"\xff",
                       (1, ("a",)), ("x",) * 500, frozenset((1,))]  # fmt: skip
    state = {key: torch.ones(2) for key in keys}
    assert look(saved({"step": 4, "in": state, **state}), tmp_path).step == 4
    nan = {key: {"w": torch.tensor([1.0, float("nan")])} for key in keys}
    found = look(saved(nan), tmp_path)
    assert found.finite is False
    assert len(str(found.problem)) < 500


# -- one last guard --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*UNFORESEEN, RecursionError, OverflowError, IndexError, UnicodeDecodeError])
def test_whatever_a_reader_raises_is_a_finding(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error("utf-8", b"", 0, 1, "no") if error is UnicodeDecodeError else error("no")

    (tmp_path / "dcp").mkdir()
    for name in ("a.pt", "a.safetensors", "a.npz", "model.safetensors.index.json", "dcp/.metadata"):
        (tmp_path / name).write_bytes(b"PK\3\4" + bytes(100))
    for room in ("zips.read", "tensors.parse_json", "dcp._read"):
        monkeypatch.setattr(f"overnight.inspector.{room}", fails)
    monkeypatch.setattr(tensors, "inspect", fails)
    for name in ("a.pt", "a.safetensors", "a.npz", "model.safetensors.index.json", "dcp"):
        found = files.look(tmp_path / name, Budget())
        assert "cannot be looked into" in str(found.problem), name
        assert name in str(found.problem)
        assert (found.complete, found.intact, found.finite) == (None, None, None)


def test_a_clause_is_never_longer_than_a_person_reads() -> None:
    assert len(Damage("x" * 10**6).clause) < 500


# -- JSON ------------------------------------------------------------------------------------------------------------


def test_json_of_strangers() -> None:
    assert boundedjson.loads(b'{"a": [1, 2.5, null, {"b": "c"}]}') == {"a": [1, 2.5, None, {"b": "c"}]}
    assert boundedjson.loads(b'{"a": 1, "a": 2}') == {"a": 2}
    deep = b"[" * boundedjson.DEEPEST + b"]" * boundedjson.DEEPEST
    assert boundedjson.loads(deep)
    for data in (b"[" + deep + b"]", b"[" * 10**6, b'{"a":' * 5000 + b"1" + b"}" * 5000):
        with pytest.raises(boundedjson.TooMuch, match="deeper"):
            boundedjson.loads(data)
    for data in (b"[" + b"{}," * 2_000_000 + b"{}]", b"[" + b"1," * 4_000_000 + b"1]"):
        with pytest.raises(boundedjson.TooMuch, match="more items"):
            boundedjson.loads(data)
    with pytest.raises(boundedjson.TooMuch, match="bytes are more"):
        boundedjson.loads(b" " * (boundedjson.LARGEST + 1))
    for data in (b"", b"{", b"\xff", b"9" * 10**5, b"nul"):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
            boundedjson.loads(data)
    with pytest.raises(ValueError, match="twice"):
        boundedjson.loads(b'[{"a": 1, "a": 2}]', once=True)


# -- shapes and holes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1 << 61])
def test_a_shape_of_many_dimensions(size: int, tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [size] * 300_000, "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert "300,000 dimensions" in str(tensors.look(path, Budget(0)).problem)


def numpy_file(header: bytes, data: bytes = bytes(24)) -> bytes:
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "header",
    [b"{'descr': {[]:1}, 'fortran_order': False, 'shape': (3,), }",
     b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (3,), }",
     b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"9" * 4000 + b",), }",
     b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"99999999999," * 5000 + b"), }",
     b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"1," * 30_000 + b"), }"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_headers_of_numpy(header: bytes, name: str, tmp_path: Path) -> None:
    data = numpy_file(header)
    if name == "a.npz":
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as made, made.open("w.npy", "w", force_zip64=True) as member:
            member.write(data)
        data = stream.getvalue()
    (tmp_path / name).write_bytes(data)
    found = archives.look(tmp_path / name, Budget())
    assert found.problem is not None
    assert "has a header that says" in found.problem


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npz", "a.npy", "a.zip"])
def test_a_terabyte_of_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, TERABYTE)
    found = files.look(tmp_path / name, Budget(0))
    assert found.problem is not None
    assert (found.intact, found.size_bytes) != (True, TERABYTE)


@pytest.mark.parametrize("begin", [b"PK\3\4", b""])
def test_a_terabyte_behind_a_good_begin(begin: bytes, tmp_path: Path) -> None:
    data = begin * 30
    if not begin:
        size = TERABYTE // 4 * 4
        header = json.dumps({"w": {"dtype": "F32", "shape": [1000, size // 4000], "data_offsets": [0, size]}}).encode()
        data = len(header).to_bytes(8, "little") + header + b"\1" * 5001
        path = tmp_path / "a.safetensors"
        path.write_bytes(data)
        os.truncate(path, 8 + len(header) + size)
    else:
        path = tmp_path / "a.pt"
        path.write_bytes(data)
        os.truncate(path, TERABYTE)
    found = files.look(path, Budget(0))
    assert found.complete is False
    assert "zeros" in str(found.problem)


def test_zeros_at_an_end_are_counted_whether_a_hole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    size = 5 << 20
    for data, hole, zeros in ((b"", size, size), (b"ab", size, size), (b"ab" + bytes(9), size, 9 + size),
                              (b"", 0, 0), (b"ab", 0, 0), (b"ab" + bytes(size), 0, size)):  # fmt: skip
        path.write_bytes(data)
        os.truncate(path, len(data) + hole)
        with torchzip.Source(path) as source:
            assert source.whole().zeros_at_end() == zeros
            assert source.whole().zeros_known(zeros)
            least = source.whole().zeros_at_end(1)
            assert least <= zeros
            assert bool(least) is bool(zeros)
            assert source.whole().zeros_known(least) is (least == zeros)


def test_more_zeros_than_are_read_for_structure_are_looked_at_with_the_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    data = safetensors.save({"a": torch.randn(1000, 333), "b": torch.randn(1000, 331)})
    lost = data[: len(data) // 2 + 333] + bytes(len(data) - len(data) // 2 - 333)
    path = tmp_path / "a.safetensors"
    path.write_bytes(lost)
    monkeypatch.setattr("overnight.inspector.source.Window.zeros_at_end.__defaults__", (1 << 10,))
    assert tensors.look(path, Budget(0)).problem is None
    assert "zeros" in str(tensors.look(path, Budget()).problem)


def test_headers_that_many_members_share(tmp_path: Path) -> None:
    """A list of 100,000 members that all have the same header of 60,000 bytes before them."""
    extra = struct.pack("<HH", 0x4246, 60_000) + b"Z" * 60_000
    local = b"PK\3\4" + struct.pack("<5H3L2H", 0, 0, 0, 0, 0, 0, 0, 0, 1, len(extra)) + b"a" + extra
    entry = b"PK\1\2" + struct.pack("<6H3L5H2L", 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    count = 60_000
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, len(entry) * count, len(local), 0)
    assert "overlaps" in str(look(local + entry * count + end, tmp_path).problem)


# -- lists of torch.distributed --------------------------------------------------------------------------------------


def listing(folder: Path, change: tuple[bytes, bytes]) -> Found:
    """A checkpoint of torch.distributed with one change in its list."""
    import torch.distributed.checkpoint as saving

    saving.save({"w": torch.ones(4), "name": "x"}, checkpoint_id=str(folder), no_dist=True)
    path = folder / ".metadata"
    data = path.read_bytes()
    assert change[0] in data
    data = data.replace(*change)
    if data[2:3] == b"\x95":  # the frame's length is another now
        data = data[:2] + data[11:]
    path.write_bytes(data)
    return dcp.look(folder, Budget())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [(b"\x8c\x06offset\x94", b"\x8c\x06offset\x94"), (b"\x8c\x06length", b"\x8c\x06lengtx"),
     (b"\x8c\x0drelative_path", b"\x8c\x0drelativX_path")],
)  # fmt: skip
def test_lists_that_make_no_sense(change: tuple[bytes, bytes], tmp_path: Path) -> None:
    found = listing(tmp_path / "a", change)
    assert (found.problem is None) is (change[0] == change[1])
    assert "cannot be looked into" not in str(found.problem)


def metadata(entry: dict[str, Any], info: dict[str, Any]) -> bytes:
    """A list of one tensor, with numbers of any size."""

    def thing(name: str, state: bytes) -> bytes:
        return b"ct.d.c.metadata\n" + name.encode() + b"\n)\x81" + state + b"b"

    def plain(value: Any) -> bytes:
        return pickle.dumps(value, 2)[2:-1].replace(b"q\0", b"").replace(b"q\1", b"")

    chunk = thing("ChunkStorageMetadata", plain(entry))
    inner = b"}(" + plain("chunks") + b"]" + chunk + b"a" + plain("properties") + b"Nu"
    described = b"}" + plain("w") + thing("TensorStorageMetadata", inner) + b"s"
    index = thing("MetadataIndex", plain({"fqn": "w", "offset": (0,)}))
    placed = b"}" + index + thing("_StorageInfo", plain(info)) + b"s"
    return (b"\x80\x02" + thing("Metadata", b"}(" + plain("state_dict_metadata") + described
            + plain("storage_data") + placed + b"u") + b".")  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [({}, "is missing"), ({"offset": 10**5000}, "where something lies"), ({"length": 10**5000}, "where something lies"),
     ({"length": 1 << 70}, "where something lies"), ({"offset": -1}, "where something lies"),
     ({"relative_path": "x" * 10**6}, "where something lies"), ({"relative_path": "a\0b"}, "outside of the folder"),
     ({"relative_path": "\ud800"}, "is missing"), ({"relative_path": 5}, "where something lies")],
    ids=range(9),
)  # fmt: skip
def test_absurd_places(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    info = {"relative_path": "__0_0.distcp", "offset": 0, "length": 9, **more}
    (tmp_path / ".metadata").write_bytes(metadata({"offsets": (0,), "sizes": (2,)}, info))
    found = dcp.look(tmp_path, Budget())
    assert words in str(found.problem)


def test_the_walk_of_any_pickle_ends_with_values_or_unreadable() -> None:
    for data in (one for name, one in ABSURD.items() if name != "huge dimensions"):
        with pytest.raises(Unreadable):
            _taken(data)


def _taken(data: bytes) -> None:
    counts = Counts(lambda _: None)
    for place, value in walk(opcodes.read(data).value):
        counts.take(place, value)
