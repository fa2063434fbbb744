"""What a training script sees of the library: the loop, resuming, refusals, and what is said."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="what is trained here are arrays of numpy")

from overnight.checkpoint import (  # noqa: E402 - numpy first
    Checkpointer,
    CheckpointError,
    LockedError,
    SaveError,
    UsageError,
    load,
    newest,
)

Make = Callable[..., Checkpointer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a Checkpointer that saves in this process."""

    def made(**given: Any) -> Checkpointer:
        return Checkpointer(tmp_path / "saved", **{"every": 2, "async_": False, "w": np.zeros(3), **given})

    return made


def steps(folder: Path) -> list[int]:
    return sorted(load(path).step for path in folder.glob("saved/step-*"))


def test_it_counts_from_one_and_goes_on_where_it_was(make: Make, tmp_path: Path) -> None:
    w = np.zeros(3)
    with make(w=w) as ckpt:
        assert ckpt.resumed_from is None
        for step in ckpt.steps(3):
            w += step
    assert steps(tmp_path) == [2, 3]
    w = np.zeros(3)
    with make(w=w) as ckpt:
        assert ckpt.resumed_from == tmp_path / "saved" / "step-00000003"
        assert (ckpt.step, w.tolist()) == (3, [6.0] * 3)
        assert list(ckpt.steps(5)) == [4, 5]
        assert list(ckpt.steps(5)) == []


def test_plain_values_are_in_values(make: Make) -> None:
    with make(best=9.5, names=("a", 1), counts={"seen": 0}, half=np.float32(0.5)) as ckpt:
        for step in ckpt.steps(2):
            ckpt.values["best"] = 10.0 - step
    counts = {"seen": 3}
    with make(best=9.5, names=(), counts=counts, half=np.float32(0)) as ckpt:
        assert ckpt.values == {"best": 8.0, "names": ("a", 1), "half": np.float32(0.5)}
        assert counts == {"seen": 0}


def test_an_object_with_its_own_state(make: Make) -> None:
    class Counter:
        n = 0

        def state_dict(self) -> dict[str, int]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.n = state["n"]

    first, second = Counter(), Counter()
    with make(counters=[first]) as ckpt:
        for _ in ckpt.steps(2):
            first.n += 5
    with make(counters=[second]):
        assert second.n == 10


def test_a_generator_goes_on_where_it_was(make: Make) -> None:
    rng = np.random.default_rng(1)
    with make(noise=rng) as ckpt:
        for _ in ckpt.steps(2):
            rng.random()
    then = rng.random(4).tolist()
    rng = np.random.default_rng(2)
    with make(noise=rng) as ckpt:
        for _ in ckpt.steps(3):
            assert rng.random(4).tolist() == then


def test_an_order_to_stop_ends_at_the_boundary(make: Make, tmp_path: Path) -> None:
    with make(every=None) as ckpt:
        for step in ckpt.steps(9):
            if step == 3:
                ckpt.stop()
        assert ckpt.step == 3
        assert ckpt.stopped is None
    assert steps(tmp_path) == [3]


def test_stop_at_and_steps_to_leave_out(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OVERNIGHT_STOP_AT", "6")
    monkeypatch.setenv("OVERNIGHT_SKIP_STEPS", "2-3,5")
    with make(loader=list(range(10))) as ckpt:
        seen = [(step, next(ckpt.loader)) for step in ckpt.steps(9)]
    assert seen == [(1, 0), (4, 3), (6, 5)]
    assert 6 in steps(tmp_path)


def test_an_error_in_a_step_saves_nothing_of_it(make: Make, tmp_path: Path) -> None:
    def train() -> None:
        with make() as ckpt:
            for step in ckpt.steps(9):
                assert step / (3 - step)

    with pytest.raises(ZeroDivisionError):
        train()
    assert steps(tmp_path) == [2]
    with make() as ckpt:
        assert ckpt.step == 2


def test_a_loop_that_is_left_keeps_the_last_boundary(make: Make, tmp_path: Path) -> None:
    with make() as ckpt:
        for step in ckpt.steps(9):
            if step == 5:
                break
        with pytest.raises(UsageError, match="left within step 5"):
            ckpt.save()
    assert steps(tmp_path) == [2, 4]


def test_a_save_that_is_asked_for_is_made_at_the_end_of_the_step(make: Make, tmp_path: Path) -> None:
    with make(every=None) as ckpt:
        for step in ckpt.steps(5):
            if step == 3:
                ckpt.save()
                assert steps(tmp_path) == []
    assert steps(tmp_path) == [3, 5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": -1}, "keep_last"),
        ({"keep_last": "abc"}, "keep_last"),
        ({"keep_last": True}, "keep_last"),
        ({"keep_best": 1}, "metric"),
        ({"keep_every": 0}, "keep_every"),
        ({"mode": "least"}, "mode"),
        ({"every": 0}, "every"),
        ({"every": "abc"}, "every"),
        ({"overhead": 2}, "overhead"),
        ({"rng": 1}, "rng"),
        ({"lost": None}, "lost"),
        ({"thing": object()}, "thing"),
        ({"deep": {"er": [object()]}}, "deep.er.0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_happens(
    make: Make, given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        make(**given)
    assert not (tmp_path / "saved").exists()


def test_a_state_that_only_code_could_read_is_told_at_the_first_save(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    class Sly:
        def state_dict(self) -> dict[str, Any]:
            return {"deep": [lambda: 0]}

        def load_state_dict(self, state: Any) -> None:
            pass

    with make(sly=Sly()) as ckpt, pytest.raises(CheckpointError, match=r"sly\.deep\.0 holds a builtins\.function"):
        next(ckpt.steps(3))


def test_another_model_is_refused_and_nothing_is_lost(make: Make, tmp_path: Path) -> None:
    with make() as ckpt:
        list(ckpt.steps(2))
    with pytest.raises(CheckpointError, match="another model"), make(w=np.zeros(4)):
        pass
    with make() as ckpt:  # the folder is free again
        assert ckpt.step == 2


def test_a_second_one_is_refused(make: Make) -> None:
    with make(), pytest.raises(LockedError, match=str(os.getpid())), make():
        pass


def test_changed_settings_are_named_and_strict_refuses(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with make(config={"lr": 0.1, "steps": 10}) as ckpt:
        list(ckpt.steps(2))
    capsys.readouterr()
    with make(config={"lr": 0.1, "steps": 20}):
        assert "changed since step 2: config: steps 10 -> 20" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="steps 10 -> 20"), make(config={"lr": 0.1, "steps": 20}, strict=True):
        pass
    with make(config={"lr": 0.1, "steps": 10}, strict=True):
        pass


def test_metrics_of_the_interval_are_in_the_manifest(make: Make, tmp_path: Path) -> None:
    with make(metric="val", keep_last=1) as ckpt:
        for step in ckpt.steps(6):
            ckpt.report(step, loss=1.0 / step, **({"val": 7.0 - step} if step == 3 else {}))
    assert load(tmp_path / "saved").manifest.metrics == {"loss": 1 / 6}
    assert steps(tmp_path) == [4, 6]
    assert load(tmp_path / "saved" / "step-00000004").manifest.metrics["val"] == 4.0


def test_a_loss_that_is_no_number_makes_a_save_unhealthy(make: Make, tmp_path: Path) -> None:
    w = np.zeros(3)
    with make(w=w, keep_last=2) as ckpt:
        for step in ckpt.steps(10):
            if step > 5:
                w[1] = np.nan
            ckpt.report(step, loss=float("nan") if step > 4 else 1.0)
    assert steps(tmp_path) == [4, 8, 10]
    assert newest(tmp_path / "saved") == tmp_path / "saved" / "step-00000004"
    with make(w=w, keep_last=1) as ckpt:
        assert (ckpt.step, w.tolist()) == (4, [0.0] * 3)
        for step in ckpt.steps(6):
            ckpt.report(step, loss=1.0)
    assert newest(tmp_path / "saved") == tmp_path / "saved" / "step-00000006"
    assert steps(tmp_path) == [6]


def test_all_damaged_is_no_reason_to_begin_anew(make: Make, tmp_path: Path) -> None:
    with make() as ckpt:
        list(ckpt.steps(2))
    (tmp_path / "saved" / "step-00000002" / "MANIFEST.json").write_text("{")
    with pytest.raises(CheckpointError, match="none can be used"), make():
        pass
    with make(resume=False) as ckpt:
        list(ckpt.steps(2))
    assert sorted(path.name for path in tmp_path.glob("saved/step-*")) == ["step-00000002", "step-00000002.2"]


def test_a_save_that_was_asked_for_and_fails_is_raised(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overnight.checkpoint.publish.free_bytes", lambda _: 1 << 40)
    with make(every=None) as ckpt:
        list(ckpt.steps(3))
        monkeypatch.setattr("overnight.checkpoint.publish.free_bytes", lambda _: 100)
        with pytest.raises(SaveError, match="free some space"):
            ckpt.save()
        ckpt.wait()  # it was told, and is forgotten
        monkeypatch.setattr("overnight.checkpoint.publish.free_bytes", lambda _: 1 << 40)
        ckpt.save()
    assert steps(tmp_path) == [3]


def test_without_a_loader_there_is_none(make: Make) -> None:
    with make() as ckpt, pytest.raises(UsageError, match="loader"):
        next(ckpt.loader)


def test_it_must_be_entered(make: Make) -> None:
    with pytest.raises(UsageError, match="with"):
        list(make().steps(1))


def test_what_a_script_puts_into_values_comes_back(make: Make) -> None:
    with make() as ckpt:
        for step in ckpt.steps(2):
            ckpt.values["seen"] = 10 * step
    with make() as ckpt:
        assert ckpt.values == {"seen": 20}


def test_a_loop_that_is_left_says_what_is_not_saved(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with make() as ckpt:
        for step in ckpt.steps(9):
            if step == 5:
                break
    assert "left within step 5: what was trained since the save of step 4" in capsys.readouterr().err


def test_a_folder_that_was_removed_is_made_again(make: Make, tmp_path: Path) -> None:
    with make() as ckpt:
        for step in ckpt.steps(4):
            if step == 3:
                shutil.rmtree(tmp_path / "saved")
    assert steps(tmp_path) == [4]
