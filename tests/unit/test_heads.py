"""Lines that only look like progress: what begins as no line before is kept, and ends no run on its own."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Outcome
from overnight.events import Record, Verdict, jsonable
from overnight.history.store import decode_state, encode_state
from overnight.monitor import Monitor
from overnight.past.tally import Tally
from overnight.readers.heads import FIRST, KNOWN, Heads, head_of, raw_head
from overnight.spec import RunSpec
from overnight.tail import Line
from overnight.wiring import make_monitor

AT = 1_700_000_000.0
FOREIGN = [
    "best so far: step 0 loss inf",
    "  File \"train.py\", line 30: assert loss != float('nan'), 'step 30 loss nan'",
    "Sample: the log read 'step: 400, loss: nan' and he wept.",
    "generated: iter 10: loss nan, time 1.0ms",
    "config: step=0 loss=nan lr=1e-3",
    '{"role":"user","content":"step 5: loss nan"}',
    "Sanity checking step 0: loss nan",
    '> user said: "step 100: loss nan"',
    "wandb: Run summary: step 61 loss nan",
    "step: 5, loss: nan  <- what a broken run looks like",
    'expected {"step": 301, "loss": NaN} in the report',
    "we would see: {'loss': nan, 'learning_rate': 0.1, 'epoch': 0.4}",
]


def heart(**facts: Any) -> Monitor:
    """Return a monitor in its first attempt."""
    spec = RunSpec(name="night", argv=("train",), executable="/bin/true", cwd="/", log="/output.log", **facts)
    one = make_monitor(spec, pytest.fail)
    one.begin_attempt(1)
    return one


def healthy(first: int, last: int, text: str = "step: {n}, loss: {x}, dt: 0.25") -> list[str]:
    return [text.format(n=n, x=f"{3 + n % 7 / 100:.4f}") for n in range(first, last)]


def feed(one: Monitor, *texts: str) -> Outcome:
    return one.feed("".join(f"{text}\n" for text in texts).encode(), AT)


def told(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(one.rule, one.severity, one.action) for one in outcome.verdicts]


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("before", [30, 300])
def test_a_foreign_line_ends_no_run(text: str, before: int) -> None:
    one = heart(vocab_size=50257)
    feed(one, *healthy(1, before + 1))
    found = feed(one, text, *healthy(before + 1, before + 31))
    assert [verdict for verdict in told(found) if verdict[2] == "terminate"] == []
    assert set(told(found)) <= {("nonfinite", "warn", "alert")}
    assert (one.meter.step, one.meter.records, one.segment, one.sick_since) == (before + 30, before + 30, 1, None)


@pytest.mark.parametrize("text", FOREIGN)
def test_nor_does_it_when_it_comes_again_and_again(text: str) -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    for n in range(301, 401, 10):
        feed(one, text, *healthy(n, n + 10))
    assert (one.sick_since, one.meter.records, one.segment) == (None, 400, 1)


@pytest.mark.parametrize("text", ["step: {n}, loss: nan, dt: 0.25", "step: {n}, loss: -inf", "loss: nan step: {n}"])
def test_a_real_one_ends_it_on_its_line(text: str) -> None:
    one = heart()
    shape = "loss: {x} step: {n}" if text.startswith("loss") else "step: {n}, loss: {x}, dt: 0.25"
    feed(one, *healthy(1, 301, shape))
    found = feed(one, text.format(n=301))
    assert told(found) == [("nonfinite", "critical", "terminate")]
    assert one.sick_since == 301


@pytest.mark.parametrize(
    "shape",
    [
        "2026-01-02 03:04:05,678 INFO step: {n}, loss: {x}",
        "[rank1]: step: {n}, loss: {x}",
        '{{"step": {n}, "loss": {x}}}',
        '{{"loss": {x}, "step": {n}}}',
        "Epoch 1/3 | step {n}/900 | loss {x}",
        "iter {n}: loss {x}, time 14.01ms, mfu 0.01%",
        "{{'loss': {x}, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': 0.1, 'step': {n}}}",
        "Fri Nov 30 10:00:00 2026 step {n} loss {x}",
        "lr 0.1 loss={x} iter={n}",
    ],
)
def test_on_lines_of_every_shape(shape: str) -> None:
    one = heart()
    feed(one, *healthy(1, 301, shape))
    assert one.meter.records == 300
    found = feed(one, shape.format(n=301, x="NaN" if "{{" in shape and '"' in shape else "nan"))
    assert told(found) == [("nonfinite", "critical", "terminate")]


def test_the_first_records_are_all_trusted() -> None:
    for before in (0, 1, FIRST - 1):
        one = heart()
        feed(one, *healthy(1, before + 1))
        assert told(feed(one, "note 5 of step 20 loss nan", "step 20 loss nan"))[:1] == [
            ("nonfinite", "critical", "terminate")
        ]


def test_a_second_one_without_a_number_between_ends_the_run() -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    (first,) = feed(one, "gpu says step 301 loss nan").verdicts
    assert (first.severity, first.action, first.step) == ("warn", "alert", 301)
    assert first.text.endswith("it is not trusted, a second one ends the run")
    found = feed(one, "gpu says step 302 loss nan")
    assert told(found) == [("nonfinite", "critical", "terminate")]
    assert one.sick_since == 300
    assert told(feed(one, "gpu says step 303 loss nan", "step: 304, loss: nan, dt: 0.2")) == []


def test_a_trusted_one_behind_it_ends_the_run() -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    found = feed(one, "gpu says step 301 loss nan", "step: 301, loss: nan, dt: 0.25")
    assert told(found) == [("nonfinite", "warn", "alert"), ("nonfinite", "critical", "terminate")]


def test_an_action_that_ends_nothing_promises_no_end() -> None:
    one = heart(actions={"nonfinite": "note"})
    feed(one, *healthy(1, 301))
    (first,) = feed(one, "gpu says step 301 loss nan").verdicts
    assert (first.action, "ends" in first.text) == ("note", False)


@pytest.mark.parametrize(
    "text", ["Target: step 400, loss: 3.1", "goal is step 400 loss 3.1", "at step 400: loss: 99.0"]
)
def test_a_sentence_moves_no_step(text: str) -> None:
    one = heart(max_steps=400, steps=400, vocab_size=50257)
    feed(one, *healthy(1, 101))
    moves = one.moves
    found = feed(one, text)
    (entry,) = found.entries
    assert (entry.record.strange, entry.record.glued, entry.record.step) == (True, True, 400)
    assert (found.verdicts, one.moves, one.plan().last_step, one.meter.highest_step) == ([], moves, 100, 100)
    assert told(feed(one, *healthy(101, 401))) == [("max_steps", "warn", "stop")]


def test_a_replay_does_not_count_it_as_the_training() -> None:
    one, tally = heart(), Tally()
    for found in (
        feed(one, *healthy(1, 301)),
        feed(one, "best so far: step 0 loss inf"),
        feed(one, *healthy(301, 311)),
    ):
        tally.add(found.pieces)
    assert (tally.steps, tally.step, tally.segments, tally.nonfinite) == (310, 310, 1, 0)


def test_a_head_becomes_known() -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    found = feed(one, *healthy(301, 310, "phase two, step {n}, loss {x}"))
    assert [entry.record.strange for entry in found.entries] == [True] * (KNOWN - 1) + [False] * (10 - KNOWN)
    assert told(feed(one, "phase two, step 310, loss nan")) == [("nonfinite", "critical", "terminate")]


def test_the_steps_of_long_ago() -> None:
    """A count that begins anew in each epoch is none, nor is a rank that lags behind."""
    for step, expected in ((5, "warn"), (80, "warn"), (295, "critical"), (0, "critical"), (1, "critical")):
        one = heart()
        feed(one, *healthy(1, 301))
        assert [verdict.severity for verdict in feed(one, f"step: {step}, loss: nan, dt: 0.25").verdicts][-1:] == [
            expected
        ]
    one = heart()
    feed(one, *healthy(10, 301), *healthy(10, 301))
    assert [verdict.severity for verdict in feed(one, "step: 10, loss: nan, dt: 0.2").verdicts] == ["critical"]
    one = heart()
    feed(one, *healthy(1, 301))
    found = feed(one, "step: 80, loss: nan, dt: 0.25", "step: 81, loss: nan, dt: 0.25")
    assert [verdict.severity for verdict in found.verdicts] == ["warn", "critical"]
    assert one.sick_since == 81, "checkpoints behind it are not to be trusted, though the run had come farther"


def test_evaluations_are_as_they_were() -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    found = feed(one, "validation at step 300: val_loss: nan")
    assert told(found) == [("nonfinite", "warn", "alert")]
    assert [entry.record.strange for entry in found.entries] == [False]


def test_a_dict_that_waits_for_its_bar_has_the_head_of_its_own_line() -> None:
    def said(n: int, loss: str) -> list[str]:
        return [
            f"{{'loss': {loss}, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': {n / 100}}}",
            f" {n}%|#  | {n}/900 [00:00<00:02, 6.48it/s]",
        ]

    lines = list(itertools.chain.from_iterable(said(n, "3.0") for n in range(1, 100)))
    one = heart()
    found = feed(one, " 0%|  | 0/900 [00:00<?, ?it/s]", *lines)
    assert [entry.record.strange for entry in found.entries] == [False] * 99
    found = feed(one, *(f"would be: {text}" if "{" in text else text for text in said(100, "nan")))
    assert [entry.record.strange for entry in found.entries] == [True]
    assert {verdict.severity for verdict in found.verdicts} == {"warn"}
    found = feed(one, *said(101, "3.0"), *said(102, "nan"))
    assert [entry.record.strange for entry in found.entries] == [False, False]
    assert {verdict.severity for verdict in found.verdicts} == {"critical"}


# ---- the heads themselves


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("step: 12, loss: 3", "step:"),
        ("step:      12, loss: 3", "step:"),
        ("loss: -0.5 step: 1", "loss:"),
        ("loss: nan step: 1", "loss:"),
        ('{"loss": "nan"}', '{"loss":'),
        ('{"loss": null}', '{"loss":'),
        ("2026-01-02 best: step 1", ""),
        ("  5%|# | 1/2", ""),
        ("Mon Nov 30 step 5", "Tue Dec 1 step 6"),
        ("banana 5", "banana"),
        ("loss: tensor(nan) step: 1", "loss:"),
        ("loss=np.float32(2.5) step: 1", "loss="),
    ],
)
def test_heads(text: str, head: str) -> None:
    expected = head if "Dec" not in head else head_of(raw_head(head))
    assert head_of(raw_head(text)) == expected


def record(loss: float, offset: int) -> Record:
    return Record(reader="r", offset=offset, step=offset, loss=loss)


def strange(heads: Heads, text: str, loss: float = 3.0, offset: int = 0) -> bool:
    (found,) = heads.judge((record(loss, offset),), Line(text, offset))
    return found.strange


def test_where_each_line_has_its_own_head_all_are_trusted() -> None:
    heads = Heads()
    assert not any(strange(heads, f"{'abcdefghijklmnopqrstuvwxyz'[n]} 5") for n in range(FIRST))
    assert not strange(heads, "something else 5", math.nan)
    assert heads.knows("whatever 5")


def test_lines_with_a_nan_make_no_head_known() -> None:
    heads = Heads()
    for _ in range(FIRST):
        strange(heads, "step 5")
    assert all(strange(heads, "sample 5", math.nan) for _ in range(9))
    assert [strange(heads, "sample 5") for _ in range(KNOWN)] == [True] * (KNOWN - 1) + [False]
    assert not strange(heads, "sample 5", math.nan)


def test_memory_stays_small() -> None:
    heads = Heads()
    for _ in range(FIRST):
        strange(heads, "step 5")
    for n in range(3000):
        word = "".join("abcdefghij"[int(digit)] for digit in str(n))
        strange(heads, f"{word} 5")
        heads.hold(Line(f"{word} 5", 10_000 + n), 0)
    assert len(heads.snapshot()["counts"]) <= 256
    assert len(heads.snapshot()["waiting"]) <= 128
    assert not strange(heads, "step 5", math.nan)


# ---- any cut, any restart, many at once: the same

LINES = st.sampled_from(
    [
        *("step: {n}, loss: 3.1, dt: 0.25",) * 3, "step: {n}, loss: nan, dt: 0.25", "phase two, step {n}, loss 3.0",
        "phase two, step {n}, loss nan", "Target: step 900, loss: 3.1", "step: 5, loss: inf", "val_loss: nan step: {n}",
        "[rank1] step: {n}, loss: 3.0", "{{'loss': nan, 'learning_rate': 0.1, 'epoch': 0.5}}",
        "{{'loss': 3.0, 'learning_rate': 0.1,", " 'epoch': 0.5}}", " 5%|# | {n}/900 [00:00<00:02, 6.48it/s]",
        '{{"step": {n}, "loss": NaN}}', '{{"step": {n},', '"loss": NaN}}', "evaluating ...",
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(st.tuples(LINES, st.integers(1, 60)), max_size=12),
    young=st.sampled_from([0, 10, 300]),
    cuts=st.lists(st.integers(0, 20_000), max_size=5),
)
def test_the_same_however_it_comes(plan: list[tuple[str, int]], young: int, cuts: list[int]) -> None:
    texts = healthy(1, young + 1)
    for text, count in plan:
        texts += [text.format(n=young + n) for n in range(len(texts), len(texts) + count)]
    log = "".join(f"{text}\n" for text in texts).encode()
    straight = heart()
    expected = [straight.feed(line, AT) for line in log.splitlines(keepends=True)]
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    one, found = heart(), []
    for begin, end in itertools.pairwise(places):
        state = decode_state(encode_state(one.snapshot()))
        assert isinstance(state, dict)
        one = heart()
        one.restore(state)
        found.append(one.feed(log[begin:end], AT))
    assert plain(found) == plain(expected)
    assert encode_state(one.snapshot()) == encode_state(straight.snapshot())


def plain(outcomes: list[Outcome]) -> list[str]:
    entries = [repr(tuple(entry)) for one in outcomes for entry in one.entries]
    verdicts: list[Verdict] = [verdict for one in outcomes for verdict in one.verdicts]
    return entries + [json.dumps(jsonable(verdict)) for verdict in verdicts]


def test_lines_whose_head_is_not_known_yet_are_read_one_by_one() -> None:
    one = heart()
    feed(one, *healthy(1, 301))
    found = feed(one, *healthy(301, 2301, "phase two, step: {n}, loss: {x}"))
    assert [entry.record.strange for entry in found.entries][: KNOWN + 1] == [True] * (KNOWN - 1) + [False] * 2
    assert sum(len(piece) for piece in found.pieces if isinstance(piece, Batch)) > 1500
