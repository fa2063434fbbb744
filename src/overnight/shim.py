"""Guard and shim: the two tiny parents of one run. They fork attempts, write down exits and restart a dead supervisor.

Run as ``python -I -S shim.py RUNDIR -- SUPERVISOR_ARGV...``. Only the standard library, and nothing of ours, may be
imported here: the process stays for weeks beside the training, must cost little, and must not break when the package is
upgraded under it. That is why it is one file, longer than the others. No decision is taken here.

guard -> shim -> training and supervisor. Both are subreapers and run the same code: while the shim lives the guard only
waits for it; when the shim dies its children become the guard's, and the guard goes on from what the files say.
"""

# ruff: noqa: S606  (starting programs is its work)

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing would cost 0.5 MB for nothing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# HUP, QUIT and USR2 are taken off the queue and ignored, so that no hang-up and no scheduler's hint ends the parents.
SIGNALS = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGQUIT,
    }
)
BACKOFF_S = (0.4, 0.8, 1.5)
STEADY_S = 10.0  # a supervisor that lived this long starts the back-off anew
DEATHS = 5  # this many deaths within DEATHS_WITHIN_S mean that restarting at once does not help
DEATHS_WITHIN_S = 60.0
SLOW_S = 30.0
RETRY_S = 0.25  # after a failed write (a full disk)
LEFT_S = 10.0  # what is still there so long after the supervisor has declared the run over is killed
REAPED_BYTES = 1 << 20
BOARD_BYTES = 4096
NOT_FOUND = 127
NOT_EXECUTABLE = 126
NEVER_STARTED = 125


def prctl(option: int, value: int) -> None:
    """Set one property of this process; a kernel that does not know it is no reason to stop."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def say(text: str) -> None:
    """Write one line to shim.log, which is this process's standard error; a full disk swallows it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} [{os.getpid()}] {text}\n".encode("utf-8", "replace"))


def read(path: str) -> bytes:
    """Return a small file's bytes, empty if it is not there."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def stat_of(pid: int) -> tuple[int, int]:
    """Return (parent's pid, start time in clock ticks) of a process; (0, 0) if it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (int(fields[1]), int(fields[19])) if len(fields) > 19 else (0, 0)


def number_in(data: bytes, key: str) -> int:
    """Return the integer behind ``"key": `` in JSON that this file wrote; 0 if there is none."""
    digits = data.partition(f'"{key}": '.encode())[2].lstrip()
    end = 0
    while end < len(digits) and digits[end : end + 1].isdigit():
        end += 1
    return int(digits[:end] or 0)


def quoted(text: str) -> str:
    """Return ``text`` as a JSON string of ASCII characters; undecodable bytes become U+FFFD."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    units = clean.encode("utf-16-be")
    out = []
    for at in range(0, len(units), 2):
        unit = units[at] << 8 | units[at + 1]
        out.append(chr(unit) if 32 <= unit < 127 and unit not in (34, 92) else f"\\u{unit:04x}")
    return '"' + "".join(out) + '"'


def publish(path: str, text: str, *, sync: bool = False) -> None:
    """Put ``text`` at ``path`` by rename, so that a reader sees the old file or the new. OSError on a full disk."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.{os.getpid()}.tmp"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = text.encode()
        while data:
            data = data[os.write(handle, data) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, path)


# --- what happens in a forked child until it becomes another program -------------------------------------------------


def reset_signals() -> None:
    """Give the child a login shell's dispositions: after ``&`` SIGINT is inherited ignored, Python ignores SIGPIPE."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def redirect(log: str) -> None:
    """Make /dev/null the input and ``log`` (appended to) the output and errors. OSError if the log cannot be opened."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)


def why(error: OSError, executable: str, argv: list[str]) -> str:
    """Return a sentence for a failed exec."""
    if error.errno == errno.ENOEXEC:
        return (
            f"{executable} is neither a program of this machine nor a script with an interpreter line: "
            f"put '#!/bin/sh' (or its interpreter) on its first line, or run it as 'sh {argv[0]}'"
        )
    if error.errno == errno.ENOENT and os.path.exists(executable):
        return f"{executable} names an interpreter in its first line that does not exist"
    return f"{executable}: {os.strerror(error.errno or 0)}"


def offer_to_the_oom_killer(score: int) -> None:
    """Make the kernel prefer the training to its parents when memory runs out; a sandbox may forbid it."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write(str(score))
    except OSError:
        pass


def become_training(folder: str, environ: dict[bytes, bytes]) -> str:
    """Become the command of ``folder``/start.json. Returns only if that failed: "CODE text"."""
    import json  # 1.2 MB that the parent need not carry

    try:
        asked = json.loads(read(folder + "/start.json"))
        executable, argv, log = str(asked["executable"]), [str(word) for word in asked["argv"]], str(asked["log"])
        for name in asked.get("unset", ()):
            environ.pop(os.fsencode(name), None)
        environ.update((os.fsencode(name), os.fsencode(value)) for name, value in asked.get("set", {}).items())
        environ.pop(b"OVERNIGHT_ROLE", None)
        cwd = str(asked["cwd"])
        if asked.get("oom_score_adj") is not None:
            offer_to_the_oom_killer(int(asked["oom_score_adj"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{NOT_EXECUTABLE} {folder}/start.json cannot be understood: {error!r}"
    try:
        redirect(log)
    except OSError as error:
        return f"{NOT_EXECUTABLE} the log {log} cannot be opened: {os.strerror(error.errno or 0)}"
    try:
        os.chdir(cwd)
    except OSError as error:
        return f"{NOT_EXECUTABLE} the working directory {cwd} cannot be entered: {os.strerror(error.errno or 0)}"
    reset_signals()
    try:
        os.execve(executable, argv, environ)
    except OSError as error:
        return f"{NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE} {why(error, executable, argv)}"
    except ValueError as error:  # a NUL byte or an empty argv
        return f"{NOT_EXECUTABLE} {executable} cannot be executed: {error}"


def become_supervisor(run_dir: str, argv: list[str], environ: dict[bytes, bytes]) -> NoReturn:
    """Become the supervisor; a death before that is an ordinary death of the supervisor."""
    environ[b"OVERNIGHT_ROLE"] = b"supervisor"
    try:
        redirect(run_dir + "/supervisor.log")
    except OSError as error:
        say(f"supervisor.log cannot be opened: {error}")
    reset_signals()
    try:
        os.execve(argv[0], argv, environ)
    except (OSError, ValueError) as error:
        say(f"the supervisor {argv[0]} cannot be executed: {error}")
    os._exit(NOT_FOUND)


class Keeper:
    """What the one process that keeps the run knows. Times are of the monotonic clock in seconds."""

    def __init__(self, run_dir: str, supervisor_argv: list[str], environ: dict[bytes, bytes], board: mmap.mmap) -> None:
        self.run_dir = run_dir
        self.supervisor_argv = supervisor_argv
        self.environ = environ
        self.board = board  # shared by guard, shim and unborn trainings: survives either parent, needs no disk
        self.boot_id = read("/proc/sys/kernel/random/boot_id").decode().strip()
        self.guard = 0
        self.supervisor = 0
        self.attempt = ""  # the folder of the newest attempt that has been started
        self.command = 0  # its pid while it is not reaped
        self.over_since: float | None = None
        self.born = 0.0
        self.deaths: list[float] = []
        self.step = 0
        self.unguarded = False
        self.restart_at: float | None = None
        self.retry_at: float | None = None
        self.failures = 0
        self.to_scan = True
        self.requests: list[str] = []
        self.reaped: list[str] = []
        self.told: str | None = None

    # --- the loop ---

    def keep(self) -> None:
        """Keep the run until it is over: collect the dead, start what is due, tell the files, sleep until a signal."""
        while True:
            self.retry_at = None
            alone = self.collect()
            self.look_for_folder()
            if self.over_since is not None and (alone or self.only_other_keepers()):
                return
            self.flush()
            if self.over_since is not None:
                self.clear()
            else:
                self.scan()
                self.watch_supervisor()
            self.tell()
            self.wait()

    def look_for_folder(self) -> None:
        """Let the run be over if its folder was removed and the training has ended: nobody could ever say so there."""
        if self.over_since is None and not (self.command or self.supervisor) and not os.path.isdir(self.run_dir):
            self.over_since = time.monotonic()

    def wait(self) -> None:
        """Sleep until a signal, or until something is due; without anything due there is no timer."""
        due = [at for at in (self.restart_at, self.retry_at) if at is not None]
        if self.unguarded and self.supervisor:
            due.append(self.born + STEADY_S)
        if due:
            info = signal.sigtimedwait(SIGNALS, max(0.0, min(due) - time.monotonic()))
        else:
            info = signal.sigwaitinfo(SIGNALS)
        if info is not None:
            self.note(info.si_signo)

    def note(self, number: int) -> None:
        """Take one signal: TERM and INT are requests to stop, USR1 says that there is something to start."""
        if number in (signal.SIGTERM, signal.SIGINT):
            self.requests.append(f'{{"kind": "stop", "by": "scheduler", "at": {time.time():.6f}}}\n')
        elif number == signal.SIGUSR1:
            self.to_scan = True

    def later(self) -> None:
        """Try again soon what a full disk or a full process table has prevented."""
        self.retry_at = time.monotonic() + RETRY_S

    # --- the dead ---

    def collect(self) -> bool:
        """Write down and reap everything that has died. True if this process has no child left."""
        try:
            if self.supervisor and os.waitid(os.P_PID, self.supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self.supervisor_died(os.waitpid(self.supervisor, 0)[1])
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None:
                    return False
                if info.si_pid == self.supervisor:
                    self.supervisor_died(os.waitpid(info.si_pid, 0)[1])
                elif info.si_pid == self.command:
                    if not self.command_died(info.si_code, info.si_status):
                        return False
                    os.waitpid(info.si_pid, 0)
                    self.command = 0
                else:
                    self.other_died(info.si_pid)
        except ChildProcessError:
            return True

    def command_died(self, code: int, status: int) -> bool:
        """Publish the exit before the zombie goes, so that it outlives this process. False: the disk is full."""
        if code == os.CLD_EXITED:
            text = f'"exit_code": {status}, "signal": null, "core": false'
            pid, _, error = bytes(self.board).rstrip(b"\0").decode("utf-8", "replace").partition(" ")
            if pid == str(self.command):
                text += f', "error": {quoted(error)}'
        else:
            core = "true" if code == os.CLD_DUMPED else "false"
            text = f'"exit_code": null, "signal": {quoted(signal_name(status))}, "core": {core}'
        if self.publish_exit(self.command, text):
            return True
        # The zombie keeps its status meanwhile. Once the run is over there is nobody left to wait for.
        if not os.path.isdir(self.run_dir):
            return True
        return self.over_since is not None and time.monotonic() > self.over_since + LEFT_S

    def free_ballast(self, error: OSError) -> None:
        """Give up the space that the run folder keeps for what must be written on a full disk."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with contextlib.suppress(OSError):
                os.unlink(self.run_dir + "/evidence/ballast")

    def publish_exit(self, pid: int, text: str) -> bool:
        """Write exit.json of the current attempt; False, and a retry, if that failed."""
        try:
            publish(f"{self.attempt}/exit.json", f'{{"pid": {pid}, {text}, "at": {time.time():.6f}}}\n', sync=True)
        except OSError as error:
            self.free_ballast(error)
            self.failures += 1
            if self.failures == 1:
                say(f"exit.json cannot be written, trying again: {error}")
            self.later()
            return False
        self.failures = 0
        return True

    def other_died(self, pid: int) -> None:
        """Write down an orphan's end: the training below a wrapper may be one."""
        status = os.waitpid(pid, 0)[1]
        if len(self.reaped) < 1000:
            self.reaped.append(f"{pid} {status} {time.time():.6f}\n")

    def supervisor_died(self, status: int) -> None:
        """Plan the next supervisor, unless this one said that the run is over."""
        now = time.monotonic()
        self.supervisor = 0
        if status == 0 and not self.running():
            self.over_since = now
            self.restart_at = None
            return
        if now - self.born >= STEADY_S:
            self.step = 0
        self.deaths = [at for at in self.deaths if now - at < DEATHS_WITHIN_S] + [now]
        delay_s = BACKOFF_S[min(self.step, len(BACKOFF_S) - 1)]
        self.step += 1
        self.unguarded = self.unguarded or len(self.deaths) >= DEATHS
        self.restart_at = now + (SLOW_S if self.unguarded else delay_s)
        how = f"by {signal_name(status & 127)}" if status & 127 else f"with code {status >> 8}"
        say(f"the supervisor ended {how}; next start in {self.restart_at - now:.1f} s")

    def running(self) -> bool:
        """Say whether the command still runs: a supervisor that ends with 0 then has left its post."""
        return bool(self.command) and not os.waitid(os.P_PID, self.command, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def flush(self) -> None:
        """Write what is waiting to be written: requests to the inbox, reaped processes to the attempt."""
        try:
            while self.requests:
                publish(f"{self.run_dir}/inbox/{time.time_ns()}-{os.getpid()}-stop.json", self.requests[0], sync=True)
                del self.requests[0]
            if self.reaped and self.attempt:
                handle = os.open(f"{self.attempt}/reaped", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if os.fstat(handle).st_size < REAPED_BYTES:
                        os.write(handle, "".join(self.reaped).encode())
                    self.reaped.clear()
                finally:
                    os.close(handle)
        except OSError as error:
            self.free_ballast(error)
            self.later()

    def clear(self) -> None:
        """Kill what is left LEFT_S after the run is over, so that nothing outlives it."""
        wait_s = (self.over_since or 0.0) + LEFT_S - time.monotonic()
        if wait_s > 0:
            self.retry_at = time.monotonic() + wait_s
            return
        for pid in self.children():
            if not keeps_a_run(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self.retry_at = time.monotonic() + 0.02

    def children(self) -> list[int]:
        """Return the pids of the children; this process has one thread only."""
        return [int(word) for word in read(f"/proc/self/task/{os.getpid()}/children").split()]

    def only_other_keepers(self) -> bool:
        """Say whether all that is left are guards of runs that this run's training has started: those go on."""
        left = self.children()
        return bool(left) and all(map(keeps_a_run, left))

    # --- the living ---

    def scan(self) -> None:
        """Start the newest attempt if it has been asked for and not yet been started."""
        if not self.to_scan or self.command:
            return  # a wish that comes while a command runs is looked at again when that has ended
        self.to_scan = False
        try:
            numbers = [name for name in os.listdir(f"{self.run_dir}/attempts") if name.isdigit()]
        except OSError as error:
            say(f"the attempts cannot be listed: {error}")
            return
        if not numbers:
            return
        folder = f"{self.run_dir}/attempts/{max(numbers, key=int)}"
        if os.path.exists(f"{folder}/start.json") and not os.path.exists(f"{folder}/exit.json"):
            if not os.path.exists(f"{folder}/started.json"):
                self.start(folder)
            elif folder != self.attempt:
                self.adopt(folder)

    def start(self, folder: str) -> None:
        """Fork the training. It waits until started.json names it: a parent killed in between leaves no second one."""
        self.board[:] = bytes(BOARD_BYTES)
        pid, go = self.fork(lambda: self.child_training(folder), lambda: named_in(f"{folder}/started.json"))
        if not pid:
            self.to_scan = True
            return
        who = f'"pid": {pid}, "start_ticks": {stat_of(pid)[1]}, "boot_id": {quoted(self.boot_id)}'
        text = f'{{{who}, "at": {time.time():.6f}}}\n'
        try:
            publish(f"{folder}/started.json", text, sync=True)
        except OSError as error:
            say(f"started.json cannot be written, trying again: {error}")
            os.close(go)  # the child sees that it is not wanted
            self.to_scan = True
            self.later()
        else:
            self.attempt, self.command = folder, pid
            release(go)

    def adopt(self, folder: str) -> None:
        """Go on with an attempt that somebody else has started: the shim that died, or a shim of an earlier life."""
        data = read(f"{folder}/started.json")
        pid, ticks = number_in(data, "pid"), number_in(data, "start_ticks")
        self.attempt = folder
        parent, start_ticks = stat_of(pid)
        same = start_ticks == ticks and self.boot_id.encode() in data
        if b'"watched": true' in read(f"{folder}/start.json"):
            return  # started by hand: never a child of ours, and the supervisor may know how it ended
        if same and parent == os.getpid():
            self.command = pid
        elif not same and not self.publish_exit(pid, '"exit_code": null, "signal": null, "core": false'):
            self.attempt, self.to_scan = "", True

    def watch_supervisor(self) -> None:
        """Start a supervisor when one is due, and forget old deaths when it has proved steady."""
        now = time.monotonic()
        if self.supervisor:
            if self.unguarded and now - self.born >= STEADY_S:
                self.unguarded, self.step = False, 0
                self.deaths.clear()
        elif self.restart_at is None or now >= self.restart_at:
            pid, go = self.fork(self.child_supervisor, lambda: False)
            if not pid:
                self.restart_at = now + BACKOFF_S[-1]
                return
            self.supervisor, self.born, self.restart_at = pid, now, None
            self.tell()
            release(go)

    def find_supervisor(self) -> None:
        """After a take-over: the supervisor that shim.json names is ours now, if it is still a child."""
        part = read(f"{self.run_dir}/shim.json").partition(b'"supervisor": {')[2]
        pid, ticks = number_in(part, "pid"), number_in(part, "start_ticks")
        if pid and stat_of(pid) == (os.getpid(), ticks):
            self.supervisor, self.born = pid, time.monotonic()

    def fork(self, child: Callable[[], None], named: Callable[[], bool]) -> tuple[int, int]:
        """Fork ``child``, waiting for a byte or, if this process dies, asking ``named``. Return (pid, write end)."""
        wait, go = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            say(f"no process can be made: {error}")
            os.close(wait)
            os.close(go)
            self.later()
            return 0, -1
        if pid:
            os.close(wait)
            return pid, go
        try:
            os.close(go)
            if os.read(wait, 1) or named():
                child()
        finally:
            os._exit(NEVER_STARTED)  # whatever happens, a child never runs the parent's loop

    def child_training(self, folder: str) -> None:
        """Live as a forked training until it is another program."""
        os.setsid()
        code, _, text = become_training(folder, dict(self.environ)).partition(" ")
        line = f"{os.getpid()} {text}".encode("utf-8", "replace")[: BOARD_BYTES - 1]
        self.board[: len(line)] = line
        os._exit(int(code))

    def child_supervisor(self) -> None:
        """Live as a forked supervisor until it is another program."""
        become_supervisor(self.run_dir, self.supervisor_argv, dict(self.environ))

    def tell(self) -> None:
        """Rewrite shim.json if anything in it has changed. A full disk only makes it stale."""
        parent = self.guard if self.guard and os.getppid() == self.guard else 0
        text = (
            f'{{"guard": {person(parent)}, "shim": {person(os.getpid())}, "supervisor": {person(self.supervisor)}, '
            f'"unguarded": {"true" if self.unguarded else "false"}, "boot_id": {quoted(self.boot_id)}}}\n'
        )
        if text != self.told:
            try:
                publish(f"{self.run_dir}/shim.json", text)
                self.told = text
            except OSError:
                self.later()


def person(pid: int) -> str:
    """Return the JSON of one process: its pid and start time, or null."""
    return f'{{"pid": {pid}, "start_ticks": {stat_of(pid)[1]}}}' if pid else "null"


def keeps_a_run(pid: int) -> bool:
    """Say whether a process is one of ours: a guard, a shim, a supervisor or its helper."""
    return b"\0OVERNIGHT_ROLE=" in b"\0" + read(f"/proc/{pid}/environ")


def release(go: int) -> None:
    """Let a forked child go on; it may have been killed already."""
    with contextlib.suppress(OSError):
        os.write(go, b"!")
    os.close(go)


def named_in(path: str) -> bool:
    """Say whether started.json names this process: its parent died after the rename, and the training goes on."""
    data = read(path)
    return number_in(data, "pid") == os.getpid() and number_in(data, "start_ticks") == stat_of(os.getpid())[1]


def signal_name(number: int) -> str:
    """Return "SIGSEGV" for 11 and "SIGRTMIN+3" for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def wait_for_shim(keeper: Keeper, shim: int) -> bool:
    """Be the guard: reap, pass requests on, and sleep. True if the shim ended because the run is over."""
    while True:
        # First look for any child, then at the shim: the kernel hands a dying shim's children on and makes the shim a
        # zombie in one step, so an orphan seen while the shim still lives is a stranger (we are PID 1), no training.
        while True:
            other = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ended = os.waitid(os.P_PID, shim, os.WEXITED | os.WNOHANG)
            if ended is not None:
                return ended.si_code == os.CLD_EXITED and ended.si_status == 0
            if other is None:
                break
            if other.si_pid != shim:
                os.waitpid(other.si_pid, 0)
        keeper.retry_at = None
        keeper.flush()
        keeper.wait()
        if keeper.to_scan:
            keeper.to_scan = False
            os.kill(shim, signal.SIGUSR1)


def environment() -> dict[bytes, bytes]:
    """Return the environment as it was given: in the C locale Python adds LC_CTYPE to its own copy."""
    words = [word.partition(b"=") for word in read("/proc/self/environ").split(b"\0") if b"=" in word]
    return {name: value for name, _, value in words} or dict(os.environb)


def settle_in() -> None:
    """Block the signals, drop what was inherited (descriptors, an ignored SIGCHLD, the folder, the session)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would make the kernel throw exit statuses away
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    while (handle := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)  # a caller had closed one of 0, 1, 2
    os.close(handle)
    os.chdir("/")
    with contextlib.suppress(OSError):  # the engine did it already
        os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def main(argv: list[str]) -> int:
    """Be the guard, and the shim in its child. Returns when the run is over."""
    if len(argv) < 4 or argv[2] != "--":
        say("usage: shim.py RUNDIR -- SUPERVISOR_ARGV...")
        return 2
    run_dir = os.path.abspath(argv[1])
    settle_in()
    keeper = Keeper(run_dir, argv[3:], environment(), mmap.mmap(-1, BOARD_BYTES))
    guard = os.getpid()
    shim = os.fork()
    if shim:
        keeper.to_scan = False
        if wait_for_shim(keeper, shim):
            return 0
        say("the shim died; the guard keeps the run now")
        keeper.to_scan = True
        keeper.find_supervisor()
        keeper.scan()  # before anything is reaped: the zombie of the training may be waiting
    else:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)  # wakes the shim to tell shim.json that it is alone
        keeper.guard = guard
    keeper.keep()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
