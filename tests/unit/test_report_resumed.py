"""How a run went on, as its journal tells it: saves and what is known of them, resumes, rollbacks, and their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from overnight.report import goingon
from overnight.report.course import Course
from overnight.report.page import page
from overnight.report.resumed import Resumed, of_status, spans_of, went_on
from overnight.report.text import text
from overnight.resumption.known import GONE
from report_values import HOSTILE, hostile, rich

AT = "2026-11-29T23:00:00.000Z"
Fact = dict[str, Any]


def fact(kind: str, **details: Any) -> Fact:
    return {"at": AT, "fact": kind, **details}


def saved(step: int | None, *, attempt: int = 1, segment: int = 1, path: str | None = None, at: float = 0.0) -> Fact:
    path = f"/ck/{step}.pt" if path is None else path
    return fact(
        "saved", seconds=0.25, path=path, step=step, epoch=at or float(step or 1), attempt=attempt, segment=segment
    )


def checked(step: int, *, valid: bool | None = True, finite: bool | None = True, problem: str | None = None) -> Fact:
    return fact("checked", path=f"/ck/{step}.pt", step=step, attempt=1, valid=valid, finite=finite, problem=problem,
                maker="torch", check_s=0.1)  # fmt: skip


def resume(attempt: int, step: int | None, **more: Any) -> Fact:
    plain = {
        "path": None if step is None else f"/ck/{step}.pt", "step": step, "maker": "torch", "skip": [],
        "passed_over": [],
        "lost_steps": 0, "lost_s": None, "lost_cost": None, "rollback": None, "text": "x",
    }  # fmt: skip
    return fact("resume", attempt=attempt, **{**plain, **more})


def overlap(attempt: int, compared: int, equal: int, **more: Any) -> Fact:
    plain = {"since": 100, "first_difference": None, "text": None}
    return fact("overlap", attempt=attempt, compared=compared, equal=equal, **{**plain, **more})


def back(attempt: int, **more: Any) -> Fact:
    order = {"rule": "spike", "onset": 300, "before": 291, "last": 310, "skip": [291, 310], **more}
    return fact(
        "backoff", attempt=attempt, cause="spike", text="loss rose to 8", wait_s=2.0, until_s=9.0, rollback=order
    )


def known(*facts: Fact) -> Resumed:
    found = Resumed()
    for one in facts:
        found.take(one["fact"], one)
    return found


# -- saves -----------------------------------------------------------------------------------------------------------


def test_a_silence_around_a_save_is_no_save() -> None:
    quiet = fact("saved", seconds=30.0, path=None, step=None, epoch=5.0, attempt=1, segment=1)
    facts = [one for step in range(1, 11) for one in (saved(step), quiet)]
    found = known(*facts)
    assert (found.count, found.seconds) == (10, 2.5)
    assert [one["step"] for one in found.checkpoints()] == list(range(1, 11))
    saves = [one for one in Course(facts).timeline() if one["kind"] == "save"]
    assert len(saves) == 10


def test_saves_that_follow_fast_are_all_counted_and_one_path_is_shown_once() -> None:
    found = known(*(saved(step, path="/ck/last.pt", at=1 + step / 1000) for step in range(50)))
    assert found.count == 50
    (one,) = found.checkpoints()
    assert (one["step"], one["path"]) == (49, "/ck/last.pt")


def test_each_save_has_its_marks_and_the_newest_good_one_is_named() -> None:
    found = known(
        saved(100), checked(100), saved(200), checked(200, valid=False, problem="it is cut off"),
        saved(250), checked(250), saved(300), fact("sick", attempt=1, segment=1, step=260),
        checked(300, finite=False, problem="NaN in 2 tensors"),
        fact("load_failure", attempt=2, path="/ck/250.pt", step=250, text="KeyError: 'model'"),
    )  # fmt: skip
    marks = {one["step"]: goingon.mark(one) for one in found.checkpoints()}
    assert marks == {
        100: "checked, healthy",
        200: "bad: it is cut off",
        250: "could not be loaded: KeyError: 'model'",
        300: "bad: NaN in 2 tensors",
    }
    assert [goingon.bad(one) for one in found.checkpoints()] == [False, True, True, True]
    best = found.newest_good()
    assert best is not None
    assert (best["step"], best["valid"], best["finite"], best["healthy"], best["attempt"]) == (100, True, True, True, 1)
    assert set(best) == set(found.checkpoints()[0])


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ({}, "not checked"),
        ({"healthy": True}, "not checked, healthy"),
        ({"valid": True, "healthy": False}, "unhealthy: saved in trouble, or left behind by a rollback"),
        ({"valid": True, "healthy": True, "problem": GONE}, "checked, healthy, and not there any more"),
        ({"valid": False, "problem": GONE}, "bad, and not there any more"),
        (
            {"problem": "it is not of a form that can be checked"},
            "not checked: it is not of a form that can be checked",
        ),
    ],
)
def test_the_marks_of_a_save_in_words(marks: dict[str, Any], said: str) -> None:
    assert goingon.mark(marks) == said


def test_of_a_journal_that_does_not_say_who_saved_health_is_unknown() -> None:
    old = fact("saved", seconds=1.0, path="/ck/7.pt", step=7, epoch=7.0)
    (one,) = known(old).checkpoints()
    assert (one["healthy"], one["attempt"], one["valid"]) == (None, None, None)
    assert known(old).newest_good() == one


def test_where_the_journal_is_gone_the_status_knows_the_newest() -> None:
    shown = [
        {"step": 1, "path": "/ck/1", "at": AT, "seconds": 1.0, "valid": None, "healthy": True},
        None,
        {"step": 2},
        7,
    ]
    (one,) = of_status(shown)
    assert (one["path"], one["healthy"], one["load_failure"]) == ("/ck/1", True, None)
    assert of_status(None) == of_status("abc") == of_status(5) == []


# -- restarts --------------------------------------------------------------------------------------------------------


def test_a_restart_is_told_with_all_that_it_cost() -> None:
    passed = [{"path": f"/ck/{step}.pt", "step": step, "why": "bad: cut off"} for step in range(900, 200, -100)]
    found = known(
        resume(2, 100, lost_steps=150, lost_s=190.0, lost_cost=0.05, passed_over=passed),
        overlap(2, 10, 9, text="9/10, first difference 107: loss 2 -> 3",
                first_difference={"step": 107, "metric": "loss", "before": 2.0, "after": 3.0}),
        resume(3, 100, skip=[[291, 310], [7, 7]], rollback="spike", lost_steps=210),
        resume(4, None, lost_steps=None),
    )  # fmt: skip
    second, third, fourth = map(goingon.row, found.resumes())
    assert second.start == "from step 100, /ck/100.pt"
    assert second.passed[0] == "step 900, /ck/900.pt: bad: cut off"
    assert second.passed[-1] == "and 3 more"
    assert second.lost == "150 steps, 3 min 10 s, 0.05 of the cost"
    assert second.overlap == "9 of 10 steps equal, the first difference at step 107: loss 2 -> 3"
    assert third.start == "from step 100, /ck/100.pt, taken back by the rule spike"
    assert third.left_out == "steps 291 to 310, 7"
    assert (third.lost, third.overlap) == ("210 steps", "not compared")
    assert (fourth.start, fourth.lost, fourth.left_out) == ("from nothing: no save was known", "unknown", "")


def test_without_a_save_the_first_step_tells_whether_it_began_anew_and_what_was_lost() -> None:
    """116 -> 80 by a save of the script's own: 37 steps were lost, and not all 116; attempt 3 did begin anew."""
    told = known(
        resume(2, None, lost_steps=116, lost_s=58.0, lost_cost=1.16), resume(3, None, lost_steps=140, lost_s=70.0),
        resume(4, 100, lost_steps=20), resume(5, None, lost_steps=150, lost_s=75.0),
    ).resumes()  # fmt: skip
    second, third, fourth, fifth = went_on(told, {1: 1, 2: 80, 3: 1, 4: 90, 5: 110}, {5: 10}, step_s=None, folds=False)
    assert (second["anew"], second["first_step"], second["lost_steps"]) == (False, 80, 37)
    assert (second["lost_s"], second["lost_cost"]) == (pytest.approx(18.5), pytest.approx(0.37))
    quick = went_on(told, {1: 1, 2: 80}, {}, step_s=0.25, folds=False)[0]  # saves were in the time thought of
    assert (quick["lost_s"], quick["lost_cost"]) == (37 * 0.25, pytest.approx(1.16 * 37 * 0.25 / 58.0))
    assert (third["anew"], third["lost_steps"], third["lost_s"]) == (True, 140, 70.0)
    assert (fourth["anew"], fourth["first_step"], fourth["lost_steps"]) == (None, 90, 20)
    assert fifth["lost_steps"] == 150 - 100  # a line of each ten steps: its first one stood for 101 to 110
    assert [goingon.start(one) for one in (second, third, fifth)] == [
        "by itself, at step 80: no save was known",
        "from nothing: it began anew at step 1",
        "by itself, at step 110: no save was known",
    ]


def test_a_script_that_was_given_a_save_and_began_anew_has_lost_what_the_save_held() -> None:
    told = known(resume(2, 200, lost_steps=10, lost_s=5.0, lost_cost=0.1), resume(3, 300, lost_steps=0)).resumes()
    second, third = went_on(told, {1: 1, 2: 1, 3: 1}, {}, step_s=0.5, folds=False)
    assert (second["anew"], second["lost_steps"]) == (True, 210)
    assert (second["lost_s"], second["lost_cost"]) == (pytest.approx(105.0), pytest.approx(2.1))
    assert goingon.start(second).endswith("; but it began anew at step 1")
    assert (third["anew"], third["lost_steps"]) == (True, 300)
    for first, folds in ((201, False), (191, False), (1, True)):
        (other, _) = went_on(told, {1: 1, 2: first}, {}, step_s=0.5, folds=folds)
        assert (other["anew"], other["lost_steps"]) == (None, 10)


def test_where_steps_do_not_tell_nothing_is_said_of_them() -> None:
    told = known(resume(2, None, lost_steps=9, lost_s=4.5)).resumes()
    (folded,) = went_on(told, {1: 1, 2: 1}, {}, step_s=0.5, folds=True)
    assert (folded["anew"], folded["lost_steps"], folded["lost_s"]) == (None, None, None)
    (silent,) = went_on(told, {1: 1}, {}, step_s=0.5, folds=False)
    assert (silent["anew"], silent["first_step"], silent["lost_steps"]) == (None, None, 9)
    assert goingon.start(silent) == "from nothing: no save was known"


def test_steps_that_could_not_be_compared_are_not_said_to_have_been_done_once() -> None:
    assert goingon.overlap(None) == "not compared"
    anew = {"compared": 0, "equal": 0, "first_difference": None, "text": "it began anew at step 1"}
    assert goingon.overlap(anew) == "not compared (it began anew at step 1)"
    assert goingon.overlap({**anew, "text": None}) == "not compared (no step was done by both)"
    near = {"step": 80, "metric": "loss", "before": 1.3479871, "after": 1.3479872}
    assert goingon.overlap({"compared": 37, "equal": 0, "first_difference": near}) == (
        "none of 37 steps equal, the first difference at step 80: loss 1.3479871 -> 1.3479872"
    )


def test_a_resume_that_is_written_twice_counts_once_and_the_second_one_holds() -> None:
    found = known(resume(2, 300), resume(2, 200), overlap(2, 10, 10))
    (one,) = found.resumes()
    assert one["step"] == 200
    assert goingon.overlap(one["overlap"]) == "10 of 10 steps equal"


def test_a_rollback_is_told_and_what_came_of_it() -> None:
    found = known(back(1), resume(2, 250, rollback="spike", skip=[[291, 310]]), back(2))
    first, second = found.rollbacks()
    assert (first["attempt"], first["rule"], first["onset"], first["before"], first["last"], first["skip"]) == (
        1, "spike", 300, 291, 310, [291, 310],
    )  # fmt: skip
    assert (first["next_attempt"], second["next_attempt"]) == (2, None)
    texts = [one["text"] for one in Course([back(1), resume(2, 250, rollback="spike", skip=[[291, 310]])]).timeline()]
    assert texts == [
        "to be taken back in 2 s, to a save before step 291: spike from step 300 on; steps 291 to 310 to be left out",
        "attempt 2 goes on from step 250, /ck/250.pt, taken back by the rule spike; steps 291 to 310 left out",
    ]


def test_a_restart_that_is_no_rollback_is_told_as_ever() -> None:
    plain = fact("backoff", attempt=1, wait_s=2.0, rollback=None)
    assert [one["text"] for one in Course([plain]).timeline()] == ["to be started again in 2 s"]
    assert known(plain).rollbacks() == []


def test_the_course_tells_what_became_of_saves() -> None:
    facts = [
        fact("started", attempt=1, pid=7), saved(100), checked(100), fact("sick", attempt=1, segment=1, step=150),
        fact("attempt_ended", attempt=1, cause="crash", cause_text="fell", last_step=160), resume(2, 100),
        fact("started", attempt=2, pid=8),
        fact("load_failure", attempt=2, path="/ck/100.pt", step=100, text="KeyError"), overlap(2, 10, 10),
    ]  # fmt: skip
    found = Course(facts).timeline()
    assert [one["text"] for one in found] == [
        "attempt 1 began, pid 7", "a save was seen: /ck/100.pt", "a save was looked into: /ck/100.pt (checked)",
        "what attempt 1 saves from step 150 on is not healthy", "attempt 1 ended: fell",
        "attempt 2 goes on from step 100, /ck/100.pt", "attempt 2 began, pid 8",
        "attempt 2 could not load /ck/100.pt (KeyError); it is passed over from now on",
        "attempt 2 beside what was done before it: 10 of 10 steps equal",
    ]  # fmt: skip
    assert [one["severity"] for one in found if one["kind"] == "check"] == [None, None, "warn"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([291, 310], [[291, 310]]), ([[1, 2], [5, 9]], [[1, 2], [5, 9]]), ([], []), (None, []), ("ab", []), ([1], []),
        ([["a", 2]], []), ([1.5, 2], []), ([[1, 2, 3]], []), (7, []), ([True, False], []),
    ],
)  # fmt: skip
def test_ranges_of_steps_in_any_form(value: object, found: list[list[int]]) -> None:
    assert spans_of(value) == found


ODD = [
    fact("resume"), fact("resume", attempt="two", path=3), fact("overlap", attempt=2), fact("sick"), fact("checked"),
    fact("load_failure", path=5), fact("backoff", attempt=1, rollback={"rule": "spike"}), fact("backoff", rollback=3),
    resume(2, 100, passed_over=[None, {"path": None}, {"path": "/ck/9.pt"}], skip="x", lost_steps="many", maker=1),
    overlap(2, 10, 10, first_difference="what", text=7), fact("saved", path=5, seconds=1.0, epoch=1.0),
    fact("checked", path="/ck/1.pt", valid="yes"), back(1, before=None, skip=[1, "x"], onset="y"),
]  # fmt: skip


def test_edited_facts_are_passed_over_and_the_rest_is_told() -> None:
    course = Course([saved(1), *ODD, saved(2), fact("note", text="kept")])
    assert course.timeline()[-1]["text"] == "kept"
    assert [one["step"] for one in course.resumed.checkpoints()] == [1, 2]
    (one,) = course.resumed.resumes()
    assert (one["skip"], one["lost_steps"], one["maker"], len(one["passed_over"])) == ([], None, None, 1)
    assert goingon.row(one).passed == ("a step that is not known, /ck/9.pt: unknown",)


# -- on paper --------------------------------------------------------------------------------------------------------


def written(value: dict[str, Any], clean: Callable[[str], str] = str) -> str:
    return " ".join(text(value, clean=clean).split())


def test_both_forms_have_a_row_for_each_restart_and_the_marks_of_saves() -> None:
    value = rich()
    value.update(proofs=[], notes=[], times={**value["times"], "zone": None})
    for one in value["attempts"]:
        one["steps_in_all"] = None
    value["goodput"].update(unfinished_s=None)
    value["saves"] = {"count": 7, "seconds": 64.4}
    for chart in value["charts"]:
        chart["attempts"] = list(chart["attempts"])
    plain = written(value)
    assert "how it went on 2 from step 8,000, /home/me/projects/small-lm/ckpt/step-008000.pt" in plain
    assert "passed over: step 10,000, /home/me/projects/small-lm/ckpt/step-010000.pt: its content is damaged" in plain
    assert "lost: 20 steps, 10 s, 0.007 of the cost; left out: steps 14,011 to 14,021; beside" in plain
    assert "10 of 10 steps equal" in plain
    assert "(checked, healthy)" in plain
    assert "bad: NaN in 3 of 148 tensors" in plain
    drawn = page(value)
    for said in (
        "How it went on",
        "10 of 10 steps equal",
        "first difference at step 9,207",
        "to go on from: ",
        "could not be loaded: ",
    ):
        assert said in drawn
    assert "steps 14,011 to 14,021" in drawn


def test_no_restart_makes_no_section() -> None:
    value = rich()
    value["resumes"] = []
    assert "How it went on" not in page(value)


def test_hundreds_of_restarts_are_cut_and_counted() -> None:
    value = rich()
    value["resumes"] = [{**value["resumes"][0], "attempt": n} for n in range(2, 502)]
    assert "460 between the first 10 and the last 30 are left out." in page(value)


def test_what_stands_in_paths_and_reasons_becomes_no_markup() -> None:
    drawn = page(hostile(rich()))
    assert "How it went on" in drawn
    assert HOSTILE not in drawn
    assert "<img src=x" not in drawn
