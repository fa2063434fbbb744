"""Folders that only the log names: what in them is of this run, and which are nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overnight.saves.elsewhere import MOST, Elsewhere, is_common


def heard(*paths: Path) -> Elsewhere:
    found = Elsewhere()
    for path in paths:
        found.hear(str(path))
    return found


def test_another_runs_files_in_the_same_folder_are_not_this_ones(tmp_path: Path) -> None:
    found = heard(tmp_path / "run7-10.bin")
    assert found.owns(str(tmp_path / "run7-10.bin"))
    assert not found.owns(str(tmp_path / "run8-2000.bin"))
    assert not found.owns(str(tmp_path / "run7-20.bin")), "only a second name says which number counts"
    found.hear(str(tmp_path / "run7-20.bin"))
    assert found.owns(str(tmp_path / "run7-30.bin"))
    assert found.owns(str(tmp_path / "run7-30.bin.tmp"))
    assert found.owns(str(tmp_path / ".tmp-run7-30.bin"))
    assert not found.owns(str(tmp_path / "run8-30.bin"))
    assert found.owns("/elsewhere/run8-30.bin"), "it is asked about these folders only"


def test_a_folder_that_is_named_itself_is_the_runs(tmp_path: Path) -> None:
    (tmp_path / "ckpts").mkdir()
    found = heard(tmp_path / "ckpts")
    assert found.owns(str(tmp_path / "ckpts/anything.pt"))
    assert found.owns(str(tmp_path / "ckpts/deep/anything.pt"))
    assert found.of(str(tmp_path / "ckpts/deep")) == str(tmp_path / "ckpts")
    assert found.of(str(tmp_path)) is None


@pytest.mark.parametrize("inside", ["", "model.safetensors", "global_step20/mp_rank_00_model_states.pt"])
def test_a_file_of_a_checkpoint_leads_to_the_folder_that_it_lies_in(tmp_path: Path, inside: str) -> None:
    folder, path, news = Elsewhere().hear(str(tmp_path / "checkpoint-20" / inside).rstrip("/")) or ("", "", False)
    assert (folder, path, news) == (str(tmp_path), str(tmp_path / "checkpoint-20"), True)
    found = heard(tmp_path / "checkpoint-20" / inside)
    assert found.owns(str(tmp_path / "checkpoint-40/optimizer.pt"))
    assert not found.owns(str(tmp_path / "other-40/optimizer.pt"))


def test_of_what_is_known_nothing_is_news_and_folders_are_bounded(tmp_path: Path) -> None:
    found = Elsewhere()
    told = [found.hear(str(tmp_path / f"step_{number}.pt")) for number in (10, 20)]
    assert [one[2] for one in told if one] == [True, False]
    for number in range(2 * MOST):
        found.hear(str(tmp_path / f"f{number}" / "step_1.pt"))
    assert len(found.folders) == MOST
    assert found.hear(str(tmp_path / "step_30.pt")) is not None


@pytest.mark.parametrize(
    "path",
    ["/tmp/model.pt", "/", "/tmp", "/home/me/trace.pt", "/scratch/iter_30.pth", "/mnt/step_1/model.pt", "~/a.pt"],
)
def test_nobody_is_led_to_where_everybodys_files_lie(path: str) -> None:
    found = Elsewhere().hear(os.path.expanduser(path))
    assert found is None or found[0] == "/mnt/step_1"


def test_a_home_is_common_and_what_lies_in_it_is_not() -> None:
    assert is_common("/home/me")
    assert is_common(os.path.expanduser("~"))
    assert not is_common("/home/me/runs")
    assert not is_common("/checkpoints")
