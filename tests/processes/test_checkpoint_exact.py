"""Stopped or killed and resumed, a training equals one that never was, bit for bit; no part may be left out."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the training is one of torch")
pytest.importorskip("torchdata", reason="the data position is that of torchdata's StatefulDataLoader")

import checkpoint_script as script  # noqa: E402 - imports torch

from overnight.checkpoint import load, newest  # noqa: E402 - as above

SCRIPT = Path(script.__file__)
pytestmark = pytest.mark.timeout(900)  # five times torch is started and imported in one test
TORCHDATA = "'set_vital' is deprecated"  # a word of torch that torchdata still uses
Life = Callable[..., str]


@pytest.fixture
def live(tmp_path: Path) -> Life:
    """Return what runs the script in a process of its own and returns its output; its exit status is ``code``."""

    def run(folder: str, *words: object, code: int = 0) -> str:
        python = [sys.executable, "-W", "error", "-W", f"ignore:{TORCHDATA}"]
        argv = [*python, str(SCRIPT), str(tmp_path / folder), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, start_new_session=True, timeout=300, check=False)
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
    whole = live("whole", "--sync")
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
        (("--workers", 0, "--sync"), ("--term-at", 29)),
        (("--workers", 2), ("--kill-at", 29)),
        pytest.param(("--workers", 0, "--plain-loader"), ("--kill-at", 29), marks=pytest.mark.long),
        # At the end of an epoch:
        pytest.param(("--workers", 2, "--plain-loader"), ("--term-at", 24), marks=pytest.mark.long),
    ],
)
def test_all_that_decides_a_step_comes_back(live: Life, loader: tuple[object, ...], end: tuple[str, int]) -> None:
    whole = live("whole", *FULL, *loader, "--sync")
    killed = end[0] == "--kill-at"
    live("broken", *FULL, *loader, *end, code=-9 if killed else 0)
    resumed = live("broken", *FULL, *loader)
    after = 20 if killed else end[1]
    assert f"step {after} is done" in resumed
    assert lines(resumed) == lines(whole, after=after)
    assert digests(resumed) == digests(whole)


@pytest.mark.parametrize(
    "loader",
    [("--plain-loader",), pytest.param((), marks=pytest.mark.long)],
    ids=["plain", "stateful"],
)
def test_a_signal_that_ends_the_data_workers_too(live: Life, tmp_path: Path, loader: tuple[str, ...]) -> None:
    """As schedulers and `timeout` send it; torch raises an error for dead workers, wherever training happens to be."""
    words = [str(word) for word in (*FULL, "--workers", 2, *loader)]
    whole = live("whole", *words, "--sync")
    argv = [sys.executable, str(SCRIPT), str(tmp_path / "broken"), *words, "--term-at", "29", "--group"]
    with (tmp_path / "out").open("wb") as out, subprocess.Popen(argv, stdout=out, start_new_session=True) as stopped:
        end = time.monotonic() + 200
        while not (tmp_path / "broken" / "step-00000029").exists() and time.monotonic() < end:
            time.sleep(0.05)
        # A worker that was ended while it held a lock of multiprocessing keeps torch from ending; the save is made.
        with contextlib.suppress(subprocess.TimeoutExpired):
            stopped.wait(10)
        stopped.kill()
    assert "SIGTERM came: step 29 was finished" in (tmp_path / "out").read_text()
    resumed = live("broken", *words)
    assert lines(resumed) == lines(whole, after=29)
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
    monkeypatch.setattr(script.restoring, "restore", script.restoring.restore)  # what is patched below is put back
    monkeypatch.setattr(script.checkpointer.rng, "restore", script.checkpointer.rng.restore)
    monkeypatch.setattr(script.LoaderPosition, "restore", script.LoaderPosition.restore)
    script.forget(left_out)
    resumed = life("broken")
    assert (resumed == whole) == (left_out is None)
    shutil.rmtree(tmp_path / "broken")
