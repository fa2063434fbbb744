"""``ls`` and ``status`` on hand-made folders: 80 columns, nothing a terminal obeys, unknown said to be so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight import cli, client, states
from overnight.cli import live, notice, page, render
from overnight.errors import FolderError
from overnight.folder import RunFolder, write_json
from overnight.moments import epoch_of
from overnight.processes import boot_id

FULL: dict[str, Any] = {
    "state": "stopped",
    "cause": "nonfinite",
    "cause_text": "the loss is NaN at step 21",
    "attempt": 1,
    "pid": 4242,
    "step": 21,
    "steps": 19073,
    "loss": "nan",
    "loss_avg": 3.5,
    "tokens_per_second": 131072.0,
    "tflops": 97.798,
    "mfu": 0.313456,
    "mfu_avg": 0.3134,
    "flops_per_token": 746139384.0,
    "peak_flops": 3.12e14,
    "peak_source": "--peak-tflops",
    "convention": "6N",
    "params": 124356864,
    "params_source": "--params",
    "devices": 8,
    "created_at": "2026-01-01T00:00:00.000Z",
    "started_at": "2026-01-01T00:00:01.000Z",
    "ended_at": "2026-01-01T01:00:01.000Z",
    "active_s": 3600.0,
    "log": "/data/output.log",
    "exit_code": 0,
    "verdicts": [
        {"rule": "nonfinite", "severity": "critical", "step": 21, "text": "the loss is NaN", "action": "terminate"}
    ],
    "checkpoint": {"step": 20, "path": "/data/ckpt-20", "valid": True, "healthy": True},
    "attempts": [{"n": 1, "started_at": "x", "exit_code": 0}, {"n": 2, "started_at": "y", "signal": "SIGSEGV"}],
    "notes": ["the supervisor was killed and is back"],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERNIGHT_HOME", str(tmp_path))
    return tmp_path


def make(home: Path, name: str, status: dict[str, Any] | None) -> RunFolder:
    folder = RunFolder(home / "runs" / name)
    folder.create()
    write_json(folder.run_json, {"spec": {"log": str(folder.output_log)}})
    if status is not None:
        write_json(folder.status_json, status)
    return folder


def narrow(text: str) -> bool:
    return max(map(len, text.splitlines())) <= 80


def test_status_says_everything_that_is_known(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "night", FULL)
    assert cli.main(["status", "nig"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "night: stopped (nonfinite)",
        "the loss is NaN at step 21",
        "21 of 19073",
        "nan (window average 3.5)",
        "131.1k",
        "97.798",
        "31.3% (whole run 31.3%), 6N over 8 x 312 TFLOP/s from --peak-tflops",
        "124,356,864 from --params",
        "attempt 1, pid 4242, exit code 0",
        "1h00m after its start), active 1h00m",
        "step 20 /data/ckpt-20 (verified, before any trouble)",
        "/data/output.log",
        "critical nonfinite step 21 -> terminate: the loss is NaN",
        "2: y, no steps, ended by SIGSEGV",
        "killed and is back",
    ):
        assert part in " ".join(shown.split())
    assert narrow(shown)
    assert "\x1b" not in shown


def test_status_says_what_would_make_the_unknown_known(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"tokens_per_second": "no progress line has named a time yet", "tflops": "give --params; give --layers"}
    make(home, "new", {"state": "running", "unknown": unknown})
    cli.main(["status"])
    shown = capsys.readouterr().out
    assert "tokens/s    unknown: no progress line has named a time yet\n" in shown
    flags = "--params, --layers, --tokens-per-step, --peak-tflops, --config, --model, --steps"
    assert f"unknown TFLOP/s, MFU, params, left: give {flags}" in " ".join(shown.split())
    assert "verdicts    none" in shown
    assert narrow(shown)


def test_half_known_and_impossible_figures_are_called_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "odd", {**FULL, "mfu": 1.5, "mfu_avg": None, "loss_avg": None})
    cli.main(["status"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "nan (window average unknown)" in shown
    doubt = "cannot be: check --params, --tokens-per-step, --peak-tflops, --devices"
    assert f"MFU unknown: 150.0% {doubt}" in shown


def test_the_time_limit_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "night", {"state": "running", "active_s": 3600.0})
    write_json(folder.run_json, {"spec": {"max_hours": 8.0}})
    cli.main(["status"])
    assert "limit       8h00m of active time (--max-hours), 7h00m left\n" in capsys.readouterr().out


def test_a_live_run_has_been_active_until_now() -> None:
    one = {"active_s": 10.0, "updated_at": "2026-01-01T00:00:00Z", "state": "running", "supervisor": {"alive": True}}
    now = (epoch_of("2026-01-01T00:00:00Z") or 0.0) + 5.0
    assert page._active_s(one, now) == 15.0
    for other in ({"state": "finished"}, {"supervisor": {"alive": False}}, {"updated_at": None}):
        assert page._active_s({**one, **other}, now) == 10.0


def test_a_failed_run_shows_the_end_of_its_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "bad", None)
    folder.output_log.write_text("old\n" * 9 + "".join(f"line {n}\n" for n in range(7)) + "\x1b[31m" + "x" * 200)
    write_json(folder.run_json, {"log_start": 36, "spec": {}})
    write_json(folder.status_json, {"state": "failed", "cause": "crash", "log": str(folder.output_log), "records": 0})
    cli.main(["status"])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    at = lines.index("  log ends")
    assert lines[at + 1 : at + 6] == [*(f"    line {n}" for n in range(3, 7)), "    " + "x" * 76]
    assert "see `overnight logs bad -n 20`" in shown
    assert "no progress line was read (8 lines), so a NaN would not have been seen" in " ".join(shown.split())
    assert narrow(shown)


def test_a_run_of_which_nothing_is_read_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(home, "new", None)
    state = {"state": "running", "log": str(folder.output_log), "records": 0}
    write_json(folder.status_json, state)
    folder.output_log.write_bytes(b"")
    cli.main(["status"])
    assert "none read as progress" not in capsys.readouterr().out
    folder.output_log.write_bytes(b"hello\nworld\n")
    cli.main(["status"])
    said = "2 lines, none read as progress, so a NaN would not be seen: see `overnight read new` and `--pattern`"
    assert said in " ".join(capsys.readouterr().out.split())
    folder.output_log.write_bytes(b"x\n" * (1 << 20))
    cli.main(["status"])
    assert "more than 524288 lines, none read" in capsys.readouterr().out
    write_json(folder.status_json, {**state, "records": 1})
    cli.main(["status"])
    assert "none read as progress" not in capsys.readouterr().out


def test_a_run_without_a_living_supervisor_says_what_it_said_last(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(home, "new", {"state": "running"})
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    me = {"pid": os.getpid(), "start_ticks": int(after_name[19])}
    write_json(folder.shim_json, {"boot_id": boot_id(), "shim": me, "supervisor": None, "unguarded": True})
    for log, said in (
        ("", "says nothing"),
        ('{"at": "x", "error": "the \\u001b[2Jdisk"}\n', "ends: the disk"),
        ("Traceback\nKeyError: 1\n", "ends: KeyError: 1"),
    ):
        folder.supervisor_log.write_text(log)
        cli.main(["status"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "unguarded: its supervisor died too often" in shown
        assert f"supervisor.log {said}".replace(" ", "") in shown.replace(" ", "")  # a long path may be folded


@pytest.mark.parametrize(
    ("text", "step", "end"),
    [
        ("loss is NaN at step 13", 14, "loss is NaN at step 13"),
        ("because", 14, "because, at step 14"),
        ("because of steps", 14, "because of steps, at step 14"),
        (None, 14, ", at step 14"),
    ],
)
def test_a_step_is_named_once(text: str | None, step: int, end: str) -> None:
    one = {**dict.fromkeys(client.FIELDS), "name": "n", "state": "stopped", "cause": "x", "cause_text": text}
    assert render.ending({**one, "step": step}).endswith(end)
    assert render.ending({**one, "step": step}).count("at step") == 1


@pytest.mark.parametrize(
    "cause", ["user", "preempted", "wall_clock", "until", "max_steps", "cost", "nonfinite", "divergence", "mine"]
)
def test_a_run_stopped_by_a_health_rule_is_as_red_as_a_failed_one(cause: str) -> None:
    one = {**dict.fromkeys(client.FIELDS), **FULL, "name": "n", "cause": cause, "foreign": False, "stale": False}
    red = "\x1b[31m" in render.table([one], now=0.0, colours=True)
    assert red is (states.exit_code("stopped", cause) == 104)


def test_json_holds_full_precision_and_null_for_unknown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "night", FULL)
    make(home, "new", None)
    cli.main(["status", "night", "--json"])
    one = json.loads(capsys.readouterr().out)
    assert (one["mfu"], one["loss"], one["eta_s"]) == (0.313456, "nan", None)
    assert one["shim"] == {"pid": None, "alive": False}
    cli.main(["ls", "--json"])
    runs = json.loads(capsys.readouterr().out)
    assert one in runs
    assert {run["name"] for run in runs} == {"night", "new"}
    assert all(set(client.FIELDS) <= set(run) for run in runs)


def test_infinity_written_by_hand_is_still_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", None).status_json.write_text('{"state": "finished", "loss": 1e999, "attempts": [{"n": -1e999}]}')
    cli.main(["status", "--json"])
    one = json.loads(capsys.readouterr().out)
    assert (one["loss"], one["attempts"][0]["n"]) == ("inf", "-inf")
    assert cli.main(["status"]) == cli.main(["ls"]) == 0


def test_ls_is_a_table_and_damage_is_told_below_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls"]) == 0
    assert "no runs" in capsys.readouterr().out
    make(home, "night", FULL)
    make(home, "x" * 64, {**FULL, "state": "failed", "cause": "out_of_memory_host", "step": 10**9, "loss": 123456.7})
    make(home, "bad", {"state": "flying"})
    assert cli.main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert narrow(shown)
    lines = shown.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "STEP", "LOSS", "TOK/S", "MFU", "AGE"]
    assert any(line.startswith("night ") and "stopped (nonfinite)" in line and "131.1k" in line for line in lines)
    assert any(line.startswith("xxxxxxxx") and "1000000000" in line for line in lines)
    assert "flying" in shown


def test_nobody_can_draw_on_the_terminal_through_a_status(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(
        home,
        "r",
        {**FULL, "cause_text": "a\x1b[2Jb\x1b]0;title\x07c\rd\n\u202ee", "cause": "\x1b[31mx", "log": "/a\x1b[H"},
    )
    cli.main(["status"])
    cli.main(["ls"])
    shown = capsys.readouterr().out
    assert not any(sign in shown for sign in "\x1b\x07\r\u202e")


def test_colours_only_where_they_are_wanted() -> None:
    one = {
        **dict.fromkeys(client.FIELDS),
        **FULL,
        "name": "n",
        "state": "failed",
        "foreign": False,
        "stale": False,
        "unguarded": False,
    }
    for colours in (True, False):
        assert ("\x1b[31m" in render.table([one], now=0.0, colours=colours)) is colours
        assert ("\x1b[31m" in page.status_text(one, now=0.0, colours=colours)) is colours


# -- what a night adds -----------------------------------------------------------------------------------------------

NIGHT: dict[str, Any] = {
    "state": "backoff",
    "attempt": 2,
    "engine": "local",
    "elapsed_s": 7200.0,
    "active_s": 3600.0,
    "cost": 4.98,
    "cost_forecast": 19.92,
    "step": 120,
    "limits": {
        "max_hours": 8.0,
        "until": "2026-01-01T08:00:00.000Z",
        "max_steps": 500,
        "max_cost": 20.0,
        "price": 2.49,
        "restarts": 3,
        "stall_s": 600.0,
        "start_limit_s": None,
        "exit_limit_s": 90.0,
    },
    "restarts_used": 1,
    "backoff_until": "2026-01-01T02:00:12.000Z",
    "grad_norm_nonfinite": 3,
    "last_lines": ["Traceback", "RuntimeError: \x1b[31mbad\x1b[0m"],
    "attempts": [
        {"n": 1, "started_at": "x", "exit_code": 1, "cause": "crash", "cause_text": "exited with code 1"},
        {"n": 2, "started_at": "y", "signal": "SIGSEGV", "cause": "crash", "cause_text": "was ended by SIGSEGV"},
    ],
    "notes": ["user: watch the loss after step 4000"],
}


def at(text: str) -> float:
    found = epoch_of(text)
    assert found is not None
    return found


def seen(**fields: Any) -> dict[str, Any]:
    """Return a status as ``client.status`` would, of a run that is kept."""
    alive = {"pid": 7, "alive": True}
    one = {**dict.fromkeys(client.FIELDS), "name": "n", "supervisor": alive, "shim": alive, **fields}
    for key in ("verdicts", "attempts"):
        one[key] = one[key] or []
    return {"foreign": False, "stale": False, "unguarded": False, **one}


def flat(text: str) -> str:
    return " ".join(text.split())


def test_status_says_what_a_night_adds() -> None:
    shown = page.status_text(seen(**NIGHT), now=at("2026-01-01T02:00:00Z"), colours=False)
    for part in (
        "n: backoff backoff: next attempt in 12 s",
        "grad norm not finite 3 times",
        "cost 4.98, 19.92 expected at the end, at 2.49/h",
        "limit 8h00m of active time (--max-hours), 7h00m left",
        "(--until), 6h00m left",
        "step 500 (--max-steps), 380 to go",
        "cost 20.00 (--max-cost), 15.02 left",
        "no longer without a step than 10m00s (--stall)",
        "exit after the last step within 1m30s (--exit-limit)",
        "restarts 1 of 3 used",
        "log ends Traceback RuntimeError: bad",
        "1: x, no steps, exit code 1 (crash): exited with code 1",
        "2: y, no steps, ended by SIGSEGV (crash): was ended by SIGSEGV",
        "note user: watch the loss after step 4000",
    ):
        assert part in flat(shown), part
    assert "start-limit" not in shown
    assert "going on" not in shown
    assert narrow(shown)
    narrower = page.status_text(seen(**NIGHT), now=at("2026-01-01T02:00:00Z"), colours=False, width=60)
    assert max(map(len, narrower.splitlines())) <= 60


def test_what_was_announced_and_how_long_nothing_came() -> None:
    running = {"state": "running", "silent_s": 130.0}
    shown = flat(page.status_text(seen(**running, phase="evaluating"), now=0.0, colours=False))
    assert "phase evaluating, as the log said; silent for 2m10s" in shown
    assert "silent for 2m10s" in flat(page.status_text(seen(**running), now=0.0, colours=False))
    for quiet in ({"state": "running", "silent_s": 5.0}, {"state": "finished", "silent_s": 130.0}):
        assert "silent" not in page.status_text(seen(**quiet), now=0.0, colours=False)


def test_the_engine_is_named_with_the_command_that_attaches_to_it() -> None:
    one = seen(state="running", engine="tmux")
    assert "engine tmux: tmux attach -t n" in flat(
        page.status_text(one, now=0.0, colours=False, attach="tmux attach -t n")
    )
    assert "engine" not in page.status_text(seen(state="running", engine="local"), now=0.0, colours=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": "running", "unguarded": True, "phase": "evaluating"}, "running, unguarded"),
        ({"state": "running", "phase": "evaluating"}, "running, evaluating"),
        ({"state": "running", "restarts_used": 2, "limits": {"restarts": 3}}, "running, restart 2/3"),
        ({"state": "running", "restarts_used": 0, "limits": {"restarts": 3}}, "running"),
        ({"state": "backoff", "backoff_until": "2026-01-01T00:00:12Z"}, "backoff, 12s left"),
        ({"state": "backoff"}, "backoff"),
        ({"state": "finished", "cause": "completed", "hooks": {"failed": 1}}, "finished (completed), hook failed"),
        ({"state": "running", "stale": True, "phase": "evaluating"}, "running, unkept"),
    ],
)
def test_a_row_says_what_matters_most(fields: dict[str, Any], words: str) -> None:
    table = render.table([seen(**fields)], now=at("2026-01-01T00:00:00Z"), colours=False)
    assert table.splitlines()[1].startswith(f"n         {words}  ")
    assert narrow(table)


def test_a_failed_hook_is_red_everywhere() -> None:
    one = seen(
        state="finished", cause="completed", hooks={"pending": 0, "failed": 2, "text": "mail exited with code 1"}
    )
    said = "2 hooks failed: mail exited with code 1"
    for text in (
        render.table([one], now=0.0, colours=True),
        page.status_text(one, now=0.0, colours=True),
        notice.farewell(RunFolder(Path("/nonexistent/n")), one, colours=True),
    ):
        (line,) = [line for line in text.splitlines() if said in line]
        assert line.startswith("\x1b[31m")
    assert "\x1b" not in notice.farewell(RunFolder(Path("/nonexistent/n")), one)


def test_a_status_of_an_older_version_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "old", {"state": "running", "step": 3, "attempts": [{"n": 1}]})
    assert cli.main(["status"]) == cli.main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert not any(word in shown for word in ("restarts", "cost", "limit", "engine", "hook", "phase"))


# -- again and again -------------------------------------------------------------------------------------------------


def test_a_frame_is_drawn_over_what_was_there() -> None:
    assert live.framed(["a", "b"]) == "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"


def test_what_does_not_fit_is_counted() -> None:
    lines = ["HEAD", *"abcdef"]
    assert live.fitted(lines, 80, 7) == lines
    assert live.fitted(lines, 80, 4) == ["HEAD", "a", "b", "... 4 more lines"]
    assert live.fitted(lines, 80, 4, newest_last=True) == ["HEAD", "... 4 more lines", "e", "f"]


@pytest.mark.parametrize(
    ("line", "columns", "clipped"),
    [
        ("abcdef", 4, "abcd"),
        ("\x1b[31mabcdef\x1b[0m", 3, "\x1b[31mabc\x1b[0m"),
        ("日本語", 5, "日本"),
        ("e\u0301fg", 2, "e\u0301f"),
    ],
)
def test_a_line_is_clipped_by_what_it_takes_on_a_terminal(line: str, columns: int, clipped: str) -> None:
    assert live.clipped(line, columns) == clipped


def test_an_interval_needs_a_watch_and_a_time(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", FULL)
    assert cli.main(["ls", "--interval", "2"]) == cli.main(["status", "--watch", "--interval", "often"]) == 2
    assert "give a time such as 2s" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_watching_an_ended_run_shows_it_once(home: Path, form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "r", FULL)
    assert cli.main(["status", "--watch", *form]) == 0
    shown = capsys.readouterr().out
    assert shown.count("nonfinite") >= 1
    assert len(shown.splitlines()) == 1 if form else shown.startswith("--- 20")


_VALUES = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=200))


@given(
    st.dictionaries(st.sampled_from(sorted(client.FIELDS)), _VALUES),
    st.lists(st.dictionaries(st.text(max_size=9), _VALUES), max_size=3),
    st.fixed_dictionaries(
        {
            "limits": st.dictionaries(st.sampled_from(sorted(NIGHT["limits"])), _VALUES),
            "hooks": st.dictionaries(st.sampled_from(["pending", "failed", "text"]), _VALUES),
        }
    ),
    st.sampled_from(sorted(client.STATES)),
)
def test_whatever_passes_the_check_can_be_shown_in_80_columns(
    found: dict[str, Any], items: list[dict[str, Any]], dicts: dict[str, Any], state: str
) -> None:
    one: dict[str, Any] = {
        **dict.fromkeys(client.FIELDS),
        **found,
        "state": state,
        "verdicts": items,
        "attempts": items * 2,
        **dicts,
    }
    try:
        client._check(one, "/x")
    except FolderError:
        return
    for key in ("supervisor", "shim"):
        one[key] = {"pid": None, "alive": False}
    one |= {"name": "n", "stale": False, "foreign": False, "unguarded": False}
    for text in (
        render.table([one], now=1e9, colours=False),
        page.status_text(one, now=1e9, colours=False),
        render.ending(one),
        render.live_line(one),
    ):
        assert text
        assert "\x1b" not in text
    assert narrow(render.table([one], now=1e9, colours=False))
    assert narrow(page.status_text(one, now=1e9, colours=False))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (190, "3m10s"),
        (7500, "2h05m"),
        (356400, "4d03h"),
        (-1, "-"),
        (None, "-"),
        ("nan", "-"),
    ],
)
def test_spans(seconds: Any, text: str) -> None:
    assert render.span(seconds) == text


def test_a_page_of_500_attempts_and_5_million_records_is_one_page(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = [
        {"n": at, "started_at": "x", "cause": "crash", "first_step": at, "last_step": at} for at in range(1, 501)
    ]
    verdicts = [{"rule": "spike", "severity": "note", "step": at, "text": "t", "action": "note"} for at in range(50)]
    make(home, "long", {**FULL, "records": 5_000_000, "attempt": 500, "attempts": attempts, "verdicts": verdicts})
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    assert narrow(shown)
    assert len(shown.splitlines()) < 60
    assert "    490 earlier ones: overnight report long --json\n    491: x, steps 491 to 491 (crash)" in shown
    assert "    500: x, steps 500 to 500" in shown
    make(home, "newest", {**FULL, "attempt": 500, "attempts": attempts[-50:], "created_at": "2027-01-01"})
    assert cli.main(["status", "newest"]) == 0
    assert "    490 earlier ones: overnight report newest --json" in capsys.readouterr().out


def test_attempts_of_a_hand_written_status_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(home, "odd", {**FULL, "attempts": [{"n": "x"}, {"n": -1}, {}]})
    assert cli.main(["status"]) == 0
    assert "attempts\n    x: not started" in capsys.readouterr().out


# -- where a run stands ----------------------------------------------------------------------------------------------


def test_an_epoch_stands_beside_the_step() -> None:
    one = seen(state="running", step=150, steps=600, epoch=4.0)
    assert "step 150 of 600 (epoch 4)" in flat(page.status_text(one, now=0.0, colours=False))
    assert "step 150/600 (epoch 4)" in render.live_line(one)
    assert "  150 ep4  " in render.table([one], now=0.0, colours=False)
    assert render.ending(seen(state="finished", step=150, epoch=4.0)).endswith("at step 150 (epoch 4)")
    for none in (seen(state="running", step=150), seen(state="running", epoch=4.0)):
        assert "ep" not in render.table([none], now=0.0, colours=False)
    assert " 123456789  " in render.table([seen(state="running", step=123456789, epoch=4)], now=0.0, colours=False)


AGAIN: dict[str, Any] = {
    "state": "running",
    "attempt": 3,
    "created_at": "2026-01-01T00:00:00.000Z",
    "started_at": "2026-01-01T00:04:30.000Z",
    "attempts": [{"n": 1, "started_at": "2026-01-01T00:00:01.000Z"}, {"n": 3}],
}


def test_a_run_is_as_old_as_its_making_and_its_newest_attempt_stands_beside() -> None:
    now = at("2026-01-01T00:05:00Z")
    one = seen(**AGAIN, active_s=44.0)
    assert render.table([one], now=now, colours=False).splitlines()[1].endswith(" 5m00s")
    shown = flat(page.status_text(one, now=now, colours=False))
    assert "started 2026-01-01T00:00:01.000Z (4m59s ago; attempt 3 30s ago), active 44s" in shown
    first = page.status_text(seen(**{**AGAIN, "attempts": [{"n": 3}]}), now=now, colours=False)
    assert "started 2026-01-01T00:00:00.000Z (5m00s ago;" in flat(first)  # of many attempts the first is not kept
    over = seen(**{**AGAIN, "state": "stopped"}, ended_at="2026-01-01T00:04:45.000Z", active_s=44.0)
    said = "ended 2026-01-01T00:04:45.000Z (15s ago, 4m44s after its start), active 44s"
    assert said in flat(page.status_text(over, now=now, colours=False))


def test_an_ended_run_waits_for_nothing() -> None:
    waits = {
        "step": "wait for a progress line",
        "loss": "wait for a progress line",
        "tokens_per_second": "print dt, or wait for a second line with a higher step",
        "mfu": "give --params; wait for the next progress line",
    }
    one = seen(state="failed", cause="ended_early", records=0, unknown=waits)
    shown = page.status_text(one, now=0.0, colours=False)
    assert "step        unknown: no progress line was read\n" in shown
    assert "wait for" not in shown
    assert "wait for a progress line" in page.status_text(seen(state="running", unknown=waits), now=0.0, colours=False)
    assert "`overnight read n`" in render.table([one], now=0.0, colours=False)
    assert "`overnight read n`" not in render.table([{**one, "records": 3}], now=0.0, colours=False)


@pytest.mark.parametrize(
    ("healthy", "words"),
    [
        (True, "(not looked into, before any trouble)"),
        (False, "(not looked into, saved after the trouble began)"),
        (None, "(not looked into)"),
    ],
)
def test_what_is_known_of_a_checkpoint(healthy: bool | None, words: str) -> None:
    saved = {"step": 50, "path": "/c.pt", "valid": None, "healthy": healthy}
    assert f"step 50 /c.pt {words}" in flat(
        page.status_text(seen(state="running", checkpoint=saved), now=0.0, colours=False)
    )
