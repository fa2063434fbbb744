"""Rules over records: nonfinite, divergence and max_steps, at their boundaries, per segment and per kind of line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, RecordRule, TimeRule, milder
from overnight.rules.collapse import Collapse
from overnight.rules.divergence import Divergence
from overnight.rules.nonfinite import CARRIED, GRADIENTS, PATIENCE, Nonfinite
from overnight.rules.spike import Spike
from overnight.rules.steps import MaxSteps


def line(step: int | None = None, loss: float | None = None, **said: Any) -> Record:
    """Return a record as a reader would."""
    return Record(reader="test", step=step, loss=loss, **said)


def judged(rule: RecordRule, records: list[Record], memory: Memory | None = None) -> list[Verdict]:
    """Return all verdicts of one segment."""
    memory = rule.fresh() if memory is None else memory
    verdicts = (rule(record, memory) for record in records)
    return [verdict for verdict in verdicts if verdict is not None]


def healthy(count: int, loss: float = 3.0) -> list[Record]:
    """Return lines of consecutive steps from 1 on."""
    return [line(step, loss) for step in range(1, count + 1)]


# ---- nonfinite


@pytest.mark.parametrize(("loss", "word"), [(nan, "NaN"), (inf, "inf"), (-inf, "-inf")])
def test_nonfinite_on_that_very_line(loss: float, word: str) -> None:
    bad = line(21, loss, at=5.5, source=2, offset=800, part=1)
    (verdict,) = judged(Nonfinite(), [*healthy(20), bad])
    assert (verdict.rule, verdict.severity, verdict.action) == ("nonfinite", "critical", "terminate")
    assert verdict.text == f"loss is {word} at step 21"
    assert (verdict.step, verdict.at, verdict.source, verdict.offset, verdict.part) == (21, 5.5, 2, 800, 1)
    assert repr(verdict.evidence) == repr({"loss": loss})


def test_nonfinite_on_line_one_without_a_step() -> None:
    (verdict,) = judged(Nonfinite(), [line(None, nan)])
    assert verdict.text == "loss is NaN on a line without a step"
    assert verdict.step is None


def test_nonfinite_of_any_rank_once_per_segment() -> None:
    rule = Nonfinite()
    bad = [line(5, nan, rank=3), line(5, nan, rank=0), line(6, inf)]
    assert [verdict.step for verdict in judged(rule, bad)] == [5]
    assert [verdict.step for verdict in judged(rule, bad)] == [5]  # the next segment has a new memory


def test_nonfinite_takes_the_action_it_was_given() -> None:
    for action in ("note", "alert", "stop", "terminate"):
        assert judged(Nonfinite(action=action), [line(1, nan)])[0].action == action


def test_glued_nan_is_only_noted_and_does_not_hide_the_real_one() -> None:
    bad = [line(5, nan, glued=True), line(6, nan, glued=True), line(7, nan)]
    noted, real = judged(Nonfinite(), bad)
    assert (noted.step, noted.severity, noted.action) == (5, "note", "note")
    assert "not trusted" in noted.text
    assert (real.step, real.action) == (7, "terminate")


def test_eval_nan_alerts_once_and_does_not_hide_the_real_one() -> None:
    bad = [line(5, nan, kind="eval"), line(6, nan, kind="eval"), line(7, nan)]
    alert, real = judged(Nonfinite(), bad)
    assert (alert.severity, alert.action, alert.text) == ("warn", "alert", "eval loss is NaN at step 5")
    assert (real.step, real.severity) == (7, "critical")
    assert judged(Nonfinite(action="note"), bad[:1])[0].action == "note"


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.booleans())
def test_finite_losses_never_trigger_nonfinite(losses: list[float], glued: bool) -> None:
    assert judged(Nonfinite(), [line(n, loss, glued=glued) for n, loss in enumerate(losses)]) == []


# ---- nonfinite, hidden


def normed(norms: list[float | None], loss: float | None = 2.0, first: int = 101, **said: Any) -> list[Record]:
    """Return lines of consecutive steps with these gradient norms."""
    return [line(first + n, loss, grad_norm=norm, **said) for n, norm in enumerate(norms)]


def calm(count: int = 100, **said: Any) -> list[Record]:
    """Return healthy lines with a gradient norm, as all of a trainer's lines have."""
    return normed([1.0] * count, first=1, **said)


def critical(records: list[Record]) -> list[int | None]:
    """Return the steps at which nonfinite would end a run."""
    return [one.step for one in judged(Nonfinite(), records) if one.severity == "critical"]


@pytest.mark.parametrize("norm", [nan, inf])
def test_gradients_that_stay_nonfinite(norm: float) -> None:
    (verdict,) = judged(Nonfinite(), [*calm(), *normed([norm] * 60)])
    assert (verdict.rule, verdict.severity, verdict.action) == ("nonfinite", "critical", "terminate")
    assert verdict.step == 100 + GRADIENTS == 120
    word = "NaN" if norm != inf else "inf"
    assert verdict.text == f"gradient norm is {word} at step 120 and has been NaN or infinite for 20 records running"
    assert verdict.evidence["records"] == GRADIENTS


def test_isolated_nonfinite_gradients_are_normal() -> None:
    lines = calm(300)
    for step in (10, 60, 110):
        lines[step - 1] = line(step, 2.0, grad_norm=inf)
    assert judged(Nonfinite(), lines) == []
    nearly = [
        *normed([inf] * (GRADIENTS - 1)),
        line(120, 2.0, grad_norm=1.0),
        *normed([nan] * (GRADIENTS - 1), first=121),
    ]
    assert judged(Nonfinite(), [*calm(), *nearly]) == []


def test_a_scaler_that_looks_for_its_scale_is_normal() -> None:
    assert judged(Nonfinite(), [*normed([inf] * 17, first=1), *normed([1.0] * 50, first=18)]) == []
    assert critical(normed([inf] * 20, first=1)) == [20]


def test_gradients_are_counted_for_each_rank_and_each_step() -> None:
    four = [line(step, 2.0, grad_norm=inf, rank=rank) for step in range(1, 18) for rank in range(4)]
    assert judged(Nonfinite(), four) == []
    untagged = [line(step, 2.0, grad_norm=inf) for step in range(1, 18) for _ in range(4)]
    assert judged(Nonfinite(), untagged) == []
    one = [
        line(step, 2.0, grad_norm=inf if rank == 1 else 1.0, rank=rank) for step in range(1, 40) for rank in range(4)
    ]
    (verdict,) = judged(Nonfinite(), one)
    assert (verdict.step, verdict.evidence["rank"]) == (20, 1)
    assert "at step 20 on rank 1" in verdict.text


def test_gradients_printed_only_when_they_overflow_do_not_add_up() -> None:
    lines = [line(step, 2.0, grad_norm=inf if step % 10 == 0 else None) for step in range(1, 1000)]
    assert judged(Nonfinite(), lines) == []


def test_gradients_that_were_never_a_number_may_mean_unknown() -> None:
    (verdict,) = judged(Nonfinite(), normed([nan] * 100, first=1))
    assert (verdict.step, verdict.severity, verdict.action) == (20, "warn", "alert")
    assert verdict.text == "gradient norm is NaN at step 20, as on all 20 lines so far, while the loss is finite"
    assert critical(normed([nan] * 10 + [1.0] + [nan] * 100, first=1)) == [31]


def test_lines_beside_the_loss_do_not_break_a_run_of_gradients() -> None:
    """A progress bar's frames carry neither loss nor norm."""
    pairs = [one for step in range(1, 40) for one in (line(step, 2.0, grad_norm=inf), line(step))]
    assert critical(pairs) == [20]


def test_a_loss_of_zero_beside_a_nan_gradient_is_a_nan() -> None:
    (verdict,) = judged(Nonfinite(), [*calm(5), *normed([nan] * 30, loss=0.0)])
    assert (verdict.step, verdict.severity, verdict.action) == (101, "critical", "terminate")
    assert (
        verdict.text == "loss is exactly 0 beside a gradient norm of NaN at step 101, which is how a hidden NaN looks"
    )


def test_a_loss_of_zero_is_legal() -> None:
    assert judged(Nonfinite(), [*calm(5), *normed([0.5, None, 0.0, inf, 1.0], loss=0.0)]) == []
    assert judged(Nonfinite(), normed([0.5] * 100, loss=0.0)) == []


def test_where_zeros_are_usual_one_overflow_is_not_a_nan() -> None:
    usual = normed([0.5] * 100, loss=0.0, first=1)
    assert judged(Nonfinite(), [*usual, *normed([nan, nan, 0.5, nan, nan, 0.5], loss=0.0)]) == []
    assert critical([*usual, *normed([nan] * 30, loss=0.0)]) == [100 + PATIENCE]
    assert critical(normed([nan] * 30, loss=0.0, first=1)) == [PATIENCE]  # nothing else was seen yet


def test_a_loss_that_vanishes_beside_a_nan_gradient() -> None:
    (verdict,) = judged(Nonfinite(), [*calm(CARRIED), *normed([nan] * 5, loss=None)])
    assert (verdict.step, verdict.severity, verdict.action) == (101, "critical", "terminate")
    assert verdict.text == (
        "loss is missing at step 101 beside a gradient norm of NaN; every line before had one, so a NaN may be hidden"
    )
    assert critical([*calm(CARRIED - 1), *normed([nan] * 5, loss=None)]) == []


@pytest.mark.parametrize("norm", [None, 1.0, inf])
def test_a_loss_that_vanishes(norm: float | None) -> None:
    lines = [*calm(CARRIED), *normed([norm] * 10, loss=None)]
    (verdict,) = judged(Nonfinite(), lines)
    assert (verdict.step, verdict.severity) == (100 + PATIENCE, "critical")
    assert "for 3 lines running" in verdict.text
    assert (
        judged(Nonfinite(), [*calm(), *normed([norm] * 2, loss=None), line(103, 2.0), *normed([norm] * 2, None, 104)])
        == []
    )


def test_lines_without_a_loss_by_nature() -> None:
    every_other = [line(step, 2.0 if step % 2 else None) for step in range(1, 200)]
    every_tenth = [line(step, None if step % 10 else 2.0, grad_norm=1.0) for step in range(200)]
    never = [line(step, None) for step in range(200)]
    two_a_step = [one for step in range(100) for one in (line(step, 2.0), line(step, None))]
    for lines in (every_other, every_tenth, never, two_a_step):
        assert judged(Nonfinite(), lines) == []


def test_another_shape_or_rank_without_a_loss_is_no_missing_one() -> None:
    def bar(step: int) -> Record:
        return Record(reader="bar", step=step)

    mixed = [one for step in range(1, 100) for one in (line(step, 2.0), bar(step))]
    assert judged(Nonfinite(), mixed) == []
    assert judged(Nonfinite(), [*healthy(50), *(bar(step) for step in range(51, 80))]) == []
    ranks = [line(step, None if rank else 2.0, rank=rank) for step in range(1, 100) for rank in range(4)]
    assert judged(Nonfinite(), ranks) == []
    assert critical([*ranks, *(line(step, None, rank=0) for step in range(100, 110))]) == [102]


def test_a_step_that_was_skipped_need_not_print_a_loss() -> None:
    def skipped(step: int, norm: float | None = None) -> Record:
        return line(step, None, grad_norm=norm, extra={"number of skipped iterations": 1.0})

    start = [skipped(step) for step in range(1, 18)]
    assert judged(Nonfinite(), [*start, *calm(), *(skipped(step, nan) for step in range(101, 110))]) == []
    zeros = [line(step, 0.0, grad_norm=nan, extra={"skipped": 1.0}) for step in range(101, 110)]
    assert judged(Nonfinite(), [*calm(), *zeros]) == []
    said = [line(step, None, extra={"skipped": 0.0, "note": "x"}) for step in range(101, 110)]
    assert critical([*calm(), *said]) == [103]


def test_glued_and_eval_lines_hide_nothing_and_count_for_nothing() -> None:
    for odd in ({"glued": True}, {"kind": "eval"}):
        lines = [
            *normed([nan] * 40, **odd),
            *normed([nan] * 40, loss=0.0, **odd),
            *normed([1.0] * 40, loss=None, **odd),
        ]
        assert judged(Nonfinite(), [*calm(), *lines]) == []
        mixed = [one for bad in normed([inf] * 19) for one in (bad, line(bad.step, 2.0, grad_norm=inf, **odd))]
        assert judged(Nonfinite(), [*calm(), *mixed]) == []


def test_each_hidden_form_is_told_once_per_segment() -> None:
    rule, memory = Nonfinite(), Nonfinite().fresh()
    sick = [*normed([nan] * 40), *normed([1.0] * 3), *normed([nan] * 40, loss=0.0), *normed([1.0] * 9, loss=None)]
    found = [verdict.text for verdict in judged(rule, [*calm(), *sick, *sick, line(9, nan), *sick], memory)]
    starts = ["gradient norm is NaN", "loss is exactly 0", "loss is missing", "loss is NaN"]
    assert [text.startswith(start) for text, start in zip(found, starts, strict=True)] == [True] * 4
    assert len(judged(rule, [*calm(), *sick])) == 3  # the next segment has a new memory


def test_gradients_are_not_told_beside_what_they_come_from() -> None:
    for first in (normed([nan], loss=0.0), normed([nan], loss=None), [line(101, nan)]):
        assert critical([*calm(), *first, *normed([nan] * 40, first=102)]) == [101]


def test_a_memory_of_an_older_version_is_understood() -> None:
    memory = {"train": False, "eval": False, "glued": False}
    (verdict,) = judged(Nonfinite(), [*calm(), *normed([inf] * 30)], memory)
    assert verdict.step == 120


def test_the_memory_stays_small_with_many_ranks() -> None:
    rule, memory = Nonfinite(), Nonfinite().fresh()
    for step in range(30):
        for rank in range(500):
            rule(line(step, None, grad_norm=inf, rank=rank), memory)
    assert len(memory) < 80


# ---- max_steps


def test_max_steps_on_the_line_of_that_step() -> None:
    (verdict,) = judged(MaxSteps(max_steps=20), [*healthy(40), line(41, 2.0)])
    assert (verdict.rule, verdict.severity, verdict.action, verdict.step) == ("max_steps", "warn", "stop", 20)
    assert verdict.text == "step limit of 20 reached"
    assert verdict.evidence == {"max_steps": 20}


def test_max_steps_behind_the_limit_and_again_after_a_restart() -> None:
    rule = MaxSteps(max_steps=25, action="terminate")
    lines = [line(step, 2.0) for step in range(10, 100, 10)]
    assert [(one.step, one.action) for one in judged(rule, lines)] == [(30, "terminate")]
    assert [one.step for one in judged(rule, [line(90, 2.0), line(100, 2.0)])] == [90]


def test_max_steps_that_was_raised_is_told_again() -> None:
    memory = MaxSteps(max_steps=10).fresh()
    assert len(judged(MaxSteps(max_steps=10, action="alert"), healthy(15), memory)) == 1
    assert [one.step for one in judged(MaxSteps(max_steps=20), healthy(30), memory)] == [20]


def test_max_steps_without_a_limit_or_a_step_is_silent() -> None:
    assert judged(MaxSteps(), healthy(1000)) == []
    odd = [line(None, 2.0), line(500, 2.0, glued=True), line(500, 2.0, kind="eval"), line(9, 2.0)]
    assert judged(MaxSteps(max_steps=10), odd) == []
    assert len(judged(MaxSteps(max_steps=10), [line(10)])) == 1  # a line without a loss has a step all the same


# ---- divergence


def test_divergence_after_five_healthy_losses() -> None:
    (verdict,) = judged(Divergence(max_loss=20.0), [*healthy(5), line(6, 25.0, offset=9)])
    assert (verdict.rule, verdict.severity, verdict.action) == ("divergence", "critical", "terminate")
    assert verdict.text == "loss 25 is above 20 at step 6"
    assert verdict.evidence == {"loss": 25.0, "max_loss": 20.0}
    assert (verdict.step, verdict.offset) == (6, 9)


def test_divergence_before_it_is_armed_only_alerts_once() -> None:
    records = [*healthy(4), line(5, 25.0), line(6, 26.0), line(7, 20.0), line(8, 27.0), line(9, 28.0)]
    early, armed = judged(Divergence(max_loss=20.0), records)
    assert (early.step, early.severity, early.action) == (5, "warn", "alert")
    assert early.text.endswith("after only 4 of the 5 losses below it that arm this rule")
    assert (armed.step, armed.severity, armed.action) == (8, "critical", "terminate")
    assert judged(Divergence(max_loss=20.0, action="note"), [line(1, 25.0)])[0].action == "note"


def test_divergence_as_asked_is_armed_from_the_first_line() -> None:
    (verdict,) = judged(Divergence(max_loss=20.0, asked=True), [line(1, 25.0), line(2, 25.0)])
    assert (verdict.step, verdict.severity, verdict.action) == (1, "critical", "terminate")


def test_the_bound_itself_is_healthy() -> None:
    above = 20.000000000000004
    records = [*healthy(5, loss=20.0), line(6, 20.0), line(7, above)]
    assert [verdict.step for verdict in judged(Divergence(max_loss=20.0), records)] == [7]


def test_divergence_is_armed_anew_in_each_segment() -> None:
    rule = Divergence(max_loss=20.0)
    assert judged(rule, [*healthy(5), line(6, 25.0)])[0].severity == "critical"
    assert judged(rule, [line(1, 25.0)])[0].severity == "warn"


def test_glued_losses_neither_arm_nor_act() -> None:
    glued = [line(n, 3.0, glued=True) for n in range(5)]
    early, noted = judged(Divergence(max_loss=20.0), [*glued, line(6, 25.0), line(7, 31.0, glued=True)])
    assert early.severity == "warn"
    assert (noted.severity, noted.action) == ("note", "note")
    assert "not trusted" in noted.text
    (asked,) = judged(Divergence(max_loss=20.0, asked=True), [line(7, 31.0, glued=True), line(8, 31.0, glued=True)])
    assert asked.action == "note"


@given(st.lists(st.floats() | st.none()))
def test_divergence_without_a_bound_is_silent(losses: list[float | None]) -> None:
    assert judged(Divergence(asked=True), [line(n, loss) for n, loss in enumerate(losses)]) == []


@pytest.mark.parametrize("record", [line(6, nan), line(6, inf), line(6, -inf), line(6), line(6, 25.0, kind="eval")])
def test_not_a_matter_of_divergence(record: Record) -> None:
    assert judged(Divergence(max_loss=20.0, asked=True), [*healthy(5), record]) == []


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=30))
def test_divergence_is_critical_exactly_at_the_first_loss_above_once_armed(said: list[tuple[float, bool]]) -> None:
    records = [line(n, loss, glued=glued) for n, (loss, glued) in enumerate(said)]
    healthy_before = 0
    expected = None
    for record in records:
        if record.glued or record.loss is None:
            continue
        if record.loss <= 20.0:
            healthy_before += 1
        elif healthy_before >= 5:
            expected = record.step
            break
    critical = [
        verdict.step for verdict in judged(Divergence(max_loss=20.0), records) if verdict.severity == "critical"
    ]
    assert critical == ([] if expected is None else [expected])


# ---- the contract


@pytest.mark.parametrize(
    "rule", [Nonfinite(), Divergence(max_loss=1.0), MaxSteps(max_steps=5), Collapse(vocab_size=3), Spike()]
)
def test_rules_are_frozen_and_their_memory_is_flat(
    rule: Nonfinite | Divergence | MaxSteps | Collapse | Spike,
) -> None:
    assert isinstance(rule, RecordRule)
    assert not isinstance(rule, TimeRule)
    with pytest.raises(FrozenInstanceError):
        rule.action = "note"  # type: ignore[misc]
    memory = rule.fresh()
    for record in [*healthy(6, loss=0.5), line(7, nan), line(8, 2.0), line(9, nan, kind="eval")]:
        rule(record, memory)
    plain = bool | int | float | str | None
    small = [one if isinstance(one, list) else [one] for one in memory.values()]
    assert all(isinstance(value, plain) for one in small for value in one)
    assert max(map(len, small)) <= 8
    assert memory != rule.fresh()  # a memory of its own each time


def test_rules_without_a_bound_say_that_they_need_not_be_asked() -> None:
    assert MaxSteps().silent
    assert Collapse().silent
    assert Collapse(vocab_size=1).silent
    assert not MaxSteps(max_steps=1).silent
    assert not Collapse(vocab_size=2).silent


def test_evidence_keeps_the_number_itself() -> None:
    (verdict,) = judged(Nonfinite(), [line(1, nan)])
    assert isnan(verdict.evidence["loss"])


@pytest.mark.parametrize(("action", "mild"), [("note", "note"), ("alert", "alert"), ("stop", "alert")])
def test_milder_never_exceeds_what_was_asked(action: RuleAction, mild: RuleAction) -> None:
    assert milder(action) == mild
