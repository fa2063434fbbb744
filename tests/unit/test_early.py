"""Records that come before all of them is known: judged at once, taken back and judged anew when they are whole."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record, Verdict
from overnight.history.store import decode_state, encode_state
from overnight.meter import Figures
from overnight.monitor import Monitor
from overnight.rules.divergence import Divergence
from overnight.rules.nonfinite import Nonfinite
from overnight.rules.rewind import Rewind
from overnight.rules.spike import Spike
from overnight.tail import Line


class Waiting:
    """Reads ``STEP LOSS``, and ``? LOSS``, whose step stands alone on a later line ``= STEP``, or nowhere."""

    name = "waiting"
    always = frozenset({"loss"})

    def __init__(self) -> None:
        self.held: list[Record] = []

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        """Read one line."""
        first, _, second = line.text.partition(" ")
        if first == "?":
            record = Record(reader=self.name, source=source, offset=line.offset, at=at, loss=float(second), early=True)
            self.held.append(record)
            return () if math.isfinite(float(second)) else (record,)
        if first == "=":
            return self._whole(int(second))
        try:
            return (
                Record(reader=self.name, source=source, offset=line.offset, at=at, step=int(first), loss=float(second)),
            )
        except ValueError:
            return None

    def _whole(self, step: int | None) -> tuple[Record, ...]:
        held, self.held = self.held, []
        return tuple(
            Record(reader=self.name, source=one.source, offset=one.offset, at=one.at, step=step, loss=one.loss)
            for one in held
        )

    def flush(self) -> tuple[Record, ...]:
        """Give what waits without its step."""
        return self._whole(None)

    def snapshot(self) -> list[Any]:
        """Return the places and losses that wait."""
        return [[one.source, one.offset, one.at, one.loss] for one in self.held]

    def restore(self, state: list[Any]) -> None:
        """Go on."""
        self.held = [
            Record(reader=self.name, source=source, offset=offset, at=at, loss=loss, early=True)
            for source, offset, at, loss in state
        ]


def heart() -> Monitor:
    """Return a monitor in its first attempt."""
    one = Monitor(
        make_readers=lambda: [Waiting()],
        rules=[Nonfinite(action="alert"), Divergence(max_loss=20.0, action="alert"), Spike()],
        time_rules=[],
        segment_rules=[Rewind()],
        figures=Figures(),
        window=10,
    )
    one.begin_attempt(1)
    return one


def log(*lines: str) -> bytes:
    """Return lines as bytes."""
    return "".join(f"{line}\n" for line in lines).encode()


HEALTHY = tuple(f"{step} 3.0" for step in range(1, 8))


def keys(verdicts: list[Verdict]) -> list[tuple[str, int, int | None]]:
    """Return what tells verdicts apart, and the step."""
    return [(one.rule, one.offset, one.step) for one in verdicts]


def test_judged_at_once_and_again_with_its_step() -> None:
    one = heart()
    place = len(log(*HEALTHY))
    found = one.feed(log(*HEALTHY, "? nan"), 1.0)
    assert keys(found.verdicts) == [("nonfinite", place, None)]
    assert len(found.entries) == one.meter.records == 7
    assert one.moves == 7
    assert one.sick_since == 7
    found = one.feed(log("= 8"), 1.0)
    assert keys(found.verdicts) == [("nonfinite", place, 8)]
    assert [(entry.record.step, entry.record.early) for entry in found.entries] == [(8, False)]
    assert (one.meter.records, one.meter.step, one.sick_since) == (8, 8, 8)
    assert one.feed(log("9 nan"), 1.0).verdicts == []  # told once per segment


def test_the_rules_remember_what_they_would_without_an_early_one() -> None:
    one, plain = heart(), heart()
    one.feed(log(*HEALTHY, "? nan", "= 8", "9 3.0"), 1.0)
    plain.feed(log(*HEALTHY, "8 nan", "9 3.0"), 1.0)
    assert one.memories == plain.memories
    assert repr(one.measure()) == repr(plain.measure())


def test_what_came_between_is_not_forgotten_and_not_told_twice() -> None:
    one = heart()
    found = one.feed(log(*HEALTHY, "? nan", "8 30.0", "9 3.0", "= 10"), 1.0)
    assert [(rule, step) for rule, _, step in keys(found.verdicts)] == [
        ("nonfinite", None),
        ("divergence", 8),
        ("nonfinite", 10),
    ]
    plain = heart()
    plain.feed(log(*HEALTHY, "10 nan"), 1.0)
    assert one.memories["nonfinite"]["train"] is True
    assert one.memories["divergence"]["armed"] is True
    assert one.memories["spike"]["slot"] == 9
    assert one.feed(log("11 30.0"), 1.0).verdicts == []


def test_two_that_wait_for_the_same_line() -> None:
    one = heart()
    found = one.feed(log(*HEALTHY, "? nan", "? inf", "= 8"), 1.0)
    place = len(log(*HEALTHY))
    assert keys(found.verdicts) == [("nonfinite", place, None), ("nonfinite", place, 8)]
    assert not one.snapshot()["early"]


def test_at_the_end_of_an_attempt_it_comes_without_a_step() -> None:
    one = heart()
    one.feed(log(*HEALTHY, "? nan") + b"? inf", 1.0)
    found = one.flush(1.0)
    assert [(rule, step) for rule, _, step in keys(found.verdicts)] == [("nonfinite", None)]
    assert [entry.record.loss for entry in found.entries] == [pytest.approx(math.nan, nan_ok=True), math.inf]
    assert not one.snapshot()["early"]


def test_a_finite_one_is_held_back_and_comes_at_the_end() -> None:
    one = heart()
    assert len(one.feed(log(*HEALTHY, "? 3.0"), 1.0).entries) == 7
    (entry,) = one.flush(1.0).entries
    assert (entry.record.loss, entry.record.step) == (3.0, None)


def test_a_whole_record_that_begins_a_segment_is_judged_anew() -> None:
    one = heart()
    found = one.feed(log(*(f"{step} 3.0" for step in range(100, 108)), "? nan", "= 103"), 1.0)
    assert [(rule, step) for rule, _, step in keys(found.verdicts)] == [
        ("nonfinite", None),
        ("rewind", 103),
        ("nonfinite", 103),
    ]
    assert one.sick_since == 103


def test_a_new_attempt_forgets_it() -> None:
    one = heart()
    one.feed(log(*HEALTHY, "? nan"), 1.0)
    one.begin_attempt(2)
    assert not one.snapshot()["early"]


def test_too_many_do_not_pile_up() -> None:
    one = heart()
    one.feed(log(*HEALTHY, *["? nan"] * 100), 1.0)
    assert len(one.snapshot()["early"]) <= 16
    one.feed(log(*(f"{step} 3.0" for step in range(8, 200))), 1.0)
    assert not one.snapshot()["early"]


lines = st.sampled_from(["? nan", "? inf", "? 2.9", "= ", "N 3.0", "N 30.0", "N nan", "B 3.0", "what"])


def written(plan: list[str]) -> bytes:
    """Return a log: each whole line has the next step, or (B) goes back."""
    step = 100
    text = []
    for one in plan:
        step = step - 20 if one[0] == "B" else step + (one[0] in "N=")
        text.append(one.replace("N", str(step)).replace("B", str(step)) + (str(step) if one == "= " else ""))
    return log(*text)


@settings(max_examples=150, deadline=None)
@given(plan=st.lists(lines, min_size=1, max_size=30), cuts=st.lists(st.integers(0, 300), max_size=8))
def test_any_cut_and_any_restart_gives_the_same(plan: list[str], cuts: list[int]) -> None:
    text = written(plan)
    straight = heart()
    expected = straight.feed(text, 1.0)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    entries, verdicts = [], []
    one = heart()
    for begin, end in itertools.pairwise(places):
        state = decode_state(encode_state(one.snapshot()))
        assert isinstance(state, dict)
        one = heart()
        one.restore(state)
        found = one.feed(text[begin:end], 1.0)
        entries += found.entries
        verdicts += found.verdicts
    assert repr(entries) == repr(expected.entries)
    assert repr(verdicts) == repr(expected.verdicts)
    assert encode_state(one.snapshot()) == encode_state(straight.snapshot())


@settings(max_examples=150, deadline=None)
@given(plan=st.lists(st.sampled_from(["? nan", "= ", "N 3.0", "N 2.0", "N nan"]), max_size=30))
def test_what_was_told_early_is_told_with_its_step(plan: list[str]) -> None:
    one = heart()
    found = one.feed(written(plan), 1.0)
    told = [verdict for verdict in found.verdicts if verdict.step is None]
    assert len(told) <= 1  # once per segment, and none begins here
    for verdict in told:
        steps = [entry.record.step for entry in found.entries if entry.record.offset == verdict.offset]
        assert [other.step for other in found.verdicts if other.offset == verdict.offset] == [None, *steps]
    places = [entry.record.offset for entry in (*found.entries, *one.flush(1.0).entries)]
    assert len(places) == len(set(places)) == sum(text not in {"= ", "what"} for text in plan)
