"""The meter: acceptance numbers, windows and sums against a naive re-sum, segments, ranks, and its saved state."""

from __future__ import annotations

import json
from math import inf, isfinite, nan
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Measure, Record
from overnight.meter import Figures, Meter
from overnight.yardsticks.needs import PARAMS, PEAK, SHAPE

GPT2 = Figures(params=124_356_864, tokens_per_step=32768, peak_flops=312e12)


def line(step: int | None = None, **said: Any) -> Record:
    """Return a train record as a reader would."""
    return Record(reader="test", step=step, **said)


def fed(records: list[Record], figures: Figures = GPT2, window: int = 10) -> Meter:
    """Return a meter that has seen ``records``."""
    meter = Meter(figures, window)
    for record in records:
        meter.add(record)
    return meter


def healthy(count: int, first: int = 1, dt_s: float | None = 0.25, **said: Any) -> list[Record]:
    """Return lines of consecutive steps."""
    return [line(first + n, loss=3.0, dt_s=dt_s, **said) for n in range(count)]


# ---- acceptance numbers


@pytest.mark.parametrize(("params", "mfu"), [(124_356_864, 0.313456), (124_000_000, 0.312556), (124_439_808, 0.313665)])
def test_seed_numbers(params: int, mfu: float) -> None:
    measure = fed(healthy(23), msgspec.structs.replace(GPT2, params=params)).measure()
    assert measure.tokens_per_second == measure.tokens_per_second_avg == 131072.0
    assert measure.mfu_avg == measure.mfu == pytest.approx(mfu, abs=1e-6)
    assert measure.tflops == pytest.approx(mfu * 312, abs=1e-3)
    assert measure.dt_s == 0.25


def test_attention_figure_stands_beside() -> None:
    figures = msgspec.structs.replace(GPT2, layers=12, seq_len=1024, width=768)
    measure = fed(healthy(20), figures).measure()
    assert measure.mfu == pytest.approx(0.313456, abs=1e-6)
    assert measure.mfu_attention == measure.mfu_attention_avg == pytest.approx(0.361031, abs=1e-6)
    assert measure.flops_per_token == 746_141_184
    assert measure.flops_per_token_attention == 859_387_392


def test_devices_share_the_work() -> None:
    measure = fed(healthy(20), msgspec.structs.replace(GPT2, devices=8)).measure()
    assert measure.tokens_per_second == 131072.0
    assert measure.tflops == pytest.approx(97.798217 / 8, abs=1e-6)
    assert measure.mfu == pytest.approx(0.31345582 / 8, abs=1e-8)


def test_nan_line_leaves_speed_alone() -> None:
    measure = fed([*healthy(20), line(21, loss=nan, dt_s=0.25)]).measure()
    assert measure.loss is not None
    assert not isfinite(measure.loss)
    assert measure.loss_avg == 3.0
    assert measure.mfu_avg == pytest.approx(0.313456, abs=1e-6)


# ---- the window and the run


def test_window_forgets_and_the_run_does_not() -> None:
    measure = fed([*healthy(10, dt_s=1.0), *healthy(10, first=11, dt_s=0.25)]).measure()
    assert measure.tokens_per_second == 131072.0
    assert measure.dt_s == 0.25
    # Tokens over time, not a mean of rates (which would be 81920).
    assert measure.tokens_per_second_avg == 20 * 32768 / 12.5


def test_window_of_one() -> None:
    measure = fed([line(1, loss=9.0, dt_s=9.0), line(2, loss=1.0, dt_s=0.5)], window=1).measure()
    assert (measure.loss_avg, measure.dt_s) == (1.0, 0.5)


@pytest.mark.parametrize("dt_s", [0.0, -0.0, -1.0, nan, inf, -inf])
def test_useless_dt_is_passed_over(dt_s: float) -> None:
    lines = healthy(5)
    lines.insert(3, line(4, loss=3.0, dt_s=dt_s, at=50.0, tokens_per_s=1e9))
    measure = fed([msgspec.structs.replace(one, step=n) for n, one in enumerate(lines)]).measure()
    assert measure.tokens_per_second == measure.tokens_per_second_avg == 131072.0
    assert measure.dt_s == 0.25
    assert measure.records == 6


@pytest.mark.parametrize("tokens", [0.0, -5.0, nan, inf, None])
def test_useless_token_counts_fall_back_to_the_given_one(tokens: float | None) -> None:
    assert fed([line(1, dt_s=0.25, tokens=tokens)]).measure().tokens_per_second == 131072.0


def test_printed_tokens_lead() -> None:
    assert fed([line(1, dt_s=0.25, tokens=100.0)]).measure().tokens_per_second == 400.0


def test_lines_without_loss_keep_the_last_one() -> None:
    measure = fed([line(1, loss=4.0), line(2)]).measure()
    assert (measure.loss, measure.loss_avg) == (4.0, 4.0)


def test_evaluations_and_glued_lines_change_nothing() -> None:
    meter = fed(healthy(3))
    before = meter.snapshot()
    meter.add(line(1, kind="eval", loss=nan, dt_s=99.0))
    meter.add(line(999, loss=nan, dt_s=99.0, glued=True))
    after = meter.snapshot()
    assert after.pop("advance") == {**before.pop("advance"), "interrupted": True}  # the next step is not a clean one
    assert after == before


def test_a_repeated_step_is_no_new_segment() -> None:
    # Two ranks that print without a tag say every step twice.
    meter = fed([line(step, dt_s=0.25) for step in (1, 1, 2, 2, 3, 3)])
    assert (meter.segment, meter.last_step, meter.measure().dt_s) == (0, 3, 0.25)


# ---- time from arrivals


def test_records_that_share_an_arrival_share_its_pace() -> None:
    # Marks come every second, lines ten times as often: the pace is that between two marks, not a whole second a step.
    meter = fed([line(step, at=100.0 + step // 10) for step in range(40)])
    assert meter.measure().dt_s == pytest.approx(0.1)


def test_arrival_stands_in_for_an_unprinted_dt() -> None:
    meter = fed([line(0, at=100.0), line(10, at=105.0), line(30, at=115.0)])
    assert meter.measure().dt_s == 0.5
    assert meter.measure().tokens_per_second == 65536.0


def test_printed_dt_leads_over_arrival() -> None:
    assert fed([line(0, at=100.0, dt_s=0.25), line(1, at=107.0, dt_s=0.25)]).measure().dt_s == 0.25


@pytest.mark.parametrize("at", [100.0, 99.0, nan, inf])
def test_arrival_that_does_not_rise_says_nothing(at: float) -> None:
    measure = fed([line(0, at=100.0), line(1, at=at)]).measure()
    assert measure.dt_s is None
    assert measure.tokens_per_second is None


def test_arrival_needs_a_rising_step_within_the_segment() -> None:
    meter = fed([line(5, at=1.0), line(4, at=2.0), line(None, at=2.5), line(5, at=3.0)])
    assert meter.measure().dt_s == 1.0


@pytest.mark.parametrize("step", [2**53, -(2**53), 10**400])
def test_absurd_step_is_no_step(step: int) -> None:
    meter = fed([line(3, at=1.0), line(step, at=2.0), line(4, at=3.0)])
    assert (meter.highest_step, meter.segment, meter.measure().dt_s) == (4, 0, 2.0)
    msgspec.msgpack.encode(meter.snapshot())


# ---- printed rates


def test_printed_rate_alone_is_used() -> None:
    figures = Figures(params=124_356_864, peak_flops=312e12)
    measure = fed([line(1, tokens_per_s=131072.0), line(2, tokens_per_s=131072.0)], figures).measure()
    assert measure.tokens_per_second == measure.tokens_per_second_avg == 131072.0
    assert measure.mfu_avg == pytest.approx(0.313456, abs=1e-6)
    assert measure.dt_s is None


def test_printed_rates_are_averaged_over_time_and_not_over_lines() -> None:
    measure = fed([line(1, tokens_per_s=100.0), line(2, tokens_per_s=300.0)], Figures()).measure()
    assert measure.tokens_per_second == measure.tokens_per_second_avg == pytest.approx(150.0)


def test_printed_rate_with_dt_gives_the_tokens() -> None:
    lines = [line(1, tokens_per_s=100.0, dt_s=3.0), line(2, tokens_per_s=300.0, dt_s=1.0)]
    assert fed(lines, Figures()).measure().tokens_per_second == 150.0


def test_printed_rate_with_tokens_gives_the_time() -> None:
    measure = fed([line(1, tokens_per_s=65536.0)]).measure()
    assert (measure.dt_s, measure.tokens_per_second) == (0.5, 65536.0)


def test_known_tokens_and_time_lead_over_a_printed_rate() -> None:
    assert fed([line(1, dt_s=0.25, tokens_per_s=1.0)]).measure().tokens_per_second == 131072.0


@pytest.mark.parametrize("rate", [0.0, -1.0, nan, inf])
def test_useless_rates_are_passed_over(rate: float) -> None:
    measure = fed([line(1, tokens_per_s=rate)], Figures()).measure()
    assert measure.tokens_per_second is measure.tokens_per_second_avg is None


# ---- time to go


@pytest.mark.parametrize(("step", "eta_s"), [(20, 20.0), (99, 0.25), (100, 0.0), (101, 0.0)])
def test_eta(step: int, eta_s: float) -> None:
    meter = fed(healthy(5, first=step - 4), msgspec.structs.replace(GPT2, steps=100))
    assert meter.measure().eta_s == eta_s


def test_eta_at_the_end_needs_no_dt() -> None:
    assert fed([line(100)], Figures(steps=100)).measure().eta_s == 0.0


def test_eta_without_plan_step_or_time_is_unknown() -> None:
    planned = Figures(steps=100)
    assert fed(healthy(5)).measure().unknown["eta_s"] == "give --steps"
    assert fed([line(None, dt_s=0.25)], planned).measure().unknown["eta_s"] == "print the step"
    assert "print dt" in fed([line(1)], planned).measure().unknown["eta_s"]
    assert "give" not in fed([], planned).measure().unknown["eta_s"]
    assert fed([], Figures()).measure().unknown["eta_s"] == "give --steps; wait for a progress line"


# ---- what is unknown, and why


def test_every_unknown_figure_says_what_would_make_it_known() -> None:
    unknown = fed(healthy(5), Figures()).measure().unknown
    tokens = "give --tokens-per-step, or --batch and --seq-len, or print tokens"
    assert unknown["tokens_per_second"] == unknown["tokens_per_second_avg"] == tokens
    assert unknown["tflops"] == f"{PARAMS}; {tokens}"
    assert unknown["mfu"] == unknown["mfu_avg"] == f"{PARAMS}; {PEAK}; {tokens}"
    assert unknown["flops_per_token"] == PARAMS
    assert unknown["flops_per_token_attention"] == f"{PARAMS}; {SHAPE}"
    assert "loss" not in unknown


def test_one_missing_input_is_the_only_one_named() -> None:
    assert (
        fed(healthy(5), Figures(params=1, tokens_per_step=1)).measure().unknown["mfu"]
        == "give --gpu and --dtype, or --peak-tflops"
    )
    assert fed(healthy(5), Figures(peak_flops=1.0, tokens_per_step=1)).measure().unknown["mfu"] == PARAMS
    assert "mfu" not in fed(healthy(5)).measure().unknown
    assert fed(healthy(5)).measure().unknown["mfu_attention_avg"] == "give --layers, --seq-len and --width"


def test_waiting_is_said_as_such() -> None:
    unknown = Meter(GPT2).measure().unknown
    assert unknown["step"] == unknown["loss"] == unknown["loss_avg"] == unknown["dt_s"] == "wait for a progress line"
    assert unknown["mfu"] == unknown["tokens_per_second"] == "wait for a progress line"
    later = fed([line(None)]).measure().unknown
    assert later["step"] == "print the step"
    assert later["loss"] == later["loss_avg"] == "print the loss"
    assert later["tokens_per_second_avg"] == "print dt, or wait for a second line with a higher step"
    assert fed([line(1, loss=nan)]).measure().unknown["loss_avg"] == "no finite loss in the window"


@given(st.builds(Figures, params=st.none() | st.just(10), tokens_per_step=st.none() | st.just(8.0)), st.data())
def test_unknown_names_exactly_the_figures_that_are_none(figures: Figures, data: st.DataObject) -> None:
    measure = fed(data.draw(st.lists(RECORDS, max_size=5)), figures).measure()
    values = msgspec.structs.asdict(measure)
    assert set(measure.unknown) == {name for name, value in values.items() if value is None} - {
        "useful_tokens_per_second",
        "hfu",
    }
    assert all(measure.unknown.values())


def test_a_figure_above_the_peak_is_kept() -> None:
    meter = fed(healthy(5), msgspec.structs.replace(GPT2, peak_flops=31.2e12))
    assert meter.measure().mfu == pytest.approx(3.13456, abs=1e-5)


@pytest.mark.parametrize(("window", "devices"), [(0, 1), (-1, 1), (1, 0)])
def test_senseless_sizes_are_refused(window: int, devices: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Meter(Figures(devices=devices), window)


# ---- segments, attempts, ranks, the logging interval


@pytest.mark.parametrize("back", [0, 4])
def test_a_step_that_falls_begins_a_segment(back: int) -> None:
    meter = fed([*healthy(5), line(back, loss=7.0, dt_s=0.5)])
    assert meter.segment == 1
    measure = meter.measure()
    assert (measure.loss_avg, measure.dt_s, measure.step) == (7.0, 0.5, back)
    assert measure.tokens_per_second_avg == 6 * 32768 / 1.75
    assert (meter.highest_step, meter.last_step, meter.first_step) == (5, back, 1)


def test_attempts_keep_sums_and_forget_places() -> None:
    meter = fed(healthy(5))
    meter.begin_attempt()
    assert (meter.segment, meter.first_step, meter.last_step, meter.highest_step) == (1, None, None, 5)
    assert meter.measure().tokens_per_second is None
    assert meter.measure().tokens_per_second_avg == 131072.0
    meter.add(line(3, dt_s=0.25))
    assert (meter.segment, meter.first_step, meter.last_step) == (1, 3, 3)


def test_higher_ranks_are_not_measured() -> None:
    meter = fed([line(1, rank=1, dt_s=9.0), line(1, rank=0, dt_s=0.25), line(1, rank=1, dt_s=9.0), line(2, rank=3)])
    assert meter.segment == 0
    assert meter.last_step == 1
    assert meter.measure().dt_s == 0.25
    meter.add(line(2, dt_s=0.25))
    assert meter.last_step == 2


def test_after_a_restart_the_next_line_is_waited_for_where_a_dt_is_printed() -> None:
    meter = Meter(Figures(tokens_per_step=100))
    for step in (1, 2):
        meter.add(line(step, loss=3.0, dt_s=0.5))
    meter.begin_attempt()
    unknown = meter.measure().unknown
    for name in ("dt_s", "tokens_per_second", "loss_avg"):
        assert unknown[name] == "wait for the next progress line", name
    meter.add(line(3, loss=3.0, dt_s=0.5))
    assert "dt_s" not in meter.measure().unknown
    silent = Meter(Figures(tokens_per_step=100))
    silent.add(line(1, loss=3.0))
    silent.begin_attempt()
    assert silent.measure().unknown["dt_s"] == "print dt, or wait for a second line with a higher step"


def test_ranks_are_learned_anew_with_an_attempt() -> None:
    meter = fed([line(1, rank=0, dt_s=1.0)])
    meter.begin_attempt()
    meter.add(line(1, rank=2, dt_s=0.5))
    assert meter.measure().dt_s == 0.5


@pytest.mark.parametrize(
    ("steps", "interval"),
    [
        ([], 1),
        ([7], 1),
        ([1, 2, 3], 1),
        ([0, 10, 20, 30, 39], 10),
        ([*range(10), *range(10, 200, 10)], 10),
        ([0, 5, 15], 5),
        ([0, 100, 200, 50, 150, 250], 100),
    ],
)
def test_logging_interval_is_learned(steps: list[int], interval: int) -> None:
    assert fed([line(step) for step in steps]).interval == interval


# ---- gradient norms that are no number, epochs


@pytest.mark.parametrize("norm", [nan, inf, -inf])
def test_nonfinite_gradient_norms_are_counted_over_the_whole_run(norm: float) -> None:
    lines = healthy(120, grad_norm=1.0)
    for step in (10, 60, 110):
        lines[step - 1] = msgspec.structs.replace(lines[step - 1], grad_norm=norm)
    meter = fed(lines)
    assert meter.grad_norm_nonfinite == 3
    meter.begin_attempt()
    meter.add(line(1, grad_norm=norm))
    assert meter.grad_norm_nonfinite == 4


def test_gradient_norms_and_epochs_of_other_lines_are_not_looked_at() -> None:
    meter = fed([line(1, rank=0, grad_norm=1.0, epoch=1.0)])
    for said in ({"rank": 1}, {"kind": "eval"}, {"glued": True}):
        meter.add(line(2, grad_norm=nan, epoch=9.0, **said))
    assert (meter.grad_norm_nonfinite, meter.highest_epoch) == (0, 1.0)


def test_the_highest_epoch_is_of_the_whole_run() -> None:
    meter = Meter(GPT2)
    assert meter.highest_epoch is None
    for epoch in (None, 0.5, 2.25, nan, inf, 1.0):
        meter.add(line(1, epoch=epoch))
    meter.begin_attempt()
    meter.add(line(1, epoch=0.1))
    assert meter.highest_epoch == 2.25


def test_a_snapshot_of_an_older_version_is_read() -> None:
    before = fed([*healthy(5), line(6, grad_norm=nan, epoch=3.0)])
    state = before.snapshot()
    del state["grad_norm_nonfinite"], state["highest_epoch"]
    meter = fed([line(1, grad_norm=nan, epoch=7.0)])
    meter.restore(state)
    assert (meter.records, meter.grad_norm_nonfinite, meter.highest_epoch) == (6, 0, None)


# ---- against a naive reference, and between any two records

_FLOATS = st.none() | st.sampled_from([0.0, -1.0, nan, inf, 0.25, 0.3, 1e-3, 7.0])
RECORDS = st.builds(
    line,
    step=st.none() | st.integers(0, 30),
    at=st.floats(0, 1e6),
    kind=st.sampled_from(["train", "train", "train", "eval"]),
    rank=st.sampled_from([None, None, 0, 1, 2]),
    loss=_FLOATS,
    dt_s=_FLOATS,
    tokens=_FLOATS,
    tokens_per_s=_FLOATS,
    grad_norm=_FLOATS,
    epoch=_FLOATS,
    glued=st.sampled_from([False, False, False, True]),
)


def naive(records: list[Record], window: int) -> Measure:
    """Measure lines of printed dt, rising steps and one rank by summing everything again."""
    last = records[-window:]
    timed = [one.dt_s for one in records if one.dt_s is not None and isfinite(one.dt_s) and one.dt_s > 0]
    recent = [one.dt_s for one in last if one.dt_s is not None and isfinite(one.dt_s) and one.dt_s > 0]
    losses = [one.loss for one in last if one.loss is not None and isfinite(one.loss)]
    flops_over_peak = 746_141_184 / 312e12
    speed = 32768 * len(recent) / sum(recent) if recent else None
    average = 32768 * len(timed) / sum(timed) if timed else None
    return Measure(
        loss_avg=sum(losses) / len(losses) if losses else None,
        dt_s=sum(recent) / len(recent) if recent else None,
        tokens_per_second=speed,
        tokens_per_second_avg=average,
        mfu=None if speed is None else flops_over_peak * speed,
        mfu_avg=None if average is None else flops_over_peak * average,
    )


_PRINTED = st.sampled_from([0.0, -1.0, nan, inf, 0.25, 0.3, 1e-3, 7.0])


@given(st.lists(st.tuples(_PRINTED, _FLOATS), max_size=60), st.integers(1, 12))
def test_equals_a_naive_resum(said: list[tuple[float, float | None]], window: int) -> None:
    records = [line(step, dt_s=dt_s, loss=loss) for step, (dt_s, loss) in enumerate(said)]
    got, want = fed(records, window=window).measure(), naive(records, window)
    for name in ("loss_avg", "dt_s", "tokens_per_second", "tokens_per_second_avg", "mfu", "mfu_avg"):
        expected = getattr(want, name)
        assert getattr(got, name) == (expected and pytest.approx(expected, rel=1e-12)), name


@settings(max_examples=200)
@given(st.lists(RECORDS, max_size=25), st.integers(0, 25), st.booleans(), st.sampled_from([GPT2, Figures(steps=20)]))
def test_saved_and_restored_between_any_two_records(
    records: list[Record], cut: int, restart: bool, figures: Figures
) -> None:
    whole, first, second = Meter(figures, 4), Meter(figures, 4), Meter(figures, 4)
    for record in records[:cut]:
        whole.add(record)
        first.add(record)
    if restart:
        whole.begin_attempt()
        first.begin_attempt()
    second.add(line(5, dt_s=1.0, loss=1.0))  # whatever was there before is gone
    second.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(first.snapshot())))
    for record in records[cut:]:
        whole.add(record)
        second.add(record)
    assert repr(second.measure()) == repr(whole.measure())  # repr: NaN is to equal NaN
    assert repr(second.snapshot()) == repr(whole.snapshot())
    assert second.interval == whole.interval


def test_state_is_plain_and_small_after_a_long_run() -> None:
    meter = fed(healthy(5000))
    assert len(json.dumps(meter.snapshot())) < 2000


def test_a_week_does_not_drift() -> None:
    meter = fed([line(step, loss=3.3, dt_s=0.1) for step in range(100_000)])
    assert meter.measure().loss_avg == pytest.approx(3.3, rel=1e-15)
    assert meter.measure().tokens_per_second_avg == pytest.approx(327680.0, rel=1e-10)
