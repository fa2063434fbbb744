"""Runs one hook of one run to its end, in a process of its own: ``python -m overnight.hooks.runner RUNDIR KEY``.

The supervisor that started it may be killed: this process goes on and leaves the result in the run folder. The claim
file is made before the command runs, and only one process can make it: so a hook never runs twice, whoever starts a
runner for it again. Which hooks run, and what becomes of their results, is decided in ``starting.py``, never here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from overnight.errors import FolderError
from overnight.folder import RunFolder, encode_json, read_regular, sync_directory, utc, write_json
from overnight.hooks.files import HookFiles, command_of, files_of
from overnight.processes import all_pids, identify, signal_name, stat
from overnight.requests.asked import read_asked

if TYPE_CHECKING:
    import subprocess

OUTPUT_BYTES = 2000
PART_BYTES = 65536
DRAIN_PARTS = 16
TERM_S = 5.0
KILL_S = 5.0
LOOK_S = 0.05
DAY_S = 86400.0  # the longest that one poll is asked to wait; it takes no more than 24 of them
WRITE_AGAIN_S = (0.0, 1.0, 5.0, 20.0)


def claim(files: HookFiles) -> bool:
    """Make this process the only one that runs this hook; False if another one is, or has done it."""
    try:
        handle = os.open(files.claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        # An empty claim (a full disk) still keeps everybody else away. It is made durable: a hook that turns the
        # machine off must not do so again when the run is looked at after the next start.
        with contextlib.suppress(OSError):
            os.write(handle, encode_json(msgspec.to_builtins(identify(os.getpid()))))
            os.fsync(handle)
            sync_directory(files.claim.parent)
    finally:
        os.close(handle)
    return True


class Hook:
    """One shell command with its input and the end of its output."""

    process: subprocess.Popen[bytes]

    def __init__(self, payload: bytes) -> None:
        self.waiting = memoryview(payload)
        self.tail = bytearray()
        self.cut = False
        self.ended = self.talking = False
        self.poll = select.poll()

    def start(self, command: str, cwd: str) -> None:
        """Start it in a session of its own; OSError or ValueError if it cannot be."""
        import subprocess

        try:
            os.chdir(cwd)
        except (OSError, ValueError):
            os.chdir("/")
        words, pipe = ["/bin/sh", "-c", command], subprocess.PIPE
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.feed, self.out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.pidfd = os.pidfd_open(self.process.pid)
        for handle, events in ((self.feed, select.POLLOUT), (self.out, select.POLLIN), (self.pidfd, select.POLLIN)):
            os.set_blocking(handle, False)
            self.poll.register(handle, events)
        self.talking = True

    def wait(self, until: float) -> bool:
        """Talk with it until it ends, at most until this time of the monotonic clock; True if it has ended."""
        while not self.ended and (left_s := until - time.monotonic()) > 0:
            for handle, _event in self.poll.poll(min(left_s, DAY_S) * 1000.0):
                if handle == self.feed:
                    self._write()
                elif handle == self.out:
                    self._read()
                else:
                    self.ended = True
        return self.ended

    def finish(self) -> int | None:
        """Return its wait status as subprocess counts it (None: it cannot be killed); what it has written is read."""
        for _ in range(DRAIN_PARTS):  # a child in the background may write for ever
            if not self.talking or not self._read():
                break
        if self.feed >= 0:
            self._close_feed()
        return self.process.wait() if self.ended else None

    def interrupt(self) -> None:
        """End it and its whole process group: TERM, and KILL for what is there five seconds later."""
        group = self.process.pid  # not reaped yet: nobody else can have this number
        self._signal(group, signal.SIGTERM)
        until = time.monotonic() + TERM_S
        while time.monotonic() < until and _members(group):
            if self.wait(time.monotonic() + LOOK_S):
                time.sleep(LOOK_S)
        self._signal(group, signal.SIGKILL)
        self.wait(time.monotonic() + KILL_S)

    def drain(self) -> None:
        """Read and forget what children in the background still write: they would die of a closed pipe."""
        if self.talking:
            os.set_blocking(self.out, True)
            while os.read(self.out, PART_BYTES):
                pass

    def output(self) -> str:
        """Return the end of what it has written."""
        data = bytes(self.tail)
        if self.cut:  # perhaps in the middle of a character
            data = data[next((at for at in range(4) if data[at] & 0xC0 != 0x80), 0) :]
        return data.decode("utf-8", "replace")

    @staticmethod
    def _signal(group: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def _write(self) -> None:
        try:
            self.waiting = self.waiting[os.write(self.feed, self.waiting[:PART_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # it does not read its input
            self.waiting = self.waiting[:0]
        if not self.waiting:
            self._close_feed()

    def _close_feed(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(KeyError):
            self.poll.unregister(self.feed)
        self.process.stdin.close()
        self.feed = -1

    def _read(self) -> bool:
        """Read a part; False if there is none for now."""
        try:
            part = os.read(self.out, PART_BYTES)
        except BlockingIOError:
            return False
        if not part:
            self.poll.unregister(self.out)
            self.talking = False
        self.tail += part
        if len(self.tail) > OUTPUT_BYTES:
            self.cut = True
            del self.tail[:-OUTPUT_BYTES]
        return bool(part)


def _members(group: int) -> bool:
    """Say whether a living process is in a process group."""
    known = (stat(pid) for pid in all_pids())
    return any(one is not None and one.pgrp == group and not one.dead for one in known)


def carry_out(hook: Hook, command: str, *, cwd: str, timeout_s: float) -> dict[str, Any]:
    """Run the hook to its end and return its result."""
    begun = time.monotonic()
    result: dict[str, Any] = {"exit_code": None, "signal": None, "timed_out": False}
    try:
        hook.start(command, cwd)
    except (OSError, ValueError) as error:
        return {**result, "seconds": 0.0, "output": "", "at": utc(), "error": f"it cannot be started: {error}"}
    if not hook.wait(begun + timeout_s):
        result["timed_out"] = True
        hook.interrupt()
    status = hook.finish()
    if status is None:
        result["error"] = f"it cannot be killed (pid {hook.process.pid})"
    elif status < 0:
        result["signal"] = signal_name(-status)
    else:
        result["exit_code"] = status
    return {**result, "seconds": round(time.monotonic() - begun, 3), "output": hook.output(), "at": utc()}


def publish(folder: RunFolder, path: Path, result: dict[str, Any]) -> None:
    """Publish a result; on a full disk the ballast is given up for it, and it is tried for a while."""
    for wait_s in WRITE_AGAIN_S:
        time.sleep(wait_s)
        try:
            write_json(path, result)
        except FileNotFoundError:  # the run's folder was removed: nobody will ask
            return
        except OSError:
            folder.drop_ballast()
        else:
            return


def main(argv: list[str]) -> int:
    """Run the hook unless somebody else does or has done it."""
    folder, key = RunFolder(Path(argv[1])), argv[2]
    files = files_of(folder, key)
    try:
        payload = read_regular(files.payload)
        if not claim(files):
            return 0
    except OSError as error:  # the run's folder was removed, or the disk is full: the supervisor may try again
        if not isinstance(error, FileNotFoundError):
            folder.drop_ballast()
        sys.stderr.write(f"overnight: the hook {key} cannot be claimed: {error}\n")
        return 1
    hook = Hook(payload)
    try:
        spec = read_asked(folder).spec
        command = command_of(spec, key)
    except (FolderError, LookupError, ValueError) as error:
        said = f"it cannot be started: {error}" if isinstance(error, FolderError) else f"{key} is no hook of this run"
        result = {"exit_code": None, "signal": None, "timed_out": False, "seconds": 0.0, "output": "", "at": utc()}
        publish(folder, files.result, {**result, "error": said})
        return 1
    publish(folder, files.result, carry_out(hook, command, cwd=spec.cwd, timeout_s=spec.hook_timeout_s))
    hook.drain()
    return 0


if __name__ == "__main__":
    os.closerange(3, 1024)  # whatever the supervisor may hold, its lock above all, is no business of a hook's
    raise SystemExit(main(sys.argv))
