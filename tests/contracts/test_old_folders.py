"""An old run folder opens for ever: one of each released version is checked in and must be read by this one.

Unknown fields are ignored and missing ones have defaults. When a version is released, `folders/VERSION` is added (an
ended run and one that was killed in the middle); what is there is never changed again, and nothing here is loosened.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overnight import client
from overnight.facts import Facts
from overnight.folder import RunFolder, machine_id
from overnight.history.store import records_of
from overnight.spec import RunSpec

FOLDERS = Path(__file__).parent / "folders"
VERSIONS = sorted(path.name for path in FOLDERS.iterdir())
OTHER_MACHINE = "00000000000000000000000000000001"
ESSENTIAL = {"state"}  # of status.json: without it there is nothing to show

Home = Callable[..., Path]


@pytest.fixture(params=VERSIONS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Return what makes a home with the runs of one version, as if they had always been here."""

    def make(*, here: bool = True) -> Path:
        shutil.copytree(FOLDERS / request.param, tmp_path / "runs")
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.suffix != ".db":
                text = path.read_text().replace("@HOME@", str(tmp_path))
                path.write_text(text.replace(OTHER_MACHINE, machine_id()) if here else text)
        return tmp_path

    return make


def call(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    said = subprocess.run(
        [sys.executable, "-m", "overnight", *words],
        env={**os.environ, "OVERNIGHT_HOME": str(place), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in said.stderr + said.stdout, said.stderr
    return said


def files(place: Path, name: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (place / "runs" / name).rglob("*") if path.is_file()}


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    lines = [json.dumps(change(json.loads(line))) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")


def assert_ended(place: Path) -> None:
    """Assert that the ended run says what it said on its last day."""
    before = files(place, "ended")
    listed = {one["name"]: one for one in json.loads(call(place, "ls", "--json").stdout)}
    said = json.loads(call(place, "status", "ended", "--json").stdout)
    for one in (listed["ended"], said):
        assert (one["state"], one["cause"], one["exit_code"], one["signal"]) == ("failed", "crash", 7, None)
        assert (one["step"], one["loss"], one["tokens_per_second"]) == (35, "nan", pytest.approx(51200.0))
        assert one["mfu"] == pytest.approx(6e6 * 51200 / 312e12)
        assert [(verdict["rule"], verdict["step"]) for verdict in one["verdicts"]] == [("nonfinite", 30)]
        assert [(attempt["n"], attempt["exit_code"], attempt["last_step"]) for attempt in one["attempts"]] == [
            (1, 7, 35)
        ]
        assert set(client.FIELDS) <= set(one)
    plain = call(place, "status", "ended")
    assert plain.returncode == 0
    assert "failed (crash)" in plain.stdout
    assert call(place, "wait", "ended").returncode == 100
    assert call(place, "stop", "ended").returncode == 0
    logs = call(place, "logs", "ended")
    assert logs.returncode == 0
    assert "step: 35, loss: nan" in logs.stdout
    assert len(list(records_of(place / "runs/ended/metrics.db"))) == 35
    assert files(place, "ended") == before


def assert_running_is_settled(place: Path) -> None:
    """Assert that this version's supervisor settles a run that an old version's death left behind."""
    said = call(place, "wait", "running", "--timeout", "30s")
    assert said.returncode == 100, said.stderr
    one = json.loads(call(place, "status", "running", "--json").stdout)
    assert (one["state"], one["cause"]) == ("failed", "host_rebooted")


def test_every_version_has_both_runs() -> None:
    assert VERSIONS
    for version in VERSIONS:
        assert sorted(path.name for path in (FOLDERS / version).iterdir()) == ["ended", "running"]


def test_ended_run(home: Home) -> None:
    assert_ended(home())


def test_run_that_was_killed_in_the_middle(home: Home) -> None:
    place = home()
    seen = json.loads(call(place, "ls", "--json").stdout)
    assert [(one["state"], one["cause"]) for one in seen] == [("failed", "crash"), ("failed", "host_rebooted")]
    assert_running_is_settled(place)


def test_supervisor_of_today_goes_on_where_the_old_one_was(home: Home) -> None:
    """It reads the old run.json, journal and metrics.db, and the rest of the log, each line once."""
    place = home()
    folder = place / "runs/running"
    before = len(list(records_of(folder / "metrics.db")))
    said = subprocess.run(
        [sys.executable, "-I", "-m", "overnight.supervisor", "--adopt", str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    steps = [record["step"] for record in records_of(folder / "metrics.db")]
    assert before < len(steps)
    assert steps == list(range(1, 150))
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["cause"], status["step"]) == ("failed", "host_rebooted", 149)


def test_run_of_another_machine_is_left_alone(home: Home) -> None:
    place = home(here=False)
    before = files(place, "running")
    seen = json.loads(call(place, "status", "running", "--json").stdout)
    assert (seen["state"], seen["foreign"], seen["stale"]) == ("running", True, False)
    assert call(place, "wait", "running", "--timeout", "0.3s").returncode == 101
    assert files(place, "running") == before


def test_fields_of_a_later_version_are_ignored(home: Home) -> None:
    place = home()

    def more(value: dict[str, Any]) -> dict[str, Any]:
        for part in (value.get("spec"), *value.get("attempts", ()), *value.get("verdicts", ())):
            if isinstance(part, dict):
                part["of_a_later_version"] = {"deep": [1, 2]}
        return {"of_a_later_version": [None], **value}

    for name in ("ended", "running"):
        for path in (place / "runs" / name).rglob("*.json*"):
            rewrite(path, more)
        with (place / "runs" / name / "journal.jsonl").open("a") as stream:
            stream.write('{"at": "2030-01-01T00:00:00.000Z", "fact": "of_a_later_version", "n": 1}\n')
    assert_ended(place)
    assert_running_is_settled(place)


def test_fields_that_are_missing_have_defaults(home: Home) -> None:
    place = home()
    path = place / "runs/ended/status.json"
    whole = json.loads(path.read_text())
    for name in whole.keys() - ESSENTIAL:
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        (one,) = [one for one in client.list_runs(str(place)) if one["name"] == "ended"]
        assert one["state"] == "failed", name
        assert set(client.FIELDS) <= set(one)
        assert client.status(RunFolder(path.parent))["state"] == "failed"
    path.write_text(json.dumps({"state": "failed"}))
    for words in (("ls",), ("ls", "--json"), ("status", "ended"), ("status", "ended", "--json")):
        assert call(place, *words).returncode == 0, words
    assert call(place, "wait", "ended").returncode == 100


def test_spec_of_an_old_run_needs_only_what_it_cannot_do_without(home: Home) -> None:
    asked = json.loads((home() / "runs/ended/run.json").read_text())["spec"]
    least = {name: asked[name] for name in ("name", "argv", "executable", "cwd", "log")}
    spec = msgspec.convert({**least, "of_a_later_version": 1}, RunSpec)
    assert spec.name == "ended"
    assert spec.grace_s > 0


def test_facts_without_their_newer_fields_are_remembered(home: Home) -> None:
    folder = RunFolder(home() / "runs/ended")
    rewrite(
        folder.journal,
        lambda fact: {key: value for key, value in fact.items() if key not in ("part", "evidence", "source")},
    )
    facts = Facts(folder)
    facts.journal.close()
    assert facts.ended is not None
    assert facts.ended["cause"] == "crash"
    assert [(verdict.rule, verdict.step) for verdict in facts.verdicts] == [("nonfinite", 30)]
