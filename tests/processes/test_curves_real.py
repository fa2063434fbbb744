"""Loss curves that go wrong in real runs: told or ended as their rules ask, and healthy ones left alone.

Where each rule draws its line is tested with numbers elsewhere; here it is what becomes of the run.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import Run, read, until

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
TELL = "cat >> told.jsonl"

CURVE = """\
import json, os, signal, sys, time
from pathlib import Path

def asked(number, frame):
    attempt = os.environ["OVERNIGHT_ATTEMPT"].zfill(3)
    order = json.loads(Path(os.environ["OVERNIGHT_RUN_DIR"], "attempts", attempt, "stop.json").read_text())
    print("asked to save:", order["save"], flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, asked)
for step, loss in enumerate(json.loads(Path("curve.json").read_text()), 1):
    print(f"step: {step}, loss: {loss:.4f}, dt: 0.005", flush=True)
    time.sleep(0.005)
"""


def usual(count: int, level: float = 3.0) -> list[float]:
    """Return losses that vary a little."""
    return [level + (step * 7919 % 100) / 1000 for step in range(count)]


@pytest.fixture
def train(start: Start, work: Path) -> Callable[..., Run]:
    """Return ``train(losses, *flags)``: a run that prints one loss after the other."""
    (work / "curve.py").write_text(CURVE)

    def begin(losses: list[float], *flags: object) -> Run:
        (work / "curve.json").write_text(json.dumps(losses))
        return start("night", sys.executable, "curve.py", flags=("--on-event", TELL, *flags))

    return begin


def told(work: Path) -> list[dict[str, Any]]:
    """Return the verdicts that a person was told of."""
    found = [json.loads(line) for line in read(work / "told.jsonl").splitlines()]
    return [one["verdict"] for one in found if one["event"] == "verdict"]


def rules(run: Run) -> list[tuple[str, str, int]]:
    """Return what was found: rule, action, step."""
    return [(one["rule"], one["action"], one["step"]) for one in run.facts("verdict")]


def test_a_spike_is_told_once_and_the_run_goes_on(train: Callable[..., Run], work: Path) -> None:
    run = train(usual(100) + [9.0] * 7 + usual(60), "--vocab-size", 50257)
    assert run.wait() == 0
    assert rules(run) == [("spike", "alert", 105), ("spike", "note", 115)]
    assert run.status["cause"] == "completed"
    until(lambda: len(told(work)) == 1, "the hook")
    assert told(work)[0]["rule"] == "spike"


def test_one_odd_value_is_no_spike(train: Callable[..., Run]) -> None:
    run = train([*usual(100), 9.0, *usual(40), 9.0, 9.0, *usual(40)])
    assert run.wait() == 0
    assert rules(run) == []


def test_a_collapse_ends_the_run_with_a_save(train: Callable[..., Run], work: Path) -> None:
    """Back at ln V, where a model guesses: the weights are asked for, for somebody may want to look at them."""
    run = train(usual(100) + [math.log(50257)] * 3000, "--vocab-size", 50257)
    assert run.wait() == 104
    assert (run.status["state"], run.status["cause"]) == ("stopped", "collapse")
    assert [one for one in rules(run) if one[0] == "collapse"] == [("collapse", "stop", 120)]
    assert b"asked to save: True" in run.log
    until(lambda: [one for one in told(work) if one["rule"] == "collapse"], "the hook")


def test_a_start_at_the_loss_of_guessing_is_no_collapse(train: Callable[..., Run]) -> None:
    falling = [math.log(50257) * (1 - step / 400) for step in range(200)]
    run = train([math.log(50257)] * 100 + falling, "--vocab-size", 50257)
    assert run.wait() == 0
    assert rules(run) == []
