"""Which part of a training was not restored, by what saved states hold, whatever their keys are called."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from resume_trainings import course

from overnight.resumeproof import states
from overnight.resumeproof.diagnosis import judge
from overnight.resumeproof.literals import texts_of
from overnight.resumeproof.recognising import Groups
from overnight.resumeproof.vocabulary import holdings
from overnight.resumeproof.words import Judgement, PartDifference, Resumed, StateComparison

KEYS = ("model.w", "optimizer.state", "scheduler.sch", "rng", "order", "pos", "step")
MOMENTS = ("optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq")
COUNT = "optimizer.state.0.step"
RATE = "optimizer.param_groups.0.lr"


def loss(step: int) -> float:
    return round(2.0 + 0.3 * ((step * 7919) % 101) / 101, 4)


def rate(step: int) -> float:
    return round(0.01 - step * 2e-5, 8)


def differing(**parts: tuple[str, ...]) -> StateComparison:
    rows = tuple(PartDifference(part=part, names=names, count=len(names), of=25) for part, names in parts.items())
    return StateComparison(step=110, equal=not rows, differences=rows, compared=40, left_out=())


def drifting(*, printed: bool, lost: bool = True, states: tuple[StateComparison, ...] = ()) -> Judgement:
    """Judge a run whose loss leaves from the second step on; where it is printed, its rate is the initial one."""
    whole = {step: {"loss": loss(step), **({"lr": rate(step)} if printed else {})} for step in range(1, 111)}
    after = {step: dict(row) for step, row in whole.items() if step > 100}
    for step, row in after.items():
        row["loss"] = round(row["loss"] + 0.002 * (step - 101), 4)
        if printed and lost:
            row["lr"] = rate(step - 100)
    before = course({step: row for step, row in whole.items() if step <= 100})
    resumed = Resumed(
        how="kill", before=before, after=course(after), stopped_at=100, exact=True, checkpoint="c", checkpoint_step=100,
        checkpoint_keys=KEYS, saved_on_signal=None, load_error=None,
    )  # fmt: skip
    return judge(course(whole), course(whole), resumed, until=110, states=states)


SCHEDULER_ONLY = differing(model=("model.w",), optimizer=(RATE, *MOMENTS), scheduler=("sch.last_epoch", "sch._last_lr"))
BY_STATES: list[tuple[StateComparison, str, tuple[str, ...]]] = [
    (differing(model=("model.w",), optimizer=(RATE, *MOMENTS, COUNT), scheduler=("sch._last_lr",)), "optimizer", ()),
    (differing(model=("model.w",), optimizer=(*MOMENTS, COUNT)), "optimizer", ()),
    (SCHEDULER_ONLY, "scheduler", ()),
    (differing(model=("model.w",), optimizer=(RATE, *MOMENTS)), "scheduler", ()),  # only overwritten
    (
        differing(model=("model.w",), optimizer=(RATE, "optimizer.state.0.momentum_buffer"), scheduler=("s._last_lr",)),
        "optimizer",
        ("scheduler",),
    ),
]


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize(("state", "cause", "also"), BY_STATES)
def test_the_counts_in_the_states_tell_the_optimizer_from_the_schedule(
    state: StateComparison, cause: str, also: tuple[str, ...], *, printed: bool
) -> None:
    found = drifting(printed=printed, states=(state,))
    assert (found.cause, found.also) == (cause, also)
    assert "in the states saved at step 110" in found.text


def test_a_rate_that_begins_anew_may_be_the_optimizers_where_no_state_was_compared() -> None:
    found = drifting(printed=True)
    assert (found.cause, found.also) == ("scheduler", ("optimizer",))
    both = differing(optimizer=(RATE, *MOMENTS, COUNT), scheduler=("sch.last_epoch",))
    assert drifting(printed=True, states=(both,)).also == ("optimizer",)


def test_a_scheduler_that_only_follows_is_not_the_cause_where_all_that_is_printed_is_equal() -> None:
    steps = {step: {"loss": loss(step)} for step in range(1, 111)}
    resumed = Resumed(
        how="kill", before=course({step: steps[step] for step in range(1, 101)}),
        after=course({step: steps[step] for step in range(101, 111)}), stopped_at=100, exact=True, checkpoint="c",
        checkpoint_step=100, checkpoint_keys=KEYS, saved_on_signal=None, load_error=None,
    )  # fmt: skip
    for rows, cause in (
        ({"optimizer": (RATE, *MOMENTS, COUNT), "scheduler": ("sch._last_lr",)}, "optimizer"),
        ({"scheduler": ("sch._last_lr", "sch.last_epoch")}, "scheduler"),
        ({"scaler": ("scaler._growth_tracker",)}, "optimizer"),
    ):
        assert judge(course(steps), course(steps), resumed, until=110, states=(differing(**rows),)).cause == cause


# Recognised by content


def state(torch: Any, *, steps: int, rate_steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for _ in range(steps):
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    for _ in range(rate_steps):
        schedule.step()
    return {
        "a": net.state_dict(), "b": optimizer.state_dict(), "c": schedule.state_dict(), "d": torch.get_rng_state(),
        "e": torch.amp.GradScaler("cpu").state_dict(), "f": torch.optim.swa_utils.AveragedModel(net).state_dict(),
    }  # fmt: skip


def test_parts_are_known_by_their_content_whatever_their_keys_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name, steps, rate_steps in (("one", 3, 3), ("two", 2, 3)):
        torch.save({"step": 3, **state(torch, steps=steps, rate_steps=rate_steps)}, tmp_path / f"{name}.pt")
    assert {"optimizer", "scheduler", "rng", "ema"} <= holdings(states.keys(tmp_path / "one.pt"))
    assert "data" not in holdings(states.keys(tmp_path / "one.pt"))  # last_epoch is no place in the data
    found = states.compare(tmp_path / "one.pt", tmp_path / "two.pt", None)
    parts = {row.part: row for row in found.differences}
    assert set(parts) == {"model", "ema", "optimizer"}
    kinds = {name.rpartition(".")[2] for name in parts["optimizer"].names}
    assert {"step", "exp_avg", "exp_avg_sq"} <= kinds
    equal = states.compare(tmp_path / "one.pt", tmp_path / "one.pt", None).equal_parts
    assert {"model", "ema", "optimizer", "rng", "scheduler"} <= set(equal)


def part_of(name: str, *names: str, plain: object = None) -> str | None:
    groups = Groups()
    for one in (name, *names):
        groups.note(one, plain)
    return groups.of(name)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("run.x.param_groups.0.lr", "run.x.state.0.step"), "optimizer"),
        (("z.last_epoch", "z.T_max"), "scheduler"),
        (("z.last_epoch", "z.position"), None),  # the epoch that a loader was in
        (("c.last_epoch", "c._schedulers.0.base_lrs", "c._milestones"), None),
        (("h.scale", "h.growth_factor"), "scaler"),
        (("g.module.weight", "g.n_averaged"), "ema"),
        (("j.state.inc", "j.bit_generator"), "rng"),
        (("model.weight", "model.bias"), None),
        (("param_groups", "model.bias"), None),
    ],
)
def test_one_name_says_what_those_beside_it_are(names: tuple[str, ...], expected: str | None) -> None:
    for order in itertools.permutations(names):
        groups = Groups()
        for one in order:
            groups.note(one)
        assert groups.of(names[0]) == expected
    assert part_of("np.0", "np.1", plain="MT19937") == "rng"


# The paths that a script names


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('d = "/data" + "/out"\nsave(f"{d}/ckpt-{step}.pt")', ["/data/out", "/data/out/ckpt-{}.pt"]),
        ('import os\nsave(os.path.join("/data", "out", name))', ["/data/out/{}"]),
        ('save(Path("/data") / "out" / f"{step}.pt")', ["/data/out/{}.pt"]),
        ('"""/no/path"""\nroot = "/a"\nroot = "/b"\nsave(root + "/c")', ["/a", "/b", "/c"]),
        ('save(f"{folder}/{step}")', ["/{}"]),
        ("save(name", ["save(name"]),
    ],
)
def test_a_path_is_put_together_as_the_script_does(source: str, expected: list[str]) -> None:
    assert [text for text in texts_of(source) if "/" in text or text == source] == expected
