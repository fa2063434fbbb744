"""What is kept and what goes: by what manifests say, never by time or name; rows C1-04, C2-01 to C2-12, C5-07."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_checkpoints import RUN, chosen, manifests, names, save, saved

from overnight.checkpoint import Checkpointer, UsageError, manifest, newest, retention
from overnight.checkpoint.jobs import Keep
from overnight.checkpoint.manifest import Manifest


def steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints of ours in a folder, every byte of them verified."""
    for name, known in manifests(folder).items():
        manifest.check_content(folder / name, known)
    return sorted(known.step for known in manifests(folder).values())


def train(
    folder: Path, last: int, every: int | None, *, losses: Mapping[int, float] | None = None, **how: Any
) -> Path | None:
    """Train in this process up to ``last``; return what was resumed from. From step to step the weight grows by one."""
    weights = {"w": np.zeros(3)}
    with Checkpointer(folder, every=every, async_=False, model=weights, optimizer={"t": 0}, **how) as ckpt:
        resumed = ckpt.resumed_from
        for step in ckpt.steps(last):
            assert weights["w"].tolist() == [step - 1] * 3 or not np.isfinite(weights["w"]).all()
            loss = (losses or {}).get(step, 1 / step)
            weights["w"] += 1 if np.isfinite(loss) else loss
            ckpt.report(step, loss=loss)
    return resumed


# -- pure ------------------------------------------------------------------------------------------------------------

KEPT = st.builds(
    Keep,
    last=st.none() | st.integers(1, 5),
    best=st.integers(0, 3),
    metric=st.none() | st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    every=st.none() | st.integers(1, 60),
)
METRICS = st.none() | st.just("nan") | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Manifest]:
    """Return checkpoints of one run, some unhealthy, of several generations, under names that say nothing."""
    orders = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 120)), unique=True, max_size=12))
    backs = draw(st.lists(st.integers(0, 120), min_size=2, max_size=2))  # where generation 0 and 1 were left
    found = {}
    for at, (generation, step) in enumerate(orders):
        loss = draw(METRICS)
        found[f"{at * 7919 % 13:02d}"] = Manifest(
            step=step, run=RUN, generation=generation, saved_at="", reason="interval", healthy=draw(st.booleans()),
            metrics={} if loss is None else {"loss": loss}, ancestors=[*enumerate(backs)][:generation],
        )  # fmt: skip
    return found


@settings(max_examples=400, deadline=None)
@given(known=runs(), keep=KEPT)
def test_what_may_go(known: dict[str, Manifest], keep: Keep) -> None:
    gone = retention.removable(known, keep)
    last = max((one.order for one in known.values()), default=(0, 0))
    left = {g: step for one in known.values() if one.order == last for g, step in one.ancestors}
    behind = {name for name, one in known.items() if one.generation < last[0] and one.step > left[one.generation]}
    order = sorted(known, key=lambda name: (name not in behind, known[name].order))
    stay = [name for name in order if name not in gone]
    assert gone == [name for name in order if name in gone]
    if keep.last is None:
        assert gone == []
        return
    assert set(order[-keep.last :]) <= set(stay), "the last k"
    healthy = [name for name in order if known[name].healthy]
    assert set(healthy[-1:]) <= set(stay), "the last healthy one"
    assert all(name in stay for name in order if keep.every and known[name].step % keep.every == 0)
    number = {
        name: float(known[name].metrics["loss"])
        for name in healthy
        if type(known[name].metrics.get("loss")) in (int, float)
    }
    best: set[str] = set()
    if keep.metric and keep.best and number:
        ranked = sorted(number.values(), reverse=keep.mode == "max")
        limit = ranked[: keep.best][-1]
        better = {name for name, value in number.items() if (value > limit if keep.mode == "max" else value < limit)}
        assert better <= set(stay), "the best"
        best = {name for name in stay if name in better or number.get(name) == limit}
    reasons = {*order[-keep.last :], *healthy[-1:], *best}
    for name in stay:
        assert name in reasons or (keep.every and known[name].step % keep.every == 0), "and no other"
    again = {name: known[name] for name in stay}
    assert retention.removable(again, keep) == [], "what stays once stays"


@settings(deadline=None)
@given(keep=KEPT, known=runs(), data=st.data())
def test_names_and_their_order_say_nothing(keep: Keep, known: dict[str, Manifest], data: st.DataObject) -> None:
    others = dict(zip(data.draw(st.permutations(sorted(known))), known, strict=True))
    renamed = {others[name]: known[name] for name in data.draw(st.permutations(sorted(known)))}
    gone = [known[name].order for name in retention.removable(known, keep)]
    assert [renamed[name].order for name in retention.removable(renamed, keep)] == gone


# -- odd values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, "abc", "3", 2.0, True, [3]])
@pytest.mark.parametrize("name", ["keep_last", "keep_best", "keep_every"])
def test_c2_03_odd_values_are_refused_before_anything_is_made(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be "):
        Checkpointer(tmp_path / "checkpoints", metric="loss", **{name: value})
    assert not (tmp_path / "checkpoints").exists()


def test_c2_03_missing_values_keep_everything_or_three(tmp_path: Path) -> None:
    train(tmp_path / "all", 6, 1, keep_last=None)
    assert steps(tmp_path / "all") == [1, 2, 3, 4, 5, 6]
    train(tmp_path / "three", 6, 1)
    assert steps(tmp_path / "three") == [4, 5, 6]


def test_a_metric_without_a_name_or_with_a_strange_direction(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep_best needs metric"):
        Checkpointer(tmp_path, keep_best=2)
    with pytest.raises(UsageError, match="'lowest'"):
        Checkpointer(tmp_path, metric="loss", mode="lowest")


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", ["equal", "reversed", "future"])
def test_c2_01_times_of_files_say_nothing(tmp_path: Path, times: str) -> None:
    for step in (9, 10, 99):
        saved(tmp_path, step)
    for at, path in enumerate(sorted(tmp_path.rglob("*"))):
        stamp = {"equal": 1_000_000_000, "reversed": 1_900_000_000 - at, "future": 9_000_000_000}[times]
        os.utime(path, (stamp, stamp))
    assert save(tmp_path, 100, keep=Keep(last=2)).removed == ("step-00000009", "step-00000010")
    assert steps(tmp_path) == [99, 100]
    assert newest(tmp_path) == tmp_path / "step-00000100"


# -- best, last, healthy ---------------------------------------------------------------------------------------------


def test_c2_04_the_best_and_the_newest_stay(tmp_path: Path) -> None:
    losses = {100: 0.5, 200: 2.0, 300: 1.0}
    train(tmp_path / "best", 300, 100, losses=losses, keep_last=1, metric="loss")
    assert steps(tmp_path / "best") == [100, 300]
    train(tmp_path / "none", 300, 100, losses=losses, keep_last=1)
    assert steps(tmp_path / "none") == [300]
    train(tmp_path / "most", 300, 100, losses=losses, keep_last=1, metric="loss", mode="max")
    assert steps(tmp_path / "most") == [200, 300]
    more = {**losses, 50: 0.75, 150: 0.6, 250: 3}
    train(tmp_path / "two", 300, 50, losses=more, keep_last=1, keep_best=2, metric="loss")
    assert steps(tmp_path / "two") == [100, 150, 300]


def test_c2_06_saves_with_nan_never_take_the_place_of_healthy_ones(tmp_path: Path) -> None:
    nan = dict.fromkeys(range(250, 601), float("nan"))
    train(tmp_path, 600, 100, losses=nan, keep_last=2)
    assert steps(tmp_path) == [200, 500, 600]
    assert newest(tmp_path) == tmp_path / "step-00000200"
    path, said = chosen(tmp_path)
    assert path == tmp_path / "step-00000200"
    assert said[0] == "passed over step-00000600: it holds NaN or infinity"
    # What comes then is a new attempt at 201 and after: it takes the place of the NaN ones, under their names.
    assert train(tmp_path, 600, 100, keep_last=2) == tmp_path / "step-00000200"
    assert steps(tmp_path) == [500, 600]
    assert all(known.healthy for known in manifests(tmp_path).values())


def test_weights_that_are_nan_under_a_loss_that_is_not(tmp_path: Path) -> None:
    weights = {"w": np.ones(3)}
    with Checkpointer(tmp_path, every=1, keep_last=1, async_=False, model=weights) as ckpt:
        for step in ckpt.steps(3):
            weights["w"][1] = np.inf if step > 1 else 1.0
            ckpt.report(step, loss=0.5)
    assert steps(tmp_path) == [1, 3]
    assert newest(tmp_path) == tmp_path / "step-00000001"


def test_c2_09_the_newest_is_not_the_best(tmp_path: Path) -> None:
    train(tmp_path, 300, 50, losses={step: abs(step - 100) / 100 for step in range(1, 301)}, keep_last=1, metric="loss")
    assert steps(tmp_path) == [100, 300]
    assert newest(tmp_path) == tmp_path / "step-00000300"
    assert train(tmp_path, 301, 50, keep_last=1) == tmp_path / "step-00000300"


def test_c5_07_rolling_ones_and_milestones(tmp_path: Path) -> None:
    train(tmp_path, 350, 10, keep_last=1, keep_every=100)
    assert names(tmp_path) == ["LOCK", "step-00000100", "step-00000200", "step-00000300", "step-00000350"]


# -- over resumes ----------------------------------------------------------------------------------------------------


def test_c2_12_the_limit_counts_old_and_new(tmp_path: Path) -> None:
    train(tmp_path, 300, 100, keep_last=2)
    assert train(tmp_path, 500, 100, keep_last=2) == tmp_path / "step-00000300"
    assert names(tmp_path) == ["LOCK", "step-00000400", "step-00000500"]
    train(tmp_path, 600, 100, keep_last=1)
    assert names(tmp_path) == ["LOCK", "step-00000600"]


def test_c2_10_what_was_removed_by_hand_is_not_missed(tmp_path: Path) -> None:
    """There is no pointer that could dangle; somebody else's is not followed."""
    train(tmp_path, 300, 100)
    (tmp_path / "latest").symlink_to("step-00000300")
    (tmp_path / "last.txt").write_text("step-00000300\n")
    shutil.rmtree(tmp_path / "step-00000300")
    assert train(tmp_path, 350, 100, keep_last=2) == tmp_path / "step-00000200"
    assert names(tmp_path) == ["LOCK", "last.txt", "latest", "step-00000300", "step-00000350"]
    assert os.readlink(tmp_path / "latest") == "step-00000300"


def test_c1_04_a_pointer_is_no_more_than_a_hint(tmp_path: Path) -> None:
    saved(tmp_path, 100)
    saved(tmp_path, 200)
    (tmp_path / "latest").symlink_to("step-00000100")
    (tmp_path / "LATEST").write_text("100")
    assert chosen(tmp_path) == (tmp_path / "step-00000200", [])
    # Saved again, it is a clean replacement: never FileExistsError, never two.
    before = (tmp_path / "step-00000200" / manifest.NAME).stat().st_ino
    saved(tmp_path, 200, generation=1)
    assert (tmp_path / "step-00000200" / manifest.NAME).stat().st_ino != before
    assert names(tmp_path) == ["LATEST", "latest", "step-00000100", "step-00000200"]
    assert manifests(tmp_path)["step-00000200"].generation == 1


def test_a_damaged_one_is_replaced_or_stepped_aside_from(tmp_path: Path) -> None:
    saved(tmp_path, 100)
    (saved(tmp_path, 200) / "model.safetensors").write_bytes(b"")
    (saved(tmp_path, 300) / manifest.NAME).write_bytes(b"{}")
    assert chosen(tmp_path)[0] == tmp_path / "step-00000100"
    assert saved(tmp_path, 200, generation=1).name == "step-00000200"
    assert saved(tmp_path, 300, generation=1).name == "step-00000300.2", "nobody knows whose the other one is"
    assert newest(tmp_path) == tmp_path / "step-00000300.2"


def test_a_damaged_one_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    """A process that has not written it reads it once before an older one goes on its account."""
    for step in (100, 200, 300):
        saved(tmp_path, step)
    from overnight.checkpoint import writing

    writing._verified.clear()
    with (tmp_path / "step-00000300" / "model.safetensors").open("r+b") as stream:
        stream.seek(-3, os.SEEK_END)
        stream.write(b"?")
    outcome = save(tmp_path, 400, keep=Keep(last=2))
    assert outcome.removed == ("step-00000100",)
    assert outcome.notes == (f"{tmp_path / 'step-00000300'} is damaged: it is neither counted nor removed",)
    assert names(tmp_path) == ["step-00000200", "step-00000300", "step-00000400"]


def test_what_was_given_another_name_is_nobody_s_to_remove(tmp_path: Path) -> None:
    saved(tmp_path, 100)
    shutil.copytree(tmp_path / "step-00000100", tmp_path / "before-the-new-data")
    saved(tmp_path, 200).rename(tmp_path / "good one")
    for step in (300, 400, 500):
        save(tmp_path, step, keep=Keep(last=2))
    assert names(tmp_path) == ["before-the-new-data", "good one", "step-00000400", "step-00000500"]


def test_a_script_may_change_its_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Checkpointer("checkpoints", every=1, async_=False, model={"w": np.zeros(3)}) as ckpt:
        for _ in ckpt.steps(2):
            monkeypatch.chdir(tmp_path / "elsewhere")
    assert names(tmp_path / "elsewhere") == []
    assert steps(tmp_path / "checkpoints") == [1, 2]


# -- several runs ----------------------------------------------------------------------------------------------------


def foreign(folder: Path) -> Path:
    """Make a folder as another trainer leaves it, of a higher step than any here."""
    made = folder / "checkpoint-1000"
    made.mkdir(parents=True)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": 1000}))
    (made / "model.safetensors").write_bytes(b"not ours")
    return made


def test_c2_07_only_this_run_s_own_are_counted(tmp_path: Path) -> None:
    train(tmp_path, 1000, 1000)  # an older run of ours, and one of another trainer
    theirs = foreign(tmp_path)
    old = sorted((tmp_path / "step-00001000").iterdir())
    before = {path: path.read_bytes() for path in [*theirs.iterdir(), *old]}
    train(tmp_path, 20, 10, keep_last=1, resume=False)
    assert names(tmp_path) == ["LOCK", "checkpoint-1000", "step-00000020", "step-00001000"]
    assert {path: path.read_bytes() for path in before} == before
    assert newest(tmp_path) == tmp_path / "step-00000020"
    assert train(tmp_path, 30, 10, keep_last=1) == tmp_path / "step-00000020", "and so it goes on"
    assert names(tmp_path) == ["LOCK", "checkpoint-1000", "step-00000030", "step-00001000"]


def test_a_name_that_an_older_run_has_is_stepped_aside_from(tmp_path: Path) -> None:
    train(tmp_path, 20, 10)
    train(tmp_path, 20, 10, resume=False, keep_last=1)
    assert names(tmp_path) == ["LOCK", "step-00000010", "step-00000020", "step-00000020.2"]
    assert newest(tmp_path) == tmp_path / "step-00000020.2"
    assert {name: known.number for name, known in manifests(tmp_path).items()}["step-00000020.2"] == 2
    assert train(tmp_path, 40, 10, keep_last=1) == tmp_path / "step-00000020.2"
    assert names(tmp_path) == ["LOCK", "step-00000010", "step-00000020", "step-00000040"]


# -- back to an older one --------------------------------------------------------------------------------------------


def test_taken_back_to_an_older_one(tmp_path: Path) -> None:
    """What lies above it is of the past: the next save is the newest although its step is lower."""
    train(tmp_path, 300, 100)
    assert train(tmp_path, 150, 50, resume=tmp_path / "step-00000100") == tmp_path / "step-00000100"
    assert newest(tmp_path) == tmp_path / "step-00000150"
    assert train(tmp_path, 200, 50, keep_last=2) == tmp_path / "step-00000150"
    assert steps(tmp_path) == [150, 200]
    assert manifests(tmp_path)["step-00000200"].generation == 1


def test_taken_back_twice(tmp_path: Path) -> None:
    """What a run was taken back to stays, and what was left behind goes: it is not fallen back to either."""
    train(tmp_path, 300, 100)
    train(tmp_path, 150, 50, resume="step-00000100")
    assert steps(tmp_path) == [100, 150, 300], "three are kept, and the one that was left last is the third"
    (tmp_path / "step-00000150" / "model.safetensors").write_bytes(b"")
    assert newest(tmp_path) == tmp_path / "step-00000100"
    assert train(tmp_path, 140, 20) == tmp_path / "step-00000100"
    assert newest(tmp_path) == tmp_path / "step-00000140"
    assert [name for name in names(tmp_path) if "150" not in name] == [
        "LOCK", "step-00000100", "step-00000120", "step-00000140",
    ]  # fmt: skip


def test_taken_back_and_forth(tmp_path: Path) -> None:
    """Back to 20, on to 32, and over to the 40 that was left behind: its own past counts again, the 32 does not."""
    train(tmp_path, 50, 10, keep_last=None)
    train(tmp_path, 32, 10, keep_last=None, resume="step-00000020")
    assert newest(tmp_path) == tmp_path / "step-00000032"
    train(tmp_path, 41, 10, keep_last=None, resume="step-00000040")
    # The generation between has saved its own 30 in the place of the first one's.
    for gone, next_ in (("41", "40"), ("40", "20"), ("20", "10"), ("10", "32"), ("32", "30"), ("30", "50")):
        assert newest(tmp_path) == tmp_path / f"step-000000{gone}"
        (tmp_path / f"step-000000{gone}" / "model.safetensors").write_bytes(b"")
        assert newest(tmp_path) == tmp_path / f"step-000000{next_}"


@pytest.mark.parametrize("how", ["argument", "name only", "environment"])
def test_the_ways_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    train(tmp_path, 300, 100)
    resume: Any = True
    if how == "environment":
        monkeypatch.setenv("OVERNIGHT_CHECKPOINT", str(tmp_path / "step-00000200"))
    else:
        resume = "step-00000200" if how == "name only" else str(tmp_path / "step-00000200")
    assert train(tmp_path, 201, None, resume=resume) == tmp_path / "step-00000200"
    monkeypatch.delenv("OVERNIGHT_CHECKPOINT", raising=False)
    assert newest(tmp_path) == tmp_path / "step-00000201"
    assert train(tmp_path, 202, None) == tmp_path / "step-00000201"


def test_back_to_an_older_run(tmp_path: Path) -> None:
    """The run that was asked for is from then on the one that goes on by itself."""
    train(tmp_path, 100, 50)
    train(tmp_path, 60, 30, resume=False)
    assert newest(tmp_path) == tmp_path / "step-00000060"
    assert train(tmp_path, 120, None, resume="step-00000100") == tmp_path / "step-00000100"
    assert newest(tmp_path) == tmp_path / "step-00000120"
    assert train(tmp_path, 130, None, keep_last=1) == tmp_path / "step-00000120"
    assert steps(tmp_path) == [30, 60, 130], "of the other run nothing was counted or removed"


def test_from_another_folder(tmp_path: Path) -> None:
    """It is only read; what is saved here does not hide, and is not hidden by, what lies here already."""
    train(tmp_path / "a", 100, 50)
    train(tmp_path / "b", 500, 250)
    before = names(tmp_path / "a")
    assert train(tmp_path / "b", 120, None, resume=tmp_path / "a" / "step-00000050") == tmp_path / "a" / "step-00000050"
    assert names(tmp_path / "a") == before
    assert newest(tmp_path / "b") == tmp_path / "b" / "step-00000120"
    assert train(tmp_path / "b", 130, None) == tmp_path / "b" / "step-00000120"
    assert steps(tmp_path / "b") == [120, 130, 250, 500]


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path, 100, 50)
    for wrong in (foreign(tmp_path), "step-00000051", tmp_path):
        with pytest.raises(UsageError, match=r"is no checkpoint of this library .no MANIFEST\.json"):
            train(tmp_path, 110, 50, resume=wrong)
    assert steps(tmp_path) == [50, 100]


def test_steps_only_grow_within_a_generation(tmp_path: Path) -> None:
    """However often and to whatever a run is taken back, what was saved last is the newest."""
    train(tmp_path, 60, 10, keep_last=None)
    for back, last in ((30, 45), (40, 55), (10, 12), (50, 52)):
        train(tmp_path, last, 10, keep_last=None, resume=f"step-{back:08d}")
        assert newest(tmp_path) == tmp_path / f"step-{last:08d}"
    orders = sorted(known.order for known in manifests(tmp_path).values())
    assert all(one < other for one, other in pairwise(orders))
