"""``--max-hours``: the run ends at its limit, with its save, and everything ends with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from looking import Run, alive, spawned, toy, until, whole

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
LIMIT_S = 12.0
"""Room for three saves of two seconds; a lead for one more (5 s) may be half of it at most."""


def hours(seconds: float) -> str:
    """Return ``seconds`` as the flag wants them."""
    return f"{seconds / 3600:.8f}"


def limited(run: Run) -> dict[str, object]:
    """Check how a run ends at its limit and return the evidence of the verdict."""
    assert run.wait(45) == 105
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", "wall_clock")
    *ahead, verdict = (one for one in seen["verdicts"] if one["rule"] == "wall_clock")
    assert verdict["action"] == "stop"
    assert [one["action"] for one in ahead] == ["alert"], "a person is told ahead, once"
    assert ahead[0]["evidence"]["ahead"] is True
    assert not run.left()
    evidence = verdict["evidence"]
    assert isinstance(evidence, dict)
    return evidence


def test_a_run_ends_at_its_limit_with_a_save(start: Start, work: Path) -> None:
    command = toy("--steps", 5000, "--handle", "int", "--checkpoints", "saved")
    run = start("night", *command, flags=("--max-hours", hours(4)))
    evidence = limited(run)
    assert 4.0 <= float(str(evidence["active_s"])) < 4.5
    assert evidence["save_s"] is None, "no save was seen: there is nothing to begin earlier for"
    assert len(whole(work / "saved")) == 1
    assert run.file("attempts/001/stop.json")["save"] is True


@pytest.mark.parametrize(
    "how",
    # A dozen seconds for each: one in each run of the tests, both in the long one.
    ["--save-sec", pytest.param("--save-silent-sec", marks=pytest.mark.long)],
)
def test_it_begins_early_enough_for_the_save_it_has_measured(start: Start, work: Path, how: str) -> None:
    """Saves of two seconds (as a growing file, or as a silence before it): the last one is over at the limit."""
    command = toy("--steps", 5000, "--handle", "int", "--checkpoints", "saved", "--save-every", 25, how, 2)
    run = start("night", *command, flags=("--max-hours", hours(LIMIT_S)))
    evidence = limited(run)
    assert float(str(evidence["save_s"])) == pytest.approx(2.0, abs=0.7)
    assert float(str(evidence["active_s"])) < LIMIT_S - 2.0
    (ended,) = run.facts("attempt_ended")
    assert ended["seconds"] <= LIMIT_S, "the save was over when the limit came"
    last = int(whole(work / "saved")[-1][11:17])
    assert run.status["checkpoint"]["step"] == last
    assert last == run.status["step"], "the checkpoint is that of the last step"
    assert not run.facts("killed")


def test_everything_ends_with_it(start: Start) -> None:
    """E1-09: a limit, four children and all of them deaf: nothing alive at the limit + grace + 5 s."""
    limit_s = 4
    command = toy("--steps", 5000, "--spawn", 4, "--ignore-int", "--ignore-term")
    run = start("night", *command, flags=("--max-hours", hours(limit_s), "--grace", "3s"), log="step: 3,")
    children = spawned(run.log)
    command_pid = run.command
    assert len(children) == 4
    assert all(map(alive, children))
    until(lambda: not any(map(alive, [command_pid, *children])), "nothing alive", limit_s + 3 + 5)
    limited(run)
    (ended,) = run.facts("attempt_ended")
    assert limit_s <= ended["seconds"] <= limit_s + 3 + 5


def test_a_limit_may_only_alert(start: Start) -> None:
    flags = ("--max-hours", hours(1.5), "--action", "wall_clock=alert")
    run = start("night", *toy("--steps", 5000), flags=flags, log="step: 3,")
    until(lambda: len(run.status["verdicts"]) == 2, "the word ahead and the verdict")
    at = run.status["step"]
    until(lambda: run.status["step"] > at + 5, "it goes on")
    assert run.status["state"] == "running"
    assert [one["part"] for one in run.facts("verdict")] == [1, 0], "said once each"


def test_a_run_that_ends_before_its_limit_is_not_touched(start: Start) -> None:
    run = start("night", *toy("--steps", 20), flags=("--max-hours", hours(30)))
    assert run.wait() == 0
    assert run.status["verdicts"] == []
