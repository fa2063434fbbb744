"""``doctor`` as a program, with schedulers and services that are small scripts on PATH."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from looking import Runs

FOUND = {"ok", "warning", "problem"}


def script(folder: Path, name: str, text: str) -> None:
    """Put a program on PATH that prints something."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def findings(runs: Runs) -> dict[str, dict[str, Any]]:
    done = runs.overnight("doctor", "--json")
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == any(one["level"] == "problem" for one in found.values()), done.stderr
    assert {one["level"] for one in found.values()} <= FOUND
    return found


def test_this_machine_can_be_examined(runs: Runs) -> None:
    found = findings(runs)
    assert found["disk"]["text"].startswith(str(runs.home))
    assert found["proc"]["level"] == found["subreaper"]["level"] == found["kernel"]["level"] == "ok"
    plain = runs.overnight("doctor")
    assert plain.returncode in (0, 1)
    assert all(len(line) <= 80 for line in plain.stdout.splitlines())
    assert [line.split()[1] for line in plain.stdout.splitlines() if line.split()[0] in FOUND] == list(found)


@pytest.mark.parametrize(("wait_s", "level"), [(30, "warning"), (300, "ok")])
def test_a_scheduler_that_is_less_patient_than_the_grace_is_told(runs: Runs, wait_s: int, level: str) -> None:
    script(
        runs.work / "bin", "scontrol", f"Configuration data\nJobFileAppend = 0\nKillWait                = {wait_s} sec"
    )
    runs.env |= {"PATH": f"{runs.work / 'bin'}:{runs.env['PATH']}", "SLURM_JOB_ID": "7"}
    one = findings(runs)["slurm"]
    assert one["level"] == level
    assert f"{wait_s} s" in one["text"]


def test_an_unsynchronized_clock_is_told(runs: Runs) -> None:
    runs.env["PATH"] = f"{runs.work / 'bin'}:{runs.env['PATH']}"
    for answer, level in (("yes", "ok"), ("no", "warning")):
        script(runs.work / "bin", "timedatectl", answer)
        assert findings(runs)["clock"]["level"] == level


def test_a_home_that_cannot_be_written_to_is_a_problem(runs: Runs) -> None:
    runs.env["OVERNIGHT_HOME"] = "/proc/1/none"
    done = runs.overnight("doctor", "--json")
    assert done.returncode == 1
    (disk,) = [one for one in json.loads(done.stdout) if one["check"] == "disk"]
    assert disk["level"] == "problem"
    assert "OVERNIGHT_HOME" in disk["fix"]
