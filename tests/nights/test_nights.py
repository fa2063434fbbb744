"""Every recorded night, replayed: what was found in it is found again, and a healthy one is left alone.

False alarms are counted in days of training. A rule looks at records, not at seconds, and the trainings here make a
step in a millisecond; so a day is 86,400 records, as of a training that prints a line a second.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reading import complaints, expectation, told, unpacked

from nights import HERE, LAUNCHED, NIGHTS
from overnight.cli import main
from overnight.folder import RunFolder
from overnight.options import RULES
from overnight.past.replayed import night_of
from overnight.past.rereading import BLOCK, NOTHING_KNOWN, bounds_of, reread
from overnight.settings import resolve
from overnight.wiring import make_monitor

RECORDS_A_DAY = 86_400
MOST_BYTES = 1_500_000
RECORDED = [name for name in NIGHTS if (HERE / name / "expected.json").exists()]
HEALTHY = [name for name in RECORDED if NIGHTS[name].healthy]
RUNS = [one.name for one in LAUNCHED if one.name in RECORDED]


@pytest.fixture(autouse=True)
def nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay without anybody's settings."""
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@cache
def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / name / "expected.json").read_text())
    return found


def place_of(name: str, tmp_path: Path) -> Path:
    place = tmp_path / "night"
    place.mkdir(exist_ok=True)
    return unpacked(HERE / name, place)


def alarms(timeline: list[dict[str, Any]]) -> int:
    """Return how many verdicts would have woken somebody up."""
    return sum(one["action"] != "note" for one in timeline)


# -- all of them -----------------------------------------------------------------------------------------------------


def test_every_night_of_the_list_was_recorded() -> None:
    assert set(RECORDED) == set(NIGHTS)
    assert len(HEALTHY) >= 12
    page = (HERE / "README.md").read_text()
    assert all(f"| `{name}` |" in page for name in NIGHTS)


def test_the_nights_are_small_and_say_nothing_of_the_machine_that_made_them() -> None:
    files = [path for path in HERE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files if path.suffix != ".py") < MOST_BYTES
    for path in files:
        if path.suffix in (".json", ".jsonl", ".md"):
            text = path.read_text()
            assert not re.search(r"/(tmp|root|work)/", text), path
            assert not re.search(r'"(boot_id|machine_id)": "(?!0+")', text), path


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_found_in_a_night(name: str, tmp_path: Path, record_property: Any) -> None:
    found = expectation(NIGHTS[name], place_of(name, tmp_path))
    if NIGHTS[name].healthy:
        record_property("healthy_night", [name, alarms(found["timeline"]), found["records"], found["dt_s"] or 0.0])
    assert not complaints(NIGHTS[name], found)
    assert found == expected(name)


# -- healthy ones ----------------------------------------------------------------------------------------------------


def test_no_rule_ends_a_healthy_night_and_few_alarm() -> None:
    records = sum(expected(name)["records"] for name in HEALTHY)
    assert records > 2.5 * RECORDS_A_DAY
    assert not [name for name in HEALTHY if expected(name)["end"] is not None]
    assert sum(alarms(expected(name)["timeline"]) for name in HEALTHY) <= records / RECORDS_A_DAY


def test_the_healthy_nights_are_long_and_of_several_shapes() -> None:
    assert sum(expected(name)["records"] >= 20_000 for name in HEALTHY) >= 8
    assert len({expected(name)["reader"] for name in HEALTHY}) >= 2
    assert any(expected(name)["evals"] for name in HEALTHY)
    assert any(expected(name)["segments"] > 3 for name in HEALTHY)


# -- a replay is what the night was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_under_its_own_rules_a_run_is_judged_as_it_was(name: str, tmp_path: Path) -> None:
    found = told(place_of(name, tmp_path))
    assert found["night"]["missing"] == []
    assert [one["night"]["how"] for one in found["verdicts"]] == ["same"] * len(found["verdicts"])
    then, more = night_of(RunFolder(tmp_path / "night"))
    assert not more
    assert len(then) == len(found["verdicts"])
    for one in found["verdicts"]:
        if one["offset"] >= 0:
            (other,) = [
                two for two in then if (two.offset, two.part, two.rule) == (one["offset"], one["part"], one["rule"])
            ]
            names = ("attempt", "source", "severity", "action", "step", "text")
            assert {key: one[key] for key in names} == {key: getattr(other, key) for key in names}


def test_the_nights_that_were_launched_had_verdicts_of_both_kinds() -> None:
    rules = {one["rule"] for name in RUNS for one in expected(name)["timeline"]}
    assert {"nonfinite", "stall", "wall_clock"} <= rules


@pytest.mark.parametrize("name", ["weight_nan", "odd_batches", "eval_nan", "collapse", "run_unheeded"])
def test_however_the_bytes_are_cut(name: str, tmp_path: Path) -> None:
    place = place_of(name, tmp_path)
    log = tmp_path / "night" / "output.log"
    bounds = bounds_of(RunFolder(place), log) if place.is_dir() else NOTHING_KNOWN
    flags = dict(zip(NIGHTS[name].flags[::2], NIGHTS[name].flags[1::2], strict=True))
    settings = {key.removeprefix("--").replace("-", "_"): value for key, value in flags.items()}
    settings = {key: [value] if key == "action" else value for key, value in settings.items()}
    spec = resolve({**settings, "name": "night"}, (), home=tmp_path).spec
    whole = make_monitor(spec, print)
    found = [verdict for outcome in reread(whole, log, bounds) for verdict in outcome.verdicts]
    chance = random.Random(7)
    cut = make_monitor(spec, print)
    cut.begin_attempt(1)
    data, at, again = log.read_bytes(), 0, []
    while at < len(data):
        size = chance.choice([1, 7, 60, 997, 20_000, BLOCK])
        again += cut.feed(data[at : at + size], found[0].at or 0.0, bounds.source, at).verdicts
        at += size
    again += cut.flush(found[0].at or 0.0).verdicts
    assert found
    keys = [(one.rule, one.severity, one.action, one.offset, one.part, one.step, one.text) for one in found]
    assert keys == [(one.rule, one.severity, one.action, one.offset, one.part, one.step, one.text) for one in again]
    assert whole.meter.records == cut.meter.records


# -- under other rules -----------------------------------------------------------------------------------------------


def short(one: dict[str, Any]) -> tuple[object, ...]:
    return (one["rule"], one["severity"], one["step"], one["line"])


@pytest.mark.parametrize("name", ["weight_nan", "collapse", "odd_batches", "diverges"])
def test_another_action_changes_the_action_and_nothing_else(name: str, tmp_path: Path) -> None:
    place = place_of(name, tmp_path)
    before = told(place, *NIGHTS[name].flags)
    for rule in {one["rule"] for one in before["verdicts"]}:
        after = told(place, *NIGHTS[name].flags, "--action", f"{rule}=note")
        assert [short(one) for one in after["verdicts"]] == [short(one) for one in before["verdicts"]]
        for one, other in zip(before["verdicts"], after["verdicts"], strict=True):
            assert other["action"] == ("note" if one["rule"] == rule else one["action"])
            assert other["text"] == one["text"]
        ends = [one for one in after["verdicts"] if one["ends"]]
        assert (after["end"] is None) == (not ends)


def test_a_limit_on_the_loss_adds_its_own_verdict_only(tmp_path: Path) -> None:
    place = place_of("odd_batches", tmp_path)
    before, after = told(place), told(place, "--max-loss", "4.5")
    added = [one for one in after["verdicts"] if one["rule"] == "divergence"]
    assert len(added) == 1
    assert added[0]["ends"]
    assert [short(one) for one in after["verdicts"] if one["rule"] != "divergence"] == [
        short(one) for one in before["verdicts"]
    ]
    values = [float(text) for text in re.findall(r"loss: ([0-9.]+)", (place.parent / "output.log").read_text())]
    assert after["end"]["line"] - 2 == next(n for n, value in enumerate(values) if value > 4.5)
    assert after["end"]["saved"]["steps"] == len(values) - 1 - next(n for n, value in enumerate(values) if value > 4.5)


def test_what_an_unheeded_nan_has_cost(tmp_path: Path) -> None:
    place = place_of("run_unheeded", tmp_path)
    assert told(place)["end"] is None  # the night's own rules asked for a note
    found = told(place, "--action", "nonfinite=terminate")
    assert found["end"]["step"] in (60, 61)
    (one,) = [one for one in found["verdicts"] if one["rule"] == "nonfinite"]
    assert one["night"]["how"] == "changed"
    assert one["night"]["action"] == "note"
    saved = found["end"]["saved"]
    assert saved["steps"] == 260 - found["end"]["step"]
    assert saved["from"] == "journal"
    # a tenth of a second a step; the steps since the last mark are counted by the time that was printed
    assert saved["seconds"] == pytest.approx(saved["steps"] * 0.1, abs=3)
    assert saved["cost"] == pytest.approx(2.5 * saved["seconds"] / 3600)


def test_a_limit_would_have_come_when_the_clock_says(tmp_path: Path) -> None:
    place = place_of("run_unheeded", tmp_path)
    limit = told(place, "--max-hours", "0.003")["end"]  # 10.8 s
    assert limit["rule"] == "wall_clock"
    assert 60 <= limit["step"] <= 215
    money = told(place, "--max-cost", "0.0075")["end"]  # 10.8 s at 2.5 an hour
    assert money["rule"] == "cost"
    assert abs(money["step"] - limit["step"]) <= 20


def test_what_a_night_would_have_been_taken_back_for(tmp_path: Path) -> None:
    place = place_of("odd_batches", tmp_path)
    before, found = told(place), told(place, "--action", "spike=rollback")
    assert [short(one) for one in found["verdicts"]] == [short(one) for one in before["verdicts"]]
    (back,) = found["rollbacks"]
    assert (back["n"], back["followed"]) == (1, False)
    assert back["before"] <= 4000 - 10 + 1  # the noise began at step 4,000
    assert back["skip"] == [back["before"], back["step"]]
    assert found["end"] is None
    assert [one["after_rollback"] for one in found["verdicts"]] == [
        one["line"] > back["line"] for one in found["verdicts"]
    ]


def test_a_nan_that_would_have_been_taken_back_is_no_end(tmp_path: Path) -> None:
    place = place_of("run_unheeded", tmp_path)
    found = told(place, "--action", "nonfinite=rollback")
    (back,) = found["rollbacks"]
    assert back["step"] in (60, 61)
    assert back["before"] == back["step"] - 9
    (one,) = [one for one in found["verdicts"] if one["rule"] == "nonfinite"]
    assert (one["night"]["how"], one["night"]["action"], one["action"]) == ("changed", "note", "rollback")
    assert one["evidence"]["onset"] == back["step"]
    # the limit is reached by the clock, which goes on
    limit = told(place, "--action", "nonfinite=rollback", "--max-hours", "0.003")
    assert limit["end"]["rule"] == "wall_clock"


def test_each_attempt_of_a_night_may_be_taken_back_and_then_it_ends(tmp_path: Path) -> None:
    place = place_of("run_restarts", tmp_path)
    log = tmp_path / "night" / "output.log"
    sick = re.sub(rb"(step: 5[789], loss: )[0-9.]{6}", rb"\1   nan", log.read_bytes())  # as many bytes as before
    assert sick.count(b"nan") == 9
    log.write_bytes(sick)
    found = told(place, "--action", "nonfinite=rollback")
    assert [(one["n"], one["attempt"], one["step"], one["before"], one["followed"]) for one in found["rollbacks"]] == [
        (1, 1, 57, 48, True), (2, 2, 57, 48, True),
    ]  # fmt: skip
    end = found["end"]
    assert (end["attempt"], end["step"], end["then"]) == (3, 57, "stopped (nonfinite), 2 rollbacks used")
    assert [one["ends"] for one in found["verdicts"] if one["rule"] == "nonfinite"] == [False, False, True]


def test_what_is_printed_of_a_night(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run_unheeded", "run_hangs", "run_nan", "odd_batches"):
        (tmp_path / name).mkdir()
        assert main(["replay", str(unpacked(HERE / name, tmp_path / name)), *NIGHTS[name].flags]) == 0
        text = capsys.readouterr().out
        assert all(len(line) <= 80 and line.isprintable() for line in text.splitlines()), text
        plain = " ".join(text.split())
        assert ("saved 200 steps" in plain) == (name == "run_unheeded"), text  # the others' ends were their own
        assert ("started again (restart 1 of 1)" in plain) == (name == "run_hangs")
        assert ("[as that night]" in plain) == (name in ("run_hangs", "run_nan"))
        assert ("[that night -> note]" in plain) == (name == "run_unheeded")


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_of_a_healthy_night_hides_behind_its_action(rule: str, tmp_path: Path) -> None:
    """Asked to end whatever they find, the rules still leave a healthy night alone where they found nothing."""
    found = told(place_of("epochs", tmp_path), "--action", f"{rule}=terminate")
    had = any(one["rule"] == rule and one["severity"] != "note" for one in expected("epochs")["timeline"])
    assert found["end"] is None if not had else found["end"]["rule"] == rule


def test_a_hang_would_have_ended_sooner_with_a_shorter_limit(tmp_path: Path) -> None:
    place = place_of("run_hangs", tmp_path)
    own, short_one = told(place), told(place, "--stall", "10s")
    assert own["end"]["rule"] == short_one["end"]["rule"] == "stall"
    assert own["end"]["again"]
    assert "restart 1 of 1" in own["end"]["then"]
    assert short_one["verdicts"] != own["verdicts"]
    ending = next(one for one in short_one["verdicts"] if one["ends"])
    assert ending["night"]["how"] in ("earlier", "changed", "same")
    assert told(place, "--stall", "1h")["end"] is None
    assert [one["rule"] for one in told(place, "--stall", "1h")["night"]["missing"]].count("stall") >= 1
