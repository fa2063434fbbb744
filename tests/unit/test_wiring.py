"""Plug-ins: found through entry points of installed distributions, guarded in everything they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from overnight import wiring
from overnight.events import Record
from overnight.spec import RunSpec
from overnight.tail import Line

SPEC = RunSpec(name="x", argv=("x",), executable="/bin/x", cwd="/", log="/tmp/x.log")

MODULE = """
class Reader:
    name = {name!r}
    always = frozenset()
    def __call__(self, line, at, source):
        if "boom" in line.text:
            raise RuntimeError("boom")
        from overnight.events import Record
        return (Record(reader=self.name, step=int(line.text), loss=1.0),) if line.text.isdigit() else None
    def snapshot(self):
        return None
    def restore(self, state):
        pass

class Rule:
    name = {name!r}
    action = "alert"
    def fresh(self):
        return {{}}
    def __call__(self, record, memory):
        raise ValueError("no")

def broken():
    raise OSError("cannot be made")
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with plug-ins, as pip would leave it."""

    def install(name: str, **points: str) -> None:
        module = f"plug_{name}"
        (tmp_path / f"{module}.py").write_text(MODULE.format(name=name))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"[overnight.{group}]\n{name} = {module}:{what}\n" for group, what in points.items()]
        (info / "entry_points.txt").write_text("".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def test_without_plug_ins_there_are_the_built_ins() -> None:
    said: list[str] = []
    assert [make().name for make in wiring.reader_makers(SPEC, said.append)] == list(wiring.READERS)
    rules = ["nonfinite", "divergence", "collapse", "spike", "slowdown", "straggler", "max_steps"]
    assert [rule.name for rule in wiring.make_rules(SPEC, said.append)] == rules
    assert not said


def test_rules_get_their_parameters_and_actions_from_what_was_asked() -> None:
    actions = {"nonfinite": "note", "divergence": "alert", "collapse": "note", "spike": "stop", "max_steps": "alert"}
    actions |= {"slowdown": "note", "straggler": "stop"}
    facts = {"vocab_size": 50257, "max_steps": 900, "actions": actions}
    asked = wiring.make_rules(msgspec.structs.replace(SPEC, **facts), pytest.fail)
    assert {rule.name: rule.action for rule in asked} == actions
    plain = wiring.make_rules(SPEC, pytest.fail)
    assert [rule.action for rule in plain] == ["terminate", "terminate", "stop", "alert", "alert", "alert", "stop"]
    limit = Record(reader="x", step=900, loss=1.0)
    memories = [rule.fresh() for rule in asked]
    found = [rule(limit, memory) for rule, memory in zip(asked, memories, strict=True)]
    assert [verdict.rule for verdict in found if verdict is not None] == ["max_steps"]
    assert {getattr(rule, "vocab_size", 50257) for rule in asked} == {50257}


def test_a_plug_in_reader_reads_and_one_that_raises_is_named_once_and_asked_no_more(install: Install) -> None:
    install("mine", readers="Reader")
    said: list[str] = []
    reader = wiring.reader_makers(SPEC, said.append)[-1]()
    assert reader.name == "mine"
    (record,) = reader(Line("7", 0), 0.0, 0) or ()
    assert record.step == 7
    assert reader(Line("boom", 0), 0.0, 0) is None
    assert reader(Line("8", 0), 0.0, 0) is None
    assert len(said) == 1
    assert "mine" in said[0]
    assert "asked no more" in said[0]


def test_a_plug_in_rule_that_raises_ends_nothing(install: Install) -> None:
    install("strict", rules="Rule")
    said: list[str] = []
    rule = wiring.make_rules(SPEC, said.append)[-1]
    assert rule(Record(reader="x", step=1, loss=1.0), rule.fresh()) is None
    assert len(said) == 1


def test_a_plug_in_that_cannot_be_made_is_named_and_skipped(install: Install) -> None:
    install("hurt", readers="broken")
    said: list[str] = []
    assert [make().name for make in wiring.reader_makers(SPEC, said.append)] == list(wiring.READERS)
    assert "cannot be made" in said[0]


def test_a_plug_in_may_not_take_the_name_of_a_built_in(install: Install) -> None:
    install("keyvalue", readers="Reader")
    said: list[str] = []
    assert len(wiring.reader_makers(SPEC, said.append)) == len(wiring.READERS)
    assert "built-in" in said[0]
