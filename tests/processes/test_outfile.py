"""A file where a user asked for one: whole or not at all, and nothing but a regular file is ever replaced."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from overnight.errors import FolderError, UsageError
from overnight.outfile import whole_file

DATA = b"x" * 100_000


def write(path: Path, data: bytes = DATA) -> None:
    """Write as export and report do."""
    with whole_file(path, "-o") as stream:
        stream.write(data)


def names(path: Path) -> list[str]:
    """Return what lies in a folder."""
    return sorted(one.name for one in path.iterdir())


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write(path)
    assert path.read_bytes() == DATA
    path.chmod(0o640)
    with pytest.raises(TypeError), whole_file(path, "-o") as stream:
        stream.writelines([b"half", None])  # type: ignore[list-item]
    assert path.read_bytes() == DATA
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == [path.name]


def test_a_new_file_has_the_users_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path, there: bool) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "folder").symlink_to(far)
    (far / "second").symlink_to("real")
    (tmp_path / "first").symlink_to("folder/second")
    if there:
        (far / "real").write_text("old")
    write(tmp_path / "first")
    assert (far / "real").read_bytes() == DATA
    assert not (far / "real").is_symlink()
    assert (tmp_path / "first").is_symlink()
    assert (far / "second").is_symlink()
    assert names(tmp_path) == ["far", "first", "folder"]
    assert names(far) == ["real", "second"]


def through_a_link(path: Path) -> Path:
    """Return a link to a path."""
    link = path.with_name("link")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("named", [lambda path: path, through_a_link])
def test_a_pipe_is_written_to(tmp_path: Path, named: Callable[[Path], Path]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = named(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(path)
    reader.join()
    assert read == [DATA]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert path == pipe or path.is_symlink()


@pytest.mark.parametrize("named", [lambda path: path, through_a_link])
def test_a_device_stays_a_device(tmp_path: Path, named: Callable[[Path], Path]) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        null.read_bytes()
    except OSError as error:
        pytest.skip(f"a device cannot be made here: {error}")
    write(named(null))
    assert stat.S_ISCHR(null.lstat().st_mode)
    assert null.read_bytes() == b""


def test_a_full_device_is_one_sentence(tmp_path: Path) -> None:
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        os.close(os.open(full, os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"a device cannot be made here: {error}")
    with pytest.raises(FolderError, match=os.strerror(errno.ENOSPC)):
        write(full)
    assert stat.S_ISCHR(full.lstat().st_mode)


@pytest.mark.parametrize("name", ["/proc/self/fd/1", "/proc/thread-self/fd/1", "folder/1", "link"])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_output_goes_on_where_it_is(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "link").symlink_to("/proc/self/fd/1")  # what /dev/stdout is, and nobody's real /dev is put at risk
    (tmp_path / "folder").symlink_to("/proc/self/fd")
    (tmp_path / "out").write_text("before\n")
    script = (
        "import sys\nfrom overnight.outfile import whole_file\n"
        "with whole_file(sys.argv[1], '-o') as stream: stream.write(b'data\\n')\nprint('after')"
    )
    with (tmp_path / "out").open("a") as out:
        said = subprocess.run(
            [sys.executable, "-c", script, name],
            check=True,
            cwd=tmp_path,
            stdout=out if kind == "file" else subprocess.PIPE,
            timeout=60,
        ).stdout
    text = (tmp_path / "out").read_text() if kind == "file" else "before\n" + said.decode()
    assert text == "before\ndata\nafter\n"
    assert names(tmp_path) == ["folder", "link", "out"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "to_folder").symlink_to(".")
    for path in (tmp_path, tmp_path / "to_folder", tmp_path / "..", Path("/")):
        with pytest.raises(UsageError, match=r"-o .* is a folder"):
            write(path)
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "file").write_text("")
    for name in ("round", "gone/file", "file/file", "n" * 300):
        with pytest.raises(FolderError, match="cannot be written"):
            write(tmp_path / name)
    assert names(tmp_path) == ["file", "round", "to_folder"]
