"""A stop of torch trainings: data workers live during the save, torchrun's ranks are asked themselves."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import BIN, PYTHON, Run, alive, until

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

Start = Callable[..., Run]

TRAIN = '''
"""Trains nothing, on batches of a worker pool; on its signal finishes the step, saves slowly, says who is alive."""
import json, os, signal, sys, time
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from torch.utils.data import DataLoader, Dataset

save_s, number, ranks = float(sys.argv[1]), signal.Signals[sys.argv[2]], len(sys.argv) > 3
asked = []
signal.signal(number, lambda got, frame: asked.append(got))
rank = 0
if ranks:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()


class Numbers(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, at):
        return torch.tensor([float(at), float(os.getpid())])


def living(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


model = torch.nn.Linear(2, 1)
loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
workers = set()
for step, batch in enumerate(loader, 1):
    workers.update(int(pid) for pid in batch[:, 1])
    loss = model(batch * 0).mean()
    stop = torch.tensor([float(bool(asked))])
    if ranks:
        dist.all_reduce(stop)
    if rank == 0:
        print(f"step: {step}, loss: {float(loss):.4f}, dt: 0.05", flush=True)
    time.sleep(0.05)
    if stop.item():
        break
for line in range(5):
    print(f"rank {rank} finishing {line}", flush=True)
until = time.monotonic() + save_s
with open(f"model-{rank}.pt.tmp", "wb", buffering=0) as stream:
    while time.monotonic() < until:
        stream.write(b"x" * 4096)
        time.sleep(0.05)
    torch.save(model.state_dict(), stream)
os.replace(f"model-{rank}.pt.tmp", f"model-{rank}.pt")
report = {"workers": sorted(workers), "alive": [pid for pid in sorted(workers) if living(pid)], "signals": len(asked)}
open(f"report-{rank}.json", "w").write(json.dumps(report))
if ranks:
    dist.barrier()
    dist.destroy_process_group()
'''


def report(work: Path, rank: int = 0) -> dict[str, Any]:
    """Return what a rank saw during its save, after checking that it was written at all."""
    assert (work / f"model-{rank}.pt").exists(), f"rank {rank} has saved"
    found = json.loads((work / f"report-{rank}.json").read_text())
    assert isinstance(found, dict)
    assert len(found["workers"]) == 2
    assert found["alive"] == found["workers"], "the data workers lived through the save"
    return found


def stopped_well(run: Run) -> None:
    assert run.wait(70) == 103
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "user")
    assert not run.facts("killed")
    assert not run.left()


def start_training(start: Start, work: Path, *command: object, flags: tuple[object, ...] = ()) -> Run:
    (work / "train.py").write_text(TRAIN)
    run = start("night", *command, flags=flags)
    run.wrote("step: 5,", 60.0)
    return run


LONG = pytest.mark.long


# Each signal and each way to start it once; torch and its workers take seconds of both cores to begin.
@pytest.mark.parametrize(
    ("shell", "name"),
    [
        (False, "SIGINT"),
        (True, "SIGTERM"),
        pytest.param(False, "SIGTERM", marks=LONG),
        pytest.param(True, "SIGINT", marks=LONG),
    ],
)
def test_a_pool_of_data_workers(start: Start, work: Path, name: str, shell: bool) -> None:
    words = [PYTHON, "train.py", "2", name]
    command = ["bash", "-c", " ".join(words) + " 2>&1 | tee -a x.log; touch next"] if shell else words
    run = start_training(start, work, *command)
    assert run.stop().returncode == 0
    stopped_well(run)
    found = report(work)
    assert found["signals"] == 1
    assert not any(map(alive, found["workers"]))
    assert not (work / "next").exists()
    if not shell:
        assert run.status["exit_code"] == 0


def torchrun(save_s: float, name: str) -> list[str]:
    program = shutil.which("torchrun", path=BIN) or pytest.skip("torchrun is not installed beside this Python")
    return [program, "--standalone", "--nproc-per-node", "2", "train.py", str(save_s), name, "ranks"]


def stop_ranks(start: Start, work: Path, save_s: float, name: str, *, wrapped: bool = False) -> None:
    """Stop two ranks and check that both saved, each with one signal and its workers alive, and torchrun is gone."""
    words = torchrun(save_s, name)
    command = ["bash", "-c", " ".join(words) + "; touch next"] if wrapped else words
    run = start_training(start, work, *command)
    assert run.runs.overnight("stop", "night", limit_s=save_s + 40).returncode == 0
    stopped_well(run)
    reports = [report(work, rank) for rank in (0, 1)]
    assert [found["signals"] for found in reports] == [1, 1]
    assert not any(alive(pid) for found in reports for pid in found["workers"])
    assert not (work / "next").exists()
    (stopping,) = run.facts("stopping")
    assert len(stopping["pids"]) == 2, "the ranks themselves, not their launcher"


# SIGTERM to ranks without a shell above them: in test_ranks_that_torchrun_may_start_again as well.
@pytest.mark.parametrize(("name", "wrapped"), [pytest.param("SIGTERM", False, marks=LONG), ("SIGINT", True)])
def test_two_ranks_of_torchrun(start: Start, work: Path, name: str, wrapped: bool) -> None:
    stop_ranks(start, work, 3, name, wrapped=wrapped)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_two_ranks_that_save_longer_than_torchrun_waits(start: Start, work: Path, name: str) -> None:
    """By itself torchrun kills after exactly 30 s."""
    stop_ranks(start, work, 35, name)


def test_ranks_that_torchrun_may_start_again(start: Start, work: Path) -> None:
    """With --max-restarts the launcher would begin anew when its ranks are gone."""
    words = torchrun(1, "SIGTERM")
    words[1:1] = ["--max-restarts", "3"]
    run = start_training(start, work, *words)
    assert run.stop().returncode == 0
    stopped_well(run)
    log = run.log
    assert log.count(b"rank 0 finishing 0") == 1
    assert log.count(b"step: 1,") == 1, "never begun again"


@pytest.mark.long  # test_causes_real.py, test_the_rank_that_failed_first_is_named, has ranks that die, one by a signal
def test_a_crash_of_one_rank_is_a_crash(start: Start, work: Path) -> None:
    run = start_training(start, work, *torchrun(1, "SIGTERM"))
    ranks = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_rank(pid, run)]
    assert len(ranks) == 2
    os.kill(ranks[1], 11)
    assert run.wait(60) == 100
    assert run.status["cause"] == "crash"
    until(lambda: not run.left(), "nothing is left")


def _is_rank(pid: int, run: Run) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == run.command and b"train.py" in words
