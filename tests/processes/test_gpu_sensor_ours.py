"""Which GPUs are the run's, as the GPU sensor's process says it of real processes, over a stand-in for the library."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from gpu_child import Sensor, begun, gpu
from runs import until

import nvml
from overnight import processes
from overnight.sensors import GpuSample
from overnight.sensors.belonging import Family

HIDING = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OVERNIGHT_RUN_DIR",
)
FAMILY = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={env}).wait()"
)


@pytest.fixture
def stub(tmp_path: Path) -> nvml.Stub:
    return nvml.Stub(tmp_path / "nvml")


@contextlib.contextmanager
def process(environ: Mapping[str, str] | None = None, code: str = "import time; time.sleep(600)") -> Iterator[int]:
    """Run a process, with all below it, as long as the block lasts."""
    env = {name: value for name, value in os.environ.items() if name not in HIDING} | dict(environ or {})
    running = subprocess.Popen([sys.executable, "-c", code], env=env)
    try:
        until(lambda: b"-c" in (processes.read_proc(running.pid, "cmdline") or b""), "the program")
        yield running.pid
    finally:
        for pid in [*processes.descendants(running.pid), running.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        running.wait()


def ours(stub: nvml.Stub, run_dir: Path) -> list[bool | None]:
    """Return whose the cards are for a sensor of this run."""
    with Sensor(run_dir, stub.environ()) as child:
        return [one.ours for one in child.first().gpus]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", [False, True, False]),
        ("2,0", [True, False, True]),
        ("", [False, False, False]),
        ("-1", [False, False, False]),
        ("0,-1,2", [True, False, False]),
        ("GPU-00000002", [False, False, True]),
        ("GPU-", [False, False, False]),
        ("7", [False, False, False]),
        (None, [None, None, None]),
    ],
)
def test_the_environment_names_the_cards(
    stub: nvml.Stub, tmp_path: Path, value: str | None, expected: list[bool | None]
) -> None:
    stub.write([nvml.card(index) for index in range(3)])
    with process({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) as pid:
        begun(tmp_path / "run", pid)
        assert ours(stub, tmp_path / "run") == expected


def test_a_process_on_a_card_makes_it_ours(stub: nvml.Stub, tmp_path: Path) -> None:
    with process() as pid, process() as stranger:
        begun(tmp_path / "run", pid)
        stub.write([nvml.card(0, compute=[stranger]), nvml.card(1, compute=[stranger, pid]), nvml.card(2)])
        with Sensor(tmp_path / "run", stub.environ()) as child:
            sample = child.first()
            assert [one.ours for one in sample.gpus] == [False, True, False]
            assert [(one.pid, one.ours) for one in gpu(sample, 0).processes or ()] == [(stranger, False)]
            assert {one.pid: one.ours for one in gpu(sample, 1).processes or ()} == {stranger: False, pid: True}
            stub.lose(1)
            lost = child.until("the lost card", lambda one: gpu(one, 1).lost)
            assert gpu(lost, 1).ours  # nobody can be asked any more, so it is what it was
            stub.change(0, compute=[])
            assert gpu(child.later("another sample", lambda _: True), 1).ours


def test_a_process_that_cannot_be_seen_leaves_it_open(stub: nvml.Stub, tmp_path: Path) -> None:
    """In a container the driver tells pids of the machine."""
    with process() as pid:
        begun(tmp_path / "run", pid)
        stub.write([nvml.card(0, compute=[1 << 22]), nvml.card(1, compute=[pid])])
        assert ours(stub, tmp_path / "run") == [None, True]


def test_a_shell_passes_its_choice_on(stub: nvml.Stub, tmp_path: Path) -> None:
    """`CUDA_VISIBLE_DEVICES=2 python train.py` in a script whose own environment names four cards."""
    stub.write([nvml.card(index) for index in range(4)])
    with process({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, FAMILY.format(env={"CUDA_VISIBLE_DEVICES": "2"})) as pid:
        until(lambda: processes.children(pid), "the child")
        begun(tmp_path / "run", pid)
        assert ours(stub, tmp_path / "run") == [False, False, True, False]


def test_a_worker_without_cards_takes_none_away(stub: nvml.Stub, tmp_path: Path) -> None:
    stub.write([nvml.card(0), nvml.card(1)])
    with process({"CUDA_VISIBLE_DEVICES": "1"}, FAMILY.format(env={"CUDA_VISIBLE_DEVICES": ""})) as pid:
        until(lambda: processes.children(pid), "the worker")
        begun(tmp_path / "run", pid)
        assert ours(stub, tmp_path / "run") == [False, True]


def test_a_process_that_bears_the_runs_mark_is_ours(stub: nvml.Stub, tmp_path: Path) -> None:
    """It has left the tree, and both keepers are dead."""
    run_dir = tmp_path / "run"
    with process({"OVERNIGHT_RUN_DIR": str(run_dir)}) as pid, process({"OVERNIGHT_RUN_DIR": f"{run_dir}2"}) as other:
        stub.write([nvml.card(0, compute=[pid]), nvml.card(1, compute=[other])])
        assert ours(stub, run_dir) == [True, False]


def test_our_own_processes_are_none_of_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code = FAMILY.format(env={"OVERNIGHT_ROLE": "hook", "OVERNIGHT_RUN_DIR": str(run_dir)})
    with process(code=code) as pid:
        until(lambda: processes.children(pid), "the hook")
        begun(run_dir, pid)
        family = Family(run_dir)
        (hook,) = processes.children(pid)
        until(lambda: processes.environ(hook), "its environment")
        family = Family(run_dir)
        assert family.has(pid)
        assert family.has(hook) is False
        assert family.has((1 << 22) + 1) is None


def slices(count: int, name: str = "NVIDIA A100-SXM4-80GB MIG 1g.10gb", units: int = 14) -> list[dict[str, object]]:
    """Return the slices of a card under MIG."""
    return [
        {
            "uuid": f"MIG-{number:08x}-1111-5222-8333-0123456789ab",
            "name": name,
            "units": units,
            "memory_total": 10 << 30,
            "memory_used": (number + 1) << 30,
            "instance": 7 + number,
        }
        for number in range(count)
    ]


def seen(stub: nvml.Stub, run_dir: Path) -> GpuSample:
    with Sensor(run_dir, stub.environ()) as child:
        return child.first()


@pytest.mark.parametrize(
    "choice",
    ["MIG-00000001-1111-5222-8333-0123456789ab", "MIG-00000001", "MIG-GPU-00000000-0000-4000-8000-0123456789ab/8/0"],
)
def test_the_slice_that_is_named_stands_for_the_card(stub: nvml.Stub, tmp_path: Path, choice: str) -> None:
    parts = slices(2)
    parts[1] |= {"name": "NVIDIA A100-SXM4-80GB MIG 2g.20gb", "units": 28, "memory_total": 20 << 30}
    stub.write([nvml.card(0, mig=1, utilisation=None, slices=parts), nvml.card(1)])
    with process({"CUDA_VISIBLE_DEVICES": choice}) as pid:
        begun(tmp_path / "run", pid)
        card = gpu(seen(stub, tmp_path / "run"))
    assert (card.name, card.units) == ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", 28)
    assert (card.memory_total, card.memory_used) == (20 << 30, 2 << 30)
    assert (card.mig, card.ours, card.utilisation) == (True, True, None)


def test_the_slice_that_a_process_is_on_stands_for_the_card(stub: nvml.Stub, tmp_path: Path) -> None:
    parts = slices(3)
    parts[2] |= {"name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "units": 42}
    with process() as pid:
        begun(tmp_path / "run", pid)
        stub.write([nvml.card(0, mig=1, slices=parts, compute=[(pid, 1 << 30, 9)])])
        card = gpu(seen(stub, tmp_path / "run"))
    assert (card.name, card.units, card.ours) == ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 42, True)


def test_slices_that_differ_are_nobodys_name(stub: nvml.Stub, tmp_path: Path) -> None:
    parts = slices(2)
    stub.write([nvml.card(0, mig=1, slices=parts)])
    alike = gpu(seen(stub, tmp_path / "run"))
    assert (alike.name, alike.units) == (parts[0]["name"], 14)
    assert alike.memory_total == 80 << 30  # of which slice nobody knows
    parts[1] |= {"name": "NVIDIA A100-SXM4-80GB MIG 2g.20gb", "units": 28}
    stub.write([nvml.card(0, mig=1, slices=parts)])
    differing = gpu(seen(stub, tmp_path / "again"))
    assert (differing.name, differing.units, differing.mig) == ("NVIDIA A100-SXM4-80GB MIG", None, True)
    stub.write([nvml.card(0, mig=1, slices=[])])
    assert gpu(seen(stub, tmp_path / "none")).units is None


def test_numbers_count_in_the_order_of_the_bus_only_if_said_so(stub: nvml.Stub, tmp_path: Path) -> None:
    stub.write([nvml.card(0, name="NVIDIA T400"), nvml.card(1)])
    with process({"CUDA_VISIBLE_DEVICES": "0"}) as pid:
        begun(tmp_path / "run", pid)
        assert ours(stub, tmp_path / "run") == [None, None]  # CUDA counts the fastest first
    with process({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) as pid:
        begun(tmp_path / "again", pid)
        assert ours(stub, tmp_path / "again") == [True, False]
