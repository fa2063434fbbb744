"""What the report takes out of metrics.db: charts with one value per step, what was superseded, progress, the text."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from fake_views import FakeViews

from overnight.printable import harmless
from overnight.report import series
from overnight.report.course import Course
from overnight.report.text import spelt, text
from overnight.report.value import Known, build
from overnight.spec import RunSpec


def records(*attempts: tuple[int, int]) -> list[dict[str, Any]]:
    return [
        {"attempt": n, "segment": n, "step": step, "loss": 4.0 - step / 100 + n / 1000, "dt_s": 0.5, "lr": 1e-4}
        for n, (first, last) in enumerate(attempts, 1)
        for step in range(first, last + 1)
    ]


REWOUND = ((1, 116), (81, 100), (81, 140))


def test_the_chart_has_one_value_per_step_and_the_older_ones_are_kept() -> None:
    views = FakeViews(records(*REWOUND))
    lost = series.Superseded(views.spans())
    assert len(list(lost.watch(views.stretches(series.wanted(views))))) == 3
    loss = next(one for one in series.charts(views, lost, [], None) if one["name"] == "loss")
    assert loss["x"] == list(range(1, 141))
    assert loss["attempts"] == [1] * 80 + [3] * 60
    assert [(one["attempt"], one["x"][0], sum(1 for _ in one["x"])) for one in loss["older"]] == [
        (1, 81, 36),
        (2, 81, 20),
    ]
    assert loss["older"][0]["low"][0] == 4.0 - 0.81 + 0.001


def test_what_was_superseded_is_bounded() -> None:
    many = [
        {"attempt": n, "segment": n, "step": step, "loss": float(step % 7), "dt_s": 1.0}
        for n in (1, 2)
        for step in range(1, 50_001)
    ]
    views = FakeViews(many)
    lost = series.Superseded(views.spans())
    list(lost.watch(views.stretches(series.wanted(views))))
    (older,) = lost.older("loss")
    assert len(older["x"]) <= 256
    assert (min(older["low"]), max(older["high"])) == (0.0, 6.0)
    assert all(one < after for one, after in itertools.pairwise(older["x"]))


def test_tokens_per_second_are_drawn_from_step_times_where_none_are_printed() -> None:
    views = FakeViews([{"step": step, "loss": 1.0, "dt_s": 0.5} for step in range(1, 5)])
    found = {one["name"]: one for one in series.charts(views, series.Superseded([]), [], 1000.0)}
    assert found["tokens_per_s"]["low"] == [2000.0] * 4
    assert "tokens_per_s" not in {one["name"] for one in series.charts(views, series.Superseded([]), [], None)}


def test_progress_and_evaluations() -> None:
    rows = [*records((1, 30)), {"kind": "eval", "step": 10, "loss": 3.0}, {"kind": "eval", "step": 20, "loss": 3.5}]
    found = series.progress(FakeViews(rows))
    assert (found["step"], found["records"]) == (30, 30)
    assert found["loss_least_step"] == 30
    assert found["eval"] == {
        "name": "evaluation loss", "last": 3.5, "last_step": 20, "least": 3.0, "least_step": 10,
    }  # fmt: skip
    empty = series.progress(FakeViews([]))
    assert (empty["step"], empty["loss_first"], empty["eval"], empty["records"]) == (None, None, None, 0)


def known(views: FakeViews | None, facts: list[dict[str, Any]] | None = None, **one: Any) -> Known:
    spec = RunSpec(
        name="night", argv=("python", "train.py"), executable="/usr/bin/python", cwd="/there",
        log="/nonexistent/output.log",
        tokens_per_step=1000.0, params=1_000_000, peak_tflops=1.0, price=3600.0,
    )  # fmt: skip
    status = {
        "state": "finished",
        "cause": "completed",
        "cause_text": "done",
        "steps": 140,
        "reader": "keyvalue",
        **one,
    }
    return Known(
        kind="run",
        name="night",
        one=status,
        course=Course(facts or []),
        spec=spec,
        origins={"params": "flag --params", "devices": "default"},
        log=Path("/nonexistent/output.log"),
        source=0,
        start=0,
        why="the reader keyvalue read 196 progress lines",
        now=1795993620.0,
        views=views,
        wall_s=140.0,
        unknown={} if views else {"metrics": "it is gone; `overnight reindex night` builds it anew"},
    )


def test_the_whole_value_after_a_rewind() -> None:
    found = build(known(FakeViews(records(*REWOUND))))
    good = found["goodput"]
    assert (good["goodput"], good["productive_s"], good["redone_steps"], good["lost_s"]) == (0.5, 70.0, 56, 28.0)
    assert (good["stepping_tokens_per_s"], good["overall_tokens_per_s"], good["lost_cost"]) == (2000.0, 1000.0, 28.0)
    assert good["from"] == "step times as printed"
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["tokens_per_second"]["value"] == 2000.0
    assert figures["mfu"]["value"] == 6e6 * 2000 / 1e12
    assert "N = 1,000,000 (from --params)" in figures["mfu"]["provenance"]
    assert figures["mfu_attention"] == {
        "name": "mfu_attention", "label": "MFU with attention", "value": None, "text": "unknown",
        "provenance": "give --layers, --seq-len and --width",
    }  # fmt: skip
    assert found["unknown"]["mfu_attention"] == "give --layers, --seq-len and --width"
    assert "/nonexistent/output.log cannot be read" in found["unknown"]["log"]
    assert found["progress"]["records"] == 196
    assert "finished all 140 steps" in found["outcome"]["sentence"]


def test_numbers_that_are_not_finite_are_words_in_the_value() -> None:
    rows = [{"step": step, "loss": math.nan if step == 3 else 1.0, "dt_s": 1.0} for step in range(1, 4)]
    found = build(known(FakeViews(rows), loss="nan"))
    assert found["progress"]["loss_last"] == "nan"
    loss = next(one for one in found["charts"] if one["name"] == "loss")
    assert loss["nonfinite"] == [[3.0, "nan"]]


def test_the_least_and_the_last_of_a_curve_are_exact() -> None:
    rows = [{"step": step, "loss": 5.0 - (step == 4444) + step / 1e6, "dt_s": 1.0} for step in range(1, 20_001)]
    loss = next(one for one in build(known(FakeViews(rows)))["charts"] if one["name"] == "loss")
    assert (loss["least"], loss["least_x"], loss["last"]) == (4.004444, 4444, 5.02)
    assert 4444 not in loss["x"]


def test_the_last_good_loss_before_a_nan_is_found_among_many() -> None:
    rows = [{"step": step, "loss": math.nan if step >= 15_001 else 3.0 - step / 1e5} for step in range(1, 20_001)]
    facts = [{"at": "2026-11-29T23:00:00.000Z", "fact": "verdict", "rule": "nonfinite", "severity": "critical",
              "text": "loss is NaN at step 15001", "step": 15_001, "attempt": 1, "source": 0, "offset": 7}]  # fmt: skip
    found = build(known(FakeViews(rows), facts, state="stopped", cause="nonfinite"))
    assert (found["progress"]["loss_good"], found["progress"]["loss_good_step"]) == (2.85, 15_000)
    assert any("is a number is 2.85, at step 15,000" in one for one in found["next"])


def test_the_last_good_loss_is_not_one_that_came_behind_the_nan() -> None:
    """Step 31 is printed with NaN and once more with a number: that one is no save to go on from."""
    rows = [{"step": step, "loss": 3.0 - step / 100, "offset": step} for step in range(1, 31)]
    rows += [{"step": 31, "loss": math.nan, "offset": 31}, {"step": 31, "loss": 2.69, "offset": 32}]
    facts = [{"at": "2026-11-29T23:00:00.000Z", "fact": "verdict", "rule": "nonfinite", "severity": "critical",
              "text": "loss is NaN at step 31", "step": 31, "attempt": 1, "source": 0, "offset": 31}]  # fmt: skip
    found = build(known(FakeViews(rows), facts))
    assert (found["progress"]["loss_good"], found["progress"]["loss_good_step"]) == (pytest.approx(2.7), 30)


def test_steps_between_lines_are_known_for_each_attempt() -> None:
    rows = [{"step": step, "loss": 3.0} for step in range(10, 101, 10)]
    rows += [{"step": step, "loss": 3.0, "attempt": 2} for step in (50, 55, 60)]
    rows += [{"step": 70, "loss": 3.0, "attempt": 3}]
    assert series.gains(FakeViews(rows).spans()) == {1: 10, 2: 5}


def test_a_constant_loss_is_said_to_be_one() -> None:
    said = text(build(known(FakeViews([{"step": step, "loss": 2.5} for step in range(1, 41)]))), clean=harmless)
    assert "    \N{LOWER ONE EIGHTH BLOCK} 2.5, from end to end\n" in said


def test_rates_that_are_printed_without_times_are_said_to_be_the_source() -> None:
    rows = [{"step": step, "loss": 3.0, "tokens_per_s": 5000.0} for step in range(1, 100)]
    found = build(known(FakeViews(rows), tokens_per_second_avg=5000.0))
    figures = {one["name"]: one for one in found["figures"]}
    assert figures["tokens_per_second"]["provenance"].startswith("rates as printed")


def test_an_output_without_bars_gets_ascii() -> None:
    said = text(build(known(FakeViews(records((1, 40))))), clean=harmless)
    plain = spelt(said, "ascii")
    assert plain.isascii()
    assert not said.isascii()
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in said.splitlines()]
    assert spelt(said, "utf-8") == said
    assert spelt(said, None).isascii()


def test_evidence_is_named_whole_under_its_folder() -> None:
    name = "stall-2026-11-30T02-00-00-1/" + "very-" * 6 + "long.txt"
    folder = "/home/somebody/.local/state/overnight/runs/" + "a-name-that-is-long-" * 2 + "/evidence/"
    one = known(FakeViews(records((1, 40))))
    one.proofs = [{"name": name, "path": folder + name, "text": "x"}]
    said = text(build(one), clean=harmless)
    assert any(line.strip() == name for line in said.splitlines())


def test_limits_are_told_in_the_units_of_the_page() -> None:
    found = text(
        build(known(FakeViews(records((1, 40))), limits={"max_hours": 25 / 3600, "stall_s": 600.0})), clean=str
    )
    assert "--max-hours (25 s), --stall (10 min)" in found
    assert "what happened" not in found


def test_without_metrics_nothing_is_guessed() -> None:
    found = build(known(None, records=196))
    assert found["charts"] == []
    assert found["progress"]["records"] == 196
    assert found["progress"]["loss_first"] is None
    assert (found["goodput"]["goodput"], found["goodput"]["redone_steps"]) == (None, None)
    assert "overnight reindex night" in found["unknown"]["metrics"]


def rendered(value: dict[str, Any], width: int = 80) -> str:
    return text(value, clean=harmless, width=width)


def test_the_text_stays_in_its_columns_and_harmless() -> None:
    evil = "\x1b[31m\x1b]0;title\x07" + "boom " * 60 + "\u202e"
    rows = records(*REWOUND)
    rows[50]["loss"] = math.nan
    facts = [
        {"at": "2026-11-29T23:00:00.000Z", "fact": "started", "attempt": 1, "pid": 1},
        {"at": "2026-11-29T23:00:01.000Z", "fact": "note", "text": evil},
        {"at": "2026-11-29T23:00:01.000Z", "fact": "attempt_ended", "attempt": 1, "cause": "crash", "cause_text": evil,
         "lines": [evil]},
    ]  # fmt: skip
    value = build(known(FakeViews(rows), facts, last_lines=[evil, "<script>alert(1)</script>"]))
    for width in (80, 60, 40):
        page = rendered(value, width)
        assert max(len(line) for line in page.splitlines()) <= width
        assert not set("\x1b\x07\u202e") & set(page)
    page = rendered(value)
    assert "<script>alert(1)</script>" in page
    curve = page.splitlines()[page.splitlines().index("loss over step 1 to 140") + 1 :]
    assert "x" in curve[0]
    assert curve[1].strip() == "^"
    assert "x NaN or infinite; ^ another attempt begins" in page


def test_an_empty_report_says_so_and_does_not_fall() -> None:
    value = build(known(None, state="damaged", cause=None, cause_text="status.json is odd", steps=None))
    page = rendered(value)
    assert "its run folder is damaged, so only a part is known: status.json is odd" in " ".join(page.split())
    assert "None" not in page
