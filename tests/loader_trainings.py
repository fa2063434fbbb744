"""Loaders of every kind, and a small training over them that is stopped and resumed: for tests of the data position.

No test is here: those without worker processes are unit tests, those with them are process tests.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="a training's numbers come from numpy, too")
torch = pytest.importorskip("torch", reason="loaders of torch are what is resumed")
stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata's loader is what is resumed")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from overnight.checkpoint import rng  # noqa: E402
from overnight.checkpoint.errors import CheckpointError  # noqa: E402
from overnight.checkpoint.leaves import Apart, as_torch, at_path, buffer, together  # noqa: E402
from overnight.checkpoint.loader import LoaderPosition  # noqa: E402

StatefulDataLoader = stateful.StatefulDataLoader
WARNED = "ignore:'set_vital' is deprecated"  # torchdata 0.11 calls it, torch 2.13 warns
EPOCH = 5  # batches
STOPS = (1, 3, EPOCH, EPOCH + 1, EPOCH + 3, 2 * EPOCH)

Recipe = Callable[[], tuple[Any, dict[str, Any]]]


# -- data ------------------------------------------------------------------------------------------------------------


def drawn() -> list[float]:
    return [torch.rand(()).item(), random.random(), np.random.random()]


class Numbers(Dataset):
    """Nothing is drawn."""

    def __init__(self, size: int = 2 * EPOCH) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)], dtype=torch.float64)


class Drawing(Numbers):
    """Augmentation from the global numbers of whoever fetches: the training, or a worker."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), *drawn()], dtype=torch.float64)


class Keyed(Numbers):
    """Augmentation seeded by the sample's index."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), np.random.default_rng(index).random()], dtype=torch.float64)


class Keeping(Drawing):
    """Its state holds the random numbers of the worker: tensors, arrays, bytes and tuples."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "torch": torch.get_rng_state(),
            "numpy": np.random.get_state(legacy=False)["state"],
            "python": random.getstate(),
            "note": b"\x00\xff",
            "count": np.int64(7),
            "mask": np.array([True, False]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["note"] == b"\x00\xff"
        assert int(state["count"]) == 7
        assert state["mask"].dtype == np.bool_
        torch.set_rng_state(state["torch"])
        np.random.set_state({"bit_generator": "MT19937", "state": state["numpy"], "has_gauss": 0, "gauss": 0.0})
        random.setstate(state["python"])


class OwnNumbers(Numbers):
    """It carries a generator that the epoch makes anew at first, and draws from in the main process."""

    def __init__(self) -> None:
        super().__init__(2 * EPOCH + 1)
        self.transforms = [{"noise": np.random.default_rng(np.random.randint(1 << 30))}]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), self.transforms[0]["noise"].random()], dtype=torch.float64)


class Stream(IterableDataset):
    """Each worker gives its share; a shuffle buffer remembers what was drawn before."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        at, of = (info.id, info.num_workers) if info else (0, 1)
        held: list[int] = []
        for one in range(at, 2 * EPOCH, of):
            held.append(one)
            if len(held) == 3:
                yield torch.tensor([held.pop(random.randrange(3)), np.random.random()])
        yield from (torch.tensor([float(one), 0.0]) for one in held)


class Places:
    """An iterator that keeps its place."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Places:
        return self

    def __next__(self) -> Any:
        if self.at == 2 * EPOCH:
            raise StopIteration
        self.at += 1
        return torch.tensor(float(self.at))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class PlacesAgain(Places):
    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self.at = 0
            raise


class PlacesStream(IterableDataset):
    def __iter__(self) -> Places:
        return Places()


class KeptStream(IterableDataset):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 2 * EPOCH:
            self.at += 1
            yield torch.tensor(float(self.at))
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class EagerSampler(Sampler):
    """Draws its order where the iterator is made, and has no state: torchdata draws another one when it comes back."""

    def __init__(self, size: int, generator: Any = None) -> None:
        self.size, self.generator = size, generator

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


class EpochSampler(EagerSampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(self.size).tolist())


class LazySampler(EagerSampler):
    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(self.size, ())) for _ in range(self.size))


class Position:
    """Anything with state_dict and load_state_dict: an order of its own for each epoch."""

    def __init__(self) -> None:
        self.order, self.at = np.random.default_rng(np.random.randint(1 << 30)), 0
        self.items = self.order.permutation(EPOCH)

    def __iter__(self) -> Iterator[Any]:
        while self.at < EPOCH:
            self.at += 1
            yield [int(self.items[self.at - 1]), self.items.sum()]
        self.at, self.items = 0, self.order.permutation(EPOCH)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "items": self.items}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.items = state["at"], np.array(state["items"])


class Counting:
    """Its state is a count: the order is drawn anew where it comes back."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self.follow(torch.randperm(EPOCH).tolist())

    def follow(self, order: list[int]) -> Iterator[int]:
        while self.at < EPOCH:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Again:
    """Anything that can be iterated again and again."""

    def __iter__(self) -> Iterator[float]:
        order = list(range(EPOCH))
        random.shuffle(order)
        return (one + random.random() for one in order)


def endless() -> Iterator[list[float]]:
    while True:
        yield np.random.random(2).tolist()


# -- trainings -------------------------------------------------------------------------------------------------------


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def alone(make: Callable[[], Any]) -> Recipe:
    return lambda: (make(), {})


def shared(make: Callable[[Any], Any]) -> Recipe:
    """The loader's generator is handed over, too, and the training draws from it."""

    def recipe() -> tuple[Any, dict[str, Any]]:
        made = torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))
        return make(made), {"shuffle": made}

    return recipe


def own(make: Callable[[Any], Any]) -> Recipe:
    return lambda: (make(torch.Generator().manual_seed(int(torch.randint(1 << 30, ())))), {})


def torchs(data: Callable[[], Any] = Numbers, kind: Any = DataLoader, **more: Any) -> Callable[..., Any]:
    return lambda generator=None: kind(data(), batch_size=2, generator=generator, **more)


def torchdatas(data: Callable[[], Any] = Numbers, **more: Any) -> Callable[..., Any]:
    return torchs(data, StatefulDataLoader, **more)


def odd() -> Any:
    return Numbers(2 * EPOCH - 1)


TWO = {"num_workers": 2}
LIVING = {"num_workers": 2, "persistent_workers": True}

EXACT: dict[str, Recipe] = {
    "stateful, in order": alone(torchdatas(Drawing)),
    "stateful, shuffle": alone(torchdatas(Drawing, shuffle=True)),
    "stateful, shuffle, odd size": own(torchdatas(odd, shuffle=True)),
    "stateful, shuffle, shared generator": shared(torchdatas(Drawing, shuffle=True)),
    "stateful, 2 workers, shuffle": alone(torchdatas(shuffle=True, **TWO)),
    "stateful, 2 workers, shuffle, generator": own(torchdatas(Keyed, shuffle=True, **TWO)),
    "stateful, 2 workers, snapshots every 3": own(torchdatas(Keyed, shuffle=True, snapshot_every_n_steps=3, **TWO)),
    "stateful, 2 workers, dataset with state": alone(torchdatas(Keeping, shuffle=True, **TWO)),
    "stateful, living workers": alone(torchdatas(shuffle=True, **LIVING)),
    "stateful, living workers, dataset with state": alone(torchdatas(Keeping, shuffle=True, **LIVING)),
    "stateful, replacement": alone(
        lambda: StatefulDataLoader(
            Numbers(), 2, sampler=stateful.sampler.RandomSampler(Numbers(), replacement=True)
        )
    ),
    "stateful, sampler of torch": own(
        lambda g: StatefulDataLoader(Drawing(), 2, sampler=RandomSampler(Numbers(), generator=g))
    ),
    "stateful, eager sampler": alone(lambda: StatefulDataLoader(Drawing(), 2, sampler=EagerSampler(2 * EPOCH))),
    "stateful, 2 workers, eager sampler": own(
        lambda g: StatefulDataLoader(Drawing(), 2, sampler=EagerSampler(2 * EPOCH, g), num_workers=2)
    ),
    "stateful, living workers, eager sampler": own(
        lambda g: StatefulDataLoader(Numbers(), 2, sampler=EagerSampler(2 * EPOCH, g), **LIVING)
    ),
    "stateful, distributed sampler": alone(
        lambda: StatefulDataLoader(Drawing(), 2, sampler=DistributedSampler(Numbers(4 * EPOCH), 2, 1))
    ),
    "stateful, its own distributed sampler, 2 workers": alone(
        lambda: StatefulDataLoader(
            Numbers(4 * EPOCH), 2, sampler=stateful.sampler.StatefulDistributedSampler(Numbers(4 * EPOCH), 2, 1), **TWO
        )
    ),
    "stateful, batch sampler": alone(
        lambda: StatefulDataLoader(Numbers(), batch_sampler=BatchSampler(EagerSampler(2 * EPOCH), 2, drop_last=False))
    ),
    "stateful, stream": alone(torchdatas(Stream)),
    "stateful, stream, 2 workers": alone(torchdatas(Stream, **TWO)),
    "stateful, stream that keeps its place": alone(torchdatas(KeptStream)),
    "stateful, iterator that keeps its place": alone(torchdatas(PlacesStream)),
    "stateful, iterator that keeps its place, 2 workers": alone(torchdatas(PlacesStream, **TWO)),
    "plain, shuffle": alone(torchs(Drawing, shuffle=True)),
    "plain, shuffle, generator": own(torchs(Drawing, shuffle=True)),
    "plain, shuffle, shared generator": shared(torchs(Drawing, shuffle=True)),
    "plain, shuffle, shared generator, odd size": shared(torchs(odd, shuffle=True)),
    "plain, drop last": own(torchs(lambda: Numbers(2 * EPOCH + 1), shuffle=True, drop_last=True)),
    "plain, 2 workers": alone(torchs(Drawing, **TWO)),
    "plain, 2 workers, shuffle": alone(torchs(Drawing, shuffle=True, **TWO)),
    "plain, 2 workers, shuffle, shared generator": shared(torchs(Drawing, shuffle=True, **TWO)),
    "plain, living workers, shuffle": alone(torchs(Keyed, shuffle=True, **LIVING)),
    "plain, living workers, shuffle, generator": own(torchs(shuffle=True, **LIVING)),
    "plain, sampler": alone(lambda: DataLoader(Drawing(), 2, sampler=EagerSampler(2 * EPOCH))),
    "plain, lazy sampler": alone(lambda: DataLoader(Drawing(), 2, sampler=LazySampler(2 * EPOCH))),
    "plain, sampler with epochs": alone(lambda: DataLoader(Drawing(), 2, sampler=EpochSampler(2 * EPOCH))),
    "plain, sampler with epochs, living workers": alone(
        lambda: DataLoader(Numbers(), 2, sampler=EpochSampler(2 * EPOCH), **LIVING)
    ),
    "plain, weighted sampler": own(
        lambda g: DataLoader(Drawing(), 2, sampler=WeightedRandomSampler([1.0, 2.0] * EPOCH, 2 * EPOCH, generator=g))
    ),
    "plain, batch sampler": alone(
        lambda: DataLoader(Drawing(), batch_sampler=BatchSampler(EagerSampler(2 * EPOCH), 2, drop_last=True))
    ),
    "plain, no batches": alone(lambda: DataLoader(Drawing(EPOCH), batch_size=None, shuffle=True)),
    "plain, dataset with its own generator": alone(lambda: DataLoader(OwnNumbers(), 2, shuffle=True, drop_last=True)),
    "plain, stream": alone(torchs(Stream)),
    "plain, stream, 2 workers": alone(torchs(Stream, **TWO)),
    "plain, stream, living workers": alone(torchs(PlacesStream, **LIVING)),
    "anything with a state": alone(Position),
    "anything that counts": alone(Counting),
    "an iterator with a state": alone(PlacesAgain),
    "anything that begins anew": alone(Again),
    "a list": alone(lambda: [[one, one + 0.5] for one in range(EPOCH)]),
    "an iterator that can be read once": alone(endless),
}  # fmt: skip

QUIET = frozenset(
    {"anything that begins anew", "plain, stream", "stateful, stream", "an iterator that can be read once"}
)
"""What draws from Python's and numpy's numbers and may keep them: the training leaves those alone."""


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


class Training:
    def __init__(self, name: str, number: int, recipes: dict[str, Recipe] = EXACT) -> None:
        seed(number)
        self.loader, self.generators = recipes[name]()
        self.said: list[str] = []
        self.place = LoaderPosition(self.loader, say=self.said.append)
        self.quiet = name in QUIET

    def go(self, batches: int) -> list[Any]:
        return [self.step() for _ in range(batches)]

    def step(self) -> Any:
        batch = plain(next(self.place))
        return batch, self.dropout()

    def dropout(self) -> list[Any]:
        if self.quiet:
            return [torch.rand(2).tolist()]
        return [drawn(), *(torch.rand(2, generator=one).tolist() for one in self.generators.values())]

    def save(self) -> dict[str, Any]:
        return round_trip({"loader": self.place.state(), "rng": rng.capture(self.generators)})

    def resume(self, saved: dict[str, Any]) -> None:
        self.place.restore(saved["loader"])
        self.place.begin()
        assert rng.restore(saved["rng"], self.generators) == []


def round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from a file that holds no pickles."""
    apart = Apart()
    tree = apart.tree(state, ())
    data = [bytearray(buffer(one)) for one in apart.live]
    made = together(tree, lambda leaf: as_torch(apart.leaves[leaf], data[leaf]))
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    for path in apart.arrays:
        at_path(back, path, lambda tensor: tensor.numpy())
    return back


def straight(name: str, batches: int, recipes: dict[str, Recipe] = EXACT) -> tuple[list[Any], dict[int, Any], Training]:
    """Return what a training that never stops sees, and what it saves on its way."""
    training = Training(name, 1, recipes)
    seen, saved = [], {}
    for count in range(1, batches + 1):
        seen.append(training.step())
        if count in STOPS:
            saved[count] = training.save()
    return seen, saved, training


def assert_a_stop_anywhere_changes_nothing(name: str) -> None:
    seen, saved, first = straight(name, STOPS[-1] + 2 * EPOCH)
    for stop in STOPS[: 5 if "worker" in name else None]:
        again = Training(name, 1000 + stop)
        again.resume(saved[stop])
        assert again.go(2 * EPOCH) == seen[stop : stop + 2 * EPOCH], stop
        assert again.place.total == stop + 2 * EPOCH
        assert (again.place.epoch, again.place.batches) == where(name, stop + 2 * EPOCH)
    assert len(first.said) == len(set(first.said)) <= 1
    assert all("if " in one for one in first.said)


def where(name: str, count: int) -> tuple[int, int]:
    if name == "an iterator that can be read once":
        return 0, count
    per = 2 * EPOCH if name == "an iterator with a state" else EPOCH
    if name in ("stateful, iterator that keeps its place, 2 workers", "plain, stream, living workers"):
        per = 2 * EPOCH  # each worker gives all of it
    if name in ("plain, stream, 2 workers", "stateful, stream, 2 workers"):
        per = 6  # each worker's last batch is half full
    return (count - 1) // per, (count - 1) % per + 1


def assert_a_second_stop_changes_nothing_either(name: str) -> None:
    seen, saved, _ = straight(name, 3 * EPOCH)
    second = Training(name, 2)
    second.resume(saved[3])
    second.go(1)
    again = second.save()
    third = Training(name, 3)
    third.resume(again)
    assert third.go(2) == seen[4:6]
    again = third.save()
    fourth = Training(name, 4)
    fourth.resume(again)
    assert fourth.go(EPOCH) == seen[6 : 6 + EPOCH]


def same_without(name: str, piece: str, value: Any) -> bool:
    """Say whether all goes on as it should at every stop when a piece of the place is lost."""
    seen, saved, _ = straight(name, STOPS[-1] + EPOCH)
    same = []
    for stop in STOPS:
        again = Training(name, 1000 + stop)
        assert saved[stop]["loader"].get(piece) is not None or stop in (1, EPOCH, 2 * EPOCH) or piece == "position"
        saved[stop]["loader"][piece] = value
        try:
            again.resume(saved[stop])
            same.append(again.go(EPOCH) == seen[stop : stop + EPOCH])
        except CheckpointError:
            same.append(False)
    return all(same)


def assert_beginning_leaves_random_numbers_as_they_were(name: str, stop: int) -> None:
    _, saved, _ = straight(name, EPOCH + 3)
    again = Training(name, 2)
    before = rng.capture({})
    again.place.restore(saved[stop]["loader"])
    assert again.place.state() == saved[stop]["loader"]
    again.place.begin()
    assert rng.moved(before, rng.capture({})) == []
    again.place.state()
    assert rng.moved(before, rng.capture({})) == []


def go_on(name: str, folder: str) -> None:
    training = Training(name, 99)
    training.resume(torch.load(Path(folder) / "saved.pt", weights_only=True))
    (Path(folder) / "seen").write_bytes(pickle.dumps(training.go(2 * EPOCH)))
