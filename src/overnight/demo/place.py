"""Where the demo happens: its folder, its own OVERNIGHT_HOME, and the command line as a user would type it.

Nothing of ours is imported but the training's own sizes and what reads checkpoints: all else that the demo knows it has
from the commands, from the log and from /proc. What is done to the trainings, and what that proves, is in
``stages.py``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from overnight.checkpoint import Checkpoint, load, newest
from overnight.demo import model

PATIENCE_S = 60.0
SAVE_EVERY = 50
HORIZON = 4000
STEP = re.compile(r"step: (\d+), loss: (\S+), dt: ([\d.e-]+)")
SHAPE = model.Shape()
T = TypeVar("T")


class FailedError(Exception):
    """A stage did not see what it expected."""

    def __init__(self, expected: str, seen: object) -> None:
        super().__init__(f"expected {expected}; seen: {seen}")
        self.expected = expected
        self.seen = str(seen)


def expect(condition: bool, expected: str, seen: object) -> None:  # noqa: FBT001 - reads like an assert
    """Raise FailedError unless ``condition`` holds."""
    if not condition:
        raise FailedError(expected, seen)


class Place:
    """Where the demo happens: a folder with its own OVERNIGHT_HOME, the command line, and what the stages hand on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.names: list[str] = []
        self.peak_tflops = 0.0
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERNIGHT_")}
        paths = os.environ.get("PYTHONPATH")
        if paths:  # a relative one would name another place from the demo's folder
            kept["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths.split(os.pathsep) if path)
        # The user's own settings are not the demo's; every figure below is asked for by flag.
        self.environ = {**kept, "OVERNIGHT_HOME": str(self.home), "XDG_CONFIG_HOME": str(folder / "config")}

    def overnight(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run one command as a user would; return what it printed; FailedError on any other exit code."""
        shown = shlex.join(["overnight", *arguments[:3]])
        try:
            done = subprocess.run(
                [sys.executable, "-m", "overnight", *arguments],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FailedError(f"`{shown}` to return within {PATIENCE_S:.0f} s", "it went on") from error
        said = (done.stderr.strip() or done.stdout.strip())[-600:]
        wanted = " or ".join(map(str, codes))
        expect(done.returncode in codes, f"`{shown}` to exit {wanted}", f"exit code {done.returncode}. {said}")
        return done.stdout

    def start(
        self, name: str, *training: str, checkpoints: str, flags: tuple[str, ...] = (), codes: tuple[int, ...] = ()
    ) -> None:
        """Launch one training under a name; ``codes`` besides 0 where it may be over before ``run`` returns."""
        self.names.append(name)
        figures = ["--params", str(SHAPE.matmul_parameters), "--tokens-per-step", str(SHAPE.tokens_per_step)]
        command = [sys.executable, "-m", "overnight.demo.train", "--horizon", str(HORIZON)]
        command += ["--save-every", str(SAVE_EVERY), "--checkpoints", str(self.folder / checkpoints), *training]
        figures += ["--peak-tflops", f"{self.peak_tflops:.6f}", "--checkpoints", str(self.folder / checkpoints)]
        self.overnight("run", "--name", name, *figures, *flags, "--", *command, codes=(0, *codes))

    def status(self, name: str) -> dict[str, Any]:
        """Return ``overnight status NAME --json``."""
        value = json.loads(self.overnight("status", name, "--json"))
        expect(isinstance(value, dict), "status --json to be an object", value)
        return dict(value)

    def log(self, name: str) -> str:
        """Return the whole log of a run."""
        return Path(self.status(name)["log"]).read_text()

    def steps(self, name: str) -> list[tuple[int, str, float]]:
        """Return (step, loss as printed, seconds) of every progress line in the log."""
        found = [(int(step), loss, float(dt)) for step, loss, dt in STEP.findall(self.log(name))]
        expect(bool(found), f"progress lines in the log of {name}", "none")
        return found

    def saved(self, checkpoints: str) -> Checkpoint:
        """Return what a training would go on from in one of the demo's folders, every byte of it verified."""
        expect(newest(self.folder / checkpoints) is not None, f"a checkpoint in {checkpoints}", "none")
        return load(self.folder / checkpoints)

    def newest(self, checkpoints: str) -> int:
        """Return the step of that checkpoint."""
        return self.saved(checkpoints).step

    def until(self, expected: str, look: Callable[[], T | None]) -> T:
        """Look again and again until there is something; return it; FailedError when patience is over."""
        until = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            expect(time.monotonic() < until, f"{expected} within {PATIENCE_S:.0f} s", "nothing of the kind")
            time.sleep(0.05)
        return found

    def left_behind(self) -> list[int]:
        """Return the pids of all processes started from here, known by the OVERNIGHT_HOME in their environment."""
        mark = f"OVERNIGHT_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def clear(self) -> None:
        """End everything that was started, whatever became of it."""
        for name in self.names:
            with suppress(FailedError):
                self.overnight("stop", name, "--now", codes=(0, 102))
        until = time.monotonic() + 5
        while (pids := self.left_behind()) and time.monotonic() < until:
            time.sleep(0.1)
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
