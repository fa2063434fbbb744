"""Loaders with worker processes: a training that was stopped sees the batches and draws of one that never was.

A few of each kind run every time, all of them with `make test-long`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="loaders of torch are what is resumed")
pytest.importorskip("torchdata", reason="torchdata's loader is what is resumed")

from torch.utils.data import DataLoader  # noqa: E402

import loader_trainings as here  # noqa: E402
from loader_trainings import (  # noqa: E402
    EPOCH,
    EXACT,
    LIVING,
    TWO,
    WARNED,
    Drawing,
    EagerSampler,
    Keeping,
    KeptStream,
    Keyed,
    Numbers,
    Recipe,
    StatefulDataLoader,
    Stream,
    Training,
    alone,
    assert_a_second_stop_changes_nothing_either,
    assert_a_stop_anywhere_changes_nothing,
    assert_beginning_leaves_random_numbers_as_they_were,
    own,
    same_without,
    straight,
    torchdatas,
    torchs,
)

pytestmark = pytest.mark.filterwarnings(WARNED)


def some(cases: Iterable[Any], *every_time: Any) -> list[Any]:
    """Return all cases; those that do not run every time are marked as long."""
    left = set(every_time)
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if case in left else pytest.mark.long))
        left.discard(case)
    assert not left
    return found


WORKERS = [name for name in EXACT if "worker" in name]


@pytest.mark.parametrize(
    "name",
    some(
        WORKERS,
        "stateful, 2 workers, dataset with state",
        "stateful, living workers, eager sampler",
        "plain, 2 workers, shuffle, shared generator",
        "plain, stream, living workers",
    ),
)
def test_a_stop_anywhere_changes_nothing_in_workers(name: str) -> None:
    assert_a_stop_anywhere_changes_nothing(name)


TWICE = [
    "stateful, 2 workers, snapshots every 3",
    "stateful, 2 workers, dataset with state",
    "stateful, living workers",
    "stateful, stream, 2 workers",
    "plain, 2 workers, shuffle, shared generator",
    "plain, living workers, shuffle",
]


@pytest.mark.parametrize("name", some(TWICE, "stateful, 2 workers, snapshots every 3"))
def test_a_second_stop_changes_nothing_either_in_workers(name: str) -> None:
    assert_a_second_stop_changes_nothing_either(name)


@pytest.mark.parametrize(
    ("name", "piece"),
    some(
        [("plain, 2 workers, shuffle", "began"), ("plain, living workers, shuffle", "pool")],
        ("plain, living workers, shuffle", "pool"),
    ),
)
def test_each_piece_of_the_place_is_needed_by_workers(name: str, piece: str) -> None:
    assert not same_without(name, piece, None)


@pytest.mark.parametrize("stop", some([3, EPOCH, EPOCH + 3], 3))
def test_beginning_workers_leaves_random_numbers_as_they_were(stop: int) -> None:
    assert_beginning_leaves_random_numbers_as_they_were("plain, living workers, shuffle", stop)


INEXACT: dict[str, Recipe] = {
    "stateful": alone(torchdatas(Drawing, shuffle=True, **TWO)),
    "stateful, living": alone(torchdatas(Drawing, shuffle=True, **LIVING)),
    "plain, living": alone(torchs(Drawing, shuffle=True, **LIVING)),
}


@pytest.mark.parametrize(
    ("name", "stop"),
    some(
        [(name, stop) for name in INEXACT for stop in (3, EPOCH, EPOCH + 3)],
        ("stateful", 3),
        ("stateful, living", EPOCH + 3),
        ("plain, living", EPOCH),
    ),
)
def test_only_what_workers_draw_differs_and_it_is_said(name: str, stop: int) -> None:
    """Sample, dropout and everything but the worker's draws are as without a stop; where they differ is as was said."""
    seen, saved, first = straight(name, stop + 2 * EPOCH, INEXACT)
    again = Training(name, 1000, INEXACT)
    again.resume(saved[stop])
    found = again.go(2 * EPOCH)
    wanted = seen[stop : stop + 2 * EPOCH]
    assert [dropout for _, dropout in found] == [dropout for _, dropout in wanted]
    assert [[row[0] for row in batch] for batch, _ in found] == [[row[0] for row in batch] for batch, _ in wanted]
    left = -stop % EPOCH
    differs = [one != other for one, other in zip(found, wanted, strict=True)]
    if name == "stateful":
        assert differs == [True] * left + [False] * (2 * EPOCH - left)
    elif name == "plain, living" and stop == 3:
        assert not any(differs)  # of the first epoch: the workers were started in it
    elif name == "plain, living" and stop == EPOCH:
        assert any(differs)  # a worker that has drawn as many batches by now as a new one draws ahead is the same
    else:
        assert all(differs)
    for said in (first.said, again.said):
        assert len(said) == 1
        assert "if Drawing draws any" in said[0]
        assert ("state_dict" if name == "stateful" else "persistent_workers=False") in said[0]


@pytest.mark.parametrize(
    ("name", "make", "silent"),
    [
        ("dataset with state", torchdatas(Keeping, **TWO), True),
        ("read again", torchs(Drawing, **TWO), True),
        ("no workers", torchdatas(Drawing), True),
        ("stream, read again", torchdatas(Stream, **TWO), True),
        ("stream with state", torchdatas(KeptStream, **TWO), True),
        ("workers", torchdatas(Numbers, **TWO), False),
    ],
)
def test_nothing_is_said_where_all_is_exact(name: str, make: Callable[[], Any], silent: bool) -> None:
    training = Training(name, 1, {name: alone(make)})
    training.go(2)
    training.save()
    assert (training.said == []) == silent


def test_an_iterator_that_keeps_its_place_is_noticed_when_it_is_asked() -> None:
    name = "stateful, iterator that keeps its place, 2 workers"
    training = Training(name, 1)
    training.go(2)
    assert training.said == []
    training.save()
    training.save()
    assert len(training.said) == 1
    assert "PlacesStream" in training.said[0]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    some(
        [(kind, *counts) for kind in (DataLoader, StatefulDataLoader) for counts in ((0, 2), (2, 0), (2, 1))],
        (DataLoader, 2, 0),
        (StatefulDataLoader, 2, 1),
    ),
)
def test_an_epoch_is_finished_with_as_many_workers_as_it_was_begun(kind: Any, before: int, after: int) -> None:
    """Torchdata itself refuses the state of another number of workers."""

    def make(workers: int) -> dict[str, Recipe]:
        return {"it": own(lambda g: kind(Keyed(), 2, sampler=EagerSampler(2 * EPOCH, g), num_workers=workers))}

    seen, saved, _ = straight("it", 3 * EPOCH, make(before))
    again = Training("it", 2, make(after))
    again.resume(saved[3])
    assert again.go(EPOCH - 3) == seen[3:EPOCH]
    assert again.loader.num_workers == after
    rows = [row[0] for batch, _ in again.go(EPOCH) for row in batch]
    assert sorted(rows) == list(range(2 * EPOCH))
    assert again.said == [
        f"epoch 0 is finished with {before} loader workers, as it was begun, and the next one has {after}"
    ]


@pytest.mark.parametrize(("before", "after"), some([(0, 2), (2, 0)], (0, 2)))
def test_torchdatas_own_place_is_taken_with_as_many_workers_as_before(before: int, after: int) -> None:
    seen, saved, _ = straight("it", 3 * EPOCH, {"it": alone(torchdatas(Keyed, shuffle=True, num_workers=before))})
    assert "position" in saved[3]["loader"]
    again = Training("it", 2, {"it": alone(torchdatas(Keyed, shuffle=True, num_workers=after))})
    again.resume(saved[3])
    assert again.go(EPOCH - 3) == seen[3:EPOCH]
    rows = [row[0] for batch, _ in again.go(EPOCH) for row in batch]
    assert sorted(rows) == list(range(2 * EPOCH))


def test_workers_that_no_longer_live_are_told() -> None:
    _, saved, _ = straight("it", 2 * EPOCH, {"it": alone(torchs(shuffle=True, **LIVING))})
    again = Training("it", 2, {"it": alone(torchs(shuffle=True, **TWO))})
    again.resume(saved[EPOCH + 3])
    assert again.said == ["persistent_workers was True and is False now, so that batches come in another order"]
    again.go(EPOCH)


@pytest.mark.long
def test_another_process_goes_on_with_workers_as_well(tmp_path: Path) -> None:
    name = "plain, 2 workers, shuffle"
    seen, saved, _ = straight(name, 4 * EPOCH)
    torch.save(saved[3], tmp_path / "saved.pt")
    code = f"import sys; sys.path.insert(0, {str(Path(here.__file__).parent)!r}); import loader_trainings as here; "
    code += f"here.go_on({name!r}, {str(tmp_path)!r})"
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert pickle.loads((tmp_path / "seen").read_bytes()) == seen[3 : 3 + 2 * EPOCH]
