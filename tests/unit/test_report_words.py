"""The sentences of the report: one on how it went, and what to look at next, each with its evidence."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.report.advice import innermost, next_steps
from overnight.report.words import sentence


def value(**changes: Any) -> dict[str, Any]:
    """Return a report value of a run that finished well, with changes: a dict changes only what it names."""
    found: dict[str, Any] = {
        "made_at": "2026-11-30T07:00:00.000Z",
        "kind": "run",
        "name": "night",
        "outcome": {"state": "finished", "cause": "completed", "text": "reached step 5000 of 5000"},
        "log": {"path": "/runs/night/output.log", "bytes": 100, "why": "the reader read 500 lines"},
        "times": {"elapsed_s": 25920.0, "active_s": 25000.0},
        "progress": {"step": 5000, "steps": 5000, "records": 500, "loss_last": 2.31},
        "goodput": {"goodput": 0.96, "wall_s": 25920.0, "productive_s": 24883.0},
        "attempts": [attempt(1)],
        "timeline": [],
        "resumes": [],
        "rollbacks": [],
        "checkpoint": None,
        "checkpoints": [],
        "saves": {"count": 0, "seconds": 0.0},
        "proofs": [],
        "notes": [],
        "charts": [],
        "unknown": {},
    }
    for name, change in changes.items():
        found[name] = {**(found[name] or {}), **change} if isinstance(change, dict) else change
    return found


def attempt(n: int, text: str | None = None) -> dict[str, Any]:
    return {"n": n, "cause_text": text, "state_words": "finished"}


def verdict(rule: str, step: int | None = 60, severity: str = "critical", **more: Any) -> dict[str, Any]:
    found = {"kind": "verdict", "severity": severity, "rule": rule, "step": step, "text": f"{rule} at step {step}"}
    return {**found, "offset": 2004, "line": "step: 60, loss: nan", **more}


def test_a_night_that_went_well() -> None:
    said = sentence(value(attempts=[attempt(1, "fell"), attempt(2)]))
    assert said == (
        "ran 7 h 12 min, finished all 5,000 steps with loss 2.31 after 1 restart; 96% of the time was training."
    )
    assert next_steps(value(), {}) == ["nothing to do: nothing in it asks for a look"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (
            {"state": "stopped", "cause": "nonfinite", "text": "loss is NaN at step 60"},
            "ran 7 h 12 min, then the rule nonfinite ended it: loss is NaN at step 60",
        ),
        (
            {"state": "stopped", "cause": "user", "text": "stopped on request"},
            "was stopped on request at step 60 of 5,000",
        ),
        ({"state": "stopped", "cause": "wall_clock", "text": "8 h are over"}, "its limit of time ended it at step 60"),
        (
            {"state": "gave_up", "cause": "crash", "text": "no further"},
            "and gave up after 1 attempt at step 60 of 5,000: no",
        ),
        ({"state": "failed", "cause": "out_of_memory_gpu", "text": "CUDA out of memory"}, "failed (out of memory gpu)"),
        ({"state": "running", "cause": None, "text": None}, "still running after 7 h 12 min at step 60 of 5,000"),
        ({"state": "backoff", "cause": "crash", "text": "exited with code 1"}, "between two attempts after 7 h 12 min"),
        ({"state": "pending", "cause": None, "text": None}, "not started yet, as of 2026-11-30T07:00:00.000Z"),
        ({"state": "damaged", "cause": None, "text": "status.json is odd"}, "its run folder is damaged"),
        ({"state": "unknown", "cause": None, "text": None}, "500 progress lines read, up to step 60 of 5,000"),
        ({"state": "finished", "cause": "bad_teardown", "text": "reached, then SIGSEGV"}, "fell after its last step"),
    ],
)
def test_every_outcome_is_one_sentence(outcome: dict[str, Any], said: str) -> None:
    found = sentence(value(outcome=outcome, progress={"step": 60, "loss_last": "nan"}))
    assert said in found
    assert found.count(". ") == 0
    assert found.endswith(".")
    assert "None" not in found


def test_an_end_that_was_spoilt_is_no_plain_success() -> None:
    said = sentence(value(timeline=[verdict("nonfinite")]))
    assert "finished all 5,000 steps with loss 2.31, but nonfinite at step 60" in said


def test_of_a_log_only_what_it_says_is_said() -> None:
    ended = {"state": "finished", "cause": "completed", "text": "its log says that it came to its end"}
    untimed = {"elapsed_s": None, "active_s": None}
    said = sentence(value(kind="log", outcome=ended, times=untimed, goodput={"goodput": None}))
    assert said == "its log says that it came to its end at step 5,000 of 5,000 with loss 2.31."
    fell = {"state": "failed", "cause": "crash", "text": "its log ends with RuntimeError"}
    said = sentence(value(kind="log", outcome=fell, times=untimed, goodput={"goodput": None}))
    assert said == "failed (crash) at step 5,000 of 5,000: its log ends with RuntimeError."


def test_unknown_is_said_and_hooks_that_failed_are() -> None:
    nothing = value(
        outcome={"state": "unknown", "text": None},
        progress={"step": None, "steps": None, "records": None, "loss_last": None},
        goodput={"goodput": None},
        times={"elapsed_s": None, "active_s": None},
    )
    assert sentence(nothing) == "no line of it was read as progress, so nothing is known but its text."
    assert "1 hook failed (exited 1)" in sentence(value(), ["exited 1"])
    assert "did not get through (exited 1)" in next_steps(value(), {}, ["exited 1"])[0]


def test_a_nan_names_the_line_and_the_last_save_before_it() -> None:
    saves = [{"step": step, "path": f"/ck/{step}.pt", "at": None, "seconds": 1.0} for step in (25, 50, 60)]
    sick = value(outcome={"state": "stopped", "cause": "nonfinite"}, timeline=[verdict("nonfinite")], checkpoints=saves)
    spec = {"argv": ["python", "my train.py"], "resume_args": ["--resume", "auto"]}
    sick["progress"].update(loss_good=2.75, loss_good_step=59)
    line, good, why, save, back = next_steps(sick, spec)
    assert good == "the last loss before it that is a number is 2.75, at step 59"
    assert "not started again, because a restart alone does not mend a NaN" in why
    assert "byte 2,004 of /runs/night/output.log" in line
    assert "step: 60, loss: nan" in line
    assert "the last save from before step 60 is /ck/50.pt, of step 50" in save
    assert "overnight run --name night-again -- python 'my train.py' --resume auto" in save
    assert "in the way your script resumes" in next_steps(sick, {**spec, "resume_args": []})[-2]
    assert "`--action nonfinite=rollback`" in back
    late = value(timeline=[verdict("nonfinite", step=20)], checkpoints=saves)
    assert "no save from before step 20 was seen; the newest is /ck/60.pt" in next_steps(late, spec)[1]


def save(step: int, **marks: Any) -> dict[str, Any]:
    """Return a save that was looked into and is good, with other marks."""
    plain = {"valid": True, "finite": True, "healthy": True, "problem": None, "load_failure": None, "attempt": 1}
    return {"step": step, "path": f"/ck/{step}.pt", "at": None, "seconds": 1.0, **plain, **marks}


def test_after_a_nan_the_newest_good_checkpoint_is_named_with_the_whole_command() -> None:
    saves = [
        save(100), save(200), save(250, valid=False, problem="it is cut off"),
        save(300, finite=False, problem="NaN in it"), save(310, healthy=False),
    ]  # fmt: skip
    sick = value(
        outcome={"state": "stopped", "cause": "nonfinite"}, checkpoints=saves, checkpoint=saves[1],
        timeline=[verdict("nonfinite", step=305, attempt=1)],
    )  # fmt: skip
    spec = {"argv": ["python", "t.py"], "resume_args": ["--load", "{checkpoint}", "--from={checkpoint}"]}
    said = next_steps(sick, spec)
    (best,) = [one for one in said if "the newest healthy checkpoint whose content was checked is /ck/200.pt" in one]
    assert best.endswith(
        "/ck/200.pt, of step 200; go on with `overnight run --name night-again -- "
        "python t.py --load /ck/200.pt --from=/ck/200.pt`"
    )
    (newer,) = [one for one in said if "not to be used" in one]
    assert newer.startswith("3 newer saves are not to be used: /ck/310.pt, of step 310: unhealthy")
    assert "/ck/250.pt, of step 250: bad: it is cut off" in newer
    assert any("with `--action nonfinite=rollback` a run goes back by itself" in one for one in said)
    assert not any(
        "--action nonfinite=rollback" in one for one in next_steps(sick, {"actions": {"nonfinite": "rollback"}})
    )
    unseen = {**sick, "checkpoint": save(200, valid=None, finite=None)}
    assert any("/ck/200.pt, of step 200, and nobody has looked into it" in one for one in next_steps(unseen, spec))
    none_good = {**sick, "checkpoint": None, "checkpoints": saves[2:]}
    assert any("none of the 3 saves that were seen is good; the newest is /ck/310.pt" in one
               for one in next_steps(none_good, spec))  # fmt: skip


def resumed(attempt_: int, step: int | None, **more: Any) -> dict[str, Any]:
    path = None if step is None else f"/ck/{step}.pt"
    return {"attempt": attempt_, "step": step, "path": path, "rollback": None, "skip": [], "passed_over": [],
            "overlap": None, **more}  # fmt: skip


def test_a_trouble_that_a_rollback_has_mended_spoils_no_end() -> None:
    night = value(
        attempts=[attempt(1, "loss is NaN at step 60"), attempt(2)], checkpoints=[save(50)], checkpoint=save(50),
        timeline=[verdict("nonfinite", attempt=1)], resumes=[resumed(2, 50, rollback="nonfinite")],
        rollbacks=[{"attempt": 1, "rule": "nonfinite", "next_attempt": 2}],
    )  # fmt: skip
    assert sentence(night).startswith("ran 7 h 12 min, finished all 5,000 steps with loss 2.31 after 1 rollback; 96%")
    night["progress"].update(loss_good=2.75, loss_good_step=50)
    said = next_steps(night, {"actions": {"nonfinite": "rollback"}})
    assert not any("the last loss before it" in one for one in said)
    assert "after it attempt 2 went on from step 50, /ck/50.pt, taken back by the rule nonfinite" in said
    assert not any("newest healthy checkpoint" in one for one in said)
    more = {**night, "attempts": [attempt(1, "x"), attempt(2, "x"), attempt(3, "x"), attempt(4)]}
    assert "after 3 restarts, 1 of them rollbacks" in sentence(more)


def test_when_rollbacks_are_used_up_the_way_on_is_told() -> None:
    spikes = [verdict("spike", step=step, severity="warn", attempt=n) for n, step in ((1, 300), (2, 301), (3, 302))]
    saves = [save(250), save(300, attempt=3), save(320, attempt=3)]
    night = value(
        outcome={"state": "stopped", "cause": "spike", "text": "loss rose to 8 at step 302; 2 rollbacks used"},
        timeline=spikes, checkpoints=saves, checkpoint=saves[-1], resumes=[resumed(2, 250), resumed(3, 250)],
        rollbacks=[{"attempt": 1, "next_attempt": 2}, {"attempt": 2, "next_attempt": 3}],
    )  # fmt: skip
    said = next_steps(night, {"argv": ["t"], "resume_args": ["{checkpoint}"], "actions": {"spike": "rollback"}})
    # 320 is of the spike itself, which makes no save unhealthy
    assert any("the last save from before step 302 is /ck/300.pt" in one and "-- t /ck/300.pt`" in one for one in said)
    assert any("2 rollbacks did not mend it: `--rollback-steps R` goes further back" in one for one in said)


def test_an_attempt_that_was_not_the_same_and_a_save_that_cannot_be_loaded_are_named() -> None:
    other = {"compared": 10, "equal": 9, "text": None,
             "first_difference": {"step": 207, "metric": "loss", "before": 2.31, "after": 2.94}}  # fmt: skip
    night = value(
        checkpoints=[save(200), save(300, load_failure="KeyError: 'model'")], checkpoint=save(200),
        resumes=[resumed(2, 200, overlap=other), resumed(3, 200, overlap={**other, "equal": 10})],
    )  # fmt: skip
    said = next_steps(night, {})
    assert "/ck/300.pt, of step 300 could not be loaded (KeyError: 'model'); it is passed over" in said[0]
    (differs,) = [one for one in said if "did not do again" in one]
    assert "attempt 2 did not" in differs
    assert "9 of 10 steps equal, the first difference at step 207: loss 2.31 -> 2.94" in differs
    assert "`overnight verify-resume -- CMD`" in differs


def test_where_steps_are_counted_anew_a_save_is_told_by_its_time() -> None:
    saves = [{"step": n, "path": f"/ck/{n}.pt", "at": f"2026-11-30T0{n}:00:00Z", "seconds": 1.0} for n in (1, 2, 3)]
    nan = verdict("nonfinite", step=90, at="2026-11-30T02:30:00.000Z")
    progress = {"step": 90, "step_in_all": 390, "epoch": 3.0, "loss_good": 2.5, "loss_good_step": 380}
    found = next_steps(value(timeline=[nan], checkpoints=saves, progress=progress), {})
    assert "at total step 380" in found[1]
    assert found[2].startswith("the last save from before it is /ck/2.pt, of step 2")


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        ({"step": 150, "step_in_all": 600, "epoch": 4.0, "steps": None}, "at step 150 of epoch 4 (600 in all)"),
        ({"step": 150, "step_in_all": 600, "epoch": 4.0, "steps": 600}, "at step 150 of epoch 4 (600 of 600 in all)"),
        ({"step": 150, "step_in_all": 600, "epoch": None, "steps": None}, "at step 150 (600 in all)"),
        ({"step": 150, "step_in_all": None, "epoch": 0.4, "steps": 600}, "at step 150 of 600"),
    ],
)
def test_where_steps_are_counted_anew_both_counts_are_told(progress: dict[str, Any], said: str) -> None:
    ended = value(progress=progress, outcome={"state": "stopped", "cause": "user", "text": "asked for"})
    assert f"was stopped on request {said} with loss 2.31" in sentence(ended)


@pytest.mark.parametrize(
    ("cause", "flag"),
    [("wall_clock", "--max-hours H"), ("max_steps", "--max-steps N"), ("cost", "--max-cost X"), ("user", "")],
)
def test_after_a_limit_or_a_stop_the_way_on_is_told(cause: str, flag: str) -> None:
    saves = [{"step": 50, "path": "/ck/50.pt", "at": None, "seconds": 1.0}]
    ended = value(outcome={"state": "stopped", "cause": cause, "text": "x"}, checkpoints=saves)
    (said,) = next_steps(ended, {"argv": ["python", "t.py"], "resume_args": ["--resume"]})
    assert "the newest save that was seen is /ck/50.pt, of step 50" in said
    again = f"overnight run --name night-again {flag} -- python t.py --resume".replace("  ", " ")
    assert again in said
    assert (f"with a higher limit (`{flag}`)" in said) == bool(flag)
    assert "no save of it was seen" in next_steps({**ended, "checkpoints": []}, {})[0]
    good = {**ended, "checkpoints": [save(50), save(60, valid=False, problem="cut off")], "checkpoint": save(50)}
    first, second, *_ = next_steps(good, {"argv": ["python", "t.py"], "resume_args": ["--resume"]})
    assert "the newest healthy checkpoint whose content was checked is /ck/50.pt, of step 50" in first
    assert again in first
    assert second == "1 newer save is not to be used: /ck/60.pt, of step 60: bad: cut off"
    bad = {**ended, "checkpoints": [save(60, valid=False, problem="cut off")], "checkpoint": None}
    assert "no good save was seen; the newest is /ck/60.pt, of step 60: bad: cut off" in next_steps(bad, {})[0]


def test_of_evaluations_alone_it_is_said_that_only_they_were_read() -> None:
    log = {"bytes": 9, "why": "only evaluations were read, and its program is not known"}
    found = value(kind="log", outcome={"state": "unknown", "text": None}, log=log,
                  progress={"records": None, "eval": {"last": 2.7}, "step": None})  # fmt: skip
    assert sentence(found).startswith("only evaluations were read, so nothing is known of the loss between them")
    assert next_steps(found, {})[0].startswith("only evaluations were read, so a NaN between them would not have been")


SUMMARY = """\
12 python (parent 1): train.py:40 in step
13 python (parent 12): no Python frame could be read
14 python (parent 12): loader.py:7 in fetch
"""


def test_a_stall_names_the_innermost_frame_and_the_file() -> None:
    assert innermost(SUMMARY) == "loader.py:7 in fetch"
    assert innermost("nothing of use") is None
    proofs = [{"name": "stall-1/summary.txt", "path": "/runs/night/evidence/stall-1/summary.txt", "text": SUMMARY}]
    hung = value(timeline=[verdict("stall", severity="warn", offset=None)], proofs=proofs)
    assert "it hung in loader.py:7 in fetch: /runs/night/evidence/stall-1/summary.txt" in next_steps(hung, {})[0]


@pytest.mark.parametrize(
    ("state", "cause", "said"),
    [
        ("failed", "out_of_memory_gpu", "it ran out of memory: because"),
        ("failed", "disk_full", "make room on the disk"),
        ("failed", "import_error", "would fail in the same way"),
        ("failed", "crash", "because; see `overnight logs night -n 40`"),
        ("gave_up", "crash", "no further in spite of restarts"),
        ("failed", "host_rebooted", "started without --recover"),
    ],
)
def test_failures_say_what_to_do(state: str, cause: str, said: str) -> None:
    found = next_steps(value(outcome={"state": state, "cause": cause, "text": "because"}), {})
    assert said in found[0]


def chart(name: str, high: list[float]) -> dict[str, Any]:
    return {"name": name, "x": list(range(1, len(high) + 1)), "low": high, "high": high, "nonfinite": []}


def test_a_learning_rate_that_rises_to_the_end_is_seen() -> None:
    rising = [step * 1e-5 for step in range(1, 41)]
    assert "learning rate was still rising at the end" in next_steps(value(charts=[chart("lr", rising)]), {})[0]
    late = rising + [4e-4 - step * 1e-5 for step in range(20)]
    assert "the warm-up covers most of the run" in next_steps(value(charts=[chart("lr", late)]), {})[0]
    for healthy in ([3e-4] * 40, rising[:10] + [1e-4] * 60, rising[::-1]):
        assert "nothing to do" in next_steps(value(charts=[chart("lr", healthy)]), {})[0]


def test_a_loss_that_still_falls_is_seen() -> None:
    falling = [4.0 * 0.98**step for step in range(100)]
    assert "the loss was still falling at the end" in next_steps(value(charts=[chart("loss", falling)]), {})[0]
    flat = [4.0 * 0.9**step + 2.0 for step in range(100)]
    assert "nothing to do" in next_steps(value(charts=[chart("loss", flat)]), {})[0]
    stopped = value(outcome={"state": "stopped", "cause": "user"}, charts=[chart("loss", falling)])
    assert "falling" not in next_steps(stopped, {})[0]


def test_low_goodput_says_where_the_time_went() -> None:
    low = value(
        goodput={
            "goodput": 0.5, "wall_s": 10_000.0, "productive_s": 5000.0, "lost_s": 3000.0, "redone_steps": 300,
            "restart_s": 1000.0, "unfinished_s": 0.0,
        },
        saves={"count": 4, "seconds": 600.0},
    )  # fmt: skip
    said = next_steps(low, {})[0]
    assert said == (
        "only 50% of the time was training: 50 min went into 300 steps that were done again, "
        "16 min 40 s passed until the first step after a restart, 10 min were saves (4 seen), "
        "6 min 40 s was none of these (start, data, evaluations)"
    )
    assert "nothing" in next_steps(value(goodput={"goodput": 0.5, "wall_s": 10.0, "productive_s": 5.0}), {})[0]


def test_restarts_are_told_with_their_cause() -> None:
    tries = [attempt(1, "exited with code 1"), attempt(2, "exited with code 1"), attempt(3)]
    assert "2 times, each time because it exited with code 1" in next_steps(value(attempts=tries), {})[0]


def test_no_reader_is_said_with_the_way_to_one() -> None:
    unread = value(
        progress={"records": None, "step": None}, log={"why": "no reader fits; it looks like a log of Keras"}
    )
    said = next_steps(unread, {})[0]
    assert "a NaN would not have been seen" in said
    assert "looks like a log of Keras" in said
    assert "overnight read /runs/night/output.log" in said


def test_a_log_that_stood_still_is_sent_to_where_its_times_are_judged() -> None:
    slow = {"goodput": 0.357, "wall_s": 5600.0, "productive_s": 2000.0, "redone_steps": 0, "lost_s": 0.0}
    log = value(kind="log", goodput={**value()["goodput"], **slow})
    (said,) = [one for one in next_steps(log, {}) if one.startswith("only ")]
    assert f"`overnight replay {log['log']['path']}` says whether it stood still, and where" in said
    (said,) = [one for one in next_steps({**log, "kind": "run"}, {}) if one.startswith("only ")]
    assert "replay" not in said
