"""The host sensor as a process: what it says of a real run, disks that hang, the end of its parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from looking import Run, alive, until

from overnight.sensors import HostSample

PYTHON = sys.executable
SENSOR = [PYTHON, "-I", "-m", "overnight.sensors.host"]
SLOW = Path(__file__).with_name("slowdisk.c")
MIB = 1 << 20

HOLDS = textwrap.dedent(
    """
    import subprocess, sys, time
    held = bytearray(b"x" * (120 << 20))
    child = "import time; held = bytearray(b'y' * (80 << 20)); print('step 1 loss 1.0', flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    time.sleep(600)
    """
)


def once(run_dir: Path, *more: object, parent: int | None = None, env: dict[str, str] | None = None) -> HostSample:
    words = [*SENSOR, str(run_dir), "--once", "--parent", str(parent or os.getpid()), *map(str, more)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env, timeout=60)
    assert done.stderr == ""
    return msgspec.json.decode(done.stdout, type=HostSample)


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def test_a_real_run_with_what_its_processes_hold(start: Callable[..., Run]) -> None:
    run = start("one", PYTHON, "-c", HOLDS, log="step 1")
    sample = once(run.folder, "--disk", f"log={run.folder}", parent=run.pid("supervisor"))
    assert sample.processes == 2
    assert sample.rss is not None
    assert 200 * MIB < sample.rss < 300 * MIB
    assert sample.own_rss is not None
    assert 20 * MIB < sample.own_rss < 150 * MIB
    assert sample.processors == os.cpu_count()
    assert sample.memory_total is not None
    assert sample.memory_available is not None
    assert 0 < sample.memory_available <= sample.memory_total
    assert sample.load1 is not None
    assert abs(sample.at - time.time()) < 60
    (disk,) = sample.disks
    assert disk.holds == ("log",)
    assert disk.total == os.statvfs(run.folder).f_blocks * os.statvfs(run.folder).f_frsize
    for role in ("supervisor", "shim", "guard"):
        os.kill(run.pid(role), signal.SIGSTOP)  # dead or not, the mark still tells whose they are
    try:
        (run.folder / "shim.json").rename(run.folder / "shim.away")
        marked = once(run.folder)
        (run.folder / "shim.away").rename(run.folder / "shim.json")
    finally:
        for role in ("supervisor", "shim", "guard"):
            os.kill(run.pid(role), signal.SIGCONT)
    assert marked.processes == 2


def test_a_run_without_processes_holds_nothing(tmp_path: Path) -> None:
    sample = once(tmp_path)
    assert (sample.processes, sample.rss) == (0, 0)
    assert sample.disks == ()
    (tmp_path / "shim.json").write_text("[]")
    assert once(tmp_path).processes == 0


def test_it_writes_at_once_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "sensors" / "host.jsonl"
    words = [*SENSOR, str(tmp_path), "--every", "0.2", "--disk", f"log={tmp_path}", "--parent", str(os.getpid())]
    process = subprocess.Popen(words)
    try:
        until(lambda: len(lines(path)) >= 3, "three samples")
        path.unlink()
        until(lambda: len(lines(path)) >= 2, "two in a new file")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        last = msgspec.json.decode(path.read_bytes().splitlines()[-1], type=HostSample)
        assert last.cpu is not None
        shutil.rmtree(tmp_path)
        assert process.wait(30) == 0  # a run that was cleaned away needs nobody
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import os, subprocess, sys, time;"
        "words = [*sys.argv[2:], sys.argv[1], '--every', '100', '--parent', str(os.getpid())];"
        "print(subprocess.Popen(words, start_new_session=True).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([PYTHON, "-c", code, str(tmp_path), *SENSOR], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: lines(tmp_path / "sensors" / "host.jsonl"), "the first sample")
    finally:
        parent.send_signal(number)
        parent.communicate()
    until(lambda: not alive(pid), "it ends")


def test_one_whose_parent_is_gone_already_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run([*SENSOR, str(tmp_path), "--parent", "1"], check=False, timeout=60)
    assert done.returncode == 1
    assert not (tmp_path / "sensors").exists()


def test_a_disk_that_hangs_delays_nothing_else(tmp_path: Path) -> None:
    """A library in the process makes every look below one folder hang, as a network disk without its server does."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here to build a slow disk with")
    library = tmp_path / "slow.so"
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SLOW), "-ldl"]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("the slow disk cannot be built here")
    hung = tmp_path / "hung"
    hung.mkdir()
    log = tmp_path / "slow.log"
    env = {**os.environ, "LD_PRELOAD": str(library), "SLOW_BELOW": str(hung), "SLOW_LOG": str(log), "SLOW_MS": "600000"}
    path = tmp_path / "run" / "sensors" / "host.jsonl"
    (tmp_path / "run").mkdir()
    disks = ["--disk", f"log={tmp_path}", "--disk", f"data={hung}", "--disk", "proc=/proc"]
    words = [*SENSOR, str(tmp_path / "run"), "--every", "0.1", *disks, "--parent", str(os.getpid())]
    process = subprocess.Popen(words, env=env)
    try:
        until(lambda: len(lines(path)) >= 2, "two samples")
        threads = len(os.listdir(f"/proc/{process.pid}/task"))
        until(lambda: len(lines(path)) >= 4, "two more")
        assert len(os.listdir(f"/proc/{process.pid}/task")) <= threads + 1
    finally:
        process.kill()
        process.wait()
    for line in lines(path):
        sample = msgspec.convert(line, HostSample)
        known = {holds for disk in sample.disks if disk.free is not None for holds in disk.holds}
        assert {"log", "proc"} <= known
        assert sample.memory_available is not None
        assert {holds for disk in sample.disks for holds in disk.holds} == {"log", "data", "proc"}
