"""What each line has moved on: steps gained and done again, the warm-up, micro-steps, interruptions; also at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Places
from overnight.events import Record
from overnight.meter import Meter
from overnight.pacing.advance import WARM_UP_STEPS, Advance, Moved
from overnight.yardsticks.basis import Figures


def walked(steps: list[int | None], one: Advance | None = None, interval: int = 1) -> list[Moved]:
    """Return what each step of one start stands for; None in ``steps``: an evaluation or a save was announced."""
    one, previous, found = one or Advance(), None, []
    for step in steps:
        if step is None:
            one.interrupt()
            continue
        if previous is not None and step < previous:
            previous = None
        found.append(one.take(step, previous, interval))
        if found[-1].gain:
            one.opened(found[-1].gain)
        previous = step
    return found


def clean(steps: list[int | None], one: Advance | None = None) -> list[int]:
    """Return the steps whose lines are clean."""
    told = walked(steps, one)
    return [step for step, moved in zip([s for s in steps if s is not None], told, strict=True) if moved.clean]


# ---- clean steps


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([*range(1, 16)], [11, 12, 13, 14, 15]),
        ([*range(15)], [10, 11, 12, 13, 14]),
        ([10, 20, 30], [20, 30]),  # each line stands for ten steps, and so does the first
        ([0, 10, 20, 30], [20, 30]),  # the line of step 10 is of steps 1 to 10: nine of them are of the warm-up
        ([1, 10, 20, 30], [20, 30]),  # logging_first_step
        ([9, 19, 29], [19, 29]),
        ([100, 200, 300], [200, 300]),
        ([0, 100, 200, 300], [200, 300]),
        ([*range(1, 11), 20, 30], [20, 30]),
        ([1_000_000, 1_000_050, 1_000_100], [1_000_100]),  # may have been printed at once: only what is sure
        ([1_000_001, *range(1_000_002, 1_000_013)], [1_000_011, 1_000_012]),
    ],
)
def test_the_first_ten_steps_of_a_start_are_left_out(steps: list[int | None], expected: list[int]) -> None:
    assert clean(steps) == expected


def test_a_step_with_something_else_before_it_is_left_out() -> None:
    assert clean([*range(1, 14), None, 14, 15, None, None, 16, 17]) == [11, 12, 13, 15, 17]


def test_each_start_has_its_own_warm_up_by_the_way_its_lines_come() -> None:
    late = Advance()
    walked([50, 100, 150], late)
    late.begin_attempt()
    assert clean([100, 150, 200], late) == [150, 200]  # the first line of this program stands for fifty steps
    early = Advance()
    walked([0, 50, 100, 150], early)
    early.begin_attempt()
    assert clean([100, 150, 200], early) == [200]  # this one prints its first step at once


def test_epochs_that_count_anew_are_no_new_warm_up() -> None:
    assert clean([*range(8), *range(8), *range(8)]) == [*range(2, 8), *range(8)]


def test_lines_without_a_step_are_counted() -> None:
    one = Advance()
    assert [one.take(None, None, 1).clean for _ in range(12)] == [False] * WARM_UP_STEPS + [True] * 2


# ---- steps that count


def test_gains_and_steps_done_count_each_step_once_over_attempts() -> None:
    one = Advance()
    walked([10, 20, 30, 40], one)
    assert (one.high, one.steps_done) == (40, 40)
    one.begin_attempt()
    again = walked([30, 40, 50, 60], one, interval=10)
    assert [(moved.gain, moved.redone) for moved in again] == [(10, True), (10, True), (10, False), (10, False)]
    assert (one.high, one.steps_done, one.known) == (60, 60, True)


def test_a_rewind_within_an_attempt_is_done_again_and_an_epoch_is_not() -> None:
    rewound = Advance()
    walked([*range(1, 21)], rewound)
    rewound.fall(11, 20, anew=False, interval=1)
    assert all(moved.redone for moved in walked([*range(11, 21)], rewound))
    assert rewound.steps_done == 20
    anew = Advance()
    walked([*range(1, 21)], anew)
    anew.fall(1, 20, anew=True, interval=1)
    assert not any(moved.redone for moved in walked([*range(1, 21)], anew))
    assert anew.steps_done == 40
    anew.begin_attempt()
    assert not anew.known  # which of the epochs' steps come again nobody can say


def test_the_first_step_is_known_once_the_second_has_come() -> None:
    for steps, done in (
        ([5], 0),
        ([5, 6], 2),
        ([10, 20], 20),
        ([0, 10], 11),
        ([0, 1], 2),
        ([1_000_000, 1_000_050], 100),
    ):
        one = Advance()
        walked(list(steps), one)
        assert one.steps_done == done, steps


# ---- micro-steps


def parts(lines_of_a_step: int, accumulate: int, steps: int = 4) -> list[list[float]]:
    """Return the parts of the lines of each step."""
    told = walked([step for step in range(1, steps + 1) for _ in range(lines_of_a_step)], Advance(accumulate))
    found = [moved.part for moved in told]
    return [found[at : at + lines_of_a_step] for at in range(0, len(found), lines_of_a_step)]


def test_as_many_lines_as_micro_steps_share_a_step() -> None:
    first, *others = parts(4, 4)
    assert first == [1.0, 0.0, 0.0, 0.0]  # nobody knows yet
    assert others == [[0.25] * 4] * 3


@pytest.mark.parametrize("lines", [1, 2, 3, 5])
def test_another_number_of_lines_is_of_ranks_that_say_the_same(lines: int) -> None:
    first, *others = parts(lines, 4)
    assert first == [1.0] + [0.0] * (lines - 1)
    assert others == [[1.0] * lines] * 3


def test_a_step_of_fewer_micro_steps_ends_an_epoch_and_nothing_else() -> None:
    steps = [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4]
    assert [moved.part for moved in walked([*steps], Advance(4))][4:] == [0.25] * 10


def test_without_accumulation_each_line_is_whole() -> None:
    assert parts(2, 1) == [[1.0, 1.0]] * 4


def test_all_lines_of_a_step_are_as_clean_as_its_first() -> None:
    one = Advance(2)
    told = walked([*(step for step in range(1, 13) for _ in "ab"), None, 13, 13, 14, 14], one)
    assert [moved.clean for moved in told[-8:]] == [True, True, True, True, False, False, True, True]


# ---- saved, and many at once


def test_it_goes_on_where_it_was_saved_and_an_older_version_knew_only_the_highest_step() -> None:
    one = Advance(2)
    walked([1, 1, 2, 2, 3], one)
    again = Advance.restore(one.snapshot(), 3, 2)
    assert again.snapshot() == one.snapshot()
    old = Advance.restore(None, 40, 1)
    assert (old.high, old.known) == (40, False)
    assert Advance.restore(None, None, 1).known


SAID = st.fixed_dictionaries(
    {
        "lines": st.integers(1, 30),
        "gap": st.sampled_from([1, 1, 10, 50]),
        "dt": st.sampled_from([None, None, 0.1, 10.0]),
        "pause": st.sampled_from([0.1, 0.1, 1.0, 60.0]),
        "before": st.sampled_from(["", "", "", "interrupt", "attempt", "double", "back"]),
        "totals": st.booleans(),
        "useful": st.booleans(),
    }
)


@settings(max_examples=200, deadline=None)
@given(
    plan=st.lists(SAID, min_size=1, max_size=8),
    first=st.sampled_from([0, 1, 10, 1_000_000]),
    figures=st.sampled_from(
        [Figures(tokens_per_step=100.0, devices=2), Figures(), Figures(tokens_per_step=800.0, accumulate=2)]
    ),
    window=st.sampled_from([1, 4, 10, 30]),
)
def test_many_at_once_are_as_one_by_one(plan: list[dict[str, Any]], first: int, figures: Figures, window: int) -> None:
    many, single = Meter(figures, window), Meter(figures, window)
    at, step = 1e9, first
    for meter in (many, single):
        meter.add(Record(reader="test", step=first, loss=3.0, at=at))
    for said in plan:
        at += said["pause"] * said["gap"] * said["lines"]
        step = prepared(said, step, at, (many, single))
        steps = [step + said["gap"] * n for n in range(1, said["lines"] + 1)]
        step = steps[-1]
        columns: dict[str, list[float]] = {} if said["dt"] is None else {"dt_s": [said["dt"]] * len(steps)}
        if said["totals"]:
            columns["tokens_total"] = [90.0 * one for one in steps]
        batch = Batch(
            reader="test", source=0, at=at, rank=None, steps=steps, loss=[3.0] * len(steps), columns=columns,
            extra={"non_pad": [50.0] * len(steps)} if said["useful"] else {}, places=Places(b"x\n" * len(steps), 0),
        )  # fmt: skip
        place = 0
        while place < len(steps):  # as the monitor does it: one by one until many can be taken
            if many.follows(None, steps[place]):
                many.add_many(batch.part(place, len(steps), attempt=1, segment=0))
                break
            many.add(batch.record(place))
            place += 1
        for entry in batch:
            single.add(entry.record)
        assert repr(many.snapshot()) == repr(single.snapshot())
        assert repr(many.measure()) == repr(single.measure())


def prepared(said: dict[str, Any], step: int, at: float, meters: tuple[Meter, Meter]) -> int:
    """Let something happen to both meters before the lines of ``said``; return the step before these."""
    for meter in meters:
        if said["before"] == "interrupt":
            meter.interrupt()
        elif said["before"] == "attempt":
            meter.begin_attempt()
        elif said["before"] == "double":
            meter.add(Record(reader="test", step=step, loss=3.0, at=at, dt_s=said["dt"]))
    return max(0, step - 20) if said["before"] in ("attempt", "back") else step
