"""The place in the data: which batch of which epoch comes next, and how to come there again exactly.

A loader that keeps its own place (torchdata's StatefulDataLoader, anything with state_dict and load_state_dict) is
asked for it. Any other one is begun again with the random numbers of the epoch's start, and its batches are read up to
the place. Where even that cannot give what never stopping would have given, it is said. Torch is used if it is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from overnight.checkpoint import loaderkind, rng
from overnight.checkpoint.errors import CheckpointError, StoppedError

PATIENCE_S = 5.0
"""Reading batches again for longer than this is worth a sentence."""

WATCHED = 3
"""Batches of a run that are looked at for random numbers which loader and training both draw."""

REFUSALS = (AssertionError, ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What loaders raise that are given a place which is not theirs."""


class LoaderPosition:
    """A loader, endless over epochs, that knows its place.

    ``epoch`` and ``batches`` (handed out in this epoch) count from 0, ``total`` is all batches ever. ``say`` gets a
    sentence, once, for each thing that will not be exact after a resume.
    """

    def __init__(self, loader: Any, *, say: Callable[[str], None]) -> None:
        if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
            raise CheckpointError(
                f"loader is a {_name(loader)}, which cannot be iterated: hand over a DataLoader, a list of batches or "
                f"anything else that gives batches"
            )
        self.loader = loader
        self.epoch = 0
        self.batches = 0
        self.total = 0
        self._say = say
        self._said: set[str] = set()
        self._iterator: Iterator[Any] | None = None
        self._ended = False  # the epoch is over, and the next one not begun
        self._ahead: list[Any] = []  # a batch that came where the loader's length said that none would
        self.stopping: Callable[[], bool] = lambda: False
        self._length: int | None = None
        self._began: Mapping[str, Any] | None = None  # random numbers when the epoch's iterator was made
        self._pool: int | None = None  # the epoch in which workers that live over epochs were started
        self._waiting: Mapping[str, Any] | None = None
        self._follows = loaderkind.keeps_its_place(loader)
        self._watch = WATCHED if loaderkind.may_remember(loader, follows=self._follows) else 0
        self._last: Mapping[str, Any] | None = None  # random numbers after the batch before, while watched
        self._speak(loaderkind.of_workers(loader, follows=self._follows))

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Return how many batches an epoch has, if the loader knows."""
        return len(self.loader)

    def __next__(self) -> Any:
        """Return the next batch; CheckpointError if there is none, neither in this epoch nor in a new one."""
        if self._waiting is not None:
            self.begin()
        try:
            batch = self._watched() if self._watch else self._fetch()
        except (RuntimeError, OSError) as error:  # as when data workers were ended
            if not self.stopping():
                raise
            raise StoppedError(f"a stop was asked for, and the loader gives no further batch: {error}") from error
        self.batches += 1
        self.total += 1
        self._look_for_the_end()
        return batch

    # -- saving and coming back --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the place: plain values, and the tensors that generators and datasets keep. Nothing is drawn."""
        if self._waiting is not None:
            return dict(self._waiting)
        state: dict[str, Any] = {
            "epoch": self.epoch,
            "batches": self.batches,
            "total": self.total,
            "ended": self._ended,
            "pool": self._pool,
            "workers": loaderkind.workers(self.loader),
            "began": self._began,
            "own": rng.capture_own(self._own()),
        }
        if self._follows and self._iterator is not None and self.batches:
            position = self.loader.state_dict()
            if not loaderkind.is_iterable_style(self.loader) or loaderkind.dataset_is_followed(position):
                state["position"] = position
                if loaderkind.is_iterable_style(self.loader):  # only its iterator keeps a place, which shows here first
                    self._speak(loaderkind.of_workers(self.loader, follows=True, known=True))
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember a place; :meth:`begin`, or else the next batch, goes there."""
        self._waiting = state
        self.epoch, self.batches, self.total = state["epoch"], state["batches"], state["total"]
        self._iterator, self._ahead, self._last = None, [], None

    def begin(self) -> None:
        """Go to the remembered place, if there is one; the global random numbers are left as they were found.

        Whoever restores random numbers does it after this: in an epoch, its iterator exists now and has drawn what
        it draws. At an epoch's end or before the first batch nothing is made, and the next iterator draws from what
        was restored, as it would have.
        """
        state, self._waiting = self._waiting, None
        if state is None:
            return
        found = rng.capture({})
        try:
            self._go_to(state)
        finally:
            rng.restore(found, {})

    def _go_to(self, state: Mapping[str, Any]) -> None:
        self._began, self._pool, self._ended = state["began"], state["pool"], state["ended"]
        position = state.get("position")
        if self._ended:
            self._start_pool()
        elif self.batches:
            with self._as_many_workers(state["workers"]):
                if position is not None and self._follows:
                    self._take(position)
                else:
                    self._read_again()
        for sentence in rng.restore_own(state["own"], self._own()):
            self._speak(f"in the loader, {sentence}")

    def _take(self, position: Any) -> None:
        self._set_epoch(self.epoch)
        self._rewind()
        try:
            self.loader.load_state_dict(position)
            self._iterator = iter(self.loader)
        except REFUSALS as error:
            raise CheckpointError(self._refused(error)) from error

    def _read_again(self) -> None:
        if self._pool is not None and self._pool < self.epoch:
            self._start_pool()
        self._set_epoch(self.epoch)
        self._rewind()
        self._iterator = iter(self.loader)
        self._length = self._known_length()
        self._wind(self._iterator, self.batches)
        self._look_for_the_end()

    @contextmanager
    def _as_many_workers(self, before: int) -> Iterator[None]:
        """Have the iterator of a begun epoch made with as many workers as before.

        Order and place depend on it: torchdata refuses another number, and torch begins a sampler twice with workers
        and once without, so that one which draws its order there would draw another.
        """
        now = loaderkind.workers(self.loader)
        if before == now or not loaderkind.is_torch_loader(self.loader):
            yield
            return
        later = "and so are later ones" if loaderkind.persistent(self.loader) else f"and the next one has {now}"
        self._speak(f"epoch {self.epoch} is finished with {before} loader workers, as it was begun, {later}")
        ahead = self.loader.prefetch_factor
        self.loader.num_workers, self.loader.prefetch_factor = before, (ahead or 2) if before else None
        try:
            yield
        finally:
            self.loader.num_workers, self.loader.prefetch_factor = now, ahead

    def _refused(self, error: BaseException) -> str:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return (
            f"the loader ({_name(self.loader)}) does not take the place that was saved at batch {self.batches} of "
            f"epoch {self.epoch}: {why}; hand over the loader and data of the run that was saved, or resume=False"
        )

    def _start_pool(self) -> None:
        """Have workers that live over epochs started: the run that was saved had them before this epoch's end."""
        if self._pool is None:
            return
        if not loaderkind.persistent(self.loader):
            self._speak("persistent_workers was True and is False now, so that batches come in another order")
            return
        self._set_epoch(self._pool)
        self._rewind()
        iter(self.loader)

    def _rewind(self) -> None:
        """Put the random numbers back to the epoch's start; generators that are not made yet are made by the epoch."""
        if self._began is not None:
            own = self._own()
            rng.restore({**self._began, "own": {}}, {})
            rng.restore_own({name: one for name, one in self._began["own"].items() if name in own}, own)

    def _wind(self, iterator: Iterator[Any], batches: int) -> None:
        began, told = time.monotonic(), False
        for done in range(batches):
            try:
                next(iterator)
            except StopIteration:
                raise CheckpointError(
                    f"the loader ({_name(self.loader)}) ends after {done} batches of epoch {self.epoch}, and the "
                    f"checkpoint was made after {batches}: hand over the data of the saved run, or resume=False"
                ) from None
            if not told and time.monotonic() - began > PATIENCE_S:
                told = True
                self._say(
                    f"reading the first {batches:,} batches of epoch {self.epoch} again to come to the saved place; "
                    f"a loader and sampler with state_dict, as torchdata's StatefulDataLoader, are there at once"
                )

    # -- one batch ---------------------------------------------------------------------------------------------------

    def _fetch(self) -> Any:
        if self._ended:
            self._turn()
        iterator = self._start() if self._iterator is None else self._iterator
        if self._ahead:
            return self._ahead.pop()
        while True:
            try:
                return next(iterator)
            except StopIteration:
                self._check_more(iterator)
            self._turn()
            iterator = self._start()

    def _turn(self) -> None:
        self.epoch += 1
        self.batches = 0
        self._ended = False
        self._iterator = None

    def _start(self) -> Iterator[Any]:
        self._set_epoch(self.epoch)
        if not loaderkind.is_data(self.loader):
            self._began = rng.capture(self._own())
        if self._pool is None and loaderkind.persistent(self.loader):
            self._pool = self.epoch
        self._iterator = iter(self.loader)
        self._length = self._known_length()
        return self._iterator

    def _look_for_the_end(self) -> None:
        """End the epoch with its last batch, where the length is known, so that a resume reads none of it again.

        What the end draws (torch's RandomSampler: one permutation more) is drawn here.
        """
        if self._iterator is None or self.batches != self._length:
            return
        try:
            self._ahead.append(next(self._iterator))
        except StopIteration:
            self._iterator, self._ended = None, True

    def _check_more(self, iterator: Iterator[Any]) -> None:
        if iterator is self.loader and (not self.batches or not self._follows):
            raise CheckpointError(
                f"the loader ({_name(self.loader)}) is used up after {self.total} batches: it can be iterated only "
                f"once; hand over something that begins anew, as a list or a DataLoader, or one that never ends"
            )
        if not self.batches:
            raise CheckpointError(
                f"the loader ({_name(self.loader)}) gave no batch in epoch {self.epoch}: are there data, "
                f"and not fewer of them than one batch takes?"
            )

    def _watched(self) -> Any:
        """Fetch a batch, and see whether it draws from global random numbers that the training draws from, too."""
        before = rng.capture({})
        batch = self._fetch()
        after = rng.capture({})
        if self._last is not None and self.batches:  # the first batch of an epoch draws in any case
            drawn = [one for one in rng.moved(before, after) if one in rng.moved(self._last, before)]
            self._watch -= 1
            if drawn:
                self._speak(
                    f"the loader ({_name(self.loader)}) draws from the random numbers of {' and '.join(drawn)} while "
                    f"the training does so too: to come to its place after a resume it is read again without the "
                    f"training's draws, so batches differ if it keeps anything (a shuffle buffer, batches or indices "
                    f"drawn in advance); give it a generator of its own, or state_dict and load_state_dict"
                )
                self._watch = 0
        self._last = after
        return batch

    # -- the loader --------------------------------------------------------------------------------------------------

    def _own(self) -> dict[str, Any]:
        return {} if loaderkind.is_data(self.loader) else rng.within(self.loader)

    def _set_epoch(self, epoch: int) -> None:
        """Tell the epoch to whatever wants to know: the loader, its samplers, its dataset."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        asked = [self.loader, getattr(self.loader, "sampler", None), batch_sampler]
        asked += [getattr(batch_sampler, "sampler", None), getattr(self.loader, "dataset", None)]
        told: set[int] = set()
        for one in asked:
            if id(one) not in told and callable(getattr(one, "set_epoch", None)):
                told.add(id(one))
                one.set_epoch(epoch)

    def _known_length(self) -> int | None:
        """Return the batches of an epoch, None if they cannot be known or need not be."""
        if not loaderkind.is_data(self.loader) and (
            self._follows or not loaderkind.is_torch_loader(self.loader) or loaderkind.is_iterable_style(self.loader)
        ):
            return None
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError):  # a sampler that does not know
            return None

    def _speak(self, sentence: str | None) -> None:
        if sentence is not None and sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def _name(loader: object) -> str:
    return type(loader).__qualname__
