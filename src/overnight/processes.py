"""What Linux knows of processes: identity, family, signals, exits and open files.

Everything is read from /proc at the moment of asking; a process that is gone or not ours to see is None or empty, never
an error. Nothing about runs, folders or rules may enter here: which process is the *training* is the question of
``targets.py``, what belongs to a run's tree that of ``clearing.py``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from overnight.events import Exit

# struct pidfd_info of Linux 6.13 is 64 bytes; the exit code is its last field and filled from 6.15 on.
PIDFD_INFO = struct.Struct("=QQ11Ii")
PIDFD_GET_INFO = (3 << 30) | (PIDFD_INFO.size << 16) | (0xFF << 8) | 11
PIDFD_INFO_EXIT = 1 << 3


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A process that no later one can be mistaken for: pid, start time in clock ticks since boot, id of the boot."""

    pid: int
    start_ticks: int
    boot_id: str


class Stat(NamedTuple):
    """What /proc/PID/stat says. ``status`` is the wait status, true only for a zombie."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    threads: int
    start_ticks: int
    status: int

    @property
    def dead(self) -> bool:
        """Say whether the process has ended (a zombie whose other threads go on has not)."""
        return self.state in "XxZ" and self.threads <= 1


PROC_BYTES = 64 * 1024
HUNG_S = 30.0
"""So long what hangs in the kernel and does not die of SIGKILL is waited for: it may come back, or never do."""


class Reaped(NamedTuple):
    """One line of an attempt's ``reaped`` file."""

    pid: int
    exit: Exit


# --- reading ----------------------------------------------------------------------------------------------------------


def read_proc(pid: int, name: str) -> bytes | None:
    """Return /proc/PID/NAME; None if the process is gone or may not be read."""
    try:
        # A third of what open() costs; this is the most frequent thing a supervisor does.
        handle = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = b""
        while part := os.read(handle, PROC_BYTES):  # the kernel hands out a page at a time, whatever is asked for
            data += part
    except OSError:
        return None
    finally:
        os.close(handle)
    return data


def stat(pid: int) -> Stat | None:
    """Return what /proc/PID/stat says. The name may hold spaces, parentheses and newlines: the last ")" ends it."""
    data = read_proc(pid, "stat")
    if data is None:
        return None
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    if len(fields) < 50:
        return None
    comm = head.partition(b"(")[2].decode("utf-8", "replace")
    ppid, pgrp, session, threads, ticks, status = (int(fields[at]) for at in (1, 2, 3, 17, 19, 49))
    return Stat(pid, comm, fields[0].decode(), ppid, pgrp, session, threads, ticks, status)


@functools.cache
def boot_id() -> str:
    """Return the id of this boot; empty where /proc does not tell it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def identify(pid: int) -> Identity | None:
    """Return the identity of a process that exists (a zombie does)."""
    known = stat(pid)
    return None if known is None else Identity(pid=pid, start_ticks=known.start_ticks, boot_id=boot_id())


def is_alive(identity: Identity) -> bool:
    """Say whether this very process still runs: a zombie, a later owner of its pid and another boot do not count."""
    known = stat(identity.pid)
    same = known is not None and known.start_ticks == identity.start_ticks and boot_id() == identity.boot_id
    return same and known is not None and not known.dead


def cmdline(pid: int) -> tuple[str, ...] | None:
    """Return the argv of a process as it stands now; empty for a zombie or a kernel thread."""
    data = read_proc(pid, "cmdline")
    if data is None:
        return None
    return tuple(os.fsdecode(word) for word in data.removesuffix(b"\0").split(b"\0")) if data else ()


def exe(pid: int) -> str | None:
    """Return the path of the program a process executes."""
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return None


def cwd(pid: int) -> str | None:
    """Return the working directory of a process."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def environ(pid: int) -> dict[str, str] | None:
    """Return the environment a process was started with."""
    data = read_proc(pid, "environ")
    if data is None:
        return None
    words = (os.fsdecode(word).partition("=") for word in data.split(b"\0") if b"=" in word)
    return {name: value for name, _, value in words}


def children(pid: int) -> list[int]:
    """Return the pids of the children of all threads of a process, zombies included."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        data = read_proc(pid, f"task/{thread}/children")
        if data is not None:
            found.extend(int(word) for word in data.split())
        elif os.path.exists(f"/proc/{pid}/task/{thread}"):
            return [known.pid for known in map(stat, all_pids()) if known is not None and known.ppid == pid]
    return found


def hangs(pid: int) -> bool:
    """Say whether a process waits in the kernel where no signal reaches it: in a driver's or a disk's call."""
    known = stat(pid)
    return known is not None and known.state == "D"


def all_pids() -> list[int]:
    """Return the pids of all processes that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(pid: int, skip: Collection[int] = ()) -> Iterator[int]:
    """Yield all descendants of a process, parents first; ``skip`` and what is below it are left out."""
    seen = {pid, *skip}
    waiting = [pid]
    while waiting:
        for child in children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


# --- signals and exits ------------------------------------------------------------------------------------------------


def _signal_set(pid: int, field: bytes) -> frozenset[int]:
    for line in (read_proc(pid, "status") or b"").splitlines():
        if line.startswith(field):
            mask = int(line.split()[1], 16)
            return frozenset(number for number in range(1, 65) if mask >> (number - 1) & 1)
    return frozenset()


def caught(pid: int) -> frozenset[int]:
    """Return the numbers of the signals a process has handlers for."""
    return _signal_set(pid, b"SigCgt:")


def ignored(pid: int) -> frozenset[int]:
    """Return the numbers of the signals a process ignores."""
    return _signal_set(pid, b"SigIgn:")


def signal_name(number: int) -> str:
    """Return "SIGSEGV" for 11 and "SIGRTMIN+3" for real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def exit_of_status(status: int, at: float | None = None) -> Exit:
    """Return the exit that a wait status stands for."""
    if os.WIFSIGNALED(status):
        return Exit(signal=signal_name(os.WTERMSIG(status)), at=at)
    return Exit(exit_code=os.WEXITSTATUS(status), at=at)


def exit_of(pidfd: int, pid: int) -> Exit | None:
    """Return how the process behind ``pidfd`` ended, although it was never our child; None if nobody can tell (yet).

    A zombie's status stands in /proc; after it has been reaped Linux >= 6.15 still tells it to holders of a pidfd.
    """
    kept = _exit_kept(pidfd)
    if kept is not None:
        return kept
    known = stat(pid)
    if known is not None and known.dead and _may_see(pid) and _exists(pidfd):
        return exit_of_status(known.status)
    return _exit_kept(pidfd)  # reaped between the two looks


def _exit_kept(pidfd: int) -> Exit | None:
    buffer = bytearray(PIDFD_INFO.size)
    struct.pack_into("=Q", buffer, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, buffer, True)
    except OSError:
        return None
    fields = PIDFD_INFO.unpack(buffer)
    return exit_of_status(fields[-1]) if fields[0] & PIDFD_INFO_EXIT else None


def _may_see(pid: int) -> bool:
    # The kernel shows 0, the status of a success, to those who may not know.
    try:
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def _exists(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def read_reaped(data: bytes) -> list[Reaped]:
    """Return the whole lines of an attempt's ``reaped`` file: "PID WAITSTATUS AT"."""
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            pid, status, at = line.split()
            found.append(Reaped(int(pid), exit_of_status(int(status), float(at))))
    return found


def _send_without_pidfd(pid: int, start_ticks: int, number: int) -> bool:
    """Send without a descriptor to spare: the pid could change hands between the look and the signal, but hardly."""
    known = stat(pid)
    if known is None or known.start_ticks != start_ticks or known.dead:
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def send(pid: int, start_ticks: int, number: int) -> bool:
    """Send a signal to exactly this process; False if it is gone, has ended, or may not be signalled."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return _send_without_pidfd(pid, start_ticks, number)
        return False
    try:
        known = stat(pid)
        if known is None or known.start_ticks != start_ticks or known.dead:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


# --- open files -----------------------------------------------------------------------------------------------------


def writable_files(pids: Iterable[int]) -> dict[str, int]:
    """Return {path: bytes} of the regular files these processes hold open for writing, such as a checkpoint."""
    sizes: dict[str, int] = {}
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                path = os.readlink(f"{folder}/{name}")
                if not path.startswith("/") or path.endswith(" (deleted)"):
                    continue
                info = os.stat(f"{folder}/{name}")
                if info.st_mode & 0o170000 == 0o100000 and _opened_for_writing(pid, name):
                    sizes[path] = info.st_size
    return sizes


def _opened_for_writing(pid: int, descriptor: str) -> bool:
    for line in (read_proc(pid, f"fdinfo/{descriptor}") or b"").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def start_apart(
    words: Sequence[str], environ: Mapping[str, str] | Mapping[bytes, bytes], *, out: int | None = None
) -> int:
    """Start a program in a session of its own, as from a login shell; return its pid. OSError if it cannot be.

    Its stdin is empty, its stderr ours; its stdout is the descriptor ``out``, and then stderr goes nowhere, or nowhere.
    Not by subprocess: 2 MB in a process that lives all night. Every other descriptor of ours is closed by the exec.
    """
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    if out is None:
        actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
    else:
        actions += [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    defaults = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
    return os.posix_spawn(
        words[0], list(words), environ, file_actions=actions, setsid=True, setsigmask=[], setsigdef=defaults
    )
