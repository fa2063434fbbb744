"""The wall-clock limit: when it fires, how early, what it says, and that it says it once."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.rules import Moment, RecordRule, TimeRule
from overnight.rules.limits import WallClock, span

EIGHT_HOURS = 28800.0


def test_without_a_measured_save_it_fires_at_the_limit() -> None:
    rule = WallClock(max_s=EIGHT_HOURS)
    memory = rule.fresh()
    assert rule.on_time(Moment(active_s=28799.9, step_s=500.0), memory) is None
    verdict = rule.on_time(Moment(active_s=28800.0, at=7.0), memory)
    assert verdict is not None
    assert (verdict.rule, verdict.severity, verdict.action, verdict.at) == ("wall_clock", "warn", "stop", 7.0)
    assert verdict.text == "wall-clock limit of 8 h reached"
    assert verdict.evidence == {"active_s": 28800.0, "max_s": 28800.0, "save_s": None}


def test_it_begins_early_enough_for_the_measured_save() -> None:
    rule = WallClock(max_s=EIGHT_HOURS)
    memory = rule.fresh()
    # 1.5 * 21 s + one step of 6.5 s + 2 s = 40 s
    assert rule.on_time(Moment(active_s=28759.9, save_s=21.0, step_s=6.5), memory) is None
    verdict = rule.on_time(Moment(active_s=28760.0, save_s=21.0, step_s=6.5), memory)
    assert verdict is not None
    assert verdict.text == "wall-clock limit of 8 h: stopping 40 s early, the last save took 21 s"


def test_a_late_look_says_that_the_limit_is_over() -> None:
    rule = WallClock(max_s=EIGHT_HOURS)
    verdict = rule.on_time(Moment(active_s=28900.0, save_s=21.0), rule.fresh())
    assert verdict is not None
    assert verdict.text == "wall-clock limit of 8 h reached"


def test_it_fires_once() -> None:
    rule = WallClock(max_s=60.0, action="alert")
    memory = rule.fresh()
    assert rule.due_s(Moment(active_s=50.0), memory) == 10.0
    assert [rule.on_time(Moment(active_s=60.0 + n), memory) is not None for n in range(3)] == [True, False, False]
    assert rule.due_s(Moment(active_s=63.0), memory) == inf  # nobody is to wake for it again


def test_a_slow_save_takes_at_most_half_of_the_limit() -> None:
    rule = WallClock(max_s=100.0)
    assert rule.lead_s(Moment(active_s=0.0, save_s=1000.0)) == 50.0
    assert rule.on_time(Moment(active_s=49.9, save_s=1000.0), rule.fresh()) is None
    assert rule.on_time(Moment(active_s=50.0, save_s=1000.0), rule.fresh()) is not None


def test_without_a_limit_it_is_silent() -> None:
    rule = WallClock()
    moment = Moment(active_s=1e12, save_s=5.0)
    assert rule.on_time(moment, rule.fresh()) is None
    assert (rule.lead_s(moment), rule.due_s(moment)) == (0.0, inf)


@given(st.floats(1, 1e6), st.floats(0, 2e6), st.none() | st.floats(0, 1e4), st.none() | st.floats(0, 1e3))
def test_due_says_when_it_fires(max_s: float, active_s: float, save_s: float | None, step_s: float | None) -> None:
    rule = WallClock(max_s=max_s)
    moment = Moment(active_s=active_s, save_s=save_s, step_s=step_s)
    assert (rule.on_time(moment, rule.fresh()) is not None) == (rule.due_s(moment) <= 0)
    assert 0 <= rule.lead_s(moment) <= max_s / 2


def test_it_is_a_rule_over_time() -> None:
    assert isinstance(WallClock(), TimeRule)
    assert not isinstance(WallClock(), RecordRule)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (28800.0, "8 h"),
        (5400.0, "1.5 h"),
        (3600.0, "1 h"),
        (600.0, "10 min"),
        (90.0, "90 s"),
        (21.04, "21 s"),
        (0.25, "0.25 s"),
    ],
)
def test_span(seconds: float, text: str) -> None:
    assert span(seconds) == text
