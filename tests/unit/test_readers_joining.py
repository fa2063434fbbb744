"""Mappings that are printed over several lines: read as one, at the place of the first, and given up in time."""

from __future__ import annotations

import json
import math
import pprint
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overnight.events import Record
from overnight.readers.joining import LONGEST, MOST_LINES
from overnight.readers.jsonlines import JsonLines
from overnight.readers.trainer import Trainer
from overnight.tail import Line, Tail

CONTENT = {"loss": 2.5, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 0.25, "step": 30, "nested": {"x": 1.0}}


def read(reader: Any, text: str) -> list[Record]:
    tail = Tail()
    lines = tail.feed(text.encode()) + tail.flush()
    records = [record for line in lines for record in reader(line, 5.0, 3) or ()]
    return records + list(reader.flush() if hasattr(reader, "flush") else ())


def python(content: dict[str, Any]) -> str:
    return pprint.pformat(content, width=20).replace("NaN", "nan")


def split(content: dict[str, Any]) -> str:
    return str(content).replace(", ", ",\n")


def spread(content: dict[str, Any]) -> str:
    return "{\n    " + str(content)[1:-1].replace(", ", ",\n    ") + "\n}"


FORMS = [
    pytest.param(Trainer, python, id="pprint"),
    pytest.param(Trainer, split, id="line breaks"),
    pytest.param(Trainer, spread, id="a brace alone"),
    pytest.param(JsonLines, lambda content: json.dumps(content, indent=2), id="json"),
    pytest.param(JsonLines, lambda content: json.dumps(content, indent=None).replace(", ", ",\n"), id="json breaks"),
]


@pytest.mark.parametrize(("make", "form"), FORMS)
def test_read_as_one_line(make: Any, form: Any) -> None:
    head = "something before\n"
    (record,) = read(make(), head + form(CONTENT) + "\nstep: 5, loss: 2\n")
    assert (record.step, record.loss, record.grad_norm, record.epoch) == (30, 2.5, 1.5, 0.25)
    assert (record.offset, record.source, record.part, record.kind) == (len(head), 3, 0, "train")
    assert record.extra == {"nested/x": 1.0}


@pytest.mark.parametrize(("make", "form"), FORMS)
def test_a_nan_in_it_is_not_missed(make: Any, form: Any) -> None:
    (record,) = read(make(), form({**CONTENT, "loss": math.nan}) + "\n")
    assert math.isnan(record.loss or 0.0)


@pytest.mark.parametrize(("make", "form"), FORMS)
def test_the_words_before_it_count(make: Any, form: Any) -> None:
    (record,) = read(make(), "Evaluation: " + form({**CONTENT, "loss": math.nan}) + "\n")
    assert record.kind == "eval"
    assert read(make(), "EarlyStopping state: " + form({**CONTENT, "loss": math.inf}) + "\n") == []


@pytest.mark.parametrize(("make", "form"), FORMS)
def test_any_other_line_ends_it(make: Any, form: Any) -> None:
    first, *rest = form(CONTENT).split("\n")
    whole = json.dumps(CONTENT) if make is JsonLines else str(CONTENT)
    text = "\n".join([first, "WARNING something else", *rest, whole]) + "\n"
    assert [record.step for record in read(make(), text)] == [30]


@pytest.mark.parametrize("make", [Trainer, JsonLines])
def test_it_is_given_up_in_time(make: Any) -> None:
    quote = "'" if make is Trainer else '"'
    more = f"{quote}a{quote}: 1,\n"
    whole = f"{{{quote}loss{quote}: 3.0, {quote}epoch{quote}: 1.0, {quote}learning_rate{quote}: 0.1}}\n"
    for begin in ("{\n", f"{{{quote}x{quote}: 1,\n"):
        reader = make()
        assert read(reader, begin + more * (MOST_LINES + 5) + "}\n" + whole)[-1].loss == 3.0
        long = f"{quote}a{quote}: {quote}{'x' * (LONGEST // 4)}{quote},\n"
        reader = make()
        assert read(reader, begin + long * 5) == []
        assert len(json.dumps(reader.snapshot())) < 2 * LONGEST
    assert read(make(), begin + whole)[-1].loss == 3.0


def test_what_is_whole_on_the_line_is_read_once() -> None:
    text = '{"step": 1, "loss": 3.0} {"step": 2,\n"loss": 2.0}\n'
    records = read(JsonLines(), text)
    assert [(record.step, record.loss) for record in records] == [(1, 3.0), (2, 2.0)]
    assert len({(record.offset, record.part) for record in records}) == 2


def test_a_bar_behind_it_tells_the_step() -> None:
    content = {key: value for key, value in CONTENT.items() if key != "step"}
    bars = [f"\r {n}%|#  | {n}/100 [00:00<00:02, 6.48it/s]" for n in (3, 4)]
    (record,) = read(Trainer(), bars[0] + "\r" + split(content) + bars[1])
    assert record.step == 4


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), form=st.sampled_from(FORMS))
def test_restored_between_any_two_lines(cut: int, form: Any) -> None:
    make, write = form.values
    lines = Tail().feed((write(CONTENT) + "\n" + write(CONTENT) + "\nend\n").encode())
    reader, records = make(), []
    for number, line in enumerate(lines):
        if number == cut % len(lines):
            state = json.loads(json.dumps(reader.snapshot()))
            reader = make()
            reader.restore(state)
        records += reader(line, 1.0, 0) or ()
    assert [record.step for record in records] == [30, 30]


@pytest.mark.parametrize("make", [Trainer, JsonLines])
def test_another_source_does_not_go_on_with_it(make: Any) -> None:
    quote = "'" if make is Trainer else '"'
    reader = make()
    assert reader(Line(f"{{{quote}step{quote}: 1, {quote}epoch{quote}: 1.0,", 10), 1.0, 0) is None
    assert reader.holds(0, 10)
    assert not reader.holds(1, 10)
    assert not reader(Line(f"{quote}loss{quote}: 2.0, {quote}learning_rate{quote}: 2.0}}", 10), 1.0, 1)
    assert not reader.holds(0, 10)
