"""Stopped or killed and resumed, a training equals one that never was, bit for bit; no part may be left out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the training is one of torch")
pytest.importorskip("torchdata", reason="the data position is that of torchdata's StatefulDataLoader")

import checkpoint_script as script  # noqa: E402 - imports torch

from overnight.checkpoint import load, newest  # noqa: E402 - as above

SCRIPT = Path(script.__file__)
TORCHDATA = "'set_vital' is deprecated"  # a word of torch that torchdata still uses
Life = Callable[..., str]


@pytest.fixture
def live(tmp_path: Path) -> Life:
    """Return what runs the script in a process of its own and returns its output; its exit status is ``code``."""

    def run(folder: str, *words: object, code: int = 0) -> str:
        python = [sys.executable, "-W", "error", "-W", f"ignore:{TORCHDATA}"]
        argv = [*python, str(SCRIPT), str(tmp_path / folder), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == code, done.stdout[-2000:] + done.stderr
        return done.stdout

    return run


def lines(text: str, *, after: int = 0) -> list[str]:
    """Return the lines of steps, and of the samples in them, after a step; how long a step took is left out."""
    found = []
    for line in text.splitlines():
        if line.startswith(("step: ", "ids ")):
            words = [word for word in line.split(", ") if not word.startswith("dt: ")]
            if int(words[0].split()[1].strip(",")) > after:
                found.append(", ".join(words))
    return found


def digests(text: str) -> dict[str, str]:
    """Return the digests that a life has printed at its end."""
    (line,) = [line for line in text.splitlines() if line.startswith("digests ")]
    return dict(json.loads(line.removeprefix("digests ")))


def steps_saved(folder: Path) -> list[int]:
    """Return the steps of the checkpoints that are there."""
    return sorted(load(path).step for path in folder.glob("step-*"))


def test_stopped_after_100_it_goes_on_as_if_nothing_had_been(live: Life, tmp_path: Path) -> None:
    whole = live("whole")
    stopped = live("broken", "--term-at", 100)
    assert "SIGTERM came: step 100 was finished" in stopped
    resumed = live("broken")
    assert len(lines(resumed)) == 10
    assert lines(stopped) + lines(resumed) == lines(whole)
    assert digests(resumed) == digests(whole)
    assert steps_saved(tmp_path / "broken") == steps_saved(tmp_path / "whole") == [50, 100, 110]


FULL = ("--kind", "full", "--steps", 42, "--every", 10)


@pytest.mark.parametrize(
    ("loader", "end"),
    [
        (("--workers", 0), ("--term-at", 29)),
        (("--workers", 2), ("--kill-at", 29)),
        (("--workers", 0, "--plain-loader", "--sync"), ("--kill-at", 29)),
        (("--workers", 2, "--plain-loader"), ("--term-at", 24)),  # at the end of an epoch
    ],
)
def test_all_that_decides_a_step_comes_back(live: Life, loader: tuple[object, ...], end: tuple[str, int]) -> None:
    whole = live("whole", *FULL, *loader)
    killed = end[0] == "--kill-at"
    live("broken", *FULL, *loader, *end, code=-9 if killed else 0)
    resumed = live("broken", *FULL, *loader)
    after = 20 if killed else end[1]
    assert f"step {after} is done" in resumed
    assert lines(resumed) == lines(whole, after=after)
    assert digests(resumed) == digests(whole)


# -- nothing of it may be left out -----------------------------------------------------------------------------------


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Have torch compute alike each time, and put its settings back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings(f"ignore:{TORCHDATA}")
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("left_out", [None, *script.PARTS])
def test_each_part_matters(left_out: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def life(folder: str) -> dict[str, str]:
        words = [str(tmp_path / folder), *map(str, FULL), "--sync"]
        return script.train(script.options(words))

    whole = life("whole")
    monkeypatch.setenv("OVERNIGHT_STOP_AT", "29")
    life("broken")
    monkeypatch.delenv("OVERNIGHT_STOP_AT")
    assert newest(tmp_path / "broken") == tmp_path / "broken" / "step-00000029"
    monkeypatch.setattr(script.parts, "restore", script.parts.restore)  # what is patched below is put back
    monkeypatch.setattr(script.checkpointer.rng, "restore", script.checkpointer.rng.restore)
    monkeypatch.setattr(script.LoaderPosition, "restore", script.LoaderPosition.restore)
    script.forget(left_out)
    resumed = life("broken")
    assert (resumed == whole) == (left_out is None)
    shutil.rmtree(tmp_path / "broken")
