"""What a run's facts tell of its saves: which are healthy, which is the newest good one, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.resumption.known import GONE, MOST, SPARE, KnownSave, SavesBook, Spot, lineage, whole


def saved(step: int | None, *, attempt: int = 1, segment: int = 0, path: str = "", **more: Any) -> dict[str, Any]:
    at = more.pop("epoch", 1000.0 * attempt + (step or 0))
    path = path or f"/out/a{attempt}-{step}.pt"
    return {
        "fact": "saved", "seconds": 0.5, "path": path, "step": step, "epoch": at, "attempt": attempt,
        "segment": segment, **more,
    }  # fmt: skip


def checked(path: str, valid: bool | None, **more: Any) -> dict[str, Any]:
    return {
        "fact": "checked", "path": path, "valid": valid, "finite": None, "problem": None, "maker": "torch",
        "check_s": 0.1, **more,
    }  # fmt: skip


def sick(step: int | None, *, attempt: int = 1, segment: int = 0, **more: Any) -> dict[str, Any]:
    return {"fact": "sick", "attempt": attempt, "segment": segment, "step": step, **more}


def resume(attempt: int, step: int | None, *, path: str | None = "/out/x.pt", rollback: str | None = None) -> Any:
    return {"fact": "resume", "attempt": attempt, "path": path, "step": step, "rollback": rollback}


def book(*facts: dict[str, Any]) -> SavesBook:
    made = SavesBook()
    for fact in facts:
        made.recall(fact)
    return SavesBook(made.state())  # what another process is told is all there is to know


def good(made: SavesBook) -> int | None:
    found = made.newest_good()
    return None if found is None else found.step


def of(made: SavesBook, path: str) -> KnownSave:
    found = made.of(path)
    assert found is not None
    return found


# -- what is known against a save ------------------------------------------------------------------------------------


def test_the_newest_that_was_looked_at_counts_before_one_that_was_not() -> None:
    facts = [saved(100), saved(200), saved(300)]
    assert good(book(*facts)) == 300
    assert good(book(*facts, checked("/out/a1-200.pt", True))) == 200
    assert good(book(*facts, checked("/out/a1-300.pt", False))) == 200
    assert good(book()) is None


def test_what_has_a_form_that_nobody_can_check_is_usable() -> None:
    made = book(saved(100), checked("/out/a1-100.pt", None, problem="it is not of a form that can be checked"))
    assert good(made) == 100
    assert made.unchecked() == []


def test_saves_from_the_first_trouble_of_their_segment_on_are_unhealthy() -> None:
    made = book(saved(200), saved(250), saved(300), sick(250), checked("/out/a1-300.pt", True))
    assert [made.healthy(one) for one in made.saves] == [True, False, False]
    assert good(made) == 200


def test_an_unhealthy_save_never_displaces_a_healthy_one_whichever_was_looked_at() -> None:
    made = book(saved(200), sick(250), *(saved(step) for step in range(300, 300 + MOST + 50)))
    assert MOST <= len(made.saves) <= MOST + SPARE
    assert good(made) == 200


def test_trouble_is_of_one_segment_and_of_one_attempt_only() -> None:
    made = book(sick(50, segment=1), saved(100), saved(60, segment=1), saved(60, attempt=2), saved(55, segment=2))
    assert [made.healthy(one) for one in made.saves] == [True, False, True, True]


def test_the_first_trouble_counts_whatever_is_told_later() -> None:
    assert book(sick(250), sick(240), sick(400)).sick == {(1, 0): 240}


def test_without_a_step_only_the_time_can_tell() -> None:
    early, late = saved(None, path="/out/e.pt", epoch=5.0), saved(None, path="/out/l.pt", epoch=9.0)
    made = book(early, late)
    assert [made.healthy(one) for one in made.saves] == [True, True]
    made = book(early, late, sick(250, epoch=7.0))
    assert [made.healthy(one) for one in made.saves] == [True, None]
    found = made.newest_good()
    assert found is not None
    assert found.path == "/out/e.pt"
    assert book(early, sick(250)).newest_good() is None  # it may be poisoned


def test_trouble_of_an_unknown_step_leaves_what_was_saved_before() -> None:
    made = book(saved(100), sick(None), saved(110))
    assert [made.healthy(one) for one in made.saves] == [True, False]


def test_a_save_that_could_not_be_loaded_is_passed_over_until_it_is_saved_again() -> None:
    failure = {"fact": "load_failure", "attempt": 2, "path": "/out/a1-300.pt", "step": 300, "text": "it crashed"}
    made = book(saved(200), saved(300), checked("/out/a1-300.pt", True), failure)
    assert good(made) == 200
    assert of(made, "/out/a1-300.pt").load_failure == "it crashed"
    made.recall(saved(300))
    assert good(made) == 300


def test_a_path_saved_again_is_another_save() -> None:
    made = book(saved(100, path="/out/last.pt"), checked("/out/last.pt", False), saved(200, path="/out/last.pt"))
    assert [(one.step, one.valid) for one in made.saves] == [(200, None)]
    stale = checked("/out/last.pt", True, step=100, attempt=1)
    made.recall(stale)
    assert of(made, "/out/last.pt").valid is None
    made.recall({**stale, "step": 200})
    assert of(made, "/out/last.pt").valid is True


def test_what_was_removed_is_not_offered_and_keeps_what_was_known() -> None:
    made = book(saved(100), saved(200), checked("/out/a1-200.pt", True), checked("/out/a1-200.pt", True, problem=GONE))
    assert good(made) == 100
    assert of(made, "/out/a1-200.pt").valid is True


def test_a_rollback_leaves_behind_what_lies_beyond_it() -> None:
    made = book(saved(200), saved(300), sick(320), resume(2, 200, rollback="spike"), saved(210, attempt=2))
    assert [made.healthy(one) for one in made.saves] == [True, False, True]
    backoff = {"fact": "backoff", "attempt": 1, "rollback": {"rule": "spike", "before": 296}}
    made = book(saved(290), saved(300), backoff, saved(300, attempt=2))
    assert [made.healthy(one) for one in made.saves] == [True, False, True]
    assert book({**backoff, "rollback": {"before": None}}).left == []
    assert book({**backoff, "rollback": None}).left == []
    assert book(resume(2, None, path=None, rollback="nonfinite"), saved(5)).newest_good() is None


@pytest.mark.parametrize("change", [{"epoch": "nan"}, {"step": "x"}, {"path": 5}, {"seconds": None}, {"step": True}])
def test_an_edited_fact_changes_nothing(change: dict[str, Any]) -> None:
    made = book(saved(100))
    with pytest.raises((KeyError, TypeError, ValueError)):
        made.recall({**saved(200), **change})
    assert [one.step for one in made.saves] == [100]


@pytest.mark.parametrize("change", [{"valid": "yes"}, {"check_s": "inf"}, {"problem": 5}])
def test_an_edited_check_changes_nothing(change: dict[str, Any]) -> None:
    made = book(saved(100))
    with pytest.raises((KeyError, TypeError, ValueError)):
        made.recall({**checked("/out/a1-100.pt", True), **change})
    assert made.saves[0].valid is None


def test_a_silence_around_a_save_is_no_save() -> None:
    assert book({"fact": "saved", "seconds": 3.0, "path": None, "step": None, "epoch": 1.0}).saves == []


def test_a_journal_of_before_knows_neither_attempt_nor_segment() -> None:
    fact = saved(100)
    del fact["attempt"], fact["segment"]
    made = book(fact, sick(50))
    assert made.healthy(made.saves[0]) is True


def test_the_form_of_status() -> None:
    made = book(saved(250, epoch=0.5), sick(200))
    assert made.line(made.saves[0]) == {
        "step": 250, "path": "/out/a1-250.pt", "at": "1970-01-01T00:00:00.500Z", "seconds": 0.5, "valid": None,
        "healthy": False, "problem": None, "load_failure": None, "finite": None, "attempt": 1,
    }  # fmt: skip


def test_what_deepspeed_saves_within_trainers_folder_is_trainers_checkpoint() -> None:
    assert whole("/out/checkpoint-100/global_step100") == "/out/checkpoint-100"
    assert whole("/out/epoch_1/step_100") == "/out/epoch_1/step_100"
    made = book(saved(100, path="/out/checkpoint-100/global_step100"))
    made.recall(checked("/out/checkpoint-100", True))
    assert (made.saves[0].path, made.saves[0].valid) == ("/out/checkpoint-100", True)


def test_a_fellow_is_of_the_same_series_and_folder() -> None:
    made = book(saved(100, path="/out/ck_100.pt"), checked("/out/ck_100.pt", True))
    found = made.fellow("/out/ck_200.pt")
    assert found is not None
    assert found.step == 100
    assert made.fellow("/out/best_200.pt") is None
    assert made.fellow("/other/ck_200.pt") is None
    assert book(saved(1, path="/o/c1.pt"), checked("/o/c1.pt", True, maker=None)).fellow("/o/c2.pt") is None


# -- the order -------------------------------------------------------------------------------------------------------


def ordered(resumed: dict[int, int | None], *spots: tuple[int, int | None]) -> list[tuple[int, int | None]]:
    known = [Spot(attempt, 0, step, float(at)) for at, (attempt, step) in enumerate(spots)]
    return [spots[place] for place in lineage(known, resumed)]


def test_what_a_later_attempt_saved_beyond_its_start_overtakes_what_was_there() -> None:
    spots = [(1, 100), (1, 200), (1, 300), (2, 210), (2, 220)]
    assert ordered({2: 200}, *reversed(spots)) == spots
    assert ordered({2: 200}, *spots[:3]) == spots[:3]


def test_what_began_anew_although_it_was_given_a_save_stands_below_what_is_further() -> None:
    assert ordered({2: 300}, (1, 100), (1, 300), (2, 50), (2, 100)) == [(2, 50), (1, 100), (2, 100), (1, 300)]
    assert ordered({2: 300}, (1, 300), (2, 250), (2, 310)) == [(2, 250), (1, 300), (2, 310)]


def test_what_was_told_to_begin_anew_overtakes_all() -> None:
    assert ordered({2: -1}, (2, 10), (1, 300)) == [(1, 300), (2, 10)]
    assert ordered({}, (2, 10), (1, 300)) == [(1, 300), (2, 10)]


def test_later_segments_come_after_earlier_ones_and_then_the_step_counts() -> None:
    spots = [Spot(1, 1, 50, 1.0), Spot(1, 0, 300, 9.0), Spot(1, 0, 200, 5.0), Spot(1, 1, 40, 7.0)]
    assert lineage(spots, {}) == [2, 1, 3, 0]


def test_where_a_step_is_unknown_the_time_orders_the_saves_of_an_attempt() -> None:
    assert lineage([Spot(1, 0, None, 3.0), Spot(1, 0, 10, 1.0), Spot(1, 0, 5, 2.0)], {}) == [1, 2, 0]


def test_a_rewound_run_goes_on_from_its_own_saves() -> None:
    facts = [saved(200), saved(300), resume(2, 200), saved(210, attempt=2)]
    assert good(book(*facts)) == 210
    assert good(book(*facts, *(checked(one["path"], True) for one in facts if one["fact"] == "saved"))) == 210
    assert good(book(*facts, checked("/out/a2-210.pt", False))) == 300
