"""The report does not contradict itself: dates that are no line's, parts that exceed the whole, pipes, huge losses."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_views import FakeViews
from test_report_series import known, records

from overnight.past.dates import Dates
from overnight.past.times import dated
from overnight.printable import harmless
from overnight.report import loglines
from overnight.report.bare import of_log
from overnight.report.page import page
from overnight.report.text import text
from overnight.report.value import build
from overnight.spec import RunSpec
from overnight.wiring import make_monitor
from report_values import rich

NIGHT = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)


def steps(count: int = 3000, form: str = "%Y-%m-%d %H:%M:%S+00:00") -> list[str]:
    return [
        f"{(NIGHT + timedelta(seconds=step)).strftime(form)} INFO step: {step}, loss: 2.5, dt: 1.0"
        for step in range(1, count + 1)
    ]


def report(log: Path, lines: list[str]) -> dict[str, Any]:
    log.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    spec = RunSpec(name="x", argv=(), executable="", cwd=str(log.parent), log=str(log))
    return of_log(log, spec, {}, make_monitor(spec, lambda _: None), 0.0)


PASSING = [
    "loading checkpoint written 2024-01-01 00:00:00+00:00",
    "INFO loading checkpoint written 2024-01-01 00:00:00+00:00",
    "2024-01-01 00:00:00+00:00 INFO is when its checkpoint was written",  # a lone outlier where a line's own date is
    "2027-01-01 00:00:00+00:00 INFO is when its reservation ends",
]


@pytest.mark.parametrize("passing", PASSING)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_date_that_is_only_mentioned_is_not_when_it_began(passing: str, sparse: bool, tmp_path: Path) -> None:
    lines = steps()
    if sparse:  # most lines carry none, so that only the ends of the log are asked
        lines = [line if step % 5 == 0 else line.partition("INFO ")[2] for step, line in enumerate(lines, 1)]
    value = report(tmp_path / "train.log", [passing, *lines])
    first = NIGHT + timedelta(seconds=5 if sparse else 1)
    assert datetime.fromisoformat(value["times"]["started_at"]) == first
    assert datetime.fromisoformat(value["times"]["ended_at"]) == NIGHT + timedelta(seconds=3000)
    assert value["goodput"]["goodput"] == pytest.approx(1.0, abs=0.01)


def test_a_date_mentioned_at_the_end_is_not_when_it_ended(tmp_path: Path) -> None:
    for last in ("next run is planned for 2027-05-05 00:00:00+00:00", "checkpoint kept until 2027-05-05 00:00:00Z"):
        value = report(tmp_path / "train.log", [*steps(), last])
        assert datetime.fromisoformat(value["times"]["ended_at"]) == NIGHT + timedelta(seconds=3000)


def test_dates_that_are_only_mentioned_are_no_clock_at_all(tmp_path: Path) -> None:
    bare = [f"step: {step}, loss: 2.5, dt: 1.0" for step in range(1, 301)]
    mentioned = ["loading checkpoint written 2024-01-01 00:00:00", *bare, "saved checkpoint at 2026-11-30 01:00:00"]
    value = report(tmp_path / "train.log", mentioned)
    assert (value["times"]["started_at"], value["times"]["ended_at"]) == (None, None)
    assert value["goodput"]["goodput"] is None


def test_a_start_that_hangs_for_hours_is_no_outlier(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    begun = (NIGHT - timedelta(hours=9)).strftime("%Y-%m-%d %H:%M:%S+00:00")
    value = report(log, [f"{begun} INFO begins", *steps()])
    assert datetime.fromisoformat(value["times"]["started_at"]) == NIGHT - timedelta(hours=9)


@pytest.mark.parametrize(
    "form",
    [
        "[%Y-%m-%d %H:%M:%S]", "[default0]:%Y-%m-%dT%H:%M:%SZ", "[rank3]: %Y-%m-%d %H:%M:%S,000",
        "x.y.z %Y-%m-%d %H:%M:%S", "[rank0]: %m/%d/%Y %H:%M:%S", "%a %b %d %H:%M:%S %Y:",
    ],
)  # fmt: skip
def test_dates_stand_behind_names_and_tags(form: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in steps(200, form)), encoding="utf-8")
    found = dated(log)
    assert found is not None
    times, _ = found
    assert times.until - times.attempts[0].started == 199
    ends = loglines.first_and_last_time(log)
    assert ends is not None
    assert (ends[1] - ends[0]).total_seconds() == 199


def test_two_loggers_may_write_the_same_form_with_and_without_brackets() -> None:
    lines = [(f"[2026-11-29 22:00:{n:02d}] a" if n % 2 else f"2026-11-29 22:00:{n:02d} b").encode() for n in range(60)]
    dates = Dates()
    assert dates.learn(lines) == 60
    assert all(dates.read(line) is not None for line in lines)
    assert dates.read(b"WARNING for the eyes of 2026-11-29 22:00:00") is None


# -- goodput, losses, pipes ------------------------------------------------------------------------------------------


def test_where_goodput_is_unknown_no_bar_is_drawn_and_the_reason_is_said() -> None:
    rows = [{"step": step, "loss": 1.0, "dt_s": 1000.0} for step in range(1, 101)]
    value = build(known(FakeViews(rows)))
    why = "the times of the steps add up to 100,000 s"
    assert why in value["goodput"]["unknown"]
    drawn = page(value)
    assert why in drawn
    assert 'class="part productive"' not in drawn
    assert 'class="part productive"' in page(rich())


@pytest.mark.parametrize("top", [1.7e308, 1.0e308])
def test_losses_at_the_ends_of_all_numbers_are_drawn(top: float) -> None:
    rows = [{"step": n, "loss": top * (-1) ** n, "dt_s": 1.0} for n in range(1, 90)]
    value = build(known(FakeViews(rows)))
    told = text(value, clean=harmless)
    assert "loss over step 1 to 89" in told
    assert {"▁", "█"} <= set(told)
    assert "<svg" in page(value)


def test_it_began_when_its_first_attempt_did_however_many_followed() -> None:
    begun = [f"2026-11-29T{22 + n // 60:02d}:{n % 60:02d}:00.000Z" for n in range(80)]
    facts = [{"at": at, "fact": "started", "attempt": n, "pid": n} for n, at in enumerate(begun, 1)]
    shown = [{"n": n, "started_at": at} for n, at in enumerate(begun, 1)][-50:]
    views = FakeViews(records((1, 30)))
    value = build(known(views, facts, attempts=shown, started_at=begun[-1]))
    assert value["times"]["started_at"] == begun[0]
    assert build(known(views, [], attempts=shown, started_at=begun[-1]))["times"]["started_at"] is None
    assert build(known(views, [], started_at=begun[3]))["times"]["started_at"] == begun[3]


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert loglines.last_lines(pipe) == []
    assert loglines.count_lines(pipe) is None
    assert loglines.line_at(pipe, 0) is None
    assert loglines.first_and_last_time(pipe) is None
    assert loglines.is_text(pipe)
    assert "no reader fits" in loglines.no_reader_words(pipe)
    one = known(FakeViews(records((1, 30))))
    one.log = pipe
    value = build(one)
    assert (value["log"]["bytes"], value["log"]["lines"], value["last_lines"]) == (None, None, [])
    assert "a pipe or device, not a file" in value["unknown"]["log"]
