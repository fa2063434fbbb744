"""What a stop says of its last save: saved and verified, damaged, or none, and then what is lost; and its waiting."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from overnight import cli, client
from overnight.cli import lastsave, notice
from overnight.cli.lastsave import Asked
from overnight.cli.page import status_text
from overnight.folder import Journal, RunFolder, utc, write_json
from overnight.processes import boot_id
from overnight.resumption.known import GONE, UNKNOWN_FORM

NOON = 1_800_000_000.0
ASKED = Asked(at=NOON)


def save(step: int | None, after_s: float, **known: Any) -> dict[str, Any]:
    found = {"step": step, "path": f"/c/{step}", "at": utc(NOON + after_s), "seconds": 2.14, "valid": True}
    return {**found, "healthy": True, "problem": None, "load_failure": None, "finite": True, "attempt": 1, **known}


def seen(*saves: dict[str, Any], good: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    known = {
        **dict.fromkeys(client.FIELDS),
        "name": "n",
        "state": "stopped",
        "cause": "user",
        "step": 312,
        "attempt": 1,
        "attempts": [{"n": 1}],
        "verdicts": [],
        "started_at": utc(NOON - 3600),
        "ended_at": utc(NOON + 9),
        "active_s": 3609.0,
        "saves": list(saves),
        "checkpoint": good,
        "supervisor": {"alive": False},
        "limits": {"price": 2.4},
        "foreign": False,
        "stale": False,
        "unguarded": False,
    }
    return {**known, **fields}


def said(one: dict[str, Any], asked: Asked | None = ASKED) -> str | None:
    return lastsave.judge(one, asked).text


OLD = save(300, -180.0)


def test_a_save_that_came_is_told_with_step_path_and_seconds() -> None:
    final = save(312, 3.0)
    assert said(seen(OLD, final, good=final)) == "saved step 312: /c/312 (verified, 2.1 s)"
    facts = lastsave.judge(seen(OLD, final, good=final), ASKED).facts()
    assert facts["final_save"] == {"step": 312, "path": "/c/312", "seconds": 2.14, "valid": True, "problem": None}
    assert facts["lost"] == {"steps": 0, "seconds": 0.0, "cost": 0.0}


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"valid": None}, "(not checked, 2.1 s)"),
        ({"valid": None, "problem": UNKNOWN_FORM}, "(not of a form that can be checked, 2.1 s)"),
        ({"valid": None, "problem": "no memory is left"}, "(no memory is left, 2.1 s)"),
        ({"seconds": None}, "(verified)"),
    ],
)
def test_what_looking_inside_has_told(known: dict[str, Any], words: str) -> None:
    final = save(312, 3.0, **known)
    assert said(seen(OLD, final, good=final)) == f"saved step 312: /c/312 {words}"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"valid": False, "problem": "its end is missing"}, "is damaged: its end is missing"),
        ({"valid": False, "problem": None}, "is damaged"),
        ({"finite": False, "problem": None}, "holds numbers that are not finite"),
        ({"healthy": False}, "is saved after the trouble began"),
        ({"load_failure": "KeyError: 'w'"}, "could not be loaded: KeyError: 'w'"),
        ({"problem": GONE}, "is not there any more"),
    ],
)
def test_a_bad_one_is_called_so_and_the_newest_good_one_named(known: dict[str, Any], words: str) -> None:
    final = save(312, 3.0, **known)
    found = lastsave.judge(seen(OLD, final, good=OLD), ASKED)
    lost = "12 steps are lost, at most 3m00s, 0.12 of money"
    assert found.text == f"saved step 312: /c/312, but it {words}; the newest good one is step 300: /c/300; {lost}"
    assert found.facts()["lost"] == {"steps": 12, "seconds": 180.0, "cost": pytest.approx(0.12)}
    alone = said(seen(final))
    assert alone == (
        f"saved step 312: /c/312, but it {words}; no good one is known; "
        "312 steps are lost, at most 1h00m, 2.40 of money"
    )


def test_none_came() -> None:
    none = "12 steps since step 300 (/c/300) are lost, at most 3m00s, 0.12 of money"
    assert said(seen(OLD, good=OLD)) == f"no save appeared: {none}"
    assert said(seen(OLD, good=OLD), Asked(at=NOON, save=False, now=True)) == (
        f"killed at once, without a save: {none}"
    )
    assert said(seen(OLD, good=OLD), Asked(at=NOON, save=False)) == (
        f"no save was asked for, and none appeared: {none}"
    )
    assert said(seen(OLD, good=OLD), None) == (
        "nothing was training when it was stopped: 12 steps since step 300 (/c/300) are lost, at most 3m09s, "
        "0.13 of money"
    )
    assert said(seen(OLD, good=OLD, step=301, limits=None)) == (
        "no save appeared: 1 step since step 300 (/c/300) is lost, at most 3m00s"
    )


def test_nothing_was_ever_saved() -> None:
    never = "no save was ever seen (`--checkpoints DIR` says where to look)"
    lost = "312 steps are lost, at most 1h00m, 2.40 of money"
    assert said(seen()) == f"{never}: {lost}"
    assert said(seen(), Asked(at=NOON, now=True, save=False)) == f"killed at once, and {never}: {lost}"
    assert said(seen(step=None)) == never
    bad = save(300, -180.0, valid=False)
    assert said(seen(bad)) == f"no good save is left: {lost}"
    again = seen(attempt=2, attempts=[{"n": 1}, {"n": 2}], active_s=7200.0)
    assert lastsave.judge(again, ASKED).facts()["lost"]["seconds"] == 7200.0, "no attempt has left anything"


def test_known_step_times_tell_what_is_lost() -> None:
    """What passed before the first step, and between attempts, is no work that is lost."""
    known = seen(good=OLD, step_s=0.02)
    assert lastsave.judge(known, ASKED).facts()["lost"] == {
        "steps": 12,
        "seconds": pytest.approx(0.24),
        "cost": pytest.approx(2.4 * 0.24 / 3600),
    }
    assert said(known) == "no save appeared: 12 steps since step 300 (/c/300) are lost, about 0.24s, 0.00016 of money"
    assert (said(seen(step_s=0.02)) or "").endswith("312 steps are lost, about 6.2s, 0.00416 of money")
    short = lastsave.judge(seen(good=OLD, step_s=900.0, active_s=700.0), ASKED).facts()["lost"]
    assert short["seconds"] == 700.0, "never more than it has run"


def test_steps_that_were_to_be_left_out_are_not_lost() -> None:
    resume = {"attempt": 2, "path": "/c/300", "step": 300, "skip": [[291, 302], [301, 304], [310, 400]]}
    found = lastsave.judge(seen(good=OLD, step_s=1.0, resume=resume, step=312), ASKED).facts()["lost"]
    assert (found["steps"], found["seconds"]) == (12 - 4 - 3, 5.0)
    odd = {**resume, "skip": [[5], "x", [None, 3], 7]}
    assert lastsave.judge(seen(good=OLD, resume=odd), ASKED).facts()["lost"]["steps"] == 12  # edited by hand


def test_a_save_of_the_last_step_loses_nothing() -> None:
    last = save(312, -1.0)
    assert said(seen(last, good=last)) == (
        "nothing is lost: no save appeared, and step 312: /c/312 is of the last step (verified)"
    )


def test_what_is_not_known_is_not_made_up() -> None:
    nameless = save(None, -20.0, path="/c/model.pt")
    assert said(seen(nameless, good=nameless)) == (
        "no save appeared: the newest good one is step unknown: /c/model.pt; how much came after it is not known"
    )
    assert lastsave.judge(seen(nameless, good=nameless), ASKED).facts()["lost"] == {
        "steps": None,
        "seconds": None,
        "cost": None,
    }
    late = save(None, 3.0, path="/c/model.pt")
    assert said(seen(late, good=late)) == "saved step unknown: /c/model.pt (verified, 2.1 s)"
    for silent in (seen(saves=None), seen(attempt=None), {**seen(), "saves": "odd"}):
        assert lastsave.judge(silent, ASKED).facts() == {"final_save": None, "lost": None}
        assert said(silent) is None
    assert said(seen(*[7], good=None)) is not None  # type: ignore[list-item]  # edited by hand


def test_a_save_that_was_over_just_before_the_end_may_not_be_of_the_last_step() -> None:
    final = save(310, 0.5)
    assert said(seen(final, good=final)) == (
        "saved step 310: /c/310 (verified, 2.1 s); 2 steps after it are lost, at most 0s, 0.00 of money"
    )


def test_only_the_attempt_that_was_stopped_counts_from_its_own_beginning() -> None:
    old = save(300, -5000.0)
    found = lastsave.judge(seen(old, good=old, attempt=2, started_at=utc(NOON - 60)), ASKED).facts()
    assert found["lost"] == {"steps": 12, "seconds": 60.0, "cost": pytest.approx(0.04)}


def test_a_name_cannot_move_the_cursor() -> None:
    final = save(312, 3.0, path="/c/\x1b[2Jx", valid=False, problem="\x1b[2Jodd")
    text = said(seen(final)) or ""
    assert "\x1b" not in text


# -- the verb --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def me() -> dict[str, Any]:
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {"pid": os.getpid(), "start_ticks": int(after_name[19])}


def make(home: Path, status: dict[str, Any], *, kept: bool = False) -> RunFolder:
    folder = RunFolder(home / "runs" / "r")
    folder.create()
    write_json(folder.run_json, {"spec": {}})
    known = {name: value for name, value in status.items() if name not in ("supervisor", "name")}
    write_json(folder.status_json, known)
    if kept:
        write_json(folder.shim_json, {"boot_id": boot_id(), "supervisor": me(), "shim": me()})
    folder.attempt(1).path.mkdir()
    write_json(folder.attempt(1).stop_json, {"epoch": NOON, "save": True, "now": False})
    return folder


def test_stop_waits_for_the_look_at_the_save(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unchecked, verified = save(312, 3.0, valid=None), save(312, 3.0)
    folder = make(home, seen(unchecked, good=unchecked), kept=True)

    def look() -> None:
        status = seen(verified, good=verified)
        write_json(folder.status_json, {key: value for key, value in status.items() if key != "supervisor"})

    later = threading.Timer(2.6, look)
    later.start()
    assert cli.main(["stop", "r"]) == 0
    later.join()
    out = capsys.readouterr()
    assert out.out.splitlines()[1] == "  saved step 312: /c/312 (verified, 2.1 s)"
    assert out.err.count("verifying the save ...") == 1


def test_a_look_that_goes_on_before_the_end_is_published_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(home, seen(state="stopping"), kept=True)
    journal = Journal(folder.journal)
    journal.append("ended", 0.0, state="stopped")
    journal.close()
    final = save(312, 3.0)
    ended = {key: value for key, value in seen(final, good=final).items() if key != "supervisor"}
    later = threading.Timer(5.0, lambda: write_json(folder.status_json, ended))
    later.start()
    assert cli.main(["stop", "r"]) == 0
    later.join()
    out = capsys.readouterr()
    assert out.err.count("verifying the save ...") == 1
    assert "saved step 312: /c/312 (verified, 2.1 s)" in out.out


def test_nobody_waits_for_a_supervisor_that_is_gone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unchecked = save(312, 3.0, valid=None)
    make(home, seen(unchecked, good=unchecked))
    began = time.monotonic()
    assert cli.main(["stop", "r", "--json"]) == 0
    assert time.monotonic() - began < lastsave.TOLD_AFTER_S
    found = json.loads(capsys.readouterr().out)
    assert (found["final_save"]["step"], found["final_save"]["valid"], found["lost"]["steps"]) == (312, None, 0)


def test_the_wait_has_an_end_and_needs_a_save(home: Path) -> None:
    unchecked, told = save(312, 3.0, valid=None), list[str]()
    folder = make(home, seen(unchecked, good=unchecked), kept=True)
    one = lastsave.await_check(folder, client.status(folder), tell=told.append, most_s=0.2)
    assert one["saves"][-1]["valid"] is None
    assert told == []
    early = save(300, -3.0, valid=None)
    assert not lastsave.pending({**one, "saves": [early]}, ASKED)
    assert not lastsave.pending({**one, "saves": [save(312, 3.0, valid=None, problem="odd")]}, ASKED)


def test_the_end_that_no_status_shows_yet(home: Path) -> None:
    folder = make(home, seen(), kept=True)
    assert not lastsave.closing(folder)
    journal = Journal(folder.journal)
    for kind, closing in (("saved", False), ("ended", True), ("checked", True), ("state", False), ("saved", False)):
        journal.append(kind, 0.0, text="x" * 3000)
        assert lastsave.closing(folder) is closing
    journal.close()


def test_wait_tells_it_too_but_not_of_a_run_that_was_not_stopped(home: Path) -> None:
    final = save(312, 3.0)
    folder = make(home, seen(final, good=final))
    assert "saved step 312" in notice.farewell(folder, client.status(folder))
    folder.attempt(1).stop_json.unlink()
    write_json(folder.status_json, {"state": "failed", "cause": "crash", "saves": [final], "attempt": 1})
    assert "saved step" not in notice.farewell(folder, client.status(folder))


@pytest.mark.parametrize("text", ["{", "[]", '{"epoch": "x"}', '{"epoch": -1}'])
def test_an_edited_order_is_no_error(home: Path, text: str) -> None:
    folder = make(home, seen(OLD, good=OLD))
    folder.attempt(1).stop_json.write_text(text)
    assert notice.farewell(folder, client.status(folder))


# -- the page --------------------------------------------------------------------------------------------------------


def page(**fields: Any) -> str:
    one = {**seen(), "state": "running", "shim": {"pid": 7, "alive": True}, "supervisor": {"pid": 7, "alive": True}}
    return " ".join(status_text({**one, **fields}, now=NOON, colours=False, width=300).split())


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "checkpoint step 300 /c/300 (verified, before any trouble)"),
        ({"valid": None}, "(not checked yet, before any trouble)"),
        ({"valid": None, "problem": UNKNOWN_FORM}, "(not of a form that can be checked, before any trouble)"),
        ({"healthy": None}, "checkpoint step 300 /c/300 (verified)"),
        ({"healthy": False}, "(verified, saved after the trouble began)"),
    ],
)
def test_the_newest_good_save_on_the_page(known: dict[str, Any], words: str) -> None:
    one = save(300, -3.0, **known)
    best = {key: one[key] for key in ("step", "path", "at", "seconds", "valid", "healthy")}
    assert words in page(saves=[one], checkpoint=best)


def test_bad_saves_on_the_page() -> None:
    saves = [save(step, step - 900.0, valid=False, problem=f"it is odd {step}") for step in (100, 200, 300, 400)]
    shown = page(saves=[*saves, save(500, 1.0, problem=GONE), save(600, 2.0)])
    assert "bad saves step 400: damaged: odd 400 (/c/400) step 300: damaged: odd 300 (/c/300) step 200:" in shown
    assert "step 100" not in shown
    assert "step 500" not in shown
    assert "bad saves" not in page(saves=[save(600, 2.0)])


def test_how_an_attempt_went_on_is_on_the_page() -> None:
    resume = {
        "attempt": 3,
        "path": "/c/200",
        "step": 200,
        "skip": [[302, 320]],
        "lost_steps": 120,
        "lost_s": 240.0,
        "lost_cost": 0.17,
        "overlap": {"compared": 10, "equal": 10, "first_difference": None, "text": "10/10 equal"},
    }
    whole = "attempt 3 went on from step 200 (/c/200); 10 of 10 steps equal; 120 steps, 4m00s, 0.17 of money lost"
    assert f"resume {whole}; steps 302-320 left out" in page(resume=resume, rollbacks_used=1)
    assert "rollbacks 1 used" in page(resume=resume, rollbacks_used=1)
    bare = {**dict.fromkeys(resume), "attempt": 2, "skip": []}
    assert "resume attempt 2 began anew log" in page(resume=bare, rollbacks_used=0)
    assert "rollbacks" not in page(resume=bare, rollbacks_used=0)
    alone = {**bare, "lost_steps": 116, "lost_s": 5.8, "overlap": {"compared": 37, "equal": 37, "text": "37/37 equal"}}
    assert "attempt 2 went on by itself, from a save that is not known; 37 of 37 steps equal log" in page(resume=alone)
    anew = {**alone, "overlap": {"compared": 0, "equal": 0, "text": "it began anew at step 1"}}
    assert "attempt 2 began anew; 116 steps, 5.8s lost log" in page(resume=anew)
    assert "steps 302-320, 400-410 left out" in page(resume={**bare, "skip": [[302, 320], [400, 410]]})
    assert "resume" not in page(resume="odd")
