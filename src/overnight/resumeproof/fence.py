"""A fence round one command: it may read and run everything, but write only below the folders that it is given.

Run as ``python -I -S fence.py --allow PATH ... -- CMD...`` (or with ``-m``); it becomes CMD, and nothing of ours stays
but the fence, which all its children inherit and nobody can take down, root included. Linux does the work (Landlock).
Only the standard library may be imported, and little of it: this starts in front of every run of a proof. It keeps a
training from the user's files by mistake; it is no prison for a program that means harm.

What it does not hold back: permissions, owners and times of files (chmod, chown, utime), what another program does that
is asked through a socket, and, on kernels before 6.2, truncate(2).
"""

# ruff: noqa: S606  (becoming the user's command is its work)

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import sys

TYPE_CHECKING = False  # importing typing would take a third of the whole start
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The numbers of the system calls; every architecture has the same ones."""
VERSION = 1
RULE_PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

WRITE_FILE = 1 << 1
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER = 1 << 13  # to be renamed or linked from one folder to another; from version 2 on, before that nobody may
TRUNCATE = 1 << 14  # from version 3 on, before that everybody may
WRITING = (
    WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK
) | MAKE_SYM

INTO = ("/dev", "/proc")
"""What lies there may be written to, but nothing can be made or removed: devices, terminals, /proc/self/fd/1."""
OPEN = ("/dev/shm", "/dev/mqueue", "/dev/hugepages")  # noqa: S108 - shared memory, which PyTorch and NCCL need
"""Where processes share memory: open to every command."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _call(number: int, *arguments: object) -> int:
    """Make one system call; OSError if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    found: int = libc.syscall(ctypes.c_long(number), *arguments)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def version() -> int:
    """Return the version of Landlock in this kernel, 0 if it has none or may not be asked."""
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION))
    except OSError:
        return 0


def handled(known: int) -> int:
    """Return the rights that a fence takes away, for a kernel with this version of Landlock."""
    return WRITING | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)


def put_up(allowed: Iterable[str], *, known: int | None = None) -> None:
    """Put this process and all its future children behind a fence; there is no way back.

    Below ``allowed`` folders everything may be done, ``allowed`` files may be written; what is not there is passed
    over. ``known`` is the version of Landlock to go by, by default the kernel's. OSError if it cannot be done.
    """
    taken = handled(version() if known is None else known)
    ruleset = _call(
        CREATE_RULESET, ctypes.byref(_Ruleset(taken)), ctypes.c_size_t(ctypes.sizeof(_Ruleset)), ctypes.c_uint32(0)
    )
    try:
        for path in INTO:
            _allow(ruleset, path, taken & (WRITE_FILE | TRUNCATE))
        for path in (*OPEN, *allowed):
            _allow(ruleset, path, taken)
        # Without it only root may; with it no setuid program in there gets more rights than the command has.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # what cannot be reached cannot be written either
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= WRITE_FILE | TRUNCATE
        rule = _Beneath(rights, handle)
        _call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(handle)


# -- for those who start commands ------------------------------------------------------------------------------------


def fenced(command: Sequence[str], allowed: Iterable[str]) -> list[str]:
    """Return the command line that becomes ``command`` behind a fence."""
    words = [word for path in allowed for word in ("--allow", path)]
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *words, "--", *command]


_TRIED: list[bool] = []


def available() -> bool:
    """Say whether commands can be fenced here: tried once with a real one, since a sandbox may forbid a part of it."""
    if not _TRIED:
        import subprocess

        trial = fenced([sys.executable, "-I", "-S", "-c", ""], ())
        works = version() > 0 and not subprocess.run(trial, capture_output=True, check=False).returncode
        _TRIED.append(works)
    return _TRIED[0]


def inside(path: str, folders: Iterable[str]) -> bool:
    """Say whether a path is, or lies below, one of some folders; all absolute, links followed."""
    real = os.path.realpath(path)
    return any(real == one or real.startswith(one.rstrip("/") + "/") for one in map(os.path.realpath, folders))


# -- the process itself ----------------------------------------------------------------------------------------------


def environment() -> dict[bytes, bytes]:
    """Return the environment as this process was given it: Python adds LC_CTYPE to its own where no locale is set."""
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    found: dict[bytes, bytes] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(name, value)
    return found


def places(command: str, path: bytes | None) -> list[str]:
    """Return where a program of this name may lie, as a shell with this PATH would look."""
    if "/" in command:
        return [command]
    folders = os.defpath if path is None else os.fsdecode(path)
    return [os.path.join(folder, command) for folder in folders.split(os.pathsep)] if command else []


def become(argv: Sequence[str], environ: dict[bytes, bytes]) -> tuple[int, str]:
    """Become the command. Returns only if that failed: the exit code, and why."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so in the command
        signal.signal(number, signal.SIG_DFL)
    code, text = NOT_FOUND, f"{argv[0]}: command not found"
    for place in places(argv[0], environ.get(b"PATH")):
        if "/" not in argv[0] and not (os.path.isfile(place) and os.access(place, os.X_OK)):
            if os.path.isfile(place):
                code, text = NOT_EXECUTABLE, f"{place}: {os.strerror(errno.EACCES)}"
            continue
        try:
            os.execve(place, list(argv), environ)
        except OSError as error:
            return NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE, why(error, place, argv)
        except ValueError as error:
            return NOT_EXECUTABLE, f"{place} cannot be executed: {error}"
    return code, text


def why(error: OSError, executable: str, argv: Sequence[str]) -> str:
    """Return a sentence for a command that could not be executed; the words are those of ``overnight run``."""
    if error.errno == errno.ENOEXEC:
        return (
            f"{executable} is neither a program of this machine nor a script with an interpreter line: "
            f"put '#!/bin/sh' (or its interpreter) on its first line, or run it as 'sh {argv[0]}'"
        )
    if error.errno == errno.ENOENT and os.path.exists(executable):
        return f"{executable} names an interpreter in its first line that does not exist"
    return f"{executable}: {os.strerror(error.errno or 0)}"


def main(words: Sequence[str]) -> NoReturn:
    """Put up the fence and become the command; 126 or 127 and a sentence if that is not possible."""
    allowed: list[str] = []
    at = 0
    while at + 1 < len(words) and words[at] == "--allow":
        allowed.append(words[at + 1])
        at += 2
    if at + 1 >= len(words) or words[at] != "--":
        _leave(NOT_EXECUTABLE, "fence.py --allow PATH ... -- CMD...: there is no command")
    try:
        put_up(allowed)
    except OSError as error:
        _leave(NOT_EXECUTABLE, f"no fence can be put up here ({error.strerror}), so {words[at + 1]} was not started")
    _leave(*become(words[at + 1 :], environment()))


def _leave(code: int, text: str) -> NoReturn:
    os.write(2, (text + "\n").encode("utf-8", "surrogateescape"))
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
