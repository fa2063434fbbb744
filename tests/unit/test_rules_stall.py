"""Stalls: silences of a training on a clock that the test moves, from healthy nights to hangs of every kind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Verdict
from overnight.rules import Moment, Quiet, RecordRule, TimeRule
from overnight.rules.stall import Stall

MINUTE = 60.0
HOUR = 3600.0


@dataclass
class Training:
    """A training as the rule sees it: what it does happens at ``now``, and ``rest`` lets time pass.

    The rule is asked when something happens and when it said that it has to be, and at no other time.
    """

    rule: Stall = field(default_factory=Stall)
    now: float = 0.0
    moved_at: float = 0.0
    log_at: float = 0.0
    file_at: float = 0.0
    said_at: float | None = None
    phase: str | None = None
    gap_s: float | None = None
    stepped: bool = False
    planned: bool = False
    announced: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    found: list[tuple[float, Verdict]] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.memory = self.memory or self.rule.fresh()
        self.ask()

    @property
    def moment(self) -> Moment:
        quiet = Quiet(
            step_s=self.now - self.moved_at,
            log_s=self.now - self.log_at,
            file_s=self.now - max(self.file_at, self.log_at),
            largest_gap_s=self.gap_s,
            stepped=self.stepped,
            planned=self.planned,
            phase=self.phase,
            phase_s=None if self.phase is None or self.said_at is None else self.now - self.said_at,
        )
        return Moment(active_s=self.now, elapsed_s=self.now, at=1e9 + self.now, quiet=quiet)

    def ask(self) -> None:
        self.asked += 1
        verdict = self.rule.on_time(self.moment, self.memory)
        self.memory = json.loads(json.dumps(self.memory))  # what is stored is what is remembered
        if verdict is not None:
            self.found.append((self.now, verdict))

    def rest(self, seconds: float) -> Training:
        """Let time pass in which nothing happens."""
        end, most = self.now + seconds, self.asked + 12
        while (due_s := self.rule.due_s(self.moment, self.memory)) <= end - self.now:
            assert self.asked < most, f"asked again and again for nothing: {self.moment}, {self.memory}, {due_s}"
            self.now = max(self.now + due_s, nextafter(self.now, inf))
            self.ask()
        self.now = end
        return self

    def step(self) -> Training:
        if self.stepped and not self.announced:
            self.gap_s = max(self.gap_s or 0.0, self.now - self.moved_at)
        self.moved_at = self.log_at = self.now
        self.stepped, self.announced, self.phase, self.said_at = True, False, None, None
        self.ask()
        return self

    def steps(self, count: int, dt_s: float = 0.25) -> Training:
        for _ in range(count):
            self.rest(dt_s).step()
        return self

    def say(self, phase: str | None) -> Training:
        self.phase, self.said_at, self.log_at, self.announced = phase, self.now, self.now, True
        self.ask()
        return self

    def end(self) -> Training:
        """What was announced is over."""
        return self.say(None)

    def log(self) -> Training:
        self.log_at = self.now
        self.ask()
        return self

    def file(self) -> Training:
        self.file_at = self.now
        self.ask()
        return self

    def again(self) -> Training:
        """A new attempt of the command begins."""
        verdict = self.rule.on_time(Moment(active_s=self.now), self.memory)
        assert verdict is None
        self.moved_at = self.log_at = self.file_at = self.now
        self.stepped = self.planned = self.announced = False
        self.phase = self.said_at = None
        self.ask()
        return self

    @property
    def told(self) -> list[tuple[float, str, str]]:
        """When what was found since the last step, seconds of its silence, with severity and action."""
        return [(round(at, 6), one.severity, one.action) for at, one in self.found]

    @property
    def actions(self) -> list[str]:
        return [one.action for _, one in self.found]

    @property
    def texts(self) -> list[str]:
        return [one.text for _, one in self.found]


def running(rule: Stall | None = None, dt_s: float = 0.25) -> Training:
    """Return a training in its eleventh step; its clock begins with the silence."""
    one = Training(rule=rule or Stall(), now=-11 * dt_s, moved_at=-11 * dt_s, log_at=-11 * dt_s, file_at=-11 * dt_s)
    one.steps(11, dt_s)
    assert one.now == 0.0
    return one


# -- healthy runs ----------------------------------------------------------------------------------------------------


def test_a_silent_start_an_evaluation_and_a_save_are_no_alarms() -> None:
    one = Training().rest(25).step().steps(100)
    one.say("evaluating").rest(20).step().steps(100)
    one.say("saving").rest(20).step().steps(100)
    one.rest(20).step().steps(100)  # a save that nobody announced
    assert one.found == []


def test_a_night_with_an_evaluation_every_ten_minutes() -> None:
    one = Training().rest(40).step()
    for _ in range(60):
        one.steps(600, 1.0).rest(40).step()
    assert one.found == []
    announced = Training().rest(40).step()
    for _ in range(20):
        announced.steps(600, 1.0).say("evaluating").rest(40).end().rest(2).step()
    assert announced.found == []


def test_three_silent_minutes_after_quick_steps_are_only_alerted() -> None:
    assert running().rest(180).told == [(60.0, "warn", "alert")]
    assert running().say("evaluating").rest(180).told == [(60.0, "note", "note")]


def test_the_own_gaps_of_a_run_are_learned() -> None:
    one = Training().rest(1).step().steps(3, 300.0)
    begin = one.now
    one.rest(2 * HOUR)
    assert [(at - begin, severity, action) for at, severity, action in one.told] == [
        (1500.0, "warn", "alert"),
        (3000.0, "critical", "stop"),
    ]
    assert one.found[0][1].evidence == {
        "silent_s": 1500.0,
        "limit_s": 1500.0,
        "largest_gap_s": 300.0,
        "phase": None,
    }


def test_before_the_second_step_nothing_is_known_of_the_gaps() -> None:
    one = Training().rest(1).step()
    one.rest(3 * HOUR)
    assert one.told == [(1 + 30 * MINUTE, "warn", "alert"), (1 + 2 * HOUR, "critical", "stop")]


def test_a_growing_checkpoint_explains_a_silence() -> None:
    one = running()
    for _ in range(18):
        one.rest(10).file()
    assert one.told == [(60.0, "note", "note")]
    one.rest(61)  # and the alert comes when it grows no more
    assert one.told[1:] == [(240.0, "warn", "alert")]
    last = running().rest(1).file().rest(80)  # the last save before a hang explains nothing
    assert last.told == [(61.0, "warn", "alert")]


def test_a_silent_console_beside_files_that_grow_is_never_ended() -> None:
    one = running()
    for _ in range(6 * 360):
        one.rest(10).file()
    assert one.told == [(60.0, "note", "note"), (30 * MINUTE, "warn", "alert")]
    one.rest(HOUR)
    assert one.told[2:] == [(6 * HOUR + 30 * MINUTE, "critical", "stop")]


def test_announced_silences_are_learned_too() -> None:
    """Evaluations of 15 minutes: the first is alerted, the others are known."""
    one = running()
    for _ in range(5):
        one.say("evaluating").rest(15 * MINUTE).step().steps(20)
    assert one.actions.count("alert") == 1
    assert [text for text in one.texts if text.startswith("going on")] == [
        "going on after at least 10 min without a new step"
    ]
    shorter = running()
    for _ in range(5):
        shorter.say("evaluating").rest(15 * MINUTE).end().rest(1).step().steps(20)
    assert shorter.actions.count("alert") == 1


def test_the_end_of_what_was_announced_begins_a_silence_of_its_own() -> None:
    one = running()
    for _ in range(8 * 12):  # an evaluation of eight minutes
        one.rest(5).say("evaluating")
    one.end()
    assert one.actions == ["note"]
    one.rest(HOUR)
    assert one.told[1:] == [(540.0, "warn", "alert"), (480.0 + 1800.0, "critical", "stop")]


def test_a_long_announced_evaluation_that_prints_is_not_ended_when_it_is_over() -> None:
    one = running()
    for _ in range(3 * 60):
        one.rest(60).say("evaluating")
    one.end().rest(1).log().step()
    assert "stop" not in one.actions


# -- hangs -----------------------------------------------------------------------------------------------------------


def test_a_hang_is_alerted_once_and_ended() -> None:
    one = running().rest(5 * HOUR)
    assert one.told == [(60.0, "warn", "alert"), (30 * MINUTE, "critical", "stop")]
    assert one.texts == [
        "no new step for 60 s, the longest gap before was 0.25 s",
        "no new step for 30 min, the longest gap before was 0.25 s",
    ]
    assert [verdict.part for _, verdict in one.found] == [1, 2]


def test_a_hang_of_ten_times_the_gap_is_an_alarm() -> None:
    assert "alert" in running(dt_s=8.0).rest(80).actions


def test_a_busy_hang_is_ended_at_four_times_the_limit() -> None:
    one = running()
    while one.now < 3 * HOUR:
        one.rest(1).log()
    assert one.told == [(60.0, "warn", "alert"), (2 * HOUR, "critical", "stop")]


def test_a_hang_that_printed_once_more_is_ended_half_an_hour_after_that() -> None:
    one = running().rest(600).log().rest(2 * HOUR)
    assert one.told == [(60.0, "warn", "alert"), (600.0 + 30 * MINUTE, "critical", "stop")]


def test_an_announced_silence_that_never_ends() -> None:
    one = running().rest(10).say("evaluating").rest(5 * HOUR)
    assert one.told == [
        (60.0, "note", "note"),
        (10 + 10 * MINUTE, "warn", "alert"),
        (10 + 2 * HOUR, "critical", "stop"),
    ]
    assert one.texts[0] == "no new step for 60 s, the longest gap before was 0.25 s (announced: evaluating)"
    assert one.found[0][1].evidence["phase"] == "evaluating"


def test_an_announcement_that_is_repeated_for_ever() -> None:
    one = running()
    while one.now < 10 * HOUR:
        one.say("evaluating").rest(60)
    assert one.told == [
        (60.0, "note", "note"),
        (2 * HOUR, "warn", "alert"),
        (8 * HOUR, "critical", "stop"),
    ]


def test_a_hang_before_the_first_step_is_alerted_and_never_ended() -> None:
    one = Training().rest(100 * HOUR)
    assert one.told == [(30 * MINUTE, "warn", "alert")]
    (text,) = one.texts
    assert text.startswith("no first step after 30 min")
    assert "--pattern" in text
    assert "--start-limit" in text


def test_an_announced_start_is_alerted_later() -> None:
    one = Training().rest(25 * MINUTE).say("compiling").rest(HOUR)
    assert one.told == [(30 * MINUTE, "note", "note"), (55 * MINUTE, "warn", "alert")]
    one = Training()
    while one.now < 3 * HOUR:
        one.say("downloading").rest(60)
    assert one.told == [(30 * MINUTE, "note", "note"), (2 * HOUR, "warn", "alert")]


def test_a_hang_at_exit() -> None:
    one = running()
    one.planned = True
    one.rest(HOUR)
    assert one.told == [(10 * MINUTE, "warn", "alert"), (30 * MINUTE, "critical", "stop")]
    assert one.texts[1] == "the last step was reached, and the command is still there 30 min later"
    saving = running()
    saving.planned = True
    saving.say("uploading").rest(3 * HOUR)
    assert saving.told == [(10 * MINUTE, "warn", "alert"), (2 * HOUR, "critical", "stop")]


# -- limits of the user's --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit_s", [20.0, 45.5, 59.0])
def test_a_stall_limit_holds_to_the_second_whatever_grows(limit_s: float) -> None:
    rule = Stall(limit_s=limit_s)
    expected = [(limit_s / 2, "warn", "alert"), (limit_s, "critical", "stop")]
    assert running(rule).rest(100).told == expected
    busy = running(rule)
    while busy.now < 100:
        busy.rest(0.5).log()
    assert busy.told == expected
    assert running(rule).say("evaluating").rest(100).told == [(limit_s / 2, "note", "note"), expected[1]]
    assert busy.texts[1].endswith(f"the limit is {limit_s:g} s") or limit_s == 45.5


def test_a_long_stall_limit_is_alerted_at_the_learned_one() -> None:
    one = running(Stall(limit_s=4 * HOUR)).rest(10 * HOUR)
    assert one.told == [(60.0, "warn", "alert"), (4 * HOUR, "critical", "stop")]
    slow = running(Stall(limit_s=1000.0), dt_s=300.0).rest(2000)
    assert slow.told == [(500.0, "warn", "alert"), (1000.0, "critical", "stop")]


def test_a_stall_limit_is_none_on_the_start_or_the_exit() -> None:
    rule = Stall(limit_s=20.0)
    assert Training(rule=rule).rest(100).found == []
    one = running(rule)
    one.planned = True
    assert one.rest(100).found == []
    patient = running(Stall(limit_s=3 * HOUR))
    patient.planned = True
    assert patient.rest(4 * HOUR).told[-1] == (3 * HOUR, "critical", "stop")


def test_a_start_limit_holds_to_the_second() -> None:
    rule = Stall(start_limit_s=20.0)
    one = Training(rule=rule).say("compiling").rest(100)
    assert one.told == [(20.0, "critical", "stop")]
    assert one.texts == ["no first step within 20 s"]
    assert Training(rule=rule).rest(15).step().steps(10).rest(30).found == []  # the slow start is fine
    assert Training(rule=Stall(start_limit_s=HOUR)).rest(HOUR).told == [
        (30 * MINUTE, "warn", "alert"),
        (HOUR, "critical", "stop"),
    ]


def test_an_exit_limit_holds_to_the_second() -> None:
    one = running(Stall(exit_limit_s=20.0))
    one.planned = True
    one.say("saving").rest(10).file().rest(100)
    assert one.told == [(20.0, "critical", "stop")]
    assert one.texts[0].startswith("the last step was reached, and the command is still there 20 s later")


def test_it_fires_at_the_limit_and_not_before() -> None:
    rule = Stall(limit_s=20.0)
    memory = rule.fresh() | {"told": 2}
    quiet = Quiet(step_s=19.999, log_s=0.0, file_s=0.0, largest_gap_s=0.25, stepped=True)
    assert rule.on_time(Moment(active_s=0.0, quiet=quiet), memory) is None
    verdict = rule.on_time(Moment(active_s=0.0, quiet=Quiet(step_s=20.0, log_s=0.0, file_s=0.0, stepped=True)), memory)
    assert verdict is not None
    assert verdict.evidence == {"silent_s": 20.0, "limit_s": 20.0, "largest_gap_s": None, "phase": None}


def test_another_action() -> None:
    assert running(Stall(action="alert")).rest(5 * HOUR).told == [(60.0, "warn", "alert")]
    assert running(Stall(action="alert", limit_s=20.0)).rest(HOUR).told == [(20.0, "warn", "alert")]
    assert running(Stall(action="note")).rest(5 * HOUR).told == [(60.0, "warn", "note")]
    assert running(Stall(action="terminate")).rest(5 * HOUR).actions == ["alert", "terminate"]
    one = running(Stall(action="alert", limit_s=20.0)).rest(30).step()
    assert one.texts[1] == "going on after at least 20 s without a new step"


# -- over and over ---------------------------------------------------------------------------------------------------


def test_it_is_armed_anew_and_every_finding_has_a_part_of_its_own() -> None:
    one = running()
    for _ in range(3):
        one.rest(max(100.0, 6 * (one.gap_s or 0.0))).step().steps(10)
    assert one.actions == ["alert", "note"] * 3
    one.rest(10 * HOUR)
    assert one.actions[-2:] == ["alert", "stop"]
    parts = [verdict.part for _, verdict in one.found]
    assert len(set(parts)) == len(parts) == 8


def test_a_new_attempt_is_armed_anew_and_keeps_what_was_learned() -> None:
    one = running(Stall(start_limit_s=600.0)).rest(5 * HOUR)
    assert one.actions == ["alert", "stop"]
    one.again().rest(15).step().steps(5)
    assert one.actions == ["alert", "stop"], "another attempt is not the old one going on"
    one.rest(5 * HOUR)
    assert one.actions == ["alert", "stop"] * 2
    begin = one.again().now
    one.rest(HOUR)
    assert one.told[4:] == [(begin + 600.0, "critical", "stop")]
    parts = [verdict.part for _, verdict in one.found]
    assert len(set(parts)) == len(parts)


def test_a_limit_that_is_changed_while_a_silence_goes_on() -> None:
    one = running(Stall(action="alert", limit_s=20.0)).rest(30)
    one.rule = Stall(action="alert", limit_s=60.0)
    one.rest(100)
    one.rule = Stall(limit_s=200.0)
    one.rest(100)
    assert one.told == [(20.0, "warn", "alert"), (60.0, "warn", "alert"), (200.0, "critical", "stop")]
    parts = [verdict.part for _, verdict in one.found]
    assert len(set(parts)) == len(parts)


def test_an_attempt_that_follows_at_once_is_not_the_old_one_going_on() -> None:
    one = running().say("evaluating").rest(HOUR)
    assert one.actions == ["note", "alert"]
    one.moved_at = one.log_at = one.now
    one.stepped, one.phase, one.said_at = False, None, None
    one.ask()
    assert one.actions == ["note", "alert"]
    assert one.memory["longest_announced_s"] == 0.0, "that silence was never come back from"


def test_going_on_is_told_at_once() -> None:
    one = running().rest(100)
    moved = Quiet(step_s=0.01, log_s=0.01, file_s=0.01, largest_gap_s=100.0, stepped=True)
    assert one.rule.due_s(Moment(active_s=100.0, quiet=moved), one.memory) == 0.0
    verdict = one.rule.on_time(Moment(active_s=100.0, quiet=moved), one.memory)
    assert verdict is not None
    assert (verdict.severity, verdict.action, verdict.text) == (
        "note",
        "note",
        "going on after at least 60 s without a new step",
    )
    assert one.rule.due_s(Moment(active_s=100.0, quiet=moved), one.memory) == pytest.approx(500.0, abs=0.1)


def test_between_two_attempts_it_is_never_due() -> None:
    rule = Stall(limit_s=1.0)
    assert rule.due_s(Moment(active_s=1e9)) == inf
    assert rule.due_s(Moment(active_s=1e9), rule.fresh()) == inf
    assert rule.on_time(Moment(active_s=1e9), rule.fresh()) is None


def test_a_memory_of_an_older_version_is_read() -> None:
    rule = Stall(limit_s=20.0)
    memory: dict[str, Any] = {}
    quiet = Quiet(step_s=30.0, log_s=30.0, file_s=30.0, stepped=True)
    assert rule.due_s(Moment(active_s=0.0, quiet=quiet), memory) <= 0
    assert rule.on_time(Moment(active_s=0.0, quiet=quiet), memory) is not None


def test_it_is_a_rule_over_time() -> None:
    assert isinstance(Stall(), TimeRule)
    assert not isinstance(Stall(), RecordRule)


LIMITS = st.none() | st.floats(0.5, 1e5)
ACTIONS = st.sampled_from(["note", "alert", "stop", "terminate"])
EVENTS = st.sampled_from(["step", "log", "file", "evaluating", "end", "again", "planned"])


@settings(deadline=None)
@given(
    st.builds(Stall, limit_s=LIMITS, start_limit_s=LIMITS, exit_limit_s=LIMITS, action=ACTIONS),
    st.lists(st.tuples(st.floats(0, 2e4), EVENTS), max_size=12),
)
def test_nobody_oversleeps_and_nobody_polls(rule: Stall, events: list[tuple[float, str]]) -> None:
    """One that sleeps by ``due_s`` finds all that one finds that looks now and then, and is asked a few times."""
    sleeper, watcher = Training(rule=rule), Training(rule=rule)
    for seconds, event in [*events, (3e4, "log")]:
        sleeper.rest(seconds)
        begin = watcher.now
        for part in range(1, 11):
            watcher.now = begin + seconds * part / 10
            watcher.ask()
        watcher.now = sleeper.now
        watcher.ask()
        assert sleeper.memory["told"] in (watcher.memory["told"], 1), "only a note may come and go unseen"
        for one in (sleeper, watcher):
            if event == "planned":
                one.planned = one.stepped
            elif event == "evaluating":
                one.say(event)
            else:
                getattr(one, event)()
    assert sleeper.asked < 6 * (len(events) + 2)
    parts = [verdict.part for _, verdict in sleeper.found]
    assert len(set(parts)) == len(parts)
    # A note that only one of them has told makes the next silence another one: what is told of it is the same.
    assert {verdict.part % 4 for _, verdict in watcher.found} <= {part % 4 for part in parts}
