"""The supervisor's side of the sensors: starts their processes, keeps them alive, takes in what they write.

Nothing here waits: a sensor that hangs is killed and started again, one that cannot be killed is left, and whatever is
wrong with it, a turn costs a few system calls. No library of a sensor may enter here: this is a process that lives all
night. What the figures mean is for the rules.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from overnight.folder import sensor_file
from overnight.sensors import Sample
from overnight.sensors.children import Child
from overnight.sensors.lines import SampleFile
from overnight.sensors.sampling import pace_s

KINDS = ("gpu", "host")
NAMES = {"gpu": "GPU", "host": "host"}

DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd")
LIBRARY = "libnvidia-ml.so.1"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib /lib64 /lib/x86_64-linux-gnu "
    "/usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib /usr/lib64/nvidia /run/opengl-driver/lib"
).split()

LEAST_SILENCE_S = 60.0
SILENT_SAMPLES = 6.0
STALE_SAMPLES = 3.0
LEAST_STALE_S = 30.0
SLOWEST_LOOK_S = 10.0
LOOK_FOR_GPU_S = 60.0


class Taken(NamedTuple):
    """A sample, and where its line stood: ``offset`` of its first byte in ``source``, a path in the run's folder."""

    sample: Sample
    source: str
    offset: int


def gpu_likely(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether there is a device or a library for which it is worth starting a sensor."""
    named = (os.environ if environ is None else environ).get("LD_LIBRARY_PATH", "")
    folders = [folder for folder in named.split(":") if folder] + FOLDERS
    return any(map(os.path.exists, DEVICES)) or any(os.path.exists(f"{folder}/{LIBRARY}") for folder in folders)


def default_commands() -> dict[str, tuple[str, ...]]:
    """Return the beginning of the command line of each sensor."""
    return {kind: (sys.executable, "-I", "-m", f"overnight.sensors.{kind}") for kind in KINDS}


class Sensing:
    """The sensors of one run. ``now`` is always a time of the boot clock, ``at`` one since the epoch.

    ``every_s``: between two samples; ``host_after_s``: how long a run must last to be worth a process that measures the
    machine; ``disks``: what of the run lies where; ``places``: up to which byte each sensor's file was taken in before;
    ``say`` is told, once for each kind of trouble, what a person should know. ``commands``: other programs in the place
    of the sensors; one that is left out is never started.
    """

    least_silence_s = LEAST_SILENCE_S
    least_stale_s = LEAST_STALE_S

    def __init__(
        self,
        run_dir: Path,
        *,
        every_s: float,
        host_after_s: float,
        disks: Mapping[str, Path],
        places: Mapping[str, int],
        say: Callable[[str], None],
        commands: Mapping[str, Sequence[str]] | None = None,
        gpu_likely: Callable[[], bool] = gpu_likely,
    ) -> None:
        self.run_dir = run_dir
        self.every_s = every_s
        self.host_after_s = host_after_s
        self.say = say
        self.gpu_likely = gpu_likely
        self.begun: float | None = None
        self.gpu_look_at = 0.0
        self.next_at = 0.0
        words = default_commands() if commands is None else commands
        self.files: dict[str, SampleFile] = {}
        self.children: dict[str, Child] = {}
        for kind in KINDS:
            self.files[kind] = SampleFile(sensor_file(run_dir, kind), places.get(kind, 0))
            if kind in words:
                self.children[kind] = self._child(kind, words[kind], disks)

    def _child(self, kind: str, words: Sequence[str], disks: Mapping[str, Path]) -> Child:
        own = [f"{holds}={path}" for holds, path in disks.items()] if kind == "host" else []
        more = [word for pair in own for word in ("--disk", pair)]
        argv = [*words, str(self.run_dir), "--every", f"{self.every_s:g}", *more, "--parent", str(os.getpid())]
        return Child(NAMES[kind], argv, self.say)

    # -- the supervisor's turn -----------------------------------------------------------------------------------------

    def turn(self, now: float) -> list[Taken]:
        """Take in the whole lines that are new, and start, end and start again what has to be."""
        if now < self.next_at:
            return []
        if self.begun is None:
            self.begun = now
            with contextlib.suppress(OSError):
                os.mkdir(self.run_dir / "sensors", mode=0o700)
        found: list[Taken] = []
        waits = [SLOWEST_LOOK_S]
        for kind, child in self.children.items():
            taken = self._take(kind, child)
            found += taken
            pace = pace_s(self.every_s, self.files[kind].size)
            child.look(now, limit_s=max(self.least_silence_s, SILENT_SAMPLES * pace))
            if self._wanted(kind, now):
                child.start_if_due(now, at=time.time())
            waits.append(0.0 if self.files[kind].more else child.next_look_s(now, pace))
        if now - self.begun < self.host_after_s:
            waits.append(self.begun + self.host_after_s - now)
        self.next_at = now + min(waits)
        return found

    def _take(self, kind: str, child: Child) -> list[Taken]:
        file = self.files[kind]
        taken = [Taken(sample, f"sensors/{kind}.jsonl", offset) for offset, sample in file.take()]
        if taken:
            ago_s = time.time() - taken[-1].sample.at
            child.heard(len(taken), min(max(0.0, ago_s), self.every_s / 2))  # clocks jump
        if file.unreadable:
            child.complain(f"the {child.name} sensor has written lines that cannot be read; they are passed over")
        return taken

    def next_look_s(self, now: float) -> float:
        """Return in how many seconds ``turn`` has something to do."""
        return max(0.0, self.next_at - now)

    def close(self) -> None:
        """End the sensors; nobody waits for them."""
        for child in self.children.values():
            child.close()

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def places(self) -> dict[str, int]:
        """Return up to which byte each file was taken in: what a later supervisor goes on from."""
        return {kind: file.place for kind, file in self.files.items()}

    def latest(self, kind: str) -> Sample | None:
        """Return the last sample of a sensor, also one that was taken in by an earlier supervisor."""
        file = self.files.get(kind)
        return None if file is None else file.latest

    def stale(self, kind: str, at: float) -> str | None:
        """Return that a sensor's data is old and why, in a sentence; None if it is not, or nothing is expected."""
        child, file = self.children.get(kind), self.files.get(kind)
        if child is None or file is None or child.resting:
            return None
        latest = file.latest
        since = child.first_at if latest is None else latest.at
        if since is None or at - since < max(self.least_stale_s, STALE_SAMPLES * pace_s(self.every_s, file.size)):
            return None
        begin = f"no {child.name} data for" if latest is None else f"{child.name} data stale for"
        return f"{begin} {spoken_span(at - since)}: {child.why()}"

    def _wanted(self, kind: str, now: float) -> bool:
        if kind == "host":
            return self.begun is not None and now - self.begun >= self.host_after_s
        if self.children[kind].first_at is None:
            if now < self.gpu_look_at:
                return False
            self.gpu_look_at = now + LOOK_FOR_GPU_S  # a driver may be loaded later than we came
            return self.gpu_likely()
        return True


def spoken_span(seconds: float) -> str:
    """Return a time for a sentence: 130.0 -> "2m10s", 45.0 -> "45s", 7260.0 -> "2h01m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
