"""Runs on a sick machine: who holds the devices after a stop, and what the machine said at the moment of a stall."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gpu_child import begun
from machines import box, record
from runs import Home, a_place, living, load, until

from overnight.aftermath.releasing import Release
from overnight.aftermath.remains import Remains
from overnight.aftermath.sequence import Aftermath
from overnight.clocks import boot_clock
from overnight.events import Verdict
from overnight.folder import RunFolder
from overnight.sensors import Disk, Gpu, GpuSample, HostSample, Xid
from overnight.sensors.gpulook import GpuLook
from overnight.stalls.dumps import Dump
from overnight.stalls.hostfacts import gather

pytestmark = pytest.mark.timeout(150)

HOLDS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(sys.argv[1], "rb+")
print("holds", flush=True)
open(sys.argv[2]).read()  # nobody ever writes into this FIFO
"""

TRAIN = """
import os, subprocess, sys, time
device, fifo, mode = sys.argv[1:]
if int(os.environ["OVERNIGHT_ATTEMPT"]) > 1:
    print("step: 1, loss: 1.0", flush=True)
    sys.exit(0)
child = subprocess.Popen([sys.executable, "-c", HOLDS, device, fifo], stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
for step in range(1, 100000):
    print(f"step: {step}, loss: {1 + 1 / step:.4f}", flush=True)
    if mode == "crash" and step == 3:
        raise RuntimeError("it crashes by itself")
    time.sleep(0.05)
"""

XID = "NVRM: Xid (PCI:0000:11:00): 79, pid=1234, GPU has fallen off the bus."


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Return a home of its own; all of it ends with the test."""
    yield from a_place(tmp_path)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return a file that stands for a GPU's device file."""
    path = tmp_path / "card"
    path.write_bytes(b"\0" * 4096)
    return path


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Return a FIFO that nobody writes to."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def child_of(log: str) -> int:
    """Return the pid that the command has printed."""
    return next((int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")), 0)


# -- who holds the devices ---------------------------------------------------------------------------------------------


class Told:
    """What a release says."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[str] = []

    def say(self, fact: str, **details: Any) -> None:
        if fact == "note":
            self.notes.append(details["text"])
        self.facts.append((fact, details))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.facts]


@pytest.fixture
def holder(device: Path, fifo: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that holds the device, ignores SIGTERM and waits in a FIFO's open."""
    words = [sys.executable, "-c", HOLDS, str(device), str(fifo)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "holds\n"
        yield running
        running.kill()


def turns(release: Release, *, cleared: bool, limit_s: float = 30.0) -> None:
    until(lambda: release.turn(boot_clock(), cleared=cleared), "the release is over", limit_s=limit_s, every_s=0.02)


def test_a_holder_is_named_and_killed_only_when_all_else_is_over(
    holder: subprocess.Popen[str], device: Path, tmp_path: Path
) -> None:
    run_dir, told = tmp_path / "run", Told()
    begun(run_dir, holder.pid)
    release = Release(run_dir, 3, files=[device], say=told.say, note=told.notes.append)
    release.begin()
    until(lambda: release.turn(boot_clock(), cleared=False) or release.held, "it is named")
    assert living(holder.pid), "its time to end by itself is not over"
    assert [kind for kind, _ in told.facts] == ["devices_held"]
    (one,) = told.facts[0][1]["holders"]
    assert (one["pid"], one["paths"]) == (holder.pid, (str(device),))
    assert told.notes[0].startswith(
        f"after the command of attempt 3 had ended, {device} is held by process {holder.pid} of "
    )
    turns(release, cleared=True)
    assert holder.wait(5) == -signal.SIGKILL
    assert told.kinds() == ["devices_held", "devices_free"]
    assert told.notes[1:] == ["attempt 3: the devices are free"]
    assert release.hung == ()


def test_a_stranger_is_left_alone(holder: subprocess.Popen[str], device: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    told = Told()
    release = Release(tmp_path / "run", 1, files=[device], say=told.say, note=told.notes.append)
    release.begin()
    turns(release, cleared=True)
    assert told.facts == [("devices_free", {"attempt": 1})]
    assert told.notes == []
    assert living(holder.pid)


def test_without_devices_nothing_is_started(tmp_path: Path) -> None:
    told = Told()
    release = Release(tmp_path, 1, files=[], say=told.say, note=told.notes.append)
    release.begin()
    assert release.pid is None
    assert release.turn(boot_clock(), cleared=False)
    assert release.next_look_s() is None
    assert (told.facts, told.notes) == ([], [])


def test_a_look_that_hangs_is_given_up(device: Path, tmp_path: Path) -> None:
    told = Told()
    release = Release(tmp_path, 1, files=[device], say=told.say, note=told.notes.append)
    release.begin()
    assert release.pid is not None
    pid = release.pid
    os.kill(pid, signal.SIGSTOP)
    now = boot_clock()
    assert not release.turn(now, cleared=True)
    assert not release.turn(now + 4.0, cleared=True)
    assert release.turn(now + 5.5, cleared=True)
    assert told.notes == ["who holds the GPUs could not be found out: what /proc tells of a process does not come"]
    until(lambda: not living(pid), "the look is killed")


def test_what_no_kill_ends_is_named_and_left(holder: subprocess.Popen[str], device: Path, tmp_path: Path) -> None:
    """A holder whose identity does not fit is never killed: it stands for one that survives every kill."""
    run_dir, told = tmp_path / "run", Told()
    begun(run_dir, holder.pid)
    keepers: Any = Deaf(0)
    remains = Remains(keepers=keepers, log="", grace_s=1.0, stopped=True, killed=False, began=0.0, say=told.say)
    after = Aftermath(run_dir, 1, remains=remains, look=GpuLook(), files=[device], bad=False, say=told.say)
    after.cleared = True
    until(lambda: after.release.turn(boot_clock(), cleared=False) or after.release.held, "it is named")
    after.release.held = tuple(msgspec.structs.replace(one, start_ticks=1) for one in after.release.held)
    now = boot_clock()
    assert not after.turn(now)
    assert after.turn(now + 16.0)
    assert living(holder.pid)
    assert told.notes[-1].endswith("; it cannot be killed, a reset of the device or a reboot ends it")
    found = after.stuck()
    assert found is not None
    assert (found.cause, found.restartable) == ("hardware", False)
    assert f"is held by process {holder.pid}" in found.text


class Deaf:
    """Keepers of a tree of which one process never dies."""

    def __init__(self, pid: int) -> None:
        from overnight.clearing import Cleared, Found

        self.left = (Found(pid, 1, "python"),)
        self.cleared = Cleared(removed=(), left=self.left, took_s=10.0)

    def leftovers(self) -> tuple[Any, ...]:
        return self.left

    def kill_all(self, limit_s: float = 10.0) -> Any:
        assert limit_s <= 10.0
        return self.cleared


@pytest.mark.parametrize(("state", "given_up"), [("D", True), ("R", False)])
def test_only_what_hangs_in_the_kernel_is_given_up(state: str, given_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from overnight import processes

    known = processes.stat(os.getpid())
    assert known is not None
    monkeypatch.setattr(processes, "stat", lambda _: known._replace(state=state))
    told = Told()
    keepers: Any = Deaf(4711)
    remains = Remains(keepers=keepers, log="", grace_s=1.0, stopped=True, killed=True, began=100.0, say=told.say)
    assert [remains.turn(at) for at in (100.0, 110.0, 125.0)] == [False, False, False]
    assert remains.turn(131.0) is given_up
    assert bool(remains.hung) is given_up
    assert ("processes that hang in the kernel cannot be killed, and are left: 4711 (python)" in told.notes) is given_up


def holding_run(home: Home, name: str, before: tuple[str, ...], fifo: Path, mode: str, *options: str) -> Any:
    """Start a run whose child holds /dev/nvidia0 of its own machine."""
    from runs import Run

    path = home.work / "train.py"
    path.write_text(f"HOLDS = {HOLDS!r}\n{TRAIN}")
    words = ("run", "--name", name, "--settle", "0.01s", *options, "--", sys.executable, str(path))
    said = home.call(*words, "/dev/nvidia0", str(fifo), mode, before=before)
    assert said.returncode == 0, said.stderr
    return Run(home, name)


def test_after_a_stop_the_holder_is_named_killed_and_the_devices_are_free(
    home: Home, tmp_path: Path, device: Path, fifo: Path
) -> None:
    """B1-03: after the stop the tool lists the holder's pid and command, escalates to KILL, then says free."""
    run = holding_run(home, "held", box(tmp_path, {"nvidia0": device}), fifo, "run")
    child = until(lambda: child_of(run.log()), "the child holds the device")
    run.until(lambda seen: seen["step"], "a step")
    assert run.stop().returncode == 0
    seen = run.status()
    assert (seen["state"], seen["cause"]) == ("stopped", "user")
    assert not living(child)
    named = [note for note in seen["notes"] if f"/dev/nvidia0 is held by process {child}" in note]
    assert len(named) == 1
    assert HOLDS.split("\n")[1] in named[0], "its command line"
    assert seen["notes"].index("attempt 1: the devices are free") > seen["notes"].index(named[0])
    (held,), (free,) = run.facts("devices_held"), run.facts("devices_free")
    assert (held["holders"][0]["pid"], free["attempt"]) == (child, 1)
    run.gone()
    assert home.processes() == []
    run.clean_logs()


def test_after_a_crash_the_next_attempt_finds_the_device_free(
    home: Home, tmp_path: Path, device: Path, fifo: Path
) -> None:
    options = ("--restarts", "2", "--backoff", "0.1s", "--grace", "1s")
    run = holding_run(home, "crashed", box(tmp_path, {"nvidia0": device}), fifo, "crash", *options)
    assert run.wait() == 0
    facts = [(one["fact"], one.get("attempt")) for one in run.facts()]
    free = facts.index(("devices_free", 1))
    assert facts.index(("devices_held", 1)) < free < facts.index(("started", 2))
    assert ("devices_held", 2) not in facts
    assert run.status()["attempt"] == 2
    run.clean_logs()


# -- the facts of the machine at a stall -------------------------------------------------------------------------------


def sampled(run_dir: Path) -> None:
    """Write what sensors of a run leave."""
    (run_dir / "sensors").mkdir(parents=True)
    gpu = Gpu(
        index=0, name="NVIDIA A100", utilisation=1.0, temperature_c=91.0, power_w=120.0, memory_used=40 << 30,
        memory_total=80 << 30, throttle=("thermal",), ours=True,
    )  # fmt: skip
    other = Gpu(index=1, name="NVIDIA A100", utilisation=0.5, ours=False)
    xid = Xid(code=79, at=1_790_000_000.0, device="00000000:11:00.0", text="GPU has fallen off the bus")
    lost = Gpu(index=2, name="NVIDIA A100", lost="GPU is lost")
    old = GpuSample(at=1_790_000_000.0, gpus=(gpu,), xids=(xid,))
    new = GpuSample(at=1_790_000_010.0, gpus=(gpu, other, lost))
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in (old, new))
    (run_dir / "sensors" / "gpu.jsonl").write_bytes(b"half a li\n" + lines + b'{"kind":"gpu","at":1')
    disk = Disk(mount="/", holds=("log",), free=5 << 30)
    host = HostSample(at=1_790_000_010.0, cpu=0.12, memory_available=3 << 30, memory_total=16 << 30, disks=(disk,))
    (run_dir / "sensors" / "host.jsonl").write_bytes(msgspec.json.encode(host) + b"\n")


def test_the_last_samples_and_the_drivers_events_are_told(tmp_path: Path) -> None:
    sampled(tmp_path)
    kmsg = tmp_path / "kmsg"
    kmsg.write_text(record("eth0: link is up") + record(XID))
    found = gather(tmp_path, kmsg=kmsg)
    assert found.said == (
        (
            "GPU 0 (NVIDIA A100) at 2026-09-21T14:13:30.000Z: 100% busy, 91 C, 120 W, 40.0 of 80.0 GiB memory in use, "
            "throttled (thermal)"
        ),
        "GPU 2 (NVIDIA A100) at 2026-09-21T14:13:30.000Z: lost: GPU is lost",
        "host at 2026-09-21T14:13:30.000Z: CPU 12%, 3.0 of 16.0 GiB memory available, 5.0 GiB free on /",
        "Xid 79 of GPU 00000000:11:00.0 at 2026-09-21T14:13:20.000Z: GPU has fallen off the bus",
    )
    (line,) = found.kernel
    assert line.endswith(f" {XID}")
    assert found.head() == f"the kernel's log has one line about a GPU, the last: {line}"


def test_without_anything_that_is_said(tmp_path: Path) -> None:
    found = gather(tmp_path / "none", kmsg=tmp_path / "none")
    assert (found.said, found.samples, found.kernel) == ((), (), ())
    assert found.head() == "the kernel's log is not readable (No such file or directory)"
    (tmp_path / "kmsg").write_text(record("eth0: link is up"))
    assert gather(tmp_path, kmsg=tmp_path / "kmsg").head() == "the kernel's log says nothing about a GPU"


def test_what_the_kernel_said_before_the_run_is_not_its(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "kmsg").write_text(record(XID, ago_s=3000.0))
    assert gather(tmp_path, kmsg=tmp_path / "kmsg").kernel == ()


def test_a_stall_dump_holds_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "home" / "runs" / "hung")
    folder.create()
    sampled(folder.path)
    dump = Dump.begin(folder, [], "no progress", folder.output_log)
    until(dump.done, "the dump")
    summary = (dump.path / "summary.txt").read_text()
    assert "GPU 2 (NVIDIA A100) at 2026-09-21T14:13:30.000Z: lost: GPU is lost" in summary
    assert "Xid 79 of GPU 00000000:11:00.0 at 2026-09-21T14:13:20.000Z" in summary
    assert "the kernel's log " in summary
    assert '"temperature_c":91.0' in (dump.path / "sensors.txt").read_text()
    assert (dump.path / "kernel.txt").read_text().startswith("the kernel's log ")


HANGS = """
import time
for step in range(1, 11):
    print(f"step: {step}, loss: 1.{step:04d}", flush=True)
    time.sleep(0.05)
time.sleep(600)
"""


def stalled(home: Home, before: tuple[str, ...]) -> dict[str, Any]:
    """Let a run stall to its end, and return its report."""
    path = home.work / "hangs.py"
    path.write_text(HANGS)
    options = ("--stall", "1s", "--grace", "2s", "--sensor-interval", "1s", "--settle", "0.01s")
    said = home.call("run", "--name", "hung", *options, "--", sys.executable, str(path), before=before)
    assert said.returncode == 0, said.stderr
    assert home.call("wait", "hung", "--timeout", "60s", timeout=70).returncode != 0
    seen = load(home.path / "runs" / "hung" / "status.json")
    assert (seen["state"], seen["cause"]) == ("stopped", "stall")
    report = home.call("report", "hung", "--json")
    assert report.returncode == 0, report.stderr
    found: dict[str, Any] = json.loads(report.stdout)
    return found


def test_the_report_of_a_stalled_run_lists_the_xid_with_its_time(home: Home, tmp_path: Path) -> None:
    """D3-04: the kernel's log of the run's machine has an Xid line."""
    kmsg = tmp_path / "kmsg-of-the-run"
    at = time.time()
    kmsg.write_text(record(XID))
    report = stalled(home, box(tmp_path, {"kmsg": kmsg}))
    proofs = {one["name"].partition("/")[2]: one["text"] for one in report["proofs"]}
    (line,) = [one for one in proofs["kernel.txt"].splitlines() if one.endswith(XID) and one.startswith("2")]
    assert abs(datetime.fromisoformat(line.partition(" ")[0]).timestamp() - at) < 5.0
    assert XID in proofs["summary.txt"]
    notes = load(home.path / "runs" / "hung" / "status.json")["notes"]
    assert [note for note in notes if note.startswith("when it hung, the kernel's log has one line") and XID in note]


def test_a_kernel_log_that_may_not_be_read_is_said(home: Home) -> None:
    """D3-04: without the right to read it, the dump says so, and nothing crashes."""
    before = ("setpriv", "--bounding-set", "-syslog,-sys_admin", "--inh-caps", "-all")
    if os.geteuid() == 0:
        tried = subprocess.run(
            [*before, sys.executable, "-c", "open('/dev/kmsg').close()"], capture_output=True, check=False
        )
        if b"Operation not permitted" not in tried.stderr:
            pytest.skip("the kernel's log is open to everyone here, or setpriv is not there")
    else:
        before = ()
    report = stalled(home, before)
    proofs = {one["name"].partition("/")[2]: one["text"] for one in report["proofs"]}
    assert proofs["kernel.txt"] == "the kernel's log is not readable (Operation not permitted)\n"
    assert "the kernel's log is not readable" in proofs["summary.txt"]


def test_a_stalls_verdict_keeps_what_was_seen_last(tmp_path: Path) -> None:
    from overnight.intake.instruments import Instruments

    seen = {"gpus": [{"index": 0, "temperature_c": float("nan")}], "gpu_trouble": None, "host": None, "page": 1}
    instruments = Instruments.__new__(Instruments)
    instruments.shown = lambda _: seen  # type: ignore[method-assign,assignment]
    stall = Verdict(rule="stall", severity="critical", action="stop", text="nothing moved", evidence={"silent_s": 3.0})
    assert instruments.beside(stall).evidence == {"silent_s": 3.0, "gpus": [{"index": 0, "temperature_c": "nan"}]}
    other = msgspec.structs.replace(stall, rule="nonfinite")
    assert instruments.beside(other) is other


def test_doctor_names_who_holds_the_devices(home: Home, tmp_path: Path, device: Path) -> None:
    before = (*box(tmp_path, {"nvidia0": device}), "sh", "-c", 'exec 9<>/dev/nvidia0; "$@"; exit $?', "holder")
    said = home.call("doctor", "--json", before=before)
    found = {one["check"]: one for one in json.loads(said.stdout)}
    assert found["devices"]["level"] == "ok"
    assert "/dev/nvidia0 is held by process" in found["devices"]["text"]
    assert "(sh -c exec 9<>/dev/nvidia0" in found["devices"]["text"]
    assert "none that answers" in found["gpu"]["text"]
    free = home.call("doctor", "--json", before=before[:-4])
    found = {one["check"]: one for one in json.loads(free.stdout)}
    assert found["devices"]["text"].startswith("the devices are free")


# -- what nothing can end ----------------------------------------------------------------------------------------------

DEAF = """
import os, sys
held = open("/dev/nvidia0", "rb+")
handle = os.open(sys.argv[1], os.O_RDONLY)
print("step: 1, loss: 1.0", flush=True)
os.read(handle, 100)  # never answered
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """Return a file whose readers hang in the kernel until the end of the test."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("a disk that hangs can be made by root only, with /dev/fuse")
    path = tmp_path / "hung"
    path.touch()
    words = [sys.executable, str(Path(__file__).with_name("hungdisk.py")), str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        try:
            if daemon.stdout.readline() != "mounted\n":
                pytest.skip("no file system may be mounted here")
            yield path
        finally:
            daemon.kill()
            daemon.wait()
            subprocess.run(["umount", "-l", str(path)], check=False)


def deaf(home: Home, before: tuple[str, ...], hung: Path, *options: str) -> Any:
    """Start a run that holds the device and hangs."""
    from runs import Run

    path = home.work / "deaf.py"
    path.write_text(DEAF)
    words = ("run", "--name", "deaf", "--settle", "0.01s", "--grace", "1s", *options, "--")
    said = home.call(*words, sys.executable, str(path), str(hung), before=before)
    assert said.returncode == 0, said.stderr
    return Run(home, "deaf")


@pytest.mark.long
def test_a_stop_ends_though_the_command_never_does(home: Home, tmp_path: Path, device: Path, hung: Path) -> None:
    """B1-03 where even SIGKILL does not help: the holder is named, and nobody waits for ever."""
    run = deaf(home, box(tmp_path, {"nvidia0": device}), hung)
    run.until(lambda seen: seen["step"], "it hangs")
    home.call("stop", "deaf", "--now", timeout=120)
    run.until(lambda seen: seen["state"] == "stopped", "it is stopped", limit_s=90)
    status = run.status()
    assert (status["cause"], living(run.child())) == ("user", True)
    notes = " | ".join(status["notes"])
    assert f"processes that hang in the kernel cannot be killed, and are left: {run.child()} (" in notes
    assert f"/dev/nvidia0 is held by process {run.child()}" in notes
    assert "which hangs in the kernel; it cannot be killed, a reset of the device or a reboot ends it" in notes
    assert run.facts("devices_free") == []
    until(lambda: not living(run.pid("supervisor")), "the supervisor leaves")
    run.clean_logs()


@pytest.mark.long
def test_nothing_is_started_beside_a_command_that_hangs_in_the_kernel(
    home: Home, tmp_path: Path, device: Path, hung: Path
) -> None:
    options = ("--restarts", "3", "--backoff", "0.1s", "--stall", "1s")
    run = deaf(home, box(tmp_path, {"nvidia0": device}), hung, *options)
    run.until(lambda seen: seen["state"] not in ("starting", "running", "stopping"), "its end", limit_s=120)
    status = run.status()
    assert (status["state"], status["cause"], status["attempt"]) == ("failed", "hardware", 1)
    assert f"/dev/nvidia0 is held by process {run.child()}" in status["cause_text"]
    assert len(run.facts("started")) == 1
