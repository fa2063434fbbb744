"""An optimizer's state is one by what lies in it, under whatever name a script has put it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specimens import saved, trained  # noqa: E402 - it imports torch

from overnight.inspector import plain, walk  # noqa: E402
from overnight.inspector.findings import Budget  # noqa: E402
from overnight.inspector.joining import NO_OPTIMIZER  # noqa: E402


def notes(folder: Path, value: Any, name: str = "ckpt_5.pt") -> tuple[str, ...]:
    (folder / name).write_bytes(saved(value))
    found = walk._file(folder / name, Budget())
    assert found is not None
    assert found.problem is None
    return found.notes


@pytest.mark.parametrize("key", ["opt", "o", "adamw", "solver", "state"])
@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one], lambda one: {"main": one}])
def test_it_is_known_under_any_key(key: str, wrap: Any, tmp_path: Path) -> None:
    model, optimizer = trained()
    assert NO_OPTIMIZER not in notes(tmp_path, {"m": model.state_dict(), key: wrap(optimizer.state_dict()), "n": 5})


def test_one_that_keeps_nothing_for_each_weight_is_one(tmp_path: Path) -> None:
    model, _ = trained()
    plainest = torch.optim.SGD(model.parameters(), lr=0.1)
    assert NO_OPTIMIZER not in notes(tmp_path, {"m": model.state_dict(), "o": plainest.state_dict(), "n": 5})


@pytest.mark.parametrize("more", [{}, {"o": {"state": {}}}, {"s": {"last_epoch": 5, "_step_count": 6, "base_lrs": []}}])
def test_weights_without_one_are_still_called_so(more: dict[str, Any], tmp_path: Path) -> None:
    model, _ = trained()
    assert NO_OPTIMIZER in notes(tmp_path, {"m": model.state_dict(), "n": 5, **more})


def test_a_file_of_its_own_in_a_folder_counts(tmp_path: Path) -> None:
    model, optimizer = trained()
    (tmp_path / "o.pt").write_bytes(saved(optimizer.state_dict()))
    found = walk._file(tmp_path / "o.pt", Budget())
    assert found is not None
    assert plain.trains(found)
    (tmp_path / "m.pt").write_bytes(saved(model.state_dict()))
    found = walk._file(tmp_path / "m.pt", Budget())
    assert found is not None
    assert not plain.trains(found)


def test_a_scheduler_under_any_key_tells_the_step(tmp_path: Path) -> None:
    model, optimizer = trained()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    state = {**schedule.state_dict(), "last_epoch": 7, "_step_count": 8}
    (tmp_path / "a.pt").write_bytes(saved({"m": model.state_dict(), "s": state}))
    found = walk._file(tmp_path / "a.pt", Budget())
    assert found is not None
    assert found.step == 7
