"""Clean and wall-clock figures of whole nights, worked out by hand: warm-ups, evaluations, saves, steps done again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from overnight.monitor import Monitor
from overnight.overall import Whole, whole
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

AT = 1_700_000_000.0
TOKENS = 1000.0


def heart(**facts: Any) -> Monitor:
    """Return a monitor in its first attempt."""
    facts = {"tokens_per_step": TOKENS, "params": 1_000_000, "peak_tflops": 0.1, **facts}
    spec = RunSpec(name="n", argv=("x",), executable="/bin/true", cwd="/", log="/l", **facts)
    one = make_monitor(spec, lambda _: None)
    one.begin_attempt(1)
    return one


def read(one: Monitor, lines: Iterable[str], at: float = 0.0) -> None:
    """Let the monitor read lines that arrive together."""
    one.feed("".join(f"{line}\n" for line in lines).encode(), AT + at)


def of(step: int, dt: float | None, more: str = "") -> str:
    """Return a progress line."""
    return f"step: {step}, loss: 3.0{more}" + ("" if dt is None else f", dt: {dt}")


# ---- two attempts, an evaluation, a save: by hand


def test_a_night_with_a_line_for_each_step() -> None:
    one = heart()
    read(one, (of(n, 2.0 if n <= 10 else 0.5) for n in range(1, 21)))
    read(one, ["evaluating ...", "eval: val_loss: 3.1", of(21, 3.5)])
    read(one, (of(n, 0.5) for n in range(22, 26)))
    read(one, ["Saving checkpoint to /ckpt", of(26, 1.5)])
    read(one, (of(n, 0.5) for n in range(27, 31)))
    one.begin_attempt(2)
    read(one, (of(n, 2.0) for n in range(21, 31)))
    read(one, (of(n, 0.0 if n == 35 else 0.5) for n in range(31, 41)))
    measure = one.measure()
    # Clean: 11 to 30 without 21 and 26, then 31 to 40 without 35: 27 steps of half a second.
    assert measure.tokens_per_second_clean == 27 * TOKENS / 13.5
    assert measure.mfu_clean == pytest.approx(6e6 * 2000 / 1e11)
    # The average is over all lines that say a time: 10 * 2 + 18 * 0.5 + 3.5 + 1.5, then 20 + 4.5.
    assert measure.tokens_per_second_avg == 49 * TOKENS / 58.5
    # Of 40 steps 37 tell how long they took: the first ten 20 s, 18 a half, 9 a half. Done again is no work.
    done = whole(one.meter, 100.0)
    assert done.goodput == pytest.approx(33.5 / 37 * 40 / 100)
    assert done.tokens_per_second == pytest.approx(40 * TOKENS / 100)


def test_a_night_with_a_line_for_every_ten_steps() -> None:
    one = heart()
    read(one, [of(10, 2.0), *(of(n, 0.5) for n in range(20, 60, 10)), "evaluating ...", of(60, 4.0), of(70, 0.5)])
    one.begin_attempt(2)
    read(one, [of(60, 2.0), of(70, 0.25), of(80, 0.25), of(90, 0.25)])
    measure = one.measure()
    # Clean: 20 to 50 and 70 of the first start; 70, 80 and 90 of the second, which came at step 50.
    assert measure.tokens_per_second_clean == pytest.approx(8 * TOKENS / (5 * 0.5 + 3 * 0.25))
    done = whole(one.meter, 400.0)
    timed_s = 10 * 2.0 + 40 * 0.5 + 10 * 0.5 + 20 * 0.25  # of 80 steps: how long those up to 60 took nobody can say
    assert done.goodput == pytest.approx(timed_s / 80 * 90 / 400)
    assert done.tokens_per_second == pytest.approx(90 * TOKENS / 400)


def test_a_night_with_a_line_for_every_hundred_steps() -> None:
    one = heart()
    read(one, [of(100, 0.9), *(of(n, 0.5) for n in range(200, 600, 100))])
    one.begin_attempt(2)
    read(one, [of(500, 0.9), of(600, 0.5), "saving model", of(700, 0.6), of(800, 0.5)])
    assert one.measure().tokens_per_second_clean == pytest.approx(TOKENS / 0.5)
    done = whole(one.meter, 1000.0)  # 0.6 is no more than twice the usual: the save is not in it
    assert done.goodput == pytest.approx((90 + 4 * 50 + 50 + 60 + 50) / 1000)


# ---- ten seconds of stepping, ten of saving


def saving(*, dt: bool = True, within: bool = False, told: bool = True, again: bool = False) -> Monitor:
    """Return a monitor that has read 200 s: a hundred steps of 0.1 s and 10 s of saving by turns.

    ``within``: the step behind a save prints the time of both. ``again``: a crash every other time, and what was done
    since the last save is done again.
    """
    one, at, step, attempt = heart(tokens_per_step=100.0), 0.0, 0, 1
    for turn in range(10):
        if again and turn % 2:
            attempt += 1
            one.begin_attempt(attempt)
            step -= 100
        for number in range(100):
            at, step = at + 0.1, step + 1
            read(one, [of(step, (10.1 if within and turn and not number else 0.1) if dt else None)], at)
        if told:
            read(one, ["saving checkpoint to /c"], at)
        at += 10.0
        if told:
            read(one, ["saved checkpoint"], at)
    return one


@pytest.mark.parametrize(
    "how", [{}, {"within": True}, {"dt": False}, {"dt": False, "told": False}], ids=lambda how: " ".join(how) or "plain"
)
def test_half_stepping_and_half_saving(how: dict[str, bool]) -> None:
    one = saving(**how)
    measure, done = one.measure(), whole(one.meter, 200.0)
    assert measure.tokens_per_second == pytest.approx(1000, rel=1e-6)
    assert measure.tokens_per_second_clean == pytest.approx(1000, rel=1e-6)
    assert done.tokens_per_second == pytest.approx(500, rel=1e-6)
    assert done.goodput == pytest.approx(0.5, rel=1e-6)


def test_what_is_done_again_after_a_crash_does_not_count() -> None:
    done = whole(saving(again=True).meter, 200.0)
    assert done.tokens_per_second == pytest.approx(250)
    assert done.goodput == pytest.approx(0.25)


def test_a_machine_that_has_become_slow_is_stepping_all_the_same() -> None:
    one, at = heart(), 0.0
    for step in range(1, 201):
        at += 0.1 if step <= 100 else 1.0
        read(one, [of(step, None)], at)
    assert whole(one.meter, at).goodput == pytest.approx(1.0, abs=0.1)


def test_the_lines_of_one_arrival_share_its_pause() -> None:
    one, at, step = heart(), 0.0, 0
    for turn in range(8):
        for _ in range(12):  # ten lines a second, which arrive together
            at += 1.0
            if turn and not step % 120:
                read(one, ["saving checkpoint"], at)
                at += 20.0
            read(one, [of(step := step + 1, None) for _ in range(10)], at)
    assert one.measure().tokens_per_second_clean == pytest.approx(10 * TOKENS, rel=0.02)
    assert whole(one.meter, at).goodput == pytest.approx(96 / at, rel=0.05)


# ---- what is not known


def said(done: Whole) -> str:
    """Return the words beside what is unknown; nothing may be known."""
    assert (done.goodput, done.tokens_per_second) == (None, None)
    assert done.unknown
    return done.unknown


def test_before_there_is_a_step_it_is_unknown_and_says_what_would_help() -> None:
    one = heart()
    assert "progress line" in said(whole(one.meter, 10.0))
    read(one, [of(1, 0.5)])
    said(whole(one.meter, 10.0))
    read(one, [of(2, 0.5)])
    assert said(whole(one.meter, 0.0))
    assert whole(one.meter, 10.0).goodput == pytest.approx(0.1)


def test_without_tokens_the_time_is_known() -> None:
    one = heart(tokens_per_step=None)
    read(one, (of(n, 0.5) for n in range(1, 11)))
    done = whole(one.meter, 10.0)
    assert (done.goodput, done.tokens_per_second) == (0.5, None)
    assert done.unknown is not None
    assert "--tokens-per-step" in done.unknown


def test_a_program_that_counts_anew_and_was_started_again_is_unknown() -> None:
    one = heart()
    read(one, (of(n, 0.5) for _ in "ab" for n in range(1, 11)))
    assert whole(one.meter, 20.0).goodput == pytest.approx(0.5)
    one.begin_attempt(2)
    read(one, (of(n, 0.5) for n in range(1, 11)))
    assert "report" in said(whole(one.meter, 20.0))


def test_more_time_printed_than_has_passed_is_no_goodput() -> None:
    one = heart()
    read(one, (of(n, 500.0) for n in range(1, 11)))  # milliseconds
    assert whole(one.meter, 10.0).goodput is None


def test_two_ranks_that_print_the_same_are_one() -> None:
    for lead in ("", "[rank{}]: "):
        one = heart()
        read(one, (lead.format(rank) + of(n, 0.5) for n in range(1, 31) for rank in (0, 1)))
        assert one.measure().tokens_per_second_clean == TOKENS / 0.5
        assert whole(one.meter, 30.0).goodput == pytest.approx(0.5)


@pytest.mark.parametrize("first", [0, 1, 1_000_000, 1_000_050])
@pytest.mark.parametrize("interval", [1, 50])
def test_wherever_the_steps_begin(first: int, interval: int) -> None:
    one = heart()
    read(one, (of(first + interval * n, 0.5) for n in range(41)))
    opening = interval if first > interval else 1
    assert one.meter.advance.steps_done == 40 * interval + opening
    assert whole(one.meter, 1e6).tokens_per_second == pytest.approx((40 * interval + opening) * TOKENS / 1e6)


# ---- micro-steps (faults G1-04 and G2-01)


@pytest.mark.parametrize("dt", [True, False])
@pytest.mark.parametrize("tokens", ["given", "printed", "counter"])
def test_lines_of_micro_steps_and_of_steps_give_the_same(tokens: str, *, dt: bool) -> None:
    """4 sequences of 1024 tokens * 8 micro-steps * 2 ranks, in one second."""
    found = []
    for lines in (1, 8):
        given = 65536.0 if tokens == "given" else None
        one = heart(tokens_per_step=given, accumulate=8, devices=2)
        for n in range(40 * lines):
            more = {
                "given": "",
                "printed": f", tokens: {65536 // lines}",
                "counter": f", tokens_seen: {65536 * (n + 1) // lines}",
            }[tokens]
            read(one, [of(n // lines, 1.0 / lines if dt else None, more)], n / lines)
        measure = one.measure()
        found += [measure.tokens_per_second, measure.tokens_per_second_avg, measure.tokens_per_second_clean]
        assert measure.dt_s == pytest.approx(1.0)
        assert whole(one.meter, 40.0).tokens_per_second == pytest.approx(65536, rel=0.03)
    assert found == pytest.approx([65536.0] * len(found), rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_print_the_same_step_are_no_micro_steps(ranks: int) -> None:
    one = heart(accumulate=8, devices=2)
    read(one, (of(n // ranks, 0.5) for n in range(60 * ranks)))
    measure = one.measure()
    assert (measure.tokens_per_second, measure.tokens_per_second_clean) == (TOKENS / 0.5, TOKENS / 0.5)
    assert measure.dt_s == 0.5
    assert whole(one.meter, 60.0).goodput == pytest.approx(0.5)


def test_after_a_resume_a_counter_says_no_speed_before_its_second_line() -> None:
    one = heart(tokens_per_step=None)
    read(one, ["step: 1000, loss: 3.0, tokens_seen: 1000000000, dt: 1.0"])
    assert one.measure().tokens_per_second is None
    read(one, ["step: 1001, loss: 3.0, tokens_seen: 1000065536, dt: 1.0"])
    assert one.measure().tokens_per_second == pytest.approx(65536, rel=0.05)


def test_steps_that_jump_are_no_work() -> None:
    """A script that prints once before it loads its checkpoint seems to have done all the steps up to that one."""
    one = heart()
    read(one, [of(0, 0.1)])
    for second in range(20):
        read(one, (of(50_000 + 10 * second + n, 0.1) for n in range(10)), at=second)
    found = whole(one.meter, 21.0)
    assert (found.goodput, found.tokens_per_second) == (None, None)
    assert "its steps have jumped" in str(found.unknown)


def test_wrong_times_leave_the_tokens_as_they_are() -> None:
    one = heart()
    for second in range(60):
        read(one, (of(1 + 10 * second + n, 1.0) for n in range(10)), at=second)
    found = whole(one.meter, 60.0)
    assert found.goodput is None
    assert found.tokens_per_second == pytest.approx(600 * TOKENS / 60)
