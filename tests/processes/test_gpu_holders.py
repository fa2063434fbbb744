"""Who holds a device after a stop: real processes on files that stand for /dev/nvidia0."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_child import begun
from runs import living, until

from overnight.sensors.holders import Held, device_files, holders, sentences

BLOCKED = "import sys; held = open(sys.argv[1], 'rb+'); print('holds', flush=True); open(sys.argv[2]).read()"
MAPPED = (
    "import mmap, sys, time\n"
    "with open(sys.argv[1], 'rb+') as file: held = mmap.mmap(file.fileno(), 0)\n"
    "print('holds', flush=True); time.sleep(600)"
)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "nvidia0"
    path.write_bytes(b"\0" * 4096)
    return path


@contextlib.contextmanager
def holding(code: str, *words: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program until it says that it holds, and kill it at the end."""
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "holds\n"
            yield running
        finally:
            running.kill()


def test_a_process_that_hangs_is_named_until_it_is_gone(device: Path, tmp_path: Path) -> None:
    """It has the device open and waits for ever in a FIFO's open; SIGTERM is left, SIGKILL frees the device."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + BLOCKED
    with holding(deaf, device, fifo) as running:
        begun(tmp_path / "run", running.pid)
        held = holders([device], tmp_path / "run")
        (one,) = held.holders
        assert (one.pid, one.paths, one.ours) == (running.pid, (str(device),), True)
        assert held.of_run() == (one,)
        assert one.command.startswith(f"{sys.executable} -c import signal")
        assert len(one.command) <= 200
        (said,) = sentences(held, of_run=True)
        assert said.startswith(f"{device} is held by process {running.pid} of ")
        running.terminate()
        assert [each.pid for each in holders([device]).holders] == [running.pid]
        running.kill()
        until(lambda: not living(running.pid), "its end")
        after = holders([device], tmp_path / "run")
        assert after.holders == ()
        assert sentences(after, of_run=True) == ["the devices are free"]


def test_a_mapping_holds_a_device_too(device: Path) -> None:
    with holding(MAPPED, device) as running:
        assert [each.pid for each in holders([device]).holders] == [running.pid]


def test_another_file_is_not_held(device: Path, tmp_path: Path) -> None:
    other = tmp_path / "nvidia00"
    other.write_bytes(device.read_bytes())
    with holding(MAPPED, other):
        assert holders([device]).holders == ()
        assert holders([]).holders == ()
        assert holders([tmp_path / "none"]).holders == ()


def test_a_stranger_is_named_as_one(device: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with holding(MAPPED, device) as running:
        held = holders([device], tmp_path / "run")
        assert [(each.pid, each.ours) for each in held.holders] == [(running.pid, False)]
        assert held.of_run() == ()
        assert holders([device]).holders[0].ours is None


def test_a_device_is_known_by_its_number(tmp_path: Path) -> None:
    """A container may have it under another name: a terminal's other name stands for it."""
    code = "import sys, time; held = open('/dev/null'); print('holds', flush=True); time.sleep(600)"
    alias = tmp_path / "alias"
    alias.symlink_to("/dev/null")
    with holding(code) as running:
        found = {each.pid: each.paths for each in holders([alias]).holders}
        assert found[running.pid] == (str(alias),)


def test_what_others_hide_is_said() -> None:
    assert sentences(Held(holders=(), unseen=3)) == [
        "the devices are free, as far as can be seen (3 processes of others cannot)"
    ]


def test_device_files_are_those_of_cards(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidia-uvm", "nvidiactl", "nvidia-modeset", "kfd", "null"):
        (tmp_path / name).touch()
    assert [path.name for path in device_files(tmp_path)] == ["kfd", "nvidia-uvm", "nvidia0", "nvidia11"]
