"""A run whose folder is removed or moved away while its --on-end command is held leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from looking import Run, alive, toy, until

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_its_keepers_end_at_once(start: Callable[..., Run], work: Path, how: str) -> None:
    start("other", *toy("--steps", 100000, "--dt", 0.1), log="step: 2,")
    run = start("mine", *toy("--steps", 5, "--dt", 0.02), flags=("--on-end", "echo ran >> off"))
    # The status that says so comes right behind the fact: a folder replaced between the two would get it.
    until(lambda: run.facts("hook_held") and (run.file("status.json").get("hooks") or {}).get("held"), "it is held")
    pids = [run.pid(role) for role in ("guard", "shim", "supervisor")]
    if how == "removed":
        shutil.rmtree(run.folder, ignore_errors=True)  # like rm -rf: what is written meanwhile may be left
    else:
        os.rename(run.folder, work / "away")
    if how == "replaced":
        run.folder.mkdir()
    until(lambda: not any(map(alive, pids)), "all have left", 10)
    assert how != "moved" or not run.folder.exists()
    if how == "removed":
        shutil.rmtree(run.folder, ignore_errors=True)
        assert not run.folder.exists()
    assert how != "replaced" or not list(run.folder.iterdir()), "nothing is written into another folder"
    assert not (work / "off").exists()
