"""The parts of the host sensor that need no process: containers, mounts, pressure, what is written."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from overnight.machine import Machine
from overnight.sensors import HostSample, Pressure, Sample
from overnight.sensors.bounded import Bounded
from overnight.sensors.containers import Limit, memory_limits
from overnight.sensors.disks import Disks, look, mount_of
from overnight.sensors.host import Host, lowered, pressure
from overnight.sensors.lines import SampleFile
from overnight.sensors.sampling import PLENTY_BYTES, append, pace_s

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root)


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_no_limit(tmp_path: Path) -> None:
    assert memory_limits(tree(tmp_path, {})) == []
    files = {"/proc/self/mountinfo": V2, "/proc/self/cgroup": "0::/\n"}
    assert memory_limits(tree(tmp_path, files)) == []
    assert memory_limits(tree(tmp_path, {"/sys/fs/cgroup/memory.max": "max\n"})) == []


def test_limits_of_version_2_at_every_height(tmp_path: Path) -> None:
    files = {
        "/proc/self/mountinfo": V2,
        "/proc/self/cgroup": "0::/slurm/job_7/step_0\n",
        "/sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
        "/sys/fs/cgroup/slurm/job_7/memory.max": f"{8 * GIB}\n",
        "/sys/fs/cgroup/slurm/job_7/memory.current": f"{6 * GIB}\n",
        "/sys/fs/cgroup/slurm/job_7/memory.stat": f"anon 1\nfile 7\ninactive_file {GIB}\nactive_file 3\n",
        "/sys/fs/cgroup/slurm/memory.max": f"{9 * GIB}\n",
        "/sys/fs/cgroup/slurm/memory.current": f"{10 * GIB}\n",
    }
    assert memory_limits(tree(tmp_path, files)) == [Limit(8 * GIB, 3 * GIB), Limit(9 * GIB, 0)]


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    files = {
        "/proc/self/mountinfo": V2,
        "/proc/self/cgroup": "0::/../../kubepods/pod1\n",
        "/sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        "/sys/fs/cgroup/memory.current": f"{GIB}\n",
    }
    assert memory_limits(tree(tmp_path, files)) == [Limit(2 * GIB, GIB)]


def test_limits_of_version_1_in_a_container(tmp_path: Path) -> None:
    files = {
        "/proc/self/mountinfo": V1,
        "/proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
    }
    assert memory_limits(tree(tmp_path, files)) == [Limit(4 * GIB, 2 * GIB)]


def test_what_is_available_is_the_least_of_all() -> None:
    assert lowered(10, 8, []) == (10, 8)
    assert lowered(10, 8, [(6, 5), (7, 2)]) == (6, 2)
    assert lowered(10, 1, [(6, 5)]) == (6, 1)
    assert lowered(10, 8, [(1 << 63, None)]) == (10, 8)  # no limit, as version 1 writes it
    assert lowered(10, 8, [(6, None), (7, 3)]) == (6, None)
    assert lowered(10, None, []) == (10, None)
    assert lowered(None, None, [(6, 4)]) == (6, 4)


def test_pressure_is_a_fraction_and_the_meaningless_is_left_out(tmp_path: Path) -> None:
    text = "some avg10={} avg60=1.00 avg300=0.50 total=9\nfull avg10={} avg60=0.00 avg300=0.00 total=0\n"
    machine = tree(
        tmp_path,
        {
            "/proc/pressure/memory": text.format("12.50", "3.00"),
            "/proc/pressure/cpu": text.format("47.23", "0.00"),
            "/proc/pressure/io": "nonsense\n",
        },
    )
    assert pressure(machine, "memory") == Pressure(some=0.125, full=0.03)
    assert pressure(machine, "cpu") == Pressure(some=pytest.approx(0.4723))
    assert pressure(machine, "io") is None
    assert pressure(Machine(tmp_path / "none"), "io") is None


def test_the_mount_that_holds_a_path() -> None:
    mounts = [("/", "ext4", ""), ("/data", "xfs", ""), ("/data/fast", "nfs", ""), ("/data", "btrfs", "")]
    assert mount_of("/data/fast/x", mounts) == "/data/fast"
    assert mount_of("/data/faster", mounts) == "/data"
    assert mount_of("/data", mounts) == "/data"
    assert mount_of("/database", mounts) == "/"
    assert mount_of("/x", []) == "/"


def test_a_folder_that_is_yet_to_be_made_is_where_it_will_be(tmp_path: Path) -> None:
    there, later = look(tmp_path, Machine()), look(tmp_path / "run" / "checkpoints", Machine())
    assert there.mount == later.mount
    assert there.total == later.total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    (tmp_path / "link").symlink_to("/proc")
    assert look(tmp_path / "link" / "none", Machine()).mount == "/proc"


def test_two_things_on_one_disk_are_one_disk(tmp_path: Path) -> None:
    disks = Disks({"log": tmp_path, "proc": Path("/proc/self"), "checkpoints": tmp_path / "later"}, Machine())
    disks.ask()
    found = disks.answers(time.monotonic() + 20)
    assert [disk.holds for disk in found] == [("log", "checkpoints"), ("proc",)]
    assert found[1].mount == "/proc"
    assert found[0].free is not None
    assert found[0].total is not None
    assert 0 <= found[0].free <= found[0].total


def test_a_disk_that_hangs_is_not_known_and_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []
    real = os.statvfs

    def slow(path: str) -> os.statvfs_result:
        if "hung" in str(path):
            asked.append(path)
            release.wait(60)
        return real(path)

    monkeypatch.setattr("os.statvfs", slow)
    (tmp_path / "hung").mkdir()
    host = Host(tmp_path, {"log": tmp_path, "data": tmp_path / "hung"}, parent=os.getppid(), machine=Machine())
    host.wait_s = 0.2
    for _ in range(3):
        sample = host.sample()
        assert sample.disks[0].free is not None
        assert sample.memory_available is not None
        assert host.disks._questions["data"]._thread is not None
    assert len(asked) == 1
    release.set()
    host.wait_s = 30.0
    assert host.sample().disks[0].holds == ("log", "data")
    host.sample()
    assert len(asked) == 2


def test_a_question_that_fails_has_no_answer() -> None:
    def question() -> int:
        raise OSError

    one = Bounded(question)
    assert one.answer(0.0) is None
    one.ask()
    assert one.answer(time.monotonic() + 20) is None
    good = Bounded(lambda: 7)
    good.ask()
    assert good.answer(time.monotonic() + 20) == 7
    assert good.answer(0.0) is None


def test_the_use_of_the_processors_is_not_known_at_first(tmp_path: Path) -> None:
    host = Host(tmp_path, {}, parent=os.getppid(), machine=Machine())
    assert host.sample().cpu is None
    later = host.sample().cpu
    assert later is not None
    assert 0 <= later <= 1


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_half_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    assert append(path, b"one") == 4
    path.write_bytes(b"one\n{ha")
    assert append(path, b"two") == path.stat().st_size
    assert path.read_bytes() == b"one\n{ha\ntwo\n"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic"):
        append(tmp_path / "link", b"x")


def test_a_large_file_makes_samples_rarer() -> None:
    assert [pace_s(10, size) for size in (0, PLENTY_BYTES - 1, PLENTY_BYTES, 5 * PLENTY_BYTES)] == [10, 10, 20, 60]


def test_every_sample_is_given_once_however_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    samples: list[Sample] = [HostSample(at=float(number), load1=number / 7) for number in range(50)]
    data = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
    for size in (1, 7, 64, 1000, len(data)):
        path.write_bytes(b"")
        file = SampleFile(path)
        found = []
        for at in range(0, len(data), size):
            with path.open("ab") as stream:
                stream.write(data[at : at + size])
            found += file.take()
            if at % 3 == 0:
                file = SampleFile(path, file.place)  # another supervisor
        assert [sample for _, sample in found] == samples
        assert [data[at : at + 1] for at, _ in found] == [b"{"] * 50
        assert file.place == len(data)
        assert file.take() == []


def test_more_than_a_piece_is_read_in_several_turns(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    line = msgspec.json.encode(HostSample(at=1.0)) + b"\n"
    count = 700_000 // len(line)
    path.write_bytes(line * count)
    file = SampleFile(path)
    turns = [file.take()]
    while file.more:
        turns.append(file.take())
    assert 3 <= len(turns) <= 4
    assert [at for turn in turns for at, _ in turn] == [len(line) * number for number in range(count)]


@pytest.mark.parametrize("long", [200_000, 262_144, 262_143, 300_000, 1_000_000])
def test_a_line_of_any_length_spoils_no_other(tmp_path: Path, long: int) -> None:
    path = tmp_path / "host.jsonl"
    line = msgspec.json.encode(HostSample(at=1.0)) + b"\n"
    path.write_bytes(line + b"x" * long + b"\n" + line + b"y" * long)
    file = SampleFile(path)
    found = []
    for _ in range(12):
        found += file.take()
        file = SampleFile(path, file.place)
    with path.open("ab") as stream:
        stream.write(b"\n" + line)
    for _ in range(3):
        found += file.take()
    assert [at for at, _ in found] == [0, len(line) + long + 1, 2 * (len(line) + long + 1)]


def test_what_runs_wild_is_jumped_over(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    line = msgspec.json.encode(HostSample(at=3.0)) + b"\n"
    with path.open("wb") as stream:
        stream.truncate(1 << 30)
        stream.seek(1 << 30)
        stream.write(b"\n" + line)
    file = SampleFile(path)
    found = [one for _ in range(4) for one in file.take()]
    assert found == [((1 << 30) + 1, HostSample(at=3.0))]
    assert file.unreadable == 1


def test_a_file_that_is_none_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe"):
        assert SampleFile(path).take() == []
