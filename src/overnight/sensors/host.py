"""The machine and the run's own processes, measured in a process of its own, one line a time.

Run as ``python -I -m overnight.sensors.host RUNDIR --every S --disk HOLDS=PATH ... --parent PID``; it writes
RUNDIR/sensors/host.jsonl (HostSample) and ends with its parent. What hangs is "not known" after a moment, what cannot
be measured here always. Nothing here judges a figure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from overnight.folder import sensor_file
from overnight.machine import Machine
from overnight.sensors import HostSample, Pressure
from overnight.sensors.bounded import Bounded
from overnight.sensors.containers import memory_limits
from overnight.sensors.disks import Disks
from overnight.sensors.sampling import end_with_parent, keep_sampling
from overnight.sensors.trees import held

Value = TypeVar("Value")

WAIT_S = 2.0
"""How long a sample waits for disks and processes that do not answer at once."""

NICENESS = 5
UNKNOWABLE = (OSError, ValueError, LookupError, RuntimeError, AttributeError, psutil.Error)
"""What psutil raises where /proc is partly hidden, or of another form than it knows."""


def asked(question: Callable[[], Value]) -> Value | None:
    """Return what is answered, None if it cannot be."""
    try:
        return question()
    except UNKNOWABLE:
        return None


def pressure(machine: Machine, resource: str) -> Pressure | None:
    """Return the pressure on "cpu", "memory" or "io" over the last 10 s; None where the kernel does not tell."""
    found: dict[str, float] = {}
    for line in (machine.text(f"/proc/pressure/{resource}") or "").splitlines():
        kind, _, rest = line.partition(" ")
        for name, _, value in (word.partition("=") for word in rest.split()):
            if name == "avg10":
                with contextlib.suppress(ValueError):
                    found[kind] = float(value) / 100.0
    if resource == "cpu":
        found.pop("full", None)  # of a whole machine the kernel does not define it and writes 0
    return Pressure(some=found.get("some"), full=found.get("full")) if found else None


class Host:
    """One machine as one run sees it; ``disks`` says what of the run lies where. ``parent`` is the supervisor."""

    def __init__(
        self, run_dir: Path, disks: Mapping[str, Path], *, parent: int, machine: Machine, wait_s: float = WAIT_S
    ) -> None:
        self.machine = machine
        self.wait_s = wait_s
        self.disks = Disks(disks, machine)
        self.tree = Bounded(lambda: held(run_dir, parent), UNKNOWABLE)
        self.before = False
        self.processors = asked(psutil.cpu_count)

    def sample(self) -> HostSample:
        """Measure everything once; the first time the use of the processors is not known, for it needs two looks."""
        until = time.monotonic() + self.wait_s
        self.disks.ask()
        self.tree.ask()
        cpu = asked(psutil.cpu_percent)
        if not self.before:
            self.before, cpu = True, None
        load = asked(os.getloadavg)
        total, available = self._memory()
        swap = asked(psutil.swap_memory)
        disks, tree = self.disks.answers(until), self.tree.answer(until)
        return HostSample(
            at=time.time(),
            cpu=None if cpu is None else cpu / 100.0,
            load1=None if load is None else load[0],
            processors=self.processors,
            memory_total=total,
            memory_available=available,
            swap_used=None if swap is None else swap.used,
            swap_total=None if swap is None else swap.total,
            disks=disks,
            cpu_pressure=pressure(self.machine, "cpu"),
            memory_pressure=pressure(self.machine, "memory"),
            io_pressure=pressure(self.machine, "io"),
            rss=None if tree is None else tree.rss,
            processes=None if tree is None else tree.processes,
            own_rss=None if tree is None else tree.own_rss,
        )

    def _memory(self) -> tuple[int | None, int | None]:
        """Return total and available memory, in bytes: the container's where that is less."""
        known = asked(psutil.virtual_memory)
        total, available = (None, None) if known is None else (known.total, known.available)
        return lowered(total, available, asked(lambda: memory_limits(self.machine)) or [])


def lowered(
    total: int | None, available: int | None, limits: Sequence[tuple[int, int | None]]
) -> tuple[int | None, int | None]:
    """Return total and available memory under limits (bytes, and what is left): a limit beyond the total is none.

    If what is left of a limit is not known, what is available is not, either.
    """
    binding = [one for one in limits if total is None or one[0] < total]
    lefts = [left for _, left in binding]
    known = [left for left in (available, *lefts) if left is not None]
    least = None if None in lefts or not known else min(known)
    return min([limit for limit, _ in binding], default=total), least


def parser() -> argparse.ArgumentParser:
    """Return what understands the words after the module's name."""
    found = argparse.ArgumentParser(prog="overnight.sensors.host")
    found.add_argument("run_dir", type=Path)
    found.add_argument("--every", type=float, default=10.0)
    found.add_argument("--disk", action="append", default=[])
    found.add_argument("--parent", type=int, default=os.getppid())
    found.add_argument("--once", action="store_true", help="print one sample and end")
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure until the parent is gone."""
    words = parser().parse_args(argv)
    warnings.simplefilter("ignore")  # psutil warns of what it cannot find, and each warning would be a line of a log
    pairs = (text.partition("=") for text in words.disk)
    disks = {holds: Path(path) for holds, _, path in pairs if path}
    host = Host(words.run_dir, disks, parent=words.parent, machine=Machine())
    encode = msgspec.json.Encoder().encode
    if words.once:
        sys.stdout.write(encode(host.sample()).decode() + "\n")
        return 0
    end_with_parent(words.parent)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    path = sensor_file(words.run_dir, "host")
    keep_sampling(path, lambda: encode(host.sample()), every_s=words.every, parent=words.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
