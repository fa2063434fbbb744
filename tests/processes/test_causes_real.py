"""Causes of real ends: memory, disks, signals, launchers. Only the guilty run dies, and what has ended stays so."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, alive, toy, until

from overnight import launch
from overnight.exits.postmortem import kernel_lines, oom_counters
from overnight.folder import RunFolder

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]
MIB = 1 << 20
QUICK = ("--restarts", 9, "--backoff", "0.2s")


@pytest.fixture
def train(work: Path) -> Callable[[str], list[str]]:
    """Return ``train(source)``: the command line of a script with that source."""

    def write(source: str) -> list[str]:
        (work / "train.py").write_text(source)
        return [sys.executable, "-u", "train.py"]

    return write


STEPS = """\
import time
def steps(last, first=1):
    for step in range(first, last + 1):
        print(f"step: {step}, loss: {4 - step / 1000:.4f}, dt: 0.02", flush=True)
        time.sleep(0.02)
"""

OUT_OF_MEMORY = f"""\
{STEPS}
class OutOfMemoryError(RuntimeError):
    pass
OutOfMemoryError.__module__ = "torch"
def backward():
    raise OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.21 GiB is "
        "free. Including non-PyTorch memory, this process has 77.93 GiB memory in use. Of the allocated memory 75.60 "
        "GiB is allocated by PyTorch, and 1.62 GiB is reserved by PyTorch but unallocated."
    )
steps(19)
backward()
"""


# -- memory of a device ------------------------------------------------------------------------------------------------


def test_out_of_memory_on_every_batch_is_given_up(start: Start, train: Callable[[str], list[str]]) -> None:
    run = start("greedy", *train(OUT_OF_MEMORY), flags=QUICK)
    assert run.wait() == 106
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"], seen["restarts_used"]) == (
        "gave_up",
        "out_of_memory_gpu",
        3,
        2,
    )
    assert "3 attempts in a row came no further than step 19" in seen["cause_text"]
    assert "CUDA out of memory at train.py line 11: tried to allocate 2.50 GiB" in seen["cause_text"]
    assert [one["cause"] for one in seen["attempts"]] == ["out_of_memory_gpu"] * 3
    first, second = (fact["wait_s"] for fact in run.facts("backoff"))
    assert first < second
    assert any(line.startswith("torch.OutOfMemoryError") for line in seen["last_lines"])


# -- what has ended stays so -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("switch", "code"), [("--steps", 0), ("--crash-at", 106), ("--nan-at", 104)])
def test_what_has_ended_is_not_started_again(start: Start, runs: Runs, switch: str, code: int) -> None:
    """As after a reboot: a supervisor is started on it again, and it is asked for by `recover`."""
    run = start("over", *toy("--dt", 0.02, switch, 9), flags=(*QUICK, "--recover", "--on-end", "echo x >> ends"))
    assert run.wait() == code
    until(lambda: not run.status["shim"]["alive"], "its keepers leave")
    before, facts, log = run.status, run.facts("started"), run.log
    for words in (["--adopt"], []):  # as `wait` starts one, and as a shim does
        argv = launch.supervisor_argv(RunFolder(run.folder))
        assert subprocess.run([*argv[:-1], *words, argv[-1]], env=runs.env, timeout=30, check=False).returncode == 0
    done = runs.overnight("recover", "over")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"already {before['state']}: nothing to do" in done.stdout
    assert runs.overnight("recover").returncode == 0
    after = run.status
    for name in ("state", "cause", "cause_text", "attempt", "code", "ended_at", "step", "active_s", "verdicts"):
        assert after[name] == before[name], name
    assert (run.facts("started"), run.log) == (facts, log)
    assert not run.left()
    assert (runs.work / "ends").read_text() == "x\n"


# -- memory of the host ------------------------------------------------------------------------------------------------


def test_one_child_is_killed_and_only_its_run_is_hit(start: Start) -> None:
    guilty = start("guilty", *toy("--steps", 5000), flags=("--restarts", 1, "--backoff", "0.3s"), log="step: 3,")
    other = start("other", *toy("--steps", 5000), log="step: 3,")
    pids = {role: other.pid(role) for role in ("guard", "shim", "supervisor")}
    os.kill(guilty.command, signal.SIGKILL)
    until(lambda: guilty.status["attempt"] == 2 and guilty.status["state"] == "running", "it is started again")
    first = guilty.status["attempts"][0]
    assert (first["cause"], first["signal"]) == ("unknown_kill", "SIGKILL")
    assert "SIGKILL" in first["cause_text"]
    at = other.status["step"]
    until(lambda: other.status["step"] > at + 3, "the other one goes on")
    assert {role: other.pid(role) for role in pids} == pids
    assert (other.status["state"], other.status["attempt"]) == ("running", 1)
    assert not [fact for fact in other.facts("note") if "killed" in fact["text"]]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Make a control group of 150 MiB below our own; skip where that is not allowed."""
    counters = oom_counters(os.getpid())
    if counters is None or counters.path is None:
        pytest.skip("no control group here counts kills for memory")
    group = Path(counters.path).parent / f"overnight-causes-{os.getpid()}"
    limit = "memory.limit_in_bytes" if counters.path.endswith("oom_control") else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(150 * MIB))
        with contextlib.suppress(OSError):
            (group / "memory.swap.max").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no limit of memory can be set here: {error}")
    yield group
    end = time.monotonic() + 30
    while group.exists():
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()  # busy until the last of its processes is reaped
        assert time.monotonic() < end
        time.sleep(0.02)


HOG = f"""\
import os, sys
{STEPS}
if len(sys.argv) > 1:
    open(sys.argv[1], "w").write(str(os.getpid()))
steps(5)
held = []
while True:
    held.append(bytearray(os.urandom(1 << 20)))
"""


def test_the_kernel_kills_one_for_memory_and_all_else_lives(
    runs: Runs, start: Start, train: Callable[[str], list[str]], small_group: Path
) -> None:
    """A job with a limit of its own, as under Slurm or in a container: training and keepers are in one group."""
    other = start("other", *toy("--steps", 5000), log="step: 3,")
    flags = ["--restarts", "1", "--backoff", "0.3s", "--settle", "0.05"]
    words = ["overnight", "run", "--name", "hog", *flags, "--", *train(HOG)]
    enter = ["/bin/sh", "-c", f'echo $$ > {small_group}/cgroup.procs && exec "$@"', "sh"]
    done = subprocess.run(
        [*enter, *words], env=runs.env, cwd=runs.work, capture_output=True, text=True, timeout=60, check=False
    )
    run = runs.run("hog")
    assert run.wait(60) == 106, done.stderr
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("gave_up", "out_of_memory_host", 2)
    assert [one["cause"] for one in seen["attempts"]] == ["out_of_memory_host"] * 2
    assert "killed by the kernel for lack of memory" in seen["cause_text"]
    assert not [fact for fact in run.facts("note") if "killed" in fact["text"]], "its keepers lived"
    assert len(run.facts("supervisor")) == 1
    at = other.status["step"]
    until(lambda: other.status["step"] > at + 3, "the other one goes on")


def test_a_training_that_went_into_another_group_is_told_by_the_kernels_log(
    start: Start, train: Callable[[str], list[str]], small_group: Path
) -> None:
    began = time.time()
    run = start("hog", *train(HOG), small_group / "cgroup.procs", flags=("--restarts", 0))
    assert run.wait(60) == 100
    if not any(kernel_lines([run.command], began)):
        pytest.skip("the kernel's log is not readable here")
    assert run.status["cause"] == "out_of_memory_host"


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(work: Path) -> Iterator[Path]:
    """Mount a disk of 256 KiB; skip where that is not allowed."""
    disk = work / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0755", "overnight-test", str(disk)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield disk
    assert subprocess.run(["umount", "-l", str(disk)], check=False).returncode == 0


def test_a_full_disk_under_the_checkpoints(start: Start, train: Callable[[str], list[str]], small_disk: Path) -> None:
    saves = "steps(9)\nopen('disk/checkpoint.pt', 'wb', buffering=0).write(bytes(100_000))\n"
    saves += "with open('disk/next.pt', 'wb') as f:\n    f.write(bytes(1_000_000))\n"
    run = start("full", *train(STEPS + saves), flags=QUICK)
    assert run.wait() == 106
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("gave_up", "disk_full")
    assert "No space left on device" in seen["cause_text"]


def test_a_full_disk_under_the_log(start: Start, train: Callable[[str], list[str]], small_disk: Path) -> None:
    """The training cannot even say why it ends: the traceback does not fit on the disk either."""
    source = STEPS + "steps(9)\nwhile True:\n    print('x' * 1000, flush=True)\n"
    run = start("full", *train(source), flags=("--log", small_disk / "train.log"))
    assert run.wait() == 100
    assert run.status["cause"] == "disk_full"
    assert f"the disk of {small_disk}/train.log is full" in run.status["cause_text"]
    assert any(one["rule"] == "disk_space" for one in run.status["verdicts"]), "and it was told ahead"


def test_a_full_disk_with_room_left_in_the_log_proves_nothing(
    start: Start, train: Callable[[str], list[str]], small_disk: Path
) -> None:
    """Space is kept ahead of the log: what is not written there then was not said."""
    source = (
        STEPS
        + """\
import os
steps(9)
while os.stat('disk/train.log').st_blocks < 64:
    time.sleep(0.02)
try:
    open('disk/data', 'wb', buffering=0).write(bytes(1_000_000))
    open('disk/more', 'wb', buffering=0).write(bytes(1_000_000))
except OSError:
    os._exit(3)
"""
    )
    run = start("full", *train(source), flags=("--log", small_disk / "train.log"))
    assert run.wait() == 100
    assert (run.status["cause"], run.status["cause_text"]) == ("crash", "exited with code 3")


# -- signals and words -------------------------------------------------------------------------------------------------


def test_a_fault_of_its_own_is_a_crash_that_is_tried_again(start: Start) -> None:
    run = start("faulty", *toy("--steps", 50, "--segv-at", 5), flags=QUICK)
    assert run.wait() == 106
    seen = run.status
    assert (seen["cause"], seen["attempt"], seen["signal"]) == ("crash", 3, "SIGSEGV")
    assert "was ended by SIGSEGV" in seen["cause_text"]


WORDS = {
    "imports": (STEPS + "steps(3)\nimport no_such_module\n", "import_error", "No module named 'no_such_module'"),
    "usage": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\np.parse_args()\n",
        "usage",
        "the following arguments are required: --lr",
    ),
    "syntax": ("def train(:\n    pass\n", "usage", "at train.py line 1: SyntaxError: "),
    "loads": (
        STEPS + "def load_state_dict(state):\n    return state['model']\nload_state_dict({})\n",
        "load_failure",
        "KeyError: 'model'",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_another_start_does_not_mend_is_not_started_again(
    start: Start, train: Callable[[str], list[str]], name: str
) -> None:
    source, cause, words = WORDS[name]
    run = start(name, *train(source), flags=QUICK)
    assert run.wait() == 100
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("failed", cause, 1)
    assert words in seen["cause_text"]
    assert "starting it again would not mend that" in seen["cause_text"]


# -- launchers ---------------------------------------------------------------------------------------------------------

RANKS = """\
import os, signal, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 12):
    value = torch.ones(1)
    dist.all_reduce(value)
    if rank == 0:
        print(f"step: {step}, loss: {4 - step / 100:.4f}, dt: 0.02", flush=True)
    time.sleep(0.02)
    if step == 10 and rank == 1:
        print("pid of rank 1:", os.getpid(), flush=True)
        FAULT
"""
FAULTS = {
    "is-killed": ("os.kill(os.getpid(), signal.SIGKILL)", "unknown_kill", r"rank 1 \(pid {pid}\)", "SIGKILL"),
    "raises": ("raise ValueError('a bad batch')", "crash", r"rank 1: ValueError at train.py line 14", "a bad batch"),
    "exits": ("os._exit(1)", "crash", r"rank 1 \(pid {pid}\) exited first, with code 1", ""),
    "has-no-memory": (
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.50 GiB.')",
        "out_of_memory_gpu",
        r"rank 1: CUDA out of memory at train.py line 14: tried to allocate 2.50 GiB",
        "",
    ),
}


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.timeout(240)
# Two of four with torch and its launcher; what is made of their words is tested in test_postmortem.py.
@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=pytest.mark.long if one in ("exits", "has-no-memory") else []) for one in FAULTS],
)
def test_the_rank_that_failed_first_is_named(runs: Runs, start: Start, work: Path, fault: str) -> None:
    source, cause, shape, words = FAULTS[fault]
    (work / "train.py").write_text(RANKS.replace("FAULT", source))
    runs.env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    launcher = "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2".split()
    run = start("ranks", sys.executable, *launcher, "train.py")
    assert run.wait(150) == 100
    seen = run.status
    assert (seen["state"], seen["cause"], seen["step"]) == ("failed", cause, 10), (seen["cause_text"], run.log[-3000:])
    told = re.search(rb"pid of rank 1: (\d+)", run.log)
    assert told is not None
    assert re.search(shape.format(pid=int(told[1])), seen["cause_text"]), seen["cause_text"]
    assert words in seen["cause_text"]
    assert not run.left()


# -- beside causes: what one figure that cannot be hides, and what is left ---------------------------------------------


def test_one_insane_value_does_not_hide_a_true_divergence(start: Start, train: Callable[[str], list[str]]) -> None:
    source = """\
for step in range(1, 600):
    loss = 4 * 0.998**step + (step * 7919 % 97) / 970
    if step == 100:
        loss = 1e9
    if step >= 400:
        loss = 4.0 * 1.12 ** (step - 400)
    print(f"step: {step}, loss: {loss:.4f}", flush=True)
"""
    run = start("curve", *train(source))
    assert run.wait() == 0
    told = [(one["rule"], one["step"]) for one in run.status["verdicts"] if one["action"] != "note"]
    assert told[0] == ("spike", 100)
    assert len(told) == 2, told
    assert 400 <= told[1][1] <= 430, told


def test_nothing_is_left_of_a_test_like_these(start: Start) -> None:
    run = start("last", *toy("--steps", 50, "--crash-at", 4, "--spawn", 2), flags=QUICK)
    assert run.wait(60) == 106
    lines: list[Any] = [json.loads(line) for line in (run.folder / "journal.jsonl").read_bytes().splitlines()]
    pids = [fact["pid"] for fact in lines if fact["fact"] == "started"]
    assert len(pids) == 3
    assert not any(map(alive, pids))
