"""What speaks beside the curves for one cause or another, and where the steps of a program stand that counts anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from resume_trainings import course

from overnight.resumeproof import states
from overnight.resumeproof.diagnosis import judge
from overnight.resumeproof.epochs import Axis
from overnight.resumeproof.searching import Left
from overnight.resumeproof.variants import Stopped, Variants
from overnight.resumeproof.vocabulary import decimals, held_by, main_metric
from overnight.resumeproof.words import Judgement, PartDifference, Resumed, StateComparison

KEYS = ("model.w", "optimizer.state", "rng", "order", "pos", "step")


def loss(step: int) -> float:
    return round(2.0 + 0.3 * ((step * 7919) % 101) / 101, 4)


def of(after: Mapping[int, Mapping[str, float]], *compared: StateComparison, **more: Any) -> Judgement:
    first = course({step: {"loss": loss(step)} for step in range(1, 111)})
    given = {
        "how": "kill", "before": course({step: {"loss": loss(step)} for step in range(1, 101)}),
        "after": course({step: dict(row) for step, row in after.items()}), "stopped_at": 100, "exact": True,
        "checkpoint": "c", "checkpoint_step": 100, "checkpoint_keys": KEYS, "saved_on_signal": None,
        "load_error": None, **more,
    }  # fmt: skip
    return judge(first, first, msgspec.convert(given, Resumed), until=110, states=compared)


def compared(step: int = 110, *rows: PartDifference, equal: tuple[str, ...] = ()) -> StateComparison:
    return StateComparison(
        step=step, equal=not rows, differences=rows, compared=40, left_out=(), equal_parts=equal
    )  # fmt: skip


def other(step: int) -> dict[str, float]:
    return {"loss": round(2.0 + 0.3 * ((step * 104729 + 17) % 101) / 101, 4)}


def row(part: str, *names: str, count: int | None = None) -> PartDifference:
    return PartDifference(part=part, names=names, count=count or len(names), of=40)


# The saved states


def test_data_that_are_equal_in_the_states_leave_the_random_numbers() -> None:
    after = {step: other(step) for step in range(101, 111)}
    drift = row("model", "model.w")
    assert of(after, compared(110, drift)).cause == "data_order"  # as large as between batches, and nothing else
    found = of(after, compared(110, drift, equal=("loader", "rng")))
    assert (found.cause, found.also) == ("rng", ("data_order",))
    assert "the position in the data is equal in the checkpoints" in found.text
    assert of(after, compared(110, drift, equal=("rng",))).cause == "data_order"


def test_what_the_stopped_run_itself_has_saved_is_no_evidence_of_its_resume() -> None:
    after = {step: other(step) for step in range(101, 111)}
    assert of(after, compared(100, equal=("loader",)), compared(110, row("model", "model.w"))).cause == "data_order"


def test_a_learning_rate_in_the_optimizers_state_is_the_schedules_matter() -> None:
    after = {step: {"loss": loss(step)} for step in range(101, 111)}
    names = ("optimizer.param_groups.0.lr", "optimizer.param_groups.1.lr")
    assert of(after, compared(110, row("optimizer", *names))).cause == "scheduler"
    assert of(after, compared(110, row("optimizer", names[0], "optimizer.state.0.exp_avg"))).cause == "optimizer"
    assert of(after, compared(110, row("optimizer", names[0], count=9))).cause == "optimizer"


def saved(folder: Path, name: str, **values: Any) -> Path:
    folder = folder / name
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"order": list(range(400)), "pos": 24}, True),
        ({"order": list(range(400))}, False),  # where in it is not told
        ({"epoch": 3, "batch": 7}, False),
    ],
)
def test_counts_do_not_tell_that_the_order_of_the_data_was_restored(
    tmp_path: Path, values: dict[str, Any], *, expected: bool
) -> None:
    torch = pytest.importorskip("torch")
    paths = []
    for name in ("one", "two"):
        paths.append(tmp_path / f"{name}.pt")
        torch.save({"model": {"weight": torch.ones(3)}, **values}, paths[-1])
    found = states.compare(*paths, None)
    assert ("loader" in found.equal_parts) is expected
    assert "model" in found.equal_parts


def test_names_of_places_and_of_generators_are_known() -> None:
    assert [held_by(name) for name in ("pos", "sampler.idx", "pos.weight", "np_state")] == [
        "data",
        "data",
        "model",
        "rng",
    ]


# Steps that begin anew in each epoch


def places(axis: Axis, *epochs: tuple[float | None, range]) -> list[int]:
    return [
        axis.place(step, epoch, segment) for segment, (epoch, steps) in enumerate(epochs, 1) for step in steps
    ]  # fmt: skip


def test_steps_of_epochs_are_those_of_the_whole_run() -> None:
    assert places(Axis(), (1.0, range(1, 11)), (2.0, range(1, 11)), (3.0, range(1, 4))) == list(range(1, 24))
    assert places(Axis(), (None, range(1, 11)), (None, range(1, 11))) == list(range(1, 21))
    assert places(Axis(), (1.0, range(1, 11))) == list(range(1, 11))


def test_a_run_that_goes_on_in_an_epoch_stands_where_the_unbroken_one_did() -> None:
    bases = {1.0: 0.0, 2.0: 10.0, 3.0: 20.0}
    assert places(Axis(bases), (2.0, range(7, 11)), (3.0, range(1, 3))) == [17, 18, 19, 20, 21, 22]
    assert places(Axis(bases), (1.0, range(1, 3))) == [1, 2]
    assert places(Axis(bases), (9.0, range(4, 6))) == [4, 5]  # nobody knows where that is


# What is said


def test_few_digits_are_said() -> None:
    coarse = {step: {"loss": round(loss(step), 2)} for step in range(1, 111)}
    given = {step: coarse[step] for step in range(101, 111)}
    first = course(coarse)
    resumed = Resumed(
        how="kill", before=course({step: coarse[step] for step in range(1, 101)}), after=course(given),
        stopped_at=100, exact=True, checkpoint="c", checkpoint_step=100, checkpoint_keys=KEYS, saved_on_signal=None,
        load_error=None,
    )  # fmt: skip
    found = judge(first, first, resumed, until=110)
    assert found.passed
    assert any("printed with 2 digits" in note for note in found.notes)
    fine = of({step: {"loss": loss(step)} for step in range(101, 111)})
    assert not any("digits" in note for note in fine.notes)
    assert [decimals(value) for value in (1.25, 3.0, 1e-5, float("nan"))] == [2, 0, 5, 0]


def test_the_signal_that_saved_nothing_is_named() -> None:
    after = {step: {"loss": loss(step)} for step in range(81, 111)}
    more = {"how": "graceful", "saved_on_signal": False, "checkpoint_step": 80}
    found = of(after, **more, sent="SIGINT")
    assert any("by SIGINT; if it saves on SIGTERM, give --stop-signal term" in note for note in found.notes)


def test_nothing_saved_is_no_guess() -> None:
    lost = {step: {"loss": loss(step)} for step in range(1, 111)}
    found = of(lost, checkpoint=None, checkpoint_step=None, checkpoint_keys=())
    assert found.cause == "nothing_saved"
    assert "Probably" not in found.text


# Whether the signal made a save


def left(step: int | None) -> Left:
    return Left(path=f"/c/{step}", step=step, maker="torch", at=20.0)


@pytest.mark.parametrize(
    ("step", "kept", "noticed", "signal", "expected"),
    [
        (14, (5, 10, 15, 20), (5, 10, 16, 20), None, True),  # next to a regular one, and known not to be it
        (15, (5, 10, 15, 20), (5, 10, 15, 20), None, None),
        (15, (5, 10, 15, 20), (5, 10, 15, 20), "SIGTERM", False),
        (14, (20,), (5, 10, 15, 20), None, None),  # the others are gone, and nobody knows of which step they were
        (12, (20,), (5, 10, 15, 20), None, True),
        (None, (5, 10, 15, 20), (5, 10, 15, 20), None, True),
        (14, (5, 20), (5, 10, 15, 20), None, None),
    ],
)
def test_a_save_is_that_of_the_signal_if_no_unbroken_run_has_made_it(
    step: int | None, kept: tuple[int, ...], noticed: tuple[int, ...], signal: str | None, *, expected: bool | None
) -> None:
    unbroken = SimpleNamespace(
        library=False, left=tuple(map(left, kept)), ran=SimpleNamespace(save_steps=noticed, bases={})
    )
    variants = Variants(cast("Any", None), cast("Any", unbroken), cast("Any", unbroken))
    ran = SimpleNamespace(asked_at=10.0, signal=signal, course=SimpleNamespace(last_step=13))
    found = SimpleNamespace(ran=ran, chosen=left(step), last=13)
    assert variants._saved_on_signal(cast("Stopped", found)) is expected


# What else is printed beside a loss that agrees


@pytest.mark.parametrize(
    ("name", "wrong", "cause"),
    [
        ("ema_loss", lambda step: loss(step) + 0.4, "ema_or_buffers"),
        ("ema_loss", loss, "unknown"),  # an average of the loss that has seen one value
        ("loss_scale", lambda _: 1024.0, "optimizer"),
        ("avg_loss", loss, "unknown"),
    ],
)
def test_what_differs_beside_an_equal_loss_is_named_by_what_it_is(
    name: str, wrong: Callable[[int], float], cause: str
) -> None:
    first = course({step: {"loss": loss(step), name: 2.0} for step in range(1, 111)})
    after = {step: {"loss": loss(step), name: wrong(step)} for step in range(101, 111)}
    resumed = Resumed(
        how="kill", before=course({step: dict(first.series[step]) for step in range(1, 101)}), after=course(after),
        stopped_at=100, exact=True, checkpoint="c", checkpoint_step=100, checkpoint_keys=KEYS, saved_on_signal=None,
        load_error=None,
    )  # fmt: skip
    found = judge(first, first, resumed, until=110)
    assert (found.passed, found.cause, found.metric) == (False, cause, name)


def test_the_scale_of_the_gradients_never_says_how_the_training_goes() -> None:
    assert main_metric(["loss_scale", "train_loss"]) == "train_loss"


def test_a_difference_as_small_as_rounding_is_that_of_the_weights() -> None:
    near = {step: {"loss": round(loss(step) + 0.0001 * (step - 100), 4)} for step in range(101, 111)}
    found = of(near)
    assert (found.cause, found.step) == ("weights", 101)
    assert "half precision" in found.text
    assert of({step: {"loss": round(loss(step) + 0.02, 4)} for step in range(101, 111)}).cause == "rng"


def mean_of(values: Callable[[int], float], begin: int, end: int) -> dict[int, dict[str, float]]:
    seen = [values(step) for step in range(begin, end + 1)]
    return {begin + at: {"loss": round(sum(seen[: at + 1]) / (at + 1), 6)} for at in range(len(seen))}


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (loss, None),
        (lambda step: loss(step) + 0.01 * (step - 101), "optimizer"),
        (lambda step: other(step)["loss"], "data_order"),
    ],
)
def test_an_average_that_begins_anew_is_told_from_a_wrong_resume(
    values: Callable[[int], float], cause: str | None
) -> None:
    first = course(mean_of(loss, 1, 110))
    resumed = Resumed(
        how="kill", before=course({step: first.series[step] for step in range(1, 101)}),
        after=course(mean_of(values, 101, 110)), stopped_at=100, exact=True, checkpoint="c", checkpoint_step=100,
        checkpoint_keys=KEYS, saved_on_signal=None, load_error=None,
    )  # fmt: skip
    found = judge(first, first, resumed, until=110)
    assert found.passed is (cause is None)
    if cause is None:
        assert any("average over all steps, which begins anew" in note for note in found.notes)
    elif cause == "optimizer":
        assert found.cause == cause
        assert "agrees up to step" in found.text


def test_a_noisy_run_whose_checkpoint_has_no_optimizer_is_told_so() -> None:
    def noisy(seed: int) -> dict[int, dict[str, float]]:
        return {step: {"loss": round(2.0 + ((step * 7919 + seed * 31337) % 101) / 101, 4)} for step in range(1, 111)}

    rows = noisy(3)
    for keys, expected in ((("model.w", "step"), True), (KEYS, False)):
        resumed = Resumed(
            how="kill", before=course({step: rows[step] for step in range(1, 101)}),
            after=course({step: rows[step] for step in range(101, 111)}), stopped_at=100, exact=True, checkpoint="c",
            checkpoint_step=100, checkpoint_keys=keys, saved_on_signal=None, load_error=None,
        )  # fmt: skip
        found = judge(course(noisy(1)), course(noisy(2)), resumed, until=110)
        assert found.passed
        assert found.floor["loss"] > 0
        assert any("holds no optimizer state" in note for note in found.notes) is expected
