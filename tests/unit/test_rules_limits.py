"""Limits of time and money: when they fire, how early, what they say before it, and that they say it once."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.events import Verdict
from overnight.rules import Moment, RecordRule, TimeRule, span
from overnight.rules.limits import Cost, Until, WallClock

Limit = WallClock | Until | Cost
EIGHT_HOURS = 28800.0


def test_without_a_measured_save_it_fires_at_the_limit() -> None:
    rule = WallClock(max_s=EIGHT_HOURS)
    memory = rule.fresh() | {"ahead": True}
    assert rule.on_time(Moment(active_s=28799.9, step_s=500.0), memory) is None
    verdict = rule.on_time(Moment(active_s=28800.0, at=7.0), memory)
    assert verdict is not None
    assert (verdict.rule, verdict.severity, verdict.action, verdict.at) == ("wall_clock", "warn", "stop", 7.0)
    assert verdict.text == "wall-clock limit of 8 h reached"
    assert verdict.evidence == {"active_s": 28800.0, "max_s": 28800.0, "save_s": None}


def test_it_begins_early_enough_for_the_measured_save() -> None:
    rule = WallClock(max_s=EIGHT_HOURS)
    memory = rule.fresh() | {"ahead": True}
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
    memory = rule.fresh() | {"ahead": True}
    assert rule.due_s(Moment(active_s=50.0), memory) == 10.0
    assert [rule.on_time(Moment(active_s=60.0 + n), memory) is not None for n in range(3)] == [True, False, False]
    assert rule.due_s(Moment(active_s=63.0), memory) == inf  # nobody is to wake for it again


def test_a_slow_save_takes_at_most_half_of_the_limit() -> None:
    rule = WallClock(max_s=100.0)
    assert rule.lead_s(Moment(active_s=0.0, save_s=1000.0)) == 50.0
    assert rule.on_time(Moment(active_s=49.9, save_s=1000.0), rule.fresh() | {"ahead": True}) is None
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
    verdict = rule.on_time(moment, rule.fresh())
    assert (verdict is not None) == (rule.due_s(moment) <= 0)
    assert 0 <= rule.lead_s(moment) <= max_s / 2


@pytest.mark.parametrize("make", [WallClock, Until, Cost])
def test_it_is_a_rule_over_time(make: type[Limit]) -> None:
    assert isinstance(make(), TimeRule)
    assert not isinstance(make(), RecordRule)
    assert make().action == "stop"


# -- what is said before ---------------------------------------------------------------------------------------------


class Night:
    """A run on a clock that the test moves; the rule is asked only when it said that it has to be."""

    def __init__(self, rule: Limit, at: float = 1e9) -> None:
        self.rule = rule
        self.memory: dict[str, Any] = rule.fresh()
        self.active_s = self.elapsed_s = 0.0
        self.at = at
        self.more: dict[str, float | None] = {}
        self.found: list[tuple[float, Verdict]] = []

    @property
    def moment(self) -> Moment:
        return Moment(active_s=self.active_s, elapsed_s=self.elapsed_s, at=self.at, **self.more)

    def ask(self) -> None:
        verdict = self.rule.on_time(self.moment, self.memory)
        self.memory = json.loads(json.dumps(self.memory))  # what is stored is what is remembered
        if verdict is not None:
            self.found.append((round(self.elapsed_s, 4), verdict))

    def go(self, seconds: float, *, backoff: bool = False) -> Night:
        self.ask()
        end_s, most = self.elapsed_s + seconds, 20
        while not backoff and (due_s := self.rule.due_s(self.moment, self.memory)) <= end_s - self.elapsed_s:
            assert (most := most - 1), f"asked again and again for nothing: {self.moment}, {self.memory}, {due_s}"
            self._pass(max(due_s, 2e-6))
            self.ask()
        self._pass(end_s - self.elapsed_s, backoff=backoff)
        return self

    def _pass(self, seconds: float, *, backoff: bool = False) -> None:
        self.elapsed_s += seconds
        self.at += seconds
        self.active_s += 0.0 if backoff else seconds

    @property
    def told(self) -> list[tuple[float, int, str]]:
        return [(at, verdict.part, verdict.action) for at, verdict in self.found]


HOUR = 3600.0


@pytest.mark.parametrize(
    ("rule", "whole_s"),
    [
        (WallClock(max_s=8 * HOUR), 8 * HOUR),
        (Until(at=1e9 + 8 * HOUR), 8 * HOUR),
        (Cost(max_cost=20.0, price=2.5), 8 * HOUR),
        (WallClock(max_s=40.0), 40.0),
        (Until(at=1e9 + 40.0), 40.0),
        (Cost(max_cost=1.0, price=90.0), 40.0),
    ],
)
def test_a_person_is_told_ahead_and_the_limit_is_exact(rule: Limit, whole_s: float) -> None:
    night = Night(rule).go(2 * whole_s)
    near_s = min(whole_s / 10, 1800.0)
    assert night.told == [(whole_s - near_s, 1, "alert"), (whole_s, 0, "stop")]
    (_, ahead), (_, reached) = night.found
    assert (ahead.severity, ahead.rule, ahead.evidence["ahead"]) == ("warn", rule.name, True)
    assert ahead.text.endswith(f" comes in {span(near_s)}")
    assert reached.text.endswith(" reached")
    assert "ahead" not in reached.evidence


def test_it_is_told_ahead_of_the_stop_not_of_the_limit() -> None:
    night = Night(WallClock(max_s=10 * HOUR))
    night.more = {"save_s": 1200.0}  # stops 1802 s before the limit
    night.go(11 * HOUR)
    assert night.told == [(10 * HOUR - 1802 - 1800, 1, "alert"), (10 * HOUR - 1802, 0, "stop")]
    assert night.found[0][1].text == "wall-clock limit of 10 h comes in 1 h"


def test_a_limit_that_only_notes_is_noted_ahead() -> None:
    assert [action for *_, action in Night(WallClock(max_s=60.0, action="note")).go(90).told] == ["note", "note"]
    assert [action for *_, action in Night(Cost(max_cost=1, price=60, action="alert")).go(90).told] == ["alert"] * 2


def test_a_pace_that_will_not_do_is_told_once() -> None:
    night = Night(WallClock(max_s=2.5 * HOUR))
    night.go(0.5 * HOUR)
    night.more = {"eta_s": 3.1 * HOUR}
    night.go(60).go(60)
    assert night.found == [], "for some minutes it may be steps that compile, or an evaluation"
    night.go(HOUR)
    (at, verdict), *_ = night.found
    assert (at, verdict.part, verdict.action, verdict.severity) == (0.5 * HOUR + 180, 2, "alert", "warn")
    assert verdict.text == "at this pace it needs 3.1 h more, the wall-clock limit leaves 1.95 h"
    assert verdict.evidence["ahead"] is True
    assert verdict.evidence["eta_s"] == 3.1 * HOUR
    night.go(3 * HOUR)
    assert [part for _, part, _ in night.told] == [2, 1, 0]


def test_a_pace_that_recovers_is_not_told() -> None:
    night = Night(Until(at=1e9 + 8 * HOUR))
    for _ in range(20):
        night.more = {"eta_s": 20 * HOUR}  # the first steps compile, or the window holds an evaluation
        night.go(120)
        night.more = {"eta_s": 3 * HOUR}
        night.go(120)
    assert night.found == []
    night.more = {"eta_s": (8 * HOUR - 4800) / 0.96}  # less than 5% beyond
    night.go(60)
    assert night.found == []


@pytest.mark.parametrize("eta_s", [None, inf])
def test_an_unknown_end_is_not_compared(eta_s: float | None) -> None:
    night = Night(WallClock(max_s=HOUR))
    night.more = {"eta_s": eta_s}
    assert [part for _, part, _ in night.go(HOUR).told] == [1, 0]


# -- over attempts, clocks and changes -------------------------------------------------------------------------------


def test_a_limit_counts_over_attempts() -> None:
    """A limit of 40 s, attempts that end at 15 and 30 s: active time counts, the back-off does not."""
    night = Night(WallClock(max_s=40.0)).go(15).go(100, backoff=True).go(15).go(100, backoff=True).go(30)
    assert night.told == [(236.0, 1, "alert"), (240.0, 0, "stop")]


def test_money_counts_through_the_back_off() -> None:
    night = Night(Cost(max_cost=1.0, price=60.0)).go(15).go(20, backoff=True).go(60)
    assert night.told == [(54.0, 1, "alert"), (60.0, 0, "stop")]


def test_a_machine_at_a_price() -> None:
    night = Night(Cost(max_cost=0.001, price=2.42)).go(5)
    (_, ahead), (at, reached) = night.found
    assert at == pytest.approx(0.001 / 2.42 * HOUR, abs=1e-3)
    assert reached.text == "cost limit of 0.001 at 2.42 per hour reached"
    assert reached.evidence["cost"] == pytest.approx(0.001)
    assert (reached.evidence["max_cost"], reached.evidence["price"]) == (0.001, 2.42)
    assert ahead.part == 1


@pytest.mark.parametrize("rule", [Cost(max_cost=1.0), Cost(price=2.42), Cost(), Until(), WallClock()])
def test_without_all_it_needs_a_limit_is_silent(rule: Limit) -> None:
    night = Night(rule)
    night.more = {"save_s": 5.0, "eta_s": 1e6}
    assert night.go(1e7).found == []
    assert rule.due_s(night.moment, night.memory) == inf


def test_until_across_midnight() -> None:
    evening = 1_796_079_600.0  # 2026-11-30 23:00 UTC
    night = Night(Until(at=evening + 8.5 * HOUR), at=evening).go(10 * HOUR)
    assert night.told == [(8 * HOUR, 1, "alert"), (8.5 * HOUR, 0, "stop")]
    assert night.found[1][1].text == "end time 2026-12-01 07:30:00Z reached"
    assert night.found[1][1].evidence == {"at": evening + 8.5 * HOUR, "until": evening + 8.5 * HOUR, "save_s": None}


def test_until_follows_the_clock_and_the_others_do_not() -> None:
    until = Night(Until(at=1e9 + 4 * HOUR)).go(HOUR)
    until.at += 3 * HOUR
    assert until.go(1).told == [(HOUR, 0, "stop")]
    for rule in (WallClock(max_s=4 * HOUR), Cost(max_cost=4.0, price=1.0)):
        night = Night(rule).go(HOUR)
        night.at += 3 * HOUR
        assert night.go(1).found == []
    assert Night(Until(at=1e9 - 5.0)).go(1).told == [(0.0, 0, "stop")]  # past already


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (WallClock(max_s=100.0, action="alert"), WallClock(max_s=200.0)),
        (Until(at=1e9 + 100.0, action="alert"), Until(at=1e9 + 200.0)),
        (Cost(max_cost=1.0, price=36.0, action="alert"), Cost(max_cost=2.0, price=36.0)),
    ],
)
def test_a_changed_limit_is_armed_anew(first: Limit, then: Limit) -> None:
    night = Night(first).go(150)
    night.rule = then
    night.go(100)
    assert night.told == [(90.0, 1, "alert"), (100.0, 0, "alert"), (180.0, 4, "alert"), (200.0, 3, "stop")]


def test_a_limit_that_is_changed_to_the_past_fires_at_once() -> None:
    night = Night(WallClock(max_s=100.0)).go(50)
    night.rule = WallClock(max_s=20.0)
    assert night.go(1).told == [(50.0, 3, "stop")]


def test_a_limit_that_is_taken_away_and_given_again() -> None:
    night = Night(WallClock(max_s=100.0)).go(95)
    night.rule = WallClock()
    night.go(100)
    night.rule = WallClock(max_s=300.0)
    assert night.go(200).told == [(90.0, 1, "alert"), (270.0, 7, "alert"), (300.0, 6, "stop")]


def test_a_memory_of_an_older_version_is_read() -> None:
    rule = WallClock(max_s=100.0)
    assert rule.on_time(Moment(active_s=100.0), {"told": True}) is None
    verdict = rule.on_time(Moment(active_s=100.0), {"told": False})
    assert verdict is not None
    assert verdict.part == 0


@given(
    st.floats(1, 1e6),
    st.none() | st.floats(0, 1e4),
    st.none() | st.floats(0, 2e6),
    st.sampled_from([WallClock, Until, Cost]),
)
def test_nobody_oversleeps(whole_s: float, save_s: float | None, eta_s: float | None, kind: type[Limit]) -> None:
    made: dict[type[Limit], Limit] = {
        WallClock: WallClock(max_s=whole_s),
        Until: Until(at=1e9 + whole_s),
        Cost: Cost(max_cost=whole_s, price=HOUR),
    }
    night = Night(made[kind])
    night.more = {"save_s": save_s, "eta_s": eta_s}
    night.go(2 * whole_s)
    *_, (at, reached) = night.found
    lead_s = 0.0 if save_s is None else min(1.5 * save_s + 2, whole_s / 2)
    assert reached.part % 3 == 0
    assert at == pytest.approx(whole_s - lead_s, abs=1e-3)
    assert len({verdict.part for _, verdict in night.found}) == len(night.found) <= 3


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
