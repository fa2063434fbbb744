"""What process tests look with: conditions that are polled, processes found by their mark, a terminal of one's own.

No test is here, and nothing that a test should state itself (which state, which code).
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

Seen = TypeVar("Seen")
TOY = str(Path(__file__).parents[1] / "toy.py")
PYTHON = sys.executable
BIN = str(Path(sys.executable).parent)


def until(look: Callable[[], Seen | None], what: str, limit_s: float = 15.0) -> Seen:
    """Return the first true value of ``look``; the test fails after ``limit_s``."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    pytest.fail(f"not within {limit_s:g} s: {what}")


def toy(*switches: object) -> list[str]:
    """Return the command line of the toy trainer."""
    return [PYTHON, TOY, *map(str, switches)]


class Process(NamedTuple):
    """A living process: zombies are not."""

    pid: int
    words: tuple[str, ...]
    environ: tuple[str, ...]


def read(path: Path | str) -> bytes:
    """Return a file's bytes, empty if it is gone or not ours to read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def state_of(pid: int) -> str:
    """Return the letter of a process's state ("Z" for a zombie), empty if it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")


def all_processes() -> Iterator[Process]:
    """Yield every living process with its words and its environment."""
    for name in os.listdir("/proc"):
        if name.isdigit() and alive(int(name)):
            words, environ = (
                tuple(part.decode("utf-8", "replace") for part in read(f"/proc/{name}/{file}").split(b"\0") if part)
                for file in ("cmdline", "environ")
            )
            yield Process(int(name), words, environ)


def belonging(folder: Path) -> list[Process]:
    """Return the living processes that carry OVERNIGHT_RUN_DIR of ``folder`` or of a run below it."""
    one = f"OVERNIGHT_RUN_DIR={folder}"
    return [
        process
        for process in all_processes()
        if any(word == one or word.startswith(one + "/") for word in process.environ)
    ]


def keepers(folder: Path) -> list[Process]:
    """Return the living guards, shims and supervisors of ``folder`` or of a run below it."""
    names = ("shim.py", "overnight.supervisor")
    return [
        process
        for process in all_processes()
        if any(name in word for name in names for word in process.words)
        and any(word == str(folder) or word.startswith(f"{folder}/") for word in process.words)
    ]


def ended_on_disk(folder: Path) -> bool:
    """Say whether status.json of a run's folder says that it has ended and that no hook waits for anything."""
    try:
        found = json.loads(read(folder / "status.json"))
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict) or found.get("state") not in ("finished", "failed", "stopped", "gave_up"):
        return False
    hooks = found.get("hooks")
    return not (isinstance(hooks, dict) and hooks.get("pending"))


def spawned(log: bytes) -> list[int]:
    """Return the pids of the children that a toy named in its log."""
    lines = (line.split() for line in log.decode("utf-8", "replace").splitlines() if line.startswith("toy: child "))
    return [int(words[2]) for words in lines]


def whole(checkpoints: Path) -> list[str]:
    """Return the names of a toy's whole checkpoints in order."""
    found = checkpoints.glob("checkpoint-*.txt")
    return sorted(path.name for path in found if path.read_bytes().endswith(b"end\n"))


def signals(path: Path) -> list[str]:
    """Return the names of the signals that a toy with ``--signals`` got, in order."""
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


class Terminal:
    """A process in a session of its own on a terminal of its own; what it shows is collected."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self.master, slave = pty.openpty()
        self.shown = b""
        self.process = subprocess.Popen(
            # A small step between: setsid, then take the terminal as the controlling one, then become the program.
            [PYTHON, "-I", "-S", "-c", _TAKE_TERMINAL, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.shown += data

    def type(self, text: bytes) -> None:
        """Type on the keyboard; Ctrl-C is the byte 3."""
        os.write(self.master, text)

    def wait(self, limit_s: float = 30.0) -> int:
        """Return the exit status; the test fails after ``limit_s``."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there after {limit_s:g} s; it has shown {self.shown[-2000:]!r}")

    def close(self) -> None:
        """End the process and give the terminal back."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(1.0)
        os.close(self.master)


_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Runs:
    """One OVERNIGHT_HOME with its runs, used through the real command line."""

    def __init__(self, home: Path, work: Path) -> None:
        self.home = home
        self.work = work
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
        self.env = {
            **kept,
            "OVERNIGHT_HOME": str(home),
            "OVERNIGHT_REPORT": "never",  # a process more for each of a thousand runs; tests of it say --report end
            "PATH": f"{BIN}:{os.environ.get('PATH', os.defpath)}",
            "XDG_CONFIG_HOME": str(work / "config"),
        }
        self.env.pop("PYTHONUNBUFFERED", None)
        self.terminals: list[Terminal] = []

    def overnight(self, *words: object, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run one command line of ours to its end."""
        return subprocess.run(
            ["overnight", *map(str, words)],
            env=self.env,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )

    def start(self, name: str, *command: object, flags: Sequence[object] = (), log: str = "") -> Run:
        """Start a run; with ``log`` wait until its log contains that. One that ends at once must say so by its code."""
        done = self.overnight("run", "--name", name, "--settle", "0.05", *flags, "--", *command)
        assert "\n  executable  " in done.stdout + done.stderr, done.stderr + done.stdout
        run = Run(self, name)
        assert done.returncode == 0 or done.returncode == run.wait(), done.stderr + done.stdout
        if log:
            run.wrote(log)
        return run

    def on_terminal(self, *words: object) -> Terminal:
        """Run one command line of ours on a terminal."""
        terminal = Terminal(["overnight", *map(str, words)], env=self.env, cwd=self.work)
        self.terminals.append(terminal)
        return terminal

    def run(self, name: str) -> Run:
        """Return a run that was started in another way."""
        return Run(self, name)

    def end(self) -> None:
        """End every run at once; fail if a process of any of them is left."""
        for terminal in self.terminals:
            terminal.close()
        runs = self.home / "runs"
        found = sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []
        names = [name for name in found if not name.startswith(".")]
        # To ask is to start a program, and of most runs nothing is left, or only keepers that are about to leave.
        left = self._left_after(0.0, [])
        left = left and self._left_after(2.0, [name for name in names if not ended_on_disk(runs / name)])
        # A shim may take 10 s to clear away what its supervisor could not.
        left = left and self._left_after(12.0, names)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        assert not left, f"left behind: {[(one.pid, one.words) for one in left]}"

    def _left_after(self, patience_s: float, names: list[str]) -> list[Process]:
        """Stop these runs at once; return what is left of any run when there is nothing more, or the time is over."""
        for name in names:
            self.overnight("stop", name, "--now", limit_s=40.0)
        runs, end = self.home / "runs", time.monotonic() + patience_s
        while (left := [*belonging(runs), *keepers(runs)]) and time.monotonic() < end:
            time.sleep(0.05)
        return left


class Run(NamedTuple):
    """One run as a test asks about it."""

    runs: Runs
    name: str

    @property
    def folder(self) -> Path:
        """Return its folder."""
        return self.runs.home / "runs" / self.name

    @property
    def log(self) -> bytes:
        """Return what it wrote."""
        return read(self.folder / "output.log")

    @property
    def status(self) -> dict[str, Any]:
        """Return what ``status --json`` says."""
        done = self.runs.overnight("status", self.name, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def facts(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of the journal, all or those of one kind."""
        lines = [json.loads(line) for line in read(self.folder / "journal.jsonl").splitlines()]
        return [line for line in lines if kind in (None, line["fact"])]

    def wait(self, limit_s: float = 30.0) -> int:
        """Return the exit code of ``overnight wait``."""
        return self.runs.overnight("wait", self.name, "--timeout", f"{limit_s:g}", limit_s=limit_s + 10).returncode

    def stop(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run ``overnight stop``."""
        return self.runs.overnight("stop", self.name, *flags)

    def wrote(self, text: str, limit_s: float = 20.0) -> None:
        """Wait until the log contains ``text``."""
        until(lambda: text.encode() in self.log, f"{text!r} in the log of {self.name}: {self.log[-1500:]!r}", limit_s)

    def file(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the folder once it is there."""
        found = json.loads(until(lambda: read(self.folder / name), name))
        assert isinstance(found, dict)
        return found

    def pid(self, role: str) -> int:
        """Return the pid of the ``guard``, the ``shim`` or the ``supervisor``."""
        return int(until(lambda: self.file("shim.json")[role], f"a {role}")["pid"])

    @property
    def command(self) -> int:
        """Return the pid of the command."""
        return int(self.file("attempts/001/started.json")["pid"])

    def left(self) -> list[Process]:
        """Return the living processes that carry this run's mark."""
        return belonging(self.folder)
