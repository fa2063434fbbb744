"""What the next supervisor makes of a journal: half of it written, edited by hand, or of an attempt long past."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overnight.events import Exit, Request, StopOrder
from overnight.facts import Facts
from overnight.folder import RunFolder
from overnight.keepers import Keepers
from overnight.lifecycle import decide, lost_with_the_machine
from overnight.spec import RunSpec
from overnight.stalls.dumps import KEPT, Dump
from overnight.states import Ended, Plan, RunState
from overnight.stops.orderfile import read_order
from overnight.supervision.attempts import Attempts
from overnight.supervision.standing import Standing
from overnight.supervision.waking import Wake

SPEC = RunSpec(name="r", argv=("true",), executable="/bin/true", cwd="/", log="/nonexistent/log")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "r")
    found.create()
    return found


@pytest.fixture
def wake() -> Iterator[Wake]:
    found = Wake()
    yield found
    found.inotify.close()
    os.close(found.reading)
    os.close(found.writing)


@pytest.fixture
def opened() -> Iterator[list[Facts]]:
    found: list[Facts] = []
    yield found
    for facts in found:
        facts.journal.close()


def write(folder: RunFolder, *facts: dict[str, Any]) -> None:
    """Write the journal of an earlier supervisor."""
    folder.journal.write_text("".join(json.dumps(fact) + "\n" for fact in facts))


def attempt(folder: RunFolder, number: int) -> None:
    """Make the files of an attempt whose command is dead."""
    files = folder.attempt(number)
    files.path.mkdir()
    files.start_json.write_text(json.dumps({"attempt": number, "position": [0, 0]}))
    files.started_json.write_text(json.dumps({"pid": 4_000_000, "start_ticks": 1, "at": 1_700_000_000.0}))


def stands(folder: RunFolder, wake: Wake, opened: list[Facts]) -> tuple[Standing, Facts]:
    """Return where the run stands, as a supervisor that has just come sees it."""
    facts = Facts(folder)
    opened.append(facts)
    return Standing(folder, SPEC, facts, keepers=Keepers(folder, wake), wake=wake), facts


# -- who has asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_fact", "asked"),
    [
        ({"kind": "stop", "by": "user"}, True),
        ({"kind": "note", "by": "user"}, False),
        ({"kind": "set", "by": "user"}, False),
        ({"kind": "stop", "by": "scheduler"}, False),
        ({"kind": "stop", "by": "shutdown"}, False),
    ],
)
def test_only_a_users_stop_is_a_users_stop(
    folder: RunFolder, opened: list[Facts], request_fact: dict[str, Any], *, asked: bool
) -> None:
    write(folder, {"fact": "request", "file": "1-1-x.json", **request_fact})
    facts = Facts(folder)
    opened.append(facts)
    assert facts.user_asked is asked


@pytest.mark.parametrize(
    ("cause", "by", "lost"),
    [
        ("user", "user", False),
        ("user", "scheduler", True),
        ("user", "shutdown", True),
        ("host_rebooted", "shutdown", True),
        ("stall", "rule", True),
        ("nonfinite", "rule", False),
        ("wall_clock", "rule", False),
    ],
)
def test_which_stops_a_reboot_undoes(cause: str, by: str, *, lost: bool) -> None:
    order = StopOrder(cause=cause, save=True, at=0.0, by=by)
    assert lost_with_the_machine(order) is lost
    assert lost_with_the_machine(read_order({"cause": cause, "save": True, "by": by})) is lost


def test_a_shutdown_is_no_users_stop() -> None:
    asked = decide(RunState(state="running", attempt=1), Request(kind="stop", by="shutdown", at=1.0), Plan()).state
    assert asked.order is not None
    assert (asked.order.cause, asked.order.by) == ("host_rebooted", "shutdown")
    over = decide(asked, Ended(exit=Exit(exit_code=0)), Plan(steps=100, last_step=50)).state
    assert (over.state, over.cause) == ("failed", "host_rebooted")
    over = decide(asked, Ended(exit=Exit(exit_code=0)), Plan(steps=100, last_step=100)).state
    assert (over.state, over.cause) == ("finished", "completed")


# -- facts of an attempt long past, and facts that somebody has edited -----------------------------------------------


def test_counters_of_an_earlier_attempt_tell_nothing(folder: RunFolder, wake: Wake, opened: list[Facts]) -> None:
    events = folder.path / "memory.events"
    events.write_text("oom_kill 3\n")
    counters = {"path": str(events), "kills": 2, "host_kills": None}
    write(folder, {"fact": "started", "attempt": 1, "pid": 4_000_000, "memory": counters})
    causes = []
    for number in (1, 2):
        attempt(folder, number)
        standing, facts = stands(folder, wake, opened)
        attempts = Attempts(folder, SPEC, facts, keepers=Keepers(folder, wake), wake=wake, standing=standing)
        found = attempts.finding(Exit(signal="SIGKILL"), None)
        assert found is not None
        causes.append(found.cause)
    assert causes[0].startswith("out_of_memory")
    assert causes[1] == "unknown_kill"


EDITED: dict[str, dict[str, Any]] = {
    "a back-off without its end": {"fact": "backoff", "attempt": 1, "cause": "crash", "text": "", "wait_s": 2.0},
    "a back-off until words": {"fact": "backoff", "attempt": 1, "until_s": "soon"},
    "a clock of words": {"fact": "clock", "elapsed_s": "a while", "uptime_s": "long", "boot_id": "x"},
    "a start without a number": {"fact": "started", "memory": "much"},
    "an end without a number": {"fact": "attempt_ended", "seconds": 3.0},
    "a recovery of no boot": {"fact": "recovered"},
    "a save of words": {"fact": "saved", "seconds": "long", "path": "/x"},
    "changes that are none": {"fact": "set", "values": 5},
    "an end that is none": {"fact": "ended", "state": "asleep"},
}


@pytest.mark.parametrize("name", EDITED)
def test_a_fact_that_was_edited_counts_as_never_written(
    folder: RunFolder, wake: Wake, opened: list[Facts], name: str
) -> None:
    attempt(folder, 1)
    write(folder, {"fact": "started", "attempt": 1, "pid": 4_000_000, "memory": None}, EDITED[name])
    standing, _facts = stands(folder, wake, opened)
    assert standing.state.state == "running"
    assert standing.resume_at is None


# -- dumps -------------------------------------------------------------------------------------------------------------


def test_only_the_newest_dumps_stay(folder: RunFolder) -> None:
    for number in range(1, KEPT + 6):
        (folder.evidence / f"stall-20260101T0000{number:02d}Z-1").mkdir()
    (folder.evidence / "ballast").touch()
    dump = Dump.begin(folder, [], "a test", "/nonexistent/log")
    assert dump.process is not None
    dump.process.kill()
    dump.process.wait()
    left = sorted(path.name for path in folder.evidence.glob("stall-*"))
    assert len(left) == KEPT
    assert dump.path.name in left
    assert left[0] == "stall-20260101T000007Z-1"
    assert (folder.evidence / "ballast").exists()
