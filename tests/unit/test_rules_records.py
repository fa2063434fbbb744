"""Rules over records: nonfinite and divergence, at their boundaries, per segment and per kind of line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.events import Record, RuleAction, Verdict
from overnight.rules import Memory, RecordRule, TimeRule, milder
from overnight.rules.divergence import Divergence
from overnight.rules.nonfinite import Nonfinite


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


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)), st.booleans())
def test_finite_losses_never_trigger_nonfinite(losses: list[float | None], glued: bool) -> None:
    assert judged(Nonfinite(), [line(n, loss, glued=glued) for n, loss in enumerate(losses)]) == []


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


@pytest.mark.parametrize("rule", [Nonfinite(), Divergence(max_loss=1.0)])
def test_rules_are_frozen_and_their_memory_is_flat(rule: Nonfinite | Divergence) -> None:
    assert isinstance(rule, RecordRule)
    assert not isinstance(rule, TimeRule)
    with pytest.raises(FrozenInstanceError):
        rule.action = "note"  # type: ignore[misc]
    memory = rule.fresh()
    for record in [*healthy(6, loss=0.5), line(7, nan), line(8, 2.0), line(9, nan, kind="eval")]:
        rule(record, memory)
    assert all(isinstance(value, bool | int | float | str) for value in memory.values())
    assert memory != rule.fresh()  # a memory of its own each time


def test_evidence_keeps_the_number_itself() -> None:
    (verdict,) = judged(Nonfinite(), [line(1, nan)])
    assert isnan(verdict.evidence["loss"])


@pytest.mark.parametrize(("action", "mild"), [("note", "note"), ("alert", "alert"), ("stop", "alert")])
def test_milder_never_exceeds_what_was_asked(action: RuleAction, mild: RuleAction) -> None:
    assert milder(action) == mild
