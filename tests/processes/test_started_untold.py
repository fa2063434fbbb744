"""A run that was started, and whoever started it could not be told: nobody may take it for one that was not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from looking import Runs

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("flags", [[], ["--json"], ["--follow"]])
def test_a_full_disk_behind_the_output_does_not_hide_that_it_was_started(runs: Runs, flags: list[str]) -> None:
    words = [sys.executable, "-m", "overnight", "run", "--name", "told", *flags, "--", "sleep", "60"]
    environ = {**os.environ, "OVERNIGHT_HOME": str(runs.home)}
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=40, env=environ, cwd=runs.work
        )
    assert found.returncode == 1
    said = [line for line in found.stderr.splitlines() if "told" in line]
    assert len(said) == 1
    assert said[0].startswith("overnight: the run told was started and goes on, but that cannot be printed: No space")
    assert "`overnight status told`" in said[0]
    assert runs.run("told").status["state"] in ("starting", "running")


def test_a_closed_output_starts_it_all_the_same(runs: Runs) -> None:
    environ = {**os.environ, "OVERNIGHT_HOME": str(runs.home)}
    line = f"{sys.executable} -m overnight run --name told -- sleep 60 >&- 2>&-"
    found = subprocess.run(["bash", "-c", line], check=False, timeout=40, env=environ, cwd=runs.work)
    assert found.returncode == 0
    assert runs.run("told").status["state"] in ("starting", "running")
