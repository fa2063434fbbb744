"""How a part of a resume proof is waited for and judged: run folders as keepers leave them, with processes of ours.

No training runs here: what counts is which files say what, and who still lives meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight import processes
from overnight.folder import Journal, write_json
from overnight.resumeproof import trial as trials
from overnight.resumeproof.breaks import Breaks
from overnight.resumeproof.endings import ending_of
from overnight.resumeproof.trial import Asked, LateError, PartError, Trial
from overnight.resumeproof.workcopy import Place, Workplace

PUBLISHED_LATE = {"state": "running", "elapsed_s": 2.0}


@pytest.fixture
def keeper() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that stands for the supervisor."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


def made(tmp_path: Path, keeper: subprocess.Popen[bytes] | None = None, **asked: Any) -> Trial:
    """Return a part that has printed three steps, and whose status says that it is running."""
    place = Place(
        name="p", cwd=str(tmp_path), argv=("true",), environ={}, unset=(), workdir=str(tmp_path), tmp=str(tmp_path),
        allowed=(),
    )  # fmt: skip
    workplace = Workplace(["true", "{workdir}"], cwd=str(tmp_path), environ={})
    part = Trial(
        "unbroken-1", workplace, place, Asked(home=str(tmp_path / "home"), **asked), tell=lambda _: None,
        breaks=Breaks(), goal=3,
    )  # fmt: skip
    folder = part.folder
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    folder.create()
    part.files.path.mkdir(parents=True)
    write_json(folder.status_json, PUBLISHED_LATE)
    write_json(part.files.started_json, {"pid": 1, "start_ticks": 0})
    if keeper is not None:
        known = processes.identify(keeper.pid)
        assert known is not None
        who = {"pid": known.pid, "start_ticks": known.start_ticks}
        write_json(folder.shim_json, {"boot_id": processes.boot_id(), "supervisor": who})
    Path(part.spec.log).write_text("".join(f"step: {step}, loss: {3 - step / 10}\n" for step in (1, 2, 3)))
    return part


def write_end(part: Trial, *, fact: dict[str, Any] | None = None, **how: Any) -> None:
    """Write the exit file, and the journal's word on the end."""
    write_json(part.files.exit_json, {"pid": 1, "exit_code": None, "signal": None, **how, "at": 1.0})
    if fact is not None:
        Journal(part.folder.journal).append("ended", 1.0, **{"cause": None, "text": None, "elapsed_s": 2.5, **fact})


def test_an_end_that_is_not_published_yet_is_read_in_the_journal(
    tmp_path: Path, keeper: subprocess.Popen[bytes]
) -> None:
    part = made(tmp_path, keeper)
    write_end(part, exit_code=0, fact={"state": "finished", "text": "exited 0"})
    assert part.seen(3)
    assert not part.seen(4)
    timer = threading.Timer(0.5, keeper.kill)  # it looks at the last saves meanwhile
    timer.start()
    part.end()
    timer.join()
    assert keeper.poll() is not None
    ran = part.ran()
    part.close()
    assert json.loads(part.folder.status_json.read_text())["state"] == "running"
    assert (ran.state, ran.crashed, ran.seconds, ran.exit_code) == ("finished", False, 2.5, 0)


@pytest.mark.parametrize(
    ("how", "asked", "fact", "expected"),
    [
        ({"exit_code": 0}, False, None, ("finished", None)),
        ({"exit_code": 3}, False, None, ("failed", "exited with code 3")),
        ({"signal": "SIGKILL"}, True, None, ("stopped", "was ended by SIGKILL")),
        ({"exit_code": 1}, False, {"state": "failed", "text": "KeyError: 'w'"}, ("failed", "KeyError: 'w'")),
        ({"exit_code": 0}, False, {"state": "running"}, ("finished", None)),
    ],
)
def test_the_exit_tells_how_it_ended_where_nothing_else_does(
    tmp_path: Path, how: dict[str, Any], asked: bool, fact: dict[str, Any] | None, expected: tuple[str, str | None]
) -> None:
    part = made(tmp_path)
    assert ending_of(part.folder, asked=asked) is None
    write_end(part, fact=fact, **how)
    found = ending_of(part.folder, asked=asked)
    part.close()
    assert found is not None
    assert (found.state, found.cause_text) == expected
    assert (found.exit_code, found.signal) == (how.get("exit_code"), how.get("signal"))


def test_what_nobody_has_stored_is_not_judged(
    tmp_path: Path, keeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ENDED_WITHIN_S", 0.2)
    monkeypatch.setattr(trials, "LEFT_WITHIN_S", 0.1)
    part = made(tmp_path, keeper, grace_s=0.0)
    write_end(part, exit_code=0)
    part.end()
    with pytest.raises(PartError, match="has not stored what it printed last"):
        part.ran()
    part.close()


def test_one_that_is_late_and_does_not_end_is_ended_with_all_its_keepers(
    tmp_path: Path, keeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ENDED_WITHIN_S", 0.2)
    part = made(tmp_path, keeper, grace_s=0.1, timeout_s=0.2)
    with pytest.raises(LateError, match="had come to step 3 only"):
        part.seen(4)
    part.stop(now=True)
    assert keeper.poll() is None
    part.end()
    assert keeper.wait(timeout=10) == -9
    ran = part.ran()
    part.close()
    assert (ran.state, ran.crashed) == ("stopped", False)
    assert "not ended in time" in str(ran.cause_text)


def test_the_keepers_of_a_damaged_part_are_ended_too(
    tmp_path: Path, keeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LEFT_WITHIN_S", 0.2)
    part = made(tmp_path, keeper)
    part._placed = True
    part.folder.status_json.write_text("{")
    part.close()
    assert keeper.wait(timeout=10) == -9
