"""``note``, ``set`` and ``wait`` of several, asked of real supervisors."""

from __future__ import annotations

import os
import signal

from looking import Runs, toy, until


def test_a_note_is_in_the_status_and_in_the_journal(runs: Runs) -> None:
    run = runs.start("quiet", *toy("--steps", "100000", "--dt", "0.1"), log="step: 2")
    assert runs.overnight("note", "quiet", "lr", "looks", "high").returncode == 0
    until(lambda: any("lr looks high" in str(note) for note in run.status["notes"]), "the note in the status")
    assert any("lr looks high" in str(fact.get("text")) for fact in run.facts("note"))
    assert "lr looks high" in runs.overnight("status", "quiet").stdout


def test_a_note_for_an_ended_run_is_taken_by_an_adopting_supervisor(runs: Runs) -> None:
    run = runs.start("done", "true")
    assert run.wait() == 0
    until(lambda: not run.status["shim"]["alive"], "its keepers leave")
    assert runs.overnight("note", "done", "kept", "the", "weights").returncode == 0
    until(lambda: any("kept the weights" in str(note) for note in run.status["notes"]), "the note in the status")
    assert (run.status["state"], run.status["cause"]) == ("finished", "completed")
    assert list((run.folder / "inbox").iterdir()) == []


def test_limits_are_changed_while_the_run_goes_on(runs: Runs) -> None:
    flags = ["--max-hours", "8", "--price", "2.5/h", "--max-cost", "40"]
    run = runs.start("quiet", *toy("--steps", "100000", "--dt", "0.1"), flags=flags, log="step: 2")
    done = runs.overnight("set", "quiet", "--max-hours", "12", "--max-cost", "none", "--action", "stall=alert")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "quiet: max-hours 8 -> 12",
        "quiet: max-cost 40.00 -> none",
        "quiet: action stall the rule's own -> alert",
    ]
    limits = until(lambda: run.status["limits"], "limits in the status")
    assert (limits["max_hours"], limits["max_cost"], limits["price"]) == (12.0, None, 2.5)
    assert run.facts("set")[0]["values"] == {"max_hours": 12.0, "max_cost": None, "actions": {"stall": "alert"}}
    assert runs.overnight("set", "quiet", "--max-steps", "3").returncode == 0, "a limit already reached"
    assert run.wait() == 105


def test_a_change_outlives_the_supervisor_that_took_it(runs: Runs) -> None:
    run = runs.start("quiet", *toy("--steps", "100000", "--dt", "0.1"), flags=["--max-hours", "8"], log="step: 2")
    assert runs.overnight("set", "quiet", "--max-hours", "12").returncode == 0
    first = run.pid("supervisor")
    os.kill(first, signal.SIGKILL)
    until(lambda: run.status["supervisor"]["pid"] not in (None, first), "another supervisor")
    assert runs.overnight("set", "quiet", "--max-hours", "9").stdout == "quiet: max-hours 12 -> 9\n"


def test_waiting_for_any_of_the_live_runs(runs: Runs) -> None:
    runs.start("long", *toy("--steps", "100000", "--dt", "0.1"), log="step: 2")
    runs.start("short", *toy("--steps", "30", "--dt", "0.1", "--exit-code", "3", "--exit-at", "20"))
    done = runs.overnight("wait", "--any", "--timeout", "60s", limit_s=80)
    assert done.returncode == 100, done.stderr
    assert done.stdout.startswith("short failed (crash)")
    assert runs.run("long").status["state"] == "running"


def test_a_failed_hook_is_waited_for_and_told(runs: Runs) -> None:
    run = runs.start("quiet", *toy("--steps", "10", "--dt", "0.05"), flags=["--on-end", "sleep 1; exit 7"])
    done = runs.overnight("wait", "quiet", "--timeout", "40s")
    assert done.returncode == 108, done.stdout + done.stderr
    assert "hook failed: exited 7" in done.stdout
    assert run.status["hooks"]["pending"] == 0
    assert "hook failed" in runs.overnight("ls").stdout
