"""What a rule says of many records at once: no verdict among them, and the memory that they leave one by one."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overnight.batches import Batch, Places
from overnight.calm import calm_part
from overnight.readers.shape import _NUMBERS  # the parser that must agree with float()
from overnight.rules.collapse import Collapse
from overnight.rules.divergence import Divergence
from overnight.rules.nonfinite import Nonfinite
from overnight.rules.spike import Spike
from overnight.rules.steps import MaxSteps

RULES = [
    Nonfinite(),
    Divergence(max_loss=2.5),
    Divergence(max_loss=2.5, asked=True),
    Divergence(),
    Collapse(vocab_size=8),
    Spike(),
    MaxSteps(max_steps=150),
    MaxSteps(),
]
LEVEL = math.log(8)


def batch(losses: list[float], first: int = 1, norms: list[float] | None = None, rank: int | None = None) -> Batch:
    """Return records of rising steps."""
    return Batch(
        reader="test",
        source=0,
        at=1.0,
        rank=rank,
        steps=list(range(first, first + len(losses))),
        loss=losses,
        columns={} if norms is None else {"grad_norm": norms},
        extra={},
        places=Places(b"x\n" * len(losses), 0),
    )


def one_by_one(rule: Any, records: Batch, memory: dict[str, Any], count: int) -> list[Any]:
    """Return what a rule says to the first records; ``memory`` is changed."""
    return [rule(entry.record, memory) for _, entry in zip(range(count), records, strict=False)]


stretch = st.builds(
    lambda level, noise, count: [level * (1 + noise * math.sin(7 * number * number)) for number in range(count)],
    st.sampled_from([LEVEL, 1.01 * LEVEL, 0.98 * LEVEL, 0.5 * LEVEL, 0.9 * LEVEL, 3.0, -1.0, 50.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(1, 150),
)
odd = st.sampled_from([[9.0], [1000.0], [LEVEL], [-5.0], [0.1]])
histories = st.lists(stretch | odd, min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    before=histories,
    then=histories,
    rule=st.sampled_from(RULES),
    norms=st.sampled_from([None, 1.0, math.inf]),
    rank=st.sampled_from([None, 0, 1]),
)
def test_as_one_by_one(before: Any, then: Any, rule: Any, norms: float | None, rank: int | None) -> None:
    early = batch(list(chain.from_iterable(before)))
    late = list(chain.from_iterable(then))
    gradients = None if norms is None else [1.0] * (len(late) // 2) + [norms] * (len(late) - len(late) // 2)
    records = batch(late, first=len(early) + 1, norms=gradients, rank=rank)
    memory = rule.fresh()
    one_by_one(rule, early, memory, len(early))
    kept = repr(memory)
    count, changes = rule.calm(records, memory)
    assert repr(memory) == kept
    assert 0 <= count <= len(records)
    expected = dict(memory)
    assert one_by_one(rule, records, expected, count) == [None] * count
    assert {**memory, **changes} == expected
    if count:  # fewer are no less calm
        some = records.part(0, count, attempt=1, segment=1)
        assert rule.calm(some, memory) == (count, changes)


@pytest.mark.parametrize("rule", RULES)
def test_a_healthy_stretch_is_calm_to_its_end(rule: Any) -> None:
    losses = [1.0 + 0.1 * math.sin(number) for number in range(400)]
    memory = rule.fresh()
    one_by_one(rule, batch(losses), memory, 100)
    assert rule.calm(batch(losses, first=101), memory)[0] == (400 if rule.name != "max_steps" or rule.silent else 49)


def test_the_calm_part_is_what_all_rules_agree_on() -> None:
    rules = [Spike(), Divergence(max_loss=2.5), MaxSteps(max_steps=120)]
    losses = [1.0 + 0.1 * math.sin(number) for number in range(400)]
    memories: list[dict[str, Any]] = [rule.fresh() for rule in rules]
    for rule, memory in zip(rules, memories, strict=True):
        one_by_one(rule, batch(losses), memory, 80)
    found = calm_part(batch(losses, first=81), list(zip(rules, memories, strict=True)), 24)
    assert found is not None
    part, changes = found
    assert part.steps[-1] == 119
    for rule, memory, changed in zip(rules, memories, changes, strict=True):
        expected = dict(memory)
        one_by_one(rule, batch(losses, first=81), expected, len(part))
        assert {**memory, **changed} == expected
    assert calm_part(batch(losses, first=110), list(zip(rules, memories, strict=True)), 24) is None
    assert calm_part(batch([1.0, 2.0, 0.0, 3.0]), [], 1) is not None
    assert calm_part(batch([0.0, 3.0]), [], 1) is None
    falling = msgspec.structs.replace(batch([1.0] * 4), steps=[1, 2, 2, 3])
    found = calm_part(falling, [], 1)
    assert found is not None
    assert found[0].steps == [1, 2]


@settings(max_examples=500)
@given(
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,20})?(e[-+][0-9]{1,3})?", fullmatch=True)
)
@example("9007199254740993")
@example("2.4703282292062328e-324")
@example("1.7976931348623157e308")
def test_json_reads_numbers_as_python_does(text: str) -> None:
    """But for -0, which it does not get, and for what is too large, which it refuses."""
    try:
        (value,) = _NUMBERS.decode(f"[{text}]")
    except msgspec.DecodeError:
        assert not math.isfinite(float(text))
        return
    if text != "-0":
        assert repr(value) == repr(float(text))
