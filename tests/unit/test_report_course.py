"""The course of a run from its journal: order, bounds, and facts that somebody edited."""

from __future__ import annotations

from typing import Any

from overnight.report.course import SHOWN, Course, attempts
from overnight.resumption.known import MOST

AT = "2026-11-29T23:00:00.000Z"


def fact(kind: str, **details: Any) -> dict[str, Any]:
    return {"at": AT, "fact": kind, **details}


def verdict(step: int, severity: str = "note") -> dict[str, Any]:
    return fact(
        "verdict", rule="spike", severity=severity, action="alert", text=f"spike at step {step}", step=step,
        attempt=1, source=0, offset=step * 10, epoch=1795993619.5,
    )  # fmt: skip


def test_what_follows_from_an_end_stands_behind_it() -> None:
    course = Course(
        [
            fact("started", attempt=1, pid=7),
            fact("backoff", attempt=1, wait_s=2.0),
            fact("attempt_ended", attempt=1, cause="crash", cause_text="fell", last_step=9),
            fact("started", attempt=2, pid=8),
            fact("ended", state="finished", cause="completed", text="done"),
            fact("attempt_ended", attempt=2, cause="completed", cause_text="done"),
        ]
    )
    assert [one["text"] for one in course.timeline()] == [
        "attempt 1 began, pid 7",
        "attempt 1 ended: fell",
        "to be started again in 2 s",
        "attempt 2 began, pid 8",
        "attempt 2 ended: done",
        "the run is over: finished (completed)",
    ]


def test_an_attempt_ends_before_the_run_whatever_is_told_between() -> None:
    course = Course(
        [
            fact("started", attempt=1, pid=7),
            fact("ended", state="failed", cause="crash", text="fell"),
            fact("leftovers", count=1, names=["python"]),
            fact("note", text="a note"),
            fact("attempt_ended", attempt=1, cause="crash", cause_text="fell", last_step=9),
        ]
    )
    assert [one["text"] for one in course.timeline()] == [
        "attempt 1 began, pid 7",
        "attempt 1 ended: fell",
        "the run is over: failed (crash)",
        "1 processes were left behind: python",
        "a note",
    ]


def test_a_verdict_keeps_its_place_and_its_moment() -> None:
    (one,) = Course([verdict(5, "critical")]).timeline()
    assert (one["severity"], one["rule"], one["step"], one["source"], one["offset"]) == ("critical", "spike", 5, 0, 50)
    assert one["at"] == "2026-11-29T23:06:59.500Z"
    (timed,) = Course([{**verdict(5), "offset": -1}]).timeline()
    assert timed["offset"] is None


def test_a_verdict_that_is_told_again_with_its_step_counts_once() -> None:
    early = {**verdict(5, "critical"), "step": None, "text": "loss is NaN on a line without a step", "part": 0}
    whole = {**early, "step": 350, "text": "loss is NaN at step 350", "epoch": 1795993621.5}
    course = Course([early, fact("stopping", cause="nonfinite", signal="SIGTERM"), whole, {**whole, "part": 1}])
    found = [one for one in course.timeline() if one["kind"] == "verdict"]
    assert [(one["text"], one["step"]) for one in found] == [("loss is NaN at step 350", 350)] * 2
    assert found[0]["at"] == "2026-11-29T23:06:59.500Z"  # when it was told first
    assert course.timeline()[0]["kind"] == "verdict"
    assert course.verdicts == 2


def test_what_was_asked_for_is_told_once_with_who_asked() -> None:
    course = Course(
        [
            {**fact("request", file="set-1", by="anna"), "kind": "set"},
            fact(
                "set", file="set-1", values={"max_hours": 12.0, "stall_s": None}, was={"max_hours": 8, "stall_s": 600}
            ),
            {**fact("request", file="note-1", by="anna"), "kind": "note"},
            fact("note", file="note-1", text="anna: looks well"),
            {**fact("request", file="stop-1", by="anna", now=True), "kind": "stop"},
        ]
    )
    assert [one["text"] for one in course.timeline()] == [
        "changed by anna: max_hours 8 h -> 12 h, stall_s 10 min -> none", "anna: looks well",
        "stop asked for by anna, at once",
    ]  # fmt: skip


def test_saves_and_hooks_in_plain_words() -> None:
    course = Course(
        [
            fact("saved", path="/ck/1", step=1, seconds=0.0, epoch=1.0),
            fact("saved", path="/ck/2", step=2, seconds=75.0, epoch=1.0),
            fact("hook_ended", key="event-000003-2", ok=True, text=""),
            fact("hook_ended", key="end-001-1", ok=True, text=""),
            fact("hook_ended", key="odd", ok=True, text=""),
        ]
    )
    assert [one["text"] for one in course.timeline()] == [
        "a save was seen: /ck/1", "a save was seen: /ck/2, which took 1 min 15 s",
        "--on-event hook 2 of event 3 ended well", "--on-end hook 1 ended well", "--on-event hook ended well",
    ]  # fmt: skip


def test_the_last_lines_of_an_attempt_show_each_bar_once() -> None:
    frames = [f"Epoch 1:  {n}%|█  | {n}/100 [00:01<00:09, loss=2.{n}]" for n in range(1, 9)]
    lines = ["step: 1, loss: 2.5", "step: 2, loss: 2.4", *frames, "Traceback (most recent call last):", "x"]
    course = Course([fact("started", attempt=1, pid=7), fact("attempt_ended", attempt=1, cause="crash", lines=lines)])
    assert attempts(course, [])[0]["lines"] == [*lines[:2], frames[-1], *lines[-2:]]


def test_a_long_night_is_bounded_and_says_what_is_left_out() -> None:
    facts = [fact("started", attempt=1, pid=7)]
    for step in range(1, 5001):
        facts += [verdict(step), fact("note", text=f"note {step}")]
        facts.append(fact("saved", path=f"/ck/{step}", step=step, seconds=1.0, epoch=1.0))
    facts += [verdict(9999, "critical"), fact("ended", state="stopped", cause="spike", text="x")]
    course = Course(facts)
    found = course.timeline()
    assert len(found) == SHOWN + 1
    assert found[0]["text"] == "attempt 1 began, pid 7"
    assert any(one["step"] == 9999 for one in found)
    assert any("the run is over" in one["text"] for one in found)
    left = 5000 * 3 + 3 - SHOWN
    assert found[-1]["text"].startswith(f"{left:,} more are left out here: ")
    kept = course.resumed.checkpoints()
    assert (course.resumed.count, course.resumed.seconds, len(kept)) == (5000, 5000.0, MOST)
    assert kept[-1]["path"] == "/ck/5000"
    assert course.verdicts == 5001


def test_edited_facts_are_passed_over() -> None:
    odd = [
        fact("started"), fact("verdict"), fact("saved", path="/x", seconds="long"), fact("set", values=3),
        fact("attempt_ended", attempt="one"), fact("ended"), fact("nobody knows this"), {"fact": "note"},
        fact("stopping", pids=4),
    ]  # fmt: skip
    assert Course([*odd, fact("note", text="kept")]).timeline()[-1]["text"] == "kept"


def test_attempts_are_told_by_status_and_journal_together() -> None:
    course = Course(
        [
            fact("started", attempt=1, pid=7),
            fact("attempt_ended", attempt=1, cause="crash", cause_text="fell", seconds=3.5, lines=["Traceback", "x"]),
            fact("started", attempt=2, pid=8),
        ]
    )
    shown = [{"n": 1, "started_at": AT, "first_step": 1, "last_step": 9}, {"n": 2, "started_at": AT}]
    first, second = attempts(course, shown)
    assert (first["state_words"], first["seconds"], first["lines"], first["last_step"]) == (
        "crash", 3.5, ["Traceback", "x"], 9,
    )  # fmt: skip
    assert (second["state_words"], second["cause"], second["seconds"]) == ("going on", None, None)
    assert [one["n"] for one in attempts(course, [])] == [1, 2]


def test_a_reboot_and_hooks() -> None:
    course = Course(
        [
            fact("clock", elapsed_s=0.0),
            fact("ended", state="failed", cause="host_rebooted", text="x"),
            fact("recovered", boot_id="b", attempt=1),
            fact("clock", elapsed_s=60.0),
            fact("hook_ended", key="end-001-1", ok=False, text="exited 1"),
            fact("hook_ended", key="end-001-2", ok=True, text=""),
        ]
    )
    assert course.ended is None
    assert course.boots == 2
    assert course.hooks_failed == ["exited 1"]
    texts = [one["text"] for one in course.timeline()]
    assert "the machine was started anew; 1 min used until then" in texts
