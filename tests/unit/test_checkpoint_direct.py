"""Files written past the page cache: what is in them, what is said of them, and what happens when the disk says no."""

from __future__ import annotations

import errno
import fcntl
import gc
import io
import mmap
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight.checkpoint import direct
from overnight.checkpoint.direct import BLOCK, PIECE, STRAIGHT, DirectFile
from overnight.checkpoint.manifest import FileFacts, digest, file_digest

SHM = Path("/dev/shm")


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access(SHM, os.W_OK):
        pytest.skip("there is no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=SHM) as name:
        yield Path(name)


def aligned(size: int, shift: int = 0) -> memoryview:
    """Return ``size`` bytes of many values that begin ``shift`` bytes behind the begin of a page."""
    view = memoryview(mmap.mmap(-1, size + shift or 1))[shift : shift + size]
    view[:] = (bytes(range(251)) * (size // 251 + 1))[:size]
    return view


def written(path: Path, pieces: list[Any], *, direct: bool = True) -> FileFacts:
    with DirectFile(path, direct=direct) as out:
        for piece in pieces:
            assert out.write(piece) == memoryview(piece).nbytes
        return out.finish()


def facts_of(path: Path) -> FileFacts:
    return FileFacts(size=path.stat().st_size, xxh3_128=file_digest(path))


@pytest.mark.parametrize("straight", [True, False])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_written_is_what_is_there(folder: Path, straight: bool, data: st.DataObject) -> None:
    odd = st.sampled_from([0, 1, 7, 64, 511, 512, 4095, 4096, 4097, 8192, STRAIGHT - 1, STRAIGHT, STRAIGHT + 1,
                           PIECE - 4096, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 4097])  # fmt: skip
    parts = data.draw(
        st.lists(st.tuples(odd | st.integers(0, 20_000), st.sampled_from([0, 1, 64, 512, 4000])), max_size=6)
    )
    pieces = [aligned(size, shift) for size, shift in parts]
    path = folder / "file"
    path.unlink(missing_ok=True)
    facts = written(path, pieces, direct=straight)
    content = b"".join(pieces)
    assert path.read_bytes() == content
    assert facts == FileFacts(size=len(content), xxh3_128=digest(content)) == facts_of(path)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_may_be_written(tmp_path: Path, kind: Any) -> None:
    import array

    numbers = memoryview(array.array("d", [1.0, 2.5, -3.0])).cast("B")
    facts = written(tmp_path / "file", [kind(bytes(numbers)), array.array("d", [7.0])])
    assert (tmp_path / "file").read_bytes() == bytes(numbers) + bytes(memoryview(array.array("d", [7.0])))
    assert facts.size == 32


def test_an_empty_file_is_a_file(folder: Path) -> None:
    assert written(folder / "file", []) == FileFacts(size=0, xxh3_128=digest(b""))
    assert (folder / "file").read_bytes() == b""


def test_tell_counts_what_was_taken(tmp_path: Path) -> None:
    with DirectFile(tmp_path / "file") as out:
        assert out.tell() == 0
        for size, total in ((10, 10), (PIECE, PIECE + 10), (STRAIGHT * 3 + 5, PIECE + STRAIGHT * 3 + 15)):
            out.write(aligned(size))
            out.flush()
            assert out.tell() == total


def test_data_may_be_changed_as_soon_as_write_returns(folder: Path) -> None:
    live = aligned(2 * PIECE)
    before = bytes(live)
    with DirectFile(folder / "file") as out:
        out.write(live)
        live[:] = bytes(len(live))
        out.write(live[:100])
        facts = out.finish()
    assert (folder / "file").read_bytes() == before + bytes(100)
    assert facts == facts_of(folder / "file")


def test_memory_is_free_again_after_a_write(tmp_path: Path) -> None:
    with DirectFile(tmp_path / "file") as out:
        for size in (100, 2 * PIECE):
            memory = mmap.mmap(-1, size)
            out.write(memory)
            memory.close()  # BufferError if somebody still looks at it
        out.finish()


def has_direct(folder: Path) -> bool:
    """Say whether the file system here takes O_DIRECT."""
    with (folder / "probe").open("wb") as out:
        try:
            fcntl.fcntl(out, fcntl.F_SETFL, fcntl.fcntl(out, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            return False
    return True


def watch_writes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int, int, int]]:
    """Note of each write: whether it went past the page cache, its place, its size, and its address in a page."""
    seen: list[tuple[bool, int, int, int]] = []
    real = os.pwrite

    def pwrite(fd: int, data: memoryview, place: int) -> int:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        seen.append((bool(flags & os.O_DIRECT), place, len(data), direct._address(data) % BLOCK))
        return real(fd, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return seen


def test_all_but_the_last_bytes_go_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_direct(tmp_path):
        pytest.skip("the file system of the temporary folder has no O_DIRECT")
    seen = watch_writes(monkeypatch)
    written(tmp_path / "file", [aligned(100), aligned(3 * PIECE, 64), aligned(2 * PIECE + 5)])
    past = [one for one in seen if one[0]]
    assert sum(size for _, _, size, _ in past) == (5 * PIECE + 105) // BLOCK * BLOCK
    assert all(place % BLOCK == size % BLOCK == address == 0 for _, place, size, address in past)
    assert [size for is_past, _, size, _ in seen if not is_past] == [105]


def test_large_aligned_data_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    real = DirectFile._copy
    monkeypatch.setattr(DirectFile, "_copy", lambda self, view: (copied.append(len(view)), real(self, view))[1])
    for shift, begin in ((0, 0), (64, 64), (100, 4196)):  # the same place in a page of the file as in one of memory
        copied.clear()
        path = tmp_path / f"file{shift}"
        data = aligned(3 * PIECE, shift)
        with DirectFile(path) as out:
            out.write(bytes(begin))
            copied.clear()
            out.write(data)
            out.finish()
        assert path.read_bytes() == bytes(begin) + bytes(data)
        assert sum(copied) < 2 * BLOCK


def test_the_name_must_be_free(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        DirectFile(tmp_path / "no" / "file")
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written(tmp_path / "file", [b"x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("when", ["at open", "at the first write"])
def test_a_file_system_without_o_direct_gets_a_plain_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real = fcntl.fcntl, os.pwrite

    def refuse(fd: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real[0](fd, command, flags)

    def pwrite(fd: int, data: memoryview, place: int) -> int:
        if real[0](fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real[1](fd, data, place)

    if when == "at open":
        monkeypatch.setattr(fcntl, "fcntl", refuse)
    else:
        monkeypatch.setattr(os, "pwrite", pwrite)
    pieces = [b"abc", aligned(2 * PIECE), aligned(PIECE, 3), b"d"]
    facts = written(tmp_path / "file", pieces)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert facts == facts_of(tmp_path / "file")


def test_writes_that_the_system_cuts_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: real(fd, data[: max(1, len(data) * 2 // 3)], place))
    pieces = [aligned(PIECE + 100), b"x" * 777]
    facts = written(tmp_path / "file", pieces)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
    assert facts == facts_of(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("good", [0, 1, 3])
def test_an_error_of_a_write_is_kept_and_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, good: int
) -> None:
    real = os.pwrite
    left = iter(range(good))

    def pwrite(fd: int, data: memoryview, place: int) -> int:
        if next(left, None) is None:
            raise OSError(number, os.strerror(number))
        return real(fd, data, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    open_before = len(os.listdir("/proc/self/fd"))
    with DirectFile(tmp_path / "file") as out:
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            deque(map(out.write, [aligned(PIECE)] * 6))
        assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "file"))
        assert out.failed is not None
        assert out.failed.errno == number
        for again in (lambda: out.write(b"x"), out.finish):
            with pytest.raises(OSError, match=os.strerror(number)):
                again()
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize("call", ["fsync", "close"])
def test_an_error_of_fsync_or_close_is_an_error_of_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = os.close

    def fail(fd: int) -> None:
        if call == "close":
            real(fd)
        raise OSError(errno.EIO, "Input/output error")

    out = DirectFile(tmp_path / "file")
    out.write(b"x" * 5000)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="Input/output error"):
            out.finish()
    assert out.failed is not None
    out.abandon()
    with pytest.raises(OSError, match="Input/output error"):
        out.finish()


def test_finish_makes_the_file_durable_after_its_last_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (sizes.append(os.fstat(fd).st_size), real(fd))[1])
    written(tmp_path / "file", [aligned(PIECE + 77)])
    assert sizes == [PIECE + 77]


def test_after_its_end_a_file_takes_nothing(tmp_path: Path) -> None:
    out = DirectFile(tmp_path / "file")
    out.write(b"x")
    out.finish()
    out.abandon()
    with pytest.raises(ValueError, match="is closed"):
        out.write(b"y")
    with pytest.raises(ValueError, match="is closed"):
        out.finish()
    assert (tmp_path / "file").read_bytes() == b"x"


def test_nothing_is_left_open_or_running(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for at in range(3):
        with DirectFile(tmp_path / f"abandoned{at}") as out:
            out.write(aligned(3 * PIECE + 5))
        written(tmp_path / f"finished{at}", [aligned(3 * PIECE + 5)])
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_save_at_the_end_of_the_interpreter_is_whole(tmp_path: Path) -> None:
    script = f"""
        import atexit
        from pathlib import Path
        from overnight.checkpoint.direct import DirectFile
        def save():
            with DirectFile(Path({str(tmp_path / "file")!r})) as out:
                out.write(b"x" * 10_000_001)
                print(out.finish().size)
        atexit.register(save)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("10000001\n", "")
    assert (tmp_path / "file").read_bytes() == b"x" * 10_000_001


def state(torch: Any) -> dict[str, Any]:
    made = {f"layer{at}.weight": torch.arange(at * 97_003, dtype=torch.float32) for at in range(8)}
    return {
        **made,
        "half": torch.ones(3, 5, dtype=torch.bfloat16),
        "step": 7,
        "empty": torch.empty(0),
        "lr": [0.1, 2.0],
    }


@pytest.mark.parametrize("alignment", [64, 4096])
def test_torch_saves_to_it_and_every_reader_reads_it(folder: Path, alignment: int) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.serialization import config

    saved = state(torch)
    with config.patch("save.storage_alignment", alignment), DirectFile(folder / "state.pt") as out:
        torch.save(saved, out)
        facts = out.finish()
        assert out.failed is None
    path = folder / "state.pt"
    assert facts == facts_of(path)
    assert zipfile.ZipFile(path).testzip() is None
    for mapped in (False, True):
        loaded = torch.load(path, weights_only=True, mmap=mapped)
        assert list(loaded) == list(saved)
        for name, value in saved.items():
            same = torch.equal(loaded[name], value) if torch.is_tensor(value) else loaded[name] == value
            assert same, name
    with config.patch("save.storage_alignment", alignment):
        torch.save(saved, plain := io.BytesIO())
    assert len(plain.getvalue()) == facts.size
