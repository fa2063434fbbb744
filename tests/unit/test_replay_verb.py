"""``overnight replay`` over logs that nobody launched: what is said, what is refused, what cannot be known."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from overnight.cli import main
from overnight.cli.render import WIDTH
from overnight.past.replay import MOST_VERDICTS
from overnight.past.sensed import JUDGED_BY


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, with no settings of anybody's."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return work


def lines(steps: Iterable[int], *, nan_at: int | None = None, dt: float | None = 0.5) -> str:
    """Return a plain log."""
    pace = "" if dt is None else f", dt: {dt}"
    losses = (math.nan if nan_at is not None and step >= nan_at else 3 * 0.99**step for step in steps)
    return "".join(f"step: {step}, loss: {loss:.4f}{pace}\n" for step, loss in zip(steps, losses, strict=True))


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Return what ``replay --json`` prints."""
    assert main(["replay", *words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return what ``replay`` prints: within 80 columns, and nothing that a terminal could be tricked with."""
    assert main(["replay", *words]) == code
    found = capsys.readouterr().out
    assert all(len(line) <= WIDTH for line in found.splitlines()), found
    assert all(sign.isprintable() or sign == "\n" for sign in found)
    return found


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


# -- what is found ---------------------------------------------------------------------------------------------------


def test_what_an_end_would_have_saved_by_printed_step_times(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", "starting\n" + lines(range(1, 201), nan_at=81, dt=30))
    found = told(capsys, log, "--price", "3.6/h")
    end = found["end"]
    assert (end["rule"], end["action"], end["step"], end["line"]) == ("nonfinite", "terminate", 81, 82)
    assert end["then"] == "stopped (nonfinite)"
    assert not end["again"]
    # 119 steps of 30 s each came after it, and an hour costs 3.60
    assert end["saved"] == {
        "records": 119, "steps": 119, "seconds": 3570.0, "from": "dt", "price": 3.6, "cost": 3.57
    }  # fmt: skip
    (verdict,) = found["verdicts"]
    assert verdict["line_text"] == "step: 81, loss: nan, dt: 30"
    assert verdict["evidence"] == {"loss": "nan"}
    assert (verdict["ends"], verdict["after_end"], verdict["night"]) == (True, False, None)
    assert found["read"] == {
        "records": 200, "evals": 0, "segments": 1, "anew": 0, "epoch": None, "steps": 200, "step": 200,
        "loss": "nan", "nonfinite": 120,
        "first_nonfinite": 81, "dt_s": 6000.0,
    }  # fmt: skip
    assert found["night"] is None
    said = text(capsys, log, "--price", "3.6/h")
    assert said.startswith(f"{log}: nonfinite would have ended it at step 81, line 82\n")
    assert "119 steps, 59m30s by the printed step times, 3.57 at 3.6/h" in " ".join(said.split())


def test_where_no_step_time_is_printed_nobody_knows_how_long_it_went_on(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100), nan_at=40, dt=None))
    saved = told(capsys, log, "--price", "2/h")["end"]["saved"]
    assert (saved["steps"], saved["seconds"], saved["from"], saved["cost"]) == (59, None, None, None)
    assert "for a time that nobody knows" in text(capsys, log)


def test_steps_between_two_lines_are_saved_too(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(0, 1001, 100), nan_at=500, dt=2))
    saved = told(capsys, log)["end"]["saved"]
    assert (saved["records"], saved["steps"], saved["seconds"]) == (5, 500, 1000.0)


def test_a_log_that_ends_at_the_verdict_saves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(50), nan_at=49))
    assert told(capsys, log)["end"]["saved"]["steps"] == 0
    assert "nothing: the log ends there" in text(capsys, log)


def test_after_the_end_it_goes_on_judging_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(50), nan_at=40) + lines(range(50), nan_at=30))
    found = told(capsys, log)
    assert [(one["step"], one["after_end"], one["line"]) for one in found["verdicts"]] == [
        (40, False, 41), (30, True, 81),
    ]  # fmt: skip
    assert found["read"]["segments"] == 2
    # 9 after the end in the first stretch, all 50 of the second one: steps that were made twice cost twice
    assert found["end"]["saved"]["steps"] == 59
    assert "-- after the end --" in text(capsys, log)


def test_other_rules_change_just_what_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100), nan_at=60))
    assert told(capsys, log, "--action", "nonfinite=note")["end"] is None
    found = told(capsys, log, "--max-steps", "20")
    assert [(one["rule"], one["step"], one["after_end"]) for one in found["verdicts"]] == [
        ("max_steps", 20, False), ("nonfinite", 60, True),
    ]  # fmt: skip
    assert found["rules"]["max_steps"] == 20
    low = told(capsys, log, "--max-loss", "2")
    assert [(one["rule"], one["step"]) for one in low["verdicts"]] == [("divergence", 0), ("nonfinite", 60)]
    assert low["end"]["rule"] == "divergence"


def spiky(*spans: tuple[int, int, int]) -> str:
    """Return a log in pieces (first step, last step, first step of a loss of 8 that stays)."""
    return "".join(
        f"step: {step}, loss: {8.0 if step >= bad else 2 + 0.05 * math.sin(step):.4f}, dt: 0.5\n"
        for first, last, bad in spans
        for step in range(first, last + 1)
    )


def test_a_rollback_is_no_end_and_nothing_is_made_up_behind_it(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", spiky((1, 320, 300)) + lines(range(321, 400), nan_at=380))
    found = told(capsys, log, "--action", "spike=rollback", "--exit-code")
    assert found["end"] is None
    (back,) = found["rollbacks"]
    assert (back["rule"], back["n"], back["followed"], back["line"]) == ("spike", 1, False, back["step"])
    assert 300 <= back["step"] <= 320
    # at least ten steps before the trouble, which began at 300
    assert (back["before"], back["skip"]) == (291, [291, back["step"]])
    first, *others = [one for one in found["verdicts"] if one["severity"] != "note"]
    assert (first["rolls_back"], first["after_rollback"], first["ends"], first["action"]) == (
        True,
        False,
        False,
        "rollback",
    )
    assert [(one["rule"], one["after_rollback"], one["rolls_back"]) for one in others] == [("nonfinite", True, False)]
    said = " ".join(text(capsys, log, "--action", "spike=rollback").split())
    assert (
        f"spike would have rolled it back at step {back['step']}, line {back['step']}; no rule would have ended it"
        in said
    )
    assert "what stands behind it in the log is of a run that was not taken back" in said
    assert "whether there was such a save the log does not tell" in said
    assert said.count("-- after the rollback, of a run that was not taken back --") == 1


def test_where_the_log_begins_again_it_is_judged_again_and_rollbacks_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    piece = (1, 320, 300)
    log = write("train.log", spiky(piece, piece, piece) + lines(range(321, 360)))
    found = told(capsys, log, "--action", "spike=rollback")
    assert [(one["n"], one["followed"]) for one in found["rollbacks"]] == [(1, True), (2, True)]
    end = found["end"]
    assert (end["rule"], end["action"], end["again"], end["then"]) == (
        "spike", "rollback", False, "stopped (spike), 2 rollbacks used",
    )  # fmt: skip
    assert end["line"] == 640 + found["rollbacks"][0]["step"]
    assert end["saved"]["steps"] == 359 - end["step"]
    said = " ".join(text(capsys, log, "--action", "spike=rollback").split())
    assert "behind it the log begins again from an earlier step, and that is judged for itself" in said
    assert "rolled back at step" in said
    assert told(capsys, log, "--action", "spike=rollback", "--exit-code", code=1)["end"] == end


def test_a_limit_is_reached_whether_or_not_a_run_goes_back(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100), nan_at=40))
    found = told(capsys, log, "--action", "nonfinite=rollback", "--max-steps", "80")
    assert [one["step"] for one in found["rollbacks"]] == [40]
    assert (found["end"]["rule"], found["end"]["step"]) == ("max_steps", 80)


def test_a_limit_takes_nothing_back(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100)))
    assert main(["replay", log, "--max-steps", "50", "--action", "max_steps=rollback"]) == 2
    assert "a limit that is reached is no trouble to go back before" in capsys.readouterr().err


def test_a_later_epoch_is_no_way_back(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"Epoch [{epoch}/4], Step [{step}/150], Loss: {'nan' if (epoch, step) in ((2, 50), (4, 50)) else 2.5}\n"
        for epoch in range(1, 5)
        for step in range(10, 151, 10)
    ]
    found = told(capsys, write("train.log", "".join(rows)), "--action", "nonfinite=rollback")
    assert [(one["step"], one["epoch"], one["followed"]) for one in found["rollbacks"]] == [(50, 2, False)]
    assert [one["after_rollback"] for one in found["verdicts"] if one["rule"] == "nonfinite"] == [False, True]


def test_the_exit_code_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    well, ill = write("well.log", lines(range(50))), write("ill.log", lines(range(50), nan_at=9))
    assert told(capsys, well, "--exit-code")["end"] is None
    assert told(capsys, ill, "--exit-code", code=1)["end"]["step"] == 9
    assert told(capsys, ill)["end"]["step"] == 9
    # an alert is no end
    assert told(capsys, ill, "--action", "nonfinite=alert", "--exit-code")["verdicts"][0]["action"] == "alert"


def test_a_pattern_reads_what_no_reader_knows(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("odd.log", "".join(f"<{n}> wobble={'nan' if n > 30 else n}\n" for n in range(60)))
    assert told(capsys, log)["end"] is None
    found = told(capsys, log, "--pattern", r"<(?P<step>\d+)> wobble=(?P<loss>\S+)")
    assert found["end"]["step"] == 31
    assert found["log"]["reader"] == "pattern"


def test_a_nan_that_nobody_reads_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("odd.log", "hello\n" + "".join(f"[[{n}]] the loss is what it is; loss = nan\n" for n in range(5)))
    found = told(capsys, log)
    if found["read"]["records"]:
        pytest.skip("a reader has learned this shape")
    assert found["unread"] == {"lines": 5, "first_line": 2}
    assert "5 lines say of a loss that it is NaN" in " ".join(text(capsys, log).split())


def test_a_nan_that_no_rule_speaks_of_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(50), nan_at=40))
    assert "note:" not in text(capsys, log)
    assert told(capsys, log)["unread"] is None


def test_many_verdicts_are_counted_and_few_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    many = MOST_VERDICTS + 300
    log = write("train.log", "".join(lines(range(10), nan_at=9) for _ in range(many)))
    found = told(capsys, log)
    assert len(found["verdicts"]) == MOST_VERDICTS
    assert found["left_out"] == 300
    assert found["counts"] == [{"rule": "nonfinite", "severity": "critical", "verdicts": many}]
    assert f"and {many - 40:,} more; in all {many} nonfinite critical" in " ".join(text(capsys, log).split())


def test_an_end_that_comes_after_many_verdicts_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    many = MOST_VERDICTS + 5
    log = write("train.log", "".join(lines(range(10), nan_at=9) for _ in range(many)) + lines(range(50)))
    found = told(capsys, log, "--action", "nonfinite=note", "--max-steps", "30")
    assert found["end"]["step"] == 30
    assert len(found["verdicts"]) == MOST_VERDICTS + 1


def test_a_line_that_means_harm_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(20)) + "\x1b]0;owned\x07\x1b[2Jstep: 20, loss: nan, \u202edt: 1\n")
    found = told(capsys, log)
    assert found["end"]["step"] == 20
    assert "owned" not in text(capsys, log)


def test_any_line_ends_and_colours(capsys: pytest.CaptureFixture[str]) -> None:
    content = lines(range(30), nan_at=20)
    plain = told(capsys, write("plain.log", content))
    returns = told(capsys, write("returns.log", content.replace("\n", "\r\n")))
    coloured = told(capsys, write("coloured.log", content.replace("step:", "\x1b[1mstep:\x1b[0m")))
    for other in (returns, coloured):
        assert [(one["rule"], one["step"], one["line"]) for one in other["verdicts"]] == [("nonfinite", 20, 21)]
        assert other["end"]["saved"]["steps"] == plain["end"]["saved"]["steps"] == 9


def test_a_nan_that_is_told_before_its_step_is_known_gets_it_later(capsys: pytest.CaptureFixture[str]) -> None:
    frames = [f"\r {n}%|#  | {n}/100 [00:{n % 60:02d}<00:50, 1.0it/s]" for n in range(101)]
    parts = []
    for n in range(10, 101, 10):
        loss = "nan" if n >= 60 else "2.5"
        parts += [
            *frames[n - 10 : n],
            f"{{'loss': {loss}, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': {n / 100}}}\n",
        ]
    log = write("trainer.log", "".join([*parts, frames[100], "\n"]))
    found = told(capsys, log)
    assert found["log"]["reader"] == "trainer"
    assert [(one["rule"], one["step"], one["after_end"]) for one in found["verdicts"]] == [("nonfinite", 60, False)]
    assert found["counts"] == [{"rule": "nonfinite", "severity": "critical", "verdicts": 1}]
    assert found["end"]["step"] == 60
    assert "{'loss': nan" in found["verdicts"][0]["line_text"]
    assert found["end"]["saved"]["steps"] == 40


# -- time ------------------------------------------------------------------------------------------------------------


def dated(moments: Iterable[tuple[float, str]], form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return lines with dates in front, in local time as logging writes it."""
    return "".join(f"{datetime.fromtimestamp(at).astimezone().strftime(form)} {line}\n" for at, line in moments)


def steps_at(begin: float, count: int, every_s: float, first: int = 1) -> list[tuple[float, str]]:
    return [
        (begin + n * every_s, f"INFO step: {first + n}, loss: {3 - n / 1000:.4f}, dt: {every_s}") for n in range(count)
    ]


NOON = 1_900_000_000.0


def test_without_dates_time_cannot_be_judged_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100)))
    found = told(capsys, log, "--max-hours", "0.001", "--price", "2/h", "--max-cost", "0.01")
    assert set(found["unjudged"]) == {"stall", "wall_clock", "cost", *JUDGED_BY}
    assert {found["unjudged"][rule] for rule in JUDGED_BY} == {"a log alone does not have what sensors told"}
    assert found["clock"] == {"from": None, "resolution_s": None, "zone": None, "began": None, "until": None}
    assert "not judged stall, wall_clock, cost:" in " ".join(
        text(capsys, log, "--max-hours", "1")
        .replace("not judged  stall, wall_clock", "not judged stall, wall_clock, cost")
        .split()
    )
    assert set(told(capsys, log)["unjudged"]) == {"stall", *JUDGED_BY}


def test_dates_in_the_lines_let_a_stall_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 120, 5.0)
    night += steps_at(night[-1][0] + 1200, 60, 5.0, first=121)
    log = write("train.log", dated(night))
    found = told(capsys, log)
    assert found["clock"]["from"] == "dates"
    assert set(found["unjudged"]) == set(JUDGED_BY)
    # by default a minute of silence is an alert, and that it goes on is a note; nothing ends it before half an hour
    assert [(one["rule"], one["action"], one["step"]) for one in found["verdicts"]][:2] == [
        ("stall", "alert", 120), ("stall", "note", 121),
    ]  # fmt: skip
    assert found["end"] is None
    ended = told(capsys, log, "--stall", "10m", "--price", "6/h")
    end = ended["end"]
    assert (end["rule"], end["step"], end["line"]) == ("stall", 120, None)
    silent_s = 1200 - 600 + 59 * 5
    assert end["saved"]["from"] == "dates"
    assert end["saved"]["seconds"] == pytest.approx(silent_s, abs=10)
    assert end["saved"]["cost"] == pytest.approx(silent_s * 6 / 3600, abs=0.02)
    assert end["saved"]["steps"] == 60
    told_at = datetime.fromisoformat(end["at"]).timestamp()
    assert told_at == pytest.approx(NOON + 119 * 5 + 600, abs=10)


def test_when_it_would_have_ended_is_told_by_the_clock_where_the_log_has_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    night = steps_at(NOON, 60, 5.0) + [(NOON + n * 5.0, f"INFO step: {n + 1}, loss: nan") for n in range(60, 120)]
    log = write("train.log", dated(night))
    at = told(capsys, log)["end"]["at"]
    first = " ".join(text(capsys, log).partition("because")[0].split())
    assert first == f"{log}: nonfinite would have ended it at step 61, line 61, at {at[:10]} {at[11:19]} UTC"
    assert datetime.fromisoformat(at).timestamp() == pytest.approx(NOON + 60 * 5, abs=10)
    bare = write("bare.log", "".join(f"{line}\n" for _, line in night))
    assert " ".join(text(capsys, bare).partition("because")[0].split()).endswith("at step 61, line 61")


def test_a_silence_after_the_end_is_saved_too(capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 100, 1.0)
    night[-1] = (night[-1][0], "INFO step: 100, loss: nan, dt: 1.0")
    night += steps_at(night[-1][0] + 600, 100, 1.0, first=101)
    saved = told(capsys, write("train.log", dated(night)))["end"]["saved"]
    assert saved["steps"] == 100
    assert saved["seconds"] == pytest.approx(699, abs=2)


@pytest.mark.parametrize("odd", [50, 51, 55, 57, 60])  # a time mark is looked at for each ten seconds
def test_the_end_has_one_time_from_which_on_is_counted(odd: int, capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 100, 1.0)
    night[odd] = (night[odd][0], f"INFO step: {odd + 1}, loss: nan, dt: 1.0")
    found = told(capsys, write("train.log", dated(night)))
    end = found["end"]
    at, until = (datetime.fromisoformat(text).timestamp() for text in (end["at"], found["clock"]["until"]))
    assert at == pytest.approx(night[odd][0], abs=0.002)
    assert until - at == pytest.approx(end["saved"]["seconds"], abs=0.002)
    assert [one["at"] for one in found["verdicts"] if one["ends"] and not one["after_end"]] == [end["at"]]


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d %H:%M:%S,123 -", "[%Y-%m-%dT%H:%M:%S]", "%m/%d/%Y %H:%M:%S -", "%a %b %d %H:%M:%S %Y:"]
)
def test_the_usual_forms_of_dates(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 200, 3.0)
    found = told(capsys, write("train.log", dated(night, form)), "--max-hours", "0.1")
    assert found["clock"]["from"] == "dates"
    limit = [one for one in found["verdicts"] if one["ends"]]
    assert [one["rule"] for one in limit] == ["wall_clock"]
    assert datetime.fromisoformat(limit[0]["at"]).timestamp() == pytest.approx(NOON + 360, abs=15)


def test_until_counts_from_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 400, 30.0)
    at = datetime.fromtimestamp(NOON + 6000).astimezone()
    found = told(capsys, write("train.log", dated(night)), "--until", at.strftime("%H:%M"))
    end = found["end"]
    assert end["rule"] == "until"
    assert datetime.fromisoformat(found["rules"]["until"]).timestamp() == at.replace(second=0).timestamp()
    assert datetime.fromisoformat(end["at"]).timestamp() == pytest.approx(at.replace(second=0).timestamp(), abs=30)


@pytest.mark.parametrize("what", ["falling", "few", "later", "clock only"])
def test_dates_that_are_no_clock_are_not_used(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 6000, 5.0)
    if what == "falling":
        night[3000:] = [(at - 7200, line) for at, line in night[3000:]]
    content = dated(night, "%H:%M:%S" if what == "clock only" else "%Y-%m-%d %H:%M:%S")
    if what == "few":
        content = "".join(line if n % 5 == 0 else line[20:] for n, line in enumerate(content.splitlines(keepends=True)))
    if what == "later":  # the dates stop, and the log goes on for long
        content += lines(range(7000, 30000))
    found = told(capsys, write("train.log", content))
    assert found["clock"]["from"] is None
    assert set(found["unjudged"]) == {"stall", *JUDGED_BY}
    assert found["read"]["records"] >= 6000


def test_a_jitter_of_seconds_between_writers_is_no_fall(capsys: pytest.CaptureFixture[str]) -> None:
    night = steps_at(NOON, 600, 5.0)
    night = [(at - (4 if n % 2 else 0), line) for n, (at, line) in enumerate(night)]
    assert told(capsys, write("train.log", dated(night)))["clock"]["from"] == "dates"


@pytest.mark.parametrize(("form", "zone"), [("%Y-%m-%d %H:%M:%SZ", "printed"), ("%Y-%m-%d %H:%M:%S", "local")])
def test_only_of_dates_without_a_zone_it_is_said_that_they_are_local(
    form: str, zone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write("train.log", dated(steps_at(NOON, 100, 1.0), form))
    found = told(capsys, log)
    assert found["clock"]["zone"] == zone
    said = "dates without a zone were taken for local time"
    assert (said in found["remarks"]) == (said in " ".join(text(capsys, log).split())) == (zone == "local")
    assert "one for each 10s is looked at" in " ".join(text(capsys, log).split())


def test_a_limit_finer_than_the_times_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", dated(steps_at(NOON, 100, 1.0)))
    found = told(capsys, log, "--stall", "5s")
    assert not found["verdicts"], found["verdicts"]
    assert any("--stall 5s is finer than the 10 s" in one for one in found["remarks"])


def test_steps_that_are_counted_anew_are_told_with_their_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"Epoch [{epoch}/4], Step [{step}/150], Loss: 2.5\n" for epoch in range(1, 5) for step in range(10, 151, 10)
    ]
    rows[40] = rows[40].replace("2.5", "nan")
    log = write("train.log", "".join(rows))
    found = told(capsys, log)
    assert (found["read"]["segments"], found["read"]["anew"], found["read"]["epoch"]) == (4, 3, 4)
    assert (found["end"]["step"], found["end"]["epoch"]) == (110, 3)
    said = " ".join(text(capsys, log).split())
    assert "would have ended it at step 110 of epoch 3, line 41" in said
    assert "steps counted anew in each epoch, the last step is 150 of epoch 4" in said


def test_a_rewind_is_no_count_that_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines([*range(1, 117), *range(81, 141)]))
    found = told(capsys, log)
    assert (found["read"]["segments"], found["read"]["anew"]) == (2, 0)
    assert " in 1 segment" not in text(capsys, write("plain.log", lines(range(50))))


def test_only_evaluations_are_said_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"iter {step}/1000 train_loss: {3.59 - step / 1000:.2f} val_loss: 3.68\n" for step in range(0, 1000, 50)]
    said = " ".join(text(capsys, write("evals.log", "".join(rows))).split())
    assert "only evaluations were read, so no rule could judge the training between them" in said
    assert "no reader fits" not in said


def test_rules_are_named_by_their_flags(capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(1, 301)))
    said = " ".join(text(capsys, log, "--max-steps", "200", "--max-loss", "9").split())
    assert "--max-loss 9, --max-steps 200" in said


def test_zones_are_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(
        f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n" for at, line in steps_at(NOON, 50, 20.0)
    )
    began = told(capsys, write("train.log", text))["clock"]["began"]
    assert datetime.fromisoformat(began).timestamp() == NOON


# -- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("gone.log",), 2, "gone.log is not there"),
        (("gone",), 102, "no run is called 'gone'"),
        (("./gone.log",), 2, "gone.log is not there"),
        ((".",), 2, "is a folder"),
        (("/dev/null",), 2, "/dev/null is not a file"),
        (("train.log", "--max-loss", "much"), 2, "max-loss cannot be 'much'"),
        (("train.log", "--max-cost", "4"), 2, "add --price"),
        (("train.log", "--action", "nonsense=stop"), 2, "there is no rule 'nonsense'"),
        (("train.log", "--pattern", "("), 2, "pattern"),
        (("train.log", "--until", "noon"), 2, "until"),
        (("train.log", "--restarts", "3"), 2, "replay starts nothing again, so it takes no --restarts"),
        (("train.log", "--resume-args=--resume"), 2, "takes no --resume-args"),
        (("train.log", "--rollbacks", "3"), 2, "takes no --rollbacks"),
        (("train.log", "--strict"), 2, "takes no --strict"),
        (("train.log", "--max-los", "3"), 2, "did you mean --max-loss?"),
        ((), 2, "RUN|LOG"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("train.log", lines(range(20)))
    assert main(["replay", *words]) == code
    found = capsys.readouterr()
    assert said in found.err
    assert "Traceback" not in found.err
    assert not found.out


def test_a_pipe_is_refused_rather_than_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert main(["replay", "./pipe"]) == 2
    assert "pipe is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00" * 5000, b"hello\n" * 50])
def test_what_holds_no_record_is_said_to_hold_none(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    log = write("odd.log", content)
    found = told(capsys, log, "--exit-code", code=1)
    assert found["read"]["records"] == 0
    assert found["end"] is None
    assert found["log"]["reader"] is None
    assert "nothing in it was read as a training record" in " ".join(text(capsys, log).split())


def test_the_files_of_a_project_count_for_a_log(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100), nan_at=60))
    (nowhere / "overnight.toml").write_text('max-steps = 20\nlog = "/nowhere/at/all.log"\n')
    found = told(capsys, log)
    assert found["end"]["rule"] == "max_steps"
    assert found["remarks"] == [f"settings were also taken from {nowhere}/overnight.toml"]
    assert told(capsys, log, "--max-steps", "70")["end"]["rule"] == "nonfinite"


def test_nothing_is_written(nowhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write("train.log", lines(range(100), nan_at=60))
    before = (nowhere / log).read_bytes()
    text(capsys, log)
    assert [path.name for path in nowhere.iterdir()] == [log]
    assert not (tmp_path / "home").exists()
    assert (nowhere / log).read_bytes() == before
