"""What the report says is what it shows: true extremes, pairs that fit their percentage, how a log ends."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_views import FakeViews
from hypothesis import given
from hypothesis import strategies as st
from test_report_series import known, records

from overnight.cli import replaypage
from overnight.cli.pagefigures import figure_rows
from overnight.printable import harmless
from overnight.report import loglines
from overnight.report.bare import counted_to, of_log
from overnight.report.bars import goodput_bar
from overnight.report.course import Course
from overnight.report.page import page
from overnight.report.text import text
from overnight.report.textpage import Page
from overnight.report.units import part_of
from overnight.report.value import build
from overnight.report.words import sentence, training
from overnight.spec import RunSpec
from overnight.wiring import make_monitor
from report_values import bare, rich


def report(log: Path, said: bytes) -> dict[str, Any]:
    log.write_bytes(said)
    spec = RunSpec(name="x", argv=(), executable="", cwd=str(log.parent), log=str(log))
    return of_log(log, spec, {}, make_monitor(spec, lambda _: None), 0.0)


def steps(count: int, planned: str = "") -> str:
    return "".join(f"step {step}{planned} loss: {3 - step / 1000:.4f}\n" for step in range(1, count + 1))


# -- two durations and their percentage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (11.556, 12.0, ("11.56 s", "12.00 s")),
        (2.988, 6.7, ("2.99 s", "6.70 s")),
        (91.4, 94.9, ("1 min 31.4 s", "1 min 34.9 s")),
        (27910, 28805, ("7 h 45 min", "8 h")),
        (3605, 3700, ("1 h 00 min 05 s", "1 h 01 min 40 s")),
        (86400 * 4 + 3600, 86400 * 4 + 7200, ("4 d 01 h", "4 d 02 h")),
        (50, 100, ("50 s", "1 min 40 s")),
        (None, 100, ("unknown", "1 min 40 s")),
        (0, 0, ("0 s", "0 s")),
    ],
)
def test_two_durations_are_as_fine_as_their_quotient_asks(part: Any, whole: Any, said: tuple[str, str]) -> None:
    assert part_of(part, whole) == said


@given(st.floats(0.0, 1.0), st.floats(1.0, 1e8))
def test_two_durations_fit_the_percentage_beside_them(share: float, whole: float) -> None:
    sizes = {"d": 86400, "h": 3600, "min": 60, "s": 1}

    def seconds(said: str) -> float:
        words = said.split()
        return sum(float(one) * sizes[name] for one, name in zip(words[::2], words[1::2], strict=True))

    shown, beside = map(seconds, part_of(share * whole, whole))
    assert shown / beside == pytest.approx(share, abs=0.001)
    assert beside == pytest.approx(whole, rel=0.05)


def test_both_forms_show_a_pair_that_fits() -> None:
    for value in (rich(), build(known(FakeViews(records((1, 40)))))):
        value["goodput"].update(goodput=0.963, productive_s=11.556, wall_s=12.0)
        assert "goodput: 11.56 s of 12.00 s were training" in page(value)
    assert "96.3%: 11.56 s of 12.00 s were training" in text(value, clean=harmless)


# -- the curve of the text ---------------------------------------------------------------------------------------------


def test_the_curve_names_the_true_extremes_and_ends_at_the_last_step() -> None:
    rows = [
        {"step": step, "loss": 5.0 if step == 500 else 1.0 if step == 501 else 2.0 + step / 1e4}
        for step in range(1, 1001)
    ]
    value = build(known(FakeViews(rows)))
    (chart,) = (one for one in value["charts"] if one["name"] == "loss")
    # As a long series is thinned: each part has the place of its first record, and both extremes.
    thin = [range(at, at + 10) for at in range(0, 1000, 10)]
    for name, chosen in (("low", min), ("high", max)):
        chart[name] = [chosen(chart[name][at] for at in part) for part in thin]
    chart["x"], chart["attempts"] = [chart["x"][part[0]] for part in thin], [1] * len(thin)
    said = " ".join(text(value, clean=harmless).split())
    assert "loss over step 1 to 1,000" in said
    assert "least 1, most 5; a bar is the middle of its part: " in said


def test_of_single_values_the_signs_are_the_extremes() -> None:
    said = text(build(known(FakeViews(records((1, 40))))), clean=harmless)
    assert re.search(r"\n    ▁ [\d.]+; █ [\d.]+\n", said)
    assert "middle" not in said


def test_no_label_pushes_its_text_out_of_the_column() -> None:
    for width in (40, 80):
        made = Page(harmless, width)
        made.table("figures", [("short", "a " * 60), ("tokens/s (clean steps)", "b " * 60), ("x" * 60, "c")])
        columns = {re.search(r"\b[abc]\b", line).start() for line in made.lines if re.search(r"\b[abc]\b", line)}  # type: ignore[union-attr]
        assert len(columns) == 1
        assert max(map(len, made.lines)) <= width


# -- lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("saves", "more"), [(0, False), (1, False), (2, True)])
def test_of_one_more_it_is_not_said_that_it_is_left_out(saves: int, more: bool) -> None:
    value = build(known(FakeViews(records((1, 40)))))
    value["timeline"] = [one for one in rich()["timeline"] if one["kind"] == "verdict"][:1]
    value["timeline"] += [{**value["timeline"][0], "kind": "save", "text": f"save {at}"} for at in range(saves)]
    said = text(value, clean=harmless)
    assert ("more: --json and --html have them" in said) == more
    assert said.count("  save 0\n") == (saves == 1)


# -- the end of a log --------------------------------------------------------------------------------------------------


def test_behind_a_very_long_line_the_usual_number_of_lines_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for size in (20_000, 200_000, 1_000_000, 3_000_000):
        for behind in (b"", b"the end\n"):
            log.write_bytes(steps(40).encode() + b"y" * size + b"\n" + behind)
            found = loglines.last_lines(log)
            assert len(found) == loglines.LAST_LINES
            assert found[-1 - bool(behind)] == "y" * (loglines.CHARS - 1) + "…"
            assert found[0] == f"step {30 + bool(behind)} loss: {3 - (30 + bool(behind)) / 1000:.4f}"


def test_of_a_bar_drawn_for_megabytes_the_last_state_is_shown_with_what_stood_before_it(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    bar = "".join(f"\r{at % 100}%|####      | {at}/90000 [00:01<00:02]" for at in range(1, 60_001))
    log.write_text(steps(40) + bar, encoding="utf-8")
    found = loglines.last_lines(log)
    assert "60000/90000" in found[-1]
    assert found[-2] == "step 40 loss: 2.9600"
    assert len(found) == loglines.LAST_LINES


def test_lines_are_counted_as_readers_see_them(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for said, many in (
        (b"", 0), (b"one", 1), (b"one\n", 1), (b"one\r\ntwo\r\n", 2), (b"\n\none\n\n\ntwo\n\n", 2),
        (b"1%|\r2%|\r3%|\n", 3), (b"\n", 0), (b"a\n" * 700_000 + b"\n\n", 700_000),
    ):  # fmt: skip
        log.write_bytes(said)
        assert loglines.count_lines(log) == many


def test_what_is_shown_of_a_longer_log_is_counted(tmp_path: Path) -> None:
    value = report(tmp_path / "x.log", steps(40).encode())
    assert "the log ends: 12 of its 40 lines\n" in text(value, clean=harmless)
    assert "12 of its 40 lines." in page(value)
    short = report(tmp_path / "x.log", steps(9).encode())
    assert "the log ends\n" in text(short, clean=harmless)


@pytest.mark.parametrize(
    ("line", "step", "planned"),
    [
        ("step 45/48 loss: 2.0", 45, 48), ("94%|###| 45/48 [00:10<00:01, loss=2.0]", 45, 48),
        ("Epoch 3/10 step: 3 loss: 2.0", 3, None), ("step 45 loss: 2.0 (2026/11/30)", 45, None),
        ("2026/11/30 step: 11", 11, None), ("step 45/48 loss: 2.0", 5, None), ("step 45/48", None, None),
        ("step 45/40", 45, None), ("step 1.45/48", 45, None),
    ],
)  # fmt: skip
def test_a_bar_says_to_which_step_it_counts(line: str, step: int | None, planned: int | None) -> None:
    assert counted_to(line, step) == planned


def test_a_log_that_ends_before_the_end_of_its_bar_says_so(tmp_path: Path) -> None:
    value = report(tmp_path / "x.log", (steps(45, "/48") + "Training complete\n").encode())
    assert "came to its end at step 45 of 48 with loss" in value["outcome"]["sentence"]


# -- sentences ---------------------------------------------------------------------------------------------------------


def test_steps_with_a_loss_that_is_no_number_are_not_called_training() -> None:
    rows = [{"step": step, "loss": 2.0 if step < 60 else math.nan, "dt_s": 1.0} for step in range(1, 121)]
    value = build(known(FakeViews(rows), loss=math.nan))
    assert training(value) == "steps, with a loss that is no number from step 60 on"
    value["goodput"]["goodput"] = 0.9
    assert "90% of the time was steps, with a loss that is no number from step 60 on" in sentence(value)
    mended = build(known(FakeViews([{"step": n, "loss": math.nan if n == 9 else 2.0, "dt_s": 1.0} for n in range(20)])))
    assert training(mended) == "training"


def test_a_start_without_a_known_save_is_not_said_to_be_from_nothing() -> None:
    fact: dict[str, Any] = {"fact": "resume", "attempt": 2, "path": None, "step": None, "skip": None, "passed_over": []}
    (one,) = Course([{**fact, "rollback": None}]).timeline()
    assert one["text"] == "attempt 2 is started, and no save was known"
    (one,) = Course([{**fact, "rollback": "spike", "skip": [[5, 7]]}]).timeline()
    assert (
        one["text"]
        == "attempt 2 is started, and no save was known; taken back by the rule spike; steps 5 to 7 left out"
    )


def test_lines_are_read_up_to_a_step(tmp_path: Path) -> None:
    value = report(tmp_path / "x.log", steps(1200).encode())
    assert "1,200 progress lines read, up to step 1,200 with loss" in value["outcome"]["sentence"]


def test_an_ended_run_has_no_time_so_far() -> None:
    names = "step steps loss loss_avg tokens_per_second tflops mfu mfu_avg params devices peak_flops mfu_attention"
    one: dict[str, Any] = {**dict.fromkeys(names.split()), "unknown": {}, "goodput": 0.5, "step": 1, "eta_s": None}
    one |= {"state": "finished", "convention": None, "peak_source": None, "params_source": None}
    ended = dict(figure_rows({**one, "ended_at": "2026-11-30T00:00:00Z"}))
    assert ended["goodput"] == "50.0% of the time was steps that count"


def test_small_amounts_have_digits_in_the_parts_of_the_time() -> None:
    value = bare()
    value["goodput"] = {"goodput": 0.5, "wall_s": 10.0, "productive_s": 5.0, "lost_s": 1.0, "restart_s": 0.0}
    assert "0.00167" in str(goodput_bar(value["goodput"], 1.2))


def test_a_place_is_a_sentence_with_and_without_a_step() -> None:
    place = {"step": None, "line": 1234, "at": None}
    told = {"read": {"anew": 0}}
    assert replaypage._where(place, told) == "at line 1,234"
    assert replaypage._where({**place, "step": 5000000}, told) == "at step 5,000,000, line 1,234"
