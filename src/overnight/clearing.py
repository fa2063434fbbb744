"""Ends whole process trees: finds what belongs to a run and kills it until nothing is left.

The parents (guard and shim) reap; whoever calls here need not be one. Which processes are spared is the caller's word,
except for our own side processes, which carry OVERNIGHT_ROLE. No decision whether a tree should end may enter here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from overnight.processes import Stat, all_pids, children, read_proc, send, stat

ROLE = b"OVERNIGHT_ROLE="


class Found(NamedTuple):
    """One process of a tree, with what is needed to be sure of it later."""

    pid: int
    start_ticks: int
    name: str


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """What a clearing removed, and what it could not remove within its time (none if it worked)."""

    removed: tuple[Found, ...]
    left: tuple[Found, ...]
    took_s: float


def ours(pid: int) -> bool:
    """Say whether a process is one of our own side processes, which carry OVERNIGHT_ROLE."""
    return any(word.startswith(ROLE) for word in (read_proc(pid, "environ") or b"").split(b"\0"))


def marked(run_dir: Path, uid: int | None = None) -> list[Found]:
    """Return this user's living processes that carry this run's OVERNIGHT_RUN_DIR: for when both parents died."""
    marker = b"OVERNIGHT_RUN_DIR=" + os.fsencode(run_dir)
    owner = os.geteuid() if uid is None else uid
    found = []
    for pid in all_pids():
        known = stat(pid)
        words = (read_proc(pid, "environ") or b"").split(b"\0")
        if known is None or known.dead or marker not in words or any(word.startswith(ROLE) for word in words):
            continue
        with contextlib.suppress(OSError):
            again = os.stat(f"/proc/{pid}").st_uid == owner and stat(pid)
            if again and again.start_ticks == known.start_ticks:  # the environment read was that of this very process
                found.append(Found(pid, known.start_ticks, known.comm))
    return found


def _tree(roots: Iterable[int], keep: Collection[int], run_dir: Path | None) -> Iterator[Stat]:
    """Yield the members of a tree, dead ones included. What is kept, or ours, is left out with all that is below it."""
    marks = [] if run_dir is None else [found.pid for found in marked(run_dir)]
    seen = {os.getpid(), *keep, *roots}
    waiting = [*roots]
    members = [pid for pid in marks if pid not in seen]
    while waiting or members:
        if not members:
            members = [pid for pid in children(waiting.pop()) if pid not in seen]
            continue
        pid = members.pop()
        if pid in seen:
            continue
        seen.add(pid)
        known = stat(pid)
        if known is not None and not ours(pid):
            waiting.append(pid)
            yield known


def leftovers(roots: Sequence[int], keep: Collection[int] = (), run_dir: Path | None = None) -> tuple[Found, ...]:
    """Return the living descendants of ``roots`` (and, with ``run_dir``, everything marked by that run).

    Left out are the caller, the roots themselves, ``keep`` and our own side processes, each with all that is below it.
    """
    alive = (known for known in _tree(roots, keep, run_dir) if not known.dead)
    return tuple(Found(known.pid, known.start_ticks, known.comm) for known in alive)


def kill_all(
    roots: Sequence[int], keep: Collection[int] = (), *, run_dir: Path | None = None, limit_s: float = 10.0
) -> Cleared:
    """Kill what ``leftovers`` finds, again and again until nothing is found; at most ``limit_s`` seconds.

    Nothing is stopped first (freezing to a fixpoint loses against fork chains). A look counts as quiet only if it saw
    nobody new, dead or alive: a chain that forks and dies shows a new pid each time. Reaping is the parents' work.
    """
    begun = time.monotonic()
    removed: dict[tuple[int, int], Found] = {}
    dead: set[tuple[int, int]] = set()
    quiet = 0
    pause_s = 0.0005
    while quiet < 2:
        living = []
        news = False
        # All are found before the first is killed: without parents of ours an orphan could not be found again.
        for known in list(_tree(roots, keep, run_dir)):
            key = (known.pid, known.start_ticks)
            if known.dead:
                news = news or key not in dead
                dead.add(key)
            else:
                found = Found(known.pid, known.start_ticks, known.comm)
                living.append(found)
                if send(known.pid, known.start_ticks, signal.SIGKILL):
                    removed.setdefault(key, found)
        quiet = 0 if living or news else quiet + 1
        if living and time.monotonic() - begun > limit_s:
            return Cleared(removed=tuple(removed.values()), left=tuple(living), took_s=time.monotonic() - begun)
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 1.5)
    return Cleared(removed=tuple(removed.values()), left=(), took_s=time.monotonic() - begun)
