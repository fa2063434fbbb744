"""Limits of a whole run as people meet them: time, money and steps, over restarts, and changed while it goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, read, toy, until, whole

from overnight.folder import RunFolder, drop_request
from overnight.settings import resolve

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]
SAVING = ("--handle", "int", "--checkpoints", "saved")

CRASHES_TWICE = """\
import os, sys
words = sys.argv[1:]
if int(os.environ["OVERNIGHT_ATTEMPT"]) < 3:
    words += ["--crash-at", str(12 * int(os.environ["OVERNIGHT_ATTEMPT"]))]
os.execv(words[0], words)
"""


def hours(seconds: float) -> str:
    """Return ``seconds`` as ``--max-hours`` wants them."""
    return f"{seconds / 3600:.8f}"


def backoff(run: Run) -> bool:
    """Say whether the run waits between two attempts, as its files have it."""
    return json.loads(read(run.folder / "status.json") or b"{}").get("state") == "backoff"


def limits_told(run: Run, rule: str) -> list[dict[str, Any]]:
    """Return the verdicts of a limit that say it is near."""
    return [one for one in run.status["verdicts"] if one["rule"] == rule and one["evidence"].get("ahead")]


# -- what counts -------------------------------------------------------------------------------------------------------


def test_time_counts_over_two_crashes_and_ends_with_a_save(start: Start, work: Path) -> None:
    limit_s = 5.0
    command = [sys.executable, "-c", CRASHES_TWICE, *toy("--steps", 5000, "--dt", 0.1, *SAVING)]
    flags = ("--restarts", 5, "--backoff", "1s", "--max-hours", hours(limit_s))
    run = start("night", *command, flags=flags)
    assert run.wait(60) == 105
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "wall_clock", 3)
    assert seen["active_s"] == pytest.approx(limit_s, abs=1.0), "of active time, not after the last restart"
    assert seen["elapsed_s"] > limit_s + 1.5, "the back-off is not active time"
    assert len(whole(work / "saved")) == 1
    assert [one["cause"] for one in seen["attempts"]] == ["crash", "crash", "wall_clock"]
    assert len(limits_told(run, "wall_clock")) == 1


def test_money_ends_it_in_time_and_is_shown(start: Start, runs: Runs) -> None:
    run = start("spends", *toy("--steps", 5000), flags=("--price", "2.42/h", "--max-cost", "0.001"))
    assert run.wait() == 105
    seen = run.status
    bought_s = 0.001 / 2.42 * 3600
    assert (seen["state"], seen["cause"]) == ("stopped", "cost")
    assert bought_s <= seen["elapsed_s"] <= bought_s + 1.5
    assert seen["cost"] == pytest.approx(seen["elapsed_s"] * 2.42 / 3600, abs=1e-5)
    assert seen["cost"] == pytest.approx(0.001, rel=1.0)
    assert "cost" in runs.overnight("status", "spends").stdout


def test_what_it_will_have_cost_at_its_end_is_forecast(start: Start, runs: Runs) -> None:
    run = start("plans", *toy("--steps", 5000, "--dt", 0.1), flags=("--price", "3600/h", "--steps", 5000))
    seen = until(lambda: (one := run.status)["cost_forecast"] and one["step"] > 5 and one, "a forecast")
    assert seen["cost"] == pytest.approx(seen["elapsed_s"], abs=0.01)
    assert seen["cost_forecast"] == pytest.approx(seen["elapsed_s"] + seen["eta_s"], abs=1.0)
    assert 450 < seen["cost_forecast"] < 1500
    assert run.stop("--now").returncode == 0
    seen = run.status
    assert seen["cost_forecast"] is None, "what has ended will not cost more"
    time.sleep(0.5)
    assert run.status["cost"] == seen["cost"]


def test_money_is_spent_in_a_back_off_too(start: Start) -> None:
    """A run that waits long for its next attempt is ended by what the machine costs meanwhile."""
    flags = ("--restarts", 3, "--backoff", "200s", "--price", "3600/h", "--max-cost", "4", "--on-end", "touch l:limit")
    run = start("waits", *toy("--crash-at", 4), flags=flags)
    until(lambda: backoff(run), "the back-off")
    before = run.status["cost"]
    until(lambda: run.status["cost"] > before, "the cost goes on")
    assert run.wait() == 105
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"], seen["backoff_until"]) == ("stopped", "cost", 1, None)
    assert 4.0 <= seen["elapsed_s"] <= 5.5
    assert seen["active_s"] < 2.0
    assert (run.runs.work / "l").exists()
    assert len(limits_told(run, "cost")) == 1


def test_a_time_of_day_ends_it_with_a_save(start: Start, work: Path) -> None:
    ends = datetime.now().astimezone().replace(microsecond=0) + timedelta(seconds=5)
    run = start("clock", *toy("--steps", 5000, "--dt", 0.1, *SAVING), flags=("--until", f"{ends:%Y-%m-%d %H:%M:%S}"))
    assert run.wait() == 105
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "until")
    assert datetime.fromisoformat(seen["limits"]["until"]) == ends
    over = datetime.fromisoformat(seen["ended_at"]) - ends
    assert timedelta(0) <= over < timedelta(seconds=2)
    assert len(whole(work / "saved")) == 1
    assert len(limits_told(run, "until")) == 1


def test_the_last_step_is_the_one_that_was_asked_for(start: Start, work: Path) -> None:
    run = start("counted", *toy("--steps", 5000, "--dt", 0.2, *SAVING), flags=("--max-steps", 20))
    assert run.wait() == 105
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "max_steps")
    (verdict,) = seen["verdicts"]
    assert (verdict["step"], verdict["action"]) == (20, "stop")
    assert b"finishing after step 21 (1/5)" in run.log, "the signal comes within the next step"
    assert len(whole(work / "saved")) == 1


def test_a_stop_for_money_or_the_clock_begins_early_enough_for_a_save(runs: Runs, start: Start, work: Path) -> None:
    """Saves take a second and a half; each limit leaves time for one."""
    saves = ("--save-every", 40, "--save-sec", 1.5)
    limit_s = 12.0  # a lead for a save may be half of it at most
    ends = datetime.now().astimezone().replace(microsecond=0) + timedelta(seconds=limit_s + 1)
    ways = {
        "clock": ("--until", f"{ends:%Y-%m-%d %H:%M:%S}"),
        "money": ("--price", "3600/h", "--max-cost", f"{limit_s:g}"),
    }
    for name, flags in ways.items():
        (work / f"saved-{name}").mkdir()
        command = toy("--steps", 5000, "--handle", "int", "--checkpoints", f"saved-{name}", *saves)
        start(name, *command, flags=(*flags, "--checkpoints", f"saved-{name}"))
    for name in ways:
        run = runs.run(name)
        assert run.wait() == 105
        seen = run.status
        last = [one for one in seen["verdicts"] if not one["evidence"].get("ahead")]
        assert last[0]["evidence"]["save_s"] == pytest.approx(1.5, abs=0.7)
        if name == "clock":
            assert datetime.fromisoformat(seen["ended_at"]) <= ends, "the save was over when the limit came"
        else:
            assert seen["elapsed_s"] <= limit_s
        assert seen["checkpoint"]["step"] == seen["step"]
        assert not run.facts("killed")


def test_people_are_told_ahead_once(runs: Runs, start: Start, work: Path) -> None:
    ends = datetime.now().astimezone() + timedelta(seconds=7)
    ways = {
        "until": ("--until", f"{ends:%Y-%m-%d %H:%M:%S}"),  # first, for it is the only one that passes meanwhile
        "wall_clock": ("--max-hours", hours(6)),
        "cost": ("--price", "3600/h", "--max-cost", "6"),
    }
    for rule, flags in ways.items():
        hook = f"cat >> {rule}.jsonl; echo >> {rule}.jsonl"
        start(rule, *toy("--steps", 5000, "--dt", 0.2), flags=(*flags, "--on-event", hook))
    for rule in ways:
        run = runs.run(rule)
        assert run.wait() == 105
        (ahead,) = limits_told(run, rule)
        assert ahead["action"] == "alert"
        assert "comes in" in ahead["text"]
        told = [json.loads(line) for line in (work / f"{rule}.jsonl").read_text().splitlines() if line]
        near = [one for one in told if one["event"] == "limit_ahead"]
        assert [one["text"] for one in near] == [ahead["text"]]
        assert near[0]["state"] == "running"
        kinds = [one["event"] for one in told]
        assert sorted(kinds) == ["end", "limit_ahead", "verdict"], "and of the limit itself, and of the end"


# -- the next half past seven ------------------------------------------------------------------------------------------


def asked(written: str, now: str, tmp_path: Path) -> str:
    """Return the moment that ``--until`` names when it is given at the local time ``now``."""
    flags = {"until": written, "name": "a"}
    now_s = datetime.fromisoformat(now).timestamp()
    found = resolve(flags, [sys.executable], home=tmp_path, environ=dict(os.environ), cwd=tmp_path, now=now_s)
    assert found.spec.until is not None
    return datetime.fromtimestamp(found.spec.until).astimezone().isoformat()


@pytest.mark.parametrize(
    ("written", "now", "ends"),
    [
        ("07:30", "2026-11-29T23:50:00+01:00", "2026-11-30T07:30:00+01:00"),
        ("07:30", "2026-11-29T07:29:59+01:00", "2026-11-29T07:30:00+01:00"),
        ("07:30", "2026-11-29T07:30:00+01:00", "2026-11-30T07:30:00+01:00"),
        ("00:00", "2026-12-31T23:59:59+01:00", "2027-01-01T00:00:00+01:00"),
        ("07:30", "2026-10-24T23:00:00+02:00", "2026-10-25T07:30:00+01:00"),  # the night has an hour more
        ("07:30", "2026-03-28T23:00:00+01:00", "2026-03-29T07:30:00+02:00"),  # and one less
        ("02:30", "2026-10-24T23:00:00+02:00", "2026-10-25T02:30:00+02:00"),  # the first of two
        ("2026-12-01 07:30:05", "2026-11-29T12:00:00+01:00", "2026-12-01T07:30:05+01:00"),
        ("2026-12-01T07:30:05Z", "2026-11-29T12:00:00+01:00", "2026-12-01T08:30:05+01:00"),
    ],
)
def test_a_time_of_day_is_the_next_one(
    written: str, now: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert asked(written, now, tmp_path) == ends
    finally:
        monkeypatch.undo()
        time.tzset()


# -- changed while it goes on ------------------------------------------------------------------------------------------


def test_a_limit_is_raised_lifted_and_lowered(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.1), flags=("--max-hours", hours(4)), log="step: 2,")
    assert runs.overnight("set", "night", "--max-hours", "1").returncode == 0
    assert run.status["limits"]["max_hours"] == 1.0
    assert runs.overnight("set", "night", "--max-hours", "none").returncode == 0
    assert run.status["limits"]["max_hours"] is None
    until(lambda: run.status["active_s"] > 4.5, "it lives behind its first limit")
    assert run.status["state"] == "running"
    began = time.monotonic()
    assert runs.overnight("set", "night", "--max-hours", hours(3)).returncode == 0
    assert run.wait() == 105
    assert time.monotonic() - began < 8, "at once"
    assert run.status["cause"] == "wall_clock"
    assert [fact["values"]["max_hours"] for fact in run.facts("set")] == [1.0, None, float(hours(3))]


def test_the_page_shows_the_limits_in_force(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000), flags=("--max-hours", "8"), log="step: 2,")
    assert runs.overnight("set", "night", "--max-hours", "12").returncode == 0
    page = runs.overnight("status", "night").stdout
    assert "12h00m of active time (--max-hours)" in page, page
    assert run.status["state"] == "running"


def test_restarts_may_be_allowed_later(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.1, "--crash-at", 30), log="step: 2,")
    assert runs.overnight("set", "night", "--restarts", 1, "--backoff", "0.3s").returncode == 0
    assert run.wait(60) == 106
    assert (run.status["attempt"], run.status["restarts_used"]) == (2, 1)


def test_restarts_that_were_allowed_later_are_made_in_the_runs_own_environment(start: Start, runs: Runs) -> None:
    """All keepers are killed, and who looks at the run next has another environment than its owner."""
    runs.env["OWNER"] = "me"
    run = start("night", *toy("--steps", 5000, "--dt", 0.1), log="step: 2,")
    assert not (run.folder / "run.env").exists()
    assert runs.overnight("set", "night", "--restarts", 1, "--backoff", "0.3s").returncode == 0
    assert (run.folder / "run.env").stat().st_mode & 0o777 == 0o600
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    runs.env["OWNER"] = "you"
    assert run.status["state"] == "running"
    until(lambda: run.status["supervisor"]["alive"], "it is watched again")
    os.kill(run.command, signal.SIGSEGV)
    pid = until(lambda: run.status["attempt"] == 2 and run.status["state"] == "running" and run.status["pid"], "again")
    environ = read(f"/proc/{pid}/environ").split(b"\0")
    assert b"OWNER=me" in environ
    assert b"OVERNIGHT_ATTEMPT=2" in environ
    assert not [word for word in environ if word.startswith(b"OVERNIGHT_ROLE=")]


def test_a_change_outlives_a_killed_supervisor(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.1), flags=("--max-hours", hours(5)), log="step: 2,")
    assert runs.overnight("set", "night", "--max-hours", "none", "--max-steps", 70).returncode == 0
    os.kill(run.pid("supervisor"), signal.SIGKILL)
    assert run.wait(60) == 105
    assert run.status["cause"] == "max_steps"
    assert run.status["active_s"] > 5


def test_a_change_in_the_back_off_counts_there(start: Start, runs: Runs) -> None:
    run = start("waits", *toy("--crash-at", 4), flags=("--restarts", 5, "--backoff", "100s"))
    until(lambda: backoff(run), "the back-off")
    done = runs.overnight("set", "waits", "--price", "3600/h", "--max-cost", "500")
    assert done.returncode == 0, done.stderr
    seen = run.status
    assert (seen["state"], seen["limits"]["max_cost"]) == ("backoff", 500.0)
    assert seen["cost"] > 0
    assert runs.overnight("set", "waits", "--max-cost", "0.1").returncode == 0
    assert run.wait(15) == 105
    assert (run.status["cause"], run.status["attempt"]) == ("cost", 1)


def test_restarts_taken_back_in_the_back_off_end_it_after_the_next_attempt(start: Start, runs: Runs) -> None:
    """The wait was granted already; what is taken back are the attempts after it."""
    run = start("waits", *toy("--crash-at", 4), flags=("--restarts", 5, "--backoff", "4s"))
    until(lambda: backoff(run), "the back-off")
    assert runs.overnight("set", "waits", "--restarts", 0).returncode == 0
    assert run.wait(30) == 100
    assert (run.status["state"], run.status["cause"], run.status["attempt"]) == ("failed", "crash", 2)


REFUSED: list[Sequence[object]] = [
    ("--max-cost", 5),
    ("--max-hours", "soon"),
    ("--until", "2001-01-01 07:30"),
    ("--action", "stall=explode"),
    ("--grace", "10h"),
    (),
]


def test_what_cannot_be_is_refused_and_harms_nothing(start: Start, runs: Runs) -> None:
    run = start("night", *toy("--steps", 5000), log="step: 2,")
    for words in REFUSED:
        done = runs.overnight("set", "night", *words)
        assert done.returncode == 2, (words, done.stderr)
        assert done.stderr.count("\n") <= 2, done.stderr
        assert "Traceback" not in done.stderr
    assert runs.overnight("set", "nobody", "--max-hours", "1").returncode == 102
    assert not run.facts("set")
    # Past the command line: a hand in the inbox. Each is told in one note, and nothing comes of it.
    for values in (
        {"max_cost": 5},
        {"argv": ["rm"]},
        {"max_hours": "soon"},
        {"actions": {"stall": "x"}},
        {"grace_s": []},
    ):
        drop_request(RunFolder(run.folder), "set", by="user", values=values)
    refused = partial(run.facts, "note")
    until(lambda: len([one for one in refused() if "refused" in one["text"]]) == 5, f"notes: {refused()}")
    at = run.status["step"]
    until(lambda: run.status["step"] > at + 5, "it goes on")
    assert not run.facts("set")
    assert run.status["limits"]["max_cost"] is None


def test_an_ended_run_is_not_changed(start: Start, runs: Runs) -> None:
    run = start("over", *toy("--steps", 3))
    assert run.wait() == 0
    done = runs.overnight("set", "over", "--max-hours", 5)
    assert done.returncode == 2
    assert "has ended (finished)" in done.stderr
    assert not run.facts("set")
    assert run.status["state"] == "finished"
