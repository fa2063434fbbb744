"""Many lines at once give exactly what they give one by one: records, verdicts, figures and all that is remembered."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overnight import calm, monitor
from overnight.batches import Batch, Entry, Outcome, Places
from overnight.events import Record, jsonable
from overnight.history.store import decode_state, encode_state
from overnight.monitor import Monitor
from overnight.spec import RunSpec
from overnight.wiring import make_monitor

AT = 1_700_000_000.0

TEMPLATES = {
    "exact": "step: {step}, loss: {loss}, dt: {dt}",
    "no dt": "step: {step}, loss: {loss}",
    "lr": "step: {step} | loss: {loss} | lr: {small} | grad_norm: {norm} | dt: {dt}",
    "dated": "2026-01-02 03:04:{second:02d},{step3:03d} INFO step: {step}, loss: {loss}, dt: {dt}",
    "ranked": "[rank0]: step: {step}, loss: {loss}, dt: {dt}",
    "other rank": "[rank1]: step: {step}, loss: {loss}, dt: {dt}",
    "units": "step: {step}/90000, loss: {loss}, dt: {ms}ms, mfu: {mfu}%, tok/s: {k}K",
    "epoch": "epoch: {epoch}, step: {step}, loss: {loss}, dt: {dt}",
    "padded": "step:  {step:>7} loss: {loss:>9} dt: {dt:>9}",
    "thousands": "step: {step}, loss: {loss}, tokens: {tokens:,}, dt: {dt}",
    "tokens": "step: {step}, loss: {loss}, tokens: {tokens}, dt: {dt}",
    "counter": "step: {step}, loss: {loss}, tokens: {count}, dt: {dt}",
    "rate": "step: {step}, loss: {loss}, tokens_per_s: {rate}, dt: {dt}",
    "extra": "step: {step}, loss: {loss}, temperature: {norm}, mode: warm{second}, dt: {dt}",
    "tail": "step: {step}, loss: {loss} [ok]",
    "seams": "step: {step}, loss: {loss}, a: {dt}, a-: {norm}, dt: {dt}, e: {norm}",
    "zeros": "step: {step:06d}, loss: {loss}, dt: {dt}",
}
BETWEEN = [
    "eval at step {step}: val_loss: {loss}",
    "saving checkpoint to /tmp/x",
    "evaluating ...",
    "W0101 warning: something \u00b5s took long",
    "",
    "step: {step}, loss: nan, dt: {dt}",
    "step: {step}, loss: -inf, dt: {dt}",
    "step: {step}, loss: {loss}, dt: nan",
    "step: {step}, loss: {loss}, dt: {dt}step: {step}, loss: {loss}, dt: {dt}",
    "\x1b[32mstep: {step}, loss: {loss}, dt: {dt}\x1b[0m",
    "st\0ep: {step}, loss: {loss}, dt: {dt}",
    "step: {step}, loss: 1.2.3, dt: {dt}",
    "step: {step}, loss: 5., dt: {dt}",
    "step: {step}, loss: 1e999, dt: {dt}",
    "step: {step}, loss: {loss}, dt: -0",
    "step: {step}, loss: {loss}, dt: 0",
    "step: {step}, loss: -0, dt: {dt}",
    "step: {step}, loss: 0.0, dt: {dt}",
    "step: {step}, loss: 12345678901234567890.12345678901234567890, dt: {dt}",
    "step: {step}, loss: 1234567890123456789012345.5, dt: {dt}",
    "step: {step}, loss: 3e0, dt: 1E+5",
    "step: {step}, loss: 3.5, dt: {dt}e-05",
    "step: {step}, loss: +3.5, dt: .25",
    "step: 9999999999999999, loss: {loss}, dt: {dt}",
    "iter {step}: loss {loss}, time 14.01ms, mfu -100.00%",
    "best so far: step 0 loss inf",
    "Target: step 9000, loss: 3.1",
    "phase two, step {step}, loss: {loss}",
    "loss: nan step: {step}",
    "step: 5, loss: nan, dt: {dt}",
    "{{'loss': {loss}, 'step': {step},",
]

stretches = st.fixed_dictionaries(
    {
        "template": st.sampled_from([*TEMPLATES, "exact", "exact", "lr"]),
        "lines": st.sampled_from([1, 3, 30, 70, 150]),
        "level": st.sampled_from([3.0, 10.82, 10.6, 5.0, 0.0001, -2.0, 25.0, 300.0]),
        "noise": st.sampled_from([0.0, 0.02, 0.5]),
        "odd": st.sampled_from([0.0, 0.0, 0.01, 0.1]),
        "every": st.sampled_from([0, 0, 10, 40, 100]),
        "between": st.sampled_from(BETWEEN),
        "jump": st.sampled_from([1, 1, 1, 10, -5, -100, 0]),
        "gap": st.sampled_from([1, 1, 10]),
        "seed": st.integers(0, 1000),
    }
)


def written(stretch: dict[str, Any], step: int) -> tuple[list[str], int]:
    """Return the lines of one stretch that follows ``step``, and the last step in it."""
    dice = random.Random(stretch["seed"])
    lines = []
    step = max(0, step + stretch["jump"] - stretch["gap"])
    for number in range(stretch["lines"]):
        step += stretch["gap"]
        loss = stretch["level"] * (1 + stretch["noise"] * dice.uniform(-1, 1))
        if dice.random() < stretch["odd"]:
            loss *= dice.choice([3.0, 1000.0, 1.5])
        facts = {
            "step": step,
            "step3": step % 1000,
            "loss": dice.choice([f"{loss:.4f}", f"{loss:.4f}", repr(loss), f"{loss:.3e}"]),
            "dt": f"0.25{number % 10}",
            "ms": 250 + number % 7,
            "small": f"{3e-4 / (1 + step):.2e}",
            "norm": f"{dice.uniform(0, 2):.3f}",
            "mfu": f"{dice.uniform(-1, 60):.2f}",
            "k": f"{dice.uniform(90, 100):.1f}",
            "rate": dice.randint(90_000, 100_000),
            "epoch": f"{step / 100:.2f}",
            "second": number % 60,
            "tokens": 32768 + dice.randint(0, 9),
            "count": 32768 * step + dice.randint(0, 9),
        }
        lines.append(TEMPLATES[stretch["template"]].format(**facts))
        if stretch["every"] and number % stretch["every"] == stretch["every"] - 1:
            lines.append(stretch["between"].format(**facts))
    return lines, step


PRELUDE = "".join(f"step: {step}, loss: {9 - step / 100:.4f}, dt: 0.25\n" for step in range(1, 206)).encode()


def log_of(plan: list[dict[str, Any]], end: str, *, closed: bool) -> bytes:
    """Return what comes behind PRELUDE."""
    lines: list[str] = []
    step = 205
    for stretch in plan:
        more, step = written(stretch, step)
        lines += more
    text = end.join(lines) + (end if closed else "")
    return text.encode()


def settled(**facts: Any) -> Monitor:
    """Return a monitor whose reader is settled: it has read PRELUDE."""
    one = heart(**facts)
    key = repr(facts)
    if key not in SETTLED:
        one.feed(PRELUDE, AT)
        SETTLED[key] = encode_state(one.snapshot())
    state = decode_state(SETTLED[key])
    assert isinstance(state, dict)
    one = heart(**facts)
    one.restore(state)
    return one


SETTLED: dict[str, bytes] = {}


def heart(**facts: Any) -> Monitor:
    """Return a monitor in its first attempt."""
    spec = RunSpec(name="night", argv=("train",), executable="/bin/true", cwd="/", log="/output.log", **facts)
    one = make_monitor(spec, pytest.fail)
    one.begin_attempt(1)
    return one


def plain(outcomes: list[Outcome]) -> list[str]:
    """Return entries and verdicts in a form in which NaN equals NaN and -0.0 is not 0.0."""
    entries = [repr(tuple(entry)) for one in outcomes for entry in one.entries]
    return entries + [json.dumps(jsonable(verdict)) for one in outcomes for verdict in one.verdicts]


def remembered(one: Monitor) -> str:
    """Return all that a monitor holds."""
    told = (one.moves, one.hearing.heard, one.hearing.phase, one.segment, one.sick_since, one.reached())
    return repr((one.snapshot(), one.measure(), told))


def line_by_line(log: bytes, ats: list[tuple[int, float]], **facts: Any) -> tuple[list[str], str]:
    """Read a log one line at a time, which no stretch survives."""
    one = settled(**facts)
    outcomes = []
    place = 0
    for line in log.splitlines(keepends=True):
        outcomes.append(one.feed(line, max(at for begin, at in ats if begin <= place)))
        place += len(line)
    outcomes.append(one.flush(ats[-1][1]))
    assert not any(isinstance(piece, Batch) for outcome in outcomes for piece in outcome.pieces)
    return plain(outcomes), remembered(one)


def pieces(log: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a log at the given places."""
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    return [log[begin:end] for begin, end in itertools.pairwise(places)]


asked = st.sampled_from(
    [
        {},
        {"vocab_size": 50257},
        {"vocab_size": 50257, "max_loss": 20.0, "max_steps": 600, "tokens_per_step": 32768.0, "params": 1_000_000},
        {"max_loss": 4.0, "devices": 8, "params": 1_000_000, "peak_tflops": 100.0},
    ]
)
plans = st.lists(stretches, min_size=1, max_size=4)
ends = st.sampled_from(["\n", "\n", "\r\n", "\n\n", "\r"])
cuts = st.lists(st.integers(0, 50_000), max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plan=plans, end=ends, closed=st.booleans(), facts=asked, cuts=cuts)
def test_at_once_is_as_one_by_one(
    plan: list[dict[str, Any]], end: str, closed: bool, facts: dict[str, Any], cuts: list[int]
) -> None:
    log = log_of(plan, end, closed=closed)
    one = settled(**facts)
    outcomes = [one.feed(piece, AT) for piece in pieces(log, cuts)]
    outcomes.append(one.flush(AT))
    expected = line_by_line(log, [(0, AT)], **facts)
    assert plain(outcomes) == expected[0]
    assert remembered(one) == expected[1]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plan=plans, end=ends, facts=asked, cuts=cuts)
def test_also_where_stretches_are_short(
    plan: list[dict[str, Any]], end: str, facts: dict[str, Any], cuts: list[int]
) -> None:
    log = log_of(plan, end, closed=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "MANY", 2)
        for module in (monitor, calm):
            patch.setattr(module, "FEW", 2)
        patch.setattr(monitor, "MOST", 16)
        one = settled(**facts)
        outcomes = [one.feed(piece, AT) for piece in pieces(log, cuts)]
        outcomes.append(one.flush(AT))
    expected = line_by_line(log, [(0, AT)], **facts)
    assert plain(outcomes) == expected[0]
    assert remembered(one) == expected[1]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(plan=plans, facts=asked, cuts=cuts)
def test_saved_and_restored_in_the_middle(plan: list[dict[str, Any]], facts: dict[str, Any], cuts: list[int]) -> None:
    """With time marks, too: where a piece begins, another time of arrival is in force."""
    log = log_of(plan, "\n", closed=True)
    outcomes = []
    one = settled(**facts)
    ats, place = [], 0
    for number, piece in enumerate(pieces(log, [cut // 64 * 64 for cut in cuts])):
        # A mark counts for the lines that end behind it: here it must stand where a line begins.
        state = decode_state(encode_state(one.snapshot()))
        assert isinstance(state, dict)
        again = settled(**facts)
        again.restore(state)
        again.moves, again.hearing.heard = one.moves, one.hearing.heard
        one = again
        begin = log.rfind(b"\n", 0, place) + 1
        ats.append((begin, AT + 10 * number))
        outcomes.append(one.feed(piece, AT + 10 * number))
        place += len(piece)
    outcomes.append(one.flush(ats[-1][1]))
    expected = line_by_line(log, ats, **facts)
    assert plain(outcomes) == expected[0]
    assert remembered(one).replace("(", "[").replace(")", "]") == expected[1].replace("(", "[").replace(")", "]")


def healthy(count: int, first: int = 1) -> bytes:
    """Return a healthy log."""
    return "".join(f"step: {first + n}, loss: {3 + n % 7 / 100:.4f}, dt: 0.25\n" for n in range(count)).encode()


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("thousands", "epoch")])
def test_most_of_a_healthy_log_is_read_at_once(name: str) -> None:
    """Not for what it finds, but for how: without this every other test here could pass with the slow way alone."""
    stretch = {
        "template": name, "lines": 3000, "level": 3.0, "noise": 0.02, "odd": 0.0, "every": 0, "between": "",
        "jump": 1, "gap": 1, "seed": 1,
    }  # fmt: skip
    log = "\n".join(written(stretch, 0)[0]).encode() + b"\n"
    one = heart(vocab_size=50257, tokens_per_step=1000.0)
    one.feed(log, AT)
    found = one.feed("\n".join(written(stretch, 3000)[0]).encode() + b"\n", AT)
    batches = [piece for piece in found.pieces if isinstance(piece, Batch)]
    assert sum(map(len, batches)) > 2500
    assert len(found.entries) == 3000


def test_lines_between_do_not_end_it() -> None:
    log = b""
    for block in range(60):
        log += healthy(100, 1 + 100 * block) + b"WARNING: something else\nevaluating ...\n"
    one = heart()
    found = one.feed(log, AT)
    batches = [piece for piece in found.pieces if isinstance(piece, Batch)]
    assert sum(map(len, batches)) > 5000
    assert one.hearing.heard == 60


def test_one_odd_loss_costs_only_its_own_stretch() -> None:
    log = healthy(3000) + b"step: 3001, loss: 30.0, dt: 0.25\n" + healthy(3000, 3002)
    found = heart(max_loss=20.0).feed(log, AT)
    assert sum(len(piece) for piece in found.pieces if isinstance(piece, Batch)) > 5500
    assert [verdict.step for verdict in found.verdicts] == [3001]


class Stranger:
    """A rule of somebody else's that knows nothing of batches."""

    name = "stranger"
    action = "note"

    def __init__(self) -> None:
        self.seen = 0

    def fresh(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def __call__(self, _record: Record, _memory: dict[str, Any]) -> None:
        """Count."""
        self.seen += 1


def test_a_rule_without_it_is_asked_about_each_record() -> None:
    one = heart()
    stranger = Stranger()
    one.change([*one.rules, stranger], one.time_rules, one.figures)  # type: ignore[list-item]
    found = one.feed(healthy(3000), AT)
    assert stranger.seen == 3000
    assert not any(isinstance(piece, Batch) for piece in found.pieces)


# ---- the value itself


def batch() -> Batch:
    """Return three records with all that a batch can have."""
    raw = b"one\n\ntwo\nthree\n"
    return Batch(
        reader="r", source=2, at=AT, rank=1, steps=[1, 2, 5], loss=[3.0, 2.0, 1.0], columns={"dt_s": [0.1, 0.2, 0.3]},
        extra={"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]}, places=Places(raw, 100), attempt=4, segment=7,
        per_device=True,
    )  # fmt: skip


def test_a_batch_is_its_entries() -> None:
    assert batch().offsets == [100, 105, 109]
    first, second, third = batch()
    assert second == Entry(
        Record(
            reader="r", source=2, offset=105, at=AT, rank=1, step=2, loss=2.0, dt_s=0.2, extra={"a": 2.0, "b": "y"},
            per_device=True,
        ),
        4,
        7,
    )  # fmt: skip
    assert (first.record.offset, third.record.offset) == (100, 109)
    assert len(batch()) == 3
    assert Outcome([[first], batch()], []).entries == [first, first, second, third]


def test_a_part_of_a_batch() -> None:
    part = batch().part(1, 3, attempt=5, segment=8)
    assert (part.steps, part.offsets, part.extra["b"]) == ([2, 5], [105, 109], ["y", "z"])
    assert [entry.record for entry in part] == [entry.record for entry in batch()][1:]
    assert [(entry.attempt, entry.segment) for entry in part] == [(5, 8)] * 2
    again = part.part(1, 2, attempt=5, segment=8)
    assert [entry.record for entry in again] == [entry.record for entry in batch()][2:]
    whole = batch().part(0, 99, attempt=1, segment=1)
    assert len(whole) == 3
    assert msgspec.structs.replace(whole, places=None) == msgspec.structs.replace(
        batch(), places=None, attempt=1, segment=1
    )
