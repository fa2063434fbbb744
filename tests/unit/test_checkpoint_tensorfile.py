"""Files in the format of safetensors: its library reads ours, we read its own, and neither is trusted."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.checkpoint import tensorfile
from overnight.checkpoint.direct import DirectFile
from overnight.checkpoint.errors import CheckpointError, DamagedError
from overnight.checkpoint.jobs import Leaf
from overnight.checkpoint.leaves import TORCH_NAMES, as_torch, buffer
from overnight.checkpoint.manifest import file_digest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors")

NAMES = {kind: name for name, kind in TORCH_NAMES.items()}
KNOWN = [name for name in TORCH_NAMES if name != "C128"]


def leaf_of(tensor: Any) -> Leaf:
    dtype = NAMES[str(tensor.dtype).removeprefix("torch.")]
    return Leaf(kind="torch", dtype=dtype, shape=tuple(tensor.shape), size=tensor.numel() * tensor.element_size())


def save(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    leaves = [leaf_of(one) for one in tensors.values()]
    with DirectFile(path) as out:
        tensorfile.write(out, list(tensors), leaves, [buffer(one) for one in tensors.values()], metadata or {})
        facts = out.finish()
    assert (facts.size, facts.xxh3_128) == (path.stat().st_size, file_digest(path))


def tensor_of(dtype: str, shape: Sequence[int], seed: int = 0) -> Any:
    made = torch.randint(0, 120, tuple(shape), generator=torch.Generator().manual_seed(seed))
    if dtype == "BOOL":
        return made > 60
    kind = getattr(torch, TORCH_NAMES[dtype])
    return made.to(torch.float32).to(kind) if kind.is_floating_point and kind.itemsize == 1 else made.to(kind)


def same(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bytes(buffer(one)) == bytes(buffer(other))


MIXED = {f"{dtype}.{at}": tensor_of(dtype, shape, at) for dtype in KNOWN
         for at, shape in enumerate([(3,), (), (0, 4), (64, 64), (5, 7, 2)])}  # fmt: skip
"""Every dtype, scalars, nothing at all, whole blocks and odd sizes."""


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    known = {name: one for name, one in MIXED.items() if one.dtype is not torch.float8_e8m0fnu}
    save(tmp_path / "file", known, {"format": "pt", "ümläut": 'a "quoted" \\ word\n'})
    read = load_file(tmp_path / "file")
    assert sorted(read) == sorted(known)
    assert all(same(read[name], known[name]) for name in known)
    with safetensors.safe_open(tmp_path / "file", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "ümläut": 'a "quoted" \\ word\n'}


def test_the_library_lists_every_dtype(tmp_path: Path) -> None:
    save(tmp_path / "file", MIXED)
    read = dict(safetensors.deserialize((tmp_path / "file").read_bytes()))
    assert {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in read.items()} == {
        name: (leaf_of(one).dtype, tuple(one.shape), bytes(buffer(one))) for name, one in MIXED.items()
    }


def test_the_library_reads_arrays(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    arrays = {
        kind: np.arange(70).astype(kind).reshape(7, 10) for kind in "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ? c8".split()
    }
    save(tmp_path / "file", {name: torch.from_numpy(one) for name, one in arrays.items()})
    read = load_file(tmp_path / "file")
    assert sorted(read) == sorted(arrays)
    assert all(read[name].dtype == one.dtype and np.array_equal(read[name], one) for name, one in arrays.items())


def test_the_distributed_reader_of_torch_reads_it(tmp_path: Path) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(dcp, "HuggingFaceStorageReader"):
        pytest.skip("this torch has no HuggingFaceStorageReader")
    tensors = {name: one for name, one in MIXED.items() if one.numel() and one.dtype in (torch.float32, torch.bfloat16)}
    save(tmp_path / "model.safetensors", tensors)
    read = {name: torch.zeros_like(one) for name, one in tensors.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that no process group is there
        dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(same(read[name], tensors[name]) for name in tensors)


def read_back(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    tensors, metadata = tensorfile.read(path)
    return {name: as_torch(leaf, data) for name, (leaf, data) in tensors.items()}, metadata


def test_what_was_written_is_read(tmp_path: Path) -> None:
    save(tmp_path / "file", MIXED, {"a": "b"})
    read, metadata = read_back(tmp_path / "file")
    assert metadata == {"a": "b"}
    assert sorted(read) == sorted(MIXED)
    assert all(same(read[name], MIXED[name]) for name in MIXED)


def test_what_the_library_wrote_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    known = {name: one for name, one in MIXED.items() if one.dtype is not torch.float8_e8m0fnu}
    for metadata in (None, {}, {"format": "pt", "käse": "[{}]\u2028"}):
        save_file(known, tmp_path / "file", metadata=metadata)
        read, found = read_back(tmp_path / "file")
        assert found == (metadata or {})
        assert all(same(read[name], known[name]) for name in known)
        assert len(read) == len(known)


def test_no_tensors_are_a_file_too(tmp_path: Path) -> None:
    save(tmp_path / "file", {})
    assert tensorfile.read(tmp_path / "file") == ({}, {})
    assert list(safetensors.deserialize((tmp_path / "file").read_bytes())) == []


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != tensorfile.METADATA),
        st.tuples(st.sampled_from(KNOWN), st.lists(st.integers(0, 9), max_size=4)),
        max_size=8,
    ),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    ),
)
def test_any_names_and_shapes_come_back(tmp_path: Path, shapes: Any, metadata: dict[str, str]) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    tensors = {name: tensor_of(dtype, shape, at) for at, (name, (dtype, shape)) in enumerate(shapes.items())}
    save(path, tensors, metadata)
    read, found = read_back(path)
    assert found == metadata
    assert sorted(read) == sorted(tensors)
    assert all(same(read[name], tensors[name]) for name in tensors)
    assert sorted(name for name, _ in safetensors.deserialize(path.read_bytes())) == sorted(tensors)


def test_every_tensor_lies_aligned(tmp_path: Path) -> None:
    save(tmp_path / "file", MIXED)
    tensors, _ = tensorfile.read(tmp_path / "file")
    raw = (tmp_path / "file").read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:begin])
    assert begin % 4096 == 0
    for name, entry in header.items():
        leaf = tensors[name][0]
        assert entry["data_offsets"][0] % (4096 if leaf.size % 4096 == 0 else tensorfile.WIDTHS[leaf.dtype]) == 0, name


def test_what_is_read_may_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    save(tmp_path / "file", {"a": torch.ones(5)})
    before = (tmp_path / "file").read_bytes()
    read, _ = read_back(tmp_path / "file")
    read["a"].fill_(7)
    assert read["a"].tolist() == [7.0] * 5
    assert (tmp_path / "file").read_bytes() == before


def test_where_memory_is_not_promised_the_file_is_mapped_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "file", {"a": torch.ones(5)})
    real = tensorfile.mmap.mmap

    def refuse(fd: int, length: int, *, access: int) -> Any:
        if access == tensorfile.mmap.ACCESS_COPY:
            raise OSError(12, "Cannot allocate memory")
        return real(fd, length, access=access)

    monkeypatch.setattr(tensorfile.mmap, "mmap", refuse)
    leaf, data = tensorfile.read(tmp_path / "file")[0]["a"]
    assert data.readonly
    assert (leaf.size, bytes(data)) == (20, struct.pack("<5f", *[1.0] * 5))


F32 = Leaf(kind="torch", dtype="F32", shape=(2,), size=8)


@pytest.mark.parametrize(
    ("names", "leaf", "metadata", "words"),
    [
        (["fourier"], Leaf(kind="torch", dtype="C128", shape=(1,), size=8), {}, "fourier has the dtype C128"),
        (["new"], Leaf(kind="torch", dtype="F4", shape=(16,), size=8), {}, "new has the dtype F4"),
        (["w", "w"], F32, {}, "two tensors are called 'w'"),
        (["__metadata__"], F32, {}, "keeps for itself"),
        (["w"], Leaf(kind="torch", dtype="F32", shape=(3,), size=12), {}, "w has 8 bytes, which does not fit F32"),
        (["w"], Leaf(kind="torch", dtype="F32", shape=(3,), size=8), {}, "does not fit F32"),
        (["w\ud800"], F32, {}, "is no text"),
        (["w"], F32, {"epoch": 3}, "holds something that is no text"),
    ],
    ids=["C128", "F4", "twice", "reserved", "short", "shape", "name", "metadata"],
)  # fmt: skip
def test_what_the_format_cannot_hold_is_refused_before_a_byte_is_written(
    tmp_path: Path, names: list[str], leaf: Leaf, metadata: Any, words: str
) -> None:
    with DirectFile(tmp_path / "file") as out:
        with pytest.raises(CheckpointError, match=words):
            tensorfile.write(out, names, [leaf] * len(names), [memoryview(bytes(8))] * len(names), metadata)
        assert out.tell() == 0


def test_a_header_that_the_library_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorfile, "LONGEST_HEADER", 10_000)
    names = [f"layer{at}.weight" for at in range(300)]
    with DirectFile(tmp_path / "file") as out:
        with pytest.raises(CheckpointError, match=r"300 tensors need a header of 2\d,\d\d\d bytes"):
            tensorfile.write(out, names, [F32] * 300, [memoryview(bytes(8))] * 300, {})
        assert out.tell() == 0


def test_the_limit_is_that_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(struct.pack("<Q", tensorfile.LONGEST_HEADER + 1))
    os.truncate(tmp_path / "file", tensorfile.LONGEST_HEADER + 9)
    with pytest.raises(DamagedError, match="claims a header of 100,000,001 bytes"):
        tensorfile.read(tmp_path / "file")
    with pytest.raises(safetensors.SafetensorError, match=r"(?i)header.*too.*large"):
        safetensors.safe_open(tmp_path / "file", "np")


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


GOOD = {"a": entry(0, 4), "b": entry(4, 8)}
NO_SAFETENSORS = "not one of safetensors"
ABSURD = {
    "empty file": (b"", "fewer than its header needs"),
    "seven bytes": (b"1234567", "fewer than its header needs"),
    "length 2**60": (file_of(GOOD, bytes(8), 1 << 60), "fewer than its header needs"),
    "length -1": (file_of(GOOD, bytes(8), (1 << 64) - 1), "fewer than its header needs"),
    "length one too many": (file_of({}, b"", 3), "fewer than its header needs"),
    "length 0": (file_of(GOOD, bytes(8), 0), NO_SAFETENSORS),
    "length one too few": (file_of(GOOD, bytes(8), len(json.dumps(GOOD)) - 1), NO_SAFETENSORS),
    "truncated data": (file_of(GOOD, bytes(7)), "7 bytes of tensors instead of 8"),
    "bytes behind the data": (file_of(GOOD, bytes(9)), "9 bytes of tensors instead of 8"),
    "overlap": (file_of({"a": entry(0, 5), "b": entry(4, 8)}, bytes(8)), "overlap or leave a hole at byte 4"),
    "same place twice": (file_of({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)), "overlap"),
    "hole": (file_of({"a": entry(0, 3), "b": entry(4, 8)}, bytes(8)), "overlap or leave a hole at byte 3"),
    "hole at the begin": (file_of({"a": entry(1, 8)}, bytes(8)), "overlap or leave a hole at byte 0"),
    "beyond the file": (file_of({"a": entry(0, 1 << 50)}, bytes(8)), "8 bytes of tensors instead of"),
    "negative begin": (file_of({"a": entry(-4, 4)}, bytes(8)), NO_SAFETENSORS),
    "end before begin": (file_of({"a": entry(8, 0, [0])}, bytes(8)), NO_SAFETENSORS),
    "negative dimensions": (file_of({"a": entry(0, 8, [-2, -4])}, bytes(8)), NO_SAFETENSORS),
    "shape of another size": (file_of({"a": entry(0, 8, [3])}, bytes(8)), NO_SAFETENSORS),
    "dimension 2**70 of nothing": (file_of({"a": entry(0, 0, [0, 1 << 70])}), NO_SAFETENSORS),
    "product beyond 64 bits": (file_of({"a": entry(0, 0, [1 << 32, 1 << 32])}), NO_SAFETENSORS),
    "many large dimensions": (file_of({"a": entry(0, 8, [(1 << 62) + 1] * 3000)}, bytes(8)), NO_SAFETENSORS),
    "fractions": (file_of({"a": entry(0, 8, [8.0])}, bytes(8)), NO_SAFETENSORS),
    "truths": (file_of({"a": entry(0, 1, [True])}, bytes(1)), NO_SAFETENSORS),
    "NaN": (file_of(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)), NO_SAFETENSORS),
    "unknown dtype": (file_of({"a": entry(0, 8, dtype="F13")}, bytes(8)), "dtype 'F13', which is not known"),
    "dtype no word": (file_of({"a": entry(0, 8, dtype=["U8"])}, bytes(8)), NO_SAFETENSORS),
    "three offsets": (file_of({"a": {**entry(0, 8), "data_offsets": [0, 4, 8]}}, bytes(8)), NO_SAFETENSORS),
    "missing shape": (file_of({"a": {"dtype": "U8", "data_offsets": [0, 8]}}, bytes(8)), NO_SAFETENSORS),
    "one key more": (file_of({"a": {**entry(0, 8), "x": 1}}, bytes(8)), NO_SAFETENSORS),
    "twice the same name": (file_of(json.dumps(GOOD).replace('"b"', '"a"').encode(), bytes(8)), "called 'a'"),
    "two metadata": (file_of(b'{"__metadata__":{},"__metadata__":{}}'), "two entries called '__metadata__'"),
    "metadata no words": (file_of({"__metadata__": {"a": 1}}), NO_SAFETENSORS),
    "metadata a list": (file_of({"__metadata__": ["a"]}), NO_SAFETENSORS),
    "metadata without an end": (file_of(b'{"__metadata__":{"a":"b"'), NO_SAFETENSORS),
    "a list": (file_of([1, 2]), NO_SAFETENSORS),
    "a word": (file_of(b'"abc"'), NO_SAFETENSORS),
    "not JSON": (file_of(b"{dtype: U8}"), NO_SAFETENSORS),
    "begins with a space": (file_of(b" {}"), NO_SAFETENSORS),
    "more behind the end": (file_of(b"{}{}"), NO_SAFETENSORS),
    "comma at the end": (file_of(b'{"__metadata__":{},}'), NO_SAFETENSORS),
    "no comma": (file_of(json.dumps(GOOD).replace("}, ", "} ").encode(), bytes(8)), NO_SAFETENSORS),
    "not UTF-8": (file_of(b'{"\xff\xfe":1}'), "is no text"),
    "nested deep": (file_of(b'{"a":' * 500_000), NO_SAFETENSORS),
    "lists nested deep": (file_of(b'{"a":{"dtype":' + b"[" * 50_000 + b"}}"), NO_SAFETENSORS),
    "lists at the top": (file_of(b'{"a":' + b"[" * 1_000_000), NO_SAFETENSORS),
    "a million digits": (file_of(b'{"a":{"dtype":"U8","shape":[' + b"9" * 1_000_000 + b"]}}"), NO_SAFETENSORS),
    "a pickle": (b"\x80\x02}q\x00." * 20, "fewer than its header needs"),
    "a zip": (b"PK\x03\x04" + bytes(300), "fewer than its header needs|not one of"),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_files_are_damaged_files(tmp_path: Path, name: str) -> None:
    content, words = ABSURD[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=words) as caught:
        tensorfile.read(path)
    assert str(caught.value).startswith("x.safetensors ")
    assert len(str(caught.value)) < 200
    assert caught.value.__cause__ is None


def test_a_good_file_of_the_same_kind_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(file_of({**GOOD, "none": entry(4, 4), "__metadata__": {"{": "}"}}, b"abcdefgh"))
    tensors, metadata = tensorfile.read(tmp_path / "x")
    assert {name: bytes(data) for name, (_, data) in tensors.items()} == {"a": b"abcd", "b": b"efgh", "none": b""}
    assert metadata == {"{": "}"}


def test_what_cannot_be_opened_is_damaged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("pipe", "link", "nothing", "."):
        with pytest.raises(DamagedError, match=r"cannot be read|is not a file"):
            tensorfile.read(tmp_path / name)


def test_any_flipped_byte_of_a_header_ends_in_damage_or_in_another_file(tmp_path: Path) -> None:
    save(tmp_path / "file", {"layer.weight": torch.arange(12.0).view(3, 4), "b": torch.ones(2, dtype=torch.int16)})
    content = bytearray((tmp_path / "file").read_bytes())
    end = content.rindex(b"}") + 3
    chance = random.Random(5)
    for at in range(end):
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        (tmp_path / "other").write_bytes(flipped)
        try:
            tensors, _ = tensorfile.read(tmp_path / "other")
        except DamagedError:
            continue
        assert sum(len(data) for _, data in tensors.values()) == 52


BOUNDED = """
import resource, sys
from pathlib import Path
from overnight.checkpoint import errors, tensorfile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    tensorfile.read(Path(sys.argv[1]))
except errors.DamagedError:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def announced(path: Path, length: int) -> None:
    with path.open("r+b") as out:
        out.write(struct.pack("<Q", length))
        out.truncate(8 + length)


def filled(path: Path, length: int, begin: bytes, unit: bytes) -> None:
    text = begin + unit * ((length - len(begin)) // len(unit))
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    ("make", "most_mib"),
    [
        (lambda path: (filled(path, 1_000, b'{"a":', b"[],"), announced(path, 200_000_000)), 16),
        (lambda path: filled(path, 30_000_000, b'{"a":[', b"[],"), 120),
        (lambda path: filled(path, 30_000_000, b'{"a":{"dtype":[', b"[],"), 120),
        (lambda path: filled(path, 30_000_000, b'{"__metadata__":[', b"{},"), 120),
        (lambda path: filled(path, 30_000_000, b'{"__metadata__":{"a":[', b"{},"), 120),
        (lambda path: filled(path, 30_000_000, b'{"a":', b'{"dtype":'), 120),
        (lambda path: filled(path, 30_000_000, b"{", b" "), 120),
        (lambda path: filled(path, 30_000_000, b'{"', b'\\\\"'), 180),
    ],
    ids=["200 MB", "lists", "lists for a dtype", "metadata", "metadata's words", "nested", "spaces", "one name"],
)  # fmt: skip
def test_long_headers_take_no_more_memory_than_a_few_times_their_length(
    tmp_path: Path, make: Callable[[Path], None], most_mib: int
) -> None:
    make(tmp_path / "file")
    done = subprocess.run([sys.executable, "-c", BOUNDED, str(tmp_path / "file")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stderr == ""
    assert int(done.stdout) < most_mib


def test_a_large_file_is_mapped_not_loaded(tmp_path: Path) -> None:
    size = 8 << 30
    text = json.dumps({"a": entry(0, size)}).encode()
    with (tmp_path / "file").open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensors, _ = tensorfile.read(tmp_path / "file")
    assert bytes(tensors["a"][1][-3:]) == b"\0\0\0"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_shape_that_is_too_large_is_not_counted_to_its_end() -> None:
    with pytest.raises(ValueError, match="at the end"):
        tensorfile._count([1 << 62, 2, "at the end"])
    assert tensorfile._count([1 << 62, 0, 5]) == 0
