"""Numbers that nobody can mean: refused in one sentence, passed over, or shown as what they are; never a traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from overnight.cli import main
from overnight.cli.pagefigures import _devices
from overnight.cli.render import figure, money, percent, thousands
from overnight.errors import FolderError, UsageError
from overnight.folder import RunFolder
from overnight.pacing.advance import Moved
from overnight.pacing.arrivals import Arrivals
from overnight.pacing.attemptsums import Sums
from overnight.past.rereading import _number as is_number
from overnight.past.times import _number as moment_of
from overnight.quantities import RefusedError, price, tflops
from overnight.requests.asked import read_asked
from overnight.yardsticks.pricing import parse

HUGE = 10**400


@pytest.mark.parametrize("dt", [1e308, 1e-300, 1e9, 1e-9, math.inf, math.nan])
def test_a_step_time_that_no_step_has_is_not_counted(dt: float) -> None:
    sums = Sums()
    sums.add([1.0, 100.0, 1.0], [dt, dt, 0.5], [1e308, 1e308, 10.0])
    assert (sums.timed, sums.seconds, sums.counted, sums.tokens) == (1.0, 0.5, 1.0, 10.0)
    one, many = Arrivals(), Arrivals()
    dt = 1e308 if math.isnan(dt) else dt  # no batch holds NaN
    for value in (0.5, dt):
        one.take(value, 5.0, Moved(1, redone=False, clean=True, part=1.0))
    many.take_many([0.5, dt], 5.0, [1, 1], 0)
    assert one.snapshot() == many.snapshot()


@pytest.mark.parametrize(
    "flags",
    [
        ["--tokens-per-second", "1e300"],
        ["--peak-tflops", "1e300"],
        ["--price", "1e308"],
        ["--dt", "1e-300"],
        ["--dt", "1e308"],
    ],
)
def test_the_calculator_refuses_what_would_overflow(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--params": "1e9", "--peak-tflops": "300", "--tokens-per-step": "1000", "--dt": "1"}
    given |= dict([flags])
    assert main(["mfu", *(word for pair in given.items() for word in pair)]) == 2
    said = capsys.readouterr().err
    assert flags[0] in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1


def test_a_run_refuses_them_too() -> None:
    for parse_it in (price, tflops):
        assert parse_it("2.5") == 2.5
        with pytest.raises(RefusedError, match="is not between"):
            parse_it("1e10")


@pytest.mark.parametrize("line", ["a100,1,29", "a100,1.29,eur", "a100,hunter2", "a100"])
def test_a_bad_line_of_a_price_table_is_named_and_not_repeated(line: str) -> None:
    with pytest.raises(UsageError) as told:
        parse(f"device,price\n# mine\nh100,2\n{line}\n", source="p.csv", as_csv=True)
    assert "line 4 of p.csv" in str(told.value)
    assert "hunter2" not in str(told.value)
    assert parse("device,note,price\na100,x,2\n", source="p.csv", as_csv=True).rows[0].per_hour == 2


def test_edited_figures_are_shown_or_left_out() -> None:
    for shown in (figure, thousands, percent, money):
        for value in (HUGE, [1], {"a": 1}, True):
            assert len(shown(value)) <= 80
    gpu = {"index": "\x1b[31m", "throttle": -1, "memory_used": HUGE, "memory_total": 1, "temperature_c": HUGE}
    for throttle in (-1, True, "x", [HUGE]):
        for disks in ("x", [1], [{"free": HUGE}], 3):
            one = {"gpus": [gpu | {"throttle": throttle}], "host": {"disks": disks, "cpu": HUGE}, "ended_at": None}
            text = " ".join(map(" ".join, _devices({**one, "sensors": [1]})))
            assert "\x1b[" not in text


def test_a_log_with_absurd_step_times_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, dt in enumerate(("1e308", "1e-300")):
        log = tmp_path / f"{number}.log"
        log.write_text("".join(f"step {step}: loss 3.1, dt {dt}s, tokens_per_second 1000\n" for step in range(30)))
        for verb in (["report", str(log)], ["mfu", str(log), "--params", "1e9", "--tokens-per-step", "1000"]):
            assert main(verb) in (0, 1)
            said = capsys.readouterr()
            assert "Traceback" not in said.err
            assert " inf" not in said.out


def test_an_edited_journal_has_no_times_beyond_all_years() -> None:
    for value in (HUGE, 1e300, math.nan, -1):
        assert moment_of(value) is None
    assert not is_number(HUGE)
    assert not is_number(math.inf)
    assert moment_of(5) == 5.0
    assert is_number(5)


@pytest.mark.parametrize(("field", "value"), [("window", -1), ("devices", 0), ("vocab_size", -1), ("steps", 10**40)])
def test_an_edited_request_is_refused_in_a_sentence(tmp_path: Path, field: str, value: int) -> None:
    spec = {"name": "a", "argv": ["x"], "executable": "/x", "cwd": "/", "log": "/l"}
    (tmp_path / "run.json").write_text(json.dumps({"spec": spec | {field: value}}))
    with pytest.raises(FolderError, match="was edited"):
        read_asked(RunFolder(tmp_path))
    (tmp_path / "run.json").write_text(json.dumps({"spec": spec}))
    assert read_asked(RunFolder(tmp_path)).spec.name == "a"
