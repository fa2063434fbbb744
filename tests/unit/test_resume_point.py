"""What an attempt is given to go on from, what lies behind that and is lost, and what cannot fit into a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overnight.resumption.choice import Choice
from overnight.resumption.fitting import unfit
from overnight.resumption.point import Point, lost, sentence
from overnight.resumption.steering import steered
from overnight.spec import RunSpec


def spec(**more: Any) -> RunSpec:
    return RunSpec(**{"name": "r", "argv": ("python", "t.py"), "executable": "python", "cwd": "/", "log": "l", **more})


def chosen(path: str | None, step: int | None) -> Choice:
    return Choice(path=path, step=step, maker=None, passed_over=())


def test_the_place_of_the_save_is_filled_in() -> None:
    point = Point(path="/c/step 300", step=300, skip=((291, 320), (400, 410)))
    assert point.words(("--resume={checkpoint}", "--x", "{checkpoint}/model")) == [
        "--resume=/c/step 300", "--x", "/c/step 300/model",
    ]  # fmt: skip
    assert point.environment() == {"OVERNIGHT_CHECKPOINT": "/c/step 300", "OVERNIGHT_SKIP_STEPS": "291-320,400-410"}


def test_without_a_save_words_that_ask_for_one_are_left_out() -> None:
    assert Point().words(("--resume", "{checkpoint}")) == []
    assert Point().words(("--resume", "latest")) == ["--resume", "latest"]
    assert Point().environment() == {}


@pytest.mark.parametrize(
    ("path", "step", "last", "step_s", "expected"),
    [
        ("p", 200, 320, 2.0, (120, 240.0, 0.2)),
        ("p", 200, 320, None, (120, None, None)),
        ("p", None, 320, 2.0, (None, None, None)),
        (None, None, 320, 2.0, (320, 500.0, 500 / 3600 * 3)),
        ("p", 330, 320, 2.0, (0, 0.0, 0.0)),
        ("p", 200, None, 2.0, (None, None, None)),
    ],
)
def test_what_is_lost(
    path: str | None, step: int | None, last: int | None, step_s: float | None, expected: tuple[Any, Any, Any]
) -> None:
    found = lost(spec(price=3.0), last, chosen(path, step), step_s=step_s, used_s=500.0)
    assert (found["lost_steps"], found["lost_s"]) == expected[:2]
    assert found["lost_cost"] == (None if expected[2] is None else pytest.approx(expected[2]))


def test_it_is_said_in_one_sentence() -> None:
    fact = {
        "attempt": 3, "path": "/c/200", "step": 200, "lost_steps": 120, "lost_s": 240.0, "lost_cost": 0.2,
        "rollback": "spike", "skip": [[291, 320]],
        "passed_over": [{"path": "/c/300", "step": 300, "why": "it is damaged"}] * 4,
    }  # fmt: skip
    text = sentence(fact, price=3.0)
    assert text.startswith("attempt 3 goes on from step 200 (/c/200); 120 steps, about 240 s, 0.20 to be done again; ")
    assert "rolled back for spike; steps 291-320 are to be left out" in text
    assert text.endswith("passed over step 300: it is damaged; passed over step 300: it is damaged; and 2 more")
    anew = {**fact, "path": None, "step": None, "lost_steps": None, "rollback": None, "skip": [], "passed_over": []}
    assert sentence(anew) == "attempt 3 begins anew: there is no save to go on from"


def test_a_save_that_fits_is_no_matter() -> None:
    assert list(unfit(spec(), save_s=20.0, step_s=1.0)) == []
    assert list(unfit(spec(grace_s=1.0), save_s=None, step_s=1.0)) == []


@pytest.mark.parametrize(
    ("more", "part", "action"),
    [
        ({"grace_s": 60.0}, 1, "note"),
        ({"grace_s": 60.0, "grace_max_s": 60.0}, 0, "alert"),
        ({"max_hours": 0.04, "grace_s": 600.0}, 2, "alert"),
        ({"max_cost": 0.1, "price": 2.5, "grace_s": 600.0}, 3, "alert"),
    ],
)
def test_what_cannot_fit_is_said(more: dict[str, Any], part: int, action: str) -> None:
    ((found, asks, text),) = unfit(spec(**more), save_s=50.0, step_s=1.0)
    assert (found, asks) == (part, action)
    assert "a save takes 50 s" in text


def test_who_reads_the_variable_can_be_steered(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text("print(1)")
    here = {"cwd": str(tmp_path), "argv": ("python", "t.py")}
    assert not steered(spec(**here))
    assert steered(spec(**here, resume_args=("--from={checkpoint}",)))
    script.write_text("import os\nos.environ.get('OVERNIGHT_CHECKPOINT')")
    assert steered(spec(**here))
    assert steered(spec(cwd=str(tmp_path), argv=("sh", "-c", "train --resume $OVERNIGHT_CHECKPOINT")))
    (tmp_path / "pipe").mkdir()
    assert not steered(spec(cwd=str(tmp_path), argv=("python", "pipe", "missing", "")))


def test_steps_that_were_to_be_left_out_are_not_lost() -> None:
    skip = [[291, 305], [297, 311]]
    found = lost(spec(price=3.0), 317, chosen("p", 250), step_s=0.02, used_s=500.0, left_out=skip)
    assert (found["lost_steps"], found["lost_s"]) == (67 - 21, pytest.approx(0.92))
    for odd in (None, "x", [], [[1]], [[None, 2]], [["a", "b"]], [[1, 250]], [[318, 400]]):
        assert lost(spec(), 317, chosen("p", 250), step_s=1.0, used_s=500.0, left_out=odd)["lost_steps"] == 67
    assert lost(spec(), 260, chosen("p", 250), step_s=1.0, used_s=500.0, left_out=[[1, 999]])["lost_steps"] == 0
