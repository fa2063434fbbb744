"""Which checkpoint is the newest, whose run it is of, and what a prune may take: from findings alone."""

from __future__ import annotations

from typing import Any

import pytest

from overnight.inspector import choosing
from overnight.inspector.findings import Found


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


def going(keep: int, *several: Found, spared: frozenset[str] = frozenset()) -> tuple[list[str], dict[str, str]]:
    gone, why = choosing.pruned(choosing.with_owner(several), keep, spared)
    return [one.path.removeprefix("/out/") for one in gone], {
        key.removeprefix("/out/"): one for key, one in why.items()
    }


def test_prune_counts_good_ones_only() -> None:
    several = [found(f"checkpoint-{step}", step) for step in (100, 200, 300)]
    broken = found("checkpoint-400", 400, complete=False, problem="trainer_state.json missing")
    gone, why = going(2, broken, *several)
    assert gone == ["checkpoint-100"]
    assert why == {"checkpoint-400": "trainer_state.json missing"}


def test_prune_leaves_the_last_healthy_one_and_names_the_sick() -> None:
    sick = [found(f"checkpoint-{step}", step, finite=False, problem="NaN") for step in (300, 400)]
    gone, why = going(1, found("checkpoint-100", 100), found("checkpoint-200", 200), *sick)
    assert gone == ["checkpoint-100"]
    assert set(why) == {"checkpoint-300", "checkpoint-400"}


def test_prune_touches_no_other_run_and_no_other_maker() -> None:
    gone, why = going(1, ours(10), ours(20), ours(900, run="old", number=0), found("checkpoint-1000", 1000))
    assert gone == ["step-00000010.r1.0"]
    assert why == {
        "step-00000900.old.0": "of another run",
        "checkpoint-1000": "made by trainer, not of this run",
    }
    assert going(1, found("checkpoint-5", 5), found("a.ckpt", 1, maker="lightning"))[0] == []


def test_prune_spares_what_something_points_to() -> None:
    several = [found(f"checkpoint-{step}", step) for step in (100, 200, 300)]
    gone, why = going(1, *several, spared=frozenset({"/out/checkpoint-100"}))
    assert gone == ["checkpoint-200"]
    assert why == {"checkpoint-100": "something points to it"}


@pytest.mark.parametrize("keep", [0, -1])
def test_prune_never_removes_all(keep: int) -> None:
    assert going(keep, found("checkpoint-1", 1), found("checkpoint-2", 2)) == ([], {})


def test_prune_of_nothing_good_removes_nothing() -> None:
    assert going(1, found("checkpoint-1", 1, intact=False), found("checkpoint-2", 2, intact=False))[0] == []


def test_prune_leaves_what_is_none_of_a_series() -> None:
    several = [found(f"epoch=0-step={step}.ckpt", step, maker="lightning") for step in (2, 4, 6)]
    gone, why = going(1, *several, found("best.ckpt", 2, maker="lightning"))
    assert gone == ["epoch=0-step=2.ckpt", "epoch=0-step=4.ckpt"]
    assert list(why) == ["best.ckpt"]
    gone, why = going(
        1, *(found(f"ema_{step}.pt", maker="torch") for step in (1, 2, 9)), found("vit_v2.pt", maker="torch")
    )
    assert gone == ["ema_1.pt", "ema_2.pt"]
    assert list(why) == ["vit_v2.pt"]
