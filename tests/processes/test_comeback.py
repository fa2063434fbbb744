"""A supervisor that resumes from the right place, with a real trainer: bad saves, failed loads, rollbacks.

The rows of the fault list that it follows stand at the tests: C1-10, C1-12, C3-04, C3-06, C3-09, C3-10, D1-03, D2-01,
E3-03, E3-04.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, Runs, toy, until

pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Run]


def saving(*switches: object, every: int = 10, dt: float = 0.03) -> list[object]:
    """Return the command of a trainer that saves files which can be checked, and goes on from what it is given."""
    form = ("--save-form", "safetensors", "--checkpoints", "ckpt", "--save-every", every)
    return [*toy("--dt", dt, *form, "--resume-env", "--handle", "term", *switches)]


def flags(*more: object, restarts: int = 5) -> tuple[object, ...]:
    """Return flags for restarts without long waits, from the folder of the saves."""
    return ("--restarts", restarts, "--backoff", "0.2", "--checkpoints", "ckpt", *more)


def steps_of(run: Run, attempt: int) -> list[int]:
    """Return the steps that one attempt has printed."""
    order = json.loads((run.folder / f"attempts/{attempt:03d}/start.json").read_bytes())
    after = run.folder / f"attempts/{attempt + 1:03d}/start.json"
    end = json.loads(after.read_bytes())["position"][1] if after.exists() else None
    text = run.log[order["position"][1] : end].decode()
    return [int(one) for one in re.findall(r"step: (\d+)", text)]


def given(run: Run, attempt: int) -> dict[str, Any]:
    """Return what the start request of an attempt sets in the environment."""
    found: dict[str, Any] = json.loads((run.folder / f"attempts/{attempt:03d}/start.json").read_bytes())
    return found["set"]


def test_each_bad_save_is_told_soon_and_the_newest_good_one_is_named(start: Start) -> None:
    """C1-10: all files turn out unreadable only after the training."""
    run = start("unreadable", *saving("--steps", 400, "--save-truncated-from", 20), flags=flags())
    until(lambda: len([one for one in run.facts("checked") if one["valid"] is False]) >= 2, "two bad saves are found")
    seen = run.status
    bad = [one for one in seen["verdicts"] if one["rule"] == "checkpoint"]
    assert [one["action"] for one in bad[:2]] == ["alert", "alert"]
    assert "step 20" in bad[0]["text"]
    assert seen["checkpoint"]["step"] == 10
    assert seen["checkpoint"]["valid"] is True
    marks = {one["step"]: one["valid"] for one in seen["saves"]}
    assert marks.get(20) is False
    saved = {one["step"]: one["epoch"] for one in run.facts("saved") if one["path"]}
    assert bad[0]["step"] is not None
    assert bad[0]["step"] < 100, "long before the end"
    assert len(saved) >= 2
    run.stop()


def test_it_goes_on_from_the_newest_whole_and_finite_one(start: Start) -> None:
    """Acceptance: 10, 20 (truncated), 30 (NaN weights): the restart uses 10."""
    words = saving(
        "--steps", 60, "--save-truncated-from", 20, "--save-nan-from", 30, "--crash-at", 38, "--faults-in", 1
    )
    run = start("worst", *words, flags=flags())
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert resume["step"] == 10
    assert resume["path"].endswith("000010.safetensors")
    assert given(run, 2)["OVERNIGHT_CHECKPOINT"] == resume["path"]
    why = {one["step"]: one["why"] for one in resume["passed_over"]}
    assert set(why) == {20, 30}
    assert "NaN" in why[30] or "finite" in why[30]
    assert resume["lost_steps"] == 27
    assert steps_of(run, 2)[0] == 11
    assert "10" in run.status["resume"]["text"]


def test_one_that_cannot_be_loaded_is_tried_once_and_never_deleted(start: Start) -> None:
    """C1-12: the same bad checkpoint is retried for ever."""
    words = saving("--steps", 60, "--crash-at", 38, "--crash-at-load", "000030", "--faults-in", 2)
    run = start("unloaded", *words, flags=flags())
    assert run.wait() == 0
    resumes = run.facts("resume")
    assert [one["step"] for one in resumes] == [30, 20]
    (failure,) = run.facts("load_failure")
    assert (failure["step"], failure["attempt"]) == (30, 2)
    assert os.path.exists(failure["path"])
    assert "before its first step" in resumes[1]["passed_over"][0]["why"]
    assert steps_of(run, 3)[0] == 21


def test_the_words_and_the_variable_name_the_same_save(start: Start) -> None:
    words = toy("--dt", 0.03, "--steps", 30, "--save-form", "safetensors", "--checkpoints", "ckpt", "--save-every", 10,
                "--crash-at", 25, "--faults-in", 1)  # fmt: skip
    run = start("words", *words, flags=flags("--resume-args", "--resume-from {checkpoint}"))
    assert run.wait() == 0
    order = json.loads((run.folder / "attempts/002/start.json").read_bytes())
    assert order["argv"][-2:] == ["--resume-from", order["set"]["OVERNIGHT_CHECKPOINT"]]
    assert order["set"]["OVERNIGHT_CHECKPOINT"].endswith("000020.safetensors")


def test_without_any_save_it_begins_anew_and_says_so(start: Start) -> None:
    words = toy("--dt", 0.02, "--steps", 20, "--crash-at", 8, "--faults-in", 1)
    run = start("none", *words, flags=flags("--resume-args", "--resume-from {checkpoint}"))
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert resume["path"] is None
    assert "begins anew" in resume["text"]
    assert "--resume-from" not in json.loads((run.folder / "attempts/002/start.json").read_bytes())["argv"]
    assert not [one for one in run.status["verdicts"] if one["rule"] == "resume"], "nothing else was to be expected"


def test_a_spike_is_rolled_back_with_its_steps_left_out(start: Start) -> None:
    """D2-01: a spike corrupts the run; back to before it, with the steps left out."""
    words = saving("--steps", 170, "--spike-at", 95, "--honour-skip", dt=0.01)
    back = ("--action", "spike=rollback", "--rollback-steps", 5, "--resume-args", "--resume-from {checkpoint}")
    run = start("spike", *words, flags=flags(*back, restarts=0))
    assert run.wait() == 0
    (backoff,) = run.facts("backoff")
    assert backoff["rollback"]["rule"] == "spike"
    assert backoff["rollback"]["onset"] in range(94, 97)
    (resume,) = run.facts("resume")
    assert resume["rollback"] == "spike"
    assert resume["step"] in (80, 90)
    first, last = resume["skip"][0]
    assert first <= 95 <= last
    assert given(run, 2)["OVERNIGHT_SKIP_STEPS"] == f"{first}-{last}"
    assert not set(range(first, last + 1)) & set(steps_of(run, 2))
    seen = run.status
    assert (seen["rollbacks_used"], seen["restarts_used"], seen["attempt"]) == (1, 0, 2)
    assert seen["resume"]["lost_steps"] > 0


def test_the_third_spike_ends_it(start: Start) -> None:
    words = saving("--steps", 600, "--spike-at", 95, dt=0.01)  # the script leaves nothing out, so it comes again
    back = ("--action", "spike=rollback", "--rollback-steps", 5, "--resume-args", "--resume-from {checkpoint}")
    run = start("spikes", *words, flags=flags(*back, restarts=3))
    assert run.wait() == 104
    seen = run.status
    assert (seen["state"], seen["cause"], seen["rollbacks_used"], seen["attempt"]) == ("stopped", "spike", 2, 3)
    assert "2 rollbacks used" in seen["cause_text"]
    assert len({one["step"] for one in run.facts("resume")}) == 1


def test_a_nan_goes_back_to_a_healthy_save_and_never_to_a_later_one(start: Start) -> None:
    """D1-03 and the acceptance line: NaN at 25, saves each 10, 2 kept: the last healthy one is 20."""
    words = saving("--steps", 60, "--nan-at", 25, "--keep", 2, "--faults-in", 1)
    back = ("--action", "nonfinite=rollback", "--rollback-steps", 1, "--rollbacks", 1)
    run = start("nan", *words, flags=flags(*back, restarts=0))
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert (resume["step"], resume["rollback"]) == (20, "nonfinite")


def test_saves_made_in_trouble_are_never_gone_on_from(start: Start) -> None:
    """D1-03: with NaN only told and a crash later, the saves in between are passed over, finite or not."""
    words = saving("--steps", 60, "--nan-at", 25, "--crash-at", 45, "--faults-in", 1)
    run = start("poisoned", *words, flags=flags("--action", "nonfinite=alert"))
    assert run.wait() == 0
    (resume,) = run.facts("resume")
    assert resume["step"] == 20
    assert {one["step"] for one in resume["passed_over"]} == {30, 40}
    (sick,) = run.facts("sick")
    assert (sick["attempt"], sick["step"]) == (1, 25)


def test_a_command_that_chooses_itself_is_not_started_from_what_may_be_poisoned(runs: Runs, start: Start) -> None:
    """D1-03: no blind restart: --resume takes the newest file, whatever Overnight says."""
    text = Path(toy()[1]).read_text().replace("OVERNIGHT_CHECKPOINT", "SOMETHING_ELSE")
    (runs.work / "stubborn.py").write_text(text)
    words = [toy()[0], "stubborn.py", *saving("--steps", 60, "--nan-at", 25, "--crash-at", 45, "--resume")[2:]]
    run = start("stubborn", *words, flags=flags("--action", "nonfinite=alert"))
    assert run.wait() == 100
    seen = run.status
    assert (seen["state"], seen["attempt"]) == ("failed", 1)
    assert "{checkpoint}" in seen["cause_text"]


def test_nothing_healthy_before_the_trouble_stops_it(start: Start) -> None:
    words = saving("--steps", 60, "--nan-at", 5)
    run = start("early", *words, flags=flags("--action", "nonfinite=rollback", restarts=3))
    assert run.wait() == 104
    seen = run.status
    assert (seen["state"], seen["cause"], seen["attempt"]) == ("stopped", "nonfinite", 1)
    assert "no healthy save" in seen["cause_text"]


def test_a_rollback_that_is_over_binds_no_later_restart(start: Start) -> None:
    words = saving("--steps", 60, "--nan-at", 15, "--kill-self", "KILL", "--kill-self-at", 48, "--faults-in", 2)
    text = Path(toy()[1]).read_text()
    assert "faults_in" in text
    back = ("--action", "nonfinite=rollback", "--rollback-steps", 1, "--rollbacks", 1)
    run = start("later", *words, "--honour-skip", flags=flags(*back, restarts=3))
    run.wait()
    resumes = run.facts("resume")
    assert (resumes[0]["step"], resumes[0]["rollback"]) == (10, "nonfinite")
    assert len(resumes) == 2, run.status["cause_text"]
    assert (resumes[1]["step"], resumes[1]["rollback"]) == (40, None), "not held below step 15 any more"


def test_what_is_saved_on_the_signal_is_looked_at_without_haste(start: Start) -> None:
    """A stop that takes its time: the supervisor does not turn in circles meanwhile."""
    run = start(
        "slowly", *saving("--steps", 4000, "--save-sec", 3.0, every=5000), flags=flags(restarts=0), log="step: 20,"
    )
    pid = run.status["supervisor"]["pid"]
    before = _ticks(pid)
    asked = run.stop("--no-wait")
    assert asked.returncode == 0
    until(lambda: run.facts("exit"), "it has saved and ended", limit_s=30)
    assert _ticks(pid) - before < 60, "hundredths of a second of a processor, in three seconds"
    assert run.wait() == 103
    assert run.status["saves"][-1]["valid"] is True


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_what_both_attempts_did_is_compared(start: Start) -> None:
    """C3-10: 8 steps beyond the save of 20 are done again: all equal."""
    run = start("equal", *saving("--steps", 40, "--crash-at", 29, "--faults-in", 1), flags=flags())
    assert run.wait() == 0
    (overlap,) = run.facts("overlap")
    assert (overlap["compared"], overlap["equal"], overlap["first_difference"]) == (8, 8, None)
    assert overlap["text"].startswith("8/8 equal")
    assert run.status["resume"]["overlap"]["equal"] == 8
    assert not [one for one in run.status["verdicts"] if one["rule"] == "resume"]


def test_the_first_difference_is_named(start: Start) -> None:
    words = saving("--steps", 40, "--crash-at", 29, "--faults-in", 1, "--overlap-noise", 24)
    run = start("unequal", *words, flags=flags())
    assert run.wait() == 0
    (overlap,) = run.facts("overlap")
    assert (overlap["compared"], overlap["equal"]) == (8, 7)
    assert overlap["first_difference"]["step"] == 24


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        (("--fresh-on-resume",), "resumed from 30 but"),  # C3-09
        (("--jump-on-resume", 0.85), "jump after resume"),  # C3-04
        (("--lr-print", "--lr-jump-on-resume", 2.0), "learning rate"),  # C3-06
    ],
)
def test_a_resume_that_is_none_is_told(start: Start, switch: tuple[object, ...], words: str) -> None:
    run = start("odd", *saving("--steps", 70, "--crash-at", 38, "--faults-in", 1, *switch), flags=flags())
    assert run.wait() == 0
    found = [one for one in run.status["verdicts"] if one["rule"] == "resume"]
    assert found, run.facts("resume")
    assert any(words in one["text"] for one in found), [one["text"] for one in found]
    assert all(one["action"] == "alert" for one in found)
    if "--fresh-on-resume" in switch:
        assert found[0]["step"] == 1, "with the very first line"


def test_marks_and_budgets_outlive_the_supervisor(start: Start) -> None:
    """E3-03: what was used and what is known to be bad stands on the disk."""
    words = saving("--steps", 120, "--crash-at", 38, "--crash-at-load", "000030", "--faults-in", 2, dt=0.06)
    run = start("killed", *words, flags=flags())
    for _ in range(4):  # a fifth within a minute would be followed after half a minute only
        pid = run.status["supervisor"]["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: run.status["supervisor"]["pid"] not in (None, pid), "the next supervisor has come")
    assert run.wait() == 0
    assert [one["step"] for one in run.facts("resume")] == [30, 20]
    assert run.status["restarts_used"] == 2
    assert len(run.facts("load_failure")) == 1
    assert len({(one["attempt"]) for one in run.facts("overlap")}) == len(run.facts("overlap"))


def test_saves_that_are_moved_away_and_back_are_no_new_ones(runs: Runs, start: Start) -> None:
    words = saving("--steps", 70, "--save-every", 20, "--crash-at", 58, "--faults-in", 1, dt=0.05)
    run = start("moved", *words, flags=flags(), log="step: 45,")
    (runs.work / "ckpt").rename(runs.work / "away")
    time.sleep(0.25)
    (runs.work / "away").rename(runs.work / "ckpt")
    assert run.wait() == 0
    told = [(Path(one["path"]).name, one["step"]) for one in run.facts("saved") if one["path"]]
    assert len(told) == len(set(told)), told
    (resume,) = run.facts("resume")
    assert resume["step"] == 40, resume


def test_a_save_that_does_not_fit_is_told_beforehand(start: Start) -> None:
    words = saving("--steps", 300, "--save-sec", 1.0, every=20, dt=0.02)
    run = start("slow", *words, flags=flags("--grace", "2s", "--grace-max", "2s"))
    until(lambda: [one for one in run.status["verdicts"] if one["rule"] == "save_time"], "it is told")
    (found,) = [one for one in run.status["verdicts"] if one["rule"] == "save_time"]
    assert found["action"] == "alert"
    assert "--grace-max" in found["text"]
    run.stop()
