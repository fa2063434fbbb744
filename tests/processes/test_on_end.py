"""``--on-end`` and ``--on-event`` of real runs: the right ones, each exactly once, however and whenever a run ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, toy, until

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]
OUTCOMES = ("success", "failure", "limit", "stopped")
NAMES = "RUN_ID RUN_DIR ROLE EVENT STATE CAUSE TEXT STEP LAST_CHECKPOINT".split()

WRITES = """\
import json, os, sys
told = {"env": {k: v for k, v in os.environ.items() if k.startswith("OVERNIGHT_")}, "in": json.load(sys.stdin)}
with open(sys.argv[1], "a") as stream:
    stream.write(json.dumps(told) + "\\n")
"""


def hook(work: Path, name: str) -> str:
    """Return a command that appends what it is told to ``NAME.jsonl`` in the working folder."""
    (work / "writes.py").write_text(WRITES)
    return f"{sys.executable} -S writes.py {name}.jsonl"


def each(work: Path, name: str) -> list[object]:
    """Return flags with one hook for each outcome, and two for all of them."""
    flags: list[object] = []
    for outcome in OUTCOMES:
        flags += ["--on-end", f"{hook(work, f'{name}-{outcome}')}:{outcome}"]
    return [*flags, "--on-end", f"{hook(work, f'{name}-always')}:always", "--on-end", hook(work, f"{name}-plain")]


def told(work: Path, name: str) -> list[dict[str, Any]]:
    """Return what a hook was told, once for each of its runs."""
    path = work / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ran(work: Path, name: str) -> dict[str, int]:
    """Return how often each hook of a run has run, of those that have."""
    found = {one: len(told(work, f"{name}-{one}")) for one in (*OUTCOMES, "always", "plain")}
    return {one: count for one, count in found.items() if count}


ENDS: dict[str, tuple[list[str], tuple[object, ...], int, str]] = {
    "done": (toy("--steps", 5, "--dt", 0.02), (), 0, "success"),
    "gave-up": (toy("--steps", 50, "--crash-at", 4), ("--restarts", 9, "--backoff", "0.1s"), 106, "failure"),
    "crashed": (toy("--steps", 50, "--crash-at", 4), (), 100, "failure"),
    "nan": (toy("--steps", 500, "--nan-at", 9), (), 104, "failure"),
    "limit": (toy("--steps", 5000), ("--max-steps", 9), 105, "limit"),
    "unknown": (["/bin/sh", "-c", "exit 3"], (), 100, "failure"),
}


@pytest.mark.parametrize("name", ENDS)
def test_each_end_runs_exactly_its_own(start: Start, work: Path, name: str) -> None:
    command, flags, code, right = ENDS[name]
    run = start(name, *command, flags=(*flags, *each(work, name)))
    assert run.wait() == code
    assert ran(work, name) == {right: 1, "always": 1, "plain": 1}
    seen = run.status
    assert seen["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}
    (one,) = told(work, f"{name}-{right}")
    env = {key: one["env"][f"OVERNIGHT_{key}"] for key in NAMES}
    shown = {key: "" if seen[key.lower()] is None else str(seen[key.lower()]) for key in ("STATE", "CAUSE", "STEP")}
    assert env == {
        "RUN_ID": name,
        "RUN_DIR": str(run.folder),
        "ROLE": "hook",
        "EVENT": "end",
        "LAST_CHECKPOINT": "",
        "TEXT": seen["cause_text"],
        **shown,
    }
    payload = one["in"]
    assert (payload["event"], payload["run"], payload["folder"]) == ("end", name, str(run.folder))
    for key in ("state", "cause", "cause_text", "step", "code", "exit_code", "signal", "attempt", "restarts_used"):
        assert payload[key] == seen[key], key
    assert payload["code"] == code


def test_a_stop_by_the_user_runs_its_own_with_the_checkpoint(start: Start, work: Path) -> None:
    switches = ("--steps", 5000, "--handle", "int", "--checkpoints", "saved", "--save-every", 5)
    run = start("asked", *toy(*switches, "--dt", 0.3), flags=each(work, "asked"), log="step: 6,")
    assert run.stop().returncode == 0
    assert run.wait() == 103
    assert ran(work, "asked") == {"stopped": 1, "always": 1, "plain": 1}
    (one,) = told(work, "asked-stopped")
    last = max((work / "saved").iterdir())
    assert one["env"]["OVERNIGHT_LAST_CHECKPOINT"] == str(last)
    assert one["in"]["checkpoint"]["path"] == str(last)
    assert one["env"]["OVERNIGHT_CAUSE"] == "user"


def test_a_stop_in_the_back_off_runs_its_own(start: Start, work: Path) -> None:
    flags = ("--restarts", 3, "--backoff", "100s", *each(work, "waits"))
    run = start("waits", *toy("--crash-at", 3), flags=flags)
    until(lambda: run.status["state"] == "backoff", "the back-off")
    assert ran(work, "waits") == {}, "a run that is started again has not ended"
    assert run.stop("--now").returncode == 0
    assert run.wait() == 103
    assert ran(work, "waits") == {"stopped": 1, "always": 1, "plain": 1}


def test_an_import_that_fails_at_once_is_an_end_too(start: Start, work: Path) -> None:
    """Armed before the first step: what is gone within a tenth of a second still turns the machine off."""
    (work / "train.py").write_text("import no_such_module_anywhere\n")
    run = start("early", sys.executable, "train.py", flags=each(work, "early"))
    assert run.wait() == 100
    assert run.status["cause"] == "import_error"
    assert ran(work, "early") == {"failure": 1, "always": 1, "plain": 1}
    (one,) = told(work, "early-failure")
    assert any("no_such_module_anywhere" in line for line in one["in"]["last_lines"])
    assert one["in"]["active_s"] < 2


def test_a_command_that_cannot_be_executed_is_an_end_too(runs: Runs, work: Path) -> None:
    (work / "broken").write_text("#!/no/such/interpreter\n")
    (work / "broken").chmod(0o755)
    done = runs.overnight("run", "--name", "never", *each(work, "never"), "--", "./broken")
    assert done.returncode == 100, done.stderr + done.stdout
    run = runs.run("never")
    assert run.wait() == 100
    assert ran(work, "never") == {"failure": 1, "always": 1, "plain": 1}


def test_a_hook_that_fails_is_told_everywhere(start: Start, runs: Runs, work: Path) -> None:
    flags = ("--on-end", "echo 'no route to host' >&2; exit 9", "--on-event", hook(work, "events"))
    run = start("done", *toy("--steps", 5), flags=flags)
    done = runs.overnight("wait", "done", "--timeout", "40s")
    assert done.returncode == 108, "a script that turns on this code must not believe that all is well"
    assert "hook failed: exited 9: no route to host" in done.stdout
    seen = run.status
    assert seen["state"] == "finished"
    assert seen["hooks"]["failed"] == 1
    assert "no route to host" in seen["hooks"]["text"]
    assert [one["in"]["event"] for one in told(work, "events")] == ["end", "hook_failed"]
    limited = start("limited", *toy("--steps", 5000), flags=("--max-steps", 3, "--on-end", "exit 9"))
    assert limited.wait() == 105, "how the run ended comes first"
    assert limited.status["hooks"]["failed"] == 1


def test_events_are_told_as_they_come(start: Start, work: Path) -> None:
    flags = ("--on-event", hook(work, "events"), "--restarts", 2, "--backoff", "0.5s", "--action", "nonfinite=alert")
    run = start("night", *toy("--steps", 500, "--nan-at", 3, "--crash-at", 9), flags=flags)
    assert run.wait() == 106
    kinds = [one["in"]["event"] for one in told(work, "events")]
    assert kinds[0] == "verdict"
    assert kinds.count("restart") == 2
    assert kinds[-1] == "end"
    first, again = (next(one["in"] for one in told(work, "events") if one["in"]["event"] == kind) for kind in kinds[:2])
    assert (first["verdict"]["rule"], first["verdict"]["step"], first["state"]) == ("nonfinite", 3, "running")
    assert "crashed at step 9 as asked" in again["text"]
    assert again["state"] == "backoff"
    assert 0.3 < again["wait_s"] < 0.7


def test_two_runs_at_once_do_not_mix(start: Start, runs: Runs, work: Path) -> None:
    for name, switch in (("left", "--steps"), ("right", "--crash-at")):
        start(name, *toy(switch, 20, "--dt", 0.05), flags=each(work, name))
    assert runs.run("left").wait() == 0
    assert runs.run("right").wait() == 100
    # The hooks of the one that ends first wait for the other run, and nobody waits for them.
    until(lambda: all(runs.run(name).status["hooks"]["pending"] == 0 for name in ("left", "right")), "all hooks", 40)
    assert ran(work, "left") == {"success": 1, "always": 1, "plain": 1}
    assert ran(work, "right") == {"failure": 1, "always": 1, "plain": 1}
    for name in ("left", "right"):
        assert {one["env"]["OVERNIGHT_RUN_ID"] for one in told(work, f"{name}-always")} == {name}


# -- a supervisor that is killed around the end ------------------------------------------------------------------------


def exists(pattern: str) -> Callable[[Run], bool]:
    """Return whether a run has a file of this pattern by now."""
    return lambda run: next(iter(run.folder.glob(pattern)), None) is not None


MOMENTS: dict[str, Callable[[Run], bool]] = {
    "the command has ended": exists("attempts/001/exit.json"),
    "the end is in the journal": lambda run: bool(run.facts("ended")),
    "a payload is written": exists("hooks/end-*-1.json"),
    "a runner was started": lambda run: bool(run.facts("hook_started")),
    "a hook is claimed": exists("hooks/end-*.claim"),
    "a hook has ended": exists("hooks/end-*.result.json"),
    "all is told": lambda run: len(run.facts("hook_ended")) == 2,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_exactly_once_whenever_the_supervisor_is_killed(start: Start, work: Path, moment: str) -> None:
    flags = ("--on-end", hook(work, "first"), "--on-end", hook(work, "second"))
    run = start("night", *toy("--steps", 12, "--dt", 0.05), flags=flags)
    supervisor = run.pid("supervisor")
    seen, limit = MOMENTS[moment], time.monotonic() + 30
    while not seen(run):  # no pause: these moments are short
        assert time.monotonic() < limit, moment
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor, signal.SIGKILL)
    assert run.wait(40) == 0
    assert [len(told(work, name)) for name in ("first", "second")] == [1, 1]
    assert run.status["hooks"] == {"pending": 0, "failed": 0, "text": None, "held": None}
    assert len(run.facts("ended")) == 1
    until(lambda: not run.status["supervisor"]["alive"], "the supervisor leaves")
    assert [len(told(work, name)) for name in ("first", "second")] == [1, 1]


def test_all_keepers_killed_at_the_end_and_looked_at_later(start: Start, runs: Runs, work: Path) -> None:
    """Nobody is left to run the hooks; whoever waits for the run has them run, once."""
    run = start("night", *toy("--steps", 12, "--dt", 0.05), flags=("--on-end", hook(work, "first")))
    for role in ("guard", "shim", "supervisor"):
        os.kill(run.pid(role), signal.SIGKILL)
    until(lambda: not [one for one in run.left() if "toy.py" in " ".join(one.words)], "the command ends")
    assert told(work, "first") == []
    code = run.wait(40)
    assert code == 100, "how it ended nobody saw, and how many steps were planned was not said"
    until(lambda: len(told(work, "first")) == 1, "the hook")
    assert runs.overnight("status", "night").returncode == 0
    assert run.wait(10) == code
    assert len(told(work, "first")) == 1
