"""Which checkpoint is the newest, whose run it is of, and what a prune may take: from findings alone."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.inspector import choosing
from overnight.inspector.findings import Found
from overnight.inspector.joining import NO_CHECKPOINT, ONLY_OPTIMIZER


def found(name: str, step: int | None = None, **more: Any) -> Found:
    return Found(path=f"/out/{name}", **{"maker": "trainer", "complete": True, "step": step, **more})


def ours(step: int, *, run: str = "r1", generation: int = 0, number: int = 1, **more: Any) -> Found:
    about = {"maker": "overnight", "order": (generation, step), "values": {"run": run, "number": number}, **more}
    return found(f"step-{step:08d}.{run}.{generation}", step, **about)


def newest(*several: Found) -> str | None:
    one = choosing.newest(choosing.with_owner(several))
    return None if one is None else one.path.removeprefix("/out/")


def test_the_step_inside_counts_and_neither_name_nor_time() -> None:
    assert (
        newest(found("checkpoint-9", 9, saved_at=9.0), found("checkpoint-1000", 1000, saved_at=1.0))
        == "checkpoint-1000"
    )
    assert newest(found("z", 5), found("a", 40), found("checkpoint-900", 30)) == "a"


@pytest.mark.parametrize("wrong", ["complete", "intact", "finite", "healthy"])
def test_what_is_not_good_is_passed_over(wrong: str) -> None:
    assert newest(found("a", 100), found("b", 200, **{wrong: False})) == "a"
    assert newest(found("b", 200, **{wrong: False})) is None


def test_what_could_not_be_looked_at_is_not_taken_but_what_has_no_sums_is() -> None:
    assert newest(found("a", 100), found("b", 200, complete=None)) == "a"
    assert newest(found("a", 100, intact=True), found("b", 200, intact=None, finite=None)) == "b"


def test_own_run_first_by_generation_then_step() -> None:
    assert newest(ours(100), ours(50, generation=1), found("checkpoint-1000", 1000)) == "step-00000050.r1.1"
    assert newest(ours(100, run="old", number=1, saved_at=9.0), ours(20, run="new", number=2, saved_at=1.0)).startswith(
        "step-00000020"
    )
    assert newest(ours(100, run="a", saved_at=1.0), ours(20, run="b", saved_at=2.0)).startswith("step-00000020.b")


def test_nothing_of_another_run_stands_in_for_ours() -> None:
    assert newest(ours(20, intact=False), found("checkpoint-1000", 1000), ours(500, run="old", number=0)) is None


def test_own_is_said_only_where_there_is_a_run() -> None:
    assert {one.own for one in choosing.with_owner([found("a", 1), found("b", 2)])} == {None}
    said = choosing.with_owner([ours(1), ours(2, run="old", number=0), found("checkpoint-3", 3)])
    assert [one.own for one in said] == [True, False, False]
    unread = found("step-00000009", maker="overnight", intact=False)
    assert choosing.with_owner([ours(1), unread])[1].own is None


def test_without_a_step_inside_the_makers_number_has_to_do_but_counts_less() -> None:
    assert newest(found("checkpoint_9"), found("checkpoint_10")) == "checkpoint_10"
    assert newest(found("checkpoint_10"), found("other", 3)) == "other"


def test_of_several_that_say_nothing_none_is_the_newest() -> None:
    assert newest(found("best.pt"), found("final.pt")) is None
    assert newest(found("best.pt"), found("final.pt", finite=False)) == "best.pt"


def test_at_one_step_the_one_with_an_optimizer_is_preferred() -> None:
    bare = found("a.ckpt", 7, notes=("no optimizer state: resume will not be exact",))
    assert newest(bare, found("longer-name.ckpt", 7)) == "longer-name.ckpt"


def file(name: str, step: int | None = None, **more: Any) -> Found:
    return found(name, step, maker="torch", **more)


def test_names_are_read_by_their_words_and_never_by_the_last_number() -> None:
    losses = ("model_epoch_1_loss_0.9012.pth", "model_epoch_2_loss_0.5521.pth", "model_epoch_10_loss_0.0512.pth")
    assert newest(*map(file, losses)) == losses[2]
    assert newest(file("step_1000.pt"), file("step_3000_fp16.pt"), file("other_50257.pt")) == "step_3000_fp16.pt"
    assert newest(*map(file, ("ema_1.pt", "ema_2.pt", "ema_9.pt", "vit_v20.pt"))) == "ema_9.pt"
    assert newest(file("a_1.pt"), file("b_2.pt")) is None  # two series of one


def test_a_choice_by_name_is_told() -> None:
    said = choosing.about([file("step_1.pt"), file("step_2.pt")])
    assert said == ["step_2.pt was chosen for its name alone: no step lies in it"]
    assert not choosing.about([file("step_1.pt", 1), file("step_2.pt", 2)])


def test_steps_that_begin_anew_with_each_epoch() -> None:
    first, second = file("e1.pt", 90, values={"epoch": 1}), file("e2.pt", 10, values={"epoch": 2})
    assert newest(first, second) == "e2.pt"
    assert "the epoch counts first" in choosing.about([first, second])[0]
    counted = [
        file("e1.pt", 90, values={"epoch": 1, "counted": 300}), file("e2.pt", 10, values={"epoch": 2, "counted": 210}),
    ]  # fmt: skip
    assert newest(*counted) == "e1.pt"


def test_parts_are_no_checkpoints() -> None:
    optimizer = file("opt020000.pt", 20000, notes=(ONLY_OPTIMIZER,))
    assert newest(optimizer, file("model010000.pt"), file("model020000.pt")) == "model020000.pt"
    assert newest(file("vocab_9.pt", notes=(NO_CHECKPOINT,))) is None


def test_what_is_in_doubt_ranks_behind_what_is_whole() -> None:
    mixed = found("checkpoint-40", 40, problem="optimizer.pt is of step 10")
    assert newest(mixed, found("checkpoint-30", 30)) == "checkpoint-30"
    assert newest(mixed) == "checkpoint-40"
