"""The GPU sensor as a real process, for its tests: started as a supervisor starts it, and read as one reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import msgspec
from runs import until

from overnight.folder import RunFolder, write_json
from overnight.processes import identify
from overnight.sensors import Gpu, GpuSample


class Sensor:
    """One process with its run folder. A context manager: the process is ended with it."""

    def __init__(
        self, run_dir: Path, environ: Mapping[str, str], *, every_s: float = 0.1, more: tuple[str, ...] = ()
    ) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(exist_ok=True)
        self.path = run_dir / "sensors" / "gpu.jsonl"
        words = [sys.executable, "-I", "-m", "overnight.sensors.gpu", str(run_dir), "--every", str(every_s)]
        env = {**os.environ, **environ, "OVERNIGHT_ROLE": "sensors"}
        self.process = subprocess.Popen([*words, "--parent", str(os.getpid()), *more], env=env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def samples(self) -> list[GpuSample]:
        """Return the samples of all whole lines."""
        data = self.path.read_bytes() if self.path.exists() else b""
        return [
            msgspec.json.decode(line, type=GpuSample) for line in data.splitlines(keepends=True) if line[-1:] == b"\n"
        ]

    def until(self, what: str, wanted: Callable[[GpuSample], object], limit_s: float = 30.0) -> GpuSample:
        """Return the first sample that is as wanted."""
        return until(lambda: next(filter(wanted, self.samples()), None), what, limit_s=limit_s)

    def later(self, what: str, wanted: Callable[[GpuSample], object]) -> GpuSample:
        """Return the first sample from now on that is as wanted."""
        before = len(self.samples())
        return until(lambda: next(filter(wanted, self.samples()[before:]), None), what, limit_s=30.0)

    def first(self) -> GpuSample:
        """Return the first sample."""
        return self.until("a first sample", lambda _: True)


def gpu(sample: GpuSample, index: int = 0) -> Gpu:
    """Return the card with a number."""
    return next(one for one in sample.gpus if one.index == index)


def begun(run_dir: Path, pid: int) -> None:
    """Write down a process as the command of a run, as the shim does."""
    folder = RunFolder(run_dir)
    folder.attempt(1).path.mkdir(parents=True)
    write_json(folder.attempt(1).started_json, msgspec.to_builtins(identify(pid)))
