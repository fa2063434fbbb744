"""Which reader reads: the best so far from the first byte, then one alone, then another if the log changes."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record
from overnight.readers.nanogpt import NanoGPT
from overnight.readers.pattern import Pattern
from overnight.readers.sniff import LOCK_AFTER_LINES, SWITCH_AFTER_CREDIT, Sniffer
from overnight.readers.telemetry import Telemetry
from overnight.tail import Line


class Pairs:
    """A reader with a memory: ``head N`` names the step of the ``body LOSS`` that follows."""

    name = "pairs"
    always = frozenset({"step", "loss"})

    def __init__(self) -> None:
        self.step: int | None = None

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        word, _, rest = line.text.partition(" ")
        if word == "head":
            self.step = int(rest)
            return ()
        if word != "body":
            return None
        return (Record(reader="pairs", source=source, offset=line.offset, at=at, step=self.step, loss=float(rest)),)

    def snapshot(self) -> Any:
        return {"step": self.step}

    def restore(self, state: Any) -> None:
        self.step = state["step"]


def sniffer() -> Sniffer:
    return Sniffer([Telemetry(), NanoGPT(), Pairs()])


def feed(sniff: Sniffer, texts: list[str]) -> list[tuple[str, int | None]]:
    records = [record for n, text in enumerate(texts) for record in sniff(Line(text, n), 0.0, 0)]
    return [(record.reader, record.step) for record in records]


def telemetry(first: int, last: int) -> list[str]:
    return [f"step: {n}, loss: 3.2, dt: 0.25" for n in range(first, last)]


def nanogpt(first: int, last: int) -> list[str]:
    return [f"iter {n}: loss 3.2, time 14.01ms, mfu 0.01%" for n in range(first, last)]


def test_a_nan_on_the_first_line_is_not_missed() -> None:
    for text in ("step: 1, loss: nan, dt: 0.25", "iter 1: loss nan, time 14.01ms, mfu 0.01%", "step 1 loss nan"):
        (record,) = sniffer()(Line(text, 0), 0.0, 0)
        assert math.isnan(record.loss or 0.0)


def test_nobody_is_chosen_before_a_record() -> None:
    sniff = sniffer()
    assert feed(sniff, ["hello", "world"]) == []
    assert sniff.chosen is None
    assert Sniffer([]).chosen is None
    assert Sniffer([])(Line("step: 1, loss: 2", 0), 0.0, 0) == ()


def test_every_line_is_told_once_by_the_best_so_far() -> None:
    sniff = sniffer()
    assert feed(sniff, nanogpt(0, 500)) == [("nanogpt", n) for n in range(500)]
    assert sniff.chosen == "nanogpt"
    assert [len(sniff(Line(text, 0), 0.0, 0)) for text in ("step 500: train loss 3, val loss 3.1", "noise", "")] == [
        1,
        0,
        0,
    ]


def test_an_evaluation_before_the_first_step_is_told_and_hides_nothing() -> None:
    told = feed(sniffer(), ["step 0: train loss 4.1, val loss 4.2", *nanogpt(0, 3)])
    assert told == [("nanogpt", 0), *(("nanogpt", n) for n in range(3))]


def test_a_first_false_friend_does_not_hide_what_follows() -> None:
    sniff = sniffer()
    told = feed(sniff, ["config step: 100, loss: 3.2", *nanogpt(101, 110)])
    assert told == [("telemetry", 100), *(("nanogpt", n) for n in range(101, 110))]
    assert sniff.chosen == "nanogpt"


def test_two_shapes_for_the_same_steps_are_told_once() -> None:
    both = [text for pair in zip(telemetry(0, 300), nanogpt(0, 300), strict=True) for text in pair]
    assert feed(sniffer(), both) == [("telemetry", n) for n in range(300)]


def test_a_log_that_changes_its_shape_is_followed() -> None:
    sniff = sniffer()
    feed(sniff, telemetry(0, LOCK_AFTER_LINES + 1))
    assert sniff.chosen == "telemetry"
    told = feed(sniff, nanogpt(0, 20))
    assert told == [("nanogpt", n) for n in range(SWITCH_AFTER_CREDIT - 1, 20)]
    assert sniff.chosen == "nanogpt"
    assert feed(sniff, telemetry(300, 320)) == [("telemetry", 300 + n) for n in range(SWITCH_AFTER_CREDIT - 1, 20)]


def test_of_two_that_read_the_same_line_the_first_counts() -> None:
    sniff = Sniffer([Telemetry(), Pattern(r"step: (?P<step>\d+), loss: (?P<loss>[\d.]+)")])
    assert feed(sniff, telemetry(0, 10)) == [("telemetry", n) for n in range(10)]


def test_an_interspersed_other_shape_never_takes_over() -> None:
    sniff = sniffer()
    feed(sniff, telemetry(0, LOCK_AFTER_LINES + 1))
    mixed = [text for n in range(100) for text in (*nanogpt(n, n + 1), *telemetry(300 + n, 301 + n))]
    assert {reader for reader, _ in feed(sniff, mixed)} == {"telemetry"}


def test_too_little_evidence_locks_nobody() -> None:
    sniff = sniffer()
    feed(sniff, ["noise"] * (LOCK_AFTER_LINES * 2))
    assert feed(sniff, nanogpt(0, 3)) == [("nanogpt", n) for n in range(3)]


def test_a_step_that_does_not_rise_is_no_credit() -> None:
    sniff = sniffer()
    feed(sniff, ["step: 5, loss: 3"] * 300)
    assert sniff.snapshot()["winner"] is None
    assert sniff.chosen == "telemetry"


def test_a_reader_of_pairs_keeps_its_half_over_a_restart() -> None:
    sniff = sniffer()
    for n in range(LOCK_AFTER_LINES):
        feed(sniff, [f"head {n}", f"body 3.{n}"])
    feed(sniff, ["head 900"])
    again = sniffer()
    again.restore(json.loads(json.dumps(sniff.snapshot())))
    assert feed(again, ["body 2.5"]) == [("pairs", 900)]


def test_a_reader_that_is_gone_is_forgotten() -> None:
    sniff = sniffer()
    feed(sniff, nanogpt(0, 300))
    other = Sniffer([Telemetry()])
    other.restore(sniff.snapshot())
    assert other.chosen is None
    assert feed(other, telemetry(0, 3)) == [("telemetry", n) for n in range(3)]


LINES = st.lists(
    st.one_of(
        st.integers(0, 40).map("step: {}, loss: 3.2, dt: 0.25".format),
        st.integers(0, 40).map("iter {}: loss 3.2, time 14.01ms, mfu 0.01%".format),
        st.integers(0, 40).map("head {}".format),
        st.sampled_from(["body 2.5", "noise", "step 5: train loss 3.2, val loss 3.1", "step: 5, loss: x"]),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(before=st.sampled_from([[], telemetry(0, 250), nanogpt(0, 250)]), first=LINES, second=LINES)
def test_a_sniffer_restored_between_any_two_lines_goes_on_the_same(
    before: list[str], first: list[str], second: list[str]
) -> None:
    sniff = sniffer()
    feed(sniff, before + first)
    again = sniffer()
    again.restore(json.loads(json.dumps(sniff.snapshot())))
    assert feed(again, second) == feed(sniff, second)
    assert again.snapshot() == sniff.snapshot()
