"""A night in which the training is killed again and again: what is left is the curve of one that nobody disturbed.

With the library and its exact resume, one value per step after all rewinds, bit for bit; what was lost is counted by
hand beside it.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_toy import losses
from looking import Run, Runs, until

from overnight.history.views import Views

HERE = Path(__file__).parent
TOY = HERE / "checkpoint_toy.py"
EVERY = 5

Start = Callable[..., Run]


def kept(run: Run) -> dict[int, float]:
    """Return what the views show of the loss: one value per step."""
    found: dict[int, float] = {}
    with Views(run.folder / "metrics.db") as views:
        for one in views.stretches(["loss"]):
            for step, value in list(zip(one.steps.values, one.columns["loss"].values, strict=True))[: one.kept]:
                assert int(step) not in found, "one value per step"
                found[int(step)] = value
    return found


def kill_at(run: Run, attempt: int, step: int) -> None:
    """SIGKILL the training of an attempt as soon as it has printed ``step``."""
    until(lambda: re.search(rf"\bstep: {step}\b", run.log.decode()), f"step {step} is printed", limit_s=60)
    started = run.folder / f"attempts/{attempt:03d}/started.json"
    os.kill(int(json.loads(started.read_bytes())["pid"]), signal.SIGKILL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_killed_at_random_it_is_the_unbroken_curve_bit_for_bit(runs: Runs, start: Start, kills: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    steps, places, at = 30 * (kills + 1), [], 0
    for _ in range(kills):
        at += chance.randint(EVERY + 2, 28)
        places.append(at)
    flags = ("--restarts", kills + 2, "--backoff", "0.05", "--steps", steps, "--price", "3600/h")
    words = (sys.executable, TOY, "out/checkpoints", "--steps", steps, "--every", EVERY, "--pause", 0.02)
    run = start("night", *words, flags=flags)
    for number, place in enumerate(places, 1):
        kill_at(run, number, place)
    assert run.wait(120) == 0, seed

    unbroken = {step: float(value) for step, value in losses(steps).items()}
    assert kept(run) == unbroken, seed  # floats compared as they are

    # By hand: what was printed more often than once was done again.
    printed = [int(one) for one in re.findall(r"\bstep: (\d+)", run.log.decode())]
    report = json.loads(runs.overnight("report", "night", "--json").stdout)
    goodput = report["goodput"]
    assert goodput["redone_steps"] == len(printed) - steps, seed
    assert goodput["productive_steps"] == steps, seed
    resumes = run.facts("resume")
    assert len(resumes) == kills
    ends = {one["attempt"]: one["last_step"] for one in run.facts("attempt_ended")}
    for one in resumes:
        assert one["maker"] == "overnight"
        assert one["lost_steps"] == ends[one["attempt"] - 1] - one["step"], seed
        assert 0 <= one["lost_steps"] <= 3 * EVERY, seed
        assert one["lost_cost"] == pytest.approx(one["lost_s"], abs=1e-3), "3,600 an hour are one a second"
    assert sum(one["lost_steps"] for one in resumes) == len(printed) - steps, seed
    assert len(run.facts("overlap")) == kills, seed
    for one in run.facts("overlap"):
        assert one["equal"] == one["compared"], (seed, one)
    assert not [one for one in run.status["verdicts"] if one["rule"] in ("resume", "checkpoint")], seed
