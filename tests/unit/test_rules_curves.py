"""Rules over whole curves, simulated and recorded: what they find, how soon, and that healthy runs are left alone."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from itertools import count, islice
from math import exp, inf, isfinite, log, log2, nan, sin
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record, Verdict
from overnight.rules import Memory, RecordRule
from overnight.rules.collapse import FELL, LEARNED, NEAR, WINDOW, Collapse
from overnight.rules.divergence import Divergence
from overnight.rules.nonfinite import Nonfinite
from overnight.rules.spike import FIRST, RECOVERED, RUNNING, SETTLED, Spike
from overnight.rules.steps import MaxSteps
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

V = 50257
GUESSING = log(V)
LOGS = Path(os.environ.get("RECORDED_LOGS", Path(__file__).parents[3] / "shared" / "cases" / "formats"))
SICK = {"hf-trainer-nan-filtered", "hf-trainer-nan-unfiltered", "nanogpt-nan", "maxtext", "olmo-core", "torchtitan",
        "torchtitan-color", "llm.c-cuda", "megatron-lm", "megatron-deepspeed"}  # fmt: skip

Curve = Callable[[random.Random], Iterable[float]]


def records(losses: Iterable[float | None], *, first: int = 1, rank: int | None = None) -> list[Record]:
    """Return lines of consecutive steps."""
    return [Record(reader="test", step=step, loss=loss, rank=rank) for step, loss in enumerate(losses, first)]


def judged(rule: RecordRule, lines: Iterable[Record], memory: Memory | None = None) -> list[Verdict]:
    """Return all verdicts of one segment."""
    memory = rule.fresh() if memory is None else memory
    return [found for line in lines if (found := rule(line, memory)) is not None]


def alerts(verdicts: list[Verdict]) -> list[int | None]:
    """Return the steps of the verdicts that are more than a note."""
    return [verdict.step for verdict in verdicts if verdict.action != "note"]


def noisy(losses: Iterable[float], part: float, seed: int = 1) -> list[float]:
    """Return a curve with Gaussian noise of a part of the loss."""
    draw = random.Random(seed)
    return [loss * (1 + part * draw.gauss(0, 1)) for loss in losses]


def learning(steps: int, *, start: float = GUESSING, end: float = 2.8, pace: float = 150.0) -> list[float]:
    """Return the curve of a language model that starts at ln V."""
    return [end + (start - end) / (1 + step / pace) for step in range(steps)]


# ---- collapse


def test_collapse_after_something_was_learned() -> None:
    lines = records(noisy(learning(1000) + [GUESSING] * 200, 0.003))
    (verdict,) = judged(Collapse(vocab_size=V), lines)
    assert (verdict.rule, verdict.severity, verdict.action) == ("collapse", "critical", "stop")
    assert verdict.step == 1000 + WINDOW
    assert verdict.text.startswith("loss 10.8")
    assert f"is back at ln(50257) = 10.8249 at step {verdict.step}" in verdict.text
    assert verdict.evidence["ln_vocab_size"] == pytest.approx(GUESSING)


def test_collapse_hovering_on_both_sides_and_with_a_stray_record() -> None:
    hovering = [GUESSING * (1 + 0.015 * (-1) ** n) for n in range(60)]
    hovering[7] = 30.0
    (verdict,) = judged(Collapse(vocab_size=V), records(learning(1000) + hovering))
    assert verdict.step is not None
    assert verdict.step <= 1000 + WINDOW + 3


@pytest.mark.parametrize("action", ["note", "alert", "stop", "terminate"])
def test_collapse_takes_the_action_it_was_given(action: str) -> None:
    lines = records(learning(500) + [GUESSING] * 30)
    assert judged(Collapse(vocab_size=V, action=action), lines)[0].action == action  # type: ignore[arg-type]


def bits(steps: int) -> list[float]:
    """Return a loss in base 2: it begins at log2 V and lingers at ln V, where a model knows how common words are."""
    return [max(4.0 + 12.0 * exp(-step / 900), GUESSING if step < 600 else 0.0) for step in range(steps)]


HEALTHY: dict[str, list[float]] = {
    "a plateau at ln V for 1,000 steps": noisy([GUESSING] * 1000 + learning(1000), 0.01),
    "a noisy plateau at ln V": noisy([GUESSING] * 5000, 0.08),
    "learning": noisy(learning(3000), 0.03),
    "fine-tuning starts low": noisy(learning(2000, start=2.4, end=1.1), 0.1),
    "one lucky record": [GUESSING] * 100 + [5.0] + [GUESSING] * 1000,
    "a single spike back": learning(500) + [GUESSING] + [4.9] * 500,
    "a spike through ln V": learning(500) + [12.0] * 5 + [12 - n / 5 for n in range(40)] + [4.9] * 500,
    "base 2": noisy(bits(4000), 0.02),
    "base 2, very noisy": noisy([log2(V)] * 300 + bits(4000), 0.1),
    "far above": learning(500) + [40.0] * 500,
    "an MSE": noisy([1e4 * exp(-n / 300) + 1 for n in range(4000)], 0.2),
    "a resumed run that had collapsed before": noisy([GUESSING] * 3000, 0.004),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_collapse(name: str) -> None:
    assert judged(Collapse(vocab_size=V), records(HEALTHY[name])) == []


def test_collapse_without_a_vocabulary_is_silent() -> None:
    lines = records(learning(500) + [GUESSING] * 100)
    assert judged(Collapse(), lines) == judged(Collapse(vocab_size=1), records([0.0] * 100)) == []


def test_collapse_is_armed_anew_in_each_segment() -> None:
    rule = Collapse(vocab_size=V)
    assert judged(rule, records([GUESSING] * 200)) == []
    assert len(judged(rule, records([9.0] * LEARNED + [GUESSING] * 200))) == 1
    assert judged(rule, records([9.0] * (LEARNED - 1) + [GUESSING] * 200)) == []


@pytest.mark.parametrize(("factor", "found"), [(0.985, 1), (1.015, 1), (1 - NEAR * 1.01, 0), (1 + NEAR * 1.01, 0)])
def test_collapse_at_its_bounds(factor: float, found: int) -> None:
    low, high = (1 - FELL - 1e-9) * GUESSING, (1 - FELL + 1e-9) * GUESSING
    assert len(judged(Collapse(vocab_size=V), records([low] * LEARNED + [factor * GUESSING] * WINDOW))) == found
    assert judged(Collapse(vocab_size=V), records([low] * LEARNED + [factor * GUESSING] * (WINDOW - 1))) == []
    assert judged(Collapse(vocab_size=V), records([high] * LEARNED + [factor * GUESSING] * WINDOW)) == []


def test_collapse_judges_the_lowest_rank_and_no_glued_or_eval_lines() -> None:
    rule = Collapse(vocab_size=V)
    low, back = [3.0] * LEARNED, [GUESSING] * WINDOW
    assert judged(rule, [*records(low, rank=0), *records(back, rank=1)]) == []
    assert judged(rule, [*records(low, rank=1), *records(back, rank=0)]) == []
    assert len(judged(rule, [*records(low, rank=2), *records(low + back, rank=1)])) == 1
    odd = [msgspec.structs.replace(line, glued=True) for line in records(low + back)]
    odd += [msgspec.structs.replace(line, kind="eval") for line in records(low + back)]
    assert judged(rule, odd + records([nan, inf])) == []


# ---- spike


def flat(draw: random.Random) -> Iterable[float]:
    """Yield 2.0 +- 0.1."""
    while True:
        yield 2.0 + draw.uniform(-0.1, 0.1)


def take(curve: Curve, steps: int, seed: int = 1) -> list[float]:
    """Return the beginning of a curve."""
    return list(islice(curve(random.Random(seed)), steps))


def test_a_jump_that_stays_is_told_once() -> None:
    losses = take(flat, 20_000)
    losses[300:] = [loss + 6.0 for loss in losses[300:]]
    (verdict,) = judged(Spike(), records(losses, first=0))
    assert (verdict.rule, verdict.severity, verdict.action) == ("spike", "warn", "alert")
    assert verdict.step == 300 + RUNNING - 1
    assert verdict.text.startswith("loss has risen to 8")
    assert "at step 304; it was about 1.9969" in verdict.text
    assert verdict.evidence["records"] == RUNNING


def test_a_spike_that_recovers_is_noted_and_the_next_one_is_told_again() -> None:
    losses = take(flat, 3000)
    for begin, end in ((300, 330), (1000, 1040)):
        losses[begin:end] = [loss + 6.0 for loss in losses[begin:end]]
    verdicts = judged(Spike(), records(losses, first=0))
    assert [(one.step, one.action) for one in verdicts] == [
        (304, "alert"), (329 + RECOVERED, "note"), (1004, "alert"), (1039 + RECOVERED, "note"),
    ]  # fmt: skip
    assert verdicts[1].text.startswith("loss has recovered: ")


@pytest.mark.parametrize("slope", [0.15, 0.5, 3.0])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_one_insane_value_does_not_hide_a_divergence(slope: float, noise: float) -> None:
    curve = [loss + max(0, min(6.0, slope * (step - 400))) for step, loss in enumerate(learning(900, pace=60.0))]
    losses = noisy(curve, noise)
    losses[100] = 1e9
    found = alerts(judged(Spike(), records(losses, first=0)))
    assert found[0] == 100  # told too: it is 100 times the median
    later = [step for step in found[1:] if step is not None]
    assert len(later) == 1
    assert 400 < later[0] <= 430


def test_an_insane_value_leaves_what_is_usual_alone() -> None:
    rule = Spike()
    with_it, without = rule.fresh(), rule.fresh()
    losses = take(flat, 600)
    judged(rule, records([*losses[:100], 1e9, *losses[100:]]), with_it)
    judged(rule, records(losses), without)
    assert with_it["bound"] == pytest.approx(without["bound"], rel=0.05)
    assert judged(rule, records([1e9]), with_it) == []  # a single one is told the first time only


def test_an_insane_value_before_anything_is_known_does_not_blind_it() -> None:
    losses = take(flat, 300)
    losses[10] = 1e9
    losses[200:] = [8.0] * 100
    assert alerts(judged(Spike(), records(losses, first=0))) == [204]


def test_a_new_level_becomes_usual_and_a_rise_from_there_is_told() -> None:
    losses = [2.0] * 300 + [8.0] * (SETTLED + 2 * FIRST) + [80.0] * 20
    assert alerts(judged(Spike(), records(losses, first=0))) == [304, 300 + SETTLED + 2 * FIRST + RUNNING - 1]


def test_waves_are_told_a_few_times_only() -> None:
    """A loss that falls from 4 to 2 in each epoch, and jumps back."""
    losses = [4.0 - 2.0 * (step % 1000) / 1000 for step in range(50_000)]
    assert len(alerts(judged(Spike(), records(losses)))) == 2


def test_spike_judges_the_lowest_rank_and_no_glued_or_eval_lines() -> None:
    high = records([8.0] * 20, first=300)
    usual = records(take(flat, 300), rank=0)
    memory = Spike().fresh()
    assert judged(Spike(), usual, memory) == []
    assert judged(Spike(), records([8.0] * 20, rank=1), memory) == []
    assert judged(Spike(), [msgspec.structs.replace(line, glued=True) for line in high], memory) == []
    assert judged(Spike(), [msgspec.structs.replace(line, kind="eval") for line in high], memory) == []
    assert judged(Spike(), records([nan, inf, -inf] * 20), memory) == []
    assert len(judged(Spike(), high, memory)) == 1
    lower = [*records(take(flat, 300), rank=2), *records([8.0] * 20, rank=1)]
    assert judged(Spike(), lower) == []  # another rank may have another loss: what is usual is learned anew


def test_where_nothing_varies_there_is_no_spike() -> None:
    assert judged(Spike(), records([0.0] * 300 + [0.1] * 40)) == []


def gauss(part: float) -> Curve:
    """Return noise of a part of the loss."""
    return lambda draw: (2 * (1 + part * draw.gauss(0, 1)) for _ in count())


def heavy(center: float) -> Curve:
    """Return noise with the tails of Student's t with three degrees of freedom."""
    return lambda draw: (center + 0.2 * draw.gauss(0, 1) / (draw.gammavariate(1.5, 2 / 3) ** 0.5) for _ in count())


def bursts(draw: random.Random) -> Iterable[float]:
    """Yield an RL loss around zero that is ten times as large on one step in fifty."""
    while True:
        yield draw.gauss(0, 0.05) * (10 if draw.random() < 0.02 else 1)


def kl(draw: random.Random) -> Iterable[float]:
    """Yield a GRPO loss: zero at first, then a KL term that grows."""
    for step in count():
        yield 0.05 * (1 - exp(-step / 500)) * abs(1 + 0.3 * draw.gauss(0, 1)) + draw.gauss(0, 0.002)


def hump(draw: random.Random) -> Iterable[float]:
    """Yield a language model from ln V with a hump in its warm-up."""
    for step in count():
        yield (
            2.5
            + 8.3 / (1 + step * min(1, step / 200) / 300)
            + 1.5 * exp(-(((step - 90) / 30) ** 2))
            + draw.gauss(0, 0.08)
        )


def squares(draw: random.Random) -> Iterable[float]:
    """Yield an MSE that falls from 1e4."""
    for step in count():
        yield (1e4 * exp(-step / 300) + 1) * (1 + 0.2 * abs(draw.gauss(0, 1)))


def smoothed(draw: random.Random) -> Iterable[float]:
    """Yield an average that forgets slowly, whose records are nothing but correlated."""
    loss = GUESSING
    for step in count():
        loss = 0.95 * loss + 0.05 * (2.5 + 8.3 / (1 + step / 300) + draw.gauss(0, 0.1))
        yield loss


def epochs(draw: random.Random) -> Iterable[float]:
    """Yield a loss that swings by a tenth, and is a fifth higher for forty records of each thousand."""
    for step in count():
        yield (2 + 0.1 * sin(step / 160)) * (1.2 if step % 1000 < 40 else 1.0) + draw.gauss(0, 0.02)


CURVES: dict[str, Curve] = {
    "1%": gauss(0.01), "10%": gauss(0.1), "30%": gauss(0.3), "heavy tails": heavy(2.0), "around 0": heavy(0.0),
    "RL": bursts, "GRPO": kl, "warm-up": hump, "MSE": squares, "smoothed": smoothed, "epochs": epochs,
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_hardly_a_false_alarm_in_200_000_records(name: str) -> None:
    """At most one a day at a line in half a second; a million records each were tried, with none or one a curve."""
    assert len(alerts(judged(Spike(), records(take(CURVES[name], 100_000, seed=3))))) == 0
    assert len(alerts(judged(Spike(), records(take(CURVES[name], 100_000, seed=4))))) <= 1


# ---- recorded


def value(said: object) -> float | None:
    """Return a number of an expected record, which are strings where JSON has no word."""
    return None if said is None else float(str(said))


def expected(path: Path) -> list[Record]:
    """Return the training records that a log is known to hold."""
    found = []
    for text in path.read_text().splitlines():
        one = json.loads(text)
        extra = {"number of skipped iterations": float(one["skipped"])} if "skipped" in one else None
        step = one["step"] if isinstance(one.get("step"), int) else None
        found.append(Record(reader=path.name, step=step, loss=value(one.get("loss")),
                            grad_norm=value(one.get("grad_norm")), extra=extra))  # fmt: skip
    return found


def all_rules() -> list[RecordRule]:
    """Return every rule of a language model's run, in the order in which they are asked."""
    return [Nonfinite(), Divergence(max_loss=20.0), Collapse(vocab_size=V), Spike(), MaxSteps()]


def expected_logs() -> list[Path]:
    """Return the recorded logs, none where the folder is not there."""
    return sorted(LOGS.glob("*/*.expected.jsonl"))


@pytest.mark.skipif(not expected_logs(), reason="recorded logs are not beside this checkout")
def test_recorded_curves_are_stopped_exactly_where_a_nan_is() -> None:
    for path in expected_logs():
        lines = expected(path)
        ended = [(line.step, rule.name) for rule in all_rules() for line in stopped(rule, lines)]
        name = path.name.removesuffix(".expected.jsonl")
        sick = [line for line in lines if line.loss is not None and not isfinite(line.loss)]
        if name in SICK and (sick or name.startswith(("hf-trainer-nan", "megatron"))):
            assert {rule for _, rule in ended} == {"nonfinite"}, name
        else:
            assert not ended, name


def stopped(rule: RecordRule, lines: list[Record]) -> list[Record]:
    """Return the lines on which a rule would end the run."""
    memory = rule.fresh()
    found = [(line, rule(line, memory)) for line in lines]
    return [line for line, verdict in found if verdict is not None and verdict.action in ("stop", "terminate")]


@pytest.mark.skipif(not expected_logs(), reason="recorded logs are not beside this checkout")
def test_recorded_logs_end_no_run_but_the_sick_ones() -> None:
    spec = RunSpec(name="x", argv=("x",), executable="/bin/x", cwd="/", log="/x.log", vocab_size=V)
    for path in sorted(LOGS.glob("*/*.log")):
        heart = make_monitor(spec, pytest.fail)
        verdicts = [*heart.feed(path.read_bytes(), 1.0).verdicts, *heart.flush(1.0).verdicts]
        ended = {one.rule for one in verdicts if one.action in ("stop", "terminate")}
        assert ended <= ({"nonfinite"} if path.stem in SICK else set()), path.name


def test_the_shape_of_a_filtered_nan() -> None:
    """Recorded from a trainer of transformers with its default filter: the loss is 0, the gradient norm NaN."""
    said = [(4.05, 1.002), (4.051, 0.954), (4.019, 0.958), (4.038, 1.076), (4.035, 0.905), (0.0, nan), (0.0, nan)]
    lines = [Record(reader="hf", step=n, loss=loss, grad_norm=norm) for n, (loss, norm) in enumerate(said, 1)]
    (verdict,) = judged(Nonfinite(), lines)
    assert (verdict.step, verdict.severity, verdict.action) == (6, "critical", "terminate")


# ---- saved and restored between any two records

_LOSSES = st.none() | st.sampled_from([2.0, 2.1, 0.0, 8.0, 9.0, 1e9, GUESSING, nan, inf, -1.0]) | st.floats(0, 12)
_LINE = st.builds(
    Record,
    reader=st.sampled_from(["a", "a", "a", "b"]),
    kind=st.sampled_from(["train", "train", "train", "eval"]),
    step=st.none() | st.integers(0, 40),
    loss=_LOSSES,
    grad_norm=st.sampled_from([None, None, 1.0, nan, inf]),
    rank=st.sampled_from([None, None, 0, 1]),
    glued=st.sampled_from([False, False, False, True]),
)
_STRETCH = st.tuples(_LINE, st.integers(1, 140)).map(lambda pair: [pair[0]] * pair[1])
_RULES = [Nonfinite(), Divergence(max_loss=5.0), Collapse(vocab_size=V), Spike(), MaxSteps(max_steps=20)]


@settings(max_examples=150, deadline=None)
@given(st.lists(_STRETCH | st.lists(_LINE, max_size=20), max_size=8), st.integers(0, 400), st.sampled_from(_RULES))
def test_saved_and_restored_between_any_two_records(stretches: list[list[Record]], cut: int, rule: RecordRule) -> None:
    lines = [line for stretch in stretches for line in stretch]
    whole, part = rule.fresh(), rule.fresh()
    everything = judged(rule, lines, whole)
    first = judged(rule, lines[:cut], part)
    shallow = dict(part)  # what a snapshot is until it is written
    before = msgspec.msgpack.encode(shallow)
    again = msgspec.msgpack.decode(before)
    second = judged(rule, lines[cut:], part)
    assert msgspec.msgpack.encode(shallow) == before
    assert repr(judged(rule, lines[cut:], again)) == repr(second)
    assert repr(first + second) == repr(everything)
    assert repr(again) == repr(whole)
    assert len(before) < 3000
