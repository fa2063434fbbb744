"""Following a log by its name on a real file system: what is done to logs at night, seen live and after a kill.

``Follower`` is what a supervisor does with a ``LogFile``; ``killed`` stands for SIGKILL and a new supervisor that has
only the marks of the last commit.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight.intake.logfile import BLOCK_BYTES, FINGERPRINT_BYTES, Chunk, LogFile, Mark


class Follower:
    """Reads a log and keeps what was read by source; ``killed`` forgets all but the marks and what they cover."""

    def __init__(self, path: Path, *, start: int = 0, pids: tuple[int, ...] = ()) -> None:
        self.path = path
        self.start = start
        self.pids = pids
        self.log = LogFile(path, start=start, pids=pids)
        self.chunks: list[Chunk] = []
        self.committed: tuple[tuple[Mark, ...], int] = ((), 0)

    def look(self) -> bytes:
        """Read all that is new; return it."""
        new = list(self.log.read())
        self.chunks += new
        return b"".join(chunk.data for chunk in new)

    def commit(self) -> None:
        """Keep marks and chunks together, as one transaction does."""
        self.committed = (self.log.marks(), len(self.chunks))

    def killed(self) -> None:
        """Lose everything since the commit, begin again from the marks."""
        marks, count = self.committed
        self.log.close()
        del self.chunks[count:]
        self.log = LogFile(self.path, marks, start=self.start, pids=self.pids)

    def text(self) -> bytes:
        """Return everything that was read, in the order of reading."""
        return b"".join(chunk.data for chunk in self.chunks)

    def by_source(self) -> dict[int, bytes]:
        """Return the bytes of each source; fails if an offset was read twice or passed over."""
        found: dict[int, bytearray] = {}
        ends: dict[int, int] = {}
        for chunk in self.chunks:
            if chunk.source in ends:
                assert chunk.offset == ends[chunk.source], f"source {chunk.source} jumps to {chunk.offset}"
            found.setdefault(chunk.source, bytearray()).extend(chunk.data)
            ends[chunk.source] = chunk.offset + len(chunk.data)
        return {source: bytes(data) for source, data in found.items()}


@pytest.fixture(params=["live", "killed"])
def killing(request: pytest.FixtureRequest) -> bool:
    """Say whether the follower is killed while the log is tampered with."""
    return request.param == "killed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the log's path; there is no such file yet."""
    return tmp_path / "output.log"


@pytest.fixture
def follower(path: Path) -> Iterator[Follower]:
    """Return a follower of ``path``."""
    one = Follower(path)
    yield one
    one.log.close()


def lines(first: int, count: int, note: str = "") -> bytes:
    """Return lines that all differ."""
    return b"".join(f"step: {step}, loss: {3 + step / 7:.4f} {note}\n".encode() for step in range(first, first + count))


def append(path: Path, data: bytes) -> None:
    """Add to a file as a writer with O_APPEND does."""
    with path.open("ab") as stream:
        stream.write(data)


def test_no_log_yet(follower: Follower, path: Path) -> None:
    assert follower.look() == b""
    assert follower.log.position() == (0, 0)
    assert follower.log.marks() == ()
    assert follower.log.handle() is None
    append(path, lines(1, 3))
    assert follower.look() == lines(1, 3)
    assert follower.log.position() == (0, len(lines(1, 3)))
    assert follower.log.handle() is not None


def test_no_folder_yet(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "later" / "train.log")
    assert follower.look() == b""
    (tmp_path / "later").mkdir()
    append(follower.path, b"a\n")
    assert follower.look() == b"a\n"
    follower.log.close()


def test_bytes_come_once_and_in_blocks(follower: Follower, path: Path) -> None:
    data = random.Random(1).randbytes(BLOCK_BYTES * 2 + 17)
    append(path, data)
    assert follower.look() == data
    assert [chunk.offset for chunk in follower.chunks] == [0, BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert follower.look() == b""
    assert follower.log.size == len(data)


def test_killed_between_commits_reads_the_same_bytes_at_the_same_places(follower: Follower, path: Path) -> None:
    dice = random.Random(7)
    written = b""
    for turn in range(200):
        more = lines(turn, 1)[: dice.randint(1, 40)]
        append(path, more)
        written += more
        if dice.random() < 0.8:
            follower.look()
        if dice.random() < 0.3:
            follower.commit()
        if dice.random() < 0.3:
            follower.killed()
    follower.look()
    assert follower.by_source() == {0: written}


def test_a_log_that_was_there_before_is_read_from_the_start_offset(path: Path) -> None:
    append(path, lines(1, 100, "old"))
    start = path.stat().st_size
    follower = Follower(path, start=start)
    assert follower.log.position() == (0, start)
    append(path, lines(1, 2))
    assert follower.look() == lines(1, 2)
    assert follower.chunks[0].offset == start
    follower.commit()
    follower.killed()
    append(path, lines(3, 1))
    assert follower.look() == lines(3, 1)
    assert set(follower.by_source()) == {0}
    follower.log.close()


def test_a_start_offset_beyond_a_log_that_was_truncated_meanwhile(path: Path) -> None:
    append(path, b"new\n")
    follower = Follower(path, start=1000)
    assert follower.look() == b""  # what stands before the start was never ours
    append(path, b"more\n")
    assert follower.look() == b"more\n"
    follower.log.close()


def test_copytruncate(follower: Follower, path: Path, killing: bool) -> None:
    append(path, lines(1, 50))
    follower.look()
    follower.commit()
    shutil.copy(path, path.with_suffix(".log.1"))
    os.truncate(path, 0)
    if killing:
        follower.killed()
    assert follower.look() == b""
    append(path, lines(51, 10))
    assert follower.look() == lines(51, 10)
    assert follower.by_source() == {0: lines(1, 50), follower.chunks[-1].source: lines(51, 10)}
    assert follower.chunks[-1].source > 0
    assert follower.chunks[-1].offset + len(follower.chunks[-1].data) == path.stat().st_size


def test_truncated_and_regrown_beyond_the_old_offset_while_nobody_looks(
    follower: Follower, path: Path, killing: bool
) -> None:
    append(path, lines(1, 20))
    follower.look()
    follower.commit()
    os.truncate(path, 0)
    append(path, lines(500, 200))
    if killing:
        follower.killed()
    assert follower.look() == lines(500, 200)
    append(path, lines(700, 1))
    assert follower.look() == lines(700, 1)
    assert follower.by_source() == {0: lines(1, 20), 1: lines(500, 201)}


def test_truncated_and_regrown_to_exactly_the_old_size(follower: Follower, path: Path, killing: bool) -> None:
    append(path, b"a" * 500)
    follower.look()
    follower.commit()
    os.truncate(path, 0)
    append(path, b"b" * 500)
    if killing:
        follower.killed()
    assert follower.look() == b"b" * 500
    assert follower.by_source() == {0: b"a" * 500, 1: b"b" * 500}


def test_truncated_before_anything_was_committed(follower: Follower, path: Path) -> None:
    append(path, lines(1, 5))
    follower.look()
    os.truncate(path, 0)
    append(path, lines(100, 1))
    follower.killed()
    assert follower.look() == lines(100, 1)
    assert follower.by_source() == {0: lines(100, 1)}


def test_sources_of_one_truncated_file_never_share_a_number(follower: Follower, path: Path) -> None:
    for life in range(6):
        append(path, lines(100 * life, 3))
        follower.look()
        follower.commit()
        if life % 2:
            follower.killed()
        os.truncate(path, 0)
        follower.look()
    assert follower.by_source() == {life: lines(100 * life, 3) for life in range(6)}


def test_rename_and_create_with_the_old_file_still_being_written(follower: Follower, path: Path, killing: bool) -> None:
    with path.open("ab", buffering=0) as old:
        old.write(lines(1, 10))
        follower.look()
        follower.commit()
        old.write(lines(11, 5))
        path.rename(path.with_name("output.log.1"))
        old.write(lines(16, 5))
        append(path, lines(100, 5))
        if killing:
            follower.killed()
        assert follower.look() == lines(11, 10) + lines(100, 5)  # the old file is drained first
        old.write(lines(21, 5))
        append(path, lines(105, 5))
        follower.look()
        follower.commit()
        if killing:
            follower.killed()
        old.write(lines(26, 1))
        append(path, lines(110, 1))
        follower.look()
    assert follower.by_source() == {0: lines(1, 26), 1: lines(100, 11)}
    assert follower.log.position() == (1, path.stat().st_size)


def test_renamed_and_nothing_new_yet(follower: Follower, path: Path, killing: bool) -> None:
    append(path, lines(1, 2))
    follower.look()
    follower.commit()
    renamed = path.with_name("output.log-20260101")
    path.rename(renamed)
    append(renamed, lines(3, 2))
    if killing:
        follower.killed()
    assert follower.look() == lines(3, 2)
    append(path, lines(9, 1))
    assert follower.look() == lines(9, 1)
    assert follower.by_source() == {0: lines(1, 4), 1: lines(9, 1)}


def test_a_file_that_gets_its_name_back_is_no_new_file(follower: Follower, path: Path, killing: bool) -> None:
    append(path, lines(1, 5))
    follower.look()
    aside = path.with_name("output.log.1")
    path.rename(aside)
    append(path, b"between\n")
    follower.look()
    follower.commit()
    path.unlink()
    aside.rename(path)
    append(path, lines(6, 1))
    if killing:
        follower.killed()
    assert follower.look() == lines(6, 1)
    assert follower.by_source()[0] == lines(1, 6)


def test_an_older_file_that_is_truncated_does_not_make_the_newest_one_new_again(
    follower: Follower, path: Path, killing: bool
) -> None:
    append(path, lines(1, 5))
    follower.look()
    aside = path.with_name("output.log.1")
    path.rename(aside)
    append(path, lines(100, 5))
    follower.look()
    os.truncate(aside, 0)
    append(aside, b"late\n")
    follower.look()
    follower.commit()
    if killing:
        follower.killed()
    append(path, lines(105, 1))
    assert follower.look() == lines(105, 1)
    assert follower.by_source() == {0: lines(1, 5), 1: lines(100, 6), 2: b"late\n"}


def unlink_until_the_inode_comes_back(path: Path, data: bytes) -> bool:
    """Replace the file by a new one with ``data``; say whether it has got the old one's inode."""
    inode = path.stat().st_ino
    path.unlink()
    path.write_bytes(data)
    return path.stat().st_ino == inode


def test_unlink_and_create(follower: Follower, path: Path) -> None:
    append(path, lines(1, 30))
    follower.look()
    path.unlink()
    append(path, lines(900, 40))
    assert follower.look() == lines(900, 40)
    assert follower.by_source() == {0: lines(1, 30), 1: lines(900, 40)}


def test_unlink_and_create_with_the_inode_used_again(path: Path) -> None:
    for _ in range(20):  # ext4 hands a freed inode out at once; elsewhere there is nothing to see
        append(path, lines(1, 30))
        follower = Follower(path)
        follower.look()
        follower.commit()
        follower.log.close()
        if unlink_until_the_inode_comes_back(path, lines(900, 40)):
            break
        path.unlink()
    else:
        pytest.skip("this file system does not use an inode number again at once")
    follower.killed()
    assert follower.look() == lines(900, 40)
    assert follower.by_source() == {0: lines(1, 30), 1: lines(900, 40)}
    follower.log.close()


def test_a_stranger_with_the_inode_of_a_deleted_log_is_not_read(path: Path) -> None:
    for _ in range(20):
        append(path, lines(1, 30))
        follower = Follower(path)
        follower.look()
        follower.commit()
        follower.log.close()
        inode = path.stat().st_ino
        path.unlink()
        stranger = path.with_name("notes.txt")
        stranger.write_bytes(b"step: 5, loss: nan, dt: 0.25\n" * 200)
        if stranger.stat().st_ino == inode:
            break
        stranger.unlink()
    else:
        pytest.skip("this file system does not use an inode number again at once")
    follower.killed()
    assert follower.look() == b""
    append(path, lines(31, 1))
    assert follower.look() == lines(31, 1)
    follower.log.close()


def test_an_unlinked_log_is_found_through_its_writer(path: Path) -> None:
    with path.open("ab", buffering=0) as writer:
        copy = os.dup(1)
        try:
            os.dup2(writer.fileno(), 1)  # this process stands for the training: its stdout is the log
            follower = Follower(path, pids=(os.getpid(),))
            writer.write(lines(1, 3))
            follower.look()
            follower.commit()
            path.unlink()
            writer.write(lines(4, 3))
            follower.killed()
            append(path, lines(50, 1))
            text = follower.look()
        finally:
            os.dup2(copy, 1)
            os.close(copy)
    assert text == lines(4, 3) + lines(50, 1)
    assert follower.by_source() == {0: lines(1, 6), 1: lines(50, 1)}
    follower.log.close()


def test_a_hole_left_by_a_writer_that_does_not_append(follower: Follower, path: Path, killing: bool) -> None:
    with path.open("wb", buffering=0) as writer:
        writer.write(b"x" * (1 << 20))
        follower.look()
        follower.commit()
        os.truncate(path, 0)
        follower.look()
        follower.commit()
        writer.write(lines(1, 3))  # stands 1 MiB behind the new start
        if killing:
            follower.killed()
        text = follower.look()
    assert text.lstrip(b"\0") == lines(1, 3)
    assert len(text) < 64 * 1024  # the hole itself was not read
    last = follower.chunks[-1]
    assert last.offset + len(last.data) == path.stat().st_size


@pytest.mark.parametrize("same_file", [True, False])
def test_log_replaced_by_a_symlink(follower: Follower, path: Path, *, same_file: bool, killing: bool) -> None:
    append(path, lines(1, 5))
    follower.look()
    follower.commit()
    elsewhere = path.with_name("disk2.log")
    path.rename(elsewhere)
    if not same_file:
        elsewhere = path.with_name("other.log")
        elsewhere.write_bytes(lines(200, 1))
    path.symlink_to(elsewhere)
    append(path, lines(6, 1))
    if killing:
        follower.killed()
    new = lines(6, 1) if same_file else lines(200, 1) + lines(6, 1)
    assert follower.look() == new
    assert follower.by_source() == ({0: lines(1, 6)} if same_file else {0: lines(1, 5), 1: new})


def test_a_symlink_that_leads_nowhere_or_in_a_circle(follower: Follower, path: Path) -> None:
    path.symlink_to("nothing")
    assert follower.look() == b""
    path.unlink()
    path.symlink_to(path.name)
    assert follower.look() == b""


def test_neither_pipe_nor_device_nor_folder_is_read(path: Path) -> None:
    os.mkfifo(path)  # opening it would wait for a writer for ever
    for make in (lambda: None, lambda: path.symlink_to("/dev/zero"), path.mkdir):
        make()
        follower = Follower(path)
        assert follower.look() == b""
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()


@contextlib.contextmanager
def no_rights(path: Path) -> Iterator[None]:
    """Take away the right to read ``path``; root, who may read everything, becomes somebody else for a while."""
    path.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield
    path.chmod(0o600)


def test_unreadable_for_a_while(follower: Follower, path: Path, *, killing: bool) -> None:
    append(path, lines(1, 5))
    follower.look()
    follower.commit()
    with no_rights(path):
        if killing:
            follower.killed()
        assert follower.look() == b""
        follower.commit()
    append(path, lines(6, 1))
    assert follower.look() == lines(6, 1)
    assert follower.by_source() == {0: lines(1, 6)}


def test_a_log_out_of_reach_at_the_start_is_taken_up_where_it_was_left(follower: Follower, path: Path) -> None:
    append(path, lines(1, 5))
    follower.look()
    follower.commit()
    away = path.parent.with_name("unmounted")
    path.parent.rename(away)  # a network disk that is not there for a moment
    follower.killed()
    assert follower.look() == b""
    follower.commit()
    follower.killed()  # what is known of it outlives this, too
    away.rename(path.parent)
    append(path, lines(6, 1))
    assert follower.look() == lines(6, 1)
    assert follower.by_source() == {0: lines(1, 6)}


def test_few_files_stay_open_however_often_the_log_is_rotated(follower: Follower, path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(30):
        append(path, lines(turn, 1))
        follower.look()
        path.rename(path.with_name(f"output.log.{turn}"))
    append(path, lines(30, 1))
    follower.look()
    assert follower.by_source() == {turn: lines(turn, 1) for turn in range(31)}
    assert len(os.listdir("/proc/self/fd")) - before <= 4
    assert len(follower.log.marks()) <= 4


def test_the_fingerprint_is_made_of_the_last_bytes_whatever_the_blocks(follower: Follower, path: Path) -> None:
    written = b""
    for turn in range(100):
        written += str(turn).encode()
        append(path, str(turn).encode())
        follower.look()
        (mark,) = follower.log.marks()
        assert mark.before == written[-FINGERPRINT_BYTES:]
        assert (mark.source, mark.offset) == (0, len(written))
