"""The GPU sensor's process over a stand-in for NVIDIA's library, asked by the real nvidia-ml-py: fields and faults."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from gpu_child import Sensor, gpu
from runs import living, until

import nvml
from overnight.sensors import Gpu, GpuProcess, GpuSample
from overnight.sensors import gpu as sensor

GIB = 1 << 30


@pytest.fixture
def stub(tmp_path: Path) -> nvml.Stub:
    return nvml.Stub(tmp_path / "nvml")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def real_library() -> bool:
    """Say whether this machine has a real library, so that none can be said to be missing."""
    code = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_every_field_is_read(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write(
        [
            nvml.card(
                0,
                name="NVIDIA H100 80GB HBM3",
                cores=16896,
                capability="9.0",
                utilisation=93,
                memory_busy=37,
                memory_total=80 * GIB,
                memory_used=71 * GIB,
                temperature=88,
                slowdown=89,
                power=698.125,
                power_limit=700,
                clock=1215,
                max_clock=1980,
                throttle=("thermal", "power_cap", "power_brake", "hw_slowdown", "sync_boost", "app_clocks", "idle"),
                ecc_corrected=7,
                ecc_uncorrected=2,
                remapped=(3, 1, True, True),
                links=18,
                links_down=(4, 5),
                link_errors=3,
                compute=[(os.getpid(), 70 * GIB)],
                graphics=[(os.getpid(), GIB), (1 << 22, None)],
                mps=[(os.getppid(), 2 * GIB)],
            )
        ],
        driver="570.86.10",
    )
    with Sensor(run_dir, stub.environ()) as child:
        sample = child.first()
        now = time.time()
    me = next(one for one in gpu(sample).processes or () if one.pid == os.getpid())
    assert (me.memory, me.ours) == (70 * GIB, False)
    assert me.name
    assert me.user
    parent = next(one for one in gpu(sample).processes or () if one.pid == os.getppid())
    assert parent.memory == 2 * GIB
    nobody = GpuProcess(pid=1 << 22, graphics=True)  # no such process is here: nobody can say whose it is
    assert nobody in (gpu(sample).processes or ())
    assert msgspec.structs.replace(gpu(sample), processes=None) == Gpu(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-00000000-0000-4000-8000-0123456789ab",
        bus_id="00000000:11:00.0",
        units=132,
        mig=False,
        utilisation=0.93,
        memory_busy=0.37,
        memory_used=71 * GIB,
        memory_total=80 * GIB,
        temperature_c=88.0,
        slowdown_c=89.0,
        power_w=698.125,
        power_limit_w=700.0,
        sm_clock_mhz=1215.0,
        max_sm_clock_mhz=1980.0,
        throttle=("thermal", "power_cap", "hw_slowdown", "power_brake", "sync_boost", "app_clocks"),
        ecc_corrected=7,
        ecc_uncorrected=2,
        remapped_rows=4,
        remap_failed=True,
        remap_pending=True,
        nvlinks_active=16,
        nvlink_errors=16 * 4 * 3,
    )
    assert (sample.driver, sample.maker, sample.trouble) == ("570.86.10", "nvidia", None)
    assert 0 <= now - sample.at < 60
    assert stat.S_IMODE(child.path.stat().st_mode) == 0o600


def test_samples_follow_the_cards(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0, temperature=60), nvml.card(1)])
    with Sensor(run_dir, stub.environ()) as child:
        assert gpu(child.first()).throttle == ()
        stub.change(0, temperature=91, throttle=("hw_thermal",), utilisation=0)
        hot = child.until("the hot card", lambda one: gpu(one).temperature_c == 91)
        assert gpu(hot).throttle == ("thermal",)
        assert gpu(hot).utilisation == 0.0
        assert gpu(hot, 1).temperature_c == 60
        stub.change(0, throttle=("display_clocks",))
        child.until("another reason", lambda one: gpu(one).throttle == ("display_clocks",))


def test_what_a_card_does_not_measure_is_unknown(stub: nvml.Stub, run_dir: Path) -> None:
    silent = dict.fromkeys(nvml.card(0), None)
    stub.write([{**silent, "name": "NVIDIA GB10", "uuid": "GPU-77"}])
    with Sensor(run_dir, stub.environ()) as child:
        found = gpu(child.first())
    assert found == Gpu(index=0, name="NVIDIA GB10", uuid="GPU-77", processes=())


@pytest.mark.parametrize(
    ("function", "field", "unknown"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w", None),
        ("nvmlDeviceGetRemappedRows", "remap_failed", None),
        ("nvmlDeviceGetMigMode", "mig", None),
        ("nvmlDeviceGetUtilizationRates", "utilisation", None),
        ("nvmlDeviceGetPciInfo_v3", "bus_id", None),
        ("nvmlDeviceGetNvLinkState", "nvlinks_active", None),
    ],
)
@pytest.mark.parametrize("code", [nvml.NOT_SUPPORTED, nvml.NO_PERMISSION, nvml.UNKNOWN])
def test_one_call_that_fails_takes_nothing_else_with_it(
    stub: nvml.Stub, function: str, field: str, unknown: object, code: int
) -> None:
    stub.write([nvml.card(0)])
    with environment(stub.environ()):
        (healthy,) = sensor.detect(30.0)
        stub.fail(code, function)
        (found,) = sensor.detect(30.0)
    assert getattr(healthy, field) is not None
    assert getattr(found, field) is unknown
    kept = {name: getattr(found, name) for name in ("uuid", "temperature_c", "memory_used", "ecc_corrected", "lost")}
    assert kept == {name: getattr(healthy, name) for name in kept}


OLD = [
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMigMode",
    "nvmlEventSetWait_v2",
]


def test_the_library_of_an_old_driver_tells_what_it_can(tmp_path: Path, run_dir: Path) -> None:
    stub = nvml.Stub(tmp_path / "old", without=OLD)
    card = nvml.card(0, throttle=("thermal",), compute=[(os.getpid(), 5 * GIB)], retired=(2, 1, True))
    stub.write([card])
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
        stub.xid(0, 79)  # nobody waits for it with this library
        found = gpu(child.later("another sample", lambda _: True))
        assert child.process.poll() is None
    assert found.memory_used == card["memory_used"] + card["memory_reserved"]  # that driver cannot tell them apart
    assert found.throttle == ("thermal",)
    assert [one.memory for one in found.processes or ()] == [5 * GIB]
    assert (found.remapped_rows, found.remap_pending, found.remap_failed) == (3, True, None)
    assert (found.units, found.mig, found.temperature_c) == (None, None, 60.0)


def test_a_library_that_lists_no_processes_has_none_that_are_known(tmp_path: Path) -> None:
    kinds = [f"nvmlDeviceGet{kind}RunningProcesses_v" for kind in ("Compute", "Graphics", "MPSCompute")]
    stub = nvml.Stub(tmp_path / "bare", without=[f"{kind}{number}" for kind in kinds for number in (2, 3)])
    stub.write([nvml.card(0, compute=[os.getpid()])])
    with environment(stub.environ()):
        (found,) = sensor.detect(30.0)
    assert found.processes is None
    assert found.lost is None


# -- cards that go away ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [(nvml.GPU_IS_LOST, "lost"), (nvml.RESET_REQUIRED, "reset"), (nvml.UNKNOWN, "Unknown Error")],
)
def test_a_card_that_is_lost_is_named_and_the_others_go_on(
    stub: nvml.Stub, run_dir: Path, code: int, words: str
) -> None:
    stub.write([nvml.card(0), nvml.card(1), nvml.card(2)])
    with Sensor(run_dir, stub.environ()) as child:
        whole = child.first()
        stub.fail(code, card=1)
        sample = child.until("the lost card", lambda one: gpu(one, 1).lost)
        assert words in (gpu(sample, 1).lost or "")
        same = ("uuid", "name", "bus_id", "index")
        assert [getattr(gpu(sample, 1), name) for name in same] == [getattr(gpu(whole, 1), name) for name in same]
        assert gpu(sample, 1).temperature_c is None
        assert [gpu(sample, index).temperature_c for index in (0, 2)] == [60, 60]
        stub.heal()
        child.later("the card again", lambda one: gpu(one, 1).lost is None and gpu(one, 1).temperature_c == 60)


def test_a_card_that_is_lost_in_the_middle_of_a_look_is_lost(stub: nvml.Stub) -> None:
    stub.write([nvml.card(0)])
    stub.fail(nvml.GPU_IS_LOST, "nvmlDeviceGetPowerUsage", card=0)
    with environment(stub.environ()):
        (found,) = sensor.detect(30.0)
    assert found.lost == "GPU is lost"
    assert found.uuid
    assert (found.temperature_c, found.utilisation) == (None, None)  # half a look is none


def test_a_sensor_that_is_started_again_still_knows_the_lost_card(stub: nvml.Stub, run_dir: Path) -> None:
    cards = [nvml.card(index) for index in range(3)]
    stub.write(cards)
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
    stub.write([cards[0], cards[2]])  # the driver has dropped it, and the one behind it has moved up
    with Sensor(run_dir, stub.environ()) as child:
        sample = child.later("the cards", lambda _: True)
    assert [(one.index, one.uuid) for one in sample.gpus] == [(at, cards[at]["uuid"]) for at in range(3)]
    assert [one.lost for one in sample.gpus] == [None, "the driver does not list it any more", None]
    assert gpu(sample, 1).name == cards[1]["name"]


def test_the_only_card_that_is_lost_is_no_machine_without_cards(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
    stub.write([])
    with Sensor(run_dir, stub.environ()) as child:
        assert gpu(child.later("the lost card", lambda one: one.gpus)).lost
        assert child.process.poll() is None


# -- no driver ---------------------------------------------------------------------------------------------------------


def trouble_of(run_dir: Path, environ: dict[str, str]) -> str:
    """Return what a sensor says that cannot begin; it ends at once with 3, after one line."""
    with Sensor(run_dir, environ) as child:
        assert child.process.wait(30) == 3
        (sample,) = child.samples()
    assert sample.gpus == ()
    assert sample.trouble
    with environment(environ):
        assert sensor.look(30.0).trouble == sample.trouble
        assert sensor.detect(30.0) == []
    return sample.trouble


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (nvml.DRIVER_NOT_LOADED, "driver is not loaded"),
        (nvml.LIB_RM_VERSION_MISMATCH, "differ in version.*reboot"),
        (nvml.NO_PERMISSION, "may not be asked by this user"),
        (nvml.UNKNOWN, "cannot be asked: Unknown Error"),
    ],
)
def test_a_driver_that_does_not_start(stub: nvml.Stub, run_dir: Path, code: int, words: str) -> None:
    stub.write([nvml.card(0)])
    stub.fail(code, "nvmlInitWithFlags")
    said = trouble_of(run_dir, stub.environ())
    assert pytest.raises(AssertionError, match=words).matches(AssertionError(said)), said


def test_no_library_at_all(run_dir: Path) -> None:
    if real_library():
        pytest.skip("this machine has a real NVIDIA driver")
    assert "libnvidia-ml.so.1 is not found" in trouble_of(run_dir, {})


def test_a_library_that_is_none(tmp_path: Path, run_dir: Path) -> None:
    (tmp_path / nvml.NAME).write_bytes(b"\x7fELF, but not really")
    if real_library():
        pytest.skip("this machine has a real NVIDIA driver, which is found next")
    trouble_of(run_dir, {"LD_LIBRARY_PATH": str(tmp_path)})


def test_a_driver_without_cards(stub: nvml.Stub, run_dir: Path) -> None:
    assert trouble_of(run_dir, stub.environ()) == "the NVIDIA driver lists no GPU"


def test_a_driver_that_is_unloaded_ends_the_sensor(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
        stub.fail(nvml.DRIVER_NOT_LOADED, "nvmlDeviceGetCount_v2")
        assert child.process.wait(30) == 3
        assert "driver is gone: it is not loaded" in (child.samples()[-1].trouble or "")


# -- a driver that hangs -----------------------------------------------------------------------------------------------


def test_a_call_that_sleeps_holds_up_the_sensor_and_nobody_else(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
        stub.sleep(60, "nvmlDeviceGetUtilizationRates")
        before = -1
        while before != (before := len(child.samples())):  # the sample under way is the last
            time.sleep(0.5)
        assert child.process.poll() is None
        child.process.kill()
        assert child.process.wait(10) == -signal.SIGKILL
    began = time.monotonic()
    with environment(stub.environ()):
        sample = sensor.look(0.5)
    assert sample.trouble == "the GPU driver does not answer within 0.5 s"
    assert time.monotonic() - began < 20


# -- its own life ------------------------------------------------------------------------------------------------------


def test_it_ends_with_its_parent(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    run_dir.mkdir()
    code = (
        "import subprocess, sys, time, os\n"
        "words = [sys.executable, '-I', '-m', 'overnight.sensors.gpu', sys.argv[1], '--parent', str(os.getpid())]\n"
        "print(subprocess.Popen([*words, '--every', '0.1']).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, **stub.environ()}
    with subprocess.Popen([sys.executable, "-c", code, run_dir], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until((run_dir / "sensors" / "gpu.jsonl").exists, "a first sample")
        assert living(pid)
        parent.kill()
        parent.wait()
        until(lambda: not living(pid), "the sensor's end")


def test_it_does_not_begin_for_a_parent_that_is_gone(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    run_dir.mkdir()
    words = [sys.executable, "-I", "-m", "overnight.sensors.gpu", str(run_dir), "--parent", str((1 << 22) - 1)]
    done = subprocess.run(words, env={**os.environ, **stub.environ()}, check=False, timeout=30)
    assert done.returncode == 1
    assert not (run_dir / "sensors").exists()


def test_it_ends_when_its_folder_is_removed(stub: nvml.Stub, run_dir: Path) -> None:
    stub.write([nvml.card(0)])
    with Sensor(run_dir, stub.environ()) as child:
        child.first()
        run_dir.rename(run_dir.with_name("elsewhere"))
        assert child.process.wait(30) == 0
        assert not run_dir.exists()


def test_what_was_written_stays(stub: nvml.Stub, run_dir: Path) -> None:
    """A line that was cut off by a kill is ended, and the next sample stands on a line of its own."""
    stub.write([nvml.card(0)])
    (run_dir / "sensors").mkdir(parents=True)
    (run_dir / "sensors" / "gpu.jsonl").write_bytes(b'{"kind":"gpu","at":1.0}\n{"kind":"gp')
    with Sensor(run_dir, stub.environ()) as child:
        lines = until(lambda: child.path.read_bytes().split(b"\n")[2:-1], "a sample")
    assert msgspec.json.decode(lines[0], type=GpuSample).gpus


def test_once_prints_one_sample_and_leaves_nothing(stub: nvml.Stub, tmp_path: Path) -> None:
    stub.write([nvml.card(0), nvml.card(1)])
    words = [sys.executable, "-I", "-m", "overnight.sensors.gpu", "--once"]
    env = {**os.environ, **stub.environ()}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, check=True, timeout=30)
    sample = msgspec.json.decode(done.stdout, type=GpuSample)
    assert [one.index for one in sample.gpus] == [0, 1]
    assert {one.ours for one in sample.gpus} == {None}
    assert done.stderr == b""
    assert {path.name for path in tmp_path.iterdir()} == {"nvml"}
