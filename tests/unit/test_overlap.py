"""An attempt beside what was before it: fresh starts, jumps, learning rates, and steps that were done twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest

from overnight.resumption.expectation import LossCourse, LrCourse
from overnight.resumption.overlap import Earlier, Noticed, Overlap, OverlapSummary, Resuming, comparable

NAN = math.nan
Values = Mapping[str, float]


def earlier(steps: Mapping[int, Values], *, begins: int | None = None, folds: bool = False, **said: float) -> Earlier:
    """Return what a run had done, from its steps."""
    known = sorted(steps)
    gap = known[1] - known[0] if len(known) > 1 else 1
    return Earlier(
        steps={step: steps[step] for step in known},
        begins=known[0] if begins is None else begins,
        reached=known[-1],
        interval=gap,
        folds=folds,
        begins_epoch=said.get("begins_epoch"),
        reached_epoch=said.get("reached_epoch"),
    )


def go(
    before: Earlier, resuming: Resuming, records: list[tuple[int, Values]]
) -> tuple[list[Noticed], OverlapSummary | None]:
    """Feed records until it is over; return what was noticed and the summary."""
    overlap = Overlap(earlier=before, resuming=resuming)
    found: list[Noticed] = []
    for step, values in records:
        found += overlap.add(step, values)
    summary, last = overlap.finish()
    assert overlap.over()
    return [*found, *last], summary


def noisy(level: float, sigma: float, seed: int = 1) -> Callable[[int], dict[str, float]]:
    """Return a loss by step that is the same whenever it is asked for."""
    return lambda step: {"loss": round(random.Random(f"{seed}/{step}").gauss(level, sigma), 4)}


# -- fresh starts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "first", "since"), [(1, 1, 300), (1, 0, 300), (10, 10, 300), (100, 100, 300), (10, 0, 55)]
)
def test_a_silent_fresh_start_is_told_with_the_very_first_record(every: int, first: int, since: int) -> None:
    steps = {step: {"loss": 2.0} for step in range(first, since + 1, every)}
    overlap = Overlap(earlier=earlier(steps), resuming=Resuming(since=since, saved=since))
    (found,) = overlap.add(first, {"loss": 2.0})
    assert (found.part, found.text) == (0, f"resumed from {since} but the run restarted at {first}")
    assert overlap.over()
    summary, rest = overlap.finish()
    assert summary is not None
    assert (summary.compared, summary.text, rest) == (0, f"it began at step {first}", [])


@pytest.mark.parametrize(
    ("every", "since", "first"), [(1, 300, 301), (1, 300, 300), (10, 300, 310), (100, 250, 300), (10, 305, 310)]
)
def test_a_resume_at_its_checkpoint_is_no_fresh_start(every: int, since: int, first: int) -> None:
    steps = {step: {"loss": 2.0} for step in range(every, since + 1, every)}
    found, _ = go(earlier(steps), Resuming(since=since, saved=since), [(first, {"loss": 2.0})])
    assert found == []


def test_a_save_whose_step_was_seen_some_lines_late_is_no_fresh_start() -> None:
    steps = {step: {"loss": 2.0} for step in range(1, 321)}
    found, summary = go(earlier(steps), Resuming(since=312, saved=312), [(301, {"loss": 2.0}), (302, {"loss": 2.0})])
    assert found == []
    assert summary is not None
    assert summary.text == "2/2 equal"


def test_a_run_that_took_a_far_older_checkpoint_is_told() -> None:
    steps = {step: {"loss": 2.0} for step in range(1, 301)}
    found, _ = go(earlier(steps), Resuming(since=300, saved=300), [(201, {"loss": 2.0})])
    assert [one.text for one in found] == ["resumed from 300 but the run went on at 201"]


def test_without_a_known_checkpoint_the_saves_and_the_first_step_tell() -> None:
    steps = {step: {"loss": 2.0} for step in range(1, 321)}
    found, _ = go(earlier(steps), Resuming(saved=300), [(1, {"loss": 2.0})])
    assert [one.text for one in found] == ["the run had reached 320, with a save at 300, but it restarted at 1"]
    assert go(earlier(steps), Resuming(saved=300), [(301, {"loss": 2.0})])[0] == []
    assert go(earlier(steps), Resuming(saved=None), [(1, {"loss": 2.0})])[0] == []


def test_a_run_that_is_meant_to_begin_anew_is_not_told() -> None:
    steps = {step: {"loss": 2.0, "lr": 1.0} for step in range(1, 321)}
    found, summary = go(earlier(steps), Resuming(resumes=False), [(1, {"loss": 99.0, "lr": 9.0})])
    assert found == []
    assert summary is not None
    assert summary.text == "it began anew at step 1"


def test_steps_that_are_counted_anew_say_nothing() -> None:
    steps = {step: {"loss": 2.0} for step in range(1, 101)}
    found, summary = go(earlier(steps, folds=True), Resuming(since=300, saved=300), [(1, {"loss": 9.0})])
    assert found == []
    assert summary is not None
    assert "counted anew" in summary.text


def test_an_epoch_that_goes_on_makes_a_low_step_no_fresh_start() -> None:
    steps = {step: {"loss": 2.0} for step in range(1, 301)}
    before = earlier(steps, begins_epoch=1.0, reached_epoch=1.0)
    assert go(before, Resuming(since=300, saved=300), [(1, {"loss": 2.0, "epoch": 2.0})])[0] == []
    (found,) = go(before, Resuming(since=300, saved=300), [(1, {"loss": 2.0, "epoch": 1.0})])[0]
    assert found.part == 0


def test_nothing_known_says_nothing() -> None:
    found, summary = go(Earlier(), Resuming(since=None, saved=None), [(5, {"loss": 1.0}), (6, {"loss": 900.0})])
    assert found == []
    assert summary is not None
    assert (summary.compared, summary.text) == (0, "no step was done by both")
    assert Overlap(earlier=Earlier(), resuming=Resuming()).finish() == (None, [])


# -- the same step twice ---------------------------------------------------------------------------------------------


def test_ten_of_ten_equal_and_one_that_differs() -> None:
    loss = noisy(2.3, 0.05)
    before = earlier({step: loss(step) for step in range(1, 211)})
    records = [(step, loss(step)) for step in range(201, 240)]
    found, summary = go(before, Resuming(since=200, saved=200), records)
    assert found == []
    assert summary == OverlapSummary(compared=10, equal=10, first_difference=None, text="10/10 equal")

    was = loss(207)["loss"]
    records[6] = (207, {"loss": was + 0.04})
    found, summary = go(before, Resuming(since=200, saved=200), records)
    assert found == []  # within the noise
    assert summary is not None
    assert summary.first_difference == {"step": 207, "metric": "loss", "before": was, "after": was + 0.04}
    assert summary.text == f"9/10, first difference 207: loss {was:.6g} -> {was + 0.04:.6g}"

    records[6] = (207, {"loss": was + 2.0})
    found, summary = go(before, Resuming(since=200, saved=200), records)
    assert [one.part for one in found] == [3]
    assert found[0].text.startswith(f"step 207 done again: loss {was:.6g} -> {was + 2:.6g} (")


def test_all_metrics_count_but_times_and_rates() -> None:
    same = {"loss": 1.0, "grad_norm": NAN, "acc": 0.5}
    before = earlier({step: {**same, "dt_s": 0.1, "tokens_per_s": 9.0, "gpu_mem": 3.0} for step in range(1, 11)})
    again = {**same, "dt_s": 7.0, "tokens_per_s": 1.0, "gpu_mem": 1.0, "new": 4.0}
    _, summary = go(before, Resuming(since=5, saved=5), [(step, again) for step in range(6, 11)])
    assert summary is not None
    assert summary.text == "5/5 equal"
    _, summary = go(before, Resuming(since=5, saved=5), [(step, {**again, "acc": 0.25}) for step in range(6, 11)])
    assert summary is not None
    assert summary.text == "0/5, first difference 6: acc 0.5 -> 0.25"


def test_values_of_a_step_may_come_in_several_records_and_the_last_counts() -> None:
    before = earlier({step: {"loss": float(step), "lr": 1.0} for step in range(1, 11)})
    records: list[tuple[int, Values]] = []
    for step in range(8, 11):
        records += [(step, {"loss": 0.0}), (step, {"loss": float(step)}), (step, {"lr": 1.0})]
    _, summary = go(before, Resuming(since=7, saved=7), records)
    assert summary is not None
    assert summary.text == "3/3 equal"


def test_digits_are_added_until_two_values_differ() -> None:
    before = earlier({1: {"loss": 1.0}, 2: {"loss": 2.000000001}})
    _, summary = go(before, Resuming(since=1, saved=1), [(2, {"loss": 2.000000002})])
    assert summary is not None
    assert summary.text == "0/1, first difference 2: loss 2.000000001 -> 2.000000002"


def test_steps_whose_data_are_left_out_are_not_compared() -> None:
    before = earlier({step: {"loss": 2.0} for step in range(1, 301)})
    records = [(step, {"loss": 2.0 if step < 250 else 2.1}) for step in range(201, 301)]
    found, summary = go(before, Resuming(since=200, saved=200, skip_from=250), records)
    assert found == []
    assert summary is not None
    assert summary.text == "49/49 equal"


def test_a_step_that_falls_again_ends_it() -> None:
    before = earlier({step: {"loss": 2.0} for step in range(1, 301)})
    overlap = Overlap(earlier=before, resuming=Resuming(since=200, saved=200))
    for step in (201, 202, 203):
        overlap.add(step, {"loss": 2.0})
    overlap.add(100, {"loss": 2.0})
    assert overlap.over()
    summary, _ = overlap.finish()
    assert summary is not None
    assert summary.text == "3/3 equal"


def test_losses_of_the_same_steps_that_stay_far_apart_are_told_once() -> None:
    loss = noisy(2.0, 0.02)
    before = earlier({step: loss(step) for step in range(1, 251)})
    lower = [(step, {"loss": loss(step)["loss"] - 0.5}) for step in range(201, 251)]
    found, summary = go(before, Resuming(since=200, saved=200), lower)
    assert [one.part for one in found] == [3]
    assert summary is not None
    assert (summary.compared, summary.equal) == (50, 0)


def test_other_data_of_the_same_kind_are_within_the_noise() -> None:
    loss, other = noisy(2.0, 0.05), noisy(2.0, 0.05, seed=2)
    before = earlier({step: loss(step) for step in range(1, 251)})
    found, summary = go(before, Resuming(since=200, saved=200), [(step, other(step)) for step in range(201, 280)])
    assert found == []
    assert summary is not None
    assert summary.equal < summary.compared == 50


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *(
            (name, True)
            for name in "loss lr grad_norm acc learning_rate val/ppl epoch tokens dropout_rate momentum".split()
        ),
        *(
            (name, False)
            for name in "dt_s mfu time step_time ms tok/s tokens_per_sec gpu_mem eta max_memory_GB".split()
        ),
        *(
            (name, False)
            for name in ["samples/second", "throughput", "elapsed", "it/s", "stepTime", "wall clock", "TFLOPs"]
        ),
    ],
)
def test_which_metrics_are_the_same_when_a_step_is_done_again(name: str, wanted: bool) -> None:
    assert comparable(name) is wanted


# -- jumps of the loss -----------------------------------------------------------------------------------------------


def test_a_jump_after_the_resume_is_told_once_with_both_values() -> None:
    loss = noisy(2.1, 0.06)
    before = earlier({step: loss(step) for step in range(1, 201)})
    records = [(step, {"loss": loss(step)["loss"] + 0.85}) for step in range(201, 240)]
    found, _ = go(before, Resuming(since=200, saved=200), records)
    (jump,) = found
    assert jump.part == 1
    assert jump.step <= 205
    assert jump.text.startswith("jump after resume: 2.")
    assert jump.text.endswith(" sigma)")
    assert jump.evidence["before"] == pytest.approx(2.1, abs=0.05)
    assert jump.evidence["after"] == pytest.approx(2.95, abs=0.1)
    late = [(step, loss(step)) for step in range(201, 230)] + records[29:]
    assert go(before, Resuming(since=200, saved=200), late)[0] == []  # that is another rule's


def test_too_few_losses_before_say_nothing() -> None:
    before = earlier({step: {"loss": 2.0} for step in range(1, 20)})
    assert go(before, Resuming(since=19, saved=19), [(20, {"loss": 90.0})])[0] == []


def test_losses_far_back_say_nothing_of_the_next() -> None:
    before = earlier({step: {"loss": 2.0 + step % 3 / 100} for step in range(1, 101)})
    assert go(before, Resuming(since=300, saved=300), [(301, {"loss": 9.0})])[0] == []
    assert [one.part for one in go(before, Resuming(since=100, saved=100), [(101, {"loss": 9.0})])[0]] == [1]


def test_what_is_no_number_is_no_jump() -> None:
    course = LossCourse([2.0 + index % 5 / 50 for index in range(100)])
    assert course.add(NAN) is None
    assert course.add(math.inf) is None
    assert course.add(5.0) is not None


TRENDS: dict[str, Callable[[int], float]] = {
    "flat": lambda _: 2.0,
    "power": lambda step: 2.0 + 6.0 * (step + 1) ** -0.3,
    "steep": lambda step: 0.7 + 3.0 * math.exp(-step / 40),
    "waves": lambda step: 2.0 + 0.3 * math.sin(step / 8),
    "epochs": lambda step: 2.0 - 0.2 * (step // 70),
}


def resumed(trend: str, dice: random.Random, jump: float) -> list[int]:
    """Return the parts found on a resume of a noisy training at a random place."""
    sigma, count, every = dice.choice([0.004, 0.05, 0.15]), dice.choice([40, 100, 250, 500]), dice.choice([1, 10, 100])
    shape, heavy = TRENDS[trend], dice.random() < 0.5

    def loss(step: int) -> dict[str, float]:
        noise = dice.gauss(0, sigma)
        return {
            "loss": round(shape(step) + (noise / math.sqrt(dice.gammavariate(1.5, 1) / 1.5) if heavy else noise), 4)
        }

    steps = {(index + 1) * every: loss(index) for index in range(count)}
    records = [
        ((index + 1) * every, {"loss": loss(index)["loss"] + jump * max(1.0, sigma / 0.1)})
        for index in range(count, count + 22)
    ]
    found, _ = go(earlier(steps), Resuming(since=count * every, saved=count * every), records)
    return [one.part for one in found]


@pytest.mark.parametrize("trend", TRENDS)
def test_clean_resumes_alarm_nobody(trend: str) -> None:
    alarms = sum(bool(resumed(trend, random.Random(f"{trend}/{seed}"), 0.0)) for seed in range(200))
    assert alarms <= 2


@pytest.mark.parametrize("trend", ["flat", "power", "epochs"])
def test_a_visible_jump_is_found(trend: str) -> None:
    found = [resumed(trend, random.Random(f"{trend}/{seed}"), 1.5) for seed in range(100)]
    assert sum(parts == [1] for parts in found) >= 85


# -- learning rates --------------------------------------------------------------------------------------------------


def cosine(step: int) -> float:
    """Return a learning rate with a warm-up of 100 of 1,000 steps."""
    return 3e-4 * min(1.0, step / 100) * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / 1000))))


SCHEDULES: dict[str, Callable[[int], float]] = {
    "constant": lambda _: 3e-4,
    "cosine": cosine,
    "steps": lambda step: 0.1 * 0.1 ** (step // 50),
    "triangle": lambda step: 1e-3 * (0.1 + abs(step % 40 / 40 * 2 - 1)),
    "restarts": lambda step: 1e-3 * (1.01 + math.cos(math.pi * (step % 60) / 60)),
    "few digits": lambda step: round(1e-3 * step / 700, 4),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("since", [100, 150, 179, 180, 199, 200, 239, 240, 300, 470])
@pytest.mark.parametrize("more", [0, 5])
def test_a_schedule_that_goes_on_is_not_told(schedule: str, since: int, more: int) -> None:
    rate = SCHEDULES[schedule]
    before = earlier({step: {"lr": rate(step)} for step in range(1, since + more + 1)})
    records = [(step, {"lr": rate(step)}) for step in range(since + 1, since + 30)]
    assert go(before, Resuming(since=since, saved=since), records)[0] == []


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize(
    ("wrong", "since"),
    [(lambda step: cosine(2 * step), 300), (lambda step: cosine(step - 300), 300), (lambda _: 3e-4, 700)],
)
def test_a_doubled_position_a_second_warm_up_and_a_lost_schedule_are_told(
    wrong: Callable[[int], float], since: int, more: int
) -> None:
    before = earlier({step: {"lr": cosine(step)} for step in range(1, since + more + 1)})
    records = [(step, {"lr": wrong(step)}) for step in range(since + 1, since + 30)]
    (found,) = go(before, Resuming(since=since, saved=since), records)[0]
    assert (found.part, found.step) == (2, since + 1)
    assert found.evidence["same_step"] is (more > 0)
    assert found.evidence["after"] == wrong(since + 1)
    assert found.evidence["before"] == pytest.approx(cosine(since + 1), rel=0.02)
    how = "it was" if more else "was to be expected"
    assert f"learning rate after resume: {wrong(since + 1):.6g} at step {since + 1}; " in found.text
    assert how in found.text


def test_a_rate_in_steps_that_moves_on_after_its_fall_is_told() -> None:
    course = LrCourse(range(1, 31), [0.1] * 30)
    assert course.add(31, 0.01) is None
    assert course.add(32, 0.02) == 0.1
    steady = LrCourse(range(1, 31), [0.1] * 30)
    assert [steady.add(step, 0.01) for step in (31, 32, 33)] == [None, None, None]
    assert LrCourse(range(1, 31), [0.1] * 30).add(31, 0.057) == 0.1
    assert LrCourse(range(1, 31), [1e-4] * 30).add(31, 2e-4) == 1e-4
    assert LrCourse([1], [0.1]).add(2, 0.7) is None
