"""Who may act for a run: real processes, real locks, SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overnight.folder import RunFolder
from overnight.processes import boot_id
from overnight.supervision.ownership import Owned, Owner

OWNER = """
import subprocess, sys, time
from pathlib import Path
from overnight.folder import RunFolder
from overnight.supervision.ownership import Owned, Owner
try:
    owner = Owner(RunFolder(Path(sys.argv[1])), wait_s=float(sys.argv[2]))
except Owned as error:
    print("owned", error, flush=True)
    sys.exit(3)
# a child that was spawned, as side processes are, and lives on
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, close_fds=sys.argv[3:] != ["leaky"])
print("owner", owner.number, child.pid, flush=True)
sys.stdin.read()
print("still", owner.still(), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return an empty run folder."""
    made = RunFolder(tmp_path / "runs" / "night")
    made.create()
    return made


@contextmanager
def an_owner(folder: RunFolder, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a process that owns the run; yield it and its first line. It and its child are gone afterwards."""
    argv = [sys.executable, "-c", OWNER, str(folder.path), "0", *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline().split()
        try:
            yield process, told
        finally:
            process.kill()
            if told[:1] == ["owner"]:
                os.kill(int(told[2]), signal.SIGKILL)


@pytest.mark.parametrize("words", [(), ("leaky",)])
def test_sigkill_frees_the_lock_although_a_child_lives(folder: RunFolder, words: tuple[str, ...]) -> None:
    with an_owner(folder, *words) as (process, told):
        assert told[0] == "owner"
        with pytest.raises(Owned, match="night"):
            Owner(folder)
        process.kill()
        process.wait()
        os.kill(int(told[2]), 0)  # the child is alive
        heir = Owner(folder)
        assert heir.number == int(told[1]) + 1
        os.close(heir.handle)


def test_a_second_owner_is_refused_and_leaves_no_trace(folder: RunFolder) -> None:
    first = Owner(folder)
    before = sorted(os.listdir(folder.owner))
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Owned):
        Owner(folder)
    with an_owner(folder) as (_, told):
        assert told[0] == "owned"
    assert sorted(os.listdir(folder.owner)) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert first.still()
    os.close(first.handle)


def test_an_owner_waits_as_long_as_it_was_told(folder: RunFolder) -> None:
    with an_owner(folder) as (process, told):
        began = time.monotonic()
        with pytest.raises(Owned):
            Owner(folder, wait_s=0.3)
        assert time.monotonic() - began >= 0.3
        argv = [sys.executable, "-c", OWNER, str(folder.path), "30"]
        heir = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert heir.stdout is not None
        process.kill()
        line = heir.stdout.readline().split()
        os.kill(int(line[2]), signal.SIGKILL)
        heir.communicate("")
        assert line[:2] == ["owner", str(int(told[1]) + 1)]


def test_fencing_numbers_rise_and_say_who(folder: RunFolder) -> None:
    for expected in (1, 2, 3):
        owner = Owner(folder)
        assert owner.number == expected
        written = json.loads((folder.owner / f"{expected:04d}").read_text())
        assert (written["pid"], written["boot_id"]) == (os.getpid(), boot_id())
        assert written["machine_id"]
        os.close(owner.handle)
    assert {"0001", "0002", "0003"} <= set(os.listdir(folder.owner))


def test_numbers_go_on_beyond_four_digits(folder: RunFolder) -> None:
    (folder.owner / "9999").touch()
    owner = Owner(folder)
    assert owner.number == 10000
    assert owner.still()
    os.close(owner.handle)


def test_still_is_over_once_a_later_owner_has_come(folder: RunFolder) -> None:
    """The lock does not reach another host; its fencing file does."""
    with an_owner(folder) as (process, told):
        (folder.owner / f"{int(told[1]) + 1:04d}").touch()
        out, _ = process.communicate("", timeout=30)
        assert out.split() == ["still", "False"]


def test_a_later_owner_is_seen_although_the_folder_shows_no_newer_time(folder: RunFolder) -> None:
    owner = Owner(folder)
    assert owner.still()
    before = folder.owner.stat()
    (folder.owner / "0002").touch()
    os.utime(folder.owner, ns=(before.st_atime_ns, before.st_mtime_ns))  # two changes within one tick of a coarse clock
    assert not owner.still()
    os.close(owner.handle)


def test_a_foreign_file_in_the_folder_is_no_owner(folder: RunFolder) -> None:
    (folder.owner / "notes.txt").touch()
    (folder.owner / ".0009.tmp").touch()
    owner = Owner(folder)
    assert owner.number == 1
    (folder.owner / "README").touch()
    assert owner.still()
    os.close(owner.handle)
