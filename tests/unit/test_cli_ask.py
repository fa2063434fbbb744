"""``note`` and ``set`` on hand-made folders: what is refused before anything is asked, what is asked, what is told."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overnight import cli
from overnight.cli import ask
from overnight.folder import Journal, RunFolder, write_json
from overnight.options import BY_NAME, CHANGEABLE
from overnight.processes import boot_id
from overnight.spec import RunSpec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def make(home: Path, state: str = "running", **spec: Any) -> RunFolder:
    """Write the folder of a run that this very process keeps, so that nobody is started for it."""
    folder = RunFolder(home / "runs" / "night")
    folder.create()
    known = RunSpec(name="night", argv=("true",), executable="/bin/true", cwd="/", log="/tmp/x.log", **spec)
    write_json(folder.run_json, {"spec": msgspec.structs.asdict(known)})
    write_json(folder.status_json, {"state": state})
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    me = {"pid": os.getpid(), "start_ticks": int(after_name[19])}
    write_json(folder.shim_json, {"boot_id": boot_id(), "shim": me, "supervisor": me})
    return folder


def requests(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.inbox.iterdir())]


class Taker(threading.Thread):
    """Does what a supervisor does with the first request: says a fact, then removes the file."""

    def __init__(self, folder: RunFolder, answer: Callable[[Journal, dict[str, Any], str], None]) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.answer = answer

    def run(self) -> None:
        journal = Journal(self.folder.journal)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for path in self.folder.inbox.glob("*.json"):
                self.answer(journal, json.loads(path.read_text()), path.name)
                path.unlink()
                journal.close()
                return
            time.sleep(0.005)


def takes(journal: Journal, request: dict[str, Any], _: str) -> None:
    journal.append("set", time.time(), values=request["values"])


# -- note ------------------------------------------------------------------------------------------------------------


def test_a_note_is_asked_for_with_its_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home)
    assert cli.main(["note", "ni", "lr", "looks", "--too", "high"]) == 0
    assert cli.main(["note", "night", "--", "--dashes", "first"]) == 0
    assert [(one["kind"], one["by"], one["text"]) for one in requests(folder)] == [
        ("note", "user", "lr looks --too high"),
        ("note", "user", "--dashes first"),
    ]
    assert capsys.readouterr().out == "night: noted\nnight: noted\n"


@pytest.mark.parametrize(
    "text", ["", "   ", "two\nlines", "a\x1b[31mred", "tab\there", "\u202ereversed", "x" * 1001, "\udcff"]
)
def test_a_note_that_is_no_line_of_text_is_refused(home: Path, text: str) -> None:
    folder = make(home)
    assert cli.main(["note", "night", text]) == 2
    assert requests(folder) == []


def test_a_note_may_be_long_and_in_any_script(home: Path) -> None:
    folder = make(home)
    for text in ("x" * 1000, "学習率 👩\u200d🔬 déjà"):
        assert cli.main(["note", "night", text]) == 0
    assert requests(folder)[1]["text"] == "学習率 👩\u200d🔬 déjà"


def test_a_note_needs_a_name_and_words(home: Path) -> None:
    make(home)
    assert cli.main(["note"]) == cli.main(["note", "night"]) == 2
    assert cli.main(["note", "nosuch", "x"]) == 102


# -- set -------------------------------------------------------------------------------------------------------------


def test_every_changeable_setting_has_its_flag_and_is_a_field(home: Path) -> None:
    make(home)
    for name in CHANGEABLE:
        assert BY_NAME[name].field in RunSpec.__struct_fields__
        assert cli.main(["set", "night", BY_NAME[name].flag, "\0"]) == 2, name


def test_a_change_is_told_once_it_has_been_taken(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, max_hours=8.0, price=2.0, max_cost=9.0, actions={"stall": "stop"})
    taker = Taker(folder, takes)
    taker.start()
    words = "--max-hours 12 --grace 2m --stall 90s --max-cost none --action stall=alert --action spike=note --steps 100"
    assert cli.main(["set", "night", *words.split()]) == 0
    taker.join()
    assert capsys.readouterr().out.splitlines() == [
        "night: max-hours 8 -> 12",
        "night: max-cost 9.00 -> none",
        "night: stall learned from the run -> 1m30s",
        "night: steps none -> 100",
        "night: grace 1m00s -> 2m00s",
        "night: action stall stop -> alert",
        "night: action spike the rule's own -> note",
    ]
    assert ask.in_force(folder).actions == {"stall": "alert", "spike": "note"}
    taker = Taker(folder, takes)
    taker.start()
    assert cli.main(["set", "night", "--max-hours", "12"]) == 0
    assert capsys.readouterr().out == "night: max-hours 12, as before\n"


def test_a_time_of_day_is_asked_for_as_the_next_one(home: Path) -> None:
    folder = make(home)
    taker = Taker(folder, takes)
    taker.start()
    assert cli.main(["set", "night", "--until", "07:30"]) == 0
    taker.join()
    until = ask.in_force(folder).until
    assert until is not None
    assert 0 < until - time.time() <= 25 * 3600
    assert time.strftime("%H:%M", time.localtime(until)) == "07:30"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "nothing is to be changed"),
        ("--max-hours -3", "max-hours"),
        ("--max-hours eight", "max-hours cannot be 'eight' (flag --max-hours): give a number of hours"),
        ("--max-hours soon", "or none"),
        ("--until 2020-01-01T00:00", "has passed already"),
        ("--max-cost 40", "needs a price"),
        ("--restarts none", "restarts cannot be 'none'"),
        ("--grace none", "grace cannot be 'none'"),
        ("--grace 2h", "grace (7200 s) would be longer than grace-max (1800 s)"),
        ("--grace-max 10s", "grace (60 s) would be longer than grace-max (10 s)"),
        ("--action stall", "is not RULE=ACTION"),
        ("--action mine=stop", "there is no rule 'mine'"),
        ("--action stall=explode", "is not RULE=ACTION"),
    ],
)
def test_what_cannot_be_is_refused_and_not_asked(
    home: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(home)
    assert cli.main(["set", "night", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert requests(folder) == []


def test_what_goes_together_is_judged_by_what_is_in_force(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, max_cost=9.0, price=2.0)
    assert cli.main(["set", "night", "--price", "none"]) == 2, "the limit in force needs it"
    Journal(folder.journal).append("set", 0.0, values={"max_cost": None})
    Taker(folder, takes).start()
    assert cli.main(["set", "night", "--price", "none"]) == 0
    assert capsys.readouterr().out == "night: price 2.00/h -> none\n"


def test_a_training_started_by_hand_cannot_be_started_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, watched=True)
    assert cli.main(["set", "night", "--restarts", "2"]) == 2
    assert "was started by hand" in capsys.readouterr().err


def test_nothing_is_set_in_an_ended_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "stopped")
    assert cli.main(["set", "night", "--max-hours", "12"]) == 2
    assert "night has ended (stopped)" in capsys.readouterr().err
    assert requests(folder) == []


def test_a_refusal_of_the_supervisor_is_handed_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home)
    Taker(folder, lambda journal, *_: journal.append("note", 0.0, text="a change was refused: for a reason")).start()
    assert cli.main(["set", "night", "--max-hours", "12"]) == 1
    assert capsys.readouterr().err == "overnight: night was not changed: a change was refused: for a reason\n"


def test_an_older_supervisor_says_that_it_knows_no_such_request(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home)
    said = "the request {} cannot be understood and is dropped: Invalid enum value 'set'"
    Taker(folder, lambda journal, _, name: journal.append("note", 0.0, text=said.format(name))).start()
    assert cli.main(["set", "night", "--max-hours", "12"]) == 1
    assert "cannot be understood and is dropped" in capsys.readouterr().err


def test_a_supervisor_that_takes_nothing_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(home)
    monkeypatch.setattr(ask, "TAKEN_WITHIN_S", 0.2)
    assert cli.main(["set", "night", "--max-hours", "12"]) == 1
    assert "has not taken the change within 0.2 s" in capsys.readouterr().err
    assert len(requests(folder)) == 1, "the next supervisor takes it"
