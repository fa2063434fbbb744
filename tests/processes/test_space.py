"""Space kept ahead of the log, on the file systems of this machine and on a small one that is really full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from overnight.intake import space
from overnight.intake.space import AHEAD_BYTES, LEAST_BYTES, LogSpace, filesystem_type

MIB = 1 << 20


def kept(path: Path) -> int:
    """Return how many bytes of disk a file holds."""
    return path.stat().st_blocks * 512


def append(path: Path, count: int) -> None:
    """Write like a training: O_APPEND."""
    with path.open("ab", buffering=0) as stream:
        stream.write(b"x" * count)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log with a line in it."""
    path = tmp_path / "output.log"
    path.write_bytes(b"line\n")
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 24 MiB; skip where that is not allowed."""
    point = tmp_path / "disk with ä space"
    point.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(point)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)  # also when a failed test holds a file


def fill(disk: Path) -> None:
    """Use up what is free on a disk."""
    handle = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        with suppress(OSError):
            while True:
                os.write(handle, b"f" * 65536)
    finally:
        os.close(handle)
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize < 65536


def test_size_and_content_stay_and_blocks_are_kept(log: Path) -> None:
    ahead = LogSpace(log)
    assert ahead.top_up(5) is None
    if not ahead.usable:
        pytest.skip("this file system cannot keep space")
    assert log.read_bytes() == b"line\n"
    assert kept(log) >= AHEAD_BYTES
    append(log, 100)
    assert log.stat().st_size == 105
    ahead.release()
    assert log.read_bytes() == b"line\n" + b"x" * 100
    assert kept(log) < MIB


def test_it_is_topped_up_when_half_is_used(log: Path) -> None:
    ahead = LogSpace(log)
    ahead.top_up(5)
    if not ahead.usable:
        pytest.skip("this file system cannot keep space")
    append(log, LEAST_BYTES - MIB)
    ahead.top_up(log.stat().st_size)
    assert kept(log) < AHEAD_BYTES + MIB
    append(log, 2 * MIB)
    ahead.top_up(log.stat().st_size)
    assert kept(log) >= log.stat().st_size + AHEAD_BYTES - MIB


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_truncated_or_replaced_log_is_topped_up_anew(log: Path, how: str) -> None:
    ahead = LogSpace(log)
    ahead.top_up(5)
    if not ahead.usable:
        pytest.skip("this file system cannot keep space")
    if how == "truncated":
        os.truncate(log, 0)
    else:
        log.rename(log.with_suffix(".1"))
        log.touch()
    assert kept(log) < MIB
    assert ahead.top_up(0) is None
    assert kept(log) >= AHEAD_BYTES


def test_no_log_no_space_and_no_complaint(tmp_path: Path) -> None:
    ahead = LogSpace(tmp_path / "nothing.log")
    assert ahead.top_up(0) is None
    ahead.release()
    assert not (tmp_path / "nothing.log").exists()


def test_a_log_that_was_taken_away_can_be_released(log: Path) -> None:
    ahead = LogSpace(log)
    ahead.top_up(5)
    log.unlink()
    ahead.release()
    assert not log.exists()


def test_a_pipe_under_the_name_neither_blocks_nor_fails(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "output.log")
    ahead = LogSpace(tmp_path / "output.log")
    assert ahead.top_up(0) is None
    ahead.release()


def test_a_full_disk_takes_the_kept_bytes_and_no_more(small_disk: Path) -> None:
    log = small_disk / "output.log"
    log.write_bytes(b"line\n")
    ahead = LogSpace(log)
    assert ahead.top_up(5) is None
    fill(small_disk)
    append(log, LEAST_BYTES + MIB)  # the training prints on
    assert log.stat().st_size == LEAST_BYTES + MIB + 5
    said = ahead.top_up(log.stat().st_size)
    assert said is not None
    assert str(log) in said
    assert f"{AHEAD_BYTES + 5 - log.stat().st_size:,} bytes are left" in said
    with pytest.raises(OSError, match="No space left"):  # without the space that is kept this is what a print gets
        append(small_disk / "other.log", 65536)
    append(log, 4 * MIB)
    written = log.read_bytes()
    ahead.release()
    assert log.read_bytes() == written
    append(small_disk / "other.log", 65536)  # what was not used is free again


def test_little_space_on_a_disk_is_said(small_disk: Path, tmp_path: Path) -> None:
    ahead = LogSpace(small_disk / "output.log")
    assert ahead.low() is None
    fill(small_disk)
    said = ahead.low()
    assert said is not None
    assert "nearly full: 0 MiB left" in said
    assert LogSpace(tmp_path / "gone" / "output.log").low() is None


def test_the_type_of_a_file_system_by_its_longest_mount_point(small_disk: Path, tmp_path: Path) -> None:
    assert filesystem_type(small_disk) == "tmpfs"
    assert filesystem_type(small_disk / "folder" / "that is not there") == "tmpfs"
    around = filesystem_type(tmp_path)
    assert around not in ("", "tmpfs") or around == filesystem_type(Path("/tmp"))
    assert filesystem_type(small_disk.with_name(small_disk.name + "2")) == around  # a prefix of letters is no folder
    link = tmp_path / "link"
    link.symlink_to(small_disk)
    assert filesystem_type(link) == "tmpfs"
    assert filesystem_type(Path("/proc/self")) == "proc"
    assert around not in space.NETWORK
