"""The judgement of resumed runs: real trainings with one part left out each, and made series with every oddity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from resume_trainings import FAULTS, NAMED, Case, Recipe, case, course

from overnight.resumeproof.diagnosis import judge
from overnight.resumeproof.vocabulary import (
    held_by,
    holdings,
    is_of_data,
    is_rate,
    main_metric,
    of_an_evaluation,
    of_the_machine,
    shown,
    words,
)
from overnight.resumeproof.words import Course, Judgement, PartDifference, Resumed, StateComparison

KEYS = ("model.w", "optimizer.state", "scheduler.last_epoch", "rng.torch", "sampler.position", "step")


def verdict(one: Case, **more: Any) -> Judgement:
    return judge(one.first, one.second, one.resumed, until=one.until, **more)


# Real trainings


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "ema"])
@pytest.mark.parametrize("known", [True, False])
def test_each_fault_is_named(fault: str, known: bool) -> None:
    for seed in (1, 2):
        found = verdict(case(Recipe(seed=seed), fault, known=known))
        assert not found.passed
        assert found.cause == NAMED.get(fault, fault), found.text
        assert found.step is None or 100 <= found.step <= 103


@pytest.mark.parametrize("fault", [None, "rng", "optimizer", "scheduler", "data_order", "off_by_one", "weights"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(seed=3, zero=True),
        Recipe(seed=4, print_ids=True),
        Recipe(seed=5, print_rate=False),
        Recipe(seed=6, noise=1e-3, digits=6),
    ],
    ids=["from zero", "ids", "no rate", "noisy"],
)
def test_faults_are_named_however_the_training_prints(recipe: Recipe, fault: str | None) -> None:
    found = verdict(case(recipe, fault))
    assert found.cause == fault, found.text
    assert found.passed == (fault is None)


@pytest.mark.parametrize("fault", [None, "rng", "optimizer", "scheduler", "data_order", "weights"])
def test_faults_are_named_with_a_line_every_ten_steps(fault: str | None) -> None:
    found = verdict(case(Recipe(seed=1, every=10), fault, until=170))
    assert found.cause == fault, found.text
    assert found.step == (110 if fault else None)


@pytest.mark.parametrize("fault", [None, "rng", "optimizer", "data_order"])
def test_a_run_may_do_forty_steps_again(fault: str | None) -> None:
    found = verdict(case(Recipe(seed=1), fault, redo=40))
    assert found.cause == fault, found.text
    if fault is None:
        assert found.compared == found.equal == 150


def test_a_lost_ema_shows_where_evaluations_use_it() -> None:
    found = verdict(case(Recipe(seed=1, eval_every=5), "ema"))
    assert found.cause == "ema_or_buffers"
    assert (found.step, found.metric) == (105, "eval/loss")


def test_a_training_that_draws_anew_passes_with_its_floor_stated() -> None:
    found = verdict(case(Recipe(seed=1, unseeded=True), None))
    assert found.passed
    assert found.floor["loss"] > 0.05
    assert found.floor["lr"] == 0.0
    assert (
        f"a single step's loss may lie {found.floor['loss']:.2g} off, and the average over steps 101-110" in found.text
    )
    assert verdict(case(Recipe(seed=1, unseeded=True), "weights")).cause == "weights"
    rate = verdict(case(Recipe(seed=1, unseeded=True), "scheduler"))
    assert (rate.cause, rate.step, rate.metric) == ("scheduler", 101, "lr")


def test_the_optimizer_matches_once_and_drifts_then() -> None:
    found = verdict(case(Recipe(seed=2), "optimizer"))
    assert found.step == 102
    assert "step 102" in found.text
    assert shown(found.unbroken) in found.text
    assert shown(found.resumed) in found.text
    assert "optimizer.state_dict()" in found.text


def test_both_learning_rates_are_said_and_where_they_belong() -> None:
    found = verdict(case(Recipe(seed=2), "scheduler"))
    assert (found.metric, found.unbroken, found.resumed) == ("lr", 0.005, 0.01)
    assert "lr is 0.005 unbroken and 0.01 resumed" in found.text
    assert "as at step 1: the schedule begins anew" in found.text
    twice = verdict(case(Recipe(seed=2, steps=1000), "scheduler_double"))
    assert "advanced twice" in twice.text


def test_ids_say_which_data_came() -> None:
    found = verdict(case(Recipe(seed=2, print_ids=True), "data_order", known=False))
    assert found.metric == "first_id"
    assert not found.also


# Made series


def loss(step: int) -> float:
    return round(2.0 + 3.0 * math.exp(-step / 40) + 0.2 * math.sin(step * step), 4)


def always(value: float) -> Callable[[int], float]:
    return lambda _: value


def series(
    steps: range, value: Callable[[int], float] = loss, **more: Callable[[int], float]
) -> dict[int, dict[str, float]]:
    return {step: {"loss": value(step)} | {name: make(step) for name, make in more.items()} for step in steps}


def run(
    values: Mapping[int, Mapping[str, float]], earlier: Mapping[int, Mapping[str, float]] | None = None, **more: Any
) -> Resumed:
    given = {
        "how": "kill",
        "before": course(dict(earlier or series(range(1, 101)))),
        "after": course(dict(values), "exited 0"),
        "stopped_at": 100,
        "exact": True,
        "checkpoint": "ckpt-100",
        "checkpoint_step": 100,
        "checkpoint_keys": KEYS,
        "saved_on_signal": None,
        "load_error": None,
    }
    return msgspec.convert(given | more, Resumed)


def unbroken(until: int = 110, **more: Callable[[int], float]) -> Course:
    return course(series(range(1, until + 1), **more))


def of(
    resumed: Resumed, *, until: int = 110, first: Course | None = None, second: Course | None = None, **more: Any
) -> Judgement:
    one = first or unbroken(until)
    return judge(one, second or one, resumed, until=until, **more)


def test_equal_in_every_digit_passes() -> None:
    found = of(run(series(range(101, 111))))
    assert found.passed
    assert found.cause is found.step is found.metric is None
    assert (found.compared, found.equal) == (10, 10)
    assert found.floor == {"loss": 0.0}
    assert "10 steps (101-110)" in found.text


def test_one_digit_of_equal_runs_is_a_failure() -> None:
    after = series(range(101, 111))
    after[110]["loss"] += 0.0001
    found = of(run(after))
    assert not found.passed
    assert (found.step, found.metric, found.compared, found.equal) == (110, "loss", 10, 9)
    assert of(run(after), tolerance=0.001).passed
    assert not of(run(after), tolerance=0.0).passed
    assert not of(run(after), tolerance=1e-6).passed


def test_times_and_rates_are_left_out_and_listed() -> None:
    odd = {"dt_s": 0.5, "tokens_per_s": 100.0, "mfu": 40.0, "gpu_mem": 3.0}
    one = {step: row | odd for step, row in series(range(1, 111)).items()}
    two = {step: row | {name: 2 * v for name, v in odd.items()} for step, row in series(range(1, 111)).items()}
    found = judge(course(one), course(one), run({s: two[s] for s in range(101, 111)}), until=110)
    assert found.passed
    assert set(found.left_out) == set(odd)
    assert found.floor == {"loss": 0.0}


def test_what_differs_between_unbroken_runs_while_the_loss_does_not_is_left_out() -> None:
    first, second = unbroken(pid_like=always(10.0)), unbroken(pid_like=always(20.0))
    found = of(run(series(range(101, 111), pid_like=always(30.0))), first=first, second=second)
    assert found.passed
    assert "differs between the unbroken runs" in found.left_out["pid_like"]


def test_nan_is_equal_to_nan_and_to_nothing_else() -> None:
    first = unbroken(extra=always(math.nan))
    assert of(run(series(range(101, 111), extra=always(math.nan))), first=first).passed
    found = of(run(series(range(101, 111), extra=always(1.0))), first=first)
    assert (found.passed, found.metric) == (False, "extra")
    after = series(range(101, 111))
    after[103]["loss"] = math.nan
    lost = of(run(after))
    assert (lost.passed, lost.step) == (False, 103)
    assert "nan resumed" in lost.text


def test_steps_without_any_value_are_judged_as_steps() -> None:
    first = course({step: {} for step in range(1, 111)})
    after = {step: {} for step in range(101, 111)}
    found = of(run(after, {step: {} for step in range(1, 101)}), first=first)
    assert found.passed
    assert found.compared == 0
    assert any("Nothing but steps" in note for note in found.notes)
    gap = of(run({s: {} for s in after if s != 105}, {step: {} for step in range(1, 101)}), first=first)
    assert not gap.passed
    assert "105" in gap.text
    anew = of(run({s: {} for s in range(1, 11)}, {step: {} for step in range(1, 101)}), first=first)
    assert anew.cause == "not_resumed"


def test_a_single_step_can_pass_and_says_what_it_does_not_show() -> None:
    found = of(run(series(range(101, 102))), until=101)
    assert found.passed
    assert any("Only one step" in note for note in found.notes)
    wrong = of(run(series(range(101, 102), lambda step: loss(step) + 0.01)), until=101)
    assert wrong.step == 101
    assert wrong.cause in ("rng", "data_order")


def test_steps_that_are_missing_are_a_failure() -> None:
    hole = series(range(101, 111))
    del hole[105], hole[106]
    found = of(run(hole))
    assert not found.passed
    assert "leaves out 2 steps, the first of them 105" in found.text
    short = of(run(series(range(101, 106)), after=course(series(range(101, 106)), "exited 1: boom")))
    assert not short.passed
    assert "ended after step 105 (exited 1: boom)" in short.text
    late = of(run(series(range(102, 111))))
    assert late.cause == "off_by_one"
    assert "Step 101 is missing" in late.text


@pytest.mark.parametrize("k", [-3, -1, 1, 2, 20])
def test_a_constant_offset_is_off_by_one_with_its_k(k: int) -> None:
    until = 140
    found = of(run(series(range(101, until + 1), lambda step: loss(step + k))), until=until)
    assert found.cause == "off_by_one"
    assert f"k = {k:+d}" in found.text


def test_everything_from_the_beginning_but_the_count_did_not_resume() -> None:
    found = of(run(series(range(101, 111), lambda step: loss(step - 100))))
    assert found.cause == "not_resumed"


@pytest.mark.parametrize("begin", [0, 1, 10])
def test_a_run_that_begins_anew_did_not_resume(begin: int) -> None:
    every = max(1, begin)
    first = course(series(range(begin, 111, every)))
    plain = of(run(series(range(begin, 60, every))), first=first)
    assert plain.cause == "not_resumed"
    assert "with the values of the unbroken run's beginning" in plain.text
    loaded = of(run(series(range(begin, 60, every), lambda step: round(loss(step + 100) + 0.01, 4))), first=first)
    assert loaded.cause == "not_resumed"
    assert "weights seem to be loaded" in loaded.text


def test_what_ends_before_its_first_step_failed_to_load() -> None:
    found = of(run({}, load_error="RuntimeError: failed finding central directory", after=course({}, "exited 1")))
    assert found.cause == "load_failure"
    assert "central directory" in found.text
    silent = of(run({}, after=course({}, "exited 0")))
    assert silent.cause == "unknown"
    assert "printed no step (exited 0)" in silent.text


def test_nothing_saved_is_said() -> None:
    lost = run(series(range(1, 111)), checkpoint=None, checkpoint_step=None, checkpoint_keys=())
    assert of(lost).cause == "nothing_saved"
    unknown_form = run(series(range(101, 111)), checkpoint=None, checkpoint_step=None, checkpoint_keys=())
    found = of(unknown_form)
    assert found.passed
    assert any("no checkpoint of a form" in note for note in found.notes)


def test_a_script_that_saves_nothing_on_a_signal_is_told_so() -> None:
    one = run(series(range(81, 111)), how="graceful", saved_on_signal=False, exact=False, checkpoint_step=80)
    found = of(one)
    assert found.passed
    assert any("saves nothing when it is stopped" in note for note in found.notes)
    assert any("after step 100" in note for note in found.notes)


def test_a_first_line_over_fewer_steps_is_no_failure_where_all_others_are_equal() -> None:
    first = course(series(range(10, 201, 10)))
    after = series(range(110, 201, 10))
    after[110]["loss"] += 0.03
    resumed = run(after, series(range(10, 101, 10)), stopped_at=105, checkpoint_step=105)
    found = of(resumed, first=first, until=200)
    assert found.passed
    assert any("covers fewer steps" in note for note in found.notes)
    on_the_line = run(after, series(range(10, 101, 10)))
    assert not of(on_the_line, first=first, until=200).passed


def test_lines_at_other_steps_cannot_be_compared() -> None:
    first = course(series(range(10, 201, 10)))
    after = series(range(115, 201, 10))
    found = of(run(after, series(range(10, 101, 10))), first=first, until=200)
    assert not found.passed
    assert found.compared == 0


def test_an_evaluation_at_some_steps_is_compared_where_it_is() -> None:
    one = series(range(1, 111))
    for step in range(5, 111, 5):
        one[step]["eval/loss"] = loss(step) + 1.0
    after = {step: dict(one[step]) for step in range(101, 111)}
    found = of(run(after), first=course(one))
    assert (found.passed, found.compared) == (True, 12)
    after[110]["eval/loss"] += 0.5
    wrong = of(run(after), first=course(one))
    assert (wrong.cause, wrong.step, wrong.metric) == ("ema_or_buffers", 110, "eval/loss")


def test_an_evaluation_alone_at_the_start_is_not_the_first_step() -> None:
    first = unbroken()
    after = {100: {"eval/loss": 3.0}} | series(range(101, 111))
    assert of(run(after), first=first).passed


def test_a_count_or_an_average_that_begins_anew_is_described() -> None:
    first = unbroken(tokens_total=lambda step: 32.0 * step, loss_avg=loss)
    counted = of(
        run(series(range(101, 111), tokens_total=lambda step: 32.0 * (step - 100), loss_avg=loss)), first=first
    )
    assert (counted.cause, counted.metric) == ("unknown", "tokens_total")
    assert "-3200" in counted.text or "an average or a sum" in counted.text
    averaged = of(
        run(series(range(101, 111), tokens_total=lambda step: 32.0 * step, loss_avg=lambda step: loss(step) + 0.1)),
        first=first,
    )
    assert (averaged.cause, averaged.metric) == ("unknown", "loss_avg")


def test_a_jump_after_an_epoch_is_the_order_of_the_data() -> None:
    after = series(
        range(101, 121), lambda step: loss(step) if step < 108 else round(loss(step) + 0.25 * math.cos(step * 7.3), 4)
    )
    found = of(run(after), until=120)
    assert (found.cause, found.step) == ("data_order", 108)
    assert "rng" in found.also


def test_a_drift_without_a_scheduler_in_the_checkpoint_is_the_scheduler() -> None:
    after = series(range(101, 111), lambda step: round(loss(step) + 0.003 * (step - 101), 4))
    keys = ("model.w", "optimizer.state", "step")
    assert of(run(after, checkpoint_keys=keys)).cause == "scheduler"
    assert of(run(after, checkpoint_keys=("model.w", "step", "scheduler.x"))).cause == "optimizer"
    both = of(run(after, checkpoint_keys=()))
    assert (both.cause, both.also) == ("optimizer", ("scheduler",))


def test_a_run_that_strayed_before_its_stop_is_not_compared_by_digits() -> None:
    def noise(step: int) -> float:
        return round(loss(step) + 0.001 * math.sin(step * 12.9898), 4)

    found = of(run(series(range(101, 111), noise), series(range(1, 101), noise)))
    assert found.passed
    assert any("Already before it was stopped" in note for note in found.notes)


def test_unbroken_runs_that_end_early_are_said() -> None:
    found = of(run(series(range(101, 111))), first=unbroken(105))
    assert found.passed
    assert found.compared == 5
    assert any("ended at step 105" in note for note in found.notes)


def test_several_thousand_steps() -> None:
    first = unbroken(5000)
    assert of(run(series(range(101, 5001))), first=first, until=5000).compared == 4900
    found = of(
        run(series(range(101, 5001), lambda step: loss(step) + (0.01 if step > 4000 else 0.0))), first=first, until=5000
    )
    assert found.step == 4001


# States


def part(name: str, *names: str) -> PartDifference:
    return PartDifference(part=name, names=names or (f"{name}.x",), count=max(1, len(names)), of=9)


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ([part("ema")], "ema_or_buffers"),
        ([part("model", "model.bn.running_mean")], "ema_or_buffers"),
        ([part("rng")], "rng"),
        ([part("loader")], "data_order"),
        ([part("rng"), part("sampler")], "rng"),
        ([part("optimizer")], "optimizer"),
        ([part("scheduler")], "scheduler"),
        ([part("model"), part("optimizer")], "optimizer"),
        ([part("ema"), part("rng")], "ema_or_buffers"),
    ],
)
def test_states_that_differ_where_all_that_is_printed_is_equal(parts: list[PartDifference], cause: str) -> None:
    one = StateComparison(step=110, equal=False, differences=tuple(parts), compared=40, left_out=())
    found = of(run(series(range(101, 111))), states=[one])
    assert not found.passed
    assert (found.cause, found.step) == (cause, 110)
    assert all(row.part in found.text for row in parts)


def test_states_that_agree_are_counted() -> None:
    one = StateComparison(step=110, equal=True, differences=(), compared=40, left_out=("saved_at",))
    found = of(run(series(range(101, 111))), states=[one])
    assert found.passed
    assert any("equal bit by bit: 40 tensors" in note for note in found.notes)


# Names


def test_names_of_times_rates_and_memory() -> None:
    out = "dt dt_s tokens_per_s tok/s it/s s/it ms/step mfu eta elapsed gpu_mem step_time samples_per_second iter_ms"
    kept = "loss grad_norm loss_per_token lr tokens update_norm timestep loss_scale acc first_id num_tokens"
    assert all(of_the_machine(name) for name in out.split())
    assert not any(of_the_machine(name) for name in kept.split())


def test_names_of_metrics() -> None:
    assert words("gradNorm/L2_total") == ["grad", "norm", "l", "2", "total"]
    assert all(is_rate(name) for name in ("lr", "learning_rate", "lr/group0", "learningRate"))
    assert all(is_of_data(name) for name in ("first_id", "tokens", "epoch", "sample_idx", "consumed_samples"))
    assert not any(is_of_data(name) for name in ("loss", "eval/epoch", "token_loss", "batch_acc", "grad_norm"))
    assert of_an_evaluation("eval/loss")
    assert of_an_evaluation("val_acc")
    assert main_metric(["acc", "train_loss", "loss_avg", "eval/loss", "lr"]) == "train_loss"
    assert main_metric(["lr", "epoch", "eval/loss"]) is None
    assert main_metric(["acc"]) == "acc"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.position_embedding", "model"),
        ("state_dict.conv", "model"),
        ("optimizer_states", "optimizer"),
        ("optimizer.param_groups", "optimizer"),
        ("lr_schedulers", "scheduler"),
        ("torch_rng_state", "rng"),
        ("extra.rng", "rng"),
        ("loader.generator", "data"),
        ("sampler.position", "data"),
        ("epoch", "data"),
        ("ema.weight", "ema"),
        ("metadata", None),
        ("global_step", None),
        ("remaining", None),
    ],
)
def test_names_in_checkpoints(name: str, kind: str | None) -> None:
    assert held_by(name) == kind
    assert holdings([name]) == ({kind} if kind else set())


def test_values_are_shown_as_they_were_printed() -> None:
    texts = [shown(value) for value in (2.31, 1e-05, 5.0, 0.0003, math.nan, -math.inf, None)]
    assert texts == ["2.31", "1e-05", "5", "0.0003", "nan", "-inf", "unknown"]
