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


def test_of_a_rotation_the_oldest_goes_first() -> None:
    rotation = [("step100.pt", 100), ("step200.pt", 200), ("step300.pt", 300)]
    assert last(book(*rotation, sick=300), "step100.pt") == "step200.pt"
    assert last(book(*rotation, sick=350), "step100.pt") == "step300.pt", "a save may be going on just now"
    assert last(book(*rotation, sick=300)) is None, "none was ever removed"
    assert last(book(*rotation, ("step400.pt", 400), sick=450), "step100.pt") is None, "three healthy ones are enough"


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
