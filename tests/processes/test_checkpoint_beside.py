"""Saving beside the training where something is in the way: no memory, no writer, no standard streams, no folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="what is trained here are arrays of numpy")

from overnight.checkpoint import Checkpointer, SaveError, load, newest  # noqa: E402 - numpy first

TOY = Path(__file__).with_name("checkpoint_toy.py")


def steps(folder: Path) -> list[int]:
    return sorted(load(path).step for path in folder.glob("step-*"))


@pytest.mark.parametrize("where", ["free_memory", "sys.executable"])
def test_what_cannot_be_saved_beside_the_training_is_saved_within_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if where == "free_memory":
        monkeypatch.setattr("overnight.checkpoint.staging.free_memory", lambda: 0)
    else:
        monkeypatch.setattr(sys, "executable", "")
    with Checkpointer(tmp_path, every=2, w=np.ones(4)) as ckpt:
        list(ckpt.steps(5))
    assert steps(tmp_path) == [2, 4, 5]
    assert capsys.readouterr().err.count("the training itself saves") == 1


@pytest.mark.parametrize("beside", [True, False])
def test_a_save_after_the_loop_is_durable_or_raised(beside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with Checkpointer(folder, every=None, async_=beside, w=np.ones(4)) as ckpt:
        list(ckpt.steps(3))
        ckpt.save()
        assert newest(folder) == folder / "step-00000003"
        shutil.rmtree(folder)
        folder.write_text("in the way")
        with pytest.raises(SaveError, match="cannot be made again"):
            ckpt.save()


@pytest.mark.parametrize("beside", [True, False])
def test_a_failure_that_nobody_asked_about_is_raised_at_the_end(beside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "saved"

    def train() -> None:
        with Checkpointer(folder, every=2, async_=beside, w=np.ones(4)) as ckpt:
            for step in ckpt.steps(9):
                if step == 2:
                    shutil.rmtree(folder)
                    folder.write_text("in the way")
                if step == 3:
                    return

    with pytest.raises(SaveError, match="the save of step 2 failed"):
        train()


@pytest.mark.parametrize("closed", [(0,), (0, 1)])
def test_started_without_standard_streams(closed: tuple[int, ...], tmp_path: Path) -> None:
    """Its first files get the numbers 0 and 1, which a writer would have for itself."""
    folder = tmp_path / "saved"

    def close() -> None:
        for handle in closed:
            os.close(handle)

    words: list[Any] = [sys.executable, str(TOY), str(folder), "--steps=20", "--every=5"]
    done = subprocess.run(words, stderr=subprocess.PIPE, stdout=None, preexec_fn=close, timeout=100, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert steps(folder)[-1] == 20


def test_a_forked_child_does_not_go_on_with_its_parents_steps(tmp_path: Path) -> None:
    script = """
import os, sys, numpy as np
from overnight.checkpoint import Checkpointer
with Checkpointer(sys.argv[1], every=2, w=np.ones(4)) as ckpt:
    for step in ckpt.steps(6):
        if step == 3:
            child = os.fork()
        if step > 3 and not child:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""
    words = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "UsageError: this is a forked child" in done.stderr
    assert steps(tmp_path) == [2, 4, 6]
