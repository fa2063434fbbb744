"""Overnight's own checkpoints, whole and damaged, of one run and of several."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from checkpoint_folders import own, safetensors, trainer
from overnight.checkpoint import Checkpointer
from overnight.checkpoint import manifest as manifests
from overnight.checkpoint import newest as newest_good
from overnight.checkpoint.manifest import FileFacts
from overnight.inspector import choosing, walk
from overnight.inspector.findings import Budget, Found
from overnight.sweep import each


def look(path: Path, budget: int | None = None) -> Found:
    found = walk.look(path, Budget(budget))
    assert found is not None
    assert found.maker == "overnight"
    return found


def newest(folder: Path) -> str | None:
    found = choosing.newest(choosing.with_owner(walk.survey(folder, Budget(), each).found))
    return None if found is None else Path(found.path).name


def test_a_whole_one(tmp_path: Path) -> None:
    found = look(own(tmp_path, 50, generation=2))
    assert (found.complete, found.intact, found.finite, found.healthy) == (True, True, True, True)
    assert (found.step, found.order, found.values["run"]) == (50, (2, 50), "r1")
    assert found.saved_at == datetime(2026, 11, 30, 2, 0, 50, tzinfo=UTC).timestamp()


def test_beyond_the_budget_its_content_is_unknown(tmp_path: Path) -> None:
    found = look(own(tmp_path, 50), 10)
    assert (found.complete, found.intact) == (True, None)


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.json", "MANIFEST.json"])
def test_every_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    path = own(tmp_path, 50)
    whole = (path / name).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        (path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = look(path)
        if name == "MANIFEST.json" and whole[at : at + 1].isspace():
            continue  # between two values, where a space means nothing
        assert found.intact is False, at
        assert name in str(found.problem)


@pytest.mark.parametrize("name", ["model.safetensors", "train_state.json", "MANIFEST.json"])
def test_every_truncation_is_found(tmp_path: Path, name: str) -> None:
    path = own(tmp_path, 50)
    whole = (path / name).read_bytes()
    for length in range(0, len(whole) - 1, max(1, len(whole) // 40)):
        (path / name).write_bytes(whole[:length])
        found = look(path, 0)
        assert False in (found.intact, found.complete), length


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = own(tmp_path, 50)
    (path / "model.safetensors").unlink()
    assert look(path).complete is False
    assert "model.safetensors" in str(look(path).problem)


def test_nan_is_told_with_the_tensor(tmp_path: Path) -> None:
    path = own(tmp_path, 50, weights=[1.0, float("nan")], finite=False, healthy=False)
    found = look(path)
    assert (found.intact, found.finite, found.healthy) == (True, False, False)
    assert "wte.weight" in str(found.problem)


def test_a_damaged_newest_gives_way_to_the_one_before(tmp_path: Path) -> None:
    own(tmp_path, 50)
    path = own(tmp_path, 100)
    assert newest(tmp_path) == "step-00000100"
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 64
    (path / "model.safetensors").write_bytes(data)
    assert newest(tmp_path) == "step-00000050"


def test_a_higher_step_of_an_older_run_does_not_count(tmp_path: Path) -> None:
    """Row C2-07."""
    trainer(tmp_path, 1000)
    own(tmp_path, 900, run="old", number=1, saved_at="2026-11-29T02:00:00.000Z")
    own(tmp_path, 10, run="new", number=2, saved_at="2026-11-30T02:00:00.000Z")
    own(tmp_path, 20, run="new", number=2, saved_at="2026-11-30T02:00:01.000Z")
    assert newest(tmp_path) == "step-00000020"


def test_a_run_that_went_back_goes_on_from_its_new_past(tmp_path: Path) -> None:
    own(tmp_path, 300)
    own(tmp_path, 200, generation=1)
    assert newest(tmp_path) == "step-00000200"


def test_a_manifest_cannot_reach_outside(tmp_path: Path) -> None:
    safetensors(tmp_path / "secret.safetensors")
    path = own(tmp_path, 50)
    known = manifests.read(path)
    facts = {"../secret.safetensors": FileFacts(size=1, xxh3_128="0")}
    (path / manifests.NAME).write_bytes(manifests.dump(replace(known, files=facts)))
    assert look(path).intact is False


def test_what_was_left_behind_is_not_the_newest(tmp_path: Path) -> None:
    """The library and the inspector agree about a run that was taken back to an older checkpoint."""
    np = pytest.importorskip("numpy")

    def train(last: int, resume: Path | bool = True) -> None:
        with Checkpointer(tmp_path, every=10, keep_last=None, async_=False, resume=resume, w=np.ones(2)) as ckpt:
            list(ckpt.steps(last))

    train(50)
    train(30, resume=tmp_path / "step-00000020")
    survey = choosing.with_owner(walk.survey(tmp_path, Budget(), each).found)
    steps = [one.step for one in choosing.newest_first(survey)]
    assert steps == [30, 20, 10, 50, 40]
    next(tmp_path.glob("step-00000030/train_state*")).unlink()
    top = choosing.newest(choosing.with_owner(walk.survey(tmp_path, Budget(), each).found))
    assert top is not None
    assert Path(top.path) == newest_good(tmp_path) == tmp_path / "step-00000020"
