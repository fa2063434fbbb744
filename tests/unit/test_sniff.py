"""Which reader reads: the best so far from the first byte, then one alone, then another if the log changes."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record
from overnight.readers.keyvalue import KeyValue
from overnight.readers.nanogpt import NanoGPT
from overnight.readers.pattern import Pattern
from overnight.readers.sniff import LOCK_AFTER_LINES, SWITCH_AFTER_CREDIT, Sniffer
from overnight.tail import Line


class Steps(KeyValue):
    """The general reader for ``step`` alone, so that there are two whose shapes have nothing in common."""

    def __call__(self, line: Line, at: float, source: int) -> tuple[Record, ...] | None:
        return None if "iter " in line.text or "val loss" in line.text else super().__call__(line, at, source)


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
    return Sniffer([Steps(), NanoGPT(), Pairs()])


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
    assert told == [("keyvalue", 100), *(("nanogpt", n) for n in range(101, 110))]
    assert sniff.chosen == "nanogpt"


def test_two_shapes_for_the_same_steps_are_told_once() -> None:
    both = [text for pair in zip(telemetry(0, 300), nanogpt(0, 300), strict=True) for text in pair]
    assert feed(sniffer(), both) == [("keyvalue", n) for n in range(300)]


def test_a_log_that_changes_its_shape_is_followed() -> None:
    sniff = sniffer()
    feed(sniff, telemetry(0, LOCK_AFTER_LINES + 1))
    assert sniff.chosen == "keyvalue"
    told = feed(sniff, nanogpt(0, 20))
    assert told == [("nanogpt", n) for n in range(SWITCH_AFTER_CREDIT - 1, 20)]
    assert sniff.chosen == "nanogpt"
    assert feed(sniff, telemetry(300, 320)) == [("keyvalue", 300 + n) for n in range(SWITCH_AFTER_CREDIT - 1, 20)]


def test_of_two_that_read_the_same_line_the_first_counts() -> None:
    sniff = Sniffer([Steps(), Pattern(r"step: (?P<step>\d+), loss: (?P<loss>[\d.]+)")])
    assert feed(sniff, telemetry(0, 10)) == [("keyvalue", n) for n in range(10)]


def test_an_interspersed_other_shape_never_takes_over() -> None:
    sniff = sniffer()
    feed(sniff, telemetry(0, LOCK_AFTER_LINES + 1))
    mixed = [text for n in range(100) for text in (*nanogpt(n, n + 1), *telemetry(300 + n, 301 + n))]
    assert {reader for reader, _ in feed(sniff, mixed)} == {"keyvalue"}


def test_too_little_evidence_locks_nobody() -> None:
    sniff = sniffer()
    feed(sniff, ["noise"] * (LOCK_AFTER_LINES * 2))
    assert feed(sniff, nanogpt(0, 3)) == [("nanogpt", n) for n in range(3)]


def test_a_step_that_does_not_rise_is_no_credit() -> None:
    sniff = sniffer()
    feed(sniff, ["step: 5, loss: 3"] * 300)
    assert sniff.snapshot()["winner"] is None
    assert sniff.chosen == "keyvalue"


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
    other = Sniffer([Steps()])
    other.restore(sniff.snapshot())
    assert other.chosen is None
    assert feed(other, telemetry(0, 3)) == [("keyvalue", n) for n in range(3)]


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


class Holder(Pairs):
    """A reader that holds each ``take LOSS`` back until ``told N`` names its step; of ``take nan`` it tells at once."""

    name = "holder"

    def __init__(self) -> None:
        super().__init__()
        self.held: list[float] = []

    def __call__(self, line: Line, _at: float, _source: int) -> tuple[Record, ...] | None:
        word, _, rest = line.text.partition(" ")
        if word == "take":
            self.held.append(float(rest))
            return (self._record(None, early=True),) if rest == "nan" else ()
        if word != "told":
            return None
        told = (self._record(int(rest)),) if self.held else ()
        self.held.clear()
        return told

    def flush(self) -> tuple[Record, ...]:
        told = (self._record(None),) if self.held else ()
        self.held.clear()
        return told

    def _record(self, step: int | None, *, early: bool = False) -> Record:
        return Record(reader="holder", step=step, loss=self.held[-1], early=early)


class Greedy(Pairs):
    """A reader that reads every line but ``told N`` as a record, with an epoch that rises."""

    name = "greedy"
    count = 0

    def __call__(self, line: Line, _at: float, _source: int) -> tuple[Record, ...] | None:
        if line.text.startswith("told"):
            return None
        self.count += 1
        return (Record(reader="greedy", loss=1.0, epoch=float(self.count)),)


def test_a_record_that_is_held_back_does_not_lose_to_a_reader_behind_it() -> None:
    sniff = Sniffer([Holder(), Greedy()])
    texts = [text for n in range(1, 20) for text in (f"take 2.{n}", f"told {n}")]
    assert feed(sniff, texts) == [("holder", n) for n in range(1, 20)]
    assert sniff.chosen == "holder"


def test_an_early_record_is_told_at_once_and_gives_no_credit() -> None:
    sniff = Sniffer([Holder(), NanoGPT()])
    (early,) = sniff(Line("take nan", 0), 0.0, 0)
    assert (early.early, sniff.chosen) == (True, None)
    (whole,) = sniff(Line("told 4", 9), 0.0, 0)
    assert (whole.early, whole.step, sniff.chosen) == (False, 4, "holder")


def test_an_early_record_counts_as_much_as_one_that_another_reads_at_once() -> None:
    sniff = Sniffer([Holder(), Greedy()])
    feed(sniff, ["take 2.5", "told 1", "take 2.4", "told 2"])
    (early,) = sniff(Line("take nan", 0), 0.0, 0)
    assert (early.reader, early.early) == ("holder", True)


def test_what_is_held_comes_out_at_the_end_settled_or_not() -> None:
    for before in ([], [text for n in range(LOCK_AFTER_LINES) for text in (f"take 2.{n}", f"told {n}")]):
        sniff = Sniffer([Steps(), Holder(), Pairs()])
        feed(sniff, [*before, "take 5.5"])
        assert [(record.reader, record.step, record.loss) for record in sniff.flush()] == [("holder", None, 5.5)]
        assert sniff.flush() == ()


def test_of_what_is_held_only_the_most_credible_counts() -> None:
    sniff = Sniffer([Steps(), Holder()])
    feed(sniff, [*telemetry(0, 5), "take 5.5"])
    assert sniff.flush() == ()
    assert Sniffer([]).flush() == ()


def test_an_epoch_that_rises_is_credit_where_no_step_is_printed() -> None:
    sniff = Sniffer([Greedy(), Pairs()])
    feed(sniff, ["x"] * 3)
    assert sniff.chosen == "greedy"
    assert sniff.snapshot()["candidates"][0][1] == 3
    again = Sniffer([Greedy(), Pairs()])
    again.restore(json.loads(json.dumps(sniff.snapshot())))
    feed(again, ["x"] * 3)  # a fresh one counts from 1 again: the first does not rise
    assert again.snapshot()["candidates"][0][1] == 5


def test_a_time_or_a_rate_is_credit_without_a_loss() -> None:
    class Timed(Pairs):
        """A reader of one field."""

        name = "timed"

        def __call__(self, line: Line, _at: float, _source: int) -> tuple[Record, ...] | None:
            step, _, field = line.text.partition(" ")
            return (Record(reader="timed", step=int(step), **{field: 1.0}),)  # type: ignore[arg-type]

    for field, credit in (("dt_s", 3), ("tokens_per_s", 3), ("samples_per_s", 3), ("lr", 0)):
        sniff = Sniffer([Timed()])
        feed(sniff, [f"{n} {field}" for n in range(3)])
        assert sniff.snapshot()["candidates"][0][1] == credit


def test_it_says_why() -> None:
    sniff = sniffer()
    assert sniff.why() == "none of keyvalue, nanogpt, pairs has read a record that gets on"
    feed(sniff, ["noise", *telemetry(0, 5)])
    assert sniff.why() == "keyvalue has read 5 credible records in 6 lines (nanogpt 0, pairs 0)"
    feed(sniff, telemetry(5, 300))
    settled = "keyvalue had read 199 credible records (nanogpt 0, pairs 0) when it was settled, after 200 lines"
    assert sniff.why() == settled
    first = Sniffer([KeyValue(), NanoGPT()])
    feed(first, nanogpt(0, 3))
    assert (
        "keyvalue has read 3 credible records in 3 lines, the first of those that read most (nanogpt 3)" in first.why()
    )
