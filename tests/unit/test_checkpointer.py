"""What a training script sees of the library: the loop, resuming, refusals, and what is said."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
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
    publish,
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


def test_a_second_loop_after_one_that_was_left_is_refused(make: Make) -> None:
    with make() as ckpt:
        for step in ckpt.steps(9):
            if step == 5:
                break
        with pytest.raises(UsageError, match="left within step 5"):
            list(ckpt.steps(9))


def test_a_loop_that_outlives_its_folder_goes_no_further(make: Make, tmp_path: Path) -> None:
    with make() as ckpt:
        loop = ckpt.steps(9)
        assert next(loop) == 1
    with pytest.raises(UsageError, match="within"):
        next(loop)
    assert steps(tmp_path) == []


def test_nothing_is_saved_before_the_first_step(make: Make) -> None:
    with make() as ckpt, pytest.raises(UsageError, match="behind a step"):
        ckpt.save()


def test_steps_that_are_left_out_are_counted_and_saved(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OVERNIGHT_SKIP_STEPS", "2-5")
    with make(keep_last=None, loader=list(range(10))) as ckpt:
        assert list(ckpt.steps(7)) == [1, 6, 7]
    assert steps(tmp_path) == [2, 4, 6, 7]


@pytest.mark.parametrize(
    "config",
    [
        argparse.Namespace(out=Path("x"), lr=0.1, odd=float("nan"), both=(1, 2)),
        {"out": Path("x"), "dtype": np.float32, "seen": {"b", "a"}, "deep": {"er": [np.float64(2)]}},
    ],
)
def test_settings_of_any_kind_are_compared(make: Make, config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with make(config=config) as ckpt:
        list(ckpt.steps(2))
    with make(config=config, strict=True) as ckpt:
        assert ckpt.step == 2
    assert "changed" not in capsys.readouterr().out


def test_settings_without_words_are_refused_at_once(make: Make) -> None:
    with pytest.raises(UsageError, match=r"config\.deep\.0 is a object"):
        make(config={"deep": [object()]})


def test_figures_are_those_of_the_step_they_were_reported_in(make: Make, tmp_path: Path) -> None:
    meter = np.array([7.5])
    with make(metric="val") as ckpt:
        for step in ckpt.steps(2):
            ckpt.report(step, loss=1.0, val=meter, tokens=32)
            meter[:] = 0
    assert load(tmp_path / "saved").manifest.metrics == {"loss": 1.0, "val": 0.0, "tokens": 32}
    with make(metric="val", every=1) as ckpt:
        for step in ckpt.steps(3):
            meter[:] = 7.5
            ckpt.report(step, loss=1.0, val=meter)
            meter[:] = 0
    assert load(tmp_path / "saved").manifest.metrics["val"] == 7.5


def test_time_is_counted_over_loops_and_lives(make: Make, tmp_path: Path) -> None:
    trained = []
    for last in (2, 4, 6):
        with make() as ckpt:
            for _ in ckpt.steps(last - 1):
                time.sleep(0.01)
            for _ in ckpt.steps(last):
                time.sleep(0.01)
        trained.append(load(tmp_path / "saved").manifest.progress["trained_s"])
    assert trained == sorted(trained)
    assert all(seconds >= 0.02 * count for count, seconds in enumerate(trained, 1))


def test_a_bad_save_never_takes_the_name_of_a_good_one(make: Make, tmp_path: Path) -> None:
    w = np.zeros(3)
    with make(w=w) as ckpt:
        for step in ckpt.steps(4):
            ckpt.report(step, loss=1.0)
    with make(w=w, resume=tmp_path / "saved" / "step-00000002") as ckpt:
        for step in ckpt.steps(4):
            w[0] = np.nan
            ckpt.report(step, loss=1.0)
    assert newest(tmp_path / "saved") == tmp_path / "saved" / "step-00000002"
    good = [path.name for path in tmp_path.glob("saved/step-*") if load(path).manifest.healthy]
    assert sorted(good) == ["step-00000002", "step-00000004"]


def test_a_checkpoint_that_lies_elsewhere_is_read_and_never_removed(make: Make, tmp_path: Path) -> None:
    with make(keep_last=1) as ckpt:
        list(ckpt.steps(2))
    (tmp_path / "saved" / "step-00000002").rename(tmp_path / "moved")
    (tmp_path / "saved" / "step-00000002").symlink_to(tmp_path / "moved")
    (tmp_path / "saved" / "latest").symlink_to(tmp_path / "saved" / "step-00000002")
    with make(keep_last=1) as ckpt:
        assert ckpt.step == 2
        list(ckpt.steps(6))
    assert steps(tmp_path) == [2, 6]
    assert (tmp_path / "moved" / "MANIFEST.json").exists()


def test_a_save_that_takes_longer_than_others_wait_is_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """C5-01, C1-09."""
    with make(timeout_s=1e-9) as ckpt:
        list(ckpt.steps(2))
    assert "after which others give up waiting" in capsys.readouterr().err


def test_a_grace_that_is_shorter_than_a_save_is_said_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """C1-09: the last save would be cut off."""
    (tmp_path / "run.json").write_text('{"spec": {"grace_s": 0.000001}}')
    monkeypatch.setenv("OVERNIGHT_RUN_DIR", str(tmp_path))
    with make() as ckpt:
        list(ckpt.steps(6))
    assert capsys.readouterr().err.count("the last save may be lost") == 1


@pytest.mark.parametrize("given", [{"resume": None}, {"resume": 1}, {"timeout_s": -1}])
def test_further_wrong_values(make: Make, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make(**given)


@pytest.mark.parametrize("last", ["3", None, 2.5, -1, True])
def test_steps_are_counted_in_whole_numbers(make: Make, last: Any) -> None:
    with make() as ckpt, pytest.raises(UsageError, match="number of the last step"):
        next(ckpt.steps(last))


def test_what_a_killed_life_left_too_many_goes_before_a_save_fails(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(keep_last=None, every=1) as ckpt:
        list(ckpt.steps(5))
    real, free = publish.free_bytes, [1 << 40]
    monkeypatch.setattr("overnight.checkpoint.publish.free_bytes", lambda _: free[0])
    monkeypatch.setattr(
        "overnight.checkpoint.publish.discard", lambda path: (shutil.rmtree(path), free.__setitem__(0, 1 << 40))
    )
    with make(keep_last=2, every=1) as ckpt:
        free[0] = 1 << 40
        for _ in ckpt.steps(6):
            free[0] = 100
    assert steps(tmp_path) == [5, 6]
    assert real(tmp_path) > 0


def test_a_run_that_was_copied_there_does_not_take_the_folder_over(make: Make, tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "other", every=1000, async_=False, w=np.ones(3)) as ckpt:
        ckpt.step = 999
        list(ckpt.steps(1000))
    with make() as ckpt:
        list(ckpt.steps(4))
    shutil.copytree(tmp_path / "other" / "step-00001000", tmp_path / "saved" / "step-00001000")
    with make() as ckpt:
        assert ckpt.step == 4
        list(ckpt.steps(12))
    assert steps(tmp_path) == [8, 10, 12, 1000]


def test_a_package_that_is_loaded_later_is_no_change(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"python": "3", "numpy": "2"}
    monkeypatch.setattr("overnight.checkpoint.environment.versions", lambda: dict(versions))
    with make(strict=True) as ckpt:
        list(ckpt.steps(2))
    versions["torch"] = "9"
    with make(strict=True):
        pass
    versions["numpy"] = "3"
    with pytest.raises(CheckpointError, match="numpy 2 -> 3"), make(strict=True):
        pass
