"""When a script must not be let save in trouble: its next save would take the place of the last healthy ones."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.resumption.displacing import displaced
from overnight.resumption.known import SavesBook


def book(*saves: tuple[str, int], sick: int | None = None, maker: str = "torch") -> SavesBook:
    """Return a book of saves (name, step) of one attempt, all looked at and good; ``sick``: the first bad step."""
    found = SavesBook()
    for at, (name, step) in enumerate(saves):
        path = f"/ck/{name}"
        known: dict[str, Any] = {"path": path, "step": step, "attempt": 1}
        found.recall({"fact": "saved", "epoch": 1000.0 + at, "seconds": 1.0, "segment": 1, **known})
        found.recall(
            {"fact": "checked", "valid": True, "finite": True, "problem": None, "maker": maker, "check_s": 0.1, **known}
        )
    if sick is not None:
        found.recall({"fact": "sick", "attempt": 1, "segment": 1, "step": sick, "epoch": 2000.0})
    return found


def last(found: SavesBook, *gone: str) -> str | None:
    """Return the name of what is at risk, where some files are gone."""
    save = displaced(found, lambda path: path.rpartition("/")[2] not in gone)
    return None if save is None else save.path.rpartition("/")[2]


@pytest.mark.parametrize("name", ["ckpt.pt", "last.pth", "model_best.pt", "resnet50.pth"])
def test_the_only_file_without_a_number_is_written_over(name: str) -> None:
    assert last(book((name, 200), sick=250)) == name


def test_a_name_with_a_number_is_too_once_it_was_seen_to_be() -> None:
    assert last(book(("run_7.pt", 100), sick=250)) is None
    assert last(book(("run_7.pt", 100), ("run_7.pt", 200), sick=250)) == "run_7.pt"


ROTATION = [(f"step{step}.pt", step) for step in (100, 200, 300, 400)]
GONE = ("step100.pt", "step200.pt")


def test_of_a_rotation_the_oldest_goes_first() -> None:
    assert last(book(*ROTATION, sick=400), *GONE) == "step300.pt"
    assert last(book(*ROTATION, sick=450), *GONE) == "step400.pt", "a save may be going on just now"
    assert last(book(*ROTATION, sick=400)) is None, "none was ever removed"
    assert last(book(*ROTATION, ("step500.pt", 500), sick=550), *GONE) is None, "three healthy ones are enough"


def test_what_somebody_has_removed_makes_no_rotation() -> None:
    assert last(book(*ROTATION, sick=450), "step100.pt", "step300.pt") is None, "the second is there still"
    assert last(book(*ROTATION[:3], sick=350), "step100.pt") is None, "one may be removed by hand"
    assert last(book(*ROTATION[:3], sick=300), "step200.pt") is None


@pytest.mark.parametrize(
    "other",
    [
        [(f"run8-{step}.pt", step) for step in (10, 20, 30, 40)],  # of the same form but for a constant
        [(f"b{step}.pt", step) for step in (10, 20, 30, 40)],
    ],
)
def test_another_runs_rotation_is_not_this_ones(other: list[tuple[str, int]]) -> None:
    mine = [("run7-100.pt", 100), ("run7-200.pt", 200)]
    assert last(book(*other, *mine, sick=250), *(name for name, _ in other[:2])) is None
    assert last(book(*other, *mine, sick=250), *(name for name, _ in other)) is None


def test_what_is_of_a_step_beyond_this_run_is_another_runs() -> None:
    found = book(("model.pt", 20), ("run8_2000.pt", 2000), sick=25)
    there = {"/ck/model.pt", "/ck/run8_2000.pt"}
    at_risk = displaced(found, there.__contains__, reached=25)
    assert at_risk is not None
    assert at_risk.path == "/ck/model.pt"
    numbered = book(("step20.pt", 20), ("other.pt", 2000), sick=25)
    assert displaced(numbered, lambda _: True, reached=25) is None


@pytest.mark.parametrize(
    "names",
    [
        "checkpoint_{epoch}_{step}.pt", "epoch={epoch}-step={step}.ckpt", "e{epoch}_s{step:06}_loss{epoch}.25.pt",
        "run7-{step}.pt", "epoch_{epoch}.pt", "llama_2048_{step}.pt", "2026-01-0{epoch}_{step}.pt",
    ],
)  # fmt: skip
def test_rotations_of_many_names(names: str) -> None:
    saves = [(names.format(epoch=epoch, step=150 * epoch), 150 * epoch) for epoch in (1, 2, 3, 4)]
    assert last(book(*saves, sick=600), saves[0][0], saves[1][0]) == saves[2][0]
    assert last(book(*saves, sick=600)) is None


def test_some_files_that_are_all_written_over_leave_none() -> None:
    saves = [(name, 200) for name in ("model.pt", "ema.pt", "last.pt")]
    assert last(book(*saves, sick=250)) == "last.pt"
    assert last(book(*saves, ("step100.pt", 100), sick=250)) is None, "one that nothing takes the place of"


def test_there_is_nothing_to_spare_without_a_healthy_one() -> None:
    assert last(book(("ckpt.pt", 200), sick=100)) is None
    assert last(book(("ckpt.pt", 200)), "ckpt.pt") is None
    assert last(SavesBook()) is None


def test_the_library_saves_nothing_where_it_is_told_so() -> None:
    assert last(book(("step-00000200", 200), ("step-00000300", 300), maker="overnight", sick=250)) is None


def test_a_later_attempt_that_saves_the_same_step_again_is_no_overwriting() -> None:
    found = book(("step100.pt", 100))
    found.recall(
        {"fact": "saved", "path": "/ck/step100.pt", "step": 100, "epoch": 3000.0, "seconds": 1.0, "attempt": 2}
    )
    assert not found.again
