"""Sensors as their supervisor follows them: sick ones, files that vanish, deaths of either side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from looking import alive, until

from overnight.clocks import boot_clock
from overnight.sensors import GpuSample, HostSample
from overnight.sensors.children import HEALTHY_SAMPLES
from overnight.sensors.following import Sensing, Taken, default_commands, gpu_likely, spoken_span
from overnight.sensors.sampling import append

SCRIPT = str(Path(__file__).with_name("sensor_script.py"))
SUPERVISOR = str(Path(__file__).with_name("sensing_script.py"))
LINE = b'{"kind":"host","at":%d}'


def stand_in(mode: str) -> dict[str, Sequence[str]]:
    kind = mode.partition("-")[0]
    return {kind: (sys.executable, SCRIPT, mode)}


class Followed:
    """A Sensing with what it said and what it took; time may be moved by hand."""

    def __init__(self, run_dir: Path, commands: Mapping[str, Sequence[str]], **more: Any) -> None:
        self.said: list[str] = []
        self.taken: list[Taken] = []
        self.run_dir = run_dir
        self.ahead_s = 0.0
        given: dict[str, Any] = {"every_s": 0.05, "host_after_s": 0.0, "disks": {}, "places": {}, **more}
        self.sensing = Sensing(
            run_dir, say=self.said.append, commands=commands, **{"gpu_likely": lambda: True, **given}
        )
        for child in self.sensing.children.values():
            child.again_s = 0.05

    def turn(self, ahead_s: float = 0.0) -> list[Taken]:
        """Do one turn now, or later by so much."""
        self.ahead_s += ahead_s
        found = self.sensing.turn(boot_clock() + self.ahead_s)
        self.taken += found
        return found

    def until(self, look: Callable[[], object], what: str) -> None:
        """Turn at an ordinary pace until something is true."""

        def turned() -> bool:
            self.turn()
            return bool(look())

        until(turned, what, 60.0)

    def wait_long(self, seconds: float) -> None:
        """Let the time pass in small turns, without waiting for it."""
        for _ in range(int(seconds / 5)):
            self.turn(5.0)

    def pid(self, kind: str = "host") -> int | None:
        return self.sensing.children[kind].pid

    def starts(self, kind: str = "host") -> list[int]:
        path = self.run_dir / "sensors" / f"{kind}.starts"
        return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    made: list[Followed] = []

    def make(mode: str | Mapping[str, Sequence[str]], **more: Any) -> Followed:
        made.append(Followed(tmp_path, stand_in(mode) if isinstance(mode, str) else mode, **more))
        return made[-1]

    yield make
    for one in made:
        pids = [child.pid for child in one.sensing.children.values() if child.pid is not None]
        one.sensing.close()
        for pid in pids:
            until(lambda pid=pid: not alive(pid), f"{pid} ends")


def path_of(followed: Followed, kind: str = "host") -> Path:
    return followed.run_dir / "sensors" / f"{kind}.jsonl"


# -- the ordinary course ----------------------------------------------------------------------------------------------


def test_both_real_sensors_are_started_and_followed(follow: Callable[..., Followed]) -> None:
    one = follow({"host": default_commands()["host"], **stand_in("gpu-good")}, disks={"log": Path("/tmp")})
    one.until(lambda: len({taken.source for taken in one.taken}) == 2 and len(one.taken) > 8, "both have spoken")
    assert not one.said
    host = one.sensing.latest("host")
    assert isinstance(host, HostSample)
    assert host.disks[0].holds == ("log",)
    assert host.disks[0].free
    assert isinstance(one.sensing.latest("gpu"), GpuSample)
    for kind in ("host", "gpu"):
        data = path_of(one, kind).read_bytes()
        offsets = [taken.offset for taken in one.taken if taken.source == f"sensors/{kind}.jsonl"]
        assert offsets == sorted(set(offsets))
        assert all(data[at : at + 1] == b"{" and (at == 0 or data[at - 1 : at] == b"\n") for at in offsets)
        assert one.sensing.places[kind] > offsets[-1]
        assert path_of(one, kind).stat().st_mode & 0o777 == 0o600
        environ = Path(f"/proc/{one.pid(kind)}/environ").read_bytes()
        assert b"OVERNIGHT_ROLE=sensors\0" in environ
        assert os.getsid(one.pid(kind) or 0) == one.pid(kind)


def test_a_run_that_is_short_gets_no_host_sensor(follow: Callable[..., Followed]) -> None:
    one = follow("host-good", host_after_s=60.0)
    one.turn()
    one.turn(59.0)
    assert one.pid() is None
    assert one.sensing.next_look_s(boot_clock() + one.ahead_s) <= 1.0
    one.turn(2.0)
    assert one.pid() is not None


def test_without_a_device_there_is_no_gpu_sensor_until_one_comes(follow: Callable[..., Followed]) -> None:
    there: list[bool] = []
    one = follow("gpu-good", gpu_likely=lambda: bool(there))
    one.wait_long(120)
    assert one.pid("gpu") is None
    assert one.sensing.stale("gpu", time.time() + 1e6) is None
    there.append(True)
    one.wait_long(70)
    assert one.pid("gpu") is not None


def test_where_a_gpu_is_likely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overnight.sensors.following.DEVICES", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setattr("overnight.sensors.following.FOLDERS", [])
    assert not gpu_likely({})
    assert not gpu_likely({"LD_LIBRARY_PATH": f"{tmp_path}:"})
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert gpu_likely({"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})
    assert not gpu_likely({})
    (tmp_path / "nvidiactl").touch()
    assert gpu_likely({})


def test_a_turn_without_news_does_nothing_until_it_is_due(follow: Callable[..., Followed]) -> None:
    one = follow("host-good", every_s=30.0)
    one.until(lambda: one.taken, "the first sample, which comes at once")
    wait_s = one.sensing.next_look_s(boot_clock())
    assert 5.0 < wait_s <= 10.0  # the next is due in 30 s: looking costs nothing until then
    append(path_of(one), LINE % 7)
    assert one.turn() == []
    assert len(one.turn(wait_s)) == 1


# -- sick sensors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["host-mute", "host-deaf"])
def test_one_that_hangs_is_killed_and_started_again(follow: Callable[..., Followed], mode: str) -> None:
    one = follow(mode)
    one.until(one.starts, "it has started")
    if mode == "host-deaf":
        one.until(lambda: one.taken, "it says one thing")
    first = one.pid()
    assert first is not None
    for _ in range(11):
        one.turn(5.0)
    assert one.pid() == first  # 55 s are not too long
    assert alive(first)
    one.turn(10.0)
    until(lambda: not alive(first), "it is killed")
    one.wait_long(20)
    assert one.pid() not in (None, first)
    assert one.said == ["the host sensor did not answer for 60 s; it is killed and started again"]


def test_one_that_is_slow_by_its_interval_is_not_killed(follow: Callable[..., Followed]) -> None:
    one = follow("host-mute", every_s=100.0)
    one.turn()
    first = one.pid()
    one.wait_long(590)
    assert one.pid() == first
    one.wait_long(60)
    until(lambda: not alive(first or 0), "it is killed")


def test_a_machine_that_slept_kills_nobody(follow: Callable[..., Followed]) -> None:
    one = follow("host-mute")
    one.turn()
    first = one.pid()
    one.turn(3600.0)
    one.turn(5.0)
    assert one.pid() == first
    assert not one.said


def test_one_that_cannot_be_killed_is_left_alone(
    follow: Callable[..., Followed], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = follow("host-deaf")
    one.until(lambda: one.taken, "it says one thing")
    first = one.pid()
    assert first is not None
    with monkeypatch.context() as patch:
        patch.setattr("overnight.sensors.children.os.killpg", lambda *_: None)  # as if it hung in the kernel
        one.wait_long(7200)
        assert one.pid() == first
        assert one.starts() == [first]
        assert one.said[-1] == f"the host sensor (pid {first}) hangs in the kernel and cannot be killed; it is left"
        assert len(one.said) == 2
        told = one.sensing.stale("host", time.time() + 7200)
        assert told is not None
        assert told.startswith("host data stale for 2h00m: the sensor hangs in the kernel")
        assert one.sensing.next_look_s(boot_clock() + one.ahead_s) > 4  # and nobody wakes for it
    os.kill(first, signal.SIGKILL)  # the kernel lets it go at last
    until(lambda: not alive(first), "it ends")
    one.wait_long(20)
    assert one.pid() not in (None, first)


def test_one_that_dies_at_once_is_started_more_and_more_rarely(follow: Callable[..., Followed]) -> None:
    one = follow("host-dies")
    one.sensing.children["host"].again_s = 2.0
    started: list[int] = []
    for _ in range(2 * 3600):
        pid = one.pid()
        if pid is not None and pid not in started:
            started.append(pid)
            until(lambda pid=pid: not alive(pid), "it dies")
        one.turn(1.0)
    assert 12 <= len(started) <= 22  # 2, 4, 8, ... 512 s, then every 10 minutes
    assert one.said == ["the host sensor ended with exit code 1; it is started again, and supervisor.log may say why"]


def test_one_that_gets_well_is_started_quickly_again(follow: Callable[..., Followed]) -> None:
    one = follow("host-good")
    child = one.sensing.children["host"]
    child._tries = 9
    one.until(lambda: len(one.taken) > HEALTHY_SAMPLES, "it is well")
    first = one.pid()
    os.kill(first or 0, signal.SIGKILL)
    until(lambda: not alive(first or 0), "it ends")
    one.until(lambda: one.pid() not in (None, first), "there is another one")
    assert one.said[0].startswith("the host sensor was killed by signal 9")


def test_one_with_nothing_to_measure_rests(follow: Callable[..., Followed]) -> None:
    one = follow("gpu-nothing")
    one.until(lambda: one.taken and one.pid("gpu") is None, "it says what it has to say")
    latest = one.sensing.latest("gpu")
    assert isinstance(latest, GpuSample)
    assert latest.trouble == "the NVIDIA driver is not loaded"
    assert one.sensing.stale("gpu", time.time() + 500) is None
    one.wait_long(550)
    assert len(one.starts("gpu")) == 1
    one.wait_long(100)
    one.until(lambda: len(one.starts("gpu")) == 2, "a driver may have come")
    assert not one.said


def test_a_program_that_is_not_there_is_said_once(follow: Callable[..., Followed]) -> None:
    one = follow({"host": ("/nonexistent/python",)})
    one.wait_long(3600)
    assert one.said == ["the host sensor could not be started: No such file or directory; it is tried again"]
    assert one.sensing.stale("host", time.time() + 3600) == (
        "no host data for 1h00m: the sensor could not be started: No such file or directory"
    )


# -- what it writes ----------------------------------------------------------------------------------------------------


def test_half_lines_are_waited_for(follow: Callable[..., Followed]) -> None:
    one = follow("host-halves")
    one.until(lambda: len(one.taken) > 10, "many whole ones")
    assert one.sensing.files["host"].unreadable == 0
    data = path_of(one).read_bytes()
    begins = [0, *(at + 1 for at, byte in enumerate(data) if byte == ord("\n"))]
    assert [taken.offset for taken in one.taken] == begins[: len(one.taken)]


def test_garbage_is_passed_over(follow: Callable[..., Followed]) -> None:
    one = follow("host-garbage")
    one.until(lambda: len(one.starts()) >= 3 and len(one.taken) >= 4, "it has been started again and again")
    data = path_of(one).read_bytes()
    for taken in one.taken:
        line = data[taken.offset :].partition(b"\n")[0]
        assert json.loads(line)["at"] == taken.sample.at
    assert "the host sensor has written lines that cannot be read; they are passed over" in one.said
    assert len(one.said) == len(set(one.said)) == 2


def test_a_line_without_an_end_costs_no_memory_and_ends_with_its_writer(follow: Callable[..., Followed]) -> None:
    one = follow("host-wild")
    one.until(one.starts, "it runs wild")
    first = one.pid()
    one.until(lambda: one.sensing.files["host"].size > 30 << 20, "it has written much")
    assert first is not None
    one.wait_long(90)
    until(lambda: not alive(first), "it is killed")
    assert one.sensing.places["host"] <= path_of(one).stat().st_size
    one.sensing.close()
    path_of(one).write_bytes(b"")
    append(path_of(one), LINE % 5)
    one.until(lambda: one.taken, "what is a sample is read again")
    assert one.taken[0].sample.at == 5.0


def test_a_file_that_is_emptied_or_removed_begins_anew(follow: Callable[..., Followed]) -> None:
    one = follow("host-good")
    for harm in (lambda: os.truncate(path_of(one), 0), path_of(one).unlink):
        one.until(lambda: one.sensing.places["host"] > 300, "some samples")
        harm()
        one.taken.clear()
        one.until(lambda: len(one.taken) > 3, "new ones")
        assert one.taken[0].offset == 0
        data = path_of(one).read_bytes()
        assert all(json.loads(data[taken.offset :].partition(b"\n")[0])["at"] == taken.sample.at for taken in one.taken)
    assert not one.said


def test_data_is_stale_when_it_is_old(follow: Callable[..., Followed]) -> None:
    one = follow("host-deaf")
    assert one.sensing.stale("host", time.time()) is None
    assert one.sensing.stale("moon", time.time()) is None
    one.until(lambda: one.taken, "one sample")
    at = one.taken[-1].sample.at
    one.wait_long(30)
    assert one.sensing.stale("host", at + 29) is None
    assert one.sensing.stale("host", at - 5000) is None
    assert one.sensing.stale("host", at + 130) == "host data stale for 2m10s: the sensor does not answer"


def test_spans_in_words() -> None:
    assert [spoken_span(value) for value in (45.9, 60.0, 130.0, 7260.0)] == ["45s", "1m00s", "2m10s", "2h01m"]


# -- a full disk -------------------------------------------------------------------------------------------------------


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as ballast:
        for _ in range(64):
            ballast.write(b"x" * 4096)


def test_a_full_disk_loses_samples_and_nothing_else(follow: Callable[..., Followed], tmp_path: Path) -> None:
    folder = tmp_path / "sensors"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    one = follow("host-good", every_s=0.005)
    try:
        one.until(lambda: len(one.taken) > 5, "some samples")
        with pytest.raises(OSError, match="No space"):
            fill(folder / "ballast")
        one.until(lambda: not one.turn(0.3), "nothing more comes")  # the last page of the file is full
        pid = one.pid()
        (folder / "ballast").unlink()
        before = len(one.taken)
        one.until(lambda: len(one.taken) > before + 5, "samples come again")
        assert one.pid() == pid
        data = path_of(one).read_bytes()
        whole = [line for line in data.split(b"\n")[:-1] if line.endswith(b"}") and line.startswith(b"{")]
        assert len(one.taken) <= len(whole) <= len(one.taken) + 200  # those of the last moment are not taken yet
    finally:
        one.sensing.close()
        until(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, "it can be unmounted")


# -- the death of the supervisor ---------------------------------------------------------------------------------------


def test_kill_9_of_the_supervisor_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The sensors end with it, and the next one goes on behind the last line that was taken."""
    run_dir, out = tmp_path / "run", tmp_path / "taken"
    run_dir.mkdir()
    argv = [sys.executable, SUPERVISOR, str(run_dir), str(out), sys.executable, SCRIPT, "gpu-good"]
    for number in range(1, 5):
        before = len(out.read_bytes()) if out.exists() else 0
        process = subprocess.Popen(argv)
        try:
            enough = before + 400 * number
            until(lambda enough=enough: out.exists() and len(out.read_bytes()) > enough, "it takes samples", 60.0)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        finally:
            process.kill()
            process.wait()
        assert len(children) == 2
        for pid in map(int, children):
            until(lambda pid=pid: not alive(pid), "the sensor ends with its supervisor")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for kind in ("gpu", "host"):
        source = f"sensors/{kind}.jsonl"
        taken = [offset for line in lines for name, offset in line["taken"] if name == source]
        data = (run_dir / source).read_bytes()[: lines[-1]["places"][kind]]
        there = [0, *(at + 1 for at, byte in enumerate(data) if byte == ord("\n"))][:-1]
        assert len(taken) > 10
        assert taken == there


def test_a_new_one_knows_the_last_sample_of_the_one_before(follow: Callable[..., Followed]) -> None:
    one = follow("host-good")
    one.until(lambda: len(one.taken) > 3, "some samples")
    one.sensing.close()
    path_of(one).write_bytes(path_of(one).read_bytes()[: one.sensing.places["host"]])
    two = follow("host-good", places=one.sensing.places, host_after_s=1e9)
    assert two.turn() == []
    assert two.sensing.latest("host") == one.taken[-1].sample
    assert two.sensing.stale("host", time.time() + 60) == "host data stale for 1m00s: the sensor is not running"
    three = follow("host-good", places={"host": 10**9}, host_after_s=1e9)  # the file was replaced by a shorter one
    three.turn()
    assert [taken.offset for taken in three.taken] == [taken.offset for taken in one.taken]
    four = follow("host-good", places={"host": one.taken[1].offset + 5}, host_after_s=1e9)  # somebody edited it
    four.turn()
    assert [taken.offset for taken in four.taken] == [taken.offset for taken in one.taken[2:]]


def test_closing_ends_them(follow: Callable[..., Followed]) -> None:
    one = follow("host-deaf")
    one.until(lambda: one.taken, "it runs")
    pid = one.pid()
    assert pid is not None
    one.sensing.close()
    until(lambda: not alive(pid), "it ends")
    one.wait_long(100)
    assert one.pid() is None
    assert one.starts() == [pid]


def test_following_loads_nothing_heavy() -> None:
    code = "import overnight.sensors.following, sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"psutil", "pynvml", "amdsmi", "subprocess", "threading", "argparse", "ctypes", "overnight.sensors.host"}
    assert not set(done.stdout.split()) & heavy
