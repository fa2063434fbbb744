"""A side process that writes down what the processes of a run that hangs are doing, and how the machine is.

Run as ``python -I -m overnight.stalls.stalldump --log FILE --reason TEXT -- FOLDER PID...``. It only looks: nothing is
stopped or signalled. Every command has 5 s, the whole 20 s, every file 1 MiB; what never returns is left behind in a
thread, and what could not be learned is said in the file instead. No environment is written down: it may hold secrets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from overnight import processes
from overnight.exits.postmortem import KMSG, last_lines
from overnight.folder import utc, write_atomic
from overnight.stalls import hostfacts

WHOLE_S = 20.0
COMMAND_S = 5.0
FILE_BYTES = 1 << 20
MAX_PROCESSES = 128
MAX_THREADS = 64
MAX_FILES = 256
LOOKERS = 4
TRIES = 3
LOG_LINES = 50
NICE = 10

_FRAME = re.compile(r"^    (?P<function>.+) \((?P<place>[^()]+:\d+)\)$")
_THREAD = re.compile(r"^Thread (?P<id>\S+) \((?P<state>[^)]*)\)(?:: \"(?P<name>.*)\")?")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[\d.]*/|^<frozen ")
_REFUSED = re.compile(r"[Pp]ermission denied|[Oo]peration not permitted|EPERM", re.IGNORECASE)


class Report:
    """The files of one dump, and the line about each process; filled by several threads."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder = folder
        self.head = f"{utc()} {reason}"
        self.lines: dict[int, str] = {}
        self.notes: list[str] = []

    def write(self, name: str, text: str) -> None:
        """Write one file, at most 1 MiB of it; a full disk costs this file and nothing more."""
        data = text.encode("utf-8", "replace")
        if len(data) > FILE_BYTES:
            note = b"\n... cut at 1 MiB\n"
            data = data[: FILE_BYTES - len(note)] + note
        try:
            write_atomic(self.folder / name, data)
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)  # noqa: T201 - into dump.log, beside the files

    def summary(self) -> None:
        """Write what a person reads first: the innermost frame of each process, parents before children."""
        lines = [self.head, "", *self.lines.values(), *self.notes]
        self.write("summary.txt", "\n".join(lines) + "\n")


def run(argv: Sequence[str], limit_s: float = COMMAND_S) -> tuple[int | None, str]:
    """Return exit code and output of a command; None and a sentence if it could not be run to its end in time."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return None, f"{argv[0]} cannot be executed: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started holds its output open
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)  # one that is stuck in a driver does not die, and is left behind
        return None, f"{argv[0]} did not answer within {limit_s:g} s"
    return process.returncode, output.decode("utf-8", "replace")


def find_py_spy() -> str | None:
    """Return py-spy, beside this Python or on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


# --- one process ------------------------------------------------------------------------------------------------------


def python_stacks(pid: int, py_spy: str | None) -> tuple[str, str | None]:
    """Return the stacks of all Python threads as text, and where the main thread is; or why they cannot be had."""
    if py_spy is None:
        return "py-spy is not installed: `pip install py-spy` beside overnight shows the Python stacks here\n", None
    output = ""
    for _ in range(TRIES):  # a process that is not paused may change while it is being read
        code, output = run([py_spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)])
        if code == 0 and "Thread " in output:
            return output, innermost(output)
        if code is None or _REFUSED.search(output) or "python version" in output or not _exists(pid):
            break
    if _REFUSED.search(output):
        scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
        hint = f" (kernel.yama.ptrace_scope is {scope}; 0 allows it)" if scope not in ("", "0") else ""
        return f"the kernel does not let py-spy read process {pid}{hint}\n{output}", None
    return f"no Python stacks of process {pid}: {output.partition('Stack backtrace:')[0].strip()}\n", None


def innermost(output: str) -> str | None:
    """Return the innermost frame of the main thread, and the innermost in the user's own code if that is another."""
    threads: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in output.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread is not None:
            name = thread["name"] or thread["id"]
            threads[name] = []
        elif frame is not None and name:
            threads[name].append((frame["function"], frame["place"]))
    frames = threads.get("MainThread") or next(iter(threads.values()), [])
    if not frames:
        return None
    own = next((one for one in frames if not _LIBRARY.search(one[1])), frames[0])
    first = f"{frames[0][0]} ({frames[0][1]})"
    return first if own == frames[0] else f"{first}, called from {own[0]} ({own[1]})"


def look_at(pid: int, report: Report, py_spy: str | None) -> None:
    """Write the file of one process and its line of the summary."""
    known = processes.stat(pid)
    if known is None:
        report.lines[pid] = f"{pid} is gone"
        return
    begin = f"{pid} {known.comm} (parent {known.ppid}, state {known.state}, {known.threads} threads)"
    report.lines[pid] = f"{begin}: still being looked at when time was over"
    words = " ".join(processes.cmdline(pid) or ()) or "(no command line)"
    stacks, frame = ("a zombie has no stacks\n", None) if known.dead else python_stacks(pid, py_spy)
    text = [begin, words, f"cwd {processes.cwd(pid)}", "", "--- Python", stacks, "--- threads", *_threads(pid)]
    text += ["", "--- status", _read(f"/proc/{pid}/status"), "--- open files", *_open_files(pid)]
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", known.comm)
    report.write(f"{pid}-{name}.txt", "\n".join(text) + "\n")
    if frame is None:
        frame = f"waits in the kernel in {_read(f'/proc/{pid}/wchan') or '?'}; {stacks.splitlines()[0]}"
    report.lines[pid] = f"{begin}: {frame}" if _exists(pid) else f"{pid} {known.comm} ended while it was looked at"


def _threads(pid: int) -> Iterator[str]:
    """Yield what the kernel tells of each thread: state, where it waits, system call, and (to root) its stack."""
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return
    for thread in threads[:MAX_THREADS]:
        place = f"/proc/{pid}/task/{thread}"
        call = _read(f"{place}/syscall").strip() or "(not ours to see)"
        state = re.search(r"^State:\s*(.*)$", _read(f"{place}/status"), re.MULTILINE)
        yield (
            f"{thread} {_read(f'{place}/comm').strip()}: {state[1] if state else 'gone'}, "
            f"wchan {_read(f'{place}/wchan') or '?'}, syscall {call}"
        )
        yield from (f"    {line}" for line in _read(f"{place}/stack").splitlines())
    if len(threads) > MAX_THREADS:
        yield f"... {len(threads) - MAX_THREADS} more threads"


def _open_files(pid: int) -> Iterator[str]:
    try:
        numbers = sorted(os.listdir(f"/proc/{pid}/fd"), key=int)
    except OSError as error:
        yield f"not to be seen: {error.strerror}"
        return
    for number in numbers[:MAX_FILES]:
        with contextlib.suppress(OSError):
            yield f"{number} -> {os.readlink(f'/proc/{pid}/fd/{number}')}"
    if len(numbers) > MAX_FILES:
        yield f"... {len(numbers) - MAX_FILES} more"


def _exists(pid: int) -> bool:
    return processes.stat(pid) is not None


def _read(path: str) -> str:
    """Return a small file of /proc; empty if there is none or it is not ours to read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


# --- the machine ------------------------------------------------------------------------------------------------------


def look_at_host(report: Report, log: Path | None, cwds: Sequence[str]) -> None:
    """Write load, memory, pressure and disks; no driver is asked here, so that this file is there in any case."""
    text = [f"loadavg {_read('/proc/loadavg').strip()}", "", "--- memory", _read("/proc/meminfo")]
    for name in ("cpu", "memory", "io"):
        text += [f"--- pressure of {name}", _read(f"/proc/pressure/{name}") or "(not told by this kernel)\n"]
    text.append("--- disks")
    for place in dict.fromkeys([*cwds, *([str(log.parent)] if log else []), "/dev/shm", "/tmp"]):  # noqa: S108 - looked at
        try:
            look = os.statvfs(place)
        except OSError as error:
            text.append(f"{place}: {error.strerror}")
            continue
        free, whole = look.f_bavail * look.f_frsize, look.f_blocks * look.f_frsize
        text.append(
            f"{place}: {free / (1 << 30):,.2f} GiB of {whole / (1 << 30):,.2f} free, {look.f_favail:,} inodes free"
        )
    report.write("host.txt", "\n".join(text) + "\n")


def look_at_gpus(report: Report) -> None:
    """Write what nvidia-smi says, if there is one; a sick GPU may never answer."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        code, output = run([program])
        report.write("gpu.txt", output if code == 0 else f"nvidia-smi failed ({code}): {output}\n")
        if code != 0:
            report.notes.append(f"nvidia-smi failed: {output.strip().splitlines()[0] if output.strip() else code}")


def look_at_facts(report: Report, run_dir: Path, kmsg: Path) -> None:
    """Write what GPU and host have told the sensors last, and what the kernel's log says of GPUs."""
    facts = hostfacts.gather(run_dir, kmsg=kmsg)
    if facts.samples:
        report.write("sensors.txt", "\n".join([*facts.said, "", "--- the last samples", *facts.samples]) + "\n")
    report.write("kernel.txt", "\n".join([facts.head(), *facts.kernel]) + "\n")
    report.notes += [*facts.said, facts.head()]


def look_at_log(report: Report, log: Path) -> None:
    """Write the last lines of the log."""
    report.write("log-end.txt", "\n".join(last_lines(log, 0, None)[-LOG_LINES:]) + "\n")


# --- all of it --------------------------------------------------------------------------------------------------------


def tree(pids: Sequence[int]) -> list[int]:
    """Return the processes and all below them, parents first: ranks come before their data workers."""
    found = dict.fromkeys(pids)
    for pid in pids:
        found.update(dict.fromkeys(processes.descendants(pid)))
    return [pid for pid in found if pid != os.getpid()]


def look(
    folder: Path,
    pids: Sequence[int],
    reason: str,
    log: Path | None,
    *,
    run_dir: Path | None = None,
    kmsg: Path = KMSG,
) -> None:
    """Write the dump; returns after 20 s at the latest, whatever has not answered by then.

    ``run_dir`` is where the samples of the run's sensors lie; ``kmsg`` another kernel's log, in tests.
    """
    until = time.monotonic() + WHOLE_S
    report = Report(folder, reason)
    members = tree(pids)
    if len(members) > MAX_PROCESSES:
        report.notes.append(f"{len(members) - MAX_PROCESSES} more processes were not looked at")
    py_spy = find_py_spy()
    cwds = [found for found in map(processes.cwd, members[:1]) if found is not None]
    work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    work.put(lambda: look_at_host(report, log, cwds))
    if run_dir is not None:
        work.put(lambda: look_at_facts(report, run_dir, kmsg))
    if log is not None:
        work.put(lambda: look_at_log(report, log))
    for pid in members[:MAX_PROCESSES]:
        report.lines[pid] = f"{pid}: not looked at, time was over"
        work.put(lambda pid=pid: look_at(pid, report, py_spy))  # type: ignore[misc] # a default cannot be annotated
    work.put(lambda: look_at_gpus(report))
    threads = [threading.Thread(target=_work, args=(work,), daemon=True) for _ in range(LOOKERS)]
    report.summary()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    report.summary()


def _work(work: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            task = work.get_nowait()
        except queue.Empty:
            return
        task()


def main() -> None:
    """Run as a program of its own."""
    parser = argparse.ArgumentParser(prog="overnight.stalls.stalldump")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--kmsg", type=Path, default=KMSG)  # another kernel's log, in tests
    parser.add_argument("--reason", default="")
    parser.add_argument("pids", type=int, nargs="*")
    asked = parser.parse_args()
    with contextlib.suppress(OSError):
        os.nice(NICE)
    look(asked.folder, asked.pids, asked.reason, asked.log, run_dir=asked.run, kmsg=asked.kmsg)
    sys.stderr.flush()
    os._exit(0)  # a thread that never returned must not hold the process up


if __name__ == "__main__":
    main()
