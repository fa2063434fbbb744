"""What is found out about a command that has ended: real processes, real control groups, the kernel's real log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from overnight.events import Exit
from overnight.exits import postmortem
from overnight.exits.causes import Finding
from overnight.exits.postmortem import OomCounters, again, examine, kernel_lines, last_lines, oom_counters
from overnight.processes import exit_of_status

KILLED = Exit(signal="SIGKILL")
MIB = 1 << 20


def look(log: Path, how: Exit, start: int = 0, **known: object) -> Finding:
    """Examine an end of which nothing else is known."""
    given = {"target": None, "end": None, "pid": None, "started_at": None, "before": None, **known}
    return examine(how=how, log=log, start=start, **given)  # type: ignore[arg-type]


# --- the log ----------------------------------------------------------------------------------------------------------


def test_only_the_attempts_own_part_counts(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    first = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\n'
    second = b"step: 1, loss: 3.2\n"
    log.write_bytes(first + second + first)
    assert look(log, Exit(exit_code=1), 0, end=len(first)).cause == "out_of_memory_host"
    assert look(log, Exit(exit_code=1), len(first), end=len(first + second)).cause == "crash"
    assert last_lines(log, len(first), len(first + second)) == ["step: 1, loss: 3.2"]


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    lines = last_lines(log, 5, None)
    assert lines[-1] == "line 99999"
    assert sum(len(line) + 1 for line in lines) <= postmortem.TAIL_BYTES
    assert lines[0] == f"line {int(lines[0].split()[1])}"  # a line that was cut in two is left out
    assert int(lines[1].split()[1]) == int(lines[0].split()[1]) + 1


def test_a_log_that_is_missing_cut_or_binary_is_no_error(tmp_path: Path) -> None:
    assert look(tmp_path / "none", Exit(exit_code=7)).text == "exited with code 7"
    assert last_lines(tmp_path, 0, None) == []
    log = tmp_path / "output.log"
    log.write_text("MemoryError\n")  # emptied and written anew: shorter than where the attempt began
    assert last_lines(log, 10_000, None) == ["MemoryError"]
    assert last_lines(log, 0, 10_000) == ["MemoryError"]
    log.write_bytes(bytes(range(256)) * 4096)
    assert look(log, Exit(exit_code=7)).text == "exited with code 7"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert last_lines(fifo, 0, None) == []


def test_escapes_and_bars_are_read_as_the_reader_of_progress_reads_them(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b" 10%|#  | 1/10 [00:01]\r 20%|## | 2/10 [00:02]\r\x1b[31mMemoryError\x1b[0m")
    assert last_lines(log, 0, None)[-1] == "MemoryError"
    assert look(log, Exit(exit_code=1)).cause == "out_of_memory_host"


def test_a_real_crash_is_told_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "print('step: 1, loss: 3.2')\n\ndef main():\n    raise OSError(28, 'No space left on device')\nmain()\n"
    )
    log = tmp_path / "output.log"
    log.write_text("of an earlier attempt\n")
    start = log.stat().st_size
    with log.open("ab") as stream:
        done = subprocess.run([sys.executable, str(script)], stdout=stream, stderr=stream, check=False)
    found = look(log, Exit(exit_code=done.returncode), start)
    assert found.cause == "disk_full"
    assert "at train.py line 4" in found.text
    assert found.lines[-1] == "OSError: [Errno 28] No space left on device"


def test_a_script_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    with log.open("ab") as stream:
        done = subprocess.run([sys.executable, "nothere.py"], stdout=stream, stderr=stream, check=False, cwd=tmp_path)
    found = look(log, Exit(exit_code=done.returncode))
    assert (found.cause, found.restartable) == ("usage", False)


# --- counters of control groups, on a copy of the files ---------------------------------------------------------------

V2 = "35 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
HYBRID = V1 + "36 25 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
CONTAINER = "35 25 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that lays out /proc and the control groups of a machine, with process 7 on it."""

    def build(mounts: str, groups: str, counter: str, text: str) -> Path:
        files = {
            "proc/self/mountinfo": mounts,
            "proc/7/cgroup": groups,
            "proc/vmstat": "nr_free_pages 5\noom_kill 2\n",
            counter: text,
        }
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return build


LAYOUTS = [
    (V2, "0::/user.slice/s.scope\n", "sys/fs/cgroup/user.slice/s.scope/memory.events", "low 0\noom 1\noom_kill {}\n"),
    (V1, "4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill {}\n"),
    (HYBRID, "4:cpu,memory:/a/b\n0::/\n", "sys/fs/cgroup/memory/a/b/memory.oom_control", "oom_kill {}\n"),
    (CONTAINER, "4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.oom_control", "oom_kill {}\n"),
    (V2, "0::/\n", "sys/fs/cgroup/memory.events", "oom_kill {}\n"),
]


@pytest.mark.parametrize(("mounts", "groups", "counter", "text"), LAYOUTS)
def test_the_counter_of_the_commands_own_group_proves_it(
    machine: Callable[..., Path], mounts: str, groups: str, counter: str, text: str
) -> None:
    """A2-04: SIGKILL and a counter that rose from 0 to 1."""
    root = machine(mounts, groups, counter, text.format(0))
    before = oom_counters(7, root)
    assert before == OomCounters(path=str(root / counter), kills=0, host_kills=2)
    assert msgspec.convert(msgspec.structs.asdict(before), OomCounters) == before  # through the journal and back
    known = {"before": before, "root": root, "pid": 7}
    assert look(root / "log", KILLED, **known).cause == "unknown_kill"
    (root / counter).write_text(text.format(1))
    (root / "proc/7/cgroup").unlink()  # the process has ended
    found = look(root / "log", KILLED, **known)
    assert found.cause == "out_of_memory_host"
    assert "rose by 1" in found.text
    assert look(root / "log", Exit(exit_code=137), **known).cause == "out_of_memory_host"
    assert look(root / "log", Exit(exit_code=7), **known).cause == "crash"
    (root / counter).unlink()  # and its group with it
    assert look(root / "log", KILLED, **known).cause == "unknown_kill"


def test_the_counter_of_the_whole_machine_is_a_hint_only(machine: Callable[..., Path]) -> None:
    root = machine(V2, "0::/a\n", "sys/fs/cgroup/a/memory.events", "oom_kill 3\n")
    before = oom_counters(7, root)
    (root / "proc/vmstat").write_text("oom_kill 3\n")
    found = look(root / "log", KILLED, before=before, root=root)
    assert found.cause == "unknown_kill"
    assert "not demonstrably here" in found.text


def test_counters_that_cannot_be_read_are_unknown(tmp_path: Path, machine: Callable[..., Path]) -> None:
    assert oom_counters(8, tmp_path) is None
    root = machine("nonsense\n", "nonsense\n0::/x\n", "sys/unused", "")
    assert oom_counters(7, root) == OomCounters(path=None, kills=None, host_kills=2)
    found = look(root / "log", KILLED, before=OomCounters(path=None, kills=None, host_kills=None), root=root)
    assert found.cause == "unknown_kill"


# --- the kernel's log -------------------------------------------------------------------------------------------------


def record(text: str, ago_s: float = 0.0) -> str:
    """Return a record as /dev/kmsg hands it out."""
    at_us = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago_s) * 1e6)
    return f"3,1042,{max(0, at_us)},-;{text}\n SUBSYSTEM=memory\n"


OOM_LINE = (
    "Memory cgroup out of memory: Killed process {} (python) total-vm:900kB, anon-rss:5kB, UID:0 oom_score_adj:10"
)
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_48 = "NVRM: Xid (PCI:0000:3b:00): 48, pid={}, name=python, DBE (double bit error)"


def test_the_kernels_log_proves_it_for_a_process_of_ours_only(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    known = {"started_at": time.time() - 1, "kmsg": kmsg, "pid": 4711}
    assert look(tmp_path / "log", KILLED, **known).cause == "unknown_kill"
    kmsg.write_text(record("eth0: link is up") + record(OOM_LINE.format(4712)))
    assert look(tmp_path / "log", KILLED, **known).cause == "unknown_kill"
    assert look(tmp_path / "log", KILLED, **known, pids=[4712]).cause == "out_of_memory_host"
    kmsg.write_text(record(OOM_LINE.format(4711)))
    found = look(tmp_path / "log", KILLED, **known)
    assert found.cause == "out_of_memory_host"
    assert "Killed process 4711" in found.text
    kmsg.write_text(record("oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/job,task=python,pid=4711,uid=0"))
    assert look(tmp_path / "log", KILLED, **known).cause == "out_of_memory_host"


def test_a_rank_that_the_launcher_names_is_one_of_ours(tmp_path: Path) -> None:
    log, kmsg = tmp_path / "log", tmp_path / "kmsg"
    log.write_text("E1129 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 28676) of binary: python3\n")
    kmsg.write_text(record(OOM_LINE.format(28676)))
    found = look(log, Exit(exit_code=1), started_at=time.time(), kmsg=kmsg, pid=4711)
    assert found.cause == "out_of_memory_host"
    assert "rank 1 (pid 28676)" in found.text


def test_what_was_before_the_attempt_does_not_count(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    up_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    kmsg.write_text(record(OOM_LINE.format(4711), ago_s=up_s))  # in the first moment of this boot
    started_at = time.time() - up_s / 2
    if up_s < 60:
        pytest.skip("this machine has only just been started")
    assert list(kernel_lines([4711], started_at, kmsg)) == []
    assert list(kernel_lines([4711], time.time() - up_s - 60, kmsg)) != []


def test_a_lost_gpu_is_hardware(tmp_path: Path) -> None:
    log, kmsg = tmp_path / "log", tmp_path / "kmsg"
    log.write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: CUDA error: unspecified\n'
    )
    kmsg.write_text(record(XID_79))
    known = {"started_at": time.time(), "kmsg": kmsg, "pid": 4711}
    assert look(log, Exit(exit_code=1), **known).cause == "hardware"
    kmsg.write_text(record(XID_48.format(4712)))
    assert look(log, Exit(exit_code=1), **known).cause == "crash"  # of somebody else
    kmsg.write_text(record(XID_48.format(4711)))
    assert look(log, Exit(exit_code=1), **known).cause == "hardware"


def test_the_real_log_of_the_kernel_is_read_without_waiting() -> None:
    begun = time.monotonic()
    assert list(kernel_lines([], 0.0)) == [] or time.monotonic() - begun < 30


def test_a_kernel_log_that_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    assert list(kernel_lines([1], time.time(), tmp_path / "none")) == []
    assert list(kernel_lines([1], time.time(), tmp_path)) == []


# --- the real thing ---------------------------------------------------------------------------------------------------

HOG = "import os\nprint('step: 1', flush=True)\nheld = []\nwhile True: held.append(bytearray(os.urandom(1 << 20)))\n"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Make a control group of 60 MiB below our own; skip where that is not allowed."""
    counters = oom_counters(os.getpid())
    if counters is None or counters.path is None:
        pytest.skip("no control group here counts kills for memory")
    group = Path(counters.path).parent / f"overnight-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if counters.path.endswith("oom_control") else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(60 * MIB))
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
        except OSError as error:
            pytest.skip(f"no limit of memory can be set here: {error}")
        yield group
    finally:
        until = time.monotonic() + 20
        while group.exists():
            with contextlib.suppress(OSError):
                group.rmdir()  # busy until the last of its processes is reaped
            assert time.monotonic() < until
            time.sleep(0.01)


def in_group(group: Path, script: str, log: Path) -> tuple[subprocess.Popen[bytes], OomCounters | None]:
    """Start a Python in a control group; return it and its counters as they were before it began to work."""
    wait = f"import sys; sys.stdin.readline()\n{script}"
    with log.open("ab") as stream:
        process = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=stream, stderr=stream)
    (group / "cgroup.procs").write_text(str(process.pid))
    before = oom_counters(process.pid)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    return process, before


def test_a_real_kill_for_memory_is_told_from_a_real_kill_by_somebody(small_group: Path, tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    started_at = time.time()
    process, before = in_group(small_group, HOG, log)
    how = exit_of_status(os.waitpid(process.pid, 0)[1])
    process.returncode = -signal.SIGKILL
    assert how.signal == "SIGKILL"
    assert before is not None
    assert before.kills == 0
    assert again(before).kills == 1
    known = {"pid": process.pid, "started_at": started_at}
    found = look(log, how, before=before, **known)
    assert found.cause == "out_of_memory_host"
    assert found.restartable
    assert "step: 1" in found.lines
    alone = look(log, how, before=before, pid=process.pid)  # without the kernel's log
    assert alone.cause == "out_of_memory_host"
    assert "rose by 1" in alone.text
    if any(kernel_lines([process.pid], started_at)):  # readable here: then it is proof of its own
        assert look(log, how, **known).cause == "out_of_memory_host"

    process, before = in_group(small_group, "import time\ntime.sleep(1000)\n", log)
    assert before is not None
    assert before.kills == 1
    process.kill()
    how = exit_of_status(os.waitpid(process.pid, 0)[1])
    process.returncode = -signal.SIGKILL
    found = look(log, how, before=before, pid=process.pid, started_at=time.time())
    assert found.cause == "unknown_kill"
