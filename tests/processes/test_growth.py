"""Which growing files a stop takes for a save: told by the files that this very process holds open, at given times."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from overnight.saves.growth import Growth


class Night:
    """A stop whose training is this process."""

    def __init__(self, folder: Path) -> None:
        self.growth = Growth(str(folder / "output.log"))

    def look(self) -> bool:
        """Look once more; return whether a save was seen to grow since the look before."""
        return self.growth.look({os.getpid()})


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def begin(opened: contextlib.ExitStack, path: Path) -> BinaryIO:
    path.parent.mkdir(exist_ok=True)
    return opened.enter_context(path.open("wb", buffering=0))


@pytest.mark.parametrize("name", ["final", "weights_last", "model.pt", "checkpoints/data"])
def test_a_file_begun_in_the_stop_is_a_save_for_as_long_as_it_grows(
    night: Night, opened: contextlib.ExitStack, tmp_path: Path, name: str
) -> None:
    assert not night.look()
    file = begin(opened, tmp_path / name)
    for _ in range(4):
        file.write(b"x" * 100)
        assert night.look()
    assert not night.look(), "it has stopped growing"


@pytest.mark.parametrize(
    ("name", "counts"),
    [("step_900/rank0", True), ("model.safetensors.tmp", True), ("last", False), ("cache.db", False), ("a.log", False)],
)
def test_a_file_that_was_open_before_the_stop_is_told_by_its_name(
    night: Night, opened: contextlib.ExitStack, tmp_path: Path, name: str, *, counts: bool
) -> None:
    file = begin(opened, tmp_path / name)
    assert not night.look()
    for _ in range(3):
        file.write(b"x" * 100)
        assert night.look() is counts


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log", "events.out.tfevents.1", "output.log", "loss.csv"])
def test_a_log_begun_in_the_stop_is_no_save(
    night: Night, opened: contextlib.ExitStack, tmp_path: Path, name: str
) -> None:
    assert not night.look()
    file = begin(opened, tmp_path / name)
    for _ in range(3):
        file.write(b"x" * 100)
        assert not night.look()
