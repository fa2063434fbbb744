"""What ``stop`` says of the final save of a real run, and what ``run`` says before one that goes on otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, toy, until, whole

pytestmark = pytest.mark.timeout(60)

TRAIN = ("--steps", 5000, "--dt", 0.03, "--checkpoints", "saved", "--save-form", "safetensors")
SAVED = ("--checkpoints", "saved")


def told(run: Run, *words: str) -> str:
    done = run.stop(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def facts(run: Run, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told(run, "--json", *words))
    return found


def saved_once(run: Run) -> dict[str, Any]:
    """Return the newest save once a periodic one was seen."""
    return until(lambda: (run.status.get("saves") or [None])[-1], "a save is seen")


def test_the_final_save_is_verified_and_told(start: Callable[..., Run], work: Path) -> None:
    (work / "saved").mkdir()  # or the beginning of the first save is seen only once its folder is
    run = start("night", *toy(*TRAIN, "--handle", "term", "--save-sec", 0.5), flags=SAVED, log="step: 20,")
    found = facts(run)
    (path,) = (work / "saved").glob("checkpoint-*.safetensors")
    step = found["step"]
    final = found["final_save"]
    assert path.name == f"checkpoint-{step:06d}.safetensors"
    assert (final["step"], final["path"], final["valid"], final["problem"]) == (step, str(path), True, None)
    assert final["seconds"] >= 0.4
    assert found["lost"] == {"steps": 0, "seconds": 0.0, "cost": None}
    again = told(run)
    assert f"saved step {step}: {path} (verified, {final['seconds']:.1f} s)" in again
    assert "saved step" in run.runs.overnight("wait", "night").stdout
    page = run.runs.overnight("status", "night").stdout
    assert "(verified, before any trouble)" in " ".join(page.split())


def test_a_form_that_cannot_be_checked_is_said_to_be_so(start: Callable[..., Run], work: Path) -> None:
    command = toy("--steps", 5000, "--dt", 0.03, "--checkpoints", "saved", "--handle", "term")
    run = start("night", *command, flags=SAVED, log="step: 5,")
    said = told(run)
    (name,) = whole(work / "saved")
    assert f"saved step {run.status['step']}: {work / 'saved' / name} (not of a form that can be checked," in said


@pytest.mark.parametrize("how", ["truncated", "nan"])
def test_a_final_save_that_is_bad_is_called_so(start: Callable[..., Run], how: str) -> None:
    command = toy(*TRAIN, "--handle", "term", "--save-every", 50, f"--save-{how}-from", 51)
    run = start("night", *command, flags=(*SAVED, "--price", "3600/h"), log="step: 50,")
    good = saved_once(run)
    assert good["step"] == 50
    until(lambda: (run.status["checkpoint"] or {}).get("valid"), "the good one is verified")
    found = facts(run)
    final = found["final_save"]
    assert final["step"] == found["step"]
    assert (final["valid"] is False) or how == "nan"
    lost = found["lost"]
    assert lost["steps"] == found["step"] - 50
    assert lost["cost"] == pytest.approx(lost["seconds"])
    said = told(run)
    assert f"saved step {found['step']}: {final['path']}, but it " in said
    assert f"; the newest good one is step 50: {good['path']}; {lost['steps']} steps are lost, about " in said
    page = " ".join(run.runs.overnight("status", "night").stdout.split())
    assert "bad saves" in page
    assert "step 50 " in page.partition("checkpoint")[2]


def test_no_save_appears(start: Callable[..., Run]) -> None:
    command = toy(*TRAIN, "--dt", 0.1, "--handle", "term", "--save-every", 60, "--no-signal-save")
    run = start("night", *command, flags=(*SAVED, "--price", "3600/h"), log="step: 60,")
    good = saved_once(run)  # the next one comes seconds later
    found = facts(run)
    assert found["final_save"] is None
    assert (good["step"], found["checkpoint"]["step"]) == (60, 60)
    lost = found["lost"]
    assert lost["steps"] == found["step"] - 60 > 0
    assert lost["cost"] == pytest.approx(lost["seconds"])
    said = told(run)
    assert f"no save appeared: {lost['steps']} step" in said
    assert f"since step 60 ({good['path']})" in said


@pytest.mark.parametrize("words", [(), ("--now",)])
def test_nothing_was_ever_saved(start: Callable[..., Run], words: tuple[str, ...]) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.03), log="step: 5,")
    said = told(run, *words)
    step = run.status["step"]
    assert f"no save was ever seen (`--checkpoints DIR` says where to look): {step} steps are lost, about " in said
    assert ("killed at once, and" in said) is bool(words)


def test_now_saves_nothing(start: Callable[..., Run]) -> None:
    run = start("night", *toy(*TRAIN, "--handle", "term", "--save-every", 50), flags=SAVED, log="step: 50,")
    saved_once(run)
    said = told(run, "--now")
    assert "killed at once, without a save" in said or "saved step" in said


def test_control_c_in_the_foreground_tells_it(runs: Runs, work: Path) -> None:
    command = toy(*TRAIN, "--handle", "int")
    terminal = runs.on_terminal("run", "--name", "night", "--foreground", "--checkpoints", "saved", "--", *command)
    run = runs.run("night")
    run.wrote("step: 10,")
    terminal.type(b"\x03")
    assert terminal.wait() == 103
    shown = " ".join(terminal.shown.decode().split())
    assert f"saved step {run.status['step']}: {work / 'saved'}/checkpoint-" in shown
    assert "(verified, " in shown


# -- before a start --------------------------------------------------------------------------------------------------


def test_a_changed_schedule_is_named_before_the_start_and_strict_refuses(
    start: Callable[..., Run], runs: Runs, home: Path, work: Path
) -> None:
    command = ("--dt", 0.03, "--checkpoints", "saved", "--handle", "term")
    run = start("first", *toy("--steps", 1000, *command), flags=SAVED, log="step: 5,")
    told(run)
    step = run.status["step"]
    changed = f'changed since run "first" (last at step {step}): --steps 1000 -> 2000; a schedule that depends on it'
    longer = toy("--steps", 2000, *command, "--resume")
    refused = runs.overnight("run", "--name", "second", "--strict", *SAVED, "--", *longer)
    assert refused.returncode == 2
    assert changed in refused.stderr
    assert "strict (flag --strict)" in refused.stderr
    assert not (home / "runs" / "second").exists()
    same = runs.overnight(
        "run", "--name", "same", "--strict", *SAVED, "--", *toy("--steps", 1000, *command, "--resume")
    )
    assert same.returncode == 0, same.stderr
    assert "changed since" not in same.stderr
    told(runs.run("same"))
    fresh = ("--checkpoints", "elsewhere")
    other = runs.overnight("run", "--name", "other", *fresh, "--", *toy("--steps", 2000, *fresh))
    assert "changed since" not in other.stderr
    told(runs.run("other"), "--now")
    again = runs.overnight("run", "--name", "third", *SAVED, "--", *longer)
    assert again.returncode == 0
    assert 'changed since run "same"' in again.stderr
    assert "--steps 1000 -> 2000" in again.stderr
    told(runs.run("third"), "--now")
