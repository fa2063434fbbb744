"""A night of an hour as its files have it: log, journal with time marks, what GPU and host sensors wrote. No process.

A step takes half a second, a sample comes every ten. Times are seconds from the beginning; ``EPOCH`` is added to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from overnight.folder import RunFolder, utc
from overnight.sensors import Disk, Gpu, GpuSample, HostSample
from overnight.spec import RunSpec

EPOCH = 1_900_000_000.0
DT = 0.5
MARK_S = 10.0
LASTS_S = 3600.0
GIB = 1 << 30


def card(at: float, **changes: object) -> Gpu:
    """Return the run's GPU, well and busy."""
    del at
    plain = Gpu(
        index=0, name="NVIDIA A100-SXM4-80GB", uuid="GPU-0", bus_id="00000000:3B:00.0", utilisation=0.97,
        memory_used=40 * GIB, memory_total=80 * GIB, temperature_c=60.0, power_w=300.0, power_limit_w=400.0,
        sm_clock_mhz=1395.0, max_sm_clock_mhz=1410.0, ours=True,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def machine(at: float, **changes: object) -> HostSample:
    """Return the machine, with room."""
    disk = Disk(mount="/data", holds=("log", "checkpoints"), free=500 * GIB, total=1000 * GIB, inodes_free=10**6)
    plain = HostSample(
        at=EPOCH + at, cpu=0.2, memory_total=256 * GIB, memory_available=200 * GIB, rss=20 * GIB, disks=(disk,)
    )
    return msgspec.structs.replace(plain, **changes)


def spec_of(folder: RunFolder, **changes: object) -> RunSpec:
    """Return the run's own settings."""
    plain = RunSpec(name="night", argv=(), executable="", cwd="/", log=str(folder.output_log))
    return msgspec.structs.replace(plain, **changes)


def night(
    folder: Path,
    *,
    gpu: Callable[[float], Gpu] | None = card,
    host: Callable[[float], HostSample] | None = machine,
    pace: Callable[[float], float] = lambda _: DT,
    lasts_s: float = LASTS_S,
) -> RunFolder:
    """Write the files; ``pace`` gives the seconds of the step that begins at a time, which the next line prints."""
    run = RunFolder(folder)
    run.create()
    facts: list[tuple[float, dict[str, object]]] = [
        (0.0, {"fact": "state", "state": "starting", "was": "pending", "attempt": 1}),
        (0.0, {"fact": "started", "attempt": 1}),
        (0.0, {"fact": "state", "state": "running", "was": "starting", "attempt": 1}),
    ]
    at, step, marked, log, took = 0.0, 0, -MARK_S, b"", DT
    while at < lasts_s:
        if at - marked >= MARK_S:
            marked = at
            facts.append((at, {"fact": "mark", "source": 0, "offset": len(log), "epoch": EPOCH + at}))
        log += f"step: {step}, loss: {3 - step / 1e5:.5f}, dt: {took:.3f}\n".encode()
        took = pace(at)
        at, step = at + took, step + 1
    facts += [
        (lasts_s, {"fact": "state", "state": "finished", "was": "running", "attempt": 1}),
        (lasts_s, {"fact": "ended", "state": "finished"}),
    ]
    run.output_log.write_bytes(log)
    run.journal.write_text("".join(json.dumps({"at": utc(EPOCH + at), **fact}) + "\n" for at, fact in facts))
    run.attempt(1).path.mkdir(parents=True)
    run.attempt(1).start_json.write_text(json.dumps({"position": [0, 0]}))
    (run.path / "sensors").mkdir()
    samples = [3.0 + 10.0 * number for number in range(int((lasts_s - 4) // 10))]
    if gpu is not None:
        lines = [msgspec.json.encode(GpuSample(at=EPOCH + at, gpus=(gpu(at),))) for at in samples]
        (run.path / "sensors" / "gpu.jsonl").write_bytes(b"\n".join([*lines, b""]))
    if host is not None:
        lines = [msgspec.json.encode(host(at)) for at in samples]
        (run.path / "sensors" / "host.jsonl").write_bytes(b"\n".join([*lines, b""]))
    return run
