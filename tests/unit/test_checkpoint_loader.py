"""A training that stops anywhere and goes on in fresh objects sees the batches and draws of one that never stopped.

Loaders with worker processes are in tests/processes/test_checkpoint_loader_workers.py.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
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
    QUIET,
    WARNED,
    Again,
    Drawing,
    EagerSampler,
    LazySampler,
    Numbers,
    Recipe,
    Stream,
    Training,
    alone,
    assert_a_second_stop_changes_nothing_either,
    assert_a_stop_anywhere_changes_nothing,
    assert_beginning_leaves_random_numbers_as_they_were,
    plain,
    same_without,
    straight,
    torchdatas,
    torchs,
)
from overnight.checkpoint import loader as room  # noqa: E402
from overnight.checkpoint import rng  # noqa: E402
from overnight.checkpoint.errors import CheckpointError  # noqa: E402
from overnight.checkpoint.loader import LoaderPosition  # noqa: E402

pytestmark = pytest.mark.filterwarnings(WARNED)


@pytest.mark.parametrize("name", [name for name in EXACT if "worker" not in name])
def test_a_stop_anywhere_changes_nothing(name: str) -> None:
    assert_a_stop_anywhere_changes_nothing(name)


@pytest.mark.parametrize("name", [name for name in EXACT if "worker" not in name])
def test_a_second_stop_changes_nothing_either(name: str) -> None:
    assert_a_second_stop_changes_nothing_either(name)


@pytest.mark.parametrize("name", [name for name in EXACT if "worker" not in name])
def test_neither_saving_nor_wrapping_changes_what_a_plain_loop_sees(name: str) -> None:
    seen, _, _ = straight(name, 2 * EPOCH)
    never = Training(name, 1)
    assert never.go(2 * EPOCH) == seen
    bare = Training(name, 1)
    found: list[Any] = []
    for epoch in range(2):
        for one in (bare.loader, getattr(bare.loader, "sampler", None)):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        for batch in bare.loader:
            found.append((plain(batch), bare.dropout()))
            if len(found) >= 2 * EPOCH:
                break
    if name not in ("plain, shuffle, shared generator", "plain, shuffle, shared generator, odd size"):
        assert found[: 2 * EPOCH] == seen[: len(found)]


# -- each piece is needed --------------------------------------------------------------------------------------------


def test_without_random_numbers_dropout_differs() -> None:
    seen, saved, _ = straight("plain, shuffle", 3 * EPOCH)
    again = Training("plain, shuffle", 2)
    again.place.restore(saved[3]["loader"])
    again.place.begin()
    (batch, dropout), (wanted, wanted_dropout) = again.step(), seen[3]
    assert [row[0] for row in batch] == [row[0] for row in wanted]
    assert batch != wanted
    assert dropout != wanted_dropout


@pytest.mark.parametrize("name", ["stateful, shuffle", "plain, shuffle", "anything with a state", "a list"])
def test_without_the_place_batches_differ(name: str) -> None:
    seen, saved, _ = straight(name, 3 * EPOCH)
    again = Training(name, 2)
    assert rng.restore(saved[3]["rng"], {}) == []
    assert [one[0] for one in again.go(EPOCH)] != [one[0] for one in seen[3 : 3 + EPOCH]]


@pytest.mark.parametrize(
    ("name", "piece", "value"),
    [
        ("plain, shuffle", "began", None),
        ("plain, shuffle, generator", "began", None),
        ("stateful, stream", "began", None),
        ("anything that counts", "began", None),
        ("plain, shuffle, generator", "own", {}),
        ("plain, dataset with its own generator", "own", {}),
        ("plain, sampler with epochs", "epoch", 0),
        ("plain, shuffle", "batches", 2),
        ("plain, shuffle", "ended", False),
        ("stateful, shuffle", "position", None),
        ("anything with a state", "position", None),
    ],
)
def test_each_piece_of_the_place_is_needed(name: str, piece: str, value: Any) -> None:
    """At one of the stops at least; ``position`` can be come to by reading as well, but a loader of its own may not."""
    may_be_lost = (("stateful, shuffle", "position"), ("plain, shuffle", "ended"))
    assert same_without(name, piece, value) == ((name, piece) in may_be_lost)


def test_the_end_of_an_epoch_reads_nothing_again() -> None:
    fetched = []

    class Counted(Numbers):
        def __getitem__(self, index: int) -> Any:
            fetched.append(index)
            return super().__getitem__(index)

    recipes: dict[str, Recipe] = {"counted": alone(torchs(Counted, shuffle=True))}
    _, saved, _ = straight("counted", EPOCH + 1, recipes)
    for stop, read in ((3, 6), (EPOCH, 0), (EPOCH + 1, 2)):
        fetched.clear()
        again = Training("counted", 2, recipes)
        again.resume(saved[stop])
        assert len(fetched) == read


@pytest.mark.parametrize("name", ["plain, shuffle", "stateful, shuffle"])
@pytest.mark.parametrize("stop", [3, EPOCH, EPOCH + 3])
def test_beginning_leaves_random_numbers_as_they_were(name: str, stop: int) -> None:
    assert_beginning_leaves_random_numbers_as_they_were(name, stop)


def test_the_next_batch_goes_to_the_place_if_nobody_asked_before() -> None:
    seen, saved, _ = straight("plain, shuffle", 3 * EPOCH)
    again = Training("plain, shuffle", 2)
    again.place.restore(saved[3]["loader"])
    rng.restore(saved[3]["rng"], {})
    assert again.go(EPOCH) == seen[3 : 3 + EPOCH]


# -- what cannot be exact --------------------------------------------------------------------------------------------


def test_draws_that_loader_and_training_share_are_said() -> None:
    """A shuffle buffer that draws where the training draws, too: what it holds depends on when it drew."""
    recipes: dict[str, Recipe] = {
        "stream": alone(torchs(Stream)),
        "again": alone(Again),
        "lazy": alone(lambda: DataLoader(Numbers(20), 2, sampler=LazySampler(20), num_workers=2)),
    }
    differed = []
    for name, recipe in recipes.items():
        seen, saved, first = straight(name, 4 * EPOCH, recipes)
        assert len(first.said) == 1
        assert ("torch" if name == "lazy" else "Python's random") in first.said[0]
        assert "shuffle buffer" in first.said[0]
        again = Training(name, 2, {name: recipe})
        again.resume(saved[3])
        differed.append(again.go(EPOCH) != seen[3 : 3 + EPOCH])
    assert differed == [True, False, True]  # Again has drawn all of its order before: nothing of it is lost


@pytest.mark.parametrize("name", [name for name in EXACT if name in QUIET or "workers" not in name])
def test_nothing_is_said_of_draws_that_do_not_mix(name: str) -> None:
    training = Training(name, 1)
    training.go(2 * EPOCH)
    assert training.said == []


# -- odd cases -------------------------------------------------------------------------------------------------------


def test_a_plain_loader_becomes_a_stateful_one() -> None:
    plain_kind: dict[str, Recipe] = {"it": alone(torchs(shuffle=False))}
    seen, saved, _ = straight("it", 3 * EPOCH, plain_kind)
    again = Training("it", 2, {"it": alone(torchdatas(shuffle=False))})
    again.resume(saved[3])
    assert again.go(EPOCH) == seen[3 : 3 + EPOCH]


def test_a_place_that_the_loader_refuses_is_named() -> None:
    _, saved, _ = straight("stateful, shuffle", 3)
    del saved[3]["loader"]["position"]["_num_yielded"]
    again = Training("stateful, shuffle", 2)
    again.place.restore(saved[3]["loader"])
    with pytest.raises(CheckpointError, match=r"batch 3 of epoch 0: .*_num_yielded"):
        again.place.begin()


def test_fewer_data_than_before_are_named() -> None:
    _, saved, _ = straight("a list", 3)
    again = Training("a list", 2, {"a list": alone(lambda: [[1]])})
    again.place.restore(saved[3]["loader"])
    with pytest.raises(CheckpointError, match=r"ends after 1 batches of epoch 0.* made after 3"):
        again.place.begin()


@pytest.mark.parametrize("empty", [[], (), range(0), DataLoader(Numbers(1), batch_size=2, drop_last=True), iter([])])
def test_no_data_are_an_error_and_not_an_endless_search(empty: Any) -> None:
    place = LoaderPosition(empty, say=print)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no batch in epoch 0|used up after 0"):
            next(place)


def test_an_iterator_that_is_used_up_says_so() -> None:
    place = LoaderPosition(iter([1, 2]), say=print)
    assert [next(place), next(place)] == [1, 2]
    with pytest.raises(CheckpointError, match="used up after 2 batches"):
        next(place)


def test_what_cannot_be_iterated_is_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match="a int, which cannot be iterated"):
        LoaderPosition(3, say=print)


def test_a_loader_that_gives_more_than_its_length_loses_nothing() -> None:
    class Short(EagerSampler):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[int]:
            return iter(range(2 * EPOCH))

    recipes: dict[str, Recipe] = {"it": alone(lambda: DataLoader(Drawing(), 2, sampler=Short(4)))}
    seen, saved, training = straight("it", 4 * EPOCH, recipes)
    assert [batch[0][0] for batch, _ in seen[:6]] == [0.0, 2.0, 4.0, 6.0, 8.0, 0.0]
    assert training.place.epoch == 3
    training = Training("it", 1, recipes)
    training.go(1)
    saved[1] = training.save()
    for stop in (1, 3, EPOCH, EPOCH + 1):
        again = Training("it", 2, recipes)
        again.resume(saved[stop])
        assert again.go(2 * EPOCH) == seen[stop : stop + 2 * EPOCH]


def test_a_long_way_back_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, saved, _ = straight("plain, shuffle", 3)
    monkeypatch.setattr(room, "PATIENCE_S", -1.0)
    again = Training("plain, shuffle", 2)
    again.resume(saved[3])
    assert len(again.said) == 1
    assert again.said[0].startswith("reading the first 3 batches of epoch 0 again")


def test_before_the_first_batch_there_is_nothing_to_come_to() -> None:
    training = Training("stateful, shuffle", 1)
    saved = training.save()
    seen = training.go(EPOCH)
    again = Training("stateful, shuffle", 2)
    again.resume(saved)
    assert again.go(EPOCH) == seen


def test_no_module_is_loaded_for_data_that_need_none() -> None:
    code = (
        "import sys; from overnight.checkpoint.loader import LoaderPosition; from overnight.checkpoint import rng\n"
        "place = LoaderPosition([1, 2, 3], say=print); next(place); state = place.state(); rng.capture({})\n"
        "other = LoaderPosition([1, 2, 3], say=print); other.restore(state); other.begin(); assert next(other) == 2\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_process_goes_on_as_well(tmp_path: Path) -> None:
    name = "stateful, shuffle, shared generator"
    seen, saved, _ = straight(name, 4 * EPOCH)
    torch.save(saved[3], tmp_path / "saved.pt")
    code = f"import sys; sys.path.insert(0, {str(Path(here.__file__).parent)!r}); import loader_trainings as here; "
    code += f"here.go_on({name!r}, {str(tmp_path)!r})"
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert pickle.loads((tmp_path / "seen").read_bytes()) == seen[3 : 3 + 2 * EPOCH]
