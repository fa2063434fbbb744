"""One bad entry among the runs: it is shown as damaged, and nothing else suffers from it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from overnight import client
from overnight.cli import main
from overnight.errors import FolderError, WaitTimeoutError
from overnight.folder import RunFolder

BROKEN = {"loop": "loop", "away": "/nowhere/at/all"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an ended run, a link to itself, one to nothing, and a plain file."""
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    RunFolder(runs / "good").create()
    (runs / "good" / "status.json").write_text('{"state": "finished", "cause": "completed"}')
    (runs / "plain").write_text("")
    for name, target in BROKEN.items():
        (runs / name).symlink_to(target)
    return tmp_path


def test_it_is_listed_as_damaged(home: Path) -> None:
    for found in (client.list_runs(str(home)), client.Listing(str(home), full=True).look()):
        states = {one["name"]: one["state"] for one in found}
        assert states == {"good": "finished", "loop": "damaged", "away": "damaged"}
        assert all("leads nowhere" in one["cause_text"] for one in found if one["state"] == "damaged")


def test_an_entry_that_cannot_even_be_asked_hides_no_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        name = path = "failing"

        def is_dir(self) -> bool:
            raise OSError(5, "Input/output error")

    real = os.scandir

    class With:
        def __enter__(self) -> list[object]:
            return [*real(home / "runs"), Failing()]

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", lambda _: With())
    assert client.run_names(str(home)) == ["away", "failing", "good", "loop"]


@pytest.mark.parametrize("verb", ["status", "logs", "report", "wait", "replay", "stop"])
@pytest.mark.parametrize("name", BROKEN)
def test_every_verb_says_of_it_what_it_is(verb: str, name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, name]) == 1
    said = capsys.readouterr().err
    assert f"{home}/runs/{name} is a link that leads nowhere" in said
    assert said.count("\n") == 1


def test_all_other_verbs_work_beside_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls"]) == 0
    assert main(["status", "good"]) == 0
    assert main(["status"]) == 0
    assert "good" in capsys.readouterr().out
    assert main(["clean", "loop", "away"]) == 0
    assert client.run_names(str(home)) == ["good"]


def test_recover_passes_over_it_and_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs" / "good").rename(home / "elsewhere")
    assert main(["recover"]) == 0
    said = capsys.readouterr()
    assert said.out == "nothing to bring back\n"
    assert all(f"runs/{name} leads nowhere and is passed over" in said.err for name in BROKEN)


def test_a_wait_says_the_time_that_was_asked_for(home: Path) -> None:
    (home / "runs" / "good" / "status.json").write_text('{"state": "running"}')
    folder = RunFolder(home / "runs" / "good")
    with pytest.raises(WaitTimeoutError, match="still running after 30 s"):
        client.wait(folder, 30.0, since=time.monotonic() - 31.0)


def test_a_link_to_a_run_elsewhere_is_a_run(home: Path, tmp_path: Path) -> None:
    (home / "runs" / "good").rename(tmp_path / "moved")
    (home / "runs" / "good").symlink_to(tmp_path / "moved")
    assert client.status(client.find(str(home), "good"))["state"] == "finished"
    with pytest.raises(FolderError, match="leads nowhere"):
        client.find(str(home), "loop")
