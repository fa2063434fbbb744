"""Ending whole trees: what hides, what ignores, what multiplies, and what must be spared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overnight import processes
from overnight.clearing import kill_all, leftovers, marked

pytestmark = pytest.mark.timeout(60)

# Stands for the shim: a subreaper that reaps, and runs the given script in a session of its own.
REAPER = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.Popen(['sh', '-c', sys.argv[1]], start_new_session=True)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        signal.pause()
"""
STUBBORN = "trap '' TERM INT HUP; echo $$ >> pids; while :; do sleep 0.05; done"
# Each forks the next and ends at once, at random speed; nobody lives longer than some milliseconds.
CHAIN = """
import os, random, time
open('pids', 'a').write(f'{os.getpid()}\\n')
while True:
    if os.fork():
        os._exit(0)
    if random.random() < 0.5:
        time.sleep(random.random() / 1000)
"""
FOUNTAIN = """
import os, time
while True:
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    open('pids', 'a').write(f'{pid}\\n')
    os.wait()
"""


class Tree:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.root = 0

    def start(self, argv: list[str], **env: str) -> int:
        made = subprocess.Popen(
            argv,
            cwd=self.folder,
            env={**os.environ, "OVERNIGHT_RUN_DIR": str(self.folder), **env},
            stdin=subprocess.DEVNULL,
        )
        self.started.append(made)
        return made.pid

    def reaper(self, script: str) -> int:
        self.root = self.start([sys.executable, "-c", REAPER, script])
        return self.root

    def pids(self, count: int) -> list[int]:
        path = self.folder / "pids"
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= count, f"{count} processes")
        return [int(line) for line in path.read_text().splitlines()]


def wait_until(look: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 15
    while not look():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    known = processes.stat(pid)
    return known is not None and not known.dead


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    made = Tree(tmp_path)
    yield made
    for one in made.started:
        one.kill()
    kill_all([], run_dir=tmp_path, limit_s=5)
    for one in made.started:
        one.wait()


def test_who_ignores_signals_and_who_left_the_session_twice(tree: Tree) -> None:
    (tree.folder / "stubborn.sh").write_text(STUBBORN)
    lines = ["sh stubborn.sh &"] * 4 + ["(setsid sh -c 'setsid sh stubborn.sh & exit 0' &)"] * 4 + ["sh stubborn.sh"]
    root = tree.reaper("\n".join(lines))
    pids = tree.pids(9)
    assert {found.pid for found in leftovers([root])} >= set(pids)
    cleared = kill_all([root])
    assert cleared.left == ()
    assert {found.pid for found in cleared.removed} >= set(pids)
    assert {found.name for found in cleared.removed} <= {"sh", "sleep"}
    assert not [pid for pid in pids if alive(pid)]
    assert leftovers([root]) == ()
    assert alive(root), "the root itself is spared"


@pytest.mark.parametrize("turn", range(4))
def test_a_chain_that_forks_and_dies(tree: Tree, turn: int) -> None:
    (tree.folder / "chain.py").write_text(CHAIN)
    root = tree.reaper(
        f"'{sys.executable}' -S chain.py & '{sys.executable}' -S chain.py & '{sys.executable}' -S chain.py"
    )
    tree.pids(3)
    cleared = kill_all([root])
    assert cleared.left == ()
    time.sleep(0.02 * turn)  # a survivor would have had offspring by now
    assert leftovers([root]) == ()
    assert processes.children(root) == []


def test_an_unrelated_process_of_the_same_name_lives(tree: Tree) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        root = tree.reaper("echo $$ >> pids; sleep 1000 & sleep 1000 & wait")
        tree.pids(1)
        wait_until(
            lambda: sorted(found.name for found in leftovers([root])) == ["sh", "sleep", "sleep"], "two sleepers"
        )
        assert sorted(found.name for found in kill_all([root]).removed) == ["sh", "sleep", "sleep"]
        assert alive(other.pid)
    finally:
        other.kill()
        other.wait()


def test_who_is_kept_and_our_own_side_processes_live_with_all_below_them(tree: Tree) -> None:
    (tree.folder / "family.sh").write_text("echo $$ >> pids; sleep 1000 & echo $! >> pids; wait")
    root = tree.reaper("OVERNIGHT_ROLE=alerts sh family.sh & sh family.sh & echo $! > kept; sh family.sh")
    tree.pids(6)
    wait_until(lambda: bool((tree.folder / "kept").read_text().strip()), "the kept one")
    kept = int((tree.folder / "kept").read_text())
    spared = {kept, *processes.descendants(kept)}
    for child in processes.descendants(root):
        if "OVERNIGHT_ROLE" in (processes.environ(child) or {}):
            spared |= {child}
    assert len(spared) == 4
    removed = {found.pid for found in kill_all([root], keep=[kept]).removed}
    assert removed
    assert not removed & spared
    assert all(alive(pid) for pid in spared)
    assert {pid for pid in processes.descendants(root) if alive(pid)} == spared


def test_after_both_parents_died_the_marker_finds_the_rest(tree: Tree) -> None:
    (tree.folder / "stubborn.sh").write_text(STUBBORN)
    # The last one has dropped the marker: it is found only as a child of one that has it.
    tree.start(["sh", "-c", "setsid sh stubborn.sh & env -u OVERNIGHT_RUN_DIR sh stubborn.sh & sh stubborn.sh"])
    ours = tree.start(["sh", "stubborn.sh"], OVERNIGHT_ROLE="supervisor")
    longer = tree.start(["sh", "stubborn.sh"], OVERNIGHT_RUN_DIR=f"{tree.folder}-other")
    pids = set(tree.pids(5)) - {ours, longer}
    found = {one.pid for one in marked(tree.folder)}
    assert len(found & pids) == 2
    assert not found & {ours, longer, os.getpid()}
    assert marked(tree.folder, uid=os.geteuid() + 1) == []
    cleared = kill_all([], run_dir=tree.folder)
    assert cleared.left == ()
    assert not [pid for pid in pids if alive(pid)]
    assert alive(ours)
    assert alive(longer)


def test_what_cannot_be_removed_is_reported_in_time(tree: Tree) -> None:
    # A fountain: the root itself, which is spared, makes a new child whenever one dies.
    roots = [tree.start([sys.executable, "-S", "-c", FOUNTAIN]) for _ in range(3)]
    tree.pids(3)
    # Where the machine is so busy that no root gets its turn between two looks, there is rightly nothing left to see.
    for _ in range(100):
        cleared = kill_all(roots, limit_s=0.2)
        if cleared.left:
            break
    assert cleared.left
    assert cleared.removed
    assert 0.2 <= cleared.took_s < 5


def test_a_tree_of_nobody_is_clear_at_once(tree: Tree) -> None:
    root = tree.start(["sleep", "1000"])
    assert kill_all([root, 2**22 - 1]).removed == ()
    assert alive(root)


def test_the_caller_is_never_a_leftover() -> None:
    assert os.getpid() not in {found.pid for found in leftovers([os.getppid()])}


def test_a_pid_with_another_start_time_is_not_killed(tree: Tree) -> None:
    pid = tree.start(["sleep", "1000"])
    known = processes.stat(pid)
    assert known is not None
    assert not processes.send(pid, known.start_ticks - 1, signal.SIGKILL)
    assert alive(pid)
    assert processes.send(pid, known.start_ticks, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "its end")
    assert not processes.send(pid, known.start_ticks, signal.SIGKILL)
