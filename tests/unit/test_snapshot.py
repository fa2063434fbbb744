"""status.json: every field that is promised, unknown as null with a word, numbers in full."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from overnight.events import Exit, StopOrder, Verdict, jsonable
from overnight.folder import utc
from overnight.snapshot import FORMAT, SHOWN_VERDICTS, Saves, Used, build, verdict_line
from overnight.spec import RunSpec
from overnight.states import RunState
from overnight.wiring import make_monitor

AT = 1_767_261_600.0  # 2026-01-01 10:00 UTC
PROMISED = """name state cause cause_text attempt pid step loss loss_avg tokens_per_second tflops mfu mfu_avg
flops_per_token peak_flops peak_source convention params params_source devices started_at active_s eta_s log exit_code
signal verdicts supervisor
checkpoint saves resume rollbacks_used attempts engine elapsed_s cost cost_forecast limits restarts_used backoff_until
grad_norm_nonfinite hooks phase silent_s last_lines
mfu_clean mfu_wall mfu_trouble goodput tokens_per_second_clean tokens_per_second_wall useful_tokens_per_second hfu
convention_attention tokens_per_step tokens_source dtype gpu disagreements cost_per_billion_tokens gpus gpu_trouble
host sensors params_active""".split()
UNKNOWN_AT_FIRST = "step loss loss_avg dt tokens_per_second tokens_per_second_avg tflops mfu mfu_avg eta_s".split()


def snapshot(log: bytes = b"", *, asked: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """Return the snapshot of a run that has printed ``log``."""
    command = {"argv": ("python", "t.py"), "executable": "/bin/python", "cwd": "/tmp", "log": "/l"}
    spec = RunSpec(name="night", **command, **(asked or {}))
    monitor = make_monitor(spec, pytest.fail)
    monitor.begin_attempt(1)
    monitor.feed(log, AT)
    given: dict[str, Any] = {
        "state": RunState(state="running", attempt=1),
        "attempts": [{"n": 1, "pid": 77, "started_at": utc(AT)}],
        "verdicts": [],
        "created_at": AT - 1,
        "now": AT + 60,
        "used": Used(active_s=60.25, elapsed_s=61.0),
        "keepers": {"supervisor": 88},
        "saves": Saves(),
        "notes": [],
        "hooks": None,
        "engine": "local",
        "sensed": {"gpus": None, "gpu_trouble": None, "host": None, "sensors": {"gpu": None, "host": None}},
        **facts,
    }
    return build(spec=spec, monitor=monitor, **given)


def test_everything_promised_is_there() -> None:
    assert set(PROMISED) <= set(snapshot())
    assert snapshot()["format"] == FORMAT


def test_before_the_first_line_all_is_unknown_and_says_why() -> None:
    found = snapshot()
    for name in UNKNOWN_AT_FIRST:
        assert found[name] is None
        assert found["unknown"][name]
    assert set(found["unknown"]) <= set(found)  # each word stands for a field that is shown
    assert found["convention"] is None
    assert found["peak_source"] is None
    assert found["records"] == 0
    assert found["reader"] is None


def test_a_run_that_goes_on() -> None:
    log = b"".join(b"step: %d, loss: 3.0123456789, dt: 0.25\n" % step for step in range(1, 21))
    asked = {"params": 124_356_864, "tokens_per_step": 32768.0, "peak_tflops": 312.0, "steps": 100}
    found = snapshot(log, asked=asked)
    assert (found["state"], found["attempt"], found["pid"]) == ("running", 1, 77)
    assert (found["step"], found["steps"]) == (20, 100)
    assert found["loss"] == 3.0123456789
    assert found["tokens_per_second"] == 131072.0
    assert found["mfu_avg"] == pytest.approx(0.313456, abs=1e-6)  # a fraction
    assert (found["peak_flops"], found["peak_source"]) == (312e12, "--peak-tflops")
    assert (found["params"], found["params_source"], found["convention"]) == (124_356_864, "--params", "6N")
    assert found["flops_per_token"] == 6 * 124_356_864
    assert found["eta_s"] == pytest.approx(80 * 0.25)
    assert (found["active_s"], found["supervisor"], found["reader"]) == (60.25, {"pid": 88}, "keyvalue")
    assert [found[name] for name in ("cause", "cause_text", "ended_at", "exit_code", "signal", "code")] == [None] * 6
    assert (found["created_at"], found["updated_at"]) == ("2026-01-01T09:59:59.000Z", "2026-01-01T10:01:00.000Z")


def test_a_run_that_is_being_stopped_says_why_already() -> None:
    order = StopOrder(cause="nonfinite", save=False, at=AT, text="loss is NaN at step 21")
    found = snapshot(state=RunState(state="stopping", attempt=1, order=order))
    assert (found["cause"], found["cause_text"], found["code"]) == ("nonfinite", "loss is NaN at step 21", None)
    assert found["ended_at"] is None


@pytest.mark.parametrize(
    ("state", "cause", "how", "code"),
    [
        ("finished", "completed", Exit(exit_code=0), 0),
        ("stopped", "user", Exit(signal="SIGINT"), 103),
        ("stopped", "nonfinite", Exit(exit_code=1), 104),
        ("stopped", "wall_clock", Exit(exit_code=0), 105),
        ("failed", "crash", Exit(signal="SIGSEGV"), 100),
        ("failed", "unknown_kill", Exit(), 100),
    ],
)
def test_a_run_that_has_ended(state: Any, cause: str, how: Exit, code: int) -> None:
    order = StopOrder(cause="another", save=True, at=AT)
    over = RunState(state=state, attempt=1, cause=cause, cause_text="so it was", exit=how, order=order)
    found = snapshot(state=over)
    assert (found["state"], found["cause"], found["cause_text"], found["code"]) == (state, cause, "so it was", code)
    assert (found["exit_code"], found["signal"]) == (how.exit_code, how.signal)
    assert found["ended_at"] is not None


def test_a_run_that_never_started() -> None:
    found = snapshot(
        state=RunState(), attempts=[], created_at=None, used=Used(active_s=None, elapsed_s=0.0), keepers={}
    )
    assert [found[name] for name in ("attempt", "pid", "started_at", "created_at", "active_s")] == [None] * 5
    assert found["attempts"] == []
    assert found["supervisor"] == {"pid": None}


def test_the_latest_verdicts_are_shown_and_all_are_counted() -> None:
    steps = range(SHOWN_VERDICTS + 7)
    many = [Verdict(rule="r", severity="warn", action="alert", text="t", step=step, at=AT) for step in steps]
    found = snapshot(verdicts=many)
    assert found["verdict_count"] == SHOWN_VERDICTS + 7
    assert [one["step"] for one in found["verdicts"]] == list(range(7, SHOWN_VERDICTS + 7))


def test_a_verdict_as_it_is_shown() -> None:
    said = {"step": 3, "at": AT, "attempt": 2, "evidence": {"loss": 1.0}}
    assert verdict_line(Verdict(rule="r", severity="critical", action="stop", text="t", **said)) == {
        "rule": "r", "severity": "critical", "step": 3, "text": "t", "action": "stop",
        "at": "2026-01-01T10:00:00.000Z", "attempt": 2, "evidence": {"loss": 1.0},
    }  # fmt: skip
    assert verdict_line(Verdict(rule="r", severity="note", action="note", text="t"))["at"] is None


def test_a_nan_is_a_word_in_json_and_null_means_unknown() -> None:
    sick = Verdict(rule="nonfinite", severity="critical", action="stop", text="t", evidence={"loss": math.inf})
    found = snapshot(b"step: 1, loss: nan, dt: 0.25\n", verdicts=[sick])
    text = json.dumps(jsonable(found), allow_nan=False)
    assert json.loads(text)["loss"] == "nan"
    assert json.loads(text)["loss_avg"] is None
    assert json.loads(text)["verdicts"][0]["evidence"] == {"loss": "inf"}


def test_what_it_costs_and_will_cost() -> None:
    log = b"".join(b"step: %d, loss: 3.0, dt: 36\n" % step for step in range(1, 21))
    asked = {"price": 2.5, "max_cost": 40.0, "steps": 120, "max_hours": 8.0, "until": AT + 3600}
    found = snapshot(log, asked=asked, used=Used(active_s=700.0, elapsed_s=720.0))
    assert found["cost"] == pytest.approx(0.5)
    assert found["cost_forecast"] == pytest.approx(0.5 + 2.5)  # a hundred steps of 36 s are an hour
    assert found["limits"]["max_cost"] == 40.0
    assert found["limits"]["until"] == "2026-01-01T11:00:00.000Z"
    assert snapshot(log)["cost"] is snapshot(log)["cost_forecast"] is None


def test_a_back_off_says_when_it_is_over() -> None:
    waiting = RunState(state="backoff", attempt=1, restarts=1, cause="crash", cause_text="exited with code 7")
    found = snapshot(state=waiting, used=Used(active_s=9.0, elapsed_s=10.0, resume_in_s=5.0))
    assert found["backoff_until"] == utc(AT + 65)
    assert found["restarts_used"] == 1
    assert (found["cause"], found["cause_text"]) == ("crash", "exited with code 7")
    assert snapshot(used=Used(active_s=9.0, elapsed_s=10.0))["backoff_until"] is None


def test_an_attempt_that_began_anew_has_lost_what_its_save_held() -> None:
    resume = {
        "attempt": 2, "path": "/c/300", "step": 300, "maker": None, "skip": [], "lost_steps": 20, "lost_s": 0.4,
        "lost_cost": 0.1, "overlap": None,
    }  # fmt: skip
    log = b"".join(b"step %d loss 2.5 dt 0.02\n" % n for n in range(1, 30))
    tries = [{"n": 1, "first_step": 1, "last_step": 320}, {"n": 2, "first_step": 1, "last_step": 29}]
    told = snapshot(log, attempts=tries, saves=Saves(resume=resume))
    assert (told["resume"]["lost_steps"], told["resume"]["lost_s"]) == (320, pytest.approx(6.4))
    assert told["resume"]["lost_cost"] == pytest.approx(1.6)
    assert told["step_s"] == pytest.approx(0.02)
    went_on = [tries[0], {"n": 2, "first_step": 301, "last_step": 329}]
    for attempts in (went_on, [{"n": 2, "first_step": None}], [{"n": 2, "first_step": 46}], []):
        assert snapshot(log, attempts=attempts, saves=Saves(resume=resume))["resume"] == resume
    assert snapshot(log, saves=Saves(resume={"attempt": 2}))["resume"] == {"attempt": 2}  # of an older version
