"""Which save a run goes on from: findings on the disk joined with what the facts know. No file is opened."""

from __future__ import annotations

from typing import Any

import pytest
from test_saves_known import book, checked, resume, saved, sick

from overnight.inspector import choosing
from overnight.inspector.findings import Found
from overnight.inspector.joining import ONLY_OPTIMIZER
from overnight.resumption.choice import Wanted, of_book, order, ranked
from overnight.resumption.known import GONE, SavesBook

ATTEMPTS = Wanted(attempts=((1, 1000.0, 1900.0), (2, 2000.0, None)), first=1000)


def found(name: str, step: int | None = None, *, at: float | None = None, **more: Any) -> Found:
    about = {"maker": "torch", "complete": True, "step": step, "size_bytes": 10, "saved_at": at, **more}
    return Found(path=f"/out/{name}", **about)


def seen(step: int | None, attempt: int = 1, **more: Any) -> Found:
    """What the fact ``saved(step, attempt=attempt)`` is about."""
    return found(f"a{attempt}-{step}.pt", step, at=1000.0 * attempt + (step or 0), **more)


def names(several: list[Found], known: SavesBook, wanted: Wanted = ATTEMPTS) -> list[str]:
    return [one.path.removeprefix("/out/") for one in order(several, known, wanted)[0]]


def why(several: list[Found], known: SavesBook, wanted: Wanted = ATTEMPTS) -> dict[str, str]:
    return {one.path.removeprefix("/out/"): one.kind for one in order(several, known, wanted)[1]}


def test_newest_first_by_the_history_of_the_run() -> None:
    known = book(saved(100), saved(200), saved(300), resume(2, 200), saved(210, attempt=2))
    several = [seen(100), seen(200), seen(300), seen(210, 2)]
    assert names(several, known) == ["a2-210.pt", "a1-300.pt", "a1-200.pt", "a1-100.pt"]


def test_after_a_rollback_what_lay_beyond_it_is_left() -> None:
    known = book(saved(200), saved(300), resume(2, 200, rollback="spike"))
    assert names([seen(200), seen(300)], known) == ["a1-200.pt"]
    assert why([seen(200), seen(300)], known) == {"a1-300.pt": "unhealthy"}


def test_after_a_failed_load_what_lies_beyond_may_be_used_but_not_what_failed() -> None:
    failure = {"fact": "load_failure", "attempt": 2, "path": "/out/a1-300.pt", "step": 300, "text": "it crashed"}
    known = book(saved(200), saved(250), saved(300), failure, resume(2, 200))
    several = [seen(200), seen(250), seen(300)]
    assert names(several, known) == ["a1-250.pt", "a1-200.pt"]
    assert why(several, known) == {"a1-300.pt": "load_failure"}
    assert "it crashed" in order(several, known, ATTEMPTS)[1][0].why


def test_trouble_excludes_what_was_saved_in_it() -> None:
    known = book(saved(200), saved(300), sick(250), checked("/out/a1-300.pt", True))
    several = [seen(200), seen(300)]
    assert names(several, known) == ["a1-200.pt"]
    assert "step 250" in order(several, known, ATTEMPTS)[1][0].why


def test_a_rollback_wants_one_of_an_earlier_step() -> None:
    known = book(saved(200), saved(290), saved(None))
    wanted = Wanted(before=290, attempts=ATTEMPTS.attempts)
    several = [seen(200), seen(290), seen(None)]
    assert names(several, known, wanted) == ["a1-200.pt"]
    assert set(why(several, known, wanted).values()) == {"too_late"}


def test_what_nobody_saw_belongs_to_the_attempt_in_whose_time_it_was_written() -> None:
    known = book(sick(250, segment=3))
    several = [found("x.pt", 240, at=1100.0), found("y.pt", 260, at=1200.0), found("z.pt", 260, at=2100.0)]
    assert names(several, known) == ["z.pt", "x.pt"]
    assert why(several, known) == {"y.pt": "unhealthy"}
    between = found("w.pt", 270, at=1950.0)  # a writer may outlive its training
    assert why([between], known) == {"w.pt": "unhealthy"}
    assert why([found("v.pt", 270)], book(sick(250, attempt=2))) == {"v.pt": "unhealthy"}  # of an unknown time


def test_what_was_there_before_the_run_is_healthy_and_comes_last() -> None:
    known = book(sick(50), saved(10))
    old = [found("old_900.pt", 900, at=500.0), found("old_800.pt", 800, at=600.0)]
    assert names([*old, seen(10)], known) == ["a1-10.pt", "old_900.pt", "old_800.pt"]
    assert names(old, known, Wanted(attempts=ATTEMPTS.attempts, first=801)) == ["old_800.pt"]
    assert why(old, known, Wanted(attempts=ATTEMPTS.attempts, first=1)) == {}
    assert names(old, known, Wanted(attempts=ATTEMPTS.attempts)) == [], "nobody knows where the run began"
    assert names([found("pretrained.pt", at=500.0)], known) == []


def test_a_file_written_again_unseen_is_no_longer_what_was_known() -> None:
    known = book(saved(100), sick(150), checked("/out/a1-100.pt", True))
    assert why([found("a1-100.pt", 180, at=1500.0)], known) == {"a1-100.pt": "unhealthy"}
    known = book(saved(100), checked("/out/a1-100.pt", False))
    assert names([found("a1-100.pt", 180, at=1500.0)], known) == ["a1-100.pt"]


def test_a_file_written_again_a_moment_later_is_of_the_step_that_lies_in_it() -> None:
    """An only file that is written over while no supervisor lives: what was known of it is an older step."""
    known = book(saved(100))
    written = order([found("a1-100.pt", 120, at=1102.0)], known, ATTEMPTS)[0]
    assert [one.step for one in written] == [120]
    assert [one.step for one in order([found("a1-100.pt", at=1102.0)], known, ATTEMPTS)[0]] == [100], "nothing tells"
    assert [one.step for one in order([found("a1-100.pt", 99, at=1100.1)], known, ATTEMPTS)[0]] == [100]
    assert why([found("a1-100.pt", 120, at=1102.0)], book(saved(100), sick(110))) == {"a1-100.pt": "unhealthy"}


def test_what_the_structure_tells_is_passed_over_with_its_reason() -> None:
    several = [seen(100), seen(200, complete=False, problem="cut off"), seen(300, finite=False)]
    known = book(saved(100), saved(200), saved(300))
    assert names(several, known) == ["a1-100.pt"]
    assert why(several, known) == {"a1-300.pt": "nonfinite", "a1-200.pt": "damaged"}
    assert order(several, known, ATTEMPTS)[1][1].why == "cut off"


def test_what_was_found_to_be_bad_is_not_read_again() -> None:
    known = book(saved(100), saved(200), checked("/out/a1-200.pt", False, problem="cut off"))
    assert why([seen(100), seen(200)], known) == {"a1-200.pt": "damaged"}


def test_unknown_forms_come_behind_what_can_be_checked_and_before_what_was_there() -> None:
    strange = {"maker": "unknown", "complete": None, "problem": "x is no file of torch.save"}
    known = book(saved(100), saved(200), saved(300, path="/out/t-300.txt"))
    several = [seen(100), found("t-300.txt", at=1300.0, **strange), found("old.pt", 5, at=1.0)]
    assert names(several, known) == ["a1-100.pt", "t-300.txt", "old.pt"]
    assert [one.told for one in ranked(several, known, ATTEMPTS)] == [True, False, True]
    assert names([found("t-400.txt", at=1400.0, **strange)], known) == []  # nobody saw it being saved
    empty = found("t-300.txt", at=1300.0, maker="unknown", complete=False, size_bytes=0, problem="t is empty")
    assert why([empty], known) == {"t-300.txt": "damaged"}


def test_one_of_a_series_that_has_lost_its_form_is_damaged() -> None:
    known = book(saved(100, path="/out/ck_100.pt"), checked("/out/ck_100.pt", True), saved(200, path="/out/ck_200.pt"))
    broken = found("ck_200.pt", at=1200.0, maker="unknown", complete=None, problem="ck_200.pt is no file of torch.save")
    assert why([broken], known) == {"ck_200.pt": "damaged"}


def test_what_cannot_be_read_is_said_and_is_no_damage() -> None:
    closed = found("a1-100.pt", at=1100.0, maker="torch", complete=None, problem="a1-100.pt cannot be read: denied")
    assert why([closed], book(saved(100))) == {"a1-100.pt": "unreadable"}


def ours(step: int, generation: int, **more: Any) -> Found:
    about = {"maker": "overnight", "order": (generation, step), "values": {"run": "r1", "number": 1}, **more}
    return found(f"step-{step:08d}.{generation}", step, **about)


def test_of_our_own_the_manifests_order_counts() -> None:
    several = choosing.with_owner([ours(300, 0, at=1900.0), ours(210, 1, at=1200.0), ours(250, 0, at=1300.0)])
    assert names(several, book()) == ["step-00000210.1", "step-00000300.0", "step-00000250.0"]
    unhealthy = [*several, *choosing.with_owner([ours(220, 1, healthy=False)])]
    assert why(unhealthy, book()) == {"step-00000220.1": "unhealthy"}


def test_of_our_own_one_that_lost_its_manifest_is_told_in_its_place() -> None:
    lost = found("step-00000400", 400, maker="overnight", complete=False, problem="MANIFEST.json missing", at=1400.0)
    every = ranked(choosing.with_owner([ours(300, 0, at=1300.0), lost]), book(), ATTEMPTS)
    assert [one.step for one in every] == [400, 300]
    assert [one.passed is None for one in every] == [False, True]


def test_parts_and_what_lies_beside_checkpoints_are_no_saves() -> None:
    assert names([seen(100, notes=(ONLY_OPTIMIZER,))], book(saved(100))) == []


def test_files_saved_together_share_what_was_seen_of_one() -> None:
    known = book(saved(200, path="/out/opt_200.pt"), sick(150))
    assert why([found("model.pt", at=1199.9)], known) == {"model.pt": "unhealthy"}
    known = book(saved(200, path="/out/opt_200.pt"))
    assert [one.step for one in ranked([found("model.pt", at=1199.9)], known, ATTEMPTS)] == [200]


@pytest.mark.parametrize("extra", ["best.pt", "ema_200.pt"])
def test_of_two_at_one_step_the_plain_one_is_preferred(extra: str) -> None:
    known = book(saved(200, path="/out/ck_200.pt"))
    several = [found(extra, 200, at=1200.0), found("ck_200.pt", 200, at=1200.0)]
    assert names(several, known)[0] == "ck_200.pt"


def test_a_lone_number_is_no_step_where_its_series_counts_something_else() -> None:
    known = book(saved(3000, path="/out/m_3.pt"), sick(3500))
    assert why([found("m_4.pt", at=1950.0)], known) == {"m_4.pt": "unhealthy"}
    assert names([found("m_2.pt", at=1100.0)], book(sick(3500))) == ["m_2.pt"]


def test_where_others_save_too_only_what_was_seen_and_what_is_like_it_counts() -> None:
    known = book(saved(10, path="/out/run7-10.bin"), saved(20, path="/out/run7-20.bin"))
    several = [found(f"run7-{step}.bin", step, at=1000.0 + step) for step in (10, 20, 30)]
    others = [found("run8-2000.bin", 2000, at=1100.0), found("best.bin", 40, at=1100.0), found("run6-9.bin", 9, at=1.0)]
    elsewhere = Wanted(attempts=ATTEMPTS.attempts, first=1000, own=("/work", "/disk/work"))
    assert names([*others, *several], known, elsewhere) == ["run7-30.bin", "run7-20.bin", "run7-10.bin"]
    assert why([*others, *several], known, elsewhere) == {}
    for own in ("/", "/out", "/out/"):
        inside = Wanted(attempts=ATTEMPTS.attempts, first=1000, own=("/work", own))
        assert names([*others, *several], known, inside)[0] == "run8-2000.bin", "in its own folder all is its own"
    written = [found("step-00000040", 40, at=1300.0, maker="overnight", own=True)]
    assert names(written, known, elsewhere) == ["step-00000040"]


def test_what_is_in_doubt_stays_a_last_resort() -> None:
    mixed = seen(200, problem="optimizer.pt is of step 10")
    known = book(saved(100), saved(200), checked("/out/a1-200.pt", False, problem="optimizer.pt is of step 10"))
    assert [one.doubtful for one in order([seen(100), mixed], known, ATTEMPTS)[0]] == [mixed.problem, None]


def test_from_the_facts_alone() -> None:
    known = book(
        saved(100), saved(200), saved(300), saved(400), checked("/out/a1-400.pt", True, problem=GONE),
        checked("/out/a1-300.pt", False, problem="cut off"),
    )  # fmt: skip
    choice = of_book(known, ATTEMPTS, "not looked at")
    assert (choice.path, choice.step, choice.notes) == ("/out/a1-200.pt", 200, ("not looked at",))
    assert [(one.step, one.kind) for one in choice.passed_over] == [(300, "damaged")]
    assert of_book(known, Wanted(before=200), "").step == 100
    assert of_book(book(), ATTEMPTS, "").path is None
