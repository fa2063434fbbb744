"""The stall dump: real processes that hang, and what stands in the files about them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overnight.folder import RunFolder
from overnight.stalls import stalldump
from overnight.stalls.dumps import Dump

LIMIT_S = 60.0

DEADLOCK = """
import threading
first = threading.Lock()
def takes_it_twice():
    first.acquire()
    print("hangs", flush=True)
    first.acquire()
takes_it_twice()
"""

BUSY = """
def spins_for_ever():
    print("hangs", flush=True)
    while True:
        sum(range(100))
spins_for_ever()
"""

PARENT = """
import subprocess, sys
def waits_for_its_child():
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    child.wait()
waits_for_its_child()
"""


@pytest.fixture
def hang() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a Python that hangs, and returns once it does; all are ended afterwards."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "hangs\n"
        return process

    yield begin
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return an empty run folder."""
    found = RunFolder(tmp_path / "home" / "runs" / "hung")
    found.create()
    found.output_log.write_text("".join(f"step: {step}, loss: 3.2, dt: 0.1\n" for step in range(200)))
    return found


def finish(dump: Dump) -> dict[str, str]:
    """Wait for a dump; return its files by name."""
    assert dump.error is None
    until = time.monotonic() + LIMIT_S
    while not dump.done():
        assert time.monotonic() < until
        time.sleep(0.02)
    return {path.name: path.read_text() for path in dump.path.iterdir()}


def may_trace() -> bool:
    """Say whether this machine lets us read another process's memory."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return stalldump.find_py_spy() is not None and (not scope.exists() or scope.read_text().strip() == "0")


needs_py_spy = pytest.mark.skipif(not may_trace(), reason="no py-spy here, or the kernel does not allow it")


@needs_py_spy
@pytest.mark.parametrize(("script", "name"), [(DEADLOCK, "takes_it_twice"), (BUSY, "spins_for_ever")])
def test_the_function_that_hangs_is_named(
    hang: Callable[..., subprocess.Popen[str]], folder: RunFolder, script: str, name: str
) -> None:
    pid = hang(script).pid
    files = finish(Dump.begin(folder, [pid], "no progress for 300 s", folder.output_log))
    line = next(line for line in files["summary.txt"].splitlines() if line.startswith(f"{pid} "))
    assert name in line
    assert "no progress for 300 s" in files["summary.txt"]
    whole = next(text for file, text in files.items() if file.startswith(f"{pid}-"))
    assert name in whole
    assert "wchan" in whole
    assert "State:" in whole
    assert "1 -> pipe:" in whole
    assert files["dump.log"] == ""


@needs_py_spy
def test_what_is_below_is_looked_at_too_and_comes_after(
    hang: Callable[..., subprocess.Popen[str]], folder: RunFolder
) -> None:
    parent = hang(PARENT, DEADLOCK).pid
    summary = finish(Dump.begin(folder, [parent], "hung", folder.output_log))["summary.txt"]
    assert summary.index("waits_for_its_child") < summary.index("takes_it_twice")


def test_the_machine_and_the_logs_end_are_there(hang: Callable[..., subprocess.Popen[str]], folder: RunFolder) -> None:
    files = finish(Dump.begin(folder, [hang(BUSY).pid], "hung", folder.output_log))
    assert "MemAvailable" in files["host.txt"]
    assert "GiB of" in files["host.txt"]
    end = files["log-end.txt"].splitlines()
    assert (len(end), end[0], end[-1]) == (50, "step: 150, loss: 3.2, dt: 0.1", "step: 199, loss: 3.2, dt: 0.1")


def test_each_dump_has_a_folder_of_its_own_that_nobody_else_reads(folder: RunFolder) -> None:
    dumps = [Dump.begin(folder, [], "hung", folder.output_log) for _ in range(2)]
    assert len({dump.path for dump in dumps}) == 2
    for dump in dumps:
        finish(dump)
        assert dump.path.parent == folder.evidence
        assert dump.path.stat().st_mode & 0o077 == 0
        assert all(path.stat().st_mode & 0o077 == 0 for path in dump.path.iterdir())


def test_a_process_that_is_gone_is_said_to_be_gone(folder: RunFolder) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    summary = finish(Dump.begin(folder, [gone.pid], "hung", folder.output_log))["summary.txt"]
    assert f"{gone.pid} is gone" in summary


def test_a_program_that_is_no_python_is_told_by_where_it_waits(folder: RunFolder) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        summary = finish(Dump.begin(folder, [other.pid], "hung", folder.output_log))["summary.txt"]
    finally:
        other.kill()
        other.wait()
    assert f"{other.pid} sleep" in summary
    assert "waits in the kernel in" in summary


def test_without_py_spy_the_rest_is_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stalldump.find_py_spy() is None
    stalldump.look(tmp_path, [os.getppid()], "hung", None)
    summary = (tmp_path / "summary.txt").read_text()
    assert "py-spy is not installed" in summary
    assert f"{os.getppid()} " in summary


def program(folder: Path, name: str, script: str) -> None:
    """Put a program into a folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_what_does_not_answer_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6-03: a sick GPU must not hold the dump up."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "nvidia-smi", "sleep 1000")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert stalldump.run(["nvidia-smi"], 0.3) == (None, "nvidia-smi did not answer within 0.3 s")


def test_a_gpu_that_is_lost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: RunFolder) -> None:
    """D6-01: nvidia-smi ends with code 15 when a GPU has left the bus."""
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools, "nvidia-smi", "echo 'Unable to determine the device handle for GPU 0000:3B:00.0'; exit 15")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    files = finish(Dump.begin(folder, [], "hung", folder.output_log))
    assert "nvidia-smi failed: Unable to determine the device handle" in files["summary.txt"]
    assert "(15)" in files["gpu.txt"]


def test_a_refused_look_says_so(tmp_path: Path) -> None:
    program(tmp_path, "py-spy", "echo 'Error: Permission Denied: Try running again with elevated permissions'; exit 1")
    text, frame = stalldump.python_stacks(os.getpid(), str(tmp_path / "py-spy"))
    assert frame is None
    assert text.startswith(f"the kernel does not let py-spy read process {os.getpid()}")


def test_files_are_bounded(tmp_path: Path) -> None:
    stalldump.Report(tmp_path, "hung").write("big.txt", "x" * (3 << 20))
    assert (tmp_path / "big.txt").stat().st_size == 1 << 20


def test_a_full_disk_or_a_missing_folder_costs_the_dump_and_no_more(folder: RunFolder) -> None:
    shutil.rmtree(folder.evidence)
    dump = Dump.begin(folder, [os.getpid()], "hung", folder.output_log)
    assert dump.done()
    assert str(folder.evidence) in (dump.error or "")


def test_a_dump_that_takes_too_long_is_given_up(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = Dump.begin(folder, [os.getpid()], "hung", folder.output_log)
    assert dump.process is not None
    os.kill(dump.process.pid, signal.SIGSTOP)
    assert not dump.done()
    dump.began -= 1000.0
    assert dump.done()
    assert "is not complete" in (dump.error or "")
    assert dump.process.wait(timeout=LIMIT_S) == -signal.SIGKILL


def test_the_users_own_frame_is_named_beside_the_innermost() -> None:
    output = (
        'Process 5: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 7 (active): "Thread-1"\n'
        "    other (/home/me/train.py:9)\n"
        'Thread 5 (idle): "MainThread"\n    wait (/usr/lib/python3.11/threading.py:320)\n'
        "    all_reduce (/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)\n"
        "    step (/home/me/train.py:42)\n    <module> (/home/me/train.py:60)\n"
    )
    found = stalldump.innermost(output)
    assert found == "wait (/usr/lib/python3.11/threading.py:320), called from step (/home/me/train.py:42)"
    assert stalldump.innermost("Process 5: python\n") is None
