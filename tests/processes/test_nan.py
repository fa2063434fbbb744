"""A loss that is no number or far too high ends the run on that very line; odd lines crash nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from looking import PYTHON, Run, Runs, toy, until, whole

pytestmark = pytest.mark.timeout(60)

Start = Callable[..., Run]
FIGURES = ("--params", 124356864, "--tokens-per-step", 32768, "--peak-tflops", 312)
HEALTHY = [f"step: {step}, loss: {4 - step / 100:.4f}, dt: 0.25" for step in range(1, 21)]


def printer(work: Path, lines: list[str]) -> list[str]:
    """Return the command of a script that prints these lines and then waits to be stopped."""
    (work / "lines.txt").write_text("\n".join(lines) + "\n")
    return [PYTHON, "-c", "import time; print(open('lines.txt').read(), end='', flush=True); time.sleep(600)"]


def ended_by_rule(run: Run, rule: str) -> dict[str, Any]:
    """Check how a run ends that its health has ended, and return its status."""
    assert run.wait() == 104
    seen = run.status
    assert (seen["state"], seen["cause"]) == ("stopped", rule)
    (verdict,) = (one for one in seen["verdicts"] if one["severity"] == "critical")
    assert (verdict["rule"], verdict["action"]) == (rule, "terminate")
    assert seen["cause_text"] == verdict["text"]
    assert run.file("attempts/001/stop.json")["save"] is False
    assert not run.left()
    return seen


def test_twenty_healthy_lines_and_a_nan(start: Start, work: Path) -> None:
    """The figures of the issue: 6 N = 746,141,184 FLOPs a token at 131,072 tokens/s over 312 TFLOP/s."""
    lines = [*HEALTHY, "step: 21, loss: nan, dt: 0.25"]
    run = start("night", *printer(work, lines), flags=FIGURES)
    seen = ended_by_rule(run, "nonfinite")
    (verdict,) = seen["verdicts"]
    assert verdict["step"] == 21
    assert seen["step"] == 21
    assert seen["mfu_avg"] == pytest.approx(0.313456, abs=1e-4)
    assert seen["tokens_per_second"] == 131072.0
    assert seen["loss"] == "nan", "a string, so that every JSON reader can read it"
    assert (seen["flops_per_token"], seen["peak_flops"]) == (6 * 124356864, 312e12)
    assert seen["mfu"] == pytest.approx(0.313456, abs=1e-4)
    assert seen["tflops"] == pytest.approx(97.798, abs=1e-2)
    assert seen["loss_avg"] == pytest.approx(3.84), "the mean of what is finite in the last ten, steps 12 to 20"


@pytest.mark.parametrize(("params", "mfu"), [("124e6", 0.312556), ("124,439,808", 0.313665), ("124439808", 0.313665)])
def test_other_parameter_counts(start: Start, work: Path, params: str, mfu: float) -> None:
    flags = ("--params", params.replace(",", ""), "--tokens-per-step", 32768, "--peak-tflops", 312)
    run = start("night", *printer(work, [*HEALTHY, "step: 21, loss: nan, dt: 0.25"]), flags=flags)
    assert ended_by_rule(run, "nonfinite")["mfu_avg"] == pytest.approx(mfu, abs=1e-5)


def test_a_loss_of_25_after_five_healthy_lines(start: Start, work: Path) -> None:
    lines = [*HEALTHY[:5], "step: 6, loss: 25.0, dt: 0.25"]
    run = start("night", *printer(work, lines), flags=FIGURES)
    seen = ended_by_rule(run, "divergence")
    assert seen["verdicts"][0]["step"] == 6


def test_a_loss_of_25_before_five_healthy_lines_only_alerts(start: Start, work: Path) -> None:
    lines = [*HEALTHY[:4], "step: 5, loss: 25.0, dt: 0.25", *HEALTHY[5:]]
    run = start("night", *printer(work, lines), flags=FIGURES)
    until(lambda: run.status["step"] == 20, "step 20")
    seen = run.status
    assert seen["state"] == "running"
    (verdict,) = seen["verdicts"]
    assert (verdict["rule"], verdict["step"], verdict["action"]) == ("divergence", 5, "alert")


def test_a_limit_for_the_loss_that_was_asked_for_is_armed_at_once(start: Start, work: Path) -> None:
    run = start("night", *printer(work, ["step: 1, loss: 9.5, dt: 0.25"]), flags=("--max-loss", 9))
    assert ended_by_rule(run, "divergence")["verdicts"][0]["step"] == 1


def test_without_a_known_scale_a_high_loss_is_no_divergence(start: Start, work: Path) -> None:
    run = start("night", *printer(work, [*HEALTHY[:10], "step: 11, loss: 250.0, dt: 0.25"]))
    until(lambda: run.status["step"] == 11, "step 11")
    assert (run.status["state"], run.status["verdicts"]) == ("running", [])


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: 2026-01-01 10:00:00 INFO step: 5, loss: nan, dt: 0.25",
        "2026-01-01 10:00:00,123 - trainer - INFO - step: 5, loss: NaN, dt: 0.25",
        "[2026-01-01 10:00:00,123][trainer][INFO] - step: 5, loss: nan, dt: 0.25",
        "INFO:trainer:step: 5, loss: nan, dt: 0.25",
        "[default0]:step: 5, loss: nan, dt: 0.25",
        "step: 5, loss: nan, dt: 0.25, lr: 3e-4, grad_norm: 1.2",
        "step: 5, loss: inf, dt: 0.25",
        "step: 5, loss: -inf, dt: 0.25",
        "step: 5, loss: -nan, dt: 0.25",
        "\x1b[32mstep: 5, loss: nan, dt: 0.25\x1b[0m",
        "step: 5, loss: nan, dt: 0.25\r",
    ],
)
def test_whatever_stands_around_it(start: Start, work: Path, line: str) -> None:
    number = re.compile(r"(loss: )-?(nan|NaN|inf)")
    healthy = [number.sub(r"\g<1>3.5", line).replace("step: 5", f"step: {step}") for step in range(1, 5)]
    run = start("night", *printer(work, [*healthy, line]))
    assert ended_by_rule(run, "nonfinite")["verdicts"][0]["step"] == 5


def test_a_nan_on_the_first_line(start: Start, work: Path) -> None:
    run = start("night", *printer(work, ["step: 1, loss: nan, dt: 0.25"]))
    assert ended_by_rule(run, "nonfinite")["verdicts"][0]["step"] == 1


def test_a_nan_in_the_last_line_without_a_newline(runs: Runs) -> None:
    """The script exits 0 right after it: there is nothing left to stop, and the run is no success."""
    text = "print('step: 1, loss: 2, dt: 1\\nstep: 2, loss: nan, dt: 1', end='')"
    assert runs.overnight("run", "--name", "night", "--", PYTHON, "-c", text).returncode == 104
    run = runs.run("night")
    assert run.wait() == 104
    assert [one["step"] for one in run.status["verdicts"]] == [2]


def test_odd_numbers_crash_nothing(start: Start, work: Path) -> None:
    odd = [
        "step: 6, loss: abc, dt: 0.25",
        "step: 7, loss: 3.9, dt: 0",
        "step: 8, loss: 3.9, dt: 1e",
        "step: 9, loss: 3.9, dt: -1",
        "step: 10, loss: , dt: 0.25",
        "step: , loss: 3.9, dt: 0.25",
        "step: 99999999999999999999999999, loss: 3.9, dt: 0.25",
        "step: 9223372036854775808, loss: , dt: 0.25",
        "step: nan, loss: 3.9, dt: nan",
        "nan nan nan",
        "loss: nan is what I was afraid of",
        "step: 12, loss: 3.9, dt: nan",
        "\x00\xff\x00",
    ]
    lines = [*HEALTHY[:5], *odd, *HEALTHY[14:]]
    run = start("night", *printer(work, lines), flags=FIGURES)
    until(lambda: run.status["step"] == 20, "step 20")
    seen = run.status
    assert seen["state"] == "running"
    assert seen["supervisor"]["alive"]
    assert len(run.facts("supervisor")) == 1, "it never had to be started again"
    assert seen["verdicts"] == []
    assert seen["mfu_avg"] == pytest.approx(0.313456, abs=1e-4), "only steps with a time count"


def test_toy_that_turns_nan_is_stopped_within_three_lines(start: Start, work: Path) -> None:
    """D1-01: `--nan-at 25 --dt 0.2`: at most three lines after it, one alert, a healthy checkpoint before it."""
    saves = ("--checkpoints", "saved", "--save-every", 10)
    run = start("night", *toy("--steps", 5000, "--dt", 0.2, "--nan-at", 25, *saves))
    assert run.wait(45) == 104
    seen = run.status
    after = [line for line in run.log.splitlines() if line.startswith(b"step:") and int(line.split()[1][:-1]) > 25]
    assert len(after) <= 3
    assert "nan" in seen["cause_text"].lower()
    assert "25" in seen["cause_text"]
    assert len(run.facts("verdict")) == 1, "said once"
    checkpoint = seen["checkpoint"]
    assert (checkpoint["step"], checkpoint["healthy"]) == (20, True)
    assert whole(work / "saved")[-1] == "checkpoint-000020.txt"


def test_a_checkpoint_of_poisoned_weights_is_not_called_healthy(start: Start) -> None:
    command = toy("--steps", 5000, "--nan-at", 10, "--handle", "int", "--checkpoints", "saved")
    run = start("night", *command)
    assert run.wait() == 104
    seen = run.status
    assert seen["saves"][-1]["step"] >= 10
    assert seen["saves"][-1]["healthy"] is False
    assert seen["checkpoint"] is None, "it is nothing to go on from"


ILLNESSES = [("--nan-at", "nonfinite"), ("--inf-at", "nonfinite"), ("--diverge-at", "divergence")]
SHAPES = [(), ("--ansi",), ("--cr",), ("--bars", 3), ("--rank", 0), ("--two-writes",)]


# Every shape with one illness, so that each illness comes twice, in each run of the tests; all pairs in the long one.
@pytest.mark.parametrize(
    ("shape", "switch", "rule"),
    [
        pytest.param(shape, *illness, marks=[] if (at + also) % 3 == 0 else pytest.mark.long)
        for at, shape in enumerate(SHAPES)
        for also, illness in enumerate(ILLNESSES)
    ],
)
def test_every_illness_in_every_shape(start: Start, switch: str, rule: str, shape: tuple[object, ...]) -> None:
    run = start("night", *toy("--steps", 5000, "--dt", 0.02, switch, 12, *shape), flags=("--vocab-size", 50304))
    assert run.wait() == 104
    seen = run.status
    assert (seen["cause"], seen["verdicts"][0]["rule"], seen["verdicts"][0]["step"]) == (rule, rule, 12)


def test_a_note_goes_on(start: Start, work: Path) -> None:
    flags = ("--action", "nonfinite=note")
    run = start("night", *printer(work, [*HEALTHY[:5], "step: 6, loss: nan, dt: 0.25", *HEALTHY[6:]]), flags=flags)
    until(lambda: run.status["step"] == 20, "step 20")
    assert run.status["state"] == "running"
    assert run.status["verdicts"][0]["action"] == "note"


def test_the_signal_comes_at_once(start: Start) -> None:
    """No figure of time is asserted but that it beats a follower that polls once a second."""
    text = (
        "import signal, time\n"
        "def heard(number, frame):\n    print('heard', time.monotonic() - begun, flush=True); raise SystemExit(0)\n"
        "signal.signal(signal.SIGTERM, heard)\n"
        "for step in range(1, 20):\n    print(f'step: {step}, loss: 2, dt: 0.05', flush=True); time.sleep(0.05)\n"
        "begun = time.monotonic()\n"
        "print('step: 20, loss: nan, dt: 0.05', flush=True)\ntime.sleep(60)\n"
    )
    begun = time.monotonic()
    run = start("night", PYTHON, "-c", text)
    assert run.wait() == 104
    (line,) = (line for line in run.log.splitlines() if line.startswith(b"heard"))
    assert float(line.split()[1]) < 0.5
    assert time.monotonic() - begun < 20


def test_a_nan_of_the_trainer_waits_for_nothing_and_has_its_step_in_the_end(start: Start, work: Path) -> None:
    """A dict is judged on its line; the bar behind it tells the step, in the verdict and in the sentence of the end."""
    lines = []
    for step in range(1, 9):
        loss = "nan" if step == 8 else f"{3 - step / 10:.2f}"
        lines += [
            f"{{'loss': '{loss}', 'grad_norm': '1.0', 'learning_rate': '0.001', 'epoch': '{step / 8:.2f}'}}",
            f"\r {step * 5}%|#         | {step}/20 [00:0{step}<00:20,  1.00it/s]",
        ]
    run = start("night", *printer(work, lines))
    seen = ended_by_rule(run, "nonfinite")
    assert seen["cause_text"] == "loss is NaN at step 8"
    assert seen["verdicts"][0]["step"] == 8
    assert len({(fact["offset"], fact["part"], fact["rule"]) for fact in run.facts("verdict")}) == 1
