"""The pure heart as a whole: however the log is cut, wherever it is saved and restored, what it finds is the same."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Verdict, jsonable
from overnight.history.store import decode_state, encode_state
from overnight.monitor import Monitor, Outcome
from overnight.rules import Moment
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

AT = 1_700_000_000.0


def spec(**facts: Any) -> RunSpec:
    """Return what is asked of a run of a language model."""
    asked = {"params": 124_356_864, "tokens_per_step": 32768.0, "peak_tflops": 312.0, "steps": 1000, **facts}
    return RunSpec(name="night", argv=("train",), executable="/bin/true", cwd="/", log="/output.log", **asked)


def monitor(**facts: Any) -> Monitor:
    """Return a monitor with the built-in readers and rules, in its first attempt, whose log has been opened."""
    heart = make_monitor(spec(**facts), pytest.fail)
    heart.begin_attempt(1)
    heart.feed(b"", AT)
    return heart


def plain(outcomes: list[Outcome]) -> list[str]:
    """Return entries and verdicts in a form in which NaN equals NaN."""
    found = [entry for one in outcomes for entry in one.entries]
    entries = [json.dumps(jsonable([entry.record, entry.attempt, entry.segment])) for entry in found]
    return entries + [json.dumps(jsonable(verdict)) for one in outcomes for verdict in one.verdicts]


def whole(log: bytes, **facts: Any) -> tuple[list[str], str]:
    """Read a log in one piece: entries, verdicts, and all that is remembered at the end."""
    heart = monitor(**facts)
    outcomes = [heart.feed(log, AT), heart.flush(AT)]
    return plain(outcomes), repr((heart.snapshot(), heart.measure()))


def pieces(log: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a log at the given places."""
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    return [log[begin:end] for begin, end in itertools.pairwise(places)]


def restored(heart: Monitor, **facts: Any) -> Monitor:
    """Return what a new supervisor makes of the committed state."""
    again = make_monitor(spec(**facts), pytest.fail)
    state = decode_state(encode_state(heart.snapshot()))  # through the disk
    assert isinstance(state, dict)
    again.restore(state)
    return again


odd_numbers = st.sampled_from(["nan", "inf", "-inf", "1e4", "abc", "", "25.0"])
numbers = st.floats(0, 30).map(lambda value: f"{value:.4f}") | odd_numbers
steps = st.integers(0, 60)
telemetry = st.builds(lambda step, loss, dt: f"step: {step}, loss: {loss}, dt: {dt}".encode(), steps, numbers, numbers)
prefixed = st.builds(
    lambda rank, text: f"[rank{rank}]: 2026-01-01 10:00:00 INFO ".encode() + text, st.integers(0, 3), telemetry
)
nanogpt = st.builds(lambda step, loss: f"iter {step}: loss {loss}, time 14.01ms, mfu -100.00%".encode(), steps, numbers)
evaluation = st.builds(lambda step, loss: f"step {step}: train loss {loss}, val loss {loss}".encode(), steps, numbers)
bar = st.builds(lambda step, loss: f"\r 42%|####  | {step}/100 loss={loss}".encode(), steps, numbers)
ansi = st.builds(lambda text: b"\x1b[1;32m" + text + b"\x1b[0m\x1b]0;title\x07", telemetry)
glued = st.builds(lambda one, other: one + other, telemetry, telemetry | nanogpt)
known_noise = [b"\xff\xfe", b"caf\xc3", b"\x00\x00", b"\x08\x08", b"\x1b[", "µs é".encode()]
noise = st.binary(max_size=30) | st.sampled_from(known_noise)
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"", b"\n\n", b"\x1b[K\n"])
shapes = telemetry | prefixed | nanogpt | evaluation | bar | ansi | glued | noise
logs = st.lists(st.tuples(shapes, ends), max_size=25).map(lambda parts: b"".join(text + end for text, end in parts))


@settings(deadline=None)
@given(log=logs, cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_any_chunking_gives_the_same(log: bytes, cuts: list[int]) -> None:
    heart = monitor()
    outcomes = [heart.feed(piece, AT) for piece in pieces(log, cuts)]
    outcomes.append(heart.flush(AT))
    assert (plain(outcomes), repr((heart.snapshot(), heart.measure()))) == whole(log)


@settings(max_examples=40, deadline=None)
@given(log=logs)
def test_byte_by_byte_gives_the_same(log: bytes) -> None:
    heart = monitor()
    outcomes = [heart.feed(bytes([byte]), AT) for byte in log]
    outcomes.append(heart.flush(AT))
    assert (plain(outcomes), repr((heart.snapshot(), heart.measure()))) == whole(log)


@settings(deadline=None)
@given(log=logs, cuts=st.lists(st.integers(0, 2000), min_size=1, max_size=6))
def test_saved_and_restored_between_any_two_bytes(log: bytes, cuts: list[int]) -> None:
    heart = monitor()
    outcomes = []
    for piece in pieces(log, cuts):
        heart = restored(heart)
        outcomes.append(heart.feed(piece, AT))
    heart = restored(heart)
    outcomes.append(heart.flush(AT))
    assert plain(outcomes) == whole(log)[0]
    straight = monitor()
    straight.feed(log, AT)
    straight.flush(AT)
    assert repr(heart.measure()) == repr(straight.measure())
    assert encode_state(heart.snapshot()) == encode_state(straight.snapshot())


MIXED = (
    b"\x1b[1mstart\x1b[0m \xff\xfe caf\xc3\n"
    b"step: 1, loss: 3.5, dt: 0.25\n\r 10%|#  |\r 20%|## |\r\n"
    b"[rank1]: step: 2, loss: 3.4, dt: 0.25step: 3, loss: 3.3, dt: 0.25\n"
    b"step 2: train loss 3.1, val loss nan\r\n"
    b"step: 1, loss: 3.6, dt: 0.25\nstep: 2, loss: nan, dt: 0.25\nstep: 3, loss: 2"
)


@pytest.mark.parametrize("place", range(len(MIXED) + 1))
def test_restored_at_each_byte_of_one_log(place: int) -> None:
    heart = monitor()
    outcomes = [heart.feed(MIXED[:place], AT)]
    heart = restored(heart)
    outcomes += [heart.feed(MIXED[place:], AT), heart.flush(AT)]
    assert plain(outcomes) == whole(MIXED)[0]


def lines(first: int, values: list[float]) -> bytes:
    """Return telemetry lines of consecutive steps."""
    return "".join(f"step: {first + i}, loss: {value}, dt: 0.25\n" for i, value in enumerate(values)).encode()


def test_nan_on_line_one() -> None:
    (verdict,) = monitor().feed(b"step: 1, loss: nan, dt: 0.25\n", AT).verdicts
    assert (verdict.rule, verdict.action, verdict.step) == ("nonfinite", "terminate", 1)
    assert (verdict.offset, verdict.attempt) == (0, 1)


@pytest.mark.parametrize(
    "text", ["iter 0: loss nan, time 9.00ms, mfu -100.00%", "[rank0]: INFO step: 5, loss: inf, dt: 1e"]
)
def test_nan_on_line_one_in_other_shapes(text: str) -> None:
    (verdict,) = monitor().feed(text.encode() + b"\n", AT).verdicts
    assert (verdict.rule, verdict.action, verdict.offset) == ("nonfinite", "terminate", 0)


def test_nan_ends_the_run_on_that_very_line() -> None:
    heart = monitor()
    log = lines(1, [3.0] * 20) + b"step: 21, loss: nan, dt: 0.25"
    assert heart.feed(log, AT).verdicts == []  # not before the line is whole
    (verdict,) = heart.feed(b"\n", AT).verdicts
    assert (verdict.step, verdict.action, verdict.severity) == (21, "terminate", "critical")
    assert verdict.offset == len(lines(1, [3.0] * 20))
    assert heart.sick_since == 21
    assert heart.measure().mfu_avg == pytest.approx(0.313456, abs=1e-4)
    assert heart.measure().tokens_per_second == 131072.0


def test_a_nan_without_a_line_end_counts_when_the_writer_is_gone() -> None:
    heart = monitor()
    heart.feed(lines(1, [3.0] * 3) + b"step: 4, loss: nan", AT)
    (verdict,) = heart.flush(AT).verdicts
    assert verdict.step == 4


def test_divergence_needs_five_healthy_losses() -> None:
    assert [one.rule for one in monitor().feed(lines(1, [3.0] * 5 + [25.0]), AT).verdicts] == ["divergence"]
    (early,) = monitor().feed(lines(1, [3.0] * 4 + [25.0]), AT).verdicts
    assert early.action == "alert"


def test_a_segment_resets_memory_and_sickness() -> None:
    heart = monitor(actions={"nonfinite": "alert"})
    first = heart.feed(lines(1, [3.0, math.nan, math.nan]), AT)
    assert [one.step for one in first.verdicts] == [2]  # told once per segment
    assert heart.sick_since == 2
    second = heart.feed(lines(1, [3.0]), AT)  # the program went back
    assert second.entries[0].segment == first.entries[0].segment + 1
    assert heart.sick_since is None
    third = heart.feed(lines(2, [math.nan]), AT)
    assert [one.step for one in third.verdicts] == [2]
    assert heart.sick_since == 2


def test_the_first_record_of_a_segment_is_judged_with_a_fresh_memory() -> None:
    heart = monitor(actions={"nonfinite": "alert"})
    found = heart.feed(lines(5, [math.nan]) + lines(1, [math.nan]), AT)
    assert [one.step for one in found.verdicts] == [5, 1]
    assert heart.sick_since == 1


def test_an_attempt_begins_anew() -> None:
    heart = monitor(actions={"nonfinite": "alert"})
    heart.feed(lines(1, [3.0, math.nan]), AT)
    heart.begin_attempt(1)  # said twice, done once
    assert heart.sick_since == 2
    segment = heart.segment
    heart.begin_attempt(2)
    assert (heart.sick_since, heart.segment) == (None, segment + 1)
    found = heart.feed(lines(3, [math.nan]), AT)
    assert [(one.step, one.attempt) for one in found.verdicts] == [(3, 2)]
    assert [(entry.attempt, entry.segment) for entry in found.entries] == [(2, segment + 1)]


def test_sources_have_half_lines_of_their_own() -> None:
    heart = monitor()
    heart.feed(b"step: 1, loss: 3.0, dt: 0", AT, 0)
    found = heart.feed(b"step: 2, loss: 2.0, dt: 0.25\n", AT, 1)
    assert [(entry.record.step, entry.record.source) for entry in found.entries] == [(2, 1)]
    heart.forget_sources([0])
    assert [entry.record.dt_s for entry in heart.feed(b".25\n", AT, 0).entries] == [0.25]
    heart.feed(b"step: 3, lo", AT, 0)
    heart.forget_sources([1])
    assert heart.flush(AT).entries == []


def test_the_offset_of_a_log_that_was_there_before() -> None:
    heart = monitor()
    (entry,) = heart.feed(lines(1, [3.0]), AT, 1, 4096).entries
    assert entry.record.offset == 4096
    length = len(lines(1, [3.0]))
    (entry,) = restored(heart).feed(lines(2, [3.0]), AT, 1, 4096 + length).entries
    assert entry.record.offset == 4096 + length


def test_time_rules_remember_over_segments_attempts_and_restores() -> None:
    heart = monitor(max_hours=1.0)
    heart.feed(lines(1, [3.0]), AT)
    late = Moment(active_s=3600.0, at=AT)
    (ahead,) = heart.tick(Moment(active_s=3599.0, at=AT))
    assert (ahead.part, ahead.action, ahead.evidence["ahead"]) == (1, "alert", True)
    assert heart.due_s(Moment(active_s=3599.0, at=AT)) == pytest.approx(1.0)
    (verdict,) = heart.tick(late)
    assert (verdict.rule, verdict.action, verdict.step, verdict.attempt) == ("wall_clock", "stop", 1, 1)
    assert heart.due_s(late) > 0  # otherwise the loop never sleeps again
    heart.feed(lines(1, [3.0]), AT)
    heart.begin_attempt(2)
    assert restored(heart, max_hours=1.0).tick(late) == []


def test_no_time_rule_is_never_due() -> None:
    assert monitor().due_s(Moment(active_s=1e9)) == math.inf


def test_a_state_with_a_rule_that_is_no_more_is_read() -> None:
    heart = monitor()
    heart.feed(lines(1, [3.0]), AT)
    state = heart.snapshot()
    state["memories"]["gone"] = {"told": True}
    again = monitor()
    again.restore(state)
    assert "gone" not in again.memories
    assert plain([again.feed(lines(2, [math.nan]), AT)]) == plain([heart.feed(lines(2, [math.nan]), AT)])


def test_a_week_without_a_false_verdict() -> None:
    """604,800 seconds at one line in six: losses that fall, wobble and spike below the bound, marks every 10 s."""
    heart = monitor(max_hours=200.0)
    verdicts: list[Verdict] = []
    count = 100_800
    block: list[str] = []
    for step in range(1, count + 1):
        loss = 2.0 + 9.0 / (1 + step / 500) + (step * 7919 % 97) / 97
        block.append(f"step: {step}, loss: {loss:.4f}, dt: 6.0\n")
        if len(block) == 20:
            at = AT + step * 6.0
            verdicts += heart.feed("".join(block).encode(), at).verdicts
            verdicts += heart.tick(Moment(active_s=step * 6.0, at=at))
            block.clear()
    assert verdicts == []
    assert (heart.meter.records, heart.segment, heart.sick_since) == (count, 1, None)
    assert heart.measure().tokens_per_second_avg == pytest.approx(32768 / 6.0)
    assert len(encode_state(heart.snapshot())) < 8192  # what is committed does not grow
